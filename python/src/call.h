// One call of rapt.sdpa, rapt.prepare or rapt.explain: its positional arguments as rapt_sdpa_args. Used by module.cpp.
#pragma once

#include "python.h"

namespace rapt::python {

// (q, k, v, layout, causal, ... in the order of argument_names()) -> out, (out, lse); None; str.
PyObject* sdpa(PyObject* module, PyObject* const* args, Py_ssize_t count);
PyObject* prepare(PyObject* module, PyObject* const* args, Py_ssize_t count);
PyObject* explain(PyObject* module, PyObject* const* args, Py_ssize_t count);
// The parameters' names in order: python/rapt passes them so, and a test compares.
PyObject* argument_names(PyObject* module, PyObject* none);

// (outs, lses, sinks, lse, out, out_dtype, context) -> out or (out, lse)
PyObject* merge(PyObject* module, PyObject* const* args, Py_ssize_t count);

}  // namespace rapt::python
