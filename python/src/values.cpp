// Converts Python values to numbers; see values.h.
#include "values.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <string>

#include "errors.h"

namespace rapt::python {
namespace {

// A value's own methods can raise an exception that only means "the value has another type". Clears such exceptions.
// Other ones, such as KeyboardInterrupt, stay.
void clear_refusal() {
  for (PyObject* const kind : {PyExc_TypeError, PyExc_ValueError, PyExc_OverflowError, PyExc_AttributeError})
    if (PyErr_ExceptionMatches(kind)) return PyErr_Clear();
  if (PyErr_Occurred() != nullptr) throw PythonError{};
}

struct Contexts {
  std::mutex mutex;
  std::map<int64_t, std::shared_ptr<rapt_context>> living;
  int64_t last = 0;
};
Contexts& contexts() {
  static Contexts* const all = new Contexts;  // never destroyed, because XLA's threads can run while the process exits
  return *all;
}

void release_context(PyObject* capsule) {
  const void* const context = PyCapsule_GetPointer(capsule, context_capsule);
  std::shared_ptr<rapt_context> held;  // declared before the lock, so it is destroyed after the mutex is unlocked
  const std::lock_guard lock(contexts().mutex);
  auto& living = contexts().living;
  const auto found = std::find_if(living.begin(), living.end(), [&](auto& one) { return one.second.get() == context; });
  if (found == living.end()) return;
  held = std::move(found->second);
  living.erase(found);
}

}  // namespace

PyObject* wrapped_context(rapt_context* context) {
  std::shared_ptr<rapt_context> held(context, rapt_context_destroy);
  const Ref capsule(checked(PyCapsule_New(context, context_capsule, release_context)));
  int64_t number = 0;
  {
    const std::lock_guard lock(contexts().mutex);
    number = ++contexts().last;
    contexts().living.emplace(number, std::move(held));
  }
  return Py_BuildValue("OL", capsule.get(), static_cast<long long>(number));
}

std::shared_ptr<rapt_context> context_numbered(int64_t number) {
  const std::lock_guard lock(contexts().mutex);
  const auto found = contexts().living.find(number);
  return found == contexts().living.end() ? nullptr : found->second;
}

bool is_word(PyObject* object, const char* word) {
  return PyUnicode_Check(object) && PyUnicode_CompareWithASCIIString(object, word) == 0;
}

int32_t word_value(const char* argument, PyObject* object, std::span<const Word> words) {
  std::string list;
  for (const Word& known : words) {
    if (is_word(object, known.word)) return known.value;
    list.append(list.empty() ? "\"" : ", \"").append(known.word).append("\"");
  }
  invalid(argument, " = ", shown(object), ": must be one of ", list);
}

int32_t scale_kind(const char* argument, PyObject* object) { return word_value(argument, object, scale_words); }

bool boolean(const char* argument, PyObject* object) {
  if (object == Py_True) return true;
  if (object != Py_False) invalid(argument, " = ", shown(object), ": must be True or False");
  return false;
}

int64_t integer(const char* argument, PyObject* object) {
  if (PyBool_Check(object) || PyObject_HasAttrString(object, "__dlpack__"))
    invalid(argument, " = ", shown(object), ": must be an int");
  const Ref index(PyNumber_Index(object));
  const int64_t value = index ? PyLong_AsLongLong(index.get()) : 0;
  if (PyErr_Occurred() != nullptr) {
    clear_refusal();
    invalid(argument, " = ", shown(object), ": must be an int of 64 bits");
  }
  return value;
}

double number(const char* argument, PyObject* object) {
  if (PyBool_Check(object) || PyObject_HasAttrString(object, "__dlpack__"))
    invalid(argument, " = ", shown(object), ": must be a number");
  const double value = PyFloat_AsDouble(object);
  if (value == -1.0 && PyErr_Occurred() != nullptr) {
    clear_refusal();
    invalid(argument, " = ", shown(object), ": must be a number");
  }
  return value;
}

ContextHandle::ContextHandle(PyObject* object) {
  if (object == Py_None) return;
  capsule_ = Ref(PyObject_GetAttrString(object, "_handle"));
  context_ = static_cast<rapt_context*>(capsule_ ? PyCapsule_GetPointer(capsule_.get(), context_capsule) : nullptr);
  if (context_ != nullptr) return;
  clear_refusal();
  invalid("context = ", shown(object), ": must be a rapt.Context or None");
}

void check(rapt_status status) {
  if (status == RAPT_OK) return;
  set_error(status, rapt_last_error());
  throw PythonError{};
}

}  // namespace rapt::python
