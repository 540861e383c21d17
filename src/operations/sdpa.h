// One function for each operation. Called by c_api.cpp. A function that throws Error has written no output.
#pragma once

#include <string>

#include "problem/problem.h"
#include "rapt/rapt.h"

namespace rapt {

class Context;

void sdpa(Context& context, const rapt_sdpa_args& args, void* stream);
void prepare(Context& context, const rapt_sdpa_args& args, void* stream);
size_t workspace_size(Context& context, const rapt_sdpa_args& args, size_t& zero_bytes);
std::string explain(Context& context, const rapt_sdpa_args& args);
void merge(Context& context, const rapt_merge_args& args, void* stream);
void quantize(Context& context, const rapt_quantize_args& args, void* stream);
void kv_append(Context& context, const rapt_kv_append_args& args, void* stream);
void rotary_tables(Context& context, const rapt_rotary_args& args);
void qk(Context& context, const rapt_qk_args& args, void* stream);
void gemm(Context& context, const rapt_gemm_args& args, void* stream);

}  // namespace rapt
