// Compares the instructions of sm_90a, on a GPU that has them, with the host model of prim_hopper_model.h. The kernels
// are compiled if there is NVRTC.
#include <cstring>
#include <map>
#include <string_view>

#include "base/error.h"
#include "cuda/tensor_map.h"
#include "gpu_support.h"
#include "jit/jit.h"
#include "prim_hopper_args.cuh"
#include "prim_hopper_model.h"

namespace rapt::test {

const std::map<std::string_view, std::string_view>& device_sources();  // the files of this folder

namespace {

static_assert(sizeof(HopperArgs::map) == sizeof(cuda::TensorMap) && alignof(HopperArgs) == alignof(cuda::TensorMap));

jit::Request request(const std::string& call, unsigned threads) {
  jit::Request request{.unit = concat("#include \"prim_hopper.cuh\"\nextern \"C\" __global__ void __launch_bounds__(",
                                      threads, ", 1) rapt_kernel(const __grid_constant__ rapt::test::HopperArgs args)",
                                      " { rapt::test::", call, "(args); }\n"),
                       .arch = "sm_90a",
                       .label = "the test of " + call,
                       .files = {}};
  for (const auto& [name, text] : device_sources()) request.files.emplace(name, text);
  return request;
}

class GpuPrimHopper : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (HasFatalFailure() || IsSkipped()) return;
    if (const Device& gpu = cuda::device(0); gpu.arch != "sm_90a") skip(concat(gpu.name, " is not sm_90a"));
  }

  static void launch(HopperLaunch& what, const HopperArgs& corner) {
    HopperArgs args = corner;
    static jit::Store store(jit::Store::from_environment());
    const auto image = store.get(request(what.call, what.threads));
    cuda::Kernel kernel(image->bytes.data(), image->bytes.size(), "rapt_kernel");
    kernel.prepare(0, what.smem_bytes);
    cuda::Buffer a(what.a.size() + 16), b(what.b.size() + 16), out(what.out.size());
    a.upload(what.a.data(), what.a.size());
    b.upload(what.b.data(), what.b.size());
    out.upload(what.out.data(), what.out.size());
    args.a = a.data(), args.b = b.data(), args.out = out.data();
    const cuda::Stream stream;
    kernel.launch({.threads = what.threads, .smem_bytes = what.smem_bytes, .stream = stream.handle()}, &args);
    stream.synchronize();
    out.download(what.out.data(), what.out.size());
  }
  static void run(HopperLaunch& what) { launch(what, {}); }
};

constexpr size_t box_rows = 24;

}  // namespace

// Needs NVRTC, but no GPU. A warning would mean that ptxas ignores setmaxnreg or serializes wgmma.
TEST(PrimHopperSource, Compiles) {
  std::string why;
  if (jit::find_compiler(&why) == nullptr) GTEST_SKIP() << why;
  for (const auto& [call, threads] : {std::pair{"multiply_shared<176, 128, rapt::DType::bf16>", 128u},
                                      {"multiply_registers<256, 32, rapt::DType::f16>", 128u},
                                      {"load_box<24>", 128u},
                                      {"hand_over", 256u},
                                      {"hand_over_named", 256u},
                                      {"move_registers", 384u}}) {
    const jit::Resources found = jit::parse_resources(jit::compile(request(call, threads)).log);
    EXPECT_EQ(found.spill_store_bytes + found.spill_load_bytes, 0) << call;
    EXPECT_TRUE(found.warnings.empty()) << call << ": " << found.warnings[0];
  }
}

TEST_F(GpuPrimHopper, WgmmaMultipliesKMajorTilesInSharedMemory) {
  for (const DType type : {DType::f16, DType::bf16})
    for (size_t n = 16; n <= 256; n += 16) check_multiply_shared(run, n, n % 32 == 0 ? 128 : 64, type);
}

TEST_F(GpuPrimHopper, WgmmaMultipliesRegistersAndMnMajorTiles) {
  for (const DType type : {DType::f16, DType::bf16})
    for (size_t n = 16; n <= 256; n += 16) check_multiply_registers(run, n, n % 32 == 0 ? 48 : 128, type);
}

TEST_F(GpuPrimHopper, BoxesAreSwizzledAndFilledWithZeros) {
  const BoxedTensor tensor;
  cuda::Buffer memory(tensor.memory.size() * 2);
  memory.upload(tensor.memory.data(), memory.bytes());
  TensorMapSpec spec;
  spec.element = TensorElement::bf16, spec.base = memory.data(), spec.rank = 4;
  spec.sizes = {BoxedTensor::columns, BoxedTensor::rows, BoxedTensor::heads, BoxedTensor::batches};
  constexpr uint64_t row = BoxedTensor::pitch * 2, head = row * BoxedTensor::rows;
  spec.strides = {row, head, head * BoxedTensor::heads};
  spec.box = {64, box_rows, 1, 1}, spec.swizzle = TensorSwizzle::bytes_128;
  const cuda::TensorMap map = cuda::make_tensor_map(spec);
  for (const BoxCorner& at : box_corners) {
    SCOPED_TRACE(concat("column ", at.x, ", row ", at.row, ", head ", at.head, ", batch ", at.batch));
    HopperLaunch what{concat("load_box<", box_rows, ">"), 128, box_rows * 128 + 16};
    what.out.assign(box_rows * 128, 0xa5);
    HopperArgs args;
    std::memcpy(args.map.bytes, map.bytes, sizeof map);
    args.x = at.x, args.row = at.row, args.head = at.head, args.batch = at.batch;
    launch(what, args);
    expect_box(what, box_rows, at);
  }
}

TEST_F(GpuPrimHopper, MbarriersHandOverData) { check_hand_over(run, "hand_over"); }
TEST_F(GpuPrimHopper, NamedBarriersHandOverData) { check_hand_over(run, "hand_over_named"); }
TEST_F(GpuPrimHopper, WarpgroupsExchangeRegisters) { check_move_registers(run); }

}  // namespace rapt::test
