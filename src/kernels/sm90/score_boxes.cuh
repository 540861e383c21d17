// Bias and mask of a block of keys, which TMA copied to shared memory (cfg.boxes). Device only.
//
// A box has columns of `width` bytes: [column][row][width]. Within 128 * (width / 16) bytes, TMA permutes the 16-byte
// pieces: bits 4 to 6 of an address are xor-ed with bits 7 to 9, as far as `width` has such bits (PTX ISA 9.0, section
// 5.5.7). So the eight rows that the lanes of a warp read at the same time are in different banks.
#pragma once

#include "ptx/copy.cuh"
#include "ptx/tma.cuh"
#include "scores.cuh"
#include "shared_state.cuh"

namespace rapt {

// What the mask does with a block.
struct MaskedBlock {
  bool is_hidden = false;  // from all rows of the warpgroup
  bool is_whole = false;   // all rows of the warp see all keys
};

template <const Sm90Config& cfg>
struct ScoreBoxes {
  using Scores = ScoreTile<cfg, ScoreRows<cfg>, 1, cfg.block_n / 8>;
  using Elements = typename Scores::Elements;
  static constexpr int rows = cfg.block_m(), n_tiles = cfg.block_n / 8;

  unsigned bias, mask;  // addresses of the block's buffers
  int group;            // number of the consumer warpgroup

  void load_bias(Elements& elements) const {
    if constexpr (cfg.bias != DType::none) {
      const Thread<cfg.bias, cfg.bias_row> thread(*this, bias);
#pragma unroll
      for (int n = 0; n < n_tiles; ++n)
#pragma unroll
        for (int half = 0; half < 2; ++half) thread.load(elements.bias[0][half].raw[n], n, half);
    }
  }
  void mask_scores(float (&s)[1][n_tiles][4]) const {
    const Thread<DType::u8, cfg.mask_row> thread(*this, mask);
#pragma unroll
    for (int n = 0; n < n_tiles; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        unsigned pair[1];
        thread.load(pair, n, half);
        float &x = s[0][n][2 * half], &y = s[0][n][2 * half + 1];
        x = (pair[0] & 0xff) != 0 ? x : minus_infinity, y = pair[0] > 0xff ? y : minus_infinity;
      }
  }

  // All warps of the warpgroup call this function. If the queries have their own rows of the mask, the warps vote.
  MaskedBlock masked_block() const {
    unsigned any = 0;  // the bitwise or of all elements
    bool whole = true;
    const auto see = [&](unsigned word) {
      any |= word;
      whole = whole & ((word - 0x01010101u) & ~word & 0x80808080u) == 0;  // no byte is 0
    };
    if constexpr (cfg.mask_row) {
      for (int key = 4 * lane(); key < cfg.block_n; key += 4 * 32) see(load_shared(mask + static_cast<unsigned>(key)));
      return {!__any_sync(~0u, any != 0), __all_sync(~0u, whole) != 0};
    }
    // The warp's 16 rows of a column follow each other.
    constexpr int width = Sm90Layout::box_width(cfg, DType::u8, false);
#pragma unroll
    for (int column = 0; column < cfg.block_n / width; ++column)
#pragma unroll
      for (int at = 0; at < 16 * width; at += 16 * 32) {
        const Bytes16 piece =
            load_shared_16(mask + static_cast<unsigned>((column * rows + first_row()) * width + at + 16 * lane()));
#pragma unroll
        for (const unsigned word : piece.word) see(word);
      }
    return {!any_of_named(first_vote + static_cast<unsigned>(group), 128, any != 0), __all_sync(~0u, whole) != 0};
  }

 private:
  static constexpr unsigned first_vote = SharedState<cfg>::first_vote;
  static int lane() { return static_cast<int>(threadIdx.x % 32); }
  // The first of the warp's 16 rows in the tile.
  int first_row() const { return 64 * group + static_cast<int>(threadIdx.x / 32 % 4) * 16; }

  // The addresses of a thread's pairs of keys in a box.
  template <DType element, bool one_row>
  struct Thread {
    static constexpr int bytes = bytes_of(element), width = Sm90Layout::box_width(cfg, element, one_row),
                         column_bytes = Sm90Layout::box_rows(cfg, one_row) * width;
    unsigned first;

    Thread(const ScoreBoxes& boxes, unsigned box) {
      const int row = one_row ? 0 : boxes.first_row() + lane() / 4, of_lane = lane() % 4 * 2 * bytes;
      // Rows `row` and `row + 8` have the same permutation.
      const int permutation = one_row ? 0 : (row * width >> 7 & (width / 16 - 1)) * 16;
      first = box + static_cast<unsigned>(row * width + (of_lane ^ permutation));
    }
    // Loads the pair of tile n of row `row` or `row + 8`.
    template <int words>
    void load(unsigned (&to)[words], int n, int half) const {
      const int byte = 8 * n * bytes;
      const unsigned address = (first ^ static_cast<unsigned>(byte % width)) +
                               static_cast<unsigned>(byte / width * column_bytes + (one_row ? 0 : half * 8 * width));
      if constexpr (bytes == 4)
        load_shared_words_2(address, to[0], to[1]);
      else
        to[0] = bytes == 2 ? load_shared(address) : load_shared_2_bytes(address);
    }
  };
};

}  // namespace rapt
