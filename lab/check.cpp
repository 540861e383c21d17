// rapt check: the library against the float64 oracle on seeded inputs, for one problem or a file of cases.
// Called by program.cpp; what is right, and how near it one must come, is check/'s.
#include "check/check.h"

#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "check/stages.h"
#include "lab/commands.h"
#include "lab/progress.h"
#include "lab/variant.h"

namespace rapt::lab {
namespace {

struct Task {
  Problem problem;
  check::Fill fill;
};

std::vector<Task> tasks_of(const CheckOptions& options) {
  if (options.words.empty() == options.cases.empty()) invalid("check: give a problem line or --cases, one of them");
  const std::vector<check::Fill> chosen =
      options.fill.empty() ? std::vector<check::Fill>{} : std::vector{check::parse_fill(options.fill)};
  std::vector<Task> tasks;
  if (options.cases.empty()) {
    tasks.push_back({parse_problem(joined(options.words)), chosen.empty() ? check::Fill::normal : chosen[0]});
    return tasks;
  }
  for (const check::Case& c : cases_named("--cases", options.cases))
    for (const check::Fill fill : chosen.empty() ? c.fills : chosen) tasks.push_back({c.problem(), fill});
  if (tasks.empty()) invalid("--cases ", options.cases, ": has no problem lines");
  return tasks;
}

template <class Outcome>
const char* verdict_of(const Outcome& result) {
  return result.pass ? "pass" : result.refused ? "refused" : "FAIL";
}

// The library on the chosen device; the contexts behind it are kept for all tasks.
class Subject {
 public:
  Subject(const CheckOptions& options, const Device& device)
      : options_(options.common),
        device_(device),
        config_(options.common.configs.empty() ? "" : options.common.configs[0]) {}

  // The rule of the problem's kernel that --config breaks, or "".
  std::string broken_rule(const Problem& problem) const {
    return broken_config_rule(options_, device_, problem, config_);
  }

  check::Kernel kernel(const Problem& problem) {
    const std::string variant = variant_name(options_, device_, problem);
    auto& [context, kernel] = made_[variant];
    if (!kernel) {
      context = make_context(options_, device_, problem, config_);
      kernel = check::library_kernel(context.get(), handle_of(device_));
    }
    return kernel;
  }
  std::string rerun_options() const { return lab::rerun_options(options_, device_, config_); }

 private:
  struct Made {
    ContextHandle context;
    check::Kernel kernel;
  };
  const Common& options_;
  const Device& device_;
  std::string config_;
  std::map<std::string, Made> made_;  // by the name that --variant's text stands in for
};

void print_row(const Task& task, uint64_t seed, const check::Result& r) {
  fmt::print("{:<7} {:>9.2e} / {:<8.2e} {:>9.2e} / {:<8.2e} {:>5.2f}  {} {} seed {}\n", verdict_of(r), r.out.max_abs,
             r.bounds.max_abs, r.out.rel_rms, r.bounds.rel_rms, r.lse_share, to_string(task.problem),
             check::name_of(task.fill), seed);
  if (!r.pass) fmt::print("        {}\n", r.message);
  if (!r.pass && !r.refused) fmt::print("        again: {}\n", r.command);
}

nlohmann::ordered_json errors_of(const check::Errors& e) {
  return {{"max_abs", e.max_abs}, {"mean_abs", e.mean_abs}, {"rel_rms", e.rel_rms}, {"cosine", e.cosine},
          {"nan", e.nan_count},   {"inf", e.inf_count},     {"compared", e.count}};
}

nlohmann::ordered_json row_of(const Task& task, uint64_t seed, const check::Result& r) {
  return {{"problem", to_string(task.problem)},
          {"fill", check::name_of(task.fill)},
          {"seed", seed},
          {"samples", r.samples},
          {"verdict", r.pass      ? "pass"
                      : r.refused ? "refused"
                                  : "fail"},
          {"err", errors_of(r.out)},
          {"lse_err", errors_of(r.lse)},
          {"bounds", {{"max_abs", r.bounds.max_abs}, {"rel_rms", r.bounds.rel_rms}}},
          {"lse_share", r.lse_share},
          {"message", r.message},
          {"command", r.command}};
}

check::Result compare(const Task& task, uint64_t seed, Subject& subject) {
  const std::string broken = subject.broken_rule(task.problem);
  if (broken.empty()) return check::check_problem(task.problem, task.fill, seed, subject.kernel(task.problem));
  check::Result result;
  result.command = check::rerun_command(task.problem, task.fill, seed);
  result.refused = true, result.message = broken;
  return result;
}

int compare_all(const CheckOptions& options, const std::vector<Task>& tasks, Subject& subject) {
  int failed = 0, refused = 0;
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  Progress progress(tasks.size());
  if (!options.common.json)
    fmt::print("{:<7} {:>9}   {:<8} {:>9}   {:<8} {:>5}\n", "verdict", "max_abs", "bound", "rel_rms", "bound", "lse");
  for (size_t i = 0; i < tasks.size(); ++i) {
    progress.at(i, to_string(tasks[i].problem));
    check::Result result = compare(tasks[i], options.seed, subject);
    result.command += subject.rerun_options();
    failed += !result.pass && !result.refused;
    refused += result.refused;
    progress.clear();
    if (options.common.json)
      rows.push_back(row_of(tasks[i], options.seed, result));
    else
      print_row(tasks[i], options.seed, result);
  }
  const auto passed = static_cast<int>(tasks.size()) - failed - refused;
  if (options.common.json)
    fmt::print(
        "{}\n",
        nlohmann::ordered_json{{"results", rows}, {"passed", passed}, {"failed", failed}, {"refused", refused}}.dump(
            2));
  else
    fmt::print("{} passed, {} failed, {} refused (no kernel takes them yet, or f32 cannot hold them)\n", passed, failed,
               refused);
  if (failed > 0) return exit_check_failed;
  return passed == 0 ? exit_environment : exit_fine;  // nothing could be checked
}

int compare_stages(const CheckOptions& options, const std::vector<Task>& tasks, Subject& subject) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  Progress progress(tasks.size());
  int failed = 0, passed = 0;
  for (size_t i = 0; i < tasks.size(); ++i) {
    progress.at(i, to_string(tasks[i].problem));
    check::StageReport r = check::check_stages(tasks[i].problem, tasks[i].fill, options.seed,
                                               check::probe(subject.kernel(tasks[i].problem)));
    r.command += subject.rerun_options();
    failed += !r.pass && !r.refused;
    passed += r.pass;
    progress.clear();
    std::string observed;
    for (const std::string& stage : r.observed) observed += (observed.empty() ? "" : " ") + stage;
    if (options.common.json) {
      rows.push_back({{"problem", to_string(tasks[i].problem)},
                      {"fill", check::name_of(tasks[i].fill)},
                      {"pass", r.pass},
                      {"refused", r.refused},
                      {"observed", r.observed},
                      {"stage", r.stage},
                      {"tile", r.tile},
                      {"index", r.index},
                      {"got", r.got},
                      {"want", r.want},
                      {"bound", r.bound},
                      {"message", r.message},
                      {"command", r.command}});
      continue;
    }
    fmt::print("{}  {} {}: compared {}\n", verdict_of(r), to_string(tasks[i].problem), check::name_of(tasks[i].fill),
               observed.empty() ? "nothing" : observed);
    if (!r.pass) fmt::print("      {}\n", r.message);
    if (!r.pass && !r.refused) fmt::print("      again: {}\n", r.command);
  }
  if (options.common.json) fmt::print("{}\n", nlohmann::ordered_json{{"stages", rows}, {"failed", failed}}.dump(2));
  return failed > 0 ? exit_check_failed : passed == 0 ? exit_environment : exit_fine;
}

std::vector<Problem> problems_of(const std::vector<Task>& tasks) {
  std::vector<Problem> problems;
  for (const Task& task : tasks) problems.push_back(task.problem);
  return problems;
}

// A variant where no GPU can run it: compiled, what its kernels take, and what that leaves open.
int compile_variant(const CheckOptions& options, const std::vector<Task>& tasks, const std::string& why) {
  const Common& common = options.common;
  if (common.arch.empty())
    throw Error(ErrorCode::environment, concat("--variant ", common.variant, ": ", why,
                                               "; with --arch, such as --arch sm_89, it is compiled all the same"));
  const std::vector<Device> device = gpu_presets(common.arch);
  if (device.size() != 1) invalid("--arch ", common.arch, ": give one");
  const std::string config = common.configs.empty() ? "" : common.configs[0];
  const CompiledKernels compiled = compile_for(problems_of(tasks), device[0], common, config, "check --variant");
  const std::string open =
      concat("no result was checked: ", why, "; the same command on a machine with a GPU runs the kernels");
  if (common.json) {
    const nlohmann::ordered_json all = {{"results", nlohmann::ordered_json::array()},
                                        {"compiled", to_json(compiled)},
                                        {"checked", false},
                                        {"note", open}};
    fmt::print("{}\n", all.dump(2));
  } else {
    print_compiled(compiled);
    fmt::print("{} kernels compiled; {}\n", compiled.images.size(), open);
  }
  return compiled.images.empty() ? exit_environment : exit_fine;
}

}  // namespace

int check(const CheckOptions& options) {
  const std::vector<Task> tasks = tasks_of(options);
  if (options.common.configs.size() > 1) invalid("check --config: give one; bench compares several");
  for (const std::string& config : options.common.configs) check_config_words(config);
  std::string why;
  if (!options.common.variant.empty() && options.common.device.empty() && !usable_gpu(&why))
    return compile_variant(options, tasks, why);
  const Device device = chosen_device(options.common, true);
  if (!options.common.json) fmt::print("device  {}\n", title_of(device));
  Subject subject(options, device);
  // Of many cases some may break a rule; of one it is wrong input.
  if (const std::string broken = subject.broken_rule(tasks[0].problem); tasks.size() == 1 && !broken.empty())
    invalid(broken);
  return options.stages ? compare_stages(options, tasks, subject) : compare_all(options, tasks, subject);
}

}  // namespace rapt::lab
