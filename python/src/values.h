// Converts Python values to numbers of the C ABI. A wrong value raises with a sentence that names the argument. Used by
// call.cpp, merge.cpp.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>

#include "arguments/sdpa_arguments.h"
#include "python.h"
#include "rapt/rapt.h"

namespace rapt::python {

// The value of the word that `object` is. If it is none of these words, throws a sentence that lists them.
int32_t word_value(const char* argument, PyObject* object, std::span<const Word> words);
inline int32_t word_value(const char* argument, PyObject* object, std::initializer_list<Word> words) {
  return word_value(argument, object, std::span(words.begin(), words.size()));
}
bool is_word(PyObject* object, const char* word);
// The rapt_scale_kind of "tensor", "head", ...
int32_t scale_kind(const char* argument, PyObject* object);
// The value of True or False. Throws for all other values, also for those that Python treats as true or false.
bool boolean(const char* argument, PyObject* object);
int64_t integer(const char* argument, PyObject* object);
// The value of a Python or NumPy number. Throws for an array, because reading it could wait for a GPU.
double number(const char* argument, PyObject* object);
inline constexpr char context_capsule[] = "rapt.context";
// Returns (capsule, number) for a new context. The context lives until the capsule and all results of
// context_numbered() are destroyed.
PyObject* wrapped_context(rapt_context* context);
// The context with this number. Callers (XLA) need not hold the interpreter's lock. Empty if the number is 0, or if the
// context was deleted.
std::shared_ptr<rapt_context> context_numbered(int64_t number);
// The context in the capsule of a rapt.Context; it lives as long as this object. None gives null, the process default.
class ContextHandle {
 public:
  explicit ContextHandle(PyObject* object = Py_None);
  rapt_context* get() const { return context_; }

 private:
  Ref capsule_;
  rapt_context* context_ = nullptr;
};
// Calls the C ABI without the interpreter's lock. Sets the Python exception and throws PythonError on failure.
template <class Body>
void call_c(const Body& body);
void check(rapt_status status);

template <class Body>
void call_c(const Body& body) {
  PyThreadState* const state = PyEval_SaveThread();
  const rapt_status status = body();
  PyEval_RestoreThread(state);
  check(status);
}

}  // namespace rapt::python
