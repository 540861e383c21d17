// Emulates attention_sm80.cuh on this CPU and compares with the oracle, without a GPU. A block's threads are fibers
// (emulation.h); matrix instructions and copies are stand-ins (lab/emulation/ptx). The build copies the kernel's source
// beside the stand-ins.
#include "tests/cpu/emulation.h"
//
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "check/check.h"
#include "operations/bind.h"
#include "operations/sdpa.h"

namespace rapt {
extern char shared[];  // the kernel declares it, too
alignas(1024) char shared[227 << 10];
}  // namespace rapt

#include "sm80/attention_sm80.cuh"

namespace rapt::test {
namespace {

// The address sanitizer reuses stack frames that are still live after a fiber switch, and then reports them as freed.
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define RAPT_ADDRESS_SANITIZER 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(RAPT_ADDRESS_SANITIZER)
constexpr bool has_address_sanitizer = true;
#else
constexpr bool has_address_sanitizer = false;
#endif

constexpr Sm80Config config_of(DType dtype, int dim, int dim_v, int block_m, int block_n, int warps_m, int warps_n,
                               int stages) {
  Sm80Config c;
  c.q = c.k = c.v = c.out = dtype;
  c.head_dim = dim, c.head_dim_v = dim_v, c.block_m = block_m, c.block_n = block_n;
  c.warps_m = warps_m, c.warps_n = warps_n, c.stages = stages;
  return c;
}

// Runs every thread of every block, in the grid of attention_sm80.cpp.
template <const Sm80Config& cfg>
void launch(const Problem& p, const Sm80Params& params) {
  const auto tiles = params.scheduler.m_blocks;
  const auto run = [&](unsigned blocks) {
    cuda_emulation::launch(blocks, static_cast<unsigned>(cfg.threads()), reinterpret_cast<float*>(shared),
                           static_cast<size_t>(smem_bytes(cfg)) / sizeof(float), [&] { attention_sm80<cfg>(params); });
  };
  if constexpr (!has_3d_grid(cfg)) {
    run(tiles * static_cast<unsigned>(p.batch * p.heads_q * slices_of(cfg)));
  } else {
    for (blockIdx.z = 0; blockIdx.z < p.batch; ++blockIdx.z)
      for (blockIdx.y = 0; blockIdx.y < p.heads_q; ++blockIdx.y) run(tiles);
    blockIdx = {};
  }
}

// Copies of the descales with NaN after the end, so that a read past the end changes the result.
class Guarded {
 public:
  explicit Guarded(const rapt_tensor*& tensor) {
    if (tensor == nullptr) return;
    int64_t count = 1;
    for (int i = 0; i < tensor->rank; ++i) count *= tensor->shape[i];
    const auto* data = static_cast<const float*>(tensor->data);  // fills create contiguous tensors
    values_.assign(data, data + count);
    values_.resize(static_cast<size_t>(count) + 64, std::nanf(""));
    view_ = *tensor;
    view_.data = values_.data();
    tensor = &view_;
  }

 private:
  std::vector<float> values_;
  rapt_tensor view_{};
};

template <const Sm80Config& cfg>
check::Kernel kernel_of(unsigned section) {
  emulated_shared = shared;
  return [section](const Problem& p, const check::Inputs& in, const check::Outputs& out) {
    check::SdpaCall call(p, in, out);
    const Guarded q_scales(call.args.q_descale), k_scales(call.args.k_descale), v_scales(call.args.v_descale);
    const auto u = [](int64_t n) { return static_cast<unsigned>(n); };
    const Sm80Params params{attention_params(call.args, p),
                            TileScheduler::of(u((p.seqlen_q + cfg.block_m - 1) / cfg.block_m), u(p.batch), u(p.heads_q),
                                              u(p.group()), section)};
    launch<cfg>(p, params);
  };
}

template <const Sm80Config& cfg>
void expect_right(const std::string& line, check::Fill fill = check::Fill::normal, unsigned section = 1) {
  if (has_address_sanitizer) GTEST_SKIP() << "its fake stacks and fibers do not go together";
  const check::Result result = check::check_problem(parse_problem(line), fill, 3, kernel_of<cfg>(section));
  EXPECT_TRUE(result.pass) << line << " " << check::name_of(fill) << ": " << result.message;
}

constexpr check::Fill normal = check::Fill::normal, huge = check::Fill::huge, hidden = check::Fill::hidden_nan;

class Sm80Emulated : public ::testing::Test {
 protected:
  void SetUp() override { RAPT_NEEDS_FIBERS(); }
};

TEST_F(Sm80Emulated, Dense) {
  static constexpr Sm80Config cfg = config_of(DType::f16, 64, 64, 32, 32, 2, 1, 2);
  expect_right<cfg>("f16 b2 h4:2 q70 k130 d64 lse");
  expect_right<cfg>("f16 b1 h2 q33 k64 d64 lse sinks", huge);
}

TEST_F(Sm80Emulated, TwoRowTilesAWarpAndOneStage) {
  static constexpr Sm80Config cfg = config_of(DType::bf16, 40, 24, 64, 48, 2, 1, 1);
  expect_right<cfg>("bf16 b1 h2 q100 k150 d40:24 layout=bshd lse");
}

TEST_F(Sm80Emulated, CausalAndWindows) {
  static constexpr Sm80Config cfg = [] {
    Sm80Config c = config_of(DType::f16, 32, 32, 32, 16, 2, 1, 3);
    c.causal_or_local = true;
    return c;
  }();
  for (const unsigned section : {1u, 3u, 8u}) expect_right<cfg>("f16 b2 h2 q75 k75 d32 causal lse", normal, section);
  expect_right<cfg>("f16 b1 h2 q40 k150 d32 window=20,5 lse");
  expect_right<cfg>("f16 b1 h2 q150 k40 d32 causal lse", normal);  // rows that see no key
  expect_right<cfg>("f16 b1 h2 q70 k70 d32 causal lse", hidden);
  expect_right<cfg>("f16 h4:2 d32 varlen=17:5,0:9,64:0,40:100 causal lse", hidden);
  expect_right<cfg>("f16 b1 h2 q33 k60 d32 causal_top_left lse", huge);
}

// Sequences without keys. Only Q is copied to shared memory, and this copy must not overwrite the stored zeros.
TEST_F(Sm80Emulated, NoKeys) {
  static constexpr Sm80Config cfg = config_of(DType::f16, 64, 64, 64, 32, 4, 1, 2);
  expect_right<cfg>("f16 h4 d64 varlen=70:0,3:0,130:0,65:33 lse");
  expect_right<cfg>("f16 b2 h2 q70 k40 d64 seqused=0,40 lse");
}

TEST_F(Sm80Emulated, UnusedQueries) {
  static constexpr Sm80Config cfg = config_of(DType::f16, 64, 64, 64, 32, 4, 1, 2);
  expect_right<cfg>("f16 b3 h2 q140 k40 d64 seqused_q=0,70,140 lse", hidden);
  expect_right<cfg>("f16 h4:2 d64 varlen=140:40,3:9,65:33 seqused_q=64,0,65 seqused=40,9,0 lse sinks", hidden);
  static constexpr Sm80Config dealt = [] {
    Sm80Config c = config_of(DType::bf16, 32, 32, 32, 16, 2, 4, 3);
    c.out = DType::f32, c.causal_or_local = true;
    return c;
  }();
  expect_right<dealt>("bf16 out=f32 b2 h2 q75 k75 d32 causal seqused_q=33,1 lse", hidden);
}

TEST_F(Sm80Emulated, EveryOperationOnScores) {
  static constexpr Sm80Config cfg = [] {
    Sm80Config c = config_of(DType::bf16, 32, 32, 32, 32, 2, 1, 2);
    c.scale_in_exp2 = false, c.softcap = true, c.bias = DType::f32, c.alibi = true, c.mask = true,
    c.causal_or_local = true;
    return c;
  }();
  expect_right<cfg>("bf16 b2 h2 q50 k70 d32 causal softcap=20 alibi bias=f32[1,h,q,k] mask=[b,1,q,k] sinks lse");
  expect_right<cfg>("bf16 b2 h2 q50 k70 d32 causal softcap=1000 alibi bias=f32[1,h,q,k] mask=[b,1,q,k] sinks lse");
  expect_right<cfg>("bf16 b2 h2 q50 k70 d32 causal softcap=1e-40 alibi bias=f32[1,h,q,k] mask=[b,1,q,k] sinks lse",
                    check::Fill::integers);
  expect_right<cfg>("bf16 b1 h2 q50 k70 d32 window=30,9 softcap=20 alibi bias=f32[1,1,q,k] mask=[b,h,1,k] lse", hidden);
}

// Bias and mask in groups of eight keys. The keys of a block are permuted in shared memory.
TEST_F(Sm80Emulated, Octets) {
  static constexpr auto with = [](int dim, int block_n, int warps_n, DType bias, bool mask, bool local) {
    Sm80Config c = config_of(DType::f16, dim, dim, 32, block_n, 2, warps_n, 2);
    c.bias = bias, c.mask = mask, c.causal_or_local = local, c.pairs = c.octets = true;
    c.scale_in_exp2 = bias == DType::none;
    return c;
  };
  static constexpr Sm80Config f16 = with(64, 64, 1, DType::f16, false, false),
                              f32 = with(40, 32, 1, DType::f32, true, true),
                              mask = with(64, 96, 1, DType::none, true, false),
                              dealt = with(32, 32, 4, DType::bf16, true, true);
  for (const auto fill : {normal, huge, hidden, check::Fill::masked_rows}) {
    expect_right<f16>("f16 b2 h4:2 q70 k136 d64 bias=f16[1,h,q,k] lse", fill);
    expect_right<f32>("f16 b2 h2 q70 k104 d40 causal bias=f32[b,h,q,k] mask=[b,1,1,k] lse", fill);
    expect_right<mask>("f16 b2 h2 q33 k200 d64 seqused=200,77 mask=[b,1,q,k] lse", fill);
    expect_right<dealt>("f16 b1 h2 q50 k304 d32 window=90,7 bias=bf16[1,1,q,k] mask=[1,h,q,k] lse", fill);
  }
}

// The access of a bias decides whether it is loaded in groups of eight keys.
TEST(ScoreAccessOf, Octets) {
  const auto octets = [](const char* line) { return parse_problem(line).bias.access.octets; };
  EXPECT_TRUE(octets("f16 b2 h2 q40 k72 d64 bias=f32[b,h,q,k]"));
  EXPECT_TRUE(octets("f16 b2 h2 q40 k72 d64 bias=bf16[1,1,1,k]"));
  EXPECT_FALSE(octets("f16 b2 h2 q40 k76 d64 bias=f16[b,h,q,k]"));
  EXPECT_FALSE(octets("f16 b2 h2 q40 k72 d64 bias=f16[b,h,q,1]"));
  EXPECT_FALSE(octets("f16 b2 h2 q40 k0 d64 bias=f16[b,h,q,k]"));
  Geometry g;
  g.rank = 2, g.shape = {40, 72}, g.strides = {80, 1};
  for (const auto& [base, expected] : {std::pair{0, true}, {16, true}, {8, false}, {32, true}, {4, false}})
    EXPECT_EQ(score_access(DType::f16, g, static_cast<uintptr_t>(base)).octets, expected) << base;
  for (const auto& [base, expected] : {std::pair{8, true}, {4, false}, {1, false}})
    EXPECT_EQ(score_access(DType::u8, g, static_cast<uintptr_t>(base)).octets, expected) << base;
  g.strides[0] = 76;
  EXPECT_FALSE(score_access(DType::f16, g).octets);
  g.strides[0] = 0;
  EXPECT_TRUE(score_access(DType::f16, g).octets);
}

TEST_F(Sm80Emulated, NegativeAndZeroScale) {
  static constexpr Sm80Config cfg = [] {
    Sm80Config c = config_of(DType::f16, 32, 32, 32, 32, 2, 1, 2);
    c.scale_in_exp2 = false;
    return c;
  }();
  expect_right<cfg>("f16 b1 h2 q40 k70 d32 scale=-0.3 lse");
  expect_right<cfg>("f16 b1 h2 q40 k70 d32 scale=0 lse");
}

// Logits near the largest float, which overflow if they are multiplied by log2(e).
TEST_F(Sm80Emulated, LseOfTheLargestLogits) {
  if (has_address_sanitizer) GTEST_SKIP() << "its fake stacks and fibers do not go together";
  static constexpr Sm80Config cfg = config_of(DType::bf16, 32, 32, 32, 32, 2, 1, 2);
  for (const double sign : {1.0, -1.0})
    for (const char* words : {" lse", " lse sinks"}) {
      const Problem p = parse_problem(std::string("bf16 b1 h2 q40 k70 d32 scale=1e30") + words);
      check::Inputs inputs = check::make_inputs(p, normal, 3);
      for (int64_t h = 0; h < p.heads_q; ++h)
        for (int64_t d = 0; d < p.head_dim; ++d) {
          for (int64_t i = 0; i < p.seqlen_q; ++i) inputs.q.set({0, h, i, d}, d == 0 ? 1 : 0);
          for (int64_t j = 0; j < p.seqlen_k; ++j)
            inputs.k.set({0, h, j, d}, d != 0 ? 0 : sign * (j % 7 == 3 ? 3.2e8 : 3e8));
        }
      const check::Outputs outputs = check::make_outputs(p);
      kernel_of<cfg>(1)(p, inputs, outputs);
      const check::Result result = check::judge(p, std::nullopt, inputs, outputs);
      EXPECT_TRUE(result.pass) << words << ": " << result.message;
    }
}

// The positions are rounded once, to the nearest float.
TEST_F(Sm80Emulated, AlibiOfLargePositions) {
  static constexpr Sm80Config cfg = [] {
    Sm80Config c = config_of(DType::bf16, 32, 32, 32, 32, 2, 1, 2);
    c.scale_in_exp2 = false, c.alibi = true, c.far_positions = true;
    return c;
  }();
  for (const char* starts : {"q_start=33554433", "q_start=1099511627776", "k_start=1073741830",
                             "q_start=1152921504606846976", "q_start=1152921504606846976 k_start=1152921504606846720"})
    expect_right<cfg>(std::string("bf16 b1 h2 q50 k70 d32 alibi lse ") + starts);
}

TEST_F(Sm80Emulated, KeysDealtToWarps) {
  static constexpr Sm80Config cfg = [] {
    Sm80Config c = config_of(DType::f16, 64, 64, 32, 32, 2, 4, 1);
    c.q_in_registers = true, c.causal_or_local = true;
    return c;
  }();
  expect_right<cfg>("f16 b2 h4:2 q50 k300 d64 causal lse sinks");
  expect_right<cfg>("f16 b1 h2 q40 k200 d64 window=50,0 lse", hidden);
  expect_right<cfg>("f16 h2 d64 varlen=17:5,0:9,33:0 causal lse");
}

TEST_F(Sm80Emulated, OutputsOfAnotherKind) {
  static constexpr Sm80Config cfg = [] {
    Sm80Config c = config_of(DType::f16, 32, 48, 32, 32, 2, 1, 2);
    c.out = DType::f32, c.causal_or_local = true;
    return c;
  }();
  expect_right<cfg>("f16 b1 h2 q70 k90 d32:48 out=f32 causal partial lse");
  expect_right<cfg>("f16 b1 h2 q70 k90 d32:48 out=f32 causal lse", hidden);
}

TEST_F(Sm80Emulated, SumsInHalfPrecision) {
  static constexpr Sm80Config cfg = [] {
    Sm80Config c = config_of(DType::f16, 32, 32, 32, 32, 2, 1, 2);
    c.f16_accumulate = true;
    return c;
  }();
  expect_right<cfg>("f16 b1 h2 q70 k90 d32 acc=f16 lse");
}

// Head dims above 256. The columns of the output are divided among warps and slices; K and V arrive in pieces.
constexpr Sm80Config wide_config(Sm80Config c, int k_piece, int v_piece, int v_slice) {
  c.k_piece = k_piece, c.v_piece = v_piece, c.v_slice = v_slice;
  return c;
}

TEST_F(Sm80Emulated, WideWithTwoUnequalSlices) {
  static constexpr Sm80Config cfg = wide_config(config_of(DType::f16, 264, 264, 32, 16, 2, 2, 2), 128, 16, 256);
  static_assert(Sm80WideLayout(cfg).slices == 2 && cfg.head_dim_v % Sm80WideLayout(cfg).columns != 0);
  expect_right<cfg>("f16 b2 h4:2 q35 k70 d264 lse");
  expect_right<cfg>("f16 b1 h2 q33 k31 d264 lse sinks", huge);
  expect_right<cfg>("f16 h4 d264 varlen=33:0,3:0,70:33,65:100 lse sinks");
  expect_right<cfg>("f16 b3 h2 q40 k40 d264 seqused_q=0,33,40 lse", hidden);
}

TEST_F(Sm80Emulated, WideCausalAndWindows) {
  static constexpr Sm80Config cfg = [] {
    Sm80Config c = wide_config(config_of(DType::bf16, 320, 320, 64, 32, 2, 4, 4), 128, 32, 512);
    c.causal_or_local = true;
    return c;
  }();
  for (const unsigned section : {1u, 3u}) expect_right<cfg>("bf16 b1 h4:2 q70 k150 d320 causal lse", normal, section);
  expect_right<cfg>("bf16 b1 h2 q70 k300 d320 window=20,5 lse", hidden);
  expect_right<cfg>("bf16 b1 h2 q150 k40 d320 causal lse", hidden);  // rows that see no key
  expect_right<cfg>("bf16 b1 h2 q40 k70 d320 causal layout=bshd lse", check::Fill::seen_nan);
  expect_right<cfg>("bf16 h4:2 d320 varlen=17:5,0:9,64:0,40:100 seqused=5,3,0,90 causal lse", hidden);
}

TEST_F(Sm80Emulated, WidePartialStates) {
  static constexpr Sm80Config cfg = [] {
    Sm80Config c = wide_config(config_of(DType::f16, 384, 384, 32, 16, 1, 8, 3), 64, 16, 256);
    c.out = DType::f32, c.causal_or_local = true;
    return c;
  }();
  expect_right<cfg>("f16 b1 h2 q40 k150 d384 out=f32 causal partial lse");
  expect_right<cfg>("f16 b1 h2 q40 k150 d384 out=f32 causal_top_left lse", hidden);
}

TEST_F(Sm80Emulated, WideOperationsOnScores) {
  static constexpr Sm80Config cfg = [] {
    Sm80Config c = wide_config(config_of(DType::bf16, 512, 512, 32, 32, 1, 4, 3), 128, 32, 512);
    c.scale_in_exp2 = false, c.softcap = true, c.bias = DType::f32, c.alibi = true, c.mask = true,
    c.causal_or_local = true;
    return c;
  }();
  expect_right<cfg>("bf16 b1 h2 q40 k140 d512 causal softcap=20 alibi bias=f32[1,h,q,k] mask=[b,1,q,k] sinks lse");
  expect_right<cfg>("bf16 b1 h2 q40 k70 d512 window=30,9 softcap=20 alibi bias=f32[1,1,q,k] mask=[b,h,1,k] lse",
                    hidden);
}

TEST_F(Sm80Emulated, WideWithFewQueries) {
  static constexpr Sm80Config cfg = wide_config(config_of(DType::bf16, 576, 512, 16, 16, 1, 8, 4), 64, 64, 128);
  expect_right<cfg>("bf16 b1 h4:1 q1 k300 d576:512 lse");
  expect_right<cfg>("bf16 b2 h2 q17 k129 d576:512 seqused=0,129 lse sinks");
  static constexpr Sm80Config whole = wide_config(config_of(DType::f16, 576, 512, 16, 16, 1, 8, 2), 64, 16, 512);
  expect_right<whole>("f16 b2 h2 q5 k127 d576:512 lse", huge);
}

TEST_F(Sm80Emulated, WideInOneOperand) {
  static constexpr Sm80Config values = [] {
    Sm80Config c = wide_config(config_of(DType::f16, 40, 512, 64, 32, 2, 4, 3), 48, 32, 512);
    c.causal_or_local = true;
    return c;
  }();
  expect_right<values>("f16 b1 h4:2 q70 k150 d40:512 causal lse");
  expect_right<values>("f16 b1 h2 q70 k150 d40:512 window=30,5 lse", hidden);
  static constexpr Sm80Config keys = wide_config(config_of(DType::bf16, 512, 40, 64, 32, 4, 2, 2), 64, 64, 512);
  expect_right<keys>("bf16 b1 h2 q70 k130 d512:40 lse");
}

// FP8 products with FP8 instructions, as on Ada: for the scores, and for P.V with weights of one or two terms.
TEST_F(Sm80Emulated, Fp8Instructions) {
  static constexpr Sm80Config scores = [] {
    Sm80Config c = config_of(DType::e4m3, 64, 64, 32, 32, 2, 1, 2);
    c.out = DType::f16, c.fp8_qk = true;
    return c;
  }();
  expect_right<scores>("e4m3 out=f16 b2 h4:2 q70 k130 d64 scales=head lse");
  expect_right<scores>("e4m3 out=f16 b1 h2 q40 k90 d64 sinks lse", huge);
  static constexpr Sm80Config one = [] {
    Sm80Config c = scores;
    c.p_terms = 1, c.fp8_pv = true, c.promotion_interval = 32, c.causal_or_local = true;
    return c;
  }();
  expect_right<one>("e4m3 out=f16 b1 h2 q70 k70 d64 causal scales=tensor pv=fp8 lse sinks");
  expect_right<one>("e4m3 out=f16 b1 h2 q70 k150 d64 window=20,5 scales=head pv=fp8 lse", hidden);
  static constexpr Sm80Config two = [] {
    Sm80Config c = config_of(DType::e5m2, 96, 80, 64, 64, 2, 1, 1);
    c.out = DType::bf16, c.fp8_qk = c.fp8_pv = true, c.p_terms = 2;
    return c;
  }();
  expect_right<two>("e5m2 out=bf16 b1 h2 q70 k150 d96:80 scales=head pv=fp8x2 lse");
}

// FP8 codes are widened to 16 bits while they are loaded: for each operand alone, and for all operands.
TEST_F(Sm80Emulated, WidenedCodes) {
  static constexpr Sm80Config all = [] {
    Sm80Config c = config_of(DType::e4m3, 64, 64, 32, 32, 2, 1, 2);
    c.out = DType::f16;
    return c;
  }();
  expect_right<all>("e4m3 out=f16 b2 h4:2 q70 k130 d64 scales=head lse");
  expect_right<all>("e4m3 out=f16 b1 h2 q1 k33 d64 scales=tensor lse");
  static constexpr Sm80Config cache = [] {
    Sm80Config c = config_of(DType::e4m3, 80, 48, 64, 64, 2, 1, 1);
    c.q = c.out = DType::bf16, c.causal_or_local = true;
    return c;
  }();
  expect_right<cache>(
      "q=bf16 k=e4m3 v=e4m3 out=bf16 b1 h4:2 q100 k150 d80:48 causal k_scales=head v_scales=tensor lse");
  expect_right<cache>("q=bf16 k=e4m3 v=e4m3 out=bf16 b1 h2 q40 k70 d80:48 causal lse", huge);
  expect_right<cache>("q=bf16 k=e4m3 v=e4m3 out=bf16 b1 h2 q40 k70 d80:48 causal lse", check::Fill::seen_nan);
  static constexpr Sm80Config keys = [] {
    Sm80Config c = config_of(DType::f16, 32, 64, 32, 32, 2, 1, 2);
    c.k = DType::e5m2;
    return c;
  }();
  expect_right<keys>("q=f16 k=e5m2 v=f16 out=f16 b1 h2 q40 k90 d32:64 k_scales=tensor lse");
  static constexpr Sm80Config query = [] {
    Sm80Config c = config_of(DType::bf16, 48, 32, 32, 32, 2, 1, 2);
    c.q = DType::e4m3;
    return c;
  }();
  expect_right<query>("q=e4m3 k=bf16 v=bf16 out=bf16 b1 h2 q40 k90 d48:32 q_scales=head lse");
  static constexpr Sm80Config dealt = [] {
    Sm80Config c = config_of(DType::e5m2, 64, 64, 32, 32, 2, 4, 1);
    c.q = c.out = DType::f16, c.q_in_registers = true, c.causal_or_local = true;
    return c;
  }();
  expect_right<dealt>("q=f16 k=e5m2 v=e5m2 out=f16 b2 h4:2 q50 k300 d64 causal k_scales=head v_scales=head lse sinks");
  expect_right<dealt>("q=f16 k=e5m2 v=e5m2 out=f16 b1 h2 q40 k200 d64 window=50,0 lse", hidden);
}

// Weights are sums of E4M3 terms, but the kernel uses no FP8 instructions.
TEST_F(Sm80Emulated, RoundedWeights) {
  static constexpr Sm80Config one = [] {
    Sm80Config c = config_of(DType::e4m3, 64, 64, 32, 32, 2, 1, 2);
    c.q = c.out = DType::f16, c.p_terms = 1, c.causal_or_local = true;
    return c;
  }();
  expect_right<one>(
      "q=f16 k=e4m3 v=e4m3 out=f16 b1 h2 q70 k150 d64 causal k_scales=head v_scales=head pv=fp8 lse sinks");
  static constexpr Sm80Config two = [] {
    Sm80Config c = config_of(DType::e5m2, 32, 64, 32, 32, 2, 2, 2);
    c.out = DType::f32, c.p_terms = 2, c.q_row_descales = true, c.k_descale_block = 1, c.v_descale_block = 1;
    return c;
  }();
  expect_right<two>("e5m2 out=f32 b1 h2 q70 k150 d32:64 scales=token pv=fp8x2 lse", check::Fill::outlier);
}

// Rows of bf16 queries at both ends of bf16's range. The kernel converts such a row to f16 values times a power of two.
TEST_F(Sm80Emulated, QueriesAtTheEndsOfTheirRange) {
  if (has_address_sanitizer) GTEST_SKIP() << "its fake stacks and fibers do not go together";
  static constexpr Sm80Config cfg = [] {
    Sm80Config c = config_of(DType::e4m3, 32, 32, 32, 32, 2, 1, 2);
    c.q = c.out = DType::bf16;
    return c;
  }();
  const Problem p = parse_problem("q=bf16 k=e4m3 v=e4m3 out=bf16 b1 h2 q40 k70 d32 k_scales=tensor lse");
  for (const double size : {0x1p127, 0x1p126, 0x1p-110, 0x1p-130}) {
    check::Inputs in = check::make_inputs(p, normal, 5);
    for (int64_t h = 0; h < 2; ++h)
      for (int64_t i = 0; i < 40; ++i)
        for (int64_t d = 0; d < 32; ++d) in.q.set({0, h, i, d}, std::clamp(in.q.at({0, h, i, d}), -1.9, 1.9) * size);
    in.k_descale.set({0}, std::clamp(1 / size, 0x1p-126, 0x1p110));
    const check::Outputs out = check::make_outputs(p);
    kernel_of<cfg>(1)(p, in, out);
    const check::Result result = check::judge(p, normal, in, out);
    EXPECT_TRUE(result.pass) << size << ": " << result.message;
  }
}

// TF32 products. A configuration for tensors of f32, or of other types.
constexpr Sm80Config tf32_config(int dim, int dim_v, int block_m, int block_n, int warps_m, int warps_n, int stages) {
  return config_of(DType::f32, dim, dim_v, block_m, block_n, warps_m, warps_n, stages);
}

TEST_F(Sm80Emulated, Tf32Dense) {
  static constexpr Sm80Config cfg = tf32_config(64, 64, 64, 32, 2, 1, 2);  // two m-tiles for each warp
  for (const check::Fill fill : {normal, huge, check::Fill::outlier, check::Fill::near_ties, check::Fill::constant,
                                 check::Fill::rescale, check::Fill::rescale_reversed, check::Fill::integers})
    expect_right<cfg>("f32 b1 h4:2 q70 k130 d64 lse", fill);
  expect_right<cfg>("f32 b2 h2 q33 k64 d64 lse sinks", huge);
  expect_right<cfg>("f32 b1 h2 q40 k90 d64 layout=bshd partial lse");
}

TEST_F(Sm80Emulated, Tf32HeadDims) {
  static constexpr Sm80Config small = tf32_config(8, 24, 32, 16, 2, 1, 1);
  expect_right<small>("f32 b1 h2 q40 k70 d8:24 lse");
  static constexpr Sm80Config uneven = tf32_config(104, 80, 32, 48, 2, 1, 3);  // two sums of Q.K; two channels of V
  expect_right<uneven>("f32 b1 h2 q40 k100 d104:80 lse");
  static constexpr Sm80Config large = tf32_config(40, 160, 32, 16, 2, 1, 2);  // sums of eight keys
  expect_right<large>("f32 b1 h2 q40 k70 d40:160 lse");
  static constexpr Sm80Config largest = tf32_config(256, 256, 32, 16, 2, 1, 1);
  expect_right<largest>("f32 b1 h1 q33 k50 d256 lse");
  expect_right<largest>("f32 b1 h1 q33 k50 d256 lse", huge);
}

TEST_F(Sm80Emulated, Tf32CausalAndWindows) {
  static constexpr Sm80Config cfg = [] {
    Sm80Config c = tf32_config(32, 32, 32, 16, 2, 1, 3);
    c.causal_or_local = true;
    return c;
  }();
  for (const unsigned section : {1u, 3u}) expect_right<cfg>("f32 b2 h2 q75 k75 d32 causal lse", normal, section);
  expect_right<cfg>("f32 b1 h2 q40 k150 d32 window=20,5 lse");
  expect_right<cfg>("f32 b1 h2 q150 k40 d32 causal lse");  // rows that see no key
  expect_right<cfg>("f32 b1 h2 q70 k70 d32 causal lse", hidden);
  expect_right<cfg>("f32 b1 h2 q70 k70 d32 causal lse", check::Fill::seen_nan);
  expect_right<cfg>("f32 h4:2 d32 varlen=17:5,0:9,64:0,40:100 causal lse", hidden);
  expect_right<cfg>("f32 h4:2 d32 varlen=70:40,3:9,65:33 seqused_q=64,0,65 seqused=40,9,0 causal lse sinks", hidden);
  expect_right<cfg>("f32 b1 h2 q33 k60 d32 causal_top_left lse", huge);
}

TEST_F(Sm80Emulated, Tf32EveryOperationOnScores) {
  static constexpr Sm80Config cfg = [] {
    Sm80Config c = tf32_config(32, 32, 32, 32, 2, 1, 2);
    c.scale_in_exp2 = false, c.softcap = true, c.bias = DType::f32, c.alibi = true, c.mask = true,
    c.causal_or_local = true;
    return c;
  }();
  expect_right<cfg>("f32 b2 h2 q50 k70 d32 causal softcap=20 alibi bias=f32[1,h,q,k] mask=[b,1,q,k] sinks lse");
  expect_right<cfg>("f32 b1 h2 q50 k70 d32 window=30,9 softcap=20 alibi bias=f32[1,1,q,k] mask=[b,h,1,k] lse", hidden);
}

TEST_F(Sm80Emulated, Tf32KeysDealtToWarps) {
  static constexpr Sm80Config cfg = [] {
    Sm80Config c = tf32_config(64, 64, 32, 32, 2, 4, 1);
    c.causal_or_local = true;
    return c;
  }();
  expect_right<cfg>("f32 b1 h4:2 q50 k300 d64 causal lse sinks");
  expect_right<cfg>("f32 b1 h2 q40 k200 d64 window=50,0 lse", hidden);
  expect_right<cfg>("f32 h2 d64 varlen=17:5,0:9,33:0 causal lse");
}

constexpr Sm80Config mixed_config(DType q, DType k, DType v, DType out) {
  Sm80Config c = tf32_config(48, 32, 32, 32, 2, 1, 2);
  c.q = q, c.k = k, c.v = v, c.out = out, c.causal_or_local = true;
  return c;
}
template <DType q, DType k, DType v, DType out>
constexpr Sm80Config mixed = mixed_config(q, k, v, out);

template <DType q, DType k, DType v, DType out>
void expect_mixed_right() {
  const std::string types = concat("q=", name_of(q), " k=", name_of(k), " v=", name_of(v), " out=", name_of(out));
  expect_right<mixed<q, k, v, out>>(types + " b1 h4:2 q40 k90 d48:32 causal lse sinks");
  expect_right<mixed<q, k, v, out>>(types + " b1 h2 q40 k50 d48:32 window=20,3 lse", hidden);
}

// Each product has types of its own: P has the type of V.
TEST_F(Sm80Emulated, MixedTypes) {
  using enum DType;
  expect_mixed_right<f16, bf16, f16, f16>();
  expect_mixed_right<bf16, f16, bf16, bf16>();
  expect_mixed_right<bf16, f16, f32, f32>();
  expect_mixed_right<f16, f16, bf16, f32>();
  expect_mixed_right<f16, f16, f32, f32>();
  expect_mixed_right<f32, f16, f16, f16>();
  expect_mixed_right<f16, f32, bf16, bf16>();
  expect_mixed_right<bf16, f32, f32, f32>();
  expect_mixed_right<f32, f32, f16, f32>();
  expect_mixed_right<f32, f32, f32, bf16>();
}

TEST_F(Sm80Emulated, SingleTf32) {
  static constexpr Sm80Config cfg = [] {
    Sm80Config c = tf32_config(64, 64, 32, 32, 2, 1, 2);
    c.single_tf32 = true;
    return c;
  }();
  for (const check::Fill fill : {normal, check::Fill::outlier})
    expect_right<cfg>("f32 b2 h2 q70 k130 d64 acc=tf32 lse", fill);
  expect_right<cfg>("f32 b1 h2 q40 k90 d64 seqused=70 acc=tf32 lse", hidden);
  // The result differs from that of two terms, whose error is below the bound of f32.
  const Problem p = parse_problem("f32 b1 h2 q40 k90 d64 lse");
  const check::Result result = check::check_problem(p, normal, 3, kernel_of<cfg>(1));
  EXPECT_TRUE(has_address_sanitizer || !result.pass);
}

constexpr Sm80Config tf32_d32 = tf32_config(32, 32, 32, 32, 2, 1, 2);

// Sets elements of q, k and v, runs a kernel and compares with the oracle.
template <class Edit>
void expect_right_after(const char* line, const Edit& edit) {
  if (has_address_sanitizer) GTEST_SKIP() << "its fake stacks and fibers do not go together";
  const Problem p = parse_problem(line);
  check::Inputs in = check::make_inputs(p, normal, 5);
  edit(in);
  const check::Outputs out = check::make_outputs(p);
  kernel_of<tf32_d32>(1)(p, in, out);
  const check::Result result = check::judge(p, normal, in, out);
  EXPECT_TRUE(result.pass) << result.message;
}

// An infinity in K gives scores of -inf to some rows, which then do not see the key. The scores of other rows are +inf,
// so these rows become NaN.
TEST_F(Sm80Emulated, InfinitiesOfTf32KeysKeepTheirSign) {
  for (const double key : {double{INFINITY}, -double{INFINITY}})
    expect_right_after("f32 b1 h1 q40 k70 d32 lse", [&](check::Inputs& in) {
      in.k.set({0, 0, 7, 3}, key);
      for (int64_t i = 0; i < 40; ++i) in.q.set({0, 0, i, 3}, i % 5 == 0 ? 1.25 : -1.0);  // exact in TF32
      for (int64_t i = 20; i < 40; ++i) in.q.set({0, 0, i, 3}, i % 5 == 0 ? 0x1.000002p0 : -0x1.fffffep0);
    });
}

// The largest float is finite in TF32, too. The products are of ordinary size. A power of two is exact in TF32, also if
// it is subnormal.
TEST_F(Sm80Emulated, LargestFloatsInTf32) {
  expect_right_after("f32 b1 h1 q40 k70 d32 lse", [&](check::Inputs& in) {
    for (int64_t i = 0; i < 40; ++i)
      for (int64_t d = 0; d < 32; ++d)
        in.q.set({0, 0, i, d}, d == 5 ? (i % 2 == 0 ? 1 : -1) * double{largest_finite}
                                      : std::clamp(in.q.at({0, 0, i, d}), -1.9, 1.9) * 0x1p100);
    for (int64_t j = 0; j < 70; ++j)
      for (int64_t d = 0; d < 32; ++d)
        in.k.set({0, 0, j, d}, d == 5 ? (j % 2 == 0 ? 0x1p-127 : -0x1p-127) : in.k.at({0, 0, j, d}) * 0x1p-100);
  });
}

// The terms of a float: TF32 numbers, whose sum has an error below 2^-20 of the float.
TEST(Tf32, TermsOfAFloat) {
  const auto truncated = [](unsigned bits) { return double{detail::float_of(bits & 0xffffe000u)}; };
  const auto expect_terms = [&](float x) {
    const auto terms = Tf32Terms<2>::of(x, false);
    const double high = truncated(terms.term[0]), low = truncated(terms.term[1]);
    EXPECT_EQ(terms.term[0] & 0x1fffu, 0u) << x;
    EXPECT_TRUE(std::isfinite(high) && std::isfinite(low)) << x;
    EXPECT_LE(std::abs(double{x} - high), std::max(std::abs(double{x}) * 0x1p-10, 0x1p-136)) << x;
    EXPECT_LE(std::abs(double{x} - high - low), std::max(std::abs(double{x}) * 0x1p-20, 0x1p-136)) << x;
  };
  unsigned bits = 1;
  for (int i = 0; i < 200000; ++i) {
    bits = bits * 1664525u + 1013904223u;
    const float x = detail::float_of(bits);
    if (std::isfinite(x)) expect_terms(x);
  }
  for (const float x : {0.0f, -0.0f, 1.0f, -1.0f, largest_finite, -largest_finite, smallest_normal, 1e-45f, 1e-39f,
                        -1e-42f, 0x1.ffdffep127f, 0x1.ffefffp0f, 0x1.fff001p-3f})
    expect_terms(x);
}

// The signs of infinities decide whether a key is visible. So the first term is infinite, and not NaN.
TEST(Tf32, TermsOfInfinityAndNan) {
  for (const float x : {INFINITY, -INFINITY}) EXPECT_EQ(detail::float_of(Tf32Terms<2>::of(x, false).term[0]), x);
  for (const unsigned nan : {0x7fc00000u, 0x7fffffffu, 0xffc00001u})
    EXPECT_TRUE(std::isnan(detail::float_of(Tf32Terms<2>::of(detail::float_of(nan), false).term[0]))) << nan;
  Tf32Sum sum;
  sum.high[0] = -INFINITY, sum.low[0] = NAN, sum.high[1] = 1.0f, sum.low[1] = 0.5f, sum.high[2] = NAN;
  EXPECT_EQ(sum.get<true>(0), -INFINITY);
  EXPECT_EQ(sum.get<true>(1), 1.5f);
  EXPECT_TRUE(std::isnan(sum.get<true>(2)));
}

// 16-bit numbers have one term, without an error.
TEST(Tf32, HoldsSixteenBitNumbers) {
  for (unsigned code = 0; code < 0x10000; ++code)
    for (const float x :
         {f16_to_float(static_cast<unsigned short>(code)), bf16_to_float(static_cast<unsigned short>(code))})
      ASSERT_EQ(detail::bits_of(x) & 0x1fffu, 0u) << code;
}

// Every kind of scale except one per head.
TEST_F(Sm80Emulated, ScalesByRowKeyAndChannel) {
  static constexpr Sm80Config block = [] {
    Sm80Config c = config_of(DType::e4m3, 64, 64, 64, 32, 2, 1, 2);
    c.out = DType::f16, c.q_row_descales = true, c.k_descale_block = 64, c.v_descale_block = 64;
    return c;
  }();
  expect_right<block>("e4m3 out=f16 b2 h4:2 q150 k200 d64 scales=block64 lse", check::Fill::outlier);
  expect_right<block>("e4m3 out=f16 h2 d64 varlen=17:70,0:9,65:130 scales=block64 lse", check::Fill::outlier);
  static constexpr Sm80Config dealt = [] {  // the keys of some warps are past the end of the sequence
    Sm80Config c = config_of(DType::e4m3, 32, 32, 32, 64, 2, 4, 1);
    c.out = DType::f32, c.q_row_descales = true, c.k_descale_block = 64, c.v_descale_block = 64;
    return c;
  }();
  expect_right<dealt>("e4m3 out=f32 b2 h2 d32 varlen=20:130,9:41 scales=block64 lse");
  static constexpr Sm80Config token = [] {
    Sm80Config c = config_of(DType::e4m3, 32, 32, 32, 32, 2, 2, 2);
    c.out = DType::f32, c.q_row_descales = true, c.k_descale_block = 1, c.v_descale_block = 1, c.causal_or_local = true;
    return c;
  }();
  expect_right<token>("e4m3 out=f32 b1 h2 q70 k150 d32 causal scales=token lse", check::Fill::outlier);
  expect_right<token>("e4m3 out=f32 h2 d32 varlen=17:70,0:9,65:33 causal scales=token lse sinks");
  expect_right<token>("e4m3 out=f32 b1 h2 q70 k150 d32 window=30,5 scales=token lse", hidden);
  static constexpr Sm80Config terms = [] {
    Sm80Config c = token;
    c.p_terms = 2, c.fp8_qk = c.fp8_pv = true;
    return c;
  }();
  expect_right<terms>("e4m3 out=f32 b1 h2 q70 k150 d32 causal scales=token pv=fp8x2 lse", check::Fill::outlier);
  static constexpr Sm80Config paged_token = [] {
    Sm80Config c = token;
    c.paged = true;
    return c;
  }();
  for (const char* size : {" page=1", " page=7", " page=64", " page=256"}) {
    expect_right<paged_token>(
        std::string("e4m3 out=f32 b2 h4:2 q9 k150 d32 causal seqused=150,13 scales=token lse") + size, hidden);
    expect_right<paged_token>(std::string("e4m3 out=f32 h2 d32 varlen=17:70,0:9,65:33,3:0 scales=token lse") + size);
  }
  static constexpr Sm80Config channel = [] {
    Sm80Config c = config_of(DType::e4m3, 32, 80, 32, 64, 2, 1, 2);
    c.out = DType::bf16, c.k_descale_block = 128, c.v_channel_descales = true, c.scale_in_exp2 = false,
    c.softcap = true;
    return c;
  }();
  expect_right<channel>(
      "e4m3 out=bf16 b2 h4:2 q40 k200 d32:80 softcap=9 q_scales=head k_scales=block128 v_scales=channel lse");
}

TEST_F(Sm80Emulated, KeysWithoutTheirMean) {
  static constexpr Sm80Config cfg = [] {
    Sm80Config c = config_of(DType::e4m3, 64, 64, 32, 32, 2, 1, 2);
    c.out = DType::f16, c.key_mean = true, c.causal_or_local = true;
    return c;
  }();
  expect_right<cfg>("e4m3 out=f16 b2 h4:2 q40 k90 d64 causal scales=head smooth_k lse sinks");
  expect_right<cfg>("e4m3 out=f16 h4:2 d64 varlen=17:70,40:33 causal scales=head smooth_k hadamard lse");
}

// Descales so small that the factor of the logits (scale in exp2) becomes 0 or subnormal.
TEST_F(Sm80Emulated, ScalesOfZero) {
  static constexpr Sm80Config cfg = [] {
    Sm80Config c = config_of(DType::e4m3, 32, 32, 32, 32, 2, 1, 2);
    c.out = DType::f16;
    return c;
  }();
  if (has_address_sanitizer) GTEST_SKIP() << "its fake stacks and fibers do not go together";
  for (const float scale : {0.0f, 1e-40f}) {
    const Problem p = parse_problem("e4m3 out=f16 b1 h2 q40 k70 d32 q_scales=tensor k_scales=tensor lse");
    check::Inputs in = check::make_inputs(p, normal, 5);
    in.q_descale.set({}, scale);
    const check::Outputs out = check::make_outputs(p);
    kernel_of<cfg>(1)(p, in, out);
    EXPECT_TRUE(check::judge(p, normal, in, out).pass) << scale;
  }
}

}  // namespace
}  // namespace rapt::test
