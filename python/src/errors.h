// Python exceptions: one class for each rapt_status, given by rapt._errors at import. Used by every file here.
#pragma once

#include <locale>
#include <sstream>
#include <string>

#include "python.h"
#include "rapt/rapt.h"

namespace rapt::python {

// classes: a tuple indexed by rapt_status, kept for the life of the process.
void set_error_classes(PyObject* classes);
// Sets the exception of that status. Does not throw.
void set_error(rapt_status status, const std::string& sentence);

template <class... Parts>
[[noreturn]] void invalid(const Parts&... parts) {
  std::ostringstream out;
  out.imbue(std::locale::classic());  // numbers do not follow the program's locale
  (out << ... << parts);
  set_error(RAPT_ERROR_INVALID_ARGUMENT, out.str());
  throw PythonError{};
}

// A short Python value for a sentence: its repr, or its type where that is long.
std::string shown(PyObject* object);
// "numpy.ndarray"
std::string type_name(PyObject* object);
// "float32": an array's own name of its dtype; "" where it has none.
std::string own_dtype(PyObject* array);

}  // namespace rapt::python
