// The maximum allowed distance between an output and the oracle. It is derived from the errors of plain arithmetic in
// the same precision. Used by check.cpp, stages and lab.
#pragma once

#include <cmath>

#include "compare.h"
#include "fill.h"

namespace rapt::check {

struct Bounds {
  double max_abs = 0, rel_rms = 0, mean_abs = INFINITY;
};

// The conditioning of a problem: how much its inputs amplify the errors of any implementation. Collected over samples.
// In names, "floor" means the rounding errors of subnormal weights, not std::floor.
struct Condition {
  bool ordinary_logits = true;  // for every logit that matters, the sizes of its terms sum to at most 256
  double largest_slack = 0;     // maximum over rows of L * sum p|v - o| + 4 sum p|v|, see output_bounds
  double weighted_square = 0, output_square = 0;
  // Only for FP8 weights: the sums of square_v, floor_v and quartic_v of Reference, and the maxima of square_v, floor_v
  // and weighted_v.
  double rounding_square = 0, rounding_floor = 0, rounding_quartic = 0;
  double largest_square = 0, largest_floor = 0, largest_weighted = 0;
  // Only if q and k are FP8: sum and maximum of L^2 scatter_v.
  double scatter_square = 0, largest_scatter = 0;
  void add(const Reference& reference);
};

// The format to which a kernel is allowed to round P. If V has 16 bits: the dtype of V. If V is FP8: fp8_weights for
// f32 output, otherwise f16. If V is f32: the dtype of the output.
DType probability_format(const Problem& problem, DType fp8_weights = DType::f32);

// The bounds for an output. plain: the errors of plain(), the unfused implementation, on the same inputs, over the
// same samples as `condition`. u is the unit roundoff.
// 16 bits: rel_rms <= 1.1 plain + u/4, max_abs <= 2 plain + u max|ref|.
// f32, rel_rms: <= 1e-6 for normal and outlier fills with at most 4096 keys and logits of ordinary size (terms up to
// 256). Otherwise <= 2 plain + 4 u ||sum p|v||| / ||ref||. The second term allows four roundings (exp, product, sum,
// division) of terms of that size, because in some problems plain is exact by chance.
// f32, max_abs: <= 2 plain + 2 u max(L * sum p|v - o| + 4 sum p|v|). If the terms of a logit sum to L, its rounding
// error is u L, and this error moves the output by at most u L sum p|v - o|. pv=fp8 and pv=fp8x2: the same bounds as
// for 16 bits, with the u of the output. But a tiled kernel rounds weights relative to running maxima, so its weights
// round differently from those of plain. Plain can then be more exact than any kernel (for example, if all weights of a
// row are equal, plain is exact). So the bounds are at least the effect of random roundings, see rounding_of in
// bounds.cpp. Some shapes have additional limits, see required_bounds.
// narrow_products (check.h): each logit may have an independent error with the standard deviation 2^-14 L, see
// narrow_logits in bounds.cpp.
Bounds output_bounds(const Problem& problem, Fill fill, const Errors& plain, const Condition& condition,
                     DType fp8_weights = DType::f32, bool narrow_products = false);

// Limits for FP8 V that do not depend on plain. They exist for the shapes of the first experiments with N(0, 1) inputs
// and without masks; otherwise they are infinite. The reference is attention on the dequantised inputs. The limit is
// max_abs <= 0.06. For the shape b1 h8 q512 d64 these limits hold instead:
//           max_abs   mean_abs  rel_rms
// pv=f16    5e-4      5e-4      1e-3 (4e-3 for bf16 output)     also the default
// pv=fp8x2  1e-3      5e-4
// pv=fp8    1.2e-2    1.7e-3    2.8e-2
// For bf16 output, u max|ref| is added to max_abs.
// The 1.2e-2 of pv=fp8 holds for the seeds of the tests. About one of 100 other seeds exceeds it, see pooled_max_bound.
Bounds required_bounds(const Problem& problem, Fill fill, double max_reference);

// The bound for the largest error of `runs` runs of b1 h8 q512 d64 together: FP8 storage, N(0, 1) inputs of any seed,
// f32 output, without masks. With pv=fp8, correct kernels exceed it with a probability of about 1/1000. The error grows
// with the number of runs, because rows differ in the size of their errors. docs/fp8.md derives it ("The largest error
// of many runs"); bench/fp8_maximum.py computes the probabilities. The other modes keep the max_abs of required_bounds.
double pooled_max_bound(PvMode pv, int64_t runs);

// The bound for |lse - ref| of one row is the sum of three terms. (4 + sqrt(head_dim)) u L for the logits: a dot
// product of n terms has an error of about sqrt(n) u times the sum of their sizes, and scale, cap, bias and ALiBi add
// one rounding each. (8 + sqrt(keys)) u for exp and the sum. 2 u |lse| for the logarithm and the last addition. u =
// 2^-24, because lse is f32 for all inputs; with acc=f16 and acc=tf32 the first term uses the u of f16.
// narrow_products: products of FP8 q and k are summed by the narrow accumulator of a GPU's FP8 instructions
// (accumulator.h), which keeps 13 fraction bits; then the first term uses u = 2^-13.
double lse_bound(const Problem& problem, double logit_size, double lse, bool narrow_products = false);

}  // namespace rapt::check
