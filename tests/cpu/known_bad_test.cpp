// Shows that check can fail: every known-bad kernel fails its named case, and its first bad stage is named.
// Part of rapt_tests; needs nothing of the library but Problem.
#include "check/known_bad.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "check/cases.h"

namespace rapt {
namespace {

using check::Defect;
using check::KnownBad;

class KnownBadKernel : public testing::TestWithParam<KnownBad> {
 protected:
  Problem problem() const { return parse_problem(GetParam().line); }
};

TEST_P(KnownBadKernel, CaseIsInSmoke) {
  const auto cases = check::load_cases("smoke", std::string(RAPT_SOURCE_DIR) + "/check/cases");
  const auto same = [this](const check::Case& c) {
    return c.problem() == problem() && std::find(c.fills.begin(), c.fills.end(), GetParam().fill) != c.fills.end();
  };
  EXPECT_TRUE(std::any_of(cases.begin(), cases.end(), same))
      << GetParam().line << " with fill " << name_of(GetParam().fill);
}

TEST_P(KnownBadKernel, FailsItsCase) {
  const check::Result result = check_problem(problem(), GetParam().fill, 1, kernel_with(GetParam().defect));
  EXPECT_FALSE(result.pass);
  EXPECT_FALSE(result.refused) << result.message;
  EXPECT_FALSE(result.message.empty());
  EXPECT_NE(result.command.find(to_string(problem())), std::string::npos) << result.command;
}

TEST_P(KnownBadKernel, PassesWithoutTheDefect) {
  const check::Result result = check_problem(problem(), GetParam().fill, 1, kernel_with(Defect::none));
  EXPECT_TRUE(result.pass) << result.message;
}

TEST_P(KnownBadKernel, FirstBadStageIsNamed) {
  const auto report = check_stages(problem(), GetParam().fill, 1, traced_kernel_with(GetParam().defect));
  EXPECT_FALSE(report.pass);
  EXPECT_EQ(report.stage, GetParam().first_stage) << report.message;
  EXPECT_FALSE(report.index.empty());
  const auto good = check_stages(problem(), GetParam().fill, 1, traced_kernel_with(Defect::none));
  EXPECT_TRUE(good.pass) << good.message;
  EXPECT_EQ(good.observed, (std::vector<std::string>{"inputs", "S", "row_max", "row_sum", "P", "O"}));
}

// Through outputs alone the same defects are found, if not always at the same stage: S is then derived from P.
TEST_P(KnownBadKernel, ProbeFindsIt) {
  const auto report = check_stages(problem(), GetParam().fill, 1, check::probe(kernel_with(GetParam().defect)));
  EXPECT_FALSE(report.pass);
  EXPECT_EQ(report.stage == "inputs", GetParam().defect == Defect::head_scale_as_tensor) << report.message;
  const auto good = check_stages(problem(), GetParam().fill, 1, check::probe(kernel_with(Defect::none)));
  EXPECT_TRUE(good.pass) << good.message;
  EXPECT_EQ(good.observed.size(), 6u);
}

INSTANTIATE_TEST_SUITE_P(All, KnownBadKernel, testing::ValuesIn(check::known_bad()),
                         [](const auto& instance) { return std::string(instance.param.name); });

TEST(KnownBad, EveryDefectIsListedOnce) {
  std::vector<int> times(static_cast<size_t>(Defect::softcap_after_padding) + 1, 0);
  for (const KnownBad& bad : check::known_bad()) ++times[static_cast<size_t>(bad.defect)];
  EXPECT_EQ(times[0], 0);
  EXPECT_TRUE(std::all_of(times.begin() + 1, times.end(), [](int n) { return n == 1; }));
}

TEST(KnownBad, IndexOfADroppedTailIsTheFirstDroppedKey) {
  const auto report = check_stages(parse_problem("f32 b1 h2 q40 k100 d32"), check::Fill::normal, 1,
                                   traced_kernel_with(Defect::dropped_tail_tile));
  EXPECT_EQ(report.tile, "q tile 0, k tile 1");
  EXPECT_EQ(report.index, "[b=0, h=0, i=0, j=64]");
  EXPECT_TRUE(std::isinf(report.got));
}

// The probe must work where tensors are packed, scaled per token or block, grouped, masked, and partly NaN.
TEST(Stages, ProbeOfASoundKernelPasses) {
  for (const char* line :
       {"f32 h4:2 d16:24 varlen=5:9,0:3,12:40 causal", "e4m3 out=f32 h2 d16 varlen=20:70,9:41 scales=token",
        "e4m3 out=f16 b2 h4:2 q9 k130 d16 scales=block64",
        "f32 b2 h4:2 q9 k40 d16 mask=[b,h,q,k] sinks alibi softcap=9",
        "q=bf16 k=sim8 v=e5m2 out=bf16 b1 h2 q5 k20 d8 k_scales=head v_scales=channel",
        "f32 b2 h2 q9 k40 d16 seqused=33,0 layout=bshd"})
    for (const check::Fill fill :
         {check::Fill::normal, check::Fill::hidden_nan, check::Fill::seen_nan, check::Fill::masked_rows}) {
      const auto report = check_stages(parse_problem(line), fill, 2, check::probe(kernel_with(Defect::none)));
      EXPECT_TRUE(report.pass) << line << ", " << name_of(fill) << ": " << report.message;
      EXPECT_EQ(report.observed.size(), 6u) << line;
    }
}

}  // namespace
}  // namespace rapt
