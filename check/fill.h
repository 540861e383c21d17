// Seeded inputs for a problem: every tensor it needs, in its layout, strides, lengths and scales; q and k rotated and k
// smoothed before they are stored where the problem says hadamard and smooth_k.
// Element values depend only on (fill, seed, tensor, logical index), so layouts and machines agree.
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
// masked_rows   normal; one query row in four sees nothing, by the mask or a bias of -inf, where the problem has one
// hidden_nan    normal; NaN and Inf in every K and V row that no query sees, and in packed rows outside all sequences
// seen_nan      normal; one key NaN and one value Inf per sequence and head: rows that see them turn, others do not
// integers      small whole numbers
// rescale       the first half of the keys has logits of -30 and v = 6e4, the second +30 and v = 1e-3
enum class Fill { normal, outlier, huge, near_ties, constant, masked_rows, hidden_nan, seen_nan, integers, rescale };

Fill parse_fill(std::string_view name);  // throws Error naming the word
const char* name_of(Fill fill);
const std::vector<Fill>& all_fills();

Inputs make_inputs(const Problem& problem, Fill fill, uint64_t seed);

// Counter-based: the same arguments give the same number on every machine. uniform is in [0, 1).
double uniform(uint64_t seed, uint64_t stream, uint64_t counter);
double normal(uint64_t seed, uint64_t stream, uint64_t counter);

}  // namespace rapt::check
