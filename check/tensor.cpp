// HostTensor (strided storage in host memory), the number formats (computed by their formulas), and poisoned outputs.
// Called by all files of check/ and lab/. Shares no code with the library.
#include "tensor.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>

#include "base/error.h"
#include "format.h"
#include "poison.h"

namespace rapt::check {
namespace {

// A small binary format. Normal numbers are (-1)^s * 2^(e - bias) * (1 + m / 2^mantissa_bits). There are also
// subnormals.
struct Format {
  int exponent_bits, mantissa_bits;
  bool ieee;  // true: codes with the largest exponent are Inf or NaN; false (E4M3): only the code of all ones is NaN
  double largest;
  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
};
constexpr Format f16_format{5, 10, true, 65504.0};
constexpr Format bf16_format{8, 7, true, 3.3895313892515355e38};
constexpr Format e4m3_format{4, 3, false, 448.0};
constexpr Format e5m2_format{5, 2, true, 57344.0};

const Format* small_format(DType dtype) {
  switch (dtype) {
    case DType::f16: return &f16_format;
    case DType::bf16: return &bf16_format;
    case DType::e4m3: return &e4m3_format;
    case DType::e5m2: return &e5m2_format;
    default: return nullptr;
  }
}

// The first function returns 2^n for n in [-1022, 1023]. The second returns the n of the largest 2^n <= x, for normal x
// > 0; for other x >= 0 it returns a number below -1022. std::ldexp and std::ilogb do the same, but would take most of
// the time of every check.
double power_of_two(int n) { return std::bit_cast<double>(static_cast<uint64_t>(1023 + n) << 52); }
int exponent_of(double x) { return static_cast<int>(std::bit_cast<uint64_t>(x) >> 52) - 1023; }

double decode_code(const Format& f, unsigned code) {
  const int top = (1 << f.exponent_bits) - 1, all_ones = (1 << f.mantissa_bits) - 1;
  const int mantissa = static_cast<int>(code) & all_ones;
  const int exponent = (static_cast<int>(code) >> f.mantissa_bits) & top;
  const double sign = (code >> (f.exponent_bits + f.mantissa_bits)) & 1u ? -1.0 : 1.0;
  if (exponent == top && f.ieee)
    return mantissa ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  if (exponent == top && mantissa == all_ones) return std::numeric_limits<double>::quiet_NaN();
  if (exponent == 0) return sign * mantissa * power_of_two(1 - f.bias() - f.mantissa_bits);
  return sign * (mantissa + (1 << f.mantissa_bits)) * power_of_two(exponent - f.bias() - f.mantissa_bits);
}

unsigned encode_code(const Format& f, double value, bool saturate) {
  const unsigned top = (1u << f.exponent_bits) - 1, all_ones = (1u << f.mantissa_bits) - 1;
  const unsigned sign = (std::signbit(value) ? 1u : 0u) << (f.exponent_bits + f.mantissa_bits);
  if (std::isnan(value)) return sign | (top << f.mantissa_bits) | (f.ieee ? 1u << (f.mantissa_bits - 1) : all_ones);
  double magnitude = std::fabs(value);
  if (magnitude == 0) return sign;
  if (std::isfinite(magnitude)) {
    const double step = power_of_two(std::max(exponent_of(magnitude), 1 - f.bias()) - f.mantissa_bits);
    magnitude = std::nearbyint(magnitude / step) * step;  // in the default rounding mode, ties round to even
  }
  if (magnitude > f.largest) {
    if (!saturate) return sign | (top << f.mantissa_bits);
    magnitude = f.largest;
  }
  const int exponent = std::max(exponent_of(magnitude), 1 - f.bias());
  const auto significand = static_cast<unsigned>(magnitude * power_of_two(f.mantissa_bits - exponent));
  const unsigned field = significand >> f.mantissa_bits ? static_cast<unsigned>(exponent + f.bias()) : 0u;
  return sign | (field << f.mantissa_bits) | (significand & all_ones);
}

// In sim8, code c is the number -448 + c * 896 / 255. It is computed with a single division, so it is rounded only
// once.
double decode_sim8(unsigned code) { return (896.0 * code - 114240.0) / 255.0; }
unsigned encode_sim8(double value) {
  if (std::isnan(value)) return 128;
  return static_cast<unsigned>(std::nearbyint((std::clamp(value, -448.0, 448.0) + 448.0) * 255.0 / 896.0));
}

template <class T>
T load(const void* data, int64_t index) {
  T x;
  std::memcpy(&x, static_cast<const std::byte*>(data) + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return x;
}
template <class T>
void store(void* data, int64_t index, T x) {
  std::memcpy(static_cast<std::byte*>(data) + index * static_cast<int64_t>(sizeof(T)), &x, sizeof(T));
}

}  // namespace

double decode_element(DType dtype, const void* data, int64_t index) {
  switch (dtype) {
    case DType::f32: return static_cast<double>(load<float>(data, index));
    case DType::f16: return decode_code(f16_format, load<uint16_t>(data, index));
    case DType::bf16: return decode_code(bf16_format, load<uint16_t>(data, index));
    case DType::e4m3: return decode_code(e4m3_format, load<uint8_t>(data, index));
    case DType::e5m2: return decode_code(e5m2_format, load<uint8_t>(data, index));
    case DType::sim8: return decode_sim8(load<uint8_t>(data, index));
    case DType::u8: return load<uint8_t>(data, index);
    case DType::i32: return load<int32_t>(data, index);
    case DType::i64: return static_cast<double>(load<int64_t>(data, index));
    case DType::none: break;
  }
  invalid("dtype = ", name_of(dtype), ": an absent tensor has no elements");
}

void encode_element(DType dtype, void* data, int64_t index, double value) {
  switch (dtype) {
    case DType::f32: return store(data, index, static_cast<float>(value));
    case DType::f16:
    case DType::bf16: return store(data, index, static_cast<uint16_t>(encode_code(*small_format(dtype), value, false)));
    case DType::e4m3:
    case DType::e5m2: return store(data, index, static_cast<uint8_t>(encode_code(*small_format(dtype), value, true)));
    case DType::sim8: return store(data, index, static_cast<uint8_t>(encode_sim8(value)));
    case DType::u8: return store(data, index, static_cast<uint8_t>(value));
    case DType::i32: return store(data, index, static_cast<int32_t>(value));
    case DType::i64: return store(data, index, static_cast<int64_t>(value));
    case DType::none: break;
  }
  invalid("dtype = ", name_of(dtype), ": an absent tensor has no elements");
}

double round_to(DType dtype, double value) {
  std::byte element[8];
  encode_element(dtype, element, 0, value);
  return decode_element(dtype, element, 0);
}

double largest_finite(DType dtype) {
  if (const Format* f = small_format(dtype)) return f->largest;
  return dtype == DType::sim8 ? 448.0 : static_cast<double>(std::numeric_limits<float>::max());
}

double unit_roundoff(DType dtype) {
  if (const Format* f = small_format(dtype)) return std::ldexp(1.0, -f->mantissa_bits - 1);
  return std::ldexp(1.0, -24);
}

int64_t HostTensor::size() const {
  int64_t n = 1;
  for (const int64_t extent : shape) n *= extent;
  return n;
}

std::byte* HostTensor::data() const { return storage ? storage.get() + offset * bytes_of(dtype) : nullptr; }

namespace {
template <class List>
int64_t element_index(const HostTensor& tensor, const List& at) {
  if (at.size() != tensor.shape.size())
    invalid("index of rank ", at.size(), ": the tensor has rank ", tensor.shape.size());
  int64_t where = 0;
  size_t dim = 0;
  for (const int64_t i : at) {
    if (i < 0 || i >= tensor.shape[dim])
      invalid("index ", i, " in dimension ", dim, ": must be in [0, ", tensor.shape[dim], ")");
    where += i * tensor.strides[dim++];
  }
  return where;
}
}  // namespace

int64_t HostTensor::index(std::initializer_list<int64_t> at) const { return element_index(*this, at); }
double HostTensor::at(std::initializer_list<int64_t> where) const {
  return decode_element(dtype, data(), element_index(*this, where));
}
double HostTensor::at(const std::vector<int64_t>& where) const {
  return decode_element(dtype, data(), element_index(*this, where));
}
void HostTensor::set(std::initializer_list<int64_t> where, double value) {
  encode_element(dtype, data(), element_index(*this, where), value);
}

namespace {

std::vector<int64_t> contiguous_strides(const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * std::max<int64_t>(shape[d], 1);
  return strides;
}

std::shared_ptr<std::byte[]> aligned_storage(int64_t bytes) {
  constexpr std::align_val_t alignment{64};
  auto* memory = static_cast<std::byte*>(::operator new[](static_cast<size_t>(std::max<int64_t>(bytes, 1)), alignment));
  std::memset(memory, 0, static_cast<size_t>(std::max<int64_t>(bytes, 1)));
  return {memory, [](std::byte* p) { ::operator delete[](p, std::align_val_t{64}); }};
}

}  // namespace

Span reach(const std::vector<int64_t>& shape, const std::vector<int64_t>& strides) {
  Span span;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] == 0) return {0, -1};
    (strides[d] < 0 ? span.first : span.last) += (shape[d] - 1) * strides[d];
  }
  return span;
}

HostTensor make_tensor(DType dtype, std::vector<int64_t> shape) {
  std::vector<int64_t> strides = contiguous_strides(shape);
  return make_strided(dtype, std::move(shape), std::move(strides));
}

HostTensor make_strided(DType dtype, std::vector<int64_t> shape, std::vector<int64_t> strides) {
  if (shape.size() != strides.size())
    invalid("strides of rank ", strides.size(), ": the shape has rank ", shape.size());
  const Span span = reach(shape, strides);
  HostTensor tensor;
  tensor.dtype = dtype;
  tensor.offset = -span.first;
  tensor.storage = aligned_storage((span.last - span.first + 1) * bytes_of(dtype));
  tensor.shape = std::move(shape);
  tensor.strides = std::move(strides);
  return tensor;
}

HostTensor first_channels(HostTensor tensor, int64_t count) {
  tensor.shape.back() = count;
  return tensor;
}

Address in_host_memory(const char*, const HostTensor& tensor) { return {tensor.data(), {RAPT_DEVICE_CPU, 0}}; }

View::View(const char* name, const HostTensor& tensor, const Placement& place) : present_(tensor.present()) {
  if (!present_) return;
  const Address address = place(name, tensor);
  tensor_.data = address.data;
  tensor_.device = address.device;
  tensor_.dtype = static_cast<int32_t>(tensor.dtype);
  tensor_.rank = static_cast<int32_t>(tensor.shape.size());
  tensor_.shape = tensor.shape.data();
  tensor_.strides = tensor.strides.data();
}

namespace {
// The poison: NaNs with a payload that no arithmetic produces. So an unwritten element differs from a computed NaN.
uint32_t poison_bits(DType dtype) {
  switch (dtype) {
    case DType::f32: return 0x7fdead5au;
    case DType::f16: return 0x7e5au;
    case DType::bf16: return 0x7feau;
    default: invalid("dtype = ", name_of(dtype), ": must be f32, f16 or bf16");
  }
}

// The number of elements in storage before the first and after the last reachable element.
constexpr int64_t margin = 32;
}  // namespace

bool is_poison(const HostTensor& tensor, int64_t index) {
  if (tensor.dtype == DType::f32) return load<uint32_t>(tensor.data(), index) == poison_bits(tensor.dtype);
  return load<uint16_t>(tensor.data(), index) == poison_bits(tensor.dtype);
}

HostTensor make_poisoned(DType dtype, std::vector<int64_t> shape, std::vector<int64_t> strides) {
  const Span span = reach(shape, strides);
  const int64_t elements = span.last - span.first + 1 + 2 * margin;
  HostTensor tensor;
  tensor.dtype = dtype;
  tensor.offset = margin - span.first;
  tensor.storage = aligned_storage(elements * bytes_of(dtype));
  tensor.shape = std::move(shape);
  tensor.strides = std::move(strides);
  for (int64_t e = 0; e < elements; ++e)
    if (dtype == DType::f32)
      store(tensor.storage.get(), e, poison_bits(dtype));
    else
      store(tensor.storage.get(), e, static_cast<uint16_t>(poison_bits(dtype)));
  return tensor;
}

int64_t broken_canaries(const HostTensor& tensor) {
  const Span span = reach(tensor.shape, tensor.strides);
  std::vector<char> owned(static_cast<size_t>(span.last - span.first + 1 + 2 * margin), 0);
  std::vector<int64_t> at(tensor.shape.size(), 0);
  for (int64_t n = tensor.size(); n > 0; --n) {
    int64_t where = tensor.offset;
    for (size_t d = 0; d < at.size(); ++d) where += at[d] * tensor.strides[d];
    owned[static_cast<size_t>(where)] = 1;
    for (size_t d = at.size(); d-- > 0;) {
      if (++at[d] < tensor.shape[d]) break;
      at[d] = 0;
    }
  }
  int64_t broken = 0;
  for (size_t e = 0; e < owned.size(); ++e)
    if (!owned[e] && !is_poison(tensor, static_cast<int64_t>(e) - tensor.offset)) ++broken;
  return broken;
}

std::vector<int64_t> layout_strides(Layout layout, const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides = contiguous_strides(shape);
  if (shape.size() == 4 && layout == Layout::bshd)
    strides = {shape[1] * shape[2] * shape[3], shape[3], shape[1] * shape[3], 1};
  if (shape.size() == 3 && layout == Layout::bhsd)
    strides = {shape[2], shape[0] * shape[2], 1};  // memory order h, t, d
  return strides;
}

Outputs make_outputs(const Problem& p) {
  const DType dtype = p.partial ? DType::f32 : p.out;
  std::vector<int64_t> shape = {p.batch, p.heads_q, p.seqlen_q, p.head_dim_v};
  std::vector<int64_t> lse_shape = {p.batch, p.heads_q, p.seqlen_q};
  if (p.varlen) {
    shape = {p.total_q, p.heads_q, p.head_dim_v};
    lse_shape = {p.heads_q, p.total_q};
  }
  std::vector<int64_t> strides = p.out_strides ? *p.out_strides : layout_strides(p.layout, shape);
  Outputs outputs;
  outputs.out = make_poisoned(dtype, std::move(shape), std::move(strides));
  if (p.lse || p.partial) {
    std::vector<int64_t> lse_strides = contiguous_strides(lse_shape);
    outputs.lse = make_poisoned(DType::f32, std::move(lse_shape), std::move(lse_strides));
  }
  return outputs;
}

}  // namespace rapt::check
