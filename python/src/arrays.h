// Arrays of Python frameworks as rapt_tensor views: by DLPack's C exchange where the array's type has it (PyTorch from
// 2.10), else by a tuple that the framework's module in python/rapt makes. Used by call.cpp and merge.cpp.
#pragma once

#include <cstdint>
#include <string>

#include "dlpack.h"
#include "python.h"
#include "rapt/rapt.h"

namespace rapt::python {

inline constexpr int max_rank = 8;

// What rapt needs of a framework; made by register_framework() from a dictionary with these names, never freed. Those
// that are absent are null.
struct Framework {
  std::string name;                          // "torch"
  const DLPackExchange* exchange = nullptr;  // null: `view` is called
  Ref view;           // view(array) -> (address, device type, device index, DLPack code, bits, shape, strides in
                      // elements, read-only)
  Ref allocate;       // allocate(like, shape, dtype name, zeroed) -> array, in like's order of dimensions
  Ref empty_like;     // the same, not zeroed, for like's own shape and dtype
  Ref empty_strided;  // empty_strided(shape, strides, dtype object) on the current GPU
  Ref stream;         // stream(array) -> int; null: the exchange tells it
  Ref redirect;       // called instead of the call where arrays are of subclasses, traced, or need a gradient
  Ref grad_enabled;   // grad_enabled() -> bool; null: no autograd
  Ref tracing;        // a tuple of functions: one that answers other than None, False or 0 asks for redirect
  Ref forward_ad;     // a module whose _current_level is not negative while forward-mode derivatives are taken
  Ref negated;        // negated(array) -> bool: its memory holds the other sign; null: never
  Ref room;           // room(array) -> bytes of memory from its first element on
  Ref written;  // written((array,)): after rapt has written to an array of the caller's; a RuntimeError is ignored
  int32_t dtype_of_fp8 = RAPT_BF16;  // of an output whose inputs are all FP8
};

// The framework of an array's exact type; null where it was not registered.
const Framework* framework_of(PyObject* array);
// register_framework(types, {name of a member above: value})
PyObject* register_framework(PyObject*, PyObject* args);

// A view, with room for the shape and strides that the framework does not keep or that are reordered.
struct Array {
  rapt_tensor tensor{};
  int64_t shape[max_rank];
  int64_t strides[max_rank];
  bool read_only = false;
  bool raw_bytes = false;  // uint8: an FP8 format has to be named
};

// Fills `array` from an object of `framework`; throws PythonError with a sentence naming `argument`.
void read_array(const Framework& framework, const char* argument, PyObject* object, Array& array);

// What uint8 storage holds, by the value of the argument `dtype_argument`; None: the array's own dtype says it.
void set_stored_dtype(const char* argument, const char* dtype_argument, PyObject* dtype, Array& array);
// [batch, seqlen, heads, dim] as [batch, heads, seqlen, dim]; other ranks have one order.
void swap_heads(Array& array);

// (2, 8, 512, 64) as a tuple.
Ref integers(const int64_t* values, int count);
// An array of the framework's, on `like`'s device and in its order of dimensions.
Ref allocate_array(const Framework& framework, PyObject* like, const int64_t* shape, int rank, int32_t dtype,
                   bool zeroed);

// f32, float32, torch.float32, numpy.dtype('float32'), ...: RAPT_F32. RAPT_DTYPE_NONE: unknown.
int32_t dtype_of_name(PyObject* object);
// "float32"
const char* name_of_dtype(int32_t dtype);
// Tells the framework that rapt has written to an array of the caller's.
void report_written(const Framework& framework, PyObject* array);
// CUDA: the framework's current stream on that device. CPU: null.
void* current_stream(const Framework& framework, PyObject* like, rapt_device device);

}  // namespace rapt::python
