// Common code of the ladder's warp-specialised rungs: a ring of K and V tiles in shared memory, which producer warps
// fill by cp.async and consumer warps read. Included by lab/ladder/*.cuh only.
#pragma once

#include "mma_rows.cuh"
#include "ptx/barrier.cuh"

namespace rapt::ladder {

// Tile number t is in slot t % slots. Each slot has two barriers. `full`: each producer thread arrives when its copies
// are complete. `empty`: each consumer warp arrives when it has read the tile. A phase of a barrier is one use of its
// slot; the parity of a phase's number distinguishes it from the phase before and after.
template <int slots, int tile_bytes, int producer_threads, int consumer_warps>
struct TileRing {
  static constexpr int bytes = slots * (tile_bytes + 16);

  const unsigned tiles, barriers;

  explicit TileRing(unsigned address) : tiles(address), barriers(address + slots * tile_bytes) {}

  unsigned tile(int t) const { return tiles + static_cast<unsigned>(t % slots * tile_bytes); }
  unsigned full(int t) const { return barriers + static_cast<unsigned>(t % slots * 16); }
  unsigned empty(int t) const { return full(t) + 8; }
  unsigned parity(int t) const { return static_cast<unsigned>(t / slots % 2); }

  // Called by all threads of the block before any other function.
  void init() const {
    if (threadIdx.x == 0)
      for (int slot = 0; slot < slots; ++slot) {
        mbarrier_init(full(slot), producer_threads);
        mbarrier_init(empty(slot), consumer_warps);
      }
    __syncthreads();
  }

  // Returns immediately at the first use of a slot, because in a new barrier the phase before the first counts as
  // completed.
  void wait_until_empty(int t) const { mbarrier_wait(empty(t), parity(t) ^ 1); }
  void announce(int t) const { cp_async_mbarrier_arrive(full(t)); }
  void wait_until_full(int t) const { mbarrier_wait(full(t), parity(t)); }
  void release(int t) const {
    __syncwarp();  // waits until all lanes have read the tile
    if (threadIdx.x % 32 == 0) mbarrier_arrive(empty(t));
  }
};

// The first block_m / 16 warps of the block are consumers, the others are producers. Tile 2 n holds the keys of step n,
// tile 2 n + 1 holds its values.
template <const Sm80Config& cfg>
struct RingAttention : MmaRows<cfg> {
  using Rows = MmaRows<cfg>;
  using Rows::keys;
  using Rows::p;
  using Rows::rows;
  using Rows::tile;
  using Rows::warp;
  static constexpr int consumer_warps = rows / 16, producer_warps = cfg.warps_m - consumer_warps;
  static constexpr int producer_threads = 32 * producer_warps;
  static_assert(producer_warps >= 1);
  using Ring = TileRing<2 * cfg.stages, Rows::kv_bytes, producer_threads, consumer_warps>;
  static_assert(Ring::bytes <= smem_bytes(cfg), "the ring takes the place of Q, K and V");

  const Ring ring;

  RingAttention(const Sm80Params& params, const void* q, const void* shared)
      : Rows(params, q, shared), ring(shared_address(shared)) {}

  bool is_producer() const { return warp >= consumer_warps; }

  // Producers: loads 64 rows of K or V as tile number t of the ring.
  void fill(int t, const unsigned short* from, index_t row_stride) const {
    ring.wait_until_empty(t);
    load_async<keys, producer_threads>(ring.tile(t), from, row_stride,
                                       static_cast<int>(threadIdx.x) - 32 * consumer_warps);
    ring.announce(t);
  }
  void fill_step(int t, int step) const {
    const index_t key = static_cast<index_t>(step) * keys;
    fill(t, tile.k + key * p.k.row, p.k.row);
    fill(t + 1, tile.v + key * p.v.row, p.v.row);
  }
  void finish_copies() const {
    cp_async_commit_group();
    cp_async_wait_group(0);
  }

  // Consumers: a warp loads its own 16 query rows. The warps never wait for each other.
  void load_q(const unsigned short* from) const {
    load_async<16, 32>(tile_address(this->q_tile, warp * 16, 0), from + warp * 16 * p.q.row, p.q.row, this->lane);
    cp_async_commit_group();
  }
  void receive_q(unsigned (&q)[dim / 16][4]) const {
    cp_async_wait_group(0);
    __syncwarp();
    this->read_q(q);
  }
  void step(const unsigned (&q)[dim / 16][4], int t) {
    float s[Rows::n_tiles][4];
    ring.wait_until_full(t);
    this->scores(s, q, ring.tile(t));
    ring.release(t);
    this->softmax(s, 0);
    this->softmax(s, 1);
    ring.wait_until_full(t + 1);
    this->add_values(s, ring.tile(t + 1));
    ring.release(t + 1);
  }
};

}  // namespace rapt::ladder
