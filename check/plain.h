// plain: an untiled implementation in the same precision. It sets the error bounds; it is not a reference result.
#pragma once

#include "oracle.h"

namespace rapt::check {

// Unfused attention: S and softmax in f32, P rounded to `probability`, P.V accumulated in f32, output rounded. If the
// problem's pv is fp8 or fp8x2, fp8_weight rounds the weights before division, but not the row sum. Writes out and, on
// request, lse, for every row_step-th query of each head.
void plain(const Reading& reading, DType probability, const Outputs& outputs, int64_t row_step = 1);

// A weight exp(x - max) rounded as in pv=fp8 (one E4M3 number) or pv=fp8x2 (the sum of two), in units of 1/256.
float fp8_weight(PvMode pv, float weight);

// Writes 0 and -inf to the rows of a head that are unused by seqused_q.
void store_unused_rows(const Reading& reading, int64_t b, int64_t h, const Outputs& outputs);

// Rounds one row of results and writes it to the outputs.
void store_row(const Reading& reading, int64_t b, int64_t h, int64_t i, const float* out, float lse,
               const Outputs& outputs);

}  // namespace rapt::check
