// The maximum distance of an output from the oracle, derived from the errors of plain arithmetic in the same precision.
// Used by check.cpp, stages and lab.
#pragma once

#include <cmath>

#include "compare.h"
#include "fill.h"

namespace rapt::check {

struct Bounds {
  double max_abs = 0, rel_rms = 0, mean_abs = INFINITY;
};

// The conditioning of a problem: how much its inputs amplify the errors of any implementation. Collected over samples.
// "floor" stands for the rounding errors of subnormal weights, not for std::floor.
struct Condition {
  bool ordinary_logits = true;  // the terms of every logit that matters sum to at most 256
  double largest_slack = 0;     // max(L * sum p|v - o| + 4 sum p|v|), see output_bounds
  double weighted_square = 0, output_square = 0;
  // For FP8 weights: sums of Reference's square_v, floor_v and quartic_v; the maximum of the former and of weighted_v.
  double rounding_square = 0, rounding_floor = 0, rounding_quartic = 0;
  double largest_square = 0, largest_floor = 0, largest_weighted = 0;
  void add(const Reference& reference);
};

// The format to which P may be rounded: V's if it has 16 bits. For FP8 V: f16, or f32 if fp8_weights is f32 and the
// output has as many bits; else the output's.
DType probability_format(const Problem& problem, DType fp8_weights = DType::f32);

// plain: the errors of plain(), the unfused implementation, on the same inputs, pooled like condition.
// 16 bits: rel_rms <= 1.1 plain + u/4, max_abs <= 2 plain + u max|ref|.
// f32: rel_rms <= 1e-6 on normal and outlier fills with at most 4096 keys and logits of ordinary size (terms up to
// 256), else 2 plain + 4 u ||sum p|v||| / ||ref||: four roundings (exp, product, sum, division) of terms of that size,
// for problems in which plain happens to be exact. max_abs <= 2 plain + 2 u max(L * sum p|v - o| + 4 sum p|v|). u L is
// the rounding of a logit whose terms sum to L; it moves the output by at most u L sum p|v - o|.
// pv=fp8, pv=fp8x2: as for 16 bits with the u of the output. But a tiled kernel rounds weights relative to running
// maxima, so its weights round differently from plain's, and plain may be more exact than a kernel can be (a row of
// equal weights is exact). So the bounds are at least the effect of random roundings, see rounding_of in bounds.cpp.
// Some shapes have additional limits, see required_bounds.
Bounds output_bounds(const Problem& problem, Fill fill, const Errors& plain, const Condition& condition,
                     DType fp8_weights = DType::f32);

// The limits for FP8 V that do not depend on plain: for N(0, 1) inputs without masks, against the dequantised inputs;
// infinite elsewhere. The first experiments' shapes: max_abs <= 0.06. Of them b1 h8 q512 d64:
//           max_abs   mean_abs  rel_rms
// pv=f16    5e-4      5e-4      1e-3 (4e-3 for bf16 output)     also the default
// pv=fp8x2  1e-3      5e-4
// pv=fp8    1.2e-2    1.7e-3    2.8e-2
// bf16 output adds u max|ref| to max_abs.
Bounds required_bounds(const Problem& problem, Fill fill, double max_reference);

// |lse - ref| of one row: (4 + sqrt(head_dim)) u L for the logits (a dot product of n terms has an error of about
// sqrt(n) u times the sum of their sizes; scale, cap, bias and ALiBi add one rounding each), (8 + sqrt(keys)) u for exp
// and the sum, and 2 u |lse| for the logarithm and the last addition. u = 2^-24, because lse is f32 for all inputs.
double lse_bound(const Problem& problem, double logit_size, double lse);

}  // namespace rapt::check
