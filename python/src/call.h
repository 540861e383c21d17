// Entry points of the operations: Python arguments as structures of the C ABI. Used by module.cpp.
#pragma once

#include "python.h"

namespace rapt::python {

// (q, k, v, options by keyword) -> out or (out, lse); None; str.
PyObject* sdpa(PyObject* module, PyObject* const* args, Py_ssize_t count, PyObject* keywords);
PyObject* prepare(PyObject* module, PyObject* const* args, Py_ssize_t count, PyObject* keywords);
PyObject* explain(PyObject* module, PyObject* const* args, Py_ssize_t count, PyObject* keywords);
// The same, never handed to the framework's redirect(): what that one calls in the end.
PyObject* sdpa_here(PyObject* module, PyObject* const* args, Py_ssize_t count, PyObject* keywords);
PyObject* prepare_here(PyObject* module, PyObject* const* args, Py_ssize_t count, PyObject* keywords);
PyObject* explain_here(PyObject* module, PyObject* const* args, Py_ssize_t count, PyObject* keywords);
// {option: default} in order: a test compares it with the signature in python/rapt/_signature.py.
PyObject* defaults(PyObject* module, PyObject* none);

// (outs, lses, sinks, lse, out, out_dtype, context) -> out or (out, lse)
PyObject* merge(PyObject* module, PyObject* const* args, Py_ssize_t count);

// These write to arrays that they are given, and return None; their arguments are listed where they are defined.
PyObject* quantize(PyObject* module, PyObject* const* args, Py_ssize_t count);
PyObject* qk(PyObject* module, PyObject* const* args, Py_ssize_t count);
PyObject* gemm(PyObject* module, PyObject* const* args, Py_ssize_t count);

}  // namespace rapt::python
