// Quantisation on the CPU: means, then descales, then FP8 output, in tiles of rows of one head. With descales of tokens
// or blocks the input is read once; with descales of a tensor, head or channel it is read again for the output. Results
// do not depend on the number of threads: maxima and counts are independent of the order, and sums have a fixed order
// (kernels/shared/quantize.h).
#include "cpu/quantize.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "cpu/quantize_rows.h"

namespace rapt::cpu {
namespace {

namespace q = quantizing;

// State of a radix selection: the leading digits of the value, and its rank among the values with these digits.
struct Selection {
  uint32_t prefix = 0;
  uint64_t rank = 0;  // 0: no values

  void descend(const uint64_t* counts, int pass, double percentile) {
    if (pass == 0) {
      uint64_t all = 0;
      for (int digit = 0; digit < q::digits; ++digit) all += counts[digit];
      rank = all == 0 ? 0 : q::rank_of(percentile, all);
    }
    uint32_t digit = 0;
    for (; rank > counts[digit]; ++digit) rank -= counts[digit];
    prefix = prefix << q::digit_bits | digit;
  }
};

// Looks at digit number `pass` of each finite magnitude, and counts how often each value of this digit occurs. It
// counts only magnitudes that begin with the prefix of their Selection. If one_each, element i uses selections[i].
// Otherwise all elements use selections[0].
void count_digits(const float* x, int64_t n, int pass, const Selection* selections, bool one_each, uint64_t* counts) {
  for (int64_t i = 0; i < n; ++i) {
    if (!q::is_finite(x[i])) continue;
    const uint32_t magnitude = q::finite_magnitude(x[i]);
    const int64_t slot = one_each ? i : 0;
    if (!q::has_prefix(magnitude, selections[slot].prefix, pass)) continue;
    ++counts[slot * q::digits + ((magnitude >> q::shift_of(pass)) & (q::digits - 1))];
  }
}

// A tile: some rows of one head.
struct Tile {
  index_t b, h;
  QuantizeRows rows;
  index_t first, count;  // rows, counted in the sequence
};

class Quantizer {
 public:
  Quantizer(ThreadPool& pool, const QuantizeParams& params);
  void run();

 private:
  struct Scratch {
    std::vector<float> y, mean, inverses;
    std::vector<uint8_t> codes;
    std::vector<double> sums;
    std::vector<int64_t> sum_counts;
    std::vector<uint32_t> largest;
    std::vector<Selection> selections;
    std::vector<uint64_t> counts;
  };

  bool by_channel() const { return p.group == ScaleKind::channel; }
  bool amax_spans_tiles() const { return rows_sharing(p.group) == 0; }  // true for tensor, head and channel
  bool exact_amax() const { return p.percentile >= 100; }
  index_t slots_per_head() const { return by_channel() ? p.dim : 1; }
  size_t slot_of(index_t b, index_t h) const {
    return p.group == ScaleKind::tensor ? 0 : static_cast<size_t>((b * p.heads + h) * slots_per_head());
  }

  bool needs_slots() const { return !p.supplied && amax_spans_tiles() && exact_amax(); }

  template <class Body>
  void for_each_head(const Body& body) {
    pool_.parallel_for(p.batch * p.heads, [&](int worker, int64_t i) {
      body(scratch_[static_cast<size_t>(worker)], i / p.heads, i % p.heads);
    });
  }
  template <class Body>
  void for_each_tile_of(index_t b, index_t h, const Body& body) {
    const QuantizeRows rows = quantize_rows(p, b);
    for (index_t first = 0; first < rows.count; first += tile_rows_)
      body(Tile{b, h, rows, first, std::min(tile_rows_, rows.count - first)});
  }
  template <class Body>
  void for_each_tile(const Body& body) {
    if (p.cu_seqlens.present()) return for_each_packed_tile(body);
    const index_t tiles = tiles_of(p.seqlen);
    pool_.parallel_for(p.batch * p.heads * tiles, [&](int worker, int64_t i) {
      const index_t first = i % tiles * tile_rows_;
      body(
          scratch_[static_cast<size_t>(worker)],
          Tile{i / tiles / p.heads, i / tiles % p.heads, {0, p.seqlen}, first, std::min(tile_rows_, p.seqlen - first)});
    });
  }
  // Enumerates only existing tiles: sequences can be much shorter than max_seqlen.
  template <class Body>
  void for_each_packed_tile(const Body& body) {
    pool_.parallel_for(tiles_before_.back() * p.heads, [&](int worker, int64_t i) {
      const index_t tile = i / p.heads;
      const auto after = std::upper_bound(tiles_before_.begin(), tiles_before_.end(), tile);
      const index_t b = after - tiles_before_.begin() - 1, first = (tile - *(after - 1)) * tile_rows_;
      const QuantizeRows rows = quantize_rows(p, b);
      body(scratch_[static_cast<size_t>(worker)],
           Tile{b, i % p.heads, rows, first, std::min(tile_rows_, rows.count - first)});
    });
  }
  index_t tiles_of(index_t rows) const { return (rows + tile_rows_ - 1) / tile_rows_; }

  void load(Scratch& scratch, const Tile& tile, bool smooth) const;
  void find_mean(Scratch& scratch, index_t b, index_t h);
  void find_amax();
  void select_of_tensor();
  void select_of_head(Scratch& scratch, index_t b, index_t h);
  void set_descale(index_t b, index_t h, index_t position, index_t channel, uint32_t amax) const {
    *p.descale_at(b, h, position, channel) = q::descale_of(amax, p.output.dtype);
  }
  void set_tile_descales(Scratch& scratch, const Tile& tile) const;
  void set_unused_descales() const;
  void encode(Scratch& scratch, const Tile& tile) const;
  void store(const Scratch& scratch, const Tile& tile) const;

  ThreadPool& pool_;
  const QuantizeParams& p;
  const RowLoops& loops_;
  index_t tile_rows_;
  std::vector<index_t> tiles_before_;  // packed: prefix sums of tiles per sequence
  std::vector<float> signs_;
  std::vector<Scratch> scratch_;             // one per worker
  std::vector<std::atomic<uint32_t>> amax_;  // amax bits of the tensor, of heads or of channels
};

Quantizer::Quantizer(ThreadPool& pool, const QuantizeParams& params)
    : pool_(pool),
      p(params),
      loops_(row_loops()),
      scratch_(static_cast<size_t>(pool.size())),
      amax_(needs_slots() ? std::max(slot_of(p.batch, 0), size_t{1}) : 0) {
  constexpr index_t max_rows = 64, max_elements = 1 << 16;
  tile_rows_ = rows_sharing(p.group) > 1 ? rows_sharing(p.group)
                                         : clamped(max_elements / std::max(p.dim, index_t{1}), 1, max_rows);
  if (p.cu_seqlens.present()) tiles_before_.push_back(0);
  for (index_t b = 0; p.cu_seqlens.present() && b < p.batch; ++b)
    tiles_before_.push_back(tiles_before_.back() + tiles_of(quantize_rows(p, b).count));
  const auto dim = static_cast<size_t>(p.dim), elements = dim * static_cast<size_t>(tile_rows_);
  if (p.hadamard)
    for (index_t c = 0; c < p.dim; ++c) signs_.push_back(hadamard::is_negative(c) ? -1.0f : 1.0f);
  for (Scratch& s : scratch_) {
    s.y.resize(elements), s.codes.resize(elements), s.mean.resize(dim), s.inverses.resize(dim), s.largest.resize(dim);
    if (p.mean != nullptr) s.sums.resize(dim * q::mean_lanes), s.sum_counts.resize(dim * q::mean_lanes);
    if (p.supplied || exact_amax()) continue;
    s.selections.resize(static_cast<size_t>(slots_per_head()));
    s.counts.resize(static_cast<size_t>(slots_per_head()) * q::digits);
  }
}

void Quantizer::run() {
  if (p.mean != nullptr) for_each_head([&](Scratch& s, index_t b, index_t h) { find_mean(s, b, h); });
  if (!p.supplied && amax_spans_tiles()) {
    if (exact_amax())
      find_amax();
    else if (p.group == ScaleKind::tensor)
      select_of_tensor();
    else
      for_each_head([&](Scratch& s, index_t b, index_t h) { select_of_head(s, b, h); });
  }
  for_each_tile([&](Scratch& s, const Tile& tile) {
    load(s, tile, p.mean != nullptr);
    if (!p.supplied && !amax_spans_tiles()) set_tile_descales(s, tile);
    encode(s, tile);
    store(s, tile);
  });
  if (!p.supplied && p.cu_seqlens.present()) set_unused_descales();
}

// Reads the tile's rows as float, rotates and smooths them.
void Quantizer::load(Scratch& scratch, const Tile& tile, bool smooth) const {
  const TensorRef& in = p.input;
  if (smooth)
    for (index_t c = 0; c < p.dim; ++c) scratch.mean[static_cast<size_t>(c)] = *p.mean_at(tile.b, tile.h, c);
  for (index_t i = 0; i < tile.count; ++i) {
    float* y = scratch.y.data() + i * p.dim;
    const index_t at = in.index(tile.b, tile.h, tile.rows.first + tile.first + i);
    loops_.widen(in.dtype, static_cast<const std::byte*>(in.data) + at * bytes_of(in.dtype), in.column, p.dim, y);
    if (p.hadamard) loops_.rotate(y, p.dim, hadamard::group_of(p.dim), signs_.data());
    if (smooth) loops_.subtract(y, scratch.mean.data(), p.dim);
  }
}

void Quantizer::find_mean(Scratch& scratch, index_t b, index_t h) {
  std::fill(scratch.sums.begin(), scratch.sums.end(), 0.0);
  std::fill(scratch.sum_counts.begin(), scratch.sum_counts.end(), 0);
  for_each_tile_of(b, h, [&](const Tile& tile) {
    load(scratch, tile, false);
    for (index_t i = 0; i < tile.count; ++i) {
      const index_t lane = (tile.first + i) % q::mean_lanes * p.dim;
      loops_.add_finite(scratch.y.data() + i * p.dim, p.dim, scratch.sums.data() + lane,
                        scratch.sum_counts.data() + lane);
    }
  });
  for (index_t c = 0; c < p.dim; ++c) {
    double sum = 0;
    long long count = 0;
    for (index_t lane = 0; lane < q::mean_lanes; ++lane) {
      sum += scratch.sums[static_cast<size_t>(lane * p.dim + c)];
      count += scratch.sum_counts[static_cast<size_t>(lane * p.dim + c)];
    }
    *p.mean_at(b, h, c) = q::mean_of(sum, count);
  }
}

// Computes amax for ScaleKind tensor, head and channel.
void Quantizer::find_amax() {
  const auto join = [&](size_t slot, uint32_t value) {
    uint32_t before = amax_[slot].load(std::memory_order_relaxed);
    while (before < value && !amax_[slot].compare_exchange_weak(before, value, std::memory_order_relaxed)) {
    }
  };
  for_each_tile([&](Scratch& s, const Tile& tile) {
    load(s, tile, p.mean != nullptr);
    const size_t slot = slot_of(tile.b, tile.h);
    if (!by_channel()) return join(slot, loops_.amax(s.y.data(), tile.count * p.dim));
    std::fill(s.largest.begin(), s.largest.end(), 0u);
    for (index_t i = 0; i < tile.count; ++i) loops_.amax_of_each(s.y.data() + i * p.dim, p.dim, s.largest.data());
    for (size_t c = 0; c < s.largest.size(); ++c) join(slot + c, s.largest[c]);
  });
  if (p.group == ScaleKind::tensor) return set_descale(0, 0, 0, 0, amax_[0]);
  for (index_t b = 0; b < p.batch; ++b)
    for (index_t h = 0; h < p.heads; ++h)
      for (index_t c = 0; c < slots_per_head(); ++c)
        set_descale(b, h, 0, c, amax_[slot_of(b, h) + static_cast<size_t>(c)]);
}

void Quantizer::select_of_tensor() {
  Selection selection;
  for (int pass = 0; pass < q::digit_passes; ++pass) {
    for (Scratch& s : scratch_) std::fill(s.counts.begin(), s.counts.end(), 0u);
    for_each_tile([&](Scratch& s, const Tile& tile) {
      load(s, tile, p.mean != nullptr);
      count_digits(s.y.data(), tile.count * p.dim, pass, &selection, false, s.counts.data());
    });
    std::vector<uint64_t>& all = scratch_[0].counts;
    for (size_t worker = 1; worker < scratch_.size(); ++worker)
      for (size_t digit = 0; digit < all.size(); ++digit) all[digit] += scratch_[worker].counts[digit];
    selection.descend(all.data(), pass, p.percentile);
  }
  set_descale(0, 0, 0, 0, selection.prefix);
}

// Computes the descales of a head from a percentile, for ScaleKind head and channel.
void Quantizer::select_of_head(Scratch& scratch, index_t b, index_t h) {
  std::fill(scratch.selections.begin(), scratch.selections.end(), Selection());
  for (int pass = 0; pass < q::digit_passes; ++pass) {
    std::fill(scratch.counts.begin(), scratch.counts.end(), 0u);
    for_each_tile_of(b, h, [&](const Tile& tile) {
      load(scratch, tile, p.mean != nullptr);
      for (index_t i = 0; i < tile.count; ++i)
        count_digits(scratch.y.data() + i * p.dim, p.dim, pass, scratch.selections.data(), by_channel(),
                     scratch.counts.data());
    });
    for (size_t slot = 0; slot < scratch.selections.size(); ++slot)
      scratch.selections[slot].descend(scratch.counts.data() + slot * q::digits, pass, p.percentile);
  }
  for (index_t c = 0; c < slots_per_head(); ++c)
    set_descale(b, h, 0, c, scratch.selections[static_cast<size_t>(c)].prefix);
}

// Computes the descales of a tile, for ScaleKind block and token.
void Quantizer::set_tile_descales(Scratch& scratch, const Tile& tile) const {
  const index_t shared = std::min<index_t>(rows_sharing(p.group), tile.count);
  for (index_t i = 0; i < tile.count; i += shared) {
    const float* y = scratch.y.data() + i * p.dim;
    uint32_t amax = 0;
    if (exact_amax()) {
      amax = loops_.amax(y, shared * p.dim);
    } else {
      Selection selection;
      for (int pass = 0; pass < q::digit_passes; ++pass) {
        std::fill(scratch.counts.begin(), scratch.counts.end(), 0u);
        count_digits(y, shared * p.dim, pass, &selection, false, scratch.counts.data());
        selection.descend(scratch.counts.data(), pass, p.percentile);
      }
      amax = selection.prefix;
    }
    set_descale(tile.b, tile.h, descale_position(p, tile.rows, tile.first + i), 0, amax);
  }
}

// Sets the descales of blocks beyond the end of a packed sequence to 1.
void Quantizer::set_unused_descales() const {
  const index_t shared = rows_sharing(p.group);
  if (shared <= 1) return;
  for (index_t b = 0; b < p.batch; ++b)
    for (index_t h = 0; h < p.heads; ++h)
      for (index_t i = (quantize_rows(p, b).count + shared - 1) / shared; i < p.positions(); ++i)
        set_descale(b, h, i, 0, 0);
}

void Quantizer::encode(Scratch& scratch, const Tile& tile) const {
  const auto inverse_at = [&](index_t row, index_t channel) {
    return q::inverse_of(*p.descale_at(tile.b, tile.h, descale_position(p, tile.rows, row), channel));
  };
  if (by_channel())
    for (index_t c = 0; c < p.dim; ++c) scratch.inverses[static_cast<size_t>(c)] = inverse_at(tile.first, c);
  for (index_t i = 0; i < tile.count; ++i) {
    const float* y = scratch.y.data() + i * p.dim;
    uint8_t* codes = scratch.codes.data() + i * p.dim;
    if (by_channel())
      loops_.encode_each(p.output.dtype, y, p.dim, scratch.inverses.data(), codes);
    else
      loops_.encode(p.output.dtype, y, p.dim, inverse_at(tile.first + i, 0), codes);
  }
}

// The inner loop runs along the output's smaller stride, so that transposed outputs are written contiguously, too.
void Quantizer::store(const Scratch& scratch, const Tile& tile) const {
  if (p.dim == 0) return;
  const TensorRef& out = p.output;
  const uint8_t* codes = scratch.codes.data();
  auto* to = static_cast<uint8_t*>(out.data) + out.index(tile.b, tile.h, tile.rows.first + tile.first);
  if (out.column == 1) {
    for (index_t i = 0; i < tile.count; ++i)
      std::memcpy(to + i * out.row, codes + i * p.dim, static_cast<size_t>(p.dim));
  } else if (std::abs(out.row) < std::abs(out.column)) {
    for (index_t c = 0; c < p.dim; ++c)
      for (index_t i = 0; i < tile.count; ++i) to[i * out.row + c * out.column] = codes[i * p.dim + c];
  } else {
    for (index_t i = 0; i < tile.count; ++i)
      for (index_t c = 0; c < p.dim; ++c) to[i * out.row + c * out.column] = codes[i * p.dim + c];
  }
}

}  // namespace

void quantize(ThreadPool& pool, const QuantizeParams& params) { Quantizer(pool, params).run(); }

}  // namespace rapt::cpu
