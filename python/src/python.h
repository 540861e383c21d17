// Includes Python's C API, limited to the functions that every CPython since 3.10 has (so one abi3 wheel is
// sufficient). Defines Ref, which owns a reference. Every file here includes this file first.
#pragma once

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030A0000
#include <Python.h>

#include <cstring>
#include <utility>

namespace rapt::python {

// Owns one reference. It is null after a failed call; then the Python exception is set.
class Ref {
 public:
  explicit Ref(PyObject* owned = nullptr) : object_(owned) {}
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref& operator=(Ref&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Ref() { Py_XDECREF(object_); }

  static Ref of(PyObject* borrowed) { return Ref(Py_XNewRef(borrowed)); }
  PyObject* get() const { return object_; }
  PyObject* release() { return std::exchange(object_, nullptr); }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_;
};

// A Python function without arguments. If it is implemented by a C function, the C function is called directly.
class NoArgsFunction {
 public:
  explicit NoArgsFunction(Ref function = Ref()) : function_(std::move(function)) {
    PyObject* const object = function_.get();
    if (object == nullptr || !PyCFunction_Check(object) || PyCFunction_GetFlags(object) != METH_NOARGS) return;
    direct_ = PyCFunction_GetFunction(object);
    self_ = PyCFunction_GetSelf(object);
  }
  explicit operator bool() const { return bool{function_}; }
  // Null if it raised.
  Ref ask() const {
    return Ref(direct_ != nullptr ? direct_(self_, nullptr) : PyObject_CallFunctionObjArgs(function_.get(), nullptr));
  }

 private:
  Ref function_;
  PyCFunction direct_ = nullptr;
  PyObject* self_ = nullptr;
};

// An attribute of a type that is written in C, and of its subclasses. If the attribute has a C getter, the getter is
// called directly.
class Attribute {
 public:
  Attribute() = default;
  Attribute(PyTypeObject* type, const char* name) : type_(type), name_(PyUnicode_InternFromString(name)) {
    for (; type != nullptr && getter_ == nullptr; type = static_cast<PyTypeObject*>(PyType_GetSlot(type, Py_tp_base))) {
      const auto* found = static_cast<const PyGetSetDef*>(PyType_GetSlot(type, Py_tp_getset));
      for (; found != nullptr && found->name != nullptr; ++found)
        if (std::strcmp(found->name, name) == 0) getter_ = found->get, closure_ = found->closure;
    }
  }
  bool is_direct() const { return getter_ != nullptr; }
  // Null if it raised.
  Ref of(PyObject* object) const {
    const bool direct =
        getter_ != nullptr && (Py_TYPE(object) == type_ || PyType_IsSubtype(Py_TYPE(object), type_) != 0);
    return Ref(direct ? getter_(object, closure_) : PyObject_GetAttr(object, name_.get()));
  }

 private:
  PyTypeObject* type_ = nullptr;
  Ref name_;
  getter getter_ = nullptr;
  void* closure_ = nullptr;
};

// Thrown if a Python exception is set. Each entry point catches it and returns null.
struct PythonError {};

inline PyObject* checked(PyObject* object) {
  if (object == nullptr) throw PythonError{};
  return object;
}

}  // namespace rapt::python
