// Tests over every instruction set: a limit for one scope, the name of a parameterised test, and a loop for tests whose
// oracle takes longer than the calls: the oracle runs once for all instruction sets.
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
  ~IsaLimit() { set_cpu_isa_limit(CpuIsa::avx512_bf16); }  // the highest: no limit
  IsaLimit(const IsaLimit&) = delete;
  IsaLimit& operator=(const IsaLimit&) = delete;
};

inline std::string isa_name(const testing::TestParamInfo<CpuIsa>& info) {
  std::string name = name_of(info.param);
  for (char& c : name)
    if (c == '-') c = '_';
  return name;
}

// Runs body for each of them, with its name in failures.
template <class Body>
void for_each_isa(const std::vector<CpuIsa>& isas, const Body& body) {
  for (const CpuIsa isa : isas) {
    SCOPED_TRACE(name_of(isa));
    const IsaLimit limit(isa);
    body();
  }
}

}  // namespace rapt::test
