// The parameters of rapt.sdpa, prepare and explain, and their order. There is one parameter for each row of
// src/arguments/sdpa_arguments.h, and some that call.cpp reads with its own code (`by_hand`). Used by call.cpp and
// xla.cpp. Python code (operators, JAX's attributes, rules) gets the same rows from sdpa_table().
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>

#include "arguments/sdpa_arguments.h"
#include "python.h"

namespace rapt::python {

struct Parameter {
  const char* name;
  const TensorArgument* tensor = nullptr;  // the field that an array sets
  const ScalarArgument* scalar = nullptr;  // the field that a number or word sets
  uint64_t flag = 0;                       // the flag that True sets
  const char* doc = "";                    // documentation from its row; if `by_hand`, it is in _signature.py instead
  bool by_hand = false;                    // call.cpp has its own code for it
};

namespace detail {
// q, k, v are positional; context comes last.
inline constexpr const char* by_hand[] = {"q",   "k",   "v",         "layout",  "causal",  "window",
                                          "lse", "out", "out_dtype", "q_dtype", "k_dtype", "v_dtype"};

struct Parameters {
  std::array<Parameter, 96> rows{};
  int count = 0;

  constexpr Parameter& of(const char* name) {
    for (int p = 0; p < count; ++p)
      if (std::string_view(rows[static_cast<size_t>(p)].name) == name) return rows[static_cast<size_t>(p)];
    return rows[static_cast<size_t>(count++)] = Parameter{name};
  }
};
// Makes a parameter from a row of any of the three tables.
template <class Row>
constexpr Parameter& of_row(Parameters& all, const Row& row) {
  Parameter& parameter = all.of(row.keyword);
  if (*parameter.doc == 0) parameter.doc = row.doc;
  return parameter;
}
constexpr Parameters all_parameters() {
  Parameters all;
  for (const char* const name : by_hand) all.of(name).by_hand = true;
  for (const TensorArgument& row : tensor_arguments)
    if (row.keyword != nullptr) of_row(all, row).tensor = &row;
  for (const ScalarArgument& row : scalar_arguments)
    if (row.keyword != nullptr) of_row(all, row).scalar = &row;
  for (const FlagArgument& row : flag_arguments)
    if (row.keyword != nullptr) of_row(all, row).flag = row.bit;
  all.of("context").by_hand = true;
  return all;
}
}  // namespace detail

inline constexpr int parameter_count = detail::all_parameters().count;
inline constexpr auto parameters = [] {
  std::array<Parameter, parameter_count> rows{};
  std::copy_n(detail::all_parameters().rows.begin(), parameter_count, rows.begin());
  return rows;
}();
// The index of a parameter in the order of all parameters.
consteval int place_of(std::string_view name) {
  int p = 0;
  while (parameters[static_cast<size_t>(p)].name != name) ++p;
  return p;
}
inline constexpr int p_q = place_of("q"), p_k = place_of("k"), p_v = place_of("v"), p_layout = place_of("layout"),
                     p_causal = place_of("causal"), p_window = place_of("window"), p_lse = place_of("lse"),
                     p_out = place_of("out"), p_out_dtype = place_of("out_dtype"), p_q_dtype = place_of("q_dtype"),
                     p_k_dtype = place_of("k_dtype"), p_v_dtype = place_of("v_dtype"), p_context = place_of("context");
static_assert(p_layout == 3, "q, k and v are positional");
static_assert(std::ranges::all_of(parameters, [](const Parameter& p) { return p.by_hand != (*p.doc != 0); }),
              "each parameter has a text for Python's documentation: in its row or, if by hand, in _signature.py");

// The indices of the parameters for which `wanted` is true.
template <class Wanted>
constexpr auto places(Wanted wanted) {
  constexpr auto count = [] {
    size_t found = 0;
    for (int p = 0; p < parameter_count; ++p) found += Wanted{}(p) ? 1 : 0;
    return found;
  }();
  std::array<int, count> found{};
  size_t next = 0;
  for (int p = 0; p < parameter_count; ++p)
    if (wanted(p)) found[next++] = p;
  return found;
}
inline constexpr const Parameter& parameter(int p) { return parameters[static_cast<size_t>(p)]; }
inline constexpr auto array_parameters = places([](int p) { return parameter(p).tensor != nullptr; });
// The parameters that autograd would differentiate, including outputs.
inline constexpr auto differentiable_parameters = places(
    [](int p) { return p != p_lse && parameter(p).tensor != nullptr && parameter(p).tensor->is_differentiable(); });
inline constexpr auto row_parameters = places([](int p) { return !parameter(p).by_hand; });

// The arrays that operators and XLA take after q, k and v, in the table's order.
constexpr bool is_operand(const TensorArgument& row) {
  if (row.keyword == nullptr) return false;
  for (const int p : row_parameters)
    if (parameter(p).name == std::string_view(row.keyword)) return true;
  return false;
}

// The parameters' names as interned strings, and the defaults other than None.
struct Signature {
  PyObject* interned[parameter_count];
  PyObject* defaults[parameter_count];

  Signature() {
    for (int p = 0; p < parameter_count; ++p) {
      interned[p] = PyUnicode_InternFromString(parameter(p).name);
      defaults[p] = p == p_causal || p == p_lse || parameter(p).flag != 0 ? Py_False : Py_None;
    }
    defaults[p_layout] = PyUnicode_InternFromString("bhsd");
  }
  static const Signature& instance() {
    static const Signature signature;  // never freed, like interned strings
    return signature;
  }

  int find(PyObject* name) const {
    for (int p = p_layout; p < parameter_count; ++p)
      if (interned[p] == name) return p;
    for (int p = p_layout; p < parameter_count; ++p)  // the name was not interned
      if (PyUnicode_CompareWithASCIIString(name, parameter(p).name) == 0) return p;
    PyErr_Format(PyExc_TypeError, "unexpected keyword argument %R: must be an option of rapt.sdpa", name);
    throw PythonError{};
  }
};

// The arguments of a call: one value for each parameter. q, k and v are positional, the others are keywords
// (METH_FASTCALL | METH_KEYWORDS).
struct Arguments {
  PyObject* values[parameter_count];

  Arguments(PyObject* const* given, Py_ssize_t count, PyObject* keywords) {
    if (count != p_layout) {
      PyErr_Format(PyExc_TypeError, "%zd positional arguments: must be q, k and v; pass all others by keyword", count);
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
