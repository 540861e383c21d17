// The arrays of one call of merge, quantize, qk or gemm. All must be of one framework; the views live as long as this
// object. Used by merge.cpp, quantize.cpp and products.cpp; call.cpp has its own code, which is faster.
#pragma once

#include <deque>
#include <vector>

#include "arrays.h"
#include "errors.h"
#include "values.h"

namespace rapt::python {

class Reading {
 public:
  // `first` is a borrowed reference to the argument with this name. Its type selects the framework.
  Reading(const char* name, PyObject* first) : name_(name), first_(first), framework_(framework_of(first)) {
    if (framework_ == nullptr) invalid(name, ": a ", type_name(first), ": not an array of a framework that rapt knows");
  }
  const Framework& framework() const { return *framework_; }

  // Reads an input. Returns null for None. The caller must hold a reference to the object.
  const rapt_tensor* input(const char* name, PyObject* object) {
    if (object == Py_None) return nullptr;
    if (framework_of(object) != framework_)
      invalid(name, ": a ", type_name(object), ", but ", name_, " is of ", framework_->name,
              ": all arrays of a call come from one framework");
    read_array(*framework_, name, object, arrays_.emplace_back());
    refuse_boolean(name, arrays_.back());
    return &arrays_.back().tensor;
  }
  // Reads an input that can be stored as uint8.
  const rapt_tensor* stored(const char* name, PyObject* object, const char* dtype_name, PyObject* dtype) {
    const rapt_tensor* const tensor = input(name, object);
    if (tensor != nullptr) set_stored_dtype(name, dtype_name, dtype, arrays_.back());
    return tensor;
  }
  const rapt_tensor* output(const char* name, PyObject* object) {
    const rapt_tensor* const tensor = input(name, object);
    if (tensor != nullptr && arrays_.back().read_only)
      invalid(name, ": a read-only array: must be writable, because it is an output");
    return tensor;
  }
  // The array that was read last.
  Array& last() { return arrays_.back(); }

  // Calls function(context, args, stream) of the C ABI on the framework's stream.
  template <class Function, class Args>
  void call(PyObject* context_object, Function* function, const Args& args) const {
    const ContextHandle given(context_object);
    const rapt_device device = arrays_.front().tensor.device;
    rapt_context* const context = context_of(*framework_, given, device);
    void* const stream = current_stream(*framework_, first_, device);
    call_c([&] { return function(context, &args, stream); });
  }

 private:
  const char* name_;
  PyObject* first_;
  const Framework* framework_;
  std::deque<Array> arrays_;  // views point into it
};

// Runs the body of a function that Python calls. If the body throws, sets the Python exception and returns null.
template <class Body>
PyObject* guarded(const char* operation, Py_ssize_t count, Py_ssize_t expected, const Body& body) {
  try {
    if (count != expected) invalid(operation, ": ", count, " arguments: must be ", expected);
    return body();
  } catch (const PythonError&) {
    return nullptr;
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
}

}  // namespace rapt::python
