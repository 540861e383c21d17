// Converts XLA's call frame to rapt_tensor views and numbers, and returns the result. Used by xla.cpp (attention,
// merge) and xla_operators.cpp (quantize, qk, gemm).
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "rapt/rapt.h"
#include "values.h"
#include "xla.h"

namespace rapt::python {

// The arrays and numbers of one call. If there is a fault, sentence() describes it.
class XlaReading {
 public:
  XlaReading(const XlaCallFrame& frame, rapt_device device) : frame_(frame), device_(device) {
    views_.resize(static_cast<size_t>(frame.args.size + frame.results.size));
  }

  const std::string& sentence() const { return sentence_; }
  bool ok() const { return sentence_.empty(); }
  // The next argument or result. dtype: the format of its bytes, or RAPT_DTYPE_NONE for its own dtype. swapped: true if
  // arrays of rank 4 are [batch, seqlen, heads, dim]. If there is no further array, returns null and sets the sentence.
  const rapt_tensor* argument(const char* name, int32_t dtype = RAPT_DTYPE_NONE, bool swapped = false) {
    return next(frame_.args, arguments_, name, dtype, swapped);
  }
  const rapt_tensor* result(const char* name, int32_t dtype = RAPT_DTYPE_NONE, bool swapped = false) {
    return next(frame_.results, results_, name, dtype, swapped);
  }
  bool more_results() const { return results_ < frame_.results.size; }
  void expect_no_more_arguments() {
    if (ok() && arguments_ != frame_.args.size) sentence_ = "there are more arrays than the attributes need";
  }
  // The values of the array attribute with this name and size. If there is no such attribute, returns null and sets the
  // sentence.
  const int64_t* integers(size_t size) { return static_cast<const int64_t*>(attribute("integers", xla_s64, size)); }
  const double* numbers(size_t size) { return static_cast<const double*>(attribute("numbers", xla_f64, size)); }
  // The rapt.Context whose number is the attribute `context`. Null if the number is 0. If the context was deleted,
  // returns null and sets the sentence.
  rapt_context* context() {
    const auto* const number = static_cast<const int64_t*>(attribute("context", xla_s64, 1));
    if (number == nullptr || *number == 0) return nullptr;
    context_ = context_numbered(*number);
    if (context_ == nullptr)
      sentence_ = "context: the rapt.Context of this traced call was deleted: keep a reference to it";
    return context_.get();
  }

 private:
  static constexpr int max_rank = 4;
  struct View {
    rapt_tensor tensor{};
    int64_t shape[max_rank], strides[max_rank];
    bool read(const XlaBuffer& buffer, rapt_device device, bool swapped);
  };
  const rapt_tensor* next(const XlaBuffers& buffers, int64_t& at, const char* name, int32_t dtype, bool swapped);
  const void* attribute(const std::string& name, int dtype, size_t size);

  const XlaCallFrame& frame_;
  rapt_device device_;
  std::vector<View> views_;
  size_t used_ = 0;
  int64_t arguments_ = 0, results_ = 0;
  std::string sentence_;
  std::shared_ptr<rapt_context> context_;
};

// One execution of a foreign function. body(reading, stream) reads the arguments and calls rapt if there is no fault.
using XlaBody = rapt_status (*)(XlaReading& reading, void* stream);
XlaError* run_xla(XlaCallFrame& frame, int32_t device_type, XlaBody body);

}  // namespace rapt::python
