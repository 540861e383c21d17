// Tests which calls count as repeated GPU calls. Only addresses are allowed to differ, and only if a full check would
// accept the new call.
#include "runtime/recent_calls.h"

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "arguments/arguments.h"
#include "arguments/sdpa_arguments.h"
#include "base/error.h"
#include "check/fill.h"
#include "check/tensor.h"
#include "problem/problem.h"

namespace rapt {
namespace {

constexpr uint64_t owner = 7;

// A call whose tensors are placed one after another in one buffer.
struct Fixture {
  std::vector<std::byte> memory = std::vector<std::byte>(1 << 16);
  int64_t shape[4] = {1, 2, 8, 16}, strides[4] = {256, 128, 16, 1}, lse_shape[3] = {1, 2, 8}, slopes_shape[1] = {2};
  rapt_tensor q = tensor(0, shape, strides), k = tensor(1, shape, nullptr), v = tensor(2, shape, nullptr),
              out = tensor(3, shape, nullptr), lse = tensor(4, lse_shape, nullptr, 3),
              slopes = tensor(5, slopes_shape, nullptr, 1);
  rapt_sdpa_args args{};

  Fixture() {
    args.struct_size = sizeof args;
    args.q = &q, args.k = &k, args.v = &v, args.out = &out, args.lse = &lse, args.alibi_slopes = &slopes;
    lse.dtype = RAPT_F32, slopes.dtype = RAPT_F32;
  }
  rapt_tensor tensor(size_t place, const int64_t* sizes, const int64_t* steps, int32_t rank = 4) {
    return {memory.data() + 4096 * place, {RAPT_DEVICE_CUDA, 0}, RAPT_F16, rank, sizes, steps};
  }
  RecentCall remembered() const { return {owner, args, Problem{}, nullptr}; }
};

bool matches(const RecentCall& call, uint64_t context_id, const rapt_sdpa_args& args) {
  return RecentCall::can_remember(args) && call.same_kind(context_id, args) && call.same_layouts(args) &&
         call.outputs_disjoint(args);
}
bool follow(RecentCall& call, uint64_t context_id, const rapt_sdpa_args& args) {
  return RecentCall::can_remember(args) && call.same_kind(context_id, args) && call.follow(args);
}

TEST(RecentCalls, AddressesMayDiffer) {
  Fixture f;
  const RecentCall known = f.remembered();
  EXPECT_TRUE(matches(known, owner, f.args));
  std::swap(f.q.data, f.k.data);
  f.v.data = static_cast<std::byte*>(f.v.data) + 16;
  EXPECT_TRUE(matches(known, owner, f.args));
  EXPECT_FALSE(matches(known, owner + 1, f.args));
  EXPECT_FALSE(matches(RecentCall(), owner, f.args));
}

// A plan for v in k reads V from the memory of K. So whether v is in k must not change.
TEST(RecentCalls, WhetherValuesAreAPartOfTheKeysCounts) {
  Fixture f;
  const RecentCall apart = f.remembered();
  void* const own = f.v.data;
  f.v.data = f.k.data;
  EXPECT_FALSE(matches(apart, owner, f.args));
  Problem problem;
  problem.v_in_k = true;
  const RecentCall together(owner, f.args, problem, nullptr);
  EXPECT_TRUE(matches(together, owner, f.args));
  f.v.data = f.k.data = static_cast<std::byte*>(own) + 5 * 4096;
  EXPECT_TRUE(matches(together, owner, f.args));
  f.v.data = own;
  EXPECT_FALSE(matches(together, owner, f.args));
}

TEST(RecentCalls, NothingElseMayDiffer) {
  int64_t other_shape[4] = {1, 2, 7, 16}, other_strides[4] = {256, 16, 32, 1};
  int workspace[64];
  const rapt_score_mod mod{};
  const std::vector<std::pair<const char*, std::function<void(Fixture&)>>> changes = {
      {"shape", [&](Fixture& f) { f.k.shape = other_shape; }},
      {"strides", [&](Fixture& f) { f.q.strides = other_strides; }},
      {"strides given", [&](Fixture& f) { f.k.strides = f.strides; }},
      {"strides dropped", [](Fixture& f) { f.q.strides = nullptr; }},
      {"dtype", [](Fixture& f) { f.v.dtype = RAPT_BF16; }},
      {"rank", [](Fixture& f) { f.v.rank = 3; }},
      {"device", [](Fixture& f) { f.k.device.index = 1; }},
      {"device type", [](Fixture& f) { f.k.device.type = RAPT_DEVICE_CPU; }},
      {"alignment", [](Fixture& f) { f.q.data = static_cast<std::byte*>(f.q.data) + 2; }},
      {"no data", [](Fixture& f) { f.q.data = nullptr; }},
      {"tensor dropped", [](Fixture& f) { f.args.lse = nullptr; }},
      {"tensor added", [](Fixture& f) { f.args.bias = &f.slopes; }},
      {"out over q", [](Fixture& f) { f.out.data = f.q.data; }},
      {"out into v", [](Fixture& f) { f.out.data = static_cast<std::byte*>(f.v.data) + 256; }},
      {"lse over slopes", [](Fixture& f) { f.lse.data = f.slopes.data; }},
      {"lse over out", [](Fixture& f) { f.lse.data = f.out.data; }},
      {"flags", [](Fixture& f) { f.args.flags = RAPT_CAUSAL; }},
      {"has", [](Fixture& f) { f.args.has = RAPT_HAS_SCALE; }},
      {"scale", [](Fixture& f) { f.args.softmax_scale = 0.5; }},
      {"softcap", [](Fixture& f) { f.args.softcap = 1; }},
      {"window", [](Fixture& f) { f.args.window_right = 1; }},
      {"start", [](Fixture& f) { f.args.q_start = 3; }},
      {"scales", [](Fixture& f) { f.args.v_scales = 1; }},
      {"reserved", [](Fixture& f) { f.args.reserved = 1; }},
      {"score_mod", [&](Fixture& f) { f.args.score_mod = &mod; }},
      {"workspace", [&](Fixture& f) { f.args.workspace = workspace; }},
      {"workspace bytes", [](Fixture& f) { f.args.workspace_bytes = 1; }},
      {"struct size", [](Fixture& f) { f.args.struct_size += 8; }},
      {"contents", [](Fixture& f) { f.args.flags = RAPT_CHECK_CONTENTS; }},
  };
  for (const auto& [name, change] : changes) {
    Fixture f;
    const RecentCall known = f.remembered();
    ASSERT_TRUE(matches(known, owner, f.args));
    change(f);
    EXPECT_FALSE(matches(known, owner, f.args)) << name;
  }
}

// For each field of the struct: adds or removes a tensor, or changes one bit of a value. The table (sdpa_arguments.h)
// has a row for every field; otherwise it would not compile.
TEST(RecentCalls, EveryFieldCounts) {
  const int64_t shape[1] = {2};
  for (const TensorArgument& argument : tensor_arguments) {
    Fixture f;
    const RecentCall known = f.remembered();
    rapt_tensor extra = f.tensor(9, shape, nullptr, 1);
    f.args.*argument.member = f.args.*argument.member == nullptr ? &extra : nullptr;
    EXPECT_FALSE(matches(known, owner, f.args)) << argument.name;
  }
  size_t number = 0;
  const auto flip = [&](auto member) {
    for (size_t bit = 0; bit < 8 * sizeof(Fixture{}.args.*member); ++bit) {
      Fixture f;
      const RecentCall known = f.remembered();
      reinterpret_cast<unsigned char*>(&(f.args.*member))[bit / 8] ^= static_cast<unsigned char>(1u << bit % 8);
      EXPECT_FALSE(matches(known, owner, f.args)) << "value " << number << ", bit " << bit;
    }
    ++number;
  };
  std::apply([&](auto... member) { (flip(member), ...); }, value_arguments);
  std::apply([&](auto... member) { (flip(member), ...); }, unremembered_arguments);
}

TEST(RecentCalls, TheOldestIsForgotten) {
  RecentCalls calls;
  std::vector<std::unique_ptr<Fixture>> fixtures;
  for (int i = 0; i < 5; ++i) {
    fixtures.push_back(std::make_unique<Fixture>());
    fixtures.back()->args.splits = i + 1;
    calls.add(fixtures.back()->remembered());
  }
  EXPECT_EQ(calls.find(owner, fixtures[0]->args), nullptr);
  for (size_t i = 1; i < 5; ++i) EXPECT_NE(calls.find(owner, fixtures[i]->args), nullptr) << i;
}

// Outputs with negative strides, and interleaved outputs. The full check must decide about them.
TEST(RecentCalls, RangesFollowStrides) {
  Fixture f;
  int64_t backwards[4] = {256, 128, -16, 1};
  f.out.strides = backwards, f.out.data = f.memory.data() + 3 * 4096 + 2 * 16 * 7;
  const RecentCall known = f.remembered();
  EXPECT_TRUE(matches(known, owner, f.args));
  f.v.data = f.memory.data() + 3 * 4096 - 2 * 256 + 16;  // ends inside the block before out's address
  EXPECT_FALSE(matches(known, owner, f.args));
}

// The layout of a call: packed queries or not, and keys in pages or not.
struct CallLayout {
  bool packed = false, paged = false;
};
constexpr CallLayout dense{}, packed{true, false}, paged{false, true}, packed_and_paged{true, true};
constexpr CallLayout layouts[] = {dense, packed, paged, packed_and_paged};
const char* name_of(const CallLayout& layout) {
  return layout.paged ? layout.packed ? "packed queries, pages" : "pages" : layout.packed ? "packed" : "dense";
}

// A call with any lengths in one buffer. It has every tensor whose shape contains a length.
struct GrowingCall {
  std::vector<std::byte> memory = std::vector<std::byte>(1 << 16);
  std::array<std::array<int64_t, 4>, tensor_arguments.size()> shapes{}, strides{};
  std::array<rapt_tensor, tensor_arguments.size()> tensors{};
  rapt_sdpa_args args{};
  size_t used = 0;

  struct Lengths {
    int64_t q, k, total_q = 0, total_k = 0;
  };
  GrowingCall(const CallLayout& layout, const Lengths& n) {
    args.struct_size = sizeof args;
    const int64_t rows_q = layout.packed ? n.total_q : n.q, rows_k = layout.packed ? n.total_k : n.k;
    const auto of = [&](int64_t heads, int64_t rows, int64_t dim) {
      return layout.packed ? std::vector<int64_t>{rows, heads, dim} : std::vector<int64_t>{2, heads, rows, dim};
    };
    const auto of_keys = [&](int64_t dim) {
      return layout.paged ? std::vector<int64_t>{70, 2, 16, dim} : of(2, rows_k, dim);
    };
    add("q", RAPT_E4M3, of(4, rows_q, 64)), add("k", RAPT_E4M3, of_keys(64));
    add("v", RAPT_E4M3, of_keys(32)), add("out", RAPT_F16, of(4, rows_q, 32));
    add("lse", RAPT_F32, layout.packed ? std::vector<int64_t>{4, rows_q} : std::vector<int64_t>{2, 4, rows_q});
    add("bias", RAPT_F16, {4, n.q, n.k}), add("mask", RAPT_U8, {n.k}), add("sinks", RAPT_F32, {4});
    add("q_descale", RAPT_F32, layout.packed ? std::vector<int64_t>{4, rows_q} : std::vector<int64_t>{2, 4, rows_q});
    add("k_descale", RAPT_F32, {2, 2, (n.k + 63) / 64});
    add("v_descale", RAPT_F32, layout.paged ? std::vector<int64_t>{70, 16, 2} : std::vector<int64_t>{2, 2, 32});
    args.q_scales = RAPT_SCALE_TOKEN, args.k_scales = RAPT_SCALE_BLOCK64;
    args.v_scales = layout.paged ? RAPT_SCALE_TOKEN : RAPT_SCALE_CHANNEL;
    add("seqused_k", RAPT_I32, {2});
    if (layout.packed) add("cu_seqlens_q", RAPT_I32, {3});
    if (layout.packed && !layout.paged) add("cu_seqlens_k", RAPT_I32, {3});
    if (layout.paged) add("block_table", RAPT_I32, {2, 80});
    if (layout.packed) args.has |= RAPT_HAS_MAX_SEQLEN_Q, args.max_seqlen_q = n.q;
    if (layout.packed || layout.paged) args.has |= RAPT_HAS_MAX_SEQLEN_K, args.max_seqlen_k = n.k;
  }
  GrowingCall(const GrowingCall&) = delete;
  GrowingCall& operator=(const GrowingCall&) = delete;

  static size_t index(const std::string& name) {
    size_t i = 0;
    while (tensor_arguments[i].name != name) ++i;
    return i;
  }
  // The tensors are far apart. Nothing is read, so the memory need not exist.
  void add(const std::string& name, rapt_dtype dtype, const std::vector<int64_t>& shape) {
    const size_t i = index(name);
    std::copy(shape.begin(), shape.end(), shapes[i].begin());
    int64_t step = 1;
    for (size_t d = shape.size(); d-- > 0; step *= std::max<int64_t>(shape[d], 1)) strides[i][d] = step;
    tensors[i] = {memory.data() + (i << 40),          {RAPT_DEVICE_CUDA, 0}, dtype,
                  static_cast<int32_t>(shape.size()), shapes[i].data(),      strides[i].data()};
    args.*tensor_arguments[i].member = &tensors[i];
  }
};

// The problem that the full check gives. Nothing if it refuses the call.
std::optional<Problem> full_check(const rapt_sdpa_args& args) {
  try {
    return problem_from(args);
  } catch (const Error&) {
    return std::nullopt;
  }
}

constexpr GrowingCall::Lengths short_ones{100, 992, 190, 1900}, other_ones{103, 1008, 192, 1919};

TEST(RecentCalls, LengthsOfTheSameClassesAreFollowed) {
  for (const CallLayout& layout : layouts) {
    SCOPED_TRACE(name_of(layout));
    const GrowingCall first(layout, short_ones), second(layout, other_ones);
    const std::optional<Problem> known = full_check(first.args), asked = full_check(second.args);
    ASSERT_TRUE(known && asked);
    RecentCall call(owner, first.args, *known, nullptr);
    EXPECT_FALSE(matches(call, owner, second.args));
    EXPECT_FALSE(follow(call, owner + 1, second.args));
    ASSERT_TRUE(follow(call, owner, second.args));
    EXPECT_EQ(call.problem(), *asked);
    EXPECT_TRUE(matches(call, owner, second.args));
    EXPECT_FALSE(matches(call, owner, first.args));
    ASSERT_TRUE(follow(call, owner, first.args)) << "and back";
    EXPECT_EQ(call.problem(), *known);
  }
}

TEST(RecentCalls, OtherClassesAreNotFollowed) {
  for (const CallLayout& layout : layouts)
    for (const GrowingCall::Lengths& lengths : {GrowingCall::Lengths{105, 992, 190, 1900},
                                                {100, 1025, 190, 1900},
                                                {96, 992, 190, 1900},
                                                {100, 992, 193, 1900},
                                                {100, 992, 190, 1921}}) {
      const bool same_packed = (!layout.packed || lengths.total_q == short_ones.total_q) &&
                               (!layout.packed || layout.paged || lengths.total_k == short_ones.total_k);
      if (lengths.q == short_ones.q && lengths.k == short_ones.k && same_packed) continue;
      const GrowingCall first(layout, short_ones), second(layout, lengths);
      const std::optional<Problem> known = full_check(first.args);
      ASSERT_TRUE(known && full_check(second.args));
      RecentCall call(owner, first.args, *known, nullptr);
      EXPECT_FALSE(follow(call, owner, second.args)) << lengths.q << " " << lengths.k;
      EXPECT_TRUE(matches(call, owner, first.args)) << "still remembered";
    }
}

// A decode loop whose keys grow, without a maximum: the table gives the lengths, and only addresses and seqused_k
// change.
TEST(RecentCalls, PagedCallsWithoutAMaximumAreRepeated) {
  GrowingCall call(paged, short_ones);
  call.args.has = 0, call.args.max_seqlen_k = 0;
  call.add("bias", RAPT_F16, {4, 100, 1280}), call.add("mask", RAPT_U8, {1280}),
      call.add("k_descale", RAPT_F32, {2, 2, 20});
  const RecentCall known(owner, call.args, *full_check(call.args), nullptr);
  for (const char* name : {"q", "out", "block_table", "seqused_k"}) {
    rapt_tensor& t = call.tensors[GrowingCall::index(name)];
    t.data = static_cast<std::byte*>(t.data) + (1 << 20);
  }
  EXPECT_TRUE(matches(known, owner, call.args));
}

// Two rules of paged keys: the maximum must fit into the table, also within a class of lengths.
TEST(RecentCalls, AMaximumBeyondTheTableIsNotFollowed) {
  GrowingCall first(paged, {100, 992}), second(paged, {100, 1008}), third(paged, {100, 1009});
  for (GrowingCall* call : {&first, &second, &third}) call->add("block_table", RAPT_I32, {2, 63});  // 1008 keys
  RecentCall call(owner, first.args, *full_check(first.args), nullptr);
  ASSERT_FALSE(full_check(third.args));
  EXPECT_FALSE(follow(call, owner, third.args));
  EXPECT_TRUE(follow(call, owner, second.args));
}

// Each size, stride, address and value gets unusual values. If RecentCalls accepts the changed call, the call must pass
// the full check and give the same problem that is remembered.
TEST(RecentCalls, NothingIsFollowedThatWouldBeRefused) {
  int64_t followed = 0, refused = 0;
  const auto try_change = [&](const CallLayout& layout, const std::function<void(GrowingCall&)>& change,
                              const std::string& what) {
    const GrowingCall first(layout, short_ones);
    GrowingCall second(layout, other_ones);
    RecentCall call(owner, first.args, *full_check(first.args), nullptr);
    change(second);
    const std::optional<Problem> asked = full_check(second.args);
    refused += asked ? 0 : 1;
    if (!follow(call, owner, second.args)) return;
    ++followed;
    ASSERT_TRUE(asked) << what << ": followed, but the long way refuses it";
    EXPECT_EQ(call.problem(), *asked) << what;
  };
  for (const CallLayout& layout : layouts)
    for (size_t i = 0; i < tensor_arguments.size(); ++i) {
      const std::string name = concat(tensor_arguments[i].name, ", ", name_of(layout));
      for (size_t d = 0; d < 4; ++d)
        for (const int64_t value : {-1, 0, 1, 2, 3, 4, 8, 16, 32, 64, 100, 103, 104, 192, 992, 1008, 1 << 28}) {
          const std::string where = concat(name, ", ", d, ", ", value);
          try_change(
              layout, [&](GrowingCall& c) { c.shapes[i][d] = value; }, "shape of " + where);
          try_change(
              layout, [&](GrowingCall& c) { c.strides[i][d] = value; }, "stride of " + where);
          try_change(
              layout, [&](GrowingCall& c) { c.strides[i][d] *= value; }, "factor of " + where);
        }
      for (const int64_t stride : {int64_t{1} << 40, int64_t{1} << 52, int64_t{1} << 58, INT64_MIN, INT64_MAX})
        for (size_t d = 0; d < 4; ++d)
          try_change(
              layout, [&](GrowingCall& c) { c.strides[i][d] = stride; }, concat("stride of ", name));
      for (size_t other = 0; other < tensor_arguments.size(); ++other)
        try_change(
            layout, [&](GrowingCall& c) { c.tensors[i].data = c.tensors[other].data; },
            concat(name, " at ", tensor_arguments[other].name));
      try_change(
          layout, [&](GrowingCall& c) { c.args.*tensor_arguments[i].member = nullptr; }, "no " + name);
      try_change(
          layout, [&](GrowingCall& c) { c.tensors[i].strides = nullptr; }, "dense " + name);
      try_change(
          layout, [&](GrowingCall& c) { c.tensors[i].dtype = RAPT_F32; }, "f32 " + name);
    }
  for (const int64_t length : {int64_t{-1}, int64_t{0}, int64_t{1007}, int64_t{1281}, int64_t{1} << 41})
    for (const CallLayout& layout : layouts)
      try_change(
          layout, [&](GrowingCall& c) { c.args.max_seqlen_k = length; }, concat("max_seqlen_k, ", name_of(layout)));
  EXPECT_GT(followed, 300);
  EXPECT_GT(refused, 1000);
}

// A plan can read bias and mask in pairs of keys. A call without such pairs must not use this plan, and the reverse.
TEST(RecentCalls, PairsOfBiasAndMaskDoNotChange) {
  const auto shift = [](const char* name, int64_t bytes) {
    return [=](GrowingCall& c) {
      rapt_tensor& t = c.tensors[GrowingCall::index(name)];
      t.data = static_cast<std::byte*>(t.data) + bytes;
    };
  };
  const auto stride = [](const char* name, size_t d, int64_t value) {
    return [=](GrowingCall& c) { c.strides[GrowingCall::index(name)][d] = value; };
  };
  const auto nothing = [](GrowingCall&) {};
  const struct {
    GrowingCall::Lengths lengths;
    std::function<void(GrowingCall&)> change;
    bool bias_pairs, mask_pairs;
  } calls[] = {{{100, 1000, 190, 1900}, nothing, true, true},
               {{100, 1001, 190, 1900}, nothing, false, false},
               {{101, 1000, 190, 1900}, stride("bias", 1, 1001), false, true},
               {{101, 1000, 190, 1900}, stride("bias", 0, 1001001), false, true},
               {{101, 1000, 190, 1900}, stride("bias", 2, 2), false, true},
               {{101, 1000, 190, 1900}, stride("bias", 1, -1000), true, true},
               {{101, 1000, 190, 1900}, stride("mask", 0, 0), true, false},
               {{100, 1000, 190, 1900}, shift("bias", 2), false, true},
               {{100, 1000, 190, 1900}, shift("bias", 4), true, true},
               {{100, 1000, 190, 1900}, shift("mask", 1), true, false},
               {{100, 1000, 190, 1900}, shift("mask", 2), true, true}};
  for (const CallLayout& layout : layouts)
    for (const auto& one : calls)
      for (const auto& other : calls) {
        GrowingCall first(layout, one.lengths), second(layout, other.lengths);
        one.change(first), other.change(second);
        const std::optional<Problem> known = full_check(first.args), asked = full_check(second.args);
        ASSERT_TRUE(known && asked);
        EXPECT_EQ(known->bias.access.pairs, one.bias_pairs) << &one - calls;
        EXPECT_EQ(known->mask.access.pairs, one.mask_pairs) << &one - calls;
        EXPECT_TRUE(known->mask.access.pairs || !known->mask.access.octets) << &one - calls;
        RecentCall call(owner, first.args, *known, nullptr);
        if (!matches(call, owner, second.args) && !follow(call, owner, second.args)) continue;
        EXPECT_EQ(call.problem(), *asked) << &one - calls << ", " << &other - calls;
      }
}

}  // namespace
}  // namespace rapt
