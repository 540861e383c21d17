// The tiles of attention_sm90, by the problem's properties. docs/lab-notebook.md says how the tiles were found. Host
// only.
#pragma once

#include <array>

#include "kernels/sm90/config.h"
#include "kernels/tuned.h"

namespace rapt {

struct Sm90Traits {
  long long dim;    // the larger of head_dim and head_dim_v
  bool masked;      // causal or a window
  bool short_keys;  // at most 1024 keys: the start and the end of a tile cost much of its time
  bool many_tiles;  // dense, and tiles of 256 rows give work to all multiprocessors
};

struct Sm90TunedRow {
  int most_dim;
  When masked, short_keys, many_tiles;
  Sm90Config tiles;
  Measured measured;

  constexpr bool applies(const Sm90Traits& t) const {
    return t.dim <= most_dim && holds(masked, t.masked) && holds(short_keys, t.short_keys) &&
           holds(many_tiles, t.many_tiles);
  }
};

namespace detail {
constexpr auto sm90_rows() {
  using enum When;
  constexpr bool with_ping_pong = true;
  const auto tiles = [](int warpgroups, int block_n, int q_stages, int kv_stages, bool ping_pong = false,
                        int min_blocks = 1) {
    Sm90Config a;
    a.warpgroups = warpgroups, a.block_n = block_n, a.q_stages = q_stages, a.kv_stages = kv_stages;
    a.ping_pong = ping_pong, a.min_blocks = min_blocks;
    return a;
  };
  const auto row = [](int most_dim, When masked, When short_keys, When many_tiles, const Sm90Config& config,
                      Measured measured = {}) {
    return Sm90TunedRow{most_dim, masked, short_keys, many_tiles, config, measured};
  };
  constexpr const char* file = "nvidia-h200/20261130T025430Z-peers-bf16.jsonl";
  return std::array{
      // All tiles fit into 227 KB of shared memory.
      row(64, either, yes, yes, tiles(4, 64, 2, 8, with_ping_pong), {"bf16 b16 h12 q512 k512 d64", 30.984, file}),
      row(64, either, either, either, tiles(3, 128, 2, 6, with_ping_pong),
          {"bf16 b2 h24 q4096 k4096 d64", 359.612, file}),
      row(96, no, yes, either, tiles(2, 48, 1, 6, false, 2), {"bf16 b8 h16 q256 k256 d80", 12.531, file}),
      row(96, either, either, either, tiles(2, 128, 2, 5, with_ping_pong)),
      row(128, yes, either, either, tiles(2, 128, 2, 5, with_ping_pong),
          {"bf16 b1 h32 q4096 k4096 d128 causal", 201.144, file}),
      row(128, no, yes, either, tiles(2, 128, 2, 5, with_ping_pong)),
      row(128, no, no, either, tiles(2, 144, 2, 4), {"bf16 b1 h16 q16384 k16384 d128", 3094.232, file}),
      row(192, either, either, either, tiles(2, 112, 1, 4)),
      row(256, either, either, either, tiles(2, 80, 1, 4, with_ping_pong),
          {"bf16 b1 h8 q8192 k8192 d256", 663.28, file}),
  };
}
}  // namespace detail
inline constexpr std::array sm90_tuned_rows = detail::sm90_rows();

}  // namespace rapt
