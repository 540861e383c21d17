// Report R114: new tokens are appended to a paged cache, and attention reads them at once. Used by
// reports_kv_append.cpp and by tests/gpu/reports_test.cpp.
#pragma once

#include <deque>

#include "kv_append_call.h"

namespace rapt::test {

// One sequence with `old` tokens in pages of 16, and `fresh` new ones. The rows after the old tokens are NaN.
struct AppendThenAttend {
  static constexpr int64_t heads_q = 8, heads_k = 2, dim = 64, page = 16, pages = 5;
  AppendCall append;
  HostTensor q, out, used;  // used: the length after the append
  HostTensor k, v;          // the keys and values after the append, dense

  AppendThenAttend(int64_t old, int64_t fresh) {
    const auto made = [&](int64_t heads, int64_t seqlen, uint64_t seed) {
      HostTensor t = make_tensor(DType::f16, {1, heads, seqlen, dim});
      fill_hash(t, seed);
      return t;
    };
    k = made(heads_k, old + fresh, 1), v = made(heads_k, old + fresh, 2), q = made(heads_q, fresh, 3);
    out = make_tensor(DType::f16, q.shape);
    append.k = slice(k, 2, old, old + fresh), append.v = slice(v, 2, old, old + fresh);
    append.block_table = make_tensor(DType::i32, {1, 3});
    for (int64_t i = 0; i < 3; ++i) put(append.block_table, {0, i}, static_cast<double>(3 - i));
    append.seqused_k = list_of(DType::i32, {old}), used = list_of(DType::i32, {old + fresh});
    for (auto [cache, rows] : {std::pair{&append.k_cache, &k}, {&append.v_cache, &v}}) {
      *cache = make_poisoned(DType::f16, {pages, heads_k, page, dim});
      fill(*cache, nan);
      each_index({1, heads_k, old, dim}, [&, to = cache, from = rows](const auto& at) {
        put(*to, {3 - at[2] / page, at[1], at[2] % page, at[3]}, from->at(at));
      });
    }
  }

  // Runs `body` with the arguments of attention over the cache, causal.
  template <class Body>
  void with_attention(const rapt_kv_append_args& places, const check::Placement& place, const Body& body) const {
    const check::View q_view("q", q, place), out_view("out", out, place), used_view("seqused_k", used, place);
    rapt_sdpa_args args{};
    args.struct_size = sizeof args, args.flags = RAPT_CAUSAL;
    args.q = q_view.get(), args.out = out_view.get(), args.seqused_k = used_view.get();
    args.k = places.k_cache, args.v = places.v_cache, args.block_table = places.block_table;
    body(args);
  }
  // Causal attention over the dense keys, on the CPU.
  HostTensor dense() const {
    HostTensor expected = make_tensor(DType::f16, q.shape);
    const check::View q_view("q", q, check::in_host_memory), k_view("k", k, check::in_host_memory);
    const check::View v_view("v", v, check::in_host_memory), out_view("out", expected, check::in_host_memory);
    rapt_sdpa_args args{};
    args.struct_size = sizeof args, args.flags = RAPT_CAUSAL;
    args.q = q_view.get(), args.k = k_view.get(), args.v = v_view.get(), args.out = out_view.get();
    EXPECT_EQ(rapt_sdpa(nullptr, &args, nullptr), RAPT_OK) << rapt_last_error();
    return expected;
  }
};

}  // namespace rapt::test
