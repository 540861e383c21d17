// Tests many threads on one context, several contexts, fork, and contexts that are created and destroyed in a loop.
// Every result is compared bit for bit with the result of the same call without other threads.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <memory>
#include <thread>

#include "rapt/rapt.hpp"
#include "support.h"

namespace rapt::test {
namespace {

#if defined(__SANITIZE_THREAD__)
constexpr bool under_thread_sanitizer = true;
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
constexpr bool under_thread_sanitizer = true;
#else
constexpr bool under_thread_sanitizer = false;
#endif
#else
constexpr bool under_thread_sanitizer = false;
#endif

constexpr const char* lines[] = {"f32 b1 h4 q96 k96 d32 causal lse", "bf16 b2 h4:2 q1 k2000 d64 lse",
                                 "f16 varlen=17:40,0:5,90:90 h2 d32 lse", "f32 b1 h2 q5 k700 d16 lse splits=3"};

// Problem number n, with its inputs, and with its result computed without other threads.
Call computed(size_t n) {
  Call call = make(lines[n % std::size(lines)]);
  fill_hash(call, n + 1);
  return run(call);
}

// Computes `expected` again, and returns false if a bit differs. It uses no macros of GoogleTest, so threads and child
// processes can call it.
bool repeats(const Call& expected, rapt_context* context) {
  Call again = expected;
  try_run(again, context);
  return again.status == RAPT_OK && bits(again.out.out) == bits(expected.out.out) &&
         bits(again.out.lse) == bits(expected.out.lse);
}

// Runs 8 threads, each of which repeats its own problem `times` times. Returns the number of failures.
int failures_of_threads(const std::function<rapt_context*(size_t thread)>& context_of, int times) {
  std::vector<Call> expected;
  for (size_t n = 0; n < 8; ++n) expected.push_back(computed(n));
  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  for (size_t n = 0; n < 8; ++n)
    threads.emplace_back([&, n] {
      for (int repeat = 0; repeat < times; ++repeat) failures += repeats(expected[n], context_of(n)) ? 0 : 1;
    });
  for (std::thread& thread : threads) thread.join();
  return failures;
}

// The exit status of a child that runs `body`. SIGALRM ends the child after half a minute.
int status_of_child(const std::function<bool()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(30);
    _exit(body() ? 0 : 1);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status;
}

}  // namespace

TEST(Concurrency, EightThreadsOnTheDefaultContext) {
  EXPECT_EQ(failures_of_threads([](size_t) { return nullptr; }, 25), 0);
}

TEST(Concurrency, EightThreadsOnOneContext) {
  const Context context({.num_threads = 3});
  EXPECT_EQ(failures_of_threads([&](size_t) { return context.get(); }, 25), 0);
}

TEST(Concurrency, SeveralContexts) {
  std::vector<Context> contexts;
  for (int32_t threads : {1, 2, 3, 5}) contexts.emplace_back(ContextOptions{.num_threads = threads});
  EXPECT_EQ(failures_of_threads([&](size_t n) { return contexts[n % 4].get(); }, 25), 0);
}

TEST(Concurrency, AChildComputesAfterItsParentDid) {
  if (under_thread_sanitizer)
    GTEST_SKIP() << "ThreadSanitizer does not support threads after a fork of a threaded process";
  const Context context({.num_threads = 3});
  const Call expected = computed(0), other = computed(1);
  ASSERT_TRUE(repeats(expected, context.get()));
  EXPECT_EQ(status_of_child(
                [&] { return repeats(expected, nullptr) && repeats(other, context.get()) && repeats(other, nullptr); }),
            0);
  EXPECT_EQ(status_of_child([&] {  // also in a grandchild
              return repeats(expected, nullptr) && status_of_child([&] { return repeats(other, nullptr); }) == 0;
            }),
            0);
  EXPECT_TRUE(repeats(expected, nullptr)) << "the parent after its children";
}

TEST(Concurrency, AContextMadeBeforeAForkIsDestroyedInTheChild) {
  if (under_thread_sanitizer)
    GTEST_SKIP() << "ThreadSanitizer does not support threads after a fork of a threaded process";
  auto context = std::make_unique<Context>(ContextOptions{.num_threads = 2});
  const Call expected = computed(2);
  ASSERT_TRUE(repeats(expected, context->get()));
  EXPECT_EQ(status_of_child([&] {
              context.reset();
              return repeats(expected, nullptr);
            }),
            0);
}

TEST(Concurrency, ContextsComeAndGo) {
  const Call expected = computed(3);
  for (int n = 0; n < 100; ++n) {
    const Context unused;
    Context used({.num_threads = 1 + n % 4});
    ASSERT_TRUE(repeats(expected, used.get())) << n;
    const Context moved = std::move(used);
    EXPECT_EQ(used.get(), nullptr);  // NOLINT(bugprone-use-after-move): a moved-from context is empty by contract
    ASSERT_TRUE(repeats(expected, moved.get())) << n;
  }
}

TEST(Concurrency, ContextsComeAndGoInEveryThread) {
  const Call expected = computed(0);
  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  for (int n = 0; n < 8; ++n)
    threads.emplace_back([&] {
      for (int repeat = 0; repeat < 10; ++repeat)
        failures += repeats(expected, Context({.num_threads = 2}).get()) ? 0 : 1;
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
}

TEST(Concurrency, MessagesBelongToTheirThread) {
  EXPECT_EQ(rapt_sdpa(nullptr, nullptr, nullptr), RAPT_ERROR_INVALID_ARGUMENT);
  const std::string mine = rapt_last_error();
  EXPECT_NE(mine, "");
  std::string fresh = "unset", theirs;
  std::thread other([&] {
    fresh = rapt_last_error();
    rapt_merge_args args{};
    rapt_merge(nullptr, &args, nullptr);
    theirs = rapt_last_error();
  });
  other.join();
  EXPECT_EQ(fresh, "");
  EXPECT_NE(theirs, "");
  EXPECT_EQ(rapt_last_error(), mine);
}

}  // namespace rapt::test
