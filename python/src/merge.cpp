// rapt.merge: partial states of disjoint sets of keys as one result. Called by python/rapt.
#include <deque>
#include <vector>

#include "arrays.h"
#include "call.h"
#include "errors.h"
#include "values.h"

namespace rapt::python {
namespace {

class Merge {
 public:
  Merge(PyObject* outs, PyObject* lses) {
    if (PySequence_Check(outs) == 0 || PySequence_Check(lses) == 0 || PySequence_Size(outs) < 1)
      invalid("outs: must be a sequence of one array or more, and lses another of the same length");
    const Py_ssize_t count = PySequence_Size(outs);
    if (PySequence_Size(lses) != count)
      invalid("lses: ", PySequence_Size(lses), " arrays for ", count, " outs: there must be one for each");
    first_ = Ref(checked(PySequence_GetItem(outs, 0)));
    framework_ = framework_of(first_.get());
    if (framework_ == nullptr)
      invalid("outs[0]: a ", type_name(first_.get()), ": not an array of a framework that rapt knows");
    for (Py_ssize_t i = 0; i < count; ++i) {
      outs_.push_back(read("outs", Ref(checked(PySequence_GetItem(outs, i)))));
      lses_.push_back(read("lses", Ref(checked(PySequence_GetItem(lses, i)))));
    }
    call_.struct_size = sizeof call_;
    call_.count = count;
    call_.outs = outs_.data();
    call_.lses = lses_.data();
  }

  void read_sinks(PyObject* sinks) {
    if (sinks != Py_None) call_.sinks = read("sinks", Ref::of(sinks));
  }
  void set_outputs(PyObject* lse, PyObject* out, PyObject* out_dtype) {
    const int32_t dtype = out_dtype == Py_None ? RAPT_F32 : dtype_of_name(out_dtype);
    if (out != Py_None && out_dtype != Py_None)
      invalid("out_dtype = ", shown(out_dtype), " with out: out has its own dtype; pass one of them");
    if (dtype != RAPT_F32 && dtype != RAPT_F16 && dtype != RAPT_BF16)
      invalid("out_dtype = ", shown(out_dtype), ": must be float32, float16 or bfloat16");
    for (PyObject* const given : {lse, out})
      if (given != Py_None && !PyBool_Check(given)) given_outputs_.push_back(given);
    out_ = output("out", out != Py_None ? Ref::of(out) : allocate_like(*outs_[0], dtype), call_.out);
    if (lse == Py_False || lse == Py_None) return;
    lse_ = output("lse", lse == Py_True ? allocate_like(*lses_[0], RAPT_F32) : Ref::of(lse), call_.lse);
  }

  PyObject* run(PyObject* context_object) {
    const ContextHandle context(context_object);
    void* const stream = current_stream(*framework_, first_.get(), outs_[0]->device);
    call_c([&] { return rapt_merge(context.get(), &call_, stream); });
    for (PyObject* const given : given_outputs_) report_written(*framework_, given);
    return lse_ ? PyTuple_Pack(2, out_.get(), lse_.get()) : out_.release();
  }

 private:
  const rapt_tensor* read(const char* name, Ref object) {
    read_array(*framework_, name, object.get(), arrays_.emplace_back());
    kept_.push_back(std::move(object));
    return &arrays_.back().tensor;
  }
  Ref output(const char* name, Ref object, const rapt_tensor*& field) {
    field = read(name, Ref::of(object.get()));
    if (arrays_.back().read_only) invalid(name, ": a read-only array: it is an output");
    return object;
  }
  Ref allocate_like(const rapt_tensor& tensor, int32_t dtype) const {
    return allocate_array(*framework_, first_.get(), tensor.shape, tensor.rank, dtype, false);
  }

  const Framework* framework_ = nullptr;
  Ref first_, out_, lse_;
  std::deque<Array> arrays_;  // views point into it
  std::vector<Ref> kept_;
  std::vector<PyObject*> given_outputs_;  // arrays of the caller's, which holds them during the call
  std::vector<const rapt_tensor*> outs_, lses_;
  rapt_merge_args call_{};
};

}  // namespace

PyObject* merge(PyObject*, PyObject* const* args, Py_ssize_t count) {
  try {
    if (count != 7) invalid("merge: ", count, " arguments: must be 7");
    Merge call(args[0], args[1]);
    call.read_sinks(args[2]);
    call.set_outputs(args[3], args[4], args[5]);
    return call.run(args[6]);
  } catch (const PythonError&) {
    return nullptr;
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
}

}  // namespace rapt::python
