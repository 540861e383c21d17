// The launch of attention_sm90. Host only.
#pragma once

#include "kernels/family.h"
#include "kernels/sm90/sm90.h"

namespace rapt {

// The planner's configuration: the kernel's configuration, `blocks` (the largest number of CTAs), and
// l2_kv_bytes (how many bytes of keys and values should be in L2 at the same time).
struct Sm90PlanConfig : Sm90Config {
  int blocks = 0;
  int64_t l2_kv_bytes = 0;
  bool operator==(const Sm90PlanConfig&) const = default;
};

LaunchSpec sm90_launch_spec(const StepCall& call);

}  // namespace rapt
