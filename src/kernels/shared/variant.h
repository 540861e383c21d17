// AttentionVariant: what every attention kernel on a GPU is compiled for, whatever its family. A family's config adds
// its own tiles and schedule (sm80/config.h, scalar/config.h). Includes nothing outside shared/.
#pragma once

#include "dtype.h"

namespace rapt {

struct AttentionVariant {
  // Element types of the tensors.
  DType q = DType::f16, k = DType::f16, v = DType::f16, out = DType::f16;
  int head_dim = 0, head_dim_v = 0;

  // What a score passes through, in this order (docs/semantics.md).
  bool softcap = false;
  DType bias = DType::none;
  bool alibi = false;
  bool mask = false;  // the boolean tensor

  int p_terms = 0;        // weights as so many E4M3 terms (pv=fp8, fp8x2); 0: in the format of the products
  bool key_mean = false;  // k_mean belongs to the keys

  constexpr bool operator==(const AttentionVariant&) const = default;
};

}  // namespace rapt
