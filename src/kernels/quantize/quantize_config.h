// QuantizeConfig: the compile-time choices and the work decomposition of one quantisation kernel. Set by
// kernels/quantize/quantize_gpu.cpp, read by quantize.cuh. Includes nothing outside shared/.
#pragma once

#include "../shared/quantize.h"

namespace rapt {

// The kernels of one call in their order. Most calls need only the last one.
enum class QuantizeStep : unsigned char {
  mean,    // computes the mean of each channel
  clear,   // sets descales of a tensor, head or channel to 0 bits
  amax,    // stores the maximum of |x| in these descales, by atomics
  finish,  // converts these maxima to descales
  select,  // computes descales from percentiles, for any ScaleKind
  encode   // writes FP8 output, and descales of tokens and blocks unless they exist already
};

struct QuantizeConfig {
  QuantizeStep step = QuantizeStep::encode;
  DType input = DType::f16, output = DType::e4m3;
  int dim = 0;  // 0: an empty head dim; only descales are written
  ScaleKind group = ScaleKind::tensor;
  bool descales_ready = false;  // encode: descales are input, not output
  bool hadamard = false;
  bool smooth = false;          // subtract the mean
  bool input_vectors = false;   // load 8 channels at once: 16 or 32 bytes
  bool output_vectors = false;  // store 8 channels at once: 8 bytes

  constexpr bool operator==(const QuantizeConfig&) const = default;

  // A thread processes chunks of 8 channels of a row. Consecutive chunks of a tile go to consecutive threads. A row
  // without channels (dim = 0) has one empty chunk.
  static constexpr int chunk = 8, max_register_words = 32, max_threads = 512, max_shared_channels = 8192;
  constexpr bool transformed() const { return hadamard || smooth; }
  constexpr int chunks() const { return dim == 0 ? 1 : (dim + chunk - 1) / chunk; }
  constexpr int hadamard_group() const { return hadamard ? hadamard::group_of(dim) : 1; }
  // Number of neighbouring threads of a warp that share a Hadamard group.
  constexpr int hadamard_chunks() const { return hadamard_group() > chunk ? hadamard_group() / chunk : 1; }
  constexpr bool by_channel() const { return group == ScaleKind::channel; }

  constexpr int rows() const {
    const int shared = rows_sharing(group);
    if (step == QuantizeStep::encode && shared > 1) return shared;
    const int wanted = (step == QuantizeStep::amax ? 4096 : 1024) / chunks();
    return wanted > 1 ? wanted : 1;
  }
  constexpr int threads() const {
    if (step == QuantizeStep::mean) return mean_chunks() * quantizing::mean_lanes;
    if (step == QuantizeStep::clear || step == QuantizeStep::finish) return 128;
    if (step == QuantizeStep::select && group != ScaleKind::token) return max_threads;
    const index_t work = step == QuantizeStep::select ? chunks() : (index_t{rows()} * chunks() + 3) / 4;
    const int least = row_aligned_threads();
    const index_t wanted = (work + least - 1) / least * least;
    return static_cast<int>(clamped(wanted <= max_threads ? wanted : (work + 31) / 32 * 32, 32, max_threads));
  }
  // The smallest number of threads that is a multiple of 32 and of the chunks in a row; 32 if it exceeds max_threads.
  constexpr int row_aligned_threads() const {
    int threads = 32;
    while (threads % chunks() != 0 && threads < max_threads) threads += 32;
    return threads % chunks() == 0 ? threads : 32;
  }
  // encode: all rows of a tile share one descale. Long rows have a tile of their own.
  constexpr bool one_descale() const { return group != ScaleKind::token || rows() == 1; }
  constexpr int warps() const { return threads() / 32; }
  // CTAs per SM in __launch_bounds__. To hide memory latency, there are as many threads as registers allow without
  // spills.
  constexpr int min_blocks() const {
    if (step != QuantizeStep::amax && step != QuantizeStep::encode) return 1;
    const bool few_registers = !transformed() && !by_channel();
    int wanted = 512;
    if (fixed_column() && input != DType::f32) {
      if (one_descale()) wanted = few_registers && chunks_per_thread() <= 4 ? 1536 : 1024;
      if (!one_descale() && few_registers) wanted = 1280;
    }
    return wanted > threads() ? wanted / threads() : 1;
  }
  constexpr int chunks_per_thread() const {
    return static_cast<int>((index_t{rows()} * chunks() + threads() - 1) / threads());
  }
  // Returns whether all chunks of a thread stay in registers. A chunk takes 8 words if it is f32 or transformed, else
  // 4. The result is false if registers also hold per-channel descales whose column changes from chunk to chunk.
  constexpr bool in_registers() const {
    if (by_channel() && descales_ready && !fixed_column()) return false;
    return chunks_per_thread() * (transformed() || input == DType::f32 ? 8 : 4) <= max_register_words;
  }
  // Returns whether all chunks of a thread have the same channels.
  constexpr bool fixed_column() const { return threads() % chunks() == 0; }
  // Returns whether the chunks of a row are in lanes of one warp.
  constexpr bool row_fits_warp() const { return 32 % chunks() == 0; }

  // mean: a CTA takes mean_chunks() chunks of a head; a thread takes every 32nd row of one chunk.
  constexpr int mean_chunks() const { return hadamard_chunks() > 1 ? hadamard_chunks() : chunks() < 4 ? chunks() : 4; }
  constexpr int mean_slabs() const { return (chunks() + mean_chunks() - 1) / mean_chunks(); }

  constexpr int shared_words() const {
    switch (step) {
      case QuantizeStep::mean: return threads() * 4;  // a sum and a count of 8 bytes each
      case QuantizeStep::select: return 2 * (quantizing::digits + 16) + 8;
      case QuantizeStep::amax: return by_channel() && dim <= max_shared_channels ? dim : 32;
      case QuantizeStep::encode: return !one_descale() && rows() > 32 ? rows() : 32;
      default: return 0;
    }
  }
};

// Number of tiles per head (varlen: for the longest sequence).
constexpr index_t quantize_tiles(const QuantizeParams& p, const QuantizeConfig& c) {
  return (p.seqlen + c.rows() - 1) / c.rows();
}
// Number of descales of ScaleKind tensor, head or channel.
constexpr index_t quantize_slots(const QuantizeParams& p) {
  return p.group == ScaleKind::tensor ? 1 : p.batch * p.heads * (p.group == ScaleKind::channel ? p.dim : 1);
}
// Number of work items of a kernel. A CTA processes one item in one iteration. In clear and finish, a thread does.
constexpr index_t quantize_work_items(const QuantizeParams& p, const QuantizeConfig& c) {
  const bool writes_factors = c.step != QuantizeStep::mean && c.step != QuantizeStep::amax && !c.descales_ready;
  if (c.dim == 0 && !writes_factors) return 0;
  switch (c.step) {
    case QuantizeStep::mean: return p.batch * p.heads * c.mean_slabs();
    case QuantizeStep::clear:
    case QuantizeStep::finish: return quantize_slots(p);
    case QuantizeStep::select:
      return p.group == ScaleKind::tensor
                 ? 1
                 : p.batch * p.heads * (p.group == ScaleKind::token ? p.seqlen : p.positions()) *
                       (c.by_channel() ? p.dim : 1);
    default: return p.batch * p.heads * quantize_tiles(p, c);
  }
}

// The grid of a launch. If the work exceeds the limits of the grid, grid-stride loops process the rest.
struct QuantizeGrid {
  index_t x = 1, y = 1, z = 1;
};
constexpr QuantizeGrid quantize_grid(const QuantizeParams& p, const QuantizeConfig& c) {
  constexpr index_t max_x = 0x7fffffff, max_yz = 0xffff;
  if (c.step == QuantizeStep::amax || c.step == QuantizeStep::encode)
    return {clamped(quantize_tiles(p, c), 1, max_x), clamped(p.heads, 1, max_yz), clamped(p.batch, 1, max_yz)};
  const bool threads = c.step == QuantizeStep::clear || c.step == QuantizeStep::finish;
  const index_t items = quantize_work_items(p, c);
  return {clamped(threads ? (items + c.threads() - 1) / c.threads() : items, 1, max_x), 1, 1};
}

}  // namespace rapt
