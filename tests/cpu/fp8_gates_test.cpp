// Tests the required accuracy of FP8 attention on the CPU, for the four shapes of the first experiments, three seeds
// and every pv mode. Results must be within required_bounds, finite, and equal in every run. The largest error of
// several runs together must be within pooled_max_bound. tests/gpu/fp8_gates_test.cpp does the same on GPUs.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "check/check.h"
#include "check/plain.h"
#include "support.h"

namespace rapt::test {
namespace {

class Fp8Gates : public testing::TestWithParam<const char*> {};

// The largest errors of the kernels over `runs` runs of the shape of pooled_max_bound.
std::vector<double> pooled_maxima(const std::vector<check::Kernel>& kernels, const char* mode, int runs) {
  const Problem p = parse_problem(std::string("e4m3 out=f32 b1 h8 q512 d64 scales=head pv=") + mode);
  std::vector<check::Errors> errors(kernels.size());
  for (int run = 1; run <= runs; ++run) {
    const check::Inputs in = check::make_inputs(p, check::Fill::normal, static_cast<uint64_t>(run));
    const check::Reference reference = check::forward(p, in);
    for (size_t n = 0; n < kernels.size(); ++n) {
      const check::Outputs out = check::make_outputs(p);
      kernels[n](p, in, out);
      errors[n].add(check::compare_out(p, out.out, reference));
      EXPECT_TRUE(errors[n].sound());
    }
  }
  std::vector<double> maxima;
  for (const check::Errors& one : errors) maxima.push_back(one.max_abs);
  return maxima;
}

// Weights of a kernel that is exact otherwise, in a format with fewer bits than the mode allows.
check::Kernel with_weights(DType dtype) {
  return [dtype](const Problem& p, const check::Inputs& in, const check::Outputs& out) {
    Problem changed = p;
    changed.pv = PvMode::f16;  // otherwise plain() rounds as this mode does
    check::plain(check::Reading(changed, in), dtype, out);
  };
}

}  // namespace

TEST_P(Fp8Gates, TwelveCases) {
  const check::Kernel kernel = check::library_kernel();
  for (const char* shape : {"b1 h2 q64 d64", "b1 h4 q128 d64", "b1 h8 q512 d64", "b2 h2 q64 d64"})
    for (const char* out : {"f16", "bf16"})
      for (uint64_t seed = 1; seed <= (quick() || *out == 'b' ? 1u : 3u); ++seed) {
        const Problem p = parse_problem(std::string("e4m3 out=") + out + " " + shape + " scales=head " + GetParam());
        EXPECT_LE(check::required_bounds(p, check::Fill::normal, 0).max_abs, 0.06) << to_string(p);
        const check::Result result = check_problem(p, check::Fill::normal, seed, kernel);
        EXPECT_TRUE(result.pass) << result.command << ": " << result.message;
        EXPECT_EQ(result.out.nan_count + result.out.inf_count, 0) << result.command;
      }
}

// pv=fp8: the bound depends on the number of runs. One mantissa bit less (E5M2) must exceed it.
TEST(Fp8Maximum, OfSeveralRunsIsWithinItsBound) {
  const int runs = quick() ? 2 : 6;
  const std::vector<double> found = pooled_maxima({check::library_kernel(), with_weights(DType::e5m2)}, "fp8", runs);
  const double bound = check::pooled_max_bound(PvMode::fp8, runs);
  EXPECT_LE(found[0], bound);
  EXPECT_GE(found[0], 0.4 * bound);  // the mode was used
  EXPECT_GT(found[1], bound);
}

TEST(Fp8Maximum, OfMoreExactModesNeedsNoWiderBound) {
  EXPECT_LE(pooled_maxima({check::library_kernel()}, "fp8x2", 2)[0], check::pooled_max_bound(PvMode::fp8x2, 1000));
  EXPECT_LE(pooled_maxima({check::library_kernel()}, "f16", 1)[0], check::pooled_max_bound(PvMode::f16, 1000));
  EXPECT_EQ(check::pooled_max_bound(PvMode::fp8, 1), 1.55e-2);
  EXPECT_DOUBLE_EQ(check::pooled_max_bound(PvMode::fp8, 100), 2.19e-2);
}

INSTANTIATE_TEST_SUITE_P(Modes, Fp8Gates, testing::Values("", "pv=f16", "pv=fp8x2", "pv=fp8"));

}  // namespace rapt::test
