// See paged.h.
#include "paged.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

namespace rapt::check {
namespace {

int64_t integer(const HostTensor& list, int64_t i) { return static_cast<int64_t>(list.at({i})); }

// The keys of sequence b: how many are in use, and the packed row of the first; 0 if dense.
struct Keys {
  int64_t first = 0, count = 0;
};
Keys keys_of(const Problem& p, const Inputs& in, int64_t b) {
  Keys keys{0, p.seqlen_k};
  if (p.varlen) {
    keys.first = integer(in.cu_seqlens_k, b);
    keys.count = integer(in.cu_seqlens_k, b + 1) - keys.first;
  }
  if (in.seqused_k.present()) keys.count = std::min(keys.count, integer(in.seqused_k, b));
  return keys;
}

// A cache of `pages` pages full of NaN. rows_first: the rows of a head are contiguous; otherwise the heads of a row
// are.
HostTensor empty_cache(const Problem& p, const HostTensor& of, int64_t pages, int64_t dim, bool rows_first) {
  const int64_t size = p.page_size, heads = p.heads_k;
  HostTensor cache = rows_first
                         ? make_tensor(of.dtype, {pages, heads, size, dim})
                         : make_strided(of.dtype, {pages, heads, size, dim}, {heads * size * dim, dim, heads * dim, 1});
  std::memset(cache.storage.get(), 0xff, static_cast<size_t>(cache.size() * bytes_of(of.dtype)));  // NaN in every dtype
  return cache;
}

// The descales of single keys in pages, full of NaN; absent if the scales are of another kind. rows_first: the rows of
// a head are contiguous; otherwise the heads of a row are.
HostTensor empty_descales(const Problem& p, ScaleKind kind, int64_t pages, bool rows_first) {
  if (kind != ScaleKind::token) return {};
  const int64_t size = p.page_size, heads = p.heads_k;
  HostTensor scales = rows_first ? make_strided(DType::f32, {pages, size, heads}, {heads * size, 1, size})
                                 : make_tensor(DType::f32, {pages, size, heads});
  std::memset(scales.storage.get(), 0xff, static_cast<size_t>(scales.size() * bytes_of(DType::f32)));
  return scales;
}

void copy_row(const HostTensor& from, int64_t from_index, const HostTensor& to, int64_t to_index, int64_t dim) {
  const auto width = static_cast<size_t>(bytes_of(from.dtype));
  const int64_t from_step = from.strides.back(), to_step = to.strides.back();
  for (int64_t d = 0; d < dim; ++d)
    std::memcpy(to.data() + static_cast<size_t>(to_index + d * to_step) * width,
                from.data() + (from_index + d * from_step) * static_cast<int64_t>(width), width);
}

// Copies key j of sequence b to row `row` of `page`, for all heads. keys: the keys of the sequence.
void copy_key(const Problem& p, const Inputs& in, int64_t b, const Keys& keys, int64_t j, int64_t page, int64_t row,
              PagedKeys& paged) {
  for (int64_t h = 0; h < p.heads_k; ++h) {
    const auto from = [&](const HostTensor& t) {
      return p.varlen ? t.index({keys.first + j, h, 0}) : t.index({b, h, j, 0});
    };
    copy_row(in.k, from(in.k), paged.k, paged.k.index({page, h, row, 0}), p.head_dim);
    copy_row(in.v, from(in.v), paged.v, paged.v.index({page, h, row, 0}), p.head_dim_v);
    const auto copy_descale = [&](const HostTensor& of, HostTensor& to) {
      if (to.present()) to.set({page, row, h}, p.varlen ? of.at({h, keys.first + j}) : of.at({b, h, j}));
    };
    copy_descale(in.k_descale, paged.k_descale), copy_descale(in.v_descale, paged.v_descale);
  }
}

}  // namespace

PagedKeys make_paged(const Problem& p, const Inputs& in) {
  const int64_t size = p.page_size, columns = (p.seqlen_k + size - 1) / size + 1;
  int64_t used = 0;
  for (int64_t b = 0; b < p.batch; ++b) used += (keys_of(p, in, b).count + size - 1) / size;
  std::vector<int64_t> pages(static_cast<size_t>(used + 3));
  std::iota(pages.begin(), pages.end(), 0);
  std::shuffle(pages.begin(), pages.end(), std::mt19937(static_cast<unsigned>(used)));
  const auto count = static_cast<int64_t>(pages.size());
  PagedKeys paged{empty_cache(p, in.k, count, p.head_dim, false),
                  empty_cache(p, in.v, count, p.head_dim_v, true),
                  make_strided(DType::i32, {p.batch, columns}, {columns + 2, 1}),
                  make_tensor(DType::i32, {p.batch}),
                  empty_descales(p, p.k_scales, count, false),
                  empty_descales(p, p.v_scales, count, true)};
  if (p.v_in_k) paged.v = first_channels(paged.k, p.head_dim_v);
  size_t next = 0;
  for (int64_t b = 0; b < p.batch; ++b) {
    const Keys keys = keys_of(p, in, b);
    paged.seqused_k.set({b}, static_cast<double>(keys.count));
    for (int64_t i = 0; i < columns; ++i) paged.block_table.set({b, i}, i % 2 == 0 ? -1.0 : 2147483647.0);
    for (int64_t i = 0; i * size < keys.count; ++i) {
      const int64_t page = pages[next++];
      paged.block_table.set({b, i}, static_cast<double>(page));
      for (int64_t row = 0; row < size && i * size + row < keys.count; ++row)
        copy_key(p, in, b, keys, i * size + row, page, row, paged);
    }
  }
  return paged;
}

}  // namespace rapt::check
