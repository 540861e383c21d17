// Rules of a configuration that somebody else than the planner chose (`--config`). A rule that is broken is told before
// anything is compiled. Used by plan.cpp and GPU families.
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
  const KernelConfig &chosen, &changed;  // the planner's, and that with words over it
  bool own_text;                         // the library's device text; a variant's has rules of its own
};

// "config: block_n = 63: must be a multiple of 16".
template <class Value, class... Parts>
[[noreturn]] void bad_config(const char* field, Value value, const Parts&... parts) {
  invalid("config: ", field, " = ", value, ": ", parts...);
}

void require_range(const char* field, int value, int least, int most);
void require_multiple(const char* field, int value, int of);
// Fields that say what is computed must be as the planner chose them.
void require_planned(const char* family, const ConfigChange& change);

// What a thread block takes, and the fields that say so.
struct CtaResources {
  int threads;
  int64_t smem_bytes;
  int min_blocks;
  std::initializer_list<std::string_view> thread_fields, smem_fields;
};
// Threads, shared memory and blocks of a multiprocessor.
void require_fits(const ConfigChange& change, const CtaResources& demand);

}  // namespace rapt
