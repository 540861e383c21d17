// Compares the stand-ins of sm_90a's instructions (lab/emulation/ptx) with a model on the host.
// tests/gpu/prim_hopper_test.cpp compares the real instructions with the same model.
#include "tests/cpu/emulation.h"
//
#include <gtest/gtest.h>

#include <cstring>
#include <map>

namespace rapt::test {
extern char memory[];  // the kernels declare it, too
alignas(1024) char memory[96 << 10];
}  // namespace rapt::test

#include "tests/gpu/prim_hopper.cuh"
#include "tests/gpu/prim_hopper_model.h"

namespace rapt::test {
namespace {

using Kernel = void (*)(const HopperArgs&);
constexpr DType f16 = DType::f16, bf16 = DType::bf16;
const std::map<std::string, Kernel> kernels = {
    {"multiply_shared<16, 64, rapt::DType::f16>", multiply_shared<16, 64, f16>},
    {"multiply_shared<80, 128, rapt::DType::bf16>", multiply_shared<80, 128, bf16>},
    {"multiply_shared<128, 256, rapt::DType::f16>", multiply_shared<128, 256, f16>},
    {"multiply_registers<16, 16, rapt::DType::f16>", multiply_registers<16, 16, f16>},
    {"multiply_registers<80, 48, rapt::DType::bf16>", multiply_registers<80, 48, bf16>},
    {"multiply_registers<256, 128, rapt::DType::f16>", multiply_registers<256, 128, f16>},
    {"load_box<24>", load_box<24>},
    {"hand_over", hand_over},
    {"hand_over_named", hand_over_named},
    {"move_registers", move_registers},
};

void launch(HopperLaunch& what, const HopperArgs& corner) {
  HopperArgs args = corner;
  emulated_shared = memory;
  args.a = what.a.data(), args.b = what.b.data(), args.out = what.out.data();
  const Kernel kernel = kernels.at(what.call);
  cuda_emulation::launch(1, what.threads, reinterpret_cast<float*>(memory), what.smem_bytes / sizeof(float),
                         [&] { kernel(args); });
}
void run(HopperLaunch& what) { launch(what, {}); }

class PrimHopperEmulated : public ::testing::Test {
 protected:
  void SetUp() override {
    RAPT_NEEDS_FIBERS();
#if defined(__SANITIZE_ADDRESS__) || RAPT_ADDRESS_SANITIZER
    GTEST_SKIP() << "the address sanitizer's fake stacks and fibers do not go together";
#endif
  }
};

TEST_F(PrimHopperEmulated, Products) {
  check_multiply_shared(run, 16, 64, f16);
  check_multiply_shared(run, 80, 128, bf16);
  check_multiply_shared(run, 128, 256, f16);
  check_multiply_registers(run, 16, 16, f16);
  check_multiply_registers(run, 80, 48, bf16);
  check_multiply_registers(run, 256, 128, f16);
}

TEST_F(PrimHopperEmulated, Boxes) {
  constexpr int rows = 24;
  const BoxedTensor tensor;
  cuda_emulation::EmulatedMap map{};
  map.base = reinterpret_cast<const char*>(tensor.memory.data());
  const int64_t sizes[] = {BoxedTensor::columns, BoxedTensor::rows, BoxedTensor::heads, BoxedTensor::batches};
  std::copy(sizes, sizes + 4, map.sizes);
  map.sizes[4] = 1;
  map.strides[0] = BoxedTensor::pitch * 2;
  for (int i = 1; i < 3; ++i) map.strides[i] = map.strides[i - 1] * map.sizes[i];
  const int box[] = {64, rows, 1, 1, 1};
  std::copy(box, box + 5, map.box);
  map.element_bytes = 2, map.swizzle = 128;
  for (const BoxCorner& at : box_corners) {
    SCOPED_TRACE(concat("column ", at.x, ", row ", at.row, ", head ", at.head, ", batch ", at.batch));
    HopperLaunch what{"load_box<24>", 128, rows * 128 + 16};
    what.out.assign(rows * 128, 0xa5);
    HopperArgs args;
    std::memcpy(args.map.bytes, &map, sizeof map);
    args.x = at.x, args.row = at.row, args.head = at.head, args.batch = at.batch;
    launch(what, args);
    expect_box(what, rows, at);
  }
}

TEST_F(PrimHopperEmulated, Barriers) {
  check_hand_over(run, "hand_over");
  check_hand_over(run, "hand_over_named");
}

TEST_F(PrimHopperEmulated, Registers) { check_move_registers(run); }

}  // namespace
}  // namespace rapt::test
