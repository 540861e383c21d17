// The parameters of rapt.sdpa, prepare and explain, and how a vectorcall's values are put in their order. Used by
// call.cpp; python/rapt/_signature.py describes the same ones, and a test compares the two.
#pragma once

#include <algorithm>

#include "python.h"

namespace rapt::python {

// In the order of rapt.sdpa's parameters; those before layout are positional.
// clang-format off
enum Parameter : int {
  p_q, p_k, p_v, p_layout, p_causal, p_window, p_softcap, p_bias, p_mask, p_alibi_slopes, p_sinks, p_scale, p_lse, p_out,
  p_out_dtype, p_cu_seqlens_q, p_cu_seqlens_k, p_max_seqlen_q, p_max_seqlen_k, p_seqused_q, p_seqused_k, p_q_start, p_k_start,
  p_q_descale, p_k_descale, p_v_descale, p_q_scales, p_k_scales, p_v_scales, p_k_mean, p_q_dtype, p_k_dtype, p_v_dtype,
  p_pv, p_acc, p_partial, p_invariant, p_check_contents, p_splits, p_context, parameter_count
};
inline constexpr const char* parameter_names[parameter_count] = {
  "q", "k", "v", "layout", "causal", "window", "softcap", "bias", "mask", "alibi_slopes", "sinks", "scale", "lse", "out",
  "out_dtype", "cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k", "seqused_q", "seqused_k", "q_start", "k_start",
  "q_descale", "k_descale", "v_descale", "q_scales", "k_scales", "v_scales", "k_mean", "q_dtype", "k_dtype", "v_dtype",
  "pv", "acc", "partial", "invariant", "check_contents", "splits", "context"
};
// clang-format on

// Those that autograd would have to follow, the output among them.
inline constexpr Parameter differentiable_parameters[] = {
    p_q, p_k, p_v, p_bias, p_sinks, p_alibi_slopes, p_q_descale, p_k_descale, p_v_descale, p_k_mean, p_out};
inline constexpr Parameter array_parameters[] = {
    p_q,         p_k,       p_v,       p_bias,         p_mask,         p_alibi_slopes,
    p_sinks,     p_lse,     p_out,     p_cu_seqlens_q, p_cu_seqlens_k, p_seqused_q,
    p_seqused_k, p_q_start, p_k_start, p_q_descale,    p_k_descale,    p_v_descale,
    p_k_mean};

// The parameters' names as interned strings, and the defaults of those that do not default to None.
struct Signature {
  PyObject* interned[parameter_count];
  PyObject* defaults[parameter_count];

  Signature() {
    for (int p = 0; p < parameter_count; ++p)
      interned[p] = PyUnicode_InternFromString(parameter_names[p]), defaults[p] = Py_None;
    for (const Parameter p : {p_causal, p_lse, p_partial, p_invariant, p_check_contents}) defaults[p] = Py_False;
    defaults[p_layout] = PyUnicode_InternFromString("bhsd");
  }
  static const Signature& instance() {
    static const Signature signature;  // kept for ever, as interned strings are
    return signature;
  }

  Parameter find(PyObject* name) const {
    for (int p = p_layout; p < parameter_count; ++p)
      if (interned[p] == name) return static_cast<Parameter>(p);
    for (int p = p_layout; p < parameter_count; ++p)  // a name that was not interned
      if (PyUnicode_CompareWithASCIIString(name, parameter_names[p]) == 0) return static_cast<Parameter>(p);
    PyErr_Format(PyExc_TypeError, "unexpected keyword argument %R: the options are those of rapt.sdpa", name);
    throw PythonError{};
  }
};

// Positional q, k, v and keywords, as METH_FASTCALL | METH_KEYWORDS gives them: one value for each parameter.
struct Arguments {
  PyObject* values[parameter_count];

  Arguments(PyObject* const* given, Py_ssize_t count, PyObject* keywords) {
    if (count != p_layout) {
      PyErr_Format(PyExc_TypeError, "%zd positional arguments: must be q, k and v, and all else by keyword", count);
      throw PythonError{};
    }
    const Signature& signature = Signature::instance();
    std::copy_n(signature.defaults, int{parameter_count}, values);
    std::copy_n(given, count, values);
    const Py_ssize_t more = keywords == nullptr ? 0 : PyTuple_Size(keywords);
    for (Py_ssize_t i = 0; i < more; ++i) values[signature.find(PyTuple_GetItem(keywords, i))] = given[count + i];
  }
};

}  // namespace rapt::python
