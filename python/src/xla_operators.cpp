// rapt.quantize, rapt.qk and rapt.gemm for XLA: foreign functions as in xla.cpp. Their numbers come in the attributes
// `integers` and `numbers`, in the orders below; python/rapt/_jax_operators.py uses the same orders.
#include "xla.h"
#include "xla_frame.h"

namespace rapt::python {
namespace {

int32_t narrow(int64_t value) { return static_cast<int32_t>(value); }

// Operands: x, then descale if its number (supplied) is 1, then cu_seqlens if its number is 1. Results: codes, then
// descale if it is not supplied, then mean with RAPT_QUANTIZE_SMOOTH.
rapt_status quantize_array(XlaReading& reading, void* stream) {
  enum { i_supplied, i_packed, i_bshd, i_has, i_flags, i_scales, i_dtype, i_max_seqlen, integer_count };
  const int64_t* const integers = reading.integers(integer_count);
  const double* const numbers = reading.numbers(1);
  if (!reading.ok()) return RAPT_OK;
  const bool swapped = integers[i_bshd] != 0;
  rapt_quantize_args args{};
  args.struct_size = sizeof args;
  args.has = static_cast<uint64_t>(integers[i_has]), args.flags = static_cast<uint64_t>(integers[i_flags]);
  args.scales = narrow(integers[i_scales]);
  args.max_seqlen = integers[i_max_seqlen], args.percentile = numbers[0];
  args.input = reading.argument("x", RAPT_DTYPE_NONE, swapped);
  if (integers[i_supplied] != 0) args.descale = reading.argument("descale");
  if (integers[i_packed] != 0) args.cu_seqlens = reading.argument("cu_seqlens");
  reading.expect_no_more_arguments();
  args.output = reading.result("codes", narrow(integers[i_dtype]), swapped);
  if (integers[i_supplied] == 0) args.descale = reading.result("descale");
  if (args.flags & RAPT_QUANTIZE_SMOOTH) args.mean = reading.result("mean");
  rapt_context* const context = reading.context();
  return reading.ok() ? rapt_quantize(context, &args, stream) : RAPT_OK;
}

// Operands: the two factors, then the descale of each factor that has scales. Result: out.
enum ProductInteger { i_scales_a, i_scales_b, i_dtype_a, i_dtype_b, i_swapped, product_integer_count };

rapt_status multiply_qk(XlaReading& reading, void* stream) {
  const int64_t* const integers = reading.integers(product_integer_count);
  const double* const numbers = reading.numbers(1);
  if (!reading.ok()) return RAPT_OK;
  const bool swapped = integers[i_swapped] != 0;
  rapt_qk_args args{};
  args.struct_size = sizeof args;
  args.has = RAPT_QK_HAS_SCALE, args.scale = numbers[0];
  args.q_scales = narrow(integers[i_scales_a]), args.k_scales = narrow(integers[i_scales_b]);
  args.q = reading.argument("q", narrow(integers[i_dtype_a]), swapped);
  args.k = reading.argument("k", narrow(integers[i_dtype_b]), swapped);
  if (args.q_scales != RAPT_SCALE_NONE) args.q_descale = reading.argument("q_descale");
  if (args.k_scales != RAPT_SCALE_NONE) args.k_descale = reading.argument("k_descale");
  reading.expect_no_more_arguments();
  args.out = reading.result("out");
  rapt_context* const context = reading.context();
  return reading.ok() ? rapt_qk(context, &args, stream) : RAPT_OK;
}

rapt_status multiply_gemm(XlaReading& reading, void* stream) {
  const int64_t* const integers = reading.integers(product_integer_count);
  if (!reading.ok()) return RAPT_OK;
  rapt_gemm_args args{};
  args.struct_size = sizeof args;
  args.a_scales = narrow(integers[i_scales_a]), args.b_scales = narrow(integers[i_scales_b]);
  args.a = reading.argument("a", narrow(integers[i_dtype_a]));
  args.b = reading.argument("b", narrow(integers[i_dtype_b]));
  if (args.a_scales != RAPT_SCALE_NONE) args.a_descale = reading.argument("a_descale");
  if (args.b_scales != RAPT_SCALE_NONE) args.b_descale = reading.argument("b_descale");
  reading.expect_no_more_arguments();
  args.out = reading.result("out");
  rapt_context* const context = reading.context();
  return reading.ok() ? rapt_gemm(context, &args, stream) : RAPT_OK;
}

}  // namespace

XlaError* xla_quantize_cpu(XlaCallFrame* frame) { return run_xla(*frame, RAPT_DEVICE_CPU, quantize_array); }
XlaError* xla_quantize_cuda(XlaCallFrame* frame) { return run_xla(*frame, RAPT_DEVICE_CUDA, quantize_array); }
XlaError* xla_qk_cpu(XlaCallFrame* frame) { return run_xla(*frame, RAPT_DEVICE_CPU, multiply_qk); }
XlaError* xla_qk_cuda(XlaCallFrame* frame) { return run_xla(*frame, RAPT_DEVICE_CUDA, multiply_qk); }
XlaError* xla_gemm_cpu(XlaCallFrame* frame) { return run_xla(*frame, RAPT_DEVICE_CPU, multiply_gemm); }
XlaError* xla_gemm_cuda(XlaCallFrame* frame) { return run_xla(*frame, RAPT_DEVICE_CUDA, multiply_gemm); }

}  // namespace rapt::python
