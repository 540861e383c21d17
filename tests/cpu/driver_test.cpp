// Tests src/cuda with the stand-in driver of tests/fake_cuda: contexts, errors, launches, captures, forks, and the
// number of driver calls. Each case runs in its own process, because a process opens the driver only once. The process
// is started with the stand-in first in the loader's path.
#include "cuda/driver.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "cuda/tensor_map.h"
#include "tests/cpu/fake_driver.h"

namespace rapt::cuda {
namespace {

using test::fake;

// Expects body to throw an error with this code, whose message has all these words.
void expect_error(ErrorCode code, const std::vector<std::string>& words, const std::function<void()>& body) {
  try {
    body();
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    for (const std::string& word : words)
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what() << "\nlacks: " << word;
  }
}

// The number of driver calls while body runs.
long calls_of(const std::function<void()>& body, const char* function = nullptr) {
  const long before = fake().calls(function);
  body();
  return fake().calls(function) - before;
}

constexpr char image[] =
    "\x7f"
    "ELF anything";
constexpr char ptx[] = ".version 8.0";

Kernel make_kernel() { return Kernel(image, sizeof image - 1, "rapt_kernel"); }

void* const handle_1 = legacy_stream;
void* const handle_2 = per_thread_stream;

// ---- Opening.

void facts() {
  ASSERT_EQ(device_count(), 2);
  const Device &first = device(0), &second = device(1);
  EXPECT_EQ(first.kind, DeviceKind::cuda);
  EXPECT_EQ(first.name, "Fake GPU sm_80");
  EXPECT_EQ(first.sm, 80);
  EXPECT_EQ(first.arch, "sm_80");
  EXPECT_EQ(first.sm_count, 108);
  EXPECT_EQ(first.smem_per_block, 163 * 1024);
  EXPECT_EQ(first.smem_per_sm, 164 * 1024);
  EXPECT_EQ(first.registers_per_sm, 65536);
  EXPECT_EQ(first.threads_per_sm, 2048);
  EXPECT_EQ(first.l2_bytes, 50 << 20);
  EXPECT_EQ(second.sm, 90);
  EXPECT_EQ(second.arch, "sm_90a");
  EXPECT_EQ(second.index, 1);
  EXPECT_EQ(calls_of([] { device(1); }), 0);  // read only once
  expect_error(ErrorCode::environment, {"cuda:2", "2 GPUs"}, [] { device(2); });
  expect_error(ErrorCode::environment, {"cuda:-1"}, [] { device(-1); });
  EXPECT_EQ(fake().primary_retains(0) + fake().primary_retains(1), 0);  // properties need no context
}

void unreadable_library() {  // the driver's file exists, but is not a library
  std::string why;
  EXPECT_EQ(find_driver(&why), nullptr);
  EXPECT_NE(why.find("libcuda.so.1"), std::string::npos) << why;
  EXPECT_NE(why.find("CPU tensors work without it"), std::string::npos) << why;
  EXPECT_EQ(device_count(), 0);
  expect_error(ErrorCode::environment, {why}, [] { driver(); });
}

void old_driver() {
  std::string why;
  EXPECT_EQ(find_driver(&why), nullptr);
  EXPECT_NE(why.find("CUDA 11.8"), std::string::npos) << why;
  EXPECT_NE(why.find("needs 12.0"), std::string::npos) << why;
  EXPECT_EQ(fake().calls("cuInit"), 0);
  EXPECT_EQ(device_count(), 0);
  expect_error(ErrorCode::environment, {"11.8"}, [] { device(0); });
}

void oldest_driver() {  // rapt must request every function with a version that the oldest driver has
  std::string why;
  ASSERT_NE(find_driver(&why), nullptr) << why;
  EXPECT_EQ(find_driver()->version, 12000);
  EXPECT_EQ(device_count(), 1);
}

void no_gpu() {
  for (int attempt = 0; attempt < 2; ++attempt) {
    std::string why;
    EXPECT_EQ(find_driver(&why), nullptr);
    EXPECT_NE(why.find("CUDA_ERROR_NO_DEVICE (no CUDA-capable device is detected)"), std::string::npos) << why;
  }
  EXPECT_EQ(fake().calls("cuInit"), 1);
}

// ---- Contexts.

void nothing_current() {
  {
    const ContextScope scope(1, nullptr);
    EXPECT_EQ(fake().current(), fake().primary(1));
    EXPECT_EQ(primary_in_scope(), 1);
  }
  EXPECT_EQ(fake().current(), nullptr);
  EXPECT_EQ(fake().depth(), 0);
  EXPECT_EQ(primary_in_scope(), -1);
  EXPECT_EQ(fake().primary_retains(0), 0);
  for (int i = 0; i < 10; ++i) const ContextScope scope(1, nullptr);
  EXPECT_EQ(fake().primary_retains(1), 2);  // one by rapt, one by this test
}

void current_of_the_device_stays() {
  void* own = fake().make_context(0);
  fake().set_current(own);
  for (void* stream : {static_cast<void*>(nullptr), handle_1, handle_2}) {
    const ContextScope scope(0, stream);
    EXPECT_EQ(fake().current(), own);
    EXPECT_EQ(fake().depth(), 1);
    EXPECT_EQ(primary_in_scope(), -1);
  }
  EXPECT_EQ(fake().primary_retains(0), 0);  // no primary context is created if the program has its own
  EXPECT_EQ(fake().calls("cuCtxPushCurrent"), 0);
  EXPECT_EQ(fake().depth(), 1);
}

void current_of_another_device() {
  void* other = fake().primary(0);
  fake().set_current(other);
  for (void* stream : {static_cast<void*>(nullptr), handle_1, handle_2}) {
    {
      const ContextScope scope(1, stream);
      EXPECT_EQ(fake().current(), fake().primary(1));
      EXPECT_EQ(primary_in_scope(), 1);
    }
    EXPECT_EQ(fake().current(), other);
    EXPECT_EQ(fake().depth(), 1);
  }
}

void context_of_the_stream() {
  void* own = fake().make_context(0);
  void* primary = fake().primary(0);
  fake().set_current(primary);
  {
    const ContextScope scope(0, fake().make_stream(own));
    EXPECT_EQ(fake().current(), own);
    EXPECT_EQ(primary_in_scope(), -1);
    {
      const ContextScope inner(0, fake().make_stream(primary));
      EXPECT_EQ(fake().current(), primary);
      EXPECT_EQ(primary_in_scope(), 0);
    }
    EXPECT_EQ(fake().current(), own);
    EXPECT_EQ(primary_in_scope(), -1);
  }
  EXPECT_EQ(fake().current(), primary);
  EXPECT_EQ(fake().depth(), 1);
}

void stream_of_another_device() {
  void* before = fake().primary(0);
  fake().set_current(before);
  for (void* context : {fake().primary(1), fake().make_context(1)}) {
    void* stream = fake().make_stream(context);
    expect_error(ErrorCode::invalid_argument, {"stream", "cuda:1", "cuda:0"}, [&] { ContextScope(0, stream); });
    EXPECT_EQ(fake().current(), before);
    EXPECT_EQ(fake().depth(), 1);
    EXPECT_EQ(primary_in_scope(), -1);
  }
}

void failures_leave_the_context_alone() {
  void* before = fake().make_context(0);
  fake().set_current(before);
  device(1);
  const struct {
    const char* function;
    bool with_stream;
  } cases[] = {{"cuDevicePrimaryCtxGetState", true},  // first: called only while no primary context is known
               {"cuCtxGetCurrent", false},
               {"cuStreamGetCtx", true},
               {"cuCtxGetDevice", false},
               {"cuCtxGetDevice", true},
               {"cuDevicePrimaryCtxRetain", false},
               {"cuCtxPushCurrent", false},
               {"cuCtxPushCurrent", true}};
  void* stream = fake().make_stream(fake().make_context(1));
  for (const auto& c : cases) {
    fake().fail(c.function, 999);
    expect_error(ErrorCode::device, {c.function, "CUDA error 999"},
                 [&] { ContextScope(1, c.with_stream ? stream : nullptr); });
    fake().fail(c.function, 0);
    EXPECT_EQ(fake().current(), before) << c.function;
    EXPECT_EQ(fake().depth(), 1) << c.function;
    EXPECT_EQ(primary_in_scope(), -1) << c.function;
  }
}

void warm_scopes() {
  void* primary = fake().primary(0);
  fake().set_current(primary);
  void* stream = fake().make_stream(primary);
  { const ContextScope cold(0, nullptr); }
  EXPECT_EQ(calls_of([] { ContextScope(0, nullptr); }), 1);  // cuCtxGetCurrent
  EXPECT_EQ(calls_of([&] { ContextScope(0, stream); }), 2);  // and cuStreamGetCtx
  fake().set_current(nullptr);
  EXPECT_EQ(calls_of([] { ContextScope(0, nullptr); }), 3);  // and a push and a pop
  EXPECT_EQ(calls_of([&] { ContextScope(0, stream); }), 4);
}

// ---- Kernels.

void launch_is_one_call() {
  Kernel kernel = make_kernel();
  kernel.prepare(0, 1000);
  const ContextScope scope(0, nullptr);
  const Stream stream;
  int params[16] = {4711};
  Kernel::Launch launch{3, 4, 5, 128};
  launch.smem_bytes = 999;
  launch.stream = stream.handle();
  EXPECT_EQ(calls_of([&] { kernel.launch(launch, params); }), 1);
  EXPECT_EQ(fake().launches(), 1);
  const fake_cuda::LaunchRecord seen = fake().last_launch();
  EXPECT_EQ(seen.grid_x, 3u);
  EXPECT_EQ(seen.grid_y, 4u);
  EXPECT_EQ(seen.grid_z, 5u);
  EXPECT_EQ(seen.threads, 128u);
  EXPECT_EQ(seen.smem_bytes, 999u);
  EXPECT_EQ(seen.stream, stream.handle());
  EXPECT_EQ(seen.context, fake().primary(0));
  EXPECT_EQ(seen.params, params);
  EXPECT_EQ(seen.first_word, 4711);
  EXPECT_FALSE(seen.by_kernel);
  EXPECT_FALSE(seen.programmatic);
  launch.programmatic = true;
  EXPECT_EQ(calls_of([&] { kernel.launch(launch, params); }), 1);
  EXPECT_TRUE(fake().last_launch().programmatic);
}

void launch_limits() {
  Kernel kernel = make_kernel();
  kernel.prepare(0, 0);
  const ContextScope scope(0, nullptr);
  int params = 0;
  kernel.launch({0x7fffffff, 65535, 65535, 1024}, &params);
  const Kernel::Launch bad[] = {{0x80000000u}, {0}, {1, 65536}, {1, 0}, {1, 1, 65536}, {1, 1, 1, 1025}, {1, 1, 1, 0}};
  for (const Kernel::Launch& launch : bad)
    EXPECT_EQ(
        calls_of([&] {
          expect_error(ErrorCode::unsupported, {"rapt_kernel", "2147483647"}, [&] { kernel.launch(launch, &params); });
        }),
        0);
  expect_error(ErrorCode::device, {"rapt_kernel", "CUDA_ERROR_INVALID_VALUE", "grid 1 x 1 x 1", "50000 bytes"}, [&] {
    kernel.launch({1, 1, 1, 1, 50000}, &params);
  });  // without the opt-in for more shared memory
}

Kernel::Launch clustered(unsigned grid_x, unsigned grid_y, unsigned x, unsigned y, unsigned z = 1) {
  Kernel::Launch launch{grid_x, grid_y, 1, 128};
  launch.cluster_x = x;
  launch.cluster_y = y;
  launch.cluster_z = z;
  return launch;
}

void clusters() {
  Kernel kernel = make_kernel();
  kernel.prepare(0, 0);
  const ContextScope scope(0, nullptr);
  int params = 0;
  kernel.launch(Kernel::Launch{}, &params);
  EXPECT_EQ(fake().last_launch().cluster_x, 1u);
  EXPECT_EQ(calls_of([&] { kernel.launch(clustered(6, 8, 2, 4), &params); }), 1);
  const fake_cuda::LaunchRecord seen = fake().last_launch();
  EXPECT_EQ(seen.cluster_x, 2u);
  EXPECT_EQ(seen.cluster_y, 4u);
  EXPECT_EQ(seen.cluster_z, 1u);
  EXPECT_FALSE(seen.cooperative);
  const auto refused = [&](const Kernel::Launch& launch, const std::vector<std::string>& words) {
    EXPECT_EQ(calls_of([&] { expect_error(ErrorCode::unsupported, words, [&] { kernel.launch(launch, &params); }); }),
              0);
  };
  refused(clustered(6, 8, 4, 2), {"rapt_kernel", "cluster 4 x 2 x 1", "divide the grid", "6 x 8 x 1"});
  refused(clustered(6, 8, 1, 3), {"cluster 1 x 3 x 1", "divide the grid"});
  refused(clustered(6, 8, 1, 1, 2), {"cluster 1 x 1 x 2", "divide the grid"});
  refused(clustered(16, 8, 16, 1), {"cluster 16 x 1 x 1", "1 to 8 blocks"});
  refused(clustered(16, 8, 4, 4), {"cluster 4 x 4 x 1", "1 to 8 blocks"});
  refused(clustered(16, 8, 0, 1), {"cluster 0 x 1 x 1", "1 to 8 blocks"});
  // The product of these sizes overflows to 0.
  refused(clustered(16, 8, 65536, 65536), {"cluster 65536 x 65536 x 1", "1 to 8 blocks"});
}

void clusters_need_sm_90() {
  Kernel kernel = make_kernel();
  kernel.prepare(0, 0);
  const ContextScope scope(0, nullptr);
  int params = 0;
  expect_error(ErrorCode::device, {"rapt_kernel", "CUDA_ERROR_INVALID_CLUSTER_SIZE (invalid cluster size)"},
               [&] { kernel.launch(clustered(2, 1, 2, 1), &params); });
}

// The stand-in's own checks, without those of Kernel::launch.
void cluster_rules_of_the_driver() {
  Kernel kernel = make_kernel();
  const ContextScope scope(0, nullptr);
  kernel.prepare(0, 0);
  LibraryHandle library = nullptr;
  KernelHandle handle = nullptr;
  ASSERT_EQ(driver().cuLibraryLoadData(&library, image, nullptr, nullptr, 0, nullptr, nullptr, 0), 0);
  ASSERT_EQ(driver().cuLibraryGetKernel(&handle, library, "rapt_kernel"), 0);
  const auto launch = [&](LaunchAttributeId id, unsigned x, unsigned y) {
    LaunchAttribute attribute{};
    attribute.id = id;
    attribute.value.cluster = {x, y, 1};
    const LaunchConfig config{6, 4, 1, 64, 1, 1, 0, nullptr, &attribute, 1};
    int params = 0;
    void* parameters[] = {&params};
    return driver().cuLaunchKernelEx(&config, reinterpret_cast<FunctionHandle>(handle), parameters, nullptr);
  };
  EXPECT_EQ(launch(LaunchAttributeId::cluster_dimension, 2, 4), 0);
  EXPECT_EQ(launch(LaunchAttributeId::cluster_dimension, 4, 1), 912);
  EXPECT_EQ(launch(LaunchAttributeId::cluster_dimension, 6, 2), 912);
  EXPECT_EQ(launch(LaunchAttributeId::cluster_dimension, 0, 1), 912);
  EXPECT_EQ(launch(static_cast<LaunchAttributeId>(63), 1, 1), 1);
}

void l2_windows() {
  Kernel kernel = make_kernel();
  kernel.prepare(0, 0);
  const ContextScope scope(0, nullptr);
  const PersistingL2::Limits limits = PersistingL2::limits(0);
  EXPECT_EQ(limits.bytes, size_t{32} << 20);
  EXPECT_EQ(limits.window_bytes, size_t{128} << 20);
  Kernel::Launch launch;
  int params = 0;
  kernel.launch(launch, &params);
  EXPECT_EQ(fake().last_launch().window_bytes, 0u);
  {
    const PersistingL2 part(0, size_t{1} << 30);
    EXPECT_EQ(part.bytes(), limits.bytes) << "no more than the GPU allows";
    EXPECT_EQ(fake().persisting_l2_bytes(), limits.bytes);
    launch.l2_window = {&params, 4096, 0.5f};
    launch.programmatic = true;
    EXPECT_EQ(calls_of([&] { kernel.launch(launch, &params); }), 1);
    const fake_cuda::LaunchRecord seen = fake().last_launch();
    EXPECT_EQ(seen.window_begin, &params);
    EXPECT_EQ(seen.window_bytes, 4096u);
    EXPECT_EQ(seen.window_share, 0.5f);
    EXPECT_TRUE(seen.programmatic);
  }
  EXPECT_EQ(fake().persisting_l2_bytes(), 0u);
  EXPECT_EQ(fake().calls("cuCtxResetPersistingL2Cache"), 1);
  launch.l2_window.bytes = limits.window_bytes + 1;
  expect_error(ErrorCode::device, {"rapt_kernel", "CUDA_ERROR_INVALID_VALUE"}, [&] { kernel.launch(launch, &params); });
}

void no_l2_windows() {
  const ContextScope scope(0, nullptr);
  EXPECT_EQ(PersistingL2::limits(0).bytes, 0u);
  expect_error(ErrorCode::unsupported, {"Fake GPU", "L2 cache"}, [] { PersistingL2(0, 1 << 20); });
}

void cooperative_launches() {  // the GPU has 132 multiprocessors with 2048 threads and 228 KiB each
  Kernel kernel = make_kernel();
  kernel.prepare(0, 60000);
  const ContextScope scope(0, nullptr);
  int params = 0;
  Kernel::Launch launch{132, 2, 1, 1024};
  launch.cooperative = true;
  EXPECT_EQ(calls_of([&] { kernel.launch(launch, &params); }), 1);
  EXPECT_TRUE(fake().last_launch().cooperative);
  const auto too_large = [&] {
    expect_error(ErrorCode::device,
                 {"rapt_kernel", "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE (too many blocks in cooperative launch)"},
                 [&] { kernel.launch(launch, &params); });
    try {
      kernel.launch(launch, &params);
    } catch (const Error& error) {  // the error comes from this launch only
      EXPECT_EQ(std::string(error.what()).find("earlier kernel"), std::string::npos) << error.what();
    }
  };
  launch.grid_x = 133;
  too_large();
  launch = {132, 3, 1, 64, 60000};
  launch.cooperative = true;
  kernel.launch(launch, &params);
  launch.grid_y = 4;
  too_large();
  launch.cooperative = false;
  kernel.launch(launch, &params);
  EXPECT_FALSE(fake().last_launch().cooperative);
}

// ---- Tensor maps.

TensorMapSpec rows_of_64() {
  TensorMapSpec spec;
  spec.element = TensorElement::bf16;
  spec.base = reinterpret_cast<const void*>(size_t{0x10000});
  spec.rank = 3;
  spec.sizes = {64, 1000, size_t{1} << 32};
  spec.strides = {128, 128000};
  spec.box = {32, 128, 1};
  spec.swizzle = TensorSwizzle::bytes_64;
  return spec;
}

void tensor_maps() {
  const TensorMap map = make_tensor_map(rows_of_64());
  fake_cuda::TensorMapRecord seen;
  static_assert(sizeof seen == sizeof map);
  std::memcpy(&seen, map.bytes, sizeof seen);
  EXPECT_EQ(seen.element_type, 9u);
  EXPECT_EQ(seen.element_bytes(), 2u);
  EXPECT_EQ(seen.rank, 3u);
  EXPECT_EQ(seen.address, 0x10000u);
  EXPECT_EQ(seen.sizes[0], 64u);
  EXPECT_EQ(seen.sizes[1], 1000u);
  EXPECT_EQ(seen.sizes[2], 1ull << 32);
  EXPECT_EQ(seen.strides[0], 128u);
  EXPECT_EQ(seen.strides[1], 128000u);
  EXPECT_EQ(seen.box[0], 32u);
  EXPECT_EQ(seen.box[1], 128u);
  EXPECT_EQ(seen.box[2], 1u);
  EXPECT_EQ(seen.swizzle, 2u);
  EXPECT_EQ(seen.interleave, 0u);
  EXPECT_EQ(seen.fill, 0u);
  EXPECT_EQ(fake().calls("cuCtxGetCurrent"), 0);  // it does not ask for a context

  // The same description again makes no driver call. A changed description makes one and gets a new map.
  EXPECT_EQ(fake().calls("cuTensorMapEncodeTiled"), 1);
  EXPECT_EQ(std::memcmp(make_tensor_map(rows_of_64()).bytes, map.bytes, sizeof map), 0);
  EXPECT_EQ(fake().calls("cuTensorMapEncodeTiled"), 1);
  TensorMapSpec shorter = rows_of_64();
  shorter.sizes[1] = 999;
  const TensorMap other = make_tensor_map(shorter);
  EXPECT_EQ(fake().calls("cuTensorMapEncodeTiled"), 2);
  std::memcpy(&seen, other.bytes, sizeof seen);
  EXPECT_EQ(seen.sizes[1], 999u);
  shorter.sizes[1] = 0;
  expect_error(ErrorCode::invalid_argument, {"sizes[1] = 0"}, [&] { make_tensor_map(shorter); });
  EXPECT_EQ(std::memcmp(make_tensor_map(rows_of_64()).bytes, map.bytes, sizeof map), 0);
  const struct {
    TensorElement element;
    TensorSwizzle swizzle;
    uint32_t box;
    unsigned type;
  } rows[] = {{TensorElement::u8, TensorSwizzle::bytes_128, 128, 0},
              {TensorElement::f16, TensorSwizzle::bytes_128, 64, 6},
              {TensorElement::f32, TensorSwizzle::bytes_32, 8, 7},
              {TensorElement::f32, TensorSwizzle::none, 256, 7}};
  for (const auto& row : rows) {
    TensorMapSpec spec = rows_of_64();
    spec.element = row.element;
    spec.swizzle = row.swizzle;
    spec.box[0] = row.box;
    const TensorMap made = make_tensor_map(spec);
    std::memcpy(&seen, made.bytes, sizeof seen);
    EXPECT_EQ(seen.element_type, row.type);
    EXPECT_EQ(seen.swizzle, static_cast<unsigned>(row.swizzle));
  }
}

void tensor_map_rules() {
  const auto refused = [](const std::vector<std::string>& words, const std::function<void(TensorMapSpec&)>& spoil) {
    TensorMapSpec spec = rows_of_64();
    spoil(spec);
    expect_error(ErrorCode::invalid_argument, words, [&] { make_tensor_map(spec); });
  };
  refused({"rank = 0", "1 to 5"}, [](TensorMapSpec& s) { s.rank = 0; });
  refused({"rank = 6", "1 to 5"}, [](TensorMapSpec& s) { s.rank = 6; });
  refused({"base is null"}, [](TensorMapSpec& s) { s.base = nullptr; });
  refused({"base = 65544", "multiple of 16"},
          [](TensorMapSpec& s) { s.base = reinterpret_cast<const void*>(size_t{0x10008}); });
  refused({"sizes[1] = 0", "1 to 4294967296"}, [](TensorMapSpec& s) { s.sizes[1] = 0; });
  refused({"sizes[2] = 4294967297"}, [](TensorMapSpec& s) { ++s.sizes[2]; });
  refused({"strides[0] = 120 bytes", "multiple of 16"}, [](TensorMapSpec& s) { s.strides[0] = 120; });
  refused({"strides[1] = 1099511627776 bytes", "below"}, [](TensorMapSpec& s) { s.strides[1] = uint64_t{1} << 40; });
  refused({"box[2] = 0", "1 to 256"}, [](TensorMapSpec& s) { s.box[2] = 0; });
  refused({"box[1] = 257", "1 to 256"}, [](TensorMapSpec& s) { s.box[1] = 257; });
  refused({"box[0] = 12 elements of 2 bytes", "multiple of 16 bytes"}, [](TensorMapSpec& s) { s.box[0] = 12; });
  refused({"box[0] = 40 elements of 2 bytes", "at most the 64 bytes"}, [](TensorMapSpec& s) { s.box[0] = 40; });
  EXPECT_EQ(fake().calls("cuTensorMapEncodeTiled"), 0);
  TensorMapSpec spec = rows_of_64();
  spec.rank = 2;
  spec.sizes[2] = spec.box[2] = 0;  // so the map has no third dimension
  make_tensor_map(spec);
  EXPECT_EQ(fake().calls("cuTensorMapEncodeTiled"), 1);
}

// The stand-in's own checks, without those of make_tensor_map.
void tensor_map_rules_of_the_driver() {
  const auto encode = [](const std::function<void(TensorMapSpec&)>& spoil, size_t offset = 0) {
    TensorMapSpec s = rows_of_64();
    spoil(s);
    alignas(64) unsigned char map[256];
    const unsigned long long sizes[] = {s.sizes[0], s.sizes[1], s.sizes[2]}, strides[] = {s.strides[0], s.strides[1]};
    const unsigned ones[] = {1, 1, 1};
    return driver().cuTensorMapEncodeTiled(map + offset, TensorMapElement::bf16, static_cast<unsigned>(s.rank),
                                           const_cast<void*>(s.base), sizes, strides, s.box.data(), ones,
                                           TensorMapInterleave::none, static_cast<TensorMapSwizzle>(s.swizzle),
                                           TensorMapPromotion::bytes_128, TensorMapFill::zero);
  };
  EXPECT_EQ(encode([](TensorMapSpec&) {}), 0);
  EXPECT_EQ(encode([](TensorMapSpec&) {}, 16), 1);
  EXPECT_EQ(encode([](TensorMapSpec& s) { s.rank = 0; }), 1);
  EXPECT_EQ(encode([](TensorMapSpec& s) { s.base = reinterpret_cast<const void*>(size_t{8}); }), 1);
  EXPECT_EQ(encode([](TensorMapSpec& s) { s.sizes[0] = 0; }), 1);
  EXPECT_EQ(encode([](TensorMapSpec& s) { s.strides[1] = 8; }), 1);
  EXPECT_EQ(encode([](TensorMapSpec& s) { s.box[1] = 257; }), 1);
  EXPECT_EQ(encode([](TensorMapSpec& s) { s.box[0] = 40; }), 1);
  EXPECT_EQ(encode([](TensorMapSpec& s) { s.box[0] = 4; }), 1);
}

void no_tensor_maps() {  // without tensor maps the driver still serves all other kernels
  EXPECT_EQ(device_count(), 1);
  expect_error(ErrorCode::environment, {"no cuTensorMapEncodeTiled", "CUDA 12.0 or later"},
               [] { make_tensor_map(rows_of_64()); });
}

void missing_function() {
  std::string why;
  EXPECT_EQ(find_driver(&why), nullptr);
  EXPECT_NE(why.find("lacks cuMemFree, cuLaunchKernelEx"), std::string::npos) << why;
}

void launch_in_every_context() {  // one kernel, prepared once for each device
  Kernel kernel = make_kernel();
  kernel.prepare(0, 60000);
  kernel.prepare(1, 0);
  int params = 0;
  void* contexts[] = {fake().primary(0), fake().make_context(0), fake().primary(1), fake().make_context(1)};
  for (int i = 0; i < 4; ++i) {
    fake().set_current(contexts[i]);
    const ContextScope scope(i / 2, nullptr);
    Kernel::Launch launch;
    launch.smem_bytes = i < 2 ? 60000 : 0;  // the opt-in belongs to the device, not to a context
    EXPECT_EQ(calls_of([&] { kernel.launch(launch, &params); }), 1);
    EXPECT_EQ(fake().last_launch().context, contexts[i]);
    EXPECT_EQ(fake().last_launch().by_kernel, i % 2 == 1);
  }
}

void prepared_in_a_context_that_goes() {
  Kernel kernel = make_kernel();
  void* own = fake().make_context(0);
  fake().set_current(own);
  kernel.prepare(0, 60000);
  fake().set_current(nullptr);
  fake().destroy_context(own);
  const ContextScope scope(0, nullptr);
  int params = 0;
  kernel.launch({1, 1, 1, 32, 60000}, &params);
  EXPECT_EQ(fake().last_launch().context, fake().primary(0));
}

void shared_memory_opt_in() {
  Kernel kernel = make_kernel();
  kernel.prepare(0, 0);
  EXPECT_EQ(fake().calls("cuKernelSetAttribute"), 0);
  kernel.prepare(0, 48 * 1024);
  EXPECT_EQ(fake().opt_in_smem(0), -1);
  EXPECT_EQ(fake().carveout(0), 100);
  kernel.prepare(0, 48 * 1024 + 1);
  EXPECT_EQ(fake().opt_in_smem(0), 48 * 1024 + 1);
  kernel.prepare(0, 100);  // prepare() never lowers the limit
  EXPECT_EQ(fake().opt_in_smem(0), 48 * 1024 + 1);
  EXPECT_EQ(fake().opt_in_smem(1), -1);
  kernel.prepare(0, 227 * 1024);
  expect_error(ErrorCode::unsupported, {"rapt_kernel", std::to_string(227 * 1024 + 1), std::to_string(227 * 1024)},
               [&] { kernel.prepare(0, 227 * 1024 + 1); });
  EXPECT_EQ(fake().opt_in_smem(0), 227 * 1024);
}

void static_shared_memory_counts() {
  fake().set_static_smem(1024);
  Kernel kernel = make_kernel();
  kernel.prepare(0, 47 * 1024);
  EXPECT_EQ(fake().opt_in_smem(0), -1);
  kernel.prepare(0, 47 * 1024 + 1);
  EXPECT_EQ(fake().opt_in_smem(0), 47 * 1024 + 1);
  EXPECT_EQ(kernel.attributes(0).static_shared_bytes, 1024);
  expect_error(ErrorCode::unsupported, {"rapt_kernel"}, [&] { kernel.prepare(0, 227 * 1024); });
}

void attributes() {
  Kernel kernel = make_kernel();
  const KernelAttributes values = kernel.attributes(0);
  EXPECT_EQ(values.registers, 64);
  EXPECT_EQ(values.local_bytes, 0);
  EXPECT_EQ(values.max_threads, 1024);
  EXPECT_EQ(kernel.blocks_per_sm(0, 256, 40 * 1024), 5);
  EXPECT_EQ(fake().depth(), 0);
}

void loaded_once_a_device() {
  Kernel kernel = make_kernel();
  std::vector<std::thread> threads;
  for (int t = 0; t < 16; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        kernel.prepare((t + i) % 2, 50000);
        const ContextScope scope((t + i) % 2, nullptr);
        int params = 0;
        kernel.launch({1, 1, 1, 32, 50000}, &params);
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(fake().calls("cuKernelGetFunction"), 2);
  EXPECT_EQ(fake().calls("cuLibraryLoadData"), 1);
  EXPECT_EQ(fake().primary_retains(0), 1);
  EXPECT_EQ(fake().primary_retains(1), 1);
  EXPECT_EQ(fake().launches(), 16 * 50);
}

void images() {
  std::string text(ptx, sizeof ptx - 1);
  text += "garbage that lies behind";  // the driver must see the end that the caller gives
  { const Kernel kernel(text.data(), sizeof ptx - 1, "rapt_kernel"); }
  EXPECT_TRUE(fake().image_was(ptx, sizeof ptx - 1));
  EXPECT_EQ(fake().live_libraries(), 0);
  expect_error(ErrorCode::internal, {"rapt_kernel", "empty"}, [] { const Kernel kernel("", 0, "rapt_kernel"); });

  fake().set_jit_log("ptxas application ptx input, line 5; error : Unexpected\n\nptxas fatal : aborted\n3\n4\nfifth\n");
  fake().fail("cuLibraryLoadData", 218);
  expect_error(ErrorCode::device,
               {"rapt_kernel", "cuLibraryLoadData", "CUDA_ERROR_INVALID_PTX (a PTX JIT compilation failed)",
                "[ptxas application ptx input, line 5; error : Unexpected | ptxas fatal : aborted | 3 | 4]"},
               make_kernel);
  fake().fail("cuLibraryLoadData", 0);

  fake().fail("cuLibraryGetKernel", 500);
  expect_error(ErrorCode::device, {"rapt_kernel", "CUDA_ERROR_NOT_FOUND (named symbol not found)"}, make_kernel);
  EXPECT_EQ(fake().live_libraries(), 0);
}

void long_jit_log() {
  fake().set_jit_log(std::string(100000, 'x').c_str());
  fake().fail("cuLibraryLoadData", 218);
  expect_error(ErrorCode::device, {std::string(1000, 'x')}, make_kernel);
}

void failing_prepare() {
  Kernel kernel = make_kernel();
  for (const char* function : {"cuKernelGetAttribute", "cuKernelSetAttribute", "cuKernelGetFunction"}) {
    fake().fail(function, 700);
    expect_error(ErrorCode::device, {function, "CUDA_ERROR_ILLEGAL_ADDRESS", "an earlier kernel"},
                 [&] { kernel.prepare(0, 60000); });
    fake().fail(function, 0);
    EXPECT_EQ(fake().depth(), 0);
  }
  kernel.prepare(0, 60000);  // a failure is not remembered
  EXPECT_EQ(fake().opt_in_smem(0), 60000);
}

// ---- Memory, streams, events, captures.

void buffers() {
  std::vector<int> data(1000), back(1000);
  for (int i = 0; i < 1000; ++i) data[static_cast<size_t>(i)] = i;
  Buffer kept;
  {
    const ContextScope scope(0, nullptr);
    Buffer buffer(4000);
    EXPECT_EQ(fake().live_bytes(), 4000u);
    EXPECT_EQ(calls_of([&] { buffer.upload(data.data(), 4000); }, "cuStreamSynchronize"), 1);
    buffer.download(back.data(), 4000);
    EXPECT_EQ(back, data);
    buffer.fill(0xff);
    buffer.upload(data.data() + 1, 4, 8);
    buffer.download(back.data(), 16);
    EXPECT_EQ(back[0], -1);
    EXPECT_EQ(back[2], 1);
    EXPECT_EQ(back[3], -1);
    expect_error(ErrorCode::internal, {"4000 bytes at offset 1"}, [&] { buffer.upload(data.data(), 4000, 1); });
    expect_error(ErrorCode::internal, {"offset 4001"}, [&] { buffer.download(back.data(), 0, 4001); });
    expect_error(ErrorCode::internal, {"has 4000 bytes"}, [&] { buffer.download(back.data(), ~size_t{0}, 8); });
    expect_error(ErrorCode::out_of_memory, {"1099511627776 bytes", "CUDA_ERROR_OUT_OF_MEMORY (out of memory)"},
                 [] { Buffer(size_t{1} << 40); });
    Buffer empty(0);
    empty.upload(nullptr, 0);
    empty.fill(1);
    kept = Buffer(100);
    kept = std::move(buffer);
    EXPECT_EQ(buffer.bytes(), 0u);
    EXPECT_EQ(fake().live_bytes(), 4000u);
  }
  EXPECT_EQ(fake().depth(), 0);
  std::thread([&] { kept = Buffer(); }).join();  // no context is current in that thread
  EXPECT_EQ(fake().live_bytes(), 0u);
}

void buffer_of_a_lost_context() {
  void* own = fake().make_context(0);
  fake().set_current(own);
  Buffer buffer(100);
  fake().set_current(nullptr);
  fake().destroy_context(own);
  EXPECT_EQ(calls_of([&] { buffer = Buffer(); }, "cuMemFree"), 0);
  EXPECT_EQ(fake().depth(), 0);
}

void streams_and_events() {
  expect_error(ErrorCode::device, {"cuStreamCreate", "CUDA_ERROR_INVALID_CONTEXT"}, [] { device(0), Stream(); });
  const ContextScope scope(0, nullptr);
  const Stream first, second;
  EXPECT_NE(stream_id(first.handle()), stream_id(second.handle()));
  EXPECT_NE(stream_id(nullptr), stream_id(handle_2));
  Event begin, end;
  begin.record(first.handle());
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  end.record(first.handle());
  end.synchronize();
  EXPECT_GE(Event::microseconds(begin, end), 1900);
  EXPECT_EQ(calls_of([&] { end.order_before(second.handle()); }, "cuStreamWaitEvent"), 1);
  const Event unrecorded;
  expect_error(ErrorCode::device, {"cuEventElapsedTime", "CUDA_ERROR_INVALID_HANDLE"},
               [&] { Event::microseconds(begin, unrecorded); });
}

void graphs() {
  Kernel kernel = make_kernel();
  kernel.prepare(0, 0);
  const ContextScope scope(0, nullptr);
  const Stream stream, other;
  int params = 0;
  EXPECT_FALSE(is_capturing(stream.handle()));
  Graph::begin(stream.handle());
  EXPECT_TRUE(is_capturing(stream.handle()));
  EXPECT_FALSE(is_capturing(other.handle()));
  EXPECT_FALSE(is_capturing(nullptr));
  Kernel::Launch launch;
  launch.stream = stream.handle();
  for (int i = 0; i < 3; ++i) kernel.launch(launch, &params);
  std::thread([] {  // thread-local mode: other threads may allocate
    const ContextScope there(0, nullptr);
    const Buffer buffer(100);
  })
      .join();
  EXPECT_EQ(fake().launches(), 0);
  const Graph graph(stream.handle());
  EXPECT_FALSE(is_capturing(stream.handle()));
  EXPECT_EQ(fake().launches(), 0);
  graph.replay(other.handle());
  graph.replay(stream.handle());
  EXPECT_EQ(fake().launches(), 6);
}

void spoiled_capture() {
  const ContextScope scope(0, nullptr);
  const Stream stream;
  Graph::begin(stream.handle());
  expect_error(ErrorCode::device, {"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"}, [] { Buffer(100); });
  EXPECT_TRUE(is_capturing(stream.handle()));
  expect_error(ErrorCode::device, {"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"}, [&] { Graph(stream.handle()); });
  EXPECT_FALSE(is_capturing(stream.handle()));
}

void warm_path_suits_a_capture() {  // a call between begin and end must not invalidate the capture
  Kernel kernel = make_kernel();
  kernel.prepare(0, 60000);
  void* contexts[] = {fake().primary(0), fake().make_context(0)};
  for (void* context : contexts) {
    void* stream = fake().make_stream(context);
    Graph::begin(stream);
    {
      const ContextScope scope(0, stream);
      EXPECT_TRUE(is_capturing(stream));
      int params = 0;
      Kernel::Launch launch;
      launch.smem_bytes = 60000;
      launch.stream = stream;
      kernel.launch(launch, &params);
    }
    const Graph graph(stream);
    graph.replay(stream);
  }
  EXPECT_EQ(fake().launches(), 2);
}

void legacy_stream_beside_a_capture() {
  const ContextScope scope(0, nullptr);
  void* stream = fake().make_blocking_stream(fake().current());
  Graph::begin(stream);
  for (void* legacy : {static_cast<void*>(nullptr), handle_1})
    expect_error(ErrorCode::device, {"legacy default stream", "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT"},
                 [&] { is_capturing(legacy); });
  EXPECT_FALSE(is_capturing(handle_2));
  const Graph graph(stream);  // the query did not invalidate it
}

void failing_graph() {
  const ContextScope scope(0, nullptr);
  const Stream stream;
  Graph::begin(stream.handle());
  fake().fail("cuGraphInstantiateWithFlags", 2);
  const auto end = [&] {
    expect_error(ErrorCode::out_of_memory, {"cuGraphInstantiateWithFlags"}, [&] { Graph(stream.handle()); });
  };
  EXPECT_EQ(calls_of(end, "cuGraphDestroy"), 1);
}

// ---- Forks. A child runs body and must exit without failures.

void expect_in_child(const std::function<void()>& body) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    body();
    _exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "in the child, status " << status;
}

void fork_after_use() {
  auto kernel = std::make_unique<Kernel>(image, sizeof image - 1, "rapt_kernel");
  kernel->prepare(0, 0);
  auto scope = std::make_unique<ContextScope>(0, nullptr);
  auto buffer = std::make_unique<Buffer>(100);
  auto stream = std::make_unique<Stream>();
  expect_in_child([&] {
    fake().reset_calls();
    std::string why;
    EXPECT_EQ(find_driver(&why), nullptr);
    EXPECT_NE(why.find("forked"), std::string::npos) << why;
    EXPECT_EQ(device_count(), 0);
    expect_error(ErrorCode::environment, {"forked"}, [] { device(0); });
    expect_error(ErrorCode::environment, {"forked"}, [] { ContextScope(0, nullptr); });
    expect_error(ErrorCode::environment, {"forked"}, [&] { kernel->prepare(0, 0); });
    expect_error(ErrorCode::environment, {"forked"}, [&] { buffer->fill(0); });
    expect_error(ErrorCode::environment, {"forked"}, make_kernel);
    stream.reset();
    buffer.reset();
    scope.reset();
    kernel.reset();
    EXPECT_EQ(fake().calls(nullptr), 0);  // neither errors nor destructors used the parent's driver
  });
  EXPECT_EQ(device_count(), 1);  // the parent continues
  buffer->fill(0);
}

void fork_before_use() {
  expect_in_child([] { EXPECT_EQ(device_count(), 1); });
  EXPECT_EQ(device_count(), 1);
}

void fork_after_another_library_used_it() {  // rapt cannot know this, but the driver reports it
  const auto get = reinterpret_cast<Result (*)(const char*, void**, int, unsigned long long, int*)>(
      dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuGetProcAddress_v2"));
  void* address = nullptr;
  ASSERT_EQ(get("cuInit", &address, 2000, legacy_functions, nullptr), 0);
  ASSERT_EQ(reinterpret_cast<Result (*)(unsigned)>(address)(0), 0);
  expect_in_child([] {
    std::string why;
    EXPECT_EQ(find_driver(&why), nullptr);
    EXPECT_NE(why.find("CUDA_ERROR_NOT_INITIALIZED"), std::string::npos) << why;
    EXPECT_NE(why.find("forked"), std::string::npos) << why;
  });
}

// ---- One process for each case.

struct Case {
  const char* name;
  void (*body)();
  const char* environment = "";
  friend void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }
};

const Case all_cases[] = {
    {"facts", facts, "FAKE_CUDA_DEVICES=2 FAKE_CUDA_SM=80,90"},
    {"unreadable_library", unreadable_library, "LD_LIBRARY_PATH=$BROKEN"},
    {"old_driver", old_driver, "FAKE_CUDA_VERSION=11080"},
    {"oldest_driver", oldest_driver, "FAKE_CUDA_VERSION=12000"},
    {"no_gpu", no_gpu, "FAKE_CUDA_DEVICES=0"},
    {"nothing_current", nothing_current, "FAKE_CUDA_DEVICES=2"},
    {"current_of_the_device_stays", current_of_the_device_stays},
    {"current_of_another_device", current_of_another_device, "FAKE_CUDA_DEVICES=2"},
    {"context_of_the_stream", context_of_the_stream},
    {"stream_of_another_device", stream_of_another_device, "FAKE_CUDA_DEVICES=2"},
    {"failures_leave_the_context_alone", failures_leave_the_context_alone, "FAKE_CUDA_DEVICES=2"},
    {"warm_scopes", warm_scopes},
    {"launch_is_one_call", launch_is_one_call},
    {"launch_limits", launch_limits},
    {"clusters", clusters},
    {"clusters_need_sm_90", clusters_need_sm_90, "FAKE_CUDA_SM=89"},
    {"cluster_rules_of_the_driver", cluster_rules_of_the_driver},
    {"l2_windows", l2_windows},
    {"no_l2_windows", no_l2_windows, "FAKE_CUDA_LACKS=cuCtxSetLimit"},
    {"cooperative_launches", cooperative_launches},
    {"tensor_maps", tensor_maps},
    {"tensor_map_rules", tensor_map_rules},
    {"tensor_map_rules_of_the_driver", tensor_map_rules_of_the_driver},
    {"no_tensor_maps", no_tensor_maps, "FAKE_CUDA_LACKS=cuTensorMapEncodeTiled"},
    {"missing_function", missing_function, "FAKE_CUDA_LACKS=cuLaunchKernelEx,cuMemFree"},
    {"launch_in_every_context", launch_in_every_context, "FAKE_CUDA_DEVICES=2"},
    {"prepared_in_a_context_that_goes", prepared_in_a_context_that_goes},
    {"shared_memory_opt_in", shared_memory_opt_in, "FAKE_CUDA_DEVICES=2"},
    {"static_shared_memory_counts", static_shared_memory_counts},
    {"attributes", attributes},
    {"loaded_once_a_device", loaded_once_a_device, "FAKE_CUDA_DEVICES=2"},
    {"images", images},
    {"long_jit_log", long_jit_log},
    {"failing_prepare", failing_prepare},
    {"buffers", buffers},
    {"buffer_of_a_lost_context", buffer_of_a_lost_context},
    {"streams_and_events", streams_and_events},
    {"graphs", graphs},
    {"spoiled_capture", spoiled_capture},
    {"warm_path_suits_a_capture", warm_path_suits_a_capture},
    {"legacy_stream_beside_a_capture", legacy_stream_beside_a_capture},
    {"failing_graph", failing_graph},
    {"fork_after_use", fork_after_use},
    {"fork_before_use", fork_before_use},
    {"fork_after_another_library_used_it", fork_after_another_library_used_it},
};

class Driver : public testing::TestWithParam<Case> {};

std::string broken_folder() {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "rapt_broken_driver";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "libcuda.so.1") << "not a library";
  return folder.string();
}

// Runs the command. `output` receives what it prints.
int run(const std::string& command, std::string& output) {
  output.clear();
  std::FILE* child = popen(command.c_str(), "r");
  if (child == nullptr) return -1;
  char part[4096];
  while (const size_t bytes = std::fread(part, 1, sizeof part, child)) output.append(part, bytes);
  return pclose(child);
}

void run_in_child(const Case& c) {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  const std::string command = concat("BROKEN='", broken_folder(), "'; env LD_LIBRARY_PATH='", RAPT_BINARY_DIR,
                                     "/fake_cuda' RAPT_DRIVER_CASE=1 ", c.environment, " '", self,
                                     "' --gtest_brief=1 --gtest_filter='*Driver.process/", c.name, "' 2>&1");
  std::string output;
  int status = run(command, output);
  // The leak checker itself sometimes crashes. In this case the test runs again. A real leak gives another message, and
  // the test fails immediately.
  for (int again = 0; again < 3 && output.find("LeakSanitizer has encountered a fatal error") != output.npos; ++again)
    status = run(command, output);
  EXPECT_EQ(status, 0) << command << "\n" << output;
  EXPECT_NE(output.find("1 test from 1 test suite ran"), std::string::npos) << output;
}

TEST_P(Driver, process) {
  if (std::getenv("RAPT_DRIVER_CASE") == nullptr)
    run_in_child(GetParam());
  else
    GetParam().body();
}

INSTANTIATE_TEST_SUITE_P(Cuda, Driver, testing::ValuesIn(all_cases),
                         [](const testing::TestParamInfo<Case>& row) { return std::string(row.param.name); });

}  // namespace
}  // namespace rapt::cuda
