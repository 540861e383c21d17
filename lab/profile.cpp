// Runs this program under ncu, keeps ncu's report, and prints the verdict. Without ncu it uses profile_trace.cpp.
// Called by program.cpp; assumes POSIX. The counters need a GPU, a driver that lets this user read them, and ncu.
#include "lab/profile.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "arguments/arguments.h"
#include "base/error.h"
#include "base/files.h"
#include "check/device_tensors.h"
#include "cuda/driver.h"
#include "lab/bench.h"
#include "lab/csv.h"
#include "lab/file.h"
#include "lab/host_compiler.h"
#include "lab/kernel_limit.h"
#include "lab/machine.h"
#include "lab/output.h"
#include "lab/process.h"
#include "lab/profile_hot_spots.h"
#include "lab/profile_metrics.h"
#include "lab/profile_verdict.h"
#include "lab/variant.h"
#include "runtime/context.h"
#include "runtime/gpu.h"
#include "runtime/plan.h"

namespace rapt::lab {
namespace {

constexpr const char* entry_name = "rapt_kernel";                         // entry point of every compiled kernel
constexpr std::string_view wrong_mark = "WRONG, not profiled";            // printed with --launch-only
constexpr std::string_view no_kernel_words = "No kernels were profiled";  // printed by ncu

[[noreturn]] void lacks(const std::string& what) { throw Error(ErrorCode::environment, "profile: " + what); }

std::string config_of(const ProfileOptions& options) {
  if (options.common.configs.size() > 1) invalid("profile --config: give one; bench compares several");
  return options.common.configs.empty() ? "" : options.common.configs[0];
}

// The GPU to profile. Throws an Error that says why there is none.
Device profiled_device(const ProfileOptions& options) {
  const Common& common = options.common;
  if (common.device == "cpu" || common.arch.starts_with("cpu") || common.threads > 0)
    invalid("profile: reads the counters of a GPU; must be --device cuda:N");
  std::string why;
  if (common.device.empty() && !usable_gpu(&why)) lacks("needs a GPU: " + why);
  return chosen_device(common, true);
}

// ---- The part that runs under ncu.

// In this context kernels are compiled with source lines, so ncu-ui can show them. Their machine code does not change.
ContextHandle context_with_lines(const ProfileOptions& options, const Problem& problem, const Device& device) {
  ContextOptions context;
  context.arch = options.common.arch;
  context.sm_count = options.common.sm_count;
  context.config = config_of(options);
  context.files = variant_files(options.common, device, problem);
  context.line_info = true;
  return ContextHandle(new rapt_context(std::move(context)));
}

void launch_checked(const ProfileOptions& options, const Problem& problem, const Device& device) {
  const std::string config = config_of(options);
  const cuda::ContextScope scope(device.index, nullptr);
  const cuda::Stream stream;
  const ContextHandle context = context_with_lines(options, problem, device);
  const check::Inputs inputs = check::make_inputs(problem, check::Fill::normal, options.seed);
  const check::Outputs outputs = check::make_outputs(problem);
  check::DeviceCall call(device.index, problem, inputs, outputs);
  const auto launch = [&] {
    const KernelLimit limit(to_string(problem), options.common.command);
    require_ok(rapt_sdpa(context.get(), &call.args(), stream.handle()));
    stream.synchronize();
  };
  launch();
  call.require_untouched();
  call.download();
  BenchRow row;
  try {
    judge_call(problem, inputs, outputs, options.seed, rerun_options(options.common, device, config), row);
  } catch (const Error& error) {
    throw Error(error.code(), concat(wrong_mark, ": ", error.what()));
  }
  launch();
}

// ---- ncu.

struct Ncu {
  std::string path, self;  // the files of ncu and of this program
  bool by_sudo = false;
};

std::string self_path() {
  std::error_code failure;
  const std::filesystem::path path = std::filesystem::read_symlink("/proc/self/exe", failure);
  if (failure) lacks("cannot find this program's own file: /proc/self/exe: " + failure.message());
  return path.string();
}

constexpr const char* where_ncu_is =
    "It is part of the CUDA toolkit (often /usr/local/cuda/bin/ncu or /opt/nvidia/nsight-compute/VERSION/ncu), and "
    "alone the package nsight-compute-VERSION of NVIDIA's repository. Put its folder into PATH, or set "
    "RAPT_NCU=/path/to/ncu";

// Returns an empty path if ncu is not in PATH.
Ncu find_ncu() {
  const std::string named = environment_value("RAPT_NCU");
  const std::string path = find_program(named.empty() ? "ncu" : named);
  if (path.empty() && !named.empty()) lacks(concat("RAPT_NCU=", named, ": there is no such program"));
  return {path, self_path()};
}

// The environment variables to pass on explicitly ("LD_LIBRARY_PATH=..."), because sudo clears the environment.
std::vector<std::string> kept_environment() {
  std::vector<std::string> kept;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    for (const char* start : {"RAPT_", "CUDA_", "NVIDIA_", "LD_LIBRARY_PATH=", "PATH="})
      if (text.starts_with(start)) kept.emplace_back(text);
  }
  return kept;
}

// The arguments (argv) that start ncu.
std::vector<std::string> ncu_words(const Ncu& ncu) {
  std::vector<std::string> words;
  if (ncu.by_sudo) words = {find_program("sudo"), "-n"};
  words.push_back(ncu.by_sudo ? "env" : find_program("env"));
  for (const std::string& entry : ncu.by_sudo ? kept_environment() : std::vector<std::string>{}) words.push_back(entry);
  words.insert(words.end(), {"LC_ALL=C", ncu.path});  // LC_ALL=C: ncu then prints a decimal point
  return words;
}

// The arguments (argv) of the program that ncu starts.
std::vector<std::string> launch_words(const ProfileOptions& options, const Problem& problem, const Device& device,
                                      const Ncu& ncu) {
  const std::string config = config_of(options);
  std::vector<std::string> words = {ncu.self, "profile", to_string(problem), "--launch-only"};
  words.insert(words.end(), {"--device", concat("cuda:", device.index), "--seed", std::to_string(options.seed)});
  if (!options.common.arch.empty()) words.insert(words.end(), {"--arch", options.common.arch});
  if (options.common.sm_count > 0) words.insert(words.end(), {"--sm-count", std::to_string(options.common.sm_count)});
  if (!config.empty()) words.insert(words.end(), {"--config", config});
  if (!options.common.variant.empty())
    words.insert(words.end(), {"--variant", std::filesystem::absolute(options.common.variant).string()});
  return words;
}

std::string joined_by(const std::vector<std::string>& words, const char* between) {
  std::string text;
  for (const std::string& word : words) text += concat(text.empty() ? "" : between, word);
  return text;
}

constexpr const char* source_section = "SourceCounters";  // ncu's name for the samples of each instruction

// One run of ncu, or of ncu --import.
struct Run {
  bool succeeded = false;
  std::string end, out, messages;  // how ncu ended; its stdout; its stderr
};

class NcuSession {
 public:
  NcuSession(Ncu ncu, std::string command) : ncu_(std::move(ncu)), command_(std::move(command)) {}

  // Runs ncu, which writes the report of the launch into the folder. If ncu does not know some metrics, or fails
  // because of the samples of instructions, runs it again without them.
  void collect(const std::vector<std::string>& launch, int launches_before, int sm) {
    std::vector<std::string> metrics = metric_names(sm);
    for (;;) {
      const Run run = profile_launch(launch, launches_before, metrics);
      if (run.succeeded && std::filesystem::exists(report())) return;
      if (denied(run)) continue;
      const std::vector<std::string> unknown = unknown_metrics(run.out, metrics);
      if (unknown.empty() && with_samples_ && run.out.find("ection") != std::string::npos) {  // "Section"
        with_samples_ = false;
        continue;
      }
      if (unknown.empty()) fail(run);
      for (const std::string& name : unknown) std::erase(metrics, name), unknown_.push_back(name);
      if (metrics.empty()) lacks("ncu knows none of the metrics. Its last lines: " + last_lines(run.out, 4));
    }
  }

  // The table on the report's raw page.
  std::string table() {
    std::vector<std::string> words = {"--import", report(), "--csv", "--page", "raw", "--print-units", "base"};
    Run run = start(words, {"--print-metric-instances", "details"});
    if (!run.succeeded) run = start(words, {});  // older versions of ncu lack that option
    if (!run.succeeded)
      lacks(concat("ncu --import: ", run.end, ". Its last lines:\n", last_lines(run.messages + run.out)));
    const std::string table = without_instances(raw_table(run.out));
    if (table.empty()) no_kernel_ = (run.out + run.messages).find(no_kernel_words) != std::string::npos;
    return table;
  }
  // The report's source page, which has the samples. If ncu fails, the result has only a reason (`why`).
  SassPage sass_page() {
    if (!with_samples_) return page_without(concat("this ncu has no section ", source_section));
    const Run run = start({"--import", report(), "--csv", "--page", "source"}, {"--print-source", "sass"});
    if (run.succeeded) return parse_sass_page(run.out);
    const std::string said = last_lines(run.messages + run.out, 1);
    return page_without(concat("ncu --import --page source: ", run.end, said.empty() ? "" : ": ", trimmed(said)));
  }
  // True if the report contains no launch.
  bool no_kernel() const { return no_kernel_; }

  std::string report() const { return folder_.path() + "/report.ncu-rep"; }
  const std::vector<std::string>& unknown() const { return unknown_; }

 private:
  Run profile_launch(const std::vector<std::string>& launch, int launches_before,
                     const std::vector<std::string>& metrics) {
    std::error_code ignored;
    std::filesystem::remove(report(), ignored);
    std::vector<std::string> words = {"--target-processes",
                                      "all",
                                      "--kernel-name",
                                      entry_name,
                                      "--launch-skip",
                                      std::to_string(launches_before),
                                      "--launch-count",
                                      "1",
                                      "--clock-control",
                                      "none",
                                      "--metrics",
                                      joined_by(metrics, ","),
                                      "--force-overwrite",
                                      "--export",
                                      report()};
    if (with_samples_) words.insert(words.begin(), {"--section", source_section});
    Run run = start(words, launch);
    run.out += run.messages;  // ncu's messages may be on either stream
    return run;
  }

  Run start(const std::vector<std::string>& options, const std::vector<std::string>& more) {
    std::vector<std::string> words = ncu_words(ncu_);
    words.insert(words.end(), options.begin(), options.end());
    words.insert(words.end(), more.begin(), more.end());
    const std::string out = concat(folder_.path(), "/out-", ++runs_), err = concat(folder_.path(), "/err-", runs_);
    const ProgramEnd end = run_program(words, out, err);
    if (DeferredSignals::one_is_pending()) lacks("interrupted");
    return {end.succeeded(), end.text(), read_text_file(out), read_text_file(err)};
  }

  // Returns true if ncu lacked permission to read counters and sudo works. Then the next run uses sudo. Throws if sudo
  // does not help.
  bool denied(const Run& run) {
    if (run.out.find("ERR_NVGPUCTRPERM") == std::string::npos) return false;
    if (ncu_.by_sudo || !sudo_works()) throw_permission();
    ncu_.by_sudo = true;
    return true;
  }
  bool sudo_works() {
    const std::string sudo = find_program("sudo");
    if (geteuid() == 0 || sudo.empty()) return false;
    const std::string out = concat(folder_.path(), "/sudo");
    return run_program({sudo, "-n", "true"}, out).succeeded();
  }
  // The user's command with sudo. sudo clears the environment and uses another PATH.
  std::string command_as_root() const {
    std::string words = "sudo env";
    for (const std::string& entry : kept_environment())
      if (!entry.starts_with("PATH=") && !entry.starts_with("RAPT_NCU=")) words += " " + shell_word(entry);
    const std::string rest = command_.substr(std::min(command_.find(' '), command_.size()));  // after "rapt"
    return concat(words, " ", shell_word("RAPT_NCU=" + ncu_.path), " ", shell_word(ncu_.self), rest);
  }
  [[noreturn]] void throw_permission() const {
    lacks(concat(
        "the driver lets only administrators read the counters of GPUs (ERR_NVGPUCTRPERM)",
        ncu_.by_sudo || geteuid() == 0 ? ". This system refuses root too; containers without CAP_SYS_ADMIN do so. "
                                       : concat(". Run this as root, in this folder:\n  ", command_as_root(), "\n"),
        "To allow all users, add the line \"options nvidia NVreg_RestrictProfilingToAdminUsers=0\" to "
        "/etc/modprobe.d/nvidia-profiling.conf and restart. In a container use docker run --cap-add=SYS_ADMIN. "
        "`rapt profile --trace` needs no permission: it measures with time stamps instead of counters"));
  }

  [[noreturn]] void fail(const Run& run) const {
    if (run.out.find(wrong_mark) != std::string::npos)
      throw Error(ErrorCode::internal,
                  concat("profile: the kernel is wrong and was not profiled:\n", last_lines(run.out)));
    if (run.succeeded || run.out.find(no_kernel_words) != std::string::npos)
      lacks(concat("ncu profiled no kernel. Its last lines:\n", last_lines(run.out)));
    lacks(concat("ncu failed: ", run.end, "; nothing was written. Its last lines:\n", last_lines(run.out)));
  }
  static SassPage page_without(const std::string& why) {
    SassPage page;
    page.why = why;
    return page;
  }
  static std::string last_lines(std::string text, int count = 10) {
    while (text.ends_with('\n')) text.pop_back();
    size_t begin = text.size();
    for (; count > 0 && begin != std::string::npos && begin > 0; --count) begin = text.rfind('\n', begin - 1);
    std::string lines;
    for (const std::string& line :
         split_words(std::string_view(text).substr(begin == std::string::npos ? 0 : begin), '\n'))
      lines += concat(lines.empty() ? "  " : "\n  ", line);
    return lines;
  }

  Ncu ncu_;
  std::string command_;  // the user's command line
  const TemporaryFolder folder_{"rapt-profile"};
  std::vector<std::string> unknown_;
  int runs_ = 0;
  bool no_kernel_ = false, with_samples_ = true;
};

// ---- Results.

// "f16 b1 h8 q512 k512 d64" -> "f16-b1-h8-q512-k512-d64".
std::string result_name(const ProfileOptions& options, const Problem& problem) {
  constexpr size_t longest = 80;
  return file_safe(options.name.empty() ? to_string(problem) : options.name).substr(0, longest);
}

// kind: "profile", "trace".
std::string result_path(const char* kind, const ProfileOptions& options, const Problem& problem, const Device& device) {
  return concat("results/", file_safe(device.name), "/", utc_stamp(), "-", kind, "-", result_name(options, problem));
}

std::string write_results(const std::string& base, const std::string& table, const std::string& sass,
                          const std::string& report) {
  constexpr size_t most = size_t{1} << 30;
  std::string bytes;
  if (const std::string wrong = read_regular(AT_FDCWD, report, most, bytes); !wrong.empty())
    throw Error(ErrorCode::environment, concat(report, ": ", wrong));
  make_directories(std::filesystem::path(base).parent_path().string());
  const auto write = [&](const char* ending, const std::string& text) {
    AtomicFile file(base + ending);
    file.write(text);
    file.commit();
  };
  write(".ncu-rep", bytes);
  if (!table.empty()) write(".csv", table);
  if (!sass.empty()) write("-sass.csv", sass);
  return concat(base, table.empty() ? "" : sass.empty() ? ".csv and " : ".csv, -sass.csv and ", ".ncu-rep");
}

// The source lines of the kernel of the plan's first step, which is profiled.
KernelLines lines_of(const ProfileOptions& options, const Problem& problem, const Device& device, const Step& step) {
  jit::Request request = request_for(step.family->unit(step.config), device.arch, step.family->name,
                                     variant_files(options.common, device, problem));
  request.line_info = true;
  try {
    const ContextHandle context = context_with_lines(options, problem, device);
    const std::shared_ptr<const jit::Image> image = context->impl.gpu().store().get(request);
    return KernelLines(std::move(request), *image);
  } catch (const Error& error) {
    KernelLines none;
    none.why = error.what();
    return none;
  }
}

void print_verdict(const ProfileOptions& options, const Device& device, const Problem& problem,
                   const ProfiledKernel& kernel, const PlannedFacts& facts, const Verdict& verdict,
                   const HotSpots& spots, const NcuSession& session, const std::string& written) {
  if (options.common.json) {
    nlohmann::ordered_json json = {
        {"problem", to_string(problem)}, {"card", device.name}, {"arch", device.arch}, {"sm_count", device.sm_count}};
    json.update(to_json(kernel, facts, verdict));
    json["hot"] = to_json(spots);
    json["unknown"] = session.unknown();
    json["written"] = written;
    fmt::print("{}\n", json.dump(2));
    return;
  }
  fmt::print("profile  {}, {}{}; {}\n{}{}", title_of(device), device.arch, sm_count_note(options.common),
             to_string(problem), to_text(kernel, facts, verdict), to_text(spots));
  if (!session.unknown().empty()) fmt::print("unknown  to this ncu: {}\n", joined_by(session.unknown(), ", "));
  fmt::print("wrote    {}\n", written);
}

int profile_by_ncu(const ProfileOptions& options, const Problem& problem, const Device& device,
                   const GateLimits& limits, const Ncu& ncu) {
  const Plan chosen = plan_with(problem, device, config_of(options), options.common.variant.empty());
  const PlannedFacts facts = planned_facts(problem, chosen.steps[0], device);
  const std::string base = result_path("profile", options, problem, device);
  // Defers signals until the destructor of `session` has removed its temporary folder.
  const DeferredSignals waits;
  NcuSession session(ncu, options.common.command);
  session.collect(launch_words(options, problem, device, ncu), chosen.step_count, device.sm);
  std::vector<ProfiledKernel> kernels;
  std::string table;
  SassPage sass;
  try {
    table = session.table();
    if (!session.no_kernel()) kernels = parse_raw_table(table, device.sm);
    if (!kernels.empty()) sass = session.sass_page();
  } catch (const Error& error) {
    // The report exists, so it is kept: ncu-ui can open it.
    if (DeferredSignals::one_is_pending()) throw;
    lacks(concat(error.what(), "\nwrote ", write_results(base, "", "", session.report())));
  }
  if (kernels.empty()) lacks("ncu profiled no kernel: its report has no rows; nothing was written");
  const HotSpots spots =
      hot_spots(sass, sass.why.empty() ? lines_of(options, problem, device, chosen.steps[0]) : KernelLines());
  const std::string written = write_results(base, table, sass.why.empty() ? sass.csv : "", session.report());
  const Verdict verdict = judge(kernels[0], facts, limits);
  print_verdict(options, device, problem, kernels[0], facts, verdict, spots, session, written);
  if (verdict.failed()) return exit_check_failed;
  return verdict.nothing_judged() ? exit_environment : exit_success;
}

}  // namespace

namespace {

// Puts the configuration of the problem's tuned row into --config. So the profiled kernel is the kernel that a normal
// call uses.
ProfileOptions with_row(const ProfileOptions& options, const Problem& problem, const Device& device) {
  ProfileOptions changed = options;
  const TunedRows rows = rows_for(options.common);
  if (rows.size() == 0) return changed;
  const TunedRow* row = nullptr;
  plan_by_row(problem, device, rows, &row);
  if (row != nullptr && !row->keeps_planner()) changed.common.configs = {row->words};
  return changed;
}

}  // namespace

int profile(const ProfileOptions& given) {
  ProfileOptions options = given;
  const GateLimits limits = parse_gates(options.gates);
  if (options.trace && !options.gates.empty())
    invalid("--gate ", options.gates[0], ": needs counters; not with --trace");
  if (options.trace && options.launch_only) invalid("--launch-only: is for ncu; not with --trace");
  check_config_words(config_of(options));
  const Problem problem = parse_problem(joined(options.words));
  const Device device = profiled_device(options);
  options = with_row(options, problem, device);
  const std::string config = config_of(options);
  require_variant_included({problem}, device, options.common);
  if (const std::string broken = broken_config_rule(options.common, device, problem, config); !broken.empty())
    invalid(broken);
  if (options.launch_only) {
    launch_checked(options, problem, device);
    return exit_success;
  }
  const auto by_trace = [&](const std::string& why) {
    return profile_by_trace(options, problem, device, config, result_path("trace", options, problem, device) + ".json",
                            why);
  };
  if (options.trace) return by_trace("");
  const Ncu ncu = find_ncu();
  if (!ncu.path.empty()) return profile_by_ncu(options, problem, device, limits, ncu);
  if (!options.gates.empty())
    lacks(concat("--gate needs counters of Nsight Compute, and ncu is not in PATH. ", where_ncu_is));
  try {
    return by_trace("time stamps, because ncu is not in PATH; for counters set RAPT_NCU=/path/to/ncu");
  } catch (const Error& error) {
    if (error.code() != ErrorCode::unsupported) throw;
    lacks(concat(error.what(), ". Counters need Nsight Compute, and ncu is not in PATH. ", where_ncu_is));
  }
}

}  // namespace rapt::lab
