// Converts the memory that marks have filled to stages, numbers and a trace file.
#include "lab/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "jit/sources.h"
#include "lab/process.h"
#include "lab/statistics.h"
#include "lab/tile_size.h"

namespace rapt::lab {
namespace {

constexpr const char* trace_file = "device/trace.cuh";
constexpr std::string_view stages_macro = "RAPT_TRACE_STAGES(";
constexpr size_t most_bytes = size_t{512} << 20;  // the largest memory for marks

int64_t div_up(int64_t n, int64_t by) { return (n + by - 1) / by; }

// The text between the quotes of RAPT_TRACE_STAGES("..." "..."), or "".
std::string list_in(const std::string& file, const std::string& text) {
  size_t at = text.find(stages_macro);
  // In a comment, or in the definition of the macro, no quote follows the macro's name.
  for (; at != text.npos; at = text.find(stages_macro, at + 1)) {
    const size_t open = text.find_first_not_of(" \t\n", at + stages_macro.size());
    const size_t line = text.rfind('\n', at) + 1;
    if (open != text.npos && text[open] == '"' && text.find_first_not_of(" \t", line) == at) break;
  }
  if (at == text.npos) return "";
  std::string list;
  for (size_t i = at + stages_macro.size(); i < text.size() && text[i] != ')'; ++i) {
    if (text[i] != '"') continue;
    const size_t close = text.find('"', i + 1);
    if (close == text.npos) invalid(file, ": ", stages_macro, "...): a quote is not closed");
    list += text.substr(i + 1, close - i - 1);
    i = close;
  }
  if (list.empty()) invalid(file, ": ", stages_macro, "...): must have names, such as \"wait|copy\"");
  return list;
}

// The stages of one warp in order of time. A stage lasts until the next mark. The last stage lasts until the warp's
// end.
TracedWarp warp_of(const TraceMemory& memory, size_t place) {
  const TraceShape& shape = memory.shape;
  const TraceWarp& stored = memory.of_warps[place];
  TracedWarp warp;
  warp.cta = static_cast<unsigned>(place / shape.warps), warp.warp = static_cast<unsigned>(place % shape.warps);
  warp.sm = stored.sm, warp.begin_cycles = stored.begin_cycles, warp.end_cycles = stored.end_cycles;
  const unsigned long long* marks = memory.marks.data() + place * shape.steps * shape.stages;
  for (unsigned step = 0; step < shape.steps; ++step)
    for (unsigned stage = 0; stage < shape.stages; ++stage)
      if (const unsigned long long cycles = marks[size_t{step} * shape.stages + stage]; cycles != 0)
        warp.stages.push_back({stage, step, cycles, 0});
  std::stable_sort(warp.stages.begin(), warp.stages.end(),
                   [](const TracedStage& a, const TracedStage& b) { return a.begin_cycles < b.begin_cycles; });
  for (size_t i = 0; i < warp.stages.size(); ++i) {
    const auto end = i + 1 < warp.stages.size() ? warp.stages[i + 1].begin_cycles : warp.end_cycles;
    warp.stages[i].cycles = end > warp.stages[i].begin_cycles ? end - warp.stages[i].begin_cycles : 0;
  }
  return warp;
}

// Replaces the "#" in the name of a role by the number of the warpgroup. Each warpgroup with this role gets a name.
void number_warpgroups(Trace& trace) {
  const auto numbered = [](const std::string& name) { return role_of(name).find('#') != std::string::npos; };
  std::set<unsigned> groups;
  for (const TracedWarp& warp : trace.warps)
    for (const TracedStage& stage : warp.stages)
      if (numbered(trace.names[stage.stage])) groups.insert(warp.warp / 4);
  std::map<std::pair<unsigned, unsigned>, unsigned> places;  // key: (stage, warpgroup); value: new number of the stage
  std::vector<std::string> names;
  const std::vector<std::string> old = std::move(trace.names);
  for (unsigned stage = 0; stage < old.size(); ++stage)
    if (!numbered(old[stage])) places[{stage, 0}] = static_cast<unsigned>(names.size()), names.push_back(old[stage]);
  for (const unsigned group : groups)
    for (unsigned stage = 0; stage < old.size(); ++stage) {
      if (!numbered(old[stage])) continue;
      places[{stage, group}] = static_cast<unsigned>(names.size());
      names.push_back(old[stage]);
      names.back().replace(old[stage].find('#'), 1, std::to_string(group));
    }
  for (TracedWarp& warp : trace.warps)
    for (TracedStage& stage : warp.stages)
      stage.stage = places.at({stage.stage, numbered(old[stage.stage]) ? warp.warp / 4 : 0});
  trace.names = std::move(names);
}

// Relates the cycle counters of the multiprocessors to the clock that they share. A step of this clock can be as large
// as 1 us, and its readings are rounded down. So the rate is an average over all multiprocessors, and the origin of
// each multiprocessor is chosen to fit all its readings.
void fit_clocks(const TraceMemory& memory, Trace& trace) {
  struct Range {
    unsigned long long begin_ns = ~0ull, end_ns = 0, begin_cycles = ~0ull, end_cycles = 0;
  };
  std::map<unsigned long long, Range> ranges;
  unsigned long long first_ns = ~0ull;
  const auto ended = [](const TraceWarp& w) { return w.begin_cycles != 0 && w.end_cycles != 0; };
  for (const TraceWarp& w : memory.of_warps) {
    if (!ended(w)) continue;
    Range& range = ranges[w.sm];
    range.begin_ns = std::min(range.begin_ns, w.begin_ns), range.end_ns = std::max(range.end_ns, w.end_ns);
    range.begin_cycles = std::min(range.begin_cycles, w.begin_cycles);
    range.end_cycles = std::max(range.end_cycles, w.end_cycles);
    first_ns = std::min(first_ns, w.begin_ns);
  }
  double ns = 0, cycles = 0;
  for (const auto& [sm, range] : ranges) {
    ns += static_cast<double>(range.end_ns - range.begin_ns);
    cycles += static_cast<double>(range.end_cycles - range.begin_cycles);
  }
  if (ns > 0 && cycles > 0) trace.ns_per_cycle = ns / cycles;
  for (const TraceWarp& w : memory.of_warps) {
    if (!ended(w)) continue;
    const auto origin = [&](unsigned long long at_ns, unsigned long long at_cycles) {
      return static_cast<double>(at_ns - first_ns) - static_cast<double>(at_cycles) * trace.ns_per_cycle;
    };
    const double known = std::max(origin(w.begin_ns, w.begin_cycles), origin(w.end_ns, w.end_cycles));
    const auto [entry, fresh] = trace.origin_ns.emplace(w.sm, known);
    if (!fresh) entry->second = std::max(entry->second, known);
  }
}

// The stages of the main loop. These are the stages that some warp begins more than once, and at least half as often as
// the most frequent stage of this warp. A warp begins some stages once for each tile, and others once for each block of
// keys. If a tile has more than two blocks, only the latter stages count.
std::vector<bool> repeated_stages(const Trace& trace) {
  std::vector<bool> repeated(trace.names.size());
  for (const TracedWarp& warp : trace.warps) {
    std::vector<size_t> counts(trace.names.size());
    for (const TracedStage& stage : warp.stages) ++counts[stage.stage];
    const size_t most = *std::max_element(counts.begin(), counts.end());
    for (size_t stage = 0; stage < counts.size(); ++stage)
      if (counts[stage] > 1 && 2 * counts[stage] >= most) repeated[stage] = true;
  }
  return repeated;
}

StageSummary summary_of(const Trace& trace, unsigned stage) {
  std::vector<double> cycles, counts;
  double of_stage = 0, of_warps = 0;
  for (const TracedWarp& warp : trace.warps) {
    double count = 0;
    for (const TracedStage& one : warp.stages)
      if (one.stage == stage) {
        cycles.push_back(static_cast<double>(one.cycles));
        of_stage += cycles.back(), count += 1;
      }
    if (count == 0) continue;
    counts.push_back(count);
    of_warps += static_cast<double>(warp.end_cycles - warp.begin_cycles);
  }
  StageSummary summary{role_of(trace.names[stage]), stage_of(trace.names[stage])};
  if (cycles.empty()) return summary;
  const Quartiles time = quartiles(cycles);
  summary.median_cycles = time.median, summary.q1 = time.q1, summary.q3 = time.q3;
  summary.per_warp = quartiles(counts).median;
  summary.share = of_warps > 0 ? of_stage / of_warps : 0;
  return summary;
}

// The cycles at which a CTA begins and ends, its first repeated stage begins, and its last repeated stage ends.
struct CtaTimes {
  unsigned long long begin = ~0ull, end = 0, first_step = ~0ull, last_step = 0;
};

void summarise_ctas(const Trace& trace, TraceSummary& summary) {
  const std::vector<bool> repeated = repeated_stages(trace);
  std::map<unsigned, CtaTimes> ctas;
  for (const TracedWarp& warp : trace.warps) {
    CtaTimes& cta = ctas[warp.cta];
    cta.begin = std::min(cta.begin, warp.begin_cycles), cta.end = std::max(cta.end, warp.end_cycles);
    for (const TracedStage& stage : warp.stages)
      if (repeated[stage.stage]) {
        cta.first_step = std::min(cta.first_step, stage.begin_cycles);
        cta.last_step = std::max(cta.last_step, stage.begin_cycles + stage.cycles);
      }
  }
  std::vector<double> whole, start, tail;
  for (const auto& [number, cta] : ctas) {
    const auto us = [&](unsigned long long cycles) { return static_cast<double>(cycles) * trace.ns_per_cycle / 1e3; };
    whole.push_back(us(cta.end - cta.begin));
    if (cta.last_step == 0) continue;
    start.push_back(us(cta.first_step - cta.begin));
    tail.push_back(us(cta.end - cta.last_step));
  }
  summary.cta_us = quartiles(whole).median;
  if (start.empty()) return;
  summary.start_us = quartiles(start).median, summary.tail_us = quartiles(tail).median;
}

void summarise_grid(const Trace& trace, TraceSummary& summary) {
  std::map<unsigned long long, std::pair<double, double>> sms;  // begin of the first CTA, end of the last CTA
  for (const TracedWarp& warp : trace.warps) {
    const double begin = trace.ns(warp, warp.begin_cycles), end = trace.ns(warp, warp.end_cycles);
    const auto [entry, fresh] = sms.emplace(warp.sm, std::pair{begin, end});
    if (fresh) continue;
    entry->second = {std::min(entry->second.first, begin), std::max(entry->second.second, end)};
  }
  double first_begin = 1e300, last_begin = -1e300, first_end = 1e300, last_end = -1e300;
  for (const auto& [sm, times] : sms) {
    first_begin = std::min(first_begin, times.first), last_begin = std::max(last_begin, times.first);
    first_end = std::min(first_end, times.second), last_end = std::max(last_end, times.second);
  }
  summary.sms = sms.size();
  summary.kernel_us = (last_end - first_begin) / 1e3;
  summary.ramp_us = (last_begin - first_begin) / 1e3, summary.drain_us = (last_end - first_end) / 1e3;
}

// As many multiprocessors as fit into the limit of stages; at least one.
std::set<unsigned long long> chosen_sms(const Trace& trace, size_t most_stages) {
  std::map<unsigned long long, size_t> counts;
  for (const TracedWarp& warp : trace.warps) counts[warp.sm] += warp.stages.size();
  std::set<unsigned long long> chosen;
  size_t count = 0;
  for (const auto& [sm, stages] : counts) {
    count += stages;
    if (!chosen.empty() && count > most_stages) break;
    chosen.insert(sm);
  }
  return chosen;
}

// The role that all stages of a warp have. Stages without a role are ignored. Returns "" if the stages have different
// roles or none.
std::string role_of_warp(const Trace& trace, const TracedWarp& warp) {
  std::set<std::string> roles;
  for (const TracedStage& stage : warp.stages) roles.insert(role_of(trace.names[stage.stage]));
  roles.erase("");
  return roles.size() == 1 ? *roles.begin() : "";
}

nlohmann::ordered_json name_event(const char* what, unsigned long long pid, unsigned tid, const std::string& name) {
  return {{"ph", "M"}, {"name", what}, {"pid", pid}, {"tid", tid}, {"args", {{"name", name}}}};
}

double percent(double part, double whole) { return whole > 0 ? 100 * part / whole : 0; }

}  // namespace

std::map<std::string, std::string> with_trace(std::map<std::string, std::string> files) {
  const auto own = files.find(trace_file);
  const std::string text(own != files.end() ? std::string_view(own->second) : jit::embedded_files().at(trace_file));
  files[trace_file] = "#define RAPT_TRACE_ON 1\n" + text;
  return files;
}

std::vector<std::string> trace_stages(const jit::Request& request) {
  for (const auto& [file, text] : jit::collect_sources(request).headers) {
    if (file == trace_file) continue;
    const std::string list = list_in(file, text);
    if (!list.empty()) return split_words(list, '|');
  }
  unsupported("--trace: the source of ", request.label, " has no marks: ", stages_macro,
              "...) and RAPT_TRACE of src/kernels/device/trace.cuh");
}

TraceShape trace_shape(const Problem& problem, const KernelConfig& config, const LaunchShape& launch, int threads,
                       size_t stages) {
  TraceShape shape;
  shape.all_ctas = launch.grid_x * launch.grid_y * launch.grid_z;
  shape.warps = static_cast<unsigned>(div_up(threads, 32));
  shape.stages = static_cast<unsigned>(stages);
  const int64_t keys = std::max<int64_t>(keys_of_a_step(config), 1),
                rows = std::max<int64_t>(rows_of_a_tile(config), 1);
  // attention_scalar computes parts of head_dim and head_dim_v one after the other.
  const auto slices = [&](int64_t dim, const char* field) {
    return div_up(dim, std::max<int64_t>(config.number(field, dim), 1));
  };
  const int64_t tiles =
      div_up(problem.seqlen_q, rows) * problem.batch * problem.heads_q * slices(problem.head_dim_v, "head_dim_v");
  int64_t tiles_of_a_cta = std::max<int64_t>(div_up(tiles, std::max<int64_t>(shape.all_ctas, 1)), 1);
  if (tiles_of_a_cta > 1) tiles_of_a_cta += div_up(tiles_of_a_cta, 2);
  // At the end a warp waits once more and gets no tile. This wait is a step, too.
  shape.steps = static_cast<unsigned>(
      std::max<int64_t>(div_up(problem.seqlen_k, keys) * slices(problem.head_dim, "head_dim"), 1) * tiles_of_a_cta + 1);
  const size_t cta_bytes = size_t{shape.warps} * shape.steps * shape.stages * sizeof(unsigned long long);
  shape.ctas =
      static_cast<unsigned>(std::clamp<size_t>(most_bytes / std::max<size_t>(cta_bytes, 1), 1, shape.all_ctas));
  return shape;
}

Trace read_trace(std::vector<std::string> names, const TraceMemory& memory) {
  Trace trace;
  trace.names = std::move(names);
  trace.shape = memory.shape;
  trace.lost = memory.lost != 0;
  for (size_t place = 0; place < memory.of_warps.size(); ++place)
    if (memory.of_warps[place].begin_cycles != 0 && memory.of_warps[place].end_cycles != 0)
      trace.warps.push_back(warp_of(memory, place));
  if (trace.warps.empty())
    throw Error(ErrorCode::internal,
                "the kernel stored no begin and end: it must call RAPT_TRACE_BEGIN(...) and RAPT_TRACE_END()");
  number_warpgroups(trace);
  fit_clocks(memory, trace);
  return trace;
}

std::string role_of(const std::string& name) {
  const size_t colon = name.find(": ");
  return colon == name.npos ? "" : name.substr(0, colon);
}

std::string stage_of(const std::string& name) {
  const size_t colon = name.find(": ");
  return colon == name.npos ? name : name.substr(colon + 2);
}

TraceSummary summarise(const Trace& trace) {
  TraceSummary summary;
  for (unsigned stage = 0; stage < trace.names.size(); ++stage) summary.stages.push_back(summary_of(trace, stage));
  summarise_ctas(trace, summary);
  summarise_grid(trace, summary);
  return summary;
}

std::string to_text(const Trace& trace, const TraceSummary& summary) {
  std::string text = fmt::format("{:<10} {:<14} {:>9} {:>14} {:>19} {:>8}\n", "role", "stage", "per warp",
                                 "median cycles", "quartiles", "share");
  for (const StageSummary& row : summary.stages) {
    text += fmt::format("{:<10} {:<14} {:>9.0f} ", row.role.empty() ? "all" : row.role, row.stage, row.per_warp);
    text += row.per_warp == 0 ? fmt::format("{:>14} {:>19} {:>8}\n", "-", "-", "-")
                              : fmt::format("{:>14.0f} {:>19} {:>7.1f}%\n", row.median_cycles,
                                            fmt::format("{:.0f} to {:.0f}", row.q1, row.q3), 100 * row.share);
  }
  text += fmt::format("CTA      {:.2f} us (median): start-up {:.2f} us ({:.0f}%), tail {:.2f} us ({:.0f}%)\n",
                      summary.cta_us, summary.start_us, percent(summary.start_us, summary.cta_us), summary.tail_us,
                      percent(summary.tail_us, summary.cta_us));
  text += fmt::format(
      "grid     {:.2f} us on {} multiprocessors; the last one begins after {:.2f} us, the first one is idle {:.2f} us "
      "before the end\n",
      summary.kernel_us, summary.sms, summary.ramp_us, summary.drain_us);
  if (trace.shape.ctas < trace.shape.all_ctas)
    text += fmt::format("note     only the first {} of {} CTAs are recorded\n", trace.shape.ctas, trace.shape.all_ctas);
  if (trace.lost) text += "note     some steps had no place in the buffer and are missing\n";
  return text;
}

nlohmann::ordered_json to_json(const Trace& trace, const TraceSummary& summary) {
  auto stages = nlohmann::ordered_json::array();
  for (const StageSummary& row : summary.stages)
    stages.push_back({{"role", row.role},
                      {"stage", row.stage},
                      {"per_warp", row.per_warp},
                      {"median_cycles", row.median_cycles},
                      {"q1_cycles", row.q1},
                      {"q3_cycles", row.q3},
                      {"share", row.share}});
  return {{"stages", stages},
          {"cta_us", summary.cta_us},
          {"start_us", summary.start_us},
          {"tail_us", summary.tail_us},
          {"kernel_us", summary.kernel_us},
          {"ramp_us", summary.ramp_us},
          {"drain_us", summary.drain_us},
          {"multiprocessors", summary.sms},
          {"cycles_per_ns", 1 / trace.ns_per_cycle},
          {"ctas", trace.shape.ctas},
          {"all_ctas", trace.shape.all_ctas},
          {"lost", trace.lost}};
}

nlohmann::ordered_json chrome_trace(const Trace& trace, const std::string& title, size_t most_stages) {
  const std::set<unsigned long long> sms = chosen_sms(trace, most_stages);
  auto events = nlohmann::ordered_json::array();
  for (const unsigned long long sm : sms)
    events.push_back(name_event("process_name", sm, 0, fmt::format("multiprocessor {}", sm)));
  for (const TracedWarp& warp : trace.warps) {
    if (!sms.contains(warp.sm)) continue;
    const unsigned tid = warp.cta * trace.shape.warps + warp.warp;
    const std::string role = role_of_warp(trace, warp);
    events.push_back(name_event("thread_name", warp.sm, tid,
                                fmt::format("CTA {} warp {}{}", warp.cta, warp.warp, role.empty() ? "" : " " + role)));
    for (const TracedStage& stage : warp.stages)
      events.push_back({{"ph", "X"},
                        {"name", stage_of(trace.names[stage.stage])},
                        {"cat", role_of(trace.names[stage.stage])},
                        {"pid", warp.sm},
                        {"tid", tid},
                        {"ts", trace.ns(warp, stage.begin_cycles) / 1e3},
                        {"dur", static_cast<double>(stage.cycles) * trace.ns_per_cycle / 1e3},
                        {"args", {{"step", stage.step}, {"cycles", stage.cycles}}}});
  }
  return {{"traceEvents", events},
          {"displayTimeUnit", "ns"},
          {"otherData",
           {{"title", title},
            {"multiprocessors_written", sms.size()},
            {"multiprocessors", trace.origin_ns.size()},
            {"cycles_per_ns", 1 / trace.ns_per_cycle}}}};
}

}  // namespace rapt::lab
