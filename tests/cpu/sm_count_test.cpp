// Tests --sm-count and ContextOptions::sm_count: plans and launches for a GPU that has fewer multiprocessors, such as a
// MIG slice. Launches use the stand-in driver (tests/fake_cuda), which runs no kernel, and need NVRTC.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "emulation.h"
#include "fake_driver.h"
#include "lab/commands.h"
#include "lab/host_compiler.h"
#include "placed_call.h"
#include "program.h"
#include "runtime/gpu.h"
#include "stand_in.h"

namespace rapt::test {
namespace {

using json = nlohmann::json;

class SmCount : public testing::Test {
 protected:
  void SetUp() override {
    folder = std::filesystem::path(testing::TempDir()) / ("rapt-sm-count-" + std::to_string(getpid()));
    std::filesystem::create_directories(folder);
  }
  void TearDown() override { std::filesystem::remove_all(folder); }

  Outcome rapt(const std::string& words, const std::string& environment = "") const {
    return run_in(folder, concat(environment, environment.empty() ? "" : " ", "'", RAPT_BINARY_DIR, "/rapt' ", words));
  }
  void expect_refused(const std::string& words, int code, const std::string& sentence,
                      const std::string& environment = "") const {
    const Outcome outcome = rapt(words, environment);
    EXPECT_EQ(outcome.code, code) << words << "\n" << outcome.err;
    EXPECT_NE(outcome.err.find(sentence), std::string::npos) << words << "\n" << outcome.err;
    EXPECT_EQ(outcome.out, "") << words;
  }

  std::filesystem::path folder;
};

// The problem of a persistent kernel: it starts one CTA for each multiprocessor.
const std::string persistent = "'bf16 b1 h32 q4096 d128 causal' ";

}  // namespace

TEST_F(SmCount, ExplainPlansForThatNumber) {
  const auto explained = [&](const std::string& words) {
    const Outcome outcome = rapt("explain " + words + " --json");
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return json::parse(outcome.out);
  };
  const json full = explained(persistent + "--arch h200"), part = explained(persistent + "--arch h200 --sm-count 16"),
             own = explained(persistent + "--arch h200 --sm-count 132");
  EXPECT_TRUE(part["plan"].get<std::string>().starts_with("attention_sm90 ")) << part["plan"];
  EXPECT_EQ(full["device"]["sm_count"], 132);
  EXPECT_EQ(part["device"]["sm_count"], 16);
  EXPECT_EQ(full["grid"], (json{132, 1, 1}));
  EXPECT_EQ(part["grid"], (json{16, 1, 1}));
  EXPECT_EQ(own, full);
  // Few tiles for 132 multiprocessors are many tiles for 16: another kernel is faster.
  const std::string few = "'bf16 b1 h8 q512 d64' --arch h200 ";
  EXPECT_TRUE(explained(few)["plan"].get<std::string>().starts_with("attention_sm80 "));
  EXPECT_TRUE(explained(few + "--sm-count 16")["plan"].get<std::string>().starts_with("attention_sm90 "));
  const Outcome text = rapt("explain " + persistent + "--arch h200 --sm-count 16");
  for (const char* line : {"device   h200 (sm_90a, 16 multiprocessors)\n", "grid     16 x 1 x 1 CTAs\n"})
    EXPECT_NE(text.out.find(line), std::string::npos) << text.out;
}

TEST_F(SmCount, GridsOfOtherKernels) {
  const auto grid = [&](const std::string& words) {
    const Outcome outcome = rapt("explain " + words + " --json");
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return json::parse(outcome.out)["grid"];
  };
  EXPECT_EQ(grid("'f16 h8 q512 d64' --arch l4 --config 'block_m=64 warps_m=4 warps_n=1'"), (json{64, 1, 1}));
  EXPECT_EQ(grid("'f16 b2 h8 q512 d64' --arch l4 --config 'block_m=32 warps_m=2 warps_n=4 stages=1'"),
            (json{16, 8, 2}));
  EXPECT_EQ(grid("'f32 b2 h3 q100 d20' --arch l4 --config block_m=32"), (json{2 * 3 * 4, 1, 1}));
  // Packed rows: total_q / block_m + batch blocks of a head.
  EXPECT_EQ(grid("'f32 h3 d20 varlen=40,0,60' --arch l4 --config block_m=32"), (json{3 * (100 / 32 + 3), 1, 1}));
  EXPECT_TRUE(grid("'f16 b0 h8 q512 d64' --arch l4").is_null()) << "nothing is launched";
  EXPECT_TRUE(grid("'f16 h8 q512 d64' --arch cpu-scalar").is_null());
}

TEST_F(SmCount, WrongValuesAreRefusedByASentence) {
  for (const char* command : {"explain ", "check ", "bench ", "profile ", "tune --dry-run "}) {
    for (const char* value : {"0", "-1", "16.5", "sixteen", "016", "0x10", "99999999999"})
      expect_refused(concat(command, persistent, "--sm-count=", value), 2,
                     "must be a whole number from 1 to the number of multiprocessors of the GPU");
    for (const char* cpu : {"--device cpu", "--arch cpu-scalar", "--threads 2"})
      expect_refused(concat(command, persistent, "--sm-count 16 ", cpu), 2,
                     std::string(command) == "profile " ? "must be --device cuda:N"
                     : command[0] == 't'                ? "selects the CPU kernel"
                                                        : "--sm-count 16: only for a GPU, not for the CPU");
  }
  for (const char* command : {"explain ", "tune --dry-run "})
    expect_refused(concat(command, persistent, "--arch h200 --sm-count 133"), 2,
                   "--sm-count 133: must be from 1 to 132, the multiprocessors of h200");
  expect_refused(concat("tune ", persistent, "--sm-count 16"), 2, "--sm-count 16: only with --dry-run");
  for (const char* command : {"run in.safetensors", "pack 'f16 h8 q512 d64' --arch sm_89", "info"})
    expect_refused(concat(command, " --sm-count 16"), 2, "--sm-count");
}

// A real GPU, here the stand-in, is known before anything is launched or compiled.
TEST_F(SmCount, MoreThanTheGpuHasIsRefused) {
  for (const char* command : {"explain ", "check ", "bench ", "bench --ladder 'f16 h8 q512 d64' ", "profile "})
    expect_refused(concat(command, std::string(command).find("ladder") == std::string::npos ? persistent : "",
                          "--device cuda:0 --sm-count 133"),
                   2, "--sm-count 133: must be from 1 to 132, the multiprocessors of Fake GPU sm_90",
                   stand_in_environment(90) + " RAPT_NVRTC=/nowhere");
}

TEST_F(SmCount, WithoutAGpuItSaysWhy) {
  if (lab::usable_gpu()) GTEST_SKIP() << "a GPU";
  expect_refused("explain " + persistent + "--sm-count 16", 3, "--device cuda:0: ");
}

TEST_F(SmCount, ADryRunOfTunePlansForThatNumber) {
  const Outcome listed = rapt("tune " + persistent + "--dry-run --arch h200 --sm-count 16");
  ASSERT_EQ(listed.code, 0) << listed.err;
  EXPECT_NE(listed.out.find("device   h200, sm_90a, 16 multiprocessors\n"), std::string::npos) << listed.out;
}

// The stand-in driver runs no kernel, so every result is wrong. The command that repeats a check has the option.
TEST_F(SmCount, RepeatedCommandsHaveTheOption) {
  if (jit::find_compiler() == nullptr) GTEST_SKIP() << "no NVRTC";
  const std::string environment = stand_in_environment(90) + " RAPT_CACHE=off";
  const Outcome checked = rapt("check 'f16 h2 q64 d64' --device cuda:0 --sm-count 16", environment);
  EXPECT_EQ(checked.code, 1) << checked.err;
  EXPECT_NE(checked.out.find("device  cuda:0: Fake GPU sm_90, planned for 16 multiprocessors\n"), std::string::npos);
  EXPECT_NE(checked.out.find("--device cuda:0 --sm-count 16\n"), std::string::npos) << checked.out;
  const Outcome timed = rapt("bench 'f16 h2 q64 d64' --device cuda:0 --sm-count 16 --iterations 1", environment);
  EXPECT_EQ(timed.code, 1) << timed.err;
  EXPECT_NE(timed.err.find("--device cuda:0 --sm-count 16\n"), std::string::npos) << timed.err;
}

// A variant of attention_sm90 that crashes if more than two CTAs run.
TEST_F(SmCount, AnEmulatedKernelHasThatManyCtas) {
  RAPT_NEEDS_FIBERS();
  if (lab::usable_gpu()) GTEST_SKIP() << "a GPU, which runs variants itself";
  try {
    lab::find_host_compiler();
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  std::string text = text_of(RAPT_SOURCE_DIR "/src/kernels/sm90/producer.cuh");
  const std::string place = "    item = gridDim.x";
  ASSERT_NE(text.find(place), std::string::npos);
  text.insert(text.find(place), "    if (gridDim.x > 2) *static_cast<volatile int*>(nullptr) = 1;\n");
  std::ofstream(folder / "producer.cuh") << text;
  const std::string words =
      "check 'f16 h3 q200 k150 d64 causal' --family attention_sm90 --arch sm_90a --variant producer.cuh";
  const std::string no_nvrtc = "RAPT_NVRTC=/nowhere";
  const Outcome two = rapt(words + " --sm-count 2 --json", no_nvrtc);
  ASSERT_EQ(two.code, 0) << two.out << two.err;
  const json result = json::parse(two.out)["results"][0];
  EXPECT_EQ(result["verdict"], "pass");
  EXPECT_NE(result["command"].get<std::string>().find(" --arch sm_90a --sm-count 2 "), std::string::npos) << result;
  const Outcome full = rapt(words, no_nvrtc);
  EXPECT_EQ(full.code, 1) << full.out << full.err;
  // The address sanitizer has other words for the reason.
  EXPECT_NE(full.out.find("the emulated kernel failed: "), std::string::npos) << full.out;
  expect_refused(words + " --sm-count 133", 2, "--sm-count 133: must be from 1 to 132", no_nvrtc);
  expect_refused(words + " --sm-count 2 --threads 2", 2, "--threads 2: only for the CPU, not for a GPU", no_nvrtc);
}

// Two contexts keep their own plans, also for the calls that a thread remembers.
TEST_F(SmCount, AContextLaunchesThatManyCtas) {
  on_stand_in(90, [] {
    ContextOptions options = without_cache();
    options.config = "family=attention_sm90";
    rapt_context full(options);
    options.sm_count = 5;
    rapt_context part(options);
    PlacedCall call("bf16 b1 h4 q600 k300 d64 causal"), packed("bf16 h6 d64 varlen=300,64,200 causal");
    const cuda::ContextScope scope(0, nullptr);
    for (int repeat = 0; repeat < 3; ++repeat)
      for (PlacedCall* placed : {&call, &packed}) {
        ASSERT_EQ(placed->enqueue(full, nullptr), RAPT_OK) << rapt_last_error();
        EXPECT_GT(fake().last_launch().grid_x, 5u);
        ASSERT_EQ(placed->enqueue(part, nullptr), RAPT_OK) << rapt_last_error();
        EXPECT_EQ(fake().last_launch().grid_x, 5u);
      }
    EXPECT_EQ(part.impl.gpu().device(0).sm_count, 5);
    EXPECT_EQ(full.impl.gpu().device(0).sm_count, 132);
  });
}

TEST_F(SmCount, AContextRefusesMoreThanTheGpuHas) {
  on_stand_in(90, [] {
    PlacedCall call("bf16 b1 h4 q600 k300 d64 causal");
    const cuda::ContextScope scope(0, nullptr);
    for (const int count : {133, -1}) {
      ContextOptions options = without_cache();
      options.sm_count = count;
      rapt_context context(std::move(options));
      EXPECT_EQ(call.enqueue(context, nullptr), RAPT_ERROR_INVALID_ARGUMENT);
      EXPECT_NE(
          std::string(rapt_last_error())
              .find(concat("sm_count = ", count, ": must be from 1 to 132, the multiprocessors of Fake GPU sm_90")),
          std::string::npos)
          << rapt_last_error();
    }
    EXPECT_EQ(fake().launches(), 0);
  });
}

}  // namespace rapt::test
