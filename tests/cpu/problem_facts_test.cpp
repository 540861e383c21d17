// Tests what is computed from a Problem: inputs of planning, geometry and access classes, overlap, sequences, and flops
// and bytes (compared with counting one by one).
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>
#include <set>
#include <tuple>

#include "base/error.h"
#include "problem/length_class.h"
#include "problem/problem.h"

namespace rapt {
namespace {

// Plans.

const char* const plan_line = "bf16 b2 h8:4 q40 k60 d64:32 window=5,6 softcap=2 scale=0.5 q_start=1 splits=2 mod=ab";

TEST(SamePlan, SeesEverythingThatAPlanMayDependOn) {
  const std::function<void(Problem&)> changes[] = {
      [](Problem& p) { p.op = Op::merge; },
      [](Problem& p) { p.q = DType::f16; },
      [](Problem& p) { p.k = DType::f16; },
      [](Problem& p) { p.v = DType::f16; },
      [](Problem& p) { p.out = DType::f16; },
      [](Problem& p) { p.batch = 3; },
      [](Problem& p) { p.heads_q = 16; },
      [](Problem& p) { p.heads_k = 2; },
      [](Problem& p) { p.seqlen_q = 41; },
      [](Problem& p) { p.seqlen_k = 61; },
      [](Problem& p) { p.head_dim = 32; },
      [](Problem& p) { p.head_dim_v = 64; },
      [](Problem& p) { p.position_mask.causal = Causal::bottom_right; },
      [](Problem& p) { p.position_mask.causal = Causal::top_left; },
      [](Problem& p) { p.position_mask = {}; },
      [](Problem& p) { p.position_mask.window_right = -1; },
      [](Problem& p) { p.position_mask.window_left = 6, p.position_mask.window_right = 5; },
      [](Problem& p) { p.softcap.reset(); },
      [](Problem& p) { p.softcap = 1e-32f; },
      [](Problem& p) { p.scale = -0.5f; },
      [](Problem& p) { p.scale = 0.0f; },
      [](Problem& p) { p.scale = 1e-32f; },
      [](Problem& p) { p.alibi = true; },
      [](Problem& p) { p.alibi_per_batch = true; },
      [](Problem& p) { p.bias.dtype = DType::f32; },
      [](Problem& p) {
        p.bias = {DType::f32, {true, false, false, false}};
      },
      [](Problem& p) {
        p.bias = {DType::f32, {false, false, false, true}};
      },
      [](Problem& p) { p.mask.dtype = DType::u8; },
      [](Problem& p) { p.mask.dtype = DType::u8, p.mask.access.pairs = true; },
      [](Problem& p) { p.mask.dtype = DType::u8, p.mask.access.octets = true; },
      [](Problem& p) { p.mask.dtype = DType::u8, p.mask.access.boxes = true; },
      [](Problem& p) { p.mask.dtype = DType::u8, p.mask.access.one_row = true; },
      [](Problem& p) {
        p.mask = {DType::u8, {true, false, false, false}};
      },
      [](Problem& p) { p.sinks = true; },
      [](Problem& p) { p.varlen = true; },
      [](Problem& p) { p.total_q = 80; },
      [](Problem& p) { p.total_k = 80; },
      [](Problem& p) { p.seqused = true; },
      [](Problem& p) { p.seqused_q = true; },
      [](Problem& p) { p.page_size = 2; },
      [](Problem& p) { p.q_scales = ScaleKind::head; },
      [](Problem& p) { p.k_scales = ScaleKind::head; },
      [](Problem& p) { p.v_scales = ScaleKind::head; },
      [](Problem& p) { p.v_scales = ScaleKind::channel; },
      [](Problem& p) { p.smooth_k = true; },
      [](Problem& p) { p.hadamard = true; },
      [](Problem& p) { p.has_starts = false; },
      [](Problem& p) { p.splits = 3; },
      [](Problem& p) { p.mod = "ac"; },
      [](Problem& p) { p.mod = ""; },
      [](Problem& p) { p.lse = true; },
      [](Problem& p) { p.partial = true; },
      [](Problem& p) { p.invariant = true; },
      [](Problem& p) { p.v_in_k = true; },
      [](Problem& p) { p.pv = PvMode::f16; },
      [](Problem& p) { p.pv = PvMode::fp8; },
      [](Problem& p) { p.acc = AccMode::f16; },
      [](Problem& p) { p.acc = AccMode::tf32; },
      [](Problem& p) { p.acc = AccMode::tf32, p.pv = PvMode::f16; },
      [](Problem& p) { p.access_q.unit_last = false; },
      [](Problem& p) { p.access_q.tma = false; },
      [](Problem& p) { p.access_k.aligned16 = false; },
      [](Problem& p) { p.access_v.tma = false; },
      [](Problem& p) { p.access_out.unit_last = false; },
  };
  const Problem base = parse_problem(plan_line);
  std::set<uint64_t> hashes{plan_hash(base)};
  std::vector<Problem> problems{base};
  for (const auto& change : changes) {
    problems.push_back(base);
    change(problems.back());
    hashes.insert(plan_hash(problems.back()));
  }
  for (size_t i = 0; i < problems.size(); ++i)
    for (size_t j = 0; j < problems.size(); ++j)
      EXPECT_EQ(same_plan(problems[i], problems[j]), i == j) << i << " " << j;
  EXPECT_EQ(hashes.size(), problems.size());
}

TEST(SamePlan, DoesNotSeeRunTimeValues) {
  const Problem base = parse_problem(plan_line);
  for (const char* line : {"bf16 b2 h8:4 q40 k60 d64:32 window=5,6 softcap=9 scale=0.25 q_start=7,8 splits=2 mod=ab",
                           "bf16 b2 h8:4 q40 k60 d64:32 window=5,6 softcap=2 k_start=1 splits=2 mod=ab layout=bshd",
                           "bf16 b2 h8:4 q40 k60 d64:32 window=5,6 softcap=2 k_start=1 splits=2 mod=ab "
                           "q_strides=80000,128,1024,1 out_strides=65536,64,1024,1"}) {
    const Problem other = parse_problem(line);
    EXPECT_FALSE(base == other);
    EXPECT_TRUE(same_plan(base, other)) << line;
    EXPECT_EQ(plan_hash(base), plan_hash(other)) << line;
  }
  const Problem a = parse_problem("f16 h2 d64 varlen=3,9,4"), b = parse_problem("f16 h2 d64 varlen=6,1,9");
  EXPECT_TRUE(same_plan(a, b));
  EXPECT_EQ(plan_hash(a), plan_hash(b));
  EXPECT_FALSE(same_plan(a, parse_problem("f16 h2 d64 varlen=3,9,5")));
  EXPECT_FALSE(same_plan(a, parse_problem("f16 h2 d64 varlen=3,8,5")));
}

// A thousand sequence lengths give different plans. Their hashes must differ in the low bits, which a table uses.
TEST(PlanHash, SpreadsNeighbouringSizes) {
  std::set<uint64_t> whole, low;
  Problem p;
  for (int64_t q = 0; q < 1000; ++q) {
    p.seqlen_q = q;
    whole.insert(plan_hash(p)), low.insert(plan_hash(p) & 0xffff);
  }
  EXPECT_EQ(whole.size(), 1000u);
  EXPECT_GE(low.size(), 970u);  // 1000 random draws of 65536 leave 992.4 on average, standard deviation 2.7
}

// Classes of lengths.

TEST(LengthClass, EightAnOctave) {
  for (int64_t n = 0; n <= 16; ++n) EXPECT_EQ(longest_of_class(n), n);
  const std::pair<int64_t, int64_t> classes[] = {{17, 18},   {18, 18},     {31, 32},     {33, 36},    {65, 72},
                                                 {77, 80},   {96, 96},     {384, 384},   {385, 416},  {512, 512},
                                                 {513, 576}, {4095, 4096}, {4096, 4096}, {4097, 4608}};
  for (const auto& [length, longest] : classes) EXPECT_EQ(longest_of_class(length), longest) << length;
}

TEST(LengthClass, BordersOfFamiliesAreBordersOfClasses) {
  constexpr int64_t limit = int64_t{1} << 28, most = int64_t{1} << 40;
  EXPECT_EQ(longest_of_class(limit - 1), limit - 1);
  EXPECT_EQ(longest_of_class(limit - 1000), limit - 1);
  EXPECT_EQ(longest_of_class(limit), limit);
  EXPECT_GT(longest_of_class(limit + 1), limit);
  EXPECT_EQ(longest_of_class(most - 1), most);
  EXPECT_EQ(longest_of_class(most), most);
  int64_t classes = 0;
  for (int64_t n = 0, before = -1; n <= 1 << 20; ++n) {
    const int64_t longest = longest_of_class(n);
    ASSERT_GE(longest, n);
    ASSERT_LE(longest, n + n / 8) << n;
    ASSERT_GE(longest, before);
    ASSERT_EQ(longest_of_class(longest), longest);
    classes += longest != before ? 1 : 0;
    before = longest;
  }
  EXPECT_EQ(classes, 17 + 8 * 16);
}

TEST(LengthClass, ProblemsLoseTheirLists) {
  const Problem problem = parse_problem("f16 h2 d64 varlen=30,90,40 causal lse layout=bshd");
  const Problem longest = longest_of_class(problem);
  EXPECT_EQ(longest.seqlen_q, 96);
  EXPECT_EQ(longest.total_q, 160);
  EXPECT_TRUE(longest.lengths_q.empty());
  EXPECT_TRUE(same_plan(longest, longest_of_class(parse_problem("f16 h2 d64 varlen=95,5,58 causal lse"))));
  EXPECT_FALSE(same_plan(longest, longest_of_class(parse_problem("f16 h2 d64 varlen=97,5,58 causal lse"))));
}

// Scale and geometry.

TEST(Problem, DefaultScaleIsTheReciprocalRoot) {
  Problem p;
  p.head_dim = 80;
  EXPECT_EQ(p.softmax_scale(), 0.111803398874989f);
  p.scale = 0.0f;
  EXPECT_EQ(p.softmax_scale(), 0.0f);
}

TEST(Geometry, FollowsLayoutAndStrides) {
  const auto strides = [](const char* line, Slot slot) {
    const Geometry g = geometry(parse_problem(line), slot);
    return std::vector<int64_t>(g.strides.begin(), g.strides.begin() + g.rank);
  };
  using V = std::vector<int64_t>;
  const std::string dense = "f16 b2 h6:3 q5 k7 d16:8 ", packed = "f16 h6:3 d16:8 varlen=2:3,3:4 ";
  EXPECT_EQ(strides(dense.c_str(), Slot::q), (V{480, 80, 16, 1}));
  EXPECT_EQ(strides(dense.c_str(), Slot::k), (V{336, 112, 16, 1}));
  EXPECT_EQ(strides(dense.c_str(), Slot::v), (V{168, 56, 8, 1}));
  EXPECT_EQ(strides((dense + "layout=bshd").c_str(), Slot::out), (V{240, 8, 48, 1}));
  EXPECT_EQ(strides((dense + "layout=bshd v_strides=9,8,-7,0").c_str(), Slot::v), (V{9, 8, -7, 0}));
  EXPECT_EQ(strides(packed.c_str(), Slot::k), (V{16, 112, 1}));
  EXPECT_EQ(strides((packed + "layout=bshd").c_str(), Slot::q), (V{96, 16, 1}));
  EXPECT_EQ(strides((packed + "q_strides=1,2,3").c_str(), Slot::q), (V{1, 2, 3}));
}

TEST(Access, ClassesOfStridesAndTypes) {
  const std::pair<const char*, Access> cases[] = {
      {"f16 b2 h2 q8 d64", {true, true, true}},
      {"f16 b2 h2 q8 d60", {true, false, false}},  // rows of 120 bytes
      {"f32 b2 h2 q8 d60", {true, true, true}},    // rows of 240 bytes
      {"e4m3 b2 h2 q8 d8", {true, false, false}},  // rows of 8 bytes
      {"f16 b2 h2 q8 d60 layout=bshd", {true, false, false}},
      {"f16 b1 h1 q1 d60", {true, true, true}},  // only the last dimension is larger than 1
      {"f16 b2 h2 q8 d64 q_strides=2048,1024,128,2", {false, true, false}},
      {"f16 b2 h2 q8 d1 q_strides=2048,1024,128,2", {true, true, true}},
      {"f16 b2 h2 q8 d64 q_strides=2048,0,128,1", {true, true, false}},
      {"f16 b2 h2 q8 d64 q_strides=2048,-1024,128,1", {true, true, false}},
      {"f16 b2 h2 q8 d64 q_strides=2048,1028,128,1", {true, false, false}},
      {"f16 b2 h1 q8 d64 q_strides=2048,1028,128,1", {true, true, true}},
      {"f16 b2 h1 q8 d64 q_strides=2048,-3,128,1", {true, true, true}},
      {"f16 b2 h2 q8 d64 q_strides=549755813888,1024,128,1", {true, true, false}},  // 2^40 bytes
      {"f16 b2 h2 q8 d64 q_strides=549755813880,1024,128,1", {true, true, true}},
      {"e5m2 b2 h2 q8 d64 q_strides=549755813888,1024,128,1", {true, true, true}},
      {"f16 h2 d64 varlen=8 q_strides=72,640,1", {true, true, true}},
      {"f16 h2 d64 varlen=8 q_strides=68,640,1", {true, false, false}},
  };
  for (const auto& [line, access] : cases) {
    const Access got = parse_problem(line).access_q;
    EXPECT_TRUE(got == access) << line << ": " << got.unit_last << got.aligned16 << got.tma;
  }
  const Geometry g = geometry(parse_problem("f16 b2 h2 q8 d64"), Slot::q);
  EXPECT_TRUE(access_of(DType::f16, g, 4096 + 16) == (Access{true, true, true}));
  // The map of a paged cache has one coordinate for pages and heads.
  for (const auto& [page, head, fits] : {std::tuple<int64_t, int64_t, bool>{int64_t{1} << 38, int64_t{1} << 20, true},
                                         {(int64_t{1} << 38) + 8, int64_t{1} << 20, false},
                                         {int64_t{1} << 20, int64_t{1} << 38, true},
                                         {4096 + 8, 64, true}}) {
    Geometry cache = g;
    cache.strides[0] = page, cache.strides[1] = head;
    EXPECT_EQ(access_of(DType::f16, cache, 0, true).tma, fits) << page << " " << head;
    EXPECT_TRUE(access_of(DType::f16, cache).tma);
  }
  EXPECT_TRUE(access_of(DType::f16, g, 4096 + 8) == (Access{true, false, false}));
}

// Compares the rule with a list of all addresses. The rule is allowed to refuse strides that interleave, but it must
// never miss an overlap.
TEST(Overlap, NeverMissesOneAndAcceptsEveryMemoryOrder) {
  std::mt19937_64 random(3);
  const auto upto = [&](int64_t n) { return std::uniform_int_distribution<int64_t>(0, n)(random); };
  int overlapping = 0, separate = 0;
  for (int i = 0; i < 20000; ++i) {
    Geometry g;
    for (size_t d = 0; d < 4; ++d) g.shape[d] = upto(3) + (i % 50 != 0), g.strides[d] = upto(60) - 20;
    std::set<int64_t> addresses;
    for (int64_t n = 0; n < g.shape[0] * g.shape[1] * g.shape[2] * g.shape[3]; ++n) {
      const int64_t at[] = {n % g.shape[0], n / g.shape[0] % g.shape[1], n / (g.shape[0] * g.shape[1]) % g.shape[2],
                            n / (g.shape[0] * g.shape[1] * g.shape[2])};
      addresses.insert(at[0] * g.strides[0] + at[1] * g.strides[1] + at[2] * g.strides[2] + at[3] * g.strides[3]);
    }
    const int64_t elements = g.shape[0] * g.shape[1] * g.shape[2] * g.shape[3];
    const bool overlaps = std::ssize(addresses) < elements;
    EXPECT_TRUE(!overlaps || overlaps_itself(g));
    ++(overlaps ? overlapping : separate);
  }
  EXPECT_GT(overlapping, 1000);
  EXPECT_GT(separate, 1000);

  std::array<size_t, 4> order{0, 1, 2, 3};
  do {
    Geometry g{.rank = 4, .shape = {3, 2, 5, 4}, .strides = {}};
    int64_t stride = 1;
    for (const size_t d : order) g.strides[d] = d == 2 ? -stride : stride, stride *= g.shape[d];
    EXPECT_FALSE(overlaps_itself(g));
  } while (std::next_permutation(order.begin(), order.end()));
  EXPECT_TRUE(overlaps_itself({.rank = 3, .shape = {3, 2, 5, 0}, .strides = {0, 5, 1, 0}}));
  EXPECT_FALSE(overlaps_itself({.rank = 3, .shape = {1, 2, 5, 0}, .strides = {0, 5, 1, 0}}));
  EXPECT_FALSE(overlaps_itself({.rank = 3, .shape = {3, 0, 5, 0}, .strides = {0, 0, 0, 0}}));
  EXPECT_FALSE(overlaps_itself({.rank = 2, .shape = {2, 2, 0, 0}, .strides = {INT64_MIN, 1, 0, 0}}));
}

// Sequences.

TEST(Sequence, LengthsStartsAndOffsets) {
  const auto expect = [](const char* line, int64_t b, SequenceInfo want) {
    const SequenceInfo s = sequence(parse_problem(line), b);
    const std::array<int64_t, 5> got{s.first_q, s.first_k, s.seqlen_q, s.seqlen_k, s.offset};
    EXPECT_EQ(got, (std::array<int64_t, 5>{want.first_q, want.first_k, want.seqlen_q, want.seqlen_k, want.offset}))
        << line << " sequence " << b;
  };
  expect("f16 b2 q8 k20 d64", 1, {0, 0, 8, 20, 12});
  expect("f16 b2 q8 k20 d64 causal_top_left", 1, {0, 0, 8, 20, 0});
  expect("f16 b2 q8 k20 d64 seqused=20,5", 0, {0, 0, 8, 20, 12});
  expect("f16 b2 q8 k20 d64 seqused=20,5", 1, {0, 0, 8, 5, -3});
  expect("f16 b2 q8 k20 d64 q_start=7,100", 1, {0, 0, 8, 20, 100});
  expect("f16 b2 q8 k20 d64 q_start=7 k_start=3,-4", 1, {0, 0, 8, 20, 11});
  expect("f16 d64 varlen=3:7,0:2,5:4", 0, {0, 0, 3, 7, 4});
  expect("f16 d64 varlen=3:7,0:2,5:4", 2, {3, 9, 5, 4, -1});
  expect("f16 d64 varlen=3:7,0:2,5:4 seqused=1,2,3", 2, {3, 9, 5, 3, -2});
  Problem p = parse_problem("f16 d64 varlen=3:7,0:2,5:4");
  p.seqlen_q = 4, p.seqlen_k = 5;  // the caller's maxima apply to every sequence
  EXPECT_EQ(sequence(p, 2).seqlen_q, 4);
  EXPECT_EQ(sequence(p, 0).seqlen_k, 5);
  EXPECT_EQ(sequence(p, 2).first_k, 9);
}

TEST(Sequence, RefusesWhatItCannotKnow) {
  Problem p = parse_problem("f16 b2 q8 d64");
  EXPECT_THROW(sequence(p, 2), Error);
  EXPECT_THROW(sequence(p, -1), Error);
  p.varlen = true, p.total_q = p.total_k = 10;
  EXPECT_THROW(sequence(p, 0), Error);
}

// Arithmetic and traffic.

// Counts the visible pairs of a problem one by one, with the definition of visible.
int64_t count_pairs(const Problem& p) {
  int64_t pairs = 0;
  for (int64_t b = 0; b < p.batch; ++b) {
    const SequenceInfo s = sequence(p, b);
    for (int64_t i = 0; i < s.seqlen_q; ++i)
      for (int64_t j = 0; j < s.seqlen_k; ++j) {
        const auto& [causal, left, right] = p.position_mask;
        bool seen = causal == Causal::none || j <= i + (causal == Causal::top_left ? 0 : s.offset);
        if (left >= 0) seen = seen && i + s.offset - left <= j;
        if (right >= 0) seen = seen && j <= i + s.offset + right;
        pairs += seen;
      }
  }
  return pairs * p.heads_q;
}

TEST(Flops, CountsEveryVisiblePairOnce) {
  std::mt19937_64 random(11);
  const auto upto = [&](int64_t n) { return std::uniform_int_distribution<int64_t>(0, n)(random); };
  const auto list = [&](int64_t n, int64_t lowest, int64_t span) {
    std::string text;
    for (int64_t i = 0; i < n; ++i) text += (i ? "," : "") + std::to_string(lowest + upto(span));
    return text;
  };
  for (int i = 0; i < 4000; ++i) {
    const int64_t batch = 1 + upto(2), k = upto(40);
    std::string line = "f32 d3:5 b" + std::to_string(batch) + " h" + std::to_string(upto(2) * 2) + ":2";
    if (upto(2) == 0) {
      line += " varlen=";
      for (int64_t b = 0; b < batch; ++b) line += (b ? "," : "") + list(1, 0, 30) + ":" + list(1, 10, 30);
      if (upto(1)) line += " seqused=" + list(batch, 0, 10);
    } else {
      line += " q" + std::to_string(upto(40)) + " k" + std::to_string(k);
      if (upto(1)) line += " seqused=" + list(batch, 0, k);
    }
    const int64_t causal = upto(2);
    if (causal) line += causal == 1 ? " causal" : " causal_top_left";
    if (upto(1)) line += " window=" + std::to_string(upto(20) - 1) + "," + std::to_string(upto(20) - 1);
    if (causal != 2 && upto(1)) line += " q_start=" + list(upto(1) ? batch : 1, -60, 120);
    if (causal != 2 && upto(2) == 0) line += " k_start=" + list(1, -60, 120);
    const Problem p = parse_problem(line);
    ASSERT_EQ(flops(p), 16.0 * static_cast<double>(count_pairs(p))) << line;
  }
}

TEST(Flops, KnownCountsAtFullSize) {
  EXPECT_EQ(flops(parse_problem("bf16 b2 h32:8 q4096 k4096 d128")), 512.0 * 64 * 4096 * 4096);
  EXPECT_EQ(flops(parse_problem("bf16 b2 h32:8 q4096 k4096 d128 causal")), 512.0 * 64 * (4096.0 * 4097 / 2));
  EXPECT_EQ(flops(parse_problem("bf16 q1 k4096 d128 window=127,0")), 512.0 * 128);
  EXPECT_EQ(flops(parse_problem("f16 b0 q8 d64")), 0.0);
  // This number of pairs is too large for a loop or for 64 bits: half of 2^80.
  EXPECT_NEAR(flops(parse_problem("f16 q1099511627776 d64 causal")) / std::ldexp(256.0, 79), 1.0, 1e-9);
}

// If the lengths are in device memory, they are unknown. The bound must hold for all lengths with these maxima and
// totals.
TEST(Flops, UnknownLengthsCountAnUpperBound) {
  for (const char* line : {"f16 h2 d64 varlen=3:7,0:2,5:4", "f16 h2 d64 varlen=30,30,30 causal",
                           "f16 h2 d64 varlen=1:300,200:5 window=9,4", "f16 h2 d64 varlen=40:4,4:40 causal_top_left"}) {
    const Problem known = parse_problem(line);
    Problem unknown = known;
    unknown.lengths_q.clear(), unknown.lengths_k.clear();
    EXPECT_GE(flops(unknown), flops(known)) << line;
    EXPECT_LE(flops(unknown), 256.0 * 2 * static_cast<double>(known.total_q * known.seqlen_k)) << line;
    EXPECT_GE(bytes(unknown), bytes(known)) << line;
  }
}

TEST(Bytes, CountsEachTensorOnce) {
  const double q = 2 * 4 * 10, k = 2 * 2 * 20;  // rows of all heads: batch x heads x seqlen
  EXPECT_EQ(bytes(parse_problem("f16 b2 h4:2 q10 k20 d64:32")), q * (128 + 64) + k * (128 + 64));
  EXPECT_EQ(bytes(parse_problem("f16 out=f32 b2 h4:2 q10 k20 d64:32 lse")), q * (128 + 128 + 4) + k * (128 + 64));
  EXPECT_EQ(bytes(parse_problem("q=f32 k=e4m3 v=bf16 b2 h4:2 q10 k20 d64:32")), q * (256 + 128) + k * (64 + 64));
  EXPECT_EQ(bytes(parse_problem("f16 b2 h4:2 q10 k20 d64:32 bias=f32[1,h,q,k] mask=[b,1,1,k]")),
            q * 192 + k * 192 + 4 * 4 * 10 * 20 + 2 * 20);
  EXPECT_EQ(bytes(parse_problem("f16 b2 h4:2 q10 k20 d64:32 seqused=20,5")), q * 192 + 2 * 25 * 192);
  EXPECT_EQ(bytes(parse_problem("f16 h4:2 d64:32 varlen=3:7,0:2,5:4")), 4 * 8 * 192 + 2 * 13 * 192);
  const std::string fp8 = "e4m3 b2 h4:2 q70 k130 d64:32 ";
  const double stored = 2 * 4 * 70 * (64 + 64) + 2 * 2 * 130 * (64 + 32);
  EXPECT_EQ(bytes(parse_problem(fp8 + "scales=tensor")), stored + 4 * 3);
  EXPECT_EQ(bytes(parse_problem(fp8 + "scales=head")), stored + 4 * (8 + 4 + 4));
  EXPECT_EQ(bytes(parse_problem(fp8 + "scales=token")), stored + 4 * (8 * 70 + 4 * 130 + 4 * 130));
  EXPECT_EQ(bytes(parse_problem(fp8 + "scales=block64")), stored + 4 * (8 * 2 + 4 * 3 + 4 * 3));
  EXPECT_EQ(bytes(parse_problem(fp8 + "k_scales=block128 v_scales=channel")), stored + 4 * (4 * 2 + 4 * 32));
  EXPECT_EQ(bytes(parse_problem("e4m3 h4:2 d8 varlen=3:7,0:2,5:4 q_scales=token k_scales=block64")),
            4 * 8 * (8 + 16) + 2 * 13 * 16 + 4 * (4 * 8 + 3 * 2));
}

}  // namespace
}  // namespace rapt
