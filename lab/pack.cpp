// rapt pack: compiles the kernels of problem lines ahead of time into one file, without a GPU. It can also compare the
// kernels' resources with the ledger, or write the ledger. For rapt info, this file prints the ledger. Called by
// program.cpp.
#include "lab/pack.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "cpu/threads.h"
#include "lab/file.h"
#include "lab/ledger.h"
#include "lab/output.h"
#include "lab/variant.h"

namespace rapt::lab {
namespace {

struct Compiled {
  KernelSelection selection;
  std::vector<jit::Image> images;  // one for each of selection.kernels
  std::set<std::string> packed;    // signatures of the kernels in the pack
  double seconds = 0;              // wall time
};

struct Problems {
  std::vector<Problem> all, packed;
};

Problems problems_of(const PackOptions& options) {
  std::vector<Problem> problems, packed;
  if (!options.words.empty()) problems.push_back(parse_problem(joined(options.words)));
  packed = problems;
  for (const std::string& cases : options.cases)
    for (const check::Case& c : cases_named("--cases", cases)) {
      problems.push_back(c.problem());
      if (c.packed) packed.push_back(problems.back());
    }
  if (problems.empty()) invalid("pack: give a problem line, or --cases with a set that is not empty");
  return {std::move(problems), std::move(packed)};
}

Compiled compile(const PackOptions& options) {
  Compiled result;
  const Problems problems = problems_of(options);
  const std::vector<Device> devices = gpu_presets(options.common.arch);
  const KernelOverrides overrides = overrides_of(options.common);
  result.selection = select_kernels(problems.all, devices, overrides);
  for (const PlannedKernel& kernel : select_kernels(problems.packed, devices, overrides).kernels)
    result.packed.insert(kernel.signature);
  require_compiler("pack");
  const int threads = options.common.threads > 0 ? options.common.threads : cpu::available_threads();
  const auto begin = std::chrono::steady_clock::now();
  result.images = compile_kernels(result.selection.kernels, threads);
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return result;
}

struct Total {
  size_t kernels = 0, bytes = 0;
  double seconds = 0;  // sum over all compilations
};

std::map<std::string, Total> totals_of(const Compiled& compiled) {
  std::map<std::string, Total> totals;
  for (const jit::Image& image : compiled.images) {
    Total& total = totals[image.arch];
    total.kernels += 1;
    total.bytes += image.bytes.size();
    total.seconds += image.milliseconds / 1000;
  }
  return totals;
}

std::vector<jit::Image> packed_images(const Compiled& compiled) {
  std::vector<jit::Image> images;
  for (size_t i = 0; i < compiled.images.size(); ++i)
    if (compiled.packed.contains(compiled.selection.kernels[i].signature)) images.push_back(compiled.images[i]);
  return images;
}

void print_table(const Compiled& compiled, bool variant) {
  fmt::print("{:<12} {:>8} {:>12} {:>18}\n", "arch", "kernels", "bytes", "compile seconds");
  for (const auto& [arch, total] : totals_of(compiled))
    fmt::print("{:<12} {:>8} {:>12} {:>18.1f}\n", arch, total.kernels, total.bytes, total.seconds);
  for (const KernelSelection::Skipped& skipped : compiled.selection.skipped)
    fmt::print("skipped   {} on {}: {}\n", skipped.problem, skipped.arch, skipped.why);
  if (variant)
    for (size_t i = 0; i < compiled.images.size(); ++i)
      fmt::print("kernel    {}\nsass      {}\n", to_string(compiled.selection.kernels[i], compiled.images[i]),
                 instruction_line(compiled.images[i]));
  const std::string compiler = compiled.images.empty() ? "none" : compiled.images[0].compiler;
  fmt::print("compiled  {} kernels in {:.1f} s with NVRTC {}\n", compiled.images.size(), compiled.seconds, compiler);
}

nlohmann::ordered_json to_json(const Compiled& compiled) {
  auto kernels = nlohmann::ordered_json::array(), skipped = nlohmann::ordered_json::array();
  for (size_t i = 0; i < compiled.images.size(); ++i) {
    const PlannedKernel& kernel = compiled.selection.kernels[i];
    const jit::Image& image = compiled.images[i];
    kernels.push_back({{"arch", image.arch},
                       {"family", kernel.family},
                       {"config", kernel.config},
                       {"problem", kernel.problem},
                       {"signature", kernel.signature},
                       {"bytes", image.bytes.size()},
                       {"compiler", image.compiler},
                       {"compile_ms", image.milliseconds},
                       {"instructions", instructions_json(image)}});
  }
  for (const KernelSelection::Skipped& one : compiled.selection.skipped)
    skipped.push_back({{"problem", one.problem}, {"arch", one.arch}, {"why", one.why}});
  return {{"kernels", kernels}, {"skipped", skipped}, {"seconds", compiled.seconds}};
}

// Returns true if `sentences` is empty; else prints them all.
bool none(const std::vector<std::string>& sentences) {
  for (const std::string& sentence : sentences) print_error("rapt: {}\n", sentence);
  return sentences.empty();
}

// Reads the ledger. It is called before compiling, and throws if the ledger was made by another compiler, because
// registers and spills can be compared only for the same compiler.
Ledger ledger_before(const PackOptions& options) {
  if (options.update && !std::filesystem::exists(options.ledger)) return {};
  Ledger before = parse_ledger(read_text_file(options.ledger), options.ledger);
  require_compiler("pack");
  const std::string& version = jit::find_compiler()->version;
  if (!options.update && version != before.nvrtc)
    throw Error(ErrorCode::environment,
                concat("--ledger ", options.ledger, ": made by NVRTC ", before.nvrtc,
                       "; it can be compared only with the same version. This is NVRTC ", version, " (",
                       jit::find_compiler()->path, "): see scripts/nvrtc.sh, RAPT_NVRTC"));
  return before;
}

int judge_ledger(const PackOptions& options, const Compiled& compiled, Ledger before) {
  const Ledger now = ledger_of(compiled.selection.kernels, compiled.images, before);
  std::set<std::string> archs;  // rows of other architectures are neither compared nor removed
  for (const PlannedKernel& kernel : compiled.selection.kernels) archs.insert(kernel.device.arch);
  const auto others = std::stable_partition(before.rows.begin(), before.rows.end(),
                                            [&](const LedgerRow& row) { return archs.contains(row.arch); });
  if (options.update) {
    if (others != before.rows.end() && before.nvrtc != now.nvrtc)
      invalid("--update: ", others->name(), " in ", options.ledger, " is by NVRTC ", before.nvrtc, ", this is ",
              now.nvrtc, ": give all architectures at once");
    Ledger all = now;
    all.rows.insert(all.rows.end(), others, before.rows.end());
    AtomicFile file(options.ledger);
    file.write(to_text(all));
    file.commit();
    if (!options.common.json) fmt::print("written   {}\n", options.ledger);
    return none(faults_of(now)) ? exit_success : exit_check_failed;
  }
  before.rows.erase(others, before.rows.end());
  const bool allowed = none(faults_of(now)), equal = none(differences(before, now));
  if (!equal) print_error("rapt: if you want this change, run `make ledger` and commit {}\n", options.ledger);
  if (allowed && equal && !options.common.json)
    fmt::print("ledger    {} kernels as in {}\n", now.rows.size(), options.ledger);
  return allowed && equal ? exit_success : exit_check_failed;
}

void print_rows(const Ledger& ledger) {
  fmt::print(
      "compiled by NVRTC {}; spills and stack in bytes per thread, static and dynamic shared memory in bytes per "
      "block\n\n",
      ledger.nvrtc);
  fmt::print("{:<7} {:>4} {:>7} {:>8} {:>6} {:>5} {:>6} {:>7} {:>6} {:>9}  {}\n", "arch", "regs", "threads", "barriers",
             "spills", "stack", "static", "dynamic", "blocks", "occupancy", "kernel");
  for (const LedgerRow& row : ledger.rows) {
    std::string marks;
    for (const size_t reason : ledger.reasons_of(row)) marks += fmt::format(" [{}]", reason + 1);
    fmt::print("{:<7} {:>4} {:>7} {:>8} {:>6} {:>5} {:>6} {:>7} {:>6} {:>8.1f}%  {} {}{}\n", row.arch, row.registers,
               row.threads, row.barriers, row.spill_bytes, row.stack_bytes, row.static_bytes, row.dynamic_bytes,
               row.blocks_per_sm, 100 * row.occupancy, row.family, row.config, marks);
  }
  for (size_t i = 0; i < ledger.reasons.size(); ++i)
    fmt::print("{}[{}] {}: {}\n", i == 0 ? "\n" : "", i + 1, ledger.reasons[i].kernels, ledger.reasons[i].reason);
}

}  // namespace

int pack(const PackOptions& options) {
  if (options.common.arch.empty()) invalid("pack: give --arch, such as sm_89,sm_90a");
  if (options.output.empty() && options.ledger.empty()) invalid("pack: give -o FILE or --ledger FILE");
  if (!options.common.variant.empty() && !options.ledger.empty())
    invalid("--variant with --ledger: not allowed; the ledger is for the library's own kernels");
  if (options.update && options.ledger.empty()) invalid("--update: needs --ledger FILE, the file to write");
  check_output_file("-o", options.output, "the ledger", options.ledger);
  for (const std::string& cases : options.cases) check_output_file("-o", options.output, "a file of cases", cases);
  const Ledger before = options.ledger.empty() ? Ledger{} : ledger_before(options);
  const Compiled compiled = compile(options);
  if (options.common.json)
    fmt::print("{}\n", to_json(compiled).dump(2));
  else
    print_table(compiled, !options.common.variant.empty());
  if (!options.output.empty()) {
    jit::write_pack(options.output, packed_images(compiled));
    if (!options.common.json)
      fmt::print("written   {}, {} bytes\n", options.output, std::filesystem::file_size(options.output));
  }
  return options.ledger.empty() ? exit_success : judge_ledger(options, compiled, before);
}

int info_kernels(const Common& common) {
  Ledger ledger = shipped_ledger();
  if (!common.arch.empty()) std::erase_if(ledger.rows, [&](const LedgerRow& row) { return row.arch != common.arch; });
  if (ledger.rows.empty()) invalid("--arch ", common.arch, ": the ledger has no kernels for it");
  if (common.json)
    fmt::print("{}", to_text(ledger));
  else
    print_rows(ledger);
  return exit_success;
}

}  // namespace rapt::lab
