// rapt check: compares the library with the float64 oracle on seeded inputs, for one problem or a file of cases. Called
// by program.cpp. check/ defines the correct results and the error bounds.
#include "check/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "check/stages.h"
#include "lab/commands.h"
#include "lab/emulate.h"
#include "lab/kernel_limit.h"
#include "lab/progress.h"
#include "lab/variant.h"

namespace rapt::lab {
namespace {

struct Task {
  Problem problem;
  check::Fill fill;
  std::string config = {};  // for an emulated kernel: --config words that override the planner's choice
};

std::vector<Task> tasks_of(const CheckOptions& options) {
  if (options.words.empty() == options.cases.empty()) invalid("check: give either a problem line or --cases");
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

// The implementation whose results are checked.
class Subject {
 public:
  virtual ~Subject() = default;
  // If --config breaks a rule of the kernel: the sentence of this rule. Otherwise "".
  virtual std::string broken_rule(const Task& task) const = 0;
  virtual check::Kernel kernel(const Task& task) = 0;
  // The options that a rerun command needs besides its problem.
  virtual std::string rerun_options(const Task& task) const = 0;
  // The last line of a check.
  virtual std::string summary(int passed, int failed, int refused) const {
    return fmt::format("{} passed, {} failed, {} refused (no kernel supports them yet, or their values overflow f32)",
                       passed, failed, refused);
  }
  virtual void describe(nlohmann::ordered_json&) const {}  // adds to the JSON of a check
};

// The library on the chosen device. It keeps its contexts for all tasks.
class LibrarySubject final : public Subject {
 public:
  LibrarySubject(const CheckOptions& options, const Device& device)
      : options_(options.common),
        device_(device),
        config_(options.common.configs.empty() ? "" : options.common.configs[0]) {}

  std::string broken_rule(const Task& task) const override {
    return broken_config_rule(options_, device_, task.problem, config_);
  }

  check::Kernel kernel(const Task& task) override {
    const std::string variant = variant_name(options_, device_, task.problem);
    auto& [context, kernel] = made_[variant];
    if (!kernel) {
      context = make_context(options_, device_, task.problem, config_);
      kernel = check::library_kernel(context.get(), handle_of(device_));
      if (device_.kind == DeviceKind::cuda) kernel = limited(std::move(kernel));
    }
    return kernel;
  }
  std::string rerun_options(const Task&) const override { return lab::rerun_options(options_, device_, config_); }

 private:
  check::Kernel limited(check::Kernel kernel) const {
    check::Kernel with_limit = [kernel, command = options_.command](const Problem& problem, const check::Inputs& inputs,
                                                                    const check::Outputs& outputs) {
      const KernelLimit limit(to_string(problem), command);
      kernel(problem, inputs, outputs);
    };
    with_limit.fp8_weights = kernel.fp8_weights, with_limit.narrow_products = kernel.narrow_products;
    return with_limit;
  }

  struct Made {
    ContextHandle context;
    check::Kernel kernel;
  };
  const Common& options_;
  const Device& device_;
  std::string config_;
  std::map<std::string, Made> made_;  // key: the file name that --variant's source replaces
};

void print_row(const Task& task, uint64_t seed, const check::Result& r) {
  fmt::print("{:<7} {:>9.2e} / {:<8.2e} {:>9.2e} / {:<8.2e} {:>5.2f}  {} {} seed {}\n", verdict_of(r), r.out.max_abs,
             r.bounds.max_abs, r.out.rel_rms, r.bounds.rel_rms, r.lse_share, to_string(task.problem),
             check::name_of(task.fill), seed);
  if (!r.pass) fmt::print("        {}\n", r.message);
  if (!r.pass && !r.refused) fmt::print("        to reproduce: {}\n", r.command);
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
  const std::string broken = subject.broken_rule(task);
  if (broken.empty()) return check::check_problem(task.problem, task.fill, seed, subject.kernel(task));
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
    result.command += subject.rerun_options(tasks[i]);
    failed += !result.pass && !result.refused;
    refused += result.refused;
    progress.clear();
    if (options.common.json)
      rows.push_back(row_of(tasks[i], options.seed, result));
    else
      print_row(tasks[i], options.seed, result);
  }
  const auto passed = static_cast<int>(tasks.size()) - failed - refused;
  if (options.common.json) {
    nlohmann::ordered_json all = {{"results", rows}, {"passed", passed}, {"failed", failed}, {"refused", refused}};
    subject.describe(all);
    fmt::print("{}\n", all.dump(2));
  } else {
    fmt::print("{}\n", subject.summary(passed, failed, refused));
  }
  if (failed > 0) return exit_check_failed;
  return passed == 0 ? exit_environment : exit_success;  // nothing could be checked
}

int compare_stages(const CheckOptions& options, const std::vector<Task>& tasks, Subject& subject) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  Progress progress(tasks.size());
  int failed = 0, passed = 0;
  for (size_t i = 0; i < tasks.size(); ++i) {
    progress.at(i, to_string(tasks[i].problem));
    check::StageReport r =
        check::check_stages(tasks[i].problem, tasks[i].fill, options.seed, check::probe(subject.kernel(tasks[i])));
    r.command += subject.rerun_options(tasks[i]);
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
    if (!r.pass && !r.refused) fmt::print("      to reproduce: {}\n", r.command);
  }
  if (options.common.json) {
    nlohmann::ordered_json all = {{"stages", rows}, {"failed", failed}};
    subject.describe(all);
    fmt::print("{}\n", all.dump(2));
  }
  return failed > 0 ? exit_check_failed : passed == 0 ? exit_environment : exit_success;
}

std::vector<Problem> problems_of(const std::vector<Task>& tasks) {
  std::vector<Problem> problems;
  for (const Task& task : tasks) problems.push_back(task.problem);
  return problems;
}

// The compiled kernels of a variant, or the reason why they were not compiled.
struct CompiledVariant {
  std::optional<CompiledKernels> kernels;
  std::string why;
};

CompiledVariant compile_variant(const CheckOptions& options, const std::vector<Task>& tasks, const Device& device) {
  const std::string config = options.common.configs.empty() ? "" : options.common.configs[0];
  try {
    return {compile_for(problems_of(tasks), device, options.common, config, "check --variant"), ""};
  } catch (const Error& error) {
    if (error.code() != ErrorCode::environment) throw;  // a compiler error
    return {std::nullopt, error.what()};
  }
}

nlohmann::ordered_json to_json(const CompiledVariant& compiled) {
  return compiled.kernels ? to_json(*compiled.kernels) : nlohmann::ordered_json::array();
}

// A variant's kernels, emulated on this CPU because no GPU can run them.
class EmulatedSubject final : public Subject {
 public:
  // why: the reason why no GPU is used.
  EmulatedSubject(const CheckOptions& options, const Device& device, const CompiledVariant& compiled, std::string why)
      : options_(options.common), device_(device), compiled_(compiled), why_(std::move(why)) {}

  // Replaces the given tasks by tasks small enough to emulate, and compiles their kernels.
  std::vector<Task> prepare(const std::vector<Task>& tasks) {
    std::vector<Task> chosen;
    std::vector<EmulatedProblem> problems;
    for (const Task& task : tasks)
      for (const Task& one : emulated_tasks(task)) {
        const auto same = [&](const Task& other) {
          return one.problem == other.problem && one.fill == other.fill && one.config == other.config;
        };
        if (std::any_of(chosen.begin(), chosen.end(), same)) continue;
        chosen.push_back(one);
        problems.push_back({one.problem, one.config});
      }
    emulator_.emplace(options_, device_);
    emulator_->compile(problems);
    return chosen;
  }

  std::string broken_rule(const Task& task) const override {
    return broken_config_rule(options_, device_, task.problem, task.config);
  }
  check::Kernel kernel(const Task& task) override { return emulator_->kernel(task.config); }
  std::string rerun_options(const Task& task) const override {
    return concat(" --arch ", device_.arch, options_.sm_count > 0 ? concat(" --sm-count ", options_.sm_count) : "",
                  task.config.empty() ? "" : concat(" --config \"", task.config, "\""), " --variant ",
                  options_.variant);
  }

  std::string summary(int passed, int failed, int refused) const override {
    std::string text = fmt::format("emulated on the CPU: {} of {} cases passed", passed, passed + failed);
    if (refused > 0)
      text += fmt::format("; {} refused (no kernel supports them yet, or their values overflow f32)", refused);
    return text + left_out() + "\n" + note();
  }
  void describe(nlohmann::ordered_json& all) const override {
    all["compiled"] = to_json(compiled_);
    all["checked"] = true;
    all["emulated"] = {{"compiler", emulator_->compiler()},
                       {"too_large", too_large_},
                       {"left_out", left_out_},
                       {"most_operations", max_emulated_operations}};
    all["note"] = note();
  }

 private:
  std::vector<Task> emulated_tasks(const Task& task) {
    const std::string config = options_.configs.empty() ? "" : options_.configs[0];
    if (!broken_config_rule(options_, device_, task.problem, config).empty())
      return {{task.problem, task.fill, config}};
    EmulatedProblems problems{false, {{task.problem, config}}};
    try {
      problems = emulated_problems({task.problem, config}, device_, options_.variant.empty());
    } catch (const Error& error) {
      if (error.code() != ErrorCode::unsupported) throw;  // the check itself reports an unsupported problem
    }
    too_large_ += problems.too_large;
    left_out_ += problems.run.empty();
    std::vector<Task> tasks;
    for (const EmulatedProblem& problem : problems.run) tasks.push_back({problem.problem, task.fill, problem.config});
    return tasks;
  }

  // The part of the summary about problems that were too large.
  std::string left_out() const {
    const auto cases = [](int n) {
      return fmt::format("; {} case{} too large to emulate and ", n, n == 1 ? " was" : "s were");
    };
    std::string text;
    if (too_large_ > left_out_)
      text += cases(too_large_ - left_out_) + "replaced by smaller problems for the same kernel";
    if (left_out_ > 0) text += cases(left_out_) + "left out";
    if (too_large_ > 0)
      text += fmt::format(" (too large: more than {:g} million multiply-adds in whole tiles)",
                          max_emulated_operations / 1e6);
    return text;
  }
  std::string note() const {
    return concat("no GPU was used: ", why_,
                  "; the emulation cannot show speed, races, or how a GPU's matrix instructions round");
  }

  const Common& options_;
  const Device device_;
  const CompiledVariant& compiled_;
  const std::string why_;
  std::optional<Emulator> emulator_;
  int too_large_ = 0, left_out_ = 0;  // counts of problems; left_out_: those that could not be made smaller
};

int compare_tasks(const CheckOptions& options, const std::vector<Task>& tasks, Subject& subject) {
  return options.stages ? compare_stages(options, tasks, subject) : compare_all(options, tasks, subject);
}

void print_unchecked(const CompiledVariant& compiled, const std::string& why) {
  const nlohmann::ordered_json all = {{"results", nlohmann::ordered_json::array()},
                                      {"compiled", to_json(compiled)},
                                      {"checked", false},
                                      {"note", concat("no results were checked: ", why)}};
  fmt::print("{}\n", all.dump(2));
}

// Checks a variant without a GPU: compiles it, reports its resources, and emulates it on the CPU.
int check_without_gpu(const CheckOptions& options, const std::vector<Task>& tasks, const std::string& why) {
  const Common& common = options.common;
  if (common.arch.empty())
    throw Error(ErrorCode::environment,
                concat("--variant ", common.variant, ": ", why,
                       "; add --arch, such as --arch sm_89, to compile and emulate it without a GPU"));
  if (common.threads > 0) invalid("--threads ", common.threads, ": only for the CPU, not for a GPU");
  std::vector<Device> device = gpu_presets(common.arch);
  if (device.size() != 1) invalid("--arch ", common.arch, ": must be a single architecture");
  apply_sm_count(common, device[0]);
  require_variant_included(problems_of(tasks), device[0], common);
  const CompiledVariant compiled = compile_variant(options, tasks, device[0]);
  if (!common.json && compiled.kernels) print_compiled(*compiled.kernels);
  if (!common.json && !compiled.kernels) fmt::print("not compiled for {}: {}\n", device[0].arch, compiled.why);
  EmulatedSubject subject(options, device[0], compiled, why);
  std::vector<Task> prepared;
  try {
    prepared = subject.prepare(tasks);
  } catch (const Error& error) {
    if (common.json) print_unchecked(compiled, error.what());
    throw;
  }
  return compare_tasks(options, prepared, subject);
}

}  // namespace

int check(const CheckOptions& options) {
  const std::vector<Task> tasks = tasks_of(options);
  kernel_seconds();  // a wrong value is an error of the command, not of each case
  if (options.common.configs.size() > 1) invalid("check --config: takes one value; bench compares several");
  for (const std::string& config : options.common.configs) check_config_words(config);
  std::string why;
  if (!options.common.variant.empty() && options.common.device.empty() && !usable_gpu(&why))
    return check_without_gpu(options, tasks, why);
  const Device device = chosen_device(options.common, true);
  if (!options.common.json) fmt::print("device  {}{}\n", title_of(device), sm_count_note(options.common));
  require_variant_included(problems_of(tasks), device, options.common);
  LibrarySubject subject(options, device);
  // In a file of cases, --config is allowed to break a rule of some kernels. For a single problem this is wrong input.
  if (const std::string broken = subject.broken_rule(tasks[0]); tasks.size() == 1 && !broken.empty()) invalid(broken);
  return compare_tasks(options, tasks, subject);
}

}  // namespace rapt::lab
