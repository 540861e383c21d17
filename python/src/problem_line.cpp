// parse_problem(line): a problem line as a dict for bench/, so the grammar (docs/problem-line.md) has one
// implementation. In this folder only this file uses the library's own Problem; all others use the C ABI.
#include "problem_line.h"

#include <new>
#include <optional>
#include <string>

#include "base/error.h"
#include "errors.h"
#include "problem/problem.h"
#include "problem/words.h"

namespace rapt::python {
namespace {

Ref made(std::string_view text) {
  return Ref(checked(PyUnicode_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size()))));
}
Ref made(int64_t value) { return Ref(checked(PyLong_FromLongLong(value))); }
Ref made(float value) { return Ref(checked(PyFloat_FromDouble(static_cast<double>(value)))); }
Ref made(bool value) { return Ref::of(value ? Py_True : Py_False); }

template <class Value>
Ref made(const std::optional<Value>& value) {
  return value ? made(*value) : Ref::of(Py_None);
}

// The values of a word of the mask as a tuple. None if the mask does not have this word.
Ref made(const PositionMask& mask, const PositionWord& word) {
  const auto count = static_cast<size_t>(word.count());
  Ref values(checked(PyTuple_New(word.count())));
  bool given = false;
  for (size_t i = 0; i < count; ++i) {
    const int64_t value = mask.*word.values[i].field;
    given = given || value != PositionMask{}.*word.values[i].field;
    if (PyTuple_SetItem(values.get(), static_cast<Py_ssize_t>(i), made(value).release()) != 0) throw PythonError{};
  }
  return given ? std::move(values) : Ref::of(Py_None);
}

std::string_view word_of(Causal causal) {
  return causal == Causal::none ? "" : causal == Causal::bottom_right ? "bottom_right" : "top_left";
}

std::string_view word_of(ScaleKind kind) {
  return kind == ScaleKind::none ? "" : words::name(words::scale_kinds, kind);
}

// The axes of a tensor as text: "1,h,q,k". None if there is no such tensor.
std::optional<std::string> axes(const Broadcast& tensor) {
  if (!tensor.present()) return std::nullopt;
  std::string text;
  for (size_t axis = 0; axis < 4; ++axis) {
    if (axis > 0) text += ',';
    text += tensor.one[axis] ? '1' : words::score_axes[axis];
  }
  return text;
}

Ref bias(const Broadcast& tensor) {
  if (!tensor.present()) return Ref::of(Py_None);
  return Ref(checked(Py_BuildValue("(sN)", name_of(tensor.dtype), made(axes(tensor)).release())));
}

// The lengths of all sequences: ((queries, keys), ...).
Ref lengths(const Problem& p) {
  if (!p.varlen) return Ref::of(Py_None);
  Ref all(checked(PyTuple_New(static_cast<Py_ssize_t>(p.lengths_q.size()))));
  for (size_t b = 0; b < p.lengths_q.size(); ++b) {
    PyObject* const pair = checked(Py_BuildValue("(ii)", p.lengths_q[b], p.lengths_k[b]));
    if (PyTuple_SetItem(all.get(), static_cast<Py_ssize_t>(b), pair) != 0) throw PythonError{};
  }
  return all;
}

// A tuple for q, k and v.
Ref three(std::string_view q, std::string_view k, std::string_view v) {
  return Ref(checked(Py_BuildValue("(NNN)", made(q).release(), made(k).release(), made(v).release())));
}

PyObject* described(const Problem& p) {
  Ref facts(checked(PyDict_New()));
  const auto put = [&](const char* name, const Ref& value) {
    if (PyDict_SetItemString(facts.get(), name, value.get()) != 0) throw PythonError{};
  };
  put("line", made(to_string(p)));
  put("dtypes", three(name_of(p.q), name_of(p.k), name_of(p.v)));
  put("out", made(std::string_view(name_of(p.out))));
  put("b", made(p.batch));
  put("h", made(p.heads_q));
  put("hk", made(p.heads_k));
  put("q", made(p.seqlen_q));
  put("k", made(p.seqlen_k));
  put("d", made(p.head_dim));
  put("dv", made(p.head_dim_v));
  put("causal", made(word_of(p.position_mask.causal)));
  for (const PositionWord& word : position_words)
    if (word.count() > 0) put(word.name, made(p.position_mask, word));
  put("softcap", made(p.softcap));
  put("alibi", made(p.alibi));
  put("bias", bias(p.bias));
  put("mask", made(axes(p.mask)));
  put("sinks", made(p.sinks));
  put("varlen", lengths(p));
  put("scales", three(word_of(p.q_scales), word_of(p.k_scales), word_of(p.v_scales)));
  return facts.release();
}

}  // namespace

PyObject* parse_problem_line(PyObject*, PyObject* text) {
  Py_ssize_t size = 0;
  const char* const line = PyUnicode_AsUTF8AndSize(text, &size);
  if (line == nullptr) return nullptr;
  try {
    return described(parse_problem({line, static_cast<size_t>(size)}));
  } catch (const Error& error) {
    set_error(static_cast<rapt_status>(error.code()), error.what());
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const PythonError&) {  // the Python exception is already set
  }
  return nullptr;
}

}  // namespace rapt::python
