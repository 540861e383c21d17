// Time stamps of kernels (lab/trace.h, kernels/device/trace.cuh) without a GPU: the marks of an emulated kernel,
// made-up marks of two multiprocessors, the trace file, and both builds of the shipped kernel by NVRTC. What the
// numbers are worth needs a GPU.
#include "lab/trace.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "check/check.h"
#include "jit/sources.h"
#include "lab/emulate.h"
#include "lab/host_compiler.h"
#include "lab/kernels.h"
#include "runtime/gpu.h"
#include "runtime/plan.h"
#include "tests/cpu/emulation.h"
#include "tests/cpu/jit_support.h"

namespace rapt::lab {
namespace {

using nlohmann::ordered_json;

constexpr const char* kernel_file = "sm80/attention_sm80.cuh";

jit::Request request_of(const std::string& line, const std::string& arch, std::map<std::string, std::string> files) {
  const Plan chosen = plan(parse_problem(line), device_preset(arch));
  return request_for(chosen.steps[0].family->unit(chosen.steps[0].config), arch, line, files);
}

std::string error_of(const std::function<void()>& work, ErrorCode code) {
  try {
    work();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

// ---- The names.

TEST(TraceStages, of_the_shipped_kernel) {
  const auto names = trace_stages(request_of("f16 h8 q512 d64", "sm_89", {}));
  EXPECT_EQ(names,
            (std::vector<std::string>{"prologue", "wait K", "load", "Q.K", "wait V", "softmax", "P.V", "epilogue"}));
}

TEST(TraceStages, of_a_variant) {
  const auto of = [](const std::string& text) {
    return trace_stages(request_of("f16 h8 q512 d64", "sm_89", {{kernel_file, text}}));
  };
  EXPECT_EQ(of("// RAPT_TRACE_STAGES(\"no\")\n  RAPT_TRACE_STAGES(\n  \"producer: wait|\"\n  \"consumer: Q.K\")\n"),
            (std::vector<std::string>{"producer: wait", "consumer: Q.K"}));
  EXPECT_NE(error_of([&] { of("#define RAPT_TRACE_STAGES(list)\n"); }, ErrorCode::unsupported).find("has no marks"),
            std::string::npos);
  error_of([&] { of("RAPT_TRACE_STAGES(\"\")"); }, ErrorCode::invalid_argument);
  error_of([&] { of("RAPT_TRACE_STAGES(\"a|b"); }, ErrorCode::invalid_argument);
  EXPECT_EQ(role_of("producer: wait"), "producer");
  EXPECT_EQ(stage_of("producer: wait"), "wait");
  EXPECT_EQ(role_of("Q.K"), "");
  EXPECT_EQ(stage_of("Q.K"), "Q.K");
}

TEST(TraceShape, of_plans) {
  const auto of = [](const std::string& line, const LaunchShape& launch) {
    const Problem problem = parse_problem(line);
    return trace_shape(problem, plan(problem, device_preset("sm_89")).steps[0].config, launch, 128, 8);
  };
  const TraceShape small = of("f16 h8 q512 d64", {.grid_x = 128});
  EXPECT_EQ(small.warps, 4u);
  EXPECT_EQ(small.ctas, 128u);
  const TraceShape persistent = of("f16 h8 q512 d64", {.grid_x = 16});
  EXPECT_EQ(persistent.steps - 1, 8 * (small.steps - 1)) << "each CTA computes eight tiles";
  const TraceShape large = of("f16 b16 h32 q32768 d128", {.grid_x = 131072});
  EXPECT_LT(large.ctas, large.all_ctas);
  EXPECT_LE(large.marks() * 8, size_t{512} << 20);
}

// ---- Made-up marks: a producer and a consumer warp in each of two CTAs, on multiprocessors whose cycles differ.

TraceMemory two_roles() {
  TraceMemory memory;
  memory.shape = {.ctas = 2, .warps = 2, .steps = 3, .stages = 4, .all_ctas = 2};
  memory.marks.resize(memory.shape.marks());
  for (unsigned cta = 0; cta < 2; ++cta) {
    const unsigned long long cycles = 1'000'000 * (cta + 1), ns = 5000 + 100 * cta;  // two cycles are one nanosecond
    for (unsigned warp = 0; warp < 2; ++warp) {
      memory.of_warps.push_back({ns, cycles, ns + 500, cycles + 1000, 7 + cta});
      unsigned long long* marks = memory.marks.data() + (cta * 2 + warp) * 12;
      const unsigned first = warp * 2;  // stages 0 and 1: producer; 2 and 3: consumer
      marks[first] = cycles + 10;
      for (unsigned step = 0; step < 3; ++step) marks[step * 4 + first + 1] = cycles + 100 + 200 * step;
    }
  }
  return memory;
}
const std::vector<std::string> two_role_names = {"producer: begin", "producer: copy", "consumer: begin",
                                                 "consumer: Q.K"};

TEST(TraceOfMarks, clocks_agree_among_multiprocessors) {
  const Trace trace = read_trace(two_role_names, two_roles());
  ASSERT_EQ(trace.warps.size(), 4u);
  EXPECT_DOUBLE_EQ(trace.ns_per_cycle, 0.5);
  EXPECT_NEAR(trace.ns(trace.warps[0], 1'000'000), 0, 1e-6);
  EXPECT_NEAR(trace.ns(trace.warps[2], 2'000'000), 100, 1e-6);
  EXPECT_NEAR(trace.ns(trace.warps[2], 2'001'000), 600, 1e-6);
}

TEST(TraceOfMarks, summary_by_role) {
  const Trace trace = read_trace(two_role_names, two_roles());
  const TraceSummary summary = summarise(trace);
  ASSERT_EQ(summary.stages.size(), 4u);
  const StageSummary& copy = summary.stages[1];
  EXPECT_EQ(copy.role, "producer");
  EXPECT_EQ(copy.stage, "copy");
  EXPECT_EQ(copy.per_warp, 3);
  EXPECT_EQ(copy.median_cycles, 200) << "200, 200 and, up to the end, 500";
  EXPECT_DOUBLE_EQ(copy.share, 0.9) << "of the producers' time only";
  EXPECT_DOUBLE_EQ(summary.stages[2].share, 0.09);
  EXPECT_DOUBLE_EQ(summary.cta_us, 0.5);
  EXPECT_DOUBLE_EQ(summary.start_us, 0.05) << "100 cycles before the first repeated stage";
  EXPECT_DOUBLE_EQ(summary.tail_us, 0);
  EXPECT_EQ(summary.sms, 2u);
  EXPECT_NEAR(summary.ramp_us, 0.1, 1e-9);
  EXPECT_NEAR(summary.drain_us, 0.1, 1e-9);
  EXPECT_NEAR(summary.kernel_us, 0.6, 1e-9);
  const std::string text = to_text(trace, summary);
  for (const char* part : {"producer   copy", "consumer   Q.K", "start-up 0.05 us (10%)", "on 2 multiprocessors"})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 24);
}

TEST(TraceOfMarks, a_clock_that_steps_by_a_microsecond) {
  TraceMemory memory = two_roles();
  for (TraceWarp& w : memory.of_warps) w.begin_ns = 5000, w.end_ns = 6000;
  EXPECT_DOUBLE_EQ(read_trace(two_role_names, memory).ns_per_cycle, 1) << "as its readings say";
  for (TraceWarp& w : memory.of_warps) w.end_ns = 5000;
  EXPECT_DOUBLE_EQ(read_trace(two_role_names, memory).ns_per_cycle, 1) << "unknown";
}

TEST(TraceOfMarks, what_is_missing_is_told) {
  TraceMemory memory = two_roles();
  memory.of_warps[3].end_cycles = 0;
  memory.lost = 1;
  memory.shape.all_ctas = 9;
  const Trace trace = read_trace(two_role_names, memory);
  EXPECT_EQ(trace.warps.size(), 3u);
  const std::string text = to_text(trace, summarise(trace));
  EXPECT_NE(text.find("only the first 2 of 9 CTAs"), std::string::npos) << text;
  EXPECT_NE(text.find("some steps had no place"), std::string::npos) << text;
  for (TraceWarp& w : memory.of_warps) w.end_cycles = 0;
  EXPECT_NE(error_of([&] { read_trace(two_role_names, memory); }, ErrorCode::internal).find("RAPT_TRACE_END"),
            std::string::npos);
}

TEST(TraceFile, is_chromes_format) {
  const Trace trace = read_trace(two_role_names, two_roles());
  const auto file = ordered_json::parse(chrome_trace(trace, "a title").dump());
  EXPECT_EQ(file["displayTimeUnit"], "ns");
  EXPECT_EQ(file["otherData"]["title"], "a title");
  size_t stages = 0, names = 0;
  for (const ordered_json& event : file["traceEvents"]) {
    names += event["ph"] == "M";
    if (event["ph"] != "X") continue;
    ++stages;
    for (const char* key : {"name", "cat", "pid", "tid", "ts", "dur", "args"}) EXPECT_TRUE(event.contains(key)) << key;
    EXPECT_GE(event["ts"].get<double>(), 0);
    EXPECT_GT(event["dur"].get<double>(), 0);
    EXPECT_LE(event["ts"].get<double>() + event["dur"].get<double>(), 0.6 + 1e-9);
  }
  EXPECT_EQ(stages, 16u);
  EXPECT_EQ(names, 2u + 4u) << "of two multiprocessors and four warps";
  EXPECT_NE(file.dump().find("CTA 1 warp 0 producer"), std::string::npos);
  const auto one = chrome_trace(trace, "", 8);
  EXPECT_EQ(one["otherData"]["multiprocessors_written"], 1);
  EXPECT_EQ(one["otherData"]["multiprocessors"], 2);
}

// ---- The shipped kernel, emulated with marks.

TEST(TraceEmulated, stages_of_attention_sm80) {
  RAPT_NEEDS_FIBERS();
  try {
    find_host_compiler();
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  const Common options;
  const Device device = device_preset("sm_80");
  Emulator emulator(options, device);
  TraceMemory memory;
  emulator.trace(memory);
  const Problem problem = parse_problem("f16 h2 q100 k1024 d32");
  const check::Result result = check::check_problem(problem, check::Fill::normal, 3, emulator.kernel(""));
  EXPECT_TRUE(result.pass) << result.message;
  const KernelConfig config = plan(problem, device).steps[0].config;
  const auto blocks = static_cast<size_t>((1024 + config.number("block_n") * config.number("warps_n") - 1) /
                                          (config.number("block_n") * config.number("warps_n")));
  const Trace trace = read_trace(trace_stages(request_of("f16 h2 q100 k1024 d32", "sm_80", {})), memory);
  EXPECT_EQ(trace.warps.size(), memory.shape.all_warps());
  EXPECT_FALSE(trace.lost);
  for (const TracedWarp& warp : trace.warps) {
    ASSERT_EQ(warp.stages.size(), 2 + 6 * blocks);
    EXPECT_EQ(trace.names[warp.stages.front().stage], "prologue");
    EXPECT_EQ(trace.names[warp.stages.back().stage], "epilogue");
    for (size_t i = 0; i < 6 * blocks; ++i) {
      EXPECT_EQ(warp.stages[1 + i].stage, 1 + i % 6);
      EXPECT_EQ(warp.stages[1 + i].step, i / 6);
    }
    EXPECT_EQ(warp.sm, warp.cta % 4);
  }
  double share = 0;
  for (const StageSummary& row : summarise(trace).stages) share += row.share;
  EXPECT_GT(share, 0.9) << "the time before the first mark is missing";
  EXPECT_LE(share, 1 + 1e-9);
}

// ---- By NVRTC.

class TraceBuildOn : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (jit::find_compiler() == nullptr) GTEST_SKIP() << "no NVRTC";
  }
};
INSTANTIATE_TEST_SUITE_P(Architectures, TraceBuildOn, testing::Values("sm_80", "sm_89", "sm_90a"),
                         [](const auto& test) { return std::string(test.param); });

std::string without_marks(const std::string& text) {
  std::istringstream lines(text);
  std::string kept;
  for (std::string line; std::getline(lines, line);)
    if (line.find("RAPT_TRACE") == line.npos && line.find("device/trace.cuh") == line.npos) kept += line + "\n";
  return kept;
}

// The normal build of a line, compiled once for both tests.
const std::string& normal_build(const char* line, const char* arch) {
  static std::map<std::string, std::string> builds;
  std::string& bytes = builds[concat(arch, " ", line)];
  if (bytes.empty()) bytes = jit::compile(request_of(line, arch, {})).bytes;
  return bytes;
}

constexpr const char* built_lines[] = {"f16 b1 h8 q512 d64", "e4m3 out=f16 h8 q512 d128 scales=head causal"};

TEST_P(TraceBuildOn, the_normal_build_has_no_marks) {
  const std::string text(jit::embedded_files().at(kernel_file));
  ASSERT_NE(without_marks(text), text);
  for (const char* line : built_lines)
    EXPECT_EQ(normal_build(line, GetParam()),
              jit::compile(request_of(line, GetParam(), {{kernel_file, without_marks(text)}})).bytes)
        << "the same machine code as that of a source without marks: " << line;
}

TEST_P(TraceBuildOn, the_build_with_marks_compiles) {
  for (const char* line : built_lines) {
    const jit::Image image = jit::compile(request_of(line, GetParam(), with_trace({})));
    EXPECT_NE(image.bytes.find(trace_variable), std::string::npos) << line;
    EXPECT_EQ(normal_build(line, GetParam()).find(trace_variable), std::string::npos);
  }
}

TEST_P(TraceBuildOn, an_unknown_stage_is_an_error) {
  std::string text(jit::embedded_files().at(kernel_file));
  const std::string mark = "RAPT_TRACE(\"softmax\"";
  text.replace(text.find(mark), mark.size(), "RAPT_TRACE(\"no such\"");
  const std::string said = error_of(
      [&] {
        jit::compile(request_of(built_lines[0], GetParam(), with_trace({{kernel_file, text}})));
      },
      ErrorCode::invalid_argument);
  EXPECT_NE(said.find("must be a name of RAPT_TRACE_STAGES"), std::string::npos) << said;
}

}  // namespace
}  // namespace rapt::lab
