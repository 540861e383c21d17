// Tests over every instruction set: a limit that lasts for one scope, and the name of a parameterised test.
// Included by seed_test.cpp and property_test.cpp.
#pragma once

#include <gtest/gtest.h>

#include <string>

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

}  // namespace rapt::test
