// Tests bits. A repeated call must give the same bits under any load. With `invariant`, the bits of a row must not
// depend on other rows in the call.
#include <array>

#include "base/error.h"
#include "gpu_support.h"
#include "runtime/gpu.h"
#include "tests/cpu/random_schedules.h"

namespace rapt::test {
namespace {

class GpuExact : public GpuTest {};

const std::vector<std::string> problems = {
    "f16 b2 h8:2 q300 k700 d64 causal lse", "bf16 b1 h4 q17 k1000 d128 lse",
    "f16 b1 h8 q512 k512 d64 lse",          "bf16 b1 h2 q100 k100 d256 causal lse",
    "f32 b1 h4 q70 k300 d64 lse",           "f16 varlen=170:400,0:5,90:90 h2 d64 lse",
    "e4m3 out=bf16 b1 h2 q70 k300 d64 lse", "f16 b1 h2 q40 k300 d64 mask=[b,h,q,k] softcap=5 lse",
    "f16 b1 h1 q1 k20000 d64 lse"};

}  // namespace

TEST_F(GpuExact, FiftyRepeatsOnTwoStreamsBesideOtherWork) {
  Call noise_call = make("bf16 b1 h8 q700 k700 d128");
  fill_hash(noise_call);
  GpuCall noise(noise_call);
  const cuda::Stream noise_stream;
  for (const std::string& line : problems) {
    SCOPED_TRACE(line);
    Call expected = make(line);
    fill_hash(expected);
    run_gpu(expected);
    GpuCall gpu(expected);
    const cuda::Stream streams[2];
    for (int i = 0; i < 50 && !HasFailure(); ++i) {
      if (i % 3 != 0) noise.expect_enqueue(noise_stream.handle());
      gpu.restart();
      gpu.expect_enqueue(streams[i % 2].handle());
      streams[i % 2].synchronize();
      expect_same_bits(gpu.result(), expected);
    }
    noise_stream.synchronize();
  }
}

TEST_F(GpuExact, InvariantRowsDependOnNothingElse) {
  for (const std::string& words :
       {std::string("f16"), std::string("bf16"), std::string("f32"), std::string("e5m2 out=f16")})
    for (int dim : {64, 128})
      for (const char* mask : {"", " causal"}) {
        SCOPED_TRACE(concat(words, " d", dim, mask));
        const std::string tail = concat(" d", dim, " lse invariant", mask);
        Call together = make(words + " b3 h4:2 q37 k300" + tail);
        fill_hash(together);
        expect_oracle(run_gpu(together));
        for (const auto& [b, h, i] : {std::array<int64_t, 3>{0, 0, 0}, {1, 2, 17}, {2, 3, 36}}) {
          const std::string start = *mask ? " q_start=" + std::to_string(263 + i) : "";  // off = 300 - 37, then query i
          Call alone = make(words + " b1 h1 q1 k300" + tail + start);
          alone.in.q = slice(slice(slice(together.in.q, 0, b, b + 1), 1, h, h + 1), 2, i, i + 1);
          alone.in.k = slice(slice(together.in.k, 0, b, b + 1), 1, h / 2, h / 2 + 1);
          alone.in.v = slice(slice(together.in.v, 0, b, b + 1), 1, h / 2, h / 2 + 1);
          run_gpu(alone);
          expect_same_bits(alone.out.out, slice(slice(slice(together.out.out, 0, b, b + 1), 1, h, h + 1), 2, i, i + 1));
          EXPECT_EQ(alone.out.lse.at({0, 0, 0}), together.out.lse.at({b, h, i}));
        }
      }
}

// Sequences long enough for several parts of 2048 keys. A row has the same bits alone or in a batch, chunked or whole,
// paged or dense.
TEST_F(GpuExact, InvariantSchedules) {
  const std::vector<ScheduleProblem> problems = {
      {"bf16", " causal", 4, 1, 128, {9000, 700, 2500, 4097}, 600},
      {"f16", " causal window=3000,0 sinks", 8, 2, 64, {6500, 100, 4096}, 300},
      {"bf16", " causal softcap=20", 2, 2, 256, {5000, 2049}, 300},
      {"q=bf16 k=e4m3 v=e4m3", " causal k_scales=head v_scales=head", 4, 1, 128, {7000, 300, 2048}, 400},
      {"q=bf16 k=e4m3 v=e4m3", " causal k_scales=token v_scales=token", 4, 2, 64, {4500, 300}, 200},
      {"q=f16 k=e4m3 v=e4m3", " causal k_scales=head v_scales=head", 2, 1, 256, {4500, 300}, 200},
      {"bf16", "", 4, 2, 128, {5000, 2049}, 300},
      {"bf16", " causal bias=bf16[b,h,q,k] mask=[b,h,q,k]", 2, 1, 128, {2500, 200}, 100},
      {"f32", " causal", 2, 1, 64, {1500, 200}, 200}};
  for (const ScheduleProblem& problem : problems) {
    SCOPED_TRACE(concat(problem.dtypes, " d", problem.head_dim, problem.options));
    RandomSchedules schedules(problem, 4, [](Call& call) { run_gpu(call); });
    schedules.expect_same_bits(40);
  }
}

// If the states of all parts would need too much memory, a CTA computes all parts of a tile. Such a long prompt must
// have the bits of its chunks.
TEST_F(GpuExact, InvariantPromptsWithManyTiles) {
  RandomSchedules schedules({"bf16", " causal", 8, 8, 128, {9000, 8500}, 64, {16}}, 5,
                            [](Call& call) { run_gpu(call); });
  schedules.expect_same_bits(20);
}

// With a causal mask, keys after the diagonal make no difference.
TEST_F(GpuExact, InvariantRowsDependOnVisibleKeysOnly) {
  for (const std::string& words : {std::string("f16"), std::string("bf16"), std::string("f32")}) {
    SCOPED_TRACE(words);
    Call whole = make(words + " b1 h2 q500 k500 d64 causal lse invariant");
    fill_hash(whole);
    expect_oracle(run_gpu(whole));
    for (int64_t prefix : {1, 63, 64, 65, 200, 499}) {
      SCOPED_TRACE(prefix);
      Call part = make(concat(words, " b1 h2 q", prefix, " k", prefix, " d64 causal lse invariant"));
      part.in.q = slice(whole.in.q, 2, 0, prefix);
      part.in.k = slice(whole.in.k, 2, 0, prefix);
      part.in.v = slice(whole.in.v, 2, 0, prefix);
      run_gpu(part);
      expect_same_bits(part.out.out, slice(whole.out.out, 2, 0, prefix));
      expect_same_bits(part.out.lse, slice(whole.out.lse, 2, 0, prefix));
    }
  }
}

// Logits above 2^16 use another formula: a row with such logits must not change its neighbours.
TEST_F(GpuExact, InvariantRowsDoNotNoticeHugeNeighbours) {
  for (const std::string& words : {std::string("f16"), std::string("bf16"), std::string("f32")}) {
    SCOPED_TRACE(words);
    Call calm = make(words + " b1 h1 q40 k300 d64 lse invariant");
    fill_hash(calm);
    expect_oracle(run_gpu(calm));
    Call huge = calm;
    huge.in.q = copy_with_strides(calm.in.q, calm.in.q.strides);
    for (int64_t d = 0; d < 64; ++d) put(huge.in.q, {0, 0, 5, d}, 6e4);
    run_gpu(huge);
    for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 5}, {6, 40}}) {
      expect_same_bits(slice(huge.out.out, 2, begin, end), slice(calm.out.out, 2, begin, end));
      expect_same_bits(slice(huge.out.lse, 2, begin, end), slice(calm.out.lse, 2, begin, end));
    }
  }
}

// A NaN in one sequence and one head must not change any bit of other sequences, of other heads, or of rows that do not
// see it.
TEST_F(GpuExact, HiddenKeysChangeNoBit) {
  for (const std::string& words : {std::string("f16"), std::string("bf16"), std::string("f32")})
    for (const std::string& options :
         {std::string(" causal"), std::string(" window=50,10"), std::string(" mask=[b,1,1,k]")}) {
      SCOPED_TRACE(words + options);
      Call clean = make(words + " b2 h2 q200 k200 d64 lse" + options);
      fill_hash(clean);
      if (clean.in.mask.present()) put(clean.in.mask, {1, 0, 0, 150}, 0);
      run_gpu(clean);
      Call dirty = clean;
      dirty.in.k = copy_with_strides(clean.in.k, clean.in.k.strides);
      dirty.in.v = copy_with_strides(clean.in.v, clean.in.v.strides);
      for (int64_t d = 0; d < 64; ++d) put(dirty.in.k, {1, 1, 150, d}, nan), put(dirty.in.v, {1, 1, 150, d}, infinity);
      run_gpu(dirty);
      int64_t different = 0;
      const bool has_window = options.find("window") != std::string::npos;
      each_index(clean.out.out.shape, [&](const auto& at) {
        const bool sees = at[0] == 1 && at[1] == 1 && !clean.in.mask.present() &&
                          (has_window ? at[2] >= 140 && at[2] <= 200 : at[2] >= 150);
        const double before = clean.out.out.at(at), after = dirty.out.out.at(at);
        if (sees ? !std::isnan(after) : before != after) ++different;
      });
      EXPECT_EQ(different, 0) << "elements that a hidden NaN changed, or a seen one did not";
    }
}

namespace {

// For each length, a call over the same buffer of GPU memory. It is only planned, so nothing reads the buffer.
struct Lengths {
  cuda::Buffer buffer{size_t{16} << 20};
  rapt_status prepare(int64_t seqlen, rapt_context* context) {
    const std::array<int64_t, 4> shape{1, 2, seqlen, 64};
    auto at = [&](int64_t part) {
      return rapt_tensor{
          static_cast<std::byte*>(buffer.data()) + (part << 22), first_gpu, RAPT_F16, 4, shape.data(), nullptr};
    };
    const rapt_tensor q = at(0), k = at(1), v = at(2), out = at(3);
    rapt_sdpa_args args{};
    args.struct_size = sizeof args;
    args.q = &q, args.k = &k, args.v = &v, args.out = &out;
    args.flags = RAPT_CAUSAL;
    return rapt_prepare(context, &args, nullptr);
  }
};

int64_t kernels_fetched(rapt_context& context) {
  const jit::Store::Counters counters = context.impl.gpu().store().counters();
  return counters.compiled + counters.memory + counters.pack + counters.cache;
}

}  // namespace

// More lengths than the number of plans that a context remembers.
TEST_F(GpuExact, TenThousandLengthsTakeAtMostFourKernels) {
  const auto context = make_context();
  Lengths lengths;
  for (int64_t n = 1; n <= 10000; ++n)
    ASSERT_EQ(lengths.prepare(n, context.get()), RAPT_OK) << n << ": " << rapt_last_error();
  EXPECT_LE(kernels_fetched(*context), 4);
  EXPECT_GE(kernels_fetched(*context), 1);
}

}  // namespace rapt::test
