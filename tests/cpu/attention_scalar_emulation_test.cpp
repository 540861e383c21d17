// Emulates attention_scalar.cuh on this CPU and compares with the oracle, without a GPU. A block's threads are fibers
// (emulation.h). All masks and options of scores are tested in f32. The other dtypes are tested without options.
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/error.h"
#include "check/cases.h"
#include "check/check.h"
#include "kernels/family.h"
#include "operations/bind.h"
#include "operations/sdpa.h"
#include "tests/cpu/emulation.h"
#include "tests/cpu/support.h"
// The kernel uses names that CUDA declares without a header.
#include "kernels/scalar/attention_scalar.cuh"

namespace rapt {

constexpr size_t shared_floats = 99 * 1024 / sizeof(float);  // every GPU since sm_80 gives a block this much
alignas(16) float scalar_shared[shared_floats];

namespace {

using check::Fill;

constexpr ScalarConfig config_of(DType q, DType k, DType v, DType out, int head_dim = 64, int head_dim_v = 64) {
  ScalarConfig c;
  c.q = q, c.k = k, c.v = v, c.out = out;
  c.head_dim = head_dim, c.head_dim_v = head_dim_v;
  c.block_m = 32, c.block_n = 32, c.warps_m = 8;
  const bool fp8 = is_fp8(q) || is_fp8(k) || is_fp8(v);
  c.min_blocks = !fp8 && head_dim_v <= 128 ? 2 : 1;
  return c;
}
constexpr ScalarConfig config_of(DType dtype, int head_dim = 64, int head_dim_v = 64) {
  return config_of(dtype, dtype, dtype, dtype, head_dim, head_dim_v);
}
constexpr ScalarConfig with(bool mask, bool softcap, bool alibi, DType bias) {
  ScalarConfig c = config_of(DType::f32);
  c.mask = mask, c.softcap = softcap, c.alibi = alibi, c.bias = bias;
  if (mask || softcap || alibi || bias != DType::none) c.min_blocks = 1;
  return c;
}

template <ScalarConfig config>
void run(const AttentionParams& params) {
  const auto floats = static_cast<size_t>(ScalarTile(config).floats);
  ASSERT_LE(floats, shared_floats);
  const index_t items = scalar_work_items(params, config);
  // In some cases there are fewer blocks than items, so a block loops over several items.
  const auto blocks = static_cast<unsigned>(items > 3 && items % 2 == 1 ? items / 2 : items);
  cuda_emulation::launch(blocks, static_cast<unsigned>(config.threads()), scalar_shared, floats,
                         [&] { attend_scalar<config>(params); });
}

template <ScalarConfig... configs>
bool run_one_of(const ScalarConfig& wanted, const AttentionParams& params) {
  return ((wanted == configs && (run<configs>(params), true)) || ...);
}

constexpr auto none = DType::none, f32 = DType::f32, f16 = DType::f16, bf16 = DType::bf16, e4m3 = DType::e4m3,
               e5m2 = DType::e5m2, sim8 = DType::sim8;

bool run_masks(const ScalarConfig& c, const AttentionParams& p) {
  return run_one_of<with(false, false, false, none), with(false, false, true, none), with(false, true, false, none),
                    with(false, false, false, f32), with(false, false, false, f16), with(false, false, false, bf16),
                    with(false, true, true, f32), with(true, false, false, none), with(true, false, true, none),
                    with(true, true, false, none), with(true, false, false, f32), with(true, false, false, f16),
                    with(true, false, false, bf16), with(true, true, true, f32)>(c, p);
}

constexpr ScalarConfig fp8(DType dtype, DType out, int p_terms, bool key_mean, bool mask = false, bool softcap = false,
                           bool alibi = false, DType bias = DType::none) {
  ScalarConfig c = config_of(dtype, dtype, dtype, out);
  c.p_terms = p_terms, c.key_mean = key_mean;
  c.mask = mask, c.softcap = softcap, c.alibi = alibi, c.bias = bias;
  return c;
}
constexpr ScalarConfig wide_fp8(int head_dim, int head_dim_v, int p_terms, bool key_mean) {
  ScalarConfig c = config_of(e4m3, e4m3, e4m3, f16, head_dim, head_dim_v);
  c.p_terms = p_terms, c.key_mean = key_mean;
  return c;
}

// Runs FP8 kernels with every number of terms in the weights, and with the mean of smoothed keys.
bool run_fp8(const ScalarConfig& c, const AttentionParams& p) {
  return run_one_of<
      fp8(e4m3, f32, 0, false), fp8(e4m3, f32, 1, false), fp8(e4m3, f32, 2, false), fp8(e4m3, f32, 0, true),
      fp8(e4m3, f32, 1, true), fp8(e4m3, f32, 2, true), fp8(e4m3, f32, 0, true, false, true),
      fp8(e4m3, f32, 1, true, false, true), fp8(e4m3, f32, 2, true, false, true), fp8(e4m3, f32, 1, false, true),
      fp8(e4m3, f32, 2, true, true), fp8(e4m3, f32, 1, true, false, true, true, f32),
      fp8(e4m3, f32, 2, false, false, false, true), fp8(e5m2, f32, 1, false), fp8(e5m2, f32, 2, true),
      fp8(sim8, f32, 1, true), fp8(sim8, f32, 2, false), fp8(e4m3, f16, 1, false), fp8(e4m3, f16, 2, false),
      fp8(e4m3, bf16, 1, false), fp8(e4m3, bf16, 2, false), wide_fp8(128, 128, 1, true), wide_fp8(256, 256, 2, true)>(
      c, p);
}

constexpr ScalarConfig paged(ScalarConfig c) {
  c.paged = true;
  return c;
}
bool run_paged(const ScalarConfig& c, const AttentionParams& p) {
  return run_one_of<paged(config_of(f32)), paged(config_of(bf16)), paged(fp8(e5m2, f32, 0, false)),
                    paged(fp8(sim8, f32, 0, true))>(c, p);
}

bool run_types(const ScalarConfig& c, const AttentionParams& p) {
  return run_one_of<config_of(f16), config_of(bf16), config_of(f32, 128, 64), config_of(f32, 128, 128),
                    config_of(f16, 256, 256), config_of(f32, 256, 128), config_of(f32, 64, 256),
                    config_of(f32, 256, 256), config_of(e4m3, e4m3, e4m3, f16), config_of(e5m2, e5m2, e5m2, f32),
                    config_of(sim8, sim8, sim8, bf16), config_of(bf16, e4m3, e4m3, bf16),
                    config_of(f16, f32, bf16, f32)>(c, p);
}

const Device& gpu() {
  static const Device device = device_preset("sm_80");
  return device;
}

// A kernel for check_problem(): the library plans and binds the call, then the emulated kernel runs.
void emulated(const Problem& problem, const check::Inputs& inputs, const check::Outputs& outputs) {
  std::string why;
  if (!attention_scalar.accepts(problem, gpu(), &why)) unsupported(why);
  const check::SdpaCall call(problem, inputs, outputs);
  const AttentionParams params = attention_params(call.args, problem);
  const ScalarConfig config = attention_scalar.configure(problem, gpu()).as<ScalarConfig>();
  if (!run_masks(config, params) && !run_types(config, params) && !run_fp8(config, params) &&
      !run_paged(config, params))
    unsupported("no such kernel in this test");
}

// Runs the lines of a set that have kernels here. There must be at least `at_least` of them. With RAPT_TEST_QUICK only
// an eighth of the lines runs.
void check_set(const char* set, bool as_f32, int at_least) {
  const bool quick = std::getenv("RAPT_TEST_QUICK") != nullptr;
  int checked = 0;
  for (const check::Case& item : check::load_cases(set, RAPT_SOURCE_DIR "/check/cases")) {
    if (quick && item.number % 8 != 0) continue;
    Problem problem = item.problem();
    if (as_f32 && !is_fp8(problem.q)) problem.q = problem.k = problem.v = problem.out = DType::f32;
    for (const Fill fill : item.fills) {
      const check::Result result = check::check_problem(problem, fill, 1, emulated);
      if (result.refused) continue;
      ++checked;
      EXPECT_TRUE(result.pass) << item.where() << " " << name_of(fill) << ": " << result.message;
    }
  }
  EXPECT_GE(checked, quick ? at_least / 20 : at_least);
}

TEST(AttentionScalarEmulated, SmokeSet) {
  RAPT_NEEDS_FIBERS();
  check_set("smoke", false, 80);
}

TEST(AttentionScalarEmulated, MaskSet) {
  RAPT_NEEDS_FIBERS();
  check_set("mask", true, 410);
}

TEST(AttentionScalarEmulated, VarlenSet) {
  RAPT_NEEDS_FIBERS();
  check_set("varlen", true, 30);
}

TEST(AttentionScalarEmulated, QuantSet) {
  RAPT_NEEDS_FIBERS();
  check_set("quant", false, 30);
}

void expect_pass(const std::string& line, Fill fill) {
  const check::Result result = check::check_problem(parse_problem(line), fill, 1, emulated);
  EXPECT_TRUE(result.pass) << line << " " << name_of(fill) << ": " << result.message;
}

// The pv modes and the mean of smoothed keys, combined with masks, sinks, packed sequences, blocks of scales, and
// slices of head_dim.
TEST(AttentionScalarEmulated, Fp8Weights) {
  RAPT_NEEDS_FIBERS();
  const std::pair<const char*, Fill> lines[] = {
      {"e4m3 out=f32 b1 h4:2 q20 k150 d64 scales=head", Fill::normal},
      {"e4m3 out=f32 b1 h4:2 q20 k150 d40:24 scales=token causal", Fill::outlier},
      {"e4m3 out=f32 b1 h2 q9 k130 d64 scales=block64 sinks", Fill::hidden_nan},
      {"e4m3 out=f32 b1 h2 q40 k90 d32 q_scales=head k_scales=head v_scales=channel window=20,3", Fill::seen_nan},
      {"e4m3 out=f32 h4:2 d32 varlen=17:40,0:5,40:40,1:130 scales=block128 causal", Fill::hidden_nan},
      {"e4m3 out=f32 b1 h2 q5 k150 d64 scales=head", Fill::rescale},
      {"e4m3 out=f32 b1 h2 q5 k150 d64 scales=head", Fill::constant}};
  for (const std::string mode : {" pv=f16", " pv=fp8", " pv=fp8x2"})
    for (const std::string mean : {"", " smooth_k", " smooth_k softcap=3"})
      for (const auto& [line, fill] : lines) {
        if (mean == "" && mode == " pv=f16") continue;
        expect_pass(concat(line, mode, mean), fill);
      }
  for (const char* line :
       {"e4m3 out=f32 b1 h2 q40 k70 d32 scales=head mask=[1,h,q,k] pv=fp8",
        "e4m3 out=f32 b1 h2 q40 k70 d32 scales=head mask=[1,h,q,k] pv=fp8x2 smooth_k",
        "e4m3 out=f32 b1 h2 q9 k70 d32 scales=head bias=f32[1,h,q,k] alibi softcap=4 pv=fp8 smooth_k",
        "e4m3 out=f32 b1 h2 q9 k70 d32 scales=head alibi pv=fp8x2", "e5m2 out=f32 b1 h2 q9 k70 d32 pv=fp8",
        "e5m2 out=f32 b1 h2 q9 k70 d32 scales=token pv=fp8x2 smooth_k",
        "sim8 out=f32 b1 h2 q9 k70 d32 scales=tensor pv=fp8 smooth_k", "sim8 out=f32 b1 h2 q9 k70 d32 pv=fp8x2",
        "e4m3 out=f32 b1 h2 q9 k130 d64 scales=block64 partial lse pv=fp8x2 smooth_k",
        "e4m3 out=f16 b1 h1 q9 k70 d100 scales=head pv=fp8 smooth_k",
        "e4m3 out=f16 b1 h1 q3 k40 d300:260 scales=head pv=fp8x2 smooth_k"})
    expect_pass(line, Fill::normal);
}

// Keys in pages. NaN is in all rows of pages that no sequence uses, and in their descales.
TEST(AttentionScalarEmulated, Pages) {
  RAPT_NEEDS_FIBERS();
  for (const std::string size : {" page=1", " page=7", " page=64", " page=256"}) {
    expect_pass("f32 b2 h4:2 q9 k70 d32 seqused=70,9 causal lse" + size, Fill::hidden_nan);
    expect_pass("bf16 h2 d32 varlen=17:40,0:5,9:33,1:0 lse" + size, Fill::normal);
    expect_pass("e5m2 out=f32 b2 h4:2 q9 k70 d32 scales=token seqused=70,9 causal lse" + size, Fill::hidden_nan);
    expect_pass("e5m2 out=f32 b2 h4:2 q9 k150 d32 scales=block64 seqused=150,70 lse" + size, Fill::normal);
    expect_pass("sim8 out=f32 h2 d32 varlen=17:40,0:5,9:33,1:0 scales=token smooth_k lse" + size, Fill::normal);
  }
}

// One key has all the weight, so its weight is exactly 1. There is also a row that sees only this key after masked
// tiles, and a row that sees no key. Two runs must give equal bits.
TEST(AttentionScalarEmulated, Fp8WeightOfOne) {
  RAPT_NEEDS_FIBERS();
  for (const char* mode : {"pv=fp8", "pv=fp8x2 smooth_k"}) {
    test::Call call = test::make(std::string("e4m3 out=f32 b1 h1 q3 k300 d64 scale=1 mask=[1,1,q,k] lse ") + mode);
    test::fill(call.in.q, [](const auto& at) { return at[3] == 0 ? 448 : 0; });
    test::fill_hash(call.in.v, 1);
    if (call.problem.smooth_k) call.in.k_mean = check::make_tensor(f32, {1, 1, 64});
    for (const int64_t winner : {0, 31, 32, 127, 128, 299}) {
      SCOPED_TRACE(winner);
      test::fill(call.in.k, [&](const auto& at) { return at[2] == winner && at[3] == 0 ? 448 : 0; });
      test::fill(call.in.mask, [&](const auto& at) { return at[2] == 0 || (at[2] == 1 && at[3] == winner) ? 1 : 0; });
      call.out = check::make_outputs(call.problem);
      emulated(call.problem, call.in, call.out);
      for (int64_t d = 0; d < 64; ++d)
        for (int64_t i = 0; i < 2; ++i) EXPECT_EQ(call.out.out.at({0, 0, i, d}), call.in.v.at({0, 0, winner, d}));
      for (int64_t i = 0; i < 2; ++i) EXPECT_EQ(call.out.lse.at({0, 0, i}), 448.0 * 448.0);
      test::expect_empty_row(call, {0, 0, 2});
      test::Call again = call;
      again.out = check::make_outputs(call.problem);
      emulated(again.problem, again.in, again.out);
      test::expect_same_bits(again, call);
    }
  }
}

// Lengths around every end of a tile of keys, which is also the end of a block of scales. The problem has nearly a full
// tile of rows, so a few samples give enough outputs.
TEST(AttentionScalarEmulated, Fp8LengthsOfKeys) {
  RAPT_NEEDS_FIBERS();
  const int step = std::getenv("RAPT_TEST_QUICK") != nullptr ? 128 : 32;
  for (int end = 0; end <= 640; end += step)
    for (int keys = std::max(end - 1, 1); keys <= end + 1; ++keys)
      expect_pass("e4m3 out=f32 b1 h1 q29 k" + std::to_string(keys) + " d16:64 scales=block128 " +
                      (keys % 2 == 0 ? "pv=fp8" : "pv=fp8x2 smooth_k"),
                  Fill::normal);
}

// head_dim and head_dim_v do not fit in one block, so the kernel computes them in slices.
TEST(AttentionScalarEmulated, WideHeads) {
  RAPT_NEEDS_FIBERS();
  for (const char* line :
       {"f32 b1 h2 q5 k70 d300:600", "f32 b1 h1 q3 k40 d1000 causal lse", "f32 b1 h1 q40 k33 d257:513 sinks"}) {
    const check::Result result = check::check_problem(parse_problem(line), Fill::hidden_nan, 1, emulated);
    EXPECT_TRUE(result.pass) << line << ": " << result.message;
  }
}

}  // namespace
}  // namespace rapt
