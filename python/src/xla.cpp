// XLA's side of rapt.sdpa and rapt.merge: foreign functions that JAX calls, under jit too. Operands of sdpa: q, k, v,
// then the optional arrays whose bits are set in `arrays`, in the order of Operand below; results: out and, if asked
// for, lse. Numbers come in two attributes, `integers` (s64) and `numbers` (f64), in the orders below, which
// python/rapt/_jax.py repeats. The attribute `context` is a rapt.Context's number, or 0.
#include "xla.h"

#include <utility>
#include <vector>

#include "xla_frame.h"

namespace rapt::python {
namespace {

enum Operand {
  o_bias,
  o_mask,
  o_alibi_slopes,
  o_sinks,
  o_cu_seqlens_q,
  o_cu_seqlens_k,
  o_seqused_q,
  o_seqused_k,
  o_q_descale,
  o_k_descale,
  o_v_descale,
  o_q_starts,
  o_k_starts,
  o_k_mean,
  operand_count
};
enum Integer {
  i_arrays,
  i_bshd,
  i_has,
  i_flags,
  i_window_left,
  i_window_right,
  i_q_start,
  i_k_start,
  i_max_seqlen_q,
  i_max_seqlen_k,
  i_splits,
  i_q_scales,
  i_k_scales,
  i_v_scales,
  i_pv,
  i_acc,
  i_q_dtype,
  i_k_dtype,
  i_v_dtype,
  integer_count
};
enum Number { n_scale, n_softcap, number_count };

void set_numbers(rapt_sdpa_args& args, const int64_t* integers, const double* numbers) {
  args.has = static_cast<uint64_t>(integers[i_has]);
  args.flags = static_cast<uint64_t>(integers[i_flags]);
  args.softmax_scale = numbers[n_scale], args.softcap = numbers[n_softcap];
  args.window_left = integers[i_window_left], args.window_right = integers[i_window_right];
  args.q_start = integers[i_q_start], args.k_start = integers[i_k_start];
  args.max_seqlen_q = integers[i_max_seqlen_q], args.max_seqlen_k = integers[i_max_seqlen_k];
  args.splits = integers[i_splits];
  args.q_scales = static_cast<int32_t>(integers[i_q_scales]);
  args.k_scales = static_cast<int32_t>(integers[i_k_scales]);
  args.v_scales = static_cast<int32_t>(integers[i_v_scales]);
  args.pv = static_cast<int32_t>(integers[i_pv]), args.acc = static_cast<int32_t>(integers[i_acc]);
}

void read_inputs(rapt_sdpa_args& args, XlaReading& reading, const int64_t* integers) {
  const bool swapped = integers[i_bshd] != 0;
  const auto dtype = [&](Integer which) { return static_cast<int32_t>(integers[which]); };
  args.q = reading.argument("q", dtype(i_q_dtype), swapped);
  args.k = reading.argument("k", dtype(i_k_dtype), swapped);
  args.v = reading.argument("v", dtype(i_v_dtype), swapped);
  const std::pair<const char*, const rapt_tensor**> operands[operand_count] = {{"bias", &args.bias},
                                                                               {"mask", &args.mask},
                                                                               {"alibi_slopes", &args.alibi_slopes},
                                                                               {"sinks", &args.sinks},
                                                                               {"cu_seqlens_q", &args.cu_seqlens_q},
                                                                               {"cu_seqlens_k", &args.cu_seqlens_k},
                                                                               {"seqused_q", &args.seqused_q},
                                                                               {"seqused_k", &args.seqused_k},
                                                                               {"q_descale", &args.q_descale},
                                                                               {"k_descale", &args.k_descale},
                                                                               {"v_descale", &args.v_descale},
                                                                               {"q_start", &args.q_starts},
                                                                               {"k_start", &args.k_starts},
                                                                               {"k_mean", &args.k_mean}};
  for (int o = 0; o < operand_count; ++o)
    if (integers[i_arrays] >> o & 1) *operands[o].second = reading.argument(operands[o].first);
  reading.expect_no_more_arguments();
}

rapt_status attend(XlaReading& reading, void* stream) {
  const int64_t* const integers = reading.integers(integer_count);
  const double* const numbers = reading.numbers(number_count);
  if (!reading.fine()) return RAPT_OK;
  rapt_sdpa_args args{};
  args.struct_size = sizeof args;
  set_numbers(args, integers, numbers);
  read_inputs(args, reading, integers);
  args.out = reading.result("out", RAPT_DTYPE_NONE, integers[i_bshd] != 0);
  if (reading.more_results()) args.lse = reading.result("lse");
  rapt_context* const context = reading.context();
  return reading.fine() ? rapt_sdpa(context, &args, stream) : RAPT_OK;
}

// Operands: the parts' outs, their lses, then sinks if integers[1] is 1; integers[0] is the number of parts; results:
// out and, if asked for, lse.
rapt_status merge_parts(XlaReading& reading, void* stream) {
  const int64_t* const integers = reading.integers(2);
  if (!reading.fine()) return RAPT_OK;
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
  return reading.fine() ? rapt_merge(context, &args, stream) : RAPT_OK;
}

}  // namespace

XlaError* xla_sdpa_cpu(XlaCallFrame* frame) { return run_xla(*frame, RAPT_DEVICE_CPU, attend); }
XlaError* xla_sdpa_cuda(XlaCallFrame* frame) { return run_xla(*frame, RAPT_DEVICE_CUDA, attend); }
XlaError* xla_merge_cpu(XlaCallFrame* frame) { return run_xla(*frame, RAPT_DEVICE_CPU, merge_parts); }
XlaError* xla_merge_cuda(XlaCallFrame* frame) { return run_xla(*frame, RAPT_DEVICE_CUDA, merge_parts); }

}  // namespace rapt::python
