// rapt.sdpa and rapt.merge for XLA: foreign functions that JAX calls, also under jit. Operands of sdpa: q, k, v, then
// the optional arrays whose bits are set in `arrays`, in the table's order. Results: out and, on request, lse. Numbers
// come in two attributes, `integers` (s64: see below) and `numbers` (f64: the table's real numbers);
// python/rapt/_jax.py makes both from the same rows. The attribute `context` is a rapt.Context's number, or 0.
#include "xla.h"

#include <algorithm>
#include <vector>

#include "parameters.h"
#include "xla_frame.h"

namespace rapt::python {
namespace {

// The attribute `integers` has these numbers first, then every value of the table that is not a real number, then the
// dtypes of q, k and v.
enum Leading { i_arrays, i_bshd, i_has, i_flags, leading_count };
constexpr size_t real_count = static_cast<size_t>(
    std::ranges::count_if(scalar_arguments, [](const ScalarArgument& row) { return row.real != nullptr; }));
constexpr size_t first_dtype = leading_count + scalar_arguments.size() - real_count, integer_count = first_dtype + 3;

void set_scalars(rapt_sdpa_args& args, const int64_t* integers, const double* numbers) {
  for (const ScalarArgument& row : scalar_arguments) {
    if (row.real != nullptr)
      args.*row.real = *numbers++;
    else if (row.integer != nullptr)
      args.*row.integer = *integers++;
    else
      args.*row.word = static_cast<int32_t>(*integers++);
  }
}

void read_inputs(rapt_sdpa_args& args, XlaReading& reading, const int64_t* integers) {
  const bool swapped = integers[i_bshd] != 0;
  const auto dtype = [&](size_t which) { return static_cast<int32_t>(integers[first_dtype + which]); };
  args.q = reading.argument("q", dtype(0), swapped);
  args.k = reading.argument("k", dtype(1), swapped);
  args.v = reading.argument("v", dtype(2), swapped);
  int64_t arrays = integers[i_arrays];
  for (const TensorArgument& row : tensor_arguments) {
    if (!is_operand(row)) continue;
    if ((arrays & 1) != 0) args.*row.member = reading.argument(row.keyword);
    arrays >>= 1;
  }
  reading.expect_no_more_arguments();
}

rapt_status attend(XlaReading& reading, void* stream) {
  const int64_t* const integers = reading.integers(integer_count);
  const double* const numbers = reading.numbers(real_count);
  if (!reading.ok()) return RAPT_OK;
  rapt_sdpa_args args{};
  args.struct_size = sizeof args;
  args.has = static_cast<uint64_t>(integers[i_has]), args.flags = static_cast<uint64_t>(integers[i_flags]);
  set_scalars(args, integers + leading_count, numbers);
  read_inputs(args, reading, integers);
  args.out = reading.result("out", RAPT_DTYPE_NONE, integers[i_bshd] != 0);
  if (reading.more_results()) args.lse = reading.result("lse");
  rapt_context* const context = reading.context();
  return reading.ok() ? rapt_sdpa(context, &args, stream) : RAPT_OK;
}

// Operands: the outs of all parts, the lses of all parts, and sinks if integers[1] is 1. integers[0] is the number of
// parts. Results: out and, on request, lse.
rapt_status merge_parts(XlaReading& reading, void* stream) {
  const int64_t* const integers = reading.integers(2);
  if (!reading.ok()) return RAPT_OK;
  std::vector<const rapt_tensor*> outs, lses;
  for (int64_t i = 0; i < integers[0]; ++i) outs.push_back(reading.argument("outs"));
  for (int64_t i = 0; i < integers[0]; ++i) lses.push_back(reading.argument("lses"));
  rapt_merge_args args{};
  args.struct_size = sizeof args;
  args.count = integers[0];
  args.outs = outs.data(), args.lses = lses.data();
  if (integers[1] != 0) args.sinks = reading.argument("sinks");
  reading.expect_no_more_arguments();
  args.out = reading.result("out");
  if (reading.more_results()) args.lse = reading.result("lse");
  rapt_context* const context = reading.context();
  return reading.ok() ? rapt_merge(context, &args, stream) : RAPT_OK;
}

}  // namespace

XlaError* xla_sdpa_cpu(XlaCallFrame* frame) { return run_xla(*frame, RAPT_DEVICE_CPU, attend); }
XlaError* xla_sdpa_cuda(XlaCallFrame* frame) { return run_xla(*frame, RAPT_DEVICE_CUDA, attend); }
XlaError* xla_merge_cpu(XlaCallFrame* frame) { return run_xla(*frame, RAPT_DEVICE_CPU, merge_parts); }
XlaError* xla_merge_cuda(XlaCallFrame* frame) { return run_xla(*frame, RAPT_DEVICE_CUDA, merge_parts); }

}  // namespace rapt::python
