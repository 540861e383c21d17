// Tests plans of two kernels with a workspace, with the stand-in driver: which memory a call uses as workspace, when a
// workspace grows, and the guarantees for captures. tests/gpu/workspace_test.cpp checks the results of the kernels.
#include <thread>

#include "cuda/driver.h"
#include "fake_driver.h"
#include "placed_call.h"
#include "runtime/gpu.h"
#include "stand_in.h"
#include "two_steps.h"

namespace rapt::test {
namespace {

ContextOptions with_two_steps() {
  ContextOptions options = without_cache();
  options.family = &two_steps;
  return options;
}

constexpr const char *small_line = "f32 b1 h2 q8 k100 d16", *same_class = "f32 b1 h2 q8 k104 d16",
                     *large_line = "f32 b1 h2 q512 k100 d16";
constexpr size_t small_scratch = 2 * 8 * 4 * (16 + 2) * sizeof(float), large_scratch = 64 * small_scratch;

void expect_words(const std::string& text, const std::vector<std::string>& words) {
  for (const std::string& word : words) EXPECT_NE(text.find(word), std::string::npos) << text << "\nlacks: " << word;
}

}  // namespace

TEST(Workspaces, AStreamHasOneBuffer) {
  on_stand_in(90, [] {
    rapt_context context(with_two_steps());
    PlacedCall call(small_line), longer(same_class);
    const cuda::ContextScope scope(0, nullptr);
    const cuda::Stream one, other;
    const size_t before = fake().live_bytes();
    ASSERT_EQ(rapt_prepare(&context, &call.args(), one.handle()), RAPT_OK) << rapt_last_error();
    EXPECT_EQ(fake().live_bytes() - before, 64 + small_scratch);
    EXPECT_EQ(fake().launches(), 0);
    const long loaded = fake().calls("cuLibraryLoadData");
    EXPECT_EQ(loaded, 2);
    const auto used = [&](PlacedCall& placed, void* stream) {
      EXPECT_EQ(rapt_sdpa(&context, &placed.args(), stream), RAPT_OK) << rapt_last_error();
      EXPECT_EQ(*static_cast<const unsigned*>(last_workspace().counters), 0u);
      return last_workspace();
    };
    const Workspace first = used(call, one.handle());
    EXPECT_EQ(fake().launches(), 2);
    EXPECT_EQ(used(call, one.handle()).scratch, first.scratch) << "a call that is remembered";
    EXPECT_EQ(used(longer, one.handle()).scratch, first.scratch) << "one that is followed";
    EXPECT_EQ(context.impl.gpu().known_plans(), 1u);
    EXPECT_EQ(fake().live_bytes() - before, 64 + small_scratch);
    const Workspace second = used(call, other.handle()), legacy = used(call, nullptr);
    EXPECT_NE(second.scratch, first.scratch);
    EXPECT_NE(legacy.scratch, first.scratch);
    EXPECT_NE(second.counters, first.counters);
    EXPECT_EQ(used(call, one.handle()).scratch, first.scratch);
    EXPECT_EQ(fake().calls("cuLibraryLoadData"), loaded);
  });
}

TEST(Workspaces, TheCallersIsUsed) {
  on_stand_in(90, [] {
    rapt_context context(with_two_steps());
    PlacedCall call(small_line);
    const cuda::ContextScope scope(0, nullptr);
    size_t bytes = 0, zero = 0;
    ASSERT_EQ(rapt_workspace_size(&context, &call.args(), &bytes, &zero), RAPT_OK) << rapt_last_error();
    EXPECT_EQ(zero, 64u);
    EXPECT_EQ(bytes, zero + small_scratch);
    cuda::Buffer own(bytes);
    const size_t before = fake().live_bytes();
    call.args().workspace = own.data(), call.args().workspace_bytes = bytes - 1;
    EXPECT_EQ(rapt_sdpa(&context, &call.args(), nullptr), RAPT_ERROR_INVALID_ARGUMENT);
    call.args().workspace_bytes = bytes;
    ASSERT_EQ(rapt_prepare(&context, &call.args(), nullptr), RAPT_OK) << rapt_last_error();
    for (int i = 0; i < 2; ++i) {
      ASSERT_EQ(rapt_sdpa(&context, &call.args(), nullptr), RAPT_OK) << rapt_last_error();
      EXPECT_EQ(last_workspace().counters, own.data());
      EXPECT_EQ(last_workspace().scratch, static_cast<std::byte*>(own.data()) + zero);
    }
    EXPECT_EQ(fake().live_bytes(), before) << "the context needs none of its own";
  });
}

TEST(Workspaces, GrowsAndFreesTheOldOne) {
  on_stand_in(90, [] {
    rapt_context context(with_two_steps());
    PlacedCall call(small_line), large(large_line);
    const cuda::ContextScope scope(0, nullptr);
    const cuda::Stream stream;
    const size_t before = fake().live_bytes();
    ASSERT_EQ(rapt_sdpa(&context, &call.args(), stream.handle()), RAPT_OK) << rapt_last_error();
    const long waits = fake().calls("cuStreamSynchronize");
    ASSERT_EQ(rapt_sdpa(&context, &large.args(), stream.handle()), RAPT_OK) << rapt_last_error();
    EXPECT_EQ(fake().calls("cuStreamSynchronize"), waits + 1) << "kernels before it may use the old one";
    EXPECT_EQ(fake().live_bytes() - before, 64 + large_scratch);
    const void* const scratch = last_workspace().scratch;
    ASSERT_EQ(rapt_sdpa(&context, &call.args(), stream.handle()), RAPT_OK) << rapt_last_error();
    EXPECT_EQ(last_workspace().scratch, scratch) << "less fits";
  });
}

TEST(Workspaces, ACaptureNeedsOneThatSuffices) {
  on_stand_in(90, [] {
    PlacedCall call(small_line), large(large_line);
    const cuda::ContextScope scope(0, nullptr);
    const cuda::Stream stream, other;
    const size_t before = fake().live_bytes();
    {
      rapt_context context(with_two_steps());
      ASSERT_EQ(rapt_prepare(&context, &large.args(), other.handle()), RAPT_OK) << rapt_last_error();
      ASSERT_EQ(rapt_prepare(&context, &call.args(), stream.handle()), RAPT_OK) << rapt_last_error();
      cuda::Graph::begin(stream.handle());
      EXPECT_EQ(rapt_sdpa(&context, &large.args(), stream.handle()), RAPT_ERROR_INVALID_ARGUMENT);
      expect_words(rapt_last_error(), {"is being captured", "rapt_prepare", "q512", "on this stream"});
      EXPECT_EQ(rapt_sdpa(&context, &call.args(), stream.handle()), RAPT_OK) << rapt_last_error();
      const Workspace recorded = last_workspace();
      const cuda::Graph graph(stream.handle());
      const size_t kept = fake().live_bytes();
      ASSERT_EQ(rapt_sdpa(&context, &large.args(), stream.handle()), RAPT_OK) << rapt_last_error();
      EXPECT_NE(last_workspace().scratch, recorded.scratch);
      EXPECT_EQ(fake().live_bytes() - kept, large_scratch) << "the graph still uses the old one";
      graph.replay(stream.handle());
      EXPECT_EQ(fake().launches(), 4);
    }
    EXPECT_EQ(fake().live_bytes(), before);
  });
}

TEST(Workspaces, GrowingSpoilsNoCaptureOfOtherThreads) {
  on_stand_in(90, [] {
    rapt_context context(with_two_steps());
    PlacedCall call(small_line), large(large_line);
    const cuda::ContextScope scope(0, nullptr);
    const cuda::Stream stream, other;
    ASSERT_EQ(rapt_prepare(&context, &call.args(), stream.handle()), RAPT_OK) << rapt_last_error();
    const cuda::Driver& driver = cuda::driver();
    ASSERT_EQ(driver.cuStreamBeginCapture(stream.handle(), cuda::CaptureMode::global), cuda::result::success);
    std::thread([&] {
      EXPECT_EQ(rapt_sdpa(&context, &large.args(), other.handle()), RAPT_OK) << rapt_last_error();
    }).join();
    EXPECT_EQ(rapt_sdpa(&context, &call.args(), stream.handle()), RAPT_OK) << rapt_last_error();
    EXPECT_NO_THROW(const cuda::Graph graph(stream.handle()));
  });
}

TEST(Workspaces, NoMemoryIsAnError) {
  on_stand_in(90, [] {
    rapt_context context(with_two_steps());
    PlacedCall call(small_line);
    const cuda::ContextScope scope(0, nullptr);
    fake().fail("cuMemAlloc", cuda::result::out_of_memory);
    EXPECT_EQ(rapt_sdpa(&context, &call.args(), nullptr), RAPT_ERROR_OUT_OF_MEMORY);
    fake().fail("cuMemAlloc", 0);
    EXPECT_EQ(rapt_sdpa(&context, &call.args(), nullptr), RAPT_OK) << rapt_last_error();
  });
}

}  // namespace rapt::test
