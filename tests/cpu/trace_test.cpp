// Tests time stamps of kernels (lab/trace.h, kernels/device/trace.cuh) without a GPU: the marks of an emulated kernel,
// invented marks of two multiprocessors, the trace file, and both builds of the shipped kernel by NVRTC. Whether the
// times are correct can only be tested on a GPU.
#include "lab/trace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "check/check.h"
#include "jit/sources.h"
#include "lab/cubin.h"
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
// A problem for which the planner chooses attention_sm90, and one for attention_scalar.
constexpr const char *sm90_line = "bf16 b2 h24 q4096 d64 causal", *scalar_line = "f32 b1 h2 q40 k70 d30";

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
  EXPECT_EQ(names, (std::vector<std::string>{"prologue", "wait K", "load", "Q.K", "wait V", "softmax", "P.V",
                                             "epilogue", "arrive", "merge"}));
}

TEST(TraceStages, of_attention_sm90_and_attention_scalar) {
  EXPECT_EQ(trace_stages(request_of(sm90_line, "sm_90a", {})),
            (std::vector<std::string>{"start", "producer: tile", "producer: load Q", "producer: load K",
                                      "producer: load V", "consumer #: wait tile", "consumer #: wait Q",
                                      "consumer #: wait turn", "consumer #: wait K", "consumer #: Q.K",
                                      "consumer #: wait V", "consumer #: P.V", "consumer #: softmax",
                                      "consumer #: wait P.V", "consumer #: skip", "consumer #: epilogue"}));
  EXPECT_EQ(trace_stages(request_of(scalar_line, "sm_80", {})),
            (std::vector<std::string>{"start", "load Q, K", "Q.K", "softmax", "load V", "P.V", "store"}));
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
  EXPECT_EQ(persistent.steps - 1, (8 + 4) * (small.steps - 1)) << "a CTA computes eight tiles on average";
  const Problem causal = parse_problem(sm90_line);
  const KernelConfig config = plan(causal, device_preset("sm_90a")).steps[0].config;
  ASSERT_EQ(config.number("warpgroups"), 4);
  const TraceShape of_sm90 = trace_shape(causal, config, {.grid_x = 132}, 640, 16);
  // 48 heads with 16 tiles of 256 rows make 6 tiles for each of 132 CTAs. There is memory for half as many more. Each
  // tile has 64 blocks of keys.
  EXPECT_EQ(of_sm90.steps - 1, (6 + 3) * 64u);
  const TraceShape large = of("f16 b16 h32 q32768 d128", {.grid_x = 131072});
  EXPECT_LT(large.ctas, large.all_ctas);
  EXPECT_LE(large.marks() * 8, size_t{512} << 20);
}

// ---- Invented marks: a producer and a consumer warp in each of two CTAs, on multiprocessors whose cycles differ.

TraceMemory two_roles() {
  TraceMemory memory;
  memory.shape = {.ctas = 2, .warps = 2, .steps = 3, .stages = 4, .all_ctas = 2};
  memory.marks.resize(memory.shape.marks());
  for (unsigned cta = 0; cta < 2; ++cta) {
    const unsigned long long cycles = 1'000'000 * (cta + 1), ns = 5000 + 100 * cta;  // two cycles are one nanosecond
    for (unsigned warp = 0; warp < 2; ++warp) {
      memory.of_warps.push_back({ns, cycles, ns + 500, cycles + 1000, 7 + cta});
      unsigned long long* marks = memory.marks.data() + (cta * 2 + warp) * 12;
      const unsigned first = warp * 2;  // the producer has stages 0 and 1, the consumer 2 and 3
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

TEST(TraceOfMarks, stages_of_each_tile_are_not_the_main_loop) {
  TraceMemory memory;  // a warp that computes two tiles with four blocks of keys each
  memory.shape = {.ctas = 1, .warps = 1, .steps = 8, .stages = 3, .all_ctas = 1};
  memory.marks.resize(memory.shape.marks());
  memory.of_warps = {{5000, 1000, 5500, 2000, 0}};
  for (unsigned tile = 0; tile < 2; ++tile) {
    const unsigned begin = 1000 + 500 * tile;
    memory.marks[tile * 3] = begin + 10;
    for (unsigned block = 0; block < 4; ++block) memory.marks[(4 * tile + block) * 3 + 1] = begin + 100 + 80 * block;
    memory.marks[tile * 3 + 2] = begin + 460;
  }
  const TraceSummary summary = summarise(read_trace({"tile", "Q.K", "epilogue"}, memory));
  EXPECT_DOUBLE_EQ(summary.start_us, 0.05) << "100 cycles of half a nanosecond";
  EXPECT_DOUBLE_EQ(summary.tail_us, 0.02) << "the last epilogue: 40 cycles";
}

TEST(TraceOfMarks, a_warpgroup_has_its_own_role) {
  // A producer warp and two consumer warpgroups. The other three warps of the producer's warpgroup store nothing.
  TraceMemory memory;
  memory.shape = {.ctas = 1, .warps = 12, .steps = 1, .stages = 3, .all_ctas = 1};
  memory.marks.resize(memory.shape.marks());
  memory.of_warps.resize(memory.shape.all_warps());
  for (unsigned warp = 0; warp < 12; ++warp) {
    if (warp > 0 && warp < 4) continue;
    memory.of_warps[warp] = {5000, 1000, 5500, 2000, 0};
    memory.marks[warp * 3] = 1010;
    memory.marks[warp * 3 + (warp == 0 ? 2 : 1)] = 1500 + warp;
  }
  const Trace trace = read_trace({"start", "consumer #: Q.K", "producer: load"}, memory);
  EXPECT_EQ(trace.names, (std::vector<std::string>{"start", "producer: load", "consumer 1: Q.K", "consumer 2: Q.K"}));
  ASSERT_EQ(trace.warps.size(), 9u);
  for (const TracedWarp& warp : trace.warps) {
    ASSERT_EQ(warp.stages.size(), 2u);
    EXPECT_EQ(warp.stages[0].stage, 0u);
    EXPECT_EQ(warp.stages[1].stage, 1 + warp.warp / 4);
  }
  const std::string file = chrome_trace(trace, "").dump();
  for (const char* name : {"CTA 0 warp 0 producer", "CTA 0 warp 7 consumer 1", "CTA 0 warp 8 consumer 2"})
    EXPECT_NE(file.find(name), std::string::npos) << name << "\n" << file;
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

// ---- The shipped kernels, emulated with marks.

class TraceEmulated : public testing::Test {
 protected:
  void SetUp() override {
    RAPT_NEEDS_FIBERS();
    try {
      find_host_compiler();
    } catch (const Error& error) {
      GTEST_SKIP() << error.what();
    }
  }

  // The trace of a problem's kernel. The kernel's results must be correct.
  static Trace trace_of(const std::string& line, const std::string& arch, const std::string& config,
                        const std::string& line_of_names) {
    const Common options;
    Emulator emulator(options, device_preset(arch));
    TraceMemory memory;
    emulator.trace(memory);
    const check::Result result =
        check::check_problem(parse_problem(line), check::Fill::normal, 3, emulator.kernel(config));
    EXPECT_TRUE(result.pass) << result.message;
    const Trace trace = read_trace(trace_stages(request_of(line_of_names, arch, {})), memory);
    EXPECT_FALSE(trace.lost);
    return trace;
  }
  static std::vector<std::string> stages_of(const Trace& trace, const TracedWarp& warp) {
    std::vector<std::string> names;
    for (const TracedStage& stage : warp.stages) names.push_back(stage_of(trace.names[stage.stage]));
    return names;
  }
  static int64_t count(const Trace& trace, const std::string& name) {
    int64_t count = 0;
    for (const TracedWarp& warp : trace.warps)
      count += std::count_if(warp.stages.begin(), warp.stages.end(),
                             [&](const TracedStage& stage) { return trace.names[stage.stage] == name; });
    return count;
  }
};

using Names = std::vector<std::string>;
void append(Names& names, const Names& more) { names.insert(names.end(), more.begin(), more.end()); }

constexpr const char* small_sm90 = "family=attention_sm90 warpgroups=2 block_n=32 kv_stages=3 ping_pong=";

// There is one more tile than CTAs. The first CTA takes it. A tile has three blocks of keys.
TEST_F(TraceEmulated, stages_of_attention_sm90) {
  const int64_t ctas = device_preset("sm_90a").sm_count, tiles = ctas + 1;
  const Trace trace = trace_of(concat("f16 h", tiles, " q100 k96 d16"), "sm_90a", concat(small_sm90, "0"), sm90_line);
  ASSERT_EQ(static_cast<int64_t>(trace.warps.size()), 3 * ctas) << "one warp loads; one of each consumer warpgroup";
  EXPECT_EQ(count(trace, "producer: load Q"), tiles);
  Names producer{"tile", "load Q", "load K", "load K", "load V", "load K", "load V", "load V"};
  Names consumer{"wait tile", "wait Q", "Q.K", "softmax"};
  for (int block = 0; block < 2; ++block) append(consumer, {"Q.K", "P.V", "softmax", "wait P.V"});
  append(consumer, {"P.V", "epilogue"});
  for (const TracedWarp& warp : trace.warps) {
    const bool loads = warp.warp == 0;
    Names expected{"start"};
    for (int tile = 0; tile < (warp.cta == 0 ? 2 : 1); ++tile) append(expected, loads ? producer : consumer);
    // At the end the consumers wait for two messages: that the list of tiles to repeat is complete, and the last one.
    append(expected, loads ? Names{"tile"} : Names{"wait tile", "wait tile"});
    Names found = stages_of(trace, warp);
    std::erase_if(found, [](const std::string& stage) { return stage == "wait K" || stage == "wait V"; });
    EXPECT_EQ(found, expected) << "CTA " << warp.cta << " warp " << warp.warp;
    EXPECT_EQ(role_of(trace.names[warp.stages.back().stage]), loads ? "producer" : concat("consumer ", warp.warp / 4));
  }
  for (const char* name : {"consumer 1: epilogue", "consumer 2: epilogue"}) EXPECT_EQ(count(trace, name), tiles);
  // A wait for keys has a mark only if they are not there yet.
  EXPECT_GT(count(trace, "consumer 1: wait K"), 0);
  EXPECT_LT(count(trace, "consumer 1: wait V"), 3 * tiles);
}

// Warpgroups take turns, and the rows of one warpgroup do not see some blocks of keys.
TEST_F(TraceEmulated, attention_sm90_skips_blocks_and_takes_turns) {
  const Trace trace = trace_of("f16 h1 q128 k128 d16 causal", "sm_90a", concat(small_sm90, 1), sm90_line);
  // Rows 0 to 63 see two of the four blocks, rows 64 to 127 all. One warp of a warpgroup stores marks.
  EXPECT_EQ(count(trace, "consumer 1: Q.K"), 2);
  EXPECT_EQ(count(trace, "consumer 2: Q.K"), 4);
  EXPECT_EQ(count(trace, "consumer 1: skip"), 2);
  EXPECT_EQ(count(trace, "consumer 2: skip"), 0);
  for (const char* role : {"consumer 1: ", "consumer 2: "})
    EXPECT_EQ(count(trace, concat(role, "wait turn")), 4) << "every warpgroup takes every turn";
}

// A CTA of four consumer warpgroups has 20 warps. Each warp counts its own steps.
TEST_F(TraceEmulated, attention_sm90_with_four_warpgroups) {
  const Trace trace = trace_of("f16 h1 q256 k96 d16", "sm_90a",
                               "family=attention_sm90 warpgroups=4 block_n=32 kv_stages=3 ping_pong=0", sm90_line);
  ASSERT_EQ(trace.warps.size(), 5u) << "one warp loads; one of each consumer warpgroup";
  EXPECT_EQ(count(trace, "producer: load K"), 3);
  for (const char* role : {"consumer 1: ", "consumer 2: ", "consumer 3: ", "consumer 4: "})
    for (const char* stage : {"Q.K", "P.V"}) EXPECT_EQ(count(trace, concat(role, stage)), 3) << role << stage;
}

TEST_F(TraceEmulated, stages_of_attention_scalar) {
  const Trace trace = trace_of(scalar_line, "sm_80", "", scalar_line);
  Names expected{"start"};
  for (int tile = 0; tile < 3; ++tile) append(expected, {"load Q, K", "Q.K", "softmax", "load V", "P.V"});
  expected.emplace_back("store");
  for (const TracedWarp& warp : trace.warps) EXPECT_EQ(stages_of(trace, warp), expected) << warp.cta;
  // A larger head_dim is computed in slices.
  const Trace wide = trace_of("f32 h1 q9 k9 d600", "sm_80", "", scalar_line);
  EXPECT_GT(count(wide, "Q.K"), count(wide, "softmax"));
}

TEST_F(TraceEmulated, stages_of_attention_sm80) {
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
    if (line.find("RAPT_TRACE") == line.npos && line.find("device/trace.cuh") == line.npos &&
        line.find("\"stages.cuh\"") == line.npos)
      kept += line + "\n";
  return kept;
}

// The normal build of a line, compiled once for both tests.
const std::string& normal_build(const char* line, const char* arch) {
  static std::map<std::string, std::string> builds;
  std::string& bytes = builds[concat(arch, " ", line)];
  if (bytes.empty()) bytes = jit::compile(request_of(line, arch, {})).bytes;
  return bytes;
}

constexpr const char* built_lines[] = {"f16 b1 h8 q512 d64", "e4m3 out=f16 h8 q512 d128 scales=head causal", sm90_line,
                                       scalar_line};
// The sources with marks.
constexpr const char* marked_files[] = {kernel_file, "sm90/attention_sm90.cuh", "sm90/producer.cuh",
                                        "scalar/attention_scalar.cuh"};

TEST_P(TraceBuildOn, the_normal_build_has_no_marks) {
  std::map<std::string, std::string> files;
  for (const char* file : marked_files) {
    const std::string text(jit::embedded_files().at(file));
    files[file] = without_marks(text);
    ASSERT_NE(files[file], text);
  }
  for (const char* line : built_lines)
    EXPECT_EQ(normal_build(line, GetParam()), jit::compile(request_of(line, GetParam(), files)).bytes)
        << "the same machine code as that of a source without marks: " << line;
}

TEST_P(TraceBuildOn, the_build_with_marks_compiles) {
  for (const char* line : built_lines) {
    const jit::Image image = jit::compile(request_of(line, GetParam(), with_trace({})));
    EXPECT_NE(image.bytes.find(trace_variable), std::string::npos) << line;
    EXPECT_EQ(normal_build(line, GetParam()).find(trace_variable), std::string::npos);
  }
}

// With marks, too, attention_sm90 does not spill registers, and ptxas does not serialize the products. Otherwise the
// trace would measure a different kernel.
TEST(TraceBuildOfSm90, no_spills_and_no_serialized_products) {
  if (jit::find_compiler() == nullptr) GTEST_SKIP() << "no NVRTC";
  for (const char* words : {"d64", "d64 causal", "d128", "d128 causal", "d192:128 causal", "d256 causal"}) {
    const std::string line = concat("bf16 b2 h24 q4096 ", words);
    SCOPED_TRACE(line);
    const auto request = request_of(line, "sm_90a", with_trace({}));
    ASSERT_NE(request.unit.find("attention_sm90"), std::string::npos);
    const jit::Image image = jit::compile(request);
    const jit::Resources used = jit::parse_resources(image.log);
    const InstructionCounts counts = count_instructions(image.bytes);
    ASSERT_TRUE(used.known);
    EXPECT_EQ(used.spill_store_bytes + used.spill_load_bytes + used.stack_bytes + counts.local, 0);
    for (const char* warning : {"C7508", "C7512", "C7514"}) EXPECT_EQ(image.log.find(warning), std::string::npos);
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
