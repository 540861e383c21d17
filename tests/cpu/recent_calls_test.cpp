// What counts as a repeated GPU call: only the addresses may differ, and never so that a check would fail.
#include "runtime/recent_calls.h"

#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "arguments/sdpa_arguments.h"
#include "check/fill.h"
#include "check/tensor.h"

namespace rapt {
namespace {

constexpr uint64_t owner = 7;

// A call on tensors that lie one after another in one buffer.
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

TEST(RecentCalls, AddressesMayDiffer) {
  Fixture f;
  const RecentCall known = f.remembered();
  EXPECT_TRUE(known.matches(owner, f.args));
  std::swap(f.q.data, f.k.data);
  f.v.data = static_cast<std::byte*>(f.v.data) + 16;
  EXPECT_TRUE(known.matches(owner, f.args));
  EXPECT_FALSE(known.matches(owner + 1, f.args));
  EXPECT_FALSE(RecentCall().matches(owner, f.args));
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
    ASSERT_TRUE(known.matches(owner, f.args));
    change(f);
    EXPECT_FALSE(known.matches(owner, f.args)) << name;
  }
}

// Each field of the struct in turn: a tensor comes or goes, or one bit of a value changes. The table that this walks
// has a row for every field (sdpa_arguments.h), or it does not compile.
TEST(RecentCalls, EveryFieldCounts) {
  const int64_t shape[1] = {2};
  for (const TensorArgument& argument : tensor_arguments) {
    Fixture f;
    const RecentCall known = f.remembered();
    rapt_tensor extra = f.tensor(9, shape, nullptr, 1);
    f.args.*argument.member = f.args.*argument.member == nullptr ? &extra : nullptr;
    EXPECT_FALSE(known.matches(owner, f.args)) << argument.name;
  }
  size_t number = 0;
  const auto flip = [&](auto member) {
    for (size_t bit = 0; bit < 8 * sizeof(Fixture{}.args.*member); ++bit) {
      Fixture f;
      const RecentCall known = f.remembered();
      reinterpret_cast<unsigned char*>(&(f.args.*member))[bit / 8] ^= static_cast<unsigned char>(1u << bit % 8);
      EXPECT_FALSE(known.matches(owner, f.args)) << "value " << number << ", bit " << bit;
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

// Outputs with negative reach, and interleaved ones: the long way decides about those.
TEST(RecentCalls, RangesFollowStrides) {
  Fixture f;
  int64_t backwards[4] = {256, 128, -16, 1};
  f.out.strides = backwards, f.out.data = f.memory.data() + 3 * 4096 + 2 * 16 * 7;
  const RecentCall known = f.remembered();
  EXPECT_TRUE(known.matches(owner, f.args));
  f.v.data = f.memory.data() + 3 * 4096 - 2 * 256 + 16;  // ends inside the part before out's address
  EXPECT_FALSE(known.matches(owner, f.args));
}

}  // namespace
}  // namespace rapt
