// A decoding step is captured once and replayed for thousands of tokens, while the cache grows.
#include "../cpu/decode_loop.h"

#include "gpu_support.h"
#include "placed_tensors.h"

namespace rapt::test {
namespace {

class GpuDecodeLoop : public GpuTest {};

TEST_F(GpuDecodeLoop, OneGraphFor4096Steps) {
  constexpr int64_t steps = 4096;
  const auto context = make_context();
  DecodeLoop loop(steps);
  PlacedTensors placed(4096);
  const AppendArgs append(loop.append, placed.placement());
  const check::View q_view("q", loop.q, placed.placement()), used_view("seqused_k", loop.used, placed.placement());
  const check::View out_view("out", loop.out, placed.placement());
  ChangingTensor k{loop.append.k, *append.args.k}, v{loop.append.v, *append.args.v}, q{loop.q, *q_view.get()},
      before{loop.append.seqused_k, *append.args.seqused_k}, used{loop.used, *used_view.get()};
  rapt_kv_append_args append_args = append.args;
  append_args.k = &k.tensor, append_args.v = &v.tensor, append_args.seqused_k = &before.tensor;
  rapt_sdpa_args attention{};
  attention.struct_size = sizeof attention, attention.q = &q.tensor, attention.out = out_view.get();
  attention.k = append.args.k_cache, attention.v = append.args.v_cache, attention.block_table = append.args.block_table;
  attention.seqused_k = &used.tensor;

  const cuda::Stream stream;
  const auto enqueue = [&] {
    ASSERT_EQ(rapt_kv_append(context.get(), &append_args, stream.handle()), RAPT_OK) << rapt_last_error();
    ASSERT_EQ(rapt_sdpa(context.get(), &attention, stream.handle()), RAPT_OK) << rapt_last_error();
  };
  const auto begin = [&](int64_t step) {
    loop.begin(step);
    for (ChangingTensor* tensor : {&k, &v, &q, &before, &used}) tensor->upload();
  };
  begin(0);
  enqueue();  // loads the kernels
  stream.synchronize();
  cuda::Graph::begin(stream.handle());
  enqueue();
  const cuda::Graph graph(stream.handle());
  for (int64_t step = 0; step < steps; ++step) {
    begin(step);
    graph.replay(stream.handle());
    stream.synchronize();
    if (step % 512 > 1 && step % 512 < 510) continue;
    SCOPED_TRACE(step);
    cuda::copy_to_host(loop.out.data(), out_view.get()->data, static_cast<size_t>(loop.out.size() * 2),
                       stream.handle());
    loop.expect_right();
  }
}

}  // namespace
}  // namespace rapt::test
