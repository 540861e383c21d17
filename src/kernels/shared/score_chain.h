// The order of the operations that turn a product q.k into a logit (docs/semantics.md), for all kernels. Compiled by
// host and device code; includes nothing outside shared/.
#pragma once

namespace rapt {

// Steps implements each operation, for one score (GPU) or for a tile of scores (CPU). Operations that the call does not
// use do nothing. `at` identifies the scores and is passed to every operation.
template <class Steps, class... At>
constexpr void apply_score_chain(const Steps& steps, At&&... at) {
  steps.scale(at...);
  steps.add_key_mean(at...);  // for smooth_k, if the mean changes the weights
  steps.soft_cap(at...);
  steps.add_bias(at...);
  steps.subtract_alibi(at...);
  steps.apply_score_mod(at...);
  steps.apply_mask(at...);
}

}  // namespace rapt
