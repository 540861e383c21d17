// The subcommands of rapt: what each is told (filled by program.cpp from the command line), and what it returns.
// Every command prints to stdout, throws Error for what it cannot do, and returns an exit code.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device.h"
#include "rapt/rapt.h"

namespace rapt::lab {

enum Exit : int { exit_fine = 0, exit_check_failed = 1, exit_wrong_input = 2, exit_environment = 3 };

struct Common {
  bool json = false;
  std::string device = "cpu";  // cpu | cuda:N
  std::string arch;            // a preset of device_preset(), "" = the machine's own
  int threads = 0;             // 0 = all that the process may use
  std::string command;         // the command line, quoted for a shell
};

struct RunOptions {
  Common common;
  std::string input, output;
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
  std::string suite, timer = "host", l2 = "warm", output;
  int64_t warmup = 5, iterations = 30;
  uint64_t seed = 1;
  bool save = false;
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

// The device that --device and --arch name. With `execute` it must be this machine's, as the library will use it.
Device chosen_device(const Common& options, bool execute);

// Where the named case sets lie: check/cases here, or cases/ or ../check/cases beside the program.
std::string cases_directory();

// A context of the library with so many threads.
struct ContextDeleter {
  void operator()(rapt_context* context) const { rapt_context_destroy(context); }
};
using ContextHandle = std::unique_ptr<rapt_context, ContextDeleter>;
ContextHandle make_context(int threads);

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
