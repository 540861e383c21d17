// Tests rapt tune on a real GPU: a short search measures and checks candidates and writes a row, and a call with this
// row gives correct results. Runs the program `rapt`, which must be in the folder of the tests.
#include <filesystem>

#include "base/error.h"
#include "gpu_support.h"
#include "runtime/tuned_rows.h"
#include "tests/cpu/program.h"

namespace rapt::test {
namespace {

class Tune : public GpuTest {};

TEST_F(Tune, ASearchWritesARowThatCallsUse) {
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "rapt";
  if (!std::filesystem::exists(program)) return skip("no program beside the tests: " + program.string());
  std::string pattern = testing::TempDir() + "/rapt-tune-XXXXXX";
  ASSERT_NE(mkdtemp(pattern.data()), nullptr);
  const std::filesystem::path folder = pattern;
  const std::string rapt = concat("RAPT_TUNED='", folder.string(), "/tuned.txt' '", program.string(), "' ");
  // The second problem is too large for the oracle, so its candidates are checked on a smaller one.
  for (const char* line : {"f16 h8 q512 d64 causal", "bf16 b2 h16:4 q2048 d128"}) {
    const Outcome tuned = run_in(folder, concat(rapt, "tune '", line, "' --budget 20 --json"));
    ASSERT_EQ(tuned.code, 0) << tuned.out << tuned.err;
    EXPECT_NE(tuned.out.find("\"wrong\":[]"), std::string::npos) << tuned.out;
    EXPECT_EQ(tuned.out.find("\"tried\":0"), std::string::npos) << tuned.out;
    std::printf("%s", tuned.out.c_str());
    const Outcome explained = run_in(folder, concat(rapt, "explain '", line, "' --device cuda:0"));
    EXPECT_NE(explained.out.find("tuned    " + folder.string()), std::string::npos) << explained.out << explained.err;
    const Outcome checked = run_in(folder, concat(rapt, "check '", line, "' --device cuda:0"));
    EXPECT_EQ(checked.code, 0) << checked.out << checked.err;
    EXPECT_EQ(checked.err.find("tuned row"), std::string::npos) << checked.err;
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace rapt::test
