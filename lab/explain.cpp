// rapt explain: shows which kernel family computes a problem on a device, and why the other families do not.
// Called by program.cpp. Needs no tensors and no GPU.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "kernels/family.h"
#include "lab/commands.h"
#include "lab/variant.h"
#include "runtime/plan.h"

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

// If --config has words, they are applied. Otherwise it is the plan of a normal call, which uses a tuned row if there
// is one. No value if no family accepts the problem.
std::optional<Plan> plan_of(const Problem& problem, const Device& device, const std::string& config, bool own_text,
                            const TunedRows& rows) {
  try {
    if (config.empty() && own_text) return plan_by_row(problem, device, rows);
    return plan_with(problem, device, config, own_text);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::unsupported || override_of(config).family != nullptr) throw;
    return std::nullopt;
  }
}

// The grid of the plan's first kernel, in CTAs: {16, 1, 1}. Null on a CPU, and if nothing is launched. The shape of a
// launch depends only on sizes, so the parameters here have no tensors. Packed tensors have a list of starts, whose
// contents stay on the GPU.
nlohmann::ordered_json grid_of(const Problem& problem, const Device& device, const std::optional<Plan>& chosen) {
  if (device.kind == DeviceKind::cpu || !chosen || chosen->step_count == 0) return nullptr;
  static constexpr int starts[] = {0, 0};
  AttentionParams params;
  params.batch = problem.batch, params.heads_q = problem.heads_q, params.group = problem.group();
  params.seqlen_q = problem.seqlen_q, params.seqlen_k = problem.seqlen_k;
  params.total_q = problem.total_q, params.total_k = problem.total_k;
  params.head_dim = problem.head_dim, params.head_dim_v = problem.head_dim_v;
  if (problem.varlen) params.cu_seqlens_q = params.cu_seqlens_k = {starts, 0};
  const Step& step = chosen->steps[0];
  const LaunchSpec launch = step.family->launch_spec({step.config, problem, params});
  if (launch.empty()) return nullptr;
  return {launch.grid_x, launch.grid_y, launch.grid_z};
}

std::string grid_line(const nlohmann::ordered_json& grid) {
  return fmt::format("grid     {} x {} x {} CTAs\n", grid[0].get<unsigned>(), grid[1].get<unsigned>(),
                     grid[2].get<unsigned>());
}

// The tuned row of the problem's class, or null.
nlohmann::ordered_json row_used(const Problem& problem, const Device& device, const TunedRows& rows) {
  const TunedRow* const row = rows.find(planned_problem(problem, device), device);
  if (row == nullptr) return nullptr;
  return {{"place", rows.place(*row)},     {"config", row->words}, {"us", row->us},
          {"planner_us", row->planner_us}, {"date", row->date},    {"version", row->version},
          {"command", row->command}};
}

nlohmann::ordered_json facts_of(const Device& device) {
  if (device.kind == DeviceKind::cpu)
    return {{"name", device.name}, {"isa", name_of(device.isa)}, {"threads", device.threads}};
  return {{"name", device.name},         {"arch", device.arch},         {"sm", device.sm},
          {"sm_count", device.sm_count}, {"l2_bytes", device.l2_bytes}, {"smem_per_block", device.smem_per_block}};
}

}  // namespace

int explain(const ExplainOptions& options) {
  if (options.common.configs.size() > 1) invalid("explain --config: takes one value; bench compares several");
  const std::string config = options.common.configs.empty() ? "" : options.common.configs[0];
  const Problem problem = parse_problem(joined(options.words));
  const Device device = chosen_device(options.common, false);
  const bool variant = !options.common.variant.empty();
  const TunedRows rows = rows_for(options.common);
  const std::optional<Plan> chosen = plan_of(problem, device, config, !variant, rows);
  const nlohmann::ordered_json grid = grid_of(problem, device, chosen);
  CompiledKernels compiled;
  if (variant) require_variant_included({problem}, device, options.common);
  if (variant) compiled = compile_for({problem}, device, options.common, config, "explain --variant");
  if (options.common.json) {
    nlohmann::ordered_json all = {{"problem", to_string(problem)},
                                  {"device", facts_of(device)},
                                  {"plan", chosen ? nlohmann::ordered_json(to_string(*chosen)) : nullptr},
                                  {"grid", grid},
                                  {"families", families_of(problem, device)},
                                  {"tuned", row_used(problem, device, rows)},
                                  {"slow", slow_note(problem, device)},
                                  {"flops", flops(problem)},
                                  {"bytes", bytes(problem)}};
    if (variant) all["compiled"] = to_json(compiled);
    fmt::print("{}\n", all.dump(2));
  } else {
    std::string text = rapt::explain(problem, device, rows);
    while (text.ends_with('\n')) text.pop_back();
    fmt::print("{}\n", text);
    if (!config.empty() && chosen) fmt::print("config   {}\n", to_string(*chosen));
    if (!grid.is_null()) fmt::print("{}", grid_line(grid));
    if (variant && chosen) {
      fmt::print("variant  {} as {}\n", options.common.variant, variant_name(options.common, device, problem));
      print_compiled(compiled);
      fmt::print("result   not checked: explain runs no kernel; use check --variant\n");
    }
  }
  return chosen ? exit_success : exit_environment;
}

}  // namespace rapt::lab
