// Tests the order of the steps of a score, with a user's code at its place in this order (score.cuh, score_chain.h).
#define RAPT_USER_SCORE(x, batch, head, i, j) ((x)*10.0f + static_cast<float>(100 * (batch) + 10 * (head) + (i) + (j)))

#include <gtest/gtest.h>

#include <string>

#include "emulation.h"
// emulation.h comes first, because score.cuh uses its words.
#include "device/score.cuh"

namespace rapt::test {
namespace {

struct AllSteps {
  DType bias = DType::f32;
  bool softcap = true, alibi = true, mask = true, key_mean = true;
};
struct Halve {
  static float of(float x) { return 0.5f * x; }
};

TEST(ScoreChainEmulated, StepsComeInTheOrderOfTheSemantics) {
  float bias[] = {0, 0, 7}, slopes[] = {0.25f};
  unsigned char mask[] = {1, 0, 1};
  AttentionParams p;
  p.softcap = 4.0f;
  p.bias = {bias, DType::f32, 0, 0, 0, 1};
  p.mask = {mask, DType::u8, 0, 0, 0, 1};
  p.alibi_slopes = slopes;
  constexpr AllSteps cfg;
  const RowScoreChain<cfg, Halve> row(p, 2.0f, 1.0f, /*offset=*/5, /*batch=*/0, /*head=*/0, /*row=*/1);
  // The steps: scale and mean give 3 * 2 + 1; the cap gives 4 * (7 / 4) / 2; bias adds 7; ALiBi subtracts 0.25 * |1 + 5
  // - 2|; the user's code multiplies by 10 and adds 1 + 2.
  EXPECT_EQ(row.logit(3.0f, 2), (3.5f + 7.0f - 1.0f) * 10.0f + 3.0f);
  EXPECT_EQ(row.logit(3.0f, 1), -std::numeric_limits<float>::infinity());  // masked, whatever the user's code returns
}

struct Order {
  std::string& seen;
  void scale() const { seen += "scale "; }
  void add_key_mean() const { seen += "mean "; }
  void soft_cap() const { seen += "cap "; }
  void add_bias() const { seen += "bias "; }
  void subtract_alibi() const { seen += "alibi "; }
  void apply_score_mod() const { seen += "text "; }
  void apply_mask() const { seen += "hide"; }
};

TEST(ScoreChainEmulated, OneOrderForEveryKernel) {
  std::string seen;
  apply_score_chain(Order{seen});
  EXPECT_EQ(seen, "scale mean cap bias alibi text hide");
}

}  // namespace
}  // namespace rapt::test
