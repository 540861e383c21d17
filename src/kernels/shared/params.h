// AttentionParams: the run-time parameters of one attention call for all kernels: addresses, strides in elements,
// lengths. Filled by operations/bind.cpp. Compiled by host and device code; includes nothing outside shared/.
#pragma once

#include "dtype.h"
#include "fast_divmod.h"
#include "mask.h"

namespace rapt {

using index_t = long;  // = int64_t where rapt builds (checked in bind.cpp); NVRTC has no <stdint.h>

// batch, head, row and column are strides in elements: element (b, h, s, d) is at b*batch + h*head + s*row + d*column.
// Packed tensors have batch = 0.
struct TensorRef {
  void* data = nullptr;
  DType dtype = DType::none;
  index_t batch = 0, head = 0, row = 0, column = 0;

  constexpr bool present() const { return data != nullptr; }
  constexpr index_t index(index_t b, index_t h, index_t s) const { return b * batch + h * head + s * row; }
};

// A bias or mask [b, h, i, j]. batch, head, query and key are strides in elements, 0 for broadcast dimensions.
struct BroadcastRef {
  const void* data = nullptr;
  DType dtype = DType::none;
  index_t batch = 0, head = 0, query = 0, key = 0;
  constexpr bool present() const { return dtype != DType::none; }
};

// Descales. `rows`: how many positions of a sequence share a descale. 1: token. 64 or 128: block. 0: the whole
// sequence.
struct ScaleRef {
  const float* data = nullptr;
  index_t batch = 0, head = 0, position = 0, channel = 0;  // strides in elements; channel != 0 only for per-channel V
  index_t rows = 0;
  bool packed_rows = false;  // positions count packed rows (varlen token descales), not rows of the sequence

  constexpr bool present() const { return data != nullptr; }
  // Returns the address of the descale of position s; if descales are per channel, of channel 0. first: the packed row
  // at which the sequence begins.
  constexpr const float* at(index_t b, index_t h, index_t first, index_t s) const {
    const index_t p = rows == 0 ? 0 : (packed_rows ? first + s : s) / rows;
    return data + b * batch + h * head + p * position;
  }
};

// A list (index array) in the memory of the tensors' device: cu_seqlens, seqused (int) or starts (index_t).
template <class T>
struct ListRef {
  const T* data = nullptr;
  index_t stride = 0;
  constexpr bool present() const { return data != nullptr; }
  constexpr index_t operator[](index_t i) const { return data[i * stride]; }
};

// Paged K and V: key j of sequence b is row j % page_size of page table[b][j / page_size]. In TensorRef of K and V,
// batch is then the stride of pages.
struct PageTable {
  const int* data = nullptr;
  index_t batch = 0, column = 0;  // strides
  FastDivmod page_size;
  int pages = 0;  // of the cache; 0: K and V are not paged
  constexpr bool present() const { return pages > 0; }

  struct Place {
    index_t page, row;
  };
  // Returns the row of key j in its page.
  constexpr index_t row(unsigned j) const { return static_cast<index_t>(j - page_size.quotient(j) * page_size.value); }
  // Returns the address of the entry for key j.
  constexpr const int* entry(index_t b, unsigned j) const {
    return data + b * batch + static_cast<index_t>(page_size.quotient(j)) * column;
  }
  // An entry outside the cache, which on a GPU nobody has checked, is clamped.
  constexpr int clamped_page(int page) const { return page < 0 ? 0 : page < pages ? page : pages - 1; }
  // Returns the place of key j.
  constexpr Place of(index_t b, unsigned j) const { return {clamped_page(*entry(b, j)), row(j)}; }
};

// Computes tanh(factor * x) for |factor * x| <= 0.447 as x times a polynomial in x^2. The factor is part of the
// coefficients, so it costs no multiplication. The polynomial is a minimax fit of tanh(y) / y with a relative error
// below 2.8e-7.
struct TanhTerms {
  float factor = 0.0f;
  float term[4] = {};
  float largest_square = -1.0f;  // of x. Negative: no x may use the polynomial

  TanhTerms() = default;
  constexpr explicit TanhTerms(float f) : factor(f) {
    const float square = f * f;
    const float terms[4] = {f, -0.33330584f * f * square, 0.13248634f * f * square * square,
                            -0.046406727f * f * square * square * square};
    const float least = terms[3] < 0 ? -terms[3] : terms[3];
    if (!(least >= 0x1p-120f && square <= 0x1p28f)) return;  // a product of powers of f could overflow or underflow
    for (int i = 0; i < 4; ++i) term[i] = terms[i];
    largest_square = 0.2f / square;
  }
};

// Members that every call uses come first: a kernel begins by loading the cache lines of its parameters.
struct AttentionParams {
  TensorRef q, k, v, out, lse;  // lse: f32, column unused
  index_t batch = 1, heads_q = 1;
  index_t group = 1;                   // query heads per kv head
  FastDivmod by_group;                 // divides by `group`
  index_t seqlen_q = 0, seqlen_k = 0;  // dense: of every sequence; varlen: the maximum
  float scale = 1.0f;
  float softcap = 0.0f;  // 0 = none
  PositionMask position_mask;
  bool has_starts = false;
  int block_n = 0;  // CPU: keys of a tile; tiles begin at multiples of block_n
  const float* sinks = nullptr;
  index_t sinks_head = 0;  // stride
  ListRef<int> cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k;
  ListRef<index_t> q_starts, k_starts;  // if absent, q_start and k_start hold for the whole batch
  index_t q_start = 0, k_start = 0;
  index_t total_q = 0, total_k = 0;  // packed rows
  index_t head_dim = 0, head_dim_v = 0;
  ScaleRef q_scale, k_scale, v_scale;
  const float* k_mean = nullptr;  // mean of each channel of k, subtracted before quantisation
  index_t k_mean_batch = 0, k_mean_head = 0, k_mean_channel = 0;  // strides
  BroadcastRef bias, mask;
  const float* alibi_slopes = nullptr;
  index_t alibi_batch = 0, alibi_head = 0;  // strides
  PageTable pages;

  // Returns whether lengths or positions are in lists, which are in GPU memory.
  constexpr bool has_lists() const {
    return cu_seqlens_q.present() || seqused_q.present() || seqused_k.present() || q_starts.present() ||
           k_starts.present();
  }

  TanhTerms tanh;  // for softcap. The factor is scale / softcap, or 1 / softcap (soft_cap_factor)
};

// Returns whether scores have descales as factors, besides the scale.
constexpr bool has_score_descales(DType q, DType k) { return is_fp8(q) || is_fp8(k); }

// Returns the factor of AttentionParams::tanh: the scale is part of it, unless scores also have descales. If the
// quotient is infinite, returns the largest float, so that a score of 0 stays 0.
constexpr float soft_cap_factor(const AttentionParams& p) {
  constexpr float most = 0x1.fffffep127f;
  const float factor = (has_score_descales(p.q.dtype, p.k.dtype) ? 1.0f : p.scale) / p.softcap;
  return factor > most ? most : factor < -most ? -most : factor;
}

// One sequence of the batch.
struct Sequence {
  index_t seqlen_q = 0, seqlen_k = 0, offset = 0;  // offset: `off` in docs/semantics.md
  index_t first_q = 0, first_k = 0;                // packed rows at which the sequence begins; 0 if dense
  index_t rows_q = 0;                              // seqlen_q plus the rows beyond seqused_q
};

constexpr index_t clamped(index_t x, index_t low, index_t high) { return x < low ? low : x > high ? high : x; }

// Returns sequence b. Its lengths from the lists are clamped to the tensors and to the maximum lengths, because on a
// GPU the lists are not validated.
constexpr Sequence sequence_of(const AttentionParams& p, index_t b) {
  Sequence s{p.seqlen_q, p.seqlen_k, 0, 0, 0, 0};
  if (p.cu_seqlens_q.present()) {
    s.first_q = clamped(p.cu_seqlens_q[b], 0, p.total_q);
    s.seqlen_q = clamped(p.cu_seqlens_q[b + 1] - s.first_q, 0, clamped(p.total_q - s.first_q, 0, p.seqlen_q));
    if (!p.pages.present()) {
      s.first_k = clamped(p.cu_seqlens_k[b], 0, p.total_k);
      s.seqlen_k = clamped(p.cu_seqlens_k[b + 1] - s.first_k, 0, clamped(p.total_k - s.first_k, 0, p.seqlen_k));
    }
  }
  s.rows_q = s.seqlen_q;
  if (p.seqused_q.present()) s.seqlen_q = clamped(p.seqused_q[b], 0, s.seqlen_q);
  if (p.seqused_k.present()) s.seqlen_k = clamped(p.seqused_k[b], 0, s.seqlen_k);
  if (p.has_starts) {
    const index_t q = p.q_starts.present() ? p.q_starts[b] : p.q_start;
    const index_t k = p.k_starts.present() ? p.k_starts[b] : p.k_start;
    constexpr index_t limit = index_t{1} << 60;
    s.offset = clamped(q, -limit, limit) - clamped(k, -limit, limit);
  } else if (p.position_mask.causal != Causal::top_left) {
    s.offset = s.seqlen_k - s.seqlen_q;
  }
  return s;
}

}  // namespace rapt
