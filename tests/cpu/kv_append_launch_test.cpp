// Tests rapt_kv_append on GPU tensors with the stand-in driver of tests/fake_cuda: one launch for a call, none if there
// is nothing to write, and the rules for contents with RAPT_KV_APPEND_CHECK_CONTENTS. kv_append_emulation_test.cpp and
// tests/gpu check the results of the kernel.
#include "cuda/cuda.h"
#include "fake_driver.h"
#include "placed_append.h"
#include "stand_in.h"

namespace rapt::test {
namespace {

struct Launched {
  rapt_status status;
  std::string sentence;
  long launches;
};
Launched launch(rapt_context& context, const cuda::Stream& stream, const AppendCall& call) {
  const OnStandIn tensors(call);
  const long before = fake().launches();
  const rapt_status status = rapt_kv_append(&context, &tensors.args(), stream.handle());
  return {status, rapt_last_error(), fake().launches() - before};
}

TEST(KvAppendLaunch, OneKernelOrNone) {
  on_stand_in(90, [&] {
    rapt_context context(without_cache());
    const cuda::ContextScope scope(0, nullptr);
    const cuda::Stream stream;
    AppendSpec spec{.q = DType::bf16, .table = DType::f32, .dim = 32, .dim_v = 32, .rotary_dim = 32};
    for (const AppendSpec& one : all_places(spec)) {
      SCOPED_TRACE(text_of(one));
      const Launched made = launch(context, stream, make_append(one));
      EXPECT_EQ(made.status, RAPT_OK) << made.sentence;
      EXPECT_EQ(made.launches, 1);
    }
    AppendCall empty = make_append({.places = Places::starts});
    empty.k = empty.v = make_tensor(DType::bf16, {append_batch, append_heads, 0, 16});
    EXPECT_EQ(launch(context, stream, empty).launches, 0);
    // Without the check, a GPU skips wrong places. With it, they are errors, and nothing is launched.
    AppendCall wrong = make_append({.paged = true});
    put(wrong.block_table, {0, 1}, 17);
    EXPECT_EQ(launch(context, stream, wrong).launches, 1);
    wrong.flags |= RAPT_KV_APPEND_CHECK_CONTENTS;
    const Launched refused = launch(context, stream, wrong);
    EXPECT_EQ(refused.status, RAPT_ERROR_INVALID_ARGUMENT);
    EXPECT_NE(refused.sentence.find("block_table[0, 1] = 17"), std::string::npos) << refused.sentence;
    EXPECT_EQ(refused.launches, 0);
    put(wrong.block_table, {0, 1}, 16);
    EXPECT_EQ(launch(context, stream, wrong).launches, 1);
  });
}

TEST(KvAppendLaunch, LimitsOfGpus) {
  on_stand_in(90, [&] {
    rapt_context context(without_cache());
    const cuda::ContextScope scope(0, nullptr);
    const cuda::Stream stream;
    const Launched wide = launch(context, stream, make_append({.dim = 1032}));
    EXPECT_EQ(wide.status, RAPT_ERROR_UNSUPPORTED);
    EXPECT_NE(wide.sentence.find("1032"), std::string::npos) << wide.sentence;
    EXPECT_EQ(wide.launches, 0);
  });
}

}  // namespace
}  // namespace rapt::test
