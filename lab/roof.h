// The roof of this machine, measured in the run that reports a share of it: fused multiply-adds and streaming reads.
// Called by bench; uses the widest vectors the machine has, whatever the compiler's flags were. roof_gpu.h: of a GPU.
// Williams, Waterman, Patterson 2009: "Roofline: an insightful visual performance model".
#pragma once

#include <cstdint>

namespace rapt::lab {

struct Roof {
  int threads = 1;        // CPU
  double fma_flops = 0;   // f32 operations a second (a fused multiply-add is two), all threads
  double bf16_flops = 0;  // CPU: products of bf16 pairs summed in f32 (AVX-512 BF16), 0 where the machine has none
  double read_bytes = 0;  // bytes a second streamed from memory, all threads
  double f16_flops = 0;   // GPU: tensor-core products of f16 summed in f32 (mma.sync)
};

// What computes a problem's products.
enum class Unit { f32, bf16, f16 };

// Takes about half a second. buffer_bytes: what the reads stream through, several times the last-level cache.
Roof measure_roof(int threads, int64_t buffer_bytes);

// Seconds below which no program on this machine can do `flops` operations on `bytes` bytes from memory; 0 where the
// roof was not measured.
double roof_seconds(const Roof& roof, double flops, double bytes, Unit unit);

}  // namespace rapt::lab
