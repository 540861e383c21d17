// Whether an array is a view that flips the sign of its memory, as PyTorch's Tensor.is_neg() tells. Asked for every
// tensor of every call, so by the shortest way there is. Used by arrays.cpp.
#pragma once

#include "python.h"

namespace rapt::python {

class Negated {
 public:
  // method(array) -> bool, which is right but gives the interpreter's lock away and takes it back; null: never negated.
  // `examples`, a tuple of an ordinary and a negated tensor, try PyTorch's C++ function instead; null: not tried.
  void set(Ref method, PyObject* examples);
  // Throws PythonError.
  bool operator()(PyObject* array) const;

 private:
  bool find_place(PyObject* one, PyObject* other);
  bool asked_natively(PyObject* array) const;

  Ref method_;
  bool (*native_)(void* const& tensor) = nullptr;  // at::native::is_neg: an at::Tensor is one pointer to its TensorImpl
  size_t place_ = 0;                               // of the tensor in its Python object, in bytes
};

}  // namespace rapt::python
