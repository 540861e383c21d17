// Small tiled kernels with one intentional defect each, and the same kernel without a defect. Tests use them to prove
// that the checks detect every defect, so the cases and bounds can fail.
#pragma once

#include <vector>

#include "stages.h"

namespace rapt::check {

enum class Defect {
  none,
  dropped_tail_tile,      // skips the keys after the last full tile
  diagonal_off_by_one,    // a causal row sees one key too many
  mixed_rows,             // the row sum's reduction takes half of its lanes from the next row
  head_scale_as_tensor,   // every head reads the first scale
  clamped_rescale,        // the rescale exponent is clamped at -20
  floored_normaliser,     // the sum is floored at 1e-10 and the maximum starts at 0
  unguarded_infinity,     // computes -inf - (-inf) if a row has seen no key yet
  saturated_p,            // scales P by 512, so that it saturates at 448
  half_sums,              // keeps sums of weights, scaled by 256, in f16 (maximum: 65504)
  forgotten_mean,         // omits k_mean from the scores: softmax does not change, but lse does
  softcap_after_padding,  // sets masked keys to -inf before the soft cap, which turns them into -cap
};

struct KnownBad {
  Defect defect;
  const char* name;
  const char* line;         // a line of check/cases/smoke.txt that detects the defect
  Fill fill;                // the fill with which this line detects it
  const char* first_stage;  // the stage that check_stages must find to be the first wrong one
};
const std::vector<KnownBad>& known_bad();

Kernel kernel_with(Defect defect);
TracedKernel traced_kernel_with(Defect defect);

}  // namespace rapt::check
