// Functions that several subcommands share: device choice, contexts, option words, and the number of rows that the
// oracle computes. Called by the commands.
#include "lab/commands.h"

#include <algorithm>
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

// The number of operations that the oracle computes in about two seconds on two cores.
constexpr double oracle_flops = 1e9;

bool is_cpu(const std::string& name) { return name.starts_with("cpu"); }

// The N of --device cuda:N.
int gpu_index(const std::string& device) {
  int index = 0;
  const char* begin = device.data() + 5;
  const char* end = device.data() + device.size();
  if (!device.starts_with("cuda:") || begin == end) invalid("--device ", device, ": must be cpu or cuda:N");
  const auto [stop, status] = std::from_chars(begin, end, index);
  if (status != std::errc() || stop != end || index < 0) invalid("--device ", device, ": must be cpu or cuda:N");
  return index;
}

// 89 for "sm_89" and "compute_89". 0 for GPU names ("l4") and anything else.
int number_of(const std::string& arch) {
  int number = 0;
  for (const char* prefix : {"sm_", "compute_"})
    if (arch.starts_with(prefix))
      std::from_chars(arch.data() + std::string(prefix).size(), arch.data() + arch.size(), number);
  return number;
}

// Throws if `device` cannot run kernels that are compiled for `arch`. A GPU runs PTX of its own and of older
// architectures, and machine code of its own generation.
void check_runs(const std::string& arch, const Device& device) {
  const int number = number_of(arch);
  if (number == 0)
    invalid("--arch ", arch, ": a GPU name, which only explain accepts; use an architecture, such as compute_89");
  const bool runs =
      arch.starts_with("sm_") ? number / 10 == device.sm / 10 && number <= device.sm : number <= device.sm;
  if (!runs)
    invalid("--arch ", arch, ": ", device.name, " is sm_", device.sm, " and cannot run it",
            arch.starts_with("sm_") && number < device.sm ? concat("; use compute_", number) : "");
}

Device gpu_device(const Common& options, bool execute) {
  if (options.device.empty() && !options.arch.empty() && !execute) {
    Device device = device_preset(options.arch);
    apply_sm_count(options, device);
    return device;
  }
  const int index = options.device.empty() ? 0 : gpu_index(options.device);
  std::string why;
  if (cuda::find_driver(&why) == nullptr)
    throw Error(ErrorCode::environment, concat("--device cuda:", index, ": ", why));
  Device device = cuda::device(index);
  apply_sm_count(options, device);
  if (options.arch.empty()) return device;
  device_preset(options.arch);  // throws an error that lists the known names
  check_runs(options.arch, device);
  device.arch = options.arch;
  return device;
}

Device cpu_device_of(const Common& options, bool execute) {
  Device device = options.arch.empty() ? cpu_device() : device_preset(options.arch);
  if (execute && !options.arch.empty()) {
    // Throws if this machine does not have the instruction set: `explain` takes presets of other machines, but such a
    // preset cannot run.
    set_cpu_isa_limit(device.isa);
    device = cpu_device();
  }
  if (options.threads > 0) device.threads = options.threads;
  return device;
}

bool wants_cpu(const Common& options) {
  if (!options.device.empty()) return options.device == "cpu";
  if (!options.arch.empty()) return is_cpu(options.arch);
  const bool gpu_options = !options.configs.empty() || !options.variant.empty() || options.sm_count > 0;
  return options.threads > 0 || (!gpu_options && !usable_gpu());
}

std::string base_name(const std::string& path) { return std::filesystem::path(path).filename().string(); }

}  // namespace

Device chosen_device(const Common& options, bool execute) {
  const bool cpu = wants_cpu(options);
  if (!options.device.empty() && !options.arch.empty() && is_cpu(options.arch) != cpu)
    invalid("--arch ", options.arch, ": is not an architecture for --device ", options.device);
  if (cpu && !options.configs.empty()) {
    const std::string option = !options.family.empty()    ? "--family " + options.family
                               : !options.against.empty() ? "--against " + options.against[0]
                                                          : "--config " + options.configs[0];
    invalid(option, ": only for GPU kernels, not for the CPU");
  }
  if (cpu && !options.variant.empty())
    invalid("--variant ", options.variant, ": only for GPU kernels, not for the CPU");
  if (cpu && options.sm_count > 0) invalid("--sm-count ", options.sm_count, ": only for a GPU, not for the CPU");
  if (!cpu && options.threads > 0) invalid("--threads ", options.threads, ": only for the CPU, not for a GPU");
  return cpu ? cpu_device_of(options, execute) : gpu_device(options, execute);
}

void apply_sm_count(const Common& options, Device& device) {
  if (options.sm_count == 0) return;
  if (options.sm_count > device.sm_count)
    invalid("--sm-count ", options.sm_count, ": must be from 1 to ", device.sm_count, ", the multiprocessors of ",
            device.name);
  device.sm_count = options.sm_count;
}

std::string sm_count_note(const Common& options) {
  if (options.sm_count == 0) return "";
  return concat(", planned for ", options.sm_count, options.sm_count == 1 ? " multiprocessor" : " multiprocessors");
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
  // This function has no problem, so it does not know the family. It accepts a word that is valid for any GPU family.
  const PlanOverride wanted = override_of(config);
  std::string why;
  for (const Family* family : all_families()) {
    if (family->unit == nullptr || (wanted.family != nullptr && wanted.family != family)) continue;
    try {
      KernelConfig(family->config_type).apply(wanted.config);
      return;
    } catch (const Error& error) {
      if (why.empty()) why = error.what();
    }
  }
  if (!why.empty()) throw Error(ErrorCode::invalid_argument, why);
}

void apply_family_option(Common& options) {
  if (options.family.empty() && options.against.empty()) return;
  if (options.configs.empty()) options.configs.emplace_back();
  for (std::string& config : options.configs)
    if (!options.family.empty()) config = concat("family=", options.family, config.empty() ? "" : " ", config);
  for (const std::string& family : options.against) options.configs.push_back("family=" + family);
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

// The library's source file whose path ends the variant's path ("sm80/attention_sm80.cuh" for
// "my/attention_sm80.cuh"), or "". If several sources have the same file name, the path must include the folder.
std::string embedded_source(const std::string& variant) {
  const std::string file = base_name(variant);
  std::vector<std::string> found;
  for (const auto& [path, text] : jit::embedded_files()) {
    if (("/" + variant).ends_with(concat("/", path))) return std::string(path);
    if (base_name(std::string(path)) == file) found.emplace_back(path);
  }
  if (found.size() > 1)
    invalid("--variant ", variant, ": the library has ", found[0], " and ", found[1],
            "; its path must end with the path of the file to replace");
  return found.empty() ? "" : found[0];
}

std::string variant_name(const Common& options, const Device& device, const Problem& problem) {
  if (options.variant.empty()) return "";
  if (const std::string own = embedded_source(options.variant); !own.empty()) return own;
  const Problem planned = planned_problem(problem, device);
  for (const Family* family : all_families()) {
    const bool asked = options.family == family->name;
    if (!(asked || options.family.empty()) || !family->accepts(planned, device, nullptr)) continue;
    if (asked || family->prefers == nullptr || family->prefers(planned, device, nullptr)) return family->text;
  }
  return base_name(options.variant);  // no kernel computes the problem, so nothing reads the source
}

std::map<std::string, std::string> variant_files(const Common& options, const Device& device, const Problem& problem) {
  if (options.variant.empty()) return {};
  return {{variant_name(options, device, problem), read_text_file(options.variant)}};
}

std::string with_variant_path(std::string message, const Common& options) {
  if (options.variant.empty()) return message;
  std::vector<std::string> names;
  try {
    if (const std::string own = embedded_source(options.variant); !own.empty()) names.push_back(own);
  } catch (const Error&) {
    return message;  // the compiler's error is more useful than this one
  }
  if (names.empty())
    for (const Family* family : all_families())
      if (family->text != nullptr) names.emplace_back(family->text);
  for (const std::string& name : names)
    for (size_t at = message.find(name); at != message.npos; at = message.find(name, at)) {
      const size_t end = at + name.size();
      // The name is a place in a source if it begins a word and a line number follows. A folder of the emulation may
      // stand before the name.
      const size_t word = message.find_last_of(" \n", at) + 1;
      const bool place = end < message.size() && (message[end] == '(' || message[end] == ':') &&
                         (word == at || message.substr(word, at - word).starts_with("kernel"));
      const size_t begin = place ? word : end;
      if (place) message.replace(begin, end - begin, options.variant);
      at = begin + (place ? options.variant.size() : 0);
    }
  return message;
}

TunedRows rows_for(const Common& options) {
  const bool changed = std::any_of(options.configs.begin(), options.configs.end(),
                                   [](const std::string& config) { return !config.empty(); });
  if (changed || !options.variant.empty()) return {};
  return TunedRows::read(tuned_file(jit::Store::from_environment().cache_directory));
}

ContextHandle make_context(const Common& options, const Device& device, const Problem& problem,
                           const std::string& config) {
  ContextOptions context;
  context.threads = options.threads;
  if (device.kind == DeviceKind::cuda) {
    context.arch = options.arch;
    context.sm_count = options.sm_count;
    context.config = config;
    context.files = variant_files(options, device, problem);
  }
  return ContextHandle(new rapt_context(std::move(context)));
}

int exit_code(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument: return exit_wrong_input;
    case ErrorCode::internal: return exit_check_failed;
    case ErrorCode::unsupported:
    case ErrorCode::out_of_memory:
    case ErrorCode::environment:
    case ErrorCode::device: break;
  }
  return exit_environment;
}

std::string rerun_options(const Common& options, const Device& device, const std::string& config) {
  std::string words = device.kind == DeviceKind::cuda ? concat(" --device cuda:", device.index) : " --device cpu";
  if (!options.arch.empty()) words += concat(" --arch ", options.arch);
  if (options.sm_count > 0) words += concat(" --sm-count ", options.sm_count);
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
                " after it, because the problem is large");
}

}  // namespace rapt::lab
