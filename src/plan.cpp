// The walk over the registry: once to choose, once to tell.
#include "plan.h"

#include "error.h"
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

std::string to_string(const Plan& plan) {
  std::string text;
  for (int i = 0; i < plan.step_count; ++i) {
    const KernelConfig& c = plan.steps[i].config;
    text += concat(i > 0 ? "; " : "", plan.steps[i].family->name, " isa=", name_of(c.isa), " block_m=", c.block_m,
                   " block_n=", c.block_n, " splits=", c.splits);
  }
  return text;
}

std::string explain(const Problem& problem, const Device& device) {
  std::string text = concat("problem  ", to_string(problem), "\n");
  text += concat("device   ", device.name, " (", name_of(device.isa), ", ", device.threads, " threads)\n");
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
  return text;
}

}  // namespace rapt
