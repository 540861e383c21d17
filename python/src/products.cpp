// rapt.qk and rapt.gemm. They write to an array that python/rapt has allocated. Called by python/rapt.
#include "call.h"
#include "reading.h"

namespace rapt::python {
namespace {

// The kind of scales. python/rapt/_products.py has checked that descale and scales are given together.
int32_t scales_of(const char* name, PyObject* kind) {
  return kind == Py_None ? int32_t{RAPT_SCALE_NONE} : scale_kind(name, kind);
}

// args: q, k, out, q_descale, k_descale, q_scales, k_scales, q_dtype, k_dtype, layout, scale, context
void run_qk(PyObject* const* args) {
  const bool swapped = word_value("layout", args[9], {{"bhsd", 0}, {"bshd", 1}}) != 0;
  Reading reading("q", args[0]);
  rapt_qk_args call{};
  call.struct_size = sizeof call;
  call.q = reading.stored("q", args[0], "q_dtype", args[7]);
  if (swapped) swap_heads(reading.last());
  call.k = reading.stored("k", args[1], "k_dtype", args[8]);
  if (swapped) swap_heads(reading.last());
  call.out = reading.output("out", args[2]);
  call.q_descale = reading.input("q_descale", args[3]), call.k_descale = reading.input("k_descale", args[4]);
  call.q_scales = scales_of("q_scales", args[5]), call.k_scales = scales_of("k_scales", args[6]);
  if (args[10] != Py_None) call.has |= RAPT_QK_HAS_SCALE, call.scale = number("scale", args[10]);
  reading.call(args[11], rapt_qk, call);
  report_written(reading.framework(), args[2]);
}

// args: a, b, out, a_descale, b_descale, a_scales, b_scales, a_dtype, b_dtype, context
void run_gemm(PyObject* const* args) {
  Reading reading("a", args[0]);
  rapt_gemm_args call{};
  call.struct_size = sizeof call;
  call.a = reading.stored("a", args[0], "a_dtype", args[7]);
  call.b = reading.stored("b", args[1], "b_dtype", args[8]);
  call.out = reading.output("out", args[2]);
  call.a_descale = reading.input("a_descale", args[3]), call.b_descale = reading.input("b_descale", args[4]);
  call.a_scales = scales_of("a_scales", args[5]), call.b_scales = scales_of("b_scales", args[6]);
  reading.call(args[9], rapt_gemm, call);
  report_written(reading.framework(), args[2]);
}

}  // namespace

PyObject* qk(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return guarded("qk", count, 12, [&] {
    run_qk(args);
    return Py_NewRef(Py_None);
  });
}

PyObject* gemm(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return guarded("gemm", count, 10, [&] {
    run_gemm(args);
    return Py_NewRef(Py_None);
  });
}

}  // namespace rapt::python
