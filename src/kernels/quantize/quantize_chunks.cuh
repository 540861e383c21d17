// Rows of quantize.cuh in chunks of 8 channels: read, rotated, smoothed, held in registers where they fit; and the
// largest of their magnitudes. Device only.
#pragma once

#include "device/numeric.cuh"
#include "quantize_config.h"

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

// The chunk `column` of a row; zeros where there is nothing.
template <QuantizeConfig cfg>
inline Stored<cfg> load_chunk(const QuantizeParams& p, const char* row, int column, bool live) {
  Stored<cfg> x{};
  if (!live) return x;
  if constexpr (cfg.input_vectors) {
    return *reinterpret_cast<const Stored<cfg>*>(row + index_t{column} * chunk * bytes_of(cfg.input));
  } else {
    for (int i = 0; i < chunk; ++i) {
      if (!is_channel<cfg>(column, i)) continue;
      const char* at = row + (index_t{column} * chunk + i) * p.input.column * bytes_of(cfg.input);
      if constexpr (cfg.input == DType::f32)
        x.word[i] = *reinterpret_cast<const unsigned*>(at);
      else
        x.word[i / 2] |= unsigned{*reinterpret_cast<const unsigned short*>(at)} << 16 * (i % 2);
    }
    return x;
  }
}

template <QuantizeConfig cfg>
inline const char* input_row(const QuantizeParams& p, index_t b, index_t h, index_t row) {
  return static_cast<const char*>(p.input.data) + p.input.index(b, h, row) * bytes_of(cfg.input);
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
  for (int apart = 1; apart < cfg.rotated_chunks(); apart *= 2) {
    const float sign = (thread() & apart) == 0 ? 1.0f : -1.0f;  // one instruction for the sum and the difference
    for (int i = 0; i < chunk; ++i) y[i] = sign * y[i] + __shfl_xor_sync(0xffffffffu, y[i], apart);
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

inline unsigned larger(unsigned a, unsigned b) { return a > b ? a : b; }

// The largest finite magnitude as bits. fmaxf passes over NaN; where it finds infinity, which is rare, all are looked
// at.
inline unsigned largest_magnitude(const float (&y)[chunk]) {
  float most = 0.0f;
  for (int i = 0; i < chunk; ++i) most = fmaxf(most, fabsf(y[i]));
  unsigned largest = detail::bits_of(most);
  if (largest == infinity_bits) {
    largest = 0;
    for (int i = 0; i < chunk; ++i) largest = larger(largest, finite_magnitude(y[i]));
  }
  return largest;
}
template <DType type>
inline unsigned magnitude_of_half(unsigned code) {
  const auto half = static_cast<unsigned short>(code);
  return detail::bits_of(type == DType::f16 ? f16_to_f32(half) : bf16_to_float(half));
}

// Some rows of one head.
struct QuantizeTile {
  index_t b, h;
  QuantizeRows rows;
  index_t first;  // of the sequence
  int count;      // 0: the sequence ends before
  const char* input;
  unsigned char* output;  // its first row in both
};

template <QuantizeConfig cfg>
inline QuantizeTile tile_at(const QuantizeParams& p, index_t b, index_t h, index_t tile) {
  const QuantizeRows rows = quantize_rows(p, b);
  const index_t first = tile * cfg.rows(), row = rows.first + first;
  return {b,
          h,
          rows,
          first,
          static_cast<int>(clamped(rows.count - first, 0, cfg.rows())),
          input_row<cfg>(p, b, h, row),
          static_cast<unsigned char*>(p.output.data) + p.output.index(b, h, row)};
}

// All tiles, dealt to the blocks of a grid of tiles, heads and batches: what a block takes first needs no division.
template <QuantizeConfig cfg, class Visit>
inline void for_each_tile(const QuantizeParams& p, const Visit& visit) {
  const index_t tiles = quantize_tiles(p, cfg);
  for (index_t b = blockIdx.z; b < p.batch; b += gridDim.z)
    for (index_t h = blockIdx.y; h < p.heads; h += gridDim.y)
      for (index_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) visit(tile_at<cfg>(p, b, h, tile));
}

// A tile's chunks that belong to this thread: held where they fit into registers, else read whenever they are asked
// for.
template <QuantizeConfig cfg>
class Chunks {
 public:
  static constexpr int count = cfg.chunks_per_thread();

  Chunks(const QuantizeParams& params, const QuantizeTile& one) : p(params), tile(one) {
    if constexpr (cfg.fixed_column()) {
      fixed.load(p, tile.b, tile.h, column(0));
      input = tile.input + row(0) * input_step(1);
      output = tile.output + row(0) * p.output.row;
    }
    if constexpr (cfg.held()) {
#pragma unroll
      for (int i = 0; i < count; ++i) stored[i] = load(i);
      if constexpr (cfg.transformed()) {
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
    if constexpr (cfg.held() && cfg.transformed()) {
      for (int c = 0; c < chunk; ++c) y[c] = held[i][c];
    } else {
      values_of<cfg>(stored_of(i), column_of(i), y);
    }
  }
  Stored<cfg> stored_of(int i) const { return cfg.held() ? stored[cfg.held() ? i : 0] : load(i); }
  unsigned char* output_row(int i) const {
    if constexpr (cfg.fixed_column()) return output + i * rows_apart * p.output.row;
    return tile.output + row(i) * p.output.row;
  }

 private:
  static constexpr int rows_apart = cfg.threads() / cfg.chunks();  // of a thread's chunks, where columns are fixed

  index_t input_step(int rows) const { return rows * p.input.row * bytes_of(cfg.input); }
  Stored<cfg> load(int i) const {
    if constexpr (cfg.fixed_column())
      return load_chunk<cfg>(p, input + input_step(i * rows_apart), column(i), live(i));
    else
      return load_chunk<cfg>(p, tile.input + row(i) * input_step(1), column(i), live(i));
  }

  const QuantizeParams& p;
  const QuantizeTile& tile;
  Column<cfg> fixed;
  const char* input;  // rows of the first chunk, where columns are fixed
  unsigned char* output;
  Stored<cfg> stored[cfg.held() ? count : 1];
  float held[cfg.held() && cfg.transformed() ? count : 1][chunk];
};

constexpr int unrolled(const QuantizeConfig& cfg) { return cfg.held() ? cfg.chunks_per_thread() : 1; }

// The largest of all threads' numbers, to all of them. `shared`: a word for each warp; used again only after a barrier.
template <QuantizeConfig cfg>
inline unsigned block_largest(unsigned largest, unsigned* shared) {
  largest = __reduce_max_sync(0xffffffffu, largest);
  if constexpr (cfg.warps() == 1) return largest;
  if (thread() % 32 == 0) shared[thread() / 32] = largest;
  __syncthreads();
  for (int warp = 0; warp < cfg.warps(); ++warp) largest = larger(largest, shared[warp]);
  return largest;
}

// Of a thread's chunks from first to last. Stored numbers of 16 bits are compared two at a time.
template <QuantizeConfig cfg>
inline unsigned largest_of_chunks(const Chunks<cfg>& chunks, int first = 0, int last = Chunks<cfg>::count) {
  unsigned largest = 0;
  if constexpr (!cfg.transformed() && is_16bit(cfg.input)) {
    unsigned pair = 0;
#pragma unroll(unrolled(cfg))
    for (int i = first; i < last; ++i)
      for (const unsigned word : chunks.stored_of(i).word) pair = max_magnitude2<cfg.input>(pair, word);
    largest = larger(magnitude_of_half<cfg.input>(pair), magnitude_of_half<cfg.input>(pair >> 16));
    if (largest != infinity_bits) return largest;
    largest = 0;
  }
#pragma unroll(unrolled(cfg))
  for (int i = first; i < last; ++i) {
    float y[chunk];
    chunks.get(i, y);
    if (!cfg.smooth || chunks.live(i)) largest = larger(largest, largest_magnitude(y));
  }
  return largest;
}

}  // namespace quantizing
}  // namespace rapt
