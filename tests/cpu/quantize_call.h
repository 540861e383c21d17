// A call of rapt_quantize with its inputs and poisoned outputs. Used by quantize_test.cpp, quantize_emulation_test.cpp
// and tests/gpu/quantize_test.cpp.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "check/fill.h"
#include "check/poison.h"
#include "kernels/shared/quantize.h"
#include "support.h"

namespace rapt::test {

// A tensor filled with one byte value. The margins around it and the gaps between strided elements have this value,
// too.
inline constexpr int64_t poison_margin = 64;
inline constexpr std::byte poison_byte{0xa5};

inline HostTensor make_poisoned(DType type, const std::vector<int64_t>& shape, std::vector<int64_t> strides = {}) {
  if (strides.empty()) strides = make_tensor(type, shape).strides;
  const check::Span span = check::reach(shape, strides);
  const int64_t elements = span.last - span.first + 1 + 2 * poison_margin;
  HostTensor tensor = make_tensor(type, {elements});
  std::fill_n(tensor.storage.get(), elements * bytes_of(type), poison_byte);
  tensor.shape = shape, tensor.strides = strides, tensor.offset = poison_margin - span.first;
  return tensor;
}

inline bool is_poisoned(const HostTensor& tensor, const std::vector<int64_t>& at) {
  int64_t element = tensor.offset;
  for (size_t d = 0; d < at.size(); ++d) element += at[d] * tensor.strides[d];
  const std::byte* first = tensor.storage.get() + element * bytes_of(tensor.dtype);
  return std::all_of(first, first + bytes_of(tensor.dtype), [](std::byte byte) { return byte == poison_byte; });
}

// The number of bytes outside the tensor's elements that no longer hold the poison.
inline int64_t written_outside(const HostTensor& tensor) {
  const check::Span span = check::reach(tensor.shape, tensor.strides);
  const int64_t elements = span.last - span.first + 1 + 2 * poison_margin, width = bytes_of(tensor.dtype);
  std::vector<bool> owned(static_cast<size_t>(elements * width));
  each_index(tensor.shape, [&](const std::vector<int64_t>& at) {
    int64_t element = tensor.offset;
    for (size_t d = 0; d < at.size(); ++d) element += at[d] * tensor.strides[d];
    for (int64_t i = 0; i < width; ++i) owned[static_cast<size_t>(element * width + i)] = true;
  });
  int64_t count = 0;
  for (size_t i = 0; i < owned.size(); ++i) count += !owned[i] && tensor.storage[i] != poison_byte;
  return count;
}

struct QuantizeCall {
  HostTensor input, output, descale, mean, cu_seqlens;
  int32_t scales = RAPT_SCALE_TENSOR;
  uint64_t flags = 0;
  std::optional<int64_t> max_seqlen;
  std::optional<double> percentile;

  bool packed() const { return cu_seqlens.present(); }
  bool has(uint64_t flag) const { return (flags & flag) != 0; }
  int64_t batch() const { return packed() ? cu_seqlens.shape[0] - 1 : input.shape[0]; }
  int64_t heads() const { return input.shape[1]; }
  int64_t dim() const { return input.shape.back(); }
  int64_t seqlen() const { return packed() ? *max_seqlen : input.shape[2]; }
  int64_t first_row(int64_t b) const { return packed() ? static_cast<int64_t>(cu_seqlens.at({b})) : 0; }
  int64_t rows(int64_t b) const {
    return packed() ? static_cast<int64_t>(cu_seqlens.at({b + 1}) - cu_seqlens.at({b})) : input.shape[2];
  }
  // The index, in input and output, of row s of sequence b.
  std::vector<int64_t> at(int64_t b, int64_t h, int64_t s, int64_t c) const {
    return packed() ? std::vector{first_row(b) + s, h, c} : std::vector{b, h, s, c};
  }
  // The index of the scale of an element.
  std::vector<int64_t> descale_at(int64_t b, int64_t h, int64_t s, int64_t c) const {
    switch (scales) {
      case RAPT_SCALE_TENSOR: return {0};
      case RAPT_SCALE_HEAD: return {b, h};
      case RAPT_SCALE_CHANNEL: return {b, h, c};
      case RAPT_SCALE_TOKEN: return packed() ? std::vector{h, first_row(b) + s} : std::vector{b, h, s};
      case RAPT_SCALE_BLOCK64: return {b, h, s / 64};
      default: return {b, h, s / 128};
    }
  }
  std::vector<int64_t> descale_shape() const {
    const auto blocks = [&](int64_t n) { return (seqlen() + n - 1) / n; };
    switch (scales) {
      case RAPT_SCALE_TENSOR: return {1};
      case RAPT_SCALE_HEAD: return {batch(), heads()};
      case RAPT_SCALE_CHANNEL: return {batch(), heads(), dim()};
      case RAPT_SCALE_TOKEN:
        return packed() ? std::vector{heads(), input.shape[0]} : std::vector{batch(), heads(), seqlen()};
      case RAPT_SCALE_BLOCK64: return {batch(), heads(), blocks(64)};
      default: return {batch(), heads(), blocks(128)};
    }
  }

  // Makes new outputs, in which every byte is poisoned. A supplied descale is kept.
  void poison(DType type, const std::vector<int64_t>& output_strides = {}) {
    output = make_poisoned(type, input.shape, output_strides);
    if (!has(RAPT_QUANTIZE_SUPPLIED)) descale = make_poisoned(DType::f32, descale_shape());
    mean = has(RAPT_QUANTIZE_SMOOTH) ? make_poisoned(DType::f32, {batch(), heads(), dim()}) : HostTensor();
  }
};

// The rapt_quantize_args for the tensors of a call. The tensors must outlive it.
class QuantizeArgs {
 public:
  explicit QuantizeArgs(const QuantizeCall& call, const check::Placement& place = check::in_host_memory)
      : input_("input", call.input, place),
        output_("output", call.output, place),
        descale_("descale", call.descale, place),
        mean_("mean", call.mean, place),
        cu_seqlens_("cu_seqlens", call.cu_seqlens, place) {
    args.struct_size = sizeof args;
    args.flags = call.flags;
    args.input = input_.get(), args.output = output_.get(), args.descale = descale_.get();
    args.mean = mean_.get(), args.cu_seqlens = cu_seqlens_.get();
    args.scales = call.scales;
    if (call.max_seqlen) args.has |= RAPT_QUANTIZE_HAS_MAX_SEQLEN, args.max_seqlen = *call.max_seqlen;
    if (call.percentile) args.has |= RAPT_QUANTIZE_HAS_PERCENTILE, args.percentile = *call.percentile;
  }

 private:
  check::View input_, output_, descale_, mean_, cu_seqlens_;

 public:
  rapt_quantize_args args{};
};

inline void quantize_on_cpu(const QuantizeCall& call, rapt_context* context = nullptr) {
  const QuantizeArgs args(call);
  ASSERT_EQ(rapt_quantize(context, &args.args, nullptr), RAPT_OK) << rapt_last_error();
  EXPECT_EQ(written_outside(call.output), 0);
  for (const HostTensor* tensor : {&call.descale, &call.mean}) {
    const bool is_output = tensor->present() && (tensor == &call.mean || !call.has(RAPT_QUANTIZE_SUPPLIED));
    EXPECT_EQ(is_output ? written_outside(*tensor) : 0, 0);
  }
}

// True if both tensors hold the same bytes, including gaps.
inline bool same_bytes(const HostTensor& a, const HostTensor& b) {
  if (!a.present() || !b.present()) return a.present() == b.present();
  const check::Span span = check::reach(a.shape, a.strides);
  const auto count = static_cast<size_t>((span.last - span.first + 1 + 2 * poison_margin) * bytes_of(a.dtype));
  return a.shape == b.shape && a.strides == b.strides && std::memcmp(a.storage.get(), b.storage.get(), count) == 0;
}
inline void expect_same_outputs(const QuantizeCall& a, const QuantizeCall& b) {
  EXPECT_TRUE(same_bytes(a.mean, b.mean)) << "mean";
  EXPECT_TRUE(a.has(RAPT_QUANTIZE_SUPPLIED) || same_bytes(a.descale, b.descale)) << "descale";
  EXPECT_TRUE(same_bytes(a.output, b.output)) << "output";
}

// The kinds of input values. Outlier: one element in a hundred is 50 times larger. Special: some elements are NaN,
// infinite, zero or subnormal, and one row has only NaN. Tiny: amax / 448 is subnormal. Cancelling: sums depend on the
// order of the terms (not for f16, and not in the list of all fills).
enum class QuantizeFill { normal, outlier, zero, constant, special, tiny, huge, offset, cancelling };
inline const std::vector<QuantizeFill> all_quantize_fills = {
    QuantizeFill::normal,  QuantizeFill::outlier, QuantizeFill::zero, QuantizeFill::constant,
    QuantizeFill::special, QuantizeFill::tiny,    QuantizeFill::huge, QuantizeFill::offset};

inline double quantize_value(QuantizeFill fill, DType type, uint64_t seed, uint64_t i, int64_t s, int64_t c) {
  const double x = check::normal(seed, 1, i);
  switch (fill) {
    case QuantizeFill::normal: return x;
    case QuantizeFill::outlier: return check::uniform(seed, 2, i) < 0.01 ? 50 * x : x;
    case QuantizeFill::zero: return i % 2 == 0 ? 0.0 : -0.0;
    case QuantizeFill::constant: return -1.75;
    case QuantizeFill::special: {
      if (s == 3) return nan;
      const double values[] = {nan, infinity, -infinity, 0.0, -0.0, 1e-45, -1e-40, 6e-8};
      const double pick = check::uniform(seed, 3, i);
      return pick < 0.1 ? values[static_cast<size_t>(pick * 80)] : x;
    }
    case QuantizeFill::tiny: return x * (type == DType::f16 ? 1e-7 : 1e-38);
    case QuantizeFill::huge: return x * (type == DType::f16 ? 1e4 : 1e37);
    case QuantizeFill::cancelling: return s % 4 >= 2 ? x : s % 4 == 0 ? 1e25 : -1e25;
    case QuantizeFill::offset: return x + 8 * check::normal(seed, 4, static_cast<uint64_t>(c));
  }
  return x;
}

inline void fill_quantize(HostTensor& input, QuantizeFill fill, uint64_t seed = 1) {
  uint64_t i = 0;
  each_index(input.shape, [&](const std::vector<int64_t>& at) {
    put(input, at, quantize_value(fill, input.dtype, seed, i++, at.size() == 4 ? at[2] : at[0], at.back()));
  });
}

}  // namespace rapt::test
