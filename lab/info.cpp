// rapt info: what this program is, the machine, and what the library can use of it.
// Called by program.cpp.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "kernels/family.h"
#include "lab/commands.h"
#include "lab/machine.h"
#include "rapt_build_info.h"

namespace rapt::lab {
namespace {

constexpr const char* gpu_status = "none used: this build has no GPU kernels";

constexpr CpuIsa all_isas[] = {CpuIsa::scalar, CpuIsa::neon, CpuIsa::avx2, CpuIsa::avx512, CpuIsa::avx512_bf16};

// What this build has and the machine runs: everything of its architecture up to the chosen one.
std::vector<std::string> usable_isas(CpuIsa chosen) {
  std::vector<std::string> names;
  for (const CpuIsa isa : all_isas) {
    const bool other_architecture = (isa == CpuIsa::neon) != (chosen == CpuIsa::neon) && isa != CpuIsa::scalar;
    if (isa <= chosen && !other_architecture) names.push_back(name_of(isa));
  }
  return names;
}

nlohmann::ordered_json facts() {
  const Machine machine = this_machine();
  const Device& device = cpu_device();
  nlohmann::ordered_json caches = nlohmann::ordered_json::array(), families = nlohmann::ordered_json::array();
  for (const Cache& cache : machine.caches)
    caches.push_back({{"level", cache.level}, {"type", cache.type}, {"bytes", cache.bytes}});
  for (const Family* family : all_families()) families.push_back(family->name);
  return {{"version", rapt_version()},  {"commit", build_commit},
          {"dirty", build_dirty},       {"compiler", build_compiler},
          {"flags", build_flags},       {"cpu", machine.cpu_name},
          {"isa", name_of(device.isa)}, {"isas", usable_isas(device.isa)},
          {"threads", device.threads},  {"caches", caches},
          {"gpu", gpu_status},          {"families", families}};
}

std::string text_of(const nlohmann::ordered_json& list) {
  std::string text;
  for (const auto& item : list) text += (text.empty() ? "" : " ") + item.get<std::string>();
  return text;
}

}  // namespace

int info(const Common& options) {
  const nlohmann::ordered_json all = facts();
  if (options.json) {
    fmt::print("{}\n", all.dump(2));
    return exit_fine;
  }
  fmt::print("rapt      {}, commit {}{}\n", rapt_version(), build_commit, build_dirty ? " with changes" : "");
  fmt::print("compiler  {} {}\n", build_compiler, build_flags);
  fmt::print("cpu       {}\n", all["cpu"].get<std::string>());
  fmt::print("isa       {} (of {})\n", name_of(cpu_device().isa), text_of(all["isas"]));
  fmt::print("threads   {}\n", cpu_device().threads);
  for (const auto& cache : all["caches"])
    fmt::print("cache     L{} {} {} KiB\n", cache["level"].get<int>(), cache["type"].get<std::string>(),
               cache["bytes"].get<int64_t>() / 1024);
  fmt::print("gpu       {}\n", gpu_status);
  fmt::print("kernels   {}\n", text_of(all["families"]));
  return exit_fine;
}

}  // namespace rapt::lab
