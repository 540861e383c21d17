// AttentionVariant: the compile-time parameters that all GPU attention kernels share. The config of a family adds tiles
// and schedule (sm80/config.h, sm90/config.h, scalar/config.h). Includes nothing outside shared/.
#pragma once

#include "dtype.h"

namespace rapt {

struct AttentionVariant {
  // Element types of the tensors.
  DType q = DType::f16, k = DType::f16, v = DType::f16, out = DType::f16;
  int head_dim = 0, head_dim_v = 0;

  // Operations of the score chain, in this order (docs/semantics.md).
  bool softcap = false;
  DType bias = DType::none;
  bool alibi = false;
  bool mask = false;  // boolean mask tensor

  int p_terms = 0;        // P is rounded to this many E4M3 terms (pv=fp8: 1, fp8x2: 2); 0: to the type of V
  bool key_mean = false;  // the call has k_mean (smooth_k)

  constexpr bool operator==(const AttentionVariant&) const = default;
};

}  // namespace rapt
