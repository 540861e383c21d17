// rapt info: describes this program, the machine, and what the library can use.
// Called by program.cpp.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "cuda/cuda.h"
#include "jit/jit.h"
#include "kernels/family.h"
#include "lab/commands.h"
#include "lab/machine.h"
#include "rapt_build_info.h"

namespace rapt::lab {
namespace {

// The instruction sets that this build contains and this machine supports, up to the chosen one.
std::vector<std::string> usable_isas(CpuIsa chosen) {
  std::vector<std::string> names;
  for (const auto& [isa, name] : cpu_isas) {
    const bool other_architecture = (isa == CpuIsa::neon) != (chosen == CpuIsa::neon) && isa != CpuIsa::scalar;
    if (isa <= chosen && !other_architecture) names.emplace_back(name);
  }
  return names;
}

// Adds the driver's version (or the reason why there is no driver) and each visible GPU.
void add_gpus(nlohmann::ordered_json& all) {
  std::string why;
  const bool found = cuda::find_driver(&why) != nullptr;
  all["driver"] = found ? nlohmann::ordered_json(driver_text()) : nullptr;
  all["driver_note"] = why;
  all["gpus"] = nlohmann::ordered_json::array();
  for (int index = 0; found && index < cuda::device_count(); ++index) {
    const Device& device = cuda::device(index);
    all["gpus"].push_back({{"index", index},
                           {"name", device.name},
                           {"sm", device.sm},
                           {"arch", device.arch},
                           {"sm_count", device.sm_count},
                           {"l2_bytes", device.l2_bytes},
                           {"smem_per_block", device.smem_per_block},
                           {"smem_per_sm", device.smem_per_sm},
                           {"registers_per_sm", device.registers_per_sm},
                           {"threads_per_sm", device.threads_per_sm}});
  }
}

void add_compiler(nlohmann::ordered_json& all) {
  std::string why;
  const cuda::Driver* driver = cuda::find_driver();
  const jit::Compiler* compiler = jit::find_compiler(&why, driver ? cuda::supported_cuda_major(*driver) : 0);
  all["nvrtc"] = compiler == nullptr ? nlohmann::ordered_json(nullptr)
                                     : nlohmann::ordered_json{{"version", compiler->version},
                                                              {"path", compiler->path},
                                                              {"architectures", compiler->architectures}};
  all["nvrtc_note"] = why;
}

// Adds the sources of compiled kernels. An unreadable pack is reported and does not stop the report.
void add_store(nlohmann::ordered_json& all) {
  jit::Store::Options options = jit::Store::from_environment();
  const std::vector<std::string> packs = std::exchange(options.packs, {});
  const bool trust_any = options.trust_any_pack;
  const jit::Store store(std::move(options));
  all["cache"] = {{"directory", store.cache_directory()}, {"note", store.cache_note()}};
  all["packs"] = nlohmann::ordered_json::array();
  for (const std::string& path : packs) {
    nlohmann::ordered_json pack = {{"path", path}, {"compiler", nullptr}, {"kernels", nullptr}, {"note", ""}};
    try {
      const jit::PackInfo read = jit::read_pack_info(path, trust_any);
      pack["compiler"] = read.compiler;
      pack["kernels"] = read.entries.size();
    } catch (const Error& error) {
      pack["note"] = error.what();
    }
    all["packs"].push_back(pack);
  }
}

// Adds the file of tuned rows. Reading it may log a warning.
void add_tuned(nlohmann::ordered_json& all) {
  const TunedFile file = tuned_file(jit::Store::from_environment().cache_directory);
  all["tuned"] = {{"file", file.path}, {"rows", TunedRows::read(file).size()}};
}

nlohmann::ordered_json facts() {
  log_level();  // reports a wrong RAPT_LOG
  const Machine machine = this_machine();
  const Device& device = cpu_device();
  nlohmann::ordered_json caches = nlohmann::ordered_json::array(), families = nlohmann::ordered_json::array();
  for (const Cache& cache : machine.caches)
    caches.push_back({{"level", cache.level}, {"type", cache.type}, {"bytes", cache.bytes}});
  for (const Family* family : all_families()) families.push_back(family->name);
  nlohmann::ordered_json all = {{"version", rapt_version()},  {"commit", build_commit},
                                {"dirty", build_dirty},       {"compiler", build_compiler},
                                {"flags", build_flags},       {"cpu", machine.cpu_name},
                                {"isa", name_of(device.isa)}, {"isas", usable_isas(device.isa)},
                                {"threads", device.threads},  {"caches", caches}};
  add_gpus(all);
  add_compiler(all);
  add_store(all);
  add_tuned(all);
  std::string why;
  all["default_device"] = usable_gpu(&why) ? "cuda:0" : "cpu";
  all["families"] = families;
  return all;
}

std::string text_of(const nlohmann::ordered_json& list) {
  std::string text;
  for (const auto& item : list) text += (text.empty() ? "" : " ") + item.get<std::string>();
  return text;
}

std::string or_note(const std::string& text, const nlohmann::ordered_json& note) {
  return text.empty() ? "none: " + note.get<std::string>() : text;
}

void print_gpu_side(const nlohmann::ordered_json& all) {
  const auto text = [](const nlohmann::ordered_json& value) {
    return value.is_string() ? value.get<std::string>() : "";
  };
  fmt::print("driver    {}\n", or_note(text(all["driver"]), all["driver_note"]));
  for (const auto& gpu : all["gpus"])
    fmt::print("gpu       cuda:{} {}: {}, {} multiprocessors, L2 {} MiB, shared memory {} KiB per block\n",
               gpu["index"].get<int>(), text(gpu["name"]), text(gpu["arch"]), gpu["sm_count"].get<int>(),
               gpu["l2_bytes"].get<int64_t>() >> 20, gpu["smem_per_block"].get<int>() >> 10);
  const auto& nvrtc = all["nvrtc"];
  fmt::print("nvrtc     {}\n",
             or_note(nvrtc.is_null() ? "" : text(nvrtc["version"]) + ", " + text(nvrtc["path"]), all["nvrtc_note"]));
  const std::string cache = text(all["cache"]["directory"]), note = text(all["cache"]["note"]);
  fmt::print("cache     {}\n", !cache.empty() ? cache : note.empty() ? "off" : "none: " + note);
  for (const auto& pack : all["packs"])
    fmt::print("pack      {}: {}\n", text(pack["path"]),
               pack["kernels"].is_null()
                   ? text(pack["note"])
                   : fmt::format("{} kernels by NVRTC {}", pack["kernels"].get<int64_t>(), text(pack["compiler"])));
  const auto& tuned = all["tuned"];
  fmt::print("tuned     {}\n", text(tuned["file"]).empty()
                                   ? "off"
                                   : fmt::format("{} rows in {}", tuned["rows"].get<size_t>(), text(tuned["file"])));
}

}  // namespace

int info(const Common& options) {
  const nlohmann::ordered_json all = facts();
  if (options.json) {
    fmt::print("{}\n", all.dump(2));
    return exit_success;
  }
  fmt::print("rapt      {}, commit {}{}\n", rapt_version(), build_commit, build_dirty ? " with changes" : "");
  fmt::print("compiler  {} {}\n", build_compiler, build_flags);
  fmt::print("cpu       {}\n", all["cpu"].get<std::string>());
  fmt::print("isa       {} (of {})\n", name_of(cpu_device().isa), text_of(all["isas"]));
  fmt::print("threads   {}\n", cpu_device().threads);
  for (const auto& cache : all["caches"])
    fmt::print("cpu cache L{} {} {} KiB\n", cache["level"].get<int>(), cache["type"].get<std::string>(),
               cache["bytes"].get<int64_t>() / 1024);
  print_gpu_side(all);
  fmt::print("device    {} (default of --device)\n", all["default_device"].get<std::string>());
  fmt::print("kernels   {}\n", text_of(all["families"]));
  return exit_success;
}

}  // namespace rapt::lab
