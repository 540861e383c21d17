// One check: adds samples until there are enough outputs, then compares the errors with their bounds.
#include "check.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/error.h"
#include "plain.h"
#include "range.h"
#include "work.h"

namespace rapt::check {
namespace {

// A check always requests lse, because lse shows errors of the scores that the weighted sum can hide.
Problem with_lse(const Problem& problem) {
  Problem p = problem;
  p.lse = true;
  return p;
}

// The reference values of one sample.
struct ReferenceValues {
  Reference reference;
  Outputs plain;
};

ReferenceValues reference_values(const Problem& p, const Reading& reading, int64_t row_step, DType fp8_weights) {
  const Stage stage("the reference");
  ReferenceValues made{forward(reading, {.row_step = row_step}), make_outputs(p)};
  plain(reading, probability_format(p, fp8_weights), made.plain, row_step);
  return made;
}

// The results of a kernel in the samples so far, and the condition numbers.
struct Trial {
  Result result;
  Condition condition;

  void add(const Problem& p, const Outputs& outputs, const ReferenceValues& by, bool narrow_products) {
    result.out.add(compare_out(p, outputs.out, by.reference));
    if (outputs.lse.present()) {
      result.lse.add(compare_lse(p, outputs.lse, by.reference));
      int64_t row = 0;
      const double share = worst_lse_share(p, outputs.lse, by.reference, &row, narrow_products);
      if (share > result.lse_share) {
        result.lse_share = share;
        result.lse_worst = row;
      }
    }
    result.plain.add(compare_out(p, by.plain.out, by.reference));
    condition.add(by.reference);
    ++result.samples;
  }
  void refuse(const Error& error) {
    result.refused = error.code() == ErrorCode::unsupported;
    result.message = error.what();
  }
  bool needs_more() const {
    return result.message.empty() &&
           (result.samples == 0 ||
            (result.out.count > 0 && result.out.count < pooled_outputs && result.out.sound() && result.lse.sound()));
  }
};

// Adds one sample for each kernel that needs more samples.
void add_sample(const Problem& p, Fill fill, uint64_t seed, const std::vector<Kernel>& kernels,
                std::vector<Trial>& trials) {
  std::optional<Stage> stage(std::in_place, "making inputs");
  const Inputs inputs = make_inputs(p, fill, seed);
  stage.emplace("the kernel");
  std::vector<Outputs> outputs(kernels.size());
  std::vector<size_t> ran;
  for (size_t n = 0; n < kernels.size(); ++n) {
    if (!trials[n].needs_more()) continue;
    outputs[n] = make_outputs(p);
    try {
      kernels[n](p, inputs, outputs[n]);
      ran.push_back(n);
    } catch (const Error& error) {
      trials[n].refuse(error);
    }
  }
  if (ran.empty()) return;
  stage.emplace("reading the tensors");
  const Reading reading(p, inputs);
  if (const std::string sentence = beyond_f32(reading); !sentence.empty()) unsupported(sentence);
  stage.reset();
  const ReferenceValues by = reference_values(p, reading, 1, kernels[0].fp8_weights);
  for (const size_t n : ran) trials[n].add(p, outputs[n], by, kernels[n].narrow_products);
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
  // The comparisons are negated, so that a NaN fails.
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

std::vector<Result> check_problem(const Problem& problem, Fill fill, uint64_t seed,
                                  const std::vector<Kernel>& kernels) {
  const Problem p = with_lse(problem);
  for (const Kernel& kernel : kernels)
    if (kernel.fp8_weights != kernels[0].fp8_weights)
      throw Error(ErrorCode::internal, "check_problem: kernels of different fp8_weights have different bounds");
  std::vector<Trial> trials(kernels.size());
  const auto unfinished = [&] { return std::any_of(trials.begin(), trials.end(), std::mem_fn(&Trial::needs_more)); };
  try {
    for (uint64_t sample = 0; unfinished(); ++sample) add_sample(p, fill, seed + sample, kernels, trials);
  } catch (const Error& error) {  // the inputs cause this error, and all kernels share them
    for (Trial& trial : trials)
      if (trial.needs_more()) trial.refuse(error);
  }
  std::vector<Result> results;
  for (Trial& trial : trials) {
    Result& result = results.emplace_back(std::move(trial.result));
    result.command = rerun_command(problem, fill, seed);
    if (!result.message.empty()) continue;
    result.bounds =
        output_bounds(p, fill, result.plain, trial.condition, kernels[0].fp8_weights, kernels[0].narrow_products);
    result.message = fault(p, result);
    result.pass = result.message.empty();
  }
  return results;
}

Result check_problem(const Problem& problem, Fill fill, uint64_t seed, const Kernel& kernel) {
  return check_problem(problem, fill, seed, std::vector<Kernel>{kernel}).front();
}

Result judge(const Problem& p, std::optional<Fill> fill, const Inputs& inputs, const Outputs& outputs, int64_t row_step,
             DType fp8_weights, bool narrow_products) {
  Trial trial;
  Result& result = trial.result;
  const Reading reading(p, inputs);
  result.message = beyond_f32(reading, row_step);
  result.refused = !result.message.empty();
  if (result.refused) return result;
  trial.add(p, outputs, reference_values(p, reading, row_step, fp8_weights), narrow_products);
  // Without a fill, the bounds of `huge` are used, because they hold for all inputs. The bounds of `normal` and
  // `outlier` can be stricter.
  result.bounds =
      output_bounds(p, fill.value_or(Fill::huge), result.plain, trial.condition, fp8_weights, narrow_products);
  if (result.out.count < pooled_outputs) result.bounds.rel_rms = INFINITY;
  result.message = fault(p, result);
  result.pass = result.message.empty();
  return result;
}

}  // namespace rapt::check
