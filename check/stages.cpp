// Checks the stages in the order of computation, and stops at the first value outside its bound. A bound is the error
// of f32 arithmetic, computed from the sizes of the terms (see lse_bound).
#include "stages.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "format.h"
#include "plain.h"
#include "range.h"

namespace rapt::check {
namespace {

const double u = unit_roundoff(DType::f32);

// True if a value is outside its bound. If -inf is wanted (a masked key), the value must be -inf. If another non-finite
// value is wanted, the value must not be finite.
bool leaves(double got, double want, double bound) {
  if (std::isinf(want) && want < 0) return got != want;
  if (!std::isfinite(want)) return std::isfinite(got);
  return !(std::fabs(got - want) <= bound);
}

struct StageWalk {
  const Reading& r;
  const Reference& reference;
  const Capture& oracle;
  const StageTrace& trace;
  StageReport& report;

  const Problem& p() const { return r.problem(); }

  bool fail(const char* stage, std::string tile, std::string index, double got, double want, double bound) const {
    report.stage = stage;
    report.tile = std::move(tile);
    report.index = std::move(index);
    report.got = got;
    report.want = want;
    report.bound = bound;
    report.message = concat(report.stage, " is the first stage that exceeds its bound: ", report.tile,
                            report.tile.empty() ? "" : ", ", report.index, " = ", got, " instead of ", want,
                            std::isfinite(want) ? concat(": at most ", bound, " apart") : std::string());
    return true;
  }

  std::string q_tile(int64_t i) const { return concat("q tile ", i / trace.tile_q); }
  std::string k_tile(int64_t j) const { return concat("k tile ", j / trace.tile_k); }
  static std::string index(int64_t b, int64_t h, int64_t i) { return concat("[b=", b, ", h=", h, ", i=", i, "]"); }
  static std::string index(int64_t b, int64_t h, int64_t i, const char* last, int64_t j) {
    return concat("[b=", b, ", h=", h, ", i=", i, ", ", last, "=", j, "]");
  }

  // body(b, h, i) returns true on failure, like all functions below.
  template <class Body>
  bool any_query(const Body& body) const {
    for (int64_t b = 0; b < p().batch; ++b)
      for (int64_t h = 0; h < p().heads_q; ++h)
        for (int64_t i = 0; i < r.sequences[b].seqlen_q; ++i)
          if (body(b, h, i)) return true;
    return false;
  }

  // size(d): the sum of the sizes of the terms of the value.
  template <class Size>
  bool input(const char* name, const std::vector<double>& got, const std::vector<double>& want, int64_t row,
             int64_t dim, const std::string& tile, int64_t b, int64_t h, int64_t s, const Size& size) const {
    // If a key has a NaN, the products with unit queries are NaN, so every element of the key seems to be NaN.
    const auto first = want.begin() + row * dim;
    const bool has_nan =
        trace.smallest_p > 0 && !std::all_of(first, first + dim, [](double x) { return std::isfinite(x); });
    for (int64_t d = 0; d < dim; ++d) {
      const double x = want[row * dim + d], bound = 4 * u * size(d);
      if (std::isnan(got[row * dim + d]) && (has_nan || !std::isfinite(x))) continue;
      if (leaves(got[row * dim + d], x, bound))
        return fail("inputs", tile, concat(name, "[b=", b, ", h=", h, ", s=", s, ", d=", d, "]"), got[row * dim + d], x,
                    bound);
    }
    return false;
  }

  bool inputs() const {
    if (any_query([&](int64_t b, int64_t h, int64_t i) {
          const auto size = [&](int64_t d) { return std::fabs(r.q_row(b, h, i)[d]); };
          return !trace.q.empty() && input("q", trace.q, r.q, r.row_q(b, h, i), p().head_dim, q_tile(i), b, h, i, size);
        }))
      return true;
    for (int64_t b = 0; b < p().batch; ++b)
      for (int64_t h = 0; h < p().heads_k; ++h)
        for (int64_t j = 0; j < r.sequences[b].seqlen_k; ++j) {
          const int64_t row = r.row_k(b, h, j);
          const auto k_size = [&](int64_t d) { return r.k_size_row(b, h, j)[d]; };
          const auto v_size = [&](int64_t d) { return std::fabs(r.v_row(b, h, j)[d]); };
          if (!trace.k.empty() && input("k", trace.k, r.k, row, p().head_dim, k_tile(j), b, h, j, k_size)) return true;
          if (!trace.v.empty() && input("v", trace.v, r.v, row, p().head_dim_v, k_tile(j), b, h, j, v_size))
            return true;
        }
    return false;
  }

  double dot_factor() const { return 4 + std::sqrt(static_cast<double>(p().head_dim)); }
  double sum_factor() const { return 8 + std::sqrt(static_cast<double>(p().seqlen_k)); }

  // True if a row has a NaN and the stages are derived from outputs. Such outputs show only NaN, so only stage O judges
  // this row.
  bool veiled(int64_t row) const { return trace.smallest_p > 0 && std::isnan(reference.lse[row]); }

  bool scores() const {
    return any_query([&](int64_t b, int64_t h, int64_t i) {
      const int64_t row = r.row_q(b, h, i);
      if (veiled(row)) return false;
      for (int64_t j = 0; j < r.sequences[b].seqlen_k; ++j) {
        const int64_t at = row * oracle.keys + j;
        const double want = oracle.s[at], lse = reference.lse[row];
        double bound = u * (dot_factor() * oracle.s_size[at] + 2 * std::fabs(want));
        if (trace.smallest_p > 0) {  // s was computed as ln p + lse, so the errors of both count
          if (std::isfinite(want) && oracle.p[at] < 2 * trace.smallest_p) continue;
          bound += u * (sum_factor() + 2 * std::fabs(lse) + 2 * std::fabs(want - lse));
        }
        if (leaves(trace.s[at], want, bound))
          return fail("S", q_tile(i) + ", " + k_tile(j), index(b, h, i, "j", j), trace.s[at], want, bound);
      }
      return false;
    });
  }

  bool row_maxima() const {
    return any_query([&](int64_t b, int64_t h, int64_t i) {
      const int64_t row = r.row_q(b, h, i);
      const double want = oracle.row_max[row];
      double bound = u * (dot_factor() * reference.logit_size[row] + 2 * std::fabs(want));
      if (trace.smallest_p > 0) bound += u * (sum_factor() + 4 * std::fabs(reference.lse[row]));
      return leaves(trace.row_max[row], want, bound) &&
             fail("row_max", q_tile(i), index(b, h, i), trace.row_max[row], want, bound);
    });
  }

  bool row_sums() const {
    return any_query([&](int64_t b, int64_t h, int64_t i) {
      const int64_t row = r.row_q(b, h, i);
      const double want = oracle.row_sum[row], lse = std::isfinite(reference.lse[row]) ? reference.lse[row] : 0;
      const double bound =
          want * u * (2 * dot_factor() * reference.logit_size[row] + sum_factor() + 6 * std::fabs(lse));
      return leaves(trace.row_sum[row], want, bound) &&
             fail("row_sum", q_tile(i), index(b, h, i), trace.row_sum[row], want, bound);
    });
  }

  bool weights() const {
    return any_query([&](int64_t b, int64_t h, int64_t i) {
      const int64_t row = r.row_q(b, h, i);
      if (veiled(row)) return false;
      for (int64_t j = 0; j < r.sequences[b].seqlen_k; ++j) {
        const int64_t at = row * oracle.keys + j;
        const double size = oracle.s_size[at] + reference.logit_size[row];
        const double bound = oracle.p[at] * u * (dot_factor() * size + 2 * sum_factor()) + 1e-37;  // f32's subnormals
        if (leaves(trace.p[at], oracle.p[at], bound))
          return fail("P", q_tile(i) + ", " + k_tile(j), index(b, h, i, "j", j), trace.p[at], oracle.p[at], bound);
      }
      return false;
    });
  }

  bool output(Fill fill, const Outputs& outputs) const {
    const Outputs plain_outputs = make_outputs(p());
    plain(r, probability_format(p()), plain_outputs);
    Condition condition;
    condition.add(reference);
    const Errors errors = compare_out(p(), outputs.out, reference);
    const Bounds bounds = output_bounds(p(), fill, compare_out(p(), plain_outputs.out, reference), condition);
    if (errors.sound() && errors.max_abs <= bounds.max_abs) return false;
    const std::string where =
        errors.worst < 0 ? "outside the result" : describe_element(p(), errors.worst, p().head_dim_v);
    return fail("O", "", where, errors.worst_got, errors.worst_want, bounds.max_abs);
  }
};

}  // namespace

StageReport check_stages(const Problem& problem, Fill fill, uint64_t seed, const TracedKernel& kernel) {
  Problem p = problem;
  p.lse = true;
  StageReport report;
  report.command = rerun_command(problem, fill, seed) + " --stages";
  const Inputs inputs = make_inputs(p, fill, seed);
  const Outputs outputs = make_outputs(p);
  StageTrace trace;
  try {
    kernel(p, inputs, outputs, trace);
  } catch (const Error& error) {
    report.refused = error.code() == ErrorCode::unsupported;
    report.message = error.what();
    return report;
  }
  Capture capture;
  const Reading reading(p, inputs);
  report.message = beyond_f32(reading);
  report.refused = !report.message.empty();
  if (report.refused) return report;
  const Reference reference = forward(reading, {.capture = &capture});
  const StageWalk walk{reading, reference, capture, trace, report};
  const auto stage = [&](const char* name, bool observed, auto fails) {
    if (!report.stage.empty() || !observed) return;
    report.observed.emplace_back(name);
    fails();
  };
  stage("inputs", !trace.q.empty() || !trace.k.empty() || !trace.v.empty(), [&] { walk.inputs(); });
  stage("S", !trace.s.empty(), [&] { walk.scores(); });
  stage("row_max", !trace.row_max.empty(), [&] { walk.row_maxima(); });
  stage("row_sum", !trace.row_sum.empty(), [&] { walk.row_sums(); });
  stage("P", !trace.p.empty(), [&] { walk.weights(); });
  stage("O", true, [&] { walk.output(fill, outputs); });
  report.pass = report.stage.empty();
  return report;
}

}  // namespace rapt::check
