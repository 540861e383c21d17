// Tests rapt profile without a GPU: the metric table, ncu's pages (tests/data/ncu), source lines, the gates, and the
// command. The command runs with a stand-in driver, and with a shell script in place of ncu. Real counters need a GPU.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "jit/jit.h"
#include "lab/csv.h"
#include "lab/cubin.h"
#include "lab/emulate.h"
#include "lab/host_compiler.h"
#include "lab/line_table.h"
#include "lab/profile_hot_spots.h"
#include "lab/profile_metrics.h"
#include "lab/profile_verdict.h"
#include "lab/trace.h"
#include "runtime/gpu.h"
#include "runtime/plan.h"
#include "tests/cpu/emulation.h"
#include "tests/cpu/program.h"

namespace rapt::lab {
namespace {

using test::Outcome;
using test::run_in;
using test::text_of;

const std::string data = RAPT_SOURCE_DIR "/tests/data/ncu/";

ProfiledKernel stored(const std::string& name, int sm) {
  const auto kernels = parse_raw_table(raw_table(text_of(data + name)), sm);
  EXPECT_EQ(kernels.size(), 1u);
  return kernels.at(0);
}

bool holds(const std::vector<std::string>& list, const std::string& one) {
  return std::find(list.begin(), list.end(), one) != list.end();
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  EXPECT_NE(text.find(from), std::string::npos) << from;
  return text.replace(text.find(from), from.size(), to);
}

TEST(ProfileMetrics, names_depend_on_the_architecture) {
  const std::string gmma = "sm__inst_executed_pipe_tensor_op_gmma.sum";
  EXPECT_TRUE(holds(metric_names(90), gmma));
  for (const int sm : {80, 89, 120}) EXPECT_FALSE(holds(metric_names(sm), gmma)) << sm;
  EXPECT_FALSE(holds(metric_names(80), "sm__ops_path_tensor_src_fp8.sum"));
  for (const int sm : {89, 90, 120}) EXPECT_TRUE(holds(metric_names(sm), "sm__ops_path_tensor_src_fp8.sum")) << sm;
  for (const int sm : {80, 89, 90, 120}) {
    std::vector<std::string> names = metric_names(sm);
    std::sort(names.begin(), names.end());
    EXPECT_EQ(std::adjacent_find(names.begin(), names.end()), names.end()) << "asked for twice on " << sm;
  }
}

TEST(ProfileMetrics, raw_page_of_sm_89) {
  const ProfiledKernel kernel = stored("sm_89_fp8.csv", 89);
  EXPECT_EQ(kernel.name, "rapt_kernel");
  EXPECT_EQ(kernel.block, "(128, 1, 1)");
  EXPECT_EQ(kernel.value("duration"), 41280);
  EXPECT_EQ(kernel.value("fp8_ops"), 19327352832.0) << "thousands are grouped";
  EXPECT_EQ(kernel.value("f16_ops"), 0) << "the first name has no number, the next one counts";
  EXPECT_FALSE(kernel.executed({"QMMA"}).has_value()) << "no opcodes is not none of them";
  EXPECT_TRUE(holds(kernel.not_counted, "sm__ops_path_tensor_src_fp16.sum"));
  EXPECT_EQ(stall_reasons(kernel).at(0).first, "math_pipe_throttle");
}

TEST(ProfileMetrics, raw_page_of_sm_90) {
  const ProfiledKernel kernel = stored("sm_90_wgmma.csv", 90);
  EXPECT_EQ(kernel.executed({"HGMMA"}), 524288);
  EXPECT_EQ(kernel.executed({"QMMA", "QGMMA"}), 0);
  EXPECT_EQ(kernel.executed({"F2FP"}), 1048576);
  EXPECT_EQ(kernel.value("tensor_gmma_inst"), 524288);
  EXPECT_EQ(kernel.value("f16_ops"), 68719476736.0);
  EXPECT_EQ(stall_reasons(kernel).at(0).first, "gmma");
  EXPECT_EQ(stored("sm_90_wgmma.csv", 89).value("tensor_gmma_inst"), std::nullopt) << "not a name of sm_89";
}

TEST(ProfileMetrics, units_of_an_old_ncu) {
  const ProfiledKernel kernel = stored("sm_80_old_units.csv", 80);
  EXPECT_EQ(kernel.value("duration"), 1205500) << "ns";
  EXPECT_EQ(kernel.value("dram_read_bytes"), 2.5e6);
  EXPECT_EQ(kernel.value("dram_write_bytes"), 640e3);
  EXPECT_EQ(kernel.value("unit.DRAM"), 12.5) << "by its other name";
  const std::vector<std::string> missing = missing_metrics(kernel);
  EXPECT_TRUE(std::any_of(missing.begin(), missing.end(), [](const std::string& m) {
                return m.starts_with("unit.DRAM") || m.starts_with("duration");
              }) == false);
  EXPECT_TRUE(std::any_of(missing.begin(), missing.end(),
                          [](const std::string& m) { return m.starts_with("unit.tensor (sm__pipe_tensor_cycles"); }));
}

TEST(ProfileMetrics, what_is_no_raw_page) {
  EXPECT_EQ(raw_table("==PROF== Connected to process 1\n==WARNING== No kernels were profiled.\n"), "");
  const std::string table = raw_table(text_of(data + "sm_80_old_units.csv"));
  const auto why = [](const std::string& text) -> std::string {
    try {
      parse_raw_table(text, 80);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::environment);
      return error.what();
    }
    return "";
  };
  EXPECT_NE(why("").find("no column \"Kernel Name\""), std::string::npos);
  EXPECT_NE(why("\"ID\",\"Kernel Name\",\"Metric Name\"\n").find("details page"), std::string::npos);
  EXPECT_NE(why(table.substr(0, table.find('\n') + 1)).find("units"), std::string::npos);
  EXPECT_NE(why(table + "\"1\",\"4711\"\n").find("a row has 2 cells, its header 18"), std::string::npos);
  const std::string none = table.substr(0, table.find("\"0\",\"4711\""));
  EXPECT_TRUE(parse_raw_table(none, 80).empty()) << "no launches";
  EXPECT_EQ(why(none), "");
}

TEST(ProfileMetrics, instances_are_left_out_but_opcodes) {
  const std::string table = raw_table(text_of(data + "sm_90_wgmma.csv"));
  EXPECT_EQ(without_instances(table), table);
  const std::string one = "\"71.5\"", many = "\"71.5 (0x10: 1,000; 0x20: 2)\"";
  EXPECT_EQ(without_instances(replaced(table, one, many)), table);
  EXPECT_EQ(without_instances(""), "");
}

TEST(ProfileMetrics, unknown_names_are_found_in_messages) {
  const std::vector<std::string> asked = {"sm__a.sum", "sm__a_b.sum", "sm__c.avg.pct"};
  const std::string regex = "==ERROR== Failed to find metric regex:^sm__a(\\.(sum|avg|min|max))?$\n";
  EXPECT_EQ(unknown_metrics(regex, asked), (std::vector<std::string>{"sm__a.sum"}));
  EXPECT_EQ(unknown_metrics("==ERROR== Failed to find metric sm__c.avg.pct\n", asked),
            (std::vector<std::string>{"sm__c.avg.pct"}));
  EXPECT_TRUE(unknown_metrics("==PROF== profiling with sm__a.sum\n", asked).empty());
}

// ---- Verdict.

const Gate& gate(const Verdict& verdict, const std::string& name) {
  for (const Gate& one : verdict.gates)
    if (one.name == name) return one;
  throw std::out_of_range(name);
}

PlannedFacts facts_of(const std::string& line, const std::string& arch, const std::string& config = "") {
  const Device device = device_preset(arch);
  const Problem problem = parse_problem(line);
  return planned_facts(problem, plan_with(problem, device, config).steps[0], device);
}

TEST(ProfileVerdict, facts_of_plans) {
  EXPECT_EQ(facts_of("f16 h8 q512 d64", "sm_89").fp8, Fp8Use::none);
  const std::string fp8 = "e4m3 out=f16 h8 q512 d64 scales=head";
  EXPECT_EQ(facts_of(fp8, "sm_89").fp8, Fp8Use::instructions);
  EXPECT_EQ(facts_of(fp8, "sm_89", "fp8_qk=0").fp8, Fp8Use::widened);
  EXPECT_EQ(facts_of(fp8, "sm_80").fp8, Fp8Use::widened);
  EXPECT_FALSE(facts_of("f32 h8 q512 d60", "sm_89").tensor_products);
  EXPECT_TRUE(facts_of("f16 h8 q512 d64", "sm_89").tensor_products);
  EXPECT_NE(facts_of("f32 h8 q512 d60", "sm_89").occupancy_reason, "") << "the ledger has one";
}

TEST(ProfileVerdict, fp8_gate) {
  const ProfiledKernel with = stored("sm_89_fp8.csv", 89), without = stored("sm_90_wgmma.csv", 90);
  PlannedFacts facts;
  const auto state = [&](const ProfiledKernel& kernel, Fp8Use use, const std::vector<std::string>& words = {}) {
    facts.fp8 = use;
    return gate(judge(kernel, facts, parse_gates(words)), "fp8").state;
  };
  using State = Gate::State;
  EXPECT_EQ(state(with, Fp8Use::instructions), State::passed);
  EXPECT_EQ(state(with, Fp8Use::widened), State::failed);
  EXPECT_EQ(state(without, Fp8Use::instructions), State::failed);
  EXPECT_EQ(state(without, Fp8Use::widened), State::passed);
  EXPECT_EQ(state(with, Fp8Use::none), State::off);
  EXPECT_EQ(state(with, Fp8Use::none, {"fp8=none"}), State::failed);
  EXPECT_EQ(state(with, Fp8Use::widened, {"fp8=some"}), State::passed);
  EXPECT_EQ(state(with, Fp8Use::widened, {"fp8=off"}), State::off);
  ProfiledKernel qgmma = without;
  qgmma.opcodes["QGMMA"] = 64;
  EXPECT_EQ(state(qgmma, Fp8Use::instructions), State::passed) << "wgmma of FP8 codes counts";
  EXPECT_EQ(state(qgmma, Fp8Use::widened), State::failed);
  EXPECT_EQ(state(stored("sm_80_old_units.csv", 80), Fp8Use::widened), State::passed)
      << "sm_80 has no such instruction";
  EXPECT_EQ(state(stored("sm_80_old_units.csv", 89), Fp8Use::widened), State::unknown) << "not counted is not zero";
}

TEST(ProfileVerdict, gates_of_numbers) {
  const std::string table = raw_table(text_of(data + "sm_90_wgmma.csv"));
  const auto judged = [&](const std::string& from, const std::string& to, const PlannedFacts& facts,
                          const std::vector<std::string>& words = {}) {
    const std::string changed = from.empty() ? table : replaced(table, from, to);
    return judge(parse_raw_table(changed, 90).at(0), facts, parse_gates(words));
  };
  using State = Gate::State;
  PlannedFacts facts;
  const Verdict as_is = judged("", "", facts);
  EXPECT_EQ(gate(as_is, "tensor").state, State::passed);
  EXPECT_EQ(gate(as_is, "occupancy").state, State::failed) << "18.75% and no reason";
  EXPECT_EQ(gate(as_is, "memory").state, State::passed);
  EXPECT_TRUE(as_is.failed());
  facts.occupancy_reason = "warps own many rows";
  EXPECT_FALSE(judged("", "", facts).failed());
  EXPECT_NE(gate(judged("", "", facts), "occupancy").text.find("warps own many rows"), std::string::npos);
  EXPECT_EQ(gate(judged("\"71.5\"", "\"20\"", facts), "tensor").state, State::failed) << "more than 20";
  EXPECT_EQ(gate(judged("\"71.5\"", "\"20\"", facts, {"tensor=10"}), "tensor").state, State::passed);
  EXPECT_EQ(gate(judged("\"100\",\"100\",\"100\"", "\"100\",\"69.5\",\"100\"", facts), "memory").state, State::failed);
  EXPECT_EQ(gate(judged("\"100\",\"100\",\"100\"", "\"100\",\"100\",\"50\"", facts), "memory").state, State::failed)
      << "cp.async counts";
  EXPECT_EQ(gate(judged("\"100\",\"100\",\"100\"", "\"12.5\",\"100\",\"100\"", facts), "memory").state, State::passed)
      << "128 loads beside 16384 stores do not count";
  EXPECT_EQ(gate(judged("\"100\",\"100\",\"100\"", "\"0\",\"100\",\"0\"", facts, {"memory=off"}), "memory").state,
            State::off);
  facts.tensor_products = false;
  EXPECT_EQ(gate(judged("\"71.5\"", "\"0\"", facts), "tensor").state, State::off);
}

TEST(ProfileVerdict, what_bounds_the_kernel) {
  const Verdict tensor = judge(stored("sm_90_wgmma.csv", 90), {}, {});
  EXPECT_EQ(tensor.bound,
            "tensor, at 72% of its peak; if this unit were always busy, the kernel would take 17.3 us instead of 24.2");
  const Verdict latency = judge(stored("sm_80_old_units.csv", 80), {}, {});
  EXPECT_NE(latency.bound.find(
                "latency: no unit reaches 60% of its peak; the busiest is DRAM at 12%; the main stall reason is "
                "long_scoreboard"),
            std::string::npos)
      << latency.bound;
  EXPECT_FALSE(latency.nothing_judged()) << "occupancy was";
  ProfiledKernel nothing;
  nothing.sm = 90;
  EXPECT_TRUE(judge(nothing, {}, {}).nothing_judged());
  EXPECT_FALSE(judge(nothing, {}, parse_gates({"tensor=off", "occupancy=off", "memory=off"})).nothing_judged());
}

TEST(ProfileVerdict, a_screen) {
  const ProfiledKernel kernel = stored("sm_90_wgmma.csv", 90);
  const PlannedFacts facts;
  const std::string text = to_text(kernel, facts, judge(kernel, facts, {}));
  for (const char* part : {"HGMMA 524288", "conversions 33.55e6", "F2FP 1.05e6", "FP32 71.30e6", "gate     tensor",
                           "bank conflicts 128 of 98304 wavefronts", "DRAM 1.57e6 bytes read"})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 24) << text;
}

TEST(ProfileVerdict, tensor_instructions_without_opcodes) {
  ProfiledKernel kernel = stored("sm_90_wgmma.csv", 90);
  kernel.opcodes.clear();
  const std::string text = to_text(kernel, {}, judge(kernel, {}, {}));
  EXPECT_NE(text.find("tensor   524288 instructions (hmma 0, gmma 524288)"), std::string::npos) << text;
}

TEST(ProfileVerdict, wrong_gates) {
  for (const char* word :
       {"speed=1", "tensor", "tensor=", "tensor=fast", "tensor=101", "tensor=-1", "memory=nan", "fp8=3", "fp8", ""}) {
    try {
      parse_gates({word});
      ADD_FAILURE() << word;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_NE(std::string(error.what()).find(concat("--gate ", word)), std::string::npos) << error.what();
    }
  }
}

// ---- Hot spots. sm_90_sass.csv has 117 of the 2448 rows of a real page (f16 h8 q512 d64 on an H200, with ncu 2025.3).

SassPage stored_page() { return parse_sass_page(text_of(data + "sm_90_sass.csv")); }

TEST(ProfileHotSpots, a_real_page) {
  const SassPage page = stored_page();
  EXPECT_EQ(page.why, "");
  ASSERT_EQ(page.instructions.size(), 117u);
  EXPECT_EQ(page.samples, 268);
  EXPECT_EQ(page.instructions[1].offset, 0x10u);
  EXPECT_EQ(page.instructions[1].text, "LDC.64 R2, c[0x0][0x3a0]") << "constants are no addresses";
  EXPECT_FALSE(holds(page.reasons, "selected"));
  EXPECT_TRUE(holds(page.reasons, "long_scoreboard"));
  const HotSpots spots = hot_spots(page, {});
  EXPECT_EQ(spots.instructions[0].offset, 0x4b10u);
  EXPECT_EQ(spots.instructions[0].text, "IMAD R196, R9, 0x200, R194");
  EXPECT_EQ(spots.instructions[0].samples, 37);
  EXPECT_EQ(spots.instructions[0].stall.reason, "long_scoreboard");
  EXPECT_EQ(spots.instructions[0].stall.share, 1);
  EXPECT_EQ(spots.instructions[3].text, "@P1   BRA 0x8220") << "a target is an offset";
  EXPECT_TRUE(spots.lines.empty());
  const std::string text = to_text(spots);
  EXPECT_TRUE(text.starts_with("hot      13.8%  long_scoreboard 100%     0x04b10  IMAD R196, R9, 0x200, R194\n"))
      << text;
  EXPECT_NE(text.find("hot line not available: not searched\n"), std::string::npos) << text;
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 6) << text;
  const auto json = to_json(spots);
  EXPECT_EQ(json["instructions"].size(), 20u);
  EXPECT_EQ(json["instructions"][0]["offset"], 0x4b10);
  EXPECT_EQ(json["why_no_lines"], "not searched");
}

TEST(ProfileHotSpots, the_kept_page_is_relative_and_has_no_empty_columns) {
  const SassPage page = stored_page();
  const std::string header = page.csv.substr(0, page.csv.find('\n'));
  EXPECT_TRUE(header.starts_with("Offset,Source,")) << header;
  EXPECT_EQ(header.find("stall_membar"), std::string::npos) << "all are 0";
  EXPECT_NE(page.csv.find("\n0x10,\"LDC.64 R2, c[0x0][0x3a0]\",,"), std::string::npos) << page.csv;
  EXPECT_EQ(page.csv.find("0x7fc58"), std::string::npos);
  EXPECT_LT(2 * page.csv.size(), text_of(data + "sm_90_sass.csv").size());
}

TEST(ProfileHotSpots, other_pages) {
  const auto spots_of = [](const std::string& text) { return hot_spots(parse_sass_page(text), {}); };
  const std::string page = text_of(data + "sm_90_sass.csv");
  EXPECT_EQ(to_text(spots_of("==ERROR== no\n")), "hot      not available: ncu printed no source page\n");
  EXPECT_NE(spots_of("\"Address\",\"Source\"\n\"0x10\",\"NOP\"\n").why.find("no column \"# Samples\""),
            std::string::npos);
  EXPECT_EQ(spots_of("Source,# Samples\n").why, "the source page has no instructions");
  EXPECT_EQ(spots_of("Source,# Samples\nNOP,0\n").why, "ncu took no samples of this kernel");
  EXPECT_TRUE(spots_of(raw_table(text_of(data + "sm_90_wgmma.csv"))).instructions.empty());
  // A page with few columns, without addresses, with separators of thousands, and with a second kernel.
  const HotSpots few = spots_of(
      "Source,# Samples,stall_lg\nNOP,\"1,000\",n/a\nEXIT,\"3,000\",\"1,500\"\n\"Kernel Name\",\"b\"\nNOP,9,9\n");
  EXPECT_EQ(few.samples, 4000);
  EXPECT_EQ(few.instructions[0].offset, 0x10u);
  EXPECT_EQ(few.instructions[0].share, 0.75);
  EXPECT_EQ(few.instructions[0].stall.reason, "lg_throttle");
  EXPECT_EQ(few.instructions[0].stall.share, 0.5);
  EXPECT_NE(to_text(few).find("25.0%  not stalled"), std::string::npos) << to_text(few);
  EXPECT_EQ(spots_of(replaced(page, "\"# Samples\"", "\"?\"")).instructions[0].samples, 37) << "by its older name";
}

jit::Request kernel_request(const std::string& line, const std::string& arch) {
  const Device device = device_preset(arch);
  const Step step = plan_with(parse_problem(line), device, "").steps[0];
  return request_for(step.family->unit(step.config), device.arch, step.family->name);
}

// A page with a row for each instruction. One instruction has all samples.
std::string page_with(size_t instructions, uint64_t hot) {
  std::string page = "Source,# Samples,stall_wait\n";
  for (size_t i = 0; i < instructions; ++i) page += 16 * i == hot ? "NOP,8,6\n" : "NOP,0,0\n";
  return page;
}

TEST(ProfileHotSpots, line_information_changes_no_machine_code) {
  if (jit::find_compiler() == nullptr) GTEST_SKIP() << "no NVRTC";
  for (const auto& [line, arch] : {std::pair{"f16 h8 q512 d64", "sm_80"}, {"bf16 h32 q4096 d128 causal", "h100"}}) {
    jit::Request request = kernel_request(line, arch);
    const jit::Image plain = jit::compile(request);
    request.line_info = true;
    const jit::Image with_lines = jit::compile(request);
    EXPECT_NE(plain.signature, with_lines.signature);
    const auto code = cubin_section(plain.bytes, ".text.rapt_kernel");
    ASSERT_TRUE(code.has_value());
    EXPECT_TRUE(code == cubin_section(with_lines.bytes, ".text.rapt_kernel")) << line << " " << arch;
    EXPECT_TRUE(LineTable(plain.bytes).empty());
    EXPECT_FALSE(LineTable(with_lines.bytes).empty());
  }
}

TEST(ProfileHotSpots, source_lines) {
  if (jit::find_compiler() == nullptr) GTEST_SKIP() << "no NVRTC";
  const jit::Request request = kernel_request("f16 h8 q512 d64", "sm_80");
  const jit::Image plain = jit::compile(request);
  const KernelLines lines(request, plain);  // the kernel has no lines, like a kernel of a pack, so it is compiled again
  ASSERT_EQ(lines.why, "");
  ASSERT_GT(lines.instructions, 100u);
  // An instruction for an exponential of the softmax. It is in a function that functions of two other files call.
  uint64_t exponential = 0;
  for (uint64_t at = 0; at < 16 * lines.instructions && exponential == 0; at += 16)
    if (const auto source = lines.at(at);
        source.size() > 3 && lines.text_of(source[0]).find("ex2.approx") != std::string::npos)
      exponential = at;
  ASSERT_NE(exponential, 0u);
  const std::vector<SourceLine> source = lines.at(exponential);
  EXPECT_EQ(source.front().file, "device/numeric.cuh");
  EXPECT_EQ(source.back(), (SourceLine{"unit.cu", source.back().line}));
  EXPECT_NE(lines.text_of(source.back()).find("attention"), std::string::npos) << lines.text_of(source.back());

  const HotSpots spots = hot_spots(parse_sass_page(page_with(lines.instructions, exponential)), lines);
  ASSERT_EQ(spots.lines.size(), 1u) << spots.why << spots.why_no_lines;
  EXPECT_EQ(spots.lines[0].line.file, "sm80/attention_sm80.cuh");
  EXPECT_NE(spots.lines[0].text.find("softmax"), std::string::npos) << spots.lines[0].text;
  EXPECT_EQ(spots.lines[0].inner, source[0]);
  EXPECT_EQ(spots.lines[0].share, 1);
  EXPECT_EQ(spots.lines[0].stall.reason, "wait");
  EXPECT_EQ(spots.lines[0].stall.share, 0.75);
  const std::string text = to_text(spots);
  EXPECT_NE(text.find("hot line 100.0%  wait 75%                 sm80/attention_sm80.cuh:"), std::string::npos) << text;
  EXPECT_NE(text.find("(100% in device/numeric.cuh:"), std::string::npos) << text;
  EXPECT_EQ(to_json(spots)["lines"][0]["most_in"], concat(source[0].file, ":", source[0].line));

  HotSpots twins = spots;
  twins.instructions.push_back(twins.instructions[0]);
  EXPECT_EQ(to_text(twins), text) << "two instructions of one line, with one reason";
  twins.instructions[1].stall.reason = "math_pipe_throttle";
  EXPECT_NE(to_text(twins), text);

  const HotSpots other = hot_spots(parse_sass_page(page_with(lines.instructions - 1, 16)), lines);
  EXPECT_TRUE(other.lines.empty());
  EXPECT_EQ(other.instructions.size(), 1u);
  EXPECT_NE(other.why_no_lines.find("instructions, the compiled kernel has"), std::string::npos) << other.why_no_lines;
}

TEST(ProfileHotSpots, lines_that_do_not_fit) {
  if (jit::find_compiler() == nullptr) GTEST_SKIP() << "no NVRTC";
  const jit::Request request = kernel_request("f32 h2 q64 d64", "sm_80");
  const jit::Image other = jit::compile(kernel_request("f32 h2 q64 d128", "sm_80"));
  EXPECT_NE(KernelLines(request, other).why.find("compiles other machine code than the kernel of the pack"),
            std::string::npos);
  jit::Image ptx = other;
  ptx.arch = "compute_80";
  EXPECT_NE(KernelLines(request, ptx).why.find("PTX"), std::string::npos);
  jit::Image damaged = other;
  damaged.bytes = "no cubin";
  EXPECT_NE(KernelLines(request, damaged).why.find("not a 64-bit"), std::string::npos);
}

TEST(ProfileHotSpots, damaged_line_tables_are_refused_or_read) {
  if (jit::find_compiler() == nullptr) GTEST_SKIP() << "no NVRTC";
  jit::Request request = kernel_request("f32 h2 q64 d64", "sm_80");
  request.line_info = true;
  const std::string cubin = jit::compile(request).bytes;
  const auto table = cubin_section(cubin, ".debug_line");
  ASSERT_TRUE(table.has_value());
  const size_t begin = static_cast<size_t>(table->data() - cubin.data());
  size_t refused = 0;
  for (size_t i = 0; i < std::min<size_t>(table->size(), 600); ++i)
    for (const char byte : {'\x00', '\x7f', '\xff'}) {
      std::string damaged = cubin;
      damaged[begin + i] = byte;
      try {
        const LineTable lines(damaged);
        for (const uint64_t at : {0, 16, 4096}) lines.at(at);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
        ++refused;
      }
    }
  EXPECT_GT(refused, 10u);
}

// Users run the kernel of the pack. So it is also profiled if lines are requested.
TEST(ProfileHotSpots, packs_come_before_lines) {
  if (jit::find_compiler() == nullptr) GTEST_SKIP() << "no NVRTC";
  const TemporaryFolder folder;
  jit::Request request = kernel_request("f32 h2 q64 d64", "sm_80");
  const jit::Image plain = jit::compile(request);
  jit::write_pack(folder.path() + "/a.pack", {plain});
  jit::Store store({.cache_directory = "", .packs = {folder.path() + "/a.pack"}});
  request.line_info = true;
  EXPECT_EQ(store.get(request)->source, jit::Image::Source::pack);
  EXPECT_EQ(store.get(request)->bytes, plain.bytes);
  EXPECT_FALSE(LineTable(jit::Store({.cache_directory = "", .packs = {}}).get(request)->bytes).empty());
}

// ---- The command. A script replaces ncu. $FAKE_NCU selects its behaviour, $FAKE_NCU_CSV is the text that it prints.

constexpr const char* fake_ncu = R"(#!/bin/sh
printf '%s\n' "$*" >>"$FAKE_NCU_LOG"
if [ "$1" = --import ]; then
  case "$FAKE_NCU:$*" in
    hot*"--page source"*) cat "$FAKE_NCU_SASS"; exit 0 ;;
    *"--page source"*) echo '==ERROR== no such page'; exit 1 ;;
    import_fails:*) echo '==ERROR== Failed to load report.'; exit 1 ;;
    old:*--print-metric-instances*) echo "==ERROR== unrecognised option" >&2; exit 1 ;;
    no_rows:*) grep -v '^"0"' "$FAKE_NCU_CSV"; exit 0 ;;
    no_launch:*) echo '==WARNING== No kernels were profiled.'; exit 0 ;;
    no_table:*) echo 'Something else.'; exit 0 ;;
  esac
  cat "$FAKE_NCU_CSV"
  exit 0
fi
all=$*
while [ "$1" != --export ]; do shift; done
report=$2
shift 2
case "$FAKE_NCU:$all" in
  no_section:*SourceCounters*) echo "==ERROR== Failed to find section SourceCounters"; exit 1 ;;
esac
case "$FAKE_NCU" in
  permission) echo "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters on the target device 0."; exit 1 ;;
  permission_without_sudo)
    [ -n "$FAKE_SUDO" ] || { echo "==ERROR== ERR_NVGPUCTRPERM - no permission" >&2; exit 0; } ;;
  half) echo "==PROF== Connected to process 1"; echo half >"$report"; echo "==ERROR== An error occurred while trying to profile."; exit 9 ;;
  killed) kill -9 $$ ;;
  slow) echo half >"$report"; sleep 60 ;;
  nothing) echo "==WARNING== No kernels were profiled."; exit 0 ;;
  unknown_metric)
    for name in sm__inst_issued sm__pipe_tensor_cycles_active; do
      case "$all" in *"$name."*) echo "==ERROR== Failed to find metric regex:^$name(\.(sum|avg|min|max))?\$"; exit 1 ;; esac
    done ;;
  launch) "$@" || { echo "==ERROR== The application returned an error code ($?)." ; exit 1; } ;;
esac
echo report >"$report"
)";

class Profile : public testing::Test {
 protected:
  void SetUp() override {
    folder = std::filesystem::path(testing::TempDir()) / ("rapt-profile-test-" + std::to_string(getpid()));
    std::filesystem::create_directories(folder / "bin");
    std::filesystem::create_directories(folder / "tmp");
    write_script("ncu", fake_ncu);
  }
  void TearDown() override { std::filesystem::remove_all(folder); }

  void write_script(const std::string& name, const std::string& text) const {
    std::ofstream(folder / "bin" / name) << text;
    ASSERT_EQ(chmod((folder / "bin" / name).c_str(), 0755), 0);
  }
  // The environment for the program: one stand-in GPU of sm_89, and the script in place of ncu.
  std::string environment(const std::string& more = "") const {
    return concat("env -u RAPT_NCU TMPDIR='", (folder / "tmp").string(), "' LD_LIBRARY_PATH='", RAPT_BINARY_DIR,
                  "/fake_cuda' FAKE_CUDA_SM=89 PATH='", (folder / "bin").string(), ":/usr/bin:/bin' FAKE_NCU_LOG='",
                  (folder / "log").string(), "' FAKE_NCU_CSV='", data, "sm_89_fp8.csv' FAKE_NCU_SASS='", data,
                  "sm_90_sass.csv' ", more, " ");
  }
  Outcome profile(const std::string& mode, const std::string& words = "", const std::string& before = "") const {
    return run_in(folder, concat(before, environment("FAKE_NCU=" + mode), "'", RAPT_BINARY_DIR,
                                 "/rapt' profile 'e4m3 out=f16 h8 q512 d64 scales=head' --device cuda:0 ", words));
  }
  std::vector<std::string> results() const {
    std::vector<std::string> found;
    if (std::filesystem::exists(folder / "results"))
      for (const auto& entry : std::filesystem::recursive_directory_iterator(folder / "results"))
        if (entry.is_regular_file()) found.push_back(entry.path().filename().string());
    std::sort(found.begin(), found.end());
    return found;
  }
  std::string log() const { return text_of(folder / "log"); }
  void expect_nothing_left() const {
    EXPECT_TRUE(results().empty());
    EXPECT_TRUE(std::filesystem::is_empty(folder / "tmp"));
  }

  std::filesystem::path folder;
};

TEST_F(Profile, writes_and_judges) {
  const Outcome outcome = profile("fine", "--gate occupancy=20");
  EXPECT_EQ(outcome.code, 0) << outcome.err << outcome.out;
  EXPECT_NE(outcome.out.find("bound    tensor, at 64% of its peak"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("gate     fp8       passed"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("no value opcodes (sass__inst_executed_per_opcode)"), std::string::npos) << outcome.out;
  const std::vector<std::string> files = results();
  ASSERT_EQ(files.size(), 2u);
  EXPECT_TRUE(files[0].ends_with("-profile-e4m3-b1-h8-q512-k512-d64-scales-head.csv")) << files[0];
  EXPECT_TRUE(files[1].ends_with(".ncu-rep")) << files[1];
  EXPECT_TRUE(std::filesystem::is_empty(folder / "tmp"));
}

TEST_F(Profile, what_ncu_is_asked) {
  ASSERT_EQ(profile("fine", "--gate occupancy=off --config block_n=32 --seed 5 --sm-count 16").code, 0);
  const std::string asked = log();
  for (const char* part :
       {"--target-processes all", "--kernel-name rapt_kernel", "--launch-skip 1", "--launch-count 1",
        "--clock-control none", "--metrics gpu__time_duration.sum,", "smsp__warps_eligible.avg.per_cycle_active",
        "/rapt profile e4m3 b1 h8 q512 k512 d64 scales=head --launch-only --device cuda:0 --seed 5 "
        "--sm-count 16 --config block_n=32",
        "--csv --page raw --print-units base"})
    EXPECT_NE(asked.find(part), std::string::npos) << part << "\n" << asked;
}

TEST_F(Profile, a_failed_gate_is_exit_1_and_writes) {
  const Outcome outcome = profile("fine", "--gate tensor=90 --name Named --gate occupancy=off");
  EXPECT_EQ(outcome.code, 1) << outcome.err;
  EXPECT_NE(outcome.out.find("gate     tensor    FAILED   tensor cores busy for 64%: must be more than 90%"),
            std::string::npos)
      << outcome.out;
  ASSERT_EQ(results().size(), 2u);
  EXPECT_TRUE(results()[0].ends_with("-profile-named.csv"));
  EXPECT_EQ(profile("fine", "--gate fp8=none --gate occupancy=off").code, 1);
}

TEST_F(Profile, hot_spots) {
  const Outcome outcome = profile("hot RAPT_CACHE=off", "--gate occupancy=20");
  EXPECT_EQ(outcome.code, 0) << outcome.err << outcome.out;
  EXPECT_NE(outcome.out.find("\nhot      13.8%  long_scoreboard 100%     0x04b10  IMAD R196, R9, 0x200, R194\n"),
            std::string::npos)
      << outcome.out;
  EXPECT_NE(outcome.out.find("\nhot line not available: "), std::string::npos) << "another kernel's page\n"
                                                                               << outcome.out;
  EXPECT_NE(outcome.out.find(".csv, -sass.csv and .ncu-rep\n"), std::string::npos) << outcome.out;
  const std::vector<std::string> files = results();
  ASSERT_EQ(files.size(), 3u);
  EXPECT_TRUE(files[0].ends_with("-scales-head-sass.csv")) << files[0];
  EXPECT_NE(log().find("--section SourceCounters "), std::string::npos);
  EXPECT_NE(log().find("--csv --page source --print-source sass"), std::string::npos);
  const Outcome as_json = profile("hot RAPT_CACHE=off RAPT_NVRTC=/nowhere", "--gate occupancy=20 --json");
  const auto json = nlohmann::json::parse(as_json.out);
  EXPECT_EQ(json["hot"]["instructions"][0]["sass"], "IMAD R196, R9, 0x200, R194");
  EXPECT_NE(json["hot"]["why_no_lines"], "");
}

// For a variant, the hot lines have the text and the line numbers of the variant's file.
TEST_F(Profile, hot_lines_of_a_variant) {
  if (jit::find_compiler() == nullptr) GTEST_SKIP() << "no NVRTC";
  jit::Request request = kernel_request("e4m3 out=f16 h8 q512 d64 scales=head", "sm_89");
  const std::string name = "sm80/attention_sm80.cuh";
  std::string& text = request.files[name] = concat("// mine\n", jit::embedded_files().at(name));
  std::ofstream(folder / "attention_sm80.cuh") << text;
  request.line_info = true;
  const KernelLines lines(request, jit::compile(request));
  ASSERT_EQ(lines.why, "");
  uint64_t hot = 0;
  while (lines.at(hot).empty() || lines.at(hot)[0].file != name) hot += 16;
  const SourceLine line = lines.at(hot)[0];
  std::ofstream(folder / "page.csv") << page_with(lines.instructions, hot);
  const Outcome outcome = profile(concat("hot RAPT_CACHE=off FAKE_NCU_SASS='", (folder / "page.csv").string(), "'"),
                                  "--gate occupancy=20 --json --variant attention_sm80.cuh");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto spots = nlohmann::json::parse(outcome.out)["hot"];
  ASSERT_EQ(spots["lines"].size(), 1u) << spots.dump(1);
  EXPECT_EQ(spots["lines"][0]["line"], concat(name, ":", line.line));
  EXPECT_EQ(spots["lines"][0]["text"], lines.text_of(line));
  std::string_view rest = text;
  for (int i = 1; i < line.line; ++i) next_line(rest);
  EXPECT_EQ(lines.text_of(line), trimmed(next_line(rest)));
}

TEST_F(Profile, without_hot_spots_there_is_a_verdict) {
  const Outcome outcome = profile("fine", "--gate occupancy=20");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("\nhot      not available: ncu --import --page source: it ended with exit code 1: "
                             "==ERROR== no such page\n"),
            std::string::npos)
      << outcome.out;
  EXPECT_EQ(results().size(), 2u);
  const Outcome older = profile("no_section", "--gate occupancy=20");
  EXPECT_EQ(older.code, 0) << older.err;
  EXPECT_NE(older.out.find("hot      not available: this ncu has no section SourceCounters"), std::string::npos)
      << older.out;
}

TEST_F(Profile, json) {
  const Outcome outcome = profile("unknown_metric", "--json --gate occupancy=off --sm-count 16");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto json = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(json["sm_count"], 16);
  EXPECT_EQ(json["metrics"]["gpu__time_duration.sum"], 41280);
  EXPECT_EQ(json["gates"].size(), 4u);
  EXPECT_EQ(json["unknown"].size(), 2u);
}

TEST_F(Profile, unknown_metrics_are_left_out_and_named) {
  const Outcome outcome = profile("unknown_metric", "--gate occupancy=off");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("unknown  to this ncu: sm__inst_issued.avg.pct_of_peak_sustained_elapsed, "
                             "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed"),
            std::string::npos)
      << outcome.out;
}

TEST_F(Profile, an_ncu_without_instances) { EXPECT_EQ(profile("old", "--gate occupancy=off").code, 0); }

TEST_F(Profile, without_permission) {
  const Outcome outcome = profile("permission");
  EXPECT_EQ(outcome.code, 3);
  for (const char* part : {"ERR_NVGPUCTRPERM", "options nvidia NVreg_RestrictProfilingToAdminUsers=0", "SYS_ADMIN",
                           "rapt profile --trace"})
    EXPECT_NE(outcome.err.find(part), std::string::npos) << part << "\n" << outcome.err;
  expect_nothing_left();
}

TEST_F(Profile, sudo_where_it_asks_for_no_password) {
  if (geteuid() == 0) GTEST_SKIP() << "root needs no sudo";
  write_script("sudo", "#!/bin/sh\n[ \"$1\" = -n ] || exit 1\nshift\nexec env FAKE_SUDO=1 \"$@\"\n");
  const Outcome outcome = profile("permission_without_sudo", "--gate occupancy=off");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(results().size(), 2u);
  write_script("sudo", "#!/bin/sh\necho 'sudo: a password is required' >&2\nexit 1\n");
  const Outcome refused = profile("permission_without_sudo");
  EXPECT_EQ(refused.code, 3);
  EXPECT_NE(refused.err.find("\n  sudo env "), std::string::npos) << refused.err;
  EXPECT_NE(refused.err.find("/rapt profile 'e4m3 out=f16 h8 q512 d64 scales=head' --device cuda:0"), std::string::npos)
      << refused.err;
}

TEST_F(Profile, ncu_that_fails_half_way) {
  const Outcome outcome = profile("half");
  EXPECT_EQ(outcome.code, 3);
  EXPECT_NE(outcome.err.find("it ended with exit code 9; nothing was written"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("==ERROR== An error occurred while trying to profile."), std::string::npos);
  expect_nothing_left();
  const Outcome killed = profile("killed");
  EXPECT_EQ(killed.code, 3);
  EXPECT_NE(killed.err.find("signal 9"), std::string::npos) << killed.err;
  expect_nothing_left();
}

TEST_F(Profile, interrupted) {
  // The signal goes to the program and to ncu, as if a terminal had sent it.
  const Outcome outcome = run_in(folder, concat("timeout -s INT 1 ", environment("FAKE_NCU=slow"), "'", RAPT_BINARY_DIR,
                                                "/rapt' profile 'f16 h8 q512 d64' --device cuda:0"));
  EXPECT_NE(outcome.code, 0);
  expect_nothing_left();
}

TEST_F(Profile, no_launch_was_profiled) {
  for (const char* mode : {"nothing", "no_rows", "no_launch"}) {
    const Outcome outcome = profile(mode);
    EXPECT_EQ(outcome.code, 3);
    EXPECT_NE(outcome.err.find("ncu profiled no kernel"), std::string::npos) << mode << outcome.err;
    expect_nothing_left();
  }
}

TEST_F(Profile, a_report_outlives_a_failed_export) {
  for (const char* mode : {"import_fails", "no_table"}) {
    const Outcome outcome = profile(mode);
    EXPECT_EQ(outcome.code, 3);
    EXPECT_NE(outcome.err.find("wrote results/"), std::string::npos) << mode << outcome.err;
  }
  for (const std::string& file : results()) EXPECT_TRUE(file.ends_with(".ncu-rep")) << file;
  EXPECT_FALSE(results().empty());
}

TEST_F(Profile, without_ncu) {
  std::filesystem::remove(folder / "bin" / "ncu");
  const Outcome outcome = profile("fine", "--gate tensor=30");
  EXPECT_EQ(outcome.code, 3) << "gates need counters";
  EXPECT_NE(outcome.err.find("ncu is not in PATH"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("RAPT_NCU="), std::string::npos);
  // Without ncu the program measures time stamps, which needs a compiler.
  const Outcome stamps = profile("fine RAPT_NVRTC=/nowhere RAPT_PACKS=");
  EXPECT_EQ(stamps.code, 3);
  EXPECT_NE(stamps.err.find("profile --trace needs NVRTC to compile kernels"), std::string::npos) << stamps.err;
  const Outcome named = profile("fine RAPT_NCU=/nowhere/ncu");
  EXPECT_EQ(named.code, 3);
  EXPECT_NE(named.err.find("RAPT_NCU=/nowhere/ncu: there is no such program"), std::string::npos) << named.err;
}

TEST_F(Profile, without_a_gpu) {
  const std::string program = concat("'", RAPT_BINARY_DIR, "/rapt' profile 'f16 h8 q512 d64' ");
  const std::string no_device = environment("FAKE_CUDA_FAIL=cuInit=100");
  const Outcome outcome = run_in(folder, no_device + program);
  EXPECT_EQ(outcome.code, 3) << outcome.err;
  EXPECT_NE(outcome.err.find("profile: needs a GPU: "), std::string::npos) << outcome.err;
  EXPECT_EQ(run_in(folder, environment() + program + "--device cpu").code, 2);
  EXPECT_EQ(run_in(folder, environment() + program + "--arch cpu-avx2").code, 2);
  EXPECT_EQ(run_in(folder, environment() + program + "--device cuda:0 --gate speed=3").code, 2);
  EXPECT_EQ(run_in(folder, environment() + program + "--device cuda:0 --config block_m=64 --config block_m=32").code,
            2);
  EXPECT_EQ(run_in(folder, environment() + program + "--device cuda:0 --config no_such_field=1").code, 2);
}

// The stand-in driver runs no kernel, so the result is wrong.
TEST_F(Profile, a_wrong_kernel_is_not_profiled) {
  if (jit::find_compiler() == nullptr) GTEST_SKIP() << "no NVRTC";
  const Outcome outcome = run_in(folder, concat(environment("FAKE_NCU=launch RAPT_CACHE=off"), "'", RAPT_BINARY_DIR,
                                                "/rapt' profile 'f16 h2 q64 d64' --device cuda:0"));
  EXPECT_EQ(outcome.code, 1) << outcome.err;
  EXPECT_NE(outcome.err.find("WRONG, not profiled"), std::string::npos) << outcome.err;
  expect_nothing_left();
  for (const char* words : {" --trace", " --trace --json"}) {
    const Outcome stamps = run_in(folder, concat(environment("RAPT_CACHE=off"), "'", RAPT_BINARY_DIR,
                                                 "/rapt' profile 'f16 h2 q64 d64' --device cuda:0", words));
    EXPECT_EQ(stamps.code, 1) << stamps.err;
    EXPECT_NE(stamps.err.find("the kernel is wrong and was not profiled"), std::string::npos) << stamps.err;
    EXPECT_EQ(stamps.out, "");
    expect_nothing_left();
  }
}

// A kernel never ends. Every command that launches such a kernel must say so and end.
TEST_F(Profile, a_kernel_that_hangs_is_told) {
  if (jit::find_compiler() == nullptr) GTEST_SKIP() << "no NVRTC";
  const std::string hangs = environment("FAKE_CUDA_HANG=1 RAPT_KERNEL_SECONDS=1 RAPT_CACHE=off FAKE_NCU=launch");
  for (const std::string command : {"check", "profile --trace", "profile"}) {
    const std::string words = concat(command, " 'f16 h2 q64 d64' --device cuda:0");
    const Outcome outcome = run_in(folder, concat(hangs, "timeout 60 '", RAPT_BINARY_DIR, "/rapt' ", words));
    EXPECT_EQ(outcome.code, command == "profile" ? 3 : 1) << outcome.err;
    EXPECT_NE(outcome.err.find("did not end within 1 s (RAPT_KERNEL_SECONDS)"), std::string::npos) << command << "\n"
                                                                                                   << outcome.err;
    EXPECT_NE(outcome.err.find(command == "profile" ? "nothing was written" : concat("to reproduce: rapt ", command)),
              std::string::npos)
        << outcome.err;
    EXPECT_TRUE(results().empty());
  }
  const Outcome wrong = run_in(folder, concat(environment("RAPT_KERNEL_SECONDS=soon RAPT_CACHE=off"), "'",
                                              RAPT_BINARY_DIR, "/rapt' check 'f16 h2 q64 d64' --device cuda:0"));
  EXPECT_NE((wrong.out + wrong.err).find("RAPT_KERNEL_SECONDS=soon: must be a whole number"), std::string::npos);
}

// Tests the whole command. The stand-in driver runs the kernel with marks on this CPU. Only clocks and speed differ
// from a GPU.
TEST_F(Profile, time_stamps_of_a_kernel_that_runs) {
  RAPT_NEEDS_FIBERS();
  if (jit::find_compiler() == nullptr) GTEST_SKIP() << "no NVRTC";
  const std::string line = "f16 h2 q100 k256 d64", config = "block_m=64 block_n=64 warps_m=4 warps_n=1 stages=2";
  const Step step = plan_with(parse_problem(line), device_preset("sm_89"), config).steps[0];
  const jit::Request request = {.unit = step.family->unit(step.config).text,
                                .arch = "sm_89",
                                .label = "a test",
                                .files = with_trace(with_stand_ins({}))};
  const TemporaryFolder built;
  std::string library;
  try {
    library =
        build_for_cpu(request, find_host_compiler(), built, "kernel",
                      "template <class P>\nsize_t bytes_of_params(void (*)(P)) { return sizeof(P); }\n"
                      "extern \"C\" __attribute__((visibility(\"default\"))) void fake_cuda_run(const void* params, "
                      "unsigned x, unsigned y, unsigned z, unsigned threads, unsigned bytes,\n"
                      "    const rapt::TraceBuffer& trace) {\n  rapt_trace_buffer = trace;\n"
                      "  rapt_emulate({params, bytes_of_params(rapt_kernel), {x, y, z}, threads, bytes});\n}\n");
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  std::filesystem::remove(folder / "bin" / "ncu");
  const std::string command =
      concat(environment(concat("RAPT_CACHE=off FAKE_CUDA_RUN='", library, "'")), "'", RAPT_BINARY_DIR,
             "/rapt' profile '", line, "' --device cuda:0 --name Stamps --config '", config, "' ");
  const Outcome outcome = run_in(folder, command);
  ASSERT_EQ(outcome.code, 0) << outcome.err << outcome.out;
  for (const char* part :
       {"why      time stamps, because ncu is not in PATH", "all        prologue",
        "all        Q.K                    4 ", "CTA      ", "grid     ", "(open it in ui.perfetto.dev)"})
    EXPECT_NE(outcome.out.find(part), std::string::npos) << part << "\n" << outcome.out;
  EXPECT_LE(std::count(outcome.out.begin(), outcome.out.end(), '\n'), 24) << outcome.out;
  ASSERT_EQ(results().size(), 1u);
  EXPECT_TRUE(results()[0].ends_with("-trace-stamps.json")) << results()[0];
  const Outcome as_json = run_in(folder, command + "--trace --json --sm-count 16");
  ASSERT_EQ(as_json.code, 0) << as_json.err;
  const auto json = nlohmann::json::parse(as_json.out);
  EXPECT_EQ(json["sm_count"], 16);
  EXPECT_EQ(json["stages"].size(), 10u);  // with those of attention_decode
  EXPECT_EQ(json["stages"][3]["stage"], "Q.K");
  EXPECT_EQ(json["stages"][3]["per_warp"], 4);
  EXPECT_EQ(json["ctas"], 4);
  const auto file = nlohmann::json::parse(text_of(folder / json["written"].get<std::string>()));
  size_t stages = 0;
  for (const auto& event : file["traceEvents"]) stages += event["ph"] == "X";
  EXPECT_EQ(stages, 4u * 4 * (2 + 6 * 4)) << "CTAs, warps, stages";
}

// With the stand-in driver both kernels give wrong results. The command that repeats a check must name the kernel's
// source.
TEST_F(Profile, bench_compares_a_variant_with_the_shipped_source) {
  if (jit::find_compiler() == nullptr) GTEST_SKIP() << "no NVRTC";
  const std::string text = text_of(RAPT_SOURCE_DIR "/src/kernels/sm80/attention_sm80.cuh");
  std::ofstream(folder / "attention_sm80.cuh") << text << "// changed\n";
  const Outcome outcome = run_in(folder, concat(environment("RAPT_CACHE=off"), "'", RAPT_BINARY_DIR,
                                                "/rapt' bench 'f16 h2 q64 d64' --device cuda:0 --iterations 1 "
                                                "--variant attention_sm80.cuh --against attention_sm80"));
  EXPECT_EQ(outcome.code, 1) << outcome.err;
  const size_t own = outcome.err.find("WRONG, not timed  f16 b1 h2 q64 k64 d64 [rapt variant]"),
               shipped = outcome.err.find("[rapt family=attention_sm80]");
  ASSERT_NE(own, std::string::npos) << outcome.err;
  ASSERT_NE(shipped, std::string::npos) << outcome.err;
  ASSERT_LT(own, shipped);
  EXPECT_NE(outcome.err.substr(own, shipped - own).find("--variant attention_sm80.cuh"), std::string::npos);
  EXPECT_EQ(outcome.err.find("--variant", shipped), std::string::npos) << outcome.err;
}

TEST_F(Profile, time_stamps_refuse_what_they_cannot_do) {
  const Outcome gates = profile("fine", "--trace --gate tensor=30");
  EXPECT_EQ(gates.code, 2);
  EXPECT_NE(gates.err.find("--gate tensor=30: needs counters; not with --trace"), std::string::npos) << gates.err;
  // A variant whose author removed the marks. Its file name is that of the shipped source.
  std::istringstream shipped(text_of(RAPT_SOURCE_DIR "/src/kernels/scalar/attention_scalar.cuh"));
  std::ofstream variant(folder / "attention_scalar.cuh");
  for (std::string line; std::getline(shipped, line);)
    if (line.find("RAPT_TRACE") == line.npos) variant << line << "\n";
  variant.close();
  const std::string unmarked = concat(environment("RAPT_CACHE=off"), "'", RAPT_BINARY_DIR,
                                      "/rapt' profile 'f32 h2 q64 d60' --device cuda:0 --variant attention_scalar.cuh");
  const Outcome scalar = run_in(folder, unmarked + " --trace");
  EXPECT_EQ(scalar.code, 3);
  EXPECT_NE(scalar.err.find("attention_scalar has no marks"), std::string::npos) << scalar.err;
  std::filesystem::remove(folder / "bin" / "ncu");
  const Outcome neither = run_in(folder, unmarked);
  EXPECT_EQ(neither.code, 3);
  for (const char* part : {"attention_scalar has no marks", "ncu is not in PATH", "RAPT_NCU=/path/to/ncu"})
    EXPECT_NE(neither.err.find(part), std::string::npos) << part << "\n" << neither.err;
  const Outcome no_gpu = run_in(folder, concat(environment("FAKE_CUDA_FAIL=cuInit=100"), "'", RAPT_BINARY_DIR,
                                               "/rapt' profile 'f16 h2 q64 d64' --trace"));
  EXPECT_EQ(no_gpu.code, 3);
  EXPECT_NE(no_gpu.err.find("profile: needs a GPU: "), std::string::npos) << no_gpu.err;
  expect_nothing_left();
}

}  // namespace
}  // namespace rapt::lab
