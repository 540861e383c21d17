// Emulates attention_decode.cuh on this CPU and compares with the oracle, without a GPU. The blocks of a grid run one
// after the other, in a chosen order, so that each part of a tile is the last one to arrive in some test. Also tests
// how CTAs share the blocks of keys (decode.h).
#include "tests/cpu/emulation.h"
//
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "check/check.h"
#include "lab/emulation/cuda_words.h"
#include "operations/bind.h"
#include "operations/sdpa.h"
#include "tests/cpu/random_schedules.h"

namespace rapt {
extern char decode_memory[];  // the kernel declares it, too
alignas(1024) char decode_memory[227 << 10];
}  // namespace rapt

#include "sm80/attention_decode.cuh"

namespace rapt::test {
namespace {

TEST(BlockLine, RangesCoverEachBlockOnceAndHaveEqualSizes) {
  for (unsigned blocks = 1; blocks < 60; ++blocks)
    for (unsigned grid = 1; grid < 40; ++grid)
      for (const unsigned least : {1u, 2u, 7u}) {
        const BlockLine line = BlockLine::of(blocks, grid, least);
        const unsigned size = std::max((blocks + grid - 1) / grid, least);
        unsigned block = 0;
        for (unsigned cta = 0; cta < grid; ++cta) {
          ASSERT_EQ(line.begin(cta), block);
          for (unsigned i = 0; i < size && block < blocks; ++i, ++block)
            ASSERT_EQ(line.owner(block), cta) << blocks << " blocks, " << grid << " CTAs";
        }
        ASSERT_EQ(block, blocks);
        ASSERT_EQ(line.begin(grid), blocks);
      }
  EXPECT_EQ(BlockLine::of(0, 8, 1).begin(0), 0u);
  const BlockLine most = BlockLine::of(0x7fffffffu, 264, 1);
  EXPECT_EQ(most.begin(264), 0x7fffffffu);
  EXPECT_EQ(most.owner(0x7ffffffeu), 263u);
}

// Every part of every tile has a slot that no other part has.
TEST(TileParts, SlotsAreDistinct) {
  const std::vector<unsigned> tiles = {1, 5, 1, 1, 12, 3, 30, 2, 1, 9};
  const unsigned all = std::accumulate(tiles.begin(), tiles.end(), 0u);
  for (unsigned grid = 1; grid <= all; ++grid) {
    const BlockLine line = BlockLine::of(all, grid, 1);
    std::vector<int> used(2 * grid);
    unsigned first = 0;
    for (const unsigned blocks : tiles) {
      const TileParts parts = TileParts::of(line, first, blocks);
      for (unsigned i = 0; i < parts.count && parts.count > 1; ++i) {
        ASSERT_LT(parts.slot(i), used.size());
        ++used[parts.slot(i)];
      }
      first += blocks;
    }
    for (const int count : used) ASSERT_LE(count, 1) << grid;
  }
}

constexpr Sm80Config config_of(DType dtype, int dim, int block_m, int block_n, int warps_n, int stages) {
  Sm80Config c;
  c.q = c.k = c.v = c.out = dtype;
  c.head_dim = c.head_dim_v = dim, c.packs_heads = true;
  c.block_m = block_m, c.warps_m = block_m / 16, c.block_n = block_n, c.warps_n = warps_n, c.stages = stages;
  return c;
}

// How a launch runs: the largest grid, whether the last CTA runs first, the fewest blocks of a CTA, and with part_keys
// > 0 whether one CTA computes all parts of a tile.
struct Launch {
  unsigned ctas = 1;
  bool reversed = false;
  int least_blocks = 1;
  bool folds = false;
};

// Sets the work of a call with part_keys > 0, as the family does. Returns the number of CTAs.
unsigned divide_at_fixed_places(DecodeParams& params, const Sm80Config& c, const Problem& p, unsigned tiles,
                                const Launch& how) {
  const auto part_keys = static_cast<unsigned>(c.part_keys), keys = static_cast<unsigned>(p.seqlen_k);
  params.folds = how.folds;
  params.parts = FastDivmod::by(how.folds ? 1 : std::max(1u, (keys + part_keys - 1) / part_keys));
  params.units = tiles * params.parts.value;
  params.next_unit = params.arrivals++;
  params.slot_rows = static_cast<int>(std::clamp<int64_t>(p.seqlen_q * p.group(), 1, c.block_m));
  return std::min(params.units, how.ctas);
}

template <const Sm80Config& cfg>
void run(const Problem& p, const AttentionParams& attention, const Launch& how) {
  DecodeParams params;
  params.sm80.attention = attention;
  const auto row_tiles = static_cast<unsigned>((p.seqlen_q * p.group() + cfg.block_m - 1) / cfg.block_m),
             tiles = static_cast<unsigned>(p.batch * p.heads_k) * row_tiles;
  params.row_tiles = FastDivmod::by(row_tiles), params.heads_k = FastDivmod::by(static_cast<unsigned>(p.heads_k));
  params.least_blocks = how.least_blocks;
  unsigned ctas = how.ctas;
  size_t slots_of_tiles = 0;
  std::vector<unsigned> arrivals(1 + tiles);
  params.arrivals = arrivals.data();
  if (cfg.part_keys > 0) {
    ctas = divide_at_fixed_places(params, cfg, p, tiles, how);
    slots_of_tiles = how.folds ? 0 : params.units;
  } else if (!attention.has_lists()) {
    const unsigned most = how.least_blocks > 1 ? 2 : ~0u;
    ctas = divide_equal_tiles(params, cfg, tiles, how.ctas, most);
    EXPECT_LE(ctas, std::max(tiles, how.ctas));
    EXPECT_LE(params.parts.value, most);
  }
  const auto slot_floats = static_cast<size_t>(cfg.block_m * decode_row_floats(cfg));
  std::vector<float> slots((2 * how.ctas + slots_of_tiles) * slot_floats, std::nanf(""));
  params.slots = slots.data();
  for (unsigned i = 0; i < ctas; ++i) {
    const unsigned cta = how.reversed ? ctas - 1 - i : i;
    cuda_emulation::launch(1, static_cast<unsigned>(cfg.threads()), reinterpret_cast<float*>(decode_memory),
                           static_cast<size_t>(smem_bytes(cfg)) / sizeof(float), [&] {
                             blockIdx.x = cta, gridDim.x = ctas;
                             attention_decode<cfg>(params);
                           });
  }
  for (const unsigned count : arrivals) EXPECT_EQ(count, 0u) << "a counter is not back at 0";
}

template <const Sm80Config& cfg>
void expect_right(const std::string& line, check::Fill fill, const Launch& how) {
  emulated_shared = decode_memory;
  const check::Result result =
      check::check_problem(parse_problem(line), fill, 3, [&](const Problem& p, const auto& in, const auto& out) {
        check::SdpaCall call(p, in, out);
        run<cfg>(p, attention_params(call.args, p), how);
      });
  EXPECT_TRUE(result.pass) << line << " " << check::name_of(fill) << ", " << how.ctas << " CTAs: " << result.message;
}

constexpr check::Fill normal = check::Fill::normal, huge = check::Fill::huge, hidden = check::Fill::hidden_nan;

class DecodeEmulated : public ::testing::Test {
 protected:
  void SetUp() override { RAPT_NEEDS_FIBERS(); }
};

TEST_F(DecodeEmulated, OneQueryOfEachHead) {
  static constexpr Sm80Config cfg = [] {
    Sm80Config c = config_of(DType::f16, 64, 16, 16, 4, 3);
    c.q_in_registers = true;
    return c;
  }();
  for (const unsigned ctas : {1u, 2u, 5u, 16u, 40u})
    for (const bool reversed : {false, true})
      expect_right<cfg>("f16 b2 h4:2 q1 k330 d64 lse sinks", normal, {ctas, reversed});
  expect_right<cfg>("f16 b2 h4:2 q1 k330 d64 lse", huge, {7});
  expect_right<cfg>("f16 b2 h4:2 q1 k330 d64 lse", normal, {40, false, 4});
}

TEST_F(DecodeEmulated, UnequalLengths) {
  static constexpr Sm80Config cfg = config_of(DType::bf16, 32, 16, 16, 2, 2);
  for (const unsigned ctas : {1u, 3u, 11u, 50u})
    for (const bool reversed : {false, true}) {
      expect_right<cfg>("bf16 b6 h4:2 q1 k300 d32 seqused=300,0,1,64,65,32 lse", hidden, {ctas, reversed});
      expect_right<cfg>("bf16 h4:2 d32 varlen=1:300,0:40,5:0,3:70,9:33 lse sinks", normal, {ctas, reversed});
    }
  // More sequences than threads: a thread counts the blocks of several sequences.
  std::string lengths = "3";
  for (int i = 1; i < 150; ++i) lengths += "," + std::to_string(i % 7 == 0 ? 0 : i * 37 % 90);
  expect_right<cfg>("bf16 b150 h2:1 q1 k90 d32 seqused=" + lengths + " lse", normal, {20});
}

TEST_F(DecodeEmulated, SeveralQueries) {
  static constexpr Sm80Config cfg = [] {
    Sm80Config c = config_of(DType::f16, 32, 32, 16, 2, 2);
    c.causal_or_local = true;
    return c;
  }();
  for (const unsigned ctas : {1u, 4u, 30u}) {
    expect_right<cfg>("f16 b2 h8:2 q7 k200 d32 causal lse", normal, {ctas});
    expect_right<cfg>("f16 b2 h4:1 q21 k200 d32 causal window=50,0 lse", hidden, {ctas, true});
    expect_right<cfg>("f16 b2 h4:1 q9 k200 d32 window=20,3 seqused_q=9,2 seqused=200,11 lse", hidden, {ctas});
    expect_right<cfg>("f16 b2 h4:1 q9 k90 d32 causal lse", check::Fill::seen_nan, {ctas, true});
    expect_right<cfg>("f16 b1 h4:1 q40 k9 d32 causal lse", normal, {ctas});  // rows that see no key
  }
}

TEST_F(DecodeEmulated, OperationsOnScores) {
  static constexpr Sm80Config cfg = [] {
    Sm80Config c = config_of(DType::bf16, 32, 16, 16, 2, 2);
    c.scale_in_exp2 = false, c.softcap = true, c.bias = DType::f32, c.alibi = true, c.mask = true;
    c.causal_or_local = true;
    return c;
  }();
  for (const auto fill : {normal, hidden, check::Fill::masked_rows})
    expect_right<cfg>("bf16 b2 h4:2 q5 k170 d32 causal softcap=20 alibi bias=f32[1,h,q,k] mask=[b,h,q,k] sinks lse",
                      fill, {9, true});
}

TEST_F(DecodeEmulated, Fp8) {
  static constexpr auto fp8 = [](DType q, DType k, int k_block, int v_block, bool q_rows) {
    Sm80Config c = config_of(q, 64, 16, 32, 2, 2);
    c.k = c.v = k, c.out = DType::bf16;
    c.k_descale_block = k_block, c.v_descale_block = v_block, c.q_row_descales = q_rows;
    return c;
  };
  static constexpr Sm80Config head = fp8(DType::e4m3, DType::e4m3, 0, 0, true),
                              keys = fp8(DType::bf16, DType::e4m3, 0, 0, false),
                              token = fp8(DType::e5m2, DType::e5m2, 1, 1, true),
                              block = fp8(DType::e4m3, DType::e4m3, 64, 64, true);
  for (const unsigned ctas : {1u, 9u}) {
    expect_right<head>("e4m3 out=bf16 b2 h4:2 q3 k200 d64 scales=head lse", normal, {ctas, true});
    expect_right<keys>("q=bf16 k=e4m3 v=e4m3 b2 h4:2 q3 k200 d64 k_scales=head v_scales=head lse sinks", normal,
                       {ctas});
    expect_right<token>("e5m2 out=bf16 b2 h4:2 q3 k200 d64 scales=token lse", hidden, {ctas});
    expect_right<block>("e4m3 out=bf16 b2 h4:2 q3 k200 d64 scales=block64 lse", normal, {ctas});
  }
  static constexpr auto paged = [](Sm80Config c) {
    c.paged = true;
    return c;
  };
  static constexpr Sm80Config paged_token = paged(token), paged_block = paged(block);
  for (const std::string size : {" page=1", " page=7", " page=64", " page=256"}) {
    expect_right<paged_token>("e5m2 out=bf16 b3 h4:2 q3 k200 d64 seqused=200,0,33 scales=token lse" + size, hidden,
                              {9});
    expect_right<paged_block>("e4m3 out=bf16 b2 h4:2 q3 k200 d64 seqused=70,200 scales=block64 lse" + size, normal,
                              {9});
  }
}

TEST_F(DecodeEmulated, Pages) {
  static constexpr Sm80Config cfg = [] {
    Sm80Config c = config_of(DType::bf16, 32, 16, 16, 2, 2);
    c.paged = true;
    return c;
  }();
  for (const std::string size : {" page=1", " page=5", " page=16", " page=100", " page=512"})
    for (const unsigned ctas : {1u, 11u}) {
      expect_right<cfg>("bf16 b6 h4:2 q1 k300 d32 seqused=300,0,1,64,65,32 lse" + size, hidden, {ctas, true});
      expect_right<cfg>("bf16 h4:2 d32 varlen=1:300,0:40,5:0,3:70,9:33 lse sinks" + size, normal, {ctas});
    }
}

// Head dims above 256, with K and V in pieces, or with V read from K.
TEST_F(DecodeEmulated, WideHeadDims) {
  static constexpr auto wide = [](int block_m, int warps_m, int warps_n, bool v_in_k) {
    Sm80Config c = config_of(DType::bf16, 272, block_m, 16, warps_n, 2);
    c.warps_m = warps_m, c.head_dim_v = 256, c.v_slice = 512, c.v_piece = 16;
    c.v_in_k = v_in_k, c.k_piece = v_in_k ? 272 : 64;
    c.causal_or_local = true;
    return c;
  };
  static constexpr Sm80Config pieces = wide(32, 2, 2, false), latent = wide(16, 1, 2, true),
                              latent_2 = wide(32, 2, 4, true);
  for (const unsigned ctas : {1u, 9u})
    for (const auto fill : {normal, hidden, check::Fill::seen_nan}) {
      expect_right<pieces>("bf16 b2 h4:1 q9 k150 d272:256 causal seqused=150,33 lse", fill, {ctas, true});
      expect_right<latent>("bf16 b2 h4:1 q4 k150 d272:256 causal v_in_k lse sinks", fill, {ctas, true});
      expect_right<latent_2>("bf16 b2 h4:1 q9 k150 d272:256 window=40,0 v_in_k seqused=150,70 lse", fill, {ctas});
    }
  static constexpr auto paged = [](Sm80Config c) {
    c.paged = true;
    return c;
  };
  static constexpr Sm80Config paged_pieces = paged(pieces), paged_latent = paged(latent);
  for (const std::string size : {" page=1", " page=16", " page=100"}) {
    expect_right<paged_pieces>("bf16 b3 h4:1 q9 k150 d272:256 causal seqused=150,0,33 lse" + size, hidden, {9});
    expect_right<paged_latent>("bf16 b3 h4:1 q4 k150 d272:256 causal v_in_k seqused=150,0,33 lse" + size, hidden, {9});
  }
}

// `invariant`: parts of 64 keys.
constexpr Sm80Config invariant_config(DType dtype, int dim, int warps_m) {
  Sm80Config c = config_of(dtype, dim, 16 * warps_m, 16, 2, 2);
  c.part_keys = 64, c.causal_or_local = true;
  return c;
}
constexpr Sm80Config with_pages(Sm80Config c) {
  c.paged = true;
  return c;
}

// Runs the emulated kernel with a random number and order of CTAs, and with either way to compute the parts. (A GPU
// would choose by the number of CTAs that run at once and by the memory.)
template <const Sm80Config& dense, const Sm80Config& paged>
void expect_schedules(const ScheduleProblem& problem, int calls) {
  SCOPED_TRACE(problem.dtypes + problem.options);
  emulated_shared = decode_memory;
  unsigned launches = 0;
  RandomSchedules schedules(problem, 2, [&](Call& call) {
    const unsigned n = launches++;
    const Launch how{1 + n * 7 % 40, n % 3 == 0, 1, n / 2 % 2 == 0};
    call.out = check::make_outputs(call.problem);
    check::SdpaCall sdpa(call.problem, call.in, call.out);
    const AttentionParams params = attention_params(sdpa.args, call.problem);
    call.problem.page_size > 0 ? run<paged>(call.problem, params, how) : run<dense>(call.problem, params, how);
  });
  expect_oracle(schedules.whole().back());
  schedules.expect_same_bits(calls);
}

TEST_F(DecodeEmulated, InvariantSchedules) {
  static constexpr Sm80Config f16 = invariant_config(DType::f16, 32, 2), paged_f16 = with_pages(f16);
  expect_schedules<f16, paged_f16>({"f16", " causal", 4, 2, 32, {330, 70, 150}, 40, {1, 7, 16, 64}}, quick() ? 10 : 60);
  expect_schedules<f16, paged_f16>({"f16", " causal window=90,0 sinks", 4, 2, 32, {330, 150}, 40, {16, 5}},
                                   quick() ? 5 : 40);
  static constexpr Sm80Config bf16 = [] {
    Sm80Config c = invariant_config(DType::bf16, 16, 1);
    c.scale_in_exp2 = false, c.softcap = true, c.alibi = true, c.far_positions = true;
    return c;
  }();
  static constexpr Sm80Config all = [] {
    Sm80Config c = invariant_config(DType::f16, 32, 2);
    c.causal_or_local = false;
    return c;
  }();
  static constexpr Sm80Config paged_all = with_pages(all);
  expect_schedules<all, paged_all>({"f16", "", 4, 2, 32, {200, 130}, 40, {16}}, quick() ? 5 : 30);
  static constexpr Sm80Config loads = [] {
    Sm80Config c = invariant_config(DType::f16, 32, 2);
    c.scale_in_exp2 = false, c.bias = DType::f16, c.mask = true;
    return c;
  }();
  static constexpr Sm80Config paged_loads = with_pages(loads);
  expect_schedules<loads, paged_loads>(
      {"f16", " causal bias=f16[b,h,q,k] mask=[b,h,q,k]", 4, 2, 32, {200, 130}, 40, {16}}, quick() ? 5 : 30);
  static constexpr Sm80Config paged_bf16 = with_pages(bf16);
  expect_schedules<bf16, paged_bf16>({"bf16", " causal softcap=20 alibi", 3, 1, 16, {200, 90}, 20, {16, 33}},
                                     quick() ? 5 : 40);
  static constexpr Sm80Config e4m3 = [] {
    Sm80Config c = invariant_config(DType::bf16, 32, 2);
    c.k = c.v = DType::e4m3, c.block_n = 32;
    return c;
  }();
  static constexpr Sm80Config paged_e4m3 = with_pages(e4m3);
  expect_schedules<e4m3, paged_e4m3>(
      {"q=bf16 k=e4m3 v=e4m3", " causal k_scales=head v_scales=head", 4, 1, 32, {250, 100}, 40, {16, 64}},
      quick() ? 5 : 40);
  static constexpr Sm80Config token = [] {
    Sm80Config c = e4m3;
    c.k_descale_block = c.v_descale_block = 1;
    return c;
  }();
  static constexpr Sm80Config paged_token = with_pages(token);
  expect_schedules<token, paged_token>(
      {"q=bf16 k=e4m3 v=e4m3", " causal k_scales=token v_scales=token", 2, 1, 32, {250, 100}, 40, {16}},
      quick() ? 5 : 20);
}

// Both ways to compute the parts, against the oracle: rows that see no key, hidden and seen NaN, unused rows.
TEST_F(DecodeEmulated, InvariantParts) {
  static constexpr Sm80Config cfg = invariant_config(DType::f16, 32, 1);
  for (const bool folds : {false, true})
    for (const Launch& how : {Launch{1, false, 1, folds}, {13, true, 1, folds}, {100, false, 1, folds}}) {
      expect_right<cfg>("f16 b2 h4:2 q20 k330 d32 causal lse sinks invariant", normal, how);
      expect_right<cfg>("f16 b2 h4:2 q40 k200 d32 causal window=50,0 lse invariant", hidden, how);
      expect_right<cfg>("f16 b2 h4:1 q9 k300 d32 causal lse invariant", check::Fill::seen_nan, how);
      expect_right<cfg>("f16 b2 h4:1 q9 k200 d32 window=20,3 seqused_q=9,2 seqused=200,11 lse invariant", hidden, how);
      expect_right<cfg>("f16 b1 h4:1 q90 k70 d32 causal lse invariant", huge, how);
      expect_right<cfg>("f16 h4:2 d32 varlen=1:300,0:40,5:0,3:70,9:133 causal lse invariant", normal, how);
    }
}

}  // namespace
}  // namespace rapt::test
