// Checks the rules of scale_contents.h on runs of values along a tensor's last dimension.
#include "arguments/scale_contents.h"

#include <algorithm>
#include <limits>

#include "arguments/tensor_rules.h"
#include "base/error.h"

namespace rapt {
namespace {

struct Values {
  const char* name;
  const rapt_tensor& tensor;
  float least;
  const char* rule;
};

// Returns the name of an element: "k_descale[0, 3, 17]". For a scalar it is only the name of the tensor.
std::string element_text(const Values& v, std::initializer_list<int64_t> at, int64_t last) {
  if (v.tensor.rank == 0) return v.name;
  std::string text = concat(v.name, "[");
  for (const int64_t i : at) text += concat(i, ", ");
  return concat(text, last, "]");
}

// Uses bitwise operators and no branch, so that compilers can vectorise the loop below.
int is_valid(float x, float least) {
  return static_cast<int>(x >= least) & static_cast<int>(x <= std::numeric_limits<float>::max());
}

// This function must be fast: there can be many scales per token, and one thread checks all of them before the work of
// the call is distributed over threads.
bool all_valid(const float* values, int64_t step, int64_t count, float least) {
  int all = 1;
  if (step == 1) {
    for (int64_t i = 0; i < count; ++i) all &= is_valid(values[i], least);
  } else {
    for (int64_t i = 0; i < count; ++i) all &= is_valid(values[i * step], least);
  }
  return all != 0;
}

// Checks values begin .. end - 1 of the last dimension, at index `at` in the others.
void check_run(const Values& v, std::initializer_list<int64_t> at, int64_t begin, int64_t end) {
  const auto strides = strides_of(v.tensor);
  const auto* values = static_cast<const float*>(v.tensor.data);
  size_t axis = 0;
  for (const int64_t i : at) values += i * strides[axis++];
  const int64_t step = v.tensor.rank == 0 ? 0 : strides[axis];
  if (all_valid(values + begin * step, step, end - begin, v.least)) return;
  for (int64_t i = begin; i < end; ++i)
    if (is_valid(values[i * step], v.least) == 0)
      invalid(element_text(v, at, i), " = ", values[i * step], ": ", v.rule);
}

// The rows of q or the keys of one sequence. first: the packed row at which the sequence begins; 0 if dense.
struct Positions {
  int64_t first = 0, count = 0;
};

Positions positions_of(const rapt_sdpa_args& a, const Problem& p, bool keys, int64_t b) {
  auto entry = [](const rapt_tensor& list, int64_t i) {
    return int64_t{static_cast<const int32_t*>(list.data)[i * strides_of(list)[0]]};
  };
  Positions s{0, keys ? p.seqlen_k : p.seqlen_q};
  if (const rapt_tensor* cu = keys ? a.cu_seqlens_k : a.cu_seqlens_q) {
    s.first = entry(*cu, b);
    s.count = std::min(s.count, entry(*cu, b + 1) - s.first);
  }
  if (const rapt_tensor* used = keys ? a.seqused_k : a.seqused_q) s.count = std::min(s.count, entry(*used, b));
  return s;
}

// Checks the scales of head h of one sequence.
void check_head(const Values& v, ScaleKind kind, bool packed, const Positions& s, int64_t b, int64_t h) {
  switch (kind) {
    case ScaleKind::head: return check_run(v, {b}, h, h + 1);
    case ScaleKind::token:
      return packed ? check_run(v, {h}, s.first, s.first + s.count) : check_run(v, {b, h}, 0, s.count);
    case ScaleKind::block64:
    case ScaleKind::block128: return check_run(v, {b, h}, 0, (s.count - 1) / rows_sharing(kind) + 1);
    case ScaleKind::channel: return check_run(v, {b, h}, 0, v.tensor.shape[2]);
    case ScaleKind::none:
    case ScaleKind::tensor: break;
  }
}

// Checks the scales of single keys of sequence b in pages, [num_pages, page_size, heads_k].
void check_pages(const rapt_sdpa_args& a, const Problem& p, const Values& v, int64_t b, int64_t keys) {
  const auto strides = strides_of(v.tensor), table_strides = strides_of(*a.block_table);
  for (int64_t i = 0; i * p.page_size < keys; ++i) {
    const int64_t page = static_cast<const int32_t*>(a.block_table->data)[b * table_strides[0] + i * table_strides[1]];
    const int64_t rows = std::min(p.page_size, keys - i * p.page_size);
    const float* const first = static_cast<const float*>(v.tensor.data) + page * strides[0];
    bool valid = true;
    for (int64_t h = 0; h < p.heads_k; ++h) valid &= all_valid(first + h * strides[2], strides[1], rows, v.least);
    for (int64_t row = 0; !valid && row < rows; ++row) check_run(v, {page, row}, 0, p.heads_k);
  }
}

void check_descale(const rapt_sdpa_args& a, const Problem& p, const char* name, const rapt_tensor* t, ScaleKind kind) {
  if (t == nullptr) return;
  const Values v{name, *t, 0.0f, "a descale must be finite and not negative"};
  if (kind == ScaleKind::tensor) return check_run(v, {}, 0, 1);
  const bool keys = name[0] != 'q', paged = keys && p.page_size > 0;
  for (int64_t b = 0; b < p.batch; ++b) {
    const Positions s = positions_of(a, p, keys, b);
    if (s.count == 0) continue;
    if (paged && kind == ScaleKind::token) {
      check_pages(a, p, v, b, s.count);
      continue;
    }
    for (int64_t h = 0; h < (keys ? p.heads_k : p.heads_q); ++h) check_head(v, kind, p.varlen && !paged, s, b, h);
  }
}

}  // namespace

void check_scale_contents(const rapt_sdpa_args& a, const Problem& p) {
  check_descale(a, p, "q_descale", a.q_descale, p.q_scales);
  check_descale(a, p, "k_descale", a.k_descale, p.k_scales);
  check_descale(a, p, "v_descale", a.v_descale, p.v_scales);
  if (a.k_mean == nullptr) return;
  const Values mean{"k_mean", *a.k_mean, std::numeric_limits<float>::lowest(), "must be finite"};
  for (int64_t b = 0; b < p.batch; ++b) {
    if (positions_of(a, p, true, b).count == 0) continue;
    for (int64_t h = 0; h < p.heads_k; ++h) check_run(mean, {b, h}, 0, p.head_dim);
  }
}

}  // namespace rapt
