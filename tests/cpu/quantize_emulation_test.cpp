// Emulates quantize.cuh on this CPU (emulation.h) and compares with rapt_quantize on the CPU. Codes, scales and means
// must have equal bits, for every kernel of every call. Also tests that a call requests exactly the kernels that it
// needs.
#include <gtest/gtest.h>

#include <array>
#include <utility>

#include "kernels/quantize/quantize_gpu.h"
#include "operations/quantize_rules.h"
#include "quantize_call.h"
#include "rapt/rapt.h"
#include "tests/cpu/emulation.h"

// Other names that this kernel uses, and that CUDA declares without a header.
inline float __shfl_sync(unsigned, float x, int lane, int width) {
  const auto from = threadIdx.x % 32 / static_cast<unsigned>(width) * static_cast<unsigned>(width);
  const auto& values = rapt::cuda_emulation::block().exchange(__builtin_bit_cast(unsigned, x));
  return __builtin_bit_cast(float, values[from + static_cast<unsigned>(lane)]);
}
inline unsigned __reduce_max_sync(unsigned, unsigned x) {
  const auto& values = rapt::cuda_emulation::block().exchange(x);
  return *std::max_element(values.begin(), values.end());
}
template <class T>
T atomicMax(T* place, T x) {  // need not be atomic, because fibers switch only where they wait
  const T before = *place;
  *place = std::max(before, x);
  return before;
}
template <class T>
T atomicAdd(T* place, T x) {
  const T before = *place;
  *place = before + x;
  return before;
}
#include "kernels/quantize/quantize.cuh"

namespace rapt {

alignas(16) double quantize_shared[QuantizeConfig::max_shared_channels];

namespace test {
namespace {

constexpr ScaleKind all_groups[] = {ScaleKind::tensor,  ScaleKind::head,     ScaleKind::token,
                                    ScaleKind::block64, ScaleKind::block128, ScaleKind::channel};

// The shapes of the kernels in this test. The values of dim cover: chunks that fill a warp and that do not, a tail,
// rotations within a thread and across lanes, no channels, tiles that are too large for registers, longer rows, and
// channels that do not fit in shared memory.
struct Shape {
  DType input, output;
  int dim;
  bool hadamard, smooth, vectors;
};
constexpr Shape shapes[] = {
    {DType::f16, DType::e4m3, 64, false, false, true},  {DType::bf16, DType::e5m2, 20, false, false, false},
    {DType::f32, DType::sim8, 48, false, false, true},  {DType::f16, DType::e4m3, 64, true, true, true},
    {DType::f32, DType::e4m3, 256, true, false, true},  {DType::bf16, DType::e4m3, 12, true, true, false},
    {DType::f16, DType::e5m2, 96, false, true, false},  {DType::f16, DType::e4m3, 0, false, false, false},
    {DType::f16, DType::e4m3, 776, false, false, true}, {DType::bf16, DType::e4m3, 33000, false, false, true}};
constexpr size_t wide = 8;  // these and later shapes take long

constexpr size_t group_count = std::size(all_groups), shape_count = std::size(shapes), step_count = 7;

// Every step of every shape and group. Step 6 encodes with existing scales.
constexpr QuantizeConfig config_at(size_t i) {
  const Shape& shape = shapes[i / step_count / group_count];
  QuantizeConfig c;
  c.step = i % step_count == 6 ? QuantizeStep::encode : static_cast<QuantizeStep>(i % step_count);
  c.group = all_groups[i / step_count % group_count];
  c.descales_ready = i % step_count == 6;
  if (c.step == QuantizeStep::encode && rows_sharing(c.group) == 0) c.descales_ready = true;
  if (c.step == QuantizeStep::clear || c.step == QuantizeStep::finish) {
    c.dim = 1;
    if (c.step == QuantizeStep::finish) c.output = shape.output;
    return c;
  }
  c.dim = shape.dim, c.input = shape.input, c.hadamard = shape.hadamard, c.input_vectors = shape.vectors;
  if (c.step == QuantizeStep::mean) {
    c.group = ScaleKind::tensor;
    return c;
  }
  c.smooth = shape.smooth;
  if (c.step != QuantizeStep::amax) c.output = shape.output;
  c.output_vectors = c.step == QuantizeStep::encode && shape.vectors;
  return c;
}

// Step amax exists only for scales of whole heads.
constexpr bool is_needed(const QuantizeConfig& c) { return c.step != QuantizeStep::amax || rows_sharing(c.group) == 0; }

template <size_t i>
void run_kernel(const QuantizeParams& p) {
  if constexpr (is_needed(config_at(i))) quantize<config_at(i)>(p);
}
using Kernel = void (*)(const QuantizeParams&);
template <size_t... i>
constexpr std::array<Kernel, sizeof...(i)> kernels_of(std::index_sequence<i...>) {
  return {run_kernel<i>...};
}
constexpr auto kernels = kernels_of(std::make_index_sequence<shape_count * group_count * step_count>());

// Makes the same launches as quantize_on_gpu(), but with fewer blocks than work items.
void emulate(const rapt_quantize_args& args) {
  const QuantizeParams params = quantize_params(args);
  for (const QuantizeConfig& config : quantize_configs(params)) {
    size_t i = 0;
    while (i < kernels.size() && !(config_at(i) == config)) ++i;
    ASSERT_LT(i, kernels.size()) << quantize_unit(config).text << "is not compiled here";
    ASSERT_LE(static_cast<size_t>(config.shared_words()), 2 * std::size(quantize_shared));
    const QuantizeGrid grid = quantize_grid(params, config);
    const auto fewer = [](index_t blocks, index_t most) { return static_cast<unsigned>(std::min(blocks, most)); };
    gridDim.y = fewer(grid.y, 1), gridDim.z = fewer(grid.z, 2);
    for (blockIdx.z = 0; blockIdx.z < gridDim.z; ++blockIdx.z)
      for (blockIdx.y = 0; blockIdx.y < gridDim.y; ++blockIdx.y)
        cuda_emulation::launch(fewer(grid.x, 3), static_cast<unsigned>(config.threads()),
                               reinterpret_cast<float*>(quantize_shared), static_cast<size_t>(config.shared_words()),
                               [&] { kernels[i](params); });
    gridDim.y = gridDim.z = 1, blockIdx.y = blockIdx.z = 0;
  }
}

QuantizeCall call_of(const Shape& shape, ScaleKind group, const std::vector<int64_t>& sizes, QuantizeFill fill) {
  QuantizeCall call;
  call.input = make_tensor(shape.input, {sizes[0], sizes[1], sizes[2], shape.dim});
  if (!shape.vectors) {  // the channels are not contiguous
    auto strides = call.input.strides;
    for (int64_t& stride : strides) stride *= 2;
    call.input = check::make_strided(shape.input, call.input.shape, strides);
  }
  fill_quantize(call.input, fill);
  call.scales = static_cast<int32_t>(group);
  call.flags = (shape.hadamard ? RAPT_QUANTIZE_HADAMARD : 0) | (shape.smooth ? RAPT_QUANTIZE_SMOOTH : 0);
  return call;
}

std::vector<int64_t> output_strides(const Shape& shape, const HostTensor& input) {
  if (shape.vectors) return {};
  auto strides = make_tensor(DType::u8, input.shape).strides;
  for (int64_t& stride : strides) stride *= 3;
  return strides;
}

void expect_same_as_cpu(QuantizeCall call, const Shape& shape) {
  call.poison(shape.output, output_strides(shape, call.input));
  quantize_on_cpu(call);
  QuantizeCall emulated = call;
  emulated.poison(shape.output, output_strides(shape, call.input));
  emulate(QuantizeArgs(emulated).args);
  expect_same_outputs(emulated, call);
}

void supply(QuantizeCall& call) {
  call.flags |= RAPT_QUANTIZE_SUPPLIED;
  call.descale = make_tensor(DType::f32, call.descale_shape());
  uint64_t i = 0;
  each_index(call.descale.shape, [&](const auto& at) { put(call.descale, at, 0.001 + check::uniform(1, 9, i++)); });
}

HostTensor lengths(const std::vector<int32_t>& values) {
  HostTensor list = make_tensor(DType::i32, {static_cast<int64_t>(values.size())});
  for (size_t i = 0; i < values.size(); ++i) put(list, {static_cast<int64_t>(i)}, values[i]);
  return list;
}

class QuantizeEmulated : public testing::TestWithParam<ScaleKind> {};
std::string group_name(const testing::TestParamInfo<ScaleKind>& group) {
  constexpr const char* names[] = {"", "tensor", "head", "token", "block64", "block128", "channel"};
  return names[static_cast<size_t>(group.param)];
}
INSTANTIATE_TEST_SUITE_P(Group, QuantizeEmulated, testing::ValuesIn(all_groups), group_name);

TEST_P(QuantizeEmulated, SameBitsAsTheCpu) {
  RAPT_NEEDS_FIBERS();
  for (size_t s = 0; s < wide; ++s)
    for (const QuantizeFill fill : {QuantizeFill::special, QuantizeFill::tiny, QuantizeFill::offset}) {
      SCOPED_TRACE(testing::Message() << "shape " << s << ", fill " << static_cast<int>(fill));
      const bool large = fill == QuantizeFill::special;
      expect_same_as_cpu(call_of(shapes[s], GetParam(), {1, large ? 2 : 1, large ? 133 : 33, 0}, fill), shapes[s]);
    }
}

// All kernels give the same bits of a mean, because the order of the additions is fixed.
TEST(QuantizeMeanEmulated, AddsInOneOrder) {
  RAPT_NEEDS_FIBERS();
  const Shape& shape = shapes[5];
  ASSERT_TRUE(shape.smooth && shape.input == DType::bf16);
  expect_same_as_cpu(call_of(shape, ScaleKind::head, {2, 2, 320, 0}, QuantizeFill::cancelling), shape);
}

TEST_P(QuantizeEmulated, SuppliedFactorsAndPercentiles) {
  RAPT_NEEDS_FIBERS();
  for (size_t s = 0; s < wide; ++s) {
    SCOPED_TRACE(testing::Message() << "shape " << s);
    QuantizeCall call = call_of(shapes[s], GetParam(), {1, 2, 70, 0}, QuantizeFill::special);
    supply(call);
    expect_same_as_cpu(call, shapes[s]);
    if (GetParam() == ScaleKind::channel && shapes[s].dim > 64) continue;  // one block per channel takes long here
    call = call_of(shapes[s], GetParam(), {2, 1, s < 4 ? 67 : 9, 0}, QuantizeFill::special);
    call.percentile = s % 2 == 0 ? 99.0 : 30.0;
    expect_same_as_cpu(call, shapes[s]);
  }
}

TEST_P(QuantizeEmulated, PackedSequences) {
  RAPT_NEEDS_FIBERS();
  for (const size_t s : {0, 1, 3, 5})
    for (const bool percentile : {false, true}) {
      SCOPED_TRACE(testing::Message() << "shape " << s << ", percentile " << percentile);
      if (percentile && GetParam() == ScaleKind::channel && shapes[s].dim > 20) continue;
      const Shape& shape = shapes[s];
      QuantizeCall call = call_of(shape, GetParam(), {1, 2, 150, 0}, QuantizeFill::outlier);
      const std::vector<int64_t> was = call.input.strides;
      call.input.shape = {150, 2, shape.dim};
      call.input.strides = {was[3] * 2 * shape.dim, was[3] * shape.dim, was[3]};
      fill_quantize(call.input, QuantizeFill::outlier);
      call.cu_seqlens = lengths({0, 17, 17, 130, 141});
      call.max_seqlen = 200;
      if (percentile) call.percentile = 95;
      expect_same_as_cpu(call, shape);
    }
}

TEST_P(QuantizeEmulated, LongRows) {
  RAPT_NEEDS_FIBERS();
  for (size_t s = wide; s < shape_count; ++s) {
    SCOPED_TRACE(testing::Message() << "shape " << s);
    expect_same_as_cpu(call_of(shapes[s], GetParam(), {1, 1, s == wide ? 130 : 3, 0}, QuantizeFill::outlier),
                       shapes[s]);
  }
}

TEST_P(QuantizeEmulated, SizesOfZero) {
  RAPT_NEEDS_FIBERS();
  for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{0, 2, 8, 0}, {2, 0, 8, 0}, {2, 2, 0, 0}})
    for (const size_t s : {0, 3})
      expect_same_as_cpu(call_of(shapes[s], GetParam(), sizes, QuantizeFill::normal), shapes[s]);
}

// If lists of lengths are wrong, the kernels limit them to the tensors, and read and write nothing outside.
TEST_P(QuantizeEmulated, HostileLengths) {
  RAPT_NEEDS_FIBERS();
  const Shape& shape = shapes[0];
  for (const auto& list :
       {std::vector<int32_t>{0, -5, 20, 40}, {0, 30, 10, 40}, {7, 1000000, -1, 2147483647}, {0, 40, 40, 40}}) {
    QuantizeCall call;
    call.input = make_tensor(shape.input, {40, 2, shape.dim});
    fill_quantize(call.input, QuantizeFill::normal);
    call.scales = static_cast<int32_t>(GetParam());
    call.cu_seqlens = lengths(list);
    call.max_seqlen = 25;
    call.poison(shape.output);
    emulate(QuantizeArgs(call).args);
    EXPECT_EQ(written_outside(call.output), 0);
    EXPECT_EQ(written_outside(call.descale), 0);
  }
}

std::vector<QuantizeStep> steps_of(const QuantizeCall& call) {
  std::vector<QuantizeStep> steps;
  for (const QuantizeConfig& config : quantize_configs(quantize_params(QuantizeArgs(call).args)))
    steps.push_back(config.step);
  return steps;
}

TEST(QuantizePlan, ReadsOnceWhereOnceIsEnough) {
  using Steps = std::vector<QuantizeStep>;
  const auto call_for = [](ScaleKind group) {
    QuantizeCall call = call_of(shapes[0], group, {1, 2, 70, 0}, QuantizeFill::normal);
    call.poison(DType::e4m3);
    return call;
  };
  for (const ScaleKind group : {ScaleKind::token, ScaleKind::block64, ScaleKind::block128})
    EXPECT_EQ(steps_of(call_for(group)), Steps{QuantizeStep::encode});
  for (const ScaleKind group : {ScaleKind::tensor, ScaleKind::head, ScaleKind::channel})
    EXPECT_EQ(steps_of(call_for(group)),
              (Steps{QuantizeStep::clear, QuantizeStep::amax, QuantizeStep::finish, QuantizeStep::encode}));
  QuantizeCall supplied = call_for(ScaleKind::head);
  supply(supplied);
  EXPECT_EQ(steps_of(supplied), Steps{QuantizeStep::encode});
  QuantizeCall percentile = call_for(ScaleKind::block64);
  percentile.percentile = 99;
  percentile.flags = RAPT_QUANTIZE_SMOOTH;
  percentile.poison(DType::e4m3);
  EXPECT_EQ(steps_of(percentile), (Steps{QuantizeStep::mean, QuantizeStep::select, QuantizeStep::encode}));
}

// Vector loads are used only if every row begins at a multiple of their size. Strides of dimensions of size 1 do not
// matter.
TEST(QuantizePlan, VectorsWhereAligned) {
  const auto config = [](const QuantizeCall& call) {
    return quantize_configs(quantize_params(QuantizeArgs(call).args)).back();
  };
  QuantizeCall call = call_of(shapes[0], ScaleKind::token, {1, 2, 70, 0}, QuantizeFill::zero);
  call.poison(DType::e4m3);
  EXPECT_TRUE(config(call).input_vectors && config(call).output_vectors);
  call.input.offset += 1;
  EXPECT_FALSE(config(call).input_vectors);
  call.input.offset += 7;
  EXPECT_TRUE(config(call).input_vectors);
  call.output.strides[1] += 4;
  EXPECT_FALSE(config(call).output_vectors);
  call.input.strides[2] = 68;
  EXPECT_FALSE(config(call).input_vectors);
}

}  // namespace
}  // namespace test
}  // namespace rapt
