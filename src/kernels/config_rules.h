// Checks of a configuration that the user changed (`--config`). Errors are reported before anything is compiled. Used
// by plan.cpp and GPU families.
#pragma once

#include <initializer_list>
#include <string_view>

#include "base/error.h"
#include "device/device.h"
#include "kernels/config_table.h"
#include "problem/problem.h"

namespace rapt {

struct ConfigChange {
  const Problem& problem;
  const Device& device;
  const KernelConfig &chosen, &changed;  // chosen: by the planner; changed: with the user's changes
  bool own_text;                         // the kernel source is the library's; a variant can have other rules
};

// Throws Error, for example "config: block_n = 63: must be a multiple of 16".
template <class Value, class... Parts>
[[noreturn]] void bad_config(const char* field, Value value, const Parts&... parts) {
  invalid("config: ", field, " = ", value, ": ", parts...);
}

void require_range(const char* field, int value, int least, int most);
void require_multiple(const char* field, int value, int of);
// Throws Error if the user changed a field that defines what is computed (ConfigRole::computed).
void require_planned(const char* family, const ConfigChange& change);

// The resources of a CTA, and the config fields that determine them, for error messages.
struct CtaResources {
  int threads;
  int64_t smem_bytes;
  int min_blocks;
  std::initializer_list<std::string_view> thread_fields, smem_fields;
};
// Checks threads per CTA, shared memory per CTA, and min_blocks * threads per SM.
void require_fits(const ConfigChange& change, const CtaResources& demand);

}  // namespace rapt
