// The ledger of shipped kernels: read, written, judged, compared.
// Used by pack.cpp, info.cpp and tests.
#include "lab/ledger.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"

namespace rapt::lab {
namespace {

using json = nlohmann::ordered_json;

// Where a kernel that fills less than least_occupancy needs a written reason: the smallest cards it is meant for.
constexpr const char* judged_arch = "sm_89";

// One table of the columns of a row: written, read and compared by it.
template <class Row, class Visit>
void visit_columns(Row& row, const Visit& visit) {
  visit("arch", row.arch);
  visit("family", row.family);
  visit("config", row.config);
  visit("problem", row.problem);
  visit("threads", row.threads);
  visit("registers", row.registers);
  visit("barriers", row.barriers);
  visit("spill_bytes", row.spill_bytes);
  visit("stack_bytes", row.stack_bytes);
  visit("static_bytes", row.static_bytes);
  visit("dynamic_bytes", row.dynamic_bytes);
  visit("blocks_per_sm", row.blocks_per_sm);
  visit("occupancy", row.occupancy);
}

json to_json(const LedgerRow& row) {
  json object;
  visit_columns(row, [&](const char* column, const auto& value) { object[column] = value; });
  return object;
}

LedgerRow row_from(const json& object) {
  LedgerRow row;
  size_t columns = 0;
  visit_columns(row, [&](const char* column, auto& value) {
    object.at(column).get_to(value);
    ++columns;
  });
  if (object.size() != columns) invalid(row.name(), ": ", object.size(), " columns: must be ", columns);
  return row;
}

// An array with one element a line.
std::string lines_of(const json& array) {
  std::string text = "[";
  for (const json& element : array) text += concat(text == "[" ? "\n    " : ",\n    ", element.dump());
  return text + (array.empty() ? "]" : "\n  ]");
}

void sort_rows(Ledger& ledger) {
  std::sort(ledger.rows.begin(), ledger.rows.end(),
            [](const LedgerRow& a, const LedgerRow& b) { return a.name() < b.name(); });
}

// Whether all words of `some` stand in `text`.
bool has_words(const std::string& text, const std::string& some) {
  std::istringstream words(some);
  for (std::string word; words >> word;)
    if ((" " + text + " ").find(" " + word + " ") == std::string::npos) return false;
  return true;
}

bool needs_reason(const LedgerRow& row) { return row.arch == judged_arch && row.occupancy < least_occupancy; }

std::map<std::string, const LedgerRow*> by_name(const Ledger& ledger) {
  std::map<std::string, const LedgerRow*> rows;
  for (const LedgerRow& row : ledger.rows) rows[row.name()] = &row;
  return rows;
}

LedgerRow row_of(const PlannedKernel& kernel, const jit::Image& image) {
  const jit::Resources found = jit::parse_resources(image.log);
  if (!found.known)
    invalid("--ledger: ", kernel.device.arch,
            ": the compiler tells no registers for it; must be sm_NN, which is compiled to machine code");
  LedgerRow row;
  row.arch = kernel.device.arch, row.family = kernel.family, row.config = kernel.config, row.problem = kernel.problem;
  row.threads = kernel.unit.threads, row.registers = found.registers, row.barriers = found.barriers;
  row.spill_bytes = found.spill_store_bytes + found.spill_load_bytes, row.stack_bytes = found.stack_bytes;
  row.static_bytes = found.shared_bytes, row.dynamic_bytes = static_cast<int>(kernel.unit.smem_bytes);
  const Occupancy fits = occupancy(
      kernel.device, {row.registers, row.threads, row.barriers, int64_t{row.static_bytes} + row.dynamic_bytes});
  row.blocks_per_sm = fits.blocks;
  row.occupancy = std::round(fits.share * 1000) / 1000;
  return row;
}

}  // namespace

// Written by cmake/RaptEmbed.cmake: resources.json.
const std::map<std::string_view, std::string_view>& embedded_ledger();

Ledger shipped_ledger() {
  const auto& [name, text] = *embedded_ledger().begin();
  return parse_ledger(text, std::string(name));
}

Ledger parse_ledger(std::string_view text, const std::string& where) {
  try {
    const json all = json::parse(text);
    Ledger ledger{all.at("nvrtc").get<std::string>(), {}, {}};
    for (const json& object : all.at("reasons"))
      ledger.reasons.push_back({object.at("kernels").get<std::string>(), object.at("reason").get<std::string>()});
    for (const json& object : all.at("kernels")) ledger.rows.push_back(row_from(object));
    sort_rows(ledger);
    const auto twice = std::adjacent_find(ledger.rows.begin(), ledger.rows.end(),
                                          [](const LedgerRow& a, const LedgerRow& b) { return a.name() == b.name(); });
    if (twice != ledger.rows.end()) invalid(twice->name(), " stands there twice");
    return ledger;
  } catch (const std::exception& error) {
    invalid(where, ": is no ledger of kernels: ", error.what());
  }
}

std::vector<size_t> Ledger::reasons_of(const LedgerRow& row) const {
  std::vector<size_t> found;
  for (size_t i = 0; i < reasons.size() && row.occupancy < least_occupancy; ++i)
    if (has_words(row.name(), reasons[i].kernels)) found.push_back(i);
  return found;
}

std::string to_text(Ledger ledger) {
  sort_rows(ledger);
  json reasons = json::array(), rows = json::array();
  for (const LedgerReason& r : ledger.reasons) reasons.push_back({{"kernels", r.kernels}, {"reason", r.reason}});
  for (const LedgerRow& row : ledger.rows) rows.push_back(to_json(row));
  return concat("{\n  \"nvrtc\": ", json(ledger.nvrtc).dump(), ",\n  \"reasons\": ", lines_of(reasons),
                ",\n  \"kernels\": ", lines_of(rows), "\n}\n");
}

Ledger ledger_of(const std::vector<PlannedKernel>& kernels, const std::vector<jit::Image>& images,
                 const Ledger& before) {
  Ledger ledger;
  ledger.reasons = before.reasons;
  for (size_t i = 0; i < kernels.size(); ++i) {
    ledger.rows.push_back(row_of(kernels[i], images[i]));
    ledger.nvrtc = images[i].compiler;
  }
  sort_rows(ledger);
  return ledger;
}

std::vector<std::string> faults_of(const Ledger& ledger) {
  std::vector<std::string> faults;
  std::map<std::string, size_t> kernels;  // of an architecture
  std::vector<bool> used(ledger.reasons.size());
  for (const LedgerRow& row : ledger.rows) {
    ++kernels[row.arch];
    const auto fault = [&](const auto&... parts) { faults.push_back(concat(row.name(), ": ", parts...)); };
    const int shared = row.static_bytes + row.dynamic_bytes, most = device_preset(row.arch).smem_per_block;
    if (row.spill_bytes > 0) fault(row.spill_bytes, " bytes of registers spilled: must be 0");
    if (shared > most) fault(shared, " bytes of shared memory: at most ", most);
    if (shared <= most && row.blocks_per_sm == 0) fault("no block of it fits on a multiprocessor");
    if (!needs_reason(row)) continue;
    const std::vector<size_t> reasons = ledger.reasons_of(row);
    for (const size_t i : reasons) used[i] = true;
    if (reasons.empty())
      fault("occupancy ", row.occupancy, " is below ", least_occupancy, ", and no reason in the ledger names it");
  }
  for (size_t i = 0; i < used.size() && kernels.contains(judged_arch); ++i)
    if (!used[i]) faults.push_back(concat("the reason for \"", ledger.reasons[i].kernels, "\" is needed by no kernel"));
  for (const auto& [arch, count] : kernels)
    if (count > kernels_allowed) faults.push_back(concat(arch, ": ", count, " kernels: at most ", kernels_allowed));
  return faults;
}

std::vector<std::string> differences(const Ledger& before, const Ledger& now) {
  std::vector<std::string> found;
  const auto old_rows = by_name(before), new_rows = by_name(now);
  for (const auto& [name, old] : old_rows)
    if (!new_rows.contains(name)) found.push_back(name + ": in the ledger, but no shipped problem needs it now");
  for (const auto& [name, row] : new_rows) {
    const auto old = old_rows.find(name);
    if (old == old_rows.end()) {
      found.push_back(name + ": not in the ledger");
      continue;
    }
    const json is = to_json(*row), was = to_json(*old->second);
    for (const auto& [column, value] : is.items())
      if (was[column] != value)
        found.push_back(concat(name, ": ", column, " is ", value.dump(), ", the ledger says ", was[column].dump()));
  }
  return found;
}

}  // namespace rapt::lab
