// rapt profile with the real ncu: the metrics of the table that this card and this ncu have, the format of the raw
// page, and the FP8 gate. Skipped where there is no ncu or no permission for counters.
#include <filesystem>

#include "base/error.h"
#include "gpu_support.h"
#include "tests/cpu/program.h"

namespace rapt::test {
namespace {

class Profile : public GpuTest {};

TEST_F(Profile, counters_of_shipped_kernels) {
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "rapt";
  if (!std::filesystem::exists(program)) return skip("no program beside the tests: " + program.string());
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "rapt-gpu-profile";
  std::filesystem::create_directories(folder);
  for (const char* line : {"f16 h8 q512 d64", "e4m3 out=f16 h8 q512 d64 scales=head", "f32 h8 q512 d64"}) {
    const Outcome outcome = run_in(folder, concat("'", program.string(), "' profile '", line, "' --device cuda:0"));
    for (const char* lack : {"ncu is not in PATH", "ERR_NVGPUCTRPERM"})
      if (outcome.err.find(lack) != std::string::npos) return skip(outcome.err);
    EXPECT_TRUE(outcome.code == 0 || outcome.code == 1) << outcome.code << "\n" << outcome.err;
    // What this ncu lacks is told by name. Without these no verdict is possible.
    for (const char* key : {"no value duration", "no value unit.tensor", "no value warps_active"})
      EXPECT_EQ(outcome.out.find(key), std::string::npos) << outcome.out;
    EXPECT_EQ(outcome.out.find("gate     fp8       FAILED"), std::string::npos) << outcome.out;
    EXPECT_NE(outcome.out.find("wrote    results/"), std::string::npos) << outcome.out << outcome.err;
    std::printf("%s\n", outcome.out.c_str());
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace rapt::test
