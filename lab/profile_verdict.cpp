// Computes the verdict from counters: the busiest unit, the distance to its peak, the gates.
#include "lab/profile_verdict.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "lab/ledger.h"

namespace rapt::lab {
namespace {

constexpr const char* unit_names[] = {"tensor", "fma", "alu", "xu", "lsu", "issue", "shared", "L2", "DRAM"};
// If no unit reaches this percentage of its peak, latency limits the kernel (a rule of thumb of Nsight Compute).
constexpr double busy_percent = 60;

std::string counted(double n) {
  if (n < 1e6) return fmt::format("{:.0f}", n);
  return n < 1e9 ? fmt::format("{:.2f}e6", n / 1e6) : fmt::format("{:.2f}e9", n / 1e9);
}
std::string or_question(const std::optional<double>& value) { return value ? counted(*value) : "?"; }
std::string percent_or_question(const std::optional<double>& value) {
  return value ? fmt::format("{:.0f}%", *value) : "?";
}

std::optional<double> sum_of(const ProfiledKernel& kernel, std::initializer_list<std::string_view> keys) {
  std::optional<double> sum;
  for (const std::string_view key : keys)
    if (const auto value = kernel.value(key); value) sum = sum.value_or(0) + *value;
  return sum;
}

// Returns more than 0 if any counter shows FP8 instructions on tensor cores. GPUs before sm_89 have no such
// instructions.
std::optional<double> fp8_executed(const ProfiledKernel& kernel) {
  if (kernel.sm < 89) return 0;
  std::optional<double> most;
  for (const auto& seen : {kernel.executed({"QMMA", "QGMMA"}), kernel.value("fp8_ops"),
                           sum_of(kernel, {"fp8_to_f16_ops", "fp8_to_f32_ops"})})
    if (seen) most = std::max(most.value_or(0), *seen);
  return most;
}

// For each kind of access to global memory (loads, stores, copies), takes the share of the moved bytes that was used.
// Returns the smallest of these shares. A kind does not count if it has less than half as many instructions as the most
// frequent kind: such accesses read single values, such as lengths and descales.
std::optional<double> memory_efficiency(const ProfiledKernel& kernel) {
  const auto executed = [&](const char* opcode) { return kernel.executed({opcode}).value_or(0); };
  const double most = std::max({executed("LDG"), executed("STG"), executed("LDGSTS")});
  std::optional<double> least;
  const auto take = [&](const char* share, const char* opcode) {
    const auto percent = kernel.value(share);
    if (percent && *percent > 0 && 2 * executed(opcode) >= most) least = std::min(least.value_or(100), *percent);
  };
  take("load_bytes_used", "LDG");
  take("store_bytes_used", "STG");
  take("copy_bytes_used", "LDGSTS");
  take("copy_l1_bytes_used", "LDGSTS");
  return least;
}

std::vector<UnitShare> unit_shares(const ProfiledKernel& kernel) {
  std::vector<UnitShare> units;
  for (const char* name : unit_names)
    if (const auto percent = kernel.value(concat("unit.", name)); percent) units.push_back({name, *percent});
  std::stable_sort(units.begin(), units.end(),
                   [](const UnitShare& a, const UnitShare& b) { return a.percent > b.percent; });
  return units;
}

std::string bound_sentence(const ProfiledKernel& kernel, const std::vector<UnitShare>& units) {
  if (units.empty()) return "unknown: ncu reported no numbers for any unit";
  const UnitShare& first = units[0];
  const auto duration = kernel.value("duration");
  const std::string roof =
      duration ? fmt::format("; if this unit were always busy, the kernel would take {:.1f} us instead of {:.1f}",
                             *duration / 1e3 * first.percent / 100, *duration / 1e3)
               : "";
  if (first.percent >= busy_percent)
    return fmt::format("{}, at {:.0f}% of its peak{}", first.unit, first.percent, roof);
  const auto stalls = stall_reasons(kernel);
  const std::string waits = stalls.empty() ? "" : fmt::format("; the main stall reason is {}", stalls[0].first);
  return fmt::format("latency: no unit reaches {:.0f}% of its peak; the busiest is {} at {:.0f}%{}{}", busy_percent,
                     first.unit, first.percent, waits, roof);
}

Gate off(const char* name, const std::string& why) { return {name, Gate::State::off, why}; }

Gate judged(const char* name, const std::optional<double>& value, bool passed, const std::string& text) {
  if (!value) return {name, Gate::State::unknown, "not judged: ncu reported no number for it"};
  return {name, passed ? Gate::State::passed : Gate::State::failed, text};
}

Gate fp8_gate(const ProfiledKernel& kernel, const PlannedFacts& facts, GateLimits::Fp8 rule) {
  using Rule = GateLimits::Fp8;
  std::string why = " (--gate)";
  if (rule == Rule::by_config) {
    if (facts.fp8 == Fp8Use::none) return off("fp8", "there are no FP8 inputs");
    rule = facts.fp8 == Fp8Use::instructions ? Rule::some : Rule::none;
    why = rule == Rule::some ? ", because the configuration uses FP8 instructions"
                             : ", as the configuration widens the codes";
  }
  if (rule == Rule::off) return off("fp8", "switched off");
  const auto seen = fp8_executed(kernel);
  return judged("fp8", seen, rule == Rule::some ? seen > 0 : seen == 0,
                fmt::format("{} FP8 operations or instructions on tensor cores: must be {}{}", or_question(seen),
                            rule == Rule::some ? "more than 0" : "0", why));
}

Gate tensor_gate(const ProfiledKernel& kernel, const PlannedFacts& facts, const std::optional<double>& limit) {
  if (!limit) return off("tensor", "switched off");
  if (!facts.tensor_products) return off("tensor", "this family uses no tensor cores");
  const auto seen = kernel.value("unit.tensor");
  return judged("tensor", seen, seen > *limit,
                fmt::format("tensor cores busy for {}: must be more than {:g}%", percent_or_question(seen), *limit));
}

Gate occupancy_gate(const ProfiledKernel& kernel, const PlannedFacts& facts, const std::optional<double>& limit) {
  if (!limit) return off("occupancy", "switched off");
  const auto seen = kernel.value("warps_active");
  std::string text = fmt::format("{} of the warps active: must be at least {:g}%", percent_or_question(seen), *limit);
  const bool excused = seen && *seen < *limit && !facts.occupancy_reason.empty();
  if (excused) text += concat(", or the ledger has a reason: ", facts.occupancy_reason);
  return judged("occupancy", seen, seen >= *limit || excused, text);
}

Gate memory_gate(const ProfiledKernel& kernel, const std::optional<double>& limit) {
  if (!limit) return off("memory", "switched off");
  const auto seen = memory_efficiency(kernel);
  return judged("memory", seen, seen >= *limit,
                fmt::format("{} of sector bytes used: must be at least {:g}%", percent_or_question(seen), *limit));
}

const char* name_of(Gate::State state) {
  switch (state) {
    case Gate::State::passed: return "passed";
    case Gate::State::failed: return "FAILED";
    case Gate::State::unknown: return "unknown";
    case Gate::State::off: break;
  }
  return "off";
}

double limit_of(const std::string& word, std::string_view value) {
  double limit = 0;
  const auto [end, status] = std::from_chars(value.data(), value.data() + value.size(), limit);
  if (status != std::errc() || end != value.data() + value.size() || !(limit >= 0 && limit <= 100))
    invalid("--gate ", word, ": must be a percentage from 0 to 100, or off");
  return limit;
}

GateLimits::Fp8 fp8_rule(const std::string& word, std::string_view value) {
  if (value == "some") return GateLimits::Fp8::some;
  if (value == "none") return GateLimits::Fp8::none;
  if (value == "off") return GateLimits::Fp8::off;
  invalid("--gate ", word, ": must be fp8=some, fp8=none or fp8=off");
}

std::string units_line(const std::vector<UnitShare>& units) {
  std::string line;
  for (const UnitShare& unit : units)
    line += fmt::format("{}{} {:.0f}%", line.empty() ? "" : "  ", unit.unit, unit.percent);
  return line.empty() ? "?" : line;
}

std::string stalls_line(const ProfiledKernel& kernel) {
  constexpr size_t most = 4;
  std::string line;
  const auto stalls = stall_reasons(kernel);
  for (size_t i = 0; i < std::min(most, stalls.size()); ++i)
    line += fmt::format("{}{} {:.1f}", i == 0 ? "" : ", ", stalls[i].first, stalls[i].second);
  return line.empty() ? "?" : line + " warps per issued instruction";
}

std::string tensor_line(const ProfiledKernel& kernel) {
  std::string line = fmt::format("{} instructions", or_question(kernel.value("tensor_inst")));
  if (!kernel.opcodes.empty())
    line += fmt::format(" (HMMA {}, HGMMA {}, QMMA {}, QGMMA {})", or_question(kernel.executed({"HMMA"})),
                        or_question(kernel.executed({"HGMMA"})), or_question(kernel.executed({"QMMA"})),
                        or_question(kernel.executed({"QGMMA"})));
  else if (kernel.sm < 100)
    line += fmt::format(" (hmma {}, gmma {})", or_question(kernel.value("tensor_hmma_inst")),
                        kernel.sm == 90 ? or_question(kernel.value("tensor_gmma_inst")) : "0");
  return line + fmt::format("; operations: FP8 {}, f16 {}, bf16 {}", or_question(fp8_executed(kernel)),
                            or_question(kernel.value("f16_ops")), or_question(kernel.value("bf16_ops")));
}

std::string threads_line(const ProfiledKernel& kernel) {
  std::string line = fmt::format(
      "FP32 {}, FP16 {}, conversions {}", or_question(sum_of(kernel, {"f32_fma", "f32_add", "f32_mul"})),
      or_question(sum_of(kernel, {"f16_fma", "f16_add", "f16_mul"})), or_question(kernel.value("conversions")));
  if (!kernel.opcodes.empty())
    line += fmt::format("; warps: F2FP {}, F2F {}", or_question(kernel.executed({"F2FP"})),
                        or_question(kernel.executed({"F2F"})));
  return line;
}

std::string memory_line(const ProfiledKernel& kernel) {
  return fmt::format(
      "share of sector bytes used: loads {}, cp.async {}, stores {}; bank conflicts {} of {} wavefronts; DRAM {} "
      "bytes read, {} written",
      percent_or_question(kernel.value("load_bytes_used")), percent_or_question(kernel.value("copy_bytes_used")),
      percent_or_question(kernel.value("store_bytes_used")), or_question(kernel.value("bank_conflicts")),
      or_question(kernel.value("shared_wavefronts")), or_question(kernel.value("dram_read_bytes")),
      or_question(kernel.value("dram_write_bytes")));
}

std::string warps_line(const ProfiledKernel& kernel) {
  const auto eligible = kernel.value("warps_eligible"), issued = kernel.value("issue_active");
  return fmt::format("{} of the multiprocessor's warps active; per scheduler and cycle {} eligible, {} issued",
                     percent_or_question(kernel.value("warps_active")),
                     eligible ? fmt::format("{:.2f}", *eligible) : "?", issued ? fmt::format("{:.2f}", *issued) : "?");
}

std::string time_line(const ProfiledKernel& kernel, const PlannedFacts& facts) {
  const auto duration = kernel.value("duration");
  if (!duration || *duration <= 0) return "?";
  return fmt::format("{:.1f} us, {:.1f} TFLOP/s; grid {}, block {}", *duration / 1e3, facts.flops / *duration / 1e3,
                     kernel.grid, kernel.block);
}

}  // namespace

PlannedFacts planned_facts(const Problem& problem, const Step& step, const Device& device) {
  PlannedFacts facts;
  const std::string config = step.config.words_unlike(KernelConfig(step.config.type()));
  facts.kernel = concat(step.family->name, " ", config);
  facts.tensor_products = step.family != &attention_scalar;
  facts.flops = flops(problem);

  if (is_fp8(problem.q) || is_fp8(problem.k) || is_fp8(problem.v)) facts.fp8 = Fp8Use::widened;
  for (const ConfigField& field : step.config.type().fields)
    if (field.name.starts_with("fp8_") && field.number(step.config.data()) != 0) facts.fp8 = Fp8Use::instructions;
  // attention_sm90 has no such fields: it multiplies q and k in FP8 whenever both are FP8.
  if (step.family == &attention_sm90 && is_fp8(problem.q) && is_fp8(problem.k)) facts.fp8 = Fp8Use::instructions;
  const Ledger ledger = shipped_ledger();
  LedgerRow row;
  row.arch = device.arch, row.family = step.family->name, row.config = config;
  if (const std::vector<size_t> reasons = ledger.reasons_of(row); !reasons.empty())
    facts.occupancy_reason = ledger.reasons[reasons[0]].reason;
  return facts;
}

GateLimits parse_gates(const std::vector<std::string>& words) {
  GateLimits limits;
  for (const std::string& word : words) {
    const size_t equal = word.find('=');
    const std::string name = word.substr(0, equal), value = equal == word.npos ? "" : word.substr(equal + 1);
    std::optional<double>* limit = name == "tensor"      ? &limits.tensor
                                   : name == "occupancy" ? &limits.occupancy
                                   : name == "memory"    ? &limits.memory
                                                         : nullptr;
    if (name == "fp8")
      limits.fp8 = fp8_rule(word, value);
    else if (limit == nullptr)
      invalid("--gate ", word, ": must be fp8=, tensor=, occupancy= or memory=");
    else if (value == "off")
      limit->reset();
    else
      *limit = limit_of(word, value);
  }
  return limits;
}

bool Verdict::failed() const {
  return std::any_of(gates.begin(), gates.end(), [](const Gate& g) { return g.state == Gate::State::failed; });
}

bool Verdict::nothing_judged() const {
  const auto any = [&](Gate::State state) {
    return std::any_of(gates.begin(), gates.end(), [&](const Gate& g) { return g.state == state; });
  };
  return any(Gate::State::unknown) && !any(Gate::State::passed) && !any(Gate::State::failed);
}

Verdict judge(const ProfiledKernel& kernel, const PlannedFacts& facts, const GateLimits& limits) {
  Verdict verdict;
  verdict.units = unit_shares(kernel);
  verdict.bound = bound_sentence(kernel, verdict.units);
  verdict.gates = {fp8_gate(kernel, facts, limits.fp8), tensor_gate(kernel, facts, limits.tensor),
                   occupancy_gate(kernel, facts, limits.occupancy), memory_gate(kernel, limits.memory)};
  return verdict;
}

std::string to_text(const ProfiledKernel& kernel, const PlannedFacts& facts, const Verdict& verdict) {
  std::string text = fmt::format(
      "kernel   {}\ntime     {}\nbound    {}\nunits    {}\nwarps    {}\nstalls   {}\ntensor   {}\nthreads  {}\nmemory  "
      " {}\n",
      facts.kernel, time_line(kernel, facts), verdict.bound, units_line(verdict.units), warps_line(kernel),
      stalls_line(kernel), tensor_line(kernel), threads_line(kernel), memory_line(kernel));
  for (const Gate& gate : verdict.gates)
    text += fmt::format("gate     {:<9} {:<7}  {}\n", gate.name, name_of(gate.state), gate.text);
  for (const std::string& missing : missing_metrics(kernel)) text += fmt::format("no value {}\n", missing);
  return text;
}

nlohmann::ordered_json to_json(const ProfiledKernel& kernel, const PlannedFacts& facts, const Verdict& verdict) {
  nlohmann::ordered_json units = nlohmann::ordered_json::object(), gates = nlohmann::ordered_json::array(),
                         stalls = nlohmann::ordered_json::object();
  for (const UnitShare& unit : verdict.units) units[unit.unit] = unit.percent;
  for (const auto& [reason, warps] : stall_reasons(kernel)) stalls[reason] = warps;
  for (const Gate& gate : verdict.gates)
    gates.push_back({{"gate", gate.name}, {"state", name_of(gate.state)}, {"text", gate.text}});
  return {{"kernel", facts.kernel},
          {"bound", verdict.bound},
          {"units", units},
          {"stalls", stalls},
          {"metrics", kernel.values},
          {"opcodes", kernel.opcodes},
          {"missing", missing_metrics(kernel)},
          {"gates", gates}};
}

}  // namespace rapt::lab
