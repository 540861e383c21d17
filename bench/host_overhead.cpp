// Measures the host cost of the library. It compares a warm call with a bare cuLaunchKernelEx of the same kernel with
// the same parameter bytes. It also measures the time of compiling a kernel, and of fetching it from the store. Run it
// by hand on a machine with a GPU, or with the tests' stand-in for the driver, in which a launch costs nothing. Usage:
// bench_host_overhead [--blocks N] [--limit MICROSECONDS]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "cuda/driver.h"
#include "host_overhead_front.h"
#include "kernels/family.h"
#include "kernels/sm80/sm80.h"
#include "operations/bind.h"
#include "operations/sdpa.h"
#include "problem/problem.h"
#include "runtime/gpu.h"

namespace rapt {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* mission = "f16 b1 h8 q512 k512 d64";
constexpr int calls_per_block = 100;  // a launch queue holds about 1000 launches, so it never becomes full

double microseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

double quantile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1) + 0.5)];
}

// A call of problem `mission` (above), with its tensors on the current GPU.
struct MissionCall {
  explicit MissionCall(int device_index) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      buffers[i] = cuda::Buffer(8 * 512 * 64 * sizeof(uint16_t));
      buffers[i].fill(0);
      tensors[i] = {buffers[i].data(), {RAPT_DEVICE_CUDA, device_index}, RAPT_F16, 4, shape.data(), nullptr};
    }
    args.struct_size = sizeof args;
    args.q = &tensors[0], args.k = &tensors[1], args.v = &tensors[2], args.out = &tensors[3];
  }
  std::array<int64_t, 4> shape{1, 8, 512, 64};
  std::array<cuda::Buffer, 4> buffers;
  std::array<rapt_tensor, 4> tensors{};
  rapt_sdpa_args args{};
};

// A call with one query over a cache of keys, as in decoding. grows: each call has one more key than the call before.
class DecodingCall {
 public:
  static constexpr int64_t first = 512, lengths = 10000;

  // keys: the number of keys in the first call. whole_cache: the strides are those of the cache. Otherwise the keys are
  // contiguous, and the strides grow with the number of keys.
  DecodingCall(int device_index, bool grows, bool whole_cache, int64_t keys = first) : grows_(grows) {
    keys_[2] = keys;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      const bool of_keys = i == 1 || i == 2;
      buffers_[i] = cuda::Buffer(8 * (of_keys ? first + lengths : 1) * 64 * sizeof(uint16_t));
      buffers_[i].fill(0);
      tensors_[i] = {buffers_[i].data(),
                     {RAPT_DEVICE_CUDA, device_index},
                     RAPT_F16,
                     4,
                     of_keys ? keys_ : rows_,
                     of_keys && whole_cache ? cache_strides_ : nullptr};
    }
    args_.struct_size = sizeof args_;
    args_.q = &tensors_[0], args_.k = &tensors_[1], args_.v = &tensors_[2], args_.out = &tensors_[3];
  }
  DecodingCall(const DecodingCall&) = delete;
  DecodingCall& operator=(const DecodingCall&) = delete;
  void operator()(cuda::StreamHandle stream) {
    if (grows_) keys_[2] = first + ++calls_ % lengths;
    if (rapt_sdpa(nullptr, &args_, stream) != RAPT_OK) throw Error(ErrorCode::internal, rapt_last_error());
  }

 private:
  const bool grows_;
  int64_t calls_ = 0, rows_[4] = {1, 8, 1, 64}, keys_[4] = {1, 8, first, 64};
  int64_t cache_strides_[4] = {8 * (first + lengths) * 64, (first + lengths) * 64, 64, 1};
  std::array<cuda::Buffer, 4> buffers_;
  std::array<rapt_tensor, 4> tensors_{};
  rapt_sdpa_args args_{};
};

// The kernel of a plan's step, launched directly through the driver.
class BareLaunch {
 public:
  BareLaunch(const jit::Image& image, const KernelUnit& unit, unsigned blocks, bool programmatic,
             const Sm80Params& params, cuda::StreamHandle stream)
      : params_(params) {
    cuda::LibraryHandle library = nullptr;
    cuda::KernelHandle kernel = nullptr;
    check(driver_.cuLibraryLoadData(&library, image.bytes.data(), nullptr, nullptr, 0, nullptr, nullptr, 0));
    check(driver_.cuLibraryGetKernel(&kernel, library, "rapt_kernel"));
    check(driver_.cuKernelSetAttribute(cuda::FunctionAttribute::max_dynamic_smem_bytes,
                                       static_cast<int>(unit.smem_bytes), kernel, cuda::device_handle(0)));
    check(driver_.cuKernelGetFunction(&function_, kernel));
    programmatic_.value.programmatic_stream_serialization_allowed = 1;
    config_ = {blocks,
               1,
               1,
               static_cast<unsigned>(unit.threads),
               1,
               1,
               static_cast<unsigned>(unit.smem_bytes),
               stream,
               programmatic ? &programmatic_ : nullptr,
               programmatic ? 1u : 0u};
  }
  BareLaunch(const BareLaunch&) = delete;
  BareLaunch& operator=(const BareLaunch&) = delete;
  void operator()() {
    void* parameters[] = {&params_};
    check(driver_.cuLaunchKernelEx(&config_, function_, parameters, nullptr));
  }

 private:
  void check(cuda::Result result) const { cuda::check(driver_, result, "bare launch"); }
  const cuda::Driver& driver_ = cuda::driver();
  Sm80Params params_;
  cuda::FunctionHandle function_ = nullptr;
  cuda::LaunchAttribute programmatic_{cuda::LaunchAttributeId::programmatic_stream_serialization, {}};
  cuda::LaunchConfig config_{};
};

struct TimedCall {
  const char* name;
  std::function<void()> call;
  std::vector<double> us;  // microseconds per call; one value for each block
};

void time_block(TimedCall& call, const cuda::Stream& stream) {
  call.call();
  stream.synchronize();
  const auto begin = Clock::now();
  for (int i = 0; i < calls_per_block; ++i) call.call();
  call.us.push_back(microseconds_since(begin) / calls_per_block);
  stream.synchronize();
}

std::vector<double> differences(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> result(a.size());
  std::transform(a.begin(), a.end(), b.begin(), result.begin(), std::minus<>());
  return result;
}

// Prints the times. Returns the cost of the C++ call above the bare launch (the median over the blocks).
double report_calls(std::vector<TimedCall>& calls, const cuda::Stream& stream, int blocks) {
  std::mt19937 random(1);
  std::vector<size_t> order(calls.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  for (int block = 0; block < blocks; ++block) {
    std::shuffle(order.begin(), order.end(), random);
    for (const size_t i : order) time_block(calls[i], stream);
  }
  double above = 0;
  for (const TimedCall& call : calls) {
    const std::vector<double> over = differences(call.us, calls[0].us);
    above = quantile(over, 0.5);
    std::printf("%-34s %7.3f us of host time, above the bare launch %6.3f (quartiles %.3f to %.3f)\n", call.name,
                quantile(call.us, 0.5), above, quantile(over, 0.25), quantile(over, 0.75));
  }
  return above;
}

// A temporary folder, removed at the end.
struct TemporaryFolder {
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "rapt-host-overhead-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw Error(ErrorCode::environment, concat(name, ": cannot be created"));
    path = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  std::filesystem::path path;
};

void report_store(const jit::Request& request) {
  const TemporaryFolder folder;
  std::vector<double> compile_ms, fetch_ms;
  for (int i = 0; i < 3; ++i) {
    jit::Store::Options options;
    options.cache_directory = (folder.path / std::to_string(i)).string();
    const auto get = [&](jit::Image::Source expected) {
      jit::Store store(options);
      const auto begin = Clock::now();
      if (store.get(request)->source != expected)
        throw Error(ErrorCode::internal, "the image came from an unexpected source");
      return microseconds_since(begin) / 1e3;
    };
    compile_ms.push_back(get(jit::Image::Source::compiled));
    for (int n = 0; n < 5; ++n) fetch_ms.push_back(get(jit::Image::Source::cache));
  }
  std::printf("compile for %s: %.0f ms; the first one, which opens NVRTC, %.0f ms; from the cache directory %.2f ms\n",
              request.arch.c_str(), quantile(compile_ms, 0.5), compile_ms[0], quantile(fetch_ms, 0.5));
}

int measure(int blocks, double limit) {
  const cuda::ContextScope scope(0, nullptr);
  const cuda::Stream stream;
  const Problem problem = parse_problem(mission);
  const Device& device = cuda::device(0);
  const Step step = plan(problem, device).steps[0];
  if (step.family != &attention_sm80)
    throw Error(ErrorCode::unsupported, concat(mission, ": planned for ", step.family->name, ", not attention_sm80"));
  const KernelUnit unit = step.family->unit(step.config);
  const jit::Request request = request_for(unit, device.arch, mission);
  std::printf("%s, %s, %s\n", device.name.c_str(), mission, to_string(plan(problem, device)).c_str());
  report_store(request);

  MissionCall call(0);
  const unsigned row_tiles =
      static_cast<unsigned>((512 + step.config.number("block_m") - 1) / step.config.number("block_m"));
  const Sm80Params params{attention_params(call.args, problem), TileScheduler::of(row_tiles, 1, 8, 1, 1)};
  BareLaunch bare(jit::compile(request), unit, row_tiles * 8, step.config.number("programmatic") != 0, params,
                  stream.handle());
  const auto sdpa = [&] {
    if (rapt_sdpa(nullptr, &call.args, stream.handle()) != RAPT_OK) throw Error(ErrorCode::internal, rapt_last_error());
  };
  const auto begin = Clock::now();
  sdpa();
  stream.synchronize();
  std::printf("first call of the process: %.1f ms\n", microseconds_since(begin) / 1e3);
  // `mean` has the mean length of the growing calls, so that its kernel takes the same time as theirs.
  DecodingCall fixed(0, false, false), mean(0, false, false, DecodingCall::first + DecodingCall::lengths / 2),
      denser(0, true, false), in_cache(0, true, true);
  std::vector<TimedCall> calls{
      {"bare cuLaunchKernelEx", std::ref(bare), {}},
      {"rapt_sdpa (rapt.h)", sdpa, {}},
      {"one query, 512 keys", [&] { fixed(stream.handle()); }, {}},
      {"one query, 5512 keys", [&] { mean(stream.handle()); }, {}},
      {"one query, one more key each call", [&] { denser(stream.handle()); }, {}},
      {"the same, in a cache", [&] { in_cache(stream.handle()); }, {}},
      {"rapt::sdpa (rapt.hpp)",
       bench::front_call({call.tensors[0].data, call.tensors[1].data, call.tensors[2].data, call.tensors[3].data},
                         call.shape, stream.handle()),
       {}}};
  const double above = report_calls(calls, stream, blocks);
  if (above <= limit) return 0;
  std::printf("above the limit of %.3f us\n", limit);
  return 1;
}

}  // namespace
}  // namespace rapt

int main(int argc, char** argv) {
  int blocks = 200;
  double limit = 1e9;
  for (int i = 1; i < argc; ++i) {
    const bool has_value = i + 1 < argc;
    if (has_value && std::strcmp(argv[i], "--blocks") == 0 && std::atoi(argv[i + 1]) > 0) {
      blocks = std::atoi(argv[++i]);
    } else if (has_value && std::strcmp(argv[i], "--limit") == 0 && std::atof(argv[i + 1]) > 0) {
      limit = std::atof(argv[++i]);
    } else {
      std::fprintf(stderr, "%s: expected [--blocks N] [--limit MICROSECONDS]\n", argv[i]);
      return 2;
    }
  }
  try {
    return rapt::measure(blocks, limit);
  } catch (const rapt::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return error.code() == rapt::ErrorCode::environment ? 3 : 1;
  }
}
