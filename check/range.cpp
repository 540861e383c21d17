// Implements range.h. A kernel can add terms in any order, so the sizes of the terms are added here.
#include "range.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace rapt::check {
namespace {

constexpr double largest = 0x1.ffffffp127;  // rounding to f32 gives a finite number for all smaller numbers

bool beyond(double size) { return std::isfinite(size) && size >= largest; }

double largest_finite(const std::vector<double>& values) {
  double most = 0;
  for (const double x : values)
    if (std::isfinite(x)) most = std::max(most, std::fabs(x));
  return most;
}

struct Row {
  const Reading& r;
  int64_t b, h, i;

  std::string fault(const char* what, double size) const {
    return concat(what, " of row [b=", b, ", h=", h, ", i=", i, "] reaches ", size,
                  ", outside the range of f32: not judged (docs/semantics.md, Limits)");
  }

  // Checks one key: the sum of |q * k|, the scaled product, and the logit. Returns a sentence, or "".
  std::string score(int64_t j, double* logit) const {
    const double *q = r.q_row(b, h, i), *k = r.k_row(b, r.kv_head(h), j), *k_size = r.k_size_row(b, r.kv_head(h), j);
    double dot = 0, size = 0;
    for (int64_t d = 0; d < r.problem().head_dim; ++d) {
      dot += q[d] * k[d];
      size += std::fabs(q[d]) * k_size[d];
    }
    *logit = r.logit_of(dot, b, h, i, j);
    const double scaled = std::fabs(r.scale) * size, distance = r.alibi(b, h, i, j);
    if (beyond(size)) return fault("the sum of |q * k|", size);
    if (beyond(scaled)) return fault("|softmax_scale| times the sum of |q * k|", scaled);
    if (beyond(std::fabs(distance))) return fault("ALiBi", distance);
    if (beyond(std::fabs(*logit))) return fault("the logit", *logit);
    return {};
  }

  std::string scores(std::vector<double>& logits) const {
    const int64_t keys = r.sequences[b].seqlen_k;
    logits.assign(keys, -std::numeric_limits<double>::infinity());
    for (int64_t j = 0; j < keys; ++j) {
      if (!r.visible(b, h, i, j)) continue;
      if (std::string s = score(j, &logits[j]); !s.empty()) return s;
    }
    return {};
  }

  std::string sums(const std::vector<double>& logits) const {
    if (logits.empty()) return {};
    const double max = *std::max_element(logits.begin(), logits.end());
    if (!std::isfinite(max)) return {};
    std::vector<double> sum(r.problem().head_dim_v, 0.0);
    for (int64_t j = 0; j < std::ssize(logits); ++j) {
      const double weight = std::exp(logits[j] - max);
      const double* v = r.v_row(b, r.kv_head(h), j);
      for (int64_t d = 0; d < std::ssize(sum) && weight > 0; ++d) sum[d] += weight * std::fabs(v[d]);
    }
    for (const double size : sum)
      if (beyond(size)) return fault("the sum of exp(x - max) * |v|", size);
    return {};
  }
};

// Calls body(row) for each row, until it returns a sentence. Returns this sentence, or "".
template <class Body>
std::string any_row(const Reading& r, int64_t row_step, const Body& body) {
  for (int64_t b = 0; b < r.problem().batch; ++b)
    for (int64_t h = 0; h < r.problem().heads_q; ++h)
      for (int64_t i = 0; i < r.sequences[b].seqlen_q; i += row_step)
        if (std::string s = body(Row{r, b, h, i}); !s.empty()) return s;
  return {};
}

// The largest |bias| + |ALiBi|.
double largest_added(const Reading& r, int64_t row_step) {
  double most = 0;
  if (!r.problem().bias.present() && !r.problem().alibi) return most;
  any_row(r, row_step, [&](const Row& row) {
    for (int64_t j = 0; j < r.sequences[row.b].seqlen_k; ++j) {
      const double x = std::fabs(r.bias(row.b, row.h, row.i, j)) + std::fabs(r.alibi(row.b, row.h, row.i, j));
      if (std::isfinite(x)) most = std::max(most, x);
    }
    return std::string();
  });
  return most;
}

// True if even the largest numbers of all tensors cannot overflow. This fast test is true in almost all cases.
bool surely_within(const Reading& r, int64_t row_step) {
  const Problem& p = r.problem();
  double k_size = 0;
  for (int64_t b = 0; b < p.batch; ++b)
    for (int64_t h = 0; h < p.heads_k; ++h)
      for (int64_t j = 0; j < r.sequences[b].seqlen_k; ++j)
        for (int64_t d = 0; d < p.head_dim; ++d)
          if (const double size = r.k_size_row(b, h, j)[d]; std::isfinite(size)) k_size = std::max(k_size, size);
  const double dot = static_cast<double>(p.head_dim) * largest_finite(r.q) * k_size;
  return dot < largest && static_cast<double>(p.seqlen_k) * largest_finite(r.v) < largest &&
         std::fabs(r.scale) * dot + largest_added(r, row_step) < largest;
}

}  // namespace

std::string beyond_f32(const Reading& r, int64_t row_step) {
  if (surely_within(r, row_step)) return {};
  std::vector<double> logits;
  return any_row(r, row_step, [&](const Row& row) {
    std::string s = row.scores(logits);
    return s.empty() ? row.sums(logits) : s;
  });
}

}  // namespace rapt::check
