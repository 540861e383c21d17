// The registry: all families in order of preference. The last family of each device kind accepts every legal problem.
#include "kernels/family.h"

namespace rapt {
namespace {
constexpr const Family* families[] = {&attention_cpu, &attention_sm90, &attention_sm80, &attention_scalar};
}

FamilyList all_families() { return {std::begin(families), std::end(families)}; }

}  // namespace rapt
