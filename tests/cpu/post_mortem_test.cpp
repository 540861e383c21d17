// The failures of the first FP8 attention. For each failure there is a kernel with only this fault (check/known_bad.h),
// which runs on FP8 problems. The checks must detect the fault and name the first wrong stage. The same kernel without
// the fault must pass. docs/fp8.md explains the failures.
#include <gtest/gtest.h>

#include <cmath>

#include "check/known_bad.h"

namespace rapt {
namespace {

using check::Defect;
using check::Fill;
using check::HostTensor;
using check::Inputs;
using check::Outputs;

struct Failure {
  const char* name;
  Defect defect;
  const char* line;
  Fill fill;
  const char* stage;  // the stage that check_stages must name
};

class PostMortem : public testing::TestWithParam<Failure> {};

TEST_P(PostMortem, IsCaught) {
  const auto result = check_problem(parse_problem(GetParam().line), GetParam().fill, 1, kernel_with(GetParam().defect));
  EXPECT_FALSE(result.pass);
  EXPECT_FALSE(result.refused) << result.message;
}

TEST_P(PostMortem, PassesWithoutTheFault) {
  const auto result = check_problem(parse_problem(GetParam().line), GetParam().fill, 1, kernel_with(Defect::none));
  EXPECT_TRUE(result.pass) << result.message;
}

TEST_P(PostMortem, FirstBadStageIsNamed) {
  const Problem problem = parse_problem(GetParam().line);
  const auto report = check_stages(problem, GetParam().fill, 1, traced_kernel_with(GetParam().defect));
  EXPECT_EQ(report.stage, GetParam().stage) << report.message;
  const auto sound = check_stages(problem, GetParam().fill, 1, traced_kernel_with(Defect::none));
  EXPECT_TRUE(sound.pass) << sound.message;
}

INSTANTIATE_TEST_SUITE_P(
    All, PostMortem,
    testing::Values(Failure{"row_mixing_reduction", Defect::mixed_rows,
                            "e4m3 out=f16 b1 h4 q128 d64 scales=head pv=fp8", Fill::normal, "row_sum"},
                    Failure{"scale_of_another_granularity", Defect::head_scale_as_tensor,
                            "e4m3 out=f16 b2 h2 q64 d64 scales=head pv=fp8", Fill::outlier, "inputs"},
                    Failure{"saturation_at_448", Defect::saturated_p, "e4m3 out=f16 b1 h4 q128 d64 scales=head pv=fp8",
                            Fill::normal, "P"},
                    Failure{"nan_between_256_and_384_keys", Defect::half_sums,
                            "e4m3 out=f16 b1 h2 q64 k384 d64 scales=head pv=fp8", Fill::constant, "row_sum"},
                    Failure{"clamped_exponent", Defect::clamped_rescale,
                            "e4m3 out=f32 b1 h1 q32 k256 d64 scales=block64 pv=fp8x2", Fill::rescale, "P"},
                    Failure{"floored_sum", Defect::floored_normaliser,
                            "e4m3 out=f16 b1 h1 q64 d64 scales=head scale=-1 pv=fp8", Fill::constant, "row_max"}),
    [](const auto& instance) { return std::string(instance.param.name); });

// All weights are 1, stored as 256. The sum of 255 of them is within f16's range (65504), but the sum of 256 is not.
TEST(PostMortem, HalfSumsAreFiniteAt255KeysAndNanAt384) {
  const auto run = [](int keys) {
    const Problem p = parse_problem("e4m3 out=f32 b1 h1 q4 k" + std::to_string(keys) + " d64 scales=head pv=fp8");
    const Inputs in = make_inputs(p, Fill::constant, 1);
    const Outputs out = check::make_outputs(p);
    kernel_with(Defect::half_sums)(p, in, out);
    return out.out.at({0, 0, 0, 0});
  };
  EXPECT_NEAR(run(255), 0.75, 1e-2);
  EXPECT_EQ(run(256), 0);  // the sum is infinite, but the product with V is still finite
  EXPECT_EQ(run(341), 0);
  for (const int keys : {342, 384, 512}) EXPECT_TRUE(std::isnan(run(keys))) << keys;
}

// Clamps and floors do not correct such sums. They only replace the NaN by a wrong number.
TEST(PostMortem, AGuardOnlyHidesTheNan) {
  const check::Kernel guarded = [](const Problem& p, const Inputs& in, const Outputs& out) {
    kernel_with(Defect::half_sums)(p, in, out);
    HostTensor o = out.out, lse = out.lse;
    for (int64_t i = 0; i < p.seqlen_q; ++i) {
      for (int64_t d = 0; d < p.head_dim_v; ++d)
        if (!std::isfinite(o.at({0, 0, i, d}))) o.set({0, 0, i, d}, 0);
      if (!std::isfinite(lse.at({0, 0, i}))) lse.set({0, 0, i}, 0);
    }
  };
  const auto result =
      check_problem(parse_problem("e4m3 out=f32 b1 h1 q64 k384 d64 scales=head pv=fp8"), Fill::constant, 1, guarded);
  EXPECT_FALSE(result.pass);
  EXPECT_EQ(result.out.nan_count, 0);
}

// A kernel that uses one scale for a whole last dimension of the scales (head, token, block, channel), or the scale of
// another position.
class WrongGranularity : public testing::TestWithParam<const char*> {};

TEST_P(WrongGranularity, IsCaught) {
  const Problem problem = parse_problem(std::string("e4m3 out=f16 b1 h2 q130 k150 d64 ") + GetParam());
  for (const bool first_for_all : {true, false})
    for (HostTensor Inputs::*scales : {&Inputs::q_descale, &Inputs::k_descale, &Inputs::v_descale}) {
      const check::Kernel misreading = [&](const Problem& p, const Inputs& in, const Outputs& out) {
        Inputs wrong = in;
        HostTensor& t = wrong.*scales;
        int64_t& stride = t.strides.back();
        if (!first_for_all) t.offset += (t.shape.back() - 1) * stride;
        stride = first_for_all ? 0 : -stride;
        kernel_with(Defect::none)(p, wrong, out);
      };
      EXPECT_FALSE(check_problem(problem, Fill::outlier, 1, misreading).pass) << first_for_all;
    }
}

INSTANTIATE_TEST_SUITE_P(All, WrongGranularity,
                         testing::Values("scales=head", "scales=token", "scales=block64", "scales=block128",
                                         "q_scales=head k_scales=head v_scales=channel"));

}  // namespace
}  // namespace rapt
