// Converts arrays of Python frameworks to rapt_tensor views: by DLPack's C exchange if the array's type has it (PyTorch
// from 2.10), else by a tuple from the framework's module in python/rapt. Used by call.cpp and merge.cpp.
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

// The functions of a framework. register_framework() creates it from a dictionary with these names; it is never freed.
// Missing members are null.
struct Framework {
  std::string name;                          // "torch"
  const DLPackExchange* exchange = nullptr;  // null: `view` is called
  Ref view;           // view(array) -> (address, device type, device index, DLPack code, bits, shape, strides in
                      // elements, read-only)
  Ref allocate;       // allocate(like, shape, dtype name, zeroed) -> array, in like's order of dimensions
  Ref empty_like;     // the same, not zeroed, for like's own shape and dtype
  Ref empty_strided;  // empty_strided(shape, strides, dtype object) on the current GPU
  Ref stream;         // stream(array) -> int; null: the exchange gives it
  Ref redirect;       // called for arrays of subclasses, and if a call is traced or needs a gradient
  NoArgsFunction grad_enabled;  // grad_enabled() -> bool; null: no autograd
  Attribute requires_grad;
  // Functions; if one returns something other than None, False or 0, redirect is called; a tuple.
  std::vector<NoArgsFunction> tracing;
  NoArgsFunction transforms;  // transforms() -> not None inside transformations, whose arrays have no memory
  Ref forward_ad;             // names of a module whose _current_level is >= 0 while forward-mode derivatives are taken
  Ref profiler;               // names of a module whose _is_profiler_enabled is True during profiling
  Negated negated;            // detects arrays whose memory holds the negated values
  NoArgsFunction num_threads;  // num_threads() -> CPU threads that the framework uses; null: rapt's default
  Ref context_for;             // context_for(threads) -> rapt.Context, or None for the process default
  Ref written;  // written((array,)): called after rapt has written to a caller's array; a RuntimeError is ignored
  bool has_storage = false;          // arrays have PyTorch's untyped_storage() and storage_offset()
  int32_t dtype_of_fp8 = RAPT_BF16;  // dtype of out if all inputs are FP8

  // Contexts made by context_for(), by number of threads.
  mutable std::vector<std::pair<int64_t, ContextHandle>> contexts;
};

// The framework of an array's exact type; null if it is not registered.
const Framework* framework_of(PyObject* array);
// register_framework(types, {name of a member above: value})
PyObject* register_framework(PyObject*, PyObject* args);

// A view, with memory for shape and strides that the framework does not keep or that are reordered.
struct Array {
  rapt_tensor tensor{};
  int64_t shape[max_rank];
  int64_t strides[max_rank];
  bool read_only = false;
  bool raw_bytes = false;  // uint8: the call must name an FP8 format
  bool boolean = false;    // passed to the C ABI as uint8

  std::unique_ptr<int64_t[]> of_high_rank;  // shape and strides that do not fit above; such a rank is refused
};

// Thrown for an array inside a transformation (torch.func.vmap): only the framework's operators can read it.
struct Transformed : PythonError {};

// Fills `array` from an object of `framework`. Throws PythonError with a sentence that names `argument`. `made_here`:
// an output of allocate_array() and similar functions, which needs no checks.
void read_array(const Framework& framework, const char* argument, PyObject* object, Array& array,
                bool made_here = false);

// Refuses booleans for arguments that take none.
void refuse_boolean(const char* argument, const Array& array);
// Sets the format of uint8 storage from the argument `dtype_argument`. None: the array's own dtype.
void set_stored_dtype(const char* argument, const char* dtype_argument, PyObject* dtype, Array& array);
// [batch, seqlen, heads, dim] becomes [batch, heads, seqlen, dim]. Other ranks stay.
void swap_heads(Array& array);

// (2, 8, 512, 64) as a tuple.
Ref integers(const int64_t* values, int count);
// A new array of the framework on `like`'s device, with its order of dimensions.
Ref allocate_array(const Framework& framework, PyObject* like, const int64_t* shape, int rank, int32_t dtype,
                   bool zeroed);

// f32, float32, torch.float32, numpy.dtype('float32'), ...: RAPT_F32. RAPT_DTYPE_NONE: unknown.
int32_t dtype_of_name(PyObject* object);
// "float32"
const char* name_of_dtype(int32_t dtype);
// Tells the framework that rapt has written to a caller's array.
void report_written(const Framework& framework, PyObject* array);
// The context of a call on this device: the given one, else one with as many CPU threads as the framework uses.
rapt_context* context_of(const Framework& framework, const ContextHandle& given, rapt_device device);
// CUDA: the framework's current stream on that device. CPU: null.
void* current_stream(const Framework& framework, PyObject* like, rapt_device device);

}  // namespace rapt::python
