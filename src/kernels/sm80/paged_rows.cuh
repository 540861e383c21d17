// PagedRows: finds the rows of keys in a paged cache. First the entries of the block table are copied to shared memory.
// The copies belong to the cp.async group of a block of K. So no thread waits for an entry: when that block has
// arrived, the entries have arrived, too. Then the offsets of the rows are computed, for all threads to use. Only the
// entries for the first blocks of a tile are waited for. Device only.
#pragma once

#include "cta_tile.cuh"
#include "ptx/copy.cuh"
#include "shared/kv_view.h"
#include "sm80.h"

namespace rapt {

template <const Sm80Config& cfg>
struct PagedRows {
  static constexpr int keys = cfg.cta_block_n(), per_thread = (keys + cfg.threads() - 1) / cfg.threads();

  // Calls f(key, address of its entry in shared memory) for the keys of this thread. A thread copies and reads only its
  // own entries, so they need no barrier. volatile_copy keeps the address arithmetic in the loop, which saves
  // registers.
  template <class F>
  static void for_each_key(const CtaTile& cta, unsigned entries, const F& f) {
    const int thread = static_cast<int>(volatile_copy(static_cast<unsigned>(cta.thread)));
#pragma unroll
    for (int i = 0; i < per_thread; ++i) {
      const int key = thread + i * cfg.threads();
      if (key < keys) f(key, entries + 4 * static_cast<unsigned>(key));
    }
  }

  // Writes the offsets for the first `blocks` blocks. rows(block): the address for the keys of a block.
  template <int blocks, class Rows>
  static void store_first(const AttentionParams& p, const CtaTile& cta, int first_key, int seqlen_k, const Rows& rows) {
    constexpr int all = blocks * keys, each = (all + cfg.threads() - 1) / cfg.threads();
    const int thread = static_cast<int>(volatile_copy(static_cast<unsigned>(cta.thread)));
    int page[each] = {};
#pragma unroll
    for (int i = 0; i < each; ++i) {
      const int key = thread + i * cfg.threads();
      if (key < all && first_key + key < seqlen_k) page[i] = *p.pages.entry(cta.batch, unsigned_of(first_key + key));
    }
#pragma unroll
    for (int i = 0; i < each; ++i) {
      const int key = thread + i * cfg.threads();
      if (key < all) store_offsets(p, first_key + key, page[i], rows(key / keys) + 16 * unsigned_of(key % keys));
    }
  }

  // Begins to copy the entries for a block of keys. seqlen_k: the end of the keys; entries after it are never read.
  static void look_up(const AttentionParams& p, const CtaTile& cta, int first_key, int seqlen_k, unsigned entries) {
    for_each_key(cta, entries, [&](int key, unsigned entry) {
      if (first_key + key < seqlen_k)
        cp_async_4(entry, p.pages.entry(cta.batch, static_cast<unsigned>(first_key + key)));
    });
  }

  // Writes the offset of each key's row in K and in V, in elements. The entries must have arrived. Offsets of keys
  // after the end have any value.
  static void store(const AttentionParams& p, const CtaTile& cta, int first_key, unsigned entries, unsigned rows) {
    for_each_key(cta, entries, [&](int key, unsigned entry) {
      store_offsets(p, first_key + key, static_cast<int>(load_shared(entry)), rows + 16 * unsigned_of(key));
    });
  }

 private:
  static unsigned unsigned_of(int x) { return static_cast<unsigned>(x); }
  static void store_offsets(const AttentionParams& p, int key, int entry, unsigned to) {
    const index_t page = p.pages.clamped_page(entry), row = p.pages.row(unsigned_of(key)),
                  k = page * p.k.batch + row * p.k.row, v = page * p.v.batch + row * p.v.row;
    store_shared_16(to, {{static_cast<unsigned>(k), static_cast<unsigned>(k >> 32), static_cast<unsigned>(v),
                          static_cast<unsigned>(v >> 32)}});
  }
};

// Returns the offset of the row of a key of the block, in K or in V.
inline index_t paged_row_offset(unsigned rows, int key, bool of_v) {
  unsigned low, high;
  load_shared_words_2(rows + 16 * key + (of_v ? 8 : 0), low, high);
  return static_cast<index_t>(low | static_cast<unsigned long long>(high) << 32);
}

}  // namespace rapt
