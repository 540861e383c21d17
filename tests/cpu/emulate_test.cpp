// Tests rapt check --variant without a GPU: it emulates the variant on this CPU (lab/emulate.h). Commands run in their
// own process (build/rapt), as users run them. The tests are skipped if there is no C++ compiler.
#include "lab/emulate.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "lab/commands.h"
#include "lab/host_compiler.h"
#include "lab/isolated_call.h"
#include "tests/cpu/emulation.h"
#include "tests/cpu/program.h"

namespace rapt::lab {
namespace {

using test::Outcome;
using test::run_in;
using test::text_of;

using nlohmann::json;

class Emulated : public testing::Test {
 protected:
  void SetUp() override {
    RAPT_NEEDS_FIBERS();
    if (usable_gpu()) GTEST_SKIP() << "a GPU, which runs variants itself";
    try {
      find_host_compiler();
    } catch (const Error& error) {
      GTEST_SKIP() << error.what();
    }
    folder = std::filesystem::path(testing::TempDir()) / ("rapt-emulated-" + std::to_string(getpid()));
    std::filesystem::create_directories(folder / "tmp");
  }
  void TearDown() override {
    if (folder.empty()) return;
    EXPECT_TRUE(std::filesystem::is_empty(folder / "tmp")) << "temporary files are left";
    std::filesystem::remove_all(folder);
  }

  // Writes a variant: the shipped source, in which `from` is replaced by `to`.
  void write_variant(const std::string& name, const std::string& from, const std::string& to) const {
    std::string text = text_of(std::filesystem::path(RAPT_SOURCE_DIR "/src/kernels") /
                               (name.starts_with("attention_sm80") ? "sm80" : "scalar") / name);
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << name << " has no " << from;
    std::ofstream(folder / name) << text.replace(at, from.size(), to);
  }

  // Runs check on the variant, by default without NVRTC, which would take seconds.
  Outcome check(const std::string& words, const std::string& environment = "RAPT_NVRTC=/nowhere") const {
    return run_in(folder, concat("TMPDIR='", (folder / "tmp").string(), "' ", environment, " '", RAPT_BINARY_DIR,
                                 "/rapt' check --arch sm_80 ", words));
  }
  void expect(const Outcome& outcome, int code, const std::string& part) const {
    EXPECT_EQ(outcome.code, code) << outcome.out << outcome.err;
    EXPECT_NE((outcome.out + outcome.err).find(part), std::string::npos) << part << "\n" << outcome.out << outcome.err;
  }

  std::filesystem::path folder;
};

TEST_F(Emulated, ARightVariantPasses) {
  write_variant("attention_sm80.cuh", "#pragma once", "#pragma once\n// the same");
  expect(check("'f16 h2:1 q70 k90 d32 causal' --variant attention_sm80.cuh"), 0,
         "emulated on the CPU: 1 of 1 cases passed\n");
  write_variant("attention_scalar.cuh", "#pragma once", "#pragma once\n// the same");
  const json checked = json::parse(check("'f32 h2 q33 d60 causal' --variant attention_scalar.cuh --json").out);
  EXPECT_TRUE(checked["checked"]);
  EXPECT_EQ(checked["passed"], 1);
  EXPECT_EQ(checked["results"][0]["verdict"], "pass");
}

// The kernel of a large problem runs on smaller problems. The command that repeats such a check has the configuration
// of the large problem's kernel.
TEST_F(Emulated, ALargeProblemIsShortened) {
  write_variant("attention_sm80.cuh", "#pragma once", "#pragma once\n// the same");
  const Outcome outcome = check("'f16 b2 h32:8 q4096 d64 causal' --variant attention_sm80.cuh --json");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const json checked = json::parse(outcome.out);
  EXPECT_EQ(checked["emulated"]["too_large"], 1);
  ASSERT_EQ(checked["results"].size(), 2u);
  const std::string command = checked["results"][0]["command"];
  EXPECT_NE(command.find("--config \"block_m="), std::string::npos) << command;
  EXPECT_NE(command.find("--arch sm_80"), std::string::npos) << command;
}

TEST_F(Emulated, AWrongVariantFailsAndNamesTheCase) {
  write_variant("attention_scalar.cuh", "ExactTanh>(p, p.scale,", "ExactTanh>(p, 1.0f,");
  const Outcome wrong = check("'f32 h2 q33 d60' --variant attention_scalar.cuh");
  expect(wrong, 1, "FAIL");
  expect(wrong, 1, "emulated on the CPU: 0 of 1 cases passed");
  expect(wrong, 1, "to reproduce: rapt check \"f32 b1 h2 q33 k33 d60\" --fill normal --seed 1 --arch sm_80");
}

// A crash ends only the child process.
TEST_F(Emulated, AVariantThatCrashesIsASentence) {
  const std::string begin = "extern __shared__ float scalar_shared[];";
  const auto fails = [&](const std::string& code, const std::string& part) {
    write_variant("attention_scalar.cuh", begin, begin + code);
    expect(check("'f32 q9 d60' --variant attention_scalar.cuh"), 1, "the emulated kernel failed: " + part);
  };
  fails("*static_cast<volatile int*>(nullptr) = 1;", "it accessed memory at an invalid address");
  fails("if (threadIdx.x == 0) __syncthreads();", "cuda_emulation: block 0: threads wait");
  fails("scalar_shared[64 << 8] = 1;", "it wrote past the end of its block");
}

TEST_F(Emulated, AVariantThatHangsIsASentence) {
  const std::string begin = "extern __shared__ float scalar_shared[];";
  write_variant("attention_scalar.cuh", begin, begin + "for (volatile int on = 1; on != 0;) static_cast<void>(on);");
  const std::string words = "'f32 q9 d60' --variant attention_scalar.cuh";
  const std::string limit = "RAPT_NVRTC=/nowhere RAPT_KERNEL_SECONDS=1";
  expect(check(words, limit), 1, "the emulated kernel failed: it did not finish within 1 s");
  expect(check(words, limit), 1, "to reproduce: rapt check");
  expect(check(words, "RAPT_NVRTC=/nowhere RAPT_KERNEL_SECONDS=soon"), 2, "must be a whole number of seconds");
}

TEST_F(Emulated, WhatDoesNotCompileHereIsASentence) {
  write_variant(
      "attention_scalar.cuh", "namespace rapt {",
      "inline unsigned clock_now() {\n  unsigned x;\n  asm(\"mov.u32 %0, %clock;\" : \"=r\"(x));\n  return x;\n}\n"
      "namespace rapt {\nconstexpr int wrong = no_such_name;");
  const std::string words = "'f32 q9 d60' --variant attention_scalar.cuh";
  const Outcome outcome = check(words);
  expect(outcome, 3, "cannot be emulated: ");
  expect(outcome, 3, "does not compile it for this CPU:\n");
  expect(outcome, 3, "no_such_name");
  expect(outcome, 3, "\nattention_scalar.cuh:");                                    // the user's file
  EXPECT_EQ(outcome.err.find("rapt-emulation"), std::string::npos) << outcome.err;  // no temporary names
  EXPECT_FALSE(json::parse(check(words + " --json").out)["checked"]);
}

TEST_F(Emulated, AMissingCompilerIsASentence) {
  write_variant("attention_scalar.cuh", "#pragma once", "#pragma once\n// the same");
  const std::string words = "'f32 q9 d60' --variant attention_scalar.cuh";
  expect(check(words, "RAPT_NVRTC=/nowhere PATH=/nowhere CXX="), 3, "no C++ compiler was found");
  expect(check(words, "RAPT_NVRTC=/nowhere CXX=/nowhere/c++"), 3, "CXX=/nowhere/c++: there is no such C++ compiler");
}

TEST(RunApart, AnEndlessLoopEnds) {
  EXPECT_EQ(run_in_child([] {}, 1), "");
  const std::string ending = run_in_child(
      [] {
        for (volatile int on = 1; on != 0;) static_cast<void>(on);
      },
      1);
  EXPECT_NE(ending.find("did not finish within 1 s"), std::string::npos) << ending;
}

TEST(EmulatedProblems, LargeOnesAreShortenedOrLeftOut) {
  const Device device = device_preset("sm_80");
  const auto of = [&](const char* line) { return emulated_problems({parse_problem(line), ""}, device, true); };
  EXPECT_FALSE(of("f16 h2 q100 d64").too_large);
  EXPECT_EQ(of("f16 h2 q100 d64").run.size(), 1u);
  const EmulatedProblems decoding = of("bf16 b8 h32:8 q1 k4096 d128");
  ASSERT_EQ(decoding.run.size(), 2u);
  for (const EmulatedProblem& p : decoding.run) {
    EXPECT_EQ(p.problem.seqlen_q, 1);
    EXPECT_EQ(p.problem.group(), 4);
    EXPECT_LT(p.problem.seqlen_k, 600);
  }
  const EmulatedProblems packed = of("f16 h8 d64 varlen=4096,4096");
  EXPECT_TRUE(packed.too_large);
  EXPECT_TRUE(packed.run.empty());
}

}  // namespace
}  // namespace rapt::lab
