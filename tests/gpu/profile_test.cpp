// Tests rapt profile with the real ncu: the metrics that this GPU and this ncu have, the format of the raw page, hot
// spots, and the FP8 gate. These tests are skipped if there is no ncu or no permission for counters. Also tests time
// stamps.
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

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
      if ((outcome.out + outcome.err).find(lack) != std::string::npos) return skip(lack);
    EXPECT_TRUE(outcome.code == 0 || outcome.code == 1) << outcome.code << "\n" << outcome.err;
    // The program prints the names of the metrics that this ncu lacks. Without the following ones no verdict is
    // possible.
    for (const char* key : {"no value duration", "no value unit.tensor", "no value warps_active"})
      EXPECT_EQ(outcome.out.find(key), std::string::npos) << outcome.out;
    EXPECT_EQ(outcome.out.find("gate     fp8       FAILED"), std::string::npos) << outcome.out;
    EXPECT_NE(outcome.out.find("wrote    results/"), std::string::npos) << outcome.out << outcome.err;
    // Samples need a newer ncu than counters. If there are samples, there must be lines, too.
    if (outcome.out.find("\nhot      not available: ") == std::string::npos) {
      EXPECT_NE(outcome.out.find("\nhot line "), std::string::npos) << outcome.out;
      EXPECT_EQ(outcome.out.find("\nhot line not available: "), std::string::npos) << outcome.out;
      EXPECT_NE(outcome.out.find("-sass.csv"), std::string::npos) << outcome.out;
    }
    std::printf("%s\n", outcome.out.c_str());
  }
  std::filesystem::remove_all(folder);
}

// A problem whose time stamps are read, and the kernel family that computes it. Each is a test of its own, so that each
// is within the time limit of the watchdog.
struct Traced {
  const char *name, *line, *family;
};
void PrintTo(const Traced& traced, std::ostream* to) { *to << traced.line; }  // GoogleTest calls this

class ProfileTrace : public Profile, public testing::WithParamInterface<Traced> {
 protected:
  void SetUp() override {
    Profile::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    program_ = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "rapt";
    if (!std::filesystem::exists(program_)) return skip("no program beside the tests: " + program_.string());
    if (on_sm90() && cuda::device(0).arch != "sm_90a") return skip("attention_sm90 needs sm_90a");
    folder_ = std::filesystem::path(testing::TempDir()) / concat("rapt-gpu-trace-", GetParam().name);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override {
    std::filesystem::remove_all(folder_);
    Profile::TearDown();
  }
  static bool on_sm90() { return std::string_view(GetParam().family) == "attention_sm90"; }

  std::filesystem::path program_, folder_;
};

// Expects that every stage of the family is there, and that the shares of each role add up to 1.
void expect_all_stages(const nlohmann::json& stages, const std::string& family) {
  const bool sm90 = family == "attention_sm90";
  // attention_decode has the stages of attention_sm80, and two more.
  const std::set<std::string> optional = sm90 ? std::set<std::string>{"wait turn", "wait K", "wait V", "skip"}
                                         : family == "attention_sm80" ? std::set<std::string>{"arrive", "merge"}
                                                                      : std::set<std::string>{};
  std::map<std::string, double> shares;  // key: role; stages without a role count for all roles
  for (const auto& stage : stages) {
    if (!optional.contains(stage["stage"].get<std::string>())) {
      EXPECT_GT(stage["per_warp"].get<double>(), 0) << stage;
    }
    shares[stage["role"].get<std::string>()] += stage["share"].get<double>();
  }
  const double common = shares[""];
  if (shares.size() > 1) shares.erase("");
  EXPECT_GE(shares.size(), sm90 ? 3u : 1u) << "a producer and two or three consumers";
  for (const auto& [role, share] : shares) EXPECT_NEAR(share + (role.empty() ? 0 : common), 1, 0.1) << role;
}

TEST_P(ProfileTrace, time_stamps) {
  const auto& [name, line, family] = GetParam();
  SCOPED_TRACE(line);
  const std::string command =
      concat("'", program_.string(), "' profile '", line, "' --device cuda:0 --family ", family, " --trace --json");
  const Outcome outcome = run_in(folder_, command);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto json = nlohmann::json::parse(outcome.out);
  expect_all_stages(json["stages"], family);
  EXPECT_FALSE(json["lost"].get<bool>());
  const double cycles_per_ns = json["cycles_per_ns"].get<double>();
  EXPECT_GT(cycles_per_ns, 0.2);
  EXPECT_LT(cycles_per_ns, 4);
  EXPECT_LT(json["us_with_marks"].get<double>(), 2 * json["us"].get<double>());
  EXPECT_TRUE(std::filesystem::exists(folder_ / json["written"].get<std::string>()));
  std::printf("%s: cycles per ns %.2f, %.2f us, with marks %.2f us\n", line, cycles_per_ns, json["us"].get<double>(),
              json["us_with_marks"].get<double>());
}

constexpr Traced traced[] = {{"sm80_short", "f16 h8 q512 d64", "attention_sm80"},
                             {"sm80_causal", "f16 h32 q4096 d128 causal", "attention_sm80"},
                             {"sm80_fp8", "e4m3 out=f16 h8 q512 d64 scales=head", "attention_sm80"},
                             {"sm80_one_query", "f16 b8 h32:8 q1 k4096 d128", "attention_sm80"},
                             {"decode", "bf16 b1 h32:8 q1 k32768 d128", "attention_decode"},
                             {"scalar", "f32 h8 q512 d20 causal", "attention_scalar"},
                             {"sm90_causal", "bf16 b2 h32 q4096 d64 causal", "attention_sm90"},
                             {"sm90", "f16 h32 q4096 d128", "attention_sm90"},
                             {"sm90_short", "bf16 b16 h12 q512 d64", "attention_sm90"}};
INSTANTIATE_TEST_SUITE_P(Problem, ProfileTrace, testing::ValuesIn(traced),
                         [](const auto& instance) { return std::string(instance.param.name); });

}  // namespace
}  // namespace rapt::test
