// Small tiled kernels with one planted defect each, which every check must catch, and the same kernel with none.
// Used by tests: they show that the cases and bounds can fail.
#pragma once

#include <vector>

#include "stages.h"

namespace rapt::check {

enum class Defect {
  none,
  dropped_tail_tile,      // keys after the last whole tile are not visited
  diagonal_off_by_one,    // a causal row sees one key too many
  mixed_rows,             // the row sum's reduction takes half of its lanes from the neighbouring row
  head_scale_as_tensor,   // every head reads the first scale
  clamped_rescale,        // the rescale exponent is clamped at -20
  floored_normaliser,     // the sum is floored at 1e-10 and the maximum starts at 0
  unguarded_infinity,     // -inf - (-inf) where a row has seen nothing yet
  saturated_p,            // P scaled by 512 saturates at 448
  half_sums,              // sums of weights scaled by 256 are kept in f16, which ends at 65504
  forgotten_mean,         // k_mean is left out of the scores, since a softmax does not feel it: lse does
  softcap_after_padding,  // hidden keys are set to -inf before the soft cap, which makes them -cap
};

struct KnownBad {
  Defect defect;
  const char* name;
  const char* line;         // a line of check/cases/smoke.txt that it fails
  Fill fill;                // with this fill
  const char* first_stage;  // the first stage that check_stages must name
};
const std::vector<KnownBad>& known_bad();

Kernel kernel_with(Defect defect);
TracedKernel traced_kernel_with(Defect defect);

}  // namespace rapt::check
