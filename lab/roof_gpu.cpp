// Compiles the loops of roof_gpu.cuh and times each several times with events. The fastest run is used. Called by
// bench.
#include "lab/roof_gpu.h"

#include <algorithm>

#include "base/error.h"
#include "cuda/cuda.h"
#include "jit/jit.h"
#include "lab/device_sources.h"

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
    const auto image = store_.get({.unit = roof_unit(function),
                                   .arch = device_.arch,
                                   .label = concat("the peak's loop ", function),
                                   .files = {{"roof_gpu.cuh", roof_source()}}});
    cuda::Kernel kernel(image->bytes.data(), image->bytes.size(), "rapt_kernel");
    kernel.prepare(device_.index, 0);
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

 private:
  const Device& device_;
  unsigned blocks_;
  jit::Store store_;
  cuda::Stream stream_;
  cuda::Buffer results_;
};

double read_rate(Loops& loops) {
  const size_t step = loops.all_threads() * 16 * loads;
  const size_t bytes = (read_bytes + step - 1) / step * step;
  cuda::Buffer from(bytes);
  from.fill(0x5a);
  return static_cast<double>(bytes) / loops.fastest("read", {.from = from.data(), .count = bytes / 16});
}

}  // namespace

std::string roof_unit(const char* function) {
  return concat("#include \"roof_gpu.cuh\"\nextern \"C\" __global__ void __launch_bounds__(", threads,
                ") rapt_kernel(const __grid_constant__ rapt::roof::Params p) { rapt::roof::", function, "(p); }\n");
}

const std::string& roof_source() {
  static const std::string text(device_sources().at("roof_gpu.cuh"));
  return text;
}

Roof measure_gpu_roof(const Device& device) {
  constexpr int f16_rounds = 8192, f32_rounds = 8192;
  constexpr double f16_round = 8 * 2.0 * 16 * 8 * 16 / 32, f32_round = 16 * 2.0;  // operations per thread
  Loops loops(device);
  const auto all = static_cast<double>(loops.all_threads());
  Roof roof;
  roof.threads = 0;
  roof.fma_flops = all * f32_round * f32_rounds / loops.fastest("multiply_f32", {.rounds = f32_rounds});
  roof.f16_flops = all * f16_round * f16_rounds / loops.fastest("multiply_f16", {.rounds = f16_rounds});
  roof.read_bytes = read_rate(loops);
  return roof;
}

}  // namespace rapt::lab
