// DLPack 1.3: the structs that PyTorch, CuPy and others use to describe arrays, and the table of C functions that a
// Python array type can have as `__dlpack_c_exchange_api__` (https://dmlc.github.io/dlpack/latest/c_api.html). This
// file declares only the parts that rapt uses. tests/python/test_abi.py compares them with the header that PyTorch
// ships.
#pragma once

#include <cstdint>

namespace rapt::python {

struct DLDevice {
  int32_t device_type;  // 1: CPU, 2: CUDA; rapt_device_type has the same numbers
  int32_t device_id;
};

struct DLDataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};

enum DLCode : uint8_t {
  dl_int = 0,
  dl_uint = 1,
  dl_float = 2,
  dl_bfloat = 4,
  dl_complex = 5,
  dl_bool = 6,
  dl_float8_e4m3fn = 10,
  dl_float8_e5m2 = 12
};

struct DLTensor {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;  // in elements; null means contiguous (before DLPack 1.2)
  uint64_t byte_offset;
};

struct DLPackVersion {
  uint32_t major;
  uint32_t minor;
};

struct DLPackExchangeHeader {
  DLPackVersion version;
  DLPackExchangeHeader* older;
};

// The functions return 0, or -1 with a Python exception set. `no_sync`: they do not wait for the array's stream.
struct DLPackExchange {
  DLPackExchangeHeader header;
  void* managed_tensor_allocator;
  void* managed_tensor_from_py_object_no_sync;
  void* managed_tensor_to_py_object_no_sync;
  int (*dltensor_from_py_object_no_sync)(void* object, DLTensor* out);  // a view, valid while the object lives
  int (*current_work_stream)(int32_t device_type, int32_t device_id, void** stream);
};

}  // namespace rapt::python
