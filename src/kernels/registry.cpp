// The registry: all families in order of priority. The last family of each device kind accepts nearly every legal
// problem.
#include <algorithm>
#include <array>
#include <string_view>

#include "kernels/family.h"

namespace rapt {

// The build writes kernel_families.inc (cmake/RaptLibrary.cmake). It has a line RAPT_FAMILY(NAME) for each family.
#define RAPT_FAMILY(name) extern const Family name;
#include "kernel_families.inc"
#undef RAPT_FAMILY

FamilyList all_families() {
  static const auto sorted = [] {
    std::array families{
#define RAPT_FAMILY(name) &(name),
#include "kernel_families.inc"
#undef RAPT_FAMILY
    };
    std::sort(families.begin(), families.end(), [](const Family* a, const Family* b) {
      return a->priority != b->priority ? a->priority > b->priority : std::string_view(a->name) < b->name;
    });
    return families;
  }();
  return {sorted.data(), sorted.data() + sorted.size()};
}

}  // namespace rapt
