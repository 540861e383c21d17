// Tests rapt bench on a real GPU: the measured peaks are in a plausible order, no kernel is faster than its floor, and
// the clocks are known. Runs the program `rapt`, which must be in the folder of the tests.
#include <cstdlib>
#include <filesystem>

#include "base/error.h"
#include "gpu_support.h"
#include "tests/cpu/program.h"

namespace rapt::test {
namespace {

class Bench : public GpuTest {};

// The number after "name": in a JSON text. If a list follows, its first number; 0 if null follows. The search begins
// after the text `after`.
double number(const std::string& json, const std::string& name, const std::string& after = "") {
  const std::string key = concat('"', name, "\":");
  const size_t at = json.find(key, json.find(after));
  if (at == std::string::npos) ADD_FAILURE() << "no " << name << " in " << json;
  if (at == std::string::npos) return 0;
  const size_t value = at + key.size();
  return std::strtod(json.c_str() + value + (json[value] == '[' ? 1 : 0), nullptr);
}

void expect_plausible_peaks(const std::string& row, const std::string& arch) {
  const double f32 = number(row, "f32_tflops"), mma = number(row, "mma_f16_tflops");
  EXPECT_GT(f32, 1);
  EXPECT_GT(mma, f32);
  EXPECT_GT(number(row, "exp2_gops"), 100);
  EXPECT_GT(number(row, "l2_gbs"), number(row, "dram_gbs"));
  EXPECT_GT(number(row, "launch_us", "\"peaks\""), 0.3);
  EXPECT_LT(number(row, "launch_us", "\"peaks\""), 20);
  if (arch == "sm_90a") {
    EXPECT_GT(number(row, "wgmma_f16_tflops"), 1.1 * mma);
    EXPECT_GT(number(row, "wgmma_fp8_tflops"), 1.5 * number(row, "wgmma_f16_tflops"));
  }
  EXPECT_GE(number(row, "mma_fp8_tflops"), arch == "sm_89" || arch == "sm_120" ? 1.5 * mma : 0.0);
}

TEST_F(Bench, PeaksAreAboveWhatKernelsReach) {
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "rapt";
  if (!std::filesystem::exists(program)) return skip("no program beside the tests: " + program.string());
  for (const char* line : {"f16 h8 q512 d64", "f16 b1 h32 q2048 d128", "f16 h32:8 q1 k4096 d128", "f32 h8 q512 d64"}) {
    const Outcome outcome =
        run_in(testing::TempDir(), concat("'", program.string(), "' bench '", line, "' --device cuda:0 --json"));
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const std::string& row = outcome.out;
    std::printf("%s: %.2f us, floor %.2f us, spread %.1f%%, %.0f MHz\n", line, number(row, "median"),
                number(row, "floor_us"), 100 * number(row, "spread"), number(row, "sm_mhz"));
    expect_plausible_peaks(row, cuda::device(0).arch);
    EXPECT_LT(number(row, "floor_us", "\"kernel\""), 1.1 * number(row, "median")) << row;
    EXPECT_LE(number(row, "attempts"), 3);
  }
}

}  // namespace
}  // namespace rapt::test
