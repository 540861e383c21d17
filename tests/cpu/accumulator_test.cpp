// Tests the model of a narrow FP8 accumulator (check/accumulator.h): sums that are calculated by hand, how its error
// grows with the number of keys, and the numbers in docs/fp8.md.
#include "check/accumulator.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

namespace rapt {
namespace {

using check::narrow_dot;
using check::narrow_pv_error;
using check::NarrowAccumulator;

double sum_of(const std::vector<double>& terms, const NarrowAccumulator& model) {
  return narrow_dot(terms, std::vector<double>(terms.size(), 1.0), model);
}

TEST(NarrowAccumulator, CutsWhatLiesBelowTheLargest) {
  const NarrowAccumulator model{.fraction_bits = 13};
  EXPECT_EQ(sum_of({1, 0x1p-13}, model), 1 + 0x1p-13);
  EXPECT_EQ(sum_of({1, 0x1p-14}, model), 1);
  EXPECT_EQ(sum_of({1, 0x1.8p-13, 0x1.8p-13}, model), 1 + 0x1p-12);  // each addend is cut separately
  EXPECT_EQ(sum_of({-1, -0x1.8p-13}, model), -1 - 0x1p-13);          // bits are cut towards zero
  EXPECT_EQ(sum_of({1, -0x1p-14}, model), 1);
  EXPECT_EQ(sum_of({1, 1, 0x1p-13}, model), 2);  // the result is cut to 13 bits, too
  EXPECT_EQ(sum_of({}, model), 0);
  EXPECT_EQ(sum_of({0, 0}, model), 0);
  EXPECT_EQ(narrow_dot({3, -2}, {0x1p+100, 0x1p-100}, model), 3 * 0x1p+100);
}

TEST(NarrowAccumulator, TheAccumulatorIsOneOfTheAddends) {
  std::vector<double> terms(33, 0x1p-14);
  terms[0] = 1;
  const NarrowAccumulator one{.fraction_bits = 13, .products = 1};
  EXPECT_EQ(sum_of(terms, one), 1);
  EXPECT_EQ(sum_of(terms, {.fraction_bits = 14, .products = 1}), 1 + 32 * 0x1p-14);
  // If the accumulator is flushed after the first group, the small products are summed separately.
  std::vector<double> two_groups(64, 0x1p-14);
  two_groups[0] = 1;
  EXPECT_EQ(sum_of(two_groups, {.fraction_bits = 13, .products = 32, .flush = 32}), 1 + 32 * 0x1p-14);
  EXPECT_EQ(sum_of(two_groups, {.fraction_bits = 13, .products = 32}), 1);
}

TEST(NarrowAccumulator, EnoughBitsAreExact) {
  const NarrowAccumulator wide{.fraction_bits = 50};
  EXPECT_EQ(sum_of({448 * 256, 0x1p-9 * 0x1p-9, -1, 7.5}, wide), static_cast<double>(448 * 256 - 1 + 7.5f));
  // Here only the error of f32 additions remains.
  EXPECT_LT(narrow_pv_error(1024, 1, {.fraction_bits = 50, .flush = 32}), 1e-6);
}

TEST(NarrowAccumulator, ErrorGrowsWithTheKeysUnlessItIsFlushed) {
  for (const double mean_v : {0.0, 1.0}) {
    const double short_error = narrow_pv_error(1024, mean_v, {}), long_error = narrow_pv_error(16384, mean_v, {});
    EXPECT_GT(long_error, 3 * short_error);
    EXPECT_GT(narrow_pv_error(65536, mean_v, {}), 2 * long_error);
    for (const int64_t flush : {512, 64}) {
      const NarrowAccumulator model{.flush = flush};
      const double at_1k = narrow_pv_error(1024, mean_v, model), at_16k = narrow_pv_error(16384, mean_v, model);
      EXPECT_LT(at_16k, 1.5 * at_1k) << flush;
      EXPECT_LT(at_16k, long_error / 5) << flush;
    }
    EXPECT_LT(narrow_pv_error(16384, mean_v, {.flush = 64}), narrow_pv_error(16384, mean_v, {.flush = 512}) / 2);
  }
}

// Computes the rows of the two tables of docs/fp8.md, and searches for them in the page.
class Guide : public testing::Test {
 protected:
  static std::string text() {
    std::ifstream file(std::string(RAPT_SOURCE_DIR) + "/docs/fp8.md");
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static std::string cell(double x) {
    char text[32];
    std::snprintf(text, sizeof text, " %.1e |", x);
    return text;
  }
  static void expect_row(const std::string& row) {
    EXPECT_NE(text().find(row), std::string::npos) << "docs/fp8.md lacks the row\n" << row;
  }
};

TEST_F(Guide, NarrowAccumulatorOfPv) {
  for (const int64_t keys : {1024, 16384, 65536, 131072}) {
    std::string row = "| " + std::to_string(keys) + " |";
    for (const double mean_v : {0.0, 1.0})
      for (const int64_t flush : {0, 512, 64}) row += cell(narrow_pv_error(keys, mean_v, {.flush = flush}));
    expect_row(row);
  }
}

TEST_F(Guide, NarrowAccumulatorOfQk) {
  for (const int64_t dim : {64, 128, 256})
    expect_row("| " + std::to_string(dim) + " |" + cell(check::narrow_qk_error(dim, {})));
}

}  // namespace
}  // namespace rapt
