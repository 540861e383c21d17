// Implements support.h. Reads outputs with the decoding of check/, and writes inputs with the scalar conversions of
// shared/dtype.h.
#include "support.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "check/bounds.h"
#include "check/format.h"
#include "check/oracle.h"
#include "check/poison.h"
#include "kernels/shared/dtype.h"

namespace rapt::test {
namespace {

// The address sanitizer searches this process for leaks when it ends, but not the processes that tests start: among
// many such processes the sanitizer's own tracer sometimes crashes. It has read its options before this line runs.
[[maybe_unused]] const bool children_skip_leaks = [] {
  const char* options = std::getenv("ASAN_OPTIONS");
  return setenv("ASAN_OPTIONS", concat(options == nullptr ? "" : options, ":detect_leaks=0").c_str(), 1) == 0;
}();

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

HostTensor integers(DType type, const std::vector<int64_t>& values) {
  HostTensor tensor = make_tensor(type, {static_cast<int64_t>(values.size())});
  for (size_t i = 0; i < values.size(); ++i) put(tensor, {static_cast<int64_t>(i)}, static_cast<double>(values[i]));
  return tensor;
}

HostTensor cumulative(const std::vector<int32_t>& lengths) {
  std::vector<int64_t> sums{0};
  for (int32_t length : lengths) sums.push_back(sums.back() + length);
  return integers(DType::i32, sums);
}

HostTensor broadcast_tensor(const Problem& p, const Broadcast& broadcast) {
  std::vector<int64_t> shape{p.batch, p.heads_q, p.seqlen_q, p.seqlen_k};
  for (size_t d = 0; d < 4; ++d)
    if (broadcast.one[d]) shape[d] = 1;
  return make_tensor(broadcast.dtype, shape);
}

HostTensor descale(const Problem& p, ScaleKind kind, int64_t heads, int64_t seqlen, int64_t total, int64_t dim) {
  std::vector<int64_t> shape;
  switch (kind) {
    case ScaleKind::none: return {};
    case ScaleKind::tensor: shape = {1}; break;
    case ScaleKind::head: shape = {p.batch, heads}; break;
    case ScaleKind::token: shape = p.varlen ? std::vector{heads, total} : std::vector{p.batch, heads, seqlen}; break;
    case ScaleKind::block64: shape = {p.batch, heads, ceil_div(seqlen, 64)}; break;
    case ScaleKind::block128: shape = {p.batch, heads, ceil_div(seqlen, 128)}; break;
    case ScaleKind::channel: shape = {p.batch, heads, dim}; break;
  }
  HostTensor scales = make_tensor(DType::f32, shape);
  fill(scales, 1.0);
  return scales;
}

HostTensor starts(const Problem& p, const std::vector<int64_t>& values) {
  if (values.empty()) return {};
  std::vector<int64_t> each(static_cast<size_t>(p.batch), values[0]);
  if (values.size() > 1) each = values;
  return integers(DType::i64, each);
}

int64_t element(const HostTensor& tensor, const std::vector<int64_t>& at) {
  int64_t offset = 0;
  for (size_t d = 0; d < at.size(); ++d) offset += at[d] * tensor.strides[d];
  return offset;
}

HostTensor qkv(const Problem& p, DType type, int64_t heads, int64_t seqlen, int64_t total, int64_t dim,
               const std::optional<std::vector<int64_t>>& strides) {
  const std::vector<int64_t> shape =
      p.varlen ? std::vector{total, heads, dim} : std::vector{p.batch, heads, seqlen, dim};
  return strides ? make_strided(type, shape, *strides) : make_tensor(type, shape);
}

}  // namespace

bool quick() {
  const char* value = std::getenv("RAPT_TEST_QUICK");
  return value != nullptr && std::string_view(value) == "1";
}

Call make(const std::string& line) {
  Call call;
  call.problem = parse_problem(line);
  const Problem& p = call.problem;
  check::Inputs& in = call.in;
  in.q = qkv(p, p.q, p.heads_q, p.seqlen_q, p.total_q, p.head_dim, p.q_strides);
  in.k = qkv(p, p.k, p.heads_k, p.seqlen_k, p.total_k, p.head_dim, p.k_strides);
  in.v = qkv(p, p.v, p.heads_k, p.seqlen_k, p.total_k, p.head_dim_v, p.v_strides);
  if (p.bias.present()) in.bias = broadcast_tensor(p, p.bias);
  if (p.mask.present()) {
    in.mask = broadcast_tensor(p, p.mask);
    fill(in.mask, 1);
  }
  if (p.alibi) in.alibi_slopes = make_tensor(DType::f32, {p.heads_q});
  if (p.sinks) in.sinks = make_tensor(DType::f32, {p.heads_q});
  if (p.varlen) {
    in.cu_seqlens_q = cumulative(p.lengths_q);
    in.cu_seqlens_k = cumulative(p.lengths_k);
  }
  if (p.seqused_q) in.seqused_q = integers(DType::i32, {p.used_q.begin(), p.used_q.end()});
  if (p.seqused) in.seqused_k = integers(DType::i32, {p.used_k.begin(), p.used_k.end()});
  in.q_descale = descale(p, p.q_scales, p.heads_q, p.seqlen_q, p.total_q, p.head_dim);
  in.k_descale = descale(p, p.k_scales, p.heads_k, p.seqlen_k, p.total_k, p.head_dim);
  in.v_descale = descale(p, p.v_scales, p.heads_k, p.seqlen_k, p.total_k, p.head_dim_v);
  in.q_starts = starts(p, p.q_starts);
  in.k_starts = starts(p, p.k_starts);
  return call;
}

Call& try_run(Call& call, rapt_context* context) {
  call.out = check::make_outputs(call.problem);
  call.status = check::run_sdpa(call.problem, call.in, call.out, context);
  call.message = rapt_last_error();
  return call;
}

Call& run(Call& call, rapt_context* context) {
  try_run(call, context);
  EXPECT_EQ(call.status, RAPT_OK) << call.message << " (" << to_string(call.problem) << ")";
  EXPECT_EQ(check::broken_canaries(call.out.out), 0) << to_string(call.problem);
  const int64_t broken_lse = call.out.lse.present() ? check::broken_canaries(call.out.lse) : 0;
  EXPECT_EQ(broken_lse, 0) << to_string(call.problem);
  return call;
}

Call make(DType type, const std::string& rest) { return make(std::string(name_of(type)) + " " + rest); }

void for_each_type(const std::function<void(DType)>& body, const std::vector<DType>& types) {
  for (DType type : types) {
    SCOPED_TRACE(name_of(type));
    body(type);
  }
}

void each_index(const std::vector<int64_t>& shape, const std::function<void(const std::vector<int64_t>& at)>& visit) {
  if (std::count(shape.begin(), shape.end(), 0) > 0) return;
  std::vector<int64_t> at(shape.size(), 0);
  while (true) {
    visit(at);
    size_t d = shape.size();
    while (d > 0 && ++at[d - 1] == shape[d - 1]) at[--d] = 0;
    if (d == 0) return;
  }
}

void put(HostTensor& tensor, const std::vector<int64_t>& at, double value) {
  std::byte* const data = tensor.data();
  const int64_t i = element(tensor, at);
  switch (tensor.dtype) {
    case DType::u8: reinterpret_cast<uint8_t*>(data)[i] = static_cast<uint8_t>(value); break;
    case DType::i32: reinterpret_cast<int32_t*>(data)[i] = static_cast<int32_t>(value); break;
    case DType::i64: reinterpret_cast<int64_t*>(data)[i] = static_cast<int64_t>(value); break;
    default: store_float(tensor.dtype, data, i, static_cast<float>(value));
  }
}

void fill(HostTensor& tensor, double value) {
  each_index(tensor.shape, [&](const std::vector<int64_t>& at) { put(tensor, at, value); });
}

void fill(HostTensor& tensor, const std::function<double(const std::vector<int64_t>& at)>& value) {
  each_index(tensor.shape, [&](const std::vector<int64_t>& at) { put(tensor, at, value(at)); });
}

// SplitMix64 (Steele, Lea, Flood 2014) of the seed and the logical number of the element. It does not depend on the
// element's address.
void fill_hash(HostTensor& tensor, uint64_t seed) {
  uint64_t state = seed * 0x9e3779b97f4a7c15u;
  each_index(tensor.shape, [&](const std::vector<int64_t>& at) {
    uint64_t z = (state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    put(tensor, at, static_cast<double>(z >> 40) / static_cast<double>(1 << 23) - 1.0);
  });
}

void fill_hash(Call& call, uint64_t seed) {
  fill_hash(call.in.q, 3 * seed);
  fill_hash(call.in.k, 3 * seed + 1);
  fill_hash(call.in.v, 3 * seed + 2);
}

void fill_value(HostTensor& v, const std::function<double(int64_t j, int64_t d)>& value) {
  const size_t key = v.shape.size() == 4 ? 2 : 0;
  fill(v, [&](const std::vector<int64_t>& at) { return value(at[key], at.back()); });
}

void fill_index(HostTensor& v) {
  fill_value(v, [](int64_t j, int64_t d) { return d == 0 ? 1.0 : d == 1 ? static_cast<double>(j) : 0.0; });
}

void fill_identity(HostTensor& v) {
  fill_value(v, [](int64_t j, int64_t d) { return j == d ? 1.0 : 0.0; });
}

HostTensor slice(HostTensor tensor, size_t dim, int64_t begin, int64_t end) {
  tensor.offset += begin * tensor.strides[dim];
  tensor.shape[dim] = end - begin;
  return tensor;
}

HostTensor copy_with_strides(const HostTensor& tensor, const std::vector<int64_t>& strides) {
  HostTensor copy = make_strided(tensor.dtype, tensor.shape, strides);
  const auto bytes = static_cast<size_t>(bytes_of(tensor.dtype));
  const auto address = [&](const HostTensor& t, const std::vector<int64_t>& at) {
    return t.data() + element(t, at) * static_cast<int64_t>(bytes);
  };
  each_index(tensor.shape,
             [&](const std::vector<int64_t>& at) { std::memcpy(address(copy, at), address(tensor, at), bytes); });
  return copy;
}

std::vector<unsigned char> bits(const HostTensor& tensor) {
  std::vector<unsigned char> all;
  if (!tensor.present()) return all;
  const auto bytes = static_cast<size_t>(bytes_of(tensor.dtype));
  all.reserve(static_cast<size_t>(tensor.size()) * bytes);
  each_index(tensor.shape, [&](const std::vector<int64_t>& at) {
    const auto* first =
        reinterpret_cast<const unsigned char*>(tensor.data()) + element(tensor, at) * static_cast<int64_t>(bytes);
    all.insert(all.end(), first, first + bytes);
  });
  return all;
}

void expect_same_bits(const HostTensor& a, const HostTensor& b) {
  ASSERT_EQ(a.shape, b.shape);
  ASSERT_EQ(a.dtype, b.dtype);
  int64_t different = 0;
  const auto bits_a = bits(a), bits_b = bits(b);
  const auto bytes = static_cast<size_t>(bytes_of(a.dtype));
  size_t n = 0;
  each_index(a.shape, [&](const std::vector<int64_t>& at) {
    if (std::memcmp(&bits_a[n], &bits_b[n], bytes) != 0 && different++ == 0)
      ADD_FAILURE() << "first difference at " << testing::PrintToString(at) << ": " << a.at(at) << " and " << b.at(at);
    n += bytes;
  });
  EXPECT_EQ(different, 0) << "elements that differ, of " << a.size();
}

void expect_same_bits(const Call& a, const Call& b) {
  expect_same_bits(a.out.out, b.out.out);
  if (a.out.lse.present()) expect_same_bits(a.out.lse, b.out.lse);
}

void expect_finite(const HostTensor& tensor) {
  int64_t bad = 0;
  each_index(tensor.shape, [&](const std::vector<int64_t>& at) { bad += std::isfinite(tensor.at(at)) ? 0 : 1; });
  EXPECT_EQ(bad, 0) << "non-finite elements, of " << tensor.size();
}

double tolerance(DType type, double magnitude) {
  Problem problem;
  problem.v = problem.out = type;
  return tolerance(problem, magnitude);
}

double tolerance(const Problem& problem, double magnitude) {
  const DType weights = check::probability_format(problem), out = problem.partial ? DType::f32 : problem.out;
  double roundoffs = 128 * check::unit_roundoff(DType::f32);
  if (weights != DType::f32) roundoffs += check::unit_roundoff(weights);
  if (out != DType::f32) roundoffs += 1.25 * check::unit_roundoff(out);
  return roundoffs * magnitude;
}

double lse_tolerance(double lse) { return 4e-6 * std::max(1.0, std::abs(lse)); }

void expect_row(const Call& call, const std::vector<int64_t>& row, const std::vector<double>& expected) {
  double magnitude = 1e-30;
  for (double x : expected) magnitude = std::max(magnitude, std::abs(x));
  for (size_t d = 0; d < expected.size(); ++d) {
    std::vector<int64_t> at = row;
    at.push_back(static_cast<int64_t>(d));
    EXPECT_NEAR(call.out.out.at(at), expected[d], tolerance(call.problem, magnitude))
        << "row " << testing::PrintToString(row) << ", channel " << d << " of " << to_string(call.problem);
  }
}

void expect_lse(const Call& call, const std::vector<int64_t>& at, double expected) {
  const double got = call.out.lse.at(at);
  if (std::isinf(expected)) {
    EXPECT_EQ(got, expected) << "lse at " << testing::PrintToString(at) << " of " << to_string(call.problem);
  } else {
    EXPECT_NEAR(got, expected, lse_tolerance(expected))
        << "lse at " << testing::PrintToString(at) << " of " << to_string(call.problem);
  }
}

void expect_empty_row(const Call& call, const std::vector<int64_t>& row) {
  const HostTensor& out = call.out.out;
  for (int64_t d = 0; d < out.shape.back(); ++d) {
    std::vector<int64_t> at = row;
    at.push_back(d);
    EXPECT_EQ(out.at(at), 0.0) << "out at " << testing::PrintToString(at) << " of " << to_string(call.problem);
  }
  if (!call.out.lse.present()) return;
  const bool packed = row.size() == 2;  // out [i, h, d], lse [h, i]
  expect_lse(call, packed ? std::vector{row[1], row[0]} : row, -infinity);
}

namespace {

// Reports the first few differences, and the number of all differences.
class Misses {
 public:
  void add(const char* what, const std::vector<int64_t>& at, double got, double expected, double allowed) {
    if (count_++ < 3)
      first_ << "\n  " << what << testing::PrintToString(at) << " = " << got << ", oracle " << expected << ", allowed "
             << allowed;
  }
  void report(const Problem& problem) const {
    EXPECT_EQ(count_, 0) << "elements leave their bound in " << to_string(problem) << first_.str();
  }

 private:
  int64_t count_ = 0;
  std::ostringstream first_;
};

bool within(double got, double expected, double allowed) {
  if (std::isnan(expected) || std::isinf(expected)) return !std::isfinite(got);
  return std::abs(got - expected) <= allowed;
}

// The row of a Reference for an index of lse, which is [b, h, i] for dense and [h, row] for packed tensors.
size_t reference_row(const std::vector<int64_t>& shape, const std::vector<int64_t>& at) {
  int64_t row = 0;
  for (size_t d = 0; d < at.size(); ++d) row = row * shape[d] + at[d];
  return static_cast<size_t>(row);
}

std::vector<int64_t> lse_shape(const Problem& p) {
  if (p.varlen) return {p.heads_q, p.total_q};
  return {p.batch, p.heads_q, p.seqlen_q};
}

std::vector<int64_t> out_row(const Problem& p, const std::vector<int64_t>& at) {
  return p.varlen ? std::vector{at[1], at[0]} : at;
}

}  // namespace

Reference oracle(const Call& call) {
  const Problem& p = call.problem;
  check::Reference reference = check::forward(p, call.in);
  if (!p.varlen) return {std::move(reference.out), std::move(reference.lse)};
  Reference packed{{}, std::move(reference.lse)};  // the order of out must change to [row, head, dim]
  for (int64_t row = 0; row < p.total_q; ++row)
    for (int64_t h = 0; h < p.heads_q; ++h) {
      const auto first = reference.out.begin() + (h * p.total_q + row) * p.head_dim_v;
      packed.out.insert(packed.out.end(), first, first + p.head_dim_v);
    }
  return packed;
}

void expect_oracle(const Call& call) { expect_oracle(call, check::forward(call.problem, call.in)); }

void expect_oracle(const Call& call, const check::Reference& reference) {
  const Problem& p = call.problem;
  const double float_unit = check::unit_roundoff(DType::f32);
  Misses misses;
  each_index(lse_shape(p), [&](const std::vector<int64_t>& at) {
    const size_t row = reference_row(lse_shape(p), at);
    if (reference.state[row] != check::RowState::computed) return;
    const double logit_error = 8 * float_unit * reference.logit_size[row];  // error of a scaled float32 dot product
    std::vector<int64_t> element = out_row(p, at);
    element.push_back(0);
    for (int64_t d = 0; d < p.head_dim_v; ++d) {
      const size_t i = row * static_cast<size_t>(p.head_dim_v) + static_cast<size_t>(d);
      element.back() = d;
      const double allowed = tolerance(p, reference.weighted_v[i]) + 2 * logit_error * reference.spread_v[i];
      const double got = call.out.out.at(element);
      if (!within(got, reference.out[i], allowed)) misses.add("out", element, got, reference.out[i], allowed);
    }
    if (!call.out.lse.present()) return;
    const double lse = reference.lse[row], got = call.out.lse.at(at), allowed = lse_tolerance(lse) + logit_error;
    if (lse == -infinity ? got != lse : !within(got, lse, allowed)) misses.add("lse", at, got, lse, allowed);
  });
  misses.report(p);
}

double largest(const HostTensor& tensor) {
  double most = 0;
  each_index(tensor.shape, [&](const std::vector<int64_t>& at) {
    const double x = std::abs(tensor.at(at));
    if (std::isfinite(x)) most = std::max(most, x);
  });
  return most;
}

}  // namespace rapt::test
