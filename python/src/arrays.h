// Arrays of Python frameworks as rapt_tensor views: by DLPack's C exchange where the array's type has it (PyTorch from
// 2.10), else by a tuple that the framework's module in python/rapt makes. Used by call.cpp and merge.cpp.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dlpack.h"
#include "negated.h"
#include "python.h"
#include "rapt/rapt.h"
#include "values.h"

namespace rapt::python {

inline constexpr int max_rank = 8;

// What rapt needs of a framework; made by register_framework() from a dictionary with these names, never freed. Those
// that are absent are null.
struct Framework {
  std::string name;                          // "torch"
  const DLPackExchange* exchange = nullptr;  // null: `view` is called
  Ref view;               // view(array) -> (address, device type, device index, DLPack code, bits, shape, strides in
                          // elements, read-only)
  Ref allocate;           // allocate(like, shape, dtype name, zeroed) -> array, in like's order of dimensions
  Ref empty_like;         // the same, not zeroed, for like's own shape and dtype
  Ref empty_strided;      // empty_strided(shape, strides, dtype object) on the current GPU
  Ref stream;             // stream(array) -> int; null: the exchange tells it
  Ref redirect;           // called instead of the call where arrays are of subclasses, traced, or need a gradient
  Question grad_enabled;  // grad_enabled() -> bool; null: no autograd
  Attribute requires_grad;
  std::vector<Question> tracing;  // one that answers other than None, False or 0 asks for redirect; a tuple
  Question transforms;  // transforms() -> other than None inside of transformations, whose arrays have no memory
  Ref forward_ad;   // names of a module whose _current_level is not negative while forward-mode derivatives are taken
  Ref profiler;     // names of a module whose _is_profiler_enabled is True while a profiler records
  Negated negated;  // whether an array's memory holds the other sign
  Question num_threads;  // num_threads() -> CPU threads that the framework uses; null: rapt's own number
  Ref context_for;       // context_for(threads) -> rapt.Context, or None for the process default
  Ref written;  // written((array,)): after rapt has written to an array of the caller's; a RuntimeError is ignored
  bool has_storage = false;          // arrays have PyTorch's untyped_storage() and storage_offset()
  int32_t dtype_of_fp8 = RAPT_BF16;  // of an output whose inputs are all FP8

  mutable std::vector<std::pair<int64_t, ContextHandle>> contexts;  // by threads, those that context_for() has made
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
  bool boolean = false;    // which the C ABI takes as uint8

  std::unique_ptr<int64_t[]> of_high_rank;  // shape and strides that have no room above: refused by their rank
};

// Thrown for an array inside of a transformation (torch.func.vmap), which only the framework's operators can read.
struct Transformed : PythonError {};

// Fills `array` from an object of `framework`; throws PythonError with a sentence naming `argument`.
// `made_here`: an output of allocate_array() and the like, which has nothing to refuse.
void read_array(const Framework& framework, const char* argument, PyObject* object, Array& array,
                bool made_here = false);

// Refuses booleans for an argument that is not of them.
void refuse_boolean(const char* argument, const Array& array);
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
// The context of a call on this device: the given one, else the one with as many CPU threads as the framework uses.
rapt_context* context_of(const Framework& framework, const ContextHandle& given, rapt_device device);
// CUDA: the framework's current stream on that device. CPU: null.
void* current_stream(const Framework& framework, PyObject* like, rapt_device device);

}  // namespace rapt::python
