// The tests for compute-sanitizer. Each feature is tested once, with a problem that is as small as possible. There are
// no guards around tensors, so the tools see the end of each allocation. `scripts/gpu_suite.sh sanitizer` runs Smoke*
// under four tools.
#include "base/error.h"
#include "check/cases.h"
#include "gpu_support.h"

namespace rapt::test {
namespace {

class Smoke : public GpuTest {
 protected:
  // Runs one call and compares its results with the oracle.
  static void expect_right(const std::string& line) {
    SCOPED_TRACE(line);
    Call call = make(line);
    fill_hash(call);
    if (call.in.bias.present()) fill_hash(call.in.bias, 8);
    call.out = check::make_outputs(call.problem);
    const cuda::Stream stream;
    check::DeviceCall gpu(0, call.problem, call.in, call.out, 0);
    ASSERT_EQ(rapt_sdpa(nullptr, &gpu.args(), stream.handle()), RAPT_OK) << rapt_last_error();
    stream.synchronize();
    gpu.require_untouched();
    gpu.download();
    expect_oracle(call);
  }
};

}  // namespace

TEST_F(Smoke, AttentionSm80) {
  for (const char* line :
       {"f16 b1 h2 q33 k70 d64 lse", "bf16 b1 h2 q17 k150 d64 causal lse", "f16 b1 h2 q40 k70 d128 causal lse",
        "f16 b1 h1 q20 k40 d256 lse", "bf16 b1 h2 q33 k65 d40:72 lse",
        "f16 b2 h4:2 q33 k70 d64 window=9,3 softcap=5 lse", "f16 b1 h2 q33 k70 d64 mask=[1,1,q,k] alibi sinks lse",
        "f16 b1 h2 q33 k70 d64 bias=f32[1,h,q,k] lse", "f16 h2 d64 varlen=17:40,0:5,33:33 causal lse",
        "f16 b2 h2 q20 k60 d16 seqused=33,0 lse", "f16 b2 h2 q70 k60 d16 seqused_q=33,0 lse", "f16 b1 h1 q1 k1 d8 lse",
        "f16 b1 h2 q8 k0 d64 lse", "f16 b1 h2 q33 k70 d64 invariant lse",
        "bf16 b1 h2 q40 k70 d128 invariant causal lse"})
    expect_right(line);
}

TEST_F(Smoke, AttentionScalar) {
  for (const char* line :
       {"f32 b1 h2 q9 k40 d33:17 lse", "f32 b1 h2 q33 k40 d64 causal softcap=5 alibi sinks lse",
        "e4m3 out=f16 b1 h4:2 q9 k70 d32 scales=token lse", "sim8 out=bf16 b1 h2 q9 k40 d32 k_scales=block64 lse",
        "f16 b1 h2 q9 k20 d8 k_strides=512,256,12,-1 lse", "f32 h2 d16 varlen=5:9,0:3,12:40 causal lse",
        "f32 b1 h1 q5 k20 d300 lse", "f32 b2 h2 q9 k40 d16 mask=[b,h,q,k] bias=bf16[b,1,1,k] lse",
        "f32 b1 h2 q9 k20 d8 out_strides=300,150,16,2 lse"})
    expect_right(line);
}

// Tests the NaN pass, which reads V without its non-finite elements and counts them.
TEST_F(Smoke, NonFiniteValues) {
  const check::Kernel kernel = check::library_kernel(nullptr, first_gpu);
  for (const char* line : {"f16 b1 h1 q40 k70 d64 causal", "f32 b1 h1 q20 k40 d64 causal"})
    for (check::Fill fill : {check::Fill::hidden_nan, check::Fill::seen_nan}) {
      const check::Result result = check_problem(parse_problem(line), fill, 1, kernel);
      EXPECT_TRUE(result.pass) << result.message << "\n    " << result.command << " --device cuda:0";
    }
}

TEST_F(Smoke, GraphsAndStreams) {
  Call call = make("f16 b1 h2 q33 k70 d64 causal lse");
  fill_hash(call);
  GpuCall a(call), b(call);
  const cuda::Stream stream, other;
  ASSERT_EQ(rapt_prepare(nullptr, &a.args(), stream.handle()), RAPT_OK) << rapt_last_error();
  cuda::Graph::begin(stream.handle());
  a.expect_enqueue(stream.handle());
  const cuda::Graph graph(stream.handle());
  graph.replay(stream.handle());
  b.expect_enqueue(other.handle());
  stream.synchronize();
  other.synchronize();
  expect_same_bits(a.result(), b.result());
  expect_oracle(b.call());
}

}  // namespace rapt::test
