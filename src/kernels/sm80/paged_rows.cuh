// PagedRows: finds the rows of keys in a paged cache. A thread looks up the pages of its keys in the block table. That
// takes as long as a load from global memory, or longer if the memory is busy. So it happens two iterations before the
// block is loaded, and the offsets of the rows wait in shared memory from one iteration before on. Device only.
#pragma once

#include "cta_tile.cuh"
#include "ptx/copy.cuh"
#include "shared/kv_view.h"
#include "sm80.h"

namespace rapt {

// The keys of `blocks` neighbouring blocks.
template <const Sm80Config& cfg, int blocks>
struct PagedRows {
  static constexpr int keys = blocks * cfg.cta_block_n(), per_thread = (keys + cfg.threads() - 1) / cfg.threads();
  int page[per_thread] = {};

  // volatile_copy keeps the address arithmetic in the loop, which saves registers.
  static int opaque_thread(const CtaTile& cta) {
    return static_cast<int>(volatile_copy(static_cast<unsigned>(cta.thread)));
  }

  // seqlen_k: the end of the keys; entries of the table after it are never read.
  void look_up(const AttentionParams& p, const CtaTile& cta, int first_key, int seqlen_k) {
    const int thread = opaque_thread(cta);
#pragma unroll
    for (int i = 0; i < per_thread; ++i) {
      const int key = first_key + thread + i * cfg.threads();
      if (thread + i * cfg.threads() < keys && key < seqlen_k)
        page[i] = static_cast<int>(p.pages.of(cta.batch, static_cast<unsigned>(key)).page);
    }
  }

  // Writes the offset of each key's row in K and in V, in elements. buffer(block): the address for the keys of a block.
  template <class Buffer>
  void store(const AttentionParams& p, const CtaTile& cta, int first_key, const Buffer& buffer) const {
    const int thread = opaque_thread(cta);
#pragma unroll
    for (int i = 0; i < per_thread; ++i) {
      const int key = thread + i * cfg.threads();
      if (key >= keys) break;
      const index_t row = p.pages.row(static_cast<unsigned>(first_key + key));
      const index_t k = page[i] * p.k.batch + row * p.k.row, v = page[i] * p.v.batch + row * p.v.row;
      store_shared_16(buffer(key / cfg.cta_block_n()) + 16 * (key % cfg.cta_block_n()),
                      {{static_cast<unsigned>(k), static_cast<unsigned>(k >> 32), static_cast<unsigned>(v),
                        static_cast<unsigned>(v >> 32)}});
    }
  }
};

// Returns the offset of the row of a key of the block, in K or in V.
inline index_t paged_row_offset(unsigned buffer, int key, bool of_v) {
  unsigned low, high;
  load_shared_words_2(buffer + 16 * key + (of_v ? 8 : 0), low, high);
  return static_cast<index_t>(low | static_cast<unsigned long long>(high) << 32);
}

}  // namespace rapt
