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

// The value of one of these words. Throws a sentence with all words otherwise.
int32_t word_value(const char* argument, PyObject* object, std::span<const Word> words);
inline int32_t word_value(const char* argument, PyObject* object, std::initializer_list<Word> words) {
  return word_value(argument, object, std::span(words.begin(), words.size()));
}
bool is_word(PyObject* object, const char* word);
// "tensor", "head", ...: a rapt_scale_kind
int32_t scale_kind(const char* argument, PyObject* object);
// True or False only, not other values that count as true or false.
bool boolean(const char* argument, PyObject* object);
int64_t integer(const char* argument, PyObject* object);
// A Python or NumPy number. An array is refused, because reading it could wait for a GPU.
double number(const char* argument, PyObject* object);
inline constexpr char context_capsule[] = "rapt.context";
// (capsule, number) of a new context. It lives as long as the capsule and the results of context_numbered().
PyObject* wrapped_context(rapt_context* context);
// The context with this number, for callers without the interpreter's lock (XLA). Empty for 0 and for a deleted one.
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
