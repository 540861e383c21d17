// Detects views whose elements are negated; see negated.h.
#include "negated.h"

#include <dlfcn.h>

#include <cstddef>
#include <cstring>

namespace rapt::python {
namespace {

// The function at::native::is_neg(const at::Tensor&) of the loaded PyTorch, or null.
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
  native_ = reinterpret_cast<bool (*)(void* const&)>(native_function());
  if (native_ == nullptr || !find_place(ordinary, negated) || asked_natively(ordinary) || !asked_natively(negated))
    native_ = nullptr;
}

// Finds the place of PyTorch's Tensor in a Python object. A Tensor is one pointer. The object holds it after its
// header, and its attribute `_cdata` has the value of the pointer. Every object that Python can pass here owns its
// tensor, so the pointer is there.
bool Negated::find_place(PyObject* one, PyObject* other) {
  const auto holds = [](PyObject* object, size_t place) {
    const Ref address(checked(PyObject_GetAttrString(object, "_cdata")));
    void* held = nullptr;
    std::memcpy(&held, reinterpret_cast<const char*>(object) + place, sizeof held);
    return held == PyLong_AsVoidPtr(address.get());
  };
  const auto size = static_cast<size_t>(PyLong_AsLong(
      Ref(checked(PyObject_GetAttrString(reinterpret_cast<PyObject*>(Py_TYPE(one)), "__basicsize__"))).get()));
  for (place_ = sizeof(PyObject); place_ + sizeof(void*) <= size; place_ += sizeof(void*))
    if (holds(one, place_) && holds(other, place_)) return true;
  return false;
}

bool Negated::operator()(PyObject* array) const {
  if (!method_) return false;
  if (native_ != nullptr) return asked_natively(array);
  return Ref(checked(PyObject_CallFunctionObjArgs(method_.get(), array, nullptr))).get() == Py_True;
}

bool Negated::asked_natively(PyObject* array) const {
  return native_(*reinterpret_cast<void* const*>(reinterpret_cast<const char*>(array) + place_));
}

}  // namespace rapt::python
