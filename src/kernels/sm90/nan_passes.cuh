// Rewrites V in shared memory: rows after the sequence's keys, and elements that are not finite (NanPass). Device only.
#pragma once

#include "device/numeric.cuh"
#include "ptx/copy.cuh"
#include "row_tile.cuh"
#include "shared_state.cuh"

namespace rapt {

// Sets row number `keys` and all later rows to 0, and changes elements as the pass requires. All threads of the
// consumer warpgroups must call this; it contains a barrier.
template <const Sm90Config& cfg>
inline void rewrite_v_for_pass(const SharedState<cfg>& shared, int stage, int keys, NanPass pass, unsigned thread) {
  constexpr unsigned one = cfg.v == DType::f16 ? 0x3c00u : 0x3f80u;
  const unsigned tile = shared.kv(stage);
#pragma unroll 1  // rarely used, but inlined at several places
  for (unsigned byte = thread * 4; byte < SharedState<cfg>::layout.columns_v * cfg.block_n * 128;
       byte += SharedState<cfg>::consumers * 4) {
    const int line = static_cast<int>(byte / 128),
              row = Sm90Layout::copies_whole_rows(cfg, cfg.head_dim_v)
                        ? line / (8 * SharedState<cfg>::layout.columns_v) * 8 + line % 8
                        : line % cfg.block_n;
    unsigned word = row < keys ? load_shared(tile + byte) : 0;
    if (pass != NanPass::normal) {
      unsigned rewritten = 0;
      for (int shift = 0; shift < 32; shift += 16) {
        const unsigned element = word >> shift & 0xffffu;
        const bool finite = is_finite_code<cfg.v>(element);
        rewritten |= (pass == NanPass::zero_non_finite ? (finite ? element : 0u) : (finite ? 0u : one)) << shift;
      }
      word = rewritten;
    }
    store_shared(tile + byte, word);
  }
  fence_async_proxy();
  wait_named(SharedState<cfg>::all_consumers, SharedState<cfg>::consumers);
}

}  // namespace rapt
