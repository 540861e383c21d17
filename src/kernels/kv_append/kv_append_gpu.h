// rapt_kv_append on GPUs: one kernel.
#pragma once

#include "kernels/kv_append/kv_append_config.h"
#include "kernels/launch_spec.h"

namespace rapt {

// Returns whether the call has a row to write.
bool kv_append_has_work(const KvAppendParams& params);
// Throws Error if a size exceeds a GPU limit.
KvAppendConfig kv_append_config(const KvAppendParams& params);
KernelUnit kv_append_unit(const KvAppendConfig& config);
LaunchSpec kv_append_launch(const KvAppendParams& params, const KvAppendConfig& config, int multiprocessors);

}  // namespace rapt
