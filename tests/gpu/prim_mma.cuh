// Kernels that test only ldmatrix and mma.sync. Each runs as one warp, and stores fragments to global memory by their
// documented layout. Called by prim_test.cpp.
#pragma once

#include "prim_args.cuh"
#include "ptx/copy.cuh"
#include "ptx/mma.cuh"

namespace rapt::test {

// a: four 8x8 matrices of 16-bit elements, one after the other; out: [lane][4] registers.
template <bool transposed>
__device__ void read_matrices(const PrimArgs& args) {
  __shared__ __align__(16) unsigned short matrices[4 * 64];
  const int lane = static_cast<int>(threadIdx.x);
  for (int i = lane; i < 4 * 64; i += 32) matrices[i] = static_cast<const unsigned short*>(args.a)[i];
  __syncthreads();
  unsigned r[4];
  if (transposed)
    ldmatrix_x4_trans(r, shared_address(matrices + lane * 8));
  else
    ldmatrix_x4(r, shared_address(matrices + lane * 8));
  for (int i = 0; i < 4; ++i) static_cast<unsigned*>(args.out)[lane * 4 + i] = r[i];
}

// a: 16 x 16 row-major; b: 16 x 8 row-major; out: 16 x 8 f32 row-major, which already holds the addend.
template <DType dtype>
__device__ void multiply(const PrimArgs& args) {
  const int lane = static_cast<int>(threadIdx.x), g = lane / 4, t = lane % 4;
  const unsigned short* a = static_cast<const unsigned short*>(args.a);
  const unsigned short* b = static_cast<const unsigned short*>(args.b);
  const auto pair = [](unsigned low, unsigned high) { return low | high << 16; };
  const auto a_pair = [&](int row, int column) { return pair(a[row * 16 + column], a[row * 16 + column + 1]); };
  const auto b_pair = [&](int row, int column) { return pair(b[row * 8 + column], b[(row + 1) * 8 + column]); };
  const unsigned fragment[4] = {a_pair(g, 2 * t), a_pair(g + 8, 2 * t), a_pair(g, 8 + 2 * t), a_pair(g + 8, 8 + 2 * t)};
  float* out = static_cast<float*>(args.out);
  float* const c[4] = {out + g * 8 + 2 * t, out + g * 8 + 2 * t + 1, out + (g + 8) * 8 + 2 * t,
                       out + (g + 8) * 8 + 2 * t + 1};
  float d[4] = {*c[0], *c[1], *c[2], *c[3]};
  mma_m16n8k16<dtype>(d, fragment, b_pair(2 * t, g), b_pair(8 + 2 * t, g));
  for (int i = 0; i < 4; ++i) *c[i] = d[i];
}

// a: 16 x 8 f32 row-major; b: 8 x 8 f32 row-major; out: 16 x 8 f32 row-major, which already holds the addend.
__device__ inline void multiply_tf32(const PrimArgs& args) {
  const int lane = static_cast<int>(threadIdx.x), g = lane / 4, t = lane % 4;
  const unsigned *a = static_cast<const unsigned*>(args.a), *b = static_cast<const unsigned*>(args.b);
  const unsigned fragment[4] = {a[g * 8 + t], a[(g + 8) * 8 + t], a[g * 8 + 4 + t], a[(g + 8) * 8 + 4 + t]};
  float* out = static_cast<float*>(args.out);
  float* const c[4] = {out + g * 8 + 2 * t, out + g * 8 + 2 * t + 1, out + (g + 8) * 8 + 2 * t,
                       out + (g + 8) * 8 + 2 * t + 1};
  float d[4] = {*c[0], *c[1], *c[2], *c[3]};
  mma_m16n8k8_tf32(d, fragment, b[t * 8 + g], b[(4 + t) * 8 + g]);
  for (int i = 0; i < 4; ++i) *c[i] = d[i];
}

}  // namespace rapt::test
