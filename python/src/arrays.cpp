// Converts arrays of Python frameworks to tensors of rapt; see arrays.h.
#include "arrays.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "errors.h"

namespace rapt::python {
namespace {

struct Known {
  PyTypeObject* type;
  const Framework* framework;
};
std::vector<Known> known_types;  // guarded by the interpreter's lock; has only a few entries

struct DtypeName {
  int32_t dtype;
  std::string_view name;
};
constexpr std::array<DtypeName, 13> dtype_names = {{{RAPT_F32, "float32"},
                                                    {RAPT_F32, "f32"},
                                                    {RAPT_F16, "float16"},
                                                    {RAPT_F16, "f16"},
                                                    {RAPT_BF16, "bfloat16"},
                                                    {RAPT_BF16, "bf16"},
                                                    {RAPT_E4M3, "float8_e4m3fn"},
                                                    {RAPT_E4M3, "e4m3"},
                                                    {RAPT_E5M2, "float8_e5m2"},
                                                    {RAPT_E5M2, "e5m2"},
                                                    {RAPT_SIM8, "sim8"},
                                                    {RAPT_I32, "int32"},
                                                    {RAPT_I64, "int64"}}};

int64_t size_of_dtype(int32_t dtype) {
  switch (dtype) {
    case RAPT_F32:
    case RAPT_I32: return 4;
    case RAPT_F16:
    case RAPT_BF16: return 2;
    case RAPT_I64: return 8;
    default: return 1;
  }
}

std::string dl_name(DLDataType type) {
  const char* const kinds[] = {"int", "uint", "float", "handle", "bfloat", "complex", "bool"};
  if (type.code < std::size(kinds)) return kinds[type.code] + std::to_string(type.bits);
  return "DLPack code " + std::to_string(type.code) + " of " + std::to_string(type.bits) + " bits";
}

[[noreturn]] void refuse_dtype(const char* argument, const std::string& name) {
  invalid(argument, ".dtype = ", name,
          ": rapt reads float32, float16, bfloat16, float8_e4m3fn, float8_e5m2, uint8, bool, int32 and int64");
}

// RAPT_DTYPE_NONE if rapt has no such dtype.
int32_t dtype_of(DLDataType type) {
  const int kind = type.code << 8 | type.bits;
  if (type.lanes == 1) switch (kind) {
      case dl_float << 8 | 32: return RAPT_F32;
      case dl_float << 8 | 16: return RAPT_F16;
      case dl_bfloat << 8 | 16: return RAPT_BF16;
      case dl_float8_e4m3fn << 8 | 8: return RAPT_E4M3;
      case dl_float8_e5m2 << 8 | 8: return RAPT_E5M2;
      case dl_uint << 8 | 8:
      case dl_bool << 8 | 8: return RAPT_U8;
      case dl_int << 8 | 32: return RAPT_I32;
      case dl_int << 8 | 64: return RAPT_I64;
      default: break;
    }
  return RAPT_DTYPE_NONE;
}

void fill(const char* argument, PyObject* object, const DLTensor& from, Array& array) {
  rapt_tensor& to = array.tensor;
  to.data = from.data == nullptr ? nullptr : static_cast<char*>(from.data) + from.byte_offset;
  to.device = {from.device.device_type, from.device.device_type == RAPT_DEVICE_CPU ? 0 : from.device.device_id};
  to.dtype = dtype_of(from.dtype);
  if (to.dtype == RAPT_DTYPE_NONE) {
    const std::string name = own_dtype(object);
    refuse_dtype(argument, name.empty() ? dl_name(from.dtype) : name);
  }
  array.boolean = from.dtype.code == dl_bool;
  array.raw_bytes = from.dtype.code == dl_uint && from.dtype.bits == 8;
  to.rank = from.ndim;
  to.shape = from.shape;
  to.strides = from.strides;
}

void read_integers(PyObject* tuple, int64_t* to) {
  for (Py_ssize_t i = 0; i < PyTuple_Size(tuple); ++i) to[i] = PyLong_AsLongLong(checked(PyTuple_GetItem(tuple, i)));
  if (PyErr_Occurred() != nullptr) throw PythonError{};
}

[[noreturn]] void refuse_reading(const Framework& framework, const char* argument, PyObject* object);

void read_view(const Framework& framework, const char* argument, PyObject* object, Array& array) {
  const Ref view(PyObject_CallFunctionObjArgs(framework.view.get(), object, nullptr));
  if (!view) refuse_reading(framework, argument, object);
  unsigned long long address = 0;
  int device_type = 0, device_index = 0, code = 0, bits = 0, read_only = 0;
  PyObject *shape = nullptr, *strides = nullptr;
  if (!PyArg_ParseTuple(view.get(), "KiiiiO!O!p:view", &address, &device_type, &device_index, &code, &bits,
                        &PyTuple_Type, &shape, &PyTuple_Type, &strides, &read_only))
    throw PythonError{};
  const Py_ssize_t rank = PyTuple_Size(shape);
  int64_t *sizes = array.shape, *steps = array.strides;
  if (rank > max_rank) {
    array.of_high_rank = std::make_unique<int64_t[]>(static_cast<size_t>(2 * rank));
    sizes = array.of_high_rank.get(), steps = sizes + rank;
  }
  read_integers(shape, sizes);
  read_integers(strides, steps);
  DLTensor tensor{};
  tensor.data = reinterpret_cast<void*>(static_cast<uintptr_t>(address));
  tensor.device = {device_type, device_index};
  tensor.ndim = static_cast<int32_t>(rank);
  tensor.dtype = {static_cast<uint8_t>(code), static_cast<uint8_t>(bits), 1};
  tensor.shape = sizes;
  tensor.strides = steps;
  fill(argument, object, tensor, array);
  array.read_only = read_only != 0;
}

// Returns the capsule's table of functions. This code supports major version 1. If the table is newer, returns the
// newest older table that the capsule has, or null.
const DLPackExchange* exchange_in(PyObject* capsule) {
  auto* found = static_cast<const DLPackExchangeHeader*>(PyCapsule_GetPointer(capsule, "dlpack_exchange_api"));
  if (found == nullptr) throw PythonError{};
  while (found != nullptr && found->version.major > 1) found = found->older;
  const auto* const table = reinterpret_cast<const DLPackExchange*>(found);
  return table != nullptr && table->dltensor_from_py_object_no_sync != nullptr ? table : nullptr;
}

// The value of a key in a dictionary. Null if the key is absent or the value is None.
Ref member(PyObject* parts, const char* name) {
  PyObject* const found = PyDict_GetItemString(parts, name);
  return found == nullptr || found == Py_None ? Ref() : Ref::of(found);
}

}  // namespace

const Framework* framework_of(PyObject* array) {
  PyTypeObject* const type = Py_TYPE(array);
  for (const Known& known : known_types)
    if (known.type == type) return known.framework;
  return nullptr;
}

PyObject* register_framework(PyObject*, PyObject* args) {
  PyObject *types, *parts;
  const char* name;
  int dtype_of_fp8;
  if (!PyArg_ParseTuple(args, "O!siO!:register_framework", &PyTuple_Type, &types, &name, &dtype_of_fp8, &PyDict_Type,
                        &parts))
    return nullptr;
  try {
    auto* const framework = new Framework;
    framework->name = name;
    framework->dtype_of_fp8 = dtype_of_fp8;
    const Ref capsule = member(parts, "exchange");
    framework->exchange = capsule ? exchange_in(capsule.get()) : nullptr;
    const std::pair<const char*, Ref*> members[] = {{"view", &framework->view},
                                                    {"allocate", &framework->allocate},
                                                    {"empty_like", &framework->empty_like},
                                                    {"empty_strided", &framework->empty_strided},
                                                    {"stream", &framework->stream},
                                                    {"redirect", &framework->redirect},
                                                    {"forward_ad", &framework->forward_ad},
                                                    {"profiler", &framework->profiler},
                                                    {"context_for", &framework->context_for},
                                                    {"written", &framework->written}};
    for (const auto& [key, ref] : members) *ref = member(parts, key);
    framework->grad_enabled = NoArgsFunction(member(parts, "grad_enabled"));
    framework->transforms = NoArgsFunction(member(parts, "transforms"));
    framework->num_threads = NoArgsFunction(member(parts, "num_threads"));
    if (const Ref tracing = member(parts, "tracing"))
      for (Py_ssize_t i = 0; i < PyTuple_Size(tracing.get()); ++i)
        framework->tracing.emplace_back(Ref::of(PyTuple_GetItem(tracing.get(), i)));
    framework->has_storage = member(parts, "has_storage").get() == Py_True;
    framework->negated.set(member(parts, "negated"), member(parts, "negated_examples").get());
    if (PyTuple_Size(types) > 0)
      framework->requires_grad = Attribute(reinterpret_cast<PyTypeObject*>(PyTuple_GetItem(types, 0)), "requires_grad");
    for (Py_ssize_t i = 0; i < PyTuple_Size(types); ++i)
      known_types.push_back({reinterpret_cast<PyTypeObject*>(Py_NewRef(PyTuple_GetItem(types, i))), framework});
  } catch (const PythonError&) {
    return nullptr;
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
  Py_RETURN_NONE;
}

namespace {

// Returns the text of the current exception and clears it.
std::string take_error() {
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  const Ref owned_type(type), owned_value(value), owned_trace(trace);
  const Ref text(value == nullptr ? nullptr : PyObject_Str(value));
  const char* const data = text ? PyUnicode_AsUTF8AndSize(text.get(), nullptr) : nullptr;
  std::string words(data == nullptr ? "" : data);
  PyErr_Clear();
  return words;
}

bool is_true(PyObject* object, const char* attribute) {
  const Ref found(PyObject_GetAttrString(object, attribute));
  PyErr_Clear();
  return found.get() == Py_True;
}

bool has_elements(const DLTensor& tensor) {
  return std::all_of(tensor.shape, tensor.shape + tensor.ndim, [](int64_t size) { return size > 0; });
}

// Reports an array that its framework could not describe (the framework's exception is set). For some tensors (meta,
// sparse, inside vmap) the framework's text can be a page long, so only its first line is used.
void refuse_reading(const Framework& framework, const char* argument, PyObject* object) {
  const bool by_rapt = PyErr_ExceptionMatches(PyExc_ValueError) != 0;  // the error comes from view() in python/rapt
  const std::string words = take_error();
  if (by_rapt) invalid(argument, ": ", words);
  if (framework.transforms) {
    if (framework.transforms.ask().get() != Py_None) {
      set_error(RAPT_ERROR_UNSUPPORTED,
                std::string(argument) +
                    ": a tensor of torch.func's transformations (vmap, grad, functionalize), which "
                    "only rapt's operators can read");
      throw Transformed{};
    }
  }
  if (is_true(object, "is_nested"))
    invalid(
        argument,
        ": a nested tensor: pass its rows, values(), as packed sequences, with its offsets() in int32 as cu_seqlens");
  const std::string name = own_dtype(object);
  const bool unknown =
      !name.empty() && name != "uint8" && name != "bool" &&
      std::none_of(dtype_names.begin(), dtype_names.end(), [&](const DtypeName& known) { return known.name == name; });
  if (unknown) refuse_dtype(argument, name);
  invalid(argument, ": its elements cannot be read in place (", words.substr(0, words.find('\n')), ")");
}

void refuse_negated(const Framework& framework, const char* argument, PyObject* object) {
  if (framework.negated(object))
    invalid(argument, ": a view that flips the sign of its memory: call resolve_neg() on it first");
}

int64_t integer_of(const Ref& answer) {
  const int64_t value = PyLong_AsLongLong(checked(answer.get()));
  if (PyErr_Occurred() != nullptr) throw PythonError{};
  return value;
}

// Throws if the array's storage has become smaller than the array (FSDP frees parameters in this way). On a CPU,
// compares with the size of the storage. On a GPU, only refuses addresses below 2^32, which no allocation has.
void refuse_lost_storage(const Framework& framework, const char* argument, PyObject* object,
                         const rapt_tensor& tensor) {
  int64_t last = 0;  // offset of the last element; PyTorch has no negative strides
  for (int32_t i = 0; i < tensor.rank; ++i) {
    if (tensor.shape[i] == 0) return;
    last += (tensor.shape[i] - 1) * tensor.strides[i];
  }
  const auto address = reinterpret_cast<uintptr_t>(tensor.data);
  bool lost = tensor.device.type == RAPT_DEVICE_CUDA && address < uintptr_t{1} << 32;
  if (tensor.device.type == RAPT_DEVICE_CPU && framework.has_storage) {
    static PyObject* const untyped_storage = PyUnicode_InternFromString("untyped_storage");
    static PyObject* const nbytes = PyUnicode_InternFromString("nbytes");
    static PyObject* const storage_offset = PyUnicode_InternFromString("storage_offset");
    const Ref storage(checked(PyObject_CallMethodObjArgs(object, untyped_storage, nullptr)));
    const int64_t bytes = integer_of(Ref(PyObject_CallMethodObjArgs(storage.get(), nbytes, nullptr)));
    const int64_t first = integer_of(Ref(PyObject_CallMethodObjArgs(object, storage_offset, nullptr)));
    lost = (first + last + 1) * size_of_dtype(tensor.dtype) > bytes;
  }
  if (lost) invalid(argument, ": its storage is smaller than its shape and strides need");
}

}  // namespace

void read_array(const Framework& framework, const char* argument, PyObject* object, Array& array, bool made_here) {
  const Framework* const its = framework_of(object);
  if (its != &framework)
    invalid(argument, ": a ", type_name(object), ", but q is of ", framework.name,
            ": all arrays of a call come from one framework");
  if (framework.exchange == nullptr) {
    read_view(framework, argument, object, array);
  } else {
    DLTensor tensor;
    if (framework.exchange->dltensor_from_py_object_no_sync(object, &tensor) != 0)
      refuse_reading(framework, argument, object);
    if (tensor.data == nullptr && has_elements(tensor)) {  // happens inside torch.func.functionalize
      PyErr_SetString(PyExc_RuntimeError, "it has no memory");
      refuse_reading(framework, argument, object);
    }
    fill(argument, object, tensor, array);
  }
  if (made_here) return;
  refuse_negated(framework, argument, object);
  if (framework.exchange != nullptr) refuse_lost_storage(framework, argument, object, array.tensor);
}

void refuse_boolean(const char* argument, const Array& array) {
  if (array.boolean) invalid(argument, ".dtype = bool: only `mask` takes booleans");
}

void set_stored_dtype(const char* argument, const char* dtype_argument, PyObject* dtype, Array& array) {
  if (dtype == Py_None) {
    if (!array.raw_bytes) return;
    invalid(argument, ": uint8 needs a format: pass ", dtype_argument, " = \"e4m3\", \"e5m2\" or \"sim8\"");
  }
  const int32_t named = dtype_of_name(dtype);
  const bool eight = named == RAPT_E4M3 || named == RAPT_E5M2 || named == RAPT_SIM8;
  if (!array.raw_bytes && named != array.tensor.dtype)
    invalid(dtype_argument, " = ", shown(dtype), ", but ", argument, " is of ", name_of_dtype(array.tensor.dtype),
            ": only uint8 storage can be given another dtype");
  if (array.raw_bytes && !eight)
    invalid(dtype_argument, " = ", shown(dtype), ": must be \"e4m3\", \"e5m2\" or \"sim8\"");
  array.tensor.dtype = named;
}

void swap_heads(Array& array) {
  const rapt_tensor& tensor = array.tensor;
  if (tensor.rank != 4) return;
  std::copy_n(tensor.shape, 4, array.shape);
  if (tensor.strides != nullptr) {
    std::copy_n(tensor.strides, 4, array.strides);
  } else {
    array.strides[3] = 1;
    for (int i = 2; i >= 0; --i) array.strides[i] = array.strides[i + 1] * array.shape[i + 1];
  }
  std::swap(array.shape[1], array.shape[2]);
  std::swap(array.strides[1], array.strides[2]);
  array.tensor.shape = array.shape;
  array.tensor.strides = array.strides;
}

Ref integers(const int64_t* values, int count) {
  Ref tuple(checked(PyTuple_New(count)));
  for (int i = 0; i < count; ++i) PyTuple_SetItem(tuple.get(), i, checked(PyLong_FromLongLong(values[i])));
  return tuple;
}

Ref allocate_array(const Framework& framework, PyObject* like, const int64_t* shape, int rank, int32_t dtype,
                   bool zeroed) {
  const Ref sizes = integers(shape, rank), name(checked(PyUnicode_FromString(name_of_dtype(dtype))));
  PyObject* const zero = zeroed ? Py_True : Py_False;
  return Ref(
      checked(PyObject_CallFunctionObjArgs(framework.allocate.get(), like, sizes.get(), name.get(), zero, nullptr)));
}

int32_t dtype_of_name(PyObject* object) {
  const Ref text(checked(PyObject_Str(object)));
  const char* const data = PyUnicode_AsUTF8AndSize(text.get(), nullptr);
  if (data == nullptr) throw PythonError{};
  std::string_view name(data);
  if (name.ends_with("'>")) name.remove_suffix(2);                                        // <class 'numpy.float16'>
  if (const size_t dot = name.rfind('.'); dot != name.npos) name.remove_prefix(dot + 1);  // torch.float16
  for (const DtypeName& known : dtype_names)
    if (known.name == name) return known.dtype;
  return RAPT_DTYPE_NONE;
}

const char* name_of_dtype(int32_t dtype) {
  for (const DtypeName& known : dtype_names)
    if (known.dtype == dtype) return known.name.data();
  return dtype == RAPT_U8 ? "uint8" : "none";
}

void report_written(const Framework& framework, PyObject* array) {
  if (!framework.written) return;
  const Ref one(checked(PyTuple_Pack(1, array)));
  if (Ref(PyObject_CallFunctionObjArgs(framework.written.get(), one.get(), nullptr))) return;
  if (!PyErr_ExceptionMatches(PyExc_RuntimeError)) throw PythonError{};
  PyErr_Clear();  // in PyTorch, an inference tensor has no version counter
}

rapt_context* context_of(const Framework& framework, const ContextHandle& given, rapt_device device) {
  if (given.get() != nullptr || device.type != RAPT_DEVICE_CPU || !framework.num_threads) return given.get();
  const Ref number = framework.num_threads.ask();
  checked(number.get());
  const int64_t threads = PyLong_AsLongLong(number.get());
  for (const auto& [known, context] : framework.contexts)
    if (known == threads) return context.get();
  const Ref context(checked(PyObject_CallFunctionObjArgs(framework.context_for.get(), number.get(), nullptr)));
  framework.contexts.emplace_back(threads, ContextHandle(context.get()));
  return framework.contexts.back().second.get();
}

void* current_stream(const Framework& framework, PyObject* like, rapt_device device) {
  if (device.type != RAPT_DEVICE_CUDA) return nullptr;
  if (framework.stream) {
    const Ref handle(checked(PyObject_CallFunctionObjArgs(framework.stream.get(), like, nullptr)));
    void* const stream = PyLong_AsVoidPtr(handle.get());
    if (stream == nullptr && PyErr_Occurred() != nullptr) throw PythonError{};
    return stream;
  }
  void* stream = nullptr;
  if (framework.exchange == nullptr) return nullptr;
  if (framework.exchange->current_work_stream(device.type, device.index, &stream) != 0) throw PythonError{};
  return stream;
}

}  // namespace rapt::python
