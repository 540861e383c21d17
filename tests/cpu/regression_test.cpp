// Tests for defects of the library that adversarial tests found and that were fixed. Each test has the smallest call
// that showed the defect. They use the C ABI, because problem lines cannot express these strides, addresses and starts.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "cpu/isa.h"
#include "isa.h"
#include "rapt/rapt.h"
#include "support.h"

namespace rapt::test {
namespace {

// A dense or packed view of f32 (or another dtype) that owns its shape and strides.
struct Array {
  std::vector<int64_t> shape, strides;
  rapt_tensor tensor{};

  Array(void* data, std::vector<int64_t> sizes, std::vector<int64_t> steps = {}, rapt_dtype dtype = RAPT_F32)
      : shape(std::move(sizes)), strides(std::move(steps)) {
    tensor = {data,         {RAPT_DEVICE_CPU, 0},
              dtype,        static_cast<int32_t>(shape.size()),
              shape.data(), strides.empty() ? nullptr : strides.data()};
  }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
};

rapt_sdpa_args arguments(const Array& q, const Array& k, const Array& v, const Array& out) {
  rapt_sdpa_args args{};
  args.struct_size = sizeof args;
  args.q = &q.tensor, args.k = &k.tensor, args.v = &v.tensor, args.out = &out.tensor;
  return args;
}

void expect_refused(rapt_status status, const std::string& sentence) {
  EXPECT_EQ(status, RAPT_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(rapt_last_error(), sentence);
}

}  // namespace

// q, k, v and out are slices of one row [4, heads, dim]. They are disjoint, wherever the buffer is in memory.
TEST(Regression, FusedSlicesAreDisjointAtEveryAddress) {
  constexpr int64_t batch = 2, seqlen = 5, heads = 3, dim = 16, row = 4 * heads * dim;
  std::vector<float> buffer(batch * seqlen * row + row, 0.5f);
  const std::vector<int64_t> shape = {batch, heads, seqlen, dim}, strides = {seqlen * row, dim, row, 1};
  for (int64_t first = 0; first < row; ++first) {
    float* const at = buffer.data() + first;
    const Array q(at, shape, strides), k(at + heads * dim, shape, strides), v(at + 2 * heads * dim, shape, strides),
        out(at + 3 * heads * dim, shape, strides);
    const rapt_sdpa_args args = arguments(q, k, v, out);
    ASSERT_EQ(rapt_sdpa(nullptr, &args, nullptr), RAPT_OK) << first << ": " << rapt_last_error();
    // If out begins one element later, it overlaps the q of the next row.
    const Array late(at + 3 * heads * dim + 1, shape, strides);
    const rapt_sdpa_args overlapping = arguments(q, k, v, late);
    ASSERT_EQ(rapt_prepare(nullptr, &overlapping, nullptr), RAPT_ERROR_INVALID_ARGUMENT) << first;
  }
}

// docs/semantics.md: starts must be within -2^60 to 2^60; the difference of larger ones would overflow.
TEST(Regression, StartsOutOfRangeAreRefused) {
  std::vector<float> data(64, 1.0f), result(16, 7.0f);
  const Array q(data.data(), {1, 1, 1, 16}), k(data.data(), {1, 1, 4, 16}), out(result.data(), {1, 1, 1, 16});
  rapt_sdpa_args args = arguments(q, k, k, out);
  args.flags = RAPT_CAUSAL;
  args.has = RAPT_HAS_Q_START | RAPT_HAS_K_START;
  args.q_start = args.k_start = INT64_MIN;
  expect_refused(rapt_sdpa(nullptr, &args, nullptr), "q_start = -9223372036854775808: must be within -2^60 to 2^60");
  args.q_start = int64_t{1} << 60, args.k_start = (int64_t{1} << 60) + 1;
  expect_refused(rapt_prepare(nullptr, &args, nullptr), "k_start = 1152921504606846977: must be within -2^60 to 2^60");
  int64_t start = INT64_MAX;
  const Array starts(&start, {1}, {}, RAPT_I64);
  args.has = RAPT_HAS_Q_START, args.q_start = 0, args.k_starts = &starts.tensor;
  expect_refused(rapt_sdpa(nullptr, &args, nullptr), "k_starts[0] = 9223372036854775807: must be within -2^60 to 2^60");
  EXPECT_EQ(result, std::vector<float>(16, 7.0f));
  start = int64_t{1} << 60, args.q_start = int64_t{1} << 60;  // the same positions, so causal shows one key
  EXPECT_EQ(rapt_sdpa(nullptr, &args, nullptr), RAPT_OK) << rapt_last_error();
  EXPECT_EQ(result, std::vector<float>(16, 1.0f));
}

class RegressionIsa : public testing::TestWithParam<CpuIsa> {};
INSTANTIATE_TEST_SUITE_P(Isa, RegressionIsa, testing::ValuesIn(available_cpu_isas()), isa_name);

// 1 / softcap is infinite in float, and infinity * 0 is NaN.
TEST_P(RegressionIsa, SubnormalSoftcap) {
  const IsaLimit limit(GetParam());
  for (const int64_t queries : {1, 20}) {
    std::vector<float> q(queries * 4, 0.0f), k = {1, 1, 1, 1, 2, 2, 2, 2}, v = {1, 1, 1, 1, 3, 3, 3, 3};
    std::vector<float> result(q.size()), lse_values(queries);
    q[0] = 1;  // one query has logits that the cap limits; the others have logits of 0
    const Array tq(q.data(), {1, 1, queries, 4}), tk(k.data(), {1, 1, 2, 4}), tv(v.data(), {1, 1, 2, 4}),
        out(result.data(), {1, 1, queries, 4}), lse(lse_values.data(), {1, 1, queries});
    rapt_sdpa_args args = arguments(tq, tk, tv, out);
    args.lse = &lse.tensor;
    args.has = RAPT_HAS_SOFTCAP;
    for (const double cap : {1e-45, 1e-40, 2.9e-39, 1e-38}) {
      args.softcap = cap;
      ASSERT_EQ(rapt_sdpa(nullptr, &args, nullptr), RAPT_OK) << rapt_last_error();
      for (const float o : result) EXPECT_NEAR(o, 2.0f, 1e-6f) << cap;
      for (const float x : lse_values) EXPECT_NEAR(x, std::log(2.0f), 1e-6f) << cap;
    }
  }
}

// Vectors of scores share the test whether a soft cap needs only its polynomial. A NaN must not hide a large score of
// another vector from this test.
TEST_P(RegressionIsa, NanDoesNotChangeSoftCapsOfOtherScores) {
  const IsaLimit limit(GetParam());
  constexpr int64_t keys = 70, dim = 4, large = 2;
  for (const int64_t queries : {1, 3, 20}) {
    std::vector<float> q(queries * dim, 1.0f), k(keys * dim, 0.01f), v(keys * dim, 0.5f), result(q.size());
    std::fill_n(k.begin() + large * dim, dim, 3.0f), std::fill_n(v.begin() + large * dim, dim, 9.0f);
    std::vector<float> lse_values(queries);
    std::vector<uint8_t> seen(keys, 1);
    const Array tq(q.data(), {1, 1, queries, dim}), tk(k.data(), {1, 1, keys, dim}), tv(v.data(), {1, 1, keys, dim}),
        out(result.data(), {1, 1, queries, dim}), lse(lse_values.data(), {1, 1, queries}),
        mask(seen.data(), {1, 1, 1, keys}, {}, RAPT_U8);
    rapt_sdpa_args args = arguments(tq, tk, tv, out);
    args.lse = &lse.tensor, args.mask = &mask.tensor;
    args.has = RAPT_HAS_SOFTCAP | RAPT_HAS_SCALE, args.softcap = 1, args.softmax_scale = 1;
    for (int64_t hidden = large + 1; hidden < keys; ++hidden) {
      seen[static_cast<size_t>(hidden)] = 0;
      ASSERT_EQ(rapt_sdpa(nullptr, &args, nullptr), RAPT_OK) << rapt_last_error();
      const std::vector<float> expected = result, expected_lse = lse_values;
      std::fill_n(k.begin() + hidden * dim, dim, NAN);
      ASSERT_EQ(rapt_sdpa(nullptr, &args, nullptr), RAPT_OK) << rapt_last_error();
      EXPECT_EQ(result, expected) << queries << " queries, hidden key " << hidden;
      EXPECT_EQ(lse_values, expected_lse) << queries << " queries, hidden key " << hidden;
      std::fill_n(k.begin() + hidden * dim, dim, 0.01f), seen[static_cast<size_t>(hidden)] = 1;
    }
  }
}

// The results of other tiles must not overwrite split states in the caller's workspace. Also, XLA's threads and
// torch.set_flush_denormal flush subnormal numbers to 0, and a worker inherits this mode from the thread that created
// its pool. Bits must not depend on the mode. k and v have every E4M3 value, and each tile has the subnormal ones.
TEST_P(RegressionIsa, CallersArithmeticDoesNotMatter) {
#if defined(__x86_64__)
  constexpr int64_t rows = 64, dim = 64;
  std::vector<uint8_t> bytes(rows * dim);
  for (size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<uint8_t>(i * 7 % 256 & 0x7F) == 0x7F ? 1 : static_cast<uint8_t>(i * 7);
  std::vector<float> input(rows * dim, 1e-39f), expected(rows * dim), flushed(rows * dim, 7.f);
  const std::vector<int64_t> shape = {1, 1, rows, dim};
  const Array q(input.data(), shape), k(bytes.data(), shape, {}, RAPT_E4M3);
  const auto call = [&](std::vector<float>& to) {
    rapt_context_options options{};
    options.struct_size = sizeof options;
    options.num_threads = 3;
    rapt_context* context = nullptr;
    ASSERT_EQ(rapt_context_create(&options, &context), RAPT_OK);  // its workers start in this thread's mode
    const Array out(to.data(), shape);
    rapt_sdpa_args args = arguments(q, k, k, out);
    args.has = RAPT_HAS_SCALE;
    args.softmax_scale = 1e38;
    EXPECT_EQ(rapt_sdpa(context, &args, nullptr), RAPT_OK) << rapt_last_error();
    rapt_context_destroy(context);
  };
  call(expected);
  const unsigned before = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(before | 0x8040 | 0x4000);  // treat subnormal inputs and results as 0, and round upwards
  call(flushed);
  const unsigned after = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(before);
  EXPECT_EQ(after & 0xFFC0, (before | 0x8040 | 0x4000) & 0xFFC0) << "the caller's own arithmetic was not put back";
  EXPECT_EQ(std::memcmp(expected.data(), flushed.data(), expected.size() * sizeof(float)), 0);
#else
  GTEST_SKIP() << "the caller's arithmetic is changed by an x86 register here";
#endif
}

TEST(Regression, WorkspaceSharesNoByteWithATensor) {
  constexpr int64_t keys = 2000, dim = 16;
  std::vector<float> q(dim, 1.0f), k(keys * dim, 0.5f);
  alignas(64) static std::array<float, 4096> memory{};
  const Array tq(q.data(), {1, 1, 1, dim}), tk(k.data(), {1, 1, keys, dim}), out(memory.data() + 8, {1, 1, 1, dim});
  rapt_sdpa_args args = arguments(tq, tk, tk, out);
  args.has = RAPT_HAS_SPLITS, args.splits = 2;
  size_t bytes = 0;
  ASSERT_EQ(rapt_workspace_size(nullptr, &args, &bytes, nullptr), RAPT_OK);
  ASSERT_GT(bytes, 0u);
  ASSERT_LE(bytes, sizeof memory - 64);
  args.workspace = memory.data(), args.workspace_bytes = sizeof memory;
  expect_refused(rapt_sdpa(nullptr, &args, nullptr),
                 "workspace: overlaps out in memory; outputs must not share bytes with other tensors");
  // The bytes after the used ones can hold anything.
  const Array beyond(memory.data() + (bytes + 3) / 4, {1, 1, 1, dim});
  args.out = &beyond.tensor;
  EXPECT_EQ(rapt_sdpa(nullptr, &args, nullptr), RAPT_OK) << rapt_last_error();
}

// If the size of a workspace does not fit in an integer, it must not be reported as a small number.
TEST(Regression, WorkspaceSizeDoesNotWrap) {
  constexpr int64_t batch = int64_t{1} << 40, parts = int64_t{1} << 19;
  // The tensors have only addresses, because nothing is read.
  void* const input = reinterpret_cast<void*>(uintptr_t{1} << 50);
  void* const output = reinterpret_cast<void*>(uintptr_t{1} << 30);
  const Array q(input, {batch, 1, 1, 1}, {0, 0, 0, 0}), k(input, {batch, 1, parts, 1}, {0, 0, 0, 0}),
      out(output, {batch, 1, 1, 1});
  rapt_sdpa_args args = arguments(q, k, k, out);
  args.has = RAPT_HAS_SPLITS, args.splits = parts;
  size_t bytes = 0;
  ASSERT_EQ(rapt_workspace_size(nullptr, &args, &bytes, nullptr), RAPT_OK) << rapt_last_error();
  EXPECT_GE(bytes, size_t{1} << 50);
}

#if defined(__has_feature)
#define RAPT_CLANG_ADDRESS_SANITIZER __has_feature(address_sanitizer)
#else
#define RAPT_CLANG_ADDRESS_SANITIZER 0
#endif

// If another thread holds a lock during a fork, the lock stays locked in the child.
TEST(Regression, ForkWhileOthersCall) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a fork of a process with threads that goes on to make threads is beyond the thread sanitizer";
#endif
#if defined(__SANITIZE_ADDRESS__) || RAPT_CLANG_ADDRESS_SANITIZER
  GTEST_SKIP() << "the address sanitizer's own allocator can stay locked in the child (clang 14 has no fork handler)";
#endif
  const auto call = [] {
    float q[16] = {}, v[16], result[16];
    std::fill(v, v + 16, 2.0f);
    const Array tq(q, {1, 1, 1, 16}), tv(v, {1, 1, 1, 16}), out(result, {1, 1, 1, 16});
    const rapt_sdpa_args args = arguments(tq, tq, tv, out);
    return rapt_sdpa(nullptr, &args, nullptr) == RAPT_OK && result[15] == 2.0f;
  };
  ASSERT_TRUE(call());
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int n = 0; n < 3; ++n)
    threads.emplace_back([&] {
      while (!stop) call();
    });
  int failures = 0;
  for (int n = 0; n < 200 && failures == 0; ++n) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);
      _exit(call() ? 0 : 1);
    }
    int status = -1;
    waitpid(child, &status, 0);
    failures += status != 0;
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
}

TEST(Regression, MergeOfOnePartKeepsEveryBit) {
  float part[4] = {-0.0f, 1, -2, 3}, lse_value = 1, empty[4] = {5, 5, 5, 5}, empty_lse = -INFINITY, result[4];
  const Array state(part, {1, 1, 1, 4}), lse(&lse_value, {1, 1, 1}), none(empty, {1, 1, 1, 4}),
      none_lse(&empty_lse, {1, 1, 1}), out(result, {1, 1, 1, 4});
  const std::array<const rapt_tensor*, 2> outs = {&none.tensor, &state.tensor}, lses = {&none_lse.tensor, &lse.tensor};
  rapt_merge_args args{};
  args.struct_size = sizeof args;
  args.count = 2, args.outs = outs.data(), args.lses = lses.data(), args.out = &out.tensor;
  ASSERT_EQ(rapt_merge(nullptr, &args, nullptr), RAPT_OK) << rapt_last_error();
  EXPECT_EQ(std::memcmp(result, part, sizeof part), 0);
}

TEST(Regression, MergeOnAnotherCpuIsRefused) {
  float data[4] = {}, lse_value = 0, result[4] = {7, 7, 7, 7};
  Array state(data, {1, 1, 1, 4}), lse(&lse_value, {1, 1, 1}), out(result, {1, 1, 1, 4});
  state.tensor.device.index = lse.tensor.device.index = out.tensor.device.index = 1;
  const rapt_tensor *outs = &state.tensor, *lses = &lse.tensor;
  rapt_merge_args args{};
  args.struct_size = sizeof args;
  args.count = 1, args.outs = &outs, args.lses = &lses, args.out = &out.tensor;
  expect_refused(rapt_merge(nullptr, &args, nullptr), "out.device.index = 1: the CPU has index 0 only");
  EXPECT_EQ(result[0], 7.0f);
}

}  // namespace rapt::test
