// The walk over the registry: once to choose, once to tell.
#include "runtime/plan.h"

#include "base/error.h"
#include "kernels/config_rules.h"
#include "kernels/emit.h"
#include "kernels/family.h"

namespace rapt {
namespace {

const Family* choose(const Problem& problem, const Device& device) {
  for (const Family* family : all_families())
    if (family->accepts(problem, device, nullptr)) return family;
  return nullptr;
}

std::string refusals(const Problem& problem, const Device& device) {
  std::string text;
  for (const Family* family : all_families()) {
    std::string why;
    family->accepts(problem, device, &why);
    text += concat(text.empty() ? "" : "; ", why);
  }
  return text;
}

std::string describe(const Device& device) {
  if (device.kind == DeviceKind::cpu)
    return concat(device.name, " (", name_of(device.isa), ", ", device.threads, " threads)");
  return concat(device.name, " (", device.arch, ", ", device.sm_count, " multiprocessors)");
}

}  // namespace

Plan plan(const Problem& problem, const Device& device) {
  const Family* family = choose(problem, device);
  if (family == nullptr) unsupported(refusals(problem, device));
  Plan result;
  Step& step = result.steps[0];
  step.family = family;
  step.config = family->configure(problem, device);
  result.step_count = 1;
  result.workspace_bytes = family->workspace_bytes(problem, step.config);
  return result;
}

std::string slow_note(const Problem& problem, const Device& device) {
  std::string why;
  if (device.kind != DeviceKind::cuda || choose(problem, device) != &attention_scalar) return why;
  attention_sm80.accepts(problem, device, &why);
  return concat("attention_scalar, which is slow, was chosen for a call on a GPU, because of ", why);
}

Plan plan_with(const Problem& problem, const Device& device, std::string_view words, bool own_text) {
  Plan result = plan(problem, device);
  for (int i = 0; i < result.step_count && !words.empty(); ++i) {
    Step& step = result.steps[static_cast<size_t>(i)];
    if (step.family->check_config == nullptr) invalid("config: ", words, ": ", step.family->name, " takes none");
    AttentionConfig changed = step.config.attention;
    apply_words(words, changed);
    step.family->check_config({problem, device, step.config.attention, changed, own_text});
    step.config.attention = changed;
  }
  return result;
}

std::string to_string(const Step& step) {
  const KernelConfig& c = step.config;
  if (step.family->unit == nullptr)
    return concat(step.family->name, " isa=", name_of(c.isa), " block_m=", c.block_m, " block_n=", c.block_n,
                  " splits=", c.splits);
  return concat(step.family->name, " ", to_string(c.attention));
}

std::string to_string(const Plan& plan) {
  std::string text;
  for (int i = 0; i < plan.step_count; ++i)
    text += concat(i > 0 ? "; " : "", to_string(plan.steps[static_cast<size_t>(i)]));
  return text;
}

std::string explain(const Problem& problem, const Device& device) {
  std::string text = concat("problem  ", to_string(problem), "\n");
  text += concat("device   ", describe(device), "\n");
  const Family* chosen = choose(problem, device);
  for (const Family* family : all_families()) {
    std::string why;
    text += concat("family   ", family->name, ": ");
    if (family == chosen)
      text += concat("chosen, ", to_string(plan(problem, device)), "\n");
    else if (family->accepts(problem, device, &why))
      text += concat("able, but ", chosen->name, " comes before it\n");
    else
      text += concat("refused, ", why, "\n");
  }
  if (chosen == nullptr) text += "no family takes this problem\n";
  if (const std::string note = slow_note(problem, device); !note.empty()) text += concat("slow     ", note, "\n");
  return text;
}

}  // namespace rapt
