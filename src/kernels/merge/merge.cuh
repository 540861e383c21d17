// merge: combines partial results (out, lse) of the same queries over disjoint keys. The arithmetic is that of
// src/operations/merge.cpp on the CPU: it adds the parts in the given order, in double, and skips empty parts (lse =
// -inf). One warp computes one row. Host half: merge_gpu.cpp.
#pragma once

#include "device/numeric.cuh"
#include "merge_params.h"

namespace rapt {
namespace merging {

constexpr float minus_infinity = detail::float_of(0xff800000u);
constexpr double empty_part = -1.0;  // marks an empty part; weights are positive, 0 or NaN

struct Row {
  index_t b, h, s;
};

inline float lse_of(const MergePart& part, const Row& row) {
  return part.lse[row.b * part.lse_batch + row.h * part.lse_head + row.s * part.lse_row];
}

// Returns the maximum of all lse and the sink, or NaN if any of them is NaN. A maximum of -inf becomes 0.
inline double shift_of(const MergeParams& p, const Row& row, double sink) {
  double max = sink;
  for (int i = 0; i < p.count; ++i) {
    const double lse = lse_of(p.parts[i], row);
    if (lse > max || lse != lse) max = lse;
  }
  return max == minus_infinity ? 0.0 : max;
}

// Writes the normalised weight of each part to `weights`, and returns the sum before normalisation. All lanes call it.
inline double part_weights(const MergeParams& p, const Row& row, double sink, double shift, double* weights) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  __syncwarp();  // the weights of the previous row have been read
  for (int i = lane; i < p.count; i += 32) {
    const float lse = lse_of(p.parts[i], row);
    weights[i] = lse == minus_infinity ? empty_part : exp(lse - shift);
  }
  __syncwarp();
  double sum = exp(sink - shift);
  for (int i = 0; i < p.count; ++i)
    if (weights[i] != empty_part) sum += weights[i];
  __syncwarp();
  for (int i = lane; i < p.count; i += 32)
    if (weights[i] != empty_part) weights[i] /= sum;
  __syncwarp();
  return sum;
}

inline float merged_channel(const MergeParams& p, const Row& row, index_t channel, const double* weights) {
  double o = 0.0;
  bool first = true;  // keeps the sign of zero: 0 + -0 would be 0
  for (int i = 0; i < p.count; ++i) {
    if (weights[i] == empty_part) continue;
    const MergePart& part = p.parts[i];
    const double value =
        part.out[row.b * part.out_batch + row.h * part.out_head + row.s * part.out_row + channel * part.out_column];
    const double term = value * weights[i];
    o = first ? term : o + term;
    first = false;
  }
  return static_cast<float>(o);
}

template <DType dtype>
inline void merge_row(const MergeParams& p, const Row& row, double* weights) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const double sink = p.sinks != nullptr ? p.sinks[row.h * p.sinks_head] : minus_infinity;
  const double shift = shift_of(p, row, sink), sum = part_weights(p, row, sink, shift, weights);
  for (index_t c = lane; c < p.channels; c += 32)
    store_element<dtype>(p.out.data, p.out.index(row.b, row.h, row.s) + c * p.out.column,
                         merged_channel(p, row, c, weights));
  if (p.lse.present() && lane == 0)
    static_cast<float*>(p.lse.data)[p.lse.index(row.b, row.h, row.s)] =
        sum == 0.0 ? minus_infinity : static_cast<float>(shift + log(sum));
}

}  // namespace merging

template <auto cfg>
inline void merge_states(const MergeParams& p) {
  extern __shared__ double merge_shared[];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const index_t rows = p.batch * p.heads * p.rows, step = index_t{gridDim.x} * cfg.warps;
  for (index_t r = index_t{blockIdx.x} * cfg.warps + warp; r < rows; r += step) {
    const merging::Row row{r / p.rows / p.heads, r / p.rows % p.heads, r % p.rows};
    merging::merge_row<cfg.out>(p, row, merge_shared + warp * MergeParams::max_parts);
  }
}

}  // namespace rapt
