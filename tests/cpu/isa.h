// For tests of every instruction set: a limit that lasts for a scope, and the name of a parameterised test. If the
// oracle takes longer than the calls, tests use a loop instead of parameters, so the oracle runs only once.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cpu/isa.h"
#include "device/device.h"

namespace rapt::test {

class IsaLimit {
 public:
  explicit IsaLimit(CpuIsa isa) { set_cpu_isa_limit(isa); }
  ~IsaLimit() { set_cpu_isa_limit(CpuIsa::avx512_bf16); }  // the highest instruction set, so there is no limit
  IsaLimit(const IsaLimit&) = delete;
  IsaLimit& operator=(const IsaLimit&) = delete;
};

inline std::string isa_name(const testing::TestParamInfo<CpuIsa>& info) {
  std::string name = name_of(info.param);
  for (char& c : name)
    if (c == '-') c = '_';
  return name;
}

// Runs body for each instruction set. Failures have the name of the set.
template <class Body>
void for_each_isa(const std::vector<CpuIsa>& isas, const Body& body) {
  for (const CpuIsa isa : isas) {
    SCOPED_TRACE(name_of(isa));
    const IsaLimit limit(isa);
    body();
  }
}

}  // namespace rapt::test
