// Rows of quantize.cuh in chunks of 8 channels: read, rotated, smoothed, held in registers where they fit; and the
// largest of their magnitudes. Device only.
#pragma once

#include "../shared/quantize_config.h"
#include "numeric.cuh"

namespace rapt {
namespace quantizing {

constexpr int chunk = QuantizeConfig::chunk;

inline int thread() { return static_cast<int>(threadIdx.x); }

// 8 channels as they are stored.
template <QuantizeConfig cfg>
struct alignas(16) Stored {
  unsigned word[cfg.input == DType::f32 ? 8 : 4];
};
struct alignas(8) Codes {
  unsigned word[2];
};

template <QuantizeConfig cfg>
constexpr bool is_channel(int column, int i) {
  return (cfg.dim > 0 && cfg.dim % chunk == 0) || column * chunk + i < cfg.dim;
}

// What belongs to a chunk's channels in one head: signs of the rotation, means, factors.
template <QuantizeConfig cfg>
struct Column {
  unsigned negative = 0;  // a bit for each channel
  float mean[chunk], inverse[chunk];

  void load(const QuantizeParams& p, index_t b, index_t h, int column) {
    for (int i = 0; i < chunk; ++i) {
      const index_t channel = index_t{column} * chunk + i;
      const bool there = is_channel<cfg>(column, i);
      if constexpr (cfg.hadamard) negative |= static_cast<unsigned>(hadamard::is_negative(channel)) << i;
      if constexpr (cfg.smooth) mean[i] = there ? *p.mean_at(b, h, channel) : 0.0f;
      if constexpr (cfg.settled && cfg.by_channel())
        inverse[i] = there ? inverse_of(*p.descale_at(b, h, 0, channel)) : 0.0f;
    }
  }
};

// The chunk `column` of the row whose first element is `at`; zeros where there is nothing.
template <QuantizeConfig cfg>
inline Stored<cfg> load_chunk(const QuantizeParams& p, index_t at, int column, bool live) {
  Stored<cfg> x{};
  if (!live) return x;
  if constexpr (cfg.input_vectors) {
    const char* from = static_cast<const char*>(p.input.data) + (at + index_t{column} * chunk) * bytes_of(cfg.input);
    return *reinterpret_cast<const Stored<cfg>*>(from);
  } else {
    for (int i = 0; i < chunk; ++i) {
      if (!is_channel<cfg>(column, i)) continue;
      const index_t element = at + (index_t{column} * chunk + i) * p.input.column;
      if constexpr (cfg.input == DType::f32)
        x.word[i] = static_cast<const unsigned*>(p.input.data)[element];
      else
        x.word[i / 2] |= unsigned{static_cast<const unsigned short*>(p.input.data)[element]} << 16 * (i % 2);
    }
    return x;
  }
}

template <QuantizeConfig cfg>
inline void widen_chunk(const Stored<cfg>& x, float (&y)[chunk]) {
  for (int i = 0; i < chunk; ++i) {
    if constexpr (cfg.input == DType::f32) {
      y[i] = detail::float_of(x.word[i]);
    } else {
      const auto code = static_cast<unsigned short>(x.word[i / 2] >> 16 * (i % 2));
      y[i] = cfg.input == DType::f16 ? f16_to_f32(code) : bf16_to_float(code);
    }
  }
}

// The rounds of hadamard::transform: those within the chunk, then those among the lanes that hold a group's chunks,
// where the upper one of a pair keeps the difference.
template <QuantizeConfig cfg>
inline void rotate_chunk(const Column<cfg>& column, float (&y)[chunk]) {
  constexpr int group = cfg.rotated(), within = group < chunk ? group : chunk;
  for (int i = 0; i < chunk; ++i) y[i] = detail::float_of(detail::bits_of(y[i]) ^ (column.negative >> i & 1u) << 31);
  for (int first = 0; first < chunk; first += within) hadamard::transform(y + first, within);
  for (int apart = 1; apart < cfg.rotated_chunks(); apart *= 2)
    for (int i = 0; i < chunk; ++i) {
      const float other = __shfl_xor_sync(0xffffffffu, y[i], apart);
      y[i] = (thread() & apart) == 0 ? y[i] + other : other - y[i];
    }
  if constexpr (group > 1)
    for (int i = 0; i < chunk; ++i) y[i] = multiplied(y[i], hadamard::factor_of(group));
}

// By all lanes of a warp together.
template <QuantizeConfig cfg>
inline void values_of(const Stored<cfg>& x, const Column<cfg>& column, float (&y)[chunk]) {
  widen_chunk<cfg>(x, y);
  if constexpr (cfg.hadamard) rotate_chunk<cfg>(column, y);
  if constexpr (cfg.smooth)
    for (int i = 0; i < chunk; ++i) y[i] -= column.mean[i];
}

// The largest finite magnitude as bits. fmaxf passes over NaN; where it finds infinity, which is rare, all are looked
// at.
inline unsigned largest_magnitude(const float (&y)[chunk]) {
  float most = 0.0f;
  for (int i = 0; i < chunk; ++i) most = fmaxf(most, fabsf(y[i]));
  unsigned largest = detail::bits_of(most);
  if (largest == infinity_bits) {
    largest = 0;
    for (int i = 0; i < chunk; ++i) {
      const unsigned magnitude = finite_magnitude(y[i]);
      largest = magnitude > largest ? magnitude : largest;
    }
  }
  return largest;
}

// Some rows of one head.
struct QuantizeTile {
  index_t b, h;
  QuantizeRows rows;
  index_t first;                // of the sequence
  int count;                    // 0: the sequence ends before
  index_t input_at, output_at;  // elements before its first row
};

// item / count, for items that mostly fit into 32 bits, where a division takes a quarter of the instructions.
inline index_t quotient(index_t item, index_t count) {
  if (((item | count) >> 32) == 0) return static_cast<unsigned>(item) / static_cast<unsigned>(count);
  return item / count;
}

template <QuantizeConfig cfg>
inline QuantizeTile tile_at(const QuantizeParams& p, index_t item) {
  const index_t tiles = quantize_tiles(p, cfg), head = quotient(item, tiles), b = quotient(head, p.heads);
  const index_t first = (item - head * tiles) * cfg.rows();
  const index_t h = head - b * p.heads;
  const QuantizeRows rows = quantize_rows(p, b);
  const auto count = static_cast<int>(clamped(rows.count - first, 0, cfg.rows()));
  const index_t row = rows.first + first;
  return {b, h, rows, first, count, p.input.index(b, h, row), p.output.index(b, h, row)};
}

// A tile's chunks that belong to this thread: held where they fit into registers, else read whenever they are asked
// for.
template <QuantizeConfig cfg>
class Chunks {
 public:
  static constexpr int count = cfg.chunks_per_thread();
  static constexpr bool transformed = cfg.hadamard || cfg.smooth;

  Chunks(const QuantizeParams& params, const QuantizeTile& one) : p(params), tile(one) {
    if constexpr (cfg.fixed_column()) fixed.load(p, tile.b, tile.h, column(0));
    if constexpr (cfg.held()) {
#pragma unroll
      for (int i = 0; i < count; ++i) stored[i] = load(i);
      if constexpr (transformed) {
#pragma unroll
        for (int i = 0; i < count; ++i) values_of<cfg>(stored[i], column_of(i), held[i]);
      }
    }
  }

  int row(int i) const {
    if constexpr (cfg.fixed_column()) return thread() / cfg.chunks() + i * (cfg.threads() / cfg.chunks());
    return (i * cfg.threads() + thread()) / cfg.chunks();
  }
  int column(int i) const {
    if constexpr (cfg.fixed_column()) return thread() % cfg.chunks();
    return (i * cfg.threads() + thread()) % cfg.chunks();
  }
  bool live(int i) const { return row(i) < tile.count; }

  Column<cfg> column_of(int i) const {
    if constexpr (cfg.fixed_column()) return fixed;
    Column<cfg> one;
    one.load(p, tile.b, tile.h, column(i));
    return one;
  }
  // By all lanes of a warp together.
  void get(int i, float (&y)[chunk]) const {
    if constexpr (cfg.held() && transformed) {
      for (int c = 0; c < chunk; ++c) y[c] = held[i][c];
    } else {
      values_of<cfg>(cfg.held() ? stored[cfg.held() ? i : 0] : load(i), column_of(i), y);
    }
  }

 private:
  Stored<cfg> load(int i) const { return load_chunk<cfg>(p, tile.input_at + row(i) * p.input.row, column(i), live(i)); }

  const QuantizeParams& p;
  const QuantizeTile& tile;
  Column<cfg> fixed;
  Stored<cfg> stored[cfg.held() ? count : 1];
  float held[cfg.held() && transformed ? count : 1][chunk];
};

constexpr int unrolled(const QuantizeConfig& cfg) { return cfg.held() ? cfg.chunks_per_thread() : 1; }

// The largest of all threads' numbers, to all of them. `shared`: a word for each warp; used again only after a barrier.
template <QuantizeConfig cfg>
inline unsigned block_largest(unsigned largest, unsigned* shared) {
  largest = __reduce_max_sync(0xffffffffu, largest);
  if constexpr (cfg.warps() == 1) return largest;
  if (thread() % 32 == 0) shared[thread() / 32] = largest;
  __syncthreads();
  for (int warp = 0; warp < cfg.warps(); ++warp) largest = shared[warp] > largest ? shared[warp] : largest;
  return largest;
}

// Of all chunks of a thread.
template <QuantizeConfig cfg>
inline unsigned largest_of_chunks(const Chunks<cfg>& chunks) {
  unsigned largest = 0;
#pragma unroll(unrolled(cfg))
  for (int i = 0; i < Chunks<cfg>::count; ++i) {
    float y[chunk];
    chunks.get(i, y);
    const unsigned mine = chunks.live(i) ? largest_magnitude(y) : 0u;
    largest = mine > largest ? mine : largest;
  }
  return largest;
}

}  // namespace quantizing
}  // namespace rapt
