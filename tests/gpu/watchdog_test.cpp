// Tests the watchdog with a process of rapt_gpu_tests whose tests hang and crash. Needs no GPU.
#include "watchdog.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>

#include "base/error.h"

namespace rapt::test {
namespace {

class Probe : public testing::Test {
 public:
  explicit Probe(std::function<void()> body) : body_(std::move(body)) {}
  void TestBody() override { body_(); }

 private:
  std::function<void()> body_;
};

void add(const char* name, std::function<void()> body) {
  testing::RegisterTest("WatchdogProbe", name, nullptr, nullptr, __FILE__, __LINE__,
                        [body]() -> testing::Test* { return new Probe(body); });
}

struct Outcome {
  int status = 0;
  std::string text;
};

Outcome run_probes(const std::string& seconds, const std::string& filter) {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  const std::string command =
      concat("env -u GTEST_TOTAL_SHARDS -u GTEST_SHARD_INDEX RAPT_GPU_TEST_PROBES=1 RAPT_GPU_TEST_SECONDS=", seconds,
             " '", self, "' --gtest_filter='", filter, "' 2>&1");
  Outcome outcome;
  std::FILE* child = popen(command.c_str(), "r");
  if (child == nullptr) return outcome;
  char part[4096];
  while (const size_t bytes = std::fread(part, 1, sizeof part, child)) outcome.text.append(part, bytes);
  outcome.status = pclose(child);
  return outcome;
}

void expect_words(const Outcome& outcome, const std::vector<std::string>& words) {
  for (const std::string& word : words)
    EXPECT_NE(outcome.text.find(word), std::string::npos) << outcome.text << "\nlacks: " << word;
}

}  // namespace

void register_watchdog_probes() {
  add("A_passes", [] { const WorkOn problem("a solved problem"); });
  add("B_hangs", [] {
    { const WorkOn solved("a solved problem"); }
    const WorkOn first("problem 1"), second("problem 2");
    for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
  });
  add("C_fails", [] { FAIL() << "as it should"; });
  add("D_crashes", [] {
    const WorkOn problem("problem 3");
    std::abort();
  });
  add("D_leaves", [] { _exit(0); });
  add("E_passes", [] { std::puts("the last one ran"); });
}

TEST(Watchdog, ATestThatHangsOrCrashesFailsAndTheRestRuns) {
  const Outcome outcome = run_probes("1", "WatchdogProbe.*");
  ASSERT_TRUE(WIFEXITED(outcome.status)) << outcome.text;
  EXPECT_EQ(WEXITSTATUS(outcome.status), 1);
  expect_words(
      outcome,
      {"FAILED WatchdogProbe.B_hangs: no end after 1 s, last problem problem 2\n"
       "  also not ended: problem 1\n",
       "failed: WatchdogProbe.B_hangs: no end after 1 s", "failed: WatchdogProbe.C_fails\n", "as it should",
       "WatchdogProbe.D_crashes: its process ended by signal 6 (Aborted), last problem problem 3",
       "WatchdogProbe.D_leaves: its process ended with code 0", "the last one ran", "\nGPU test cases: 0 skipped, "});
  EXPECT_EQ(outcome.text.find("failed: WatchdogProbe.E_passes"), std::string::npos) << outcome.text;
  EXPECT_EQ(outcome.text.find("a solved problem"), std::string::npos) << outcome.text;
}

TEST(Watchdog, TheLastTestMayHang) {
  const Outcome outcome = run_probes("1", "WatchdogProbe.*-*C_*:*D_*:*E_*");
  EXPECT_EQ(WEXITSTATUS(outcome.status), 1);
  expect_words(outcome, {"FAILED WatchdogProbe.B_hangs: no end after 1 s", "GPU test cases: "});
}

TEST(Watchdog, TestsThatPassPass) {
  for (const char* seconds : {"10", "0"}) {
    const Outcome outcome = run_probes(seconds, "*Probe.A_*:*Probe.E_*");
    EXPECT_EQ(outcome.status, 0) << outcome.text;
    expect_words(outcome, {"the last one ran", "GPU test cases: 0 skipped, 0 run"});
  }
  expect_words(run_probes("0", "*Probe.C_*"), {"failed: WatchdogProbe.C_fails\n  Failed\nas it should"});
}

}  // namespace rapt::test
