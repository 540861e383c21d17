// One check: samples are added until enough outputs are pooled, then errors meet their bounds.
#include "check.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "plain.h"
#include "range.h"
#include "work.h"

namespace rapt::check {
namespace {

// lse is always asked for: it shows errors of the scores that the weighted sum hides.
Problem with_lse(const Problem& problem) {
  Problem p = problem;
  p.lse = true;
  return p;
}

// Outputs of one sample against oracle and plain, every row_step-th query.
void add_outputs(const Problem& p, const Reading& reading, const Outputs& outputs, int64_t row_step, DType fp8_weights,
                 Result& result, Condition& condition) {
  const Outputs plain_outputs = make_outputs(p);
  const Stage stage("the reference");
  const Reference reference = forward(reading, {.row_step = row_step});
  plain(reading, probability_format(p, fp8_weights), plain_outputs, row_step);
  result.out.add(compare_out(p, outputs.out, reference));
  if (outputs.lse.present()) {
    result.lse.add(compare_lse(p, outputs.lse, reference));
    int64_t row = 0;
    const double share = worst_lse_share(p, outputs.lse, reference, &row);
    if (share > result.lse_share) {
      result.lse_share = share;
      result.lse_worst = row;
    }
  }
  result.plain.add(compare_out(p, plain_outputs.out, reference));
  condition.add(reference);
  ++result.samples;
}

void add_sample(const Problem& p, Fill fill, uint64_t seed, const Kernel& kernel, Result& result,
                Condition& condition) {
  std::optional<Stage> stage(std::in_place, "making inputs");
  const Inputs inputs = make_inputs(p, fill, seed);
  const Outputs outputs = make_outputs(p);
  stage.emplace("the kernel");
  kernel(p, inputs, outputs);
  stage.emplace("reading the tensors");
  const Reading reading(p, inputs);
  if (const std::string sentence = beyond_f32(reading); !sentence.empty()) unsupported(sentence);
  stage.reset();
  add_outputs(p, reading, outputs, 1, kernel.fp8_weights, result, condition);
}

std::string structural_fault(const Problem& p, const char* name, const Errors& e, int64_t dim) {
  if (e.unwritten > 0)
    return concat(name, ": ", e.unwritten, " elements were never written, the first ",
                  describe_element(p, e.worst, dim));
  if (e.overwritten > 0) return concat(name, ": ", e.overwritten, " elements outside the result were written");
  if (e.wrong_class > 0)
    return concat(name, ": ", e.wrong_class, " elements are finite where the oracle is not, or the reverse, the first ",
                  describe_element(p, e.worst, dim), " = ", e.worst_got, " instead of ", e.worst_want);
  return {};
}

std::string fault(const Problem& p, const Result& r) {
  if (std::string s = structural_fault(p, "out", r.out, std::max<int64_t>(1, p.head_dim_v)); !s.empty()) return s;
  if (std::string s = structural_fault(p, "lse", r.lse, 1); !s.empty()) return s;
  // Negated comparisons, so that a NaN fails.
  if (!(r.out.max_abs <= r.bounds.max_abs))
    return concat("out: max_abs = ", r.out.max_abs, " at ", describe_element(p, r.out.worst, p.head_dim_v), " (",
                  r.out.worst_got, " instead of ", r.out.worst_want, "): at most ", r.bounds.max_abs);
  if (!(r.out.rel_rms <= r.bounds.rel_rms))
    return concat("out: rel_rms = ", r.out.rel_rms, ": at most ", r.bounds.rel_rms);
  if (!(r.out.mean_abs <= r.bounds.mean_abs))
    return concat("out: mean_abs = ", r.out.mean_abs, ": at most ", r.bounds.mean_abs);
  if (!(r.lse_share <= 1))
    return concat("lse: the error at ", describe_element(p, r.lse_worst, 1), " is ", r.lse_share, " times its bound");
  return {};
}

}  // namespace

std::string rerun_command(const Problem& problem, Fill fill, uint64_t seed) {
  return concat("rapt check \"", to_string(problem), "\" --fill ", name_of(fill), " --seed ", seed);
}

Result check_problem(const Problem& problem, Fill fill, uint64_t seed, const Kernel& kernel) {
  const Problem p = with_lse(problem);
  Result result;
  result.command = rerun_command(problem, fill, seed);
  Condition condition;
  try {
    do {
      add_sample(p, fill, seed + static_cast<uint64_t>(result.samples), kernel, result, condition);
    } while (result.out.count > 0 && result.out.count < pooled_outputs && result.out.sound() && result.lse.sound());
  } catch (const Error& error) {
    result.refused = error.code() == ErrorCode::unsupported;
    result.message = error.what();
    return result;
  }
  result.bounds = output_bounds(p, fill, result.plain, condition, kernel.fp8_weights);
  result.message = fault(p, result);
  result.pass = result.message.empty();
  return result;
}

Result judge(const Problem& p, std::optional<Fill> fill, const Inputs& inputs, const Outputs& outputs, int64_t row_step,
             DType fp8_weights) {
  Result result;
  Condition condition;
  const Reading reading(p, inputs);
  result.message = beyond_f32(reading, row_step);
  result.refused = !result.message.empty();
  if (result.refused) return result;
  add_outputs(p, reading, outputs, row_step, fp8_weights, result, condition);
  // Not normal or outlier: the bounds that hold for any numbers.
  result.bounds = output_bounds(p, fill.value_or(Fill::huge), result.plain, condition, fp8_weights);
  if (result.out.count < pooled_outputs) result.bounds.rel_rms = INFINITY;
  result.message = fault(p, result);
  result.pass = result.message.empty();
  return result;
}

}  // namespace rapt::check
