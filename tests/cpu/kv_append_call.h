// A call of rapt_kv_append: inputs, poisoned caches, and the result that a simple reference expects. The reference
// follows the text of rapt.h. It rounds with the code of check/, not with that of the kernels. Used by the
// kv_append_*_test.cpp files and by tests/gpu/kv_append_test.cpp.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "quantize_call.h"

namespace rapt::test {

enum class Places { lengths, starts, slots, batch_idx };

// What a call looks like.
struct AppendSpec {
  DType from = DType::bf16, to = DType::bf16;      // of k
  DType from_v = DType::bf16, to_v = DType::bf16;  // of v
  DType q = DType::none, table = DType::none;      // none: absent
  int dim = 16, dim_v = 16, rotary_dim = 0;
  ScaleKind scales = ScaleKind::none, scales_v = ScaleKind::none;
  bool interleaved = false;
  bool contiguous = true;  // rows are contiguous and aligned
  bool paged = false, packed = false;
  Places places = Places::lengths;
};

struct AppendCall {
  HostTensor k, v, k_cache, v_cache, cu_seqlens, seqused_k, starts, slot_mapping, block_table, cache_batch_idx;
  HostTensor k_descale, v_descale, cos, sin, positions, q, q_out;
  int32_t k_scales = 0, v_scales = 0;
  uint64_t flags = 0;

  bool packed() const { return k.shape.size() == 3; }
  bool has(uint64_t flag) const { return (flags & flag) != 0; }
};

// The rapt_kv_append_args for the tensors of a call. The tensors must outlive it.
class AppendArgs {
 public:
  explicit AppendArgs(const AppendCall& c, const check::Placement& place = check::in_host_memory) {
    args.struct_size = sizeof args;
    args.flags = c.flags, args.k_scales = c.k_scales, args.v_scales = c.v_scales;
    const auto view = [&](const char* name, const HostTensor& tensor) {
      return views_.emplace_back(name, tensor, place).get();
    };
    args.k = view("k", c.k), args.v = view("v", c.v);
    args.k_cache = view("k_cache", c.k_cache), args.v_cache = view("v_cache", c.v_cache);
    args.cu_seqlens_new = view("cu_seqlens_new", c.cu_seqlens), args.seqused_k = view("seqused_k", c.seqused_k);
    args.starts = view("starts", c.starts), args.slot_mapping = view("slot_mapping", c.slot_mapping);
    args.block_table = view("block_table", c.block_table);
    args.cache_batch_idx = view("cache_batch_idx", c.cache_batch_idx);
    args.k_descale = view("k_descale", c.k_descale), args.v_descale = view("v_descale", c.v_descale);
    args.cos = view("cos", c.cos), args.sin = view("sin", c.sin), args.positions = view("positions", c.positions);
    args.q = view("q", c.q);
    // q_out can be q itself. Then both have one address, also on a GPU.
    const bool in_place = c.q_out.present() && c.q_out.storage == c.q.storage && c.q_out.strides == c.q.strides;
    args.q_out = in_place ? args.q : view("q_out", c.q_out);
  }

 private:
  std::deque<check::View> views_;

 public:
  rapt_kv_append_args args{};
};

// ---- Making calls

inline HostTensor list_of(DType type, const std::vector<int64_t>& values) {
  HostTensor list = make_tensor(type, {static_cast<int64_t>(values.size())});
  for (size_t i = 0; i < values.size(); ++i) put(list, {static_cast<int64_t>(i)}, static_cast<double>(values[i]));
  return list;
}

// Strides for a tensor whose elements have distance `each`.
inline std::vector<int64_t> spread_strides(DType type, const std::vector<int64_t>& shape, int64_t each) {
  auto strides = make_tensor(type, shape).strides;
  for (int64_t& stride : strides) stride *= each;
  return strides;
}

// Normal values, and some special ones: NaN, infinities, zeros, subnormal and large numbers.
inline void fill_new(HostTensor& t, uint64_t seed) {
  if (is_fp8(t.dtype)) {  // all codes
    for (int64_t i = 0; i < t.size(); ++i) t.data()[i] = static_cast<std::byte>(37 * i + static_cast<int64_t>(seed));
    return;
  }
  fill_quantize(t, QuantizeFill::special, seed);
}

inline constexpr int64_t append_batch = 3, append_heads = 5, append_seqlen = 3, append_capacity = 20, append_page = 4;
inline constexpr int64_t append_pages = 17, append_positions = 24;

inline std::vector<int64_t> append_starts(Places places) {
  return places == Places::starts ? std::vector<int64_t>{5, -2, 14} : std::vector<int64_t>{5, 0, 14};
}

inline HostTensor make_cache(const AppendSpec& spec, DType type, int64_t dim) {
  const int64_t rows = spec.places == Places::batch_idx ? append_batch + 2 : append_batch;
  const std::vector<int64_t> shape = spec.paged ? std::vector<int64_t>{append_pages, append_heads, append_page, dim}
                                                : std::vector<int64_t>{rows, append_heads, append_capacity, dim};
  if (!spec.contiguous) return make_poisoned(type, shape, spread_strides(type, shape, 3));
  // The memory order of most libraries: the heads of a token are neighbours.
  return make_poisoned(type, shape, {shape[1] * shape[2] * dim, dim, shape[1] * dim, 1});
}

inline void set_descale(const AppendSpec& spec, ScaleKind kind, int64_t batch, HostTensor& descale,
                        const HostTensor& cache) {
  if (kind == ScaleKind::none) return;
  const auto& c = cache.shape;
  if (kind == ScaleKind::head) {
    descale = make_tensor(DType::f32, {batch, append_heads});
    uint64_t i = 0;
    each_index(descale.shape, [&](const auto& at) { put(descale, at, 0.001 + check::uniform(5, 9, i++)); });
  } else if (spec.paged || spec.places == Places::slots) {
    descale = make_poisoned(DType::f32, {c[0], c[2], c[1]});
  } else {
    descale = make_poisoned(DType::f32, {c[0], c[1], c[2]});
  }
}

inline AppendCall make_append(const AppendSpec& spec) {
  AppendCall call;
  const int64_t total = 7;
  const auto made = [&](DType type, int64_t heads, int64_t dim, uint64_t seed) {
    const std::vector<int64_t> shape = spec.packed ? std::vector<int64_t>{total, heads, dim}
                                                   : std::vector<int64_t>{append_batch, heads, append_seqlen, dim};
    HostTensor t =
        spec.contiguous ? make_tensor(type, shape) : make_strided(type, shape, spread_strides(type, shape, 2));
    fill_new(t, seed);
    return t;
  };
  call.k = made(spec.from, append_heads, spec.dim, 1), call.v = made(spec.from_v, append_heads, spec.dim_v, 2);
  call.k_cache = make_cache(spec, spec.to, spec.dim), call.v_cache = make_cache(spec, spec.to_v, spec.dim_v);
  const bool by_slots = spec.places == Places::slots;
  if (spec.packed && !by_slots) call.cu_seqlens = list_of(DType::i32, {0, 2, 2, 6});
  if (spec.places == Places::starts)
    call.starts = list_of(DType::i64, append_starts(spec.places));
  else if (!by_slots)
    call.seqused_k = list_of(DType::i32, append_starts(spec.places));
  if (spec.places == Places::batch_idx) call.cache_batch_idx = list_of(DType::i32, {4, 0, 2});
  if (spec.paged && !by_slots) {
    call.block_table = make_tensor(DType::i32, {append_batch, append_capacity / append_page});
    int64_t page = 0;
    each_index(call.block_table.shape,
               [&](const auto& at) { put(call.block_table, at, static_cast<double>(page++ * 5 % append_pages)); });
  }
  if (by_slots) {
    const int64_t rows = call.k_cache.shape[0] * call.k_cache.shape[2];
    const int64_t batch = spec.packed ? 1 : append_batch;
    call.slot_mapping =
        spec.packed ? make_tensor(DType::i64, {total}) : make_tensor(DType::i32, {batch, append_seqlen});
    int64_t i = 0;
    each_index(call.slot_mapping.shape, [&](const auto& at) {
      put(call.slot_mapping, at, static_cast<double>(i == 1 ? -1 : (i * 11 + 3) % rows));
      ++i;
    });
  }
  const int64_t batch = spec.packed && by_slots ? 1 : append_batch;
  set_descale(spec, spec.scales, batch, call.k_descale, call.k_cache);
  set_descale(spec, spec.scales_v, batch, call.v_descale, call.v_cache);
  call.k_scales = static_cast<int32_t>(spec.scales), call.v_scales = static_cast<int32_t>(spec.scales_v);
  if (spec.rotary_dim == 0) return call;
  for (HostTensor* table : {&call.cos, &call.sin}) {
    *table = make_tensor(spec.table, {append_positions, spec.rotary_dim / 2});
    if (!spec.contiguous) *table = make_strided(spec.table, table->shape, spread_strides(spec.table, table->shape, 2));
    uint64_t i = table == &call.cos ? 0 : 100000;
    each_index(table->shape, [&](const auto& at) { put(*table, at, 2 * check::uniform(7, 1, i++) - 1); });
  }
  if (spec.interleaved) call.flags |= RAPT_KV_APPEND_INTERLEAVED;
  if (by_slots) {
    call.positions = make_tensor(spec.packed ? DType::i32 : DType::i64, call.slot_mapping.shape);
    int64_t i = 0;
    each_index(call.positions.shape, [&](const auto& at) {
      put(call.positions, at, static_cast<double>(i == 4 ? -1 : i * 7 % append_positions));
      ++i;
    });
  }
  if (spec.q != DType::none) {
    call.q = made(spec.q, 6, spec.dim, 3);
    call.q_out = make_poisoned(spec.q, call.q.shape, call.q.strides);
  }
  return call;
}

// ---- The reference

inline HostTensor deep_copy(const HostTensor& tensor) {  // of make_poisoned
  if (!tensor.present()) return tensor;
  HostTensor copy = make_poisoned(tensor.dtype, tensor.shape, tensor.strides);
  const check::Span span = check::reach(tensor.shape, tensor.strides);
  const int64_t elements = span.last - span.first + 1 + 2 * poison_margin;
  std::memcpy(copy.storage.get(), tensor.storage.get(), static_cast<size_t>(elements * bytes_of(tensor.dtype)));
  return copy;
}
// A copy of a call with outputs of its own.
inline AppendCall with_own_outputs(AppendCall call) {
  const bool in_place = call.q_out.present() && call.q_out.storage == call.q.storage;
  call.k_cache = deep_copy(call.k_cache), call.v_cache = deep_copy(call.v_cache);
  if (call.k_scales == RAPT_SCALE_TOKEN) call.k_descale = deep_copy(call.k_descale);
  if (call.v_scales == RAPT_SCALE_TOKEN) call.v_descale = deep_copy(call.v_descale);
  call.q_out = deep_copy(call.q_out);
  if (in_place) call.q = call.q_out;
  return call;
}

class AppendReference {
 public:
  explicit AppendReference(AppendCall& call) : c(call) {}

  // Writes the expected bytes to the outputs of the call.
  void run() {
    const HostTensor q = c.q.present() && c.q_out.storage == c.q.storage ? deep_copy(c.q) : c.q;
    for_each_token(c.k, [&](int64_t b, int64_t row, int64_t i) {
      const std::optional<Place> place = place_of(b, row, i);
      const int64_t position = position_of(b, row, i);
      if (!place || (c.cos.present() && (position < 0 || position >= c.cos.shape[0]))) return;
      for (int64_t h = 0; h < c.k.shape[1]; ++h) {
        write(c.k, at(b, h, row), c.k_cache, {place->page, h, place->row}, position, c.cos.present(), c.k_scales,
              c.k_descale, b);
        write(c.v, at(b, h, row), c.v_cache, {place->page, h, place->row}, position, false, c.v_scales, c.v_descale, b);
      }
    });
    if (!c.q.present()) return;
    for_each_token(c.q, [&](int64_t b, int64_t row, int64_t i) {
      const int64_t position = position_of(b, row, c.has(RAPT_KV_APPEND_Q_AT_START) ? 0 : i);
      if (position < 0 || position >= c.cos.shape[0]) return;
      for (int64_t h = 0; h < c.q.shape[1]; ++h)
        write(q, at(b, h, row), c.q_out, at(b, h, row), position, true, 0, {}, b);
    });
  }

 private:
  struct Place {
    int64_t page, row;
  };
  using Index = std::vector<int64_t>;

  int64_t whole(const HostTensor& list, const Index& index) const { return static_cast<int64_t>(list.at(index)); }
  Index at(int64_t b, int64_t h, int64_t row) const { return c.packed() ? Index{row, h} : Index{b, h, row}; }
  Index token(int64_t b, int64_t row) const { return c.packed() ? Index{row} : Index{b, row}; }

  // Calls visit(sequence, row of the tensor, index in the sequence).
  void for_each_token(const HostTensor& t, const std::function<void(int64_t, int64_t, int64_t)>& visit) const {
    if (!c.packed())
      for (int64_t b = 0; b < t.shape[0]; ++b)
        for (int64_t i = 0; i < t.shape[2]; ++i) visit(b, i, i);
    else if (!c.cu_seqlens.present())
      for (int64_t i = 0; i < t.shape[0]; ++i) visit(0, i, i);
    else
      for (int64_t b = 0; b + 1 < c.cu_seqlens.shape[0]; ++b)
        for (int64_t row = whole(c.cu_seqlens, {b}); row < whole(c.cu_seqlens, {b + 1}); ++row)
          visit(b, row, row - whole(c.cu_seqlens, {b}));
  }
  int64_t start(int64_t b) const { return whole(c.starts.present() ? c.starts : c.seqused_k, {b}); }
  int64_t position_of(int64_t b, int64_t row, int64_t i) const {
    if (c.positions.present()) return whole(c.positions, token(b, row));
    return c.slot_mapping.present() ? 0 : start(b) + i;
  }
  std::optional<Place> place_of(int64_t b, int64_t row, int64_t i) const {
    const int64_t page_rows = c.k_cache.shape[2];
    if (c.slot_mapping.present()) {
      const int64_t slot = whole(c.slot_mapping, token(b, row));
      if (slot < 0 || slot >= page_rows * c.k_cache.shape[0]) return {};
      return Place{slot / page_rows, slot % page_rows};
    }
    const int64_t position = start(b) + i;
    if (position < 0) return {};
    if (c.block_table.present()) {
      if (position / page_rows >= c.block_table.shape[1]) return {};
      const int64_t page = whole(c.block_table, {b, position / page_rows});
      if (page < 0 || page >= c.k_cache.shape[0]) return {};
      return Place{page, position % page_rows};
    }
    const int64_t row_of_batch = c.cache_batch_idx.present() ? whole(c.cache_batch_idx, {b}) : b;
    if (position >= page_rows || row_of_batch < 0 || row_of_batch >= c.k_cache.shape[0]) return {};
    return Place{row_of_batch, position};
  }

  static std::byte* element(HostTensor& t, const Index& index) {
    int64_t offset = t.offset;
    for (size_t d = 0; d < index.size(); ++d) offset += index[d] * t.strides[d];
    return t.storage.get() + offset * bytes_of(t.dtype);
  }
  static Index with(Index index, int64_t last) {
    index.push_back(last);
    return index;
  }

  void write(const HostTensor& from, const Index& row, HostTensor& to, const Index& place, int64_t position,
             bool rotated, int32_t scales, HostTensor descale, int64_t b) const {
    const int64_t dim = from.shape.back(), rotary_dim = rotated ? 2 * c.cos.shape[1] : 0;
    std::vector<float> y;
    for (int64_t d = 0; d < dim; ++d) y.push_back(static_cast<float>(from.at(with(row, d))));
    for (int64_t j = 0; j < rotary_dim / 2; ++j) {
      const bool pairs = c.has(RAPT_KV_APPEND_INTERLEAVED);
      float& first = y[static_cast<size_t>(pairs ? 2 * j : j)];
      float& second = y[static_cast<size_t>(pairs ? 2 * j + 1 : j + rotary_dim / 2)];
      const auto cos = static_cast<float>(c.cos.at({position, j})), sin = static_cast<float>(c.sin.at({position, j}));
      const float x_cos = first * cos, y_sin = second * sin, y_cos = second * cos, x_sin = first * sin;
      first = x_cos - y_sin, second = y_cos + x_sin;
    }
    if (scales != RAPT_SCALE_NONE) return quantise(y, to, place, scales, descale, b);
    for (int64_t d = 0; d < dim; ++d) {
      std::byte* target = element(to, with(place, d));
      if (d >= rotary_dim)
        std::memcpy(target, element(const_cast<HostTensor&>(from), with(row, d)),
                    static_cast<size_t>(bytes_of(to.dtype)));
      else if (std::isnan(y[static_cast<size_t>(d)]))
        write_nan(to.dtype, target);
      else
        put(to, with(place, d), y[static_cast<size_t>(d)]);
    }
  }
  static void write_nan(DType type, std::byte* target) {
    const uint32_t whole = 0x7fc00000u;
    const uint16_t half = type == DType::f16 ? 0x7e00 : 0x7fc0;
    if (type == DType::f32)
      std::memcpy(target, &whole, sizeof whole);
    else
      std::memcpy(target, &half, sizeof half);
  }
  void quantise(const std::vector<float>& y, HostTensor& to, const Index& place, int32_t scales, HostTensor& descale,
                int64_t b) const {
    float amax = 0;
    for (const float x : y)
      if (std::isfinite(x)) amax = std::max(amax, std::fabs(x));
    float factor = amax == 0 ? 1.0f : std::max(amax / (to.dtype == DType::e5m2 ? 57344.0f : 448.0f), 0x1p-126f);
    if (scales == RAPT_SCALE_HEAD) {
      factor = static_cast<float>(descale.at({b, place[1]}));
    } else {
      const bool pages = c.block_table.present() || c.slot_mapping.present();
      put(descale, pages ? Index{place[0], place[2], place[1]} : Index{place[0], place[1], place[2]}, factor);
    }
    const float inverse = 1.0f / factor;
    for (size_t d = 0; d < y.size(); ++d) {
      const float scaled = y[d] * inverse;
      const Index target = with(place, static_cast<int64_t>(d));
      if (std::isnan(scaled))
        *element(to, target) = std::byte{0x7f};
      else
        put(to, target, scaled);
    }
  }

  AppendCall& c;
};

inline AppendCall reference_of(const AppendCall& call) {
  AppendCall expected = with_own_outputs(call);
  AppendReference(expected).run();
  return expected;
}

inline void expect_same_outputs(const AppendCall& a, const AppendCall& b) {
  EXPECT_TRUE(same_bytes(a.k_cache, b.k_cache)) << "k_cache";
  EXPECT_TRUE(same_bytes(a.v_cache, b.v_cache)) << "v_cache";
  EXPECT_TRUE(a.k_scales != RAPT_SCALE_TOKEN || same_bytes(a.k_descale, b.k_descale)) << "k_descale";
  EXPECT_TRUE(a.v_scales != RAPT_SCALE_TOKEN || same_bytes(a.v_descale, b.v_descale)) << "v_descale";
  EXPECT_TRUE(same_bytes(a.q_out, b.q_out)) << "q_out";
}

inline void append_on_cpu(const AppendCall& call, rapt_context* context = nullptr) {
  const AppendArgs args(call);
  ASSERT_EQ(rapt_kv_append(context, &args.args, nullptr), RAPT_OK) << rapt_last_error();
}

inline std::string text_of(const AppendSpec& s) {
  return concat(name_of(s.from), ">", name_of(s.to), " v ", name_of(s.from_v), ">", name_of(s.to_v), " q ",
                name_of(s.q), " table ", name_of(s.table), " d", s.dim, ":", s.dim_v, " rotary ", s.rotary_dim,
                s.interleaved ? " interleaved" : "", " scales ", static_cast<int>(s.scales), ":",
                static_cast<int>(s.scales_v), s.contiguous ? "" : " strided", s.paged ? " paged" : " dense",
                s.packed ? " packed" : "", " places ", static_cast<int>(s.places));
}

// Every combination of dense and paged, padded and packed, and places that a call can have.
inline std::vector<AppendSpec> all_places(AppendSpec spec) {
  std::vector<AppendSpec> specs;
  for (const bool paged : {false, true})
    for (const bool packed : {false, true})
      for (const Places places : {Places::lengths, Places::starts, Places::slots, Places::batch_idx}) {
        if (paged && places == Places::batch_idx) continue;
        spec.paged = paged, spec.packed = packed, spec.places = places;
        specs.push_back(spec);
      }
  return specs;
}

// Layouts, dtypes and rotations that need different code.
inline constexpr AppendSpec append_specs[] = {
    {},                                                             // copies
    {.from = DType::f32, .to = DType::f32, .dim = 24, .dim_v = 7},  // v has no vectors
    {.from = DType::e4m3, .to = DType::e4m3, .from_v = DType::f16, .to_v = DType::f16, .dim = 48, .dim_v = 136},
    {.q = DType::bf16, .table = DType::f32, .dim = 32, .rotary_dim = 32},
    {.q = DType::bf16, .table = DType::f32, .dim = 32, .rotary_dim = 32, .interleaved = true},
    {.from = DType::f16, .to = DType::f16, .q = DType::f32, .table = DType::bf16, .dim = 72, .rotary_dim = 48},
    {.from = DType::f32,
     .to = DType::f32,
     .q = DType::f16,
     .table = DType::f16,
     .dim = 40,
     .rotary_dim = 16,
     .interleaved = true},
    {.q = DType::bf16, .table = DType::f32, .dim = 19, .dim_v = 1, .rotary_dim = 10},  // odd dims, no vectors
    {.q = DType::f16, .table = DType::bf16, .dim = 33, .dim_v = 5, .rotary_dim = 32, .interleaved = true},
    {.q = DType::bf16, .table = DType::f32, .dim = 32, .rotary_dim = 24, .contiguous = false},
    {.to = DType::e4m3, .to_v = DType::e4m3, .scales = ScaleKind::head, .scales_v = ScaleKind::head},
    {.to = DType::e4m3,
     .to_v = DType::e5m2,
     .dim = 64,
     .dim_v = 40,
     .scales = ScaleKind::token,
     .scales_v = ScaleKind::token},
    {.from = DType::f32,
     .to = DType::e5m2,
     .from_v = DType::f16,
     .to_v = DType::f16,
     .q = DType::f32,
     .table = DType::f32,
     .dim = 56,
     .rotary_dim = 32,
     .scales = ScaleKind::token},
    {.from = DType::f16,
     .to = DType::e4m3,
     .to_v = DType::e4m3,
     .q = DType::f16,
     .table = DType::f32,
     .dim = 96,
     .dim_v = 64,
     .rotary_dim = 96,
     .scales = ScaleKind::head,
     .scales_v = ScaleKind::token,
     .interleaved = true},
    {.to = DType::e4m3,
     .to_v = DType::e4m3,
     .table = DType::f32,
     .dim = 21,
     .dim_v = 9,
     .rotary_dim = 6,
     .scales = ScaleKind::token,
     .scales_v = ScaleKind::head,
     .contiguous = false},
    {.to = DType::e5m2,
     .to_v = DType::e4m3,
     .q = DType::bf16,
     .table = DType::f32,
     .dim = 576,
     .dim_v = 512,
     .rotary_dim = 64,
     .scales = ScaleKind::token,
     .scales_v = ScaleKind::token},
};

}  // namespace rapt::test
