// Tests each device primitive separately, with kernels of the .cuh files of this folder. They are compiled and stored
// like all other kernels.
#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <string_view>

#include "base/error.h"
#include "gpu_support.h"
#include "jit/jit.h"
#include "kernels/shared/dtype.h"
#include "prim_args.cuh"

namespace rapt::test {

const std::map<std::string_view, std::string_view>& device_sources();  // the files of this folder

namespace {

// A kernel whose entry calls rapt::test::`call`, a function of `file` in this folder.
jit::Request request(const std::string& file, const std::string& call, const std::string& arch) {
  jit::Request request{
      .unit = concat("#include \"", file, "\"\nextern \"C\" __global__ void rapt_kernel(const __grid_constant__ ",
                     "rapt::test::PrimArgs args) { rapt::test::", call, "(args); }\n"),
      .arch = arch,
      .label = "the test of " + call,
      .files = {}};
  for (const auto& [name, text] : device_sources()) request.files.emplace(name, text);
  return request;
}

class GpuPrim : public GpuTest {
 protected:
  static void launch(const std::string& file, const std::string& call, const PrimArgs& args, unsigned blocks,
                     unsigned threads, size_t smem_bytes = 0) {
    static jit::Store store(jit::Store::from_environment());
    const auto image = store.get(request(file, call, cuda::device(0).arch));
    cuda::Kernel kernel(image->bytes.data(), image->bytes.size(), "rapt_kernel");
    kernel.prepare(0, smem_bytes);
    const cuda::Stream stream;
    kernel.launch({.grid_x = blocks, .threads = threads, .smem_bytes = smem_bytes, .stream = stream.handle()}, &args);
    stream.synchronize();
  }

  // Runs `call` with one thread for each element of `in`. Returns the results.
  template <class Out, class In>
  static std::vector<Out> map(const std::string& call, const std::vector<In>& in, size_t count, size_t out_count) {
    cuda::Buffer a(in.size() * sizeof(In)), out(out_count * sizeof(Out));
    a.upload(in.data(), a.bytes());
    out.fill(0xa5);
    launch("prim_numeric.cuh", call, {a.data(), nullptr, out.data(), static_cast<long>(count)},
           static_cast<unsigned>((count + 127) / 128), 128);
    std::vector<Out> result(out_count);
    out.download(result.data(), out.bytes());
    return result;
  }
  template <class Out, class In>
  static std::vector<Out> map(const std::string& call, const std::vector<In>& in) {
    return map<Out>(call, in, in.size(), in.size());
  }
};

std::string word(DType type) { return concat("rapt::DType::", name_of(type)); }

bool same_float(float a, float b) {  // true if the bits are equal, or if both are NaN
  return std::isnan(a) ? std::isnan(b) : detail::bits_of(a) == detail::bits_of(b);
}

// Every kind of float: random bits, numbers near the limits of the small formats, ties of these formats, special
// values.
std::vector<float> many_floats() {
  std::mt19937 random(1);
  std::vector<float> all = {0.0f,     -0.0f,     1.0f,      -1.0f,      65504.0f, 65519.0f, 65520.0f,
                            65536.0f, -65520.0f, 3.4e38f,   -3.4e38f,   1e-45f,   5.96e-8f, 2.98e-8f,
                            2.99e-8f, 6.1e-5f,   HUGE_VALF, -HUGE_VALF, NAN,      -NAN};
  for (int i = 0; i < 100000; ++i) all.push_back(detail::float_of(static_cast<unsigned>(random())));
  for (unsigned code = 0; code < 65536; code += 3) {  // midpoints between neighbours of both formats, and floats beside
    const unsigned f16_tie = detail::bits_of(f16_to_float(static_cast<unsigned short>(code))) + 0x1000;
    for (unsigned bits :
         {f16_tie, f16_tie - 1, f16_tie + 1, code << 16 | 0x8000, code << 16 | 0x7fff, code << 16 | 0x8001})
      all.push_back(detail::float_of(bits));
  }
  if (all.size() % 2 != 0) all.push_back(0);
  return all;
}

template <class Code>
std::vector<Code> every_code() {
  std::vector<Code> codes(size_t{1} << (8 * sizeof(Code)));
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<Code>(i);
  return codes;
}

template <class Code>
void expect_widened(DType type, const std::vector<Code>& codes, const std::vector<float>& got) {
  int64_t wrong = 0;
  for (size_t i = 0; i < codes.size(); ++i) {
    const float want = load_float(type, codes.data(), static_cast<long long>(i));
    if (!same_float(want, got[i]) && wrong++ == 0)
      ADD_FAILURE() << name_of(type) << " code " << codes[i] << " became " << got[i] << " instead of " << want;
  }
  EXPECT_EQ(wrong, 0) << name_of(type);
}

unsigned short narrowed(DType type, float x) { return type == DType::f16 ? float_to_f16(x) : float_to_bf16(x); }

bool same_code(DType type, unsigned short a, unsigned short b) {
  const auto value = [type](unsigned short c) { return type == DType::f16 ? f16_to_float(c) : bf16_to_float(c); };
  return a == b || (std::isnan(value(a)) && std::isnan(value(b)));
}

void expect_narrowed(DType type, const std::vector<float>& in, const std::vector<unsigned short>& got) {
  int64_t wrong = 0;
  for (size_t i = 0; i < in.size(); ++i)
    if (!same_code(type, narrowed(type, in[i]), got[i]) && wrong++ == 0)
      ADD_FAILURE() << in[i] << " became " << name_of(type) << " code " << got[i] << " instead of "
                    << narrowed(type, in[i]);
  EXPECT_EQ(wrong, 0) << name_of(type);
}

}  // namespace

// Needs NVRTC, but no GPU.
TEST(PrimSource, Compiles) {
  std::string why;
  if (jit::find_compiler(&why) == nullptr) GTEST_SKIP() << why;
  for (const char* arch : {"compute_80", "compute_89"}) {
    for (DType type : {DType::f16, DType::bf16, DType::e4m3, DType::e5m2, DType::sim8})
      EXPECT_NO_THROW(jit::compile(request("prim_numeric.cuh", concat("widen<", word(type), ">"), arch)));
    for (const char* call : {"narrow<rapt::DType::f16>", "pack<rapt::DType::bf16>", "magnitudes<rapt::DType::f16>",
                             "magnitudes<rapt::DType::bf16>", "exp2_of", "tf32_of", "tanh_of", "quads"})
      EXPECT_NO_THROW(jit::compile(request("prim_numeric.cuh", call, arch)));
    for (const char* call :
         {"read_matrices<true>", "multiply<rapt::DType::f16>", "multiply<rapt::DType::bf16>", "multiply_tf32"})
      EXPECT_NO_THROW(jit::compile(request("prim_mma.cuh", call, arch)));
    EXPECT_NO_THROW(jit::compile(request("prim_copy.cuh", "copy_and_read_back<48, 72, 96, 80>", arch)));
  }
}

TEST_F(GpuPrim, EveryCodeWidens) {
  for (DType type : {DType::f16, DType::bf16}) {
    const auto codes = every_code<unsigned short>();
    expect_widened(type, codes, map<float>(concat("widen<", word(type), ">"), codes));
  }
  for (DType type : {DType::e4m3, DType::e5m2, DType::sim8}) {
    const auto codes = every_code<unsigned char>();
    expect_widened(type, codes, map<float>(concat("widen<", word(type), ">"), codes));
  }
}

TEST_F(GpuPrim, FloatsNarrow) {
  const std::vector<float> in = many_floats();
  for (DType type : {DType::f16, DType::bf16})
    expect_narrowed(type, in, map<unsigned short>(concat("narrow<", word(type), ">"), in));
}

TEST_F(GpuPrim, PairsPackLowFirst) {
  const std::vector<float> in = many_floats();
  for (DType type : {DType::f16, DType::bf16})
    expect_narrowed(type, in, map<unsigned short>(concat("pack<", word(type), ">"), in, in.size() / 2, in.size()));
}

// Pairs of every code with a random code, in both halves of a word. Of a number and a NaN, the result is the number.
// Infinity counts as a number.
TEST_F(GpuPrim, LargerMagnitudesOfPairs) {
  std::mt19937 random(1);
  std::vector<unsigned> in;
  for (unsigned code = 0; code < 65536; ++code)
    for (const unsigned other : {static_cast<unsigned>(random()), 0x7f807c00u, 0x00010000u, code << 16 | code})
      in.insert(in.end(), {code | (code ^ 0x5555u) << 16, other});
  for (const DType type : {DType::f16, DType::bf16}) {
    const auto value = [type](unsigned code) {
      const auto half = static_cast<unsigned short>(code & 0x7fffu);
      return type == DType::f16 ? f16_to_float(half) : bf16_to_float(half);
    };
    const auto got = map<unsigned>(concat("magnitudes<", word(type), ">"), in, in.size() / 2, in.size() / 2);
    int64_t wrong = 0;
    for (size_t i = 0; i < got.size(); ++i)
      for (int shift = 0; shift < 32; shift += 16) {
        const float a = value(in[2 * i] >> shift), b = value(in[2 * i + 1] >> shift);
        // fmax treats signalling NaNs differently
        const float most = std::isnan(b) || a > b ? a : std::isnan(a) ? b : std::max(a, b);
        const bool right = same_float(value(got[i] >> shift), most) && (got[i] >> shift & 0x8000u) == 0;
        if (!right && wrong++ % 1000 == 0)
          ADD_FAILURE() << name_of(type) << std::hex << ": of " << in[2 * i] << " and " << in[2 * i + 1] << " "
                        << got[i];
      }
    EXPECT_EQ(wrong, 0) << name_of(type);
  }
}

TEST_F(GpuPrim, Exp2KeepsItsPromises) {
  std::vector<float> in = {-HUGE_VALF, HUGE_VALF, NAN,     -NAN,    0.0f,     -0.0f,   1.0f,  -1.0f,
                           127.0f,     128.0f,    -126.0f, -200.0f, -3.4e38f, 3.4e38f, 1e-45f};
  std::mt19937 random(2);
  for (int i = 0; i < 100000; ++i) in.push_back(std::uniform_real_distribution<float>(-140, 130)(random));
  const std::vector<float> got = map<float>("exp2_of", in);
  EXPECT_EQ(detail::bits_of(got[0]), 0u) << "2^-inf is exactly 0";
  EXPECT_TRUE(std::isnan(got[2]) && std::isnan(got[3])) << "2^NaN";
  EXPECT_EQ(got[4], 1.0f);
  EXPECT_EQ(got[5], 1.0f);
  double worst = 0;
  for (size_t i = 0; i < in.size(); ++i) {
    const double want = std::exp2(static_cast<double>(in[i]));
    if (std::isnan(in[i])) continue;
    if (want > 3.4028234e38) {
      EXPECT_TRUE(got[i] > 3.4e38f) << "2^" << in[i] << " = " << got[i];
    } else if (want < 1.1754944e-38) {
      EXPECT_TRUE(got[i] >= 0.0f && got[i] <= 1.18e-38f) << "2^" << in[i] << " = " << got[i];
    } else {
      worst = std::max(worst, std::abs(static_cast<double>(got[i]) / want - 1));
    }
  }
  EXPECT_LE(worst, std::exp2(-22)) << "relative error: 2 ulp of the PTX manual";
}

TEST_F(GpuPrim, TanhKeepsItsPromises) {
  std::vector<float> in = {0.0f, HUGE_VALF, -HUGE_VALF, NAN, 1e30f, -1e30f, 1e-30f};
  std::mt19937 random(3);
  for (int i = 0; i < 100000; ++i) in.push_back(std::uniform_real_distribution<float>(-12, 12)(random));
  const std::vector<float> got = map<float>("tanh_of", in);
  EXPECT_EQ(got[0], 0.0f);
  EXPECT_EQ(got[1], 1.0f);
  EXPECT_EQ(got[2], -1.0f);
  EXPECT_TRUE(std::isnan(got[3]));
  double worst = 0;
  for (size_t i = 0; i < in.size(); ++i)
    if (!std::isnan(in[i]))
      worst = std::max(worst, std::abs(static_cast<double>(got[i]) - std::tanh(static_cast<double>(in[i]))));
  EXPECT_LE(worst, 3e-7);
}

TEST_F(GpuPrim, QuadsReduceAmongThemselves) {
  std::vector<float> in(256);
  std::mt19937 random(4);
  for (float& x : in) x = static_cast<float>(static_cast<int>(random() % 2001) - 1000);  // integers, so sums are exact
  const std::vector<float> got = map<float>("quads", in, in.size(), 2 * in.size());
  for (size_t i = 0; i < in.size(); ++i) {
    const auto first = in.begin() + static_cast<std::ptrdiff_t>(i / 4 * 4);
    EXPECT_EQ(got[i], std::accumulate(first, first + 4, 0.0f)) << "sum of lane " << i % 32;
    EXPECT_EQ(got[in.size() + i], *std::max_element(first, first + 4)) << "maximum of lane " << i % 32;
  }
}

TEST_F(GpuPrim, LdmatrixLaysRowsAndColumns) {
  std::vector<unsigned short> matrices(4 * 64);
  std::iota(matrices.begin(), matrices.end(), static_cast<unsigned short>(1000));
  for (bool transposed : {false, true}) {
    cuda::Buffer a(matrices.size() * 2), out(32 * 4 * 4);
    a.upload(matrices.data(), a.bytes());
    launch("prim_mma.cuh", concat("read_matrices<", transposed ? "true" : "false", ">"),
           {a.data(), nullptr, out.data(), 0}, 1, 32);
    std::vector<unsigned> got(32 * 4);
    out.download(got.data(), out.bytes());
    for (size_t lane = 0; lane < 32; ++lane)
      for (size_t m = 0; m < 4; ++m)
        for (size_t half = 0; half < 2; ++half) {
          const size_t row = transposed ? lane % 4 * 2 + half : lane / 4,
                       column = transposed ? lane / 4 : lane % 4 * 2 + half;
          EXPECT_EQ(got[lane * 4 + m] >> (16 * half) & 0xffff, matrices[m * 64 + row * 8 + column])
              << "lane " << lane << ", register " << m << ", half " << half << (transposed ? ", transposed" : "");
        }
  }
}

TEST_F(GpuPrim, MmaMultipliesByItsDocumentedFragments) {
  for (DType type : {DType::f16, DType::bf16}) {
    std::mt19937 random(5);
    const auto whole = [&] { return static_cast<float>(static_cast<int>(random() % 17) - 8); };  // exact in both
    std::vector<float> a(256), b(128), c(128), expected(128);
    for (float& x : a) x = whole();
    for (float& x : b) x = whole();
    for (float& x : c) x = whole();
    for (size_t i = 0; i < 16; ++i)
      for (size_t j = 0; j < 8; ++j) {
        expected[i * 8 + j] = c[i * 8 + j];
        for (size_t k = 0; k < 16; ++k) expected[i * 8 + j] += a[i * 16 + k] * b[k * 8 + j];
      }
    std::vector<unsigned short> a_codes, b_codes;
    for (float x : a) a_codes.push_back(narrowed(type, x));
    for (float x : b) b_codes.push_back(narrowed(type, x));
    cuda::Buffer a_gpu(512), b_gpu(256), out(512);
    a_gpu.upload(a_codes.data(), 512);
    b_gpu.upload(b_codes.data(), 256);
    out.upload(c.data(), 512);
    launch("prim_mma.cuh", concat("multiply<", word(type), ">"), {a_gpu.data(), b_gpu.data(), out.data(), 0}, 1, 32);
    std::vector<float> got(128);
    out.download(got.data(), 512);
    EXPECT_EQ(got, expected) << name_of(type);
  }
}

// Small integers times powers of two are exact. The last 13 bits of an operand do not change the result.
TEST_F(GpuPrim, Tf32MmaMultipliesByItsDocumentedFragments) {
  std::mt19937 random(5);
  const auto number = [&] {
    const auto whole = static_cast<float>(static_cast<int>(random() % 2047) - 1023);  // 11 bits of precision
    return whole * (random() % 2 == 0 ? 1.0f : 0x1p-3f);
  };
  std::vector<float> a(128), b(64), c(128), expected(128);
  for (float& x : a) x = number();
  for (float& x : b) x = number() > 0 ? 0.25f : -3.0f;
  for (float& x : c) x = number();
  for (size_t i = 0; i < 16; ++i)
    for (size_t j = 0; j < 8; ++j) {
      expected[i * 8 + j] = c[i * 8 + j];
      for (size_t k = 0; k < 8; ++k) expected[i * 8 + j] += a[i * 8 + k] * b[k * 8 + j];
    }
  for (const unsigned last_bits : {0u, 0x1fffu, 0x1000u}) {
    const auto with_last_bits = [&](std::vector<float> numbers) {
      for (float& x : numbers) x = detail::float_of(detail::bits_of(x) | last_bits);
      return numbers;
    };
    const std::vector<float> a_given = with_last_bits(a), b_given = with_last_bits(b);
    cuda::Buffer a_gpu(512), b_gpu(256), out(512);
    a_gpu.upload(a_given.data(), 512);
    b_gpu.upload(b_given.data(), 256);
    out.upload(c.data(), 512);
    launch("prim_mma.cuh", "multiply_tf32", {a_gpu.data(), b_gpu.data(), out.data(), 0}, 1, 32);
    std::vector<float> got(128);
    out.download(got.data(), 512);
    EXPECT_EQ(got, expected) << "last bits " << last_bits;
  }
}

TEST_F(GpuPrim, FloatsRoundToTf32) {
  const auto rounded = [](float x) {
    const double y = double{x} * (1.0 + 0x1.8p-12);
    float toward_zero = static_cast<float>(y);
    if (std::fabs(toward_zero) > std::fabs(y)) toward_zero = std::nextafter(toward_zero, 0.0f);
    return detail::float_of(detail::bits_of(toward_zero) & 0xffffe000u);
  };
  const std::vector<float> in = many_floats();
  const std::vector<float> got = map<float>("tf32_of", in);
  int64_t wrong = 0;
  for (size_t i = 0; i < in.size(); ++i)
    if (!same_float(got[i], rounded(in[i])) && wrong++ == 0)
      ADD_FAILURE() << in[i] << " became " << got[i] << " instead of " << rounded(in[i]);
  EXPECT_EQ(wrong, 0);
}

TEST_F(GpuPrim, TilesAreCopiedAndFilledWithZeros) {
  struct Shape {
    int rows, dim, threads;
  };
  for (const Shape& s : {Shape{64, 64, 128},
                         {32, 8, 128},
                         {64, 40, 128},
                         {16, 80, 64},
                         {48, 72, 96},
                         {128, 128, 256},
                         {64, 256, 128},
                         {32, 248, 128},
                         {64, 96, 128},
                         {112, 64, 128}})
    for (int live : {0, 1, s.rows / 2 + 1, s.rows, s.rows + 5}) {
      SCOPED_TRACE(concat(s.rows, " rows of ", s.dim, ", ", live, " live, ", s.threads, " threads"));
      const int padded = (s.dim + 15) / 16 * 16, pitch = s.dim + 8;
      std::vector<unsigned short> matrix(static_cast<size_t>(live * pitch), 0xffff);  // NaN beside the rows
      for (int r = 0; r < live; ++r)
        for (int c = 0; c < s.dim; ++c)
          matrix[static_cast<size_t>(r * pitch + c)] = static_cast<unsigned short>(r * 256 + c + 1);
      cuda::Buffer a(matrix.size() * 2 + 16), out(static_cast<size_t>(s.rows * padded) * 2);
      a.fill(0xff);
      a.upload(matrix.data(), matrix.size() * 2);
      launch("prim_copy.cuh", concat("copy_and_read_back<", s.rows, ", ", s.dim, ", ", s.threads, ", ", pitch, ">"),
             {a.data(), nullptr, out.data(), live}, 1, static_cast<unsigned>(s.threads),
             static_cast<size_t>(s.rows * padded) * 2);
      std::vector<unsigned short> got(static_cast<size_t>(s.rows * padded));
      out.download(got.data(), out.bytes());
      int64_t wrong = 0;
      for (int r = 0; r < s.rows; ++r)
        for (int c = 0; c < padded; ++c) {
          const unsigned short want = r < live && c < s.dim ? static_cast<unsigned short>(r * 256 + c + 1) : 0;
          if (got[static_cast<size_t>(r * padded + c)] != want && wrong++ == 0)
            ADD_FAILURE() << "row " << r << ", column " << c << ": " << got[static_cast<size_t>(r * padded + c)];
        }
      EXPECT_EQ(wrong, 0);
    }
}

}  // namespace rapt::test
