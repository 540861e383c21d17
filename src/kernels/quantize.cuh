// Quantisation, device half: the steps of shared/quantize_config.h, one kernel each, with the bits of cpu/quantize.cpp.
// Tokens and blocks are read once, held in registers while their largest magnitude is found, and written. Host half:
// quantize_gpu.cpp.
#pragma once

#include "prim/numeric.cuh"
#include "shared/quantize_config.h"

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

// ---- encode

// Four codes, those of NaN made nan_code: machines choose their sign and payload for themselves. What saturates has no
// infinity, so that only NaN is above the largest number.
template <DType output>
constexpr unsigned with_one_nan(unsigned codes) {
  constexpr unsigned up = output == DType::e4m3 ? 0x01010101u : 0x04040404u;  // lifts NaN into the sign's place
  const unsigned nans = ((codes & 0x7f7f7f7fu) + up) & 0x80808080u;
  return (codes | (output == DType::e4m3 ? 0u : nans - (nans >> 7))) & ~nans;
}

template <QuantizeConfig cfg>
inline Codes codes_of(const float (&scaled)[chunk]) {
  Codes codes{};
  if constexpr (cfg.output == DType::sim8) {
    for (int i = 0; i < chunk; ++i) codes.word[i / 4] |= unsigned{sim8_code(scaled[i])} << 8 * (i % 4);
  } else {
    const auto pair = [&](int i) {
      return unsigned{cfg.output == DType::e4m3 ? pack_e4m3x2(scaled[i], scaled[i + 1])
                                                : pack_e5m2x2(scaled[i], scaled[i + 1])};
    };
    for (int i = 0; i < 2; ++i) codes.word[i] = with_one_nan<cfg.output>(pair(4 * i) | pair(4 * i + 2) << 16);
  }
  return codes;
}

template <QuantizeConfig cfg>
inline void store_chunk(const QuantizeParams& p, index_t at, int column, const Codes& codes) {
  auto* to = static_cast<unsigned char*>(p.output.data) + at;
  if constexpr (cfg.output_vectors) {
    *reinterpret_cast<Codes*>(to + index_t{column} * chunk) = codes;
  } else {
    for (int i = 0; i < chunk; ++i)
      if (is_channel<cfg>(column, i))
        to[(index_t{column} * chunk + i) * p.output.column] =
            static_cast<unsigned char>(codes.word[i / 4] >> 8 * (i % 4));
  }
}

// Inverses of the factors of the thread's chunks: a tile's, or that of each row. One thread of each writes the factor.
template <QuantizeConfig cfg>
class Factors {
 public:
  Factors(const QuantizeParams& p, const QuantizeTile& tile, const Chunks<cfg>& chunks, unsigned* shared) {
    if constexpr (cfg.one_factor())
      find_of_tile(p, tile, chunks, shared);
    else
      find_of_rows(p, tile, chunks, shared);
  }
  float inverse(int i) const { return inverses[cfg.one_factor() ? 0 : i]; }

 private:
  static constexpr int count = Chunks<cfg>::count;

  void find_of_tile(const QuantizeParams& p, const QuantizeTile& tile, const Chunks<cfg>& chunks, unsigned* shared) {
    const float descale = descale_of(block_largest<cfg>(largest_of_chunks<cfg>(chunks), shared), cfg.output);
    if (thread() == 0) *p.descale_at(tile.b, tile.h, descale_position(p, tile.rows, tile.first), 0) = descale;
    inverses[0] = inverse_of(descale);
  }

  // Where a row lies in one warp its lanes compare by themselves.
  void find_of_rows(const QuantizeParams& p, const QuantizeTile& tile, const Chunks<cfg>& chunks, unsigned* shared) {
    unsigned largest[count];
    if constexpr (!cfg.rows_in_warps()) {
      for (int i = thread(); i < cfg.rows(); i += cfg.threads()) shared[i] = 0;
      __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < count; ++i) {
      float y[chunk];
      chunks.get(i, y);
      largest[i] = largest_magnitude(y);
      if constexpr (!cfg.rows_in_warps()) {
        if (chunks.live(i)) atomicMax(shared + chunks.row(i), largest[i]);
      } else {
        for (int apart = 1; apart < cfg.chunks(); apart *= 2) {
          const unsigned other = __shfl_xor_sync(0xffffffffu, largest[i], apart);
          largest[i] = other > largest[i] ? other : largest[i];
        }
      }
    }
    if constexpr (!cfg.rows_in_warps()) __syncthreads();
#pragma unroll
    for (int i = 0; i < count; ++i) {
      if (!chunks.live(i)) continue;
      if constexpr (!cfg.rows_in_warps()) largest[i] = shared[chunks.row(i)];
      const float descale = descale_of(largest[i], cfg.output);
      inverses[i] = inverse_of(descale);
      if (chunks.column(i) == 0)
        *p.descale_at(tile.b, tile.h, descale_position(p, tile.rows, tile.first + chunks.row(i)), 0) = descale;
    }
  }

  float inverses[cfg.one_factor() ? 1 : count];
};

// inverse(i): of the factor of chunk i, where channels have none of their own.
template <QuantizeConfig cfg, class Inverse>
inline void store_chunks(const QuantizeParams& p, const QuantizeTile& tile, const Chunks<cfg>& chunks,
                         const Inverse& inverse) {
#pragma unroll(unrolled(cfg))
  for (int i = 0; i < Chunks<cfg>::count; ++i) {
    float y[chunk];
    chunks.get(i, y);
    if (!chunks.live(i)) continue;
    if constexpr (cfg.by_channel()) {
      const Column<cfg> column = chunks.column_of(i);
      for (int c = 0; c < chunk; ++c) y[c] = multiplied(y[c], column.inverse[c]);
    } else {
      const float factor = inverse(i);
      for (int c = 0; c < chunk; ++c) y[c] = multiplied(y[c], factor);
    }
    store_chunk<cfg>(p, tile.output_at + chunks.row(i) * p.output.row, chunks.column(i), codes_of<cfg>(y));
  }
}

template <QuantizeConfig cfg>
inline void encode_tile(const QuantizeParams& p, const QuantizeTile& tile, unsigned* shared) {
  const Chunks<cfg> chunks(p, tile);
  if constexpr (cfg.settled) {
    store_chunks<cfg>(p, tile, chunks, [&](int i) {
      return inverse_of(*p.descale_at(tile.b, tile.h, descale_position(p, tile.rows, tile.first + chunks.row(i)), 0));
    });
  } else {
    const Factors<cfg> factors(p, tile, chunks, shared);
    store_chunks<cfg>(p, tile, chunks, [&](int i) { return factors.inverse(i); });
  }
}

template <QuantizeConfig cfg>
inline void encode(const QuantizeParams& p, unsigned* shared) {
  const index_t items = quantize_work_items(p, cfg);
  for (index_t item = blockIdx.x; item < items; item += gridDim.x) {
    const QuantizeTile tile = tile_at<cfg>(p, item);
    if (tile.count > 0)
      encode_tile<cfg>(p, tile, shared);
    else if (!cfg.settled && rows_of(cfg.group) > 1 && thread() == 0)
      *p.descale_at(tile.b, tile.h, tile.first / cfg.rows(), 0) = 1.0f;
    if constexpr (!cfg.settled) __syncthreads();  // what is shared is used again
  }
}

// ---- amax

// Of one channel after another: registers, then shared memory, then the factors' places.
template <QuantizeConfig cfg>
inline void join_channels(const QuantizeParams& p, const QuantizeTile& tile, unsigned* shared) {
  constexpr bool in_shared = cfg.dim <= QuantizeConfig::most_shared_channels;
  const auto place = [&](int channel) {
    return in_shared ? shared + channel : reinterpret_cast<unsigned*>(p.descale_at(tile.b, tile.h, 0, channel));
  };
  if constexpr (in_shared) {
    for (int c = thread(); c < cfg.dim; c += cfg.threads()) shared[c] = 0;
    __syncthreads();
  }
  const Chunks<cfg> chunks(p, tile);
  unsigned largest[chunk] = {};
#pragma unroll(unrolled(cfg))
  for (int i = 0; i < Chunks<cfg>::count; ++i) {
    float y[chunk];
    chunks.get(i, y);
    if (!chunks.live(i)) continue;
    for (int c = 0; c < chunk; ++c) {
      const unsigned magnitude = finite_magnitude(y[c]);
      if constexpr (cfg.fixed_column())
        largest[c] = magnitude > largest[c] ? magnitude : largest[c];
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
  const index_t items = quantize_work_items(p, cfg);
  for (index_t item = blockIdx.x; item < items; item += gridDim.x) {
    const QuantizeTile tile = tile_at<cfg>(p, item);
    if (tile.count == 0) continue;
    if constexpr (cfg.by_channel()) {
      join_channels<cfg>(p, tile, shared);
    } else {
      const unsigned largest = block_largest<cfg>(largest_of_chunks<cfg>(Chunks<cfg>(p, tile)), shared);
      if (thread() == 0) atomicMax(reinterpret_cast<unsigned*>(p.descale_at(tile.b, tile.h, 0, 0)), largest);
    }
    __syncthreads();
  }
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

// ---- mean

template <QuantizeConfig cfg>
inline void mean_of_slab(const QuantizeParams& p, index_t b, index_t h, int slab, double* sums, long long* counts) {
  constexpr int width = cfg.mean_chunks();
  const int lane = thread() / width, column = slab * width + thread() % width;
  const QuantizeRows rows = quantize_rows(p, b);
  Column<cfg> of_column;
  of_column.load(p, b, h, column);
  double sum[chunk] = {};
  long long count[chunk] = {};
  constexpr int ahead = 64 / sizeof(Stored<cfg>);  // rows on their way at once: there are few blocks
  for (index_t first = lane; first - lane < rows.count; first += ahead * mean_lanes) {
    const auto live = [&](int a) { return first + a * mean_lanes < rows.count && column < cfg.chunks(); };
    Stored<cfg> stored[ahead];
#pragma unroll
    for (int a = 0; a < ahead; ++a)
      stored[a] = load_chunk<cfg>(p, p.input.index(b, h, rows.first + first + a * mean_lanes), column, live(a));
#pragma unroll
    for (int a = 0; a < ahead; ++a) {
      float y[chunk];
      values_of<cfg>(stored[a], of_column, y);
      for (int i = 0; i < chunk; ++i) {
        const bool counts_here = live(a) && is_finite(y[i]);
        sum[i] += counts_here ? static_cast<double>(y[i]) : 0.0;
        count[i] += counts_here;
      }
    }
  }
  for (int i = 0; i < chunk; ++i) {
    __syncthreads();  // what is shared is used again
    sums[thread()] = sum[i], counts[thread()] = count[i];
    __syncthreads();
    if (lane != 0 || column >= cfg.chunks() || !is_channel<cfg>(column, i)) continue;
    double total = 0;
    long long all = 0;
    for (int other = 0; other < mean_lanes; ++other) {
      total += sums[other * width + thread()];
      all += counts[other * width + thread()];
    }
    *p.mean_at(b, h, index_t{column} * chunk + i) = mean_of(total, all);
  }
}

template <QuantizeConfig cfg>
inline void mean(const QuantizeParams& p, unsigned* shared) {
  auto* sums = reinterpret_cast<double*>(shared);
  auto* counts = reinterpret_cast<long long*>(sums + cfg.threads());
  const index_t items = quantize_work_items(p, cfg);
  for (index_t item = blockIdx.x; item < items; item += gridDim.x) {
    const index_t head = item / cfg.mean_slabs(), b = head / p.heads;
    mean_of_slab<cfg>(p, b, head - b * p.heads, static_cast<int>(item % cfg.mean_slabs()), sums, counts);
  }
}

// ---- select

// What shares one factor: heads [begin, end) of the flattened batch, rows of their sequences, one channel or all.
struct SelectGroup {
  index_t head_begin, head_end;
  index_t row_begin, rows;  // rows: at most so many; < 0: all
  index_t channel;          // < 0: all
  float* descale;           // null: no rows of any sequence
};

template <QuantizeConfig cfg>
inline SelectGroup group_at(const QuantizeParams& p, index_t item) {
  if constexpr (cfg.group == ScaleGroup::tensor) return {0, p.batch * p.heads, 0, -1, -1, p.descale};
  const index_t inner = cfg.by_channel() ? p.dim : cfg.group == ScaleGroup::token ? p.seqlen : p.positions();
  const index_t head = item / inner, i = item - head * inner, b = head / p.heads, h = head - b * p.heads;
  SelectGroup group{head, head + 1, 0, -1, -1, nullptr};
  if constexpr (cfg.by_channel()) {
    group.channel = i;
    group.descale = p.descale_at(b, h, 0, i);
  } else if constexpr (rows_of(cfg.group) == 0) {
    group.descale = p.descale_at(b, h, 0, 0);
  } else {
    const QuantizeRows rows = quantize_rows(p, b);
    group.row_begin = i * rows_of(cfg.group), group.rows = rows_of(cfg.group);
    if (cfg.group != ScaleGroup::token || i < rows.count)
      group.descale = p.descale_at(b, h, cfg.group == ScaleGroup::token ? rows.first + i : i, 0);
  }
  return group;
}

// Adds to the counts of digits when the digit changes: most numbers of a tensor have the same first digit.
struct DigitCounter {
  unsigned long long* counts;
  unsigned digit = 0, run = 0;

  void flush() {
    if (run != 0) atomicAdd(counts + digit, static_cast<unsigned long long>(run));
    run = 0;
  }
  void add(unsigned next) {
    if (next != digit) flush();
    digit = next;
    ++run;
  }
};

// Digit `pass` of the group's magnitudes that begin with `known`. All threads of the block together.
template <QuantizeConfig cfg>
inline void count_group(const QuantizeParams& p, const SelectGroup& group, unsigned known, int pass,
                        unsigned long long* counts) {
  // A channel needs those that it was mixed with.
  constexpr int columns = cfg.by_channel() ? cfg.rotated_chunks() : cfg.chunks();
  const int first_column =
      cfg.by_channel() ? static_cast<int>(group.channel) / chunk / cfg.rotated_chunks() * cfg.rotated_chunks() : 0;
  DigitCounter counter{counts};
  for (index_t head = group.head_begin; head < group.head_end; ++head) {
    const index_t b = head / p.heads, h = head - b * p.heads;
    const QuantizeRows rows = quantize_rows(p, b);
    const index_t left = clamped(rows.count - group.row_begin, 0, rows.count);
    const index_t items = (group.rows < 0 || left < group.rows ? left : group.rows) * columns;
    for (index_t first = 0; first < items; first += cfg.threads()) {
      const index_t item = first + thread(), row = group.row_begin + item / columns;
      const int column = first_column + static_cast<int>(item % columns);
      const bool live = item < items;
      Column<cfg> of_column;
      of_column.load(p, b, h, column);
      float y[chunk];
      values_of<cfg>(load_chunk<cfg>(p, p.input.index(b, h, rows.first + row), column, live), of_column, y);
      if (!live) continue;
      for (int i = 0; i < chunk; ++i) {
        const bool wanted = cfg.by_channel() ? column * chunk + i == group.channel : is_channel<cfg>(column, i);
        const unsigned magnitude = finite_magnitude(y[i]);
        if (wanted && is_finite(y[i]) && begins_with(magnitude, known, pass))
          counter.add(magnitude >> shift_of(pass) & (digits - 1));
      }
    }
  }
  counter.flush();
}

// The digit in which the rank falls; rank becomes the one among the values with that digit. Of 16 sums of 16 counts,
// then of one sum's counts.
inline unsigned digit_of_rank(const unsigned long long* counts, const unsigned long long* sums,
                              unsigned long long& rank) {
  int part = 0;
  for (; rank > sums[part]; ++part) rank -= sums[part];
  int digit = 16 * part;
  for (; rank > counts[digit]; ++digit) rank -= counts[digit];
  return static_cast<unsigned>(digit);
}

template <QuantizeConfig cfg>
inline void select_group(const QuantizeParams& p, const SelectGroup& group, unsigned long long* shared) {
  unsigned long long *counts = shared, *sums = counts + digits, *found = sums + 16;  // found: known, rank
  unsigned known = 0;
  unsigned long long rank = 0;
  for (int pass = 0; pass < digit_passes; ++pass) {
    for (int i = thread(); i < digits; i += cfg.threads()) counts[i] = 0;
    __syncthreads();
    count_group<cfg>(p, group, known, pass, counts);
    __syncthreads();
    if (thread() < 16) {
      sums[thread()] = 0;
      for (int i = 0; i < 16; ++i) sums[thread()] += counts[16 * thread() + i];
    }
    __syncthreads();
    if (thread() == 0) {
      unsigned long long all = 0;
      for (int i = 0; i < 16; ++i) all += sums[i];
      if (pass == 0) rank = all == 0 ? 0 : rank_of(p.percentile, all);
      const unsigned digit = digit_of_rank(counts, sums, rank);
      found[0] = known << digit_bits | digit, found[1] = rank;
    }
    __syncthreads();
    known = static_cast<unsigned>(found[0]), rank = found[1];
  }
  if (thread() == 0) *group.descale = descale_of(known, cfg.output);
  __syncthreads();  // what is shared is used again
}

template <QuantizeConfig cfg>
inline void select(const QuantizeParams& p, unsigned* shared) {
  const index_t items = quantize_work_items(p, cfg);
  for (index_t item = blockIdx.x; item < items; item += gridDim.x) {
    const SelectGroup group = group_at<cfg>(p, item);
    if (group.descale != nullptr) select_group<cfg>(p, group, reinterpret_cast<unsigned long long*>(shared));
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
