// Compiles the loops of roof_gpu.cuh and times each several times with events. The fastest run is used. Called by
// bench.
#include "lab/roof_gpu.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "cuda/cuda.h"
#include "jit/jit.h"
#include "lab/device_sources.h"
#include "lab/gpu_timer.h"

namespace rapt::lab {
namespace {

constexpr unsigned threads = 256;
constexpr int repeats = 20, blocks_per_sm = 4;
constexpr size_t read_bytes = size_t{1} << 30;
constexpr int loads = 8;  // same as in roof_gpu.cuh

struct Params {  // same as in roof_gpu.cuh
  const void* from = nullptr;
  void* to = nullptr;
  unsigned long count = 0;
  int rounds = 0;
};

// A function of roof_gpu.cuh that repeats its loop `rounds` times.
struct RepeatedLoop {
  const char* function;
  int rounds;
  double work;  // work of one thread in one round, in operations or bytes
};
constexpr double mma_work = 8 * 2.0 * 16 * 8 / 32;        // 8 products of 16x8 per warp; to be multiplied by depth k
constexpr double wgmma_work = 16 * 2.0 * 64 * 256 / 128;  // the same for 16 products of 64x256 per warpgroup
constexpr RepeatedLoop f32_loop{"multiply_f32", 8192, 16 * 2.0};
constexpr RepeatedLoop f16_loop{"multiply_f16", 8192, mma_work * 16};
constexpr RepeatedLoop tf32_loop{"multiply_tf32", 8192, mma_work * 8};
constexpr RepeatedLoop fp8_loop{"multiply_fp8", 8192, mma_work * 32};
constexpr RepeatedLoop wgmma_f16_loop{"wgmma_f16", 256, wgmma_work * 16};
constexpr RepeatedLoop wgmma_fp8_loop{"wgmma_fp8", 256, wgmma_work * 32};
constexpr RepeatedLoop exponential_loop{"exponentials", 1024, 16};
constexpr RepeatedLoop l2_loop{"read_l2", 256, 16.0 * loads};

bool has_wgmma(std::string_view arch) { return arch == "sm_90a"; }
// On sm_90 and sm_100 the compiler replaces mma.sync of FP8 by f16 products, so these have no FP8 rate of their own.
bool has_fp8_mma(std::string_view arch) {
  const int number = arch_number(arch);
  return number == 89 || number == 120 || number == 121;
}

jit::Store::Options store_options() {
  jit::Store::Options options = jit::Store::from_environment();
  options.newest_major = cuda::supported_cuda_major(cuda::driver());
  return options;
}

class Loops {
 public:
  explicit Loops(const Device& device)
      : device_(device),
        blocks_(static_cast<unsigned>(device.sm_count * blocks_per_sm)),
        store_(store_options()),
        results_(size_t{blocks_} * threads * sizeof(unsigned)) {}

  size_t all_threads() const { return size_t{blocks_} * threads; }

  // Seconds of the fastest of several runs.
  double fastest(const char* function, Params params) {
    params.to = results_.data();
    const cuda::Kernel& kernel = loaded(function);
    double best_us = 0;
    for (int repeat = 0; repeat < repeats; ++repeat) {
      cuda::Event begin, end;
      begin.record(stream_.handle());
      kernel.launch({.grid_x = blocks_, .threads = threads, .stream = stream_.handle()}, &params);
      end.record(stream_.handle());
      stream_.synchronize();
      const double us = cuda::Event::microseconds(begin, end);
      best_us = repeat == 0 ? us : std::min(best_us, us);
    }
    return best_us * 1e-6;
  }

  double rate(const RepeatedLoop& loop, Params params = {}) {
    params.rounds = loop.rounds;
    return static_cast<double>(all_threads()) * loop.work * loop.rounds / fastest(loop.function, params);
  }

  // The time in seconds of an empty kernel of one block, between other launches in a CUDA graph.
  double launch_seconds() {
    const cuda::Kernel& kernel = loaded("nothing");
    const auto sampler = graph_sampler(stream_, {.launches = 200}, [&](int64_t) {
      Params params;
      kernel.launch({.threads = threads, .stream = stream_.handle()}, &params);
    });
    for (int repeat = 0; repeat < repeats; ++repeat) sampler->sample();
    const Samples samples = sampler->finish();
    return *std::min_element(samples.us.begin(), samples.us.end()) * 1e-6;
  }

 private:
  const cuda::Kernel& loaded(const char* function) {
    const auto image = store_.get({.unit = roof_unit(function),
                                   .arch = device_.arch,
                                   .label = concat("the peak's loop ", function),
                                   .files = {{"roof_gpu.cuh", roof_source()}}});
    const auto [entry, is_new] =
        kernels_.try_emplace(function, image->bytes.data(), image->bytes.size(), "rapt_kernel");
    if (is_new) entry->second.prepare(device_.index, 0);
    return entry->second;
  }

  const Device& device_;
  unsigned blocks_;
  jit::Store store_;
  cuda::Stream stream_;
  cuda::Buffer results_;
  std::map<std::string, cuda::Kernel> kernels_;
};

double read_rate(Loops& loops) {
  const size_t step = loops.all_threads() * 16 * loads;
  const size_t bytes = (read_bytes + step - 1) / step * step;
  cuda::Buffer from(bytes);
  from.fill(0x5a);
  return static_cast<double>(bytes) / loops.fastest("read", {.from = from.data(), .count = bytes / 16});
}

// The buffer is a quarter of the L2, so it stays there.
double l2_rate(Loops& loops, const Device& device) {
  cuda::Buffer from(static_cast<size_t>(device.l2_bytes / 4));
  from.fill(0x5a);
  return loops.rate(l2_loop, {.from = from.data(), .count = from.bytes() / 16});
}

// Returns 0 if the rate cannot be measured, for example because NVRTC is too old for the instruction.
template <class Measure>
double if_possible(Measure measure) {
  try {
    return measure();
  } catch (const Error&) {
    return 0;
  }
}

}  // namespace

std::vector<const char*> roof_loops(std::string_view arch) {
  std::vector<const char*> loops = {
      f32_loop.function, f16_loop.function, tf32_loop.function, exponential_loop.function, l2_loop.function, "read",
      "nothing"};
  if (has_fp8_mma(arch)) loops.push_back(fp8_loop.function);
  if (has_wgmma(arch)) loops.insert(loops.end(), {wgmma_f16_loop.function, wgmma_fp8_loop.function});
  return loops;
}

std::string roof_unit(const char* function) {
  return concat("#include \"roof_gpu.cuh\"\nextern \"C\" __global__ void __launch_bounds__(", threads,
                ") rapt_kernel(const __grid_constant__ rapt::roof::Params p) { rapt::roof::", function, "(p); }\n");
}

const std::string& roof_source() {
  static const std::string text(device_sources().at("roof_gpu.cuh"));
  return text;
}

Roof measure_gpu_roof(const Device& device) {
  Loops loops(device);
  const auto rate_if_possible = [&](const RepeatedLoop& loop) { return if_possible([&] { return loops.rate(loop); }); };
  Roof roof;
  roof.threads = 0;
  roof.fma_flops = loops.rate(f32_loop);
  roof.f16_flops = loops.rate(f16_loop);
  roof.tf32_flops = rate_if_possible(tf32_loop);
  roof.read_bytes = read_rate(loops);
  roof.exponentials = rate_if_possible(exponential_loop);
  roof.l2_bytes = if_possible([&] { return l2_rate(loops, device); });
  roof.launch_seconds = if_possible([&] { return loops.launch_seconds(); });
  if (has_fp8_mma(device.arch)) roof.fp8_flops = rate_if_possible(fp8_loop);
  if (has_wgmma(device.arch)) {
    roof.wgmma_f16_flops = rate_if_possible(wgmma_f16_loop);
    roof.wgmma_fp8_flops = rate_if_possible(wgmma_fp8_loop);
  }
  return roof;
}

}  // namespace rapt::lab
