// Exceptions of Python for the status codes of rapt; see errors.h.
#include "errors.h"

namespace rapt::python {
namespace {

PyObject* error_classes = nullptr;

std::string text_of(const Ref& text) {
  Py_ssize_t size = 0;
  const char* const data = text ? PyUnicode_AsUTF8AndSize(text.get(), &size) : nullptr;
  if (data != nullptr) return {data, static_cast<size_t>(size)};
  PyErr_Clear();
  return "?";
}

}  // namespace

void set_error_classes(PyObject* classes) {
  Py_XDECREF(error_classes);
  error_classes = Py_NewRef(classes);
}

void set_error(rapt_status status, const std::string& sentence) {
  PyObject* found = error_classes ? PyTuple_GetItem(error_classes, static_cast<Py_ssize_t>(status)) : nullptr;
  if (found == nullptr) PyErr_Clear();
  PyErr_SetString(found ? found : PyExc_RuntimeError, sentence.c_str());
}

std::string type_name(PyObject* object) {
  PyObject* const type = reinterpret_cast<PyObject*>(Py_TYPE(object));
  const std::string module = text_of(Ref(PyObject_GetAttrString(type, "__module__")));
  const std::string name = text_of(Ref(PyObject_GetAttrString(type, "__qualname__")));
  PyErr_Clear();
  return module == "builtins" ? name : module + "." + name;
}

std::string own_dtype(PyObject* array) {
  const Ref dtype(PyObject_GetAttrString(array, "dtype"));
  std::string name = dtype ? text_of(Ref(PyObject_Str(dtype.get()))) : "";
  PyErr_Clear();
  return name.starts_with("torch.") ? name.substr(6) : name;
}

std::string shown(PyObject* object) {
  const std::string text = text_of(Ref(PyObject_Repr(object)));
  return text.size() <= 60 ? text : "a " + type_name(object);
}

}  // namespace rapt::python
