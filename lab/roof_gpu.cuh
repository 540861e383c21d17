// The loops that measure a GPU's peak: tensor-core products (mma.sync from registers, wgmma from shared memory), fused
// multiply-adds, exponentials, and reads from DRAM and L2. Compiled at run time by roof_gpu.cpp, one loop per unit.
// Every thread stores its result, so the compiler cannot remove work.
#pragma once

namespace rapt::roof {

struct Params {
  const uint4* from = nullptr;
  unsigned* to = nullptr;   // one element per thread
  unsigned long count = 0;  // number of uint4 elements in the buffer; for `read` a multiple of 8 per thread
  int rounds = 0;           // number of repetitions; all loops except `read` repeat
};

// mma.sync of one warp: adds 16 products to each element of a 16x8 tile of floats (PTX ISA, "mma.m16n8k16").
__device__ inline void mma_f16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// The same with 32 products of FP8 codes (PTX ISA, "mma.m16n8k32"; sm_89 and newer).
__device__ inline void mma_e4m3(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// The same with 8 products of TF32 numbers (PTX ISA, "mma.m16n8k8").
__device__ inline void mma_tf32(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Pseudo-random bits that differ between lanes, because constant bits use less power.
__device__ inline unsigned some_bits(unsigned index) {
  unsigned x = index * 2654435761u + 0x9e3779b9u;
  x ^= x >> 15;
  return x * 2246822519u;
}
enum class Operand { f16, tf32, fp8 };
// Two halves, a TF32 number, or four e4m3 codes, with magnitudes between 0.5 and 1 and with signs.
template <Operand operand>
__device__ inline unsigned some_values(unsigned index) {
  if (operand == Operand::tf32) return (some_bits(index) & 0x807fe000u) | 0x3f000000u;
  return operand == Operand::fp8 ? (some_bits(index) & 0x87878787u) | 0x30303030u
                                 : (some_bits(index) & 0x83ff83ffu) | 0x38003800u;
}

inline constexpr int products = 8;  // independent accumulator tiles of a warp

template <Operand operand>
__device__ inline void multiply(const Params& p) {
  const unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;
  unsigned a[4], b[products][2];
  float sum[products][4] = {};
  for (int i = 0; i < 4; ++i) a[i] = some_values<operand>(thread * 32 + i);
  for (int t = 0; t < products; ++t)
    for (int i = 0; i < 2; ++i) b[t][i] = some_values<operand>(thread * 32 + 4 + 2 * t + i);
#pragma unroll 1
  for (int round = 0; round < p.rounds; ++round)
#pragma unroll
    for (int t = 0; t < products; ++t)
      if constexpr (operand == Operand::fp8)
        mma_e4m3(sum[t], a, b[t]);
      else if constexpr (operand == Operand::tf32)
        mma_tf32(sum[t], a, b[t]);
      else
        mma_f16(sum[t], a, b[t]);
  float total = 0;
  for (int t = 0; t < products; ++t)
    for (int i = 0; i < 4; ++i) total += sum[t][i];
  p.to[thread] = __float_as_uint(total);
}
__device__ inline void multiply_f16(const Params& p) { multiply<Operand::f16>(p); }
__device__ inline void multiply_tf32(const Params& p) { multiply<Operand::tf32>(p); }
__device__ inline void multiply_fp8(const Params& p) { multiply<Operand::fp8>(p); }

// ---- wgmma (sm_90a): a warpgroup multiplies a 64-row tile A by a 256-column tile B, both in shared memory, and adds
// to 128 floats of each thread. A row of 128 bytes has four steps of 32 bytes (16 halves or 32 codes).

inline constexpr int a_rows = 64, b_rows = 256, row_bytes = 128, step_bytes = 32, steps = row_bytes / step_bytes;
inline constexpr int wgmma_repeats = 4;  // how many times one round repeats the four steps

// The matrix descriptor for rows of 128 bytes with the 128-byte swizzle (PTX ISA, "Matrix Descriptor Format"). It holds
// the address, the distance in bytes between groups of eight rows, and swizzle mode 1. The tile must be aligned to 1024
// bytes.
__device__ inline unsigned long long descriptor(const void* tile) {
  const unsigned long long address = __cvta_generic_to_shared(tile);
  constexpr unsigned long long group_bytes = 8 * row_bytes;
  return (address >> 4 & 0x3fff) | 1ull << 16 | group_bytes >> 4 << 32 | 1ull << 62;
}

// The 128 sums are operands %0 to %127 of an asm statement. These macros write the operands, and their names in the
// text of the statement.
#define RAPT_TEN_NAMES(t) "%" #t "0,%" #t "1,%" #t "2,%" #t "3,%" #t "4,%" #t "5,%" #t "6,%" #t "7,%" #t "8,%" #t "9,"
#define RAPT_NAMES                                                                                                 \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9," RAPT_TEN_NAMES(1) RAPT_TEN_NAMES(2) RAPT_TEN_NAMES(3) RAPT_TEN_NAMES(4)        \
      RAPT_TEN_NAMES(5) RAPT_TEN_NAMES(6) RAPT_TEN_NAMES(7) RAPT_TEN_NAMES(8) RAPT_TEN_NAMES(9) RAPT_TEN_NAMES(10) \
          RAPT_TEN_NAMES(11) "%120,%121,%122,%123,%124,%125,%126,%127}"
#define RAPT_FOUR_SUMS(i) "+f"(sum[i]), "+f"(sum[(i) + 1]), "+f"(sum[(i) + 2]), "+f"(sum[(i) + 3])
#define RAPT_SIXTEEN_SUMS(i) \
  RAPT_FOUR_SUMS(i), RAPT_FOUR_SUMS((i) + 4), RAPT_FOUR_SUMS((i) + 8), RAPT_FOUR_SUMS((i) + 12)
#define RAPT_SUMS                                                                                                   \
  RAPT_SIXTEEN_SUMS(0), RAPT_SIXTEEN_SUMS(16), RAPT_SIXTEEN_SUMS(32), RAPT_SIXTEEN_SUMS(48), RAPT_SIXTEEN_SUMS(64), \
      RAPT_SIXTEEN_SUMS(80), RAPT_SIXTEEN_SUMS(96), RAPT_SIXTEEN_SUMS(112)

// One step: sum += A * B. The last operands of the instruction say: add to the sums; do not negate A and B; and, for
// f16 only, both are K-major.
template <bool fp8>
__device__ inline void wgmma(float (&sum)[128], unsigned long long a, unsigned long long b) {
  if constexpr (fp8)
    asm volatile(
        "{\n.reg .pred add;\nsetp.eq.b32 add, 0, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n256k32.f32.e4m3.e4m3 " RAPT_NAMES ", %128, %129, add, 1, 1;\n}"
        : RAPT_SUMS
        : "l"(a), "l"(b));
  else
    asm volatile(
        "{\n.reg .pred add;\nsetp.eq.b32 add, 0, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 " RAPT_NAMES ", %128, %129, add, 1, 1, 0, 0;\n}"
        : RAPT_SUMS
        : "l"(a), "l"(b));
}

// The contents are pseudo-random. All warpgroups of a block read the same tiles.
template <bool fp8>
__device__ inline void multiply_wgmma(const Params& p) {
  __shared__ __align__(1024) unsigned tiles[(a_rows + b_rows) * row_bytes / 4];
  constexpr Operand operand = fp8 ? Operand::fp8 : Operand::f16;
  for (unsigned i = threadIdx.x; i < sizeof tiles / 4; i += blockDim.x) tiles[i] = some_values<operand>(i);
  asm volatile("fence.proxy.async;" ::: "memory");  // wgmma reads shared memory through another proxy
  __syncthreads();
  const unsigned long long a = descriptor(tiles), b = descriptor(tiles + a_rows * row_bytes / 4);
  float sum[128] = {};
#pragma unroll 1
  for (int round = 0; round < p.rounds; ++round) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int i = 0; i < wgmma_repeats * steps; ++i) {
      const int offset = i % steps * step_bytes / 16;  // the unit of descriptors is 16 bytes
      wgmma<fp8>(sum, a + offset, b + offset);
    }
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  }
  float total = 0;
  for (int i = 0; i < 128; ++i) total += sum[i];
  p.to[blockIdx.x * blockDim.x + threadIdx.x] = __float_as_uint(total);
}
__device__ inline void wgmma_f16(const Params& p) { multiply_wgmma<false>(p); }
__device__ inline void wgmma_fp8(const Params& p) { multiply_wgmma<true>(p); }

// ---- Arithmetic without tensor cores

inline constexpr int chains = 16;  // number of independent sums of a thread

__device__ inline void multiply_f32(const Params& p) {
  const unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;
  float sum[chains];
  const float factor = 0.5f + static_cast<float>(thread & 1023u) * 0x1p-12f;
  for (int c = 0; c < chains; ++c) sum[c] = static_cast<float>(c);
#pragma unroll 1
  for (int round = 0; round < p.rounds; ++round)
#pragma unroll
    for (int c = 0; c < chains; ++c) sum[c] = fmaf(sum[c], factor, 1.0f);
  float total = 0;
  for (int c = 0; c < chains; ++c) total += sum[c];
  p.to[thread] = __float_as_uint(total);
}

// ex2.approx, which softmax uses. Each value is the exponential of the value before. The values grow to infinity, but
// the time does not depend on them.
__device__ inline void exponentials(const Params& p) {
  const unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;
  float x[chains];
  for (int c = 0; c < chains; ++c) x[c] = static_cast<float>(thread + c) * -0x1p-20f;
#pragma unroll 1
  for (int round = 0; round < p.rounds; ++round)
#pragma unroll
    for (int c = 0; c < chains; ++c) asm volatile("ex2.approx.ftz.f32 %0, %0;" : "+f"(x[c]));
  float total = 0;
  for (int c = 0; c < chains; ++c) total += x[c];
  p.to[thread] = __float_as_uint(total);
}

// ---- Memory

inline constexpr int loads = 8;  // 16-byte loads that a thread has in flight

__device__ inline void read(const Params& p) {
  const unsigned long thread = blockIdx.x * blockDim.x + threadIdx.x, threads = gridDim.x * blockDim.x;
  unsigned mix = 0;
#pragma unroll 1
  for (unsigned long at = thread; at < p.count; at += loads * threads) {
    uint4 x[loads];
#pragma unroll
    for (int i = 0; i < loads; ++i) x[i] = __ldcs(p.from + at + i * threads);
#pragma unroll
    for (int i = 0; i < loads; ++i) mix += x[i].x ^ x[i].y ^ x[i].z ^ x[i].w;
  }
  p.to[thread] = mix;
}

// Reads a buffer many times; it is so small that it stays in L2. All threads together read consecutive elements, and
// begin again after the last one. ld.global.cg does not use L1.
__device__ inline void read_l2(const Params& p) {
  const unsigned thread = blockIdx.x * blockDim.x + threadIdx.x, threads = gridDim.x * blockDim.x;
  const auto count = static_cast<unsigned>(p.count);
  const unsigned stride = threads % count;
  unsigned at = thread % count, mix = 0;
#pragma unroll 1
  for (int round = 0; round < p.rounds; ++round) {
    uint4 x[loads];
#pragma unroll
    for (int i = 0; i < loads; ++i) {
      x[i] = __ldcg(p.from + at);
      at += stride;
      if (at >= count) at -= count;
    }
#pragma unroll
    for (int i = 0; i < loads; ++i) mix += x[i].x ^ x[i].y ^ x[i].z ^ x[i].w;
  }
  p.to[thread] = mix;
}

// An empty loop, to measure the time of a launch.
__device__ inline void nothing(const Params&) {}

}  // namespace rapt::roof
