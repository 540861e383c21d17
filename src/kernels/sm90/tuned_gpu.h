// The tiles of attention_sm90 and how long they take. docs/lab-notebook.md says how both were found. Host only.
#pragma once

#include <array>

#include "kernels/sm90/config.h"
#include "kernels/tuned.h"

namespace rapt {

// The time that a CTA needs for a tile of query rows, on an H200. The planner compares shapes of tiles by it.
struct TileTime {
  double tile_us;  // for the begin and the end of the tile
  double key_us;   // for each key that the tile's rows see
};

// For how many registers a tile must have space, because of soft cap, bias, ALiBi and mask tensor. `few`: none or one
// of them, whose elements are loaded in pairs or in boxes, or a 16-bit bias and a mask in boxes. `singly`: one of them,
// whose elements are loaded singly.
enum class Sm90Scores : unsigned char { few, singly, several };

struct Sm90TunedRow {
  Sm90Scores scores;
  bool fp8_weights;          // pv=fp8 or pv=fp8x2
  int most_dim, most_dim_v;  // the largest head_dim and head_dim_v for which the tiles are meant
  Sm90Config tiles;
  TileTime time;
  Measured measured;
};

namespace detail {
constexpr auto sm90_rows() {
  constexpr bool with_ping_pong = true;
  const auto tiles = [](int warpgroups, int block_n, int q_stages, int kv_stages, bool ping_pong = false) {
    Sm90Config a;
    a.warpgroups = warpgroups, a.block_n = block_n, a.q_stages = q_stages, a.kv_stages = kv_stages;
    a.ping_pong = ping_pong;
    return a;
  };
  const auto row = [](int most_dim, int most_dim_v, const Sm90Config& config, TileTime time, Measured measured = {}) {
    return Sm90TunedRow{Sm90Scores::few, false, most_dim, most_dim_v, config, time, measured};
  };
  const auto singly = [=](int most_dim, int most_dim_v, const Sm90Config& config, TileTime time) {
    return Sm90TunedRow{Sm90Scores::singly, false, most_dim, most_dim_v, config, time, {}};
  };
  const auto several = [=](int most_dim, int most_dim_v, const Sm90Config& config, TileTime time) {
    return Sm90TunedRow{Sm90Scores::several, false, most_dim, most_dim_v, config, time, {}};
  };
  const auto fp8 = [=](int most_dim, int most_dim_v, const Sm90Config& config, TileTime time, Measured measured = {}) {
    return Sm90TunedRow{Sm90Scores::few, true, most_dim, most_dim_v, config, time, measured};
  };
  const auto fp8_several = [=](int most_dim, int most_dim_v, const Sm90Config& config, TileTime time) {
    return Sm90TunedRow{Sm90Scores::several, true, most_dim, most_dim_v, config, time, {}};
  };
  constexpr const char *peers = "nvidia-h200/20261130T061730Z-peers-bf16.jsonl",
                       *wide = "nvidia-h200/20261130T053400Z-sm90-tiles.jsonl";
  // Rows with the same dims are alternatives. Times of dims above 128 are from one problem each. All tiles fit into 227
  // KB of shared memory.
  return std::array{
      row(64, 64, tiles(4, 64, 2, 8, with_ping_pong), {1.49, 0.01418}, {"bf16 b16 h12 q512 k512 d64", 30.734, peers}),
      row(64, 64, tiles(2, 128, 2, 6, with_ping_pong), {2.28, 0.00816},
          {"bf16 b1 h16 q1024 k1024 d64", 12.904, "nvidia-h200/20261130T053900Z-sm90-tiles.jsonl"}),
      row(80, 80, tiles(3, 96, 2, 5, with_ping_pong), {2.71, 0.01235}, {"bf16 b8 h16 q2048 k2048 d80", 312.896, wide}),
      row(80, 80, tiles(4, 48, 1, 8, with_ping_pong), {6.11, 0.0163}, {"bf16 b8 h16 q256 k256 d80", 12.332, peers}),
      row(96, 96, tiles(3, 96, 2, 5, with_ping_pong), {3.79, 0.01212}, {"bf16 b4 h16 q4096 k4096 d96", 612.416, wide}),
      row(96, 96, tiles(4, 48, 1, 8, with_ping_pong), {6.73, 0.0175}, {"bf16 b8 h16 q256 k256 d96", 13.144, wide}),
      row(128, 128, tiles(2, 128, 2, 5, with_ping_pong), {2.04, 0.01092},
          {"bf16 b1 h32 q1024 k1024 d128 causal", 21.981, peers}),
      row(128, 128, tiles(3, 80, 2, 6, with_ping_pong), {1.96, 0.01558},
          {"bf16 b1 h32 q4096 k4096 d128 causal", 213.428, peers}),
      row(192, 128, tiles(3, 80, 1, 4, with_ping_pong), {2.5, 0.0181},
          {"bf16 b1 h32 q4096 k4096 d192:128 causal", 242.8, "nvidia-h200/20261130T052800Z-sm90-tiles.jsonl"}),
      row(192, 192, tiles(2, 112, 1, 4), {2.5, 0.016},
          {"bf16 b1 h16 q4096 k4096 d192", 273.488, "nvidia-h200/20261130T052200Z-sm90-tiles.jsonl"}),
      row(256, 256, tiles(2, 80, 1, 4, with_ping_pong), {2.5, 0.0202}, {"bf16 b1 h8 q8192 k8192 d256", 672.592, peers}),
      // The largest blocks of keys without spills. Their times are not measured: they are those of the rows above,
      // converted to the same number of query rows.
      singly(64, 64, tiles(3, 80, 2, 7, with_ping_pong), {2.28, 0.0115}),
      singly(96, 96, tiles(2, 96, 2, 6, with_ping_pong), {3.79, 0.0081}),
      singly(128, 128, tiles(2, 112, 2, 5, with_ping_pong), {2.04, 0.01092}),
      singly(192, 128, tiles(2, 80, 1, 5, with_ping_pong), {2.5, 0.0121}),
      singly(192, 192, tiles(2, 80, 1, 5, with_ping_pong), {2.5, 0.016}),
      singly(256, 256, tiles(2, 64, 1, 5, with_ping_pong), {2.5, 0.0202}),
      several(64, 64, tiles(2, 64, 2, 8, with_ping_pong), {2.28, 0.00816}),
      several(96, 96, tiles(2, 64, 2, 6, with_ping_pong), {3.79, 0.0081}),
      several(128, 128, tiles(2, 64, 2, 8, with_ping_pong), {2.04, 0.01092}),
      several(192, 192, tiles(2, 48, 1, 8, with_ping_pong), {2.5, 0.016}),
      several(256, 256, tiles(2, 32, 1, 8, with_ping_pong), {2.5, 0.0202}),
      fp8(64, 64, tiles(3, 128, 2, 5, with_ping_pong), {2.3, 0.0104}),
      fp8(96, 96, tiles(3, 96, 2, 5, with_ping_pong), {2.5, 0.0115}),
      fp8(128, 128, tiles(2, 128, 2, 5, with_ping_pong), {2.0, 0.0092}),
      fp8(128, 128, tiles(3, 96, 2, 5, with_ping_pong), {2.3, 0.0119}),
      fp8(192, 192, tiles(2, 96, 1, 4, with_ping_pong), {2.5, 0.0115}),
      fp8(256, 256, tiles(2, 96, 1, 4, with_ping_pong), {2.5, 0.0134}),
      // Not measured.
      fp8_several(128, 128, tiles(2, 64, 2, 8, with_ping_pong), {2.0, 0.011}),
      fp8_several(192, 192, tiles(2, 64, 1, 5, with_ping_pong), {2.5, 0.014}),
      fp8_several(256, 256, tiles(2, 32, 1, 4, with_ping_pong), {2.5, 0.02}),
  };
}
}  // namespace detail
inline constexpr std::array sm90_tuned_rows = detail::sm90_rows();

}  // namespace rapt
