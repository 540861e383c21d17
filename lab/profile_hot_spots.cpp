// Reads ncu's source page, and sums its samples for each instruction and each source line.
#include "lab/profile_hot_spots.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "lab/csv.h"
#include "lab/cubin.h"

namespace rapt::lab {
namespace {

constexpr const char* code_section = ".text.rapt_kernel";
constexpr std::string_view stall_prefix = "stall_", not_issued = "(Not Issued)", selected = "stall_selected";
// The names of the column of samples in different versions of ncu. The first name that is found is used.
constexpr const char* sample_columns[] = {"# Samples", "Samples", "Warp Stall Sampling (All Samples)",
                                          "Warp Stall Sampling (All Cycles)"};

// Converts the name of a column to the name of a stall reason in the metrics. The source page uses shorter words.
std::string reason_of(std::string_view column) {
  constexpr std::pair<std::string_view, const char*> words[] = {{"imc", "imc_miss"},
                                                                {"lg", "lg_throttle"},
                                                                {"long_sb", "long_scoreboard"},
                                                                {"math", "math_pipe_throttle"},
                                                                {"mio", "mio_throttle"},
                                                                {"no_inst", "no_instruction"},
                                                                {"short_sb", "short_scoreboard"},
                                                                {"sleep", "sleeping"},
                                                                {"tex", "tex_throttle"}};
  column.remove_prefix(stall_prefix.size());
  for (const auto& [shorter, longer] : words)
    if (column == shorter) return longer;
  return std::string(column);
}

// Converts "0x7f00" or "7f00" to a number.
std::optional<uint64_t> address_of(std::string_view text) {
  text = trimmed(text);
  if (text.starts_with("0x")) text.remove_prefix(2);
  uint64_t value = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (text.empty() || status != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// The cells of the page's table: first the names of the columns, then one row for each instruction.
struct Table {
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;

  std::optional<size_t> find(std::string_view name) const {
    const auto found = std::find(columns.begin(), columns.end(), name);
    if (found == columns.end()) return std::nullopt;
    return static_cast<size_t>(found - columns.begin());
  }
};

// The first table in the text. The lines around it (==WARNING== and the kernel's name) are left out.
Table table_in(std::string_view text) {
  Table table;
  while (!text.empty()) {
    std::vector<std::string> cells = cells_of(next_line(text));
    if (table.columns.empty()) {
      if (std::find(cells.begin(), cells.end(), "Source") != cells.end()) table.columns = std::move(cells);
    } else if (cells.size() == table.columns.size()) {
      table.rows.push_back(std::move(cells));
    } else {
      break;  // another kernel
    }
  }
  return table;
}

// Replaces the addresses of instructions of this kernel by offsets, as in "BRA 0x7fc5837a8220".
std::string with_offsets(std::string_view text, uint64_t first, uint64_t last) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    size_t end = at + 1;
    if (text.substr(at).starts_with("0x"))
      end = std::min(text.find_first_not_of("0123456789abcdefABCDEF", at + 2), text.size());
    const std::string_view word = text.substr(at, end - at);
    const auto address = word.size() > 2 ? address_of(word) : std::nullopt;
    if (address && first != 0 && *address >= first && *address <= last)
      out += fmt::format("{:#x}", *address - first);
    else
      out += word;
    at = end;
  }
  return out;
}

// Replaces addresses by offsets in the columns with addresses and SASS. Returns the offset of each row.
std::vector<uint64_t> make_relative(Table& table) {
  const auto addresses = table.find("Address"), source = table.find("Source");
  std::vector<uint64_t> offsets;
  std::optional<uint64_t> first, last;
  if (addresses && !table.rows.empty()) {
    first = address_of(table.rows.front()[*addresses]), last = address_of(table.rows.back()[*addresses]);
    table.columns[*addresses] = "Offset";
  }
  for (std::vector<std::string>& row : table.rows) {
    const auto address = addresses ? address_of(row[*addresses]) : std::nullopt;
    offsets.push_back(first && address && *address >= *first ? *address - *first : offsets.size() * instruction_bytes);
    if (addresses) row[*addresses] = fmt::format("{:#x}", offsets.back());
    row[*source] = trimmed(with_offsets(row[*source], first.value_or(0), last.value_or(0)));
  }
  return offsets;
}

// The table as CSV. Cells with zero are written as empty cells, because most cells are zero.
std::string csv_of(const Table& table) {
  const auto says_nothing = [](const std::string& cell) { return cell.empty() || cell == "0" || cell == "-"; };
  std::vector<size_t> kept;
  for (size_t i = 0; i < table.columns.size(); ++i) {
    const auto in_column = [&](const std::vector<std::string>& row) { return says_nothing(row[i]); };
    if (!table.columns[i].ends_with(not_issued) && !std::all_of(table.rows.begin(), table.rows.end(), in_column))
      kept.push_back(i);
  }
  std::string csv;
  const auto write = [&](const std::vector<std::string>& cells) {
    for (const size_t i : kept)
      csv += concat(i == kept[0] ? "" : ",", says_nothing(cells[i]) ? "" : csv_cell(cells[i]));
    csv += '\n';
  };
  write(table.columns);
  for (const std::vector<std::string>& row : table.rows) write(row);
  return csv;
}

SassPage no_page(const std::string& why) {
  SassPage page;
  page.why = why;
  return page;
}

double number_in(const std::vector<std::string>& row, size_t column) { return number_of(row[column]).value_or(0); }

// ---- Sums.

struct Sum {
  double samples = 0;
  std::vector<double> stalls;

  void add(const SassInstruction& one) {
    samples += one.samples;
    stalls.resize(std::max(stalls.size(), one.stalls.size()));
    for (size_t i = 0; i < one.stalls.size(); ++i) stalls[i] += one.stalls[i];
  }
};

MainStall main_stall(const SassPage& page, const Sum& sum) {
  const auto most = std::max_element(sum.stalls.begin(), sum.stalls.end());
  if (most == sum.stalls.end() || *most <= 0 || sum.samples <= 0) return {};
  return {page.reasons[static_cast<size_t>(most - sum.stalls.begin())], *most / sum.samples};
}

std::string to_string(const SourceLine& line) { return concat(line.file, ":", line.line); }

// The innermost line in the kernel's own file. In `source` the last line is in the generated translation unit, and the
// line before it is in the kernel's own file.
SourceLine own_line(const std::vector<SourceLine>& source) {
  if (source.size() < 2) return source.empty() ? SourceLine() : source[0];
  const std::string& own = source[source.size() - 2].file;
  return *std::find_if(source.begin(), source.end(), [&](const SourceLine& each) { return each.file == own; });
}

template <class Spot>
void sort_by_samples(std::vector<Spot>& spots) {
  std::stable_sort(spots.begin(), spots.end(), [](const Spot& a, const Spot& b) { return a.samples > b.samples; });
}

struct LineSum {
  Sum sum;
  std::map<std::pair<std::string, int>, double> inner;
};

std::vector<HotLine> hot_lines(const SassPage& page, const KernelLines& lines) {
  std::map<std::pair<std::string, int>, LineSum> sums;
  for (const SassInstruction& one : page.instructions) {
    if (one.samples <= 0) continue;
    const std::vector<SourceLine> source = lines.at(one.offset);
    if (source.empty()) continue;
    const SourceLine own = own_line(source);
    LineSum& line = sums[{own.file, own.line}];
    line.sum.add(one);
    line.inner[{source[0].file, source[0].line}] += one.samples;
  }
  std::vector<HotLine> hot;
  for (const auto& [place, line] : sums) {
    const auto inner = std::max_element(line.inner.begin(), line.inner.end(),
                                        [](const auto& a, const auto& b) { return a.second < b.second; });
    HotLine one;
    one.line = {place.first, place.second};
    one.samples = line.sum.samples, one.share = one.samples / page.samples;
    one.text = lines.text_of(one.line);
    one.stall = main_stall(page, line.sum);
    one.inner = {inner->first.first, inner->first.second}, one.inner_share = inner->second / one.samples;
    hot.push_back(std::move(one));
  }
  sort_by_samples(hot);
  return hot;
}

// "ptx/mma.cuh:40 from sm80/attention_sm80.cuh:151"
std::string to_string(const std::vector<SourceLine>& source) {
  const SourceLine own = own_line(source);
  return own == source[0] ? to_string(own) : concat(to_string(source[0]), " from ", to_string(own));
}

std::string to_string(const MainStall& stall) {
  return stall.reason.empty() ? "not stalled" : fmt::format("{} {:.0f}%", stall.reason, 100 * stall.share);
}
// The hottest instructions. If several have the same source line and the same stall reason, only the hottest of them is
// listed.
std::vector<HotInstruction> listed(const std::vector<HotInstruction>& all, size_t most) {
  std::vector<HotInstruction> some;
  for (const HotInstruction& one : all) {
    const auto like = [&](const HotInstruction& other) {
      return !one.source.empty() && other.source == one.source && other.stall.reason == one.stall.reason;
    };
    if (some.size() < most && std::none_of(some.begin(), some.end(), like)) some.push_back(one);
  }
  return some;
}

std::string shortened(const std::string& text, size_t most) {
  return text.size() <= most ? text : text.substr(0, most - 3) + "...";
}

}  // namespace

SassPage parse_sass_page(std::string_view text) {
  Table table = table_in(text);
  if (table.columns.empty()) return no_page("ncu printed no source page");
  std::optional<size_t> samples;
  for (const char* name : sample_columns)
    if (!samples) samples = table.find(name);
  if (!samples) return no_page("the source page of this ncu has no column \"# Samples\"");
  if (table.rows.empty()) return no_page("the source page has no instructions");
  SassPage page;
  std::vector<size_t> stalls;
  for (size_t i = 0; i < table.columns.size(); ++i) {
    const std::string_view name = table.columns[i];
    if (!name.starts_with(stall_prefix) || name.ends_with(not_issued) || name == selected) continue;
    stalls.push_back(i);
    page.reasons.push_back(reason_of(name));
  }
  const std::vector<uint64_t> offsets = make_relative(table);
  const size_t source = *table.find("Source");
  for (size_t i = 0; i < table.rows.size(); ++i) {
    const std::vector<std::string>& row = table.rows[i];
    SassInstruction one{offsets[i], row[source], number_in(row, *samples), {}};
    for (const size_t column : stalls) one.stalls.push_back(number_in(row, column));
    page.samples += one.samples;
    page.instructions.push_back(std::move(one));
  }
  page.csv = csv_of(table);
  if (page.samples <= 0) page.why = "ncu took no samples of this kernel";
  return page;
}

KernelLines::KernelLines(jit::Request request, const jit::Image& image) : request_(std::move(request)) {
  try {
    if (image.arch.starts_with("compute_")) invalid("the driver compiles PTX, and does not give the result");
    const auto code = cubin_section(image.bytes, code_section);
    if (!code) invalid("the cubin has no section ", code_section);
    table_.emplace(image.bytes);
    if (table_->empty()) {
      request_.arch = image.arch, request_.line_info = true;
      const jit::Image compiled = jit::compile(request_);
      table_.emplace(compiled.bytes);
      if (cubin_section(compiled.bytes, code_section) != code)
        invalid("NVRTC ", compiled.compiler, " compiles other machine code than the kernel of the pack (NVRTC ",
                image.compiler, ")");
    }
    if (table_->empty()) invalid("NVRTC made no line table");
    instructions = code->size() / instruction_bytes;
    why.clear();
  } catch (const Error& error) {
    table_.reset();
    why = error.what();
  }
}

std::string KernelLines::text_of(const SourceLine& line) const {
  std::string_view text;
  if (const auto own = request_.files.find(line.file); own != request_.files.end())
    text = own->second;
  else if (const auto embedded = jit::embedded_files().find(line.file); embedded != jit::embedded_files().end())
    text = embedded->second;
  else if (line.file == "unit.cu")
    text = request_.unit;
  for (int i = 1; i < line.line && !text.empty(); ++i) next_line(text);
  return std::string(trimmed(next_line(text)));
}

HotSpots hot_spots(const SassPage& page, const KernelLines& lines) {
  HotSpots spots;
  spots.why = page.why, spots.samples = page.samples;
  if (!page.why.empty()) return spots;
  spots.why_no_lines = lines.why;
  if (lines.why.empty() && lines.instructions != page.instructions.size())
    spots.why_no_lines =
        concat("ncu shows ", page.instructions.size(), " instructions, the compiled kernel has ", lines.instructions);
  const bool with_lines = spots.why_no_lines.empty();
  for (const SassInstruction& one : page.instructions) {
    if (one.samples <= 0) continue;
    Sum sum;
    sum.add(one);
    spots.instructions.push_back({one.offset, one.text, one.samples, one.samples / page.samples, main_stall(page, sum),
                                  with_lines ? lines.at(one.offset) : std::vector<SourceLine>()});
  }
  sort_by_samples(spots.instructions);
  if (with_lines) spots.lines = hot_lines(page, lines);
  return spots;
}

std::string to_text(const HotSpots& spots) {
  constexpr size_t most = 5, sass_width = 44, line_width = 60;
  if (!spots.why.empty()) return concat("hot      not available: ", spots.why, "\n");
  std::string text;
  for (const HotInstruction& one : listed(spots.instructions, most)) {
    text += fmt::format("hot      {:>4.1f}%  {:<23}  {:#07x}  {}{}\n", 100 * one.share, to_string(one.stall),
                        one.offset, shortened(one.text, sass_width),
                        one.source.empty() ? "" : concat("  (", to_string(one.source), ")"));
  }
  for (size_t i = 0; i < std::min(most, spots.lines.size()); ++i) {
    const HotLine& one = spots.lines[i];
    text += fmt::format(
        "hot line {:>4.1f}%  {:<23}  {}  {}{}\n", 100 * one.share, to_string(one.stall), to_string(one.line),
        shortened(one.text, line_width),
        one.inner == one.line ? "" : fmt::format("  ({:.0f}% in {})", 100 * one.inner_share, to_string(one.inner)));
  }
  if (!spots.why_no_lines.empty()) text += concat("hot line not available: ", spots.why_no_lines, "\n");
  return text;
}

nlohmann::ordered_json to_json(const HotSpots& spots) {
  constexpr size_t most = 20;
  auto instructions = nlohmann::ordered_json::array(), lines = nlohmann::ordered_json::array();
  const auto stall_json = [](const MainStall& stall) -> nlohmann::ordered_json {
    if (stall.reason.empty()) return nullptr;
    return {{"reason", stall.reason}, {"percent", 100 * stall.share}};
  };
  for (size_t i = 0; i < std::min(most, spots.instructions.size()); ++i) {
    const HotInstruction& one = spots.instructions[i];
    auto source = nlohmann::ordered_json::array();
    for (const SourceLine& line : one.source) source.push_back(to_string(line));
    instructions.push_back({{"offset", one.offset},
                            {"sass", one.text},
                            {"samples", one.samples},
                            {"percent", 100 * one.share},
                            {"stall", stall_json(one.stall)},
                            {"source", source}});
  }
  for (size_t i = 0; i < std::min(most, spots.lines.size()); ++i) {
    const HotLine& one = spots.lines[i];
    lines.push_back({{"line", to_string(one.line)},
                     {"text", one.text},
                     {"samples", one.samples},
                     {"percent", 100 * one.share},
                     {"stall", stall_json(one.stall)},
                     {"most_in", to_string(one.inner)},
                     {"most_in_percent", 100 * one.inner_share}});
  }
  nlohmann::ordered_json json = {{"samples", spots.samples}, {"instructions", instructions}, {"lines", lines}};
  if (!spots.why.empty()) json["why"] = spots.why;
  if (!spots.why_no_lines.empty()) json["why_no_lines"] = spots.why_no_lines;
  return json;
}

}  // namespace rapt::lab
