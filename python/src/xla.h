// The C interface through which XLA (JAX) calls foreign functions, version 0.x. This file declares only the parts that
// xla.cpp uses. The layouts are those of xla/ffi/api/c_api.h in OpenXLA. tests/python/test_abi.py compares sizes and
// offsets with the header that jaxlib ships.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rapt::python {

struct XlaExtension {
  size_t struct_size;
  int type;  // 1 means a query for the handler's metadata
  XlaExtension* next;
};
inline constexpr int xla_metadata_extension = 1;

struct XlaVersion {
  size_t struct_size;
  XlaExtension* extension_start;
  int major;
  int minor;
};

struct XlaMetadata {
  size_t struct_size;
  XlaVersion version;
  uint32_t traits;
};
struct XlaMetadataExtension {
  XlaExtension base;
  XlaMetadata* metadata;
};

enum XlaDtype : int {
  xla_pred = 1,
  xla_s32 = 4,
  xla_s64 = 5,
  xla_u8 = 6,
  xla_f16 = 10,
  xla_f32 = 11,
  xla_f64 = 12,
  xla_bf16 = 16,
  xla_f8e5m2 = 19,
  xla_f8e4m3fn = 20
};

struct XlaBuffer {
  size_t struct_size;
  XlaExtension* extension_start;
  int dtype;
  void* data;
  int64_t rank;
  int64_t* dims;  // the array is dense, and the last dimension is the fastest
};

struct XlaArray {  // an attribute of kind 1
  int dtype;
  size_t size;
  void* data;
};
struct XlaSpan {
  const char* data;
  size_t size;
};

struct XlaBuffers {  // all arguments, or all results
  size_t struct_size;
  XlaExtension* extension_start;
  int64_t size;
  int* types;  // 1 means a buffer
  void** values;
};
struct XlaAttributes {
  size_t struct_size;
  XlaExtension* extension_start;
  int64_t size;
  int* types;
  XlaSpan** names;
  void** values;
};
inline constexpr int xla_array_attribute = 1;

struct XlaError;
struct XlaErrorArgs {
  size_t struct_size;
  XlaExtension* extension_start;
  const char* message;
  int code;
};
struct XlaStreamArgs {
  size_t struct_size;
  XlaExtension* extension_start;
  void* context;
  void* stream;
};

struct XlaOrdinalArgs {
  size_t struct_size;
  XlaExtension* extension_start;
  void* context;
  int32_t ordinal;
};

struct XlaApi {
  size_t struct_size;
  XlaExtension* extension_start;
  XlaVersion version;
  const void* internal_api;
  XlaError* (*error_create)(XlaErrorArgs*);
  void* error_get_message;
  void* error_destroy;
  void* handler_register;
  XlaError* (*stream_get)(XlaStreamArgs*);
  void* not_used[12];                                // types, states, memory, thread pool, futures, run id
  XlaError* (*device_ordinal_get)(XlaOrdinalArgs*);  // present only if struct_size is large enough
};

struct XlaCallFrame {
  size_t struct_size;
  XlaExtension* extension_start;
  const XlaApi* api;
  void* context;
  int stage;  // 3 means execute
  XlaBuffers args;
  XlaBuffers results;
  XlaAttributes attributes;
};

// The handlers of the targets "rapt_sdpa", ... There is one for each platform.
XlaError* xla_sdpa_cpu(XlaCallFrame* frame);
XlaError* xla_sdpa_cuda(XlaCallFrame* frame);
XlaError* xla_merge_cpu(XlaCallFrame* frame);
XlaError* xla_merge_cuda(XlaCallFrame* frame);
XlaError* xla_quantize_cpu(XlaCallFrame* frame);
XlaError* xla_quantize_cuda(XlaCallFrame* frame);
XlaError* xla_qk_cpu(XlaCallFrame* frame);
XlaError* xla_qk_cuda(XlaCallFrame* frame);
XlaError* xla_gemm_cpu(XlaCallFrame* frame);
XlaError* xla_gemm_cuda(XlaCallFrame* frame);

}  // namespace rapt::python
