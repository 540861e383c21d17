// One small call of each function whose arguments are a struct, on the CPU, with results that can be calculated by
// hand. older_caller.cpp and newer_caller.cpp include it, after a rapt.h of their version.
#pragma once

#include <cmath>
#include <cstdio>
#include <cstring>

namespace abi {

inline int failures = 0;

inline void expect(bool holds, const char* what) {
  if (holds) return;
  ++failures;
  std::printf("failed: %s; last error: \"%s\"\n", what, rapt_last_error());
}

inline bool near(float x, double y) { return std::fabs(static_cast<double>(x) - y) <= 1e-6 * (1 + std::fabs(y)); }

inline rapt_tensor tensor(float* data, int32_t rank, const int64_t* shape) {
  return {data, {RAPT_DEVICE_CPU, 0}, RAPT_F32, rank, shape, nullptr};
}

// A refused call must leave its output unchanged. The output of an accepted call must be correct.
inline void expect_result(rapt_status status, bool accepted, bool right, bool untouched, const char* function) {
  expect((status == RAPT_OK) == accepted, function);
  expect(accepted ? right : untouched, function);
}

// The problem is b1 h1 q2 k2 d1, causal, with scale 1. Row 0 sees only key 0.
template <class Args>
void attention(Args& args, bool accepted = true) {
  float q[2] = {1, 1}, k[2] = {0, 1}, v[2] = {2, 4}, out[2] = {-1, -1}, lse[2] = {-1, -1};
  const int64_t shape[4] = {1, 1, 2, 1};
  const rapt_tensor tq = tensor(q, 4, shape), tk = tensor(k, 4, shape), tv = tensor(v, 4, shape),
                    to = tensor(out, 4, shape), tl = tensor(lse, 3, shape);
  args.q = &tq, args.k = &tk, args.v = &tv, args.out = &to, args.lse = &tl;
  args.flags = RAPT_CAUSAL, args.has = RAPT_HAS_SCALE, args.softmax_scale = 1.0;
  const double e = std::exp(1.0);
  const rapt_status status = rapt_sdpa(nullptr, &args, nullptr);
  const bool right =
      near(out[0], 2) && near(out[1], (2 + 4 * e) / (1 + e)) && near(lse[0], 0) && near(lse[1], std::log(1 + e));
  expect_result(status, accepted, right, near(out[0], -1) && near(out[1], -1), "rapt_sdpa");
  if (!accepted) return;
  size_t bytes = 1;
  expect(rapt_workspace_size(nullptr, &args, &bytes, nullptr) == RAPT_OK, "rapt_workspace_size");
  expect(rapt_prepare(nullptr, &args, nullptr) == RAPT_OK, "rapt_prepare");
  char text[16];
  expect(rapt_explain(nullptr, &args, text, sizeof text, nullptr) == RAPT_OK, "rapt_explain");
}

template <class Args>
void merge(Args& args, bool accepted = true) {
  float a[1] = {1}, b[1] = {3}, lse[1] = {0}, out[1] = {-1};
  const int64_t shape[4] = {1, 1, 1, 1};
  const rapt_tensor ta = tensor(a, 4, shape), tb = tensor(b, 4, shape), tl = tensor(lse, 3, shape),
                    to = tensor(out, 4, shape);
  const rapt_tensor *outs[2] = {&ta, &tb}, *lses[2] = {&tl, &tl};
  args.count = 2, args.outs = outs, args.lses = lses, args.out = &to;
  const rapt_status status = rapt_merge(nullptr, &args, nullptr);
  expect_result(status, accepted, near(out[0], 2), near(out[0], -1), "rapt_merge");
}

template <class Args>
void quantize(Args& args, bool accepted = true) {
  float x[2] = {1, -448}, factor[1] = {0};
  unsigned char codes[2] = {0, 0};
  const int64_t shape[4] = {1, 1, 1, 2}, one[1] = {1};
  const rapt_tensor in = tensor(x, 4, shape), descale = tensor(factor, 1, one);
  rapt_tensor out = tensor(nullptr, 4, shape);
  out.data = codes, out.dtype = RAPT_E4M3;
  args.input = &in, args.output = &out, args.descale = &descale, args.scales = RAPT_SCALE_TENSOR;
  const rapt_status status = rapt_quantize(nullptr, &args, nullptr);
  const bool right = near(factor[0], 1) && codes[0] == 0x38 && codes[1] == 0xfe;
  expect_result(status, accepted, right, codes[0] == 0 && codes[1] == 0, "rapt_quantize");
}

#if defined(RAPT_KV_APPEND_INTERLEAVED)  // rapt_0.1.0.h has no such function
// Appends one token at position 1.
template <class Args>
void kv_append(Args& args, bool accepted = true) {
  float k[1] = {3}, v[1] = {4}, k_cache[2] = {-1, -1}, v_cache[2] = {-1, -1};
  const int32_t length[1] = {1};
  const int64_t shape[4] = {1, 1, 1, 1}, cache_shape[4] = {1, 1, 2, 1};
  const rapt_tensor tk = tensor(k, 4, shape), tv = tensor(v, 4, shape), tkc = tensor(k_cache, 4, cache_shape),
                    tvc = tensor(v_cache, 4, cache_shape);
  rapt_tensor lengths = tensor(nullptr, 1, shape);
  lengths.data = const_cast<int32_t*>(length), lengths.dtype = RAPT_I32;
  args.k = &tk, args.v = &tv, args.k_cache = &tkc, args.v_cache = &tvc, args.seqused_k = &lengths;
  const rapt_status status = rapt_kv_append(nullptr, &args, nullptr);
  const bool right = near(k_cache[0], -1) && near(k_cache[1], 3) && near(v_cache[0], -1) && near(v_cache[1], 4);
  expect_result(status, accepted, right, near(k_cache[1], -1) && near(v_cache[1], -1), "rapt_kv_append");
}

// Positions 0 and 1 of one pair, whose angle is the position.
template <class Args>
void rotary_tables(Args& args, bool accepted = true) {
  float cos[2] = {-2, -2}, sin[2] = {-2, -2};
  const int64_t shape[2] = {2, 1};
  const rapt_tensor tc = tensor(cos, 2, shape), ts = tensor(sin, 2, shape);
  args.cos = &tc, args.sin = &ts;
  const rapt_status status = rapt_rotary_tables(nullptr, &args);
  const bool right = near(cos[0], 1) && near(cos[1], std::cos(1.0)) && near(sin[0], 0) && near(sin[1], std::sin(1.0));
  expect_result(status, accepted, right, near(cos[0], -2) && near(sin[1], -2), "rapt_rotary_tables");
}
#endif

template <class Args>
void qk(Args& args, bool accepted = true) {
  float q[2] = {1, 2}, k[2] = {3, 4}, out[1] = {-1};
  const int64_t shape[4] = {1, 1, 1, 2}, out_shape[4] = {1, 1, 1, 1};
  const rapt_tensor tq = tensor(q, 4, shape), tk = tensor(k, 4, shape), to = tensor(out, 4, out_shape);
  args.q = &tq, args.k = &tk, args.out = &to;
  const rapt_status status = rapt_qk(nullptr, &args, nullptr);
  expect_result(status, accepted, near(out[0], 11), near(out[0], -1), "rapt_qk");
}

template <class Args>
void gemm(Args& args, bool accepted = true) {
  float a[2] = {1, 2}, b[2] = {3, 4}, out[1] = {-1};
  const int64_t row[2] = {1, 2}, column[2] = {2, 1}, one[2] = {1, 1};
  const rapt_tensor ta = tensor(a, 2, row), tb = tensor(b, 2, column), to = tensor(out, 2, one);
  args.a = &ta, args.b = &tb, args.out = &to;
  const rapt_status status = rapt_gemm(nullptr, &args, nullptr);
  expect_result(status, accepted, near(out[0], 11), near(out[0], -1), "rapt_gemm");
}

}  // namespace abi
