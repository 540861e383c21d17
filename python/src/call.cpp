// Python functions for the operations; see call.h.
#include "call.h"

#include <algorithm>
#include <cstddef>
#include <new>
#include <string>
#include <vector>

#include "arrays.h"
#include "errors.h"
#include "parameters.h"
#include "rapt/rapt.h"
#include "values.h"

namespace rapt::python {
namespace {

// The shape and strides of q in the caller's order of dimensions.
struct Layout {
  int rank;
  int64_t shape[4], strides[4];

  Layout(const rapt_tensor& tensor, bool swapped) : rank(std::min(tensor.rank, 4)) {
    if (tensor.strides == nullptr) rank = 0;
    for (int i = 0; i < rank; ++i) {
      const int from = swapped && rank == 4 && (i == 1 || i == 2) ? 3 - i : i;
      shape[i] = tensor.shape[from], strides[i] = tensor.strides[from];
    }
  }
  // True if the elements fill a block of memory without gaps, in any order of dimensions.
  bool is_dense() const {
    int order[4] = {0, 1, 2, 3};
    std::sort(order, order + rank, [this](int a, int b) { return strides[a] < strides[b]; });
    int64_t expected = 1;
    for (int i = 0; i < rank; ++i) {
      const int dim = order[i];
      if (shape[dim] == 1) continue;
      if (shape[dim] == 0 || strides[dim] != expected) return false;
      expected *= shape[dim];
    }
    return rank > 0;
  }
};

// The arrays of a call. Objects are created when they are read, because most calls have only four arrays.
class Arrays {
 public:
  Arrays() = default;
  Arrays(const Arrays&) = delete;
  Arrays& operator=(const Arrays&) = delete;
  ~Arrays() {
    while (used_ > 0) place(--used_)->~Array();
  }
  Array& add() {
    Array* const made = new (memory_ + used_ * sizeof(Array)) Array;
    ++used_;
    return *made;
  }
  Array& last() { return *place(used_ - 1); }

 private:
  Array* place(size_t i) { return std::launder(reinterpret_cast<Array*>(memory_ + i * sizeof(Array))); }

  alignas(Array) std::byte memory_[array_parameters.size() * sizeof(Array)];
  size_t used_ = 0;
};

// The arguments of one call. Owns everything that rapt_sdpa_args points to.
class Call {
 public:
  explicit Call(PyObject* const* args) : args_(args), framework_(framework_of(args[p_q])) {}

  // True if Python must handle the call, because an array's type is not registered, or an array needs a gradient.
  bool redirected() const {
    if (framework_ == nullptr) invalid("q: a ", type_name(args_[p_q]), ": not an array of a framework that rapt knows");
    if (!framework_->redirect) return false;
    for (const int p : array_parameters) {
      const bool scalar =
          (p == p_lse && PyBool_Check(args_[p])) || (parameter(p).scalar != nullptr && PyLong_Check(args_[p]));
      if (given(p) && !scalar && framework_of(args_[p]) != framework_) return true;
    }
    return traced() || (framework_->grad_enabled && needs_grad());
  }
  // Calls redirect(operation, q, k, v, **all others).
  PyObject* redirect(const char* operation) const {
    const Ref positional(checked(PyTuple_New(1 + p_layout))), keywords(checked(PyDict_New()));
    PyTuple_SetItem(positional.get(), 0, checked(PyUnicode_FromString(operation)));
    for (int p = 0; p < p_layout; ++p) PyTuple_SetItem(positional.get(), p + 1, Py_NewRef(args_[p]));
    for (int p = p_layout; p < parameter_count; ++p)
      if (PyDict_SetItemString(keywords.get(), parameter(p).name, args_[p]) != 0) throw PythonError{};
    return PyObject_Call(framework_->redirect.get(), positional.get(), keywords.get());
  }

  void read() {
    call_.struct_size = sizeof call_;
    if (args_[p_layout] != Signature::instance().defaults[p_layout])
      swapped_ = word_value("layout", args_[p_layout], {{"bhsd", 0}, {"bshd", 1}}) != 0;
    call_.q = read_stored(p_q, p_q_dtype);
    call_.k = read_stored(p_k, p_k_dtype);
    call_.v = read_stored(p_v, p_v_dtype);
    for (const int p : row_parameters) read_row(p);
    read_causal();
    if (given(p_window)) read_window();
    check_scales();
    read_outputs();
  }

  const rapt_sdpa_args* c() const { return &call_; }
  // The context of the call. It lives as long as this object.
  rapt_context* context() {
    given_context_ = ContextHandle(args_[p_context]);
    return context_of(*framework_, given_context_, call_.q->device);
  }
  void report_outputs() const {
    if (given(p_out)) report_written(*framework_, args_[p_out]);
    if (given(p_lse) && !PyBool_Check(args_[p_lse])) report_written(*framework_, args_[p_lse]);
  }
  void* stream() const { return current_stream(*framework_, args_[p_q], call_.q->device); }

  PyObject* result() {
    if (!lse_) return out_.release();
    Ref pair(checked(PyTuple_New(2)));
    PyTuple_SetItem(pair.get(), 0, out_.release());
    PyTuple_SetItem(pair.get(), 1, lse_.release());
    return pair.release();
  }

 private:
  bool given(int p) const { return args_[p] != Py_None; }

  // True if something records operations on arrays (torch.jit.trace, make_fx, forward-mode derivatives, a profiler). It
  // would not see a call that does not go through Python.
  bool traced() const {
    static PyObject* const current_level = PyUnicode_InternFromString("_current_level");
    static PyObject* const recording = PyUnicode_InternFromString("_is_profiler_enabled");
    if (framework_->forward_ad) {
      PyObject* const level = PyDict_GetItemWithError(framework_->forward_ad.get(), current_level);
      if (level != nullptr && PyLong_AsLong(level) >= 0) return true;
    }
    if (framework_->profiler && PyDict_GetItemWithError(framework_->profiler.get(), recording) == Py_True) return true;
    for (const NoArgsFunction& question : framework_->tracing) {
      const Ref answer = question.ask();
      if (checked(answer.get()) != Py_False && PyObject_IsTrue(answer.get()) != 0) return true;
    }
    return false;
  }

  // The cheaper test comes first: inference usually runs without gradients.
  bool needs_grad() const {
    const Ref enabled = framework_->grad_enabled.ask();
    if (checked(enabled.get()) != Py_True) return false;
    for (const int p : differentiable_parameters) {
      if (!given(p)) continue;
      const Ref wanted = framework_->requires_grad.of(args_[p]);
      if (checked(wanted.get()) == Py_True) return true;
    }
    return false;
  }

  const rapt_tensor* read(const char* name, PyObject* object, bool made_here = false) {
    Array& array = arrays_.add();
    read_array(*framework_, name, object, array, made_here);
    return &array.tensor;
  }
  // q, k, v and out in the logical order batch, heads, seqlen, dim.
  const rapt_tensor* in_layout(const rapt_tensor* tensor) {
    if (swapped_) swap_heads(arrays_.last());
    return tensor;
  }

  const rapt_tensor* read_stored(int p, int dtype) {
    read(parameter(p).name, args_[p]);
    Array& array = arrays_.last();
    refuse_boolean(parameter(p).name, array);
    if (array.raw_bytes || given(dtype))
      set_stored_dtype(parameter(p).name, parameter(dtype).name, args_[dtype], array);
    return in_layout(&array.tensor);
  }

  // Reads a parameter that is described only by rows of the table.
  void read_row(int p) {
    const Parameter& row = parameter(p);
    if (row.flag != 0) {
      if (args_[p] != Py_False && boolean(row.name, args_[p])) call_.flags |= row.flag;
      return;
    }
    if (!given(p)) return;
    if (row.tensor != nullptr && (row.scalar == nullptr || framework_of(args_[p]) != nullptr)) {
      call_.*row.tensor->member = read(row.name, args_[p]);
      if (!row.tensor->dtypes.has(DType::u8)) refuse_boolean(row.name, arrays_.last());
    } else {
      set(row.name, *row.scalar, args_[p]);
    }
  }
  void set(const char* name, const ScalarArgument& row, PyObject* value) {
    call_.has |= row.has;
    if (row.real != nullptr)
      call_.*row.real = number(name, value);
    else if (row.integer != nullptr)
      call_.*row.integer = integer(name, value);
    else
      call_.*row.word = word_value(name, value, row.words);
  }

  void read_causal() {
    PyObject* const causal = args_[p_causal];
    if (causal == Py_True || is_word(causal, "bottom_right")) {
      call_.flags |= RAPT_CAUSAL;
    } else if (is_word(causal, "top_left")) {
      call_.flags |= RAPT_CAUSAL_TOP_LEFT;
    } else if (causal != Py_False) {
      invalid("causal = ", shown(causal), ": must be False, True, \"bottom_right\" or \"top_left\"");
    }
  }

  void read_window() {
    PyObject* const window = args_[p_window];
    const bool pair = PySequence_Check(window) && !PyUnicode_Check(window) && PySequence_Size(window) == 2;
    if (!pair) {
      PyErr_Clear();
      invalid("window = ", shown(window), ": must be (left, right); -1 means no limit on that side");
    }
    const Ref left(checked(PySequence_GetItem(window, 0))), right(checked(PySequence_GetItem(window, 1)));
    call_.has |= RAPT_HAS_WINDOW;
    call_.window_left = integer("window", left.get());
    call_.window_right = integer("window", right.get());
  }

  void check_scales() const {
    const struct {
      const char *descale, *scales;
      const rapt_tensor* tensor;
      int32_t kind;
    } pairs[] = {{"q_descale", "q_scales", call_.q_descale, call_.q_scales},
                 {"k_descale", "k_scales", call_.k_descale, call_.k_scales},
                 {"v_descale", "v_scales", call_.v_descale, call_.v_scales}};
    for (const auto& [descale, scales, tensor, kind] : pairs) {
      const bool alone = tensor == nullptr;
      if (alone != (kind == RAPT_SCALE_NONE))
        invalid(alone ? scales : descale, " is given without ", alone ? descale : scales,
                ": give both the descale and its granularity");
    }
  }

  // The dtype of an output that rapt allocates.
  int32_t out_dtype() const {
    const auto ordinary = [](int32_t dtype) { return dtype == RAPT_F32 || dtype == RAPT_F16 || dtype == RAPT_BF16; };
    if (given(p_out_dtype)) {
      const int32_t named = dtype_of_name(args_[p_out_dtype]);
      if (!ordinary(named))
        invalid("out_dtype = ", shown(args_[p_out_dtype]), ": must be float32, float16 or bfloat16");
      if (call_.flags & RAPT_PARTIAL && named != RAPT_F32)
        invalid("out_dtype = ", shown(args_[p_out_dtype]), " with partial=True: a partial state is float32");
      return named;
    }
    if (call_.flags & RAPT_PARTIAL) return RAPT_F32;
    if (ordinary(call_.q->dtype)) return call_.q->dtype;
    return ordinary(call_.v->dtype) ? call_.v->dtype : framework_->dtype_of_fp8;
  }

  // Allocates an output. Packed rows outside all sequences are set to 0.
  Ref allocate(const std::vector<int64_t>& shape, int32_t dtype) const {
    const bool packed = call_.q->rank == 3;
    return allocate_array(*framework_, args_[p_q], shape.data(), static_cast<int>(shape.size()), dtype, packed);
  }

  Ref allocate_out() const {
    const rapt_tensor &q = *call_.q, &v = *call_.v;
    if (q.rank < 1 || v.rank < 1 || q.rank > 4) invalid("q: rank ", q.rank, ": must be 4, or 3 with cu_seqlens_q");
    const int32_t dtype = out_dtype();
    if (v.rank > 4) invalid("v: rank ", v.rank, ": must be 4, or 3 with cu_seqlens_q");
    const int64_t head_dim_v = v.shape[v.rank - 1];
    if (q.rank == 4 && framework_->empty_like && dtype == q.dtype && head_dim_v == q.shape[q.rank - 1]) return like_q();
    std::vector<int64_t> shape(q.shape, q.shape + q.rank);
    if (swapped_ && q.rank == 4) std::swap(shape[1], shape[2]);
    shape.back() = head_dim_v;
    return allocate(shape, dtype);
  }

  // A new output with q's shape, dtype and order of dimensions. On GPUs there is a faster function. It supports only
  // the current GPU, and tensors without gaps.
  Ref like_q() const {
    const Layout q(*call_.q, swapped_);
    if (call_.q->device.type == RAPT_DEVICE_CUDA && framework_->empty_strided && q.is_dense()) {
      static PyObject* const dtype = PyUnicode_InternFromString("dtype");
      const Ref shape = integers(q.shape, q.rank), strides = integers(q.strides, q.rank);
      const Ref of_q(checked(PyObject_GetAttr(args_[p_q], dtype)));
      Ref made(checked(PyObject_CallFunctionObjArgs(framework_->empty_strided.get(), shape.get(), strides.get(),
                                                    of_q.get(), nullptr)));
      Array array;
      read_array(*framework_, "out", made.get(), array, true);
      if (array.tensor.device.index == call_.q->device.index) return made;
    }
    return Ref(checked(PyObject_CallFunctionObjArgs(framework_->empty_like.get(), args_[p_q], nullptr)));
  }

  Ref allocate_lse() const {
    const rapt_tensor& q = *call_.q;
    if (q.rank == 3) return allocate({q.shape[1], q.shape[0]}, RAPT_F32);  // packed: [heads, total]
    return allocate({q.shape, q.shape + std::max(0, q.rank - 1)}, RAPT_F32);
  }

  const rapt_tensor* read_output(const char* name, PyObject* object, bool made_here) {
    read(name, object, made_here);
    refuse_boolean(name, arrays_.last());
    if (arrays_.last().read_only) invalid(name, ": a read-only array: must be writable, because it is an output");
    return &arrays_.last().tensor;
  }

  void read_outputs() {
    if (given(p_out) && given(p_out_dtype))
      invalid("out_dtype = ", shown(args_[p_out_dtype]), " with out: give only one of them; out has its own dtype");
    out_ = given(p_out) ? Ref::of(args_[p_out]) : allocate_out();
    call_.out = in_layout(read_output("out", out_.get(), !given(p_out)));
    PyObject* const lse = args_[p_lse];
    if (lse == Py_True || ((lse == Py_False || lse == Py_None) && call_.flags & RAPT_PARTIAL))
      lse_ = allocate_lse();
    else if (lse != Py_False && lse != Py_None)
      lse_ = Ref::of(lse);
    if (lse_) call_.lse = read_output("lse", lse_.get(), lse_.get() != lse);
  }

  PyObject* const* args_;
  const Framework* framework_;
  bool swapped_ = false;
  Ref out_, lse_;
  ContextHandle given_context_;
  Arrays arrays_;
  rapt_sdpa_args call_{};
};

// Whether a call is allowed to go to Python's redirect(). redirect() itself calls this module again, so its calls must
// not be redirected.
enum class Redirects : bool { no, yes };

// Reads the arguments, calls `body` with them, and turns C++ exceptions into Python exceptions.
template <class Body>
PyObject* with_call(Redirects redirects, const char* operation, PyObject* const* given, Py_ssize_t count,
                    PyObject* keywords, const Body& body) {
  try {
    const Arguments arguments(given, count, keywords);
    Call call(arguments.values);
    if (redirects == Redirects::no) return call.read(), body(call);
    if (call.redirected()) return call.redirect(operation);
    try {
      call.read();
    } catch (const Transformed&) {
      PyErr_Clear();
      return call.redirect(operation);
    }
    return body(call);
  } catch (const PythonError&) {
    return nullptr;
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
}

PyObject* run(Call& call) {
  rapt_context* const context = call.context();
  void* const stream = call.stream();
  call_c([&] { return rapt_sdpa(context, call.c(), stream); });
  call.report_outputs();
  return call.result();
}

PyObject* run_prepare(Call& call) {
  rapt_context* const context = call.context();
  void* const stream = call.stream();
  call_c([&] { return rapt_prepare(context, call.c(), stream); });
  return Py_NewRef(Py_None);
}

PyObject* run_explain(Call& call) {
  size_t length = 0;
  rapt_context* const context = call.context();
  call_c([&] { return rapt_explain(context, call.c(), nullptr, 0, &length); });
  std::string text(length + 1, '\0');
  call_c([&] { return rapt_explain(context, call.c(), text.data(), text.size(), &length); });
  return PyUnicode_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(length));
}

}  // namespace

PyObject* sdpa(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
  return with_call(Redirects::yes, "sdpa", args, count, keywords, run);
}
PyObject* prepare(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
  return with_call(Redirects::yes, "prepare", args, count, keywords, run_prepare);
}
PyObject* explain(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
  return with_call(Redirects::yes, "explain", args, count, keywords, run_explain);
}

PyObject* sdpa_here(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
  return with_call(Redirects::no, "sdpa", args, count, keywords, run);
}
PyObject* prepare_here(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
  return with_call(Redirects::no, "prepare", args, count, keywords, run_prepare);
}
PyObject* explain_here(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
  return with_call(Redirects::no, "explain", args, count, keywords, run_explain);
}

}  // namespace rapt::python
