// Tests the messages for environment variables with wrong values, and that reading variables has no side effects.
#include <gtest/gtest.h>

#include "child_process.h"
#include "jit_support.h"
#include "rapt/rapt.h"

namespace rapt::test {
namespace {

int times(const std::string& text, const std::string& part) {
  int found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

// Makes a small call on the CPU. The call itself logs nothing.
void call_on_the_cpu() {
  float numbers[4] = {1, 2, 3, 4}, out[4];
  const int64_t shape[] = {1, 1, 1, 4};
  rapt_tensor q{};
  q.device = {RAPT_DEVICE_CPU, 0}, q.data = numbers, q.dtype = RAPT_F32, q.rank = 4, q.shape = shape;
  rapt_tensor o = q;
  o.data = out;
  rapt_sdpa_args args{};
  args.struct_size = sizeof args;
  args.q = args.k = args.v = &q;
  args.out = &o;
  EXPECT_EQ(rapt_sdpa(nullptr, &args, nullptr), RAPT_OK) << rapt_last_error();
}

TEST(Environment, AWrongLogLevelIsToldByCallsOnTheCpu) {
  for (const char* level : {"debug", "INFO", "2"}) {
    const std::string said = in_child(concat("RAPT_LOG=", level), call_on_the_cpu, level);
    if (is_child()) continue;
    EXPECT_EQ(times(said, concat("rapt: RAPT_LOG = '", level, "': expected off, warn or info")), 1) << said;
  }
  for (const char* level : {"off", "warn", "info"}) {
    const std::string said = in_child(concat("RAPT_LOG=", level), call_on_the_cpu, level);
    EXPECT_EQ(times(said, "rapt: "), 0) << said;
  }
}

TEST(Environment, AWrongThreadLimitIsToldOnceByCallsOnTheCpu) {
  const auto twice = [] { call_on_the_cpu(), call_on_the_cpu(); };
  const std::string said = in_child("RAPT_THREADS=none", twice);
  EXPECT_EQ(times(said, "RAPT_THREADS = 'none'"), is_child() ? 0 : 1) << said;
}

// Runs rapt info in a separate folder.
std::string info(const std::string& folder, const std::string& environment) {
  const std::string out = folder + "/../printed-" + std::filesystem::path(folder).filename().string();
  const std::string command = concat("cd '", folder, "' && env -u RAPT_PACKS -u RAPT_LOG -u RAPT_THREADS ", environment,
                                     " '", RAPT_BINARY_DIR, "/rapt' info >'", out, "' 2>&1");
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
  std::string text = file_bytes(out);
  std::filesystem::remove(out);
  return text;
}

TEST(Environment, InfoSaysWhatHoldsAndMakesNothing) {
  if (!std::filesystem::exists(RAPT_BINARY_DIR "/rapt")) GTEST_SKIP() << "the program is not built";
  const TemporaryFolder folder;
  const std::string home = concat("-u RAPT_CACHE -u XDG_CACHE_HOME HOME='", folder.path(), "'");
  EXPECT_TRUE(contains(info(folder.path(), home), "cache     " + folder / ".cache/rapt")) << "where it will be";
  EXPECT_TRUE(names_in(folder.path()).empty());
  const std::string wrong = info(folder.path(), "RAPT_CACHE=OFF RAPT_LOG=debug RAPT_THREADS=1");
  for (const char* part : {"RAPT_CACHE = 'OFF': must be off or", "RAPT_LOG = 'debug': expected off", "threads   1\n"})
    EXPECT_TRUE(contains(wrong, part)) << part << ": " << wrong;
  EXPECT_TRUE(contains(info(folder.path(), "RAPT_CACHE=off"), "cache     off"));
  EXPECT_TRUE(names_in(folder.path()).empty());
}

}  // namespace
}  // namespace rapt::test
