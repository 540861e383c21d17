// What several subcommands share: device choice, contexts, words, and how many rows the oracle is asked for.
// Called by the commands.
#include "lab/commands.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "error.h"

namespace rapt::lab {
namespace {

// Operations that the plain loops of oracle and yardstick get through in about two seconds on two cores.
constexpr double oracle_flops = 1e9;

void require_cpu(const std::string& device) {
  if (device == "cpu") return;
  const bool cuda = device.starts_with("cuda:") && device.size() > 5 && device.size() < 9 &&
                    std::all_of(device.begin() + 5, device.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (!cuda) invalid("--device ", device, ": must be cpu or cuda:N");
  throw Error(ErrorCode::environment, concat("--device ", device, ": this build has no GPU kernels; use --device cpu"));
}

}  // namespace

Device chosen_device(const Common& options, bool execute) {
  require_cpu(options.device);
  Device device = options.arch.empty() ? cpu_device() : device_preset(options.arch);
  if (execute && !options.arch.empty()) {
    set_cpu_isa_limit(device.isa);  // throws where the machine lacks it: other presets can be explained, not run
    device = cpu_device();
  }
  if (options.threads > 0) device.threads = options.threads;
  return device;
}

std::string cases_directory() {
  std::error_code ignored;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path();
  const std::filesystem::path here = "check/cases";
  for (const auto& folder : {here, program / "cases", program.parent_path() / "check/cases"})
    if (std::filesystem::is_directory(folder, ignored)) return folder.string();
  return here.string();
}

ContextHandle make_context(int threads) {
  rapt_context_options options{};
  options.struct_size = sizeof options;
  options.num_threads = threads;
  rapt_context* context = nullptr;
  require_ok(rapt_context_create(&options, &context));
  return ContextHandle(context);
}

void require_ok(rapt_status status) {
  if (status != RAPT_OK) throw Error(static_cast<ErrorCode>(status), rapt_last_error());
}

std::string joined(const std::vector<std::string>& words) {
  std::string line;
  for (const std::string& word : words) line += (line.empty() ? "" : " ") + word;
  return line;
}

int64_t oracle_row_step(double flops) {
  const auto step = static_cast<int64_t>(std::ceil(flops / oracle_flops));
  return step <= 1 ? 1 : step | 1;
}

std::string rows_checked(int64_t row_step) {
  if (row_step == 1) return "all rows";
  return concat("row 0 of each head and every ", row_step,
                row_step % 10 == 3 && row_step % 100 != 13   ? "rd"
                : row_step % 10 == 1 && row_step % 100 != 11 ? "st"
                                                             : "th",
                " after it, since the problem is large");
}

}  // namespace rapt::lab
