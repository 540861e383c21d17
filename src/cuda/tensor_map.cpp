// Creates tensor maps. The driver reports every broken rule as "invalid value", so the rules are checked here.
#include "cuda/tensor_map.h"

#include <cstring>

#include "base/error.h"
#include "cuda/driver.h"

namespace rapt::cuda {
namespace {

constexpr uint64_t alignment = 16;  // in bytes; for the base, the strides and the rows of the box
constexpr uint64_t size_limit = uint64_t{1} << 32, stride_limit = uint64_t{1} << 40;
constexpr uint32_t box_limit = 256;

uint32_t bytes_of(TensorElement element) {
  switch (element) {
    case TensorElement::u8: return 1;
    case TensorElement::f16:
    case TensorElement::bf16: return 2;
    case TensorElement::f32: return 4;
  }
  throw Error(ErrorCode::internal,
              concat("tensor map: element ", static_cast<int>(element), " is not a tensor map element"));
}

TensorMapElement driver_element(TensorElement element) {
  switch (element) {
    case TensorElement::u8: return TensorMapElement::u8;
    case TensorElement::f16: return TensorMapElement::f16;
    case TensorElement::bf16: return TensorMapElement::bf16;
    case TensorElement::f32: return TensorMapElement::f32;
  }
  throw Error(ErrorCode::internal,
              concat("tensor map: element ", static_cast<int>(element), " is not a tensor map element"));
}

// The span in bytes within which pieces are permuted. 0: no swizzle.
uint32_t span_of(TensorSwizzle swizzle) {
  return swizzle == TensorSwizzle::none ? 0 : uint32_t{16} << static_cast<int>(swizzle);
}

template <class... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  throw Error(ErrorCode::invalid_argument, concat("tensor map: ", parts...));
}

void require_dimension(const TensorMapSpec& spec, size_t i) {
  if (spec.sizes[i] < 1 || spec.sizes[i] > size_limit)
    refuse("sizes[", i, "] = ", spec.sizes[i], ": must be 1 to ", size_limit);
  if (spec.box[i] < 1 || spec.box[i] > box_limit) refuse("box[", i, "] = ", spec.box[i], ": must be 1 to ", box_limit);
  if (i == 0) return;
  const uint64_t stride = spec.strides[i - 1];
  if (stride % alignment != 0 || stride >= stride_limit)
    refuse("strides[", i - 1, "] = ", stride, " bytes: must be a multiple of ", alignment, " below ", stride_limit);
}

void require_row_of_box(const TensorMapSpec& spec) {
  const uint32_t row = spec.box[0] * bytes_of(spec.element), span = span_of(spec.swizzle);
  if (row % alignment != 0)
    refuse("box[0] = ", spec.box[0], " elements of ", bytes_of(spec.element), " bytes: must be a multiple of ",
           alignment, " bytes");
  if (span != 0 && row > span)
    refuse("box[0] = ", spec.box[0], " elements of ", bytes_of(spec.element), " bytes: must be at most the ", span,
           " bytes of the swizzle");
}

void require_rules(const TensorMapSpec& spec) {
  if (spec.rank < 1 || spec.rank > max_tensor_rank) refuse("rank = ", spec.rank, ": must be 1 to ", max_tensor_rank);
  if (spec.base == nullptr) refuse("base is null: must be an address in GPU memory");
  if (const uint64_t address = reinterpret_cast<uintptr_t>(spec.base); address % alignment != 0)
    refuse("base = ", address, ": must be a multiple of ", alignment);
  for (size_t i = 0; i < static_cast<size_t>(spec.rank); ++i) require_dimension(spec, i);
  require_row_of_box(spec);
}

TensorMap encode(const TensorMapSpec& spec) {
  require_rules(spec);
  const Driver& table = driver();
  if (table.cuTensorMapEncodeTiled == nullptr)
    throw Error(ErrorCode::environment,
                "this driver has no cuTensorMapEncodeTiled: kernels that load by tensor maps "
                "need a driver of CUDA 12.0 or later");
  std::array<unsigned long long, max_tensor_rank> sizes{}, strides{};
  for (size_t i = 0; i < spec.sizes.size(); ++i) sizes[i] = spec.sizes[i];
  for (size_t i = 0; i < spec.strides.size(); ++i) strides[i] = spec.strides[i];
  constexpr std::array<unsigned, max_tensor_rank> every_element{1, 1, 1, 1, 1};
  // The driver needs 64-byte alignment. GCC does not give it to every temporary object of a return value.
  alignas(TensorMap) std::array<unsigned char, sizeof(TensorMap)> encoded{};
  check(table,
        table.cuTensorMapEncodeTiled(encoded.data(), driver_element(spec.element), static_cast<unsigned>(spec.rank),
                                     const_cast<void*>(spec.base), sizes.data(), strides.data(), spec.box.data(),
                                     every_element.data(), TensorMapInterleave::none,
                                     static_cast<TensorMapSwizzle>(spec.swizzle), TensorMapPromotion::bytes_128,
                                     TensorMapFill::zero),
        "making a tensor map (cuTensorMapEncodeTiled)");
  TensorMap map;
  std::memcpy(map.bytes, encoded.data(), encoded.size());
  return map;
}

// Maps of recent calls. The base address and the box determine the entry in which a map is stored. A new map replaces
// the map that was in its entry.
struct RecentMaps {
  struct Entry {
    TensorMapSpec spec;  // rank 0: the entry is empty
    TensorMap map;
  };
  std::array<Entry, 32> entries{};
  RecentMaps() {
    for (Entry& entry : entries) entry.spec.rank = 0;
  }
  Entry& place_of(const TensorMapSpec& spec) {
    const auto address = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(spec.base));
    constexpr uint64_t odd = 0x9e3779b97f4a7c15;  // 2^64 / golden ratio, for multiplicative hashing (Knuth, volume 3)
    return entries[(address + spec.box[1]) * odd >> 59];
  }
};

}  // namespace

TensorMap make_tensor_map(const TensorMapSpec& spec) {
  thread_local RecentMaps recent;
  RecentMaps::Entry& entry = recent.place_of(spec);
  if (entry.spec.rank == 0 || entry.spec != spec) {
    entry.map = encode(spec);
    entry.spec = spec;
  }
  return entry.map;
}

}  // namespace rapt::cuda
