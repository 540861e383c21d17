// Sets rows beyond seqused_q to out = 0 and lse = -inf, independent of the values in q. Device only; also runs on a CPU
// (lab/emulation).
#pragma once

#include "ptx/copy.cuh"
#include "shared/params.h"
#include "shared/tile_scheduler.h"
#include "sm80.h"

namespace rapt {

// Rows [first, past) of one head. In each output row, the `words` words from first_word on, which are word_stride words
// apart.
struct UnusedRows {
  index_t batch, head, first_packed, first, past;
  index_t first_word, words, word_stride;
};

// Called by all threads of a CTA. Word: the type of one store, one or several elements of out.
template <class Word, int threads>
inline void clear_unused_rows(const AttentionParams& p, const UnusedRows& rows, bool with_lse) {
  const index_t count = (rows.past - rows.first) * rows.words;
  for (index_t i = static_cast<index_t>(threadIdx.x); i < count; i += threads) {
    const index_t row = rows.first_packed + rows.first + i / rows.words, word = rows.first_word + i % rows.words;
    char* const to = static_cast<char*>(p.out.data) + bytes_of(p.out.dtype) * p.out.index(rows.batch, rows.head, row);
    reinterpret_cast<Word*>(to)[word * rows.word_stride] = Word{};
    if (with_lse && p.lse.present() && word == 0)
      static_cast<float*>(p.lse.data)[p.lse.index(rows.batch, rows.head, row)] = detail::float_of(0xff800000u);
  }
}

// Clears the rows of a CTA's tile that lie beyond seqused_q.
template <const Sm80Config& cfg>
inline void clear_unused_rows(const AttentionParams& p, const TileScheduler::WorkTile& work) {
  const Sequence sequence = sequence_of(p, work.batch);
  const index_t tile = static_cast<index_t>(work.m_block) * cfg.block_m;
  const index_t first = tile > sequence.seqlen_q ? tile : sequence.seqlen_q;
  const index_t past = clamped(tile + cfg.block_m, 0, sequence.rows_q);
  // words: 16-byte units of an output row.
  constexpr int words = bytes_of(cfg.out) * cfg.head_dim_v / 16;
  const UnusedRows rows{work.batch, work.head, sequence.first_q, first, past, 0, words, 1};
  clear_unused_rows<Bytes16, cfg.threads()>(p, rows, true);
}

}  // namespace rapt
