// Tests rapt quantize and rapt calibrate: their output is equal to the result of rapt_quantize, and rapt run accepts
// it. Also tests static scales and error sentences. Commands run in their own process (build/rapt), as users run them.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "lab/load.h"
#include "lab/quantize.h"
#include "tests/cpu/program.h"
#include "tests/cpu/support.h"

namespace rapt::lab {
namespace {

using test::Outcome;
using test::run_in;
using test::text_of;

using check::HostTensor;
using nlohmann::json;

const std::string sample = RAPT_SOURCE_DIR "/examples/data/minilm-layer0.safetensors";

class LabQuantize : public testing::Test {
 protected:
  void SetUp() override {
    folder = std::filesystem::path(testing::TempDir()) / ("rapt-quantize-" + std::to_string(getpid()));
    std::filesystem::create_directories(folder);
  }
  void TearDown() override { std::filesystem::remove_all(folder); }

  Outcome rapt(const std::string& words) const {
    return run_in(folder, concat("'", RAPT_BINARY_DIR, "/rapt' ", words));
  }
  json report(const std::string& words) const {
    const Outcome outcome = rapt(words + " --device cpu --json");
    EXPECT_EQ(outcome.code, 0) << words << "\n" << outcome.err;
    return outcome.code == 0 ? json::parse(outcome.out) : json();
  }
  json calibrated(const std::string& words) const {
    const Outcome outcome = rapt("calibrate " + words + " --json");
    EXPECT_EQ(outcome.code, 0) << words << "\n" << outcome.err;
    return outcome.code == 0 ? json::parse(outcome.out) : json();
  }
  TensorFile read(const std::string& name) const { return read_safetensors(FileSource(folder / name)); }
  void write(const std::string& name, const std::vector<NamedTensor>& tensors,
             const std::map<std::string, std::string>& metadata = {}) const {
    write_safetensors(folder / name, tensors, metadata);
  }

  // Expects rapt run to accept the file, with a result within its bound. Returns the problem.
  std::string problem_of_run(const std::string& words) const {
    const json run = report("run " + words);
    EXPECT_TRUE(run.is_object() && run["pass"]) << words;
    return run.is_object() ? run["problem"].get<std::string>() : "";
  }

  std::filesystem::path folder;
};

HostTensor filled(std::vector<int64_t> shape, uint64_t seed, DType dtype = DType::f32) {
  HostTensor t = check::make_tensor(dtype, std::move(shape));
  test::fill_hash(t, seed);
  return t;
}

// The codes and descales that rapt_quantize gives for a tensor of a file.
std::pair<HostTensor, HostTensor> by_library(const HostTensor& input, DType dtype, ScaleKind kind,
                                             std::vector<int64_t> descale_shape, uint64_t flags = 0) {
  HostTensor output = check::make_tensor(dtype, input.shape),
             descale = check::make_tensor(DType::f32, std::move(descale_shape));
  const check::View from("input", input, check::in_host_memory), to("output", output, check::in_host_memory),
      factors("descale", descale, check::in_host_memory);
  rapt_quantize_args args{};
  args.struct_size = sizeof args;
  args.input = from.get(), args.output = to.get(), args.descale = factors.get();
  args.scales = static_cast<int32_t>(kind), args.flags = flags;
  EXPECT_EQ(rapt_quantize(nullptr, &args, nullptr), RAPT_OK) << rapt_last_error();
  return {output, descale};
}

TEST_F(LabQuantize, WritesWhatTheLibraryComputes) {
  const json result =
      report("quantize '" + sample + "' -o o.safetensors --scales q=head,k=block64,v=channel --hadamard");
  const TensorFile in = read_safetensors(FileSource(sample)), out = read("o.safetensors");
  const auto [q, q_descale] =
      by_library(in.tensors.at("q"), DType::e4m3, ScaleKind::head, {1, 12}, RAPT_QUANTIZE_HADAMARD);
  const auto [v, v_descale] = by_library(in.tensors.at("v"), DType::e4m3, ScaleKind::channel, {1, 12, 32});
  test::expect_same_bits(out.tensors.at("q"), q);
  test::expect_same_bits(out.tensors.at("q_descale"), q_descale);
  test::expect_same_bits(out.tensors.at("v"), v);
  test::expect_same_bits(out.tensors.at("v_descale"), v_descale);
  EXPECT_EQ(out.tensors.at("k_descale").shape, (std::vector<int64_t>{1, 12, 6}));
  EXPECT_FALSE(out.tensors.contains("k_mean"));
  EXPECT_EQ(out.metadata.at("rapt_words"), "q_scales=head k_scales=block64 v_scales=channel hadamard");
  EXPECT_FALSE(out.metadata.contains("problem"));
  EXPECT_TRUE(out.metadata.contains("license"));
  // Rounding to 3 fraction bits has an rms error of at most 2^-4 / sqrt(3), and typically 0.7 times this.
  for (const char* name : {"q", "k", "v"}) {
    EXPECT_GT(result["tensors"][name]["rel_rms"], 0.02) << name;
    EXPECT_LT(result["tensors"][name]["rel_rms"], 0.03) << name;
    EXPECT_EQ(result["tensors"][name]["saturated"], 0) << name;
    EXPECT_EQ(result["tensors"][name]["elements"], 12 * 331 * 32) << name;
  }
}

TEST_F(LabQuantize, RunTakesWhatItWrote) {
  const std::vector<std::pair<std::string, std::string>> table = {
      {"", "e4m3 b1 h12 q331 k331 d32 scales=head lse"},
      {"--scales tensor --dtype e5m2", "e5m2 b1 h12 q331 k331 d32 scales=tensor lse"},
      {"--scales q=token,k=block64,v=channel --hadamard --smooth-k",
       "e4m3 b1 h12 q331 k331 d32 q_scales=token k_scales=block64 v_scales=channel smooth_k hadamard lse"},
      {"--tensors k,v --scales block128",
       "q=f16 k=e4m3 v=e4m3 b1 h12 q331 k331 d32 k_scales=block128 v_scales=block128 lse"},
      {"--dtype q=sim8,k=e5m2,v=sim8 --scales token", "q=sim8 k=e5m2 v=sim8 b1 h12 q331 k331 d32 scales=token lse"},
  };
  int n = 0;
  for (const auto& [words, problem] : table) {
    if (test::quick() && n++ % 2 != 0) continue;
    ASSERT_TRUE(report("quantize '" + sample + "' -o o.safetensors " + words).is_object());
    EXPECT_EQ(to_string(parse_problem(problem_of_run("o.safetensors"))), to_string(parse_problem(problem))) << words;
  }
  EXPECT_EQ(read("o.safetensors").tensors.at("q").dtype, DType::u8);
  ASSERT_TRUE(report("quantize '" + sample + "' -o o.safetensors --smooth-k").is_object());
  EXPECT_EQ(read("o.safetensors").tensors.at("k_mean").shape, (std::vector<int64_t>{1, 12, 32}));
  EXPECT_NE(problem_of_run("o.safetensors causal").find("causal"), std::string::npos);
}

// Attention on the quantised tensors is close to attention on the originals. This is also true with smoothing and
// rotation, because attention undoes both.
TEST_F(LabQuantize, ResultsAreNearTheOriginals) {
  ASSERT_TRUE(report("run '" + sample + "' -o exact.safetensors").is_object());
  const TensorFile exact = read("exact.safetensors");
  for (const char* words : {"", "--smooth-k --hadamard"}) {
    ASSERT_TRUE(report(concat("quantize '", sample, "' -o q.safetensors --scales token ", words)).is_object());
    ASSERT_TRUE(report("run q.safetensors -o o.safetensors out=f32").is_object());
    const TensorFile out = read("o.safetensors");
    for (const char* name : {"o", "lse"}) {
      double error = 0, square = 0;
      const HostTensor &got = out.tensors.at(name), &want = exact.tensors.at(name);
      test::each_index(want.shape, [&](const auto& at) {
        error += std::pow(got.at(at) - want.at(at), 2), square += std::pow(want.at(at), 2);
      });
      EXPECT_LT(std::sqrt(error / square), 0.05) << name << " " << words;
    }
  }
}

TEST_F(LabQuantize, LayoutsAndPackedSequences) {
  const HostTensor q = filled({2, 3, 70, 16}, 1), k = filled({2, 3, 90, 16}, 2), v = filled({2, 3, 90, 16}, 3);
  const auto bshd = [](const HostTensor& t) {
    HostTensor swapped = t;
    std::swap(swapped.shape[1], swapped.shape[2]), std::swap(swapped.strides[1], swapped.strides[2]);
    return swapped;
  };
  write("a.safetensors", {{"q", q}, {"k", k}, {"v", v}});
  write("b.safetensors", {{"q", bshd(q)}, {"k", bshd(k)}, {"v", bshd(v)}});
  report("quantize a.safetensors -o a8.safetensors --scales block64");
  report("quantize b.safetensors -o b8.safetensors --scales block64 --layout bshd");
  const TensorFile a = read("a8.safetensors"), b = read("b8.safetensors");
  EXPECT_EQ(b.tensors.at("k").shape, (std::vector<int64_t>{2, 90, 3, 16}));
  test::expect_same_bits(bshd(b.tensors.at("k")), a.tensors.at("k"));
  test::expect_same_bits(b.tensors.at("k_descale"), a.tensors.at("k_descale"));
  EXPECT_NE(problem_of_run("b8.safetensors").find("layout=bshd"), std::string::npos);

  HostTensor cu = check::make_tensor(DType::i32, {4});
  for (int64_t i = 0; i < 4; ++i) cu.set({i}, static_cast<double>(std::vector{0, 17, 17, 60}[static_cast<size_t>(i)]));
  write("p.safetensors", {{"q", filled({60, 4, 16}, 4, DType::bf16)},
                          {"k", filled({60, 2, 16}, 5, DType::bf16)},
                          {"v", filled({60, 2, 16}, 6, DType::bf16)},
                          {"cu_seqlens_q", cu},
                          {"cu_seqlens_k", cu}});
  for (const char* scales : {"head", "token", "block64"}) {
    report(concat("quantize p.safetensors -o p8.safetensors --smooth-k --scales ", scales));
    EXPECT_NE(problem_of_run("p8.safetensors").find("varlen=17,0,43"), std::string::npos) << scales;
  }
}

TEST_F(LabQuantize, OtherTensorsComeAlong) {
  const HostTensor bias = filled({1, 1, 8, 9}, 7);
  write("a.safetensors", {{"q", filled({1, 2, 8, 16}, 1)},
                          {"k", filled({1, 2, 9, 16}, 2)},
                          {"v", filled({1, 2, 9, 16}, 3)},
                          {"bias", bias}});
  report("quantize a.safetensors -o o.safetensors");
  test::expect_same_bits(read("o.safetensors").tensors.at("bias"), bias);
  EXPECT_NE(problem_of_run("o.safetensors").find("bias=f32[1,1,q,k]"), std::string::npos);
}

TEST_F(LabQuantize, CalibratesTheLargestOfAllSamples) {
  HostTensor one = filled({2, 2, 5, 8}, 1), other = filled({1, 2, 9, 8}, 2);
  one.set({1, 0, 3, 2}, -7), one.set({0, 1, 0, 0}, 3), other.set({0, 1, 8, 7}, 4.5);
  for (const auto& [name, t] : {std::pair{"1.safetensors", one}, {"2.safetensors", other}})
    write(name, {{"q", t}, {"k", t}, {"v", t}});
  const json all = calibrated("1.safetensors 2.safetensors -o s.json");
  EXPECT_EQ(all["schema"], "rapt.scales/1");
  EXPECT_EQ(all["samples"], 2);
  EXPECT_EQ(json::parse(text_of(folder / "s.json")), all);
  const float by_head[] = {7.0f / 448.0f, 4.5f / 448.0f};
  for (const char* name : {"q", "k", "v"})
    for (size_t h = 0; h < 2; ++h) EXPECT_EQ(all["tensors"][name]["descale"][h].get<float>(), by_head[h]) << name;
  EXPECT_EQ(calibrated("1.safetensors 2.safetensors -o t.json --granularity tensor")["tensors"]["q"]["descale"].size(),
            1u);

  // If scales were calibrated on a file, they give the same bits for this file as computed scales.
  report("quantize 2.safetensors -o computed.safetensors --scales head");
  calibrated("2.safetensors -o 2.json");
  report("quantize 2.safetensors -o learned.safetensors --scales-file 2.json");
  for (const auto& [name, tensor] : read("computed.safetensors").tensors)
    test::expect_same_bits(read("learned.safetensors").tensors.at(name), tensor);
  EXPECT_NE(problem_of_run("learned.safetensors").find("scales=head"), std::string::npos);

  // They also work for other files: values larger than in the sample saturate.
  const json outside = report("quantize 1.safetensors -o o.safetensors --scales-file 2.json");
  EXPECT_GE(outside["tensors"]["q"]["saturated"], 1);
  report("quantize 1.safetensors -o o.safetensors --scales-file t.json");
  EXPECT_NE(problem_of_run("o.safetensors").find("scales=tensor"), std::string::npos);
}

TEST_F(LabQuantize, CalibratesPercentilesAndPreparedTensors) {
  HostTensor t = check::make_tensor(DType::f32, {1, 1, 25, 4});
  test::fill(
      t, [](const auto& at) { return static_cast<double>(at[2] * 4 + at[3] + 1) * (at[3] % 2 ? -1 : 1); });  // 1 to 100
  write("a.safetensors", {{"q", t}, {"k", t}, {"v", t}});
  for (const auto& [percentile, amax] : {std::pair{"100", 100.0f}, {"99", 99.0f}, {"98.5", 99.0f}, {"0.1", 1.0f}}) {
    const json s = calibrated(concat("a.safetensors -o s.json --percentile ", percentile));
    EXPECT_EQ(s["tensors"]["v"]["descale"][0].get<float>(), amax / 448.0f) << percentile;
  }
  for (const char* how : {"--hadamard", "--smooth-k", "--hadamard --smooth-k"}) {
    const json s = calibrated(concat("'", sample, "' -o s.json ", how));
    report(concat("quantize '", sample, "' -o computed.safetensors ", how));
    const json learned = report(concat("quantize '", sample, "' -o learned.safetensors --scales-file s.json"));
    EXPECT_EQ(learned["words"].get<std::string>().find("hadamard") != std::string::npos, s["hadamard"].get<bool>());
    const HostTensor want = read("computed.safetensors").tensors.at("k_descale"),
                     got = read("learned.safetensors").tensors.at("k_descale");
    for (int64_t h = 0; h < 12; ++h)  // calibrate uses float64, the library float, so results differ by roundings
      EXPECT_NEAR(got.at({0, h}), want.at({0, h}), 1e-6 * want.at({0, h})) << how << " " << h;
  }
  problem_of_run("learned.safetensors");
}

TEST_F(LabQuantize, SaysWhatCannotBe) {
  const HostTensor t = filled({1, 2, 8, 16}, 1);
  write("a.safetensors", {{"q", t}, {"k", t}, {"v", t}});
  write("no_v.safetensors", {{"q", t}, {"k", t}});
  write("flat.safetensors", {{"q", filled({8, 16}, 1)}, {"k", t}, {"v", t}});
  report("quantize a.safetensors -o done.safetensors");
  calibrated("a.safetensors -o s.json");
  const auto json_file = [&](const char* name, const std::string& from, const std::string& to) {
    std::string text = text_of(folder / "s.json");
    text.replace(text.find(from), from.size(), to);
    std::ofstream(folder / name) << text;
  };
  json_file("schema.json", "rapt.scales/1", "rapt.scales/9");
  json_file("dtype.json", "\"e4m3\"", "\"f16\"");
  json_file("kind.json", "\"head\"", "\"token\"");
  json_file("v.json", "\"v\"", "\"w\"");
  json_file("negative.json", "\"descale\": [\n        ", "\"descale\": [\n        -");
  json_file("more.json", "\"descale\": [", "\"descale\": [1.0,");
  std::ofstream(folder / "text.json") << "scales";
  const std::vector<std::pair<std::string, std::string>> table = {
      {"quantize a.safetensors", "--output is required"},
      {"quantize a.safetensors -o o.npy", "must end with .safetensors"},
      {"quantize a.safetensors -o a.safetensors", "is the input itself"},
      {"quantize missing.safetensors -o o.safetensors", "cannot be opened"},
      {"quantize no_v.safetensors -o o.safetensors", "tensor 'v' is missing"},
      {"quantize flat.safetensors -o o.safetensors", "tensor 'q' is of rank 2: must be 4"},
      {"quantize done.safetensors -o o.safetensors", "tensor 'q' is e4m3: must be f32, f16 or bf16"},
      {"quantize a.safetensors -o o.safetensors --dtype f16", "dtype 'f16': must be e4m3, e5m2 or sim8"},
      {"quantize a.safetensors -o o.safetensors --scales row", "scales 'row': must be tensor, head"},
      {"quantize a.safetensors -o o.safetensors --scales channel", "channel is only for v, not for q"},
      {"quantize a.safetensors -o o.safetensors --scales q=head,k=head", "has no value for v"},
      {"quantize a.safetensors -o o.safetensors --scales q=head,q=head", "names q twice"},
      {"quantize a.safetensors -o o.safetensors --scales q=head,x=head", "'x=head': must be TENSOR=VALUE"},
      {"quantize a.safetensors -o o.safetensors --tensors q,bias", "must name some of q, k and v"},
      {"quantize a.safetensors -o o.safetensors --tensors q,q", "names q twice"},
      {"quantize a.safetensors -o o.safetensors --tensors k,v --hadamard", "must name both"},
      {"quantize a.safetensors -o o.safetensors --tensors q,v --smooth-k", "--tensors must name k"},
      {"quantize a.safetensors -o o.safetensors --layout sbhd", "must be bhsd or bshd"},
      {"quantize a.safetensors -o o.safetensors --percentile 0", "percentile = 0"},
      {"quantize a.safetensors -o o.safetensors --scales-file s.json --hadamard", "excludes"},
      {"quantize a.safetensors -o o.safetensors --scales-file missing.json", "cannot be opened"},
      {"quantize a.safetensors -o o.safetensors --scales-file text.json", "text.json: not a file of scales"},
      {"quantize a.safetensors -o o.safetensors --scales-file schema.json", "must be \"rapt.scales/1\""},
      {"quantize a.safetensors -o o.safetensors --scales-file dtype.json", "dtype 'f16'"},
      {"quantize a.safetensors -o o.safetensors --scales-file kind.json", "granularity is token"},
      {"quantize a.safetensors -o o.safetensors --scales-file v.json", "has no scales for v"},
      {"quantize a.safetensors -o o.safetensors --scales-file negative.json", "must be finite and at least 2^-126"},
      {"quantize a.safetensors -o o.safetensors --scales-file more.json", "has scales for 3 heads of k, which has 2"},
      {"calibrate a.safetensors -o o.json --granularity token", "must be tensor or head"},
      {"calibrate a.safetensors -o o.json --percentile 101", "must be above 0 and at most 100"},
      {"calibrate a.safetensors '" + sample + "' -o o.json", "has 12 heads, but the files before have 2"},
      {"calibrate a.safetensors no_v.safetensors -o o.json", "tensor 'v' is missing"},
      {"calibrate -o o.json", "inputs is required"},
  };
  for (const auto& [words, sentence] : table) {
    const Outcome outcome = rapt(words);
    EXPECT_EQ(outcome.code, 2) << words << "\n" << outcome.err;
    EXPECT_NE(outcome.err.find(sentence), std::string::npos) << words << "\n" << outcome.err;
  }
  EXPECT_FALSE(std::filesystem::exists(folder / "o.safetensors"));
  EXPECT_FALSE(std::filesystem::exists(folder / "o.json"));
}

// The words in a file's metadata. The user's words have priority. A file must not contain words that quantize does not
// write.
TEST_F(LabQuantize, WordsOfAFile) {
  const HostTensor t = filled({1, 2, 64, 16}, 1);
  write("a.safetensors", {{"q", t}, {"k", t}, {"v", t}});
  report("quantize a.safetensors -o o.safetensors --smooth-k --scales block64");
  const TensorFile file = read("o.safetensors");
  const auto with = [&](const std::string& words, bool mean) {
    std::vector<NamedTensor> tensors;
    for (const auto& [name, tensor] : file.tensors)
      if (mean || name != "k_mean") tensors.push_back({name, tensor});
    write("w.safetensors", tensors, {{"rapt_words", words}});
  };
  const auto load = [&](const std::vector<std::string>& words) -> std::string {
    try {
      return to_string(load_problem(folder / "w.safetensors", words).problem);
    } catch (const Error& error) {
      return error.what();
    }
  };
  const std::string noted = file.metadata.at("rapt_words");
  with(noted, true);
  EXPECT_NE(load({}).find("scales=block64"), std::string::npos);
  EXPECT_NE(load({"scales=block128"}).find("scales=block128"), std::string::npos) << load({"scales=block128"});
  with(noted, false);
  EXPECT_NE(load({}).find("the words have smooth_k, but tensor 'k_mean' is missing"), std::string::npos) << load({});
  with("k_scales=block64 causal", true);
  EXPECT_NE(load({}).find("holds 'causal': must be words that rapt quantize writes"), std::string::npos) << load({});
  with("q_scales=block64 k_scales=rows v_scales=block64", true);
  EXPECT_NE(load({}).find("rows"), std::string::npos) << load({});
}

}  // namespace
}  // namespace rapt::lab
