// XLA's side of rapt.sdpa and rapt.merge: foreign functions that JAX calls, under jit too. Operands of sdpa: q, k, v,
// then the optional arrays whose bits are set in `arrays`, in the order of Operand below; results: out and, if asked
// for, lse. Numbers come in two attributes, `integers` (s64) and `numbers` (f64), in the orders below, which
// python/rapt/_jax.py repeats.
#include "xla.h"

#include <array>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "rapt/rapt.h"

namespace rapt::python {
namespace {

enum Operand {
  o_bias,
  o_mask,
  o_alibi_slopes,
  o_sinks,
  o_cu_seqlens_q,
  o_cu_seqlens_k,
  o_seqused_k,
  o_q_descale,
  o_k_descale,
  o_v_descale,
  o_q_starts,
  o_k_starts,
  operand_count
};
enum Integer {
  i_arrays,
  i_bshd,
  i_has,
  i_flags,
  i_window_left,
  i_window_right,
  i_q_start,
  i_k_start,
  i_max_seqlen_q,
  i_max_seqlen_k,
  i_splits,
  i_q_scales,
  i_k_scales,
  i_v_scales,
  i_pv,
  i_acc,
  i_q_dtype,
  i_k_dtype,
  i_v_dtype,
  integer_count
};
enum Number { n_scale, n_softcap, number_count };

constexpr int invalid_code = 3, internal_code = 13;

XlaError* fail(const XlaCallFrame& frame, int code, const std::string& sentence) {
  XlaErrorArgs args{sizeof(XlaErrorArgs), nullptr, sentence.c_str(), code};
  return frame.api->error_create(&args);
}

int32_t dtype_of(int xla) {
  switch (xla) {
    case xla_f32: return RAPT_F32;
    case xla_f16: return RAPT_F16;
    case xla_bf16: return RAPT_BF16;
    case xla_f8e4m3fn: return RAPT_E4M3;
    case xla_f8e5m2: return RAPT_E5M2;
    case xla_pred:
    case xla_u8: return RAPT_U8;
    case xla_s32: return RAPT_I32;
    case xla_s64: return RAPT_I64;
    default: return RAPT_DTYPE_NONE;
  }
}

constexpr int max_rank = 4;

struct View {
  rapt_tensor tensor{};
  int64_t shape[max_rank], strides[max_rank];

  bool read(const XlaBuffer& buffer, rapt_device device, bool swapped) {
    if (buffer.rank > max_rank) return false;
    const int rank = static_cast<int>(buffer.rank);
    int64_t stride = 1;
    for (int i = rank - 1; i >= 0; --i) {
      shape[i] = buffer.dims[i];
      strides[i] = stride;
      stride *= shape[i];
    }
    if (swapped && rank == 4) std::swap(shape[1], shape[2]), std::swap(strides[1], strides[2]);
    tensor = {buffer.data, device, dtype_of(buffer.dtype), rank, shape, strides};
    return true;
  }
};

// The values of an array attribute of that name, type and size; null and a sentence where there is none.
template <class T>
const T* attribute(const XlaCallFrame& frame, const std::string& name, int dtype, size_t size, std::string& sentence) {
  const XlaAttributes& attributes = frame.attributes;
  for (int64_t i = 0; i < attributes.size; ++i) {
    if (std::string(attributes.names[i]->data, attributes.names[i]->size) != name) continue;
    const auto* const array = static_cast<const XlaArray*>(attributes.values[i]);
    if (attributes.types[i] == xla_array_attribute && array->dtype == dtype && array->size == size)
      return static_cast<const T*>(array->data);
  }
  sentence = "attribute " + name + ": missing or of another shape: rapt._jax and rapt._core are of different versions";
  return nullptr;
}

// A frame's buffers and attributes as rapt_sdpa_args; sentence() tells what is wrong with them.
class XlaCall {
 public:
  XlaCall(const XlaCallFrame& frame, rapt_device device) : frame_(frame), device_(device) {
    integers_ = attribute<int64_t>(frame, "integers", xla_s64, integer_count, sentence_);
    numbers_ = attribute<double>(frame, "numbers", xla_f64, number_count, sentence_);
    if (integers_ == nullptr || numbers_ == nullptr) return;
    args_.struct_size = sizeof args_;
    read_numbers();
    read_inputs();
    if (sentence_.empty()) read_outputs();
  }

  const std::string& sentence() const { return sentence_; }
  rapt_status call(void* stream) const { return rapt_sdpa(nullptr, &args_, stream); }

 private:
  const rapt_tensor* next(const XlaBuffers& buffers, int64_t& at, const char* name, int32_t dtype, bool swapped) {
    if (at >= buffers.size) return sentence_ = std::string(name) + ": an array is missing", nullptr;
    View& view = views_[used_++];
    if (!view.read(*static_cast<const XlaBuffer*>(buffers.values[at++]), device_, swapped))
      return sentence_ = std::string(name) + ": rank must be 4 or less", nullptr;
    if (dtype != RAPT_DTYPE_NONE) view.tensor.dtype = dtype;
    return &view.tensor;
  }

  void read_numbers() {
    args_.has = static_cast<uint64_t>(integers_[i_has]);
    args_.flags = static_cast<uint64_t>(integers_[i_flags]);
    args_.softmax_scale = numbers_[n_scale], args_.softcap = numbers_[n_softcap];
    args_.window_left = integers_[i_window_left], args_.window_right = integers_[i_window_right];
    args_.q_start = integers_[i_q_start], args_.k_start = integers_[i_k_start];
    args_.max_seqlen_q = integers_[i_max_seqlen_q], args_.max_seqlen_k = integers_[i_max_seqlen_k];
    args_.splits = integers_[i_splits];
    args_.q_scales = static_cast<int32_t>(integers_[i_q_scales]);
    args_.k_scales = static_cast<int32_t>(integers_[i_k_scales]);
    args_.v_scales = static_cast<int32_t>(integers_[i_v_scales]);
    args_.pv = static_cast<int32_t>(integers_[i_pv]), args_.acc = static_cast<int32_t>(integers_[i_acc]);
  }

  void read_inputs() {
    const bool swapped = integers_[i_bshd] != 0;
    int64_t at = 0;
    const auto dtype = [&](Integer which) { return static_cast<int32_t>(integers_[which]); };
    args_.q = next(frame_.args, at, "q", dtype(i_q_dtype), swapped);
    args_.k = next(frame_.args, at, "k", dtype(i_k_dtype), swapped);
    args_.v = next(frame_.args, at, "v", dtype(i_v_dtype), swapped);
    const std::pair<const char*, const rapt_tensor**> operands[operand_count] = {{"bias", &args_.bias},
                                                                                 {"mask", &args_.mask},
                                                                                 {"alibi_slopes", &args_.alibi_slopes},
                                                                                 {"sinks", &args_.sinks},
                                                                                 {"cu_seqlens_q", &args_.cu_seqlens_q},
                                                                                 {"cu_seqlens_k", &args_.cu_seqlens_k},
                                                                                 {"seqused_k", &args_.seqused_k},
                                                                                 {"q_descale", &args_.q_descale},
                                                                                 {"k_descale", &args_.k_descale},
                                                                                 {"v_descale", &args_.v_descale},
                                                                                 {"q_start", &args_.q_starts},
                                                                                 {"k_start", &args_.k_starts}};
    for (int o = 0; o < operand_count; ++o)
      if (integers_[i_arrays] >> o & 1) *operands[o].second = next(frame_.args, at, operands[o].first, 0, false);
    if (sentence_.empty() && at != frame_.args.size) sentence_ = "more arrays than `arrays` names";
  }

  void read_outputs() {
    int64_t at = 0;
    args_.out = next(frame_.results, at, "out", 0, integers_[i_bshd] != 0);
    if (at < frame_.results.size) args_.lse = next(frame_.results, at, "lse", 0, false);
  }

  const XlaCallFrame& frame_;
  rapt_device device_;
  const int64_t* integers_ = nullptr;
  const double* numbers_ = nullptr;
  std::array<View, 18> views_;
  size_t used_ = 0;
  std::string sentence_;
  rapt_sdpa_args args_{};
};

// A question for the handler's metadata: the version it was written for is the runtime's own, whose structures only
// grow at their ends within major version 0.
bool answered_metadata(const XlaCallFrame& frame) {
  const XlaExtension* const extension = frame.extension_start;
  if (extension == nullptr || extension->type != xla_metadata_extension) return false;
  XlaMetadata& metadata = *reinterpret_cast<const XlaMetadataExtension*>(extension)->metadata;
  metadata.version.major = 0;
  metadata.version.minor = frame.api != nullptr ? frame.api->version.minor : 3;
  metadata.traits = 0;
  return true;
}

// The stream and the number of the GPU that XLA runs this call on.
XlaError* find_gpu(const XlaCallFrame& frame, void*& stream, int32_t& index) {
  XlaStreamArgs of_stream{sizeof(XlaStreamArgs), nullptr, frame.context, nullptr};
  if (XlaError* const error = frame.api->stream_get(&of_stream)) return error;
  stream = of_stream.stream;
  if (frame.api->struct_size < sizeof(XlaApi)) return nullptr;  // an older JAX: the first GPU
  XlaOrdinalArgs of_gpu{sizeof(XlaOrdinalArgs), nullptr, frame.context, 0};
  if (XlaError* const error = frame.api->device_ordinal_get(&of_gpu)) return error;
  index = of_gpu.ordinal;
  return nullptr;
}

// Operands: the parts' outs, their lses, then sinks if the first integer of the attribute is 1; results: out and, if
// asked for, lse.
class XlaMerge {
 public:
  XlaMerge(const XlaCallFrame& frame, rapt_device device) {
    const int64_t* const integers = attribute<int64_t>(frame, "integers", xla_s64, 1, sentence_);
    if (integers == nullptr) return;
    const bool sinks = integers[0] != 0;
    const int64_t count = (frame.args.size - (sinks ? 1 : 0)) / 2;
    views_.resize(static_cast<size_t>(frame.args.size + frame.results.size));
    for (int64_t i = 0; i < frame.args.size; ++i) read(frame.args.values[i], device);
    for (int64_t i = 0; i < frame.results.size; ++i) read(frame.results.values[i], device);
    for (int64_t i = 0; i < 2 * count; ++i)
      (i < count ? outs_ : lses_).push_back(&views_[static_cast<size_t>(i)].tensor);
    const rapt_tensor* const first_result = &views_[static_cast<size_t>(frame.args.size)].tensor;
    args_.struct_size = sizeof args_;
    args_.count = count;
    args_.outs = outs_.data(), args_.lses = lses_.data();
    if (sinks) args_.sinks = &views_[static_cast<size_t>(frame.args.size - 1)].tensor;
    args_.out = first_result;
    if (frame.results.size > 1) args_.lse = &views_.back().tensor;
  }

  const std::string& sentence() const { return sentence_; }
  rapt_status call(void* stream) const { return rapt_merge(nullptr, &args_, stream); }

 private:
  void read(const void* buffer, rapt_device device) {
    if (!views_[used_++].read(*static_cast<const XlaBuffer*>(buffer), device, false))
      sentence_ = "outs, lses: rank must be 4 or less";
  }

  std::vector<View> views_;
  size_t used_ = 0;
  std::vector<const rapt_tensor*> outs_, lses_;
  std::string sentence_;
  rapt_merge_args args_{};
};

// One execution of a foreign function, whose arguments Call reads.
template <class Call>
XlaError* run(XlaCallFrame& frame, int32_t device_type) {
  if (answered_metadata(frame)) return nullptr;
  void* stream = nullptr;
  rapt_device device{device_type, 0};
  if (device_type == RAPT_DEVICE_CUDA)
    if (XlaError* const error = find_gpu(frame, stream, device.index)) return error;
  try {
    const Call call(frame, device);
    if (!call.sentence().empty()) return fail(frame, invalid_code, call.sentence());
    const rapt_status status = call.call(stream);
    if (status == RAPT_OK) return nullptr;
    return fail(frame, status == RAPT_ERROR_INVALID_ARGUMENT ? invalid_code : internal_code, rapt_last_error());
  } catch (const std::exception& error) {
    return fail(frame, internal_code, error.what());
  }
}

}  // namespace

XlaError* xla_sdpa_cpu(XlaCallFrame* frame) { return run<XlaCall>(*frame, RAPT_DEVICE_CPU); }
XlaError* xla_sdpa_cuda(XlaCallFrame* frame) { return run<XlaCall>(*frame, RAPT_DEVICE_CUDA); }
XlaError* xla_merge_cpu(XlaCallFrame* frame) { return run<XlaMerge>(*frame, RAPT_DEVICE_CPU); }
XlaError* xla_merge_cuda(XlaCallFrame* frame) { return run<XlaMerge>(*frame, RAPT_DEVICE_CUDA); }

}  // namespace rapt::python
