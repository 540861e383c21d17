// Problem: the description of a call, without pointers. It contains everything that a problem line can express
// (grammar: docs/problem-line.md). Created from tensors by sdpa.cpp or from text by parse_problem. Read by the planner,
// every kernel family, check/ and lab/.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/shared/dtype.h"
#include "kernels/shared/mask.h"
#include "kernels/shared/scale.h"

namespace rapt {

enum class Op : uint8_t { forward, backward, merge, quantize };
enum class PvMode : uint8_t { automatic, f16, fp8, fp8x2 };  // = rapt_pv_mode
enum class AccMode : uint8_t { f32, f16, tf32 };             // = rapt_acc_mode
enum class Layout : uint8_t { bhsd, bshd };  // memory order of a tensor without explicit strides; packed: hsd, shd

// How a tensor can be read. This decides which kernels can run. Strides of dimensions of size 1 are ignored.
struct Access {
  bool unit_last = true;  // stride of the last dimension is 1
  bool aligned16 = true;  // base address and every other stride are multiples of 16 bytes
  bool tma = true;        // expressible as a tensor map: aligned16, unit_last, positive strides below 2^40 bytes
  bool operator==(const Access&) const = default;
};

// How kernels can read a bias or a mask.
struct ScoreAccess {
  // The elements of keys 2 * n and 2 * n + 1 can be read at once: the last stride is 1, the last size is even, and
  // every row begins at a multiple of two elements.
  bool pairs = false;
  // The elements of keys 8 * n to 8 * n + 7 can be read at once: the same with eight instead of two, and the address of
  // such a group is a multiple of 16 bytes, or of 8 bytes for a mask.
  bool octets = false;
  // TMA can copy boxes: the last stride is 1, and the base and the other strides are multiples of 16 bytes, at least 0
  // and below 2^40.
  bool boxes = false;
  bool one_row = false;  // with boxes: all queries have the same elements (size 1, or stride 0)
  bool operator==(const ScoreAccess&) const = default;
};

// For bias and mask: which dimensions of [batch, heads_q, seqlen_q, seqlen_k] are broadcast (size 1).
struct Broadcast {
  DType dtype = DType::none;  // none = the tensor is absent
  std::array<bool, 4> one{};
  ScoreAccess access{};
  bool present() const { return dtype != DType::none; }
  bool operator==(const Broadcast&) const = default;
};

// All inputs of planning except the machine.
struct PlanFacts {
  Op op = Op::forward;
  DType q = DType::f16, k = DType::f16, v = DType::f16, out = DType::f16;
  int64_t batch = 1, heads_q = 1, heads_k = 1;
  int64_t seqlen_q = 1, seqlen_k = 1;  // varlen: max_seqlen_q, max_seqlen_k
  int64_t head_dim = 64, head_dim_v = 64;

  PositionMask position_mask;           // causal, windows
  std::optional<float> softcap, scale;  // scale absent = 1/sqrt(head_dim)
  bool alibi = false;
  bool alibi_per_batch = false;  // slopes [batch, heads_q] instead of [heads_q]; not in the problem line
  Broadcast bias, mask;
  bool sinks = false;

  bool varlen = false;                      // packed q, k, v with cu_seqlens
  int64_t total_q = 0, total_k = 0;         // varlen: rows of the packed tensors
  bool seqused = false, seqused_q = false;  // seqused_k, seqused_q given
  int64_t page_size = 0;                    // 0 = not paged
  bool v_in_k = false;                      // V is the first head_dim_v channels of K, in the same memory
  ScaleKind q_scales = ScaleKind::none, k_scales = ScaleKind::none, v_scales = ScaleKind::none;
  bool smooth_k = false, hadamard = false;
  bool has_starts = false;  // q_start or k_start given: off_b = q_start_b - k_start_b
  int64_t splits = 0;       // 0 = the planner's choice
  std::string mod;          // digest of a user's score modification
  bool lse = false, partial = false, invariant = false;
  PvMode pv = PvMode::automatic;
  AccMode acc = AccMode::f32;
  Access access_q, access_k, access_v, access_out;

  bool operator==(const PlanFacts&) const = default;
};

struct Problem : PlanFacts {
  // Used only by fill, check and printing. Plans, their == and hash use maxima, totals and access classes.
  Layout layout = Layout::bhsd;
  std::vector<int32_t> lengths_q, lengths_k, used_q, used_k;  // per sequence (varlen=, seqused_q=, seqused=)
  std::vector<int64_t> q_starts, k_starts;                    // one value, or one per sequence; empty = 0
  std::optional<std::vector<int64_t>> q_strides, k_strides, v_strides, out_strides;  // elements, logical order

  bool operator==(const Problem&) const = default;

  int64_t group() const { return heads_k > 0 ? heads_q / heads_k : 0; }  // query heads per kv head
  float softmax_scale() const;                                           // scale, or 1/sqrt(head_dim) in float
};

// Converts text to a validated Problem. Throws Error with the word if a word is unknown, repeated or contradictory.
// Reads the files of `@file` lengths.
Problem parse_problem(std::string_view line);

// Returns the canonical text. parse_problem(to_string(p)) == p for every Problem that a line can express.
std::string to_string(const Problem& problem);

// Throws Error{invalid_argument} with field, value and rule.
void validate(const Problem& problem);

// Shape and strides of one of the four large tensors, as layout= and *_strides= give them. Dimensions are in logical
// order: [batch, heads, seqlen, dim], or packed (rank 3) [total, heads, dim]. Needs a validated problem.
enum class Slot : uint8_t { q, k, v, out };
struct Geometry {
  int rank = 4;
  std::array<int64_t, 4> shape{}, strides{};  // elements; entries from rank on are unused
};
Geometry geometry(const Problem& problem, Slot slot);

// Returns the access class of a tensor whose element (0, ..., 0) is at address base. cache: the tensor is a paged
// cache.
Access access_of(DType dtype, const Geometry& geometry, uintptr_t base = 0, bool cache = false);
// The same for a bias or mask.
ScoreAccess score_access(DType dtype, const Geometry& geometry, uintptr_t base = 0);
// The same for the bias or mask that a problem line means: a contiguous tensor, or none.
ScoreAccess score_access(const Problem& problem, const Broadcast& scores);
// Returns false only if no two elements share an address. Strides that interleave without nesting count as overlapping.
bool overlaps_itself(const Geometry& geometry);

// What a plan may know about the softmax scale: the class of c = scale * log2(e).
enum class ScaleClass : uint8_t {
  moderate,  // 2^-100 <= c <= 2^100
  negative,  // c is a negative normal number
  positive,  // another positive normal number
  other,     // 0, subnormal or infinite
};
ScaleClass scale_class(const Problem& problem);
// What a plan may know about the soft cap: whether it is from 2^-100 to 2^100, and scale / softcap is 0 or a normal
// f32.
bool has_moderate_softcap(const Problem& problem);

// Compare and hash the inputs of planning, which do not include lengths, starts, explicit strides and layout.
bool same_plan(const Problem& a, const Problem& b);
uint64_t plan_hash(const Problem& problem);
// Returns the inputs of planning as text. Two problems have the same text exactly if same_plan() is true for them. The
// text is the problem line without the values that plans do not use. In it, softcap=1 stands for every soft cap, a
// missing `scale` for every moderate scale, and "varlen=?8:8" for all lengths with these totals. Facts about the
// tensors that a problem line does not have follow after "; ", for example "; q unaligned".
std::string plan_line(const Problem& problem);

// Operations of the visible (query, key) pairs: 2 * (head_dim + head_dim_v) per pair. Causal, window and lengths count
// exactly; boolean masks and biases count as visible. For varlen with unknown lengths the result is an upper bound.
double flops(const Problem& problem);
// Bytes if each tensor is read or written once: q, k, v, bias, mask, scales, out, lse.
double bytes(const Problem& problem);

// Facts of one sequence, from the lists of lengths or, if dense, from seqlen_q and seqlen_k. used_q, used_k and the
// maxima are applied. Used by check, lab and flops().
struct SequenceInfo {
  int64_t first_q = 0, first_k = 0;  // packed row of the first query and key; 0 when dense
  int64_t seqlen_q = 0, seqlen_k = 0;
  int64_t offset = 0;  // off of docs/semantics.md
};
SequenceInfo sequence(const Problem& problem, int64_t b);

}  // namespace rapt
