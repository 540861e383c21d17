// QuantizeStep::mean: the mean of each channel over a sequence (smoothing). Device only.
#pragma once

#include "quantize_chunks.cuh"

namespace rapt {
namespace quantizing {

template <QuantizeConfig cfg>
inline void mean_of_slab(const QuantizeParams& p, index_t b, index_t h, int slab, double* sums, long long* counts) {
  constexpr int width = cfg.mean_chunks();
  const int lane = thread() / width, column = slab * width + thread() % width;
  const QuantizeRows rows = quantize_rows(p, b);
  ChannelParams<cfg> params_of_column;
  params_of_column.load(p, b, h, column);
  double sum[chunk] = {};
  unsigned count[chunk] = {};  // at most 2^36 / 32 rows
  constexpr int rows_in_flight =
      (cfg.threads() > 512 ? 32 : 64) / sizeof(Stored<cfg>);  // many loads in flight, since there are few CTAs
  for (index_t first = lane; first - lane < rows.count; first += rows_in_flight * mean_lanes) {
    const auto live = [&](int a) { return first + a * mean_lanes < rows.count && column < cfg.chunks(); };
    Stored<cfg> stored[rows_in_flight];
#pragma unroll
    for (int a = 0; a < rows_in_flight; ++a)
      stored[a] = load_chunk<cfg>(p, input_row<cfg>(p, b, h, rows.first + first + a * mean_lanes), column, live(a));
#pragma unroll
    for (int a = 0; a < rows_in_flight; ++a) {
      float y[chunk];
      load_values<cfg>(stored[a], params_of_column, y);
      for (int i = 0; i < chunk; ++i) {
        const bool counts_here = live(a) && is_finite(y[i]);
        sum[i] += counts_here ? static_cast<double>(y[i]) : 0.0;
        count[i] += counts_here;
      }
    }
  }
  for (int i = 0; i < chunk; ++i) {
    __syncthreads();  // shared memory is reused
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

}  // namespace quantizing
}  // namespace rapt
