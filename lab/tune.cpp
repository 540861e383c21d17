// The command rapt tune: it chooses problems and families, writes rows, shows progress and handles Ctrl-C. See tune.h.
#include "lab/tune.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <ctime>
#include <filesystem>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/error.h"
#include "lab/file.h"
#include "lab/output.h"
#include "lab/progress.h"
#include "rapt_build_info.h"
#include "runtime/plan.h"
#include "runtime/tuned_rows.h"

namespace rapt::lab {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

// ---- Ctrl-C. The first one stops the search after the current candidate. The second one ends the process.

volatile std::sig_atomic_t interrupt_asked = 0;

void ask_for_end(int number) {
  interrupt_asked = 1;
  std::signal(number, SIG_DFL);
  constexpr std::string_view text =
      "\nrapt: stopping after the current candidate; press Ctrl-C again to stop at once\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text.data(), text.size());
}

class InterruptScope {
 public:
  InterruptScope() : before_(std::signal(SIGINT, ask_for_end)) { interrupt_asked = 0; }
  ~InterruptScope() { std::signal(SIGINT, before_); }
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

 private:
  void (*before_)(int);
};

// ---- What to tune.

// Throws if the options contradict each other.
void check_options(const TuneOptions& options) {
  if (options.words.empty() == options.suite.empty()) invalid("tune: give either a problem line or --suite");
  const Common& common = options.common;
  if (common.device == "cpu" || common.threads > 0 || common.arch.starts_with("cpu"))
    invalid("tune ",
            common.device == "cpu" ? "--device cpu"
            : common.threads > 0   ? "--threads"
                                   : "--arch " + common.arch,
            ": selects the CPU kernel, which has no fields to tune; tune needs a GPU");
  if (!common.arch.empty() && !options.dry_run)
    invalid("--arch ", common.arch, ": only with --dry-run; a search measures on the GPU of --device");
  if (common.sm_count > 0 && !options.dry_run)
    invalid("--sm-count ", common.sm_count, ": only with --dry-run; a search measures on the whole GPU");
  if (options.dry_run && !options.output.empty())
    invalid("--output ", options.output, ": not with --dry-run, which writes no rows");
  if (options.dry_run && options.again) invalid("--again: not with --dry-run, which measures nothing");
  if (options.family.find(' ') != std::string::npos)
    invalid("--family ", options.family, ": must be the name of one kernel family, without other words");
  if (!options.family.empty()) override_of("family=" + options.family);
}

constexpr const char* no_invariant =
    "invariant: the bits of such a problem must not depend on its lengths, but a tuned "
    "row is for one class of lengths; the planner's configuration is always used";

// Throws if there is nothing to tune: no problem, or only `invariant` ones.
std::vector<Problem> problems_of(const TuneOptions& options) {
  std::vector<Problem> problems;
  if (options.suite.empty()) problems.push_back(parse_problem(joined(options.words)));
  if (!options.suite.empty())
    for (const check::Case& c : cases_named("--suite", options.suite)) problems.push_back(c.problem());
  if (problems.empty()) invalid("--suite ", options.suite, ": has no problem lines");
  if (std::all_of(problems.begin(), problems.end(), [](const Problem& problem) { return problem.invariant; }))
    invalid(no_invariant);
  return problems;
}

// The families that can be searched. The family of the planner's choice comes first. Throws Error{unsupported} if no
// family accepts the problem, or if the family of --family does not.
std::vector<const Family*> families_of(const TuneOptions& options, const Problem& problem, const Device& device) {
  const Plan own =
      options.family.empty() ? plan(problem, device) : plan_with(problem, device, "family=" + options.family);
  std::vector<const Family*> families{own.steps[0].family};
  for (const Family* family : all_families())
    if (options.family.empty() && family != families[0] && family->check_config != nullptr &&
        family->accepts(planned_problem(problem, device), device, nullptr))
      families.push_back(family);
  return families;
}

TunePoint own_choice(const Problem& problem, const Device& device) {
  const Plan own = plan(problem, device);
  return {own.steps[0].family, own.steps[0].config};
}

// ---- Problems that fail. The other problems of a suite are still tuned.

class Failures {
 public:
  // Calls body() for a problem. If it throws, prints the error and returns false, so that the caller can go on.
  template <class Body>
  bool attempt(const Problem& problem, const Body& body) {
    try {
      if (problem.invariant) unsupported(no_invariant);
      body();
      return true;
    } catch (const Error& error) {
      if (error.code() == ErrorCode::unsupported)
        print_error("refused  {}\n        {}\n", to_string(problem), error.what());
      else
        add(problem, error.what(), exit_code(error.code()));
    } catch (const std::bad_alloc&) {
      add(problem, "this machine does not have enough memory", exit_environment);
    }
    return false;
  }
  void add(const Problem& problem, const std::string& why, int code) {
    print_error("failed   {}\n        {}\n", to_string(problem), why);
    if (code_ == exit_success) code_ = code;
  }
  // The exit code of the first failure, or exit_success. A refused problem is not a failure.
  int code() const { return code_; }

 private:
  int code_ = exit_success;
};

// ---- --dry-run.

struct Listed {
  std::vector<std::string> changes;                          // "block_n=64", or "block_m=32 warps_m=2"
  std::vector<std::pair<std::string, std::string>> refused;  // the change, and the rule that it breaks
};

Listed first_candidates(const Problem& planned, const Device& device, const TunePoint& start) {
  Listed listed;
  for (const ConfigField& field : start.config.type().fields)
    for (const int value : field.candidates) {
      if (value == field.number(start.config.data())) continue;
      TunePoint changed;
      std::string why;
      if (change_field(planned, device, start, field, value, changed, why))
        listed.changes.push_back(changed.config.words_unlike(start.config));
      else
        listed.refused.emplace_back(concat(field.name, "=", value), why);
    }
  return listed;
}

Json list_candidates(const TuneOptions& options, const Problem& problem, const Device& device) {
  const Problem planned = planned_problem(problem, device);
  const std::vector<const Family*> families = families_of(options, problem, device);  // throws before a line is printed
  Json all = {{"problem", to_string(problem)}, {"class", plan_line(planned)}, {"device", tuned_device(device)}};
  if (!options.common.json)
    fmt::print("problem  {}\nclass    {}\ndevice   {}\n", to_string(problem), plan_line(planned), tuned_device(device));
  for (const Family* family : families) {
    const TunePoint start{family, family->configure(planned, device)};
    const Listed listed = first_candidates(planned, device, start);
    Json refused = Json::array();
    for (const auto& [change, why] : listed.refused) refused.push_back({{"change", change}, {"why", why}});
    all["families"].push_back({{"start", start.words()}, {"candidates", listed.changes}, {"refused", refused}});
    if (options.common.json) continue;
    fmt::print("start    {}\n", start.words());
    for (const std::string& change : listed.changes) fmt::print("         {}\n", change);
    for (const auto& [change, why] : listed.refused) fmt::print("refused  {}: {}\n", change, why);
    fmt::print("         {} candidates, {} refused\n", listed.changes.size(), listed.refused.size());
  }
  return all;
}

int dry_run(const TuneOptions& options, const std::vector<Problem>& problems, const Device& device) {
  Failures failures;
  int done = 0;
  for (const Problem& problem : problems)
    done += failures.attempt(problem, [&] {
      const Json listed = list_candidates(options, problem, device);
      if (options.common.json) fmt::print("{}\n", listed.dump());
    });
  if (failures.code() != exit_success) return failures.code();
  return done == 0 ? exit_environment : exit_success;
}

// ---- The rows.

// The version that is written into rows. Another commit can have other kernels, so rows of another commit are measured
// again.
std::string row_version() {
  const std::string commit(build_commit);
  return concat(rapt_version(), " ", commit.substr(0, 12), build_dirty ? "-changed" : "");
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

// The file to write. Creates the file if necessary, and throws if the library would not read it. So the user sees this
// error before the search and not after it.
std::string prepared_file(const TuneOptions& options) {
  const TunedFile file = tuned_file(jit::Store::from_environment().cache_directory);
  const std::string path = options.output.empty() ? file.path : options.output;
  if (path.empty())
    invalid("tune: there is no file to keep rows in, because ",
            file.note.empty() ? "RAPT_TUNED or RAPT_CACHE is off, or HOME is not set" : file.note,
            "; give a file with --output");
  check_output_file("--output", options.output);
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (options.output.empty() && !file.named && !std::filesystem::exists(folder)) {
    make_directories(folder.parent_path());
    mkdir(folder.c_str(), 0700);  // the mode that the cache uses, too; the next call reports a failure
  }
  if (const std::string wrong = create_tuned_file(path); !wrong.empty())
    throw Error(ErrorCode::environment, concat("tuned rows '", path, "': the file ", wrong));
  return path;
}

TunedRow row_of(const TuneOptions& options, const Problem& planned, const Device& device, const TuneResult& result) {
  TunedRow row;
  row.device = tuned_device(device);
  row.problem = plan_line(planned);
  row.words = result.faster ? result.best.words() : "planner";
  row.us = result.time.median, row.planner_us = result.own.median;
  row.date = utc_now(), row.version = row_version(), row.command = options.common.command;
  return row;
}

// ---- One problem.

Json json_of(const Problem& problem, const TunedRow& row, const TuneResult& result, const std::string& how) {
  return {{"problem", to_string(problem)},
          {"class", row.problem},
          {"device", row.device},
          {"config", row.words},
          {"us", row.us},
          {"planner_us", row.planner_us},
          {"tried", result.tried},
          {"refused", result.refused},
          {"dropped", result.dropped},
          {"wrong", result.wrong},
          {"complete", !result.out_of_time},
          {"checked", how}};
}

void print_result(const Problem& problem, const TunePoint& own, const TuneResult& result, const std::string& how) {
  fmt::print("{}\n  planner  {}: {:.2f} us\n", to_string(problem), own.words(), result.own.median);
  if (result.faster)
    fmt::print("  faster   {}: {:.2f} us, {:.1f}% less\n", result.best.words(), result.time.median,
               100 * (1 - result.time.median / result.own.median));
  else
    fmt::print("  no configuration is faster by at least {:.0f}% and by more than the spread\n", 100 * least_gain);
  fmt::print("  {} tried, {} refused by a rule, {} dropped (spills or other reasons), {} wrong{}\n  checked: {}\n",
             result.tried, result.refused, result.dropped, result.wrong.size(),
             result.out_of_time ? "; the budget ended the search" : "", how);
  std::fflush(stdout);
}

// What a search found.
struct Found {
  Problem planned;
  TunePoint own;
  TuneResult result;
  std::string how_checked;
};

// Tunes problems one after another. Writes each row as soon as its search ends.
class Tuner {
 public:
  Tuner(const TuneOptions& options, const Device& device, size_t problems, std::string path)
      : options_(options),
        device_(device),
        path_(std::move(path)),
        known_(TunedRows::read({path_, false})),
        progress_(problems) {}

  void tune(size_t index, const Problem& problem) {
    std::optional<Found> found;
    failures_.attempt(problem, [&] {
      const ClearedAtEnd line(progress_);  // clears the line before attempt() prints an error
      const Problem planned = planned_problem(problem, device_);
      if (!is_known(problem, planned)) found = search(index, problem, planned);
    });
    // This call is outside attempt(), so a failure ends the command. The other rows could not be written either.
    if (found) finish(problem, *found);
  }

  int code() const {
    if (interrupt_asked != 0) return exit_interrupted;
    if (wrong_) return exit_check_failed;
    if (failures_.code() != exit_success) return failures_.code();
    return done_ == 0 ? exit_environment : exit_success;
  }

 private:
  struct ClearedAtEnd {
    explicit ClearedAtEnd(Progress& progress) : progress_(progress) {}
    ~ClearedAtEnd() { progress_.clear(); }
    Progress& progress_;
  };

  // True if the file has a row that need not be measured again.
  bool is_known(const Problem& problem, const Problem& planned) {
    const TunedRow* const row = known_.find(planned, device_);
    const bool fresh = measured_.contains(plan_line(planned));  // measured for an earlier problem of the same class
    const bool known = row != nullptr && row->version == row_version() && (fresh || !options_.again);
    if (known) skip(problem, *row, fresh);
    return known;
  }
  void skip(const Problem& problem, const TunedRow& row, bool fresh) {
    ++done_;
    progress_.clear();
    if (options_.common.json) return;
    fmt::print("{}\n  skipped: {} has a row of this {}\n", to_string(problem), known_.place(row),
               fresh ? "class, measured by this command" : "version; --again measures it again");
  }

  Found search(size_t index, const Problem& problem, const Problem& planned) {
    const TunePoint own = own_choice(problem, device_);
    const std::vector<const Family*> families = families_of(options_, problem, device_);
    progress_.at(index, to_string(problem));
    const auto bench = gpu_tune_bench(options_, device_, problem);
    const Clock::time_point begin = Clock::now();
    const auto seconds = [begin] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
    TuneResult result = tune_search(
        {planned, device_, families, own,
         [&](const TunePoint& a, const TunePoint& b, bool thorough) { return bench->compare(a, b, thorough); },
         [] { return interrupt_asked != 0; }, [&] { return seconds() > options_.budget; },
         [&](const TunePoint&, const std::string& change, int tried) {
           progress_.at(index, fmt::format("{} tried, {:.0f} of {:.0f} s, {}: {}", tried, seconds(), options_.budget,
                                           change, to_string(problem)));
         }});
    return {planned, own, std::move(result), bench->how_checked()};
  }

  void finish(const Problem& problem, const Found& found) {
    const TuneResult& result = found.result;
    for (const std::string& sentence : result.wrong) print_error("WRONG, not used  {}\n", sentence);
    wrong_ = wrong_ || !result.wrong.empty();
    if (result.interrupted) return;
    if (!result.failure.empty()) return failures_.add(problem, result.failure, exit_environment);
    const TunedRow row = row_of(options_, found.planned, device_, result);
    if (const std::string failure = replace_tuned_row(path_, row); !failure.empty())
      throw Error(ErrorCode::environment, concat("tuned rows '", path_, "': the file ", failure));
    ++done_;
    known_ = TunedRows::read({path_, false});
    measured_.insert(row.problem);
    if (options_.common.json)
      fmt::print("{}\n", json_of(problem, row, result, found.how_checked).dump());
    else
      print_result(problem, found.own, result, found.how_checked);
    std::fflush(stdout);
  }

  const TuneOptions& options_;
  const Device& device_;
  const std::string path_;
  TunedRows known_;
  std::set<std::string> measured_;  // classes that this command has measured
  Progress progress_;
  Failures failures_;
  int done_ = 0;
  bool wrong_ = false;
};

}  // namespace

int tune(const TuneOptions& options) {
  check_options(options);
  const std::vector<Problem> problems = problems_of(options);
  TuneOptions on_gpu = options;
  if (on_gpu.common.device.empty() && on_gpu.common.arch.empty()) on_gpu.common.device = "cuda:0";
  const Device device = chosen_device(on_gpu.common, !options.dry_run);
  if (options.dry_run) return dry_run(on_gpu, problems, device);
  const std::string path = prepared_file(on_gpu);
  if (!options.common.json) fmt::print("device  {}\nrows    {}\n", tuned_device(device), path);
  const InterruptScope interrupts;
  Tuner tuner(on_gpu, device, problems.size(), path);
  for (size_t i = 0; i < problems.size() && interrupt_asked == 0; ++i) tuner.tune(i, problems[i]);
  return tuner.code();
}

}  // namespace rapt::lab
