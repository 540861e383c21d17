// Calls the library for check/: makes rapt_sdpa_args from a Problem and host tensors. Only this file of check/ must be
// linked with the library. All other files can be tested with kernels of check/ itself.
#include <memory>

#include "arguments/sdpa_arguments.h"
#include "base/error.h"
#include "check.h"
#include "device_tensors.h"
#include "paged.h"
#include "tensor.h"

namespace rapt::check {
namespace {

void set_position_mask(const PositionMask& mask, rapt_sdpa_args& args) {
  if (mask.causal == Causal::bottom_right) args.flags |= RAPT_CAUSAL;
  if (mask.causal == Causal::top_left) args.flags |= RAPT_CAUSAL_TOP_LEFT;
  for (const ScalarArgument& row : scalar_arguments)
    if (row.position != nullptr) {
      args.*row.integer = mask.*row.position;
      if (mask.*row.position != PositionMask{}.*row.position) args.has |= row.has;
    }
}

void set_options(const Problem& p, rapt_sdpa_args& args) {
  set_position_mask(p.position_mask, args);
  if (!p.mod.empty()) unsupported("mod=", p.mod, ": a digest is not the text that a call would need");
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
  if (p.varlen) args.has |= RAPT_HAS_MAX_SEQLEN_Q, args.max_seqlen_q = p.seqlen_q;
  if (p.varlen || p.page_size > 0) args.has |= RAPT_HAS_MAX_SEQLEN_K, args.max_seqlen_k = p.seqlen_k;
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

// If the problem has one start for the whole call, passes it as a scalar. (The tensor then has one element.)
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

// Each tensor of a problem and its field in rapt_sdpa_args.
constexpr struct {
  const char* name;
  const rapt_tensor* rapt_sdpa_args::*argument;
  HostTensor Inputs::*tensor;
} input_tensors[] = {{"q", &rapt_sdpa_args::q, &Inputs::q},
                     {"k", &rapt_sdpa_args::k, &Inputs::k},
                     {"v", &rapt_sdpa_args::v, &Inputs::v},
                     {"bias", &rapt_sdpa_args::bias, &Inputs::bias},
                     {"mask", &rapt_sdpa_args::mask, &Inputs::mask},
                     {"alibi_slopes", &rapt_sdpa_args::alibi_slopes, &Inputs::alibi_slopes},
                     {"sinks", &rapt_sdpa_args::sinks, &Inputs::sinks},
                     {"cu_seqlens_q", &rapt_sdpa_args::cu_seqlens_q, &Inputs::cu_seqlens_q},
                     {"cu_seqlens_k", &rapt_sdpa_args::cu_seqlens_k, &Inputs::cu_seqlens_k},
                     {"seqused_q", &rapt_sdpa_args::seqused_q, &Inputs::seqused_q},
                     {"seqused_k", &rapt_sdpa_args::seqused_k, &Inputs::seqused_k},
                     {"q_descale", &rapt_sdpa_args::q_descale, &Inputs::q_descale},
                     {"k_descale", &rapt_sdpa_args::k_descale, &Inputs::k_descale},
                     {"v_descale", &rapt_sdpa_args::v_descale, &Inputs::v_descale},
                     {"k_mean", &rapt_sdpa_args::k_mean, &Inputs::k_mean},
                     {"q_starts", &rapt_sdpa_args::q_starts, &Inputs::q_starts},
                     {"k_starts", &rapt_sdpa_args::k_starts, &Inputs::k_starts}};

bool is_replaced_by_pages(const Problem& p, const rapt_tensor* rapt_sdpa_args::*argument) {
  if (p.page_size == 0) return false;
  return argument == &rapt_sdpa_args::k || argument == &rapt_sdpa_args::v ||
         argument == &rapt_sdpa_args::cu_seqlens_k || argument == &rapt_sdpa_args::seqused_k ||
         (argument == &rapt_sdpa_args::k_descale && p.k_scales == ScaleKind::token) ||
         (argument == &rapt_sdpa_args::v_descale && p.v_scales == ScaleKind::token);
}

}  // namespace

SdpaCall::SdpaCall(const Problem& p, const Inputs& in, const Outputs& outputs, const Placement& place) {
  const auto view = [&](const char* name, const HostTensor& tensor) {
    return views_.emplace_back(name, tensor, place).get();
  };
  args.struct_size = sizeof(args);
  set_options(p, args);
  set_scalar_starts(p, args);
  args.out = view("out", outputs.out);
  args.lse = view("lse", outputs.lse);
  for (const auto& [name, argument, tensor] : input_tensors)
    if (!is_replaced_by_pages(p, argument) && !(p.v_in_k && argument == &rapt_sdpa_args::v))
      args.*argument = view(name, in.*tensor);
  if (p.page_size > 0) {
    paged_ = std::make_unique<PagedKeys>(make_paged(p, in));
    args.k = view("k", paged_->k);
    if (!p.v_in_k) args.v = view("v", paged_->v);
    args.block_table = view("block_table", paged_->block_table), args.seqused_k = view("seqused_k", paged_->seqused_k);
    if (p.k_scales == ScaleKind::token) args.k_descale = view("k_descale", paged_->k_descale);
    if (p.v_scales == ScaleKind::token) args.v_descale = view("v_descale", paged_->v_descale);
  }
  if (p.v_in_k) {
    const Address of_k{args.k->data, args.k->device};
    args.v =
        views_.emplace_back("v", paged_ ? paged_->v : in.v, [&](const char*, const HostTensor&) { return of_k; }).get();
  }
  if (p.partial) args.sinks = nullptr;  // a partial state does not include sinks, because the merge adds them
  if (args.has & RAPT_HAS_Q_START) args.q_starts = nullptr;
  if (args.has & RAPT_HAS_K_START) args.k_starts = nullptr;
}

SdpaCall::~SdpaCall() = default;

rapt_status run_sdpa(const Problem& problem, const Inputs& inputs, const Outputs& outputs, rapt_context* context) {
  const SdpaCall call(problem, inputs, outputs);
  return rapt_sdpa(context, &call.args, nullptr);
}

namespace {

void require_ok(rapt_status status) {
  if (status != RAPT_OK) throw Error(static_cast<ErrorCode>(status), rapt_last_error());
}

// All calls use one stream, because each stream has its own workspace.
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
  if (device.type == RAPT_DEVICE_CUDA) {
    Kernel on_gpu = [context, index = device.index, stream = make_stream(device.index)](
                        const Problem& problem, const Inputs& inputs, const Outputs& outputs) {
      run_on_gpu(problem, inputs, outputs, context, index, *stream);
    };
    on_gpu.narrow_products = cuda::device(device.index).sm >= 89;
    return on_gpu;
  }
  Kernel kernel = [context](const Problem& problem, const Inputs& inputs, const Outputs& outputs) {
    require_ok(run_sdpa(problem, inputs, outputs, context));
  };
  kernel.fp8_weights = DType::f32;
  return kernel;
}

}  // namespace rapt::check
