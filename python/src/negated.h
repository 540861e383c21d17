// Detects views that flip the sign of their memory, like PyTorch's Tensor.is_neg(). This runs for every tensor of every
// call, so it uses the fastest way available. Used by arrays.cpp.
#pragma once

#include "python.h"

namespace rapt::python {

class Negated {
 public:
  // method: method(array) -> bool. It is correct, but slow, because it releases and reacquires the interpreter's lock.
  // If it is null, no array is negated. examples: an ordinary and a negated tensor. If they are given, PyTorch's C++
  // function is tested on them, and used if it works.
  void set(Ref method, PyObject* examples);
  // True if the array's memory holds the negated values. Throws PythonError.
  bool operator()(PyObject* array) const;

 private:
  bool find_place(PyObject* one, PyObject* other);
  bool asked_natively(PyObject* array) const;

  Ref method_;
  bool (*native_)(void* const& tensor) = nullptr;  // at::native::is_neg: an at::Tensor is one pointer to its TensorImpl
  size_t place_ = 0;                               // offset of the tensor in its Python object, in bytes
};

}  // namespace rapt::python
