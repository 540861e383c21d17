// Proves that check can fail: every known-bad kernel fails its case, and check finds its first wrong stage. From the
// library, these tests use only Problem.
#include "check/known_bad.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "check/cases.h"

namespace rapt {
namespace {

using check::Defect;
using check::HostTensor;
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

// The probe finds the same defects, although it sees only outputs. Sometimes it names another stage, because it derives
// S from P.
TEST_P(KnownBadKernel, ProbeFindsIt) {
  const auto report = check_stages(problem(), GetParam().fill, 1, check::probe(kernel_with(GetParam().defect)));
  EXPECT_FALSE(report.pass);
  EXPECT_EQ(report.stage == "inputs", std::string(GetParam().first_stage) == "inputs") << report.message;
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

// The correct kernel gets a misread problem, for example without its mask. The set smoke must detect every misreading.
struct Misreading {
  const char* name;
  bool (*apply)(Problem&, check::Inputs&);  // returns false if this misreading does not apply to the problem
};

class Misread : public testing::TestWithParam<Misreading> {};

TEST_P(Misread, SomeSmokeCaseFails) {
  const auto misreading_kernel = [](const Problem& problem, const check::Inputs& inputs,
                                    const check::Outputs& outputs) {
    Problem p = problem;
    check::Inputs in = inputs;
    GetParam().apply(p, in);
    kernel_with(Defect::none)(p, in, outputs);
  };
  int64_t applied = 0;
  for (const check::Case& c : check::load_cases("smoke", std::string(RAPT_SOURCE_DIR) + "/check/cases")) {
    Problem p = c.problem();
    check::Inputs in = make_inputs(p, c.fills[0], 1);
    if (!GetParam().apply(p, in)) continue;
    ++applied;
    if (!check_problem(c.problem(), c.fills[0], 1, misreading_kernel).pass) return;
  }
  FAIL() << "none of the " << applied << " cases that it applies to failed";
}

bool move_window(Problem& p, int64_t left, int64_t right) {
  PositionMask& mask = p.position_mask;
  const bool windowed = mask.window_left >= 0 || mask.window_right >= 0;
  if (!windowed || (left != 0 && mask.window_left < 0) || (right != 0 && mask.window_right < 0)) return false;
  mask.window_left += left;
  mask.window_right += right;
  return true;
}

// Changes a tensor so that a dimension is read backwards. Returns false if this changes nothing.
bool reverse(HostTensor& tensor, size_t dim) {
  if (tensor.shape.size() <= dim || tensor.shape[dim] < 2) return false;
  tensor.offset += (tensor.shape[dim] - 1) * tensor.strides[dim];
  tensor.strides[dim] = -tensor.strides[dim];
  return true;
}

INSTANTIATE_TEST_SUITE_P(
    All, Misread,
    testing::Values(
        Misreading{"window_left", [](Problem& p, check::Inputs&) { return move_window(p, 1, 0); }},
        Misreading{"window_right", [](Problem& p, check::Inputs&) { return move_window(p, 0, 1); }},
        Misreading{"causal_corner",
                   [](Problem& p, check::Inputs&) {
                     if (p.position_mask.causal != Causal::bottom_right || p.has_starts || p.seqlen_q == p.seqlen_k)
                       return false;
                     p.position_mask.causal = Causal::top_left;
                     return true;
                   }},
        Misreading{"start",
                   [](Problem& p, check::Inputs& in) {
                     if (!p.has_starts || !in.q_starts.present()) return false;
                     in.q_starts = check::make_tensor(DType::i64, in.q_starts.shape);
                     return true;
                   }},
        Misreading{"softcap_left_out",
                   [](Problem& p, check::Inputs&) { return std::exchange(p.softcap, std::nullopt).has_value(); }},
        Misreading{"scale_left_out",
                   [](Problem& p, check::Inputs&) { return std::exchange(p.scale, std::nullopt).has_value(); }},
        Misreading{"sinks_left_out", [](Problem&, check::Inputs& in) { return std::exchange(in.sinks, {}).present(); }},
        Misreading{"bias_left_out", [](Problem&, check::Inputs& in) { return std::exchange(in.bias, {}).present(); }},
        Misreading{"mask_left_out", [](Problem&, check::Inputs& in) { return std::exchange(in.mask, {}).present(); }},
        Misreading{"alibi_left_out",
                   [](Problem&, check::Inputs& in) { return std::exchange(in.alibi_slopes, {}).present(); }},
        Misreading{"seqused_left_out",
                   [](Problem&, check::Inputs& in) { return std::exchange(in.seqused_k, {}).present(); }},
        Misreading{"slopes_of_another_head", [](Problem&, check::Inputs& in) { return reverse(in.alibi_slopes, 0); }},
        Misreading{"sinks_of_another_head", [](Problem&, check::Inputs& in) { return reverse(in.sinks, 0); }},
        Misreading{"bias_of_another_head", [](Problem&, check::Inputs& in) { return reverse(in.bias, 1); }},
        Misreading{"keys_of_another_head", [](Problem&, check::Inputs& in) { return reverse(in.k, 1); }},
        Misreading{"mask_of_another_batch", [](Problem&, check::Inputs& in) { return reverse(in.mask, 0); }}),
    [](const auto& instance) { return std::string(instance.param.name); });

// The probe must work for tensors that are packed, scaled per token or block, grouped, masked, and partly NaN.
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
