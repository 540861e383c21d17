// Implements choice_gpu.h: a model of the time of a launch, with measured numbers.
#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "kernels/rules.h"
#include "kernels/sm90/choice_gpu.h"
#include "kernels/sm90/sm90.h"
#include "kernels/sm90/tuned_gpu.h"

namespace rapt {
namespace {

int64_t div_up(int64_t n, int64_t by) { return (n + by - 1) / by; }

// The keys that the rows of a tile see.
struct SeenKeys {
  double mean, most;

  // At each edge of a mask, a tile also computes `at_edge` keys that only some of its rows see.
  static SeenKeys of(const Problem& p, const TypicalLengths& lengths, double at_edge) {
    // Longer windows see the same keys, but would overflow the number of pairs.
    PositionMask mask = p.position_mask;
    for (long long* const window : {&mask.window_left, &mask.window_right})
      *window = std::min<long long>(*window, Band::longest);
    const int64_t q = std::max<int64_t>(std::llround(lengths.q), 1), k = std::llround(lengths.k),
                  offset = mask.causal == Causal::top_left ? 0 : k - q,
                  pairs = visible_pairs<int64_t>(mask, offset, q, k);
    const int edges = (mask.causal != Causal::none || mask.window_right >= 0) + (mask.window_left >= 0);
    const double mean = std::min(lengths.k, static_cast<double>(pairs) / static_cast<double>(q) + edges * at_edge);
    return {mean, mask.window_left < 0 ? static_cast<double>(lengths.most_k) : mean};
  }
};

// Converted K and V are read and written once, before the tiles.
double conversion_us(const Problem& p) {
  const double bytes = static_cast<double>(Sm90Conversion(p).bytes());
  return bytes == 0 ? 0 : 3.5 + bytes * 1.5 / 2e6;
}

// How much longer tiles take because of the operations on scores. Estimated, not measured.
double time_factor(const Problem& p) {
  const int steps = p.softcap.has_value() + p.bias.present() + p.alibi + p.mask.present();
  return steps == 0 ? 1.0 : steps == 1 ? 1.3 : 1.6;
}
// The same for loads of bias and mask by threads, if TMA loads them for other tiles.
double load_factor(const Problem& p, const Sm90Config& tiles) {
  return common_score_access(p).boxes && !can_load_boxes(p, tiles) ? 1.3 : 1.0;
}

// The time of a launch whose tiles belong to one head each, or to all `heads_per_tile` heads of a group.
double estimated_us(const Problem& p, const Device& device, const Sm90TunedRow& row, int heads_per_tile) {
  constexpr double launch_us = 1.7;
  constexpr double packed_tile = 1.12;  // rows of several heads: masks need divisions, and loads of Q are smaller
  // If at most half of a tile's rows exist, one of two warpgroups computes nothing, and the other one is faster. With
  // more warpgroups this was not seen.
  const double half_tile = row.tiles.warpgroups == 2 ? 0.75 : 1.05;
  const TypicalLengths lengths = TypicalLengths::of(p);
  const double block_m = row.tiles.block_m(), queries = block_m / heads_per_tile,
               heads = lengths.sequences * static_cast<double>(p.heads_q) / heads_per_tile,
               tiles = heads * std::ceil(lengths.q / queries), ctas = device.sm_count;
  const double key_us =
      row.time.key_us * (lengths.q <= queries / 2 ? half_tile : 1) * (heads_per_tile > 1 ? packed_tile : 1);
  const double factor = time_factor(p) * load_factor(p, row.tiles);
  const auto us = [&](double n, double keys) { return factor * (n * row.time.tile_us + keys * key_us); };
  if (!p.position_mask.present() && !p.varlen) {  // each CTA computes the same number of equal tiles, or one less
    const double rounds = std::ceil(tiles / ctas);
    return launch_us + us(rounds, rounds * lengths.k);
  }
  const SeenKeys keys = SeenKeys::of(p, lengths, std::min(queries, lengths.q) / 2 + row.tiles.block_n / 4.0);
  if (tiles <= ctas) return launch_us + us(1, keys.most);
  // The longest tiles come first, so CTAs end at almost the same time. On average, a quarter of such a tile is lost.
  return launch_us + us(tiles / ctas, tiles / ctas * keys.mean) + us(1, keys.most) / 4;
}

// The cases were found by compiling all of them: other cases would spill registers with the tiles of `few`. Tiles of
// several heads have no boxes, and above head dim 128 no tile of `few` has columns for a mask with a row for each
// query.
Sm90Scores scores_of(const Problem& p, bool several_heads) {
  const int loads = p.bias.present() + p.mask.present(), computes = p.softcap.has_value() + p.alibi;
  if (loads == 0) return computes > 1 ? Sm90Scores::several : Sm90Scores::few;
  if (computes > 0) return Sm90Scores::several;
  const ScoreAccess access = common_score_access(p);
  const bool has_columns = !p.mask.present() || p.mask.access.one_row || std::max(p.head_dim, p.head_dim_v) <= 128,
             boxes = !several_heads && !p.invariant && access.boxes && has_columns, f32 = p.bias.dtype == DType::f32;
  if (loads == 1) return boxes || (!p.invariant && access.pairs && !f32) ? Sm90Scores::few : Sm90Scores::singly;
  return boxes && !f32 ? Sm90Scores::few : Sm90Scores::several;
}

// Returns the rows for the problem's operations on scores, and for the smallest dims that hold the problem.
std::span<const Sm90TunedRow> rows_of(const Problem& p, bool several_heads = false) {
  const bool fp8_weights = Sm90Conversion(p).p_terms > 0;
  const Sm90Scores found = scores_of(p, several_heads),
                   scores = fp8_weights && found != Sm90Scores::few ? Sm90Scores::several : found;
  const auto holds = [&](const Sm90TunedRow& row) {
    return row.scores == scores && row.fp8_weights == fp8_weights && p.head_dim <= row.most_dim &&
           p.head_dim_v <= row.most_dim_v;
  };
  const auto first = std::ranges::find_if(sm90_tuned_rows, holds);
  const auto end = std::find_if(first, sm90_tuned_rows.end(), [&](const Sm90TunedRow& row) {
    return row.scores != scores || row.fp8_weights != fp8_weights || row.most_dim != first->most_dim ||
           row.most_dim_v != first->most_dim_v;
  });
  return {first, end};
}

// Returns the number of heads whose rows can share a tile. Only problems with few query rows have such tiles.
int packable_heads(const Problem& p, const Sm90Config& tiles) {
  const int64_t group = p.group(), rows = tiles.block_m();
  if (p.invariant || TypicalLengths::of(p).q >= static_cast<double>(rows)) return 1;
  return group >= 1 && group <= rows && rows % group == 0 ? static_cast<int>(group) : 1;
}

// Buffers for bias and mask take shared memory from the other buffers.
void fit_stages(Sm90Config& c, const Problem& p, const Device& device) {
  c.head_dim = static_cast<int>(p.head_dim), c.head_dim_v = static_cast<int>(p.head_dim_v);
  c.bias = p.bias.dtype, c.mask = p.mask.present();
  c.q = p.q, c.k = p.k, c.v = p.v, c.p_terms = Sm90Conversion(p).p_terms;
  constexpr int few_stages = 4;
  const auto fits = [&] { return Sm90Layout(c).bytes <= device.smem_per_block; };
  while (!fits() && c.kv_stages > few_stages) --c.kv_stages;
  if (!fits()) c.q_stages = 1;
  if (!fits()) c.score_stages = 1;
  while (!fits() && c.kv_stages > 2) --c.kv_stages;
}

}  // namespace

bool can_load_boxes(const Problem& p, const Sm90Config& tiles) {
  if (p.invariant || tiles.packed_heads > 1 || !common_score_access(p).boxes) return false;
  const auto has_columns = [&](const Broadcast& t) {
    return !t.present() || Sm90Layout::box_width(tiles, t.dtype, t.access.one_row) > 0;
  };
  return has_columns(p.bias) && has_columns(p.mask);
}

TypicalLengths TypicalLengths::of(const Problem& p) {
  const auto sequences = static_cast<double>(std::max<int64_t>(p.batch, 1));
  const auto mean = [&](int64_t total, int64_t dense) {
    return p.varlen ? static_cast<double>(total) / sequences : static_cast<double>(dense);
  };
  // With pages the number of all keys is not known before the launch.
  const double keys = p.page_size > 0 ? static_cast<double>(p.seqlen_k) : mean(p.total_k, p.seqlen_k);
  return {sequences, mean(p.total_q, p.seqlen_q), keys, p.seqlen_k};
}

Sm90Choice choose_sm90_tiles(const Problem& p, const Device& device) {
  const std::span<const Sm90TunedRow> rows = rows_of(p);
  const double before = conversion_us(p);
  Sm90Choice best{rows[0].tiles, before + estimated_us(p, device, rows[0], 1)};
  const auto consider = [&](const Sm90TunedRow& row, int heads_per_tile) {
    const double us = before + estimated_us(p, device, row, heads_per_tile);
    if (us >= best.us) return;
    best = {row.tiles, us};
    best.tiles.packed_heads = heads_per_tile;
  };
  // The second term needs registers that only the first row of tiles has.
  if (!p.invariant && Sm90Conversion(p).p_terms != 2)
    for (const Sm90TunedRow& row : rows.subspan(1)) consider(row, 1);
  // Only the first row has tiles for several heads. Otherwise, different lengths would need more than four kernels.
  const Sm90TunedRow& shared = rows_of(p, true)[0];
  if (const int heads = packable_heads(p, shared.tiles); heads > 1) consider(shared, heads);
  best.tiles.causal_or_local = p.position_mask.present();
  // Single elements of bias and mask need more registers than pairs. Larger blocks would spill registers. Whether
  // elements can be read in pairs can depend on lengths.
  best.tiles.boxes = can_load_boxes(p, best.tiles);
  const bool singly = p.invariant || !(best.tiles.boxes || common_score_access(p).pairs);
  if (p.bias.present() && p.mask.present() && singly) best.tiles.block_n = std::min(best.tiles.block_n, 64);
  if (best.tiles.boxes) {
    best.tiles.bias_row = p.bias.access.one_row, best.tiles.mask_row = p.mask.access.one_row;
    fit_stages(best.tiles, p, device);
  }
  return best;
}

// attention_sm80 has tiles of 32 rows (Sm80Rows::few), and four warps share their keys. The numbers come from
// measurements with 256 to 8192 keys.
double estimated_sm80_us(const Problem& p, const Device& device) {
  const int64_t heads = p.batch * p.heads_q;
  const bool converts = Sm90Conversion(p).bytes() > 0;  // by attention_sm90, which can take longer than its tiles
  if (!converts && 4 * heads * div_up(p.seqlen_q, 64) > 5 * device.sm_count)
    return std::numeric_limits<double>::infinity();
  const TypicalLengths lengths = TypicalLengths::of(p);
  const int64_t dim = std::max(p.head_dim, p.head_dim_v);
  const double key_us = dim <= 64    ? 0.0042
                        : dim <= 128 ? 0.0103
                                     : 0.025,
               tiles = static_cast<double>(heads) * std::ceil(lengths.q / 32),
               rounds = std::ceil(tiles / device.sm_count);
  return rounds * time_factor(p) * (2.7 + key_us * SeenKeys::of(p, lengths, 16).most);
}

}  // namespace rapt
