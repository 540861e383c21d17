// Rules about single tensors and pairs of tensors; see tensor_rules.h.
#include "arguments/tensor_rules.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "base/error.h"

namespace rapt {
namespace {

__extension__ typedef __int128 Int128;  // byte distances of 64-bit strides

std::string device_text(rapt_device d) {
  if (d.type == RAPT_DEVICE_CPU) return "cpu";
  if (d.type == RAPT_DEVICE_CUDA) return concat("cuda:", d.index);
  return concat("device type ", d.type);
}

// The first byte that a tensor touches and the byte after its last one, relative to its data pointer.
struct ByteRange {
  Int128 begin = 0, end = 0;
};

ByteRange byte_range(const rapt_tensor& t) {
  const auto strides = strides_of(t);
  const int size = bytes_of(dtype_of(t));
  ByteRange range{0, size};
  for (int i = 0; i < t.rank; ++i) {
    if (t.shape[i] == 0) return {0, 0};
    const Int128 reach = static_cast<Int128>(t.shape[i] - 1) * strides[i] * size;
    (reach < 0 ? range.begin : range.end) += reach;
  }
  return range;
}

// True if both tensors repeat with one period (in bytes) and use disjoint parts of it, like slices of one buffer.
bool separate_within(Int128 period, const rapt_tensor& a, const rapt_tensor& b) {
  auto part = [&](const rapt_tensor& t, Int128& low, Int128& extent) {
    const auto strides = strides_of(t);
    const int size = bytes_of(dtype_of(t));
    low = static_cast<Int128>(reinterpret_cast<uintptr_t>(t.data)), extent = size;
    for (int i = 0; i < t.rank; ++i) {
      const Int128 step = static_cast<Int128>(strides[i]) * size;
      if (t.shape[i] <= 1 || step % period == 0) continue;
      const Int128 reach = step * (t.shape[i] - 1);
      if (reach < 0) low += reach;
      extent += reach < 0 ? -reach : reach;
    }
  };
  Int128 a_low = 0, a_extent = 0, b_low = 0, b_extent = 0;
  part(a, a_low, a_extent);
  part(b, b_low, b_extent);
  // The distance is relative to a's first byte, because the address at which a period starts must not matter.
  const Int128 distance = ((b_low - a_low) % period + period) % period;
  return a_extent <= distance && distance + b_extent <= period;
}

}  // namespace

std::array<int64_t, max_rank> strides_of(const rapt_tensor& t) {
  std::array<int64_t, max_rank> strides{};
  int64_t contiguous = 1;
  for (int i = t.rank - 1; i >= 0; --i) {
    strides[i] = t.strides != nullptr ? t.strides[i] : contiguous;
    contiguous *= std::max<int64_t>(t.shape[i], 1);
  }
  return strides;
}

Geometry geometry_of(const rapt_tensor& t) {
  Geometry geometry{t.rank, {}, strides_of(t)};
  std::copy_n(t.shape, t.rank, geometry.shape.begin());
  return geometry;
}

int64_t element_count(const rapt_tensor& t) {
  int64_t count = 1;
  for (int i = 0; i < t.rank; ++i) count *= t.shape[i];
  return count;
}

std::string shape_text(const rapt_tensor& t) {
  std::string text = "[";
  for (int i = 0; i < t.rank; ++i) text += concat(i > 0 ? ", " : "", t.shape[i]);
  return text + "]";
}

void check_tensor(const char* name, const rapt_tensor& t) {
  if (t.rank < 0 || t.rank > max_rank) invalid(name, ".rank = ", t.rank, ": must be 0 to ", max_rank);
  if (t.rank > 0 && t.shape == nullptr) invalid(name, ".shape = NULL: must point to ", t.rank, " sizes");
  if (t.dtype <= RAPT_DTYPE_NONE || t.dtype >= dtype_count) invalid(name, ".dtype = ", t.dtype, ": not a rapt_dtype");
  if (t.device.type != RAPT_DEVICE_CPU && t.device.type != RAPT_DEVICE_CUDA)
    invalid(name, ".device.type = ", t.device.type, ": must be RAPT_DEVICE_CPU or RAPT_DEVICE_CUDA");
  Int128 elements = 1, extent = 0;
  bool empty = false;
  for (int i = 0; i < t.rank; ++i) {
    if (t.shape[i] < 0) invalid(name, ".shape = ", shape_text(t), ": sizes must not be negative");
    empty = empty || t.shape[i] == 0;
    elements *= std::max<int64_t>(t.shape[i], 1);
    if (elements > (int64_t{1} << 60)) invalid(name, ".shape = ", shape_text(t), ": more than 2^60 elements");
  }
  if (empty) return;
  const auto strides = strides_of(t);
  for (int i = 0; i < t.rank; ++i) {
    if (t.shape[i] > 1 && strides[i] == std::numeric_limits<int64_t>::min())
      invalid(name, ".strides[", i, "] = ", strides[i], ": out of range");
    if (t.shape[i] > 1) extent += static_cast<Int128>(t.shape[i] - 1) * std::abs(strides[i]);
  }
  if (extent > (int64_t{1} << 60)) invalid(name, ".strides: shape ", shape_text(t), " spans more than 2^60 elements");
  if (t.data == nullptr)
    invalid(name, ".data = NULL: shape ", shape_text(t), " has elements, so data must not be NULL");
  const int size = bytes_of(dtype_of(t));
  if (reinterpret_cast<uintptr_t>(t.data) % static_cast<uintptr_t>(size) != 0)
    invalid(name, ".data = ", t.data, ": must be aligned to its element, ", size, " bytes");
}

void require_dtype(const char* name, const rapt_tensor& t, Dtypes allowed) {
  if (allowed.has(dtype_of(t))) return;
  const char* const one_of = allowed.count() > 1 ? "one of " : "";
  invalid(name, ".dtype = ", name_of(dtype_of(t)), ": must be ", one_of, allowed.names(", "));
}

void require_rank(const char* name, const rapt_tensor& t, int rank, const char* meaning) {
  if (t.rank != rank) invalid(name, ".rank = ", t.rank, " (shape ", shape_text(t), "): must be ", rank, ", ", meaning);
}

void require_shape(const char* name, const rapt_tensor& t, std::initializer_list<int64_t> shape, const char* meaning) {
  if (t.rank == static_cast<int>(shape.size()) && std::equal(shape.begin(), shape.end(), t.shape)) return;
  const rapt_tensor expected{nullptr, {}, 0, static_cast<int32_t>(shape.size()), shape.begin(), nullptr};
  invalid(name, ".shape = ", shape_text(t), ": must be ", meaning, " = ", shape_text(expected));
}

void require_scale_shape(const char* name, const rapt_tensor& t, ScaleKind kind, const ScaledShape& of) {
  const bool packed = of.total >= 0;
  switch (kind) {
    case ScaleKind::none: break;
    case ScaleKind::tensor:
      if (t.rank > 1 || element_count(t) != 1)
        invalid(name, ".shape = ", shape_text(t), ": per-tensor scales have shape [] or [1]");
      break;
    case ScaleKind::head: require_shape(name, t, {of.batch, of.heads}, "[batch, heads]"); break;
    case ScaleKind::token:
      if (packed)
        require_shape(name, t, {of.heads, of.total}, "[heads, total]");
      else
        require_shape(name, t, {of.batch, of.heads, of.seqlen}, "[batch, heads, seqlen]");
      break;
    case ScaleKind::block64:
    case ScaleKind::block128: {
      const int rows = rows_sharing(kind);
      const std::string meaning = concat("[batch, heads, ceil(", packed ? "max_seqlen" : "seqlen", " / ", rows, ")]");
      require_shape(name, t, {of.batch, of.heads, of.seqlen / rows + (of.seqlen % rows != 0)}, meaning.c_str());
      break;
    }
    case ScaleKind::channel: require_shape(name, t, {of.batch, of.heads, of.dim}, "[batch, heads, dim]"); break;
  }
}

void require_same_device(const char* name, const rapt_tensor& t, const rapt_tensor& first, const char* first_name) {
  if (t.device.type == first.device.type && t.device.index == first.device.index) return;
  invalid(name, ".device = ", device_text(t.device), ": must be that of ", first_name, ", ", device_text(first.device));
}

void check_output_layout(const char* name, const rapt_tensor& t) {
  if (element_count(t) == 0 || !overlaps_itself(geometry_of(t))) return;
  // Tensors with unusual strides can still have distinct elements. This loop enumerates the elements of small tensors.
  // Large tensors are refused.
  const auto strides = strides_of(t);
  bool distinct = element_count(t) <= 1 << 16;
  if (distinct) {
    std::vector<Int128> offsets{0};
    for (int i = 0; i < t.rank; ++i) {
      const size_t before = offsets.size();
      for (int64_t x = 1; x < t.shape[i]; ++x)
        for (size_t o = 0; o < before; ++o) offsets.push_back(offsets[o] + static_cast<Int128>(x) * strides[i]);
    }
    std::sort(offsets.begin(), offsets.end());
    distinct = std::adjacent_find(offsets.begin(), offsets.end()) == offsets.end();
  }
  if (!distinct) {
    const rapt_tensor stride_view{nullptr, {}, 0, t.rank, strides.data(), nullptr};
    invalid(name, ".strides = ", shape_text(stride_view), " with shape ", shape_text(t),
            ": an output must not overlap itself");
  }
}

Bytes::Bytes(const char* name, const rapt_tensor& tensor) : name_(name), tensor_(tensor) {
  const ByteRange range = byte_range(tensor);
  const auto base = static_cast<Int128>(reinterpret_cast<uintptr_t>(tensor.data));
  begin_ = base + range.begin, end_ = base + range.end;
}

void Bytes::check_disjoint(const char* other_name, const rapt_tensor& other) const {
  const ByteRange range = byte_range(other);
  const auto base = static_cast<Int128>(reinterpret_cast<uintptr_t>(other.data));
  if (begin_ == end_ || range.begin == range.end || end_ <= base + range.begin || base + range.end <= begin_) return;
  for (const rapt_tensor* t : {&tensor_, &other}) {
    const auto strides = strides_of(*t);
    for (int i = 0; i < t->rank; ++i) {
      const Int128 period = static_cast<Int128>(std::abs(strides[i])) * bytes_of(dtype_of(*t));
      if (t->shape[i] > 1 && period > 0 && separate_within(period, tensor_, other)) return;
    }
  }
  invalid(name_, ": overlaps ", other_name, " in memory; outputs must not share bytes with other tensors");
}

void check_disjoint(const char* name_a, const rapt_tensor& a, const char* name_b, const rapt_tensor& b) {
  Bytes(name_a, a).check_disjoint(name_b, b);
}

void check_struct_size(const char* name, size_t struct_size, const void* data, size_t known) {
  if (struct_size < known)
    invalid(name, ".struct_size = ", struct_size, ": must be at least ", known, " (its sizeof in rapt.h)");
  const auto* bytes = static_cast<const unsigned char*>(data);
  for (size_t i = known; i < struct_size; ++i)
    if (bytes[i] != 0)
      invalid(name, ".struct_size = ", struct_size, ": byte ", i, " is set, but this build knows ", known,
              " bytes only");
}

}  // namespace rapt
