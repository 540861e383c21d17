// LaunchSpec: one kernel launch, as returned by the host code of a family and executed by src/runtime.
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

// Grid limits of all GPUs.
constexpr int64_t max_grid_x = 0x7fffffff;  // grid.x
constexpr int64_t max_grid_yz = 65535;      // grid.y and grid.z

// A kernel to compile, and the parts of its launch that never change.
struct KernelUnit {
  std::string text;       // the translation unit
  int threads = 0;        // per CTA
  size_t smem_bytes = 0;  // dynamic shared memory per CTA
};

struct LaunchShape {
  unsigned grid_x = 0, grid_y = 1, grid_z = 1;           // in CTAs; grid_x = 0: nothing to launch
  unsigned cluster_x = 1, cluster_y = 1, cluster_z = 1;  // in CTAs; above 1 needs sm_90
  bool programmatic = false;                             // programmatic dependent launch (sm_90)
  bool cooperative = false;                              // all CTAs are resident at once
};

// The shape of a launch, and the bytes of the kernel's only parameter.
class LaunchSpec : public LaunchShape {
 public:
  static constexpr size_t max_param_bytes = 4096;  // limit of all architectures and CUDA versions

  template <class Params>
  explicit LaunchSpec(const Params& params) {
    static_assert(std::is_trivially_copyable_v<Params> && sizeof(Params) <= max_param_bytes && alignof(Params) <= 64);
    set_params(&params, sizeof params);
  }
  // A tensor map. The run time creates it just before the launch and writes it to the parameters at `offset`.
  static constexpr size_t max_maps = 5, map_bytes = 128;
  struct Map {
    size_t offset = 0;  // a multiple of 64
    TensorMapSpec spec;
  };
  void add_map(size_t offset, const TensorMapSpec& spec) { maps_.at(map_count_++) = {offset, spec}; }
  const Map* begin_maps() const { return maps_.data(); }
  const Map* end_maps() const { return maps_.data() + map_count_; }

  // Copies only the bytes and maps in use.
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

  std::array<Map, max_maps> maps_;
  size_t map_count_ = 0, param_bytes_;
  alignas(64) std::byte params_[max_param_bytes];  // tensor maps must lie at multiples of 64 bytes
};

}  // namespace rapt
