// Tests the messages if attention_scalar computes a GPU problem: in explain, and once for each reason in the log. The
// log is tested with the stand-in driver of tests/fake_cuda. Needs NVRTC, no GPU.
#include "check/device_tensors.h"
#include "cuda/cuda.h"
#include "device/device.h"
#include "runtime/context.h"
#include "runtime/plan.h"
#include "stand_in.h"
#include "support.h"

namespace rapt::test {
namespace {

// Calls that attention_sm80 refuses and attention_scalar computes: one for each reason, with a part of the sentence.
const std::vector<std::pair<const char*, const char*>> refused = {
    {"sim8 out=f32 b1 h1 q64 d64", "q=sim8: must be f32, f16, bf16, e4m3 or e5m2"},
    {"q=f32 k=f16 v=e4m3 out=f32 b1 h1 q64 d64", "q=f32 k=f16 v=e4m3: FP8 is not supported with f32"},
    {"q=f16 k=bf16 v=e4m3 b1 h1 q64 d64", "q=f16 k=bf16 v=e4m3: FP8 is not supported with f32, or with q and k of"},
    {"f32 b1 h1 q64 d20", "head_dim 20:20, q=f32: must be multiples of 8"},
    {"e4m3 out=f16 b1 h1 q64 d64 smooth_k softcap=30 k_scales=head", "softcap with smooth_k"},
    {"f16 b1 h1 q64 d20", "head_dim 20:20"},
    {"f16 b1 h1 q64 d584", "head_dim 584:584, q=f16: must be multiples of 8 up to 576"},
    {"f16 b1 h1 q64 d512:520", "head_dim 512:520, v=f16: must be multiples of 8 up to 512"},
    {"e4m3 out=f16 b1 h1 q64 d320 scales=head", "head_dim 320:320, q=e4m3: must be multiples of 16 up to 256"},
    {"q=f16 k=e4m3 v=e4m3 b1 h1 q64 d512 k_scales=head", "head_dim 512:512, q=f16: must be multiples of 8 up to 256"},
    {"q=f16 k=e4m3 v=e4m3 b1 h1 q64 d256 v_scales=token", "head_dim_v 256 with per-key v_scales"},
    {"f16 b1 h1 q64 d64 q_strides=4096,4096,1,64", "q: rows must be contiguous"},
    {"f16 b1 h1 q268435456 k64 d64", "seqlens 268435456 and 64"},
};

rapt_status prepare(rapt_context& context, const std::string& line) {
  Call call = make(line);
  const cuda::ContextScope scope(0, nullptr);
  call.out = check::make_outputs(call.problem);
  const check::DeviceCall device(0, call.problem, call.in, call.out);
  return rapt_prepare(&context, &device.args(), nullptr);
}

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

}  // namespace

TEST(SlowFamily, ExplainSaysWhy) {
  const Device h100 = device_preset("h100");
  for (const auto& [line, reason] : refused) {
    const std::string text = explain(parse_problem(line), h100);
    const size_t at = text.find("\nslow     the slow kernel attention_scalar was chosen");
    ASSERT_NE(at, std::string::npos) << text;
    EXPECT_NE(text.find("often it takes ten times as long as attention_sm80", at), std::string::npos) << text;
    EXPECT_NE(text.find(concat("attention_sm80 was not possible: ", reason), at), std::string::npos) << text;
  }
  for (const char* line : {"f16 b1 h1 q64 d64", "q=f16 k=e4m3 v=e4m3 b1 h1 q64 d64 k_scales=head v_scales=head",
                           "f16 b1 h1 q64 d576:512 causal", "bf16 b1 h1 q64 d8:264 softcap=20",
                           "f16 b1 h1 q64 d320 acc=f16"})  // all families refuse the last one
    EXPECT_EQ(slow_note(parse_problem(line), h100), "") << line;
  EXPECT_EQ(slow_note(parse_problem("f32 b1 h1 q64 d64"), device_preset("cpu-avx2")), "");
}

TEST(SlowFamily, TheLogSaysEachReasonOnce) {
  on_stand_in(90, [] {
    rapt_context context(without_cache());
    testing::internal::CaptureStderr();
    for (const char* line : {"q=f16 k=f32 v=e4m3 b1 h1 q64 d64", "sim8 out=f32 b1 h1 q64 d64",
                             "q=f16 k=f32 v=e4m3 b1 h2 q70 d64 causal", "sim8 out=f32 b2 h1 q64 d64 causal"})
      EXPECT_EQ(prepare(context, line), RAPT_OK) << line << ": " << rapt_last_error();
    const std::string log = testing::internal::GetCapturedStderr();
    EXPECT_EQ(count(log, "the slow kernel attention_scalar"), 2u) << log;
    EXPECT_EQ(count(log, "attention_sm80 was not possible: q=f16 k=f32 v=e4m3: FP8 is not"), 1u) << log;
    EXPECT_EQ(count(log, "attention_sm80 was not possible: q=sim8: must be f32"), 1u) << log;
  });
}

}  // namespace rapt::test
