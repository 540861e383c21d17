// Reads a call of XLA; see xla_frame.h.
#include "xla_frame.h"

#include <exception>

namespace rapt::python {
namespace {

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

// Answers a query for the handler's metadata. Returns the version of the runtime itself: within major version 0, its
// structs only grow at the end.
bool answered_metadata(const XlaCallFrame& frame) {
  const XlaExtension* const extension = frame.extension_start;
  if (extension == nullptr || extension->type != xla_metadata_extension) return false;
  XlaMetadata& metadata = *reinterpret_cast<const XlaMetadataExtension*>(extension)->metadata;
  metadata.version.major = 0;
  metadata.version.minor = frame.api != nullptr ? frame.api->version.minor : 3;
  metadata.traits = 0;
  return true;
}

// Finds the stream on which XLA runs this call, and the index of its GPU.
XlaError* find_gpu(const XlaCallFrame& frame, void*& stream, int32_t& index) {
  XlaStreamArgs of_stream{sizeof(XlaStreamArgs), nullptr, frame.context, nullptr};
  if (XlaError* const error = frame.api->stream_get(&of_stream)) return error;
  stream = of_stream.stream;
  if (frame.api->struct_size < sizeof(XlaApi)) return nullptr;  // an older JAX; the first GPU is assumed
  XlaOrdinalArgs of_gpu{sizeof(XlaOrdinalArgs), nullptr, frame.context, 0};
  if (XlaError* const error = frame.api->device_ordinal_get(&of_gpu)) return error;
  index = of_gpu.ordinal;
  return nullptr;
}

}  // namespace

bool XlaReading::View::read(const XlaBuffer& buffer, rapt_device device, bool swapped) {
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

const rapt_tensor* XlaReading::next(const XlaBuffers& buffers, int64_t& at, const char* name, int32_t dtype,
                                    bool swapped) {
  if (at >= buffers.size) return sentence_ = std::string(name) + ": an array is missing", nullptr;
  View& view = views_[used_++];
  if (!view.read(*static_cast<const XlaBuffer*>(buffers.values[at++]), device_, swapped))
    return sentence_ = std::string(name) + ": rank must be 4 or less", nullptr;
  if (dtype != RAPT_DTYPE_NONE) view.tensor.dtype = dtype;
  return &view.tensor;
}

const void* XlaReading::attribute(const std::string& name, int dtype, size_t size) {
  const XlaAttributes& attributes = frame_.attributes;
  for (int64_t i = 0; i < attributes.size; ++i) {
    if (std::string(attributes.names[i]->data, attributes.names[i]->size) != name) continue;
    const auto* const array = static_cast<const XlaArray*>(attributes.values[i]);
    if (attributes.types[i] == xla_array_attribute && array->dtype == dtype && array->size == size) return array->data;
  }
  sentence_ = "attribute " + name + ": missing or wrong: rapt._jax and rapt._core are of different versions";
  return nullptr;
}

XlaError* run_xla(XlaCallFrame& frame, int32_t device_type, XlaBody body) {
  if (answered_metadata(frame)) return nullptr;
  void* stream = nullptr;
  rapt_device device{device_type, 0};
  if (device_type == RAPT_DEVICE_CUDA)
    if (XlaError* const error = find_gpu(frame, stream, device.index)) return error;
  try {
    XlaReading reading(frame, device);
    const rapt_status status = body(reading, stream);
    if (!reading.ok()) return fail(frame, invalid_code, reading.sentence());
    if (status == RAPT_OK) return nullptr;
    return fail(frame, status == RAPT_ERROR_INVALID_ARGUMENT ? invalid_code : internal_code, rapt_last_error());
  } catch (const std::exception& error) {
    return fail(frame, internal_code, error.what());
  }
}

}  // namespace rapt::python
