// Converts arrays of Python frameworks to rapt_tensor views. If the array's type has DLPack's C exchange (PyTorch since
// 2.10), this is used. Otherwise the framework's module in python/rapt describes the array by a tuple. Used by call.cpp
// and merge.cpp.
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

// The functions of a framework. register_framework() creates this struct from a dictionary whose keys are these names.
// It is never freed. Members that the dictionary lacks are null.
struct Framework {
  std::string name;                          // "torch"
  const DLPackExchange* exchange = nullptr;  // if null, `view` is called instead
  Ref view;           // view(array) -> (address, device type, device index, DLPack code, bits, shape, strides in
                      // elements, read-only)
  Ref allocate;       // allocate(like, shape, dtype name, zeroed) -> array with like's order of dimensions
  Ref empty_like;     // empty_like(like) -> array with like's shape, dtype and order of dimensions, not zeroed
  Ref empty_strided;  // empty_strided(shape, strides, dtype object) -> array on the current GPU
  Ref stream;         // stream(array) -> int; null: the exchange gives the stream
  Ref redirect;       // called for arrays of subclasses, and if a call is traced or needs a gradient
  NoArgsFunction grad_enabled;  // grad_enabled() -> bool; null: the framework has no autograd
  Attribute requires_grad;
  // Functions (in the dictionary: a tuple). If one of them returns something other than None, False or 0, `redirect` is
  // called.
  std::vector<NoArgsFunction> tracing;
  NoArgsFunction transforms;   // transforms() -> something but None inside transformations; their arrays have no memory
  Ref forward_ad;              // dict of a module; _current_level is >= 0 while forward-mode derivatives are computed
  Ref profiler;                // dict of a module; _is_profiler_enabled is True during profiling
  Negated negated;             // detects arrays whose memory holds the negated values
  NoArgsFunction num_threads;  // num_threads() -> number of CPU threads of the framework; null: use rapt's default
  Ref context_for;             // context_for(threads) -> rapt.Context, or None for the process default
  Ref written;  // written((array,)): called after rapt has written to a caller's array; a RuntimeError is ignored
  bool has_storage = false;          // arrays have PyTorch's untyped_storage() and storage_offset()
  int32_t dtype_of_fp8 = RAPT_BF16;  // dtype of out if all inputs are FP8

  // The contexts that context_for() made, each with its number of threads.
  mutable std::vector<std::pair<int64_t, ContextHandle>> contexts;
};

// The framework of an array. Null if exactly this type (without subclasses) is not registered.
const Framework* framework_of(PyObject* array);
// register_framework(types, {name of a member above: value})
PyObject* register_framework(PyObject*, PyObject* args);

// A view of an array. It has its own memory for shape and strides, because the framework may not keep them, or they may
// be reordered.
struct Array {
  rapt_tensor tensor{};
  int64_t shape[max_rank];
  int64_t strides[max_rank];
  bool read_only = false;
  bool raw_bytes = false;  // the dtype is uint8, so the call must name an FP8 format
  bool boolean = false;    // the dtype is bool, which the C ABI gets as uint8

  std::unique_ptr<int64_t[]> of_high_rank;  // shape and strides if they do not fit above; later the rank is refused
};

// Thrown for an array inside a transformation (torch.func.vmap): only the framework's operators can read it.
struct Transformed : PythonError {};

// Fills `array` from an object of `framework`. Throws PythonError with a sentence that names `argument`. `made_here`:
// true for an output that allocate_array() or a similar function made; it needs no checks.
void read_array(const Framework& framework, const char* argument, PyObject* object, Array& array,
                bool made_here = false);

// Throws if the array is boolean. For arguments that take no booleans.
void refuse_boolean(const char* argument, const Array& array);
// Sets the format of uint8 storage. dtype: the value of the argument `dtype_argument`. None means the array's own
// dtype.
void set_stored_dtype(const char* argument, const char* dtype_argument, PyObject* dtype, Array& array);
// Changes [batch, seqlen, heads, dim] to [batch, heads, seqlen, dim]. Arrays of other ranks do not change.
void swap_heads(Array& array);

// A Python tuple of integers, such as (2, 8, 512, 64).
Ref integers(const int64_t* values, int count);
// A new array of the framework, with the device and the order of dimensions of `like`.
Ref allocate_array(const Framework& framework, PyObject* like, const int64_t* shape, int rank, int32_t dtype,
                   bool zeroed);

// The rapt_dtype of an object: RAPT_F32 for "f32", "float32", torch.float32, numpy.dtype('float32'), ...
// RAPT_DTYPE_NONE if it is unknown.
int32_t dtype_of_name(PyObject* object);
// The name of a dtype: "float32".
const char* name_of_dtype(int32_t dtype);
// Tells the framework that rapt has written to a caller's array.
void report_written(const Framework& framework, PyObject* array);
// The context of a call on this device: the given one, otherwise one with as many CPU threads as the framework uses.
rapt_context* context_of(const Framework& framework, const ContextHandle& given, rapt_device device);
// On a GPU, the framework's current stream on this device. Null on the CPU.
void* current_stream(const Framework& framework, PyObject* like, rapt_device device);

}  // namespace rapt::python
