// Emulates attention_sm90 on FP8 tensors on this CPU, with the launch that its host code describes: the conversion of K
// and V, products in FP8, descales, and two-level accumulation. attention_sm90_emulation_test.cpp has the 16-bit types.
// The emulated FP8 products are exact, so these checks cannot show the narrow accumulator of a GPU.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "check/check.h"
#include "lab/emulate.h"
#include "lab/host_compiler.h"
#include "tests/cpu/emulation.h"

namespace rapt::test {
namespace {

struct Case {
  const char* line;
  const char* config = "";
  check::Fill fill = check::Fill::normal;
};

constexpr check::Fill hidden = check::Fill::hidden_nan, seen = check::Fill::seen_nan, huge = check::Fill::huge,
                      rescale = check::Fill::rescale_reversed, equal = check::Fill::constant;
constexpr const char *one_term = "e4m3 out=bf16 b1 h2:1 q70 k300 d64 causal scales=head pv=fp8",
                     *long_keys = "e4m3 b1 h2:1 q70 k1700 d64 causal scales=head pv=fp8";

// Several types, masks, layouts and kinds of scales share each kernel, because compiling takes the longest time.
const std::vector<Case> cases = {
    {one_term},
    {one_term, "", hidden},
    {one_term, "", seen},
    {one_term, "", huge},
    {one_term, "", equal},
    {long_keys, "", rescale},
    {long_keys, "block_n=64 promotion_interval=256"},
    {long_keys, "block_n=64 promotion_interval=256", rescale},
    {"e4m3 out=bf16 b1 h2:1 q70 k300 d64 causal scales=head pv=fp8x2", "", rescale},
    {"e4m3 out=bf16 b1 h2:1 q70 k300 d64 causal scales=head pv=fp8x2", "", hidden},
    {"e4m3 b2 h4:2 q70 k300 d64 scales=tensor"},
    {"e4m3 b2 h4:2 q70 k300 d64 scales=tensor", "", hidden},
    {"e5m2 out=f32 b1 h2 q33 k150 d256 scales=head pv=fp8"},
    {"q=e4m3 k=e5m2 v=e4m3 out=f32 b2 h2 q130 k300 d80:96 window=100,0 q_scales=token k_scales=block64 "
     "v_scales=channel"},
    {"q=f16 k=e4m3 v=e5m2 b1 h8:2 q3 k300 d96 k_scales=block128 v_scales=channel"},
    {"q=bf16 k=e4m3 v=e4m3 b2 h2:1 q70 k300 d64 seqused=300,77 page=16 k_scales=token v_scales=head"},
    {"e4m3 out=bf16 b2 h2:1 q70 k300 d64 seqused=300,77 page=16 scales=head pv=fp8"},
    {"e4m3 out=bf16 h2:1 d32 varlen=70:150,3:0,129:300 q_scales=block64 k_scales=token v_scales=head pv=fp8x2"},
    {"e4m3 b1 h2 q70 k300 d32 sinks q_scales=token k_scales=head v_scales=head smooth_k pv=fp8"},
    {"e4m3 b1 h2 q70 k300 d32 softcap=20 alibi bias=f32[1,h,q,k] scales=head pv=fp8"},
    {"e4m3 out=bf16 h16:1 q8 k200 d64 scales=head", "packed_heads=16"},
    {"e4m3 out=bf16 h6:1 q8 k200 d64 scales=head pv=fp8", "packed_heads=6 warpgroups=3 block_n=64"},
    {"q=e4m3 k=e4m3 v=f16 b2 h2:1 q70 k300 d64 causal q_scales=head k_scales=head"},
};

TEST(Sm90Fp8Emulated, AllCasesAreRight) {
  RAPT_NEEDS_FIBERS();
  try {
    lab::find_host_compiler();
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  const lab::Common options;
  lab::Emulator emulator(options, device_preset("sm_90a"));
  const auto words = [](const Case& c) { return concat("family=attention_sm90 kv_stages=3 q_stages=1 ", c.config); };
  std::vector<lab::EmulatedProblem> problems;
  for (const Case& c : cases) problems.push_back({parse_problem(c.line), words(c)});
  emulator.compile(problems);
  for (const Case& c : cases) {
    const check::Result result = check_problem(parse_problem(c.line), c.fill, 3, emulator.kernel(words(c)));
    EXPECT_TRUE(result.pass) << c.line << ", " << c.config << ", " << check::name_of(c.fill) << ": " << result.message;
  }
}

}  // namespace
}  // namespace rapt::test
