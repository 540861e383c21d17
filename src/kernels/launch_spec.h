// LaunchSpec: what the host half of a GPU kernel returns and the run time launches.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

#include "device/tensor_map_spec.h"

namespace rapt {

// The largest grid of every GPU.
constexpr int64_t most_blocks = 0x7fffffff;      // grid.x
constexpr int64_t most_blocks_of_a_row = 65535;  // grid.y and grid.z

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
  // A tensor map that the run time makes, and puts at `offset` of the parameters, just before the launch.
  static constexpr size_t most_maps = 4, map_bytes = 128;
  struct Map {
    size_t offset = 0;  // a multiple of 64
    TensorMapSpec spec;
  };
  void add_map(size_t offset, const TensorMapSpec& spec) { maps_.at(map_count_++) = {offset, spec}; }
  const Map* begin_maps() const { return maps_.data(); }
  const Map* end_maps() const { return maps_.data() + map_count_; }

  // A copy takes the parameters that there are, not the room for the largest.
  LaunchSpec(const LaunchSpec& other) : LaunchShape(other), map_count_(other.map_count_) {
    set_params(other.params_, other.param_bytes_);
    std::copy(other.begin_maps(), other.end_maps(), maps_.begin());
  }
  LaunchSpec& operator=(const LaunchSpec&) = delete;

  bool empty() const { return grid_x == 0; }
  const void* params() const { return params_; }
  std::byte* params() { return params_; }
  size_t param_bytes() const { return param_bytes_; }

 private:
  void set_params(const void* params, size_t bytes) {
    std::memcpy(params_, params, bytes);
    param_bytes_ = bytes;
  }

  std::array<Map, most_maps> maps_;
  size_t map_count_ = 0, param_bytes_;
  alignas(64) std::byte params_[most_param_bytes];  // tensor maps must lie at multiples of 64 bytes
};

}  // namespace rapt
