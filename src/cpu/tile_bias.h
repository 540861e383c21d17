// Applies bias and mask to a tile of scores: one addition or one selection per score. Elements are read by vectors
// along their contiguous dimension, keys or rows. The wide layout (lanes are rows) transposes elements that were read
// along keys. Included only through attention_tile.h by the isa_*.cpp units (internal linkage).
#pragma once

#include "cpu/tile_common.h"

namespace rapt::cpu {
namespace {

struct AddBias {
  static constexpr float neutral = 0.0f;
  static void read(const BroadcastRef& bias, int64_t first, int64_t stride, int64_t count, float* dst) {
    read_elements(bias.dtype, bias.data, first, stride, count, dst);
  }
  static Vec apply(Vec score, Vec bias) { return add(score, bias); }
};

// Selects instead of adding, so that a masked NaN becomes -inf.
struct ApplyMask {
  static constexpr float neutral = 1.0f;
  static void read(const BroadcastRef& mask, int64_t first, int64_t stride, int64_t count, float* dst) {
    widen_row(static_cast<const uint8_t*>(mask.data) + first, stride, count, dst,
              [](uint8_t keeps) { return keeps != 0 ? 1.0f : 0.0f; });
  }
  static Vec apply(Vec score, Vec keeps) { return replace_where_zero(keeps, splat(minus_infinity), score); }
};

inline void init_broadcast(const BroadcastRef& t, const Tile& tile, const Rows& rows, BroadcastRows& at) {
  if (!t.present()) return;
  at.offset[0] = tile.batch * t.batch + rows.head[0] * t.head + rows.query[0] * t.query;
  at.step = 0;
  at.evenly_spaced = true;
  for (int r = 1; r < rows.count; ++r) {
    at.offset[r] = tile.batch * t.batch + rows.head[r] * t.head + rows.query[r] * t.query;
    const int64_t step = at.offset[r] - at.offset[r - 1];
    if (r == 1) at.step = step;
    at.evenly_spaced &= step == at.step;
  }
}

// Records the byte range of each row if the elements are probably not in the cache. Wide::scores() prefetches them
// while it computes; the ranges are too short for the hardware prefetcher.
inline void plan_prefetch(const BroadcastRef& t, const BroadcastRows& at, const KeyTile& keys, Rows& rows) {
  if (!t.present() || t.key != 1 || (at.evenly_spaced && at.step == 0)) return;
  const int64_t size = t.dtype == DType::f32 ? 4 : t.dtype == DType::u8 ? 1 : 2;
  const char* data = static_cast<const char*>(t.data) + keys.first * size;
  for (int r = 0; r < rows.count; ++r) rows.prefetch_from[r] = data + at.offset[r] * size;
  rows.prefetch_bytes = keys.count * size;
}

// Wide layout: applies values[row][key] to the scores of 16 rows and `count` <= 16 keys.
template <class Term, int block_m>
void apply_block(const float* values, int64_t stride, int count, float* scores) {
  const auto apply = [&](int n, int r, Vec x) {
    float* at = scores + n * block_m + r;
    store(Term::apply(load(at), x), at);
  };
  if (count == 16) return transpose_16x16(values, stride, apply);
  transpose_16x16(values, stride, [&](int n, int r, Vec x) {
    if (n < count) apply(n, r, x);
  });
}

// Wide layout: up to 16 rows in blocks of 16 keys. Contiguous f32 is read in place, everything else through scratch.
template <class Term, int block_m>
void apply_along_keys(const BroadcastRef& t, const BroadcastRows& at, int first_row, int rows, const KeyTile& keys,
                      const Scratch& s) {
  constexpr int side = 16;
  float* const scores = s.scores + first_row;
  const int64_t* const offset = at.offset + first_row;
  int done = 0;
  if (t.dtype == DType::f32 && t.key == 1 && at.evenly_spaced && rows >= side) {
    const float* values = static_cast<const float*>(t.data) + offset[0] + keys.first;
    for (; done + side <= keys.count; done += side)
      apply_block<Term, block_m>(values + done, at.step, side, scores + int64_t{done} * block_m);
  }
  const int64_t width = round_up(keys.count - done, side);
  for (int r = 0; r < side && width > 0; ++r) {
    float* values = s.masked_scores + r * width;
    if (r < rows) {
      Term::read(t, offset[r] + (keys.first + done) * t.key, t.key, keys.count - done, values);
    } else {
      for (int64_t n = 0; n < width; ++n) values[n] = Term::neutral;
    }
  }
  const float* values = s.masked_scores;
  for (; done < keys.count; done += side, values += side)
    apply_block<Term, block_m>(values, width, keys.count - done < side ? keys.count - done : side,
                               scores + int64_t{done} * block_m);
}

// Wide layout, evenly spaced rows: reads values[row] for each key, or once if all keys share them.
template <class Term, int block_m>
void apply_along_rows(const BroadcastRef& t, const BroadcastRows& at, int rows, const KeyTile& keys, const Scratch& s) {
  float* const values = s.masked_scores;
  for (int r = 0; r < block_m; ++r) values[r] = Term::neutral;
  for (int n = 0; n < keys.count; ++n) {
    if (n == 0 || t.key != 0) Term::read(t, at.offset[0] + (keys.first + n) * t.key, at.step, rows, values);
    float* score_row = s.scores + int64_t{n} * block_m;
    for (int r = 0; r < rows; r += lanes) store(Term::apply(load(score_row + r), load(values + r)), score_row + r);
  }
}

// Wide layout, the same values for all rows: one value per key.
template <class Term, int block_m>
void apply_to_all_rows(const BroadcastRef& t, const BroadcastRows& at, int rows, const KeyTile& keys,
                       const Scratch& s) {
  Term::read(t, at.offset[0] + keys.first * t.key, t.key, keys.count, s.masked_scores);
  for (int n = 0; n < keys.count; ++n) {
    const Vec value = splat(s.masked_scores[n]);
    float* score_row = s.scores + int64_t{n} * block_m;
    for (int r = 0; r < rows; r += lanes) store(Term::apply(load(score_row + r), value), score_row + r);
  }
}

// Applies a bias or mask to the tile's scores. Uses s.masked_scores as scratch; the NaN-safe path fills it later.
template <class Layout, class Term>
void apply_broadcast(const AttentionParams& call, const BroadcastRef& t, const BroadcastRows& at, const KeyTile& keys,
                     const Rows& rows, const Scratch& s) {
  if constexpr (Layout::capacity > narrow_rows) {
    constexpr int block_m = Layout::capacity;
    if (at.evenly_spaced && at.step == 0) return apply_to_all_rows<Term, block_m>(t, at, rows.count, keys, s);
    if (at.evenly_spaced && t.key != 1) return apply_along_rows<Term, block_m>(t, at, rows.count, keys, s);
    for (int r = 0; r < rows.count; r += 16) apply_along_keys<Term, block_m>(t, at, r, rows.count - r, keys, s);
  } else {
    for (int r = 0; r < rows.count; ++r) {
      if (r == 0 || at.offset[r] != at.offset[r - 1])
        Term::read(t, at.offset[r] + keys.first * t.key, t.key, keys.count, s.masked_scores);
      float* score_row = s.scores + Layout::score_index(call, r, 0);
      // softmax() overwrites the scores past the last key.
      for (int n = 0; n < keys.count; n += lanes)
        store(Term::apply(load(score_row + n), load(s.masked_scores + n)), score_row + n);
    }
  }
}

}  // namespace
}  // namespace rapt::cpu
