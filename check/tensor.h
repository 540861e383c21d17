// HostTensor: an owned, strided tensor in host memory, and Inputs/Outputs: all tensors that one Problem needs.
// Made by fill.h or by the file readers, read by the oracle (float64), handed to the library as rapt_sdpa_args.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "problem/problem.h"
#include "rapt/rapt.h"

namespace rapt::check {

struct HostTensor {
  DType dtype = DType::none;            // none = absent
  std::vector<int64_t> shape, strides;  // logical order, elements; strides may be 0 or negative
  std::shared_ptr<std::byte[]> storage;
  int64_t offset = 0;  // elements from the start of storage to element (0, ..., 0)

  bool present() const { return dtype != DType::none; }
  int64_t size() const;                                    // product of shape
  std::byte* data() const;                                 // address of element (0, ..., 0)
  int64_t index(std::initializer_list<int64_t> at) const;  // element offset of `at` from data()

  // Decoded by check's own reading of the formats (not src/kernels/shared/dtype.h).
  double at(std::initializer_list<int64_t> at) const;
  double at(const std::vector<int64_t>& at) const;
  void set(std::initializer_list<int64_t> at, double value);  // round to nearest even; FP8 saturates
};

// Contiguous (last dimension fastest), 64-byte aligned, zeroed.
HostTensor make_tensor(DType dtype, std::vector<int64_t> shape);
// With explicit strides: storage covers every reachable element, zeroed.
HostTensor make_strided(DType dtype, std::vector<int64_t> shape, std::vector<int64_t> strides);

// Where a tensor's element (0, ..., 0) lies.
struct Address {
  void* data = nullptr;
  rapt_device device{RAPT_DEVICE_CPU, 0};
};
// Asked once for each present tensor of a call, by the name that rapt_sdpa_args gives it.
using Placement = std::function<Address(const char* name, const HostTensor& tensor)>;
Address in_host_memory(const char* name, const HostTensor& tensor);

// A rapt_tensor of a HostTensor's shape; valid while that lives. dtype none gives a null pointer from get().
class View {
 public:
  View() = default;
  View(const char* name, const HostTensor& tensor, const Placement& place);
  View(const View&) = delete;
  View& operator=(const View&) = delete;
  const rapt_tensor* get() const { return present_ ? &tensor_ : nullptr; }

 private:
  bool present_ = false;
  rapt_tensor tensor_{};
};

struct Inputs {
  HostTensor q, k, v;  // shapes of rapt.h: dense [B,H,S,D] or packed [total,H,D]
  HostTensor bias, mask, alibi_slopes, sinks;
  HostTensor cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k;
  HostTensor q_descale, k_descale, v_descale;
  HostTensor k_mean;              // f32 [batch, heads_k, head_dim]: key = stored * descale + k_mean
  HostTensor q_starts, k_starts;  // i64 [batch]
};

struct Outputs {
  HostTensor out, lse;
};

// Outputs of the shapes that the problem asks for, every element poisoned with NaN, canaries around them.
Outputs make_outputs(const Problem& problem);

// rapt_sdpa_args of one problem and its tensors, filled once: for calls that are repeated or timed. The tensors must
// outlive it.
class SdpaCall {
 public:
  SdpaCall(const Problem& problem, const Inputs& inputs, const Outputs& outputs,
           const Placement& place = in_host_memory);
  SdpaCall(const SdpaCall&) = delete;
  SdpaCall& operator=(const SdpaCall&) = delete;

  rapt_sdpa_args args{};

 private:
  std::deque<View> views_;  // which args points to
};

// Calls the library (C ABI, CPU device): fills rapt_sdpa_args from problem and tensors. Returns the status;
// rapt_last_error() has the sentence. context may be NULL.
rapt_status run_sdpa(const Problem& problem, const Inputs& inputs, const Outputs& outputs,
                     rapt_context* context = nullptr);

}  // namespace rapt::check
