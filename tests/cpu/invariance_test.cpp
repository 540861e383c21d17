// `invariant` on the CPU: a row has the same bits alone or in a batch, chunked or whole, paged or dense, for any number
// of threads.
#include <memory>

#include "cpu/isa.h"
#include "tests/cpu/isa.h"
#include "tests/cpu/random_schedules.h"

namespace rapt::test {
namespace {

class ContextOf {
 public:
  explicit ContextOf(int32_t threads) {
    rapt_context_options options{};
    options.struct_size = sizeof options;
    options.num_threads = threads;
    EXPECT_EQ(rapt_context_create(&options, &context_), RAPT_OK) << rapt_last_error();
  }
  ~ContextOf() { rapt_context_destroy(context_); }
  ContextOf(const ContextOf&) = delete;
  ContextOf& operator=(const ContextOf&) = delete;
  rapt_context* get() const { return context_; }

 private:
  rapt_context* context_ = nullptr;
};

class InvarianceOn : public testing::TestWithParam<CpuIsa> {};

TEST_P(InvarianceOn, RandomSchedules) {
  const IsaLimit limit(GetParam());
  const ContextOf contexts[] = {ContextOf(1), ContextOf(2), ContextOf(5)};
  unsigned calls = 0;
  const auto run_with_some_threads = [&](Call& call) { run(call, contexts[calls++ % 3].get()); };
  const int count = quick() ? 20 : 120;
  for (const ScheduleProblem& problem :
       {ScheduleProblem{"f32", " causal", 4, 2, 24, {300, 97, 190}},
        ScheduleProblem{"bf16", " causal", 4, 2, 32, {400, 97, 190}},
        ScheduleProblem{"f16", " causal sinks softcap=10", 3, 1, 40, {250, 33}},
        ScheduleProblem{"bf16", " causal window=100,0 alibi", 4, 2, 64, {420, 120}},
        ScheduleProblem{"q=bf16 k=e4m3 v=e4m3", " causal k_scales=head v_scales=head", 4, 1, 32, {300, 150}},
        ScheduleProblem{"f16", "", 4, 2, 32, {300, 97}},
        ScheduleProblem{"bf16", " mask=[b,h,q,k]", 4, 2, 32, {150, 97}},
        ScheduleProblem{"f32", " causal bias=f32[b,h,q,k]", 2, 1, 32, {150, 97}},
        ScheduleProblem{"q=f16 k=e5m2 v=e5m2", " causal k_scales=token v_scales=token", 2, 2, 32, {300, 150}}}) {
    SCOPED_TRACE(problem.dtypes + problem.options);
    RandomSchedules schedules(problem, 1, run_with_some_threads);
    if (GetParam() == available_cpu_isas().front()) expect_oracle(schedules.whole().front());
    schedules.expect_same_bits(count);
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, InvarianceOn, testing::ValuesIn(available_cpu_isas()), isa_name);

}  // namespace
}  // namespace rapt::test
