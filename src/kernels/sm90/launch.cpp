// Implements launch_gpu.h: the order of tiles, the parts of the workspace, and the tensor maps.
#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <numeric>

#include "kernels/sm90/choice_gpu.h"
#include "kernels/sm90/launch_gpu.h"

namespace rapt {
namespace {

int64_t div_up(int64_t n, int64_t by) { return (n + by - 1) / by; }

// Returns the number of row tiles of a head, or of the packed heads of a group.
int64_t row_tiles(const Problem& p, const Sm90PlanConfig& c) {
  return div_up(p.seqlen_q * c.packed_heads, c.block_m());
}

// If rows see different numbers of keys, heads are grouped so that their keys and values fit into L2. Otherwise heads
// follow one another.
TileScheduler tile_order(const Problem& p, const Sm90PlanConfig& c) {
  const auto u = [](int64_t n) { return static_cast<unsigned>(n); };
  int64_t fit = 1;
  if (c.causal_or_local) {
    // K and V of one kv head
    const int64_t bytes = p.seqlen_k * (p.head_dim * bytes_of(c.key_type()) + p.head_dim_v * bytes_of(c.value_type()));
    fit = std::clamp<int64_t>(c.l2_kv_bytes / std::max<int64_t>(bytes, 1), 1, p.batch * p.heads_k) * p.group() /
          c.packed_heads;
  }
  return TileScheduler::of(u(row_tiles(p, c)), u(p.batch), u(p.heads_q / c.packed_heads), u(p.group()), u(fit));
}

// A dimension of a tensor map: its size and its stride in elements, and the elements of a box.
struct MapDimension {
  int64_t size, stride;
  int box = 1;
};

TensorElement element_of(DType dtype) {
  switch (dtype) {
    case DType::f16: return TensorElement::f16;
    case DType::bf16: return TensorElement::bf16;
    case DType::f32: return TensorElement::f32;
    default: return TensorElement::u8;
  }
}

// Returns the elements of a column of 128 bytes, the width of a box.
int column_width(DType dtype) { return 128 / bytes_of(dtype); }

// The stride of the first dimension is 1.
TensorMapSpec map_of(const void* data, DType dtype, std::initializer_list<MapDimension> dimensions,
                     TensorSwizzle swizzle) {
  TensorMapSpec spec;
  spec.element = element_of(dtype), spec.base = data, spec.rank = 0, spec.swizzle = swizzle;
  for (const MapDimension& d : dimensions) {
    const auto i = static_cast<size_t>(spec.rank++);
    spec.sizes[i] = static_cast<uint64_t>(d.size), spec.box[i] = static_cast<uint32_t>(d.box);
    // A dimension of size 1 can have any stride, also one that the driver refuses. So 16 is used for it.
    if (i > 0) spec.strides[i - 1] = d.size == 1 ? 16 : static_cast<uint64_t>(bytes_of(dtype) * d.stride);
  }
  return spec;
}

// The tensor map of a bias or a mask. Its broadcast dimensions have size 1.
TensorMapSpec score_map(const BroadcastRef& t, DType dtype, const Problem& p, const Sm90Config& c, bool one_row) {
  const int width = Sm90Layout::box_width(c, dtype, one_row);
  const auto broadcast = [](int64_t size, int64_t stride) { return MapDimension{stride == 0 ? 1 : size, stride}; };
  const TensorSwizzle swizzle = one_row        ? TensorSwizzle::none
                                : width == 128 ? TensorSwizzle::bytes_128
                                : width == 64  ? TensorSwizzle::bytes_64
                                               : TensorSwizzle::bytes_32;
  MapDimension queries = broadcast(one_row ? 1 : p.seqlen_q, t.query);
  queries.box = Sm90Layout::box_rows(c, one_row);
  return map_of(
      t.data, dtype,
      {{p.seqlen_k, 1, width / bytes_of(dtype)}, queries, broadcast(p.heads_q, t.head), broadcast(p.batch, t.batch)},
      swizzle);
}

// Pages and heads of paged K or V are one dimension of the tensor map, because a map has at most five. An element of
// this dimension is a place. Places are `stride` elements apart.
struct Places {
  int64_t stride, count;
  PlaceSteps steps;

  Places(const TensorRef& t, const Problem& p, int64_t pages) {
    const int64_t page = pages == 1 ? 0 : t.batch, head = p.heads_k == 1 ? 0 : t.head;
    stride = std::max<int64_t>(std::gcd(page, head), 1);
    count = ((pages - 1) * page + (p.heads_k - 1) * head) / stride + 1;
    steps = {static_cast<int>(page / stride), static_cast<int>(head / stride)};
  }
};

// The tensor map of paged K or V (Producer::load_pages). Its dimensions: channels of a column, rows of a group of
// eight, columns, groups of a page, and places.
TensorMapSpec page_map(const TensorRef& t, DType dtype, int64_t dim, const Problem& p, int page_rows,
                       const Sm90Layout::Block& block, int64_t pages) {
  const Places places(t, p, pages);
  const bool whole = block.copies_whole_rows;
  const int columns = whole ? block.columns : 1, width = column_width(dtype);
  return map_of(t.data, dtype,
                {{whole ? width : dim, 1, width},
                 {8, t.row, 8},
                 {columns, width, columns},
                 {p.page_size / 8, 8 * t.row, page_rows / 8},
                 {places.count, places.stride}},
                TensorSwizzle::bytes_128);
}

// The tensor map of converted K or V. sequence_rows: rows of one sequence and kv head, which have `row` elements.
TensorMapSpec converted_map(const void* data, DType dtype, const Problem& p, int64_t row, int64_t sequence_rows,
                            int box_rows) {
  return map_of(data, dtype,
                {{row, 1, column_width(dtype)},
                 {sequence_rows, row, box_rows},
                 {p.heads_k, sequence_rows * row},
                 {p.batch, p.heads_k * sequence_rows * row}},
                TensorSwizzle::bytes_128);
}

unsigned conversion_units(const Problem& p, int element_bytes, int64_t dim) {
  if (element_bytes == 0) return 0;
  return static_cast<unsigned>(p.batch * p.heads_k * (Sm90Conversion(p).pitch / ConvertedKv::unit_keys) *
                               div_up(dim, ConvertedKv::unit_dims));
}

// The parts of the workspace: converted K, converted V, and sums.
void add_workspace(Sm90Params& params, const Problem& p, const Workspace& workspace) {
  const Sm90Conversion conversion(p);
  ConvertedKv& converted = params.converted;
  converted.pitch = static_cast<int>(conversion.pitch);
  converted.units_k = conversion_units(p, conversion.k_element, p.head_dim);
  converted.units = converted.units_k + conversion_units(p, conversion.v_element, p.head_dim_v);
  if (converted.units > 0) {
    converted.units_along = FastDivmod::by(static_cast<unsigned>(converted.pitch / ConvertedKv::unit_keys));
    converted.heads = FastDivmod::by(static_cast<unsigned>(p.heads_k));
  }
  params.counters = static_cast<unsigned*>(workspace.counters);
  if (params.counters != nullptr) converted.counters = params.counters + 2;
  if (workspace.scratch == nullptr) return;
  std::byte* const scratch = static_cast<std::byte*>(workspace.scratch);
  converted.k = scratch, converted.v = scratch + conversion.k_bytes();
  params.partial = reinterpret_cast<float*>(scratch + conversion.bytes());
}

// Adds the tensor maps of K and V.
void add_kv_maps(LaunchSpec& spec, const Sm90Params& params, const Problem& p, const Sm90PlanConfig& c,
                 int64_t rows_k) {
  const AttentionParams& a = params.attention;
  const auto map = [&](const TensorRef& t, DType dtype, int64_t dim, const Sm90Layout::Block& block) {
    if (block.in_pages) return page_map(t, dtype, dim, p, c.page_rows, block, a.pages.pages);
    return map_of(t.data, dtype,
                  {{dim, 1, column_width(dtype)},
                   {rows_k, t.row, c.block_n},
                   {p.heads_k, t.head},
                   {p.varlen ? 1 : p.batch, t.batch}},  // packed tensors have no batch dimension
                  TensorSwizzle::bytes_128);
  };
  const int pitch = params.converted.pitch, dim_v = c.head_dim_v;
  spec.add_map(offsetof(Sm90Params, k),
               c.converts_k() ? converted_map(params.converted.k, c.key_type(), p, c.head_dim, pitch, c.block_n)
                              : map(a.k, c.k, p.head_dim, Sm90Layout::block_of_k(c)));
  spec.add_map(offsetof(Sm90Params, v),
               c.transposes_v() ? converted_map(params.converted.v, c.v, p, pitch, dim_v, dim_v)
               : c.converts_v() ? converted_map(params.converted.v, c.value_type(), p, dim_v, pitch, c.block_n)
                                : map(a.v, c.v, dim_v, Sm90Layout::block_of_v(c)));
}

}  // namespace

LaunchSpec sm90_launch_spec(const StepCall& call) {
  const Problem& p = call.problem;
  const auto& c = call.config.as<Sm90PlanConfig>();
  const int64_t items = p.batch * (p.heads_q / c.packed_heads) * row_tiles(p, c);
  Sm90Params params{};
  params.attention = call.params, params.items = static_cast<unsigned>(items);
  add_workspace(params, p, call.workspace);
  if (items > 0) params.scheduler = tile_order(p, c);
  params.sequences = TileSequences::of(call.params);
  const AttentionParams& a = call.params;
  if (c.page_rows > 0) {
    params.k_places = Places(a.k, p, a.pages.pages).steps;
    params.v_places = Places(a.v, p, a.pages.pages).steps;
  }
  LaunchSpec spec(params);
  const int64_t rows_q = p.varlen ? p.total_q : p.seqlen_q, rows_k = a.pages.present() ? p.page_size
                                                                     : p.varlen        ? p.total_k
                                                                                       : p.seqlen_k;
  if (items == 0 || rows_q == 0 || rows_k == 0) return spec;
  const MapDimension queries{rows_q, a.q.row, c.block_m() / c.packed_heads}, heads{p.heads_q, a.q.head, c.packed_heads},
      channels{p.head_dim, 1, column_width(c.q)}, of_batch{p.varlen ? 1 : p.batch, a.q.batch};
  spec.add_map(offsetof(Sm90Params, q),
               c.packed_heads > 1
                   ? map_of(a.q.data, c.q, {channels, heads, queries, of_batch}, TensorSwizzle::bytes_128)
                   : map_of(a.q.data, c.q, {channels, queries, heads, of_batch}, TensorSwizzle::bytes_128));
  add_kv_maps(spec, params, p, c, rows_k);
  if (c.boxes && c.bias != DType::none)
    spec.add_map(offsetof(Sm90Params, bias), score_map(a.bias, c.bias, p, c, c.bias_row));
  if (c.boxes && c.mask) spec.add_map(offsetof(Sm90Params, mask), score_map(a.mask, DType::u8, p, c, c.mask_row));
  spec.programmatic = c.programmatic;
  // CTAs without tiles also convert.
  const int64_t converting = div_up(params.converted.units, c.threads() / 32);
  spec.grid_x = static_cast<unsigned>(std::min<int64_t>(std::max(items, converting), c.blocks));
  return spec;
}

}  // namespace rapt
