// Two streams use the same pages of a KV cache in turn, ordered by events as docs/api.md says ("Streams and GPUs").
// While both are busy, a third stream has work, too. Every result must have the bits of the same step on a quiet GPU.
#include <array>
#include <cmath>
#include <deque>

#include "../cpu/kv_append_call.h"
#include "gpu_support.h"
#include "placed_tensors.h"

namespace rapt::test {
namespace {

constexpr int64_t batch = 2, heads_q = 8, heads_k = 2, dim = 64, page = 16, tokens = 600;
constexpr int64_t pages = (tokens + page - 1) / page;  // of one sequence
constexpr int64_t pools = 2;
constexpr size_t out_bytes = size_t{2} * batch * heads_q * dim;

HostTensor hashed(const std::vector<int64_t>& shape, uint64_t seed) {
  HostTensor t = make_tensor(DType::f16, shape);
  fill_hash(t, seed);
  return t;
}

// The sequences of one step: the step appends all their tokens to a pool of pages, and decodes one query of each.
struct Sequences {
  AppendCall append;  // has no caches
  HostTensor q, used;
  AppendArgs args;
  check::View q_view, used_view;

  Sequences(uint64_t seed, int64_t second_length, const check::Placement& place)
      : append(make_append_of(seed)),
        q(hashed({batch, heads_q, 1, dim}, seed + 2)),
        used(list_of(DType::i32, {tokens, second_length})),
        args(append, place),
        q_view("q", q, place),
        used_view("seqused_k", used, place) {}

  // The result of the step, by the CPU on dense keys.
  HostTensor expected() const {
    HostTensor out = make_tensor(DType::f16, q.shape);
    const check::View views[] = {{"q", q, check::in_host_memory},
                                 {"k", append.k, check::in_host_memory},
                                 {"v", append.v, check::in_host_memory},
                                 {"seqused_k", used, check::in_host_memory},
                                 {"out", out, check::in_host_memory}};
    rapt_sdpa_args call{};
    call.struct_size = sizeof call;
    call.q = views[0].get(), call.k = views[1].get(), call.v = views[2].get();
    call.seqused_k = views[3].get(), call.out = views[4].get();
    EXPECT_EQ(rapt_sdpa(nullptr, &call, nullptr), RAPT_OK) << rapt_last_error();
    return out;
  }

 private:
  static AppendCall make_append_of(uint64_t seed) {
    AppendCall call;
    call.k = hashed({batch, heads_k, tokens, dim}, seed), call.v = hashed({batch, heads_k, tokens, dim}, seed + 1);
    call.starts = list_of(DType::i32, {0, 0});
    return call;
  }
};

// A cache with two pools of pages. Each pool has the pages of one step. Their pages alternate, and page 0 is free.
class Cache {
 public:
  explicit Cache(const check::Placement& place)
      : k_(make_tensor(DType::f16, {1 + pools * batch * pages, heads_k, page, dim})),
        v_(make_tensor(DType::f16, k_.shape)),
        k_view_("k_cache", k_, place),
        v_view_("v_cache", v_, place) {
    for (int64_t pool = 0; pool < pools; ++pool) {
      HostTensor& table = tables_.emplace_back(make_tensor(DType::i32, {batch, pages}));
      each_index(table.shape, [&](const auto& at) {
        put(table, at, static_cast<double>(1 + pool + pools * (batch * (pages - 1 - at[1]) + at[0])));
      });
      table_views_.emplace_back("block_table", table, place);
    }
  }

  // Appends the tokens to the pool, and decodes. out: address in GPU memory.
  void enqueue(const Sequences& sequences, size_t pool, void* out, cuda::StreamHandle stream) const {
    rapt_kv_append_args append = sequences.args.args;
    append.k_cache = k_view_.get(), append.v_cache = v_view_.get(), append.block_table = table_views_[pool].get();
    ASSERT_EQ(rapt_kv_append(nullptr, &append, stream), RAPT_OK) << rapt_last_error();
    rapt_tensor out_tensor = *sequences.q_view.get();
    out_tensor.data = out;
    rapt_sdpa_args attention{};
    attention.struct_size = sizeof attention, attention.q = sequences.q_view.get(), attention.out = &out_tensor;
    attention.k = append.k_cache, attention.v = append.v_cache, attention.block_table = append.block_table;
    attention.seqused_k = sequences.used_view.get();
    ASSERT_EQ(rapt_sdpa(nullptr, &attention, stream), RAPT_OK) << rapt_last_error();
  }

 private:
  HostTensor k_, v_;
  check::View k_view_, v_view_;
  std::deque<HostTensor> tables_;
  std::deque<check::View> table_views_;
};

class GpuPageReuse : public GpuTest {};

using Bits = std::vector<std::byte>;

Bits download(const cuda::Buffer& buffer, size_t index) {
  Bits result(out_bytes);
  buffer.download(result.data(), out_bytes, index * out_bytes);
  return result;
}

// The bits of a step that runs alone. They do not depend on the pool. Compared with the CPU.
Bits alone(const Cache& cache, const Sequences& sequences) {
  const cuda::Stream stream;
  cuda::Buffer out(pools * out_bytes);
  for (size_t pool = 0; pool < pools; ++pool) {
    cache.enqueue(sequences, pool, static_cast<std::byte*>(out.data()) + pool * out_bytes, stream.handle());
    stream.synchronize();
  }
  const Bits result = download(out, 0);
  EXPECT_EQ(result, download(out, 1)) << "the two pools";
  HostTensor on_host = make_tensor(DType::f16, sequences.q.shape);
  std::memcpy(on_host.data(), result.data(), out_bytes);
  const HostTensor right = sequences.expected();
  double error = 0;
  each_index(right.shape, [&](const auto& at) { error = std::fmax(error, std::fabs(on_host.at(at) - right.at(at))); });
  EXPECT_LE(error, 2e-3);
  return result;
}

// In each step both streams append and decode, in different pools. In the next step they exchange the pools: a stream
// overwrites the pages that the other stream read. So it waits for the other stream's event of the step before.
TEST_F(GpuPageReuse, TwoStreamsExchangeTheirPages) {
  constexpr size_t steps = 400, contents = 3;
  PlacedTensors placed(4096);
  const Cache cache(placed.placement());
  std::deque<Sequences> sequences;  // of the first stream, then of the second
  std::vector<Bits> expected;
  for (size_t i = 0; i < 2 * contents; ++i) {
    sequences.emplace_back(10 * i + 1, static_cast<int64_t>(37 + 90 * i), placed.placement());
    expected.push_back(alone(cache, sequences.back()));
  }
  Call load = make("f16 b2 h16 q512 k512 d64 lse");
  fill_hash(load);
  run_gpu(load);
  GpuCall third(load);

  const std::array<cuda::Stream, 2> streams;
  const cuda::Stream busy;
  std::array<std::array<cuda::Event, 2>, 2> done;  // of each stream, for even and odd steps
  const std::array<cuda::Buffer, 2> outs{cuda::Buffer(steps * out_bytes), cuda::Buffer(steps * out_bytes)};
  for (size_t step = 0; step < steps && !HasFailure(); ++step) {
    third.expect_enqueue(busy.handle());
    for (size_t s = 0; s < 2; ++s) {
      const cuda::StreamHandle stream = streams[s].handle();
      if (step > 0) done[1 - s][(step - 1) % 2].order_before(stream);
      cache.enqueue(sequences[s * contents + step % contents], (step + s) % pools,
                    static_cast<std::byte*>(outs[s].data()) + step * out_bytes, stream);
      done[s][step % 2].record(stream);
    }
  }
  for (const cuda::Stream& stream : streams) stream.synchronize();
  busy.synchronize();
  for (size_t s = 0; s < 2; ++s)
    for (size_t step = 0; step < steps; ++step)
      ASSERT_EQ(download(outs[s], step), expected[s * contents + step % contents])
          << "stream " << s << ", step " << step;
  expect_same_bits(third.result(), load);
}

}  // namespace
}  // namespace rapt::test
