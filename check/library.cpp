// The library as check/ calls it: rapt_sdpa_args from a Problem and host tensors. The only file of check/ that needs
// the library to link; everything else can be tried on kernels of check/ itself.
#include <memory>

#include "base/error.h"
#include "check.h"
#include "device_tensors.h"
#include "tensor.h"

namespace rapt::check {
namespace {

void set_options(const Problem& p, rapt_sdpa_args& args) {
  if (!p.mod.empty()) unsupported("mod=", p.mod, ": a digest is not the text that a call would need");
  if (p.causal == Causal::bottom_right) args.flags |= RAPT_CAUSAL;
  if (p.causal == Causal::top_left) args.flags |= RAPT_CAUSAL_TOP_LEFT;
  if (p.partial) args.flags |= RAPT_PARTIAL;
  if (p.invariant) args.flags |= RAPT_INVARIANT;
  if (p.scale) {
    args.has |= RAPT_HAS_SCALE;
    args.softmax_scale = static_cast<double>(*p.scale);
  }
  if (p.softcap) {
    args.has |= RAPT_HAS_SOFTCAP;
    args.softcap = static_cast<double>(*p.softcap);
  }
  if (p.window) {
    args.has |= RAPT_HAS_WINDOW;
    args.window_left = p.window->left;
    args.window_right = p.window->right;
  }
  if (p.varlen) {
    args.has |= RAPT_HAS_MAX_SEQLEN_Q | RAPT_HAS_MAX_SEQLEN_K;
    args.max_seqlen_q = p.seqlen_q;
    args.max_seqlen_k = p.seqlen_k;
  }
  if (p.splits > 0) {
    args.has |= RAPT_HAS_SPLITS;
    args.splits = p.splits;
  }
  args.q_scales = static_cast<int32_t>(p.q_scales);
  args.k_scales = static_cast<int32_t>(p.k_scales);
  args.v_scales = static_cast<int32_t>(p.v_scales);
  args.pv = static_cast<int32_t>(p.pv);
  args.acc = static_cast<int32_t>(p.acc);
}

// One start for the whole call travels as a scalar (the tensor then has one element and the problem one value).
void set_scalar_starts(const Problem& p, rapt_sdpa_args& args) {
  if (p.q_starts.size() == 1) {
    args.has |= RAPT_HAS_Q_START;
    args.q_start = p.q_starts[0];
  }
  if (p.k_starts.size() == 1) {
    args.has |= RAPT_HAS_K_START;
    args.k_start = p.k_starts[0];
  }
}

}  // namespace

SdpaCall::SdpaCall(const Problem& p, const Inputs& in, const Outputs& outputs, const Placement& place)
    : q("q", in.q, place),
      k("k", in.k, place),
      v("v", in.v, place),
      out("out", outputs.out, place),
      lse("lse", outputs.lse, place),
      bias("bias", in.bias, place),
      mask("mask", in.mask, place),
      slopes("alibi_slopes", in.alibi_slopes, place),
      sinks("sinks", in.sinks, place),
      cu_q("cu_seqlens_q", in.cu_seqlens_q, place),
      cu_k("cu_seqlens_k", in.cu_seqlens_k, place),
      used_q("seqused_q", in.seqused_q, place),
      used_k("seqused_k", in.seqused_k, place),
      q_descale("q_descale", in.q_descale, place),
      k_descale("k_descale", in.k_descale, place),
      v_descale("v_descale", in.v_descale, place),
      k_mean("k_mean", in.k_mean, place),
      q_starts("q_starts", in.q_starts, place),
      k_starts("k_starts", in.k_starts, place) {
  args.struct_size = sizeof(args);
  set_options(p, args);
  set_scalar_starts(p, args);
  args.q = q.get();
  args.k = k.get();
  args.v = v.get();
  args.out = out.get();
  args.lse = lse.get();
  args.bias = bias.get();
  args.mask = mask.get();
  args.alibi_slopes = slopes.get();
  // A partial state excludes sinks: merge adds them once.
  args.sinks = p.partial ? nullptr : sinks.get();
  args.cu_seqlens_q = cu_q.get();
  args.cu_seqlens_k = cu_k.get();
  args.seqused_q = used_q.get();
  args.seqused_k = used_k.get();
  args.q_descale = q_descale.get();
  args.k_descale = k_descale.get();
  args.v_descale = v_descale.get();
  args.k_mean = k_mean.get();
  if (!(args.has & RAPT_HAS_Q_START)) args.q_starts = q_starts.get();
  if (!(args.has & RAPT_HAS_K_START)) args.k_starts = k_starts.get();
}

rapt_status run_sdpa(const Problem& problem, const Inputs& inputs, const Outputs& outputs, rapt_context* context) {
  const SdpaCall call(problem, inputs, outputs);
  return rapt_sdpa(context, &call.args, nullptr);
}

namespace {

void require_ok(rapt_status status) {
  if (status != RAPT_OK) throw Error(static_cast<ErrorCode>(status), rapt_last_error());
}

// One stream for all calls: a workspace belongs to a stream.
std::shared_ptr<cuda::Stream> make_stream(int device_index) {
  const cuda::ContextScope scope(device_index, nullptr);
  return {new cuda::Stream, [device_index](cuda::Stream* stream) {
            const cuda::ContextScope last(device_index, nullptr);
            delete stream;
          }};
}

void run_on_gpu(const Problem& problem, const Inputs& inputs, const Outputs& outputs, rapt_context* context,
                int device_index, const cuda::Stream& stream) {
  const cuda::ContextScope scope(device_index, stream.handle());
  DeviceCall call(device_index, problem, inputs, outputs);
  require_ok(rapt_sdpa(context, &call.args(), stream.handle()));
  stream.synchronize();
  call.require_untouched();
  call.download();
}

}  // namespace

Kernel library_kernel(rapt_context* context, rapt_device device) {
  if (device.type == RAPT_DEVICE_CUDA)
    return [context, index = device.index, stream = make_stream(device.index)](
               const Problem& problem, const Inputs& inputs, const Outputs& outputs) {
      run_on_gpu(problem, inputs, outputs, context, index, *stream);
    };
  Kernel kernel = [context](const Problem& problem, const Inputs& inputs, const Outputs& outputs) {
    require_ok(run_sdpa(problem, inputs, outputs, context));
  };
  kernel.fp8_weights = DType::f32;
  return kernel;
}

}  // namespace rapt::check
