// Matrix instructions of sm_80 and newer, one function each, with the name of the instruction (PTX ISA 9.0, section
// 9.7.14.5). Device only. Fragment layouts for lane l, g = l / 4, t = l % 4:
// 16-bit (k16):
//   A (16 x 16): a0 row g, columns 2t, 2t+1; a1 row g+8, same columns; a2 row g, columns 8+2t, 9+2t; a3 row g+8, same
//   B (16 x 8):  b0 rows 2t, 2t+1 of column g; b1 rows 8+2t, 9+2t
//   C (16 x 8):  c0, c1 row g, columns 2t, 2t+1; c2, c3 row g+8
// FP8 (k32), C as above:
//   A (16 x 32): a0 row g, columns 4t..4t+3; a1 row g+8, same columns; a2 row g, columns 16+4t..; a3 row g+8, same
//   B (32 x 8):  b0 rows 4t..4t+3 of column g; b1 rows 16+4t..
// TF32 (k8), C as above. An operand register holds an f32 number; the instruction ignores its last 13 bits:
//   A (16 x 8): a0 row g, column t; a1 row g+8, same column; a2 row g, column 4+t; a3 row g+8, same column
//   B (8 x 8):  b0 row t of column g; b1 row 4+t
#pragma once

#include "shared/dtype.h"

namespace rapt {

// Loads four 8x8 matrices of 16-bit elements. Lanes 8i..8i+7 pass the row addresses of matrix i (9.7.14.5.15).
inline void ldmatrix_x4(unsigned (&r)[4], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// Like ldmatrix_x4, but transposes each matrix.
inline void ldmatrix_x4_trans(unsigned (&r)[4], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// Stores four 8x8 matrices of 16-bit elements: the reverse of ldmatrix_x4, for sm_90 and newer (9.7.14.5.16).
inline void stmatrix_x4(unsigned address, unsigned r0, unsigned r1, unsigned r2, unsigned r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r0), "r"(r1),
               "r"(r2), "r"(r3)
               : "memory");
}

// d += a * b, k = 16, accumulated in f32 (9.7.14.5.14).
template <DType dtype>
inline void mma_m16n8k16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  static_assert(dtype == DType::f16 || dtype == DType::bf16, "mma m16n8k16 multiplies f16 or bf16");
  if constexpr (dtype == DType::f16)
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
        "%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
        "%2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// d += a * b, k = 16, accumulated in f16. d[0] holds c0, c1; d[1] holds c2, c3.
inline void mma_m16n8k16_f16(unsigned (&d)[2], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%0, %1};"
      : "+r"(d[0]), "+r"(d[1])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// d += a * b, k = 8, TF32, accumulated in f32.
inline void mma_m16n8k8_tf32(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// d += a * b, k = 32, FP8, accumulated in f32 (sm_89 and newer). Ada's tensor cores truncate the sum to about 13
// fraction bits. On sm_90 and sm_100 the compiler emits f16 mma with f32 accumulation instead.
template <DType a_type, DType b_type>
inline void mma_m16n8k32(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  static_assert(is_tensor_core_fp8(a_type) && is_tensor_core_fp8(b_type), "mma m16n8k32 multiplies e4m3 or e5m2");
  if constexpr (a_type == DType::e4m3 && b_type == DType::e4m3)
    asm("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
        "%2, "
        "%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else if constexpr (a_type == DType::e4m3)
    asm("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e5m2.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
        "%2, "
        "%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else if constexpr (b_type == DType::e4m3)
    asm("mma.sync.aligned.m16n8k32.row.col.f32.e5m2.e4m3.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
        "%2, "
        "%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm("mma.sync.aligned.m16n8k32.row.col.f32.e5m2.e5m2.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
        "%2, "
        "%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace rapt
