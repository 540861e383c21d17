// Appends tokens to a KV cache on the CPU, one token after the other: rotates, quantises and stores the rows of its
// heads. Each row is computed on its own, so results do not depend on the number of threads.
#include "cpu/kv_append.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "cpu/quantize_rows.h"

#define RAPT_SCALAR_ISA 1  // as in isa_scalar.cpp: this file must run on every machine
#include "cpu/convert.h"

namespace rapt::cpu {
namespace {

// Scratch of one thread.
struct Scratch {
  std::vector<float> y, cos, sin;
  std::vector<uint8_t> codes;
};

class Appender {
 public:
  Appender(ThreadPool& pool, const KvAppendParams& params)
      : pool_(pool), p(params), loops_(row_loops()), scratch_(static_cast<size_t>(pool.size())) {
    for (Scratch& s : scratch_) {
      const auto dim = static_cast<size_t>(std::max(p.dim, p.dim_v));
      const auto angles = static_cast<size_t>(p.rotary.rotary_dim / 2);
      s.y.resize(dim), s.codes.resize(dim), s.cos.resize(angles), s.sin.resize(angles);
    }
  }

  void run() {
    for_each_token(false, [&](Scratch& s, const NewToken& token) { append(s, token); });
    if (p.has_q()) for_each_token(true, [&](Scratch& s, const NewToken& token) { rotate_queries(s, token); });
  }

 private:
  template <class Body>
  void for_each_token(bool of_q, const Body& body) {
    const index_t each = of_q ? p.seqlen_q : p.seqlen;
    pool_.parallel_for(p.packed ? p.total : p.batch * each, [&](int worker, int64_t t) {
      const NewToken token = p.packed ? packed_token(p, t) : dense_token(t / each, t % each);
      if (token.exists) body(scratch_[static_cast<size_t>(worker)], token);
    });
  }
  // The index of a token's sequence in k, v and q.
  index_t tensor_batch(const NewToken& token) const { return p.packed ? 0 : token.b; }

  void append(Scratch& s, const NewToken& token) const {
    const CachePlace place = written_place(p, token);
    if (!place.present()) return;
    if (p.rotary.present()) load_angles(s, rotary_position(p, token, false));
    for (index_t h = 0; h < p.heads_k; ++h) {
      write_row_of(s, token, place, h, {p.k, p.k_cache, p.k_scales, p.dim, p.rotary.rotary_dim});
      write_row_of(s, token, place, h, {p.v, p.v_cache, p.v_scales, p.dim_v, 0});
    }
  }

  void rotate_queries(Scratch& s, const NewToken& token) const {
    const index_t position = rotary_position(p, token, true);
    if (!in_tables(p, position)) return;
    load_angles(s, position);
    for (index_t h = 0; h < p.heads_q; ++h)
      write_row_of(s, token, {tensor_batch(token), token.row}, h, {p.q, p.q_out, {}, p.dim, p.rotary.rotary_dim});
  }

  void load_angles(Scratch& s, index_t position) const {
    const RotaryTables& t = p.rotary;
    const auto load = [&](const void* table, index_t row, index_t column, std::vector<float>& angles) {
      const auto* from = static_cast<const std::byte*>(table) + position * row * bytes_of(t.dtype);
      loops_.widen(t.dtype, from, column, t.rotary_dim / 2, angles.data());
    };
    load(t.cos, t.cos_row, t.cos_column, s.cos);
    load(t.sin, t.sin_row, t.sin_column, s.sin);
  }

  // The rows of k, v or q.
  struct Rows {
    const TensorRef &from, &to;
    const AppendScales& scales;
    index_t dim, rotary_dim;
  };

  void write_row_of(Scratch& s, const NewToken& token, const CachePlace& place, index_t h, const Rows& rows) const {
    const TensorRef &from = rows.from, &to = rows.to;
    const auto* x =
        static_cast<const std::byte*>(from.data) + from.index(tensor_batch(token), h, token.row) * bytes_of(from.dtype);
    auto* row = static_cast<std::byte*>(to.data) + to.index(place.page, h, place.row) * bytes_of(to.dtype);
    const bool quantised = rows.scales.kind != ScaleKind::none;
    if (quantised || rows.rotary_dim > 0) {
      const index_t computed = quantised ? rows.dim : rows.rotary_dim;
      loops_.widen(from.dtype, x, from.column, computed, s.y.data());
      rotate_row(s, rows.rotary_dim);
      if (quantised) return quantise_row(s, token, place, h, rows, row);
      for (index_t c = 0; c < rows.rotary_dim; ++c)
        if (s.y[static_cast<size_t>(c)] != s.y[static_cast<size_t>(c)])
          s.y[static_cast<size_t>(c)] = detail::float_of(appending::nan_bits);
      // The row may be the input itself. So the other channels are copied first: they do not change.
      copy_row(x, from.column, row, to.column, bytes_of(to.dtype), rows.rotary_dim, rows.dim);
      write_row({row, to.dtype, 0, 0, 0, to.column}, 0, 0, 0, rows.rotary_dim, s.y.data());
    } else {
      copy_row(x, from.column, row, to.column, bytes_of(to.dtype), 0, rows.dim);
    }
  }

  void rotate_row(Scratch& s, index_t rotary_dim) const {
    const index_t half = rotary_dim / 2;
    float* y = s.y.data();
    if (p.rotary.interleaved)
      for (index_t j = 0; j < half; ++j)
        appending::rotate(y[2 * j], y[2 * j + 1], s.cos[static_cast<size_t>(j)], s.sin[static_cast<size_t>(j)]);
    else
      for (index_t j = 0; j < half; ++j)
        appending::rotate(y[j], y[j + half], s.cos[static_cast<size_t>(j)], s.sin[static_cast<size_t>(j)]);
  }

  void quantise_row(Scratch& s, const NewToken& token, const CachePlace& place, index_t h, const Rows& rows,
                    std::byte* row) const {
    const AppendScales& scales = rows.scales;
    float descale = 0;
    if (scales.kind == ScaleKind::head) {
      descale = *scales.at(token.b, h, 0);
    } else {
      descale = quantizing::descale_of(loops_.amax(s.y.data(), rows.dim), rows.to.dtype);
      *scales.at(place.page, h, place.row) = descale;
    }
    loops_.encode(rows.to.dtype, s.y.data(), rows.dim, quantizing::inverse_of(descale), s.codes.data());
    copy_row(reinterpret_cast<const std::byte*>(s.codes.data()), 1, row, rows.to.column, 1, 0, rows.dim);
  }

  // Copies elements [first, last) of a row. The two rows are the same or do not overlap.
  static void copy_row(const std::byte* from, index_t from_column, std::byte* to, index_t to_column, int bytes,
                       index_t first, index_t last) {
    if (from == to && from_column == to_column) return;
    const auto width = static_cast<size_t>(bytes);
    if (from_column == 1 && to_column == 1) {
      std::memcpy(to + first * bytes, from + first * bytes, static_cast<size_t>(last - first) * width);
      return;
    }
    for (index_t c = first; c < last; ++c)
      std::memcpy(to + c * to_column * bytes, from + c * from_column * bytes, width);
  }

  ThreadPool& pool_;
  const KvAppendParams& p;
  const RowLoops& loops_;
  std::vector<Scratch> scratch_;  // one per worker
};

}  // namespace

void kv_append(ThreadPool& pool, const KvAppendParams& params) { Appender(pool, params).run(); }

}  // namespace rapt::cpu
