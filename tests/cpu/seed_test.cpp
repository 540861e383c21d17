// The seed suite: four small problems with three seeds each, for every dtype and every instruction set of the machine.
// Results must be within the derived error bounds, finite, and equal in every run. The oracle runs once for all
// instruction sets.
#include <gtest/gtest.h>

#include <cctype>

#include "check/bounds.h"
#include "check/plain.h"
#include "cpu/isa.h"
#include "isa.h"
#include "support.h"

namespace rapt::test {
namespace {

constexpr const char* shapes[] = {"b1 h2 q64 k64 d64", "b1 h4 q128 k128 d64", "b1 h8 q512 k512 d64",
                                  "b2 h2 q64 k64 d64"};
constexpr const char* types[] = {"f32", "f16", "bf16", "q=f32 k=e4m3 v=e4m3 out=f32", "q=bf16 k=e5m2 v=f16 out=bf16"};

// The reference for the outputs of all instruction sets. Every problem here has at least 4096 outputs.
struct ReferenceValues {
  check::Reference reference;
  check::Bounds bounds;
};

ReferenceValues reference_values(const Call& call, check::Fill fill) {
  const check::Reading reading(call.problem, call.in);
  ReferenceValues result{check::forward(reading), {}};
  const check::Outputs plain = check::make_outputs(call.problem);
  check::plain(reading, check::probability_format(call.problem), plain);
  check::Condition condition;
  condition.add(result.reference);
  result.bounds = check::output_bounds(call.problem, fill,
                                       check::compare_out(call.problem, plain.out, result.reference), condition);
  return result;
}

void expect_within(const ReferenceValues& reference_values, const Call& call) {
  const check::Errors errors = check::compare_out(call.problem, call.out.out, reference_values.reference);
  EXPECT_GE(errors.count, 4096);
  EXPECT_TRUE(errors.sound());
  EXPECT_EQ(errors.nan_count + errors.inf_count, 0);
  EXPECT_LE(errors.max_abs, reference_values.bounds.max_abs);
  EXPECT_LE(errors.rel_rms, reference_values.bounds.rel_rms);
  EXPECT_TRUE(check::compare_lse(call.problem, call.out.lse, reference_values.reference).sound());
  EXPECT_LE(check::worst_lse_share(call.problem, call.out.lse, reference_values.reference), 1.0);
}

std::string words_as_name(const testing::TestParamInfo<const char*>& parameter) {
  std::string name = parameter.param;
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  return name;
}

class Seed : public testing::TestWithParam<const char*> {};

}  // namespace

TEST_P(Seed, WithinBoundsFiniteAndEqualRunToRun) {
  for (const char* shape : shapes)
    for (uint64_t seed = 1; seed <= (quick() ? 1u : 3u); ++seed)
      for (check::Fill fill : {check::Fill::normal, check::Fill::outlier}) {
        if (quick() && fill == check::Fill::outlier) continue;
        Call call = make(std::string(GetParam()) + " " + shape + " lse");
        call.in = check::make_inputs(call.problem, fill, seed);
        const ReferenceValues expected = reference_values(call, fill);
        for (CpuIsa isa : available_cpu_isas()) {
          SCOPED_TRACE(to_string(call.problem) + ", fill " + check::name_of(fill) + ", seed " + std::to_string(seed) +
                       ", " + name_of(isa));
          const IsaLimit limit(isa);
          expect_within(expected, run(call));
          Call again = call;
          expect_same_bits(run(again), call);
        }
      }
}

INSTANTIATE_TEST_SUITE_P(Storage, Seed, testing::ValuesIn(types), words_as_name);

}  // namespace rapt::test
