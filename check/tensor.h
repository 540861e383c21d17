// HostTensor: a strided tensor that owns its host memory. Inputs and Outputs: all tensors of one Problem. fill.h or the
// file readers create them. The oracle reads them as float64, and the library gets them as rapt_sdpa_args.
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
  DType dtype = DType::none;            // none: the tensor is absent
  std::vector<int64_t> shape, strides;  // in logical order; strides are in elements and may be 0 or negative
  std::shared_ptr<std::byte[]> storage;
  int64_t offset = 0;  // number of elements from the start of storage to element (0, ..., 0)

  bool present() const { return dtype != DType::none; }
  int64_t size() const;                                    // number of elements
  std::byte* data() const;                                 // address of element (0, ..., 0)
  int64_t index(std::initializer_list<int64_t> at) const;  // element offset of `at` from data()

  // The element as a number. It is decoded by the code of check/ (not by src/kernels/shared/dtype.h).
  double at(std::initializer_list<int64_t> at) const;
  double at(const std::vector<int64_t>& at) const;
  void set(std::initializer_list<int64_t> at, double value);  // rounds to nearest even; FP8 saturates
};

// A contiguous tensor (the last dimension is the fastest), 64-byte aligned, filled with zeros.
HostTensor make_tensor(DType dtype, std::vector<int64_t> shape);
// A tensor with the given strides, filled with zeros. Its storage covers every reachable element.
HostTensor make_strided(DType dtype, std::vector<int64_t> shape, std::vector<int64_t> strides);

// The first `count` channels of a tensor, in the same memory.
HostTensor first_channels(HostTensor tensor, int64_t count);

// The address of a tensor's element (0, ..., 0).
struct Address {
  void* data = nullptr;
  rapt_device device{RAPT_DEVICE_CPU, 0};
};
// Called once for each present tensor of a call, with its name in rapt_sdpa_args.
using Placement = std::function<Address(const char* name, const HostTensor& tensor)>;
Address in_host_memory(const char* name, const HostTensor& tensor);

// A rapt_tensor for a HostTensor. It is valid as long as the HostTensor lives. For dtype none, get() returns null.
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
  HostTensor q, k, v;  // shapes as in rapt.h: dense [B,H,S,D], or packed [total,H,D]
  HostTensor bias, mask, alibi_slopes, sinks;
  HostTensor cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k;
  HostTensor q_descale, k_descale, v_descale;
  HostTensor k_mean;              // f32 [batch, heads_k, head_dim]: key = stored * descale + k_mean
  HostTensor q_starts, k_starts;  // i64 [batch]
};

struct PagedKeys;  // paged.h

struct Outputs {
  HostTensor out, lse;
};

// Makes outputs with the shapes of the problem. Every element holds the poison (poison.h). There are margins around
// them.
Outputs make_outputs(const Problem& problem);

// The rapt_sdpa_args of one problem and its tensors. They are filled once and can be used for many calls. The tensors
// must outlive this object.
class SdpaCall {
 public:
  SdpaCall(const Problem& problem, const Inputs& inputs, const Outputs& outputs,
           const Placement& place = in_host_memory);
  SdpaCall(const SdpaCall&) = delete;
  SdpaCall& operator=(const SdpaCall&) = delete;
  ~SdpaCall();

  rapt_sdpa_args args{};

 private:
  std::unique_ptr<PagedKeys> paged_;  // the tensors that replace K and V if the problem has pages
  std::deque<View> views_;            // `args` points to these views
};

// Fills rapt_sdpa_args from problem and tensors and calls the library (C ABI, CPU device). Returns the status;
// rapt_last_error() has the error sentence. context may be NULL.
rapt_status run_sdpa(const Problem& problem, const Inputs& inputs, const Outputs& outputs,
                     rapt_context* context = nullptr);

}  // namespace rapt::check
