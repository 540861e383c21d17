// The subcommands of rapt: their options (set by program.cpp from the command line) and exit codes. Each command prints
// to stdout, throws Error on failure, and returns an exit code.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "check/cases.h"
#include "device/device.h"
#include "problem/problem.h"
#include "rapt/rapt.h"
#include "runtime/tuned_rows.h"

namespace rapt::lab {

enum Exit : int { exit_success = 0, exit_check_failed = 1, exit_wrong_input = 2, exit_environment = 3 };
int exit_code(ErrorCode code);

struct Common {
  bool json = false;
  std::string device;  // cpu | cuda:N. Default: cuda:0 if rapt can use a GPU, else cpu
  std::string arch;    // a preset of device_preset(). Default: the architecture of the device
  // Overrides of the planner's choice for a GPU kernel. bench takes several, and times each as one implementation.
  std::vector<std::string> configs;
  std::string family;                // kernel family; becomes the word "family=" in every entry of `configs`
  std::vector<std::string> against;  // bench: families to time in addition to `configs`
  std::string variant;               // path of a kernel source that replaces a built-in one
  int threads = 0;                   // number of CPU threads. 0: all CPUs available to the process
  int sm_count = 0;                  // multiprocessors for which GPU kernels are planned. 0: all of the GPU
  std::string command;               // the command line, quoted for a shell
};

struct RunOptions {
  Common common;
  std::string input, output;
  std::string original;  // file of the unquantised inputs. Default: the path that the input file records
  std::vector<std::string> words;
};
struct CheckOptions {
  Common common;
  std::vector<std::string> words;
  std::string cases, fill;
  uint64_t seed = 1;
  bool stages = false;
};
struct BenchOptions {
  Common common;
  std::vector<std::string> words;
  std::string suite, timer, l2 = "warm", output;  // timer: "" means graph on a GPU, host on the CPU
  int64_t warmup = 5, iterations = 30;
  double budget = 5;  // seconds for the samples of a problem
  uint64_t seed = 1;
  bool save = false;
  bool ladder = false;  // run ladder() (ladder.h) instead of bench()
};
struct ExplainOptions {
  Common common;
  std::vector<std::string> words;
};

int info(const Common& options);
int run(const RunOptions& options);
int check(const CheckOptions& options);
int bench(const BenchOptions& options);
int explain(const ExplainOptions& options);

// The device that --device and --arch select. Without these options, usable_gpu() decides. With `execute` the device
// must be one of this machine; otherwise a preset is allowed, too. Throws if --device, --arch, --config, --variant,
// --sm-count and --threads contradict each other.
Device chosen_device(const Common& options, bool execute);
// Replaces the GPU's number of multiprocessors by that of --sm-count. Throws Error if the GPU has fewer. Without
// --sm-count it does nothing.
void apply_sm_count(const Common& options, Device& device);
// ", planned for 16 multiprocessors" if --sm-count is given, otherwise "". Follows the name of the device in reports.
std::string sm_count_note(const Common& options);
// True if there are a driver, a GPU, and kernels for this GPU (from NVRTC or packs). Otherwise `why` gets the reason.
bool usable_gpu(std::string* why = nullptr);
// The device as a rapt_device.
rapt_device handle_of(const Device& device);
// A device as text: "cuda:0: NVIDIA H100 80GB HBM3", "cpu".
std::string title_of(const Device& device);

// The cases of an embedded set ("smoke" is check/cases/smoke.txt of the source tree), or of a file. option: the option
// with the name, for error sentences ("--cases").
std::vector<check::Case> cases_named(const char* option, const std::string& name);

// The names of the embedded pages of docs/ ("problem-line"), and the text of one page ("" if there is no such page).
std::vector<std::string_view> page_names();
std::string_view page_named(const std::string& name);
// "; did you mean check?", or "" if no word of `known` is similar.
std::string did_you_mean(std::string_view word, const std::vector<std::string_view>& known);

// The tuned rows that a context of make_context() uses. With --config, --family or --variant it uses none.
TunedRows rows_for(const Common& options);

// A context for one problem, set up from the options and one --config value.
struct ContextDeleter {
  void operator()(rapt_context* context) const { rapt_context_destroy(context); }
};
using ContextHandle = std::unique_ptr<rapt_context, ContextDeleter>;
ContextHandle make_context(const Common& options, const Device& device, const Problem& problem,
                           const std::string& config = "");
// check_config_words throws Error if a --config value has an unknown word. broken_rule returns a sentence if the value
// breaks a rule of the problem's kernel. It returns "" if it breaks no rule, or if no kernel computes the problem.
void check_config_words(const std::string& config);
// Adds the values of --family and --against to options.configs.
void apply_family_option(Common& options);
std::string broken_config_rule(const Common& options, const Device& device, const Problem& problem,
                               const std::string& config);
// The source name that --variant's file replaces ("sm80/attention_sm80.cuh"): the built-in source with the same file
// name, otherwise the source of the family that computes the problem. "" without --variant.
std::string variant_name(const Common& options, const Device& device, const Problem& problem);
// The key is this name, the value is the source of --variant. Empty without --variant.
std::map<std::string, std::string> variant_files(const Common& options, const Device& device, const Problem& problem);

// A compiler's message with the path of --variant's file in place of the name of the source that it replaces:
// "sm80/attention_sm80.cuh(12): error" becomes "my/attention_sm80.cuh(12): error".
std::string with_variant_path(std::string message, const Common& options);

// The options that a rerun command needs besides its problem: " --device cuda:0 --arch compute_89 --sm-count 16".
std::string rerun_options(const Common& options, const Device& device, const std::string& config = "");

// Throws Error with the library's error sentence if status is not RAPT_OK.
void require_ok(rapt_status status);

// Joins words of the command line into one problem line.
std::string joined(const std::vector<std::string>& words);

// The oracle computes every n-th query row, to limit the number of its operations. Returns n (1: all rows). n is odd,
// so all positions within a tile occur.
int64_t oracle_row_step(double flops);
// The checked rows as text: "all 3972 rows", "every 7th row".
std::string rows_checked(int64_t row_step);

}  // namespace rapt::lab
