// Tests masks by position for every combination of values of the masks' words. Compares with the definition: the range
// of keys that kernels use (with both integer widths), and the number of pairs. New masks are tested automatically,
// because the tests find them by their words.
#include <gtest/gtest.h>

#include <vector>

#include "kernels/shared/mask.h"

namespace rapt::test {
namespace {

__extension__ using Wide = __int128;  // the largest window bound times a length

// Masks in which each word is absent, has small values, or has large values.
std::vector<PositionMask> every_mask() {
  std::vector<PositionMask> masks{{}};
  for (const PositionWord& word : position_words) {
    if (word.count() == 0) {
      std::vector<PositionMask> next = masks;
      for (PositionMask mask : masks)
        if (mask.causal == Causal::none) mask.causal = word.causal, next.push_back(mask);
      masks = next;
    }
    for (int i = 0; i < word.count(); ++i) {
      const PositionWord::Value& value = word.values[i];
      const std::vector<PositionMask> before = masks;
      for (const long long given : {value.least + 1, 7LL, 1LL << 60})
        for (PositionMask mask : before) mask.*value.field = given, masks.push_back(mask);
    }
  }
  return masks;
}

TEST(PositionMask, RangesAndCountFollowTheDefinition) {
  const std::vector<PositionMask> masks = every_mask();
  EXPECT_GE(masks.size(), 48u);
  for (const PositionMask& mask : masks)
    for (const auto& [seqlen_q, seqlen_k, offset] :
         {std::tuple{13LL, 21LL, 8LL}, {21LL, 13LL, -8LL}, {9LL, 9LL, 0LL}, {6LL, 30LL, -40LL}, {6LL, 30LL, 40LL}}) {
      const long long off = mask.causal == Causal::top_left ? 0 : offset;
      const Band band = Band::of(mask, off, seqlen_k);
      long long pairs = 0;
      KeyRange before{0, -(1LL << 62)};
      for (long long i = 0; i < seqlen_q; ++i) {
        const KeyRange range = mask.visible(i, off, seqlen_k);
        for (long long j = 0; j < seqlen_k; ++j) {
          const bool sees = mask.sees(i + off, j);
          ASSERT_EQ(j >= range.begin && j < range.end, sees) << i << " " << j;
          const int row = static_cast<int>(i);
          ASSERT_EQ(j >= band.first(row) && j < band.past(row), sees) << i << " " << j;
          pairs += sees;
        }
        ASSERT_TRUE(range.begin >= before.begin && range.end >= before.end) << "tiles need bounds that never decrease";
        before = range;
      }
      ASSERT_EQ(static_cast<long long>(visible_pairs<Wide>(mask, off, seqlen_q, seqlen_k)), pairs);
      ASSERT_TRUE(mask.present() || pairs == seqlen_q * seqlen_k);
    }
}

}  // namespace
}  // namespace rapt::test
