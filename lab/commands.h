// The subcommands of rapt: what each is told (filled by program.cpp from the command line), and what it returns.
// Every command prints to stdout, throws Error for what it cannot do, and returns an exit code.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "check/cases.h"
#include "device/device.h"
#include "problem/problem.h"
#include "rapt/rapt.h"

namespace rapt::lab {

enum Exit : int { exit_fine = 0, exit_check_failed = 1, exit_wrong_input = 2, exit_environment = 3 };

struct Common {
  bool json = false;
  std::string device;                // cpu | cuda:N; "" = cuda:0 where a GPU is usable, else cpu
  std::string arch;                  // a preset of device_preset(), "" = the machine's own
  std::vector<std::string> configs;  // words over the planner's choice for a GPU kernel; bench: an arm each
  std::string variant;               // a device text that replaces the family's own
  int threads = 0;                   // CPU; 0 = all that the process may use
  std::string command;               // the command line, quoted for a shell
};

struct RunOptions {
  Common common;
  std::string input, output;
  std::string original;  // of quantised inputs; "" = where the file says
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
  std::string suite, timer, l2 = "warm", output;  // timer "" = graph on a GPU, host on the CPU
  int64_t warmup = 5, iterations = 30;
  uint64_t seed = 1;
  bool save = false;
  bool ladder = false;  // ladder.h instead of bench()
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

// The device that --device and --arch name, and where neither says, usable_gpu() decides. With `execute` it is this
// machine's, as the library will use it; without, a preset too. Contradictions among --device, --arch, --config,
// --variant and --threads are errors.
Device chosen_device(const Common& options, bool execute);
// A driver, a GPU, and kernels for it: NVRTC or packs. If not, `why` gets the sentence.
bool usable_gpu(std::string* why = nullptr);
// As rapt.h names it.
rapt_device handle_of(const Device& device);
// "cuda:0: NVIDIA H100 80GB HBM3", "cpu".
std::string title_of(const Device& device);

// The cases of a set that the program carries ("smoke" is check/cases/smoke.txt of the checkout it was built from), or
// of a file. option: "--cases".
std::vector<check::Case> cases_named(const char* option, const std::string& name);

// Pages of docs/ that the program carries ("problem-line"), and the text of one; "" where there is none.
std::vector<std::string_view> page_names();
std::string_view page_named(const std::string& name);
// "; did you mean check?", or "" where none of `known` is near.
std::string did_you_mean(std::string_view word, const std::vector<std::string_view>& known);

// A context for one problem, as the options and one of --config's values say.
struct ContextDeleter {
  void operator()(rapt_context* context) const { rapt_context_destroy(context); }
};
using ContextHandle = std::unique_ptr<rapt_context, ContextDeleter>;
ContextHandle make_context(const Common& options, const Device& device, const Problem& problem,
                           const std::string& config = "");
// Throws Error where the words of one of --config's values are none. Whether they break a rule of the kernel that takes
// `problem`, as a sentence; "" = they do not, or no kernel takes it.
void check_config_words(const std::string& config);
std::string broken_config_rule(const Common& options, const Device& device, const Problem& problem,
                               const std::string& config);
// The name under which --variant's text enters that context ("sm80/attention_sm80.cuh"): its own where the library has
// a file of that name, else that of the family that takes the problem. "" without --variant.
std::string variant_name(const Common& options, const Device& device, const Problem& problem);
// --variant's text by that name; empty without --variant.
std::map<std::string, std::string> variant_files(const Common& options, const Device& device, const Problem& problem);

// What must stand behind a rerun command besides its problem: " --device cuda:0 --arch compute_89".
std::string rerun_options(const Common& options, const Device& device, const std::string& config = "");

// Throws Error with the library's sentence when status is not RAPT_OK.
void require_ok(rapt_status status);

// Words of the command line as one problem line.
std::string joined(const std::vector<std::string>& words);

// So that about this many operations are spent on the oracle: every n-th query row, n odd so that all places in a tile
// are met. 1 = all rows.
int64_t oracle_row_step(double flops);
// "all 3972 rows", "every 7th row".
std::string rows_checked(int64_t row_step);

}  // namespace rapt::lab
