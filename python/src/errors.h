// Python exceptions: one class for each rapt_status, passed by rapt._errors at import. Used by every file here.
#pragma once

#include <locale>
#include <sstream>
#include <string>

#include "python.h"
#include "rapt/rapt.h"

namespace rapt::python {

// classes: a tuple of exception classes. The index is a rapt_status. It is kept until the process ends.
void set_error_classes(PyObject* classes);
// Sets the exception for the status. Does not throw.
void set_error(rapt_status status, const std::string& sentence);

template <class... Parts>
[[noreturn]] void invalid(const Parts&... parts) {
  std::ostringstream out;
  out.imbue(std::locale::classic());  // numbers must not depend on the program's locale
  (out << ... << parts);
  set_error(RAPT_ERROR_INVALID_ARGUMENT, out.str());
  throw PythonError{};
}

// The text for a Python value in a sentence: its repr, or its type if the repr is long.
std::string shown(PyObject* object);
// The name of the object's type: "numpy.ndarray".
std::string type_name(PyObject* object);
// The array's own name for its dtype: "float32". "" if it has none.
std::string own_dtype(PyObject* array);

}  // namespace rapt::python
