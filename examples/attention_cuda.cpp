// Attention on a GPU from C++, on memory from cudaMalloc. The first call compiles its kernel with NVRTC and caches it.
//
// With an installed rapt and the CUDA toolkit in CUDA:
//   c++ -std=c++20 attention_cuda.cpp -I$CUDA/include -L$CUDA/lib64 -lcudart $(pkg-config --cflags --libs rapt)
// Prints two results. Exits with 1 if one is wrong. Exits with 77 without a GPU, or if compiled without
// the CUDA runtime.
#include <cstdio>

#if __has_include(<cuda_runtime_api.h>)
#include <cuda_runtime_api.h>

#include <cmath>
#include <rapt/rapt.hpp>
#include <stdexcept>
#include <vector>

namespace {

void check(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

// Device memory for floats, freed by the destructor.
class Buffer {
 public:
  explicit Buffer(const std::vector<float>& values) : bytes_(values.size() * sizeof(float)) {
    check(cudaMalloc(reinterpret_cast<void**>(&data_), bytes_));
    check(cudaMemcpy(data_, values.data(), bytes_, cudaMemcpyHostToDevice));
  }
  ~Buffer() { cudaFree(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  float* data() const { return data_; }
  std::vector<float> download() const {
    std::vector<float> values(bytes_ / sizeof(float));
    check(cudaMemcpy(values.data(), data_, bytes_, cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  float* data_ = nullptr;
  size_t bytes_;
};

}  // namespace

int main() try {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::puts("no GPU: skipped");
    return 77;
  }
  constexpr int64_t batch = 1, heads = 2, seqlen = 100, dim = 64;
  constexpr size_t count = batch * heads * seqlen * dim;
  // All keys are zero, so every visible key has the same weight. Value j is j. So row i of causal attention is i / 2.
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<float>(i / dim % seqlen);
  const Buffer q(std::vector<float>(count, 1.0f)), k(std::vector<float>(count, 0.0f)), v(values), out(values);

  cudaStream_t stream;
  check(cudaStreamCreate(&stream));
  const rapt_device gpu = rapt::cuda_device(0);
  const rapt::Dims shape{batch, heads, seqlen, dim};
  rapt::sdpa({q.data(), shape, gpu}, {k.data(), shape, gpu}, {v.data(), shape, gpu}, {out.data(), shape, gpu},
             {.causal = rapt::CausalMask::bottom_right, .stream = stream});
  check(cudaStreamSynchronize(stream));
  check(cudaStreamDestroy(stream));

  const std::vector<float> result = out.download();
  const float row_9 = result[9 * dim], last = result[count - 1];
  std::printf("row 9: %g (4.5), last row: %g (49.5)\n", row_9, last);
  return std::fabs(row_9 - 4.5f) < 1e-4f && std::fabs(last - 49.5f) < 1e-3f ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
#else
int main() {
  std::puts("compiled without the CUDA runtime (cuda_runtime_api.h): skipped");
  return 77;
}
#endif
