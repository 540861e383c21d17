// CUtensorMap, the description of a tensor for TMA, as a member of a kernel's parameters. The run time makes it
// (LaunchSpec::add_map). Compiled by host and device code; includes nothing outside shared/.
#pragma once

namespace rapt {

struct alignas(64) TensorMap {
  unsigned char bytes[128];
};

}  // namespace rapt
