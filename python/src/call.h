// The functions that Python calls for each operation. They convert Python arguments to structs of the C ABI. Used by
// module.cpp.
#pragma once

#include "python.h"

namespace rapt::python {

// Arguments: q, k, v, and options by keyword. sdpa returns out or (out, lse), prepare returns None, explain returns
// str.
PyObject* sdpa(PyObject* module, PyObject* const* args, Py_ssize_t count, PyObject* keywords);
PyObject* prepare(PyObject* module, PyObject* const* args, Py_ssize_t count, PyObject* keywords);
PyObject* explain(PyObject* module, PyObject* const* args, Py_ssize_t count, PyObject* keywords);
// The same functions, but they never call redirect(). redirect() is the Python function of a framework that takes over
// some calls, for example under torch.compile. It calls these functions, so they must not redirect again.
PyObject* sdpa_here(PyObject* module, PyObject* const* args, Py_ssize_t count, PyObject* keywords);
PyObject* prepare_here(PyObject* module, PyObject* const* args, Py_ssize_t count, PyObject* keywords);
PyObject* explain_here(PyObject* module, PyObject* const* args, Py_ssize_t count, PyObject* keywords);

// From parameters.cpp: a dict {option: default}, in order.
PyObject* defaults(PyObject* module, PyObject* none);
// The rows of the table in src/arguments/sdpa_arguments.h, as tuples in the table's order. python/rapt/_signature.py
// lists the members of each row.
PyObject* sdpa_table(PyObject* module, PyObject* none);
// The docstring of sdpa; inspect reads the signature from it.
const char* signature_text();

// Arguments: outs, lses, sinks, lse, out, out_dtype, context. Returns out or (out, lse).
PyObject* merge(PyObject* module, PyObject* const* args, Py_ssize_t count);

// These functions write to the given arrays and return None. Their definitions list the arguments.
PyObject* quantize(PyObject* module, PyObject* const* args, Py_ssize_t count);
PyObject* kv_append(PyObject* module, PyObject* const* args, Py_ssize_t count);
PyObject* rotary_tables(PyObject* module, PyObject* const* args, Py_ssize_t count);
PyObject* qk(PyObject* module, PyObject* const* args, Py_ssize_t count);
PyObject* gemm(PyObject* module, PyObject* const* args, Py_ssize_t count);

}  // namespace rapt::python
