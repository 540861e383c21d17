// plain: an implementation without tiles, in the precision of the kernels. Error bounds are derived from its errors.
// Its results are not the reference.
#pragma once

#include "oracle.h"

namespace rapt::check {

// Unfused attention: S and softmax in f32, P rounded to `probability`, P.V accumulated in f32, output rounded. If the
// problem's pv is fp8 or fp8x2, fp8_weight() rounds the weights before they are divided by the row sum; the row sum
// uses the weights before rounding. Writes out (and lse if `outputs` has it) for every row_step-th query of each head.
void plain(const Reading& reading, DType probability, const Outputs& outputs, int64_t row_step = 1);

// Rounds a weight exp(x - max): to one E4M3 number (pv=fp8), or to a sum of two E4M3 numbers (pv=fp8x2). The weight
// is multiplied by 256, rounded, and divided by 256 again.
float fp8_weight(PvMode pv, float weight);

// Writes out = 0 and lse = -inf to the rows of a head that seqused_q excludes.
void store_unused_rows(const Reading& reading, int64_t b, int64_t h, const Outputs& outputs);

// Rounds one row of results and writes it to the outputs.
void store_row(const Reading& reading, int64_t b, int64_t h, int64_t i, const float* out, float lse,
               const Outputs& outputs);

}  // namespace rapt::check
