// The parameter block and the shared memory of attention_sm90. Its host and device halves compile this file. It
// includes only files of shared/ and config.h.
#pragma once

#include "../shared/params.h"
#include "../shared/tensor_map.h"
#include "../shared/tile_scheduler.h"
#include "config.h"

namespace rapt {

// What a tile needs to know of its sequence.
struct TileSequence {
  Band band;
  int first_q = 0, seqlen_q = 0, rows_q = 0;  // as in Sequence
  int offset = 0;                             // as in Sequence, but at most 2^30
  bool foreign_tail = false;  // rows of K and V after the sequence's keys may hold values other than zero

  static constexpr TileSequence of(const AttentionParams& p, index_t batch) {
    const Sequence s = sequence_of(p, batch);
    return {Band::of(p.position_mask, s.offset, s.seqlen_k),
            static_cast<int>(s.first_q),
            static_cast<int>(s.seqlen_q),
            static_cast<int>(s.rows_q),
            static_cast<int>(clamped(s.offset, -(1 << 30), 1 << 30)),
            p.cu_seqlens_k.present() || p.seqused_k.present() || p.pages.present()};
  }
};

// If the problem has no lists, all its sequences are equal. The host then computes their values, because this takes
// more than a hundred dependent instructions, and a CTA would compute them before its first load.
struct TileSequences {
  bool equal = false;
  TileSequence value;  // if equal

  static constexpr TileSequences of(const AttentionParams& p) {
    if (p.has_lists()) return {};
    return {true, TileSequence::of(p, 0)};
  }
  constexpr TileSequence at(const AttentionParams& p, index_t batch) const {
    return equal ? value : TileSequence::of(p, batch);
  }
};

// Paged K or V: the coordinate of page `n` and head `h` in the last dimension of the tensor map is n * page + h * head.
struct PlaceSteps {
  int page = 0, head = 0;
  constexpr int at(int n, int h) const { return n * page + h * head; }
};

// K or V in the type that the products need, in the workspace: [batch][kv head][pitch rows][head dim]. Transposed V:
// [batch][kv head][head dim][pitch keys], with the keys of each group of 16 in the order of slot_key(). pitch: the
// largest number of keys, rounded up to whole units of the conversion.
struct ConvertedKv {
  void *k = nullptr, *v = nullptr;
  int pitch = 0;
  unsigned units_k = 0, units = 0;  // number of units to convert, of K and in total
  FastDivmod units_along, heads;    // units along the keys of a sequence, kv heads
  unsigned* counters = nullptr;     // two: units taken, and units that are complete

  static constexpr int unit_keys = 64, unit_dims = 64;
};
// An FP8 fragment of P holds four neighbouring slots of a group of 16, from two tiles of eight columns of the scores.
// Returns the first key of these slots. Its other keys are 1, 8 and 9 later.
constexpr int slot_key(int slots) { return 2 * slots; }

struct Sm90Params {
  TensorMap q, k, v, bias, mask;
  AttentionParams attention;
  TileScheduler scheduler;
  unsigned items = 0;            // number of tiles of query rows in the whole problem
  unsigned* counters = nullptr;  // two: number of tiles taken, and of CTAs that have ended
  TileSequences sequences;
  PlaceSteps k_places, v_places;
  ConvertedKv converted;
  float* partial = nullptr;  // with promotion_interval: the f32 sums, [CTA][four columns][consumer thread][4]
};

// The layout of a CTA's shared memory. Members ..._at are byte offsets from its start. Tensors lie in columns of 128
// bytes, the width of a swizzle: [column][row][128 bytes]. If a row is not a multiple of 128 bytes, the last column
// ends in zeros. A row of transposed V has the block's keys of a channel. Paged K and V with rows of whole columns:
// [group of eight rows][column][8][128 bytes], so that one copy loads all columns of a page. Boxes of bias and mask
// elements lie in columns, too, but the columns can have only 64 or 32 bytes.
struct Sm90Layout {
  int dim, dim_v;          // head dims rounded up, because of a wgmma's depth (dim) and n (dim_v)
  int columns, columns_v;  // number of columns of 128 bytes
  int rows_v;              // rows of a block of V: keys, or channels if V is transposed
  int q_bytes, kv_bytes;   // bytes of one buffer. q: for a tile of Q, later its output. kv: for a block of K or of V
  int bias_bytes, mask_bytes;  // bytes of one buffer for the elements of a block of keys; 0 without boxes
  int q_at = 0, kv_at, scores_at, barriers_at, tiles_at, pages_at, bytes;

  static constexpr int redo_capacity = 256;  // tiles that can be computed again in one round (producer.cuh)

  constexpr explicit Sm90Layout(const Sm90Config& c)
      : dim(round_up(c.head_dim, 32 / bytes_of(c.key_type()))),
        dim_v(round_up(c.head_dim_v, 16)),
        columns(columns_of(c.head_dim, c.key_type())),
        columns_v(columns_of(c.transposes_v() ? c.block_n : c.head_dim_v, c.value_type())),
        rows_v(c.transposes_v() ? dim_v : c.block_n),
        q_bytes(larger(columns, columns_of(c.head_dim_v, DType::f16)) * c.block_m() * 128),
        kv_bytes(larger(columns * c.block_n, columns_v * rows_v) * 128),
        bias_bytes(c.boxes && c.bias != DType::none ? box_bytes(c, c.bias, c.bias_row) : 0),
        mask_bytes(c.boxes && c.mask ? box_bytes(c, DType::u8, c.mask_row) : 0),
        kv_at(c.q_stages * q_bytes),
        scores_at(kv_at + c.kv_stages * kv_bytes),
        barriers_at(scores_at + score_stages(c) * (bias_bytes + mask_bytes)),
        tiles_at(barriers_at + 8 * barriers(c)),
        pages_at(tiles_at + 2 * 64 + 4 * (1 + redo_capacity)),
        bytes(pages_at + 4 * page_lists * pages(c)) {}

  static constexpr int round_up(int n, int to) { return (n + to - 1) / to * to; }
  static constexpr int larger(int a, int b) { return a > b ? a : b; }
  // Returns the number of columns for rows of `n` elements.
  static constexpr int columns_of(int n, DType type) { return (n * bytes_of(type) + 127) / 128; }

  // Number of barriers; SharedState (shared_state.cuh) names them.
  static constexpr int barriers(const Sm90Config& c) {
    return 2 * c.q_stages + 2 * c.kv_stages + 2 * score_stages(c) + 5;
  }
  static constexpr int score_stages(const Sm90Config& c) { return c.boxes ? c.score_stages : 0; }

  // Paged K and V: the number of copies of a block, and of blocks whose pages are in shared memory.
  static constexpr int pages(const Sm90Config& c) { return c.page_rows > 0 ? c.block_n / c.page_rows : 0; }
  static constexpr int page_lists = 4;
  // What a block of K or V looks like in shared memory.
  struct Block {
    bool in_pages;           // TMA copies single pages
    int columns, rows;       // rows of one column
    bool copies_whole_rows;  // in_pages: one copy loads all columns of a page
    // Bytes from a group of eight rows to the next, and from a column to the next.
    constexpr int group_bytes() const { return copies_whole_rows ? columns * 1024 : 1024; }
    constexpr int column_bytes() const { return copies_whole_rows ? 1024 : rows * 128; }
  };
  static constexpr Block block_of_k(const Sm90Config& c) {
    const bool in_pages = c.page_rows > 0 && !c.converts_k();
    return {in_pages, columns_of(c.head_dim, c.key_type()), c.block_n,
            in_pages && c.head_dim * bytes_of(c.key_type()) % 128 == 0};
  }
  static constexpr Block block_of_v(const Sm90Config& c) {
    const bool in_pages = c.page_rows > 0 && !c.converts_v();
    const Sm90Layout layout(c);
    return {in_pages, layout.columns_v, layout.rows_v, in_pages && c.head_dim_v * bytes_of(c.value_type()) % 128 == 0};
  }

  // Returns the width in bytes of a box's columns. A single row is one column. 0: the block has no such columns.
  static constexpr int box_width(const Sm90Config& c, DType element, bool one_row) {
    const int row = c.block_n * bytes_of(element);
    return one_row ? row : row % 128 == 0 ? 128 : row % 64 == 0 ? 64 : row % 32 == 0 ? 32 : 0;
  }
  static constexpr int box_rows(const Sm90Config& c, bool one_row) { return one_row ? 1 : c.block_m(); }
  static constexpr int box_bytes(const Sm90Config& c, DType element, bool one_row) {
    return (box_rows(c, one_row) * c.block_n * bytes_of(element) + 1023) / 1024 * 1024;
  }
};

}  // namespace rapt
