// Searches the registry: to choose a family, and to explain the choice.
#include "runtime/plan.h"

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "kernels/config_rules.h"
#include "kernels/family.h"
#include "problem/length_class.h"

namespace rapt {
namespace {

bool prefers(const Family& family, const Problem& planned, const Device& device, std::string* why = nullptr) {
  return family.prefers == nullptr || family.prefers(planned, device, why);
}

// Returns the first family that accepts and prefers the problem. If there is none: the first one that accepts it.
const Family* choose(const Problem& planned, const Device& device) {
  const Family* possible = nullptr;
  for (const Family* family : all_families()) {
    if (!family->accepts(planned, device, nullptr)) continue;
    if (prefers(*family, planned, device)) return family;
    if (possible == nullptr) possible = family;
  }
  return possible;
}

// Returns why the family rejects the problem. If the call's own lengths break the rule, the sentence names these.
// Planning uses the longest lengths of the class. If only these break the rule, the sentence names them.
std::string refusal(const Family& family, const Problem& problem, const Device& device) {
  std::string why;
  if (family.accepts(problem, device, &why)) family.accepts(planned_problem(problem, device), device, &why);
  return why;
}

// Returns why a later family is faster, or "" if the planner prefers this family. The lengths in the sentence follow
// the same rule as in refusal().
std::string disadvantage(const Family& family, const Problem& problem, const Device& device) {
  std::string why;
  const Problem planned = planned_problem(problem, device);
  if (prefers(family, planned, device) || !prefers(family, problem, device, &why)) return why;
  prefers(family, planned, device, &why);
  return why;
}

// Removes the family's name from the beginning of its sentence.
std::string without_name(const Family& family, const std::string& sentence) {
  const std::string name = concat(family.name, ": ");
  return sentence.starts_with(name) ? sentence.substr(name.size()) : sentence;
}

const Family& family_named(std::string_view name) {
  std::string names;
  for (const Family* family : all_families()) {
    if (name == family->name) return *family;
    names += concat(names.empty() ? "" : ", ", family->name);
  }
  invalid("family = ", name, ": must be one of ", names);
}

std::string refusals(const Problem& problem, const Device& device) {
  std::string text;
  for (const Family* family : all_families())
    text += concat(text.empty() ? "" : "; ", refusal(*family, problem, device));
  return text;
}

// Completes a plan from its first step: adds the later steps and the workspace.
Plan plan_from(const Step& first, const Problem& planned, const Device& device) {
  Plan result;
  for (Step step = first; step.family != nullptr;) {
    if (static_cast<size_t>(result.step_count) == result.steps.size())
      throw Error(ErrorCode::internal, concat(first.family->name, ": more than ", result.step_count, " steps"));
    result.steps[static_cast<size_t>(result.step_count++)] = step;
    step = step.family->next != nullptr ? step.family->next(planned, device, step.config) : Step();
  }
  if (first.family->counter_bytes != nullptr)
    result.workspace_zero_bytes = (first.family->counter_bytes(planned, first.config) + 63) / 64 * 64;
  const size_t scratch = first.family->workspace_bytes(planned, first.config);
  if (__builtin_add_overflow(result.workspace_zero_bytes, scratch, &result.workspace_bytes))
    result.workspace_bytes = SIZE_MAX;  // more than any machine has
  return result;
}

std::string describe(const Device& device) {
  if (device.kind == DeviceKind::cpu)
    return concat(device.name, " (", name_of(device.isa), ", ", device.threads, " threads)");
  return concat(device.name, " (", device.arch, ", ", device.sm_count, " multiprocessors)");
}

// Returns the line of a tuned row in explain(). It contains the row's configuration, its times, and the date and
// version of the measurement.
std::string tuned_line(const TunedRows& rows, const TunedRow& row, const std::string& own) {
  const std::string evidence = concat("; measured ", row.date, " by rapt ", row.version);
  if (row.keeps_planner())
    return concat("tuned    ", rows.place(row), ": nothing was faster than the planner's choice, ", row.us, " us",
                  evidence, "\n");
  return concat("tuned    ", rows.place(row), ": ", row.words, ": ", row.us, " us; the planner's own choice, ", own,
                ": ", row.planner_us, " us", evidence, "\n");
}

// Returns "" if the plan needs no workspace.
std::string workspace_line(const Plan& plan) {
  if (plan.workspace_bytes == 0) return "";
  const std::string zeroed = plan.workspace_zero_bytes == 0
                                 ? ""
                                 : concat(", the first ", plan.workspace_zero_bytes, " of which must be zeroed");
  return concat("memory   ", plan.workspace_bytes, " bytes of workspace", zeroed, "\n");
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
  return plan_from({family, family->configure(planned, device)}, planned, device);
}

Plan plan_by(const Family& family, const Problem& problem, const Device& device) {
  const Problem planned = planned_problem(problem, device);
  return plan_from({&family, family.configure(planned, device)}, planned, device);
}

std::string slow_note(const Problem& problem, const Device& device) {
  if (device.kind != DeviceKind::cuda || choose(planned_problem(problem, device), device) != &attention_scalar)
    return "";
  return concat(
      "the slow kernel attention_scalar was chosen for a GPU call. It uses no tensor cores: often it takes ten "
      "times as long as attention_sm80, or more. attention_sm80 was not possible: ",
      without_name(attention_sm80, refusal(attention_sm80, problem, device)));
}

PlanOverride override_of(std::string_view words) {
  PlanOverride result;
  while (!words.empty()) {
    const std::string_view word = words.substr(0, words.find(' '));
    words.remove_prefix(std::min(word.size() + 1, words.size()));
    if (word.starts_with("family=")) {
      if (result.family != nullptr)
        invalid("family = ", word.substr(7), ": ", result.family->name, " was named before");
      result.family = &family_named(word.substr(7));
    } else if (!word.empty()) {
      result.config += concat(result.config.empty() ? "" : " ", word);
    }
  }
  return result;
}

Plan plan_with(const Problem& problem, const Device& device, std::string_view words, bool own_text) {
  const PlanOverride wanted = override_of(words);
  const Problem planned = planned_problem(problem, device);
  if (wanted.family != nullptr && !wanted.family->accepts(planned, device, nullptr))
    unsupported(refusal(*wanted.family, problem, device));
  const Plan chosen = wanted.family != nullptr ? plan_by(*wanted.family, problem, device) : plan(problem, device);
  if (wanted.config.empty()) return chosen;
  const Step& first = chosen.steps[0];
  if (first.family->check_config == nullptr)
    invalid("config: ", wanted.config, ": ", first.family->name, " has no configuration");
  KernelConfig changed = first.config;
  changed.apply(wanted.config);
  first.family->check_config({planned, device, first.config, changed, own_text});
  return plan_from({first.family, changed}, planned, device);
}

Plan plan_by_row(const Problem& problem, const Device& device, const TunedRows& rows, const TunedRow** used) {
  const Plan own = plan(problem, device);
  const TunedRow* const row = rows.find(planned_problem(problem, device), device);
  if (used != nullptr) *used = row;
  if (row == nullptr || row->keeps_planner()) return own;
  try {
    Plan tuned = plan_with(problem, device, row->words);
    const size_t scratch =
        std::max(own.workspace_bytes - own.workspace_zero_bytes, tuned.workspace_bytes - tuned.workspace_zero_bytes);
    tuned.workspace_zero_bytes = std::max(own.workspace_zero_bytes, tuned.workspace_zero_bytes);
    if (__builtin_add_overflow(tuned.workspace_zero_bytes, scratch, &tuned.workspace_bytes))
      tuned.workspace_bytes = SIZE_MAX;
    return tuned;
  } catch (const Error& error) {
    warn_once(concat(rows.place(*row), ": the tuned row is ignored: ", error.what()));
  }
  if (used != nullptr) *used = nullptr;
  return own;
}

std::string to_string(const Step& step) { return concat(step.family->name, " ", step.config.words()); }

std::string to_string(const Plan& plan) {
  std::string text;
  for (int i = 0; i < plan.step_count; ++i)
    text += concat(i > 0 ? "; " : "", to_string(plan.steps[static_cast<size_t>(i)]));
  return text;
}

namespace {

// Returns the line of explain() for a family that the plan does not use. chosen: the plan's family. by_row: whether a
// tuned row chose the plan's family.
std::string family_line(const Family& family, const Family* chosen, bool by_row, const Problem& problem,
                        const Device& device) {
  if (!family.accepts(planned_problem(problem, device), device, nullptr))
    return concat("refused, ", without_name(family, refusal(family, problem, device)));
  const std::string why = disadvantage(family, problem, device);
  if (!why.empty()) return concat("possible, but not preferred, ", without_name(family, why));
  return concat("possible, but ", by_row ? "the tuned row names " : "", chosen->name, by_row ? "" : " has priority");
}

}  // namespace

std::string explain(const Problem& problem, const Device& device, const TunedRows& rows) {
  std::string text = concat("problem  ", to_string(problem), "\n");
  text += concat("device   ", describe(device), "\n");
  const Family* const own = choose(planned_problem(problem, device), device);
  const TunedRow* row = nullptr;
  const Plan made = own == nullptr ? Plan() : plan_by_row(problem, device, rows, &row);
  const Family* const chosen = made.steps[0].family;
  for (const Family* family : all_families()) {
    const std::string line = family == chosen ? concat("chosen, ", to_string(made))
                                              : family_line(*family, chosen, chosen != own, problem, device);
    text += concat("family   ", family->name, ": ", line, "\n");
  }
  text += own == nullptr ? "no family accepts this problem\n" : workspace_line(made);
  if (row != nullptr) text += tuned_line(rows, *row, to_string(plan(problem, device)));
  if (const std::string note = slow_note(problem, device); !note.empty()) text += concat("slow     ", note, "\n");
  return text;
}

}  // namespace rapt
