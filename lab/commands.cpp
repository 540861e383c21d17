// What several subcommands share: device choice, contexts, words, and how many rows the oracle is asked for.
// Called by the commands.
#include "lab/commands.h"

#include <charconv>
#include <cmath>
#include <filesystem>

#include "base/error.h"
#include "cpu/isa.h"
#include "cuda/cuda.h"
#include "jit/jit.h"
#include "kernels/family.h"
#include "lab/file.h"
#include "runtime/context.h"
#include "runtime/plan.h"

namespace rapt::lab {
namespace {

// Operations that the plain loops of oracle and yardstick get through in about two seconds on two cores.
constexpr double oracle_flops = 1e9;

bool is_cpu(const std::string& name) { return name.starts_with("cpu"); }

// The number of --device cuda:N.
int gpu_index(const std::string& device) {
  int index = 0;
  const char* begin = device.data() + 5;
  const char* end = device.data() + device.size();
  if (!device.starts_with("cuda:") || begin == end) invalid("--device ", device, ": must be cpu or cuda:N");
  const auto [stop, status] = std::from_chars(begin, end, index);
  if (status != std::errc() || stop != end || index < 0) invalid("--device ", device, ": must be cpu or cuda:N");
  return index;
}

// "sm_89" and "compute_89": 89. Cards (l4) and anything else: 0.
int number_of(const std::string& arch) {
  int number = 0;
  for (const char* prefix : {"sm_", "compute_"})
    if (arch.starts_with(prefix))
      std::from_chars(arch.data() + std::string(prefix).size(), arch.data() + arch.size(), number);
  return number;
}

// Kernels of another architecture on this card: PTX of an older one, or machine code of its own generation.
void check_runs(const std::string& arch, const Device& device) {
  const int number = number_of(arch);
  if (number == 0)
    invalid("--arch ", arch,
            ": a card to plan for, which explain can; to run name an architecture, such as compute_89");
  const bool runs =
      arch.starts_with("sm_") ? number / 10 == device.sm / 10 && number <= device.sm : number <= device.sm;
  if (!runs)
    invalid("--arch ", arch, ": ", device.name, " is sm_", device.sm, " and does not run it",
            arch.starts_with("sm_") && number < device.sm ? concat("; compute_", number, " it does") : "");
}

Device gpu_device(const Common& options, bool execute) {
  if (options.device.empty() && !options.arch.empty() && !execute) return device_preset(options.arch);
  const int index = options.device.empty() ? 0 : gpu_index(options.device);
  std::string why;
  if (cuda::find_driver(&why) == nullptr)
    throw Error(ErrorCode::environment, concat("--device cuda:", index, ": ", why));
  Device device = cuda::device(index);
  if (options.arch.empty()) return device;
  device_preset(options.arch);  // throws naming what is known
  check_runs(options.arch, device);
  device.arch = options.arch;
  return device;
}

Device cpu_device_of(const Common& options, bool execute) {
  Device device = options.arch.empty() ? cpu_device() : device_preset(options.arch);
  if (execute && !options.arch.empty()) {
    set_cpu_isa_limit(device.isa);  // throws where the machine lacks it: other presets can be explained, not run
    device = cpu_device();
  }
  if (options.threads > 0) device.threads = options.threads;
  return device;
}

bool wants_cpu(const Common& options) {
  if (!options.device.empty()) return options.device == "cpu";
  if (!options.arch.empty()) return is_cpu(options.arch);
  const bool gpu_options = !options.configs.empty() || !options.variant.empty();
  return options.threads > 0 || (!gpu_options && !usable_gpu());
}

std::string base_name(const std::string& path) { return std::filesystem::path(path).filename().string(); }

}  // namespace

Device chosen_device(const Common& options, bool execute) {
  const bool cpu = wants_cpu(options);
  if (!options.device.empty() && !options.arch.empty() && is_cpu(options.arch) != cpu)
    invalid("--arch ", options.arch, ": is not an architecture of --device ", options.device);
  if (cpu && !options.configs.empty())
    invalid("--config ", options.configs[0], ": is for GPU kernels, not for the CPU");
  if (cpu && !options.variant.empty()) invalid("--variant ", options.variant, ": is for GPU kernels, not for the CPU");
  if (!cpu && options.threads > 0) invalid("--threads ", options.threads, ": is for the CPU, not for a GPU");
  return cpu ? cpu_device_of(options, execute) : gpu_device(options, execute);
}

bool usable_gpu(std::string* why) {
  std::string reason;
  const cuda::Driver* driver = cuda::find_driver(&reason);
  bool usable = driver != nullptr;
  if (usable && cuda::device_count() == 0) {
    usable = false;
    reason = "the driver sees no GPU";
  }
  if (usable && jit::Store::from_environment().packs.empty())
    usable = jit::find_compiler(&reason, cuda::supported_cuda_major(*driver)) != nullptr;
  if (!usable && why != nullptr) *why = reason;
  return usable;
}

rapt_device handle_of(const Device& device) {
  return device.kind == DeviceKind::cuda ? rapt_device{RAPT_DEVICE_CUDA, device.index}
                                         : rapt_device{RAPT_DEVICE_CPU, 0};
}

std::string title_of(const Device& device) {
  return device.kind == DeviceKind::cuda ? concat("cuda:", device.index, ": ", device.name) : "cpu";
}

void check_config_words(const std::string& config) {
  // The problem says which family reads them; here a word must belong to some family of GPUs.
  std::string why;
  for (const Family* family : all_families()) {
    if (family->unit == nullptr) continue;
    try {
      KernelConfig(family->config_type).apply(config);
      return;
    } catch (const Error& error) {
      if (why.empty()) why = error.what();
    }
  }
  throw Error(ErrorCode::invalid_argument, why);
}

std::string broken_config_rule(const Common& options, const Device& device, const Problem& problem,
                               const std::string& config) {
  if (config.empty()) return "";
  try {
    plan_with(problem, device, config, options.variant.empty());
  } catch (const Error& error) {
    if (error.code() == ErrorCode::invalid_argument) return error.what();
  }
  return "";
}

// The library's text that a variant's path ends with ("sm80/attention_sm80.cuh" of "my/attention_sm80.cuh"), or "".
// Of several texts of one file name the path must name the folder, too.
std::string embedded_text(const std::string& variant) {
  const std::string file = base_name(variant);
  std::vector<std::string> found;
  for (const auto& [path, text] : jit::embedded_files()) {
    if (("/" + variant).ends_with(concat("/", path))) return std::string(path);
    if (base_name(std::string(path)) == file) found.emplace_back(path);
  }
  if (found.size() > 1)
    invalid("--variant ", variant, ": the library has ", found[0], " and ", found[1],
            "; its path must end with the one that it replaces");
  return found.empty() ? "" : found[0];
}

std::string variant_name(const Common& options, const Device& device, const Problem& problem) {
  if (options.variant.empty()) return "";
  if (const std::string own = embedded_text(options.variant); !own.empty()) return own;
  for (const Family* family : all_families())
    if (family->accepts(problem, device, nullptr)) return family->text;
  return base_name(options.variant);  // no kernel takes the problem, so that nothing reads the text
}

std::map<std::string, std::string> variant_files(const Common& options, const Device& device, const Problem& problem) {
  if (options.variant.empty()) return {};
  return {{variant_name(options, device, problem), read_text_file(options.variant)}};
}

ContextHandle make_context(const Common& options, const Device& device, const Problem& problem,
                           const std::string& config) {
  ContextOptions context;
  context.threads = options.threads;
  if (device.kind == DeviceKind::cuda) {
    context.arch = options.arch;
    context.config = config;
    context.files = variant_files(options, device, problem);
  }
  return ContextHandle(new rapt_context(std::move(context)));
}

std::string rerun_options(const Common& options, const Device& device, const std::string& config) {
  std::string words = device.kind == DeviceKind::cuda ? concat(" --device cuda:", device.index) : " --device cpu";
  if (!options.arch.empty()) words += concat(" --arch ", options.arch);
  if (!config.empty()) words += concat(" --config \"", config, "\"");
  if (!options.variant.empty()) words += concat(" --variant ", options.variant);
  return words;
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
