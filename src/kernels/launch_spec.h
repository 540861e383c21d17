// LaunchSpec: what the host half of a GPU kernel returns and the run time launches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

namespace rapt {

// The largest grid of every GPU.
constexpr int64_t max_grid_x = 0x7fffffff;      // grid.x
constexpr int64_t max_grid_yz = 65535;  // grid.y and grid.z

// What is compiled, and what every launch of it takes.
struct KernelUnit {
  std::string text;       // the translation unit
  int threads = 0;        // of a block
  size_t smem_bytes = 0;  // dynamic shared memory of a block
};

// The shape of a launch, and its attributes.
struct LaunchShape {
  unsigned grid_x = 0, grid_y = 1, grid_z = 1;           // blocks; grid_x = 0: there is nothing to launch
  unsigned cluster_x = 1, cluster_y = 1, cluster_z = 1;  // blocks of a cluster; above 1 needs sm_90
  bool programmatic = false;  // may start before the kernel ahead of it on the stream has ended (sm_90)
  bool cooperative = false;   // all blocks are resident at once
};

// One launch: its shape, and the bytes of the kernel's one parameter.
class LaunchSpec : public LaunchShape {
 public:
  static constexpr size_t most_param_bytes = 4096;  // on every architecture and with every CUDA

  template <class Params>
  explicit LaunchSpec(const Params& params) {
    static_assert(std::is_trivially_copyable_v<Params> && sizeof(Params) <= most_param_bytes && alignof(Params) <= 64);
    set_params(&params, sizeof params);
  }
  // A copy takes the parameters that there are, not the room for the largest.
  LaunchSpec(const LaunchSpec& other) : LaunchShape(other) { set_params(other.params_, other.param_bytes_); }
  LaunchSpec& operator=(const LaunchSpec&) = delete;

  bool empty() const { return grid_x == 0; }
  const void* params() const { return params_; }
  size_t param_bytes() const { return param_bytes_; }

 private:
  void set_params(const void* params, size_t bytes) {
    std::memcpy(params_, params, bytes);
    param_bytes_ = bytes;
  }

  size_t param_bytes_;
  alignas(64) std::byte params_[most_param_bytes];  // tensor maps must lie at multiples of 64 bytes
};

}  // namespace rapt
