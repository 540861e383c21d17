// The order in which a product of a query and a key becomes a logit (docs/semantics.md), for every kernel. Compiled by
// host and device code; includes nothing outside shared/.
#pragma once

namespace rapt {

// Steps implements each step, for one score (GPUs) or for a tile of scores (CPUs). A step that the call does not use
// does nothing. `at` says which scores, and is passed to every step.
template <class Steps, class... At>
constexpr void apply_score_chain(const Steps& steps, At&&... at) {
  steps.scale(at...);
  steps.add_key_mean(at...);  // of smoothed keys, where it changes weights
  steps.soft_cap(at...);
  steps.add_bias(at...);
  steps.subtract_alibi(at...);
  steps.apply_score_mod(at...);
  steps.apply_mask(at...);
}

}  // namespace rapt
