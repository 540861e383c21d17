// rapt._core: the only compiled module of the Python package. It calls the C ABI. Imported by python/rapt, and by
// bench/suites.py for parse_problem.
#include <iterator>
#include <string>

#include "arrays.h"
#include "call.h"
#include "errors.h"
#include "problem_line.h"
#include "rapt/rapt.h"
#include "values.h"
#include "xla.h"

namespace rapt::python {
namespace {

PyObject* version(PyObject*, PyObject*) { return PyUnicode_FromString(rapt_version()); }

PyObject* set_errors(PyObject*, PyObject* classes) {
  set_error_classes(classes);
  Py_RETURN_NONE;
}

// make_context(num_threads) returns (capsule, number).
PyObject* make_context(PyObject*, PyObject* threads) {
  try {
    rapt_context_options options{};
    options.struct_size = sizeof options;
    const int64_t wanted = integer("num_threads", threads);
    if (wanted < 0 || wanted > 4096) invalid("num_threads = ", wanted, ": must be 0 (automatic) to 4096");
    options.num_threads = static_cast<int32_t>(wanted);
    rapt_context* context = nullptr;
    check(rapt_context_create(&options, &context));
    return wrapped_context(context);
  } catch (const PythonError&) {
    return nullptr;
  }
}

// load_pack(context, path). The path is UTF-8 bytes or str.
PyObject* load_pack(PyObject*, PyObject* args) {
  PyObject* context;
  const char* path;
  if (!PyArg_ParseTuple(args, "Os:load_pack", &context, &path)) return nullptr;
  try {
    const ContextHandle handle(context);
    call_c([&] { return rapt_load_pack(handle.get(), path); });
    Py_RETURN_NONE;
  } catch (const PythonError&) {
    return nullptr;
  }
}

// xla_targets() returns ((target, platform, capsule), ...). jax.ffi.register_ffi_target needs these values.
PyObject* xla_targets(PyObject*, PyObject*) {
  struct Target {
    const char *name, *platform;
    XlaError* (*handler)(XlaCallFrame*);
  };
  constexpr Target targets[] = {{"rapt_sdpa", "cpu", xla_sdpa_cpu},
                                {"rapt_sdpa", "CUDA", xla_sdpa_cuda},
                                {"rapt_merge", "cpu", xla_merge_cpu},
                                {"rapt_merge", "CUDA", xla_merge_cuda},
                                {"rapt_quantize", "cpu", xla_quantize_cpu},
                                {"rapt_quantize", "CUDA", xla_quantize_cuda},
                                {"rapt_qk", "cpu", xla_qk_cpu},
                                {"rapt_qk", "CUDA", xla_qk_cuda},
                                {"rapt_gemm", "cpu", xla_gemm_cpu},
                                {"rapt_gemm", "CUDA", xla_gemm_cuda}};
  Ref all(PyTuple_New(std::size(targets)));
  for (size_t i = 0; all && i < std::size(targets); ++i) {
    const Ref capsule(PyCapsule_New(reinterpret_cast<void*>(targets[i].handler), "xla._CUSTOM_CALL_TARGET", nullptr));
    PyObject* const entry = Py_BuildValue("(ssO)", targets[i].name, targets[i].platform, capsule.get());
    if (entry == nullptr || PyTuple_SetItem(all.get(), static_cast<Py_ssize_t>(i), entry) != 0) return nullptr;
  }
  return all.release();
}

template <class Function>
PyCFunction fast(Function* function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

PyMethodDef methods[] = {
    {"sdpa", fast(sdpa), METH_FASTCALL | METH_KEYWORDS, nullptr},  // signature_text()
    {"prepare", fast(prepare), METH_FASTCALL | METH_KEYWORDS, "rapt_prepare with the same arguments."},
    {"explain", fast(explain), METH_FASTCALL | METH_KEYWORDS, "rapt_explain with the same arguments."},
    {"sdpa_here", fast(sdpa_here), METH_FASTCALL | METH_KEYWORDS, "sdpa without redirect()."},
    {"prepare_here", fast(prepare_here), METH_FASTCALL | METH_KEYWORDS, "prepare without redirect()."},
    {"explain_here", fast(explain_here), METH_FASTCALL | METH_KEYWORDS, "explain without redirect()."},
    {"merge", fast(merge), METH_FASTCALL, "rapt_merge: (outs, lses, sinks, lse, out, out_dtype, context)."},
    {"quantize", fast(quantize), METH_FASTCALL, "rapt_quantize into given arrays: see quantize.cpp."},
    {"kv_append", fast(kv_append), METH_FASTCALL, "rapt_kv_append into given arrays: see kv_append.cpp."},
    {"rotary_tables", fast(rotary_tables), METH_FASTCALL, "rapt_rotary_tables: see kv_append.cpp."},
    {"qk", fast(qk), METH_FASTCALL, "rapt_qk into a given array: see products.cpp."},
    {"gemm", fast(gemm), METH_FASTCALL, "rapt_gemm into a given array: see products.cpp."},
    {"defaults", defaults, METH_NOARGS, "{option: default} of sdpa."},
    {"sdpa_table", sdpa_table, METH_NOARGS,
     "The arrays, values, flags and texts of rapt_sdpa_args; see _signature.py."},
    {"register_framework", register_framework, METH_VARARGS,
     "Registers the functions of a framework for its array types."},
    {"set_errors", set_errors, METH_O, "The exception classes, a tuple indexed by rapt_status."},
    {"make_context", make_context, METH_O, "(capsule, number) of a new rapt_context with that many CPU threads."},
    {"load_pack", load_pack, METH_VARARGS, "rapt_load_pack(context, path)."},
    {"xla_targets", xla_targets, METH_NOARGS, "(target, platform, capsule) of each XLA foreign function."},
    {"parse_problem", parse_problem_line, METH_O, "{field: value} of a problem line, for bench/."},
    {"version", version, METH_NOARGS, "The library's version."},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef definition = {PyModuleDef_HEAD_INIT,
                          "rapt._core",
                          "rapt's C ABI for python/rapt.",
                          -1,
                          methods,
                          nullptr,
                          nullptr,
                          nullptr,
                          nullptr};

}  // namespace
}  // namespace rapt::python

PyMODINIT_FUNC PyInit__core() {
  rapt::python::methods[0].ml_doc = rapt::python::signature_text();
  return PyModule_Create(&rapt::python::definition);
}
