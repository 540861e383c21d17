// rapt_kv_append, device code: one kernel. A CTA processes one group of heads (blockIdx.y) of k, v or q, for some
// tokens (blockIdx.x). A team of threads takes one token. Each thread first loads its elements, since they do not
// depend on the place in the cache. Meanwhile it finds this place, and the angles of its channels. Results have the
// same bits as cpu/kv_append.cpp. Host half: kv_append_gpu.cpp.
#pragma once

#include "device/fp8.cuh"
#include "kv_append_config.h"

namespace rapt {
namespace appending {

// ---- Chunks in the storage format

template <AppendRows rows>
struct alignas(rows.vectors ? 16 : 4) Stored {
  unsigned word[rows.vectors ? 4 : 1];
};
template <int words>
struct alignas(4 * words) Words {
  unsigned word[words];
};

inline unsigned load_code(const char* at, int bytes) {
  return bytes == 4   ? *reinterpret_cast<const unsigned*>(at)
         : bytes == 2 ? unsigned{*reinterpret_cast<const unsigned short*>(at)}
                      : unsigned{*reinterpret_cast<const unsigned char*>(at)};
}
inline void store_code(char* at, int bytes, unsigned code) {
  if (bytes == 4)
    *reinterpret_cast<unsigned*>(at) = code;
  else if (bytes == 2)
    *reinterpret_cast<unsigned short*>(at) = static_cast<unsigned short>(code);
  else
    *reinterpret_cast<unsigned char*>(at) = static_cast<unsigned char>(code);
}

template <AppendRows rows>
inline Stored<rows> load_chunk(const char* row, index_t column, int c) {
  if constexpr (rows.vectors)
    return *reinterpret_cast<const Stored<rows>*>(row + 16 * c);
  else
    return {{load_code(row + c * column * bytes_of(rows.from), bytes_of(rows.from))}};
}
// Stores a chunk as it is. The input and the output have the same dtype.
template <AppendRows rows>
inline void store_chunk(char* row, index_t column, int c, const Stored<rows>& x) {
  if constexpr (rows.vectors)
    *reinterpret_cast<Stored<rows>*>(row + 16 * c) = x;
  else
    store_code(row + c * column * bytes_of(rows.to), bytes_of(rows.to), x.word[0]);
}

template <AppendRows rows>
inline void widen_chunk(const Stored<rows>& x, float* y) {
#pragma unroll
  for (int j = 0; j < rows.chunk(); ++j) {
    if constexpr (rows.from == DType::f32) {
      y[j] = detail::float_of(x.word[j]);
    } else {
      const auto code = static_cast<unsigned short>(x.word[j / 2] >> 16 * (j % 2));
      y[j] = rows.from == DType::f16 ? f16_to_f32(code) : bf16_to_float(code);
    }
  }
}

// ---- Chunks of float

// Returns two values in a 16-bit format.
template <DType half>
inline unsigned halves_of(float low, float high) {
  unsigned both = half == DType::f16 ? pack_f16x2(low, high) : pack_bf16x2(low, high);
  if (low != low) both = (both & 0xffff0000u) | nan_code(half);
  if (high != high) both = (both & 0xffffu) | nan_code(half) << 16;
  return both;
}

// Rounds a chunk to the dtype of the output and stores it.
template <AppendRows rows>
inline void store_values(char* row, index_t column, int c, const float* y) {
  constexpr int n = rows.chunk();
  if constexpr (rows.vectors) {
    Words<n * bytes_of(rows.to) / 4> x;
    constexpr int each = 4 / bytes_of(rows.to);  // values in a word
#pragma unroll
    for (int i = 0; i < n / each; ++i) {
      if constexpr (rows.to == DType::f32)
        x.word[i] = y[i] != y[i] ? nan_bits : detail::bits_of(y[i]);
      else if constexpr (is_16bit(rows.to))
        x.word[i] = halves_of<rows.to>(y[2 * i], y[2 * i + 1]);
      else
        x.word[i] = quantizing::fp8_codes<rows.to>(y + 4 * i);
    }
    *reinterpret_cast<decltype(x)*>(row + c * n * bytes_of(rows.to)) = x;
  } else {
    unsigned code = 0;
    if constexpr (rows.to == DType::f32) {
      code = *y != *y ? nan_bits : detail::bits_of(*y);
    } else if constexpr (is_16bit(rows.to)) {
      code = halves_of<rows.to>(*y, 0.0f);
    } else {
      const float four[4] = {*y, 0.0f, 0.0f, 0.0f};
      code = quantizing::fp8_codes<rows.to>(four);
    }
    store_code(row + c * column * bytes_of(rows.to), bytes_of(rows.to), code);
  }
}

// ---- Rotary embedding

// Cosines or sines of a unit: elements [first, first + chunk) of a row of a table.
template <AppendRows rows>
inline void load_angles(const void* table, index_t at, index_t column, int first, float* angles) {
  constexpr int n = rows.chunk(), bytes = n * bytes_of(rows.table), words = bytes < 16 ? (bytes + 3) / 4 : 4;
  if constexpr (rows.table_vectors) {
    const char* from = static_cast<const char*>(table) + (at + first) * bytes_of(rows.table);
#pragma unroll
    for (int part = 0; part < bytes / 4; part += words) {
      const auto x = *reinterpret_cast<const Words<words>*>(from + 4 * part);
#pragma unroll
      for (int i = 0; i < words; ++i) {
        if constexpr (rows.table == DType::f32) {
          angles[part + i] = detail::float_of(x.word[i]);
        } else {
          for (int half = 0; half < 2; ++half) {
            const auto code = static_cast<unsigned short>(x.word[i] >> 16 * half);
            angles[2 * (part + i) + half] = rows.table == DType::f16 ? f16_to_f32(code) : bf16_to_float(code);
          }
        }
      }
    }
  } else {
#pragma unroll
    for (int j = 0; j < n; ++j) angles[j] = load_element<rows.table>(table, at + (first + j) * column);
  }
}

template <AppendRows rows>
struct Angles {
  float cos[rows.chunk()], sin[rows.chunk()];

  void load(const RotaryTables& t, index_t position, int unit) {
    load_angles<rows>(t.cos, position * t.cos_row, t.cos_column, unit * rows.chunk(), cos);
    load_angles<rows>(t.sin, position * t.sin_row, t.sin_column, unit * rows.chunk(), sin);
  }
  void rotate_unit(float (&y)[2 * rows.chunk()]) const {
#pragma unroll
    for (int j = 0; j < rows.chunk(); ++j)
      rotate(y[rows.interleaved ? 2 * j : j], y[rows.interleaved ? 2 * j + 1 : j + rows.chunk()], cos[j], sin[j]);
  }
};

// ---- Rows

// The part of a row that belongs to one thread: in units, as stored and as float.
template <AppendRows rows>
class RowPart {
 public:
  static constexpr int count = rows.units_per_lane(), chunk = rows.chunk();

  static int lane() { return static_cast<int>(threadIdx.x) % rows.lanes(); }
  static int unit(int i) { return lane() + i * rows.lanes(); }
  // Without this rule, the compiler compares also where all units exist.
  static bool exists(int i) { return rows.units() % rows.lanes() == 0 || unit(i) < rows.units(); }
  static bool rotated(int i) {
    if constexpr (rows.rotary_dim == 0) return false;
    return (rows.other_units() == 0 && rows.units() % rows.lanes() == 0) || unit(i) < rows.rotated_units();
  }

  void load(const char* row, index_t column) {
#pragma unroll
    for (int i = 0; i < count; ++i) {
      if (!exists(i)) continue;
      const AppendRows::Unit one = rows.unit(unit(i));
      stored[i][0] = load_chunk<rows>(row, column, one.first);
      if (one.second >= 0) stored[i][1] = load_chunk<rows>(row, column, one.second);
    }
  }
  // Returns unit i, rotated if it belongs to the rotated channels. What does not exist is 0.
  void values(int i, const Angles<rows>* angles, float (&y)[2 * chunk]) const {
    widen_chunk<rows>(stored[i][0], y);
    widen_chunk<rows>(stored[i][1], y + chunk);
    if constexpr (rows.rotary_dim > 0)
      if (rotated(i)) angles[i].rotate_unit(y);
  }
  unsigned amax(const Angles<rows>* angles) const {
    unsigned largest = 0;
#pragma unroll
    for (int i = 0; i < count; ++i) {
      float y[2 * chunk];
      values(i, angles, y);
      largest = quantizing::max_of(largest, quantizing::chunk_amax(y));
    }
    for (int stride = 1; stride < rows.lanes(); stride *= 2)
      largest = quantizing::max_of(largest, __shfl_xor_sync(0xffffffffu, largest, stride));
    return largest;
  }
  void store(char* row, index_t column, const Angles<rows>* angles, float inverse) const {
#pragma unroll
    for (int i = 0; i < count; ++i) {
      if (!exists(i)) continue;
      const AppendRows::Unit one = rows.unit(unit(i));
      if constexpr (!rows.quantised()) {
        if (!rotated(i)) {
          store_chunk<rows>(row, column, one.first, stored[i][0]);
          if (one.second >= 0) store_chunk<rows>(row, column, one.second, stored[i][1]);
          continue;
        }
      }
      if constexpr (rows.quantised() || rows.rotary_dim > 0) {
        float y[2 * chunk];
        values(i, angles, y);
        if constexpr (rows.quantised())
          for (int j = 0; j < 2 * chunk; ++j) y[j] = quantizing::multiplied(y[j], inverse);
        store_values<rows>(row, column, one.first, y);
        if (one.second >= 0) store_values<rows>(row, column, one.second, y + chunk);
      }
    }
  }

 private:
  Stored<rows> stored[count][2] = {};
};

// A token of the call, and the row of the output that belongs to it: {batch row or page, row}.
struct AppendToken {
  NewToken token;
  CachePlace place;
};

inline AppendToken token_at(const KvAppendParams& p, unsigned t, index_t b, index_t row, bool of_q) {
  AppendToken one;
  if (t >= append_tokens(p, of_q)) return one;
  one.token = p.packed ? packed_token(p, t) : dense_token(b, row);
  if (!of_q)
    one.place = written_place(p, one.token);
  else if (one.token.exists && in_tables(p, rotary_position(p, one.token, true)))
    one.place = {b, row};
  return one;
}

// Writes a row of the cache or of q_out, and its descale. All lanes of a team call it.
template <AppendRows rows>
inline void append_row(const RowPart<rows>& part, const TensorRef& to, const AppendScales& scales, index_t head,
                       const AppendToken& one, const Angles<rows>* angles) {
  float inverse = 1.0f;
  if constexpr (rows.scales == ScaleKind::head) {
    if (one.place.present()) inverse = quantizing::inverse_of(*scales.at(one.token.b, head, 0));
  } else if constexpr (rows.scales == ScaleKind::token) {
    const float descale = quantizing::descale_of(part.amax(angles), rows.to);
    inverse = quantizing::inverse_of(descale);
    if (one.place.present() && RowPart<rows>::lane() == 0) *scales.at(one.place.page, head, one.place.row) = descale;
  }
  if (one.place.present())
    part.store(static_cast<char*>(to.data) + to.index(one.place.page, head, one.place.row) * bytes_of(rows.to),
               to.column, angles, inverse);
}

// Processes one group of heads of k, v or q.
template <AppendRows rows>
inline void append(const KvAppendParams& p, const TensorRef& from, const TensorRef& to, const AppendScales& scales,
                   const AppendGroups& groups, index_t heads, index_t group, bool of_q) {
  constexpr int most = rows.max_heads(), ahead = rows.heads_ahead();
  const unsigned t = blockIdx.x * static_cast<unsigned>(rows.teams()) + threadIdx.x / rows.lanes();
  const index_t b = p.packed ? 0 : (of_q ? p.seqlen_q_divmod : p.seqlen_divmod).quotient(t);
  const index_t row = p.packed ? t : t - b * (of_q ? p.seqlen_q : p.seqlen);
  const index_t head = group * groups.heads;
  const int count = static_cast<int>(clamped(heads - head, 0, groups.heads));
  const bool live = t < append_tokens(p, of_q);

  RowPart<rows> part[most];
  const auto load = [&](int h) {
    if (live && h < count)
      part[h].load(static_cast<const char*>(from.data) + from.index(b, head + h, row) * bytes_of(rows.from),
                   from.column);
  };
#pragma unroll
  for (int h = 0; h < ahead; ++h) load(h);
  const AppendToken one = token_at(p, t, b, row, of_q);
  Angles<rows> angles[rows.rotary_dim > 0 ? RowPart<rows>::count : 1];
  if constexpr (rows.rotary_dim > 0) {
#pragma unroll
    for (int i = 0; i < RowPart<rows>::count; ++i)
      if (one.place.present() && RowPart<rows>::rotated(i))
        angles[i].load(p.rotary, rotary_position(p, one.token, of_q), RowPart<rows>::unit(i));
  }
#pragma unroll
  for (int h = 0; h < most; ++h) {
    if (h >= count) break;
    if (h + ahead < most) load(h + ahead);
    append_row<rows>(part[h], to, scales, head + h, one, angles);
  }
}

}  // namespace appending

template <KvAppendConfig cfg>
inline void kv_append(const KvAppendParams& p) {
  constexpr AppendRows k = cfg.k_rows(), v = cfg.v_rows(), q = cfg.q_rows();
  const int groups = p.k_groups.count + p.v_groups.count + p.q_groups.count;
  for (int group = static_cast<int>(blockIdx.y); group < groups; group += static_cast<int>(gridDim.y)) {
    const int v_group = group - p.k_groups.count, q_group = v_group - p.v_groups.count;
    if (v_group < 0)
      appending::append<k>(p, p.k, p.k_cache, p.k_scales, p.k_groups, p.heads_k, group, false);
    else if (q_group < 0)
      appending::append<v>(p, p.v, p.v_cache, p.v_scales, p.v_groups, p.heads_k, v_group, false);
    else if constexpr (q.present())
      appending::append<q>(p, p.q, p.q_out, {}, p.q_groups, p.heads_q, q_group, true);
  }
}

}  // namespace rapt
