// The rules of rapt_kv_append_args, and the checked call as plain values.
// Called by kv_append.cpp before anything runs. Each error sentence names argument, value and rule.
#pragma once

#include "kernels/shared/kv_append.h"
#include "rapt/rapt.h"

namespace rapt {

// Checks shapes, dtypes, devices, memory. Throws Error. Never reads contents.
void check_kv_append(const rapt_kv_append_args& args, void* stream);
// Converts arguments that check_kv_append() has accepted.
KvAppendParams kv_append_params(const rapt_kv_append_args& args);
// Checks contents in host memory: lengths, starts, slots, positions, block_table, cache_batch_idx, supplied descales,
// and that no two tokens have the same place. Does not read k, v, q, caches and tables.
// source: "seqused_k" or "starts", or "slot_mapping".
void check_kv_append_contents(const KvAppendParams& params, const char* source);
// The lists that check_kv_append_contents() reads. It also reads descales that are inputs.
inline constexpr const rapt_tensor* rapt_kv_append_args::*kv_append_contents[] = {
    &rapt_kv_append_args::cu_seqlens_new, &rapt_kv_append_args::seqused_k,   &rapt_kv_append_args::starts,
    &rapt_kv_append_args::slot_mapping,   &rapt_kv_append_args::block_table, &rapt_kv_append_args::cache_batch_idx,
    &rapt_kv_append_args::positions};

}  // namespace rapt
