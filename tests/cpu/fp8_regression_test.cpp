// Tests for defects of quantisation that were fixed. Each test has the smallest call that showed the defect.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "check/check.h"
#include "lab/quantize.h"
#include "lab/safetensors.h"
#include "quantize_call.h"

namespace rapt::test {
namespace {

// max_seqlen is only an upper bound, so the work must depend on the actual rows. Before the fix, the work was divided
// among threads by max_seqlen, and a call could take hours.
TEST(Fp8Regression, MaxSeqlenMayBeFarAboveEveryLength) {
  for (const int32_t scales : {RAPT_SCALE_TENSOR, RAPT_SCALE_HEAD, RAPT_SCALE_TOKEN, RAPT_SCALE_CHANNEL})
    for (const uint64_t flags : {uint64_t{0}, uint64_t{RAPT_QUANTIZE_SMOOTH}}) {
      QuantizeCall call;
      call.input = make_tensor(DType::f32, {150, 2, 24});
      fill_quantize(call.input, QuantizeFill::normal);
      call.cu_seqlens = make_tensor(DType::i32, {6});
      const double ends[] = {0, 70, 70, 71, 140, 140};  // rows 140 to 149 belong to no sequence
      fill(call.cu_seqlens, [&](const auto& at) { return ends[at[0]]; });
      call.scales = scales, call.flags = flags, call.max_seqlen = 70;
      call.poison(DType::e4m3);
      quantize_on_cpu(call);
      QuantizeCall bounded = call;
      bounded.max_seqlen = int64_t{1} << 40;
      bounded.poison(DType::e4m3);
      quantize_on_cpu(bounded);
      expect_same_outputs(call, bounded);
      EXPECT_FALSE(is_poisoned(call.output, {139, 1, 23}));
      EXPECT_TRUE(is_poisoned(call.output, {140, 0, 0}));
    }
}

// If one tensor is passed as two arguments, the arguments overlap. The check skipped pairs with equal pointers.
TEST(Fp8Regression, OneTensorAsMeanAndDescaleIsRefused) {
  std::vector<float> input(8 * 16, 1.0f), both(16, 3.0f);
  std::vector<uint8_t> codes(8 * 16, 7);
  const int64_t rows[] = {1, 1, 8, 16}, channels[] = {1, 1, 16};
  const rapt_device cpu{RAPT_DEVICE_CPU, 0};
  const rapt_tensor from{input.data(), cpu, RAPT_F32, 4, rows, nullptr},
      to{codes.data(), cpu, RAPT_E4M3, 4, rows, nullptr};
  const rapt_tensor shared{both.data(), cpu, RAPT_F32, 3, channels, nullptr};
  rapt_quantize_args args{};
  args.struct_size = sizeof(args), args.flags = RAPT_QUANTIZE_SMOOTH, args.scales = RAPT_SCALE_CHANNEL;
  args.input = &from, args.output = &to, args.descale = &shared, args.mean = &shared;
  EXPECT_EQ(rapt_quantize(nullptr, &args, nullptr), RAPT_ERROR_INVALID_ARGUMENT);
  EXPECT_NE(std::string(rapt_last_error()).find("mean"), std::string::npos) << rapt_last_error();
  EXPECT_EQ(both, std::vector<float>(16, 3.0f));
  EXPECT_EQ(codes, std::vector<uint8_t>(8 * 16, 7));
}

// A line with a score modification, which no call applied, passed its check.
TEST(Fp8Regression, ModificationsAreNotCheckedWithoutTheirText) {
  const check::Result result =
      check::check_problem(parse_problem("f32 b1 h2 q8 d16 mod=ab"), check::Fill::normal, 1, check::library_kernel());
  EXPECT_TRUE(result.refused);
  EXPECT_NE(result.message.find("mod=ab"), std::string::npos) << result.message;
}

class Fp8LabRegression : public testing::Test {
 protected:
  void SetUp() override {
    folder = std::filesystem::path(testing::TempDir()) / ("rapt-fp8-" + std::to_string(getpid()));
    std::filesystem::create_directories(folder);
    q = make_tensor(DType::f32, {1, 2, 40, 16}), k = make_tensor(DType::f32, {1, 2, 40, 16}), v = k;
    v.storage = make_tensor(DType::f32, {1, 2, 40, 16}).storage;
    fill_hash(q, 1), fill_hash(k, 2), fill_hash(v, 3);
  }
  void TearDown() override { std::filesystem::remove_all(folder); }

  int rapt(const std::string& words) const {
    const int status = std::system(
        concat("cd '", folder.string(), "' && '", RAPT_BINARY_DIR, "/rapt' ", words, " >out.txt 2>err.txt").c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  std::string text(const std::string& name) const {
    std::ifstream file(folder / name);
    std::ostringstream all;
    all << file.rdbuf();
    return all.str();
  }
  nlohmann::json json(const std::string& name) const { return nlohmann::json::parse(text(name)); }
  void write(const std::string& name) const {
    lab::write_safetensors(folder / name, {{"q", q}, {"k", k}, {"v", v}}, {});
  }

  std::filesystem::path folder;
  HostTensor q, k, v;
};

// One infinite key made its channel's mean infinite, so the scales ignored the channel.
TEST_F(Fp8LabRegression, CalibratedMeansAreOfFiniteKeys) {
  each_index({40}, [&](const auto& at) { put(k, {0, 1, at[0], 3}, at[0] % 2 == 0 ? 60 : -60); });
  put(k, {0, 1, 0, 3}, infinity);
  write("in.safetensors");
  ASSERT_EQ(rapt("calibrate in.safetensors -o s.json --smooth-k"), 0) << text("err.txt");
  const double mean = -60.0 / 39;  // 19 times 60 and 20 times -60
  EXPECT_NEAR(json("s.json")["tensors"]["k"]["amax"][1], 60 - mean, 1e-4);
}

// Rotated values that overflow f32 gave an amax of null, which no reader accepts.
TEST_F(Fp8LabRegression, CalibratedScalesAreFinite) {
  fill(q, 3e38);
  put(q, {0, 0, 0, 0}, -3e38);
  write("in.safetensors");
  ASSERT_EQ(rapt("calibrate in.safetensors -o s.json --hadamard"), 0) << text("err.txt");
  const auto scales = json("s.json");
  for (const auto& factor : scales["tensors"]["q"]["descale"]) EXPECT_TRUE(factor.is_number());
  EXPECT_EQ(rapt("quantize in.safetensors -o out.safetensors --device cpu --scales-file s.json"), 0) << text("err.txt");
}

// The amax of zeros was reported as 448.
TEST_F(Fp8LabRegression, CalibratedAmaxOfZerosIsZero) {
  fill(v, 0);
  write("in.safetensors");
  ASSERT_EQ(rapt("calibrate in.safetensors -o s.json"), 0) << text("err.txt");
  EXPECT_EQ(json("s.json")["tensors"]["v"]["amax"][0], 0);
  EXPECT_EQ(json("s.json")["tensors"]["v"]["descale"][0], 1);
}

TEST_F(Fp8LabRegression, CalibrateSparesItsSamples) {
  write("in.safetensors");
  const std::string before = text("in.safetensors");
  EXPECT_EQ(rapt("calibrate in.safetensors -o ./in.safetensors"), 2);
  EXPECT_NE(text("err.txt").find("is a sample itself"), std::string::npos) << text("err.txt");
  EXPECT_EQ(text("in.safetensors"), before);
}

// Scales below 2^-126 were found only by the library, whose sentence does not have the name of the file. And a JSON
// object was accepted in place of a list of numbers.
TEST_F(Fp8LabRegression, FilesOfScalesSayWhatIsWrong) {
  write("in.safetensors");
  for (const char* factors : {"[1e-40, 1]", "{\"a\": 1, \"b\": 1}"}) {
    std::ofstream(folder / "s.json") << R"({"schema": "rapt.scales/1", "dtype": "e4m3", "granularity": "head",
      "percentile": 100, "hadamard": false, "smooth_k": false, "samples": 1, "tensors": {"q": {"descale": )"
                                     << factors << "}}}";
    EXPECT_EQ(rapt("quantize in.safetensors -o out.safetensors --tensors q --device cpu --scales-file s.json"), 2);
    EXPECT_EQ(text("err.txt").find("rapt: s.json: not a file of scales: tensors.q.descale"), 0u) << text("err.txt");
  }
}

// With k quantised first and v later, the words about k were lost.
TEST_F(Fp8LabRegression, WordsOfTensorsQuantisedBeforeStay) {
  write("in.safetensors");
  ASSERT_EQ(rapt("quantize in.safetensors -o k.safetensors --tensors k --dtype sim8 --smooth-k --device cpu"), 0);
  ASSERT_EQ(rapt("quantize k.safetensors -o kv.safetensors --tensors v --scales channel --device cpu"), 0);
  ASSERT_EQ(rapt("run kv.safetensors --device cpu"), 0) << text("err.txt");
  EXPECT_NE(text("out.txt").find("q=f32 k=sim8 v=e4m3"), std::string::npos) << text("out.txt");
  EXPECT_NE(text("out.txt").find("k_scales=head v_scales=channel smooth_k"), std::string::npos) << text("out.txt");
}

// Infinite elements saturate, but were not counted. Keys with a large mean were counted, although they do not saturate.
TEST_F(Fp8LabRegression, SaturatedElementsAreCounted) {
  each_index(k.shape, [&](const auto& at) { put(k, at, k.at(at) + 50); });
  put(v, {0, 0, 3, 3}, -infinity);
  write("in.safetensors");
  ASSERT_EQ(rapt("quantize in.safetensors -o out.safetensors --hadamard --smooth-k --device cpu --json"), 0);
  const nlohmann::json tensors = json("out.txt")["tensors"];
  EXPECT_EQ(tensors["k"]["saturated"], 0);
  EXPECT_EQ(tensors["v"]["saturated"], 1);
}

}  // namespace
}  // namespace rapt::test
