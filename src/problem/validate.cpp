// validate: checks every rule of a Problem; an error sentence names field, value and rule (docs/problem-line.md).
// Called by parse_problem and, for tensors, by sdpa.cpp. All later code may assume these rules.
#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <span>

#include "base/error.h"
#include "problem/dtypes.h"
#include "problem/hint.h"
#include "problem/problem.h"
#include "problem/words.h"

namespace rapt {
namespace {

void check_dtypes(const Problem& p) {
  const auto input = [](const char* name, DType t) {
    if (!is_attention_input(t)) invalid(name, " = ", name_of(t), ": must be one of ", input_dtypes.names(", "));
  };
  input("q dtype", p.q);
  input("k dtype", p.k);
  input("v dtype", p.v);
  if (!is_attention_output(p.out)) invalid("out dtype = ", name_of(p.out), ": must be one of f32, f16, bf16");
  if (p.bias.present() && !is_attention_output(p.bias.dtype))
    invalid("bias dtype = ", name_of(p.bias.dtype), ": must be one of f32, f16, bf16");
  if (p.mask.present() && p.mask.dtype != DType::u8) invalid("mask dtype = ", name_of(p.mask.dtype), ": must be u8");
}

// Checks the number of elements of a tensor. A size of 0 counts as 1, so that strides from the other sizes stay in
// range.
void check_elements(const char* name, std::initializer_list<int64_t> shape) {
  int64_t elements = 1;
  for (const int64_t size : shape)
    if (__builtin_mul_overflow(elements, std::max<int64_t>(size, 1), &elements) || elements > words::max_elements)
      invalid(name, " = ", shape.begin()[0], " x ... x ", shape.end()[-1], ": must have fewer than 2^60 elements");
}

void check_sizes(const Problem& p) {
  const auto size = [](const char* name, int64_t value, int64_t lowest) {
    if (value < lowest || value > words::max_size) invalid(name, " = ", value, ": must be ", lowest, " to 2^40");
  };
  size("batch", p.batch, 0);
  size("heads_q", p.heads_q, 0);
  size("heads_k", p.heads_k, 0);
  size("seqlen_q", p.seqlen_q, 0);
  size("seqlen_k", p.seqlen_k, 0);
  size("head_dim", p.head_dim, 1);
  size("head_dim_v", p.head_dim_v, 1);
  size("total_q", p.total_q, 0);
  size("total_k", p.total_k, 0);
  size("page_size", p.page_size, 0);
  size("splits", p.splits, 0);
  if (p.heads_q > 0 && (p.heads_k == 0 || p.heads_q % p.heads_k != 0))
    invalid("heads_q = ", p.heads_q, ", heads_k = ", p.heads_k, ": heads_q must be a multiple of heads_k",
            !p.varlen && p.layout == Layout::bhsd && looks_like_bshd(p.heads_q, p.seqlen_q, p.heads_k, p.seqlen_k)
                ? "; the shapes look like bshd, [batch, seqlen, heads, head_dim]: say so (layout=bshd, or strides)"
                : "");
}

void check_products(const Problem& p) {
  const int64_t rows_q = p.varlen ? p.total_q : p.seqlen_q, rows_k = p.varlen ? p.total_k : p.seqlen_k;
  const int64_t outer = p.varlen ? 1 : p.batch, parts = std::max<int64_t>(p.splits, 1);
  check_elements("q size", {outer, p.heads_q, rows_q, p.head_dim});
  check_elements("k size", {outer, p.heads_k, rows_k, p.head_dim});
  check_elements("v size", {outer, p.heads_k, rows_k, p.head_dim_v});
  check_elements("out size times splits", {parts, outer, p.heads_q, rows_q, p.head_dim_v});
  const auto scores = [&p](const char* name, const Broadcast& t) {
    const auto axis = [&t](size_t i, int64_t size) { return t.one[i] ? 1 : size; };
    if (t.present())
      check_elements(name, {axis(0, p.batch), axis(1, p.heads_q), axis(2, p.seqlen_q), axis(3, p.seqlen_k)});
  };
  scores("bias size", p.bias);
  scores("mask size", p.mask);
}

void check_scores(const Problem& p) {
  if (p.scale && !std::isfinite(*p.scale)) invalid("scale = ", *p.scale, ": must be finite");
  if (p.softcap && !(*p.softcap > 0 && std::isfinite(*p.softcap)))
    invalid("softcap = ", *p.softcap, ": must be finite and greater than 0");
  for (const PositionWord& mask : position_words)
    for (const PositionWord::Value& value : std::span(mask.values, static_cast<size_t>(mask.count())))
      if (const int64_t given = p.position_mask.*value.field;
          given != PositionMask{}.*value.field && (given < value.least || given > words::max_position))
        invalid(value.name, " = ", given, ": ", value.rule);
  if (p.alibi_per_batch && !p.alibi) invalid("alibi_per_batch without alibi: there are no slopes");
  if (p.mod.size() > words::max_mod_chars || p.mod.find_first_not_of("0123456789abcdef") != std::string::npos)
    invalid("mod = '", p.mod.substr(0, words::max_mod_chars), "': must be at most ", words::max_mod_chars,
            " lower-case hexadecimal digits");
}

void check_starts(const Problem& p) {
  if (p.position_mask.causal == Causal::top_left && p.has_starts)
    invalid("causal_top_left with q_start or k_start: top-left fixes the offset at 0; use causal");
  const auto list = [&p](const char* name, const std::vector<int64_t>& starts) {
    if (starts.empty()) return;
    if (!p.has_starts) invalid(name, ": given although has_starts is false");
    if (starts.size() != 1 && std::ssize(starts) != p.batch)
      invalid(name, " has ", starts.size(), " values, batch = ", p.batch, ": must have 1 or batch values");
    for (const int64_t start : starts)
      if (start < -words::max_position || start > words::max_position)
        invalid(name, " = ", start, ": must be within -2^60 to 2^60");
  };
  list("q_start", p.q_starts);
  list("k_start", p.k_starts);
}

// Checks a list of lengths. It is either absent (unknown on the host), or has one length per sequence, none negative,
// with a sum of at most `total`.
void check_lengths(const Problem& p, const char* name, const std::vector<int32_t>& lengths, int64_t total) {
  if (lengths.empty()) return;
  if (std::ssize(lengths) != p.batch)
    invalid(name, " has ", lengths.size(), " lengths, batch = ", p.batch, ": must have one per sequence");
  int64_t sum = 0;
  for (const int32_t length : lengths) {
    if (length < 0) invalid(name, " = ", length, ": a length must not be negative");
    sum += length;
  }
  if (sum > total) invalid(name, " sum = ", sum, ", packed rows = ", total, ": must not exceed the packed tensor");
}

// Checks lengths in use. None of them may exceed the length of its sequence.
void check_used(const Problem& p, const char* name, const std::vector<int32_t>& used,
                const std::vector<int32_t>& lengths, int64_t seqlen, const char* what) {
  check_lengths(p, name, used, words::max_elements);
  for (size_t b = 0; b < used.size(); ++b) {
    const int64_t most = lengths.empty() ? seqlen : lengths[b];
    if (used[b] > most)
      invalid(name, " = ", used[b], ", sequence ", b, " has ", most, " ", what, ": must not exceed them");
  }
}

void check_sequences(const Problem& p) {
  if (!p.varlen && (!p.lengths_q.empty() || !p.lengths_k.empty() || p.total_q != 0 || p.total_k != 0))
    invalid("lengths or totals without varlen: only packed tensors have them");
  if (p.lengths_q.size() != p.lengths_k.size())
    invalid("lengths_q has ", p.lengths_q.size(), " lengths, lengths_k has ", p.lengths_k.size(), ": must be equal");
  check_lengths(p, "lengths_q", p.lengths_q, p.total_q);
  check_lengths(p, "lengths_k", p.lengths_k, p.total_k);
  if (!p.seqused && !p.used_k.empty()) invalid("used_k: given although seqused is false");
  if (!p.seqused_q && !p.used_q.empty()) invalid("used_q: given although seqused_q is false");
  check_used(p, "seqused", p.used_k, p.lengths_k, p.seqlen_k, "keys");
  check_used(p, "seqused_q", p.used_q, p.lengths_q, p.seqlen_q, "queries");
}

void check_quantisation(const Problem& p) {
  const auto scales = [](const char* name, ScaleKind kind, DType t) {
    if (kind == ScaleKind::none || is_fp8(t)) return;
    invalid(name, "_scales = ", words::name(words::scale_kinds, kind), ", ", name, " = ", name_of(t), ": scales need ",
            fp8_dtypes.names(), " storage");
  };
  scales("q", p.q_scales, p.q);
  scales("k", p.k_scales, p.k);
  scales("v", p.v_scales, p.v);
  if (p.q_scales == ScaleKind::channel) invalid("q_scales = channel: only v has scales by channel");
  if (p.k_scales == ScaleKind::channel) invalid("k_scales = channel: only v has scales by channel");
  if (p.smooth_k && !is_fp8(p.k)) invalid("smooth_k, k = ", name_of(p.k), ": needs k in ", fp8_dtypes.names());
  if (p.hadamard && !(is_fp8(p.q) && is_fp8(p.k)))
    invalid("hadamard, q = ", name_of(p.q), ", k = ", name_of(p.k), ": needs q and k in ", fp8_dtypes.names());
  const bool pv_fits = is_fp8(p.v) || (p.pv == PvMode::f16 && p.v == DType::f16);
  if (p.pv != PvMode::automatic && !pv_fits)
    invalid("pv = ", words::name(words::pv_modes, p.pv), ", v = ", name_of(p.v), ": needs v in ", fp8_dtypes.names(),
            p.pv == PvMode::f16 ? ", or f16" : "");
  const bool any_f32 = p.q == DType::f32 || p.k == DType::f32 || p.v == DType::f32;
  if (p.acc == AccMode::f16 && any_f32)
    invalid("acc = f16, q = ", name_of(p.q), ", k = ", name_of(p.k), ", v = ", name_of(p.v),
            ": needs 16-bit or FP8 storage of all three");
  if (p.acc == AccMode::tf32 && !any_f32)
    invalid("acc = tf32, q = ", name_of(p.q), ", k = ", name_of(p.k), ", v = ", name_of(p.v),
            ": needs f32 storage of q, k or v");
}

void check_modes(const Problem& p) {
  if (p.partial && !p.lse) invalid("partial without lse: a partial state is (out, lse); add lse");
  if (p.partial && p.out != DType::f32)
    invalid("partial, out = ", name_of(p.out), ": a partial out must be f32; add out=f32");
  if (p.partial && p.sinks) invalid("sinks with partial: a sink counts once; pass sinks to the merge");
  if (p.invariant && p.splits > 1)
    invalid("splits = ", p.splits, " with invariant: invariant fixes the splits itself; leave splits out or give 1");
}

// Checks strides. The distance in bytes between the first and the last element must fit into int64. Dimensions of size
// 1 do not count.
void check_strides(const Problem& p, const char* name, Slot slot, const std::optional<std::vector<int64_t>>& strides) {
  if (!strides) return;
  const Geometry g = geometry(p, slot);
  if (std::ssize(*strides) != g.rank)
    invalid(name, " has ", strides->size(), " values: must have ", g.rank, p.varlen ? " (packed)" : " (dense)");
  int64_t reach = 0, step = 0;
  for (size_t i = 0; i < strides->size(); ++i) {
    const int64_t stride = (*strides)[i], size = std::max<int64_t>(g.shape[i], 1);
    const bool overflow = __builtin_mul_overflow(size - 1, stride, &step) || step == INT64_MIN ||
                          __builtin_add_overflow(reach, std::abs(step), &reach);
    if (overflow || reach > words::max_elements) invalid(name, " = ", stride, ": must reach fewer than 2^60 elements");
  }
}

void check_layout(const Problem& p) {
  check_strides(p, "q_strides", Slot::q, p.q_strides);
  check_strides(p, "k_strides", Slot::k, p.k_strides);
  check_strides(p, "v_strides", Slot::v, p.v_strides);
  check_strides(p, "out_strides", Slot::out, p.out_strides);
  if (p.v_in_k && (p.v != p.k || p.head_dim_v > p.head_dim || p.v_strides))
    invalid("v_in_k, k = ", name_of(p.k), ", v = ", name_of(p.v), ", head_dim = ", p.head_dim, ":", p.head_dim_v,
            p.v_strides ? ", with v_strides" : "",
            ": v is a part of k, so it has the dtype and the strides of k, and head_dim_v is at most head_dim");
  if (p.page_size > 0 && (p.k_strides || p.v_strides))
    invalid("k_strides or v_strides with page = ", p.page_size, ": they describe keys that are not paged");
  if (p.out_strides && overlaps_itself(geometry(p, Slot::out)))
    invalid(
        "out_strides: elements of out must not share an address; "
        "each stride must exceed the sum of (size - 1) * stride over the smaller strides");
}
}  // namespace

void validate(const Problem& problem) {
  check_dtypes(problem);
  check_sizes(problem);
  check_scores(problem);
  check_starts(problem);
  check_products(problem);
  check_sequences(problem);
  check_quantisation(problem);
  check_modes(problem);
  check_layout(problem);
}

}  // namespace rapt
