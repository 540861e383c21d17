// What the families on mma.sync share on the host: which tensors their kernels accept, and the part of a configuration
// that follows from the problem. attention_sm80 and attention_decode. Host only.
#pragma once

#include <algorithm>
#include <string>

#include "device/device.h"
#include "kernels/sm80/config.h"
#include "problem/problem.h"

namespace rapt {

// The largest head dims: of most problems, and of 16-bit tensors with f32 sums (wide_attention.cuh).
inline constexpr int largest_dim = 256, largest_wide_dim = 576, largest_wide_dim_v = 512;

inline bool has_wide_dims(const Problem& p) { return std::max(p.head_dim, p.head_dim_v) > largest_dim; }

inline int64_t ceil_div(int64_t n, int64_t by) { return (n + by - 1) / by; }

// Returns whether the GPU has FP8 mma.sync instructions (Ada and consumer Blackwell). For other GPUs the compiler turns
// FP8 mma.sync into f16 mma.
bool has_fp8_mma(const Device& device);
// Returns whether a product has TF32 operands (tf32.cuh).
bool has_tf32(const Problem& p);
bool has_fp8(const Problem& p);

// Check dtypes, head dims and memory layouts. name: the family. *why receives the first rule that the problem breaks.
// If why is null, nothing is formatted.
bool accepts_formats(const char* name, const Problem& p, std::string* why);
bool accepts_dims(const char* name, const Problem& p, const Device& device, std::string* why);
bool accepts_layouts(const char* name, const Problem& p, std::string* why);

// Returns whether the softmax can apply the scale: exp2(s * c - m * c).
bool can_scale_in_exp2(const Problem& p, bool fp8);
// Returns whether bias and mask can be loaded in groups of eight keys.
bool can_load_octets(const Problem& p);
// Returns whether distances of ALiBi can exceed 2^24.
bool has_far_positions(const Problem& p);

// Sets the fields that follow from the problem and the GPU: dtypes, head dims, operations on scores, descales.
void configure_variant(const Problem& p, const Device& device, Sm80Config& a);
// Throws Error if the sizes of tiles, which the user can change, break a rule of the kernel.
void check_mma_tiles(const Sm80Config& c);

// Head dims above 256: chooses k_piece and v_piece. On entry, k_piece channels of a block of keys give the size of a
// buffer. If shared memory does not suffice, reduces `stages` first, then the buffers, then the rows.
void choose_pieces(Sm80Config& a, int bytes);
// Throws Error if the pieces break a rule of wide_attention.cuh.
void check_pieces(const Sm80Config& c);

}  // namespace rapt
