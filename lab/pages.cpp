// See pages.h.
#include "lab/pages.h"

#include <cstring>
#include <numeric>

#include "base/error.h"

namespace rapt::lab {
namespace {

using check::HostTensor;

int64_t entry(const HostTensor& table, int64_t b, int64_t i) {
  int32_t page = 0;
  std::memcpy(&page, table.data() + table.index({b, i}) * bytes_of(table.dtype), sizeof page);
  return page;
}

void copy_row(const HostTensor& from, int64_t from_index, const HostTensor& to, int64_t to_index) {
  const int64_t width = bytes_of(from.dtype), from_step = from.strides.back(), to_step = to.strides.back();
  for (int64_t d = 0; d < from.shape.back(); ++d)
    std::memcpy(to.data() + (to_index + d * to_step) * width, from.data() + (from_index + d * from_step) * width,
                static_cast<size_t>(width));
}

}  // namespace

int64_t PagePlaces::total() const { return std::accumulate(lengths.begin(), lengths.end(), int64_t{0}); }

PagePlaces read_places(const std::string& path, const HostTensor& block_table, const HostTensor& k, int64_t longest,
                       const std::vector<int64_t>& used) {
  const auto wrong = [&](const auto&... parts) { invalid(path, ": tensor 'block_table' ", parts...); };
  if (block_table.dtype != DType::i32 || block_table.shape.size() != 2)
    wrong("is ", rapt::name_of(block_table.dtype), " of rank ", block_table.shape.size(),
          ": must be i32 of rank 2, [batch, pages]");
  PagePlaces places;
  places.page_size = k.shape[2];
  if (places.page_size < 1) wrong("is given, but page_size is 0: it must be at least 1");
  const int64_t batch = block_table.shape[0], columns = block_table.shape[1], num_pages = k.shape[0];
  if (columns > 0 && places.page_size > INT32_MAX / columns)
    wrong("has ", columns, " pages of ", places.page_size, " keys: a sequence must have fewer than 2^31 keys");
  const int64_t most = columns * places.page_size;
  places.longest = longest < 0 ? most : longest;
  if (places.longest > most)
    wrong("has ", columns, " pages of ", places.page_size, " keys, but the word k", places.longest, " says ",
          places.longest, " keys: must be at most ", most);
  places.lengths = used.empty() ? std::vector<int64_t>(static_cast<size_t>(batch), places.longest) : used;
  if (places.lengths.size() != static_cast<size_t>(batch))
    wrong("has ", batch, " sequences, seqused_k ", used.size(), ": must be equal");
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t keys = places.lengths[static_cast<size_t>(b)];
    if (keys > places.longest)
      invalid(path, ": tensor 'seqused_k' holds ", keys, " at ", b, ": must be at most ", places.longest,
              ", the keys of block_table's pages");
    std::vector<int64_t>& table = places.tables.emplace_back();
    for (int64_t i = 0; i * places.page_size < keys; ++i) {
      table.push_back(entry(block_table, b, i));
      if (table.back() < 0 || table.back() >= num_pages)
        wrong("holds ", table.back(), " at [", b, ", ", i, "]: must be a page of k, from 0 to ", num_pages - 1);
    }
  }
  return places;
}

void gather(const PagePlaces& places, const HostTensor& pages, const HostTensor& to) {
  const bool packed = to.shape.size() == 3;
  int64_t first = 0;
  for (size_t b = 0; b < places.lengths.size(); first += places.lengths[b], ++b)
    for (int64_t j = 0; j < places.lengths[b]; ++j) {
      const int64_t page = places.tables[b][static_cast<size_t>(j / places.page_size)], row = j % places.page_size;
      for (int64_t h = 0; h < pages.shape[1]; ++h)
        copy_row(pages, pages.index({page, h, row, 0}), to,
                 packed ? to.index({first + j, h, 0}) : to.index({static_cast<int64_t>(b), h, j, 0}));
    }
}

}  // namespace rapt::lab
