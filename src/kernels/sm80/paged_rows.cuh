// PagedRows: finds the rows of keys in a paged cache. First the entries of the block table are copied to shared memory.
// The copies belong to the cp.async group of a block of K. So no thread ever waits for an entry: when that block has
// arrived, the entries have arrived, too. Then the offsets of the rows are computed, for all threads to use. Device
// only.
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
      const index_t page = p.pages.clamped_page(static_cast<int>(load_shared(entry))),
                    row = p.pages.row(static_cast<unsigned>(first_key + key)), k = page * p.k.batch + row * p.k.row,
                    v = page * p.v.batch + row * p.v.row;
      store_shared_16(rows + 16 * static_cast<unsigned>(key),
                      {{static_cast<unsigned>(k), static_cast<unsigned>(k >> 32), static_cast<unsigned>(v),
                        static_cast<unsigned>(v >> 32)}});
    });
  }
};

// Returns the offset of the row of a key of the block, in K or in V.
inline index_t paged_row_offset(unsigned rows, int key, bool of_v) {
  unsigned low, high;
  load_shared_words_2(rows + 16 * key + (of_v ? 8 : 0), low, high);
  return static_cast<index_t>(low | static_cast<unsigned long long>(high) << 32);
}

}  // namespace rapt
