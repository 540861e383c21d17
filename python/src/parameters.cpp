// Gives Python the parameters' defaults, the rows of their table, and the signature.
#include "parameters.h"

#include <string>

#include "call.h"

namespace rapt::python {
namespace {

PyObject* words_of(const ScalarArgument& row) {
  if (row.word == nullptr) return Py_NewRef(Py_None);
  Ref words(checked(PyDict_New()));
  for (const Word& one : row.words) {
    const Ref value(checked(PyLong_FromLong(one.value)));
    if (PyDict_SetItemString(words.get(), one.word, value.get()) != 0) throw PythonError{};
  }
  return words.release();
}

void append(const Ref& list, PyObject* made) {
  const Ref row(checked(made));
  if (PyList_Append(list.get(), row.get()) != 0) throw PythonError{};
}

// True if the array's first dimension is the batch. False for bias and mask, which are broadcast.
bool has_batch(const TensorArgument& row) {
  return row.shape.kind == ShapeRule::scales || row.shape.dense[0] == Dim::batch;
}

// The names of the array's dimensions in a call that is not packed. Empty if the sizes of the problem do not determine
// the shape (scales, arrays that are broadcast).
PyObject* shape_of(const TensorArgument& row) {
  const Ref names(checked(PyList_New(0)));
  for (int i = 0; i < rank_of(row.shape.dense); ++i)
    append(names, PyUnicode_FromString(dim_names[static_cast<size_t>(row.shape.dense[static_cast<size_t>(i)])]));
  return PyList_AsTuple(names.get());
}

}  // namespace

PyObject* defaults(PyObject*, PyObject*) {
  Ref dict(PyDict_New());
  const Signature& signature = Signature::instance();
  for (int p = p_layout; dict && p < parameter_count; ++p)
    if (PyDict_SetItem(dict.get(), signature.interned[p], signature.defaults[p]) != 0) return nullptr;
  return dict.release();
}

PyObject* sdpa_table(PyObject*, PyObject*) {
  try {
    const Ref operands(checked(PyList_New(0))), scalars(checked(PyList_New(0))), flags(checked(PyList_New(0)));
    const Ref docs(checked(PyDict_New()));
    for (const TensorArgument& row : tensor_arguments)
      if (is_operand(row))
        append(operands, Py_BuildValue("(ssNNN)", row.name, row.keyword, PyBool_FromLong(has_batch(row)),
                                       PyBool_FromLong(row.is_differentiable()), shape_of(row)));
    for (const ScalarArgument& row : scalar_arguments) {
      const char* const kind = row.real != nullptr ? "real" : row.integer != nullptr ? "integer" : "word";
      append(scalars, Py_BuildValue("(szsKN)", row.name, row.keyword, kind, static_cast<unsigned long long>(row.has),
                                    words_of(row)));
    }
    for (const FlagArgument& row : flag_arguments)
      if (row.keyword != nullptr)
        append(flags, Py_BuildValue("(sK)", row.keyword, static_cast<unsigned long long>(row.bit)));
    for (const int p : row_parameters) {
      const Ref text(checked(PyUnicode_FromString(parameter(p).doc)));
      if (PyDict_SetItemString(docs.get(), parameter(p).name, text.get()) != 0) throw PythonError{};
    }
    return Py_BuildValue("(NNNO)", PyList_AsTuple(operands.get()), PyList_AsTuple(scalars.get()),
                         PyList_AsTuple(flags.get()), docs.get());
  } catch (const PythonError&) {
    return nullptr;
  }
}

const char* signature_text() {
  static const std::string text = [] {
    std::string made = "sdpa(q, k, v, *";
    for (int p = p_layout; p < parameter_count; ++p) {
      const PyObject* const value = Signature::instance().defaults[p];
      made.append(", ")
          .append(parameter(p).name)
          .append(p == p_layout       ? "='bhsd'"
                  : value == Py_False ? "=False"
                                      : "=None");
    }
    return made + ")\n--\n\nAttention: rapt.sdpa, for arrays of registered types.";
  }();
  return text.c_str();
}

}  // namespace rapt::python
