// Warpgroup matrix instructions of sm_90a (PTX ISA 9.0, section 9.7.15): four warps together add a product of 64 rows
// to their accumulators. The instruction runs asynchronously. Until a wait for it ends, no code may use its registers
// or change its shared memory. Device only.
#pragma once

#include "shared/dtype.h"
#include "shared/matrix_descriptor.h"

namespace rapt {

// Call this before instructions that read or add to registers which ordinary code has written.
inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
inline void wgmma_commit_group() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most `pending` groups of instructions are running.
template <int pending>
inline void wgmma_wait_group() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

// Keeps the compiler from moving uses of accumulators across this call. Otherwise the compiler could do so, because it
// does not know when a wgmma writes them.
template <int tiles>
inline void pin(float (&d)[1][tiles][4]) {
#pragma unroll
  for (int n = 0; n < tiles; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(d[0][n][i])::"memory");
}

// Returns a value that is the same in all threads of a warp, in a register that the compiler knows to be uniform.
inline unsigned warp_uniform(unsigned x) { return __shfl_sync(~0u, x, 0); }

// Returns whether wgmma multiplies matrices of these types: two of the same 16-bit type, or any two of FP8.
constexpr bool can_multiply(DType a, DType b) {
  return is_tensor_core_fp8(a) ? is_tensor_core_fp8(b) : a == b && (a == DType::f16 || a == DType::bf16);
}

// Register i of a thread holds row 16 * warp + lane / 4 + 8 * (i / 2 % 2), column 8 * (i / 4) + 2 * (lane % 4) + i % 2:
// d[0][i / 4][i % 4], as with mma.m16n8. add: true adds to the accumulators, false overwrites them. One instruction
// sums over 32 bytes of a row of A: 16 elements of 16 bits, or 32 of FP8.
//   ss: for q and k. A (64 rows) and B (n rows) are in shared memory, with rows along the summed dimension.
//   rs: for weights and v. A is in registers, with the layout of mma.m16n8k16 or mma.m16n8k32. B is in shared memory.
//       Its rows are along n (16 bits) or along the summed dimension (FP8).
// FP8 sums keep fewer bits than f32 (docs/fp8.md, "The narrow accumulator").
template <int n>
struct Wgmma {
  static_assert(n % 16 == 0 && n <= 256, "n is a multiple of 16 up to 256");
};

#define RAPT_REGS_1 "%0,%1,%2,%3,%4,%5,%6,%7"
#define RAPT_REGS_2 RAPT_REGS_1 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define RAPT_REGS_3 RAPT_REGS_2 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define RAPT_REGS_4 RAPT_REGS_3 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define RAPT_REGS_5 RAPT_REGS_4 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define RAPT_REGS_6 RAPT_REGS_5 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define RAPT_REGS_7 RAPT_REGS_6 ",%48,%49,%50,%51,%52,%53,%54,%55"
#define RAPT_REGS_8 RAPT_REGS_7 ",%56,%57,%58,%59,%60,%61,%62,%63"
#define RAPT_REGS_9 RAPT_REGS_8 ",%64,%65,%66,%67,%68,%69,%70,%71"
#define RAPT_REGS_10 RAPT_REGS_9 ",%72,%73,%74,%75,%76,%77,%78,%79"
#define RAPT_REGS_11 RAPT_REGS_10 ",%80,%81,%82,%83,%84,%85,%86,%87"
#define RAPT_REGS_12 RAPT_REGS_11 ",%88,%89,%90,%91,%92,%93,%94,%95"
#define RAPT_REGS_13 RAPT_REGS_12 ",%96,%97,%98,%99,%100,%101,%102,%103"
#define RAPT_REGS_14 RAPT_REGS_13 ",%104,%105,%106,%107,%108,%109,%110,%111"
#define RAPT_REGS_15 RAPT_REGS_14 ",%112,%113,%114,%115,%116,%117,%118,%119"
#define RAPT_REGS_16 RAPT_REGS_15 ",%120,%121,%122,%123,%124,%125,%126,%127"
#define RAPT_ROW(n) "+f"(d[0][n][0]), "+f"(d[0][n][1]), "+f"(d[0][n][2]), "+f"(d[0][n][3])
#define RAPT_SUMS_1 RAPT_ROW(0), RAPT_ROW(1)
#define RAPT_SUMS_2 RAPT_SUMS_1, RAPT_ROW(2), RAPT_ROW(3)
#define RAPT_SUMS_3 RAPT_SUMS_2, RAPT_ROW(4), RAPT_ROW(5)
#define RAPT_SUMS_4 RAPT_SUMS_3, RAPT_ROW(6), RAPT_ROW(7)
#define RAPT_SUMS_5 RAPT_SUMS_4, RAPT_ROW(8), RAPT_ROW(9)
#define RAPT_SUMS_6 RAPT_SUMS_5, RAPT_ROW(10), RAPT_ROW(11)
#define RAPT_SUMS_7 RAPT_SUMS_6, RAPT_ROW(12), RAPT_ROW(13)
#define RAPT_SUMS_8 RAPT_SUMS_7, RAPT_ROW(14), RAPT_ROW(15)
#define RAPT_SUMS_9 RAPT_SUMS_8, RAPT_ROW(16), RAPT_ROW(17)
#define RAPT_SUMS_10 RAPT_SUMS_9, RAPT_ROW(18), RAPT_ROW(19)
#define RAPT_SUMS_11 RAPT_SUMS_10, RAPT_ROW(20), RAPT_ROW(21)
#define RAPT_SUMS_12 RAPT_SUMS_11, RAPT_ROW(22), RAPT_ROW(23)
#define RAPT_SUMS_13 RAPT_SUMS_12, RAPT_ROW(24), RAPT_ROW(25)
#define RAPT_SUMS_14 RAPT_SUMS_13, RAPT_ROW(26), RAPT_ROW(27)
#define RAPT_SUMS_15 RAPT_SUMS_14, RAPT_ROW(28), RAPT_ROW(29)
#define RAPT_SUMS_16 RAPT_SUMS_15, RAPT_ROW(30), RAPT_ROW(31)
// n = 16 * k. types: the depth and the types of the instruction. transpose: its last operands, which only 16-bit types
// have. a0 to a5: the numbers of the asm operands that follow the accumulators.
#define RAPT_WGMMA_SS(k, n, types, transpose, a0, a1, a2)                                               \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " a2 ", 0;\nwgmma.mma_async.sync.aligned.m64n" n types \
               " {" RAPT_REGS_##k "}, " a0 ", " a1 ", p, 1, 1" transpose ";\n}"                         \
               : RAPT_SUMS_##k                                                                          \
               : "l"(a), "l"(b), "r"(static_cast<int>(add)))
#define RAPT_WGMMA_RS(k, n, types, transpose, a0, a1, a2, a3, a4, a5)                                   \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " a5 ", 0;\nwgmma.mma_async.sync.aligned.m64n" n types \
               " {" RAPT_REGS_##k "}, {" a0 "," a1 "," a2 "," a3 "}, " a4 ", p, 1, 1" transpose ";\n}"  \
               : RAPT_SUMS_##k                                                                          \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)))
#define RAPT_WGMMA(k, n, text, a0, a1, a2, a3, a4, a5)                                                \
  template <>                                                                                         \
  struct Wgmma<n> {                                                                                   \
    template <DType a_type, DType b_type>                                                             \
    static void ss(float (&d)[1][n / 8][4], unsigned long long a, unsigned long long b, bool add) {   \
      static_assert(can_multiply(a_type, b_type));                                                    \
      if constexpr (a_type == DType::f16 && b_type == DType::f16)                                     \
        RAPT_WGMMA_SS(k, text, "k16.f32.f16.f16", ", 0, 0", a0, a1, a2);                              \
      else if constexpr (a_type == DType::bf16 && b_type == DType::bf16)                              \
        RAPT_WGMMA_SS(k, text, "k16.f32.bf16.bf16", ", 0, 0", a0, a1, a2);                            \
      else if constexpr (a_type == DType::e4m3 && b_type == DType::e4m3)                              \
        RAPT_WGMMA_SS(k, text, "k32.f32.e4m3.e4m3", "", a0, a1, a2);                                  \
      else if constexpr (a_type == DType::e4m3 && b_type == DType::e5m2)                              \
        RAPT_WGMMA_SS(k, text, "k32.f32.e4m3.e5m2", "", a0, a1, a2);                                  \
      else if constexpr (a_type == DType::e5m2 && b_type == DType::e4m3)                              \
        RAPT_WGMMA_SS(k, text, "k32.f32.e5m2.e4m3", "", a0, a1, a2);                                  \
      else                                                                                            \
        RAPT_WGMMA_SS(k, text, "k32.f32.e5m2.e5m2", "", a0, a1, a2);                                  \
    }                                                                                                 \
    template <DType a_type, DType b_type>                                                             \
    static void rs(float (&d)[1][n / 8][4], const unsigned (&a)[4], unsigned long long b, bool add) { \
      static_assert(can_multiply(a_type, b_type));                                                    \
      if constexpr (a_type == DType::f16 && b_type == DType::f16)                                     \
        RAPT_WGMMA_RS(k, text, "k16.f32.f16.f16", ", 1", a0, a1, a2, a3, a4, a5);                     \
      else if constexpr (a_type == DType::bf16 && b_type == DType::bf16)                              \
        RAPT_WGMMA_RS(k, text, "k16.f32.bf16.bf16", ", 1", a0, a1, a2, a3, a4, a5);                   \
      else if constexpr (a_type == DType::e4m3 && b_type == DType::e4m3)                              \
        RAPT_WGMMA_RS(k, text, "k32.f32.e4m3.e4m3", "", a0, a1, a2, a3, a4, a5);                      \
      else if constexpr (a_type == DType::e4m3 && b_type == DType::e5m2)                              \
        RAPT_WGMMA_RS(k, text, "k32.f32.e4m3.e5m2", "", a0, a1, a2, a3, a4, a5);                      \
      else if constexpr (a_type == DType::e5m2 && b_type == DType::e4m3)                              \
        RAPT_WGMMA_RS(k, text, "k32.f32.e5m2.e4m3", "", a0, a1, a2, a3, a4, a5);                      \
      else                                                                                            \
        RAPT_WGMMA_RS(k, text, "k32.f32.e5m2.e5m2", "", a0, a1, a2, a3, a4, a5);                      \
    }                                                                                                 \
  };
RAPT_WGMMA(1, 16, "16", "%8", "%9", "%10", "%11", "%12", "%13")
RAPT_WGMMA(2, 32, "32", "%16", "%17", "%18", "%19", "%20", "%21")
RAPT_WGMMA(3, 48, "48", "%24", "%25", "%26", "%27", "%28", "%29")
RAPT_WGMMA(4, 64, "64", "%32", "%33", "%34", "%35", "%36", "%37")
RAPT_WGMMA(5, 80, "80", "%40", "%41", "%42", "%43", "%44", "%45")
RAPT_WGMMA(6, 96, "96", "%48", "%49", "%50", "%51", "%52", "%53")
RAPT_WGMMA(7, 112, "112", "%56", "%57", "%58", "%59", "%60", "%61")
RAPT_WGMMA(8, 128, "128", "%64", "%65", "%66", "%67", "%68", "%69")
RAPT_WGMMA(9, 144, "144", "%72", "%73", "%74", "%75", "%76", "%77")
RAPT_WGMMA(10, 160, "160", "%80", "%81", "%82", "%83", "%84", "%85")
RAPT_WGMMA(11, 176, "176", "%88", "%89", "%90", "%91", "%92", "%93")
RAPT_WGMMA(12, 192, "192", "%96", "%97", "%98", "%99", "%100", "%101")
RAPT_WGMMA(13, 208, "208", "%104", "%105", "%106", "%107", "%108", "%109")
RAPT_WGMMA(14, 224, "224", "%112", "%113", "%114", "%115", "%116", "%117")
RAPT_WGMMA(15, 240, "240", "%120", "%121", "%122", "%123", "%124", "%125")
RAPT_WGMMA(16, 256, "256", "%128", "%129", "%130", "%131", "%132", "%133")

}  // namespace rapt
