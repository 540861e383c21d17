// Seeded inputs for a problem: every tensor that it needs, with its layout, strides, lengths and scales. With hadamard
// and smooth_k, q and k are rotated and k is smoothed before they are stored.
// Element values depend only on (fill, seed, tensor, logical index), so they are equal for all layouts and machines.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tensor.h"

namespace rapt::check {

// normal        N(0, 1)
// outlier       N(0, 1) + N(0, 100) * Bernoulli(0.001), the mix of the FlashAttention-3 paper (100 is the variance)
// huge          q and k 128 times larger: logits of 1e4 and more
// near_ties     all keys almost equal: logits of a row differ by hundredths
// constant      q = k = 1, v = 0.75
// masked_rows   normal; the mask (or a bias of -inf) hides all keys from every fourth query row, if the problem has one
// hidden_nan    normal; NaN and Inf in every K and V row that no query sees, and in packed rows outside all sequences
// seen_nan      normal; one NaN key and one Inf value per sequence and head; only rows that see them are not finite
// integers      small integers
// rescale       the first half of the keys has logits of -30 and v = 6e4, the second half +30 and v = 1e-3
// rescale_reversed  rescale with the two halves of the keys exchanged
enum class Fill {
  normal,
  outlier,
  huge,
  near_ties,
  constant,
  masked_rows,
  hidden_nan,
  seen_nan,
  integers,
  rescale,
  rescale_reversed
};

Fill parse_fill(std::string_view name);  // throws Error if there is no such fill
const char* name_of(Fill fill);
const std::vector<Fill>& all_fills();

Inputs make_inputs(const Problem& problem, Fill fill, uint64_t seed);

// Random numbers. The same arguments give the same number on every machine. uniform is in [0, 1); normal is N(0, 1).
double uniform(uint64_t seed, uint64_t stream, uint64_t counter);
double normal(uint64_t seed, uint64_t stream, uint64_t counter);

}  // namespace rapt::check
