// Conversions and exponentials over arrays, one element per thread. Called by prim_test.cpp.
#pragma once

#include "device/numeric.cuh"
#include "device/score.cuh"
#include "device/softmax.cuh"
#include "prim_args.cuh"

namespace rapt::test {

__device__ inline long element_of_thread() {
  return static_cast<long>(blockIdx.x) * static_cast<long>(blockDim.x) + static_cast<long>(threadIdx.x);
}

// a: codes of the format; out: f32.
template <DType dtype>
__device__ void widen(const PrimArgs& args) {
  const long i = element_of_thread();
  if (i < args.n) static_cast<float*>(args.out)[i] = load_element<dtype>(args.a, i);
}

// a: f32; out: codes of the format.
template <DType dtype>
__device__ void narrow(const PrimArgs& args) {
  const long i = element_of_thread();
  if (i < args.n) store_element<dtype>(args.out, i, static_cast<const float*>(args.a)[i]);
}

// a: f32 [2 n]; out: pairs of codes [n].
template <DType dtype>
__device__ void pack(const PrimArgs& args) {
  const long i = element_of_thread();
  if (i >= args.n) return;
  const float *x = static_cast<const float*>(args.a), low = x[2 * i], high = x[2 * i + 1];
  static_cast<unsigned*>(args.out)[i] = dtype == DType::f16 ? pack_f16x2(low, high) : pack_bf16x2(low, high);
}

// a: pairs of codes [2 n]; out: the larger magnitudes of words 2 i and 2 i + 1 [n].
template <DType dtype>
__device__ void magnitudes(const PrimArgs& args) {
  const long i = element_of_thread();
  if (i >= args.n) return;
  const unsigned* x = static_cast<const unsigned*>(args.a);
  static_cast<unsigned*>(args.out)[i] = max_magnitude2<dtype>(x[2 * i], x[2 * i + 1]);
}

__device__ inline void exp2_of(const PrimArgs& args) {
  const long i = element_of_thread();
  if (i < args.n) static_cast<float*>(args.out)[i] = exp2_approx(static_cast<const float*>(args.a)[i]);
}

__device__ inline void tf32_of(const PrimArgs& args) {
  const long i = element_of_thread();
  if (i < args.n) static_cast<float*>(args.out)[i] = round_to_tf32(static_cast<const float*>(args.a)[i]);
}

__device__ inline void tanh_of(const PrimArgs& args) {
  const long i = element_of_thread();
  if (i < args.n) static_cast<float*>(args.out)[i] = FastTanh::of(static_cast<const float*>(args.a)[i]);
}

// a: f32 [n], n a multiple of 32; out: the sum, then the maximum, of each element's quad: [2][n].
__device__ inline void quads(const PrimArgs& args) {
  const long i = element_of_thread();
  if (i >= args.n) return;
  const float x = static_cast<const float*>(args.a)[i];
  static_cast<float*>(args.out)[i] = quad_sum(x);
  static_cast<float*>(args.out)[args.n + i] = quad_max(x);
}

}  // namespace rapt::test
