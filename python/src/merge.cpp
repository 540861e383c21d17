// rapt.merge: merges partial states over disjoint sets of keys. Called by python/rapt.
#include <vector>

#include "call.h"
#include "reading.h"

namespace rapt::python {
namespace {

// The items of a sequence, with references held.
std::vector<Ref> items(PyObject* sequence) {
  std::vector<Ref> found;
  for (Py_ssize_t i = 0; i < PySequence_Size(sequence); ++i)
    found.emplace_back(checked(PySequence_GetItem(sequence, i)));
  return found;
}

std::vector<Ref> parts(PyObject* outs, PyObject* lses) {
  if (PySequence_Check(outs) == 0 || PySequence_Check(lses) == 0 || PySequence_Size(outs) < 1)
    invalid("outs: must be a sequence of at least one array, and lses a sequence of the same length");
  if (PySequence_Size(lses) != PySequence_Size(outs))
    invalid("lses: ", PySequence_Size(lses), " arrays for ", PySequence_Size(outs), " outs: must be as many");
  return items(outs);
}

class Merge {
 public:
  Merge(PyObject* outs, PyObject* lses)
      : held_outs_(parts(outs, lses)), held_lses_(items(lses)), reading_("outs[0]", held_outs_.front().get()) {
    for (size_t i = 0; i < held_outs_.size(); ++i) {
      outs_.push_back(reading_.input("outs", held_outs_[i].get()));
      lses_.push_back(reading_.input("lses", held_lses_[i].get()));
    }
    call_.struct_size = sizeof call_;
    call_.count = static_cast<int64_t>(outs_.size());
    call_.outs = outs_.data();
    call_.lses = lses_.data();
  }

  void read_sinks(PyObject* sinks) { call_.sinks = reading_.input("sinks", sinks); }
  void set_outputs(PyObject* lse, PyObject* out, PyObject* out_dtype) {
    const int32_t dtype = out_dtype == Py_None ? RAPT_F32 : dtype_of_name(out_dtype);
    if (out != Py_None && out_dtype != Py_None)
      invalid("out_dtype = ", shown(out_dtype), " with out: give only one of them; out has its own dtype");
    if (dtype != RAPT_F32 && dtype != RAPT_F16 && dtype != RAPT_BF16)
      invalid("out_dtype = ", shown(out_dtype), ": must be float32, float16 or bfloat16");
    for (PyObject* const given : {lse, out})
      if (given != Py_None && !PyBool_Check(given)) given_outputs_.push_back(given);
    out_ = out != Py_None ? Ref::of(out) : allocate_like(*outs_[0], dtype);
    call_.out = reading_.output("out", out_.get());
    if (lse == Py_False || lse == Py_None) return;
    lse_ = lse == Py_True ? allocate_like(*lses_[0], RAPT_F32) : Ref::of(lse);
    call_.lse = reading_.output("lse", lse_.get());
  }

  PyObject* run(PyObject* context) {
    reading_.call(context, rapt_merge, call_);
    for (PyObject* const given : given_outputs_) report_written(reading_.framework(), given);
    return lse_ ? PyTuple_Pack(2, out_.get(), lse_.get()) : out_.release();
  }

 private:
  Ref allocate_like(const rapt_tensor& tensor, int32_t dtype) const {
    return allocate_array(reading_.framework(), held_outs_.front().get(), tensor.shape, tensor.rank, dtype, false);
  }

  std::vector<Ref> held_outs_, held_lses_;
  Reading reading_;
  Ref out_, lse_;
  std::vector<PyObject*> given_outputs_;  // borrowed references to arrays that the caller owns during the call
  std::vector<const rapt_tensor*> outs_, lses_;
  rapt_merge_args call_{};
};

}  // namespace

PyObject* merge(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return guarded("merge", count, 7, [&] {
    Merge call(args[0], args[1]);
    call.read_sinks(args[2]);
    call.set_outputs(args[3], args[4], args[5]);
    return call.run(args[6]);
  });
}

}  // namespace rapt::python
