// Tests the problem line: the meaning of each word, canonical printing, exact round trips of seeded random problems,
// every error sentence, files of lengths, and every line of docs/problem-line.md.
#include "problem/problem.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <locale>
#include <map>
#include <random>
#include <sstream>

#include "base/error.h"

namespace rapt {
namespace {

// The error sentence for a line; "" if it parses.
std::string refusal(const std::string& line) {
  try {
    parse_problem(line);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << line;
    return error.what();
  }
  return "";
}

std::vector<std::string> words_of(const std::string& line) {
  std::istringstream in(line);
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

// The meaning of the words.

struct Meaning {
  const char* words;  // added to "f16 b2 h4 q8 k16 d64"; if they begin with '!', they are the whole line
  std::function<void(Problem&)> change;
};

Problem base_problem() {
  Problem p;
  p.q = p.k = p.v = p.out = DType::f16;
  p.batch = 2, p.heads_q = p.heads_k = 4, p.seqlen_q = 8, p.seqlen_k = 16, p.head_dim = p.head_dim_v = 64;
  return p;
}

void storage(Problem& p, DType t) { p.q = p.k = p.v = t, p.out = DType::f16; }

const Meaning meanings[] = {
    {"", [](Problem&) {}},
    {"out=f32", [](Problem& p) { p.out = DType::f32; }},
    {"!bf16 b2 h4 q8 k16 d64", [](Problem& p) { p.q = p.k = p.v = p.out = DType::bf16; }},
    {"!q=f32 k=bf16 v=e5m2 b2 h4 q8 k16 d64",
     [](Problem& p) { p.q = p.out = DType::f32, p.k = DType::bf16, p.v = DType::e5m2; }},
    {"!e4m3 b2 h4 q8 k16 d64", [](Problem& p) { storage(p, DType::e4m3); }},
    {"!sim8 out=bf16 b2 h4 q8 k16 d64", [](Problem& p) { storage(p, DType::sim8), p.out = DType::bf16; }},
    {"!f16 d64 q8", [](Problem& p) { p.batch = p.heads_q = p.heads_k = 1, p.seqlen_k = 8; }},
    {"!f16 b2 h8:2 q8 k16 d192:128",
     [](Problem& p) { p.heads_q = 8, p.heads_k = 2, p.head_dim = 192, p.head_dim_v = 128; }},
    {"!f16 b0 h0:3 q0 k0 d64", [](Problem& p) { p.batch = p.heads_q = p.seqlen_q = p.seqlen_k = 0, p.heads_k = 3; }},
    {"causal", [](Problem& p) { p.position_mask.causal = Causal::bottom_right; }},
    {"causal_top_left", [](Problem& p) { p.position_mask.causal = Causal::top_left; }},
    {"window=3,-1", [](Problem& p) { p.position_mask.window_left = 3; }},
    {"window=0,2147483647",
     [](Problem& p) { p.position_mask.window_left = 0, p.position_mask.window_right = 2147483647; }},
    {"softcap=30", [](Problem& p) { p.softcap = 30.0f; }},
    {"scale=0.1", [](Problem& p) { p.scale = 0.1f; }},
    {"scale=0", [](Problem& p) { p.scale = 0.0f; }},
    {"scale=-2.5e-3", [](Problem& p) { p.scale = -2.5e-3f; }},
    {"alibi", [](Problem& p) { p.alibi = true; }},
    {"bias=f32[1,h,q,k]",
     [](Problem& p) {
       p.bias = {DType::f32, {true, false, false, false}, {true, true, true, false}};
     }},
    {"mask=[b,1,q,1]",
     [](Problem& p) {
       p.mask = {DType::u8, {false, true, false, true}};
     }},
    {"sinks", [](Problem& p) { p.sinks = true; }},
    {"!f16 h4 d64 varlen=17,0,512",
     [](Problem& p) {
       p.batch = 3, p.varlen = true, p.seqlen_q = p.seqlen_k = 512, p.total_q = p.total_k = 529;
       p.lengths_q = p.lengths_k = {17, 0, 512};
     }},
    {"!f16 b2 h4 d64 varlen=1:30,5",
     [](Problem& p) {
       p.varlen = true, p.seqlen_q = 5, p.seqlen_k = 30, p.total_q = 6, p.total_k = 35;
       p.lengths_q = {1, 5}, p.lengths_k = {30, 5};
     }},
    {"!f16 b0 h4 d64 varlen=", [](Problem& p) { p.batch = p.seqlen_q = p.seqlen_k = 0, p.varlen = true; }},
    {"seqused=16,0",
     [](Problem& p) {
       p.seqused = true, p.used_k = {16, 0};
     }},
    {"seqused_q=8,0",
     [](Problem& p) {
       p.seqused_q = true, p.used_q = {8, 0};
     }},
    {"page=16", [](Problem& p) { p.page_size = 16; }},
    {"!e4m3 b2 h4 q8 k16 d64 scales=block64",
     [](Problem& p) { storage(p, DType::e4m3), p.q_scales = p.k_scales = p.v_scales = ScaleKind::block64; }},
    {"!e4m3 b2 h4 q8 k16 d64 q_scales=tensor k_scales=token v_scales=channel",
     [](Problem& p) {
       storage(p, DType::e4m3);
       p.q_scales = ScaleKind::tensor, p.k_scales = ScaleKind::token, p.v_scales = ScaleKind::channel;
     }},
    {"!e4m3 b2 h4 q8 k16 d64 q_scales=head k_scales=block128",
     [](Problem& p) { storage(p, DType::e4m3), p.q_scales = ScaleKind::head, p.k_scales = ScaleKind::block128; }},
    {"!e4m3 b2 h4 q8 k16 d64 smooth_k", [](Problem& p) { storage(p, DType::e4m3), p.smooth_k = true; }},
    {"!e4m3 b2 h4 q8 k16 d64 hadamard", [](Problem& p) { storage(p, DType::e4m3), p.hadamard = true; }},
    {"layout=bshd", [](Problem& p) { p.layout = Layout::bshd; }},
    {"layout=bhsd", [](Problem&) {}},
    {"q_strides=1,2,4096,64",
     [](Problem& p) {
       p.q_strides = {1, 2, 4096, 64}, p.access_q = {false, false, false};
     }},
    {"k_strides=0,-64,256,1",
     [](Problem& p) {
       p.k_strides = {0, -64, 256, 1}, p.access_k.tma = false;
     }},
    {"v_strides=4096,1024,64,1",
     [](Problem& p) {
       p.v_strides = {4096, 1024, 64, 1};
     }},
    {"out_strides=64,128,512,1",
     [](Problem& p) {
       p.out_strides = {64, 128, 512, 1};
     }},
    {"q_start=-7", [](Problem& p) { p.has_starts = true, p.q_starts = {-7}; }},
    {"q_start=48,16 k_start=9",
     [](Problem& p) {
       p.has_starts = true, p.q_starts = {48, 16}, p.k_starts = {9};
     }},
    {"k_start=0", [](Problem& p) { p.has_starts = true, p.k_starts = {0}; }},
    {"splits=3", [](Problem& p) { p.splits = 3; }},
    {"mod=00ff", [](Problem& p) { p.mod = "00ff"; }},
    {"lse", [](Problem& p) { p.lse = true; }},
    {"out=f32 lse partial", [](Problem& p) { p.lse = p.partial = true, p.out = DType::f32; }},
    {"invariant", [](Problem& p) { p.invariant = true; }},
    {"pv=f16", [](Problem& p) { p.pv = PvMode::f16; }},
    {"!e5m2 b2 h4 q8 k16 d64 pv=fp8", [](Problem& p) { storage(p, DType::e5m2), p.pv = PvMode::fp8; }},
    {"!e5m2 b2 h4 q8 k16 d64 pv=fp8x2", [](Problem& p) { storage(p, DType::e5m2), p.pv = PvMode::fp8x2; }},
    {"acc=f16", [](Problem& p) { p.acc = AccMode::f16; }},
    {"acc=f32", [](Problem&) {}},
    {"!f32 b2 h4 q8 k16 d64 acc=tf32", [](Problem& p) { p.q = p.k = p.v = p.out = DType::f32, p.acc = AccMode::tf32; }},
};

TEST(ProblemLine, EveryWordSetsWhatItSays) {
  for (const Meaning& m : meanings) {
    const std::string line = m.words[0] == '!' ? m.words + 1 : std::string("f16 b2 h4 q8 k16 d64 ") + m.words;
    Problem expected = base_problem();
    m.change(expected);
    EXPECT_EQ(refusal(line), "");
    const Problem read = parse_problem(line);
    EXPECT_TRUE(read == expected) << line << "\n read as " << to_string(read) << "\n expected " << to_string(expected);
  }
}

TEST(ProblemLine, ScaleKeepsTheSignOfZero) {
  EXPECT_TRUE(std::signbit(*parse_problem("f16 q8 d64 scale=-0").scale));
  EXPECT_EQ(to_string(parse_problem("f16 q8 d64 scale=-0.0")), "f16 b1 h1 q8 k8 d64 scale=-0");
}

TEST(ProblemLine, PrintsCanonically) {
  const std::pair<const char*, const char*> lines[] = {
      {"lse causal d128 k4096 q4096 h32:8 b2 bf16", "bf16 b2 h32:8 q4096 k4096 d128 causal lse"},
      {"v=f16 k=e4m3 q=bf16 out=bf16 q007 d192:128", "q=bf16 k=e4m3 v=f16 b1 h1 q7 k7 d192:128"},
      {" f16\tq1 d8:8\n h3:3 out=f16 scale=1.25E-1 acc=f32 layout=bhsd", "f16 b1 h3 q1 k1 d8 scale=0.125"},
      {"f16 h2 d64 varlen=3:3,4:4", "f16 b2 h2 d64 varlen=3,4"},
      {"f16 h2 d64 varlen=3,4:9 causal", "f16 b2 h2 d64 causal varlen=3:3,4:9"},
      {"e4m3 q8 d64 v_scales=head k_scales=head q_scales=head", "e4m3 b1 h1 q8 k8 d64 scales=head"},
      {"e4m3 q8 d64 acc=f16 pv=fp8 invariant lse mod=ab splits=1 k_start=2 q_start=1 layout=bshd hadamard smooth_k "
       "scales=token page=4 seqused_q=7 seqused=2 sinks mask=[b,h,q,k] bias=bf16[1,1,1,1] alibi scale=2 softcap=0.5 "
       "window=1,0 "
       "causal",
       "e4m3 b1 h1 q8 k8 d64 causal window=1,0 softcap=0.5 scale=2 alibi bias=bf16[1,1,1,1] mask=[b,h,q,k] sinks "
       "seqused=2 seqused_q=7 page=4 scales=token smooth_k hadamard layout=bshd q_start=1 k_start=2 splits=1 mod=ab "
       "lse invariant "
       "pv=fp8 acc=f16"},
  };
  for (const auto& [line, canonical] : lines) EXPECT_EQ(to_string(parse_problem(line)), canonical);
}

TEST(ProblemLine, PrintsWhatALineCannotSayWithoutHidingIt) {
  Problem p = base_problem();
  p.varlen = p.seqused = p.seqused_q = p.has_starts = true, p.total_q = 17, p.total_k = 20, p.op = Op::backward;
  const std::string line = to_string(p);
  EXPECT_EQ(line, "f16 b2 h4 q8 k16 d64 varlen=?17:20 seqused=? seqused_q=? q_start=? op=backward");
  for (const char* word : {"varlen=?17:20", "seqused=?", "seqused_q=?", "q_start=?", "op=backward"})
    EXPECT_NE(refusal(std::string("f16 d64 ") + word), "");
}

// A locale with digit grouping and a decimal comma must not change any line.
TEST(ProblemLine, IgnoresTheLocale) {
  struct Grouping : std::numpunct<char> {
    char do_decimal_point() const override { return ','; }
    char do_thousands_sep() const override { return '.'; }
    std::string do_grouping() const override { return "\3"; }
  };
  const std::string line = "f16 b1 h1 q123456 k123456 d64 scale=0.5";
  const std::locale before = std::locale::global(std::locale(std::locale::classic(), new Grouping));
  const std::string printed = to_string(parse_problem(line));
  std::locale::global(before);
  EXPECT_EQ(printed, line);
}

// Round trips.

// Makes seeded random problems that a line can express. Together they use every word.
class RandomProblem {
 public:
  explicit RandomProblem(uint64_t seed) : random_(seed) {}

  Problem next() {
    Problem p;
    dtypes(p);
    sizes(p);
    scores(p);
    quantisation(p);
    modes(p);
    strides(p);
    p.access_q = access_of(p.q, geometry(p, Slot::q));
    p.access_k = access_of(p.k, geometry(p, Slot::k));
    p.access_v = access_of(p.v, geometry(p, Slot::v));
    p.access_out = access_of(p.out, geometry(p, Slot::out));
    return p;
  }

 private:
  int64_t upto(int64_t last) { return std::uniform_int_distribution<int64_t>(0, last)(random_); }
  bool chance(int64_t n) { return upto(n - 1) == 0; }
  template <class T>
  T pick(std::initializer_list<T> values) {
    return values.begin()[static_cast<size_t>(upto(static_cast<int64_t>(values.size()) - 1))];
  }
  float real() {  // any finite float
    float x = 0;
    do {
      const auto bits = static_cast<uint32_t>(random_());
      std::memcpy(&x, &bits, sizeof x);
    } while (!std::isfinite(x));
    return x;
  }
  DType input() { return pick({DType::f32, DType::f16, DType::bf16, DType::e4m3, DType::e5m2, DType::sim8}); }
  DType output() { return pick({DType::f32, DType::f16, DType::bf16}); }

  void dtypes(Problem& p) {
    p.q = input();
    p.k = chance(2) ? p.q : input();
    p.v = chance(2) ? p.q : input();
    p.out = chance(2) ? output() : is_fp8(p.q) ? DType::f16 : p.q;
  }

  void sizes(Problem& p) {
    p.batch = upto(4);
    p.heads_k = upto(3);
    p.heads_q = p.heads_k * upto(3);
    p.head_dim = 1 + upto(200);
    p.head_dim_v = chance(2) ? p.head_dim : 1 + upto(200);
    p.seqlen_q = upto(3000);
    p.seqlen_k = chance(2) ? p.seqlen_q : upto(100000);
    p.varlen = chance(3);
    if (p.varlen) lengths(p);
    if ((p.seqused = chance(4)))
      for (size_t b = 0; b < static_cast<size_t>(p.batch); ++b)
        p.used_k.push_back(static_cast<int32_t>(upto(p.varlen ? p.lengths_k[b] : p.seqlen_k)));
    if ((p.seqused_q = chance(4)))
      for (size_t b = 0; b < static_cast<size_t>(p.batch); ++b)
        p.used_q.push_back(static_cast<int32_t>(upto(p.varlen ? p.lengths_q[b] : p.seqlen_q)));
    if (chance(8)) p.page_size = 1 + upto(300);
  }

  void lengths(Problem& p) {
    p.seqlen_q = p.seqlen_k = 0;
    const bool same = chance(2);
    for (int64_t b = 0; b < p.batch; ++b) {
      const auto q = static_cast<int32_t>(upto(600)), k = same ? q : static_cast<int32_t>(upto(9000));
      p.lengths_q.push_back(q), p.lengths_k.push_back(k);
      p.total_q += q, p.total_k += k;
      p.seqlen_q = std::max<int64_t>(p.seqlen_q, q), p.seqlen_k = std::max<int64_t>(p.seqlen_k, k);
    }
  }

  void scores(Problem& p) {
    p.position_mask.causal = pick({Causal::none, Causal::bottom_right, Causal::top_left});
    if (chance(3)) {
      p.position_mask.window_left = upto(300) - 1;
      p.position_mask.window_right = chance(9) ? int64_t{1} << 60 : upto(3) - 1;
    }
    if (chance(4)) do
        p.softcap = std::abs(real());
      while (*p.softcap == 0);
    if (chance(3)) p.scale = chance(5) ? 0.0f : real();
    p.alibi = chance(4);
    if (chance(4)) p.bias = {output(), {chance(2), chance(2), chance(2), chance(2)}};
    if (chance(4)) p.mask = {DType::u8, {chance(2), chance(2), chance(2), chance(2)}};
    for (Broadcast* const scores : {&p.bias, &p.mask}) scores->access = score_access(p, *scores);
    p.sinks = chance(4);
    if (p.position_mask.causal == Causal::top_left || !chance(3)) return;
    p.has_starts = true;
    const auto starts = [&] {
      std::vector<int64_t> values(p.batch > 0 && chance(2) ? static_cast<size_t>(p.batch) : 1);
      for (int64_t& x : values) x = upto(int64_t{1} << 61) - (int64_t{1} << 60);
      return values;
    };
    const int64_t which = upto(2);
    if (which != 0) p.q_starts = starts();
    if (which != 1) p.k_starts = starts();
  }

  ScaleKind kind(DType t, bool channel) {
    if (!is_fp8(t)) return ScaleKind::none;
    return static_cast<ScaleKind>(upto(channel ? 6 : 5));
  }

  void quantisation(Problem& p) {
    p.q_scales = kind(p.q, false), p.k_scales = kind(p.k, false), p.v_scales = kind(p.v, true);
    const bool all = is_fp8(p.q) && is_fp8(p.k) && is_fp8(p.v);
    if (all && chance(2)) p.q_scales = p.k_scales = p.v_scales = kind(p.q, false);
    p.smooth_k = is_fp8(p.k) && chance(3);
    p.hadamard = is_fp8(p.k) && is_fp8(p.q) && chance(3);
    if (is_fp8(p.v)) p.pv = static_cast<PvMode>(upto(3));
    const bool any_f32 = p.q == DType::f32 || p.k == DType::f32 || p.v == DType::f32;
    if (chance(3)) p.acc = any_f32 ? AccMode::tf32 : AccMode::f16;
  }

  void modes(Problem& p) {
    p.lse = chance(2);
    p.partial = p.lse && p.out == DType::f32 && !p.sinks && chance(2);
    p.invariant = chance(4);
    if (chance(4)) p.splits = p.invariant ? 1 : 1 + upto(300);
    if (chance(8))
      for (int64_t n = 1 + upto(63); n > 0; --n) p.mod += "0123456789abcdef"[upto(15)];
  }

  void strides(Problem& p) {
    p.layout = pick({Layout::bhsd, Layout::bshd});
    const size_t rank = p.varlen ? 3 : 4;
    const auto any = [&] {
      std::vector<int64_t> values(rank);
      for (int64_t& x : values) x = chance(3) ? 8 * upto(1000) : upto(2000000) - 1000000;
      if (chance(2)) values.back() = 1;
      return values;
    };
    if (chance(4)) p.q_strides = any();
    if (p.page_size == 0 && chance(4)) p.k_strides = any();
    if (p.page_size == 0 && chance(4)) p.v_strides = any();
    if (!chance(4)) return;
    const Geometry g = geometry(p, Slot::out);  // the strides of the layout; gaps are added, and one becomes negative
    p.out_strides = std::vector<int64_t>(g.strides.begin(), g.strides.begin() + g.rank);
    for (int64_t& x : *p.out_strides) x *= 3;
    if (chance(2)) p.out_strides->front() *= -1;
  }

  std::mt19937_64 random_;
};

TEST(ProblemLine, RandomProblemsRoundTripInAnyOrder) {
  RandomProblem random(20240607);
  std::mt19937_64 order(7);
  std::map<std::string, int> uses;
  for (int i = 0; i < 20000 && !HasFailure(); ++i) {
    const Problem p = random.next();
    const std::string line = to_string(p);
    ASSERT_EQ(refusal(line), "") << line;
    ASSERT_TRUE(parse_problem(line) == p) << line;
    std::vector<std::string> words = words_of(line);
    for (const std::string& word : words)
      ++uses[word.find('=') == std::string::npos ? word : word.substr(0, word.find('=') + 1)];
    std::shuffle(words.begin(), words.end(), order);
    std::string shuffled;
    for (const std::string& word : words) shuffled += word + (order() % 2 ? " " : "\t \n");
    ASSERT_TRUE(parse_problem(shuffled) == p) << shuffled;
    ASSERT_EQ(to_string(parse_problem(shuffled)), line);
  }
  for (const char* word : {"f32",        "f16",          "bf16",      "e4m3",       "e5m2",
                           "sim8",       "q=",           "k=",        "v=",         "out=",
                           "b0",         "b3",           "h0",        "causal",     "causal_top_left",
                           "window=",    "softcap=",     "scale=",    "alibi",      "bias=",
                           "mask=",      "sinks",        "varlen=",   "seqused=",   "seqused_q=",
                           "page=",      "scales=",      "q_scales=", "k_scales=",  "v_scales=",
                           "smooth_k",   "hadamard",     "layout=",   "q_strides=", "k_strides=",
                           "v_strides=", "out_strides=", "q_start=",  "k_start=",   "splits=",
                           "mod=",       "lse",          "partial",   "invariant",  "pv=",
                           "acc="})
    EXPECT_GE(uses[word], 100) << word;
}

// Errors. docs/problem-line.md lists the errors that users often get. They are tested below, sentence by sentence.

TEST(ProblemLine, RefusesWithASentence) {
  const std::pair<std::string, const char*> refused[] = {
      {"", "dtype missing"},
      {"f16 q8 d64 ?", "word '?': unknown"},
      {"f16 q8 d64 Causal", "word 'Causal': unknown"},
      {"f16 q8 d64 causal=1", "word 'causal=1': unknown"},
      {"f16 q8 d64 window", "word 'window': unknown"},
      {"f16 q8 d64 =3", "word '=3': unknown"},
      {"f16 q8 d64 =", "word '=': unknown"},
      {"f16 q8 d64 x9", "word 'x9': unknown"},
      {"u8 q8 d64", "word 'u8': unknown"},
      {"f16 q8 d64 op=forward", "word 'op=forward': unknown"},
      {"f16 q-8 d64", "'-8' is outside 0 to"},
      {"f16 q8 k+8 d64", "word 'k+8': unknown"},
      {"f16 q8.5 d64", "'8.5' is not a whole number"},
      {"f16 q8 d64:", "'' is not a whole number"},
      {"f16 q8 d64:64:64", "'64:64' is not a whole number"},
      {"f16 q99999999999999999999 d64", "'99999999999999999999' is outside 0 to"},
      {"f16 q8 d64 q=f16 k=f16", "word 'f16': contradicts"},
      {"q=f16 k=f16 q8 d64", "dtype missing"},
      {"q=f64 k=f16 v=f16 q8 d64", "'f64' is not one of f32, f16"},
      {"f16 q8 d64 window=", "word 'window=': needs at least one number"},
      {"f16 q8 d64 window=1,2,3", "more than 2 numbers"},
      {"f16 q8 d64 window=0,1152921504606846977", "is outside -1152921504606846976 to 1152921504606846976"},
      {"f16 q8 d64 window=0,-5", "window_right = -5"},
      {"f16 q8 d64 softcap=-1", "softcap = -1: must be finite and greater than 0"},
      {"f16 q8 d64 softcap=nan", "softcap = nan"},
      {"f16 q8 d64 softcap=inf", "softcap = inf"},
      {"f16 q8 d64 scale=nan", "scale = nan: must be finite"},
      {"f16 q8 d64 scale=", "'' is not a number"},
      {"f16 q8 d64 scale=1e-99", "'1e-99' is outside the range of a 32-bit float"},
      {"f16 q8 d64 scale=1,5", "'1,5' is not a number"},
      {"f16 q8 d64 scale=+1", "'+1' is not a number"},
      {"f16 q8 d64 bias=f32", "needs [b,h,q,k] with 1"},
      {"f16 q8 d64 bias=[b,h,q,k]", "'' is not one of f32"},
      {"f16 q8 d64 bias=f32[b,h,q]", "3 places instead of four"},
      {"f16 q8 d64 bias=f32[b,h,q,k,k]", "'k' in place 5"},
      {"f16 q8 d64 mask=[]", "needs [b,h,q,k] with 1"},
      {"f16 q8 d64 mask=u8[b,h,q,k]", "needs [b,h,q,k] with 1"},
      {"f16 q8 d64 mask=[b,h,q,2]", "'2' in place 4"},
      {"f16 d64 varlen=8 k8", "word 'k8': not allowed with varlen="},
      {"f16 d64 varlen=3:", "'' is not a whole number"},
      {"f16 d64 varlen=3:4:5", "'4:5' is not a whole number"},
      {"f16 d64 varlen=2147483648", "'2147483648' is outside 0 to 2147483647"},
      {"f16 d64 varlen=@", "the file cannot be opened"},
      {"f16 d64 varlen=@/", "the file is not a regular file"},
      {"f16 q8 d64 seqused=@/dev/zero", "the file is not a regular file"},
      {"f16 q8 d64 seqused=", "no lengths for 1 sequences"},
      {"f16 d64 varlen=8 seqused=", "no lengths for 1 sequences"},
      {"f16 d64 varlen=8,8 seqused=8,9", "seqused = 9, sequence 1 has 8 keys"},
      {"f16 d64 varlen=8:2,8:2 seqused_q=8,9", "seqused_q = 9, sequence 1 has 8 queries"},
      {"f16 q8 d64 seqused_q=", "no lengths for 1 sequences"},
      {"f16 q8 d64 page=-1", "'-1' is outside 1 to"},
      {"f16 q8 d64 scales=none", "'none' is not one of tensor, head, token, block64, block128, channel"},
      {"e4m3 q8 d64 q_scales=channel", "q_scales = channel: only v"},
      {"q=e4m3 k=f16 v=e4m3 q8 d64 scales=head", "k_scales = head, k = f16"},
      {"f16 q8 d64 v_scales=channel", "v_scales = channel, v = f16"},
      {"q=f16 k=e4m3 v=e4m3 q8 d64 hadamard", "needs q and k"},
      {"f16 q8 d64 pv=auto", "'auto' is not one of f16, fp8, fp8x2"},
      {"f16 q8 d64 pv=fp8x2", "pv = fp8x2, v = f16"},
      {"q=f16 k=f16 v=f32 q8 d64 acc=f16", "acc = f16, q = f16, k = f16, v = f32"},
      {"q=f16 k=bf16 v=f16 q8 d64 acc=tf32", "acc = tf32, q = f16, k = bf16, v = f16: needs f32 storage of q, k or v"},
      {"f16 q8 d64 acc=bf16", "'bf16' is not one of f32, f16, tf32"},
      {"f16 q8 d64 q_strides=1,2,3,4,5", "more than 4 numbers"},
      {"f16 q8 d64 q_strides=", "needs at least one number"},
      {"f16 q8 d64 v_strides=0,0,9223372036854775807,1", "must reach fewer than 2^60 elements"},
      {"f16 q8 d64 v_strides=0,0,-9223372036854775808,1", "is outside -9223372036854775807"},
      {"f16 q8 d64 out_strides=512,512,63,1", "elements of out must not share an address"},
      {"f16 q8 d64 v_strides=0,0,1152921504606846976,1", "must reach fewer than 2^60 elements"},
      {"f16 q8 d64 splits=2 invariant", "splits = 2 with invariant"},
      {"f16 q8 k_start=1 d64 causal_top_left", "causal_top_left with q_start or k_start"},
      {"f16 q8 d64 q_start=1152921504606846977", "is outside -1152921504606846976"},
      {"f16 b0 q8 d64 q_start=1,2", "q_start has 2 values, batch = 0"},
      {"f16 q8 d64 mod=", "word 'mod=': needs a digest"},
      {"f16 q8 d64 mod=" + std::string(65, 'a'), "at most 64 lower-case hexadecimal digits"},
      {"f32 h1000000 q1099511627776 d1099511627776", "q size = 1 x ... x 1099511627776"},
      {"f32 b0 h1000000 q1099511627776 d1099511627776", "q size = 0 x ... x"},
      {"f32 b1000000 h1 q1000000 k10000000 d1 bias=f32[b,h,q,k]", "bias size"},
      {"f32 q1000000 d64 splits=1099511627776", "out size times splits"},
      {"f16 q8 d64 \x01", "control character at byte 11"},
      {std::string("f16 q8 d64\0causal", 17), "control character at byte 10"},
      {"f16 q8 d64 caf\xc3\xa9", "word 'caf\\xc3\\xa9': unknown"},
      {std::string(100, 'z'), "zzzz...': unknown"},
      {"f16 q8 d64 " + std::string(size_t{1} << 24, ' '), "problem line of 16777227 bytes: at most 16777216"},
  };
  for (const auto& [line, sentence] : refused) {
    const std::string said = refusal(line);
    EXPECT_NE(said, "") << line.substr(0, 100);
    EXPECT_NE(said.find(sentence), std::string::npos) << line.substr(0, 100) << "\n said: " << said;
  }
}

// Errors that a line cannot have, but a Problem made from tensors can.
TEST(Validate, RefusesWhatALineCannotSay) {
  const std::pair<std::function<void(Problem&)>, const char*> refused[] = {
      {[](Problem& p) { p.q = DType::i32; }, "q dtype = i32: must be one of"},
      {[](Problem& p) { p.k = DType::none; }, "k dtype = none"},
      {[](Problem& p) { p.v = DType::u8; }, "v dtype = u8"},
      {[](Problem& p) { p.mask.dtype = DType::f16; }, "mask dtype = f16: must be u8"},
      {[](Problem& p) { p.batch = -1; }, "batch = -1: must be 0 to 2^40"},
      {[](Problem& p) { p.splits = -1; }, "splits = -1"},
      {[](Problem& p) { p.alibi_per_batch = true; }, "alibi_per_batch without alibi"},
      {[](Problem& p) { p.q_starts = {1}; }, "q_start: given although has_starts is false"},
      {[](Problem& p) { p.has_starts = true, p.k_starts = {INT64_MIN}; }, "k_start = -9223372036854775808"},
      {[](Problem& p) { p.total_k = 3; }, "lengths or totals without varlen"},
      {[](Problem& p) {
         p.used_k = {1, 2};
       },
       "used_k: given although seqused is false"},
      {[](Problem& p) {
         p.used_q = {1, 1};
       },
       "used_q: given although seqused_q is false"},
      {[](Problem& p) {
         p.varlen = true, p.lengths_q = {1, 2};
       },
       "lengths_q has 2 lengths, lengths_k has 0"},
      {[](Problem& p) {
         p.varlen = true, p.lengths_q = p.lengths_k = {1, -2}, p.total_q = 9;
       },
       "lengths_q = -2"},
      {[](Problem& p) {
         p.varlen = true, p.lengths_q = p.lengths_k = {1, 20}, p.total_q = 21, p.total_k = 20;
       },
       "lengths_k sum = 21, packed rows = 20"},
      {[](Problem& p) {
         p.varlen = true, p.lengths_q = p.lengths_k = {1, 2, 3}, p.total_q = p.total_k = 9;
       },
       "lengths_q has 3 lengths, batch = 2"},
  };
  for (const auto& [change, sentence] : refused) {
    Problem p = base_problem();
    change(p);
    try {
      validate(p);
      ADD_FAILURE() << "not refused: " << sentence;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(sentence), std::string::npos) << error.what();
    }
  }
}

// A sequence that is longer than the caller's maximum is cut to the maximum. Rows after the last sequence belong to no
// sequence.
TEST(Validate, AcceptsLengthsAboveTheMaximumAndRowsPastTheEnd) {
  Problem p = base_problem();
  p.varlen = true, p.lengths_q = {5, 30}, p.lengths_k = {40, 6}, p.total_q = 50, p.total_k = 46;
  EXPECT_NO_THROW(validate(p));
}

// Files of lengths.

class LengthsFile : public testing::Test {
 protected:
  ~LengthsFile() override { std::filesystem::remove(path_); }
  std::string write(const std::string& text) {
    std::ofstream(path_, std::ios::binary) << text;
    return "f16 h2 d8 varlen=@" + path_;
  }
  std::string path_ = testing::TempDir() + "rapt_lengths_" + std::to_string(getpid());
};

TEST_F(LengthsFile, ReadsLengthsAndPairs) {
  EXPECT_EQ(to_string(parse_problem(write("17 0\n512"))), "f16 b3 h2 d8 varlen=17,0,512");
  EXPECT_EQ(to_string(parse_problem(write("1:3,\r\n\t0:0, 2\n"))), "f16 b3 h2 d8 varlen=1:3,0:0,2:2");
  write("4\n5");
  EXPECT_EQ(parse_problem("f16 b2 q1 k9 d8 seqused=@" + path_).used_k, (std::vector<int32_t>{4, 5}));
  EXPECT_EQ(to_string(parse_problem(write("\n") + " b0")), "f16 b0 h2 d8 varlen=");
}

TEST_F(LengthsFile, NamesWhatItCannotRead) {
  EXPECT_NE(refusal(write("17 x")).find("'x' is not a whole number"), std::string::npos);
  EXPECT_NE(refusal(write(std::string("17\0", 3))).find("'17\\x00' is not a whole number"), std::string::npos);
  EXPECT_NE(refusal(write(" ")).find("an empty batch is b0 varlen="), std::string::npos);
}

TEST_F(LengthsFile, BoundsWhatItReads) {
  std::string most;
  for (int i = 0; i < 1 << 20; ++i) most += "1,";
  EXPECT_EQ(parse_problem(write(most)).batch, 1 << 20);
  EXPECT_NE(refusal(write(most + "1")).find("more than 1048576 lengths"), std::string::npos);
  EXPECT_NE(refusal("f16 h2 d8 varlen=" + most + "1").find("more than 1048576 lengths"), std::string::npos);
  EXPECT_NE(refusal(write(std::string((1 << 24) + 1, ' '))).find("larger than 16777216 bytes"), std::string::npos);
}

// The documentation.

// The lines of every fenced block of docs/problem-line.md with this tag.
std::vector<std::string> documented(const std::string& tag) {
  std::ifstream in(std::string(RAPT_SOURCE_DIR) + "/docs/problem-line.md");
  EXPECT_TRUE(in.is_open());
  std::vector<std::string> lines;
  bool inside = false;
  for (std::string line; std::getline(in, line);) {
    if (line.rfind("```", 0) == 0) {
      inside = !inside && line == "```" + tag;
    } else if (inside) {
      lines.push_back(line);
    }
  }
  return lines;
}

TEST(ProblemLineDocs, EveryExampleParses) {
  const std::vector<std::string> lines = documented("problem");
  EXPECT_GE(lines.size(), 25u);
  for (const std::string& line : lines) {
    ASSERT_EQ(refusal(line), "") << line;
    const Problem p = parse_problem(line);
    EXPECT_TRUE(parse_problem(to_string(p)) == p) << line;
  }
}

TEST(ProblemLineDocs, EveryErrorReadsAsDocumented) {
  const std::vector<std::string> lines = documented("problem-error");
  EXPECT_GE(lines.size(), 50u);
  for (const std::string& line : lines) {
    const size_t arrow = line.find(" --> ");
    ASSERT_NE(arrow, std::string::npos) << line;
    EXPECT_EQ(refusal(line.substr(0, arrow)), line.substr(arrow + 5));
  }
}

}  // namespace
}  // namespace rapt
