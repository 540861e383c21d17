// Chunks of 8 channels for quantize.cuh. Functions load a chunk, rotate it, subtract the mean, keep it in registers if
// all chunks of the thread fit, and compute its amax. Device only.
#pragma once

#include "device/fp8.cuh"
#include "device/numeric.cuh"
#include "quantize_config.h"

namespace rapt {
namespace quantizing {

constexpr int chunk = QuantizeConfig::chunk;

inline int thread() { return static_cast<int>(threadIdx.x); }

// 8 channels in the input dtype.
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

// Parameters of a chunk's channels in one head: signs of the rotation, means, inverse descales.
template <QuantizeConfig cfg>
struct ChannelParams {
  unsigned negative = 0;  // bit i: the rotation flips the sign of channel i
  float mean[chunk], inverse[chunk];

  void load(const QuantizeParams& p, index_t b, index_t h, int column) {
    for (int i = 0; i < chunk; ++i) {
      const index_t channel = index_t{column} * chunk + i;
      const bool exists = is_channel<cfg>(column, i);
      if constexpr (cfg.hadamard) negative |= static_cast<unsigned>(hadamard::is_negative(channel)) << i;
      if constexpr (cfg.smooth) mean[i] = exists ? *p.mean_at(b, h, channel) : 0.0f;
      if constexpr (cfg.descales_ready && cfg.by_channel())
        inverse[i] = exists ? inverse_of(*p.descale_at(b, h, 0, channel)) : 0.0f;
    }
  }
};

// Loads chunk `column` of a row; missing elements are 0.
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

// Computes hadamard::transform. The first rounds are within a chunk, the later ones between lanes, by shuffles. The
// upper lane of a pair keeps the difference.
template <QuantizeConfig cfg>
inline void rotate_chunk(const ChannelParams<cfg>& column, float (&y)[chunk]) {
  constexpr int group = cfg.hadamard_group(), within = group < chunk ? group : chunk;
  for (int i = 0; i < chunk; ++i) y[i] = detail::float_of(detail::bits_of(y[i]) ^ (column.negative >> i & 1u) << 31);
  for (int first = 0; first < chunk; first += within) hadamard::transform(y + first, within);
  for (int stride = 1; stride < cfg.hadamard_chunks(); stride *= 2) {
    const float sign = (thread() & stride) == 0 ? 1.0f : -1.0f;  // one FMA computes the sum or the difference
    for (int i = 0; i < chunk; ++i) y[i] = sign * y[i] + __shfl_xor_sync(0xffffffffu, y[i], stride);
  }
  if constexpr (group > 1)
    for (int i = 0; i < chunk; ++i) y[i] = multiplied(y[i], hadamard::factor_of(group));
}

// Converts, rotates and smooths a chunk. Called by all lanes of a warp.
template <QuantizeConfig cfg>
inline void load_values(const Stored<cfg>& x, const ChannelParams<cfg>& column, float (&y)[chunk]) {
  widen_chunk<cfg>(x, y);
  if constexpr (cfg.hadamard) rotate_chunk<cfg>(column, y);
  if constexpr (cfg.smooth)
    for (int i = 0; i < chunk; ++i) y[i] -= column.mean[i];
}

template <DType type>
inline unsigned magnitude_of_half(unsigned code) {
  const auto half = static_cast<unsigned short>(code);
  return detail::bits_of(type == DType::f16 ? f16_to_f32(half) : bf16_to_float(half));
}

// A tile: some rows of one head.
struct QuantizeTile {
  index_t b, h;
  QuantizeRows rows;
  index_t first;  // first row, counted in the sequence
  int count;      // number of rows; 0: the tile lies beyond the end of the sequence
  const char* input;
  unsigned char* output;  // addresses of the first row
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

// Calls `visit` for all tiles. The grid is (tiles, heads, batch), so that no division is needed.
template <QuantizeConfig cfg, class Visit>
inline void for_each_tile(const QuantizeParams& p, const Visit& visit) {
  const index_t tiles = quantize_tiles(p, cfg);
  for (index_t b = blockIdx.z; b < p.batch; b += gridDim.z)
    for (index_t h = blockIdx.y; h < p.heads; h += gridDim.y)
      for (index_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) visit(tile_at<cfg>(p, b, h, tile));
}

// The chunks of a tile that belong to this thread. If they do not fit into registers, each use loads them again.
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
    if constexpr (cfg.in_registers()) {
#pragma unroll
      for (int i = 0; i < count; ++i) stored[i] = load(i);
      if constexpr (cfg.transformed()) {
#pragma unroll
        for (int i = 0; i < count; ++i) load_values<cfg>(stored[i], column_of(i), values[i]);
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

  ChannelParams<cfg> column_of(int i) const {
    if constexpr (cfg.fixed_column()) return fixed;
    ChannelParams<cfg> one;
    one.load(p, tile.b, tile.h, column(i));
    return one;
  }
  // Called by all lanes of a warp.
  void get(int i, float (&y)[chunk]) const {
    if constexpr (cfg.in_registers() && cfg.transformed()) {
      for (int c = 0; c < chunk; ++c) y[c] = values[i][c];
    } else {
      load_values<cfg>(stored_of(i), column_of(i), y);
    }
  }
  Stored<cfg> stored_of(int i) const { return cfg.in_registers() ? stored[cfg.in_registers() ? i : 0] : load(i); }
  unsigned char* output_row(int i) const {
    if constexpr (cfg.fixed_column()) return output + i * row_stride * p.output.row;
    return tile.output + row(i) * p.output.row;
  }

 private:
  static constexpr int row_stride = cfg.threads() / cfg.chunks();  // rows between a thread's chunks, if fixed_column()

  index_t input_step(int rows) const { return rows * p.input.row * bytes_of(cfg.input); }
  Stored<cfg> load(int i) const {
    if constexpr (cfg.fixed_column())
      return load_chunk<cfg>(p, input + input_step(i * row_stride), column(i), live(i));
    else
      return load_chunk<cfg>(p, tile.input + row(i) * input_step(1), column(i), live(i));
  }

  const QuantizeParams& p;
  const QuantizeTile& tile;
  ChannelParams<cfg> fixed;
  const char* input;  // address of the first chunk's row, if fixed_column()
  unsigned char* output;
  Stored<cfg> stored[cfg.in_registers() ? count : 1];
  float values[cfg.in_registers() && cfg.transformed() ? count : 1][chunk];
};

constexpr int unroll_count(const QuantizeConfig& cfg) { return cfg.in_registers() ? cfg.chunks_per_thread() : 1; }

// Returns the maximum over all threads of the CTA, to every thread. `shared`: one word per warp. The caller needs a
// barrier before it uses `shared` again.
template <QuantizeConfig cfg>
inline unsigned cta_amax(unsigned largest, unsigned* shared) {
  largest = __reduce_max_sync(0xffffffffu, largest);
  if constexpr (cfg.warps() == 1) return largest;
  if (thread() % 32 == 0) shared[thread() / 32] = largest;
  __syncthreads();
  for (int warp = 0; warp < cfg.warps(); ++warp) largest = max_of(largest, shared[warp]);
  return largest;
}

// Returns amax of a thread's chunks [first, last). Untransformed 16-bit values are compared in pairs.
template <QuantizeConfig cfg>
inline unsigned chunks_amax(const Chunks<cfg>& chunks, int first = 0, int last = Chunks<cfg>::count) {
  unsigned largest = 0;
  if constexpr (!cfg.transformed() && is_16bit(cfg.input)) {
    unsigned pair = 0;
#pragma unroll(unroll_count(cfg))
    for (int i = first; i < last; ++i)
      for (const unsigned word : chunks.stored_of(i).word) pair = max_magnitude2<cfg.input>(pair, word);
    largest = max_of(magnitude_of_half<cfg.input>(pair), magnitude_of_half<cfg.input>(pair >> 16));
    if (largest != infinity_bits) return largest;
    largest = 0;
  }
#pragma unroll(unroll_count(cfg))
  for (int i = first; i < last; ++i) {
    float y[chunk];
    chunks.get(i, y);
    if (!cfg.smooth || chunks.live(i)) largest = max_of(largest, chunk_amax(y));
  }
  return largest;
}

}  // namespace quantizing
}  // namespace rapt
