// Parses a problem line with the library's own parser, for rapt._core.parse_problem.
#pragma once

#include "python.h"

namespace rapt::python {

// Converts a problem line (str) to a dict: {"line": the canonical line, "dtypes": the dtypes of q, k and v, "out": ...,
// "b": ..., ...}. Returns null if it raised an exception.
PyObject* parse_problem_line(PyObject* module, PyObject* line);

}  // namespace rapt::python
