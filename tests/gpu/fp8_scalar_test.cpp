// Tests FP8 with attention_scalar on GPU 0: every storage format, kind of scales and pv mode, and the mean of smoothed
// keys, with every option. Also tests exact weights, and contents of scales, which are checked on request.
#include <cmath>

#include "base/error.h"
#include "gpu_support.h"

namespace rapt::test {
namespace {

class GpuFp8Scalar : public GpuTest {};

using check::Fill;

const std::vector<std::string> modes = {"", " pv=fp8", " pv=fp8x2"};

// Scales that differ from each other by more than any rounding.
void fill_scales(Call& call) {
  for (HostTensor* scales : {&call.in.q_descale, &call.in.k_descale, &call.in.v_descale}) {
    int64_t n = 0;
    if (scales->present()) fill(*scales, [&](const auto&) { return 0.25 * static_cast<double>(1 + n++ % 3); });
  }
}

}  // namespace

TEST_F(GpuFp8Scalar, EveryStorageScaleAndMode) {
  std::vector<Job> jobs;
  for (const char* storage : {"e4m3", "e5m2", "sim8"})
    for (const char* kind : {"tensor", "head", "token", "block64", "block128", "channel"})
      for (const std::string& mode : modes) {
        const bool channel = std::string(kind) == "channel";
        const std::string scales = channel ? " q_scales=head k_scales=head v_scales=channel" : concat(" scales=", kind);
        jobs.push_back({for_attention_scalar(concat(storage, " out=f32 b1 h4:2 q40 k300 d32 causal", scales, mode))});
      }
  expect_pass(jobs);
}

TEST_F(GpuFp8Scalar, EveryFeatureInEveryMode) {
  const Job lines[] = {
      {"b2 h4:2 q1 k700 d64 scales=head"},
      {"b1 h2 q40 k90 d64:40 scales=block64 window=20,3 softcap=8 alibi sinks"},
      {"b1 h2 q40 k300 d20 scales=head mask=[1,h,q,k]", Fill::masked_rows},
      {"b1 h2 q40 k300 d20 scales=head bias=f16[1,1,q,k] smooth_k", Fill::masked_rows},
      {"b2 h2 q40 k90 d32 scales=token seqused=66,0", Fill::hidden_nan},
      {"h4:2 d32 varlen=17:40,0:5,130:130,1:300,9:0 scales=token causal smooth_k sinks", Fill::hidden_nan},
      {"h4:2 d32 varlen=17:40,0:5,130:130,1:300 scales=block128 layout=bshd", Fill::seen_nan},
      {"b1 h4:2 q70 d33:17 scales=tensor causal layout=bshd smooth_k softcap=6", Fill::seen_nan},
      {"b1 h2 q9 k130 d16 scales=head k_strides=9000,4500,33,2 v_strides=9000,4500,1,150"},
      {"b1 h2 q40 k200 d32 scales=block64 q_start=100 causal invariant smooth_k", Fill::outlier},
      {"b1 h2 q40 k300 d300:260 scales=block64 smooth_k softcap=5"},
      {"b1 h2 q17 k150 d64 scales=head", Fill::constant},
      {"b1 h2 q17 k150 d64 scales=head softcap=30 smooth_k", Fill::huge},
      {"b1 h2 q3 k300 d64 scales=head", Fill::rescale}};
  std::vector<Job> jobs;
  for (const std::string& mode : modes) {
    for (const Job& job : lines) jobs.push_back({for_attention_scalar("e4m3 out=f16 " + job.line + mode), job.fill});
    jobs.push_back(
        {for_attention_scalar("e4m3 out=f32 b1 h2 q40 k300 d32 scales=block64 partial lse smooth_k" + mode)});
  }
  expect_pass(jobs);
}

TEST_F(GpuFp8Scalar, OneKeyTakesAllWithAWeightOfOne) {
  for (const std::string& mode : modes) {
    Call call = make(for_attention_scalar("e4m3 out=f32 b1 h1 q40 k300 d32 scale=1 mask=[1,1,q,k] lse" + mode));
    fill(call.in.q, [](const auto& at) { return at[3] == 0 ? 448 : 0; });
    fill_hash(call.in.v, 1);
    for (int64_t winner : {0, 31, 32, 127, 128, 129, 256, 299}) {
      SCOPED_TRACE(winner);
      // Row i sees all keys, only the key with the largest score, or no key.
      fill(call.in.mask, [&](const auto& at) { return at[2] % 3 == 0 || (at[2] % 3 == 1 && at[3] == winner) ? 1 : 0; });
      fill(call.in.k, [&](const auto& at) { return at[2] == winner && at[3] == 0 ? 448 : 0; });
      run_gpu(call);
      for (int64_t i = 0; i < 40; ++i) {
        if (i % 3 == 2) {
          expect_empty_row(call, {0, 0, i});
          continue;
        }
        for (int64_t d = 0; d < 32; ++d)
          EXPECT_EQ(call.out.out.at({0, 0, i, d}), call.in.v.at({0, 0, winner, d})) << i << ", " << d;
        EXPECT_EQ(call.out.lse.at({0, 0, i}), 448.0 * 448.0);
      }
    }
  }
}

TEST_F(GpuFp8Scalar, ScalesAreCheckedOnRequestWithTheCpusSentence) {
  const std::string words = "e4m3 out=f32 b2 h4:2 q9 k130 d16 lse smooth_k seqused=130,100 ";
  const auto changed = [&](const std::string& scales, const auto& change) {
    Call call = make(words + scales);
    fill_hash(call);
    fill_scales(call);
    call.in.k_mean = make_tensor(DType::f32, {2, 2, 16});
    change(call.in);
    return call;
  };
  std::vector<Call> calls;
  for (const double bad : {nan, infinity, -infinity, -1.0}) {
    calls.push_back(changed("scales=head", [&](check::Inputs& in) { put(in.k_descale, {1, 1}, bad); }));
    calls.push_back(changed("scales=token", [&](check::Inputs& in) { put(in.q_descale, {1, 3, 8}, bad); }));
    calls.push_back(changed("scales=block64", [&](check::Inputs& in) { put(in.v_descale, {0, 1, 2}, bad); }));
  }
  calls.push_back(changed("scales=head", [&](check::Inputs& in) { put(in.k_mean, {1, 0, 7}, nan); }));
  for (Call& call : calls) {
    SCOPED_TRACE(to_string(call.problem));
    try_run(call);  // on the CPU, which always checks contents
    EXPECT_EQ(call.status, RAPT_ERROR_INVALID_ARGUMENT);
    GpuCall gpu(call);
    gpu.args().flags |= RAPT_CHECK_CONTENTS;
    EXPECT_EQ(gpu.enqueue(nullptr), call.status);
    EXPECT_EQ(gpu.call().message, call.message);
    gpu.result();
    EXPECT_TRUE(untouched(gpu.call().out.out) && untouched(gpu.call().out.lse));
  }
  // Scales of unused keys can hold anything, and valid scales are accepted.
  Call unused = changed("scales=token", [&](check::Inputs& in) { put(in.k_descale, {1, 1, 129}, nan); });
  GpuCall gpu(unused);
  gpu.args().flags |= RAPT_CHECK_CONTENTS;
  const cuda::Stream stream;
  gpu.expect_enqueue(stream.handle());
  stream.synchronize();
  gpu.result();
  expect_finite(gpu.call().out.out);
}

}  // namespace rapt::test
