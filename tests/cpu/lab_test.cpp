// Tests the functions of lab/ and its command line: problems from files, statistics, result rows (compared with their
// schema), and exit codes. Commands run in their own process (build/rapt), as users run them.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <thread>

#include "base/error.h"
#include "check/fill.h"
#include "check/paged.h"
#include "jit/jit.h"
#include "lab/commands.h"
#include "lab/gpu_timer.h"
#include "lab/load.h"
#include "lab/machine.h"
#include "lab/npy.h"
#include "lab/report.h"
#include "lab/roof.h"
#include "tests/cpu/program.h"

namespace rapt::lab {
namespace {

using test::Outcome;
using test::run_in;
using test::text_of;

using nlohmann::json;

const std::string program = RAPT_BINARY_DIR "/rapt";
const std::string sample = RAPT_SOURCE_DIR "/examples/data/minilm-layer0.safetensors";

class Lab : public testing::Test {
 protected:
  void SetUp() override {
    folder = std::filesystem::path(testing::TempDir()) / ("rapt-lab-" + std::to_string(getpid()));
    std::filesystem::create_directories(folder);
  }
  void TearDown() override { std::filesystem::remove_all(folder); }

  Outcome rapt(const std::string& words) const { return run_in(folder, "'" + program + "' " + words); }

  std::filesystem::path folder;
};

// Validates JSON. Supports the part of JSON Schema that docs/results-schema.json uses. Any other keyword is a failure.
void validate(const json& schema, const json& value, const std::string& where, std::vector<std::string>& faults) {
  static const std::set<std::string> notes = {"$schema", "title", "description"};
  const auto is = [&](const std::string& type) {
    if (type == "integer") return value.is_number_integer();
    return type == "number" ? value.is_number() : type == value.type_name();
  };
  for (const auto& [keyword, rule] : schema.items()) {
    bool fine = true;
    if (keyword == "type") {
      fine = false;
      for (const json& type : rule.is_array() ? rule : json::array({rule})) fine = fine || is(type);
    } else if (keyword == "const") {
      fine = value == rule;
    } else if (keyword == "enum") {
      fine = std::find(rule.begin(), rule.end(), value) != rule.end();
    } else if (keyword == "minimum") {
      fine = !value.is_number() || value >= rule;
    } else if (keyword == "minLength") {
      fine = !value.is_string() || value.get<std::string>().size() >= rule.get<size_t>();
    } else if (keyword == "minItems") {
      fine = !value.is_array() || value.size() >= rule.get<size_t>();
    } else if (keyword == "items") {
      for (const json& item : value) validate(rule, item, where + "[]", faults);
    } else if (keyword == "required") {
      for (const json& name : rule) fine = fine && (!value.is_object() || value.contains(name.get<std::string>()));
    } else if (keyword == "properties") {
      for (const auto& [name, inner] : rule.items())
        if (value.contains(name)) validate(inner, value[name], where + "." + name, faults);
    } else if (keyword == "additionalProperties") {
      for (const auto& [name, inner] : value.items()) fine = fine && schema["properties"].contains(name);
    } else {
      fine = notes.count(keyword) == 1;
    }
    if (!fine) faults.push_back(where + ": " + keyword);
  }
}

std::vector<std::string> faults_of(const json& row) {
  std::vector<std::string> faults;
  validate(json::parse(text_of(RAPT_SOURCE_DIR "/docs/results-schema.json")), row, "row", faults);
  return faults;
}

BenchRow a_row() {
  BenchRow row;
  row.problem = "f32 b1 h1 q1 k1 d8";
  row.samples.us = {4, 1, 3, 2};
  row.card = "x";
  row.command = "rapt bench";
  row.version = "0.1.0";
  row.flops = 25000;
  row.bytes = 2500;
  row.roof = {.threads = 1, .fma_flops = 25e9, .bf16_flops = 0, .read_bytes = 5e9};
  return row;
}

TEST(LabReport, RowsFollowTheSchema) {
  const json row = json::parse(to_json(a_row()).dump());
  EXPECT_EQ(faults_of(row), std::vector<std::string>{});
  // These fields were added later for GPUs, so older rows do not have them.
  const std::set<std::string> optional = {"arch",   "sm_count", "registers", "spill_bytes", "first_us", "host_us",
                                          "spread", "attempts", "clocks",    "roofline",    "peaks"};
  for (const auto& [name, value] : row.items()) {  // the schema check must notice a missing field
    json without = row, other = row;
    without.erase(name);
    other[name] = json::array({json::object()});
    EXPECT_EQ(faults_of(without).empty(), optional.count(name) == 1) << name;
    EXPECT_FALSE(faults_of(other).empty()) << name;
  }
  for (const std::string& name : optional) EXPECT_TRUE(row.contains(name)) << name;
  json more = row;
  more["unknown"] = 1;
  EXPECT_EQ(faults_of(more), std::vector<std::string>{"row: additionalProperties"});
}

TEST(LabReport, RowsOfGpusFollowTheSchemaAndWhatWasNotMeasuredIsNull) {
  BenchRow row = a_row();
  row.roof = {.threads = 0, .fma_flops = 5e13, .read_bytes = 3e12, .f16_flops = 6e14};
  row.threads = 0, row.unit = Unit::f16, row.timer = "graph";
  row.sm_count = 16, row.registers = 128, row.spill_bytes = 0, row.first_us = 40, row.host_us = 2.5;
  json json_row = json::parse(to_json(row).dump());
  EXPECT_EQ(faults_of(json_row), std::vector<std::string>{});
  EXPECT_EQ(json_row["gemm_tflops"], (json{{"f32", 50.0}, {"bf16", nullptr}, {"f16", 600.0}, {"fp8", nullptr}}));
  EXPECT_EQ(json_row["sm_count"], 16);
  EXPECT_EQ(json_row["registers"], 128);
  EXPECT_EQ(json_row["peaks"]["mma_f16_tflops"], 600);
  EXPECT_TRUE(json_row["peaks"]["wgmma_f16_tflops"].is_null());
  EXPECT_EQ(json_row["clocks"],
            (json{{"sm_mhz", {nullptr, nullptr}}, {"memory_mhz", {nullptr, nullptr}}, {"throttle", nullptr}}));
  EXPECT_TRUE(json_row["roofline"].is_null());
  row.clocks_before = {.sm_mhz = 1980, .memory_mhz = 2619, .limits = 0};
  row.clocks_after = {.sm_mhz = 1755, .memory_mhz = 2619, .limits = 4};
  row.roof.fp8_flops = 12e14, row.attempts = 3;
  const Bound bound{.units = {{"exp2", 1.5}}, .launch_us = 1, .floor_us = 2.5, .unit = "exp2"};
  row.roofline = Roofline{bound, bound};
  json_row = json::parse(to_json(row).dump());
  EXPECT_EQ(faults_of(json_row), std::vector<std::string>{});
  EXPECT_EQ(json_row["clocks"]["sm_mhz"], (json{1980, 1755}));
  EXPECT_EQ(json_row["clocks"]["throttle"], json{"sw_power_cap"});
  EXPECT_EQ(json_row["gemm_tflops"]["fp8"], 1200);
  EXPECT_EQ(json_row["roofline"]["card"]["units_us"]["exp2"], 1.5);
  EXPECT_EQ(json_row["attempts"], 3);
  EXPECT_DOUBLE_EQ(json_row["spread"], 0.6);  // samples 1 to 4
  row.roof = {};
  json_row = json::parse(to_json(row).dump());
  EXPECT_EQ(faults_of(json_row), std::vector<std::string>{});
  for (const char* name : {"bandwidth", "roof_share"}) EXPECT_TRUE(json_row[name].is_null()) << name;
}

// The stand-in driver runs no kernel, so a problem without elements is the only one with a correct result.
TEST_F(Lab, ABenchOnAGpuWritesPeaksFloorsAndClocks) {
  std::string why;
  if (jit::find_compiler(&why) == nullptr) GTEST_SKIP() << why;
  const std::string words = concat("env LD_LIBRARY_PATH='", RAPT_BINARY_DIR, "/fake_cuda:", RAPT_BINARY_DIR,
                                   "/fake_nvml':\"$LD_LIBRARY_PATH\" FAKE_CUDA_SM=90 FAKE_NVML_LIMITS=4 '", program,
                                   "' bench 'f16 b0 h2 q8 d64' --device cuda:0 --iterations 7 ");
  const Outcome rows = run_in(folder, words + "--json");
  ASSERT_EQ(rows.code, 0) << rows.err;
  const json row = json::parse(rows.out);
  EXPECT_EQ(faults_of(row), std::vector<std::string>{});
  EXPECT_EQ(row["clocks"],
            (json{{"sm_mhz", {1980, 1980}}, {"memory_mhz", {2619, 2619}}, {"throttle", {"sw_power_cap"}}}));
  EXPECT_EQ(row["roofline"]["kernel"]["bound"], "launch");
  EXPECT_GT(row["peaks"]["wgmma_f16_tflops"], 0);
  EXPECT_TRUE(row["peaks"]["mma_fp8_tflops"].is_null());
  EXPECT_EQ(row["us"].size(), 7u);
  EXPECT_EQ(row["sm_count"], 132);
  const Outcome text = run_in(folder, words);
  EXPECT_EQ(json::parse(run_in(folder, words + "--json --sm-count 16").out)["sm_count"], 16);
  EXPECT_NE(run_in(folder, words + "--sm-count 16").out.find(", sm_90a, planned for 16 multiprocessors, CUDA "),
            std::string::npos);
  for (const char* part : {"wgmma fp8", " us by launch; ", "; spread ", "; SM clock 1980 MHz, sw_power_cap"})
    EXPECT_NE(text.out.find(part), std::string::npos) << part << "\n" << text.out;
}

// Validates the results in the repository: results/<card>/<UTC>-<suite>.jsonl.
TEST(LabReport, CheckedInResultsFollowTheSchema) {
  int rows = 0;
  for (const auto& file : std::filesystem::recursive_directory_iterator(RAPT_SOURCE_DIR "/results")) {
    if (file.path().extension() != ".jsonl") continue;
    std::ifstream lines(file.path());
    for (std::string line; std::getline(lines, line); ++rows)
      EXPECT_EQ(faults_of(json::parse(line)), std::vector<std::string>{}) << file.path() << " row " << rows;
  }
  EXPECT_GT(rows, 0);
}

TEST(LabReport, RatesAreByTheMedianAndTheRoofByItsTighterSide) {
  const BenchRow row = a_row();  // 25000 operations, median 2.5 us; at the peaks arithmetic takes 1 us, bytes 0.5 us
  EXPECT_DOUBLE_EQ(row.gflops(), 10);
  EXPECT_DOUBLE_EQ(row.gbytes(), 1);
  EXPECT_DOUBLE_EQ(row.roof_share(), 0.4);
}

TEST(LabStatistics, QuartilesInterpolate) {
  const Quartiles even = quartiles({4, 1, 3, 2}), one = quartiles({7});
  EXPECT_DOUBLE_EQ(even.q1, 1.75);
  EXPECT_DOUBLE_EQ(even.median, 2.5);
  EXPECT_DOUBLE_EQ(even.q3, 3.25);
  EXPECT_DOUBLE_EQ(one.q1, 7);
  EXPECT_DOUBLE_EQ(one.q3, 7);
}

TEST(LabStatistics, ShortCallsAreTimedInGroupsAndLongOnesAlone) {
  int64_t calls = 0;
  const Samples fast = time_calls(10, 5, [&](int64_t n) { EXPECT_EQ(n, calls++); });
  EXPECT_EQ(fast.us.size(), 5u);
  EXPECT_GT(fast.calls, 1);
  EXPECT_EQ(calls, 10 + 5 * fast.calls);
  const Samples slow = time_calls(1, 3, [](int64_t) { std::this_thread::sleep_for(std::chrono::milliseconds(2)); });
  EXPECT_EQ(slow.calls, 1);
  for (const double us : slow.us) EXPECT_GE(us, 2000);
}

TEST(LabGpuTimer, GraphsAreLongEnoughAndMeetEverySetEquallyOften) {
  for (const double call_us : {0.0, 0.5, 1.9, 4.5, 70.0, 299.0, 300.0, 1e4})
    for (const int64_t sets : {4, 7, 50, 150, 199, 201, 1601, 2048}) {
      const GraphShape shape = graph_shape(call_us, sets);
      EXPECT_GE(shape.launches, 1);
      EXPECT_LE(shape.launches, 200) << call_us << " " << sets;
      EXPECT_GE(shape.sets, sets);
      EXPECT_LE(shape.sets, sets + shape.graphs);
      EXPECT_EQ(shape.launches * shape.graphs % shape.sets, 0) << call_us << " " << sets;
    }
  const GraphShape mission = graph_shape(4.5, 4);
  EXPECT_EQ(mission.graphs, 1);
  EXPECT_GE(static_cast<double>(mission.launches) * 4.5, 300);
  EXPECT_EQ(graph_shape(1e4, 4).graphs, 4);
}

TEST(LabGpuTimer, ColdInputsExceedTheCacheTwice) {
  constexpr int64_t l2 = int64_t{50} << 20;
  EXPECT_EQ(input_sets(false, 1e3, l2), 4);
  EXPECT_EQ(input_sets(true, 1e9, l2), 4);
  const double bytes = 2.1e6;
  EXPECT_GE(static_cast<double>(input_sets(true, bytes, l2)) * bytes, 2.0 * static_cast<double>(l2));
  try {
    input_sets(true, 1e3, l2);
    FAIL() << "100 MB in sets of 1 KB";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
    EXPECT_NE(std::string(error.what()).find("50 MiB"), std::string::npos) << error.what();
  }
}

struct CountingSampler final : Sampler {
  CountingSampler(std::vector<int>& into, int as) : order(into), name(as) {}
  void sample() override { order.push_back(name); }
  Samples finish() override { return {}; }
  std::vector<int>& order;
  int name;
};

TEST(LabGpuTimer, EachRoundSamplesEachArmOnceInAnOrderOfItsOwn) {
  const auto order_of = [](uint64_t seed) {
    std::vector<int> order;
    CountingSampler a(order, 0), b(order, 1), c(order, 2);
    sample_interleaved({&a, &b, &c}, 60, seed);
    return order;
  };
  const std::vector<int> order = order_of(1);
  ASSERT_EQ(order.size(), 180u);
  std::set<std::vector<int>> seen;
  for (size_t round = 0; round < 60; ++round) {
    const std::vector<int> one(order.begin() + static_cast<long>(3 * round),
                               order.begin() + static_cast<long>(3 * round + 3));
    EXPECT_EQ(std::set<int>(one.begin(), one.end()).size(), 3u);
    seen.insert(one);
  }
  EXPECT_EQ(seen.size(), 6u);  // all permutations
  EXPECT_EQ(order, order_of(1));
  EXPECT_NE(order, order_of(2));
}

TEST(LabRoof, TheRoofIsAboveWhatPlainLoopsReach) {
  const Roof roof = measure_roof(1, int64_t{64} << 20);
  EXPECT_GT(roof.fma_flops, 1e8);
  EXPECT_GT(roof.read_bytes, 1e7);
  EXPECT_DOUBLE_EQ(roof_seconds({1, 1e9, 4e9, 1e9}, 8e9, 1e9, Unit::f32), 8);
  EXPECT_DOUBLE_EQ(roof_seconds({1, 1e9, 4e9, 1e9}, 8e9, 1e9, Unit::bf16), 2);
  EXPECT_DOUBLE_EQ(roof_seconds({1, 1e9, 4e9, 1e9}, 8e9, 9e9, Unit::bf16), 9);
  EXPECT_DOUBLE_EQ(roof_seconds({0, 1e9, 0, 1e9, 8e9}, 8e9, 0, Unit::f16), 1);
  EXPECT_DOUBLE_EQ(roof_seconds({}, 8e9, 9e9, Unit::f16), 0);  // not measured
}

TEST(LabMachine, NamesAreFitForFolders) {
  EXPECT_EQ(file_safe("Intel(R) Xeon(R) Platinum 8480C CPU @ 2.00GHz"), "intel-xeon-platinum-8480c-cpu-2.00ghz");
  EXPECT_EQ(file_safe("../a/b"), "-a-b");
  EXPECT_EQ(file_safe("..."), "unknown-cpu");
  EXPECT_EQ(utc_stamp().size(), 16u);
}

class LabLoad : public Lab {
 protected:
  // Writes a file with q, k, v and the other tensors of a problem line, which check/ fills. Returns its path.
  std::string saved(const std::string& line, const std::vector<NamedTensor>& more = {}) {
    const Problem problem = parse_problem(line);
    const check::Inputs in = check::make_inputs(problem, check::Fill::normal, 1);
    std::vector<NamedTensor> tensors = more;
    for (const auto& [name, tensor] :
         std::initializer_list<std::pair<const char*, const check::HostTensor*>>{{"bias", &in.bias},
                                                                                 {"mask", &in.mask},
                                                                                 {"alibi_slopes", &in.alibi_slopes},
                                                                                 {"sinks", &in.sinks},
                                                                                 {"cu_seqlens_q", &in.cu_seqlens_q},
                                                                                 {"cu_seqlens_k", &in.cu_seqlens_k},
                                                                                 {"seqused_q", &in.seqused_q},
                                                                                 {"seqused_k", &in.seqused_k},
                                                                                 {"q_descale", &in.q_descale},
                                                                                 {"k_descale", &in.k_descale},
                                                                                 {"v_descale", &in.v_descale}})
      if (tensor->present()) tensors.push_back({name, *tensor});
    for (const auto& [name, tensor] : std::initializer_list<std::pair<const char*, const check::HostTensor*>>{
             {"q", &in.q}, {"k", &in.k}, {"v", &in.v}})
      tensors.push_back({name, as_stored(problem, *tensor)});
    const std::string path = folder / "in.safetensors";
    write_safetensors(path, tensors);
    return path;
  }
  std::string loaded(const std::string& line, const std::vector<std::string>& words) {
    return to_string(load_problem(saved(line), words).problem);
  }
  std::string failure(const std::string& path, const std::vector<std::string>& words) {
    try {
      load_problem(path, words);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
};

TEST_F(LabLoad, TensorsSpeakTheirWords) {
  const std::vector<std::vector<std::string>> lines_and_words = {
      {"f32 b2 h4:2 q5 k7 d16 lse"},
      {"bf16 b1 h2 q3 k3 d16:8 causal window=4,0 softcap=30 scale=0.125 lse", "causal", "window=4,0", "softcap=30",
       "scale=0.125"},
      {"f16 b2 h2 q5 k7 d8 alibi bias=f32[1,h,q,k] mask=[b,1,1,k] sinks lse"},
      {"f16 b3 h2 d8 varlen=3:4,0:2,5:0 layout=bshd lse"},
      {"f16 b2 h2 q5 k7 d8 seqused=7,3 lse"},
      {"f16 b2 h2 q5 k7 d8 layout=bshd lse", "layout=bshd"},
      {"e4m3 b2 h2 q130 k7 d8 q_scales=head k_scales=token v_scales=channel lse"},
      {"q=bf16 k=e4m3 v=f16 out=f32 b1 h2 q5 k5 d8 lse", "out=f32"},
      {"f16 b2 h2 q5 k7 d8 q_start=3,4 lse", "q_start=3,4"},
  };
  for (const std::vector<std::string>& row : lines_and_words) {
    const std::string want = to_string(parse_problem(row[0]));
    EXPECT_EQ(loaded(row[0], {row.begin() + 1, row.end()}), want);
  }
}

TEST_F(LabLoad, LayoutBshdKeepsLogicalValues) {
  const Problem problem = parse_problem("f32 b2 h3 q5 k5 d8 layout=bshd");
  const check::Inputs in = check::make_inputs(problem, check::Fill::normal, 1);
  const LoadedProblem back = load_problem(saved("f32 b2 h3 q5 k5 d8 layout=bshd"), {"layout=bshd"});
  EXPECT_EQ(back.inputs.q.shape, (std::vector<int64_t>{2, 3, 5, 8}));
  EXPECT_EQ(back.inputs.q.strides, in.q.strides);
  EXPECT_EQ(back.inputs.q.at({1, 2, 4, 7}), in.q.at({1, 2, 4, 7}));
}

// Writes the tensors of a paged call: q, the pages of k and v, and their descales. Returns the path.
std::string save_pages(const std::string& path, const Problem& problem, const check::Inputs& in,
                       const std::vector<std::pair<std::string, check::HostTensor>>& instead = {}) {
  const check::PagedKeys paged = check::make_paged(problem, in);
  const auto stored = [&](check::HostTensor t) {
    if (problem.layout == Layout::bshd) std::swap(t.shape[1], t.shape[2]), std::swap(t.strides[1], t.strides[2]);
    return t;
  };
  std::map<std::string, check::HostTensor> tensors = {
      {"q", as_stored(problem, in.q)},    {"k", stored(paged.k)},         {"v", stored(paged.v)},
      {"block_table", paged.block_table}, {"seqused_k", paged.seqused_k}, {"cu_seqlens_q", in.cu_seqlens_q},
      {"q_descale", in.q_descale},        {"k_descale", in.k_descale},    {"v_descale", in.v_descale}};
  if (paged.k_descale.present()) tensors["k_descale"] = paged.k_descale;
  if (paged.v_descale.present()) tensors["v_descale"] = paged.v_descale;
  for (const auto& [name, tensor] : instead) tensors[name] = tensor;
  std::vector<NamedTensor> present;
  for (const auto& [name, tensor] : tensors)
    if (tensor.present()) present.push_back({name, tensor});
  write_safetensors(path, present);
  return path;
}

TEST_F(LabLoad, KeysInPages) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> lines_and_words = {
      {"f16 b3 h4:2 q5 k70 d8:4 seqused=70,0,33 page=16 lse", {"k70"}},
      {"f16 b2 h4:2 q5 k12 d8 seqused=7,12 page=4 layout=bshd causal lse", {"k12", "layout=bshd", "causal"}},
      {"bf16 h4:2 d8 varlen=3:4,0:2,5:0,2:9 page=3 layout=bshd lse", {}},
      {"q=bf16 k=e4m3 v=e5m2 b2 h4:2 q2 k40 d16 seqused=9,40 k_scales=token v_scales=channel page=8 lse", {"k40"}},
      {"e4m3 out=f32 h4:2 d16 varlen=3:4,0:2,5:0,2:9 scales=token page=1 layout=bshd lse", {"out=f32"}},
  };
  for (const auto& [line, words] : lines_and_words) {
    SCOPED_TRACE(line);
    const Problem problem = parse_problem(line);
    const check::Inputs in = check::make_inputs(problem, check::Fill::normal, 1);
    const std::string path = save_pages(folder / "pages.safetensors", problem, in);
    const LoadedProblem back = load_problem(path, words);
    EXPECT_EQ(to_string(back.problem), to_string(problem));
    const auto expect_key = [&](const std::vector<int64_t>& row) {  // all indices but the last
      for (const auto member : {&check::Inputs::k, &check::Inputs::v}) {
        std::vector<int64_t> at = row;
        at.push_back((in.*member).shape.back() - 1);
        EXPECT_EQ((back.inputs.*member).at(at), (in.*member).at(at));
      }
    };
    if (problem.varlen)
      for (int64_t j = 0; j < in.k.shape[0]; ++j) expect_key({j, 1});
    else
      for (int64_t b = 0; b < problem.batch; ++b)
        for (int64_t j = 0; j < static_cast<int64_t>(in.seqused_k.at({b})); ++j) expect_key({b, 1, j});
    std::string command = "run " + path + " --device cpu";
    for (const std::string& word : words) command += " " + word;
    const Outcome outcome = rapt(command);
    EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  }
}

TEST_F(LabLoad, WrongPagesAreRefused) {
  const Problem problem = parse_problem("f16 b2 h4:2 q5 k12 d8 seqused=7,12 page=4 lse");
  const check::Inputs in = check::make_inputs(problem, check::Fill::normal, 1);
  const auto why = [&](const std::vector<std::pair<std::string, check::HostTensor>>& instead,
                       const std::vector<std::string>& words = {}) {
    return failure(save_pages(folder / "pages.safetensors", problem, in, instead), words);
  };
  const auto has = [](const std::string& sentence, const char* part) {
    EXPECT_NE(sentence.find(part), std::string::npos) << sentence;
  };
  check::HostTensor table = check::make_paged(problem, in).block_table, used = check::make_tensor(DType::i32, {2});
  EXPECT_EQ(why({}), "");
  has(why({}, {"k17"}), "but the word k17 says 17 keys: must be at most 16");
  has(why({{"cu_seqlens_k", used}}), "rank 3");
  used.set({1}, 17);
  has(why({{"seqused_k", used}}), "holds 17 at 1: must be at most 16");
  used.set({1}, 12);
  table.set({1, 2}, 8);
  has(why({{"block_table", table}}), "holds 8 at [1, 2]: must be a page of k, from 0 to 7");
  has(why({{"block_table", check::make_tensor(DType::i32, {3, 4})}}), "q has a batch of 2");
  has(why({{"v", check::make_tensor(DType::f16, {8, 2, 5, 8})}}), "pages, heads and page_size must be equal");
  has(why({{"k", check::make_tensor(DType::f16, {8, 2, 4, 16})}}), "k' has head_dim 16, q 8");
}

TEST_F(LabLoad, FoldersOfNpyWithFortranOrderSayTheirStrides) {
  const check::HostTensor column_major = check::make_strided(DType::f32, {1, 2, 3, 8}, {48, 1, 2, 6});
  for (const char* name : {"q", "k", "v"})
    write_npy((folder / name).string() + ".npy", check::make_tensor(DType::f32, {1, 2, 3, 8}));
  std::string fortran = "\x93NUMPY";
  const std::string dict = "{'descr': '<f4', 'fortran_order': True, 'shape': (1, 2, 3, 8), }\n";
  fortran += {1, 0, static_cast<char>(dict.size()), 0};
  std::ofstream(folder / "q.npy", std::ios::binary) << fortran << dict << std::string(48 * 4, '\0');
  EXPECT_EQ(to_string(load_problem(folder, {}).problem),
            to_string(parse_problem("f32 b1 h2 q3 d8 q_strides=1,1,2,6 lse")));
}

TEST_F(LabLoad, BadInputEndsInOneSentence) {
  const std::string plain = "f16 b1 h2 q5 k7 d8";
  EXPECT_NE(failure(saved(plain), {"q9"}).find("'q9'"), std::string::npos);
  EXPECT_NE(failure(saved(plain), {"bf16"}).find("given twice"), std::string::npos);
  EXPECT_NE(failure(saved(plain), {"alibi"}).find("'alibi_slopes' is missing"), std::string::npos);
  EXPECT_NE(failure(saved("e4m3 b1 h2 q5 k7 d8"), {"scales=head"}).find("'q_descale' is missing"), std::string::npos);
  EXPECT_NE(failure(saved(plain), {"nonsense"}).find("'nonsense'"), std::string::npos);
  const check::HostTensor x = check::make_tensor(DType::f32, {1, 2, 1});
  EXPECT_NE(failure(saved(plain, {{"weights", x}}), {}).find("tensor 'weights': must be one of"), std::string::npos);
  EXPECT_NE(failure(saved(plain, {{"block_table", x}}), {}).find("tensor 'block_table' is f32 of rank 3: must be i32"),
            std::string::npos);
  EXPECT_NE(failure(saved(plain, {{"q_descale", x}}), {}).find("q_scales=block64 or q_scales=block128"),
            std::string::npos);
  EXPECT_NE(failure(saved(plain, {{"q_descale", check::make_tensor(DType::f32, {9})}}), {})
                .find("add one of the words for its granularity"),
            std::string::npos);
  EXPECT_NE(failure(saved(plain, {{"cu_seqlens_q", check::make_tensor(DType::i32, {2})}}), {}).find("rank 3"),
            std::string::npos);
  const std::string path = folder / "in.safetensors";
  write_safetensors(path, {{"q", check::make_tensor(DType::u8, {1, 1, 1, 8})}, {"k", x}, {"v", x}});
  EXPECT_NE(failure(path, {}).find("add a word for the format of its bytes, such as q=e4m3"), std::string::npos);
  write_safetensors(path, {{"q", x}, {"k", x}});
  EXPECT_NE(failure(path, {}).find("tensor 'v' is missing"), std::string::npos);
}

TEST_F(LabLoad, DecreasingLengthsAreNamed) {
  const check::HostTensor x = check::make_tensor(DType::f32, {4, 1, 8});
  check::HostTensor cu = check::make_tensor(DType::i32, {3});
  cu.set({1}, 3), cu.set({2}, 2);
  const std::string path = folder / "in.safetensors";
  const auto write = [&] {
    write_safetensors(path, {{"q", x}, {"k", x}, {"v", x}, {"cu_seqlens_q", cu}, {"cu_seqlens_k", cu}});
  };
  write();
  EXPECT_NE(failure(path, {}).find("'cu_seqlens_q' holds 2 at 2 after 3: must never decrease"), std::string::npos);
  cu.set({2}, 5);
  write();
  EXPECT_NE(failure(path, {}).find("ends with 5, but there are 4 rows"), std::string::npos);
  cu.set({2}, 4), cu.set({0}, 1);
  write();
  EXPECT_NE(failure(path, {}).find("must start with 0"), std::string::npos);
}

class LabProgram : public Lab {};

TEST_F(LabProgram, RunsTheSampleAndWritesItsResult) {
  const Outcome run = rapt("run '" + sample + "' causal -o o.safetensors --json");
  ASSERT_EQ(run.code, 0) << run.err;
  const json report = json::parse(run.out);
  EXPECT_EQ(report["problem"], "f16 b1 h12 q331 k331 d32 causal lse");
  EXPECT_TRUE(report["pass"]);
  EXPECT_LT(report["err"]["max_abs"], 1e-2);
  EXPECT_GT(report["err"]["max_abs"], 0);
  const TensorFile file = read_safetensors(FileSource(folder / "o.safetensors"));
  EXPECT_EQ(file.tensors.at("o").shape, (std::vector<int64_t>{1, 12, 331, 32}));
  EXPECT_EQ(file.tensors.at("lse").shape, (std::vector<int64_t>{1, 12, 331}));
  // In causal attention row 0 sees only key 0.
  const TensorFile in = read_safetensors(FileSource(sample));
  EXPECT_EQ(file.tensors.at("o").at({0, 5, 0, 3}), in.tensors.at("v").at({0, 5, 0, 3}));
}

TEST_F(LabProgram, EveryCommandHasHelpWithExamples) {
  for (const char* name : {"info", "run", "check", "bench", "explain", "profile", "pack", "quantize", "calibrate"}) {
    const Outcome help = rapt(std::string(name) + " --help");
    EXPECT_EQ(help.code, 0) << name;
    EXPECT_NE(help.out.find("Examples:"), std::string::npos) << name;
  }
}

TEST_F(LabProgram, ExitCodesAndSentences) {
  const std::vector<std::tuple<std::string, int, std::string>> table = {
      {"", 2, "subcommand is required"},
      {"frobnicate", 2, "no command 'frobnicate'"},
      {"run", 2, "input is required"},
      {"run missing.safetensors", 2, "missing.safetensors: cannot be opened"},
      {"run '" + sample + "' -o out.txt", 2, "must end with .safetensors"},
      {"run '" + sample + "' --device cuda:63", 3, "cuda:63"},
      {"run '" + sample + "' --device cuda:", 2, "must be cpu or cuda:N"},
      {"run '" + sample + "' --device cuda:-1", 2, "must be cpu or cuda:N"},
      {"run '" + sample + "' --device cuda:99999999999", 2, "must be cpu or cuda:N"},
      {"check 'f32 q8 d8' --device cpu --arch sm_89", 2, "is not an architecture for --device cpu"},
      {"check 'f32 q8 d8' --device cuda:0 --arch cpu-scalar", 2, "is not an architecture for --device cuda:0"},
      {"check 'f32 q8 d8' --device cpu --config block_m=8", 2, "only for GPU kernels"},
      {"check 'f32 q8 d8' --device cpu --variant x.cuh", 2, "only for GPU kernels"},
      {"check 'f32 q8 d8' --device cuda:0 --threads 2", 2, "only for the CPU"},
      {"explain 'f16 q8 d64' --arch l4 --config block_m=16 --config block_m=32", 2, "takes one value"},
      {"explain 'f16 q8 d64' --arch l4 --config block_q=16", 2, "block_q"},
      {"run '" + sample + "' --device tpu", 2, "must be cpu or cuda:N"},
      {"check", 2, "give either"},
      {"check 'f32 q8 d8' --cases smoke", 2, "give either"},
      {"check 'f32 q8 d8' --fill nice", 2, "nice"},
      {"check 'f32 h3:2 q8 d8'", 2, "heads_q"},
      {"check --cases missing.txt", 2, "missing.txt"},
      {"check 'f32 q8 d8' --threads 0", 2, "threads"},
      {"explain 'f32 q8'", 2, "head_dim missing"},
      {"explain 'f32 q8 d8' --arch z80", 2, "z80"},
      {"bench 'f32 q8 d8' --timer graph --device cpu", 2, "is for GPUs"},
      {"bench 'f32 q8 d8' --timer sundial", 2, "must be graph, event or host"},
      {"bench 'f32 q8 d8' --iterations 0", 2, "iterations"},
      {"bench 'f32 q8 d8' --l2 tepid", 2, "must be warm or cold"},
  };
  for (const auto& [words, code, part] : table) {
    const Outcome outcome = rapt(words);
    EXPECT_EQ(outcome.code, code) << words << "\n" << outcome.err;
    EXPECT_NE(outcome.err.find(part), std::string::npos) << words << "\n" << outcome.err;
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator()),
            2);  // stdout, stderr
}

TEST_F(LabProgram, HostileFilesWriteNothing) {
  std::ofstream(folder / "bad.safetensors", std::ios::binary) << std::string(8, '\xff') << "{}";
  const Outcome outcome = rapt("run bad.safetensors -o o.safetensors");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_NE(outcome.err.find("header length 18446744073709551615 exceeds"), std::string::npos) << outcome.err;
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  EXPECT_FALSE(std::filesystem::exists(folder / "o.safetensors"));
}

TEST_F(LabProgram, ChecksAProblemAndACaseFile) {
  const Outcome one = rapt("check 'f32 b1 h2 q33 k65 d16 causal' --seed 3 --json");
  ASSERT_EQ(one.code, 0) << one.err << one.out;
  const json results = json::parse(one.out);
  EXPECT_EQ(results["passed"], 1);
  EXPECT_EQ(results["results"][0]["seed"], 3);
  std::ofstream(folder / "my.txt") << "# two\nf32 h1 q9 d8 ; fills=normal,constant\nf16 h1 q9 d8 mod=ab\n";
  const Outcome cases = rapt("check --cases ./my.txt");
  EXPECT_EQ(cases.code, 0) << cases.err << cases.out;
  EXPECT_NE(cases.out.find("2 passed, 0 failed, 1 refused"), std::string::npos) << cases.out;
  const Outcome stages = rapt("check 'f32 b1 h2 q33 k65 d16 causal' --stages");
  EXPECT_EQ(stages.code, 0) << stages.err << stages.out;
}

TEST_F(LabProgram, BenchWritesRowsOfTheSchema) {
  const Outcome bench = rapt("bench 'f32 h2 q64 d32' --iterations 3 --warmup 1 --threads 1 --output rows.jsonl --json");
  ASSERT_EQ(bench.code, 0) << bench.err;
  const json row = json::parse(bench.out);
  EXPECT_EQ(faults_of(row), std::vector<std::string>{});
  EXPECT_EQ(row["us"].size(), 3u);
  EXPECT_EQ(row["threads"], 1);
  EXPECT_EQ(json::parse(text_of(folder / "rows.jsonl")), row);
  EXPECT_EQ(rapt("bench 'f32 h2 q64 d32' --iterations 1 --save").code, 0);
  EXPECT_TRUE(std::filesystem::is_directory(folder / "results" / row["card"].get<std::string>()));
}

TEST_F(LabProgram, InfoAndExplainSpeakJson) {
  const json info = json::parse(rapt("info --json").out);
  for (const char* key : {"version", "commit", "compiler", "cpu", "isa", "isas", "threads", "caches", "driver",
                          "driver_note", "gpus", "nvrtc", "nvrtc_note", "cache", "packs", "default_device", "families"})
    EXPECT_TRUE(info.contains(key)) << key;
  const json explain = json::parse(rapt("explain 'f32 h8 q512 d64' --arch cpu-scalar --json").out);
  EXPECT_EQ(explain["device"]["isa"], "scalar");
  EXPECT_TRUE(explain["families"][0]["accepts"]);
}

TEST_F(LabProgram, ExplainsAGpuThatIsNotThere) {
  const json planned = json::parse(rapt("explain 'f16 h8 q512 d64' --arch l4 --json").out);
  EXPECT_EQ(planned["device"]["arch"], "sm_89");
  EXPECT_EQ(planned["device"]["sm_count"], 58);
  const std::string plan = planned["plan"];
  EXPECT_EQ(plan.find("attention_cpu"), std::string::npos) << plan;
  const json changed =
      json::parse(rapt("explain 'f16 h8 q512 d64' --arch l4 --config 'block_n=32 stages=2' --json").out);
  EXPECT_NE(changed["plan"], planned["plan"]);
  EXPECT_NE(changed["plan"].get<std::string>().find("block_n=32"), std::string::npos) << changed;
}

TEST_F(LabProgram, WithoutADriverTheDefaultIsTheCpuAndCudaSaysWhy) {
  const json info = json::parse(rapt("info --json").out);
  if (!info["driver"].is_null()) GTEST_SKIP() << "a driver: " << info["driver"];
  EXPECT_EQ(info["default_device"], "cpu");
  EXPECT_NE(info["driver_note"].get<std::string>().find("libcuda"), std::string::npos) << info;
  for (const char* words : {"check 'f16 q8 d64' --device cuda:0", "bench 'f16 q8 d64' --device cuda:0",
                            "explain 'f16 q8 d64' --device cuda:0", "check 'f16 q8 d64' --arch compute_80"}) {
    const Outcome outcome = rapt(words);
    EXPECT_EQ(outcome.code, 3) << words << outcome.err;
    EXPECT_NE(outcome.err.find("--device cuda:0: libcuda"), std::string::npos) << words << outcome.err;
  }
  EXPECT_NE(rapt("check 'f32 q8 d8'").out.find("device  cpu"), std::string::npos);
}

TEST_F(LabProgram, CtrlCLeavesNoHalfWrittenFile) {
  const pid_t child = fork();
  if (child == 0) {
    remove_unfinished_file_on_signals();
    AtomicFile file(folder / "o.safetensors");
    file.write("half");
    raise(SIGINT);
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT);
  EXPECT_TRUE(std::filesystem::is_empty(folder));
}

}  // namespace
}  // namespace rapt::lab
