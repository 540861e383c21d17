// Tests the required accuracy of FP8 attention on the CPU, for the four shapes of the first experiments, three seeds
// and every pv mode. Results must be within required_bounds, finite, and equal in every run.
// tests/gpu/fp8_gates_test.cpp does the same on GPUs.
#include <gtest/gtest.h>

#include <cmath>

#include "check/check.h"
#include "support.h"

namespace rapt::test {
namespace {

class Fp8Gates : public testing::TestWithParam<const char*> {};

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

INSTANTIATE_TEST_SUITE_P(Modes, Fp8Gates, testing::Values("", "pv=f16", "pv=fp8x2", "pv=fp8"));

}  // namespace rapt::test
