// The measured peak of this machine: fused multiply-adds on registers, and sums over a large buffer. Called by bench.
// Each loop is compiled for its own instruction set; the CPU's features select one.
#include "lab/roof.h"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace rapt::lab {
namespace {

// The number of independent chains per thread. Two units with a latency of four or five cycles need 10 of them, and 10
// chains fit into 16 registers.
constexpr int chains = 10;
constexpr int64_t rounds = 200'000;
constexpr int repeats = 5;

struct FmaLoop {
  float (*run)(int64_t);
  double flops_per_round;
};

[[maybe_unused]] float fma_scalar(int64_t count) {  // not used on CPUs that always have NEON
  float sum[chains] = {};
  for (int64_t r = 0; r < count; ++r)
    for (float& x : sum) x = x * 0.5f + 1.0f;
  float total = 0;
  for (const float x : sum) total += x;
  return total;
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) float fma_avx2(int64_t count) {
  const __m256 half = _mm256_set1_ps(0.5f), one = _mm256_set1_ps(1.0f);
  __m256 sum[chains];
  for (int c = 0; c < chains; ++c) sum[c] = one;
  for (int64_t r = 0; r < count; ++r)
    for (int c = 0; c < chains; ++c) sum[c] = _mm256_fmadd_ps(sum[c], half, one);
  for (int c = 1; c < chains; ++c) sum[0] = _mm256_add_ps(sum[0], sum[c]);
  return _mm256_cvtss_f32(sum[0]);
}

__attribute__((target("avx512f"))) float fma_avx512(int64_t count) {
  const __m512 half = _mm512_set1_ps(0.5f), one = _mm512_set1_ps(1.0f);
  __m512 sum[chains];
  for (int c = 0; c < chains; ++c) sum[c] = one;
  for (int64_t r = 0; r < count; ++r)
    for (int c = 0; c < chains; ++c) sum[c] = _mm512_fmadd_ps(sum[c], half, one);
  for (int c = 1; c < chains; ++c) sum[0] = _mm512_add_ps(sum[0], sum[c]);
  return _mm512_cvtss_f32(sum[0]);
}

__attribute__((target("avx512f,avx512bf16"))) float dot_bf16(int64_t count) {
  const __m512bh pairs = _mm512_cvtne2ps_pbh(_mm512_set1_ps(1e-3f), _mm512_set1_ps(1e-3f));
  __m512 sum[chains];
  for (int c = 0; c < chains; ++c) sum[c] = _mm512_setzero_ps();
  for (int64_t r = 0; r < count; ++r)
    for (int c = 0; c < chains; ++c) sum[c] = _mm512_dpbf16_ps(sum[c], pairs, pairs);
  for (int c = 1; c < chains; ++c) sum[0] = _mm512_add_ps(sum[0], sum[c]);
  return _mm512_cvtss_f32(sum[0]);
}

FmaLoop fma_loop() {
  if (__builtin_cpu_supports("avx512f")) return {fma_avx512, chains * 16 * 2};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return {fma_avx2, chains * 8 * 2};
  return {fma_scalar, chains * 2};
}
FmaLoop bf16_loop() {
  if (__builtin_cpu_supports("avx512bf16")) return {dot_bf16, chains * 16 * 4};
  return {nullptr, 0};
}
#elif defined(__aarch64__)
float fma_neon(int64_t count) {
  const float32x4_t half = vdupq_n_f32(0.5f), one = vdupq_n_f32(1.0f);
  float32x4_t sum[chains];
  for (float32x4_t& x : sum) x = one;
  for (int64_t r = 0; r < count; ++r)
    for (float32x4_t& x : sum) x = vfmaq_f32(one, x, half);
  for (int c = 1; c < chains; ++c) sum[0] = vaddq_f32(sum[0], sum[c]);
  return vgetq_lane_f32(sum[0], 0);
}
FmaLoop fma_loop() { return {fma_neon, chains * 4 * 2}; }
FmaLoop bf16_loop() { return {nullptr, 0}; }
#else
FmaLoop fma_loop() { return {fma_scalar, chains * 2}; }
FmaLoop bf16_loop() { return {nullptr, 0}; }
#endif

// Makes several runs, and returns the seconds of the fastest one. In a run all threads start together, and each calls
// body(thread) once.
double fastest(int threads, const std::function<void(int)>& body) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> seconds;
  Clock::time_point begin;
  int phase = 0;
  auto tick = [&]() noexcept {  // runs once after all threads have arrived
    if (phase++ % 2 == 0)
      begin = Clock::now();
    else
      seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
  };
  std::barrier gate(threads, tick);
  auto work = [&](int thread) {
    for (int repeat = 0; repeat < repeats; ++repeat) {
      gate.arrive_and_wait();
      body(thread);
      gate.arrive_and_wait();
    }
  };
  std::vector<std::thread> others;
  for (int thread = 1; thread < threads; ++thread) others.emplace_back(work, thread);
  work(0);
  for (std::thread& other : others) other.join();
  return *std::min_element(seconds.begin(), seconds.end());
}

std::atomic<uint64_t> unused_result;  // prevents the compiler from removing the loops

double rate_of(const FmaLoop& loop, int threads) {
  if (loop.run == nullptr) return 0;
  const double seconds = fastest(threads, [&](int) { unused_result += static_cast<uint64_t>(loop.run(rounds)); });
  return loop.flops_per_round * static_cast<double>(rounds) * threads / seconds;
}

uint64_t sum_of(const uint64_t* words, int64_t count) {
  uint64_t sum[8] = {};
  for (int64_t i = 0; i + 8 <= count; i += 8)
    for (int lane = 0; lane < 8; ++lane) sum[lane] += words[i + lane];
  uint64_t total = 0;
  for (const uint64_t x : sum) total += x;
  return total;
}

double read_rate(int threads, int64_t buffer_bytes) {
  const int64_t words = buffer_bytes / 8 / threads / 8 * 8;  // number of words for each thread
  std::vector<std::unique_ptr<uint64_t[]>> parts(static_cast<size_t>(threads));
  std::vector<char> touched(parts.size(), 0);
  const double seconds = fastest(threads, [&](int thread) {
    const auto t = static_cast<size_t>(thread);
    if (!touched[t]) {  // the first run places the pages, so it is the slowest one and is never reported
      parts[t] = std::make_unique<uint64_t[]>(static_cast<size_t>(words));
      touched[t] = 1;
    }
    unused_result += sum_of(parts[t].get(), words);
  });
  return static_cast<double>(words) * 8 * threads / seconds;
}

}  // namespace

Roof measure_roof(int threads, int64_t buffer_bytes) {
  return {threads, rate_of(fma_loop(), threads), rate_of(bf16_loop(), threads), read_rate(threads, buffer_bytes)};
}

double roof_seconds(const Roof& roof, double flops, double bytes, Unit unit) {
  double rate = roof.fma_flops;
  if (unit == Unit::f32) rate = std::max(rate, roof.tf32_flops / 3);  // three products of TF32 terms
  if (unit == Unit::bf16) rate = std::max(rate, roof.bf16_flops);
  if (unit == Unit::f16) rate = std::max({rate, roof.f16_flops, roof.wgmma_f16_flops});
  if (rate == 0 || roof.read_bytes == 0) return 0;
  return std::max(flops / rate, bytes / roof.read_bytes);
}

}  // namespace rapt::lab
