// Entry points of the operations: convert Python arguments to structs of the C ABI. Used by module.cpp.
#pragma once

#include "python.h"

namespace rapt::python {

// (q, k, v, options by keyword) -> out or (out, lse); None; str.
PyObject* sdpa(PyObject* module, PyObject* const* args, Py_ssize_t count, PyObject* keywords);
PyObject* prepare(PyObject* module, PyObject* const* args, Py_ssize_t count, PyObject* keywords);
PyObject* explain(PyObject* module, PyObject* const* args, Py_ssize_t count, PyObject* keywords);
// The same without the framework's redirect(), which calls these in the end.
PyObject* sdpa_here(PyObject* module, PyObject* const* args, Py_ssize_t count, PyObject* keywords);
PyObject* prepare_here(PyObject* module, PyObject* const* args, Py_ssize_t count, PyObject* keywords);
PyObject* explain_here(PyObject* module, PyObject* const* args, Py_ssize_t count, PyObject* keywords);

// From parameters.cpp: {option: default} in order;
PyObject* defaults(PyObject* module, PyObject* none);
// ((array, parameter, has a batch dimension, is differentiable), ...), ((value, parameter or None, "real", "integer" or
// "word", its RAPT_HAS bit, {word: value} or None), ...), ((parameter, its flag), ...), each in the table's order;
PyObject* sdpa_table(PyObject* module, PyObject* none);
// The docstring of sdpa; inspect reads the signature from it.
const char* signature_text();

// (outs, lses, sinks, lse, out, out_dtype, context) -> out or (out, lse)
PyObject* merge(PyObject* module, PyObject* const* args, Py_ssize_t count);

// These write to the given arrays and return None. Their definitions list the arguments.
PyObject* quantize(PyObject* module, PyObject* const* args, Py_ssize_t count);
PyObject* qk(PyObject* module, PyObject* const* args, Py_ssize_t count);
PyObject* gemm(PyObject* module, PyObject* const* args, Py_ssize_t count);

}  // namespace rapt::python
