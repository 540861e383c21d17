// Parses a problem line with the library's own parser, for rapt._core.parse_problem.
#pragma once

#include "python.h"

namespace rapt::python {

// line (str) -> {"line": the canonical line, "dtypes": of q, k, v, "out": ..., "b": ..., ...}; null if it raised.
PyObject* parse_problem_line(PyObject* module, PyObject* line);

}  // namespace rapt::python
