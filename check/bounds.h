// How far an output may lie from the oracle, derived from what the same precision can do.
// Used by check.cpp, stages and lab.
#pragma once

#include "compare.h"
#include "fill.h"

namespace rapt::check {

struct Bounds {
  double max_abs = 0, rel_rms = 0;
};

// What the inputs themselves do to the error of any implementation, gathered over samples.
struct Condition {
  bool ordinary_logits = true;  // the terms of every logit that matters sum to at most 256
  double largest_slack = 0;     // max(L * sum p|v - o| + 4 sum p|v|), see output_bounds
  double weighted_square = 0, output_square = 0;
  void add(const Reference& reference);
};

// The format that P may be rounded to: V's if it has 16 bits, else the output's (f32 when neither is 16-bit).
DType probability_format(const Problem& problem);

// plain: the errors of plain() on the same inputs, pooled like condition.
// 16 bits: rel_rms <= 1.1 plain + u/4, max_abs <= 2 plain + u max|ref|.
// f32: rel_rms <= 1e-6 on normal and outlier fills with at most 4096 keys and logits of ordinary size (terms up to
// 256),
//   else 2 plain + 4 u ||sum p|v||| / ||ref||: four roundings (exp, product, sum, division) of terms of that size, for
//   problems where plain happens to be exact. max_abs <= 2 plain + 2 u max(L * sum p|v - o| + 4 sum p|v|), where u L,
//   the rounding of a logit whose terms sum to L, moves the output by at most u L sum p|v - o|.
Bounds output_bounds(const Problem& problem, Fill fill, const Errors& plain, const Condition& condition);

// |lse - ref| of one row: (4 + sqrt(head_dim)) u L for the logits (a dot product of n terms errs by about sqrt(n) u
// times the sum of their sizes; scale, cap, bias and ALiBi add one rounding each), (8 + sqrt(keys)) u for exp and the
// sum, and 2 u |lse| for the logarithm and the last addition; u = 2^-24, since lse is f32 whatever the inputs are.
double lse_bound(const Problem& problem, double logit_size, double lse);

}  // namespace rapt::check
