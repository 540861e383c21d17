// Quantisation, device code: one kernel for each QuantizeStep (quantize_config.h). Results have the same bits as
// cpu/quantize.cpp. With token and block descales the input is read once and stays in registers while amax is computed.
// Host half: quantize_gpu.cpp.
#pragma once

#include "quantize_chunks.cuh"
#include "quantize_mean.cuh"
#include "quantize_select.cuh"

namespace rapt {
namespace quantizing {

// ---- encode

template <QuantizeConfig cfg>
inline Codes codes_of(const float (&scaled)[chunk]) {
  Codes codes{};
  if constexpr (cfg.output == DType::sim8) {
    for (int i = 0; i < chunk; ++i) codes.word[i / 4] |= unsigned{sim8_code(scaled[i])} << 8 * (i % 4);
  } else {
    for (int i = 0; i < 2; ++i) codes.word[i] = fp8_codes<cfg.output>(scaled + 4 * i);
  }
  return codes;
}

template <QuantizeConfig cfg>
inline void store_chunk(const QuantizeParams& p, unsigned char* row, int column, const Codes& codes) {
  if constexpr (cfg.output_vectors) {
    *reinterpret_cast<Codes*>(row + index_t{column} * chunk) = codes;
  } else {
    for (int i = 0; i < chunk; ++i)
      if (is_channel<cfg>(column, i))
        row[(index_t{column} * chunk + i) * p.output.column] =
            static_cast<unsigned char>(codes.word[i / 4] >> 8 * (i % 4));
  }
}

// Inverse descales of the thread's chunks: one for the tile, or one for each row. With descales_ready they are read.
// Otherwise they are computed from amax, and one thread writes each descale.
template <QuantizeConfig cfg>
class Descales {
 public:
  Descales(const QuantizeParams& p, const QuantizeTile& tile, const Chunks<cfg>& chunks, unsigned* shared) {
    if constexpr (cfg.descales_ready)
      read(p, tile, chunks);
    else if constexpr (cfg.one_descale())
      compute_tile_descale(p, tile, chunks, shared);
    else
      compute_row_descales(p, tile, chunks, shared);
  }
  float inverse(int i) const { return inverses[cfg.one_descale() ? 0 : i]; }

 private:
  static constexpr int count = Chunks<cfg>::count;

  void read(const QuantizeParams& p, const QuantizeTile& tile, const Chunks<cfg>& chunks) {
    if constexpr (cfg.by_channel()) return;  // Chunks reads them
    const auto inverse_at = [&](int row) {
      return inverse_of(*p.descale_at(tile.b, tile.h, descale_position(p, tile.rows, tile.first + row), 0));
    };
    if constexpr (cfg.one_descale()) {
      inverses[0] = inverse_at(0);
    } else {
#pragma unroll
      for (int i = 0; i < count; ++i) inverses[i] = chunks.live(i) ? inverse_at(chunks.row(i)) : 0.0f;
    }
  }

  void compute_tile_descale(const QuantizeParams& p, const QuantizeTile& tile, const Chunks<cfg>& chunks,
                            unsigned* shared) {
    const float descale = descale_of(cta_amax<cfg>(chunks_amax<cfg>(chunks), shared), cfg.output);
    if (thread() == 0) *p.descale_at(tile.b, tile.h, descale_position(p, tile.rows, tile.first), 0) = descale;
    inverses[0] = inverse_of(descale);
  }

  void compute_row_descales(const QuantizeParams& p, const QuantizeTile& tile, const Chunks<cfg>& chunks,
                            unsigned* shared) {
    unsigned largest[count];
    reduce_rows(chunks, shared, largest);
    const auto place = [&](int i) {
      return p.descale_at(tile.b, tile.h, descale_position(p, tile.rows, tile.first + chunks.row(i)), 0);
    };
    if constexpr (cfg.row_fits_warp() && cfg.chunks() >= count) {
      // Each lane computes the division for one row and broadcasts the result.
      const int own = chunks.column(0) % count;
      unsigned own_amax = 0;
#pragma unroll
      for (int i = 0; i < count; ++i) own_amax = i == own ? largest[i] : own_amax;
      const float descale = descale_of(own_amax, cfg.output), inverse = inverse_of(descale);
      if (chunks.column(0) < count && chunks.live(own)) *place(own) = descale;
#pragma unroll
      for (int i = 0; i < count; ++i) inverses[i] = __shfl_sync(0xffffffffu, inverse, i, cfg.chunks());
    } else {
#pragma unroll
      for (int i = 0; i < count; ++i) {
        if (!chunks.live(i)) continue;
        const float descale = descale_of(largest[i], cfg.output);
        inverses[i] = inverse_of(descale);
        if (chunks.column(i) == 0) *place(i) = descale;
      }
    }
  }
  // Computes amax of each chunk's row: by shuffles if the row is in one warp, else by atomics in shared memory.
  static void reduce_rows(const Chunks<cfg>& chunks, unsigned* shared, unsigned (&largest)[count]) {
    if constexpr (!cfg.row_fits_warp()) {
      for (int i = thread(); i < cfg.rows(); i += cfg.threads()) shared[i] = 0;
      __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < count; ++i) {
      largest[i] = chunks_amax<cfg>(chunks, i, i + 1);
      if constexpr (!cfg.row_fits_warp()) {
        if (chunks.live(i)) atomicMax(shared + chunks.row(i), largest[i]);
      } else {
        for (int stride = 1; stride < cfg.chunks(); stride *= 2) {
          largest[i] = max_of(largest[i], __shfl_xor_sync(0xffffffffu, largest[i], stride));
        }
      }
    }
    if constexpr (!cfg.row_fits_warp()) {
      __syncthreads();
#pragma unroll
      for (int i = 0; i < count; ++i) largest[i] = chunks.live(i) ? shared[chunks.row(i)] : 0u;
    }
  }

  float inverses[cfg.one_descale() ? 1 : count] = {};
};

template <QuantizeConfig cfg>
inline void store_chunks(const QuantizeParams& p, const Chunks<cfg>& chunks, const Descales<cfg>& descales) {
#pragma unroll(unroll_count(cfg))
  for (int i = 0; i < Chunks<cfg>::count; ++i) {
    float y[chunk];
    chunks.get(i, y);
    if (!chunks.live(i)) continue;
    if constexpr (cfg.by_channel()) {
      const ChannelParams<cfg> column = chunks.column_of(i);
      for (int c = 0; c < chunk; ++c) y[c] = multiplied(y[c], column.inverse[c]);
    } else {
      const float factor = descales.inverse(i);
      for (int c = 0; c < chunk; ++c) y[c] = multiplied(y[c], factor);
    }
    store_chunk<cfg>(p, chunks.output_row(i), chunks.column(i), codes_of<cfg>(y));
  }
}

template <QuantizeConfig cfg>
inline void encode_tile(const QuantizeParams& p, const QuantizeTile& tile, unsigned* shared) {
  const Chunks<cfg> chunks(p, tile);
  const Descales<cfg> descales(p, tile, chunks, shared);
  store_chunks<cfg>(p, chunks, descales);
}

template <QuantizeConfig cfg>
inline void encode(const QuantizeParams& p, unsigned* shared) {
  for_each_tile<cfg>(p, [&](const QuantizeTile& tile) {
    if (tile.count > 0)
      encode_tile<cfg>(p, tile, shared);
    else if (!cfg.descales_ready && rows_sharing(cfg.group) > 1 && thread() == 0)
      *p.descale_at(tile.b, tile.h, tile.first / cfg.rows(), 0) = 1.0f;
    if constexpr (!cfg.descales_ready) __syncthreads();  // the next tile reuses the shared memory
  });
}

// ---- amax

// Computes amax of each channel: first in registers, then in shared memory (if all channels fit), then in the descales.
template <QuantizeConfig cfg>
inline void channel_amax(const QuantizeParams& p, const QuantizeTile& tile, unsigned* shared) {
  constexpr bool in_shared = cfg.dim <= QuantizeConfig::max_shared_channels;
  const auto place = [&](int channel) {
    return in_shared ? shared + channel : reinterpret_cast<unsigned*>(p.descale_at(tile.b, tile.h, 0, channel));
  };
  if constexpr (in_shared) {
    for (int c = thread(); c < cfg.dim; c += cfg.threads()) shared[c] = 0;
    __syncthreads();
  }
  const Chunks<cfg> chunks(p, tile);
  unsigned largest[chunk] = {};
#pragma unroll(unroll_count(cfg))
  for (int i = 0; i < Chunks<cfg>::count; ++i) {
    float y[chunk];
    chunks.get(i, y);
    if (!chunks.live(i)) continue;
    for (int c = 0; c < chunk; ++c) {
      const unsigned magnitude = finite_magnitude(y[c]);
      if constexpr (cfg.fixed_column())
        largest[c] = max_of(largest[c], magnitude);
      else if (is_channel<cfg>(chunks.column(i), c))
        atomicMax(place(chunks.column(i) * chunk + c), magnitude);
    }
  }
  if constexpr (cfg.fixed_column())
    for (int c = 0; c < chunk; ++c)
      if (is_channel<cfg>(chunks.column(0), c)) atomicMax(place(chunks.column(0) * chunk + c), largest[c]);
  if constexpr (in_shared) {
    __syncthreads();
    for (int c = thread(); c < cfg.dim; c += cfg.threads())
      atomicMax(reinterpret_cast<unsigned*>(p.descale_at(tile.b, tile.h, 0, c)), shared[c]);
  }
}

template <QuantizeConfig cfg>
inline void amax(const QuantizeParams& p, unsigned* shared) {
  for_each_tile<cfg>(p, [&](const QuantizeTile& tile) {
    if (tile.count == 0) return;
    if constexpr (cfg.by_channel()) {
      channel_amax<cfg>(p, tile, shared);
    } else {
      const unsigned largest = cta_amax<cfg>(chunks_amax<cfg>(Chunks<cfg>(p, tile)), shared);
      if (thread() == 0) atomicMax(reinterpret_cast<unsigned*>(p.descale_at(tile.b, tile.h, 0, 0)), largest);
    }
    __syncthreads();
  });
}

template <QuantizeConfig cfg>
inline void for_each_slot(const QuantizeParams& p, bool finished) {
  const index_t slots = quantize_slots(p), channels = cfg.by_channel() ? p.dim : 1;
  for (index_t i = index_t{blockIdx.x} * cfg.threads() + thread(); i < slots; i += index_t{gridDim.x} * cfg.threads()) {
    const index_t head = i / channels, b = p.heads == 0 ? 0 : head / p.heads;
    float* slot = p.descale_at(b, head - b * p.heads, 0, i - head * channels);
    *slot = finished ? descale_of(detail::bits_of(*slot), cfg.output) : 0.0f;
  }
}

}  // namespace quantizing

template <QuantizeConfig cfg>
inline void quantize(const QuantizeParams& p) {
  extern __shared__ double quantize_shared[];
  [[maybe_unused]] auto* shared = reinterpret_cast<unsigned*>(quantize_shared);
  if constexpr (cfg.step == QuantizeStep::mean) quantizing::mean<cfg>(p, shared);
  if constexpr (cfg.step == QuantizeStep::clear) quantizing::for_each_slot<cfg>(p, false);
  if constexpr (cfg.step == QuantizeStep::amax) quantizing::amax<cfg>(p, shared);
  if constexpr (cfg.step == QuantizeStep::finish) quantizing::for_each_slot<cfg>(p, true);
  if constexpr (cfg.step == QuantizeStep::select) quantizing::select<cfg>(p, shared);
  if constexpr (cfg.step == QuantizeStep::encode) quantizing::encode<cfg>(p, shared);
}

}  // namespace rapt
