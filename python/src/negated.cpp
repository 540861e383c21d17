#include "negated.h"

#include <dlfcn.h>

#include <cstring>

namespace rapt::python {
namespace {

// The C function behind an attribute, defined by the type or a base of it; null where there is none.
const PyGetSetDef* attribute_of(PyTypeObject* type, const char* name) {
  for (; type != nullptr; type = static_cast<PyTypeObject*>(PyType_GetSlot(type, Py_tp_base))) {
    const auto* found = static_cast<const PyGetSetDef*>(PyType_GetSlot(type, Py_tp_getset));
    for (; found != nullptr && found->name != nullptr; ++found)
      if (std::strcmp(found->name, name) == 0) return found;
  }
  return nullptr;
}

// at::native::is_neg(const at::Tensor&) of the PyTorch that is loaded.
void* native_function() {
  void* const library = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
  return library == nullptr ? nullptr : dlsym(library, "_ZN2at6native6is_negERKNS_6TensorE");
}

}  // namespace

void Negated::set(Ref method, PyObject* examples) {
  method_ = std::move(method);
  if (!method_ || examples == nullptr) return;
  PyObject *ordinary = nullptr, *negated = nullptr;
  if (!PyArg_ParseTuple(examples, "OO:negated", &ordinary, &negated)) throw PythonError{};
  const PyGetSetDef* const address = attribute_of(Py_TYPE(ordinary), "_cdata");
  native_ = reinterpret_cast<bool (*)(void* const&)>(native_function());
  if (address != nullptr) address_ = address->get, closure_ = address->closure;
  if (native_ == nullptr || address_ == nullptr || asked_natively(ordinary) || !asked_natively(negated))
    native_ = nullptr;
}

bool Negated::operator()(PyObject* array) const {
  if (!method_) return false;
  if (native_ != nullptr) return asked_natively(array);
  return Ref(checked(PyObject_CallFunctionObjArgs(method_.get(), array, nullptr))).get() == Py_True;
}

bool Negated::asked_natively(PyObject* array) const {
  const Ref address(checked(address_(array, closure_)));
  void* const tensor = PyLong_AsVoidPtr(address.get());
  if (tensor == nullptr && PyErr_Occurred() != nullptr) throw PythonError{};
  return native_(tensor);
}

}  // namespace rapt::python
