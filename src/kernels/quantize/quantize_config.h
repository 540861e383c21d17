// QuantizeConfig: the compile-time choices of one kernel of quantisation, and how it cuts its work.
// Chosen and written out by kernels/quantize/quantize_gpu.cpp, read by quantize.cuh; includes nothing outside shared/.
#pragma once

#include "../shared/quantize.h"

namespace rapt {

// The kernels of one call, in the order in which they run; most calls need the last one only.
enum class QuantizeStep : unsigned char {
  mean,    // of each channel
  clear,   // descale = 0 bits, where amax then collects the largest magnitude of a tensor, head or channel
  amax,    //
  finish,  // magnitudes become factors
  select,  // factors from percentiles, of any group
  encode   // codes; and the factors of tokens and blocks, unless they are there already
};

struct QuantizeConfig {
  QuantizeStep step = QuantizeStep::encode;
  DType input = DType::f16, output = DType::e4m3;
  int dim = 0;  // 0: rows without channels, of which the factors of tokens and blocks are all there is
  ScaleKind group = ScaleKind::tensor;
  bool settled = false;  // encode: descale is read, not written
  bool hadamard = false;
  bool smooth = false;          // mean is subtracted
  bool input_vectors = false;   // 8 channels of the input are loaded at once: 16 or 32 bytes
  bool output_vectors = false;  // and those of the output stored: 8 bytes

  constexpr bool operator==(const QuantizeConfig&) const = default;

  // A thread works on chunks of 8 channels of a row; the chunks of a tile are dealt to threads one after another, so
  // that neighbours in a warp hold neighbouring channels. A row without channels has one chunk, of which nothing is
  // there.
  static constexpr int chunk = 8, most_held = 32, most_threads = 512, most_shared_channels = 8192;
  constexpr bool transformed() const { return hadamard || smooth; }
  constexpr int chunks() const { return dim == 0 ? 1 : (dim + chunk - 1) / chunk; }
  constexpr int rotated() const { return hadamard ? hadamard::group_of(dim) : 1; }
  // Threads that rotate together: neighbours in a warp.
  constexpr int rotated_chunks() const { return rotated() > chunk ? rotated() / chunk : 1; }
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
    if (step == QuantizeStep::select && group != ScaleKind::token) return most_threads;
    const index_t work = step == QuantizeStep::select ? chunks() : (index_t{rows()} * chunks() + 3) / 4;
    const int least = whole_rows();
    const index_t wanted = (work + least - 1) / least * least;
    return static_cast<int>(clamped(wanted <= most_threads ? wanted : (work + 31) / 32 * 32, 32, most_threads));
  }
  // The fewest threads that are whole warps and whole rows of chunks.
  constexpr int whole_rows() const {
    int threads = 32;
    while (threads % chunks() != 0 && threads < most_threads) threads += 32;
    return threads % chunks() == 0 ? threads : 32;
  }
  // encode: the whole tile shares a factor. Rows too long to be held have tiles of their own.
  constexpr bool one_factor() const { return group != ScaleKind::token || rows() == 1; }
  constexpr int warps() const { return threads() / 32; }
  // Thread blocks of a multiprocessor: as many threads hide its memory as their registers allow without spills.
  constexpr int min_blocks() const {
    if (step != QuantizeStep::amax && step != QuantizeStep::encode) return 1;
    const bool light = !transformed() && !by_channel();
    int wanted = 512;
    if (fixed_column() && input != DType::f32) {
      if (one_factor()) wanted = light && chunks_per_thread() <= 4 ? 1536 : 1024;
      if (!one_factor() && light) wanted = 1280;
    }
    return wanted > threads() ? wanted / threads() : 1;
  }
  constexpr int chunks_per_thread() const {
    return static_cast<int>((index_t{rows()} * chunks() + threads() - 1) / threads());
  }
  // All at once in registers, 8 words a chunk of what is wide; but not beside factors of channels that change.
  constexpr bool held() const {
    if (by_channel() && settled && !fixed_column()) return false;
    return chunks_per_thread() * (transformed() || input == DType::f32 ? 8 : 4) <= most_held;
  }
  // A thread's chunks are all of the same channels.
  constexpr bool fixed_column() const { return threads() % chunks() == 0; }
  // The chunks of a row are so many lanes of one warp.
  constexpr bool rows_in_warps() const { return 32 % chunks() == 0; }

  // mean: a block takes these chunks of a head, a thread every 32nd row of one of them.
  constexpr int mean_chunks() const { return rotated_chunks() > 1 ? rotated_chunks() : chunks() < 4 ? chunks() : 4; }
  constexpr int mean_slabs() const { return (chunks() + mean_chunks() - 1) / mean_chunks(); }

  constexpr int shared_words() const {
    switch (step) {
      case QuantizeStep::mean: return threads() * 4;  // a sum and a count, 8 bytes each
      case QuantizeStep::select: return 2 * (quantizing::digits + 16) + 8;
      case QuantizeStep::amax: return by_channel() && dim <= most_shared_channels ? dim : 32;
      case QuantizeStep::encode: return !one_factor() && rows() > 32 ? rows() : 32;
      default: return 0;
    }
  }
};

// Tiles of a head, or of the longest sequence there may be.
constexpr index_t quantize_tiles(const QuantizeParams& p, const QuantizeConfig& c) {
  return (p.seqlen + c.rows() - 1) / c.rows();
}
// Factors of a tensor, head or channel.
constexpr index_t quantize_slots(const QuantizeParams& p) {
  return p.group == ScaleKind::tensor ? 1 : p.batch * p.heads * (p.group == ScaleKind::channel ? p.dim : 1);
}
// What is there for a kernel's thread blocks to take, one after another; clear and finish: for threads. amax, encode:
// tiles of heads of batches, which is how their grid is laid out.
constexpr index_t quantize_work_items(const QuantizeParams& p, const QuantizeConfig& c) {
  const bool writes_factors = c.step != QuantizeStep::mean && c.step != QuantizeStep::amax && !c.settled;
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

// Thread blocks of a launch. The kernels take what is beyond a GPU's limits after that.
struct QuantizeGrid {
  index_t x = 1, y = 1, z = 1;
};
constexpr QuantizeGrid quantize_grid(const QuantizeParams& p, const QuantizeConfig& c) {
  constexpr index_t most_x = 0x7fffffff, most_yz = 0xffff;
  if (c.step == QuantizeStep::amax || c.step == QuantizeStep::encode)
    return {clamped(quantize_tiles(p, c), 1, most_x), clamped(p.heads, 1, most_yz), clamped(p.batch, 1, most_yz)};
  const bool threads = c.step == QuantizeStep::clear || c.step == QuantizeStep::finish;
  const index_t items = quantize_work_items(p, c);
  return {clamped(threads ? (items + c.threads() - 1) / c.threads() : items, 1, most_x), 1, 1};
}

}  // namespace rapt
