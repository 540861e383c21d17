// From problem lines to compiled kernels (plan, render, compile), and the computation of occupancy. Used by pack.cpp,
// ledger.cpp and tests.
#include "lab/kernels.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <map>
#include <mutex>

#include "base/error.h"
#include "check/work.h"
#include "cpu/threads.h"
#include "kernels/merge/merge_gpu.h"
#include "lab/progress.h"
#include "runtime/gpu.h"
#include "runtime/plan.h"

namespace rapt::lab {
namespace {

std::vector<std::string> words_of(const std::string& text, char separator) {
  std::vector<std::string> words;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(separator, at), text.size());
    words.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return words;
}

using Files = std::map<std::string, std::string>;

PlannedKernel planned_kernel(const char* family, const std::string& config, const KernelUnit& unit,
                             const Device& device, const Problem& problem, const Files& files) {
  PlannedKernel kernel{device, family, config, to_string(problem), unit, {}, {}};
  kernel.request = request_for(unit, device.arch, concat(family, " for \"", kernel.problem, "\""), files);
  kernel.signature = jit::signature(kernel.request);
  return kernel;
}

std::vector<PlannedKernel> kernels_of(const Problem& problem, const Device& device, const KernelOverrides& overrides) {
  std::vector<PlannedKernel> kernels;
  const Files files = overrides.files ? overrides.files(problem, device) : Files{};
  const Plan chosen = plan_with(problem, device, overrides.config, files.empty());
  for (int i = 0; i < chosen.step_count; ++i) {
    const Step& step = chosen.steps[static_cast<size_t>(i)];
    kernels.push_back(planned_kernel(step.family->name, step.config.words_unlike(KernelConfig(step.config.type())),
                                     step.family->unit(step.config), device, problem, files));
  }
  // Partial states are merged later. The output dtype of the merge is not known here, so all merge kernels are added.
  if (problem.partial)
    for (const DType out : {DType::f16, DType::bf16, DType::f32})
      kernels.push_back(
          planned_kernel("merge", concat("out=", name_of(out)), merge_unit({.out = out}), device, problem, files));
  return kernels;
}

constexpr int warp_threads = 32, partitions = 4;  // a multiprocessor's partitions have a quarter of the registers each
constexpr int64_t register_granularity = 256;     // the registers of a warp are allocated in this unit (since sm_30)
constexpr int64_t shared_granularity = 128;       // shared memory is allocated in this unit, in bytes (since sm_80)
constexpr int64_t reserved_shared = 1024;         // bytes that the system reserves for each block (since sm_80)

int64_t rounded_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

}  // namespace

KernelSelection select_kernels(const std::vector<Problem>& problems, const std::vector<Device>& devices,
                               const KernelOverrides& overrides) {
  KernelSelection selection;
  std::map<std::string, bool> met;  // key: signature
  for (const Device& device : devices) {
    for (const Problem& problem : problems) {
      const auto skip = [&](const std::string& why) {
        selection.skipped.push_back({to_string(problem), device.arch, why});
      };
      try {
        std::vector<PlannedKernel> kernels = kernels_of(problem, device, overrides);
        if (kernels.empty()) skip("its plan has no steps");
        for (PlannedKernel& kernel : kernels) {
          if (met.emplace(kernel.signature, true).second) selection.kernels.push_back(std::move(kernel));
        }
      } catch (const Error& error) {
        if (error.code() != ErrorCode::unsupported) throw;
        skip(error.what());
      }
    }
  }
  return selection;
}

std::vector<Device> gpu_presets(const std::string& list) {
  std::vector<Device> devices;
  for (const std::string& name : words_of(list, ',')) {
    devices.push_back(device_preset(name));
    if (devices.back().kind != DeviceKind::cuda) invalid("--arch ", name, ": must be a GPU, such as sm_89 or l4");
  }
  return devices;
}

std::vector<jit::Image> compile_kernels(const std::vector<PlannedKernel>& kernels, int threads) {
  std::vector<jit::Image> images(kernels.size());
  std::exception_ptr failure;
  std::mutex mutex;  // guards failure and progress
  Progress progress(kernels.size());
  const check::Stage stage("compiling", static_cast<int64_t>(kernels.size()));
  size_t begun = 0;
  cpu::ThreadPool pool(std::max(1, std::min(threads, static_cast<int>(kernels.size()))));
  pool.parallel_for(static_cast<int64_t>(kernels.size()), [&](int, int64_t at) {
    const PlannedKernel& kernel = kernels[static_cast<size_t>(at)];
    {
      const std::lock_guard lock(mutex);
      if (failure) return;
      progress.at(begun++, concat(kernel.device.arch, " ", kernel.problem));
    }
    try {
      images[static_cast<size_t>(at)] = jit::compile(kernel.request);
      check::step_done();
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
    }
  });
  if (failure) std::rethrow_exception(failure);
  return images;
}

// The same computation as in NVIDIA's cuda_occupancy.h, for kernels that prefer shared memory to L1.
Occupancy occupancy(const Device& device, const KernelNeeds& needs) {
  const BlockLimits limits = block_limits(device.sm);
  const int64_t warps = (needs.threads + warp_threads - 1) / warp_threads;
  const int64_t warp_registers = rounded_up(int64_t{needs.registers} * warp_threads, register_granularity);
  const int64_t shared = rounded_up(needs.shared_bytes + reserved_shared, shared_granularity);
  if (warps == 0 || needs.shared_bytes > device.smem_per_block) return {};
  // The driver spreads warps evenly over the partitions. It refuses a launch if the registers are not sufficient then.
  if (warp_registers * rounded_up(warps, partitions) > device.registers_per_sm) return {};

  int64_t blocks = std::min<int64_t>(limits.blocks, device.threads_per_sm / warp_threads / warps);
  blocks = std::min(blocks, device.smem_per_sm / shared);
  if (limits.barriers > 0 && needs.barriers > 0) blocks = std::min<int64_t>(blocks, limits.barriers / needs.barriers);
  if (warp_registers > 0)
    blocks = std::min(blocks, device.registers_per_sm / partitions / warp_registers * partitions / warps);
  return {static_cast<int>(blocks),
          static_cast<double>(blocks * warps * warp_threads) / static_cast<double>(device.threads_per_sm)};
}

KernelReport report_of(const PlannedKernel& kernel, const jit::Image& image) {
  KernelReport report{jit::parse_resources(image.log), {}};
  const jit::Resources& r = report.resources;
  if (r.known)
    report.occupancy = occupancy(kernel.device, {r.registers, kernel.unit.threads, r.barriers,
                                                 r.shared_bytes + static_cast<int64_t>(kernel.unit.smem_bytes)});
  return report;
}

std::string to_string(const PlannedKernel& kernel, const jit::Image& image) {
  const auto [r, fits] = report_of(kernel, image);
  const std::string name = concat(image.arch, " ", kernel.family, " ", kernel.config);
  if (!r.known) return concat(name, ": PTX; only the driver knows its registers. Use sm_NN to see them");
  const int spilled = r.spill_store_bytes + r.spill_load_bytes;
  return fmt::format(
      "{}: {} threads, {} registers, {} bytes spilled, {} bytes of stack, {} bytes of shared memory, {} blocks "
      "per multiprocessor ({:.0f}% of the threads)",
      name, kernel.unit.threads, r.registers, spilled, r.stack_bytes,
      r.shared_bytes + static_cast<int64_t>(kernel.unit.smem_bytes), fits.blocks, 100 * fits.share);
}

std::optional<InstructionCounts> instructions_of(const jit::Image& image) {
  const bool is_cubin = image.bytes.starts_with(
      "\x7f"
      "ELF");
  if (!is_cubin) return std::nullopt;
  return count_instructions(image.bytes);
}

std::string instruction_line(const jit::Image& image) {
  const std::optional<InstructionCounts> n = instructions_of(image);
  if (!n) return "unknown: PTX; only the driver knows them";
  return fmt::format(
      "{} instructions: HMMA {}, QMMA {}, LDSM {}, LDGSTS {}, FFMA {}, MUFU {}, LDG {} ({} of 16 bytes), LDS {} ({}), "
      "STS "
      "{} ({}), local memory {}",
      n->total, n->hmma, n->qmma, n->ldsm, n->ldgsts, n->ffma, n->mufu, n->ldg, n->ldg_16, n->lds, n->lds_16, n->sts,
      n->sts_16, n->local);
}

}  // namespace rapt::lab
