// The seed suite: four small problems, three seeds each, every dtype and every instruction set of the machine, held to
// the derived error bounds, finite and equal run to run.
#include <gtest/gtest.h>

#include "check/check.h"
#include "isa.h"
#include "support.h"

namespace rapt::test {
namespace {

constexpr const char* shapes[] = {"b1 h2 q64 k64 d64", "b1 h4 q128 k128 d64", "b1 h8 q512 k512 d64",
                                  "b2 h2 q64 k64 d64"};
constexpr const char* types[] = {"f32", "f16", "bf16", "q=f32 k=e4m3 v=e4m3 out=f32", "q=bf16 k=e5m2 v=f16 out=bf16"};

class Seed : public testing::TestWithParam<CpuIsa> {};

void expect_bounds(const Problem& problem, check::Fill fill, uint64_t seed) {
  const check::Result result = check::check_problem(problem, fill, seed, check::library_kernel());
  EXPECT_TRUE(result.pass) << result.message << "\n" << result.command;
  EXPECT_EQ(result.out.nan_count, 0) << result.command;
  EXPECT_EQ(result.out.inf_count, 0) << result.command;
}

}  // namespace

TEST_P(Seed, WithinBoundsOnNormalAndOutlierFills) {
  const IsaLimit limit(GetParam());
  for (const char* shape : shapes)
    for (const char* type : types)
      for (const char* mask : {"", " causal"})
        for (uint64_t seed : {1u, 2u, 3u})
          for (check::Fill fill : {check::Fill::normal, check::Fill::outlier})
            expect_bounds(parse_problem(std::string(type) + " " + shape + mask + " lse"), fill, seed);
}

TEST_P(Seed, RunToRun) {
  const IsaLimit limit(GetParam());
  for (const char* shape : shapes)
    for (const char* type : types) {
      Call first = make(std::string(type) + " " + shape + " lse"), second = first;
      first.in = second.in = check::make_inputs(first.problem, check::Fill::normal, 1);
      expect_same_bits(run(first), run(second));
    }
}

INSTANTIATE_TEST_SUITE_P(Isa, Seed, testing::ValuesIn(available_cpu_isas()), isa_name);

}  // namespace rapt::test
