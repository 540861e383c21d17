// QuantizeStep::select: percentiles of |x| by radix selection. Device only.
#pragma once

#include "quantize_chunks.cuh"

namespace rapt {
namespace quantizing {

// The elements that share one descale: heads [begin, end) of batch * heads, a range of rows, one channel or all.
struct SelectGroup {
  index_t head_begin, head_end;
  index_t row_begin, rows;  // rows: at most this many; < 0: all
  index_t channel;          // < 0: all
  float* descale;           // null: the group has no rows
};

template <QuantizeConfig cfg>
inline SelectGroup group_at(const QuantizeParams& p, index_t item) {
  if constexpr (cfg.group == ScaleKind::tensor) return {0, p.batch * p.heads, 0, -1, -1, p.descale};
  const index_t inner = cfg.by_channel() ? p.dim : cfg.group == ScaleKind::token ? p.seqlen : p.positions();
  const index_t head = item / inner, i = item - head * inner, b = head / p.heads, h = head - b * p.heads;
  SelectGroup group{head, head + 1, 0, -1, -1, nullptr};
  if constexpr (cfg.by_channel()) {
    group.channel = i;
    group.descale = p.descale_at(b, h, 0, i);
  } else if constexpr (rows_sharing(cfg.group) == 0) {
    group.descale = p.descale_at(b, h, 0, 0);
  } else {
    const QuantizeRows rows = quantize_rows(p, b);
    group.row_begin = i * rows_sharing(cfg.group), group.rows = rows_sharing(cfg.group);
    if (cfg.group != ScaleKind::token || i < rows.count)
      group.descale = p.descale_at(b, h, cfg.group == ScaleKind::token ? rows.first + i : i, 0);
  }
  return group;
}

// Counts digits with one atomic per run of equal digits: most numbers of a tensor have the same first digit.
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

// Counts digit `pass` of the group's magnitudes that begin with `prefix`. Called by all threads of the CTA.
template <QuantizeConfig cfg>
inline void count_group(const QuantizeParams& p, const SelectGroup& group, unsigned prefix, int pass,
                        unsigned long long* counts) {
  // A channel needs all channels of its Hadamard group.
  constexpr int columns = cfg.by_channel() ? cfg.hadamard_chunks() : cfg.chunks();
  const int first_column =
      cfg.by_channel() ? static_cast<int>(group.channel) / chunk / cfg.hadamard_chunks() * cfg.hadamard_chunks() : 0;
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
      ChannelParams<cfg> params_of_column;
      params_of_column.load(p, b, h, column);
      float y[chunk];
      load_values<cfg>(load_chunk<cfg>(p, input_row<cfg>(p, b, h, rows.first + row), column, live), params_of_column,
                       y);
      if (!live) continue;
      for (int i = 0; i < chunk; ++i) {
        const bool wanted = cfg.by_channel() ? column * chunk + i == group.channel : is_channel<cfg>(column, i);
        const unsigned magnitude = finite_magnitude(y[i]);
        if (wanted && is_finite(y[i]) && has_prefix(magnitude, prefix, pass))
          counter.add(magnitude >> shift_of(pass) & (digits - 1));
      }
    }
  }
  counter.flush();
}

// Returns the digit of the value with this rank. Sets `rank` to the value's rank among the values with that digit.
// Searches 16 sums of 16 counts each, then the 16 counts of one sum.
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
  unsigned long long *counts = shared, *sums = counts + digits, *found = sums + 16;  // found: new prefix and rank
  unsigned prefix = 0;
  unsigned long long rank = 0;
  for (int pass = 0; pass < digit_passes; ++pass) {
    for (int i = thread(); i < digits; i += cfg.threads()) counts[i] = 0;
    __syncthreads();
    count_group<cfg>(p, group, prefix, pass, counts);
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
      found[0] = prefix << digit_bits | digit, found[1] = rank;
    }
    __syncthreads();
    prefix = static_cast<unsigned>(found[0]), rank = found[1];
  }
  if (thread() == 0) *group.descale = descale_of(prefix, cfg.output);
  __syncthreads();  // shared memory is reused
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
}  // namespace rapt
