// Tests the peaks of a GPU and the roofline of a problem, without a GPU. The loops are compiled, and their instructions
// are counted. The stand-in driver shows which loops are measured. Also tests the bounds of problems at given peaks,
// the clocks (with a stand-in for NVML), and repeated measurements. The loops need NVRTC.
#include "lab/roofline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "cuda/cuda.h"
#include "lab/bench.h"
#include "lab/cubin.h"
#include "lab/gpu_clocks.h"
#include "lab/roof_gpu.h"
#include "tests/cpu/stand_in.h"

namespace rapt::lab {
namespace {

using test::on_stand_in;

// ---- The loops

jit::Image compiled(const char* loop, const char* arch) {
  return jit::compile(
      {.unit = roof_unit(loop), .arch = arch, .label = "the roof", .files = {{"roof_gpu.cuh", roof_source()}}});
}

class LoopsOn : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    std::string why;
    if (jit::find_compiler(&why) == nullptr) GTEST_SKIP() << why;
  }
};
INSTANTIATE_TEST_SUITE_P(Architectures, LoopsOn, testing::Values("sm_80", "sm_89", "sm_90a", "sm_120"),
                         [](const auto& test) { return std::string(test.param); });

// If the compiler removes a loop or computes it in another way, its instructions are missing.
TEST_P(LoopsOn, HaveTheirInstructionsAndDoNotSpill) {
  for (const std::string loop : roof_loops(GetParam())) {
    const jit::Image image = compiled(loop.c_str(), GetParam());
    const jit::Resources resources = jit::parse_resources(image.log);
    ASSERT_TRUE(resources.known) << image.log;
    EXPECT_EQ(resources.spill_store_bytes + resources.stack_bytes, 0) << loop;
    // If the compiler cannot prove that the sums stay in their registers, it serializes wgmma and warns.
    EXPECT_TRUE(resources.warnings.empty()) << loop << ": " << resources.warnings[0];
    const bool wgmma = loop.starts_with("wgmma");
    // A multiprocessor holds four blocks of 256 threads, or one block if each thread holds 128 sums.
    EXPECT_LE(resources.registers, wgmma ? 255 : 64) << loop;
    EXPECT_LE(resources.shared_bytes, 48 << 10) << loop;
    const InstructionCounts counts = count_instructions(image.bytes);
    EXPECT_EQ(counts.hmma, loop == "multiply_f16" || loop == "multiply_tf32" ? 8 : 0) << loop;
    EXPECT_EQ(counts.qmma, loop == "multiply_fp8" ? 8 : 0) << loop;
    EXPECT_EQ(counts.hgmma, loop == "wgmma_f16" ? 16 : 0) << loop;
    EXPECT_EQ(counts.qgmma, loop == "wgmma_fp8" ? 16 : 0) << loop;
    EXPECT_GE(counts.ffma, loop == "multiply_f32" ? 16 : 0) << loop;
    EXPECT_GE(counts.mufu, loop == "exponentials" ? 16 : 0) << loop;
    EXPECT_EQ(counts.ldg_16, loop.starts_with("read") ? 8 : 0) << loop;
    EXPECT_EQ(counts.local, 0) << loop;
  }
}

TEST(Roofs, FastInstructionsAreMeasuredWhereTheyExist) {
  const auto has = [](const char* arch, const char* loop) {
    const std::vector<const char*> loops = roof_loops(arch);
    return std::any_of(loops.begin(), loops.end(), [&](const char* one) { return std::string(one) == loop; });
  };
  for (const char* arch : {"sm_80", "sm_86", "sm_89", "sm_90a", "sm_90", "sm_100", "sm_120"}) {
    EXPECT_EQ(has(arch, "wgmma_f16"), std::string(arch) == "sm_90a") << arch;
    EXPECT_EQ(has(arch, "wgmma_fp8"), std::string(arch) == "sm_90a") << arch;
    EXPECT_EQ(has(arch, "multiply_fp8"), std::string(arch) == "sm_89" || std::string(arch) == "sm_120") << arch;
    for (const char* everywhere :
         {"multiply_f32", "multiply_f16", "multiply_tf32", "exponentials", "read_l2", "read", "nothing"})
      EXPECT_TRUE(has(arch, everywhere)) << arch << " " << everywhere;
  }
}

// Nothing runs on the stand-in, so the rates have no meaning. The test checks only which rates were measured.
TEST(Roofs, MeasuredOnAGpu) {
  for (const int sm : {80, 89, 90, 120})
    on_stand_in(sm, [&] {
      const cuda::ContextScope scope(0, nullptr);
      const Roof roof = measure_gpu_roof(cuda::device(0));
      for (const double rate : {roof.fma_flops, roof.f16_flops, roof.read_bytes, roof.exponentials, roof.l2_bytes})
        EXPECT_GT(rate, 0);
      EXPECT_GE(roof.launch_seconds, 0);
      EXPECT_EQ(roof.fp8_flops > 0, sm == 89 || sm == 120);
      EXPECT_EQ(roof.wgmma_f16_flops > 0, sm == 90);
      EXPECT_EQ(roof.wgmma_fp8_flops > 0, sm == 90);
    });
}

// ---- The roofline of a problem

// Approximately the peaks of an H200.
Roof hopper() {
  Roof roof;
  roof.threads = 0;
  roof.fma_flops = 60e12, roof.f16_flops = 600e12, roof.read_bytes = 4e12;
  roof.wgmma_f16_flops = 900e12, roof.wgmma_fp8_flops = 1800e12;
  roof.exponentials = 4e12, roof.l2_bytes = 8e12, roof.launch_seconds = 1.5e-6;
  return roof;
}

Roofline bounds(const std::string& line, const Roof& roof, const char* preset = "h200", const char* config = "",
                bool from_l2 = false) {
  const Problem problem = parse_problem(line);
  return roofline(problem, plan_with(problem, device_preset(preset), config), roof, from_l2).value();
}

double us_of(const Bound& bound, std::string_view unit) {
  for (const UnitTime& one : bound.units)
    if (one.unit == unit) return one.us;
  return -1;
}

TEST(Rooflines, AddTheProductsOfOneUnitAndTakeTheLongestUnit) {
  const std::string line = "f16 b1 h16 q16384 k16384 d128";
  const double flops_of = 4.0 * 16 * 16384 * 16384 * 128, pairs = 16.0 * 16384 * 16384;
  const Roofline found = bounds(line, hopper(), "h200", "family=attention_sm80");
  EXPECT_NEAR(us_of(found.kernel, "mma.sync f16"), flops_of / 600e12 * 1e6, 1e-6);
  EXPECT_NEAR(us_of(found.kernel, "exp2"), pairs / 4e12 * 1e6, 1e-6);
  EXPECT_EQ(found.kernel.unit, "mma.sync f16");
  EXPECT_NEAR(found.kernel.floor_us, flops_of / 600e12 * 1e6 + found.kernel.launch_us, 1e-6);
  EXPECT_DOUBLE_EQ(found.kernel.launch_us, 1.5);
  EXPECT_EQ(found.card.unit, "wgmma f16");
  EXPECT_NEAR(found.card.floor_us, flops_of / 900e12 * 1e6 + 1.5, 1e-6);
  EXPECT_EQ(us_of(found.card, "mma.sync f16"), -1);
  const Roofline hopper_kernel = bounds(line, hopper(), "h200", "family=attention_sm90");
  EXPECT_EQ(hopper_kernel.kernel.unit, "wgmma f16");
  EXPECT_NEAR(hopper_kernel.kernel.floor_us, found.card.floor_us, 1e-6);
}

TEST(Rooflines, HeadsOfFewChannelsAreBoundByExponentials) {
  EXPECT_EQ(bounds("f16 b1 h16 q8192 k8192 d32", hopper()).card.unit, "exp2");
}

TEST(Rooflines, DecodingIsBoundByMemoryAndShortCallsByTheLaunch) {
  EXPECT_EQ(bounds("f16 b64 h32:8 q1 k8192 d128", hopper()).card.unit, "DRAM");
  const Roofline warm = bounds("f16 b1 h32:8 q1 k4096 d128", hopper(), "h200", "", true);
  EXPECT_EQ(us_of(warm.card, "DRAM"), -1) << "the inputs are in L2";
  EXPECT_EQ(warm.card.unit, "L2");
  EXPECT_EQ(bounds("f16 b1 h2 q64 k64 d64", hopper()).kernel.unit, "launch");
}

TEST(Rooflines, TheKernelReadsKeysAndValuesForEveryTile) {
  const std::string line = "f16 b1 h8 q4096 k4096 d64";
  const Problem problem = parse_problem(line);
  for (const auto& [family, rows] : {std::pair{"family=attention_sm80", 128}, {"family=attention_sm90", 256}}) {
    const Roofline found = bounds(line, hopper(), "h200", family);
    EXPECT_NEAR(us_of(found.card, "L2"), bytes(problem) / 8e12 * 1e6, 1e-6);
    EXPECT_NEAR(us_of(found.kernel, "L2"), 8.0 * 4096 / rows * 4096 * 64 * 4 / 8e12 * 1e6, 1e-6) << family;
  }
}

TEST(Rooflines, UseTheInstructionsOfTheKernel) {
  Roof ada = hopper();
  ada.wgmma_f16_flops = ada.wgmma_fp8_flops = 0;
  ada.fp8_flops = 1200e12;
  const std::string fp8 = "e4m3 out=f16 b1 h8 q4096 k4096 d64 scales=head";
  const double product = 2.0 * 8 * 4096 * 4096 * 64 * 1e6;  // operations of one of the two products, times 1e6
  // On Hopper attention_sm80 converts codes to 16 bits.
  const Roofline widened = bounds(fp8, hopper(), "h200", "family=attention_sm80");
  EXPECT_NEAR(us_of(widened.kernel, "mma.sync f16"), 2 * product / 600e12, 1e-6);
  EXPECT_NEAR(us_of(widened.card, "wgmma fp8"), product / 1800e12, 1e-6);
  EXPECT_NEAR(us_of(widened.card, "wgmma f16"), product / 900e12, 1e-6) << "P stays in 16 bits";
  const Roofline own = bounds(fp8, hopper());
  EXPECT_NEAR(us_of(own.kernel, "wgmma fp8"), product / 1800e12, 1e-6);
  EXPECT_NEAR(us_of(own.kernel, "wgmma f16"), product / 900e12, 1e-6);
  const Roofline direct = bounds(fp8, ada, "l4", "fp8_qk=1");
  EXPECT_NEAR(us_of(direct.kernel, "mma.sync fp8"), product / 1200e12, 1e-6);
  EXPECT_NEAR(us_of(direct.kernel, "mma.sync f16"), product / 600e12, 1e-6);
  const Roofline both = bounds(fp8 + " pv=fp8", ada, "l4", "fp8_qk=1 fp8_pv=1");
  EXPECT_NEAR(us_of(both.kernel, "mma.sync fp8"), 2 * product / 1200e12, 1e-6);
  EXPECT_EQ(us_of(both.kernel, "mma.sync f16"), -1);
  const Roofline terms = bounds(fp8 + " pv=fp8x2", ada, "l4", "fp8_qk=1 fp8_pv=1");
  EXPECT_NEAR(us_of(terms.kernel, "mma.sync fp8"), 3 * product / 1200e12, 1e-6) << "two terms of P";
  EXPECT_EQ(bounds("f32 b1 h8 q4096 k4096 d64", ada, "l4").card.unit, "f32") << "no rate of TF32 was measured";
  EXPECT_EQ(bounds("f16 b1 h8 q4096 k4096 d64", ada, "l4", "family=attention_scalar").kernel.unit, "f32");
}

TEST(Rooflines, TermsOfTf32) {
  Roof roof = hopper();
  roof.tf32_flops = 300e12;
  const double product = 2.0 * 8 * 4096 * 4096 * 64 * 1e6;  // operations of one of the two products, times 1e6
  const auto tf32_us = [&](const std::string& line) {
    return us_of(bounds(line + " b1 h8 q4096 k4096 d64", roof).kernel, "mma.sync tf32");
  };
  EXPECT_NEAR(tf32_us("f32"), 6 * product / 300e12, 1e-6);
  EXPECT_NEAR(tf32_us("f32 acc=tf32"), 2 * product / 300e12, 1e-6);
  EXPECT_NEAR(tf32_us("q=f16 k=bf16 v=f16 out=f16"), product / 300e12, 1e-6);
  EXPECT_NEAR(tf32_us("q=f32 k=bf16 v=f16 out=f16"), 2 * product / 300e12, 1e-6);
  EXPECT_NEAR(tf32_us("q=f16 k=f16 v=f32 out=f16"), 3 * product / 300e12, 1e-6);
  EXPECT_EQ(bounds("f32 b1 h8 q4096 k4096 d64", roof).card.unit, "mma.sync tf32");
  roof.tf32_flops = 150e12;
  EXPECT_EQ(bounds("f32 b1 h8 q4096 k4096 d64", roof).card.unit, "f32") << "three products take longer than f32";
}

TEST(Rooflines, UnmeasuredUnitsAreLeftOut) {
  Roof roof;
  const Problem problem = parse_problem("f16 b1 h8 q512 k512 d64");
  EXPECT_FALSE(roofline(problem, plan(problem, device_preset("h200")), roof, true).has_value());
  roof.f16_flops = 600e12;
  const Roofline found = bounds("f16 b1 h8 q512 k512 d64", roof);
  EXPECT_EQ(found.kernel.units.size(), 1u);
  EXPECT_EQ(found.kernel.unit, "mma.sync f16");
  EXPECT_EQ(found.card.floor_us, found.kernel.floor_us);
}

// ---- Clocks

constexpr const char* nvml = RAPT_BINARY_DIR "/fake_nvml/libnvidia-ml.so.1";

TEST(Clocks, OfTheGpuAtItsPciAddress) {
  on_stand_in(90, [] {
    setenv("FAKE_NVML_SM", "1755", 1);
    setenv("FAKE_NVML_LIMITS", "0x25", 1);
    const GpuClockReader reader(cuda::device(0), nvml);
    EXPECT_EQ(reader.note(), "");
    const GpuClocks clocks = reader.read();
    EXPECT_EQ(clocks.sm_mhz, 1755);
    EXPECT_EQ(clocks.memory_mhz, 2619);
    EXPECT_EQ(limit_names(clocks.limits.value()), (std::vector<std::string>{"sw_power_cap", "sw_thermal_slowdown"}));
  });
}

TEST(Clocks, WhatNvmlDoesNotTellIsAbsent) {
  on_stand_in(90, [] {
    setenv("FAKE_NVML_FAIL", "nvmlDeviceGetClockInfo=3", 1);
    const GpuClocks partial = GpuClockReader(cuda::device(0), nvml).read();
    EXPECT_FALSE(partial.sm_mhz || partial.memory_mhz);
    EXPECT_EQ(partial.limits, 0u);
    setenv("FAKE_NVML_FAIL", "nvmlInit_v2=9", 1);
    const GpuClockReader failed(cuda::device(0), nvml);
    EXPECT_NE(failed.note().find("nvmlInit_v2 returned 9"), std::string::npos) << failed.note();
    EXPECT_FALSE(failed.read().limits.has_value());
    setenv("FAKE_NVML_FAIL", "nvmlDeviceGetHandleByPciBusId_v2=6", 1);
    EXPECT_NE(GpuClockReader(cuda::device(0), nvml).note().find("no GPU at 00000002:3B:01.0"), std::string::npos);
    const GpuClockReader missing(cuda::device(0), "libno-such-nvml.so.1");
    EXPECT_NE(missing.note().find("libno-such-nvml.so.1"), std::string::npos) << missing.note();
    EXPECT_FALSE(missing.read().sm_mhz.has_value());
  });
}

TEST(Clocks, ReasonsHaveNames) {
  EXPECT_TRUE(limit_names(0).empty());
  EXPECT_TRUE(limit_names(1).empty()) << "an idle GPU is not limited";
  EXPECT_EQ(limit_names(1ull << 8 | 1ull << 20), (std::vector<std::string>{"display_clock_setting", "bit 20"}));
}

// ---- Repeated measurements

// An attempt with samples of the given spreads: the median is 1, and the quartiles are 1 and 1 + spread.
Attempt attempt_of(const std::vector<double>& spreads) {
  Attempt attempt;
  for (const double one : spreads) attempt.samples.push_back({.us = {1, 1, 1, 1 + one, 1 + one}, .calls = 1});
  return attempt;
}

Attempt steadiest_of(const std::vector<std::vector<double>>& planned, size_t& taken, double seconds = 60) {
  taken = 0;
  return steadiest([&] { return attempt_of(planned.at(taken++)); }, seconds);
}

TEST(Attempts, ASteadyRowIsMeasuredOnce) {
  size_t taken = 0;
  const Attempt found = steadiest_of({{0.029, 0.01}}, taken);
  EXPECT_EQ(taken, 1u);
  EXPECT_EQ(found.attempts, 1);
  EXPECT_NEAR(found.largest_spread(), 0.029, 1e-12);
}

TEST(Attempts, ASpreadAbove3PercentIsMeasuredAgainAndTheBestIsKept) {
  size_t taken = 0;
  Attempt found = steadiest_of({{0.01, 0.2}, {0.02, 0.02}, {0.0, 0.0}}, taken);
  EXPECT_EQ(taken, 2u) << "the second was steady";
  EXPECT_EQ(found.attempts, 2);
  EXPECT_NEAR(found.largest_spread(), 0.02, 1e-12);
  found = steadiest_of({{0.3}, {0.1}, {0.2}}, taken);
  EXPECT_EQ(taken, 3u);
  EXPECT_EQ(found.attempts, 3);
  EXPECT_NEAR(found.largest_spread(), 0.1, 1e-12);
  found = steadiest_of({{0.3}}, taken, 0);
  EXPECT_EQ(found.attempts, 1) << "the time was spent";
}

TEST(Attempts, TheBudgetLimitsTheSamples) {
  EXPECT_EQ(samples_within(5, 300, 30), 30);
  EXPECT_EQ(samples_within(3, 100'000, 30), 10) << "a third of the budget is for one attempt";
  EXPECT_EQ(samples_within(3, 10e6, 30), 5) << "fewer would have no quartiles";
  EXPECT_EQ(samples_within(3, 10e6, 2), 2);
  EXPECT_EQ(samples_within(5, 0, 30), 30);
  int64_t calls = 0;
  const Samples slow = time_calls(
      0, 100, [&](int64_t) { ++calls; }, 0);
  EXPECT_EQ(slow.us.size(), 5u);
}

}  // namespace
}  // namespace rapt::lab
