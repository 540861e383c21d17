// Compares KeyTiles with a loop over every row and key, and KvView with addresses that are computed from strides.
#include "kernels/shared/key_tiles.h"

#include <gtest/gtest.h>

#include "kernels/shared/kv_view.h"

namespace rapt::test {
namespace {

using Tiles = KeyTiles<long long>;

// The tiles of keys for rows first .. last of a sequence with a mask.
Tiles tiles_of(const PositionMask& mask, long long first, long long last, long long offset, long long seqlen_k) {
  const KeyRange a = mask.visible(first, offset, seqlen_k), b = mask.visible(last, offset, seqlen_k);
  return Tiles::of_rows({a.begin, a.end}, {b.begin, b.end});
}

TEST(KeyTiles, VisitsAndMasksWhatSingleKeysSay) {
  for (const auto& [causal, left, right] : {std::tuple{Causal::none, -1LL, -1LL},
                                            {Causal::bottom_right, -1LL, -1LL},
                                            {Causal::none, 5LL, 3LL},
                                            {Causal::bottom_right, 20LL, 0LL},
                                            {Causal::top_left, -1LL, -1LL}})
    for (const long long keys : {1LL, 15LL, 16LL, 17LL, 50LL})
      for (const long long offset : {-9LL, 0LL, 7LL, 40LL})
        for (long long first = 0; first < 24; first += 8) {
          const PositionMask mask{causal, left, right};
          const long long last = first + 7, size = 16;
          const Tiles tiles = tiles_of(mask, first, last, offset, keys);
          for (long long tile = 0; tile * size < keys; ++tile) {
            const long long begin = tile * size, past = std::min(begin + size, keys);
            bool some = false, all = true;
            for (long long i = first; i <= last; ++i)
              for (long long j = begin; j < past; ++j) {
                const KeyRange range = mask.visible(i, offset, keys);
                const bool sees = j >= range.begin && j < range.end;
                some = some || sees, all = all && sees;
              }
            const bool visited = tile >= tiles.first(size) && tile < tiles.first(size) + tiles.count(size);
            if (some) {
              EXPECT_TRUE(visited && tiles.visits(begin, past));
            }
            if (visited) {
              EXPECT_EQ(tiles.needs_mask(begin, past), !all);
            }
          }
        }
}

TEST(KeyTiles, NothingIsVisitedWhereNoRowSeesAKey) {
  EXPECT_EQ((Tiles{{5, 5}, {5, 5}}.count(16)), 0);
  EXPECT_EQ((Tiles{{48, 0}, {48, 0}}.count(16)), 0);
  EXPECT_EQ((KeyTiles<int, false>::of_rows({0, 33}, {0, 33}).count(16)), 3);
}

TEST(KvView, DenseAndPackedRows) {
  float data[1] = {};
  const TensorRef dense{data, DType::f32, 1000, 100, 10, 2}, packed{data, DType::f32, 0, 100, 10, 2};
  AttentionParams params;
  const KvView a(params, dense, 4, 2, 3, 0), b(params, packed, 4, 2, 3, 7);
  const char* const start = static_cast<const char*>(static_cast<const void*>(data));
  EXPECT_EQ(a.rows - start, 4 * 2300);
  EXPECT_EQ(b.rows - start, 4 * (300 + 70));
  EXPECT_EQ(b.row(4), 40);
  EXPECT_EQ(kv_row(params, packed, 2, 3, 7, 4), 300 + 70 + 40);
}

TEST(KvView, PagedRows) {
  float data[1] = {};
  const int table[] = {9, 0, 4, 0, -1, 0, 99, 0};  // two sequences of two entries, every second element
  AttentionParams params;
  params.pages = {table, 4, 2, FastDivmod::by(16), 10};
  const TensorRef cache{data, DType::f32, 1000, 100, 10, 2};
  const KvView view(params, cache, 4, 1, 3, 0);
  EXPECT_EQ(view.rows - static_cast<const char*>(static_cast<const void*>(data)), 4 * 300);
  EXPECT_EQ(view.paged_row(params.pages, 0, 5), 9000 + 50);
  EXPECT_EQ(view.paged_row(params.pages, 0, 17), 4000 + 10);
  EXPECT_EQ(kv_row(params, cache, 0, 3, 0, 31), 4000 + 300 + 150);
  EXPECT_EQ(view.paged_row(params.pages, 1, 0), 0) << "clamped to the first page";
  EXPECT_EQ(view.paged_row(params.pages, 1, 16), 9000) << "clamped to the last page";
}

TEST(KvView, DescalesOfPagedKeys) {
  float data[1] = {};
  const int table[] = {9, 4, -1, 99};
  AttentionParams params;
  params.pages = {table, 2, 1, FastDivmod::by(16), 10};
  ScaleRef token{data, 1000, 100, 10}, block{data, 1000, 100, 10};
  token.rows = 1, block.rows = 64;
  EXPECT_EQ(kv_descale(params, token, 0, 3, 0, 5) - data, 9000 + 300 + 50);
  EXPECT_EQ(kv_descale(params, token, 0, 3, 0, 17) - data, 4000 + 300 + 10);
  EXPECT_EQ(kv_descale(params, token, 1, 0, 0, 18) - data, 9000 + 20) << "clamped to the last page";
  EXPECT_EQ(kv_descale(params, block, 1, 3, 0, 130) - data, 1000 + 300 + 20) << "blocks count positions";
  params.pages = {};
  EXPECT_EQ(kv_descale(params, token, 2, 3, 0, 17) - data, 2000 + 300 + 170);
  token.packed_rows = true, token.batch = 0;
  EXPECT_EQ(kv_descale(params, token, 2, 3, 40, 17) - data, 300 + 570);
}

}  // namespace
}  // namespace rapt::test
