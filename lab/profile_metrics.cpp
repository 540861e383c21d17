// The table of metrics, and the reader of ncu's raw page.
// The metric names come from Nsight Compute's metrics reference and from public reports of these architectures. If ncu
// does not know a name, profile.cpp prints it and leaves it out.
#include "lab/profile_metrics.h"

#include <algorithm>

#include "base/error.h"
#include "lab/csv.h"
#include "lab/file.h"

namespace rapt::lab {
namespace {

struct MetricRow {
  const char* key;
  const char* name;
  int first_sm = 80, last_sm = 999;
};

constexpr const char* opcode_metric = "sass__inst_executed_per_opcode";
constexpr std::string_view stall_key = "stall.";

// Rows with the same key are alternatives. The first one with a number is used.
constexpr MetricRow metric_rows[] = {
    {"duration", "gpu__time_duration.sum"},

    // Tensor cores: warp instructions of each kind (gmma means all wgmma of sm_90), and operations of each operand
    // type.
    {"tensor_inst", "sm__inst_executed_pipe_tensor.sum"},
    {"tensor_hmma_inst", "sm__inst_executed_pipe_tensor_op_hmma.sum", 80, 99},
    {"tensor_hmma_inst", "sm__inst_executed_pipe_tensor_subpipe_hmma.sum", 100},
    {"tensor_gmma_inst", "sm__inst_executed_pipe_tensor_op_gmma.sum", 90, 90},
    {"fp8_ops", "sm__ops_path_tensor_src_fp8.sum", 89},
    {"fp8_ops", "sm__ops_path_tensor_src_fp8_sparsity_off.sum", 89},
    {"fp8_to_f16_ops", "sm__ops_path_tensor_src_fp8_dst_fp16.sum", 89},
    {"fp8_to_f16_ops", "sm__ops_path_tensor_src_fp8_dst_fp16_sparsity_off.sum", 89, 99},
    {"fp8_to_f16_ops", "sm__ops_path_tensor_src_fp4_fp6_fp8_dst_fp16.sum", 100},
    {"fp8_to_f32_ops", "sm__ops_path_tensor_src_fp8_dst_fp32.sum", 89},
    {"fp8_to_f32_ops", "sm__ops_path_tensor_src_fp8_dst_fp32_sparsity_off.sum", 89, 99},
    {"fp8_to_f32_ops", "sm__ops_path_tensor_src_fp4_fp6_fp8_dst_fp32.sum", 100},
    {"f16_ops", "sm__ops_path_tensor_src_fp16.sum"},
    {"f16_ops", "sm__ops_path_tensor_op_hgmma_src_fp16_dst_fp32_sparsity_off.sum", 90, 90},
    {"f16_ops", "sm__ops_path_tensor_op_hmma_src_fp16_dst_fp32_sparsity_off.sum", 80, 89},
    {"bf16_ops", "sm__ops_path_tensor_src_bf16_dst_fp32.sum"},
    {"bf16_ops", "sm__ops_path_tensor_op_hgmma_src_bf16_dst_fp32_sparsity_off.sum", 90, 90},
    {"bf16_ops", "sm__ops_path_tensor_op_hmma_src_bf16_dst_fp32_sparsity_off.sum", 80, 89},
    {"opcodes", opcode_metric},

    // Thread instructions outside the tensor cores.
    {"f32_fma", "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"},
    {"f32_add", "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum"},
    {"f32_mul", "smsp__sass_thread_inst_executed_op_fmul_pred_on.sum"},
    {"f16_fma", "smsp__sass_thread_inst_executed_op_hfma_pred_on.sum"},
    {"f16_add", "smsp__sass_thread_inst_executed_op_hadd_pred_on.sum"},
    {"f16_mul", "smsp__sass_thread_inst_executed_op_hmul_pred_on.sum"},
    {"conversions", "smsp__sass_thread_inst_executed_op_conversion_pred_on.sum"},

    // Use of each unit, as a percentage of its peak.
    {"unit.tensor", "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed"},
    {"unit.tensor", "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_elapsed", 80, 99},
    {"unit.tensor", "sm__pipe_tensor_subpipe_hmma_cycles_active.avg.pct_of_peak_sustained_elapsed", 100},
    {"unit.fma", "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_elapsed"},
    {"unit.fma", "sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_elapsed"},
    {"unit.alu", "sm__inst_executed_pipe_alu.avg.pct_of_peak_sustained_elapsed"},
    {"unit.xu", "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_elapsed"},
    {"unit.lsu", "sm__inst_executed_pipe_lsu.avg.pct_of_peak_sustained_elapsed"},
    {"unit.issue", "sm__inst_issued.avg.pct_of_peak_sustained_elapsed"},
    {"unit.shared", "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum.pct_of_peak_sustained_elapsed"},
    {"unit.L2", "lts__throughput.avg.pct_of_peak_sustained_elapsed"},
    {"unit.DRAM", "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"},
    {"unit.DRAM", "dram__throughput.avg.pct_of_peak_sustained_elapsed"},

    // Warps.
    {"warps_active", "sm__warps_active.avg.pct_of_peak_sustained_active"},
    {"warps_eligible", "smsp__warps_eligible.avg.per_cycle_active"},
    {"issue_active", "smsp__issue_active.avg.per_cycle_active"},

    // Memory. Global loads go to registers; with cp.async they go to shared memory (with or without L1). load_sectors
    // and store_sectors show if the kernel executed any loads and stores.
    {"load_bytes_used", "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct"},
    {"store_bytes_used", "smsp__sass_average_data_bytes_per_sector_mem_global_op_st.pct"},
    {"copy_bytes_used", "smsp__sass_average_data_bytes_per_sector_mem_global_op_ldgsts_cache_bypass.pct"},
    {"copy_l1_bytes_used", "smsp__sass_average_data_bytes_per_sector_mem_global_op_ldgsts_cache_access.pct"},
    {"load_sectors", "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"},
    {"store_sectors", "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum"},
    {"bank_conflicts", "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"},
    {"shared_wavefronts", "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"},
    {"dram_read_bytes", "dram__bytes_read.sum"},
    {"dram_write_bytes", "dram__bytes_write.sum"},

    // Reasons why warps wait: average number of waiting warps per issued instruction.
    {"stall.long_scoreboard", "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio"},
    {"stall.short_scoreboard", "smsp__average_warps_issue_stalled_short_scoreboard_per_issue_active.ratio"},
    {"stall.math_pipe_throttle", "smsp__average_warps_issue_stalled_math_pipe_throttle_per_issue_active.ratio"},
    {"stall.mio_throttle", "smsp__average_warps_issue_stalled_mio_throttle_per_issue_active.ratio"},
    {"stall.lg_throttle", "smsp__average_warps_issue_stalled_lg_throttle_per_issue_active.ratio"},
    {"stall.barrier", "smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio"},
    {"stall.membar", "smsp__average_warps_issue_stalled_membar_per_issue_active.ratio"},
    {"stall.wait", "smsp__average_warps_issue_stalled_wait_per_issue_active.ratio"},
    {"stall.not_selected", "smsp__average_warps_issue_stalled_not_selected_per_issue_active.ratio"},
    {"stall.no_instruction", "smsp__average_warps_issue_stalled_no_instruction_per_issue_active.ratio"},
    {"stall.branch_resolving", "smsp__average_warps_issue_stalled_branch_resolving_per_issue_active.ratio"},
    {"stall.sleeping", "smsp__average_warps_issue_stalled_sleeping_per_issue_active.ratio"},
    {"stall.gmma", "smsp__average_warps_issue_stalled_gmma_per_issue_active.ratio", 90, 90},
};

bool is_of(const MetricRow& row, int sm) { return row.first_sm <= sm && sm <= row.last_sm; }

// The factor between one of ncu's units and its base unit. We request "--print-units base", but old versions of ncu
// nevertheless print scaled units.
double scale_of(std::string_view unit) {
  constexpr std::pair<std::string_view, double> scales[] = {
      {"us", 1e3},     {"usecond", 1e3}, {"ms", 1e6},    {"msecond", 1e6}, {"s", 1e9},
      {"second", 1e9}, {"Kbyte", 1e3},   {"Mbyte", 1e6}, {"Gbyte", 1e9},   {"Tbyte", 1e12}};
  for (const auto& [name, scale] : scales)
    if (unit == name) return scale;
  return 1;
}

// Reads the part in brackets of a cell such as "1,234 (HMMA: 1,000; F2FP: 234)". Instances without names are dropped.
std::map<std::string, double> instances_of(std::string_view text) {
  std::map<std::string, double> found;
  const size_t open = text.find('('), close = text.rfind(')');
  if (open == text.npos || close == text.npos || close < open) return found;
  text = text.substr(open + 1, close - open - 1);
  while (!text.empty()) {
    const std::string_view one = text.substr(0, text.find(';'));
    text.remove_prefix(std::min(one.size() + 1, text.size()));
    const size_t colon = one.find(':');
    if (colon == one.npos) continue;
    if (const auto count = number_of(one.substr(colon + 1)); count)
      found[std::string(trimmed(one.substr(0, colon)))] += *count;
  }
  return found;
}

[[noreturn]] void no_raw_page(const std::string& why) {
  throw Error(ErrorCode::environment, concat("the output of ncu is not a raw page in CSV form: ", why));
}

void take_cell(ProfiledKernel& kernel, const std::string& column, const std::string& unit, const std::string& cell) {
  if (column == "Kernel Name") kernel.name = cell;
  if (column == "Block Size") kernel.block = cell;
  if (column == "Grid Size") kernel.grid = cell;
  if (column.find("__") == column.npos) return;  // not a metric
  if (column == opcode_metric) kernel.opcodes = instances_of(cell);
  const auto value = number_of(std::string_view(cell).substr(0, cell.find('(')));
  if (value)
    kernel.values[column] = *value * scale_of(unit);
  else
    kernel.not_counted.push_back(column);
}

// Returns true if the text contains `name` as a whole word. A dot or a backslash may follow it.
bool names(std::string_view text, std::string_view name) {
  const auto is_word = [](char c) { return c == '_' || std::isalnum(static_cast<unsigned char>(c)); };
  for (size_t at = text.find(name); at != text.npos; at = text.find(name, at + 1)) {
    const size_t end = at + name.size();
    if ((at == 0 || !is_word(text[at - 1])) && (end >= text.size() || !is_word(text[end]))) return true;
  }
  return false;
}

}  // namespace

std::vector<std::string> metric_names(int sm) {
  std::vector<std::string> found;
  for (const MetricRow& row : metric_rows)
    if (is_of(row, sm)) found.emplace_back(row.name);
  return found;
}

std::optional<double> ProfiledKernel::value(std::string_view key) const {
  for (const MetricRow& row : metric_rows) {
    if (row.key != key || !is_of(row, sm)) continue;
    if (const auto found = values.find(row.name); found != values.end()) return found->second;
  }
  return std::nullopt;
}

std::optional<double> ProfiledKernel::executed(std::initializer_list<std::string_view> some) const {
  if (opcodes.empty()) return std::nullopt;
  double sum = 0;
  for (const std::string_view opcode : some)
    if (const auto found = opcodes.find(std::string(opcode)); found != opcodes.end()) sum += found->second;
  return sum;
}

std::vector<std::string> missing_metrics(const ProfiledKernel& kernel) {
  std::vector<std::string> missing;
  for (const MetricRow* row = std::begin(metric_rows); row != std::end(metric_rows);) {
    const std::string_view key = row->key;
    std::string tried;
    for (; row != std::end(metric_rows) && row->key == key; ++row)
      if (is_of(*row, kernel.sm)) tried += concat(tried.empty() ? "" : ", ", row->name);
    const bool there = key == "opcodes" ? !kernel.opcodes.empty() : kernel.value(key).has_value();
    if (!there && !tried.empty()) missing.push_back(concat(key, " (", tried, ")"));
  }
  return missing;
}

std::vector<std::pair<std::string, double>> stall_reasons(const ProfiledKernel& kernel) {
  std::vector<std::pair<std::string, double>> reasons;
  for (const MetricRow& row : metric_rows) {
    const std::string_view key = row.key;
    if (!key.starts_with(stall_key)) continue;
    if (const auto value = kernel.value(key); value) reasons.emplace_back(key.substr(stall_key.size()), *value);
  }
  std::stable_sort(reasons.begin(), reasons.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  return reasons;
}

std::string raw_table(std::string_view text) {
  std::string table;
  while (!text.empty()) {
    const std::string_view line = next_line(text);
    const bool header = table.empty() && trimmed(line).starts_with("\"ID\",");
    if (header || (!table.empty() && line.starts_with('"'))) table += concat(line, "\n");
  }
  return table;
}

std::string without_instances(std::string_view table) {
  std::string_view rest = table;
  const std::vector<std::string> columns = cells_of(next_line(rest));
  std::string shorter(table.substr(0, table.size() - rest.size()));
  while (!rest.empty()) {
    const std::string_view line = next_line(rest);
    std::vector<std::string> cells = cells_of(line);
    bool changed = false;
    for (size_t i = 0; i < std::min(cells.size(), columns.size()); ++i) {
      const size_t open = cells[i].find(" (");
      if (columns[i] == opcode_metric || open == std::string::npos || !number_of(cells[i].substr(0, open))) continue;
      cells[i].erase(open);
      changed = true;
    }
    std::string joined;
    for (const std::string& cell : cells) joined += concat(joined.empty() ? "" : ",", csv_cell(cell, true));
    shorter += concat(changed ? joined : std::string(line), "\n");
  }
  return shorter;
}

std::vector<ProfiledKernel> parse_raw_table(std::string_view table, int sm) {
  const std::vector<std::string> columns = cells_of(next_line(table));
  const auto has = [&](const char* column) {
    return std::find(columns.begin(), columns.end(), column) != columns.end();
  };
  if (!has("Kernel Name")) no_raw_page("it has no column \"Kernel Name\"");
  if (has("Metric Name")) no_raw_page("it has a row for each metric, as the details page has");
  const std::vector<std::string> units = cells_of(next_line(table));
  if (units.size() != columns.size() || !units[0].empty()) no_raw_page("its second row does not hold units");
  std::vector<ProfiledKernel> kernels;
  while (!table.empty()) {
    const std::vector<std::string> cells = cells_of(next_line(table));
    if (cells.size() != columns.size())
      no_raw_page(concat("a row has ", cells.size(), " cells, its header ", columns.size()));
    ProfiledKernel kernel;
    kernel.sm = sm;
    for (size_t i = 0; i < cells.size(); ++i) take_cell(kernel, columns[i], units[i], cells[i]);
    kernels.push_back(std::move(kernel));
  }
  return kernels;
}

std::vector<std::string> unknown_metrics(std::string_view messages, const std::vector<std::string>& requested) {
  std::string complaints;  // "==ERROR== Failed to find metric regex:^name(\.(sum|avg))?$"
  while (!messages.empty()) {
    const std::string_view line = next_line(messages);
    if (line.find("ailed to find metric") != line.npos || line.find("nknown metric") != line.npos)
      complaints += concat(line, "\n");
  }
  std::vector<std::string> unknown;
  for (const std::string& name : requested)
    if (names(complaints, name) || names(complaints, name.substr(0, name.find('.')))) unknown.push_back(name);
  return unknown;
}

}  // namespace rapt::lab
