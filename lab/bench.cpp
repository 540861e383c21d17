// rapt bench: checks and times one problem or a suite. It compares the times with the machine's peak, which it measures
// in the same run. Called by program.cpp. It never times a kernel with a wrong result. A result file is written
// completely or not at all.
#include "lab/bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "kernels/family.h"
#include "lab/file.h"
#include "lab/machine.h"
#include "lab/output.h"
#include "lab/progress.h"
#include "lab/variant.h"

namespace rapt::lab {
namespace {

void check_options(const BenchOptions& options) {
  if (!options.timer.empty() && options.timer != "graph" && options.timer != "event" && options.timer != "host")
    invalid("--timer ", options.timer, ": must be graph, event or host");
  if (options.l2 != "warm" && options.l2 != "cold") invalid("--l2 ", options.l2, ": must be warm or cold");
  check_output_file("--output", options.output, "the suite", options.suite);
}

std::vector<Problem> problems_of(const BenchOptions& options) {
  if (options.words.empty() == options.suite.empty()) invalid("bench: give either a problem line or --suite");
  std::vector<Problem> problems;
  if (options.suite.empty()) problems.push_back(parse_problem(joined(options.words)));
  if (!options.suite.empty())
    for (const check::Case& c : cases_named("--suite", options.suite)) problems.push_back(c.problem());
  if (problems.empty()) invalid("--suite ", options.suite, ": has no problem lines");
  return problems;
}

std::string output_path(const BenchOptions& options, const std::string& card) {
  if (!options.output.empty()) return options.output;
  if (!options.save) return "";
  const std::string suite = options.suite.empty() ? "problem" : std::filesystem::path(options.suite).stem().string();
  const std::string folder = "results/" + card;
  make_directories(folder);
  return folder + "/" + utc_stamp() + "-" + suite + ".jsonl";
}

void write_rows(const std::string& path, const std::vector<BenchRow>& rows) {
  AtomicFile file(path);
  for (const BenchRow& row : rows) file.write(to_json(row).dump() + "\n");
  file.commit();
}

// Column `vs`: the median of the first implementation divided by the median of this implementation.
void print_row(const BenchRow& row, const BenchRow& first, bool several) {
  const Quartiles time = quartiles(row.samples.us);
  const std::string ratio = several ? fmt::format("{:>6.2f}x ", quartiles(first.samples.us).median / time.median) : "";
  const std::string who = several ? row.implementation : row.family + " " + row.config;
  const std::string host = row.host_us ? fmt::format("  host {:.2f} us", *row.host_us) : "";
  fmt::print("{:>10.2f} {:>10.2f} {:>10.2f} {}{:>9.1f} {:>8.2f} {:>5.0f}%  {:.1e}  {}  [{}]{}\n", time.median, time.q1,
             time.q3, ratio, row.gflops(), row.gbytes(), 100 * row.roof_share(), row.err.max_abs, row.problem, who,
             host);
}

// On a GPU, each row has a second line. This function prints it.
void print_bound(const BenchRow& row) {
  std::string text;
  if (row.roofline) {
    const Bound &kernel = row.roofline->kernel, &card = row.roofline->card;
    text = fmt::format("floor {:.2f} us by {}", kernel.floor_us, kernel.unit);
    if (card.floor_us < kernel.floor_us)
      text += fmt::format("; the GPU's best instructions: {:.2f} us by {}", card.floor_us, card.unit);
    text += "; ";
  }
  text += fmt::format("spread {:.1f}%", 100 * spread(row.samples));
  if (row.attempts > 1) text += fmt::format(" (best of {} attempts)", row.attempts);
  if (row.clocks_after.sm_mhz) text += fmt::format("; SM clock {} MHz", *row.clocks_after.sm_mhz);
  for (const std::string& reason : limit_names(row.clocks_after.limits.value_or(0))) text += ", " + reason;
  fmt::print("{:>10} {}\n", "", text);
}

void print_fault(const Problem& problem, const Measured::Fault& fault) {
  const bool wrong = fault.error.code() == ErrorCode::internal;
  print_error("{}  {}{}\n        {}\n", wrong ? "WRONG, not timed" : "refused", to_string(problem),
              fault.implementation == "rapt" ? "" : " [" + fault.implementation + "]", fault.error.what());
}

void print_measured(const Problem& problem, const Measured& measured, bool several, bool json) {
  for (const BenchRow& row : measured.rows) {
    if (json) {
      fmt::print("{}\n", to_json(row).dump());
      continue;
    }
    print_row(row, measured.rows[0], several);
    if (row.threads == 0) print_bound(row);
  }
  for (const Measured::Fault& fault : measured.faults) print_fault(problem, fault);
  std::fflush(stdout);
}

}  // namespace

double Attempt::largest_spread() const {
  double largest = 0;
  for (const Samples& one : samples) largest = std::max(largest, spread(one));
  return largest;
}

Attempt steadiest(const std::function<Attempt()>& take, double seconds) {
  const auto begin = std::chrono::steady_clock::now();
  Attempt best = take();
  int attempts = 1;
  for (; attempts < most_attempts && best.largest_spread() > most_spread; ++attempts) {
    if (std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() >= seconds) break;
    Attempt another = take();
    if (another.largest_spread() < best.largest_spread()) best = std::move(another);
  }
  best.attempts = attempts;
  return best;
}

int64_t samples_within(double budget_seconds, double sample_us, int64_t iterations) {
  const double affordable = budget_seconds * 1e6 / most_attempts / std::max(sample_us, 1e-3);
  if (affordable >= static_cast<double>(iterations)) return iterations;
  return std::min(iterations, std::max(fewest_samples, static_cast<int64_t>(affordable)));
}

void describe_plan(const Plan& plan, BenchRow& row) {
  row.family = plan.steps[0].family->name;
  for (int i = 0; i < plan.step_count; ++i) {
    std::string step = to_string(plan.steps[static_cast<size_t>(i)]);
    if (i == 0) step = step.size() > row.family.size() ? step.substr(row.family.size() + 1) : "";
    row.config += (i > 0 ? " + " : "") + step;
  }
}

void judge_call(const Problem& problem, const check::Inputs& inputs, const check::Outputs& outputs, uint64_t seed,
                const std::string& rerun, BenchRow& row, check::Fill fill) {
  row.row_step = oracle_row_step(flops(problem));
  const check::Result result = check::judge(problem, fill, inputs, outputs, row.row_step);
  row.err = result.out;
  if (result.refused && fill != check::Fill::normal) unsupported(result.message);
  if (!result.pass)
    throw Error(ErrorCode::internal,
                concat(result.message, "\n        to reproduce: ", check::rerun_command(problem, fill, seed), rerun));
}

int bench(const BenchOptions& options) {
  check_options(options);
  const std::vector<Problem> problems = problems_of(options);
  // This comes before the choice of the device: a wrong word is an error even on a machine without a GPU.
  for (const std::string& config : options.common.configs) check_config_words(config);
  const Device device = chosen_device(options.common, true);
  require_variant_included(problems, device, options.common);
  for (const std::string& config : options.common.configs) {
    const std::string broken =
        problems.size() == 1 ? broken_config_rule(options.common, device, problems[0], config) : "";
    if (!broken.empty()) invalid(broken);
  }
  const auto begin = std::chrono::steady_clock::now();
  const auto bench = device.kind == DeviceKind::cuda ? gpu_bench(options, device) : cpu_bench(options, device);
  const bool text = !options.common.json, several = options.common.configs.size() > 1;
  if (text)
    fmt::print("{}\n{:>10} {:>10} {:>10} {}{:>9} {:>8} {:>6}  max error\n", bench->headline(), "median us", "q1", "q3",
               several ? "     vs " : "", "GFLOP/s", "GB/s", "roof");
  std::vector<BenchRow> rows;
  bool wrong = false;
  Progress progress(problems.size());
  for (size_t i = 0; i < problems.size(); ++i) {
    progress.at(i, to_string(problems[i]));
    Measured measured = bench->measure(problems[i]);
    progress.clear();
    print_measured(problems[i], measured, several, options.common.json);
    for (const Measured::Fault& fault : measured.faults) wrong = wrong || fault.error.code() == ErrorCode::internal;
    std::move(measured.rows.begin(), measured.rows.end(), std::back_inserter(rows));
  }
  if (text && problems.size() > 1)
    fmt::print("{} problems in {:.0f} s\n", problems.size(),
               std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  const std::string path = rows.empty() ? "" : output_path(options, bench->card());
  if (!path.empty()) write_rows(path, rows);
  if (!path.empty() && text) fmt::print("wrote {}\n", path);
  if (wrong) return exit_check_failed;
  return rows.empty() ? exit_environment : exit_success;
}

}  // namespace rapt::lab
