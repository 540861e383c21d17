// A loop of decoding steps on a paged cache: each step appends one token to each sequence, and computes attention of
// one query over all tokens so far. Used by kv_append_test.cpp and by tests/gpu/decode_loop_test.cpp.
#pragma once

#include "kv_append_call.h"

namespace rapt::test {

struct DecodeLoop {
  static constexpr int64_t batch = 2, heads_q = 8, heads_k = 2, dim = 64, page = 16;
  static constexpr int64_t starts[batch] = {3, 100};  // tokens before the first step
  HostTensor all_k, all_v;                            // the tokens of all steps, dense
  AppendCall append;                                  // one new token of each sequence
  HostTensor q, out, used;                            // used: the lengths after the append

  explicit DecodeLoop(int64_t steps) {
    const int64_t tokens = starts[1] + steps, pages = (tokens + page - 1) / page;
    const auto made = [](int64_t heads, int64_t seqlen) {
      return make_tensor(DType::f16, {batch, heads, seqlen, dim});
    };
    all_k = made(heads_k, tokens), all_v = made(heads_k, tokens);
    fill_hash(all_k, 1), fill_hash(all_v, 2);
    append.k = made(heads_k, 1), append.v = made(heads_k, 1), q = made(heads_q, 1), out = made(heads_q, 1);
    append.seqused_k = list_of(DType::i32, {0, 0}), used = list_of(DType::i32, {0, 0});
    // The pages of both sequences alternate, in falling order. Page 0 belongs to nobody.
    append.block_table = make_tensor(DType::i32, {batch, pages});
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t i = 0; i < pages; ++i) put(append.block_table, {b, i}, static_cast<double>(batch * (pages - i) - b));
    for (auto [cache, rows] : {std::pair{&append.k_cache, &all_k}, {&append.v_cache, &all_v}}) {
      *cache = make_poisoned(DType::f16, {batch * pages + 1, heads_k, page, dim});
      fill(*cache, nan);
      for (int64_t b = 0; b < batch; ++b)
        each_index({heads_k, starts[b], dim}, [&, to = cache, from = rows](const auto& at) {
          const auto number = static_cast<int64_t>(append.block_table.at({b, at[1] / page}));
          put(*to, {number, at[0], at[1] % page, at[2]}, from->at({b, at[0], at[1], at[2]}));
        });
    }
  }

  // Sets the token, the queries and the lengths of a step.
  void begin(int64_t step) {
    fill_hash(q, static_cast<uint64_t>(step) + 3);
    for (int64_t b = 0; b < batch; ++b) {
      put(append.seqused_k, {b}, static_cast<double>(starts[b] + step));
      put(used, {b}, static_cast<double>(starts[b] + step + 1));
      each_index({heads_k, 1, dim}, [&](const auto& at) {
        put(append.k, {b, at[0], 0, at[2]}, all_k.at({b, at[0], starts[b] + step, at[2]}));
        put(append.v, {b, at[0], 0, at[2]}, all_v.at({b, at[0], starts[b] + step, at[2]}));
      });
    }
  }

  // Computes the step over the dense tokens, on the CPU.
  HostTensor expected() const {
    HostTensor result = make_tensor(DType::f16, q.shape);
    const check::View q_view("q", q, check::in_host_memory), k_view("k", all_k, check::in_host_memory);
    const check::View v_view("v", all_v, check::in_host_memory), used_view("seqused_k", used, check::in_host_memory);
    const check::View out_view("out", result, check::in_host_memory);
    rapt_sdpa_args args{};
    args.struct_size = sizeof args, args.q = q_view.get(), args.k = k_view.get(), args.v = v_view.get();
    args.seqused_k = used_view.get(), args.out = out_view.get();
    EXPECT_EQ(rapt_sdpa(nullptr, &args, nullptr), RAPT_OK) << rapt_last_error();
    return result;
  }
  void expect_right() const {
    const HostTensor right = expected();
    each_index(right.shape, [&](const auto& at) { ASSERT_NEAR(out.at(at), right.at(at), 2e-3); });
  }
};

}  // namespace rapt::test
