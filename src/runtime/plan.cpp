// The walk over the registry: once to choose, once to tell.
#include "runtime/plan.h"

#include "base/error.h"
#include "kernels/config_rules.h"
#include "kernels/family.h"
#include "problem/length_class.h"

namespace rapt {
namespace {

const Family* choose(const Problem& planned, const Device& device) {
  for (const Family* family : all_families())
    if (family->accepts(planned, device, nullptr)) return family;
  return nullptr;
}

// Why a family does not take the problem's class; with the problem's own lengths where they break the rule too.
std::string refusal(const Family& family, const Problem& problem, const Device& device) {
  std::string why;
  if (family.accepts(problem, device, &why)) family.accepts(planned_problem(problem, device), device, &why);
  return why;
}

std::string refusals(const Problem& problem, const Device& device) {
  std::string text;
  for (const Family* family : all_families())
    text += concat(text.empty() ? "" : "; ", refusal(*family, problem, device));
  return text;
}

std::string describe(const Device& device) {
  if (device.kind == DeviceKind::cpu)
    return concat(device.name, " (", name_of(device.isa), ", ", device.threads, " threads)");
  return concat(device.name, " (", device.arch, ", ", device.sm_count, " multiprocessors)");
}

}  // namespace

Problem planned_problem(const Problem& problem, const Device& device) {
  if (device.kind == DeviceKind::cuda) return longest_of_class(problem);
  Problem planned;
  static_cast<PlanFacts&>(planned) = problem;
  return planned;
}

Plan plan(const Problem& problem, const Device& device) {
  const Problem planned = planned_problem(problem, device);
  const Family* family = choose(planned, device);
  if (family == nullptr) unsupported(refusals(problem, device));
  Plan result;
  Step& step = result.steps[0];
  step.family = family;
  step.config = family->configure(planned, device);
  result.step_count = 1;
  result.workspace_bytes = family->workspace_bytes(planned, step.config);
  return result;
}

std::string slow_note(const Problem& problem, const Device& device) {
  if (device.kind != DeviceKind::cuda || choose(planned_problem(problem, device), device) != &attention_scalar)
    return "";
  return concat("attention_scalar, which is slow, was chosen for a call on a GPU, because of ",
                refusal(attention_sm80, problem, device));
}

Plan plan_with(const Problem& problem, const Device& device, std::string_view words, bool own_text) {
  Plan result = plan(problem, device);
  for (int i = 0; i < result.step_count && !words.empty(); ++i) {
    Step& step = result.steps[static_cast<size_t>(i)];
    if (step.family->check_config == nullptr) invalid("config: ", words, ": ", step.family->name, " takes none");
    KernelConfig changed = step.config;
    changed.apply(words);
    step.family->check_config({problem, device, step.config, changed, own_text});
    step.config = changed;
  }
  return result;
}

std::string to_string(const Step& step) { return concat(step.family->name, " ", step.config.words()); }

std::string to_string(const Plan& plan) {
  std::string text;
  for (int i = 0; i < plan.step_count; ++i)
    text += concat(i > 0 ? "; " : "", to_string(plan.steps[static_cast<size_t>(i)]));
  return text;
}

std::string explain(const Problem& problem, const Device& device) {
  std::string text = concat("problem  ", to_string(problem), "\n");
  text += concat("device   ", describe(device), "\n");
  const Problem planned = planned_problem(problem, device);
  const Family* chosen = choose(planned, device);
  for (const Family* family : all_families()) {
    text += concat("family   ", family->name, ": ");
    if (family == chosen)
      text += concat("chosen, ", to_string(plan(problem, device)), "\n");
    else if (family->accepts(planned, device, nullptr))
      text += concat("able, but ", chosen->name, " comes before it\n");
    else
      text += concat("refused, ", refusal(*family, problem, device), "\n");
  }
  if (chosen == nullptr) text += "no family takes this problem\n";
  if (const std::string note = slow_note(problem, device); !note.empty()) text += concat("slow     ", note, "\n");
  return text;
}

}  // namespace rapt
