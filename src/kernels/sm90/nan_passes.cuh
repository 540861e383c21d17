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
  constexpr DType type = cfg.value_type();
  constexpr int bits = 8 * bytes_of(type);
  constexpr unsigned mask = (1u << bits) - 1;
  constexpr unsigned one = type == DType::f16    ? 0x3c00u
                           : type == DType::bf16 ? 0x3f80u
                           : type == DType::e4m3 ? 0x38u
                                                 : 0x3cu;
  constexpr Sm90Layout::Block block = Sm90Layout::block_of_v(cfg);
  const unsigned tile = shared.kv(stage);
#pragma unroll 1  // rarely used, but inlined at several places
  for (unsigned byte = thread * 4; byte < block.columns * block.rows * 128; byte += SharedState<cfg>::consumers * 4) {
    const int line = static_cast<int>(byte / 128),
              row = block.copies_whole_rows ? line / (8 * block.columns) * 8 + line % 8 : line % block.rows;
    // Transposed V has zeros after the keys already.
    unsigned word = cfg.transposes_v() || row < keys ? load_shared(tile + byte) : 0;
    if (pass != NanPass::normal) {
      unsigned rewritten = 0;
      for (int shift = 0; shift < 32; shift += bits) {
        const unsigned element = word >> shift & mask;
        const bool finite = is_finite_code<type>(element);
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
