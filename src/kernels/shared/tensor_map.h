// CUtensorMap as a member of a kernel's parameters: what a bulk tensor copy knows of a tensor. Made by the run time
// (LaunchSpec::add_map). Compiled by host and device code; includes nothing outside shared/.
#pragma once

namespace rapt {

struct alignas(64) TensorMap {
  unsigned char bytes[128];
};

}  // namespace rapt
