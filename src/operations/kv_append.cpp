// rapt_kv_append: checks the rules, then calls the backend of the tensors. Called by c_api.cpp.
#include "cpu/kv_append.h"

#include "arguments/host_copies.h"
#include "base/error.h"
#include "cpu/arithmetic.h"
#include "cuda/cuda.h"
#include "kernels/kv_append/kv_append_gpu.h"
#include "operations/kv_append_rules.h"
#include "operations/sdpa.h"
#include "runtime/context.h"
#include "runtime/gpu_call.h"

namespace rapt {

namespace {

// The argument that gives the places of the tokens.
const char* source_of(const rapt_kv_append_args& args) {
  return args.seqused_k != nullptr ? "seqused_k" : args.starts != nullptr ? "starts" : "slot_mapping";
}

// RAPT_KV_APPEND_CHECK_CONTENTS. Waits for the stream.
void check_contents_on_gpu(const rapt_kv_append_args& args, void* stream) {
  if (cuda::is_capturing(stream))
    invalid("check_contents: cannot read contents while stream ", stream, " is being captured");
  HostCopies copies(stream);
  rapt_kv_append_args host = args;
  for (const auto member : kv_append_contents) host.*member = copies.of(args.*member);
  if (args.k_scales == RAPT_SCALE_HEAD) host.k_descale = copies.of(args.k_descale);
  if (args.v_scales == RAPT_SCALE_HEAD) host.v_descale = copies.of(args.v_descale);
  check_kv_append_contents(kv_append_params(host), source_of(args));
}

void kv_append_on_gpu(Context& context, const rapt_kv_append_args& args, void* stream) {
  const KvAppendParams params = kv_append_params(args);
  GpuCall call(context, {"rapt_kv_append", "k", args.k->device.index}, stream);
  if ((args.flags & RAPT_KV_APPEND_CHECK_CONTENTS) != 0) check_contents_on_gpu(args, stream);
  if (!kv_append_has_work(params)) return;
  const KvAppendConfig config = kv_append_config(params);
  call.run({{kv_append_unit(config), kv_append_launch(params, config, call.device().sm_count)}});
}

}  // namespace

void kv_append(Context& context, const rapt_kv_append_args& args, void* stream) {
  check_kv_append(args, stream);
  if (args.k->device.type == RAPT_DEVICE_CUDA) return kv_append_on_gpu(context, args, stream);
  const KvAppendParams params = kv_append_params(args);
  check_kv_append_contents(params, source_of(args));
  const cpu::DefaultArithmetic scope;
  CpuResources& cpu = context.cpu();
  const std::lock_guard<std::mutex> lock(cpu.call_mutex);
  cpu::kv_append(cpu.pool, params);
}

}  // namespace rapt
