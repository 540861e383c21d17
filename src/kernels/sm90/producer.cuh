// The producer of attention_sm90: it selects the CTA's tiles and loads them with TMA. It is one thread. With paged K
// and V it is a warp: its lanes divide the pages of a block, because a page needs copies of its own, and one thread
// cannot issue so many copies in the time of a block. Lane 0 does everything else. Device only.
#pragma once

#include "convert_kv.cuh"
#include "ptx/tma.cuh"
#include "row_tile.cuh"
#include "shared_state.cuh"
#include "stages.cuh"

namespace rapt {

// Places and phases of several barriers in one word, because the producer has only 32 or 40 registers. Bits 0 and 1:
// the number of calls of announce(), mod 4 (bit 0: place, bit 1: phase). Bit 2: the phase of the list of tiles to
// compute again. Bits 3 and higher: the number of Q tiles, mod 2 * q_stages.
template <int q_stages>
struct Phases {
  unsigned bits = 0;
  int place() const { return static_cast<int>(bits & 1); }
  unsigned of_place() const { return bits >> 1 & 1; }
  unsigned of_list() const { return bits >> 2 & 1; }
  int q_stage() const { return static_cast<int>(bits >> 3) - static_cast<int>(of_q()) * q_stages; }
  unsigned of_q() const { return bits >> 3 >= q_stages; }
  void advance_place() { bits = (bits & ~3u) | ((bits + 1) & 3u); }
  void advance_list() { bits ^= 4; }
  void advance_q() { bits = bits >> 3 == 2 * q_stages - 1 ? bits & 7 : bits + 8; }
};

template <const Sm90Config& cfg>
struct Producer {
  using Tile = RowTile<cfg>;
  static constexpr Sm90Layout layout{cfg};

  const Sm90Params& params;
  const SharedState<cfg>& shared;
  StageSlot<cfg.kv_stages> slot{};
  StageSlot<cfg.boxes ? cfg.score_stages : 1> score_slot{};
  Phases<cfg.q_stages> phases{};
  bool waits_for_conversion = cfg.converts();

  // Describes a tile to the consumers, then loads Q and all blocks of K and V. wait_for_place() must come before.
  void do_tile(unsigned item, NanPass pass) {
    const Tile tile{shared.tile(phases.place())};
    if (of_leader(leads() && tile.find(params, item)) == 0) return;
    announce(pass);
    if (tile.first_row() >= tile.seqlen_q()) return;
    const AttentionParams& p = params.attention;
    const bool packed = p.cu_seqlens_q.present();
    const int batch = packed ? 0 : tile.batch(), head = tile.head();
    const auto head_k = static_cast<int>(params.scheduler.group.quotient(static_cast<unsigned>(head)));
    const bool packed_k = p.cu_seqlens_k.present();
    const int first_k = packed_k ? static_cast<int>(clamped(p.cu_seqlens_k[tile.batch()], 0, p.total_k)) : 0;
    RAPT_TRACE_NEXT("producer: load Q");
    wait_barrier(shared.q_empty(phases.q_stage()), phases.of_q() ^ 1);
    // With packed heads, the heads are dimension 1 of the tensor map, and the queries dimension 2.
    const int query = tile.first_q() + tile.first_row() / cfg.packed_heads;
    if (leads())
      load<bytes_of(cfg.q)>(shared.q_full(phases.q_stage()), shared.q(phases.q_stage()), params.q, layout.columns,
                            cfg.block_m(), cfg.packed_heads > 1 ? head : query, cfg.packed_heads > 1 ? query : head,
                            batch);
    phases.advance_q();
    // V of a block comes after K of the next block, because the consumers use them in this order.
    const NBlocks n_blocks = tile.n_blocks();
    if (n_blocks.empty()) return;
    const int first_key = first_k + n_blocks.begin * cfg.block_n;
    int key = first_k + (n_blocks.end - 1) * cfg.block_n;
    RAPT_TRACE_NEXT("producer: load K");
    if constexpr (cfg.page_rows > 0) look_up_pages(tile, n_blocks.end - 1);
    load_k(tile, key, first_k, head_k, batch);
#pragma unroll 1
    for (; key >= first_key; key -= cfg.block_n) {
      if (key > first_key) {
        RAPT_TRACE_NEXT("producer: load K");
        load_k(tile, key - cfg.block_n, first_k, head_k, batch);
      }
      RAPT_TRACE_NEXT("producer: load V");
      load_kv<true>(tile, key, first_k, head_k, batch);
    }
  }

  // Waits until the consumers have finished the tile before the last one, so that a new tile has a place.
  void wait_for_place() const { wait_barrier(shared.tile_empty(phases.place()), phases.of_place() ^ 1); }

  // Returns whether this thread does what one thread must do.
  static bool leads() { return cfg.page_rows == 0 || threadIdx.x == 0; }
  // Returns lane 0's x. What lane 0 has written to shared memory is then visible to all lanes.
  static unsigned of_leader(unsigned x) {
    if constexpr (cfg.page_rows > 0) {
      __syncwarp();
      return __shfl_sync(~0u, x, 0);
    }
    return x;
  }

  // Waits until the list of tiles to compute again is complete. Returns its length, and sets the length to 0 for a new
  // list. The entries stay.
  unsigned take_list() {
    announce_alone(list_complete);
    wait_barrier(shared.redo_listed(), phases.of_list());
    phases.advance_list();
    const unsigned count = of_leader(load_shared(shared.redo_count()));
    if (leads()) store_shared(shared.redo_count(), 0);
    return count;
  }

  // Sends the consumers a message that is not a tile.
  void announce_alone(NanPass what) {
    wait_for_place();
    announce(what);
  }

 private:
  void announce(NanPass pass) {
    if (leads()) {
      Tile{shared.tile(phases.place())}.set_pass(pass);
      arrive(shared.tile_full(phases.place()));
    }
    phases.advance_place();
  }
  // Loads K of the block that begins at packed row `key`, and with boxes its bias and mask.
  void load_k(const Tile& tile, int key, int first_k, int head_k, int batch) {
    if constexpr (cfg.page_rows > 0) {
      if (key >= cfg.block_n) look_up_pages(tile, key / cfg.block_n - 1);
      cp_async_wait_group(key >= cfg.block_n ? 1 : 0);  // this block's pages
      __syncwarp();
    }
    load_kv<false>(tile, key, first_k, head_k, batch);
    if constexpr (cfg.boxes) {
      wait_barrier(shared.scores_empty(score_slot.stage), score_slot.phase ^ 1);
      if (leads()) load_boxes(tile, key - first_k);
      score_slot.advance();
    }
  }
  void load_boxes(const Tile& tile, int key) const {
    const unsigned full = shared.scores_full(score_slot.stage);
    arrive_expecting(full, score_bytes());
    const AttentionParams& p = params.attention;
    if constexpr (cfg.bias != DType::none)
      load_box<cfg.bias, cfg.bias_row>(shared.bias(score_slot.stage), params.bias, p.bias, full, tile, key);
    if constexpr (cfg.mask)
      load_box<DType::u8, cfg.mask_row>(shared.mask(score_slot.stage), params.mask, p.mask, full, tile, key);
  }
  static constexpr unsigned score_bytes() {
    const int bias = Sm90Layout::box_rows(cfg, cfg.bias_row) * cfg.block_n * bytes_of(cfg.bias),
              mask = cfg.mask ? Sm90Layout::box_rows(cfg, cfg.mask_row) * cfg.block_n : 0;
    return static_cast<unsigned>(bias + mask);
  }
  template <DType element, bool one_row>
  static void load_box(unsigned to, const TensorMap& map, const BroadcastRef& t, unsigned full, const Tile& tile,
                       int key) {
    constexpr int width = Sm90Layout::box_width(cfg, element, one_row), rows = Sm90Layout::box_rows(cfg, one_row),
                  columns = cfg.block_n * bytes_of(element) / width;
    // A broadcast dimension has size 1 in the map.
    const int row = one_row ? 0 : tile.first_row(), head = t.head == 0 ? 0 : tile.head(),
              batch = t.batch == 0 ? 0 : tile.batch();
#pragma unroll
    for (int column = 0; column < columns; ++column)
      copy_box(to + static_cast<unsigned>(column * rows * width), map, full, key + column * width / bytes_of(element),
               row, head, batch);
  }
  // of_v: V, otherwise K.
  template <bool of_v>
  void load_kv(const Tile& tile, int key, int first_k, int head, int batch) {
    constexpr Sm90Layout::Block block = of_v ? Sm90Layout::block_of_v(cfg) : Sm90Layout::block_of_k(cfg);
    constexpr int bytes = bytes_of(of_v ? cfg.value_type() : cfg.key_type());
    const TensorMap& map = of_v ? params.v : params.k;
    wait_barrier(shared.kv_empty(slot.stage), slot.phase ^ 1);
    const unsigned full = shared.kv_full(slot.stage), to = shared.kv(slot.stage);
    if constexpr (of_v ? cfg.converts_v() : cfg.converts_k()) {
      if (waits_for_conversion) wait_converted(params.converted);
      waits_for_conversion = false;
      key -= first_k, batch = tile.batch();  // converted tensors have their own place for each sequence
    }
    if constexpr (block.in_pages) {
      load_pages<of_v>(tile, full, to, map, key, head);
    } else if (cfg.page_rows == 0 || elect_lane()) {
      if constexpr (of_v && cfg.transposes_v())
        load_transposed(full, to, map, key, head, batch);
      else
        load<bytes>(full, to, map, block.columns, cfg.block_n, key, head, batch);
    }
    slot.advance();
  }
  // Loads the block's keys of each channel.
  static void load_transposed(unsigned full, unsigned to, const TensorMap& map, int key, int head, int batch) {
    arrive_expecting(full, static_cast<unsigned>(layout.columns_v * layout.rows_v * 128));
#pragma unroll
    for (int column = 0; column < layout.columns_v; ++column)
      copy_box(to + static_cast<unsigned>(column * layout.rows_v * 128), map, full, key + column * 128, 0, head, batch);
  }
  // Paged K and V. The entries of the block table take long to load. So they are copied to shared memory one block
  // ahead. Entries after the sequence's keys are not read.
  void look_up_pages(const Tile& tile, int n_block) const {
    const int key = n_block * cfg.block_n, count = pages_of_block(tile, key);
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < count; i += 32)
      cp_async_4(shared.pages(n_block) + 4 * static_cast<unsigned>(i),
                 params.attention.pages.entry(tile.batch(), static_cast<unsigned>(key + i * cfg.page_rows)));
    cp_async_commit_group();
  }
  static int pages_of_block(const Tile& tile, int key) {
    const int keys = tile.band().seqlen_k - key;
    return keys < cfg.block_n ? (keys + cfg.page_rows - 1) / cfg.page_rows : Sm90Layout::pages(cfg);
  }
  // Loads K or V. The buffer's part for pages that do not exist keeps its old values.
  template <bool of_v>
  void load_pages(const Tile& tile, unsigned full, unsigned to, const TensorMap& map, int key, int head) const {
    constexpr Sm90Layout::Block block = of_v ? Sm90Layout::block_of_v(cfg) : Sm90Layout::block_of_k(cfg);
    constexpr int columns = block.columns, copies = block.copies_whole_rows ? 1 : columns,
                  column_elements = 128 / bytes_of(of_v ? cfg.value_type() : cfg.key_type()),
                  page_bytes = cfg.page_rows / 8 * block.group_bytes();
    const PlaceSteps& places = of_v ? params.v_places : params.k_places;
    constexpr int together = Sm90Layout::pages(cfg) < 4 ? Sm90Layout::pages(cfg) : 4;  // their latencies overlap
    static_assert(Sm90Layout::pages(cfg) <= 32, "a lane finds one page");
    const PageTable& table = params.attention.pages;
    const int pages = pages_of_block(tile, key), lane = static_cast<int>(threadIdx.x);
    if (leads()) arrive_expecting(full, static_cast<unsigned>(pages * columns * cfg.page_rows * 128));
    int group = 0, place = 0;
    if (lane < pages) {
      const unsigned entry = load_shared(shared.pages(key / cfg.block_n) + 4 * static_cast<unsigned>(lane));
      group = static_cast<int>(table.row(static_cast<unsigned>(key + lane * cfg.page_rows))) / 8;
      place = places.at(table.clamped_page(static_cast<int>(entry)), head);
    }
    const bool elected = elect_lane();
#pragma unroll 1
    for (int first = 0; first < pages; first += together) {
      int groups[together], its_place[together];
#pragma unroll
      for (int i = 0; i < together; ++i)
        groups[i] = __shfl_sync(~0u, group, first + i), its_place[i] = __shfl_sync(~0u, place, first + i);
#pragma unroll
      for (int i = 0; i < together; ++i)
#pragma unroll
        for (int column = 0; column < copies; ++column)
          if (elected && first + i < pages)
            copy_page(to + static_cast<unsigned>(column * block.column_bytes() + (first + i) * page_bytes), map, full,
                      column * column_elements, groups[i], its_place[i]);
    }
  }
  // Loads rows of elements of `bytes` bytes.
  template <int bytes>
  static void load(unsigned full, unsigned to, const TensorMap& map, int columns, int rows, int row, int head,
                   int batch) {
    arrive_expecting(full, static_cast<unsigned>(columns * rows * 128));
#pragma unroll
    for (int column = 0; column < columns; ++column)
      copy_box(to + static_cast<unsigned>(column * rows * 128), map, full, column * (128 / bytes), row, head, batch);
  }
};

// Loads the tiles of the schedule. Tiles with non-finite values are computed again, in two passes. This happens at the
// end, or when the list of these tiles could be full.
template <const Sm90Config& cfg>
inline void produce(const Sm90Params& params, const SharedState<cfg>& shared) {
  Producer<cfg> producer{params, shared};
  unsigned item = blockIdx.x, passes_left = 0;  // passes_left: over the listed tiles, two for each tile
  RAPT_TRACE_NEXT("producer: tile");
#pragma unroll 1
  while (passes_left > 0 || item < params.items) {
    // One call of do_tile() for new and repeated tiles, so that its code is in the kernel once.
    const bool repeats = passes_left > 0;
    const unsigned tile = repeats ? load_shared(shared.redo((passes_left - 1) / 2)) : item;
    const NanPass pass = passes_left % 2 == 1 ? NanPass::count_non_finite : NanPass::zero_non_finite;
    producer.wait_for_place();
    producer.do_tile(tile, repeats ? pass : NanPass::normal);
    RAPT_TRACE_NEXT("producer: tile");
    if (repeats) {
      --passes_left;
      continue;
    }
    // The next tile is taken as late as possible: after all loads of this tile were issued, and after the tile before
    // it was finished. A tile that is taken earlier waits for this CTA, although another CTA could be idle.
    producer.wait_for_place();
    item = gridDim.x + producer.of_leader(producer.leads() ? atomicAdd(params.counters, 1u) : 0);
    if (producer.of_leader(item >= params.items || load_shared(shared.redo_count()) >= Sm90Layout::redo_capacity - 4))
      passes_left = 2 * producer.take_list();
  }
  griddepcontrol_launch_dependents<cfg.programmatic>();
  producer.announce_alone(no_more);
  // The last CTA resets the counters.
  if (producer.leads() && atomicInc(params.counters + 1, gridDim.x - 1) == gridDim.x - 1) {
    params.counters[0] = 0;
    if constexpr (cfg.converts()) params.converted.counters[0] = params.converted.counters[1] = 0;
  }
  RAPT_TRACE_END();
}

}  // namespace rapt
