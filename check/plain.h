// plain: what an untiled implementation of the same precision gets; the yardstick of the bounds, never an answer.
#pragma once

#include "oracle.h"

namespace rapt::check {

// S and softmax in f32, P rounded to `probability`, P.V accumulated in f32, output rounded. Where the problem's pv is
// fp8 or fp8x2, the weights before division are rounded by fp8_weight instead, the row sum is not. Writes out and,
// where it is wanted, lse; of every row_step-th query of each head.
void plain(const Reading& reading, DType probability, const Outputs& outputs, int64_t row_step = 1);

// A weight exp(x - max) as pv=fp8 (one E4M3 number) and pv=fp8x2 (the sum of two) hold it, in units of 1/256.
float fp8_weight(PvMode pv, float weight);

// 0 and -inf into the rows of a head that seqused_q leaves unused.
void store_unused_rows(const Reading& reading, int64_t b, int64_t h, const Outputs& outputs);

// One row of results into the outputs, at its place, rounded.
void store_row(const Reading& reading, int64_t b, int64_t h, int64_t i, const float* out, float lse,
               const Outputs& outputs);

}  // namespace rapt::check
