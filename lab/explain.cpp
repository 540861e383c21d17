// rapt explain: which kernel family takes a problem on a device, and why the others do not.
// Called by program.cpp; needs neither tensors nor the device itself.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "error.h"
#include "kernels/family.h"
#include "lab/commands.h"
#include "plan.h"

namespace rapt::lab {
namespace {

nlohmann::ordered_json families_of(const Problem& problem, const Device& device) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Family* family : all_families()) {
    std::string why;
    const bool accepts = family->accepts(problem, device, &why);
    list.push_back({{"family", family->name}, {"accepts", accepts}, {"why", why}});
  }
  return list;
}

// The plan's line, or null with the sentence in `why` when no family takes the problem.
nlohmann::ordered_json plan_of(const Problem& problem, const Device& device) {
  try {
    return to_string(plan(problem, device));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::unsupported) throw;
    return nullptr;
  }
}

}  // namespace

int explain(const ExplainOptions& options) {
  const Problem problem = parse_problem(joined(options.words));
  const Device device = chosen_device(options.common, false);
  const nlohmann::ordered_json chosen = plan_of(problem, device);
  if (options.common.json) {
    const nlohmann::ordered_json all = {
        {"problem", to_string(problem)},
        {"device", {{"name", device.name}, {"isa", name_of(device.isa)}, {"threads", device.threads}}},
        {"plan", chosen},
        {"families", families_of(problem, device)},
        {"flops", flops(problem)},
        {"bytes", bytes(problem)}};
    fmt::print("{}\n", all.dump(2));
  } else {
    std::string text = rapt::explain(problem, device);
    while (text.ends_with('\n')) text.pop_back();
    fmt::print("{}\n", text);
  }
  return chosen.is_null() ? exit_environment : exit_fine;
}

}  // namespace rapt::lab
