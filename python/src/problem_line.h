// A problem line read by the library's own parser, for rapt._core.parse_problem.
#pragma once

#include "python.h"

namespace rapt::python {

// line (str) -> {"line": the canonical one, "dtypes": of q, k, v, "out": ..., "b": ..., ...}; null where it raised.
PyObject* parse_problem_line(PyObject* module, PyObject* line);

}  // namespace rapt::python
