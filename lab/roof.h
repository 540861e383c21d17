// The peak rates of this machine: fused multiply-adds, and streaming reads. bench measures them in the same run in
// which it reports a share of the peak. Uses the widest vectors of the machine, independent of compiler flags.
// roof_gpu.h does the same for a GPU. Source: Williams, Waterman, Patterson 2009, "Roofline: an insightful visual
// performance model".
#pragma once

#include <cstdint>

namespace rapt::lab {

struct Roof {
  int threads = 1;        // CPU only
  double fma_flops = 0;   // f32 operations per second (a fused multiply-add is two), all threads
  double bf16_flops = 0;  // CPU: products of bf16 pairs summed in f32 (AVX-512 BF16); 0 if the machine has none
  double read_bytes = 0;  // bytes per second streamed from memory, all threads
  double f16_flops = 0;   // GPU: tensor-core products of f16 summed in f32 (mma.sync)
  // The next rates are for GPUs only. 0: the GPU has no such instruction, or the rate was not measured.
  double tf32_flops = 0;                            // mma.sync of TF32, summed in f32
  double fp8_flops = 0;                             // mma.sync of e4m3, summed in f32
  double wgmma_f16_flops = 0, wgmma_fp8_flops = 0;  // wgmma from shared memory (sm_90)
  double exponentials = 0;                          // ex2.approx per second
  double l2_bytes = 0;                              // bytes per second read from L2
  double launch_seconds = 0;                        // time of an empty kernel between other ones in a CUDA graph

  double best_fp8_flops() const { return fp8_flops > wgmma_fp8_flops ? fp8_flops : wgmma_fp8_flops; }
};

// The unit that computes a problem's products.
enum class Unit { f32, bf16, f16 };

// Takes about half a second. buffer_bytes: size of the read buffer, several times the last-level cache.
Roof measure_roof(int threads, int64_t buffer_bytes);

// The minimum time in seconds for `flops` operations and `bytes` bytes from memory on this machine; 0 if the peak was
// not measured.
double roof_seconds(const Roof& roof, double flops, double bytes, Unit unit);

}  // namespace rapt::lab
