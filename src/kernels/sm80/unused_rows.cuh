// Rows beyond seqused_q: out = 0 and lse = -inf, whatever q holds. Device only; also runs on a CPU (lab/emulation).
#pragma once

#include "shared/params.h"

namespace rapt {

// Rows [first, past) of one head. Of each output row, `words` words from first_word on, word_stride words apart.
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

}  // namespace rapt
