// rapt_sdpa_args to Problem: every rule about pointers, shapes, dtypes, devices and overlap, before anything runs.
// Called by sdpa.cpp and merge.cpp; throws Error naming argument, value and rule; writes nothing.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "problem.h"
#include "rapt/rapt.h"

namespace rapt {

constexpr int max_rank = 4;

// Strides of a tensor in elements, contiguous where it gives none.
std::array<int64_t, max_rank> strides_of(const rapt_tensor& tensor);
int64_t element_count(const rapt_tensor& tensor);
std::string shape_text(const rapt_tensor& tensor);  // "[2, 8, 512, 64]"

// Rank, shape pointer, sizes, dtype code, data pointer and its element alignment.
void check_tensor(const char* name, const rapt_tensor& tensor);
void require_shape(const char* name, const rapt_tensor& tensor, std::initializer_list<int64_t> shape,
                   const char* meaning);
void require_same_device(const char* name, const rapt_tensor& tensor, const rapt_tensor& first, const char* first_name);
// An output may not overlap itself, and two tensors may not share a byte (unless neither is written).
void check_output_layout(const char* name, const rapt_tensor& tensor);
void check_disjoint(const char* name_a, const rapt_tensor& a, const char* name_b, const rapt_tensor& b);

// The part of a caller's workspace that is used shares no byte with the call's tensors.
void check_workspace_disjoint(const rapt_sdpa_args& args, size_t used);

// A struct that may grow: struct_size covers what this build knows, and what it does not know is zero.
void check_struct_size(const char* name, size_t struct_size, const void* data, size_t known);

// Validated: the result has passed rapt::validate as well. Reads shapes and addresses, never contents.
Problem problem_from(const rapt_sdpa_args& args);

// CPU only: the values of cu_seqlens, seqused_k, starts and mask. The Problem stays free of contents, so that calls
// which differ only in lengths share a plan.
void check_contents(const rapt_sdpa_args& args, const Problem& problem);

}  // namespace rapt
