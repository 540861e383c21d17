// Emulates attention_sm90.cuh on this CPU and compares with the oracle, without a GPU. A block's threads are fibers
// (emulation.h); wgmma, TMA and its barriers are stand-ins (lab/emulation/ptx). The build copies the kernel's source
// beside the stand-ins.
#include "tests/cpu/emulation.h"
//
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "check/check.h"
#include "lab/emulation/cuda_words.h"
#include "operations/bind.h"
#include "operations/sdpa.h"

namespace rapt {
extern char memory[];  // the kernel declares it, too
alignas(1024) char memory[227 << 10];
}  // namespace rapt

#include "sm90/attention_sm90.cuh"

namespace rapt::test {
namespace {

constexpr Sm90Config config_of(DType dtype, int dim, int dim_v, int warpgroups, int block_n, int kv_stages,
                               bool masked) {
  Sm90Config c;
  c.q = c.k = c.v = c.out = dtype;
  c.head_dim = dim, c.head_dim_v = dim_v, c.warpgroups = warpgroups, c.block_n = block_n, c.kv_stages = kv_stages;
  c.q_stages = dim > 128 ? 1 : 2;
  c.causal_or_local = masked;
  return c;
}

struct MapDimension {
  int64_t size, stride;  // in elements
  int box = 1;
};

TensorMap map_of(const void* data, int element_bytes, std::initializer_list<MapDimension> dimensions, int swizzle) {
  cuda_emulation::EmulatedMap m{};
  m.base = static_cast<const char*>(data), m.element_bytes = element_bytes, m.swizzle = swizzle;
  std::fill_n(m.sizes, 5, 1), std::fill_n(m.box, 5, 1);
  int i = 0;
  for (const MapDimension& d : dimensions) {
    m.sizes[i] = d.size, m.box[i] = d.box;
    if (i > 0) m.strides[i - 1] = d.stride * element_bytes;
    ++i;
  }
  TensorMap map{};
  std::memcpy(&map, &m, sizeof m);
  return map;
}

template <const Sm90Config& cfg>
TensorMap q_map_of(const AttentionParams& a, const Problem& p) {
  const MapDimension channels{p.head_dim, 1, 64}, heads{p.heads_q, a.q.head, cfg.packed_heads},
      queries{p.varlen ? p.total_q : p.seqlen_q, a.q.row, cfg.block_m() / cfg.packed_heads},
      batch{p.varlen ? 1 : p.batch, a.q.batch};
  return cfg.packed_heads > 1 ? map_of(a.q.data, 2, {channels, heads, queries, batch}, 128)
                              : map_of(a.q.data, 2, {channels, queries, heads, batch}, 128);
}

template <const Sm90Config& cfg>
TensorMap kv_map_of(const AttentionParams& a, const TensorRef& t, const Problem& p, int64_t dim, PlaceSteps& places) {
  if (!a.pages.present())
    return map_of(t.data, 2,
                  {{dim, 1, 64},
                   {p.varlen ? p.total_k : p.seqlen_k, t.row, cfg.block_n},
                   {p.heads_k, t.head},
                   {p.varlen ? 1 : p.batch, t.batch}},
                  128);
  const int64_t stride = std::gcd(t.batch, t.head), last = (a.pages.pages - 1) * t.batch + (p.heads_k - 1) * t.head;
  places = {static_cast<int>(t.batch / stride), static_cast<int>(t.head / stride)};
  const bool whole = dim % 64 == 0;
  const int columns = whole ? static_cast<int>(dim / 64) : 1;
  return map_of(t.data, 2,
                {{whole ? 64 : dim, 1, 64},
                 {8, t.row, 8},
                 {columns, 64, columns},
                 {p.page_size / 8, 8 * t.row, cfg.page_rows / 8},
                 {last / stride + 1, stride}},
                128);
}

// The tensor map of a bias or a mask.
TensorMap score_map_of(const BroadcastRef& t, const Problem& p, const Sm90Config& c, bool one_row) {
  if (!t.present()) return {};
  const int bytes = bytes_of(t.dtype), width = Sm90Layout::box_width(c, t.dtype, one_row);
  return map_of(t.data, bytes,
                {{p.seqlen_k, 1, width / bytes},
                 {one_row ? 1 : p.seqlen_q, t.query, Sm90Layout::box_rows(c, one_row)},
                 {t.head == 0 ? 1 : p.heads_q, t.head},
                 {t.batch == 0 ? 1 : p.batch, t.batch}},
                one_row ? 16 : width);
}

template <const Sm90Config& cfg>
check::Kernel kernel_of(unsigned blocks) {
  emulated_shared = memory;
  return [blocks](const Problem& p, const check::Inputs& in, const check::Outputs& out) {
    check::SdpaCall call(p, in, out);
    const auto u = [](int64_t n) { return static_cast<unsigned>(n); };
    const AttentionParams a = attention_params(call.args, p);
    const int64_t heads = p.heads_q / cfg.packed_heads;
    const unsigned row_tiles = u((p.seqlen_q * cfg.packed_heads + cfg.block_m() - 1) / cfg.block_m());
    unsigned counters[2] = {0, 0};
    Sm90Params params{};
    params.q = q_map_of<cfg>(a, p);
    params.k = kv_map_of<cfg>(a, a.k, p, p.head_dim, params.k_places);
    params.v = kv_map_of<cfg>(a, a.v, p, p.head_dim_v, params.v_places);
    if (cfg.boxes) params.bias = score_map_of(a.bias, p, cfg, cfg.bias_row);
    if (cfg.boxes) params.mask = score_map_of(a.mask, p, cfg, cfg.mask_row);
    params.attention = a;
    params.scheduler = TileScheduler::of(row_tiles, u(p.batch), u(heads), u(p.group()), 1);
    params.items = u(p.batch * heads) * row_tiles;
    params.counters = counters;
    params.sequences = TileSequences::of(a);
    cuda_emulation::launch(std::min(blocks, params.items), static_cast<unsigned>(cfg.threads()),
                           reinterpret_cast<float*>(memory), static_cast<size_t>(Sm90Layout(cfg).bytes) / sizeof(float),
                           [&] { attention_sm90<cfg>(params); });
    EXPECT_EQ(counters[0], 0u);
    EXPECT_EQ(counters[1], 0u);
  };
}

template <const Sm90Config& cfg>
void expect_right(const std::string& line, check::Fill fill = check::Fill::normal, unsigned blocks = 3) {
  const check::Result result = check::check_problem(parse_problem(line), fill, 3, kernel_of<cfg>(blocks));
  EXPECT_TRUE(result.pass) << line << " " << check::name_of(fill) << ": " << result.message;
}

constexpr check::Fill normal = check::Fill::normal, huge = check::Fill::huge, hidden = check::Fill::hidden_nan;

class Sm90Emulated : public ::testing::Test {
 protected:
  void SetUp() override {
    RAPT_NEEDS_FIBERS();
#if defined(__SANITIZE_ADDRESS__) || RAPT_ADDRESS_SANITIZER
    GTEST_SKIP() << "the address sanitizer's fake stacks and fibers do not go together";
#endif
  }
};

constexpr Sm90Config with_turns(Sm90Config c) {
  c.ping_pong = true;
  return c;
}

TEST_F(Sm90Emulated, Dense) {
  static constexpr Sm90Config cfg = config_of(DType::f16, 64, 64, 2, 64, 4, false);
  expect_right<cfg>("f16 b2 h4:2 q70 k130 d64 lse");
  expect_right<cfg>("f16 b1 h2 q33 k64 d64 lse sinks", huge);
  expect_right<cfg>("f16 b1 h1 q200 k400 d64");
  expect_right<cfg>("f16 b2 h2 q130 k65 d64 layout=bshd lse");
}

TEST_F(Sm90Emulated, EveryEdgeOfATile) {
  static constexpr Sm90Config cfg = config_of(DType::f16, 16, 16, 2, 32, 5, true);
  for (const int rows : {1, 64, 65, 129})
    for (const int keys : {1, 32, 33, 97, 160})
      for (const char* mask : {"causal", "window=20,7", ""})
        expect_right<cfg>("f16 h1 q" + std::to_string(rows) + " k" + std::to_string(keys) + " d16 lse " + mask);
}

TEST_F(Sm90Emulated, Causal) {
  static constexpr Sm90Config cfg = config_of(DType::bf16, 128, 128, 2, 48, 3, true);
  expect_right<cfg>("bf16 b1 h2 q200 k200 d128 causal lse");
  expect_right<cfg>("bf16 b1 h2 q150 k90 d128 causal lse");
  expect_right<cfg>("bf16 b1 h2 q130 k300 d128 window=40,3 lse", huge);
}

TEST_F(Sm90Emulated, HiddenValuesReachNoRow) {
  static constexpr Sm90Config cfg = config_of(DType::f16, 64, 64, 2, 64, 2, true),
                              turns = with_turns(config_of(DType::bf16, 64, 64, 3, 32, 2, true));
  for (const char* mask : {"causal", "window=10,20"}) {
    expect_right<cfg>(std::string("f16 b2 h2 q150 k190 d64 lse ") + mask, hidden);
    expect_right<turns>(std::string("bf16 b2 h2 q250 k190 d64 lse ") + mask, hidden, 2);
  }
}

TEST_F(Sm90Emulated, PaddedAndUnequalHeadDims) {
  static constexpr Sm90Config odd = config_of(DType::f16, 80, 80, 2, 48, 2, true),
                              wide = config_of(DType::bf16, 192, 128, 2, 32, 2, true),
                              narrow = config_of(DType::f16, 40, 24, 2, 32, 2, false),
                              widest = config_of(DType::f16, 256, 256, 2, 16, 2, false);
  expect_right<odd>("f16 b1 h2 q100 k130 d80 causal lse");
  expect_right<wide>("bf16 b1 h2 q100 k130 d192:128 causal lse");
  expect_right<narrow>("f16 b1 h2 q100 k130 d40:24 lse");
  expect_right<widest>("f16 b1 h1 q70 k50 d256 lse");
}

TEST_F(Sm90Emulated, WarpgroupsTakeTurns) {
  static constexpr Sm90Config two = with_turns(config_of(DType::f16, 64, 64, 2, 32, 2, true)),
                              three = with_turns(config_of(DType::f16, 64, 64, 3, 48, 5, true));
  expect_right<two>("f16 b1 h2 q150 k190 d64 causal lse");
  expect_right<two>("f16 b1 h2 q150 k90 d64 window=9,0 lse");
  expect_right<three>("f16 b1 h3 q400 k410 d64 causal lse");
  expect_right<three>("f16 b3 h3 q100 k50 d64 causal lse");
}

TEST_F(Sm90Emulated, ADynamicScheduleTakesEveryTileOnce) {
  static constexpr Sm90Config cfg = config_of(DType::bf16, 64, 64, 2, 32, 2, true);
  for (const unsigned blocks : {1u, 2u, 7u, 100u})
    expect_right<cfg>("bf16 b2 h3 q300 k330 d64 causal lse", normal, blocks);
}

TEST_F(Sm90Emulated, PackedSequencesAndLengthsInUse) {
  static constexpr Sm90Config cfg = config_of(DType::f16, 64, 64, 2, 48, 2, true),
                              plain = config_of(DType::f16, 64, 64, 2, 48, 2, false);
  for (const auto fill : {normal, hidden}) {
    expect_right<cfg>("f16 h4:2 d64 varlen=17,0,140,1,64 causal lse", fill);
    expect_right<plain>("f16 h2 d64 varlen=17:40,0:3,140:1,1:0,64:129 lse", fill);
    expect_right<plain>("f16 b3 h2 q70 k150 d64 seqused=150,0,33 lse", fill);
    expect_right<cfg>("f16 b3 h2 q140 k150 d64 causal seqused=150,20,33 seqused_q=140,3,0 lse", fill);
  }
  expect_right<cfg>("f16 b2 h2 q70 k150 d64 causal q_start=90,10 lse");
}

TEST_F(Sm90Emulated, Pages) {
  constexpr auto paged = [](Sm90Config c, int page_rows) {
    c.page_rows = page_rows;
    return c;
  };
  // Several pages in a block; several blocks in a page; pages of 24 keys, which are copied in parts of 8.
  static constexpr Sm90Config small = paged(config_of(DType::bf16, 64, 64, 2, 32, 3, false), 16),
                              large = paged(config_of(DType::f16, 80, 40, 1, 32, 4, true), 32),
                              columns = paged(config_of(DType::bf16, 192, 128, 2, 32, 3, true), 16),
                              uneven = paged(config_of(DType::f16, 16, 16, 2, 32, 4, true), 8);
  for (const auto fill : {normal, hidden, check::Fill::seen_nan}) {
    expect_right<small>("bf16 b2 h4:2 q70 k300 d64 page=16 lse", fill);
    expect_right<small>("bf16 b3 h2 q70 k200 d64 page=16 seqused=200,0,33 seqused_q=70,5,0 lse", fill);
    expect_right<columns>("bf16 b2 h4:2 q70 k100 d192:128 page=16 causal seqused=100,33 lse", fill);
    expect_right<columns>("bf16 b1 h2 q70 k100 d192:128 page=16 causal layout=bshd", fill);
    expect_right<large>("f16 b2 h2 q70 k200 d80:40 page=64 causal seqused=200,97 lse", fill);
    expect_right<uneven>("f16 h4:2 d16 varlen=70:170,5:40,0:9,129:100 page=24 causal lse sinks", fill);
    expect_right<uneven>("f16 b2 h2 q40 k300 d16 page=24 window=50,3 lse", fill);
  }
}

TEST_F(Sm90Emulated, WeightsBeforeMaxima) {
  static constexpr Sm90Config cfg = with_turns(config_of(DType::bf16, 64, 64, 2, 32, 3, true)),
                              full = config_of(DType::f16, 64, 64, 2, 64, 4, false),
                              three = with_turns(config_of(DType::f16, 64, 64, 3, 48, 5, true));
  for (const auto fill :
       {normal, huge, hidden, check::Fill::outlier, check::Fill::rescale, check::Fill::rescale_reversed}) {
    expect_right<cfg>("bf16 b2 h2 q250 k190 d64 causal lse", fill, 2);
    expect_right<cfg>("bf16 b1 h2 q150 k300 d64 window=40,3 lse", fill);
    expect_right<three>("f16 b1 h3 q400 k410 d64 causal lse sinks", fill);
    if (fill == hidden) continue;
    expect_right<full>("f16 b2 h4:2 q70 k330 d64 lse", fill);
    expect_right<full>("f16 h2 d64 varlen=17:40,0:3,140:1,1:0,64:129 lse", fill);
  }
  expect_right<cfg>("bf16 b3 h2 q140 k150 d64 causal seqused=150,20,33 seqused_q=140,3,0 lse", hidden);
}

// Every query has the score `score(j)` for key j: q is 1 in channel 0, where k has the scores.
template <const Sm90Config& cfg, class Score>
void expect_right_for_scores(const std::string& line, const Score& score) {
  const Problem p = parse_problem(line);
  check::Inputs inputs = check::make_inputs(p, normal, 3);
  for (int64_t h = 0; h < p.heads_q; ++h)
    for (int64_t i = 0; i < p.seqlen_q; ++i)
      for (int64_t d = 0; d < p.head_dim; ++d) inputs.q.set({0, h, i, d}, d == 0 ? 1 : 0);
  for (int64_t h = 0; h < p.heads_k; ++h)
    for (int64_t j = 0; j < p.seqlen_k; ++j)
      for (int64_t d = 0; d < p.head_dim; ++d) inputs.k.set({0, h, j, d}, d == 0 ? score(j) : 0);
  const check::Outputs outputs = check::make_outputs(p);
  kernel_of<cfg>(1)(p, inputs, outputs);
  const check::Result result = check::judge(p, std::nullopt, inputs, outputs);
  EXPECT_TRUE(result.pass) << line << ": " << result.message;
}

// The first row_max is far below the scores of the keys that follow. Keys are visited from the last block on.
TEST_F(Sm90Emulated, LseAfterALargeCorrection) {
  static constexpr Sm90Config cfg = config_of(DType::f16, 64, 64, 1, 32, 3, false);
  for (const auto& [top, low] : {std::pair{0.23, -61.5}, std::pair{0.3, -59.0}, std::pair{0.01, -59.0},
                                 std::pair{0.2, -16.0}, std::pair{0.0, -100.0}})
    expect_right_for_scores<cfg>("f16 b1 h1 q64 k64 d64 scale=1 lse", [&](int64_t j) { return j < 32 ? top : low; });
}

// Logits near the largest float, which overflow if they are multiplied by log2(e).
TEST_F(Sm90Emulated, LseOfTheLargestLogits) {
  static constexpr Sm90Config cfg = config_of(DType::bf16, 64, 64, 1, 32, 3, false);
  for (const double sign : {1.0, -1.0})
    for (const char* words : {" lse", " lse sinks"})
      expect_right_for_scores<cfg>(std::string("bf16 b1 h2 q64 k64 d64 scale=1e30") + words,
                                   [&](int64_t j) { return sign * (j % 7 == 3 ? 3.2e8 : 3e8); });
}

// The first 16 scores of each block are masked, infinitely small, or much smaller than the others.
TEST_F(Sm90Emulated, FirstScoresAreNoSample) {
  static constexpr Sm90Config cfg = config_of(DType::f16, 64, 64, 1, 32, 3, false);
  for (const double low : {-30.0, -6.0, -500.0, -std::numeric_limits<double>::infinity()})
    expect_right_for_scores<cfg>("f16 b1 h1 q64 k90 d64 scale=1",
                                 [&](int64_t j) { return j % 32 < 16 ? low : 0.125 * static_cast<double>(j % 5); });
}

constexpr Sm90Config packed(Sm90Config c, int heads) {
  c.packed_heads = heads;
  return c;
}

TEST_F(Sm90Emulated, RowsOfAGroupShareATile) {
  static constexpr Sm90Config four = packed(with_turns(config_of(DType::bf16, 64, 64, 2, 32, 3, true)), 4),
                              eight = packed(config_of(DType::f16, 64, 64, 3, 48, 4, true), 8),
                              full = packed(config_of(DType::f16, 64, 64, 2, 64, 4, false), 2);
  for (const auto fill : {normal, hidden}) {
    expect_right<four>("bf16 b2 h8:2 q1 k190 d64 causal lse", fill, 2);
    expect_right<four>("bf16 b2 h8:2 q37 k190 d64 causal lse sinks", fill, 2);
    expect_right<four>("bf16 b1 h4:1 q70 k90 d64 window=20,3 lse", fill);
    expect_right<four>("bf16 b3 h4:1 q40 k150 d64 causal seqused=150,20,33 seqused_q=40,3,0 lse", fill);
    expect_right<eight>("f16 h16:2 d64 varlen=17:40,0:3,40:140,1:9,64:129 causal lse", fill);
  }
  expect_right<full>("f16 b2 h4:2 q70 k330 d64 lse");
  expect_right<full>("f16 b1 h2:1 q130 k65 d64 layout=bshd lse", huge);
}

TEST_F(Sm90Emulated, OneAndFourWarpgroups) {
  static constexpr Sm90Config one = config_of(DType::f16, 64, 64, 1, 48, 3, true),
                              four = with_turns(config_of(DType::bf16, 64, 64, 4, 64, 8, true));
  for (const auto fill : {normal, hidden}) {
    expect_right<one>("f16 b1 h2 q150 k190 d64 causal lse", fill);
    expect_right<one>("f16 h2 d64 varlen=17:40,0:3,40:140,64:129 window=30,5 lse", fill);
    expect_right<four>("bf16 b1 h3 q400 k410 d64 causal lse sinks", fill, 2);
    expect_right<four>("bf16 b2 h2 q250 k190 d64 window=40,3 lse", fill, 2);
  }
}

constexpr Sm90Config with_steps(Sm90Config c, bool softcap, DType bias, bool alibi, bool mask, bool pairs) {
  c.softcap = softcap, c.bias = bias, c.alibi = alibi, c.mask = mask, c.pairs = pairs;
  return c;
}

TEST_F(Sm90Emulated, SoftCapAndAlibi) {
  static constexpr Sm90Config capped = with_steps(config_of(DType::f16, 64, 64, 2, 48, 3, true), true, DType::none,
                                                  false, false, false),
                              alibi = with_steps(config_of(DType::bf16, 64, 64, 2, 32, 3, true), false, DType::none,
                                                 true, false, false),
                              both = with_steps(packed(config_of(DType::bf16, 64, 64, 2, 32, 3, true), 4), true,
                                                DType::none, true, false, false);
  for (const char* cap : {"softcap=1e-30", "softcap=0.3", "softcap=20", "softcap=1e4", "softcap=1e30"})
    for (const auto fill : {normal, huge, hidden})
      expect_right<capped>(std::string("f16 b1 h2 q100 k130 d64 causal lse ") + cap, fill);
  for (const auto fill : {normal, huge, hidden}) {
    expect_right<alibi>("bf16 b2 h4:2 q100 k130 d64 causal alibi lse", fill);
    expect_right<alibi>("bf16 b1 h2 q100 k130 d64 window=20,50 alibi scale=-0.3 lse", fill);
    expect_right<alibi>("bf16 h2 d64 varlen=17:40,0:3,140:1,1:0,64:200 alibi causal lse", fill);
    expect_right<both>("bf16 b2 h8:2 q37 k190 d64 causal softcap=5 alibi lse sinks", fill, 2);
  }
}

// Soft caps: a row has the same bits whatever scores the other rows of its warp have.
TEST_F(Sm90Emulated, SoftCapOfARowDoesNotDependOnOtherRows) {
  static constexpr Sm90Config cfg = [] {
    Sm90Config c = with_steps(config_of(DType::f16, 64, 64, 2, 48, 3, true), true, DType::none, false, false, false);
    c.out = DType::f32;
    return c;
  }();
  const Problem p = parse_problem("f16 out=f32 b1 h1 q70 k98 d64 softcap=20 lse");
  check::Inputs in = check::make_inputs(p, normal, 3);
  const check::Outputs small = check::make_outputs(p), large = check::make_outputs(p);
  kernel_of<cfg>(1)(p, in, small);
  constexpr int64_t changed = 5;
  for (int64_t d = 0; d < p.head_dim; ++d) in.q.set({0, 0, changed, d}, 64 * in.q.at({0, 0, changed, d}));
  kernel_of<cfg>(1)(p, in, large);
  for (int64_t i = 0; i < p.seqlen_q; ++i) {
    EXPECT_EQ(small.lse.at({0, 0, i}) == large.lse.at({0, 0, i}), i != changed) << i;
    for (int64_t d = 0; d < p.head_dim_v && i != changed; ++d)
      EXPECT_EQ(small.out.at({0, 0, i, d}), large.out.at({0, 0, i, d})) << i << ", " << d;
  }
}

constexpr Sm90Config with_boxes(Sm90Config c, DType bias, bool mask, bool bias_row, bool mask_row, int stages = 2) {
  c.bias = bias, c.mask = mask, c.boxes = true, c.bias_row = bias_row, c.mask_row = mask_row, c.score_stages = stages;
  return c;
}

// TMA loads bias and mask. Boxes have columns of 128, 64 and 32 bytes. The fill masked_rows hides whole blocks.
TEST_F(Sm90Emulated, BoxesOfBiasAndMask) {
  static constexpr Sm90Config base = config_of(DType::f16, 64, 64, 2, 64, 4, false),
                              wide = with_boxes(base, DType::f16, false, false, false),
                              narrow = with_boxes(config_of(DType::f16, 64, 64, 3, 48, 4, true), DType::bf16, false,
                                                  false, false, 1),
                              f32 = with_boxes(config_of(DType::f16, 64, 64, 1, 32, 4, false), DType::f32, false, false,
                                               false, 3),
                              bias_row = with_boxes(base, DType::f32, false, true, false);
  for (const auto fill : {normal, huge, hidden, check::Fill::masked_rows}) {
    expect_right<wide>("f16 b2 h4:2 q100 k136 d64 bias=f16[1,h,q,k] lse", fill);
    expect_right<narrow>("f16 b2 h2 q200 k248 d64 causal bias=bf16[b,1,q,k] lse", fill);
    expect_right<f32>("f16 b2 h2 q70 k84 d64 bias=f32[b,h,q,k] lse", fill);
    expect_right<bias_row>("f16 b2 h2 q100 k100 d64 bias=f32[b,1,1,k] lse", fill);
    expect_right<bias_row>("f16 b2 h2 q100 k100 d64 bias=f32[1,1,1,k] lse", fill);
  }
}
TEST_F(Sm90Emulated, BlocksThatTheMaskHides) {
  static constexpr Sm90Config
      base = config_of(DType::f16, 64, 64, 2, 64, 4, false),
      tile = with_boxes(base, DType::none, true, false, false),
      turns = with_boxes(with_turns(config_of(DType::f16, 64, 64, 3, 32, 4, true)), DType::none, true, false, false),
      wide = with_boxes(config_of(DType::f16, 64, 64, 2, 128, 4, true), DType::none, true, false, false, 1),
      row = with_boxes(with_turns(base), DType::none, true, false, true),
      both = with_boxes(with_turns(config_of(DType::f16, 64, 64, 2, 32, 4, true)), DType::f16, true, false, true),
      all = with_boxes(with_steps(config_of(DType::f16, 64, 64, 2, 32, 4, true), true, DType::none, true, false, false),
                       DType::f32, true, true, false);
  for (const auto fill : {normal, huge, hidden, check::Fill::seen_nan, check::Fill::masked_rows}) {
    expect_right<tile>("f16 b2 h2 q200 k400 d64 mask=[1,h,q,k] lse", fill);
    expect_right<turns>("f16 b2 h4:2 q300 k208 d64 causal mask=[b,1,q,k] lse sinks", fill);
    expect_right<turns>("f16 b3 h2 q200 k320 d64 window=100,30 seqused=320,31,0 mask=[b,1,q,k] lse", fill);
    expect_right<wide>("f16 b2 h2 q300 k400 d64 causal mask=[b,h,q,k] lse", fill);
    expect_right<row>("f16 b4 h2 q130 k400 d64 mask=[b,1,1,k] lse", fill);
    expect_right<row>("f16 b5 h2 q70 k144 d64 mask=[b,h,1,k] seqused_q=70,0,3,64,70 lse", fill);
    expect_right<both>("f16 b4 h2 q200 k208 d64 causal bias=f16[1,h,q,k] mask=[b,1,1,k] lse", fill);
    expect_right<all>("f16 b4 h2 q200 k208 d64 causal softcap=3 alibi bias=f32[b,h,1,k] mask=[b,1,q,k] lse", fill);
    expect_right<turns>("f16 h2 d64 varlen=17:40,0:3,140:140,170:320,64:129 causal mask=[b,1,q,k] lse", fill);
  }
  // The output is scaled down also if blocks were skipped since the last product.
  for (const auto fill : {check::Fill::rescale, check::Fill::rescale_reversed}) {
    expect_right<turns>("f16 b6 h1 q70 k608 d64 mask=[b,1,q,k] lse", fill);
    expect_right<row>("f16 b6 h1 q70 k608 d64 mask=[b,1,1,k] lse", fill);
  }
}

TEST_F(Sm90Emulated, BiasAndMask) {
  static constexpr Sm90Config base = config_of(DType::f16, 64, 64, 2, 48, 3, false),
                              pairs16 = with_steps(base, false, DType::f16, false, false, true),
                              pairs32 = with_steps(base, false, DType::f32, false, false, true),
                              single16 = with_steps(base, false, DType::bf16, false, false, false),
                              single32 = with_steps(base, false, DType::f32, false, false, false),
                              mask = with_steps(base, false, DType::none, false, true, true),
                              single_mask = with_steps(base, false, DType::none, false, true, false),
                              all = with_steps(config_of(DType::f16, 64, 64, 2, 32, 3, true), true, DType::f32, true,
                                               true, true);
  for (const auto fill : {normal, huge, hidden}) {
    expect_right<pairs16>("f16 b2 h4:2 q100 k130 d64 bias=f16[1,h,q,k] lse", fill);
    expect_right<pairs32>("f16 b2 h2 q100 k98 d64 bias=f32[b,1,1,k] lse", fill);
    expect_right<single16>("f16 b2 h2 q100 k131 d64 bias=bf16[b,h,q,k] lse", fill);
    expect_right<single32>("f16 b2 h2 q100 k130 d64 bias=f32[b,h,q,1] lse", fill);
    expect_right<mask>("f16 b3 h2 q130 k130 d64 mask=[b,1,1,k] lse", fill);
    expect_right<mask>("f16 b1 h2 q70 k50 d64 mask=[1,h,q,k] lse sinks", fill);
    expect_right<single_mask>("f16 b2 h2 q70 k97 d64 mask=[b,h,q,k] lse", fill);
    expect_right<all>("f16 b2 h2 q100 k130 d64 causal softcap=3 alibi bias=f32[b,h,q,k] mask=[b,1,q,k] lse", fill);
    expect_right<all>(
        "f16 b3 h2 q40 k150 d64 causal seqused=150,20,33 seqused_q=40,3,0 softcap=3 alibi "
        "bias=f32[b,h,q,k] mask=[b,1,q,k] lse",
        fill);
  }
}

// Replaces elements of the bias: value(i, j) is the element of query i and key j, or NaN to keep the element.
template <const Sm90Config& cfg, class Value>
void expect_right_for_bias(const std::string& line, const Value& value) {
  const Problem p = parse_problem(line);
  check::Inputs inputs = check::make_inputs(p, normal, 3);
  for (int64_t h = 0; h < p.heads_q; ++h)
    for (int64_t i = 0; i < p.seqlen_q; ++i)
      for (int64_t j = 0; j < p.seqlen_k; ++j)
        if (const double x = value(i, j); !std::isnan(x)) inputs.bias.set({0, h, i, j}, x);
  const check::Outputs outputs = check::make_outputs(p);
  kernel_of<cfg>(2)(p, inputs, outputs);
  const check::Result result = check::judge(p, std::nullopt, inputs, outputs);
  EXPECT_TRUE(result.pass) << line << ": " << result.message;
}

// Masks that are added to the scores: rows, blocks and single keys have the lowest finite value or -1e4.
TEST_F(Sm90Emulated, AdditiveMasks) {
  static constexpr Sm90Config f32 = with_steps(config_of(DType::f16, 64, 64, 2, 48, 3, true), false, DType::f32, false,
                                               false, true),
                              bf16 = with_steps(config_of(DType::bf16, 64, 64, 2, 48, 3, true), false, DType::bf16,
                                                false, false, false);
  constexpr double keep = std::numeric_limits<double>::quiet_NaN();
  for (const double low : {-3.4028234663852886e38, -1e30, -1e4, -std::numeric_limits<double>::infinity()})
    for (const char* words : {" lse", " lse sinks"}) {
      const auto expect = [&](const auto& is_low) {
        const auto value = [&](int64_t i, int64_t j) { return is_low(i, j) ? low : keep; };
        expect_right_for_bias<f32>(std::string("f16 b1 h2 q70 k98 d64 bias=f32[1,h,q,k]") + words, value);
        const double low16 = std::isfinite(low) ? std::max(low, -3.3895313892515355e38) : low;
        const auto value16 = [&](int64_t i, int64_t j) { return is_low(i, j) ? low16 : keep; };
        expect_right_for_bias<bf16>(std::string("bf16 b1 h2 q70 k98 d64 causal bias=bf16[1,h,q,k]") + words, value16);
      };
      expect([](int64_t i, int64_t) { return i % 3 == 0; });
      expect([](int64_t, int64_t) { return true; });
      expect([](int64_t, int64_t j) { return j >= 48; });
      expect([](int64_t, int64_t j) { return j < 48; });
      expect([](int64_t, int64_t j) { return j % 48 < 16; });
      expect([](int64_t i, int64_t j) { return j > i; });
      expect([](int64_t i, int64_t j) { return j != i % 97; });
    }
}

// Returns whether the sums of a warp's rows stay finite, if all scores of the first block are `first` and those of the
// next block are 0. Otherwise the kernel computes the tile again.
template <const Sm90Config& cfg>
bool computes_once(float first) {
  AttentionParams p{};
  float lse = 0;
  p.lse.data = &lse;  // with lse, the limit is lower
  bool finite = true;
  emulated_shared = memory;
  cuda_emulation::launch(1, 32, reinterpret_cast<float*>(memory), 32, [&] {
    RowSoftmax<cfg> softmax{{log2_e}, p};
    for (const float score : {first, 0.0f}) {
      float s[1][4][4];
      for (auto& tile : s[0]) std::fill(tile, tile + 4, score);
      if (softmax.weigh(s, NanPass::normal)) softmax.correct(s);
    }
    for (const float sum : softmax.row_sum) finite = finite && std::isfinite(sum);
  });
  return finite;
}

// With bias or ALiBi, much larger scores after the first block are usual. So they must not cost more passes.
TEST_F(Sm90Emulated, BiasAndAlibiNeedOnePass) {
  static constexpr Sm90Config plain = config_of(DType::bf16, 64, 64, 2, 32, 3, true),
                              bias = with_steps(plain, false, DType::f32, false, false, true),
                              alibi = with_steps(plain, true, DType::none, true, true, false);
  EXPECT_FALSE(computes_once<plain>(-1000));
  for (const float first : {-20.0f, -1000.0f, -10000.0f, -3.4028235e38f, minus_infinity}) {
    EXPECT_TRUE(computes_once<bias>(first)) << first;
    EXPECT_TRUE(computes_once<alibi>(first)) << first;
  }
}

// The rows of a tile belong to different heads, which have their own slopes, elements of bias and mask, and sinks.
TEST_F(Sm90Emulated, RowsOfAGroupHaveTheirOwnSteps) {
  static constexpr Sm90Config base = packed(config_of(DType::bf16, 64, 64, 2, 48, 3, true), 4),
                              alibi = with_steps(base, false, DType::none, true, false, false),
                              bias = with_steps(base, false, DType::f16, false, false, true),
                              mask = with_steps(base, true, DType::none, false, true, false),
                              all = with_steps(packed(config_of(DType::f16, 64, 64, 3, 32, 3, true), 8), true,
                                               DType::f32, true, true, false);
  for (const auto fill : {normal, hidden}) {
    expect_right<alibi>("bf16 b2 h8:2 q37 k150 d64 alibi lse", fill, 2);
    expect_right<bias>("bf16 b2 h8:2 q37 k150 d64 bias=f16[b,h,q,k] lse sinks", fill, 2);
    expect_right<bias>("bf16 h8:2 d64 varlen=17:40,0:3,40:140,1:10 causal bias=f16[1,h,1,k] lse", fill);
    expect_right<mask>("bf16 b2 h4:1 q40 k150 d64 window=60,9 softcap=3 mask=[b,h,q,k] lse", fill);
    expect_right<mask>("bf16 b2 h4:1 q40 k151 d64 causal softcap=3 mask=[1,h,1,k] lse", fill);
    expect_right<all>("f16 b1 h8:1 q37 k90 d64 causal softcap=3 alibi bias=f32[b,h,q,k] mask=[b,h,q,k] lse sinks",
                      fill);
    expect_right<all>(
        "f16 b3 h8:1 q40 k90 d64 seqused=90,20,33 seqused_q=40,3,0 softcap=3 alibi bias=f32[b,1,q,1] mask=[b,h,1,k] "
        "lse",
        fill);
  }
}

TEST_F(Sm90Emulated, PartialStatesAndSinks) {
  static constexpr Sm90Config cfg = [] {
    Sm90Config c = config_of(DType::bf16, 64, 64, 2, 64, 2, true);
    c.out = DType::f32;
    return c;
  }();
  expect_right<cfg>("bf16 out=f32 b1 h2 q100 k130 d64 causal lse partial");
  static constexpr Sm90Config sinks = config_of(DType::bf16, 64, 64, 2, 64, 2, true);
  expect_right<sinks>("bf16 b1 h2 q100 k50 d64 causal sinks lse");
}

}  // namespace
}  // namespace rapt::test
