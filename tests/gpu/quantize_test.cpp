// Compares rapt_quantize on a GPU with the CPU, bit for bit: every kind of scales, every format, rotation, mean and
// percentile, for dense and packed, aligned and unaligned tensors. Also tests graphs, wrong lists and repeated calls.
// tests/cpu/quantize_test.cpp compares the CPU with a reference.
#include <functional>

#include "../cpu/quantize_call.h"
#include "base/error.h"
#include "gpu_support.h"
#include "placed_tensors.h"

namespace rapt::test {
namespace {

constexpr int32_t all_scales[] = {RAPT_SCALE_TENSOR,  RAPT_SCALE_HEAD,     RAPT_SCALE_TOKEN,
                                  RAPT_SCALE_BLOCK64, RAPT_SCALE_BLOCK128, RAPT_SCALE_CHANNEL};
constexpr uint64_t rotate_and_smooth = RAPT_QUANTIZE_HADAMARD | RAPT_QUANTIZE_SMOOTH;

// The tensors of a call in GPU memory. Used in a ContextScope of GPU 0.
class OnGpu : public PlacedTensors {
 public:
  explicit OnGpu(const QuantizeCall& call, size_t guard_bytes = 4096) : PlacedTensors(guard_bytes) {
    args_.emplace(call, placement());
  }
  const rapt_quantize_args& args() const { return args_->args; }
  rapt_status enqueue(cuda::StreamHandle stream, rapt_context* context = nullptr) const {
    return rapt_quantize(context, &args(), stream);
  }

 private:
  std::optional<QuantizeArgs> args_;
};

// A copy of a call with newly poisoned outputs.
QuantizeCall fresh(const QuantizeCall& call, DType output, const std::vector<int64_t>& output_strides) {
  QuantizeCall copy = call;
  copy.poison(output, output_strides);
  return copy;
}

void expect_same_as_cpu(const QuantizeCall& call, DType output, const std::vector<int64_t>& output_strides = {},
                        size_t guard_bytes = 4096) {
  const QuantizeCall cpu = fresh(call, output, output_strides), gpu = fresh(call, output, output_strides);
  quantize_on_cpu(cpu);
  const std::vector<unsigned char> input = bits(call.input);
  const cuda::Stream stream;
  OnGpu tensors(gpu, guard_bytes);
  ASSERT_EQ(tensors.enqueue(stream.handle()), RAPT_OK) << rapt_last_error();
  stream.synchronize();
  tensors.download();
  expect_same_outputs(gpu, cpu);
  EXPECT_EQ(bits(call.input), input);
}

QuantizeCall dense(DType type, const std::vector<int64_t>& shape, int32_t scales, QuantizeFill fill,
                   uint64_t flags = 0) {
  QuantizeCall call;
  call.input = make_tensor(type, shape);
  fill_quantize(call.input, fill);
  call.scales = scales, call.flags = flags;
  return call;
}

void set_lengths(QuantizeCall& call, const std::vector<int32_t>& values, int64_t longest) {
  call.cu_seqlens = make_tensor(DType::i32, {static_cast<int64_t>(values.size())});
  for (size_t i = 0; i < values.size(); ++i) put(call.cu_seqlens, {static_cast<int64_t>(i)}, values[i]);
  call.max_seqlen = longest;
}

QuantizeCall packed(DType type, int32_t scales, int64_t dim, uint64_t flags = 0) {
  QuantizeCall call;
  call.input = make_tensor(type, {400, 3, dim});
  fill_quantize(call.input, QuantizeFill::outlier);
  call.scales = scales, call.flags = flags;
  set_lengths(call, {0, 17, 17, 300, 391}, 500);
  return call;
}

void supply(QuantizeCall& call) {
  call.flags |= RAPT_QUANTIZE_SUPPLIED;
  call.descale = make_tensor(DType::f32, call.descale_shape());
  uint64_t i = 0;
  each_index(call.descale.shape, [&](const auto& at) { put(call.descale, at, 0.001 + check::uniform(1, 9, i++)); });
}

// Runs many calls at once, because most of the time is for compiling kernels, and the calls do not share kernels.
struct Case {
  std::string what;
  std::function<QuantizeCall()> make;
  DType output = DType::e4m3;
  std::vector<int64_t> output_strides = {};
};
void expect_same_as_cpu(const std::vector<Case>& cases) {
  Failures failures;
  in_parallel(cases.size(), failures, [&](size_t i) {
    SCOPED_TRACE(cases[i].what);
    const cuda::ContextScope scope(0, nullptr);
    expect_same_as_cpu(cases[i].make(), cases[i].output, cases[i].output_strides);
  });
  failures.report();
}

class GpuQuantize : public GpuTest {};

// scripts/gpu_suite.sh runs this suite under compute-sanitizer. There are no guards, so the tools see the ends of
// tensors.
class SmokeQuantize : public GpuTest {};

}  // namespace

// Tests only the conversion: of all bit patterns of a 16-bit format, and of f32 numbers around every midpoint.
TEST_F(GpuQuantize, EveryNumber) {
  for (const DType type : {DType::f16, DType::bf16})
    for (const DType output : {DType::e4m3, DType::e5m2, DType::sim8})
      for (const double factor : {1.0, 0x1p-9, 0x1p+12, 0.7}) {
        QuantizeCall call;
        call.input = make_tensor(type, {1, 1, 512, 128});
        for (int i = 0; i < 65536; ++i) {
          const auto code = static_cast<uint16_t>(i);
          std::memcpy(call.input.data() + 2 * i, &code, sizeof code);
        }
        call.flags = RAPT_QUANTIZE_SUPPLIED;
        call.descale = make_tensor(DType::f32, {1});
        put(call.descale, {0}, factor);
        SCOPED_TRACE(concat(name_of(type), " to ", name_of(output), ", factor ", factor));
        expect_same_as_cpu(call, output);
      }
  // Each float of 2^18 with the upper bits of every kind, and its neighbours.
  QuantizeCall call;
  call.input = make_tensor(DType::f32, {1, 1, 6144, 128});
  for (uint32_t i = 0; i < 6144 * 128; ++i) {
    const uint32_t pattern = (i / 3) << 14, code = pattern + i % 3 - 1;
    std::memcpy(call.input.data() + 4 * i, &code, sizeof code);
  }
  call.flags = RAPT_QUANTIZE_SUPPLIED;
  call.descale = make_tensor(DType::f32, {1});
  put(call.descale, {0}, 1);
  for (const DType output : {DType::e4m3, DType::e5m2, DType::sim8}) expect_same_as_cpu(call, output);
}

TEST_F(GpuQuantize, EveryScaleFormatAndFill) {
  std::vector<Case> cases;
  for (const QuantizeFill fill : all_quantize_fills)
    for (const int32_t scales : all_scales)
      for (const uint64_t flags : {uint64_t{0}, rotate_and_smooth})
        cases.push_back({concat("scales ", scales, ", fill ", static_cast<int>(fill), ", flags ", flags), [=] {
                           return dense(DType::f16, {2, 3, 300, 128}, scales, fill, flags);
                         }});
  constexpr DType outputs[] = {DType::e4m3, DType::e5m2, DType::sim8};
  size_t next = 0;  // each pair of formats is used twice
  for (const int32_t scales : all_scales) {
    for (const DType type : float_types) {
      const DType output = outputs[(next++ + static_cast<size_t>(scales)) % 3];
      cases.push_back({concat("scales ", scales, ", ", name_of(type), " to ", name_of(output)),
                       [=] {
                         return dense(type, {2, 2, 200, 64}, scales, QuantizeFill::special);
                       },
                       output});
    }
  }
  expect_same_as_cpu(cases);
}

// Subnormal numbers are not flushed to 0, which would change the scale.
TEST_F(GpuQuantize, SubnormalNumbers) {
  for (const DType type : float_types)
    for (const int32_t scales : all_scales) {
      SCOPED_TRACE(concat(name_of(type), ", scales ", scales));
      QuantizeCall call = dense(type, {1, 2, 130, 64}, scales, QuantizeFill::zero);
      const double least = type == DType::f32 ? 0x1p-149 : type == DType::bf16 ? 0x1p-133 : 0x1p-24;
      uint64_t i = 0;
      each_index(call.input.shape,
                 [&](const auto& at) { put(call.input, at, static_cast<double>(i++ % 101) * least); });
      expect_same_as_cpu(call, DType::e4m3);
    }
}

TEST_F(GpuQuantize, MeansAddInOneOrder) {
  for (const int64_t dim : {24, 128})
    expect_same_as_cpu(
        dense(DType::f32, {2, 2, 1000, dim}, RAPT_SCALE_HEAD, QuantizeFill::cancelling, RAPT_QUANTIZE_SMOOTH),
        DType::e4m3);
}

// Numbers of chunks in a row: one with and without a tail, numbers that do not divide 32, 32, and more than a block has
// threads.
TEST_F(GpuQuantize, LengthsAndDims) {
  std::vector<Case> cases;
  for (const int32_t scales : all_scales) {
    for (const int64_t dim : {7, 80, 256, 520})
      cases.push_back({concat("scales ", scales, ", dim ", dim, ", rotated and smoothed"), [=] {
                         return dense(DType::f16, {1, 1, 70, dim}, scales, QuantizeFill::offset, rotate_and_smooth);
                       }});
    // Rows too long for registers, channels too many for shared memory.
    cases.push_back({concat("scales ", scales, ", long rows"),
                     [=] {
                       return dense(DType::f16, {1, 2, 5, 40008}, scales, QuantizeFill::outlier);
                     },
                     DType::e5m2});
  }
  for (const int64_t rows : {1, 64, 65, 130, 1000})
    for (const int32_t scales : all_scales)
      for (const int64_t dim : {1, 8, 80, 96, 520, 1032})
        cases.push_back({concat("scales ", scales, ", dim ", dim, ", rows ", rows), [=] {
                           return dense(DType::bf16, {1, 2, rows, dim}, scales, QuantizeFill::outlier);
                         }});
  expect_same_as_cpu(cases);
}

// A grid has at most 65535 blocks in the dimensions of heads and batches.
TEST_F(GpuQuantize, MoreHeadsAndBatchesThanAGridHas) {
  for (const int32_t scales : all_scales) {
    SCOPED_TRACE(concat("scales ", scales));
    expect_same_as_cpu(dense(DType::f16, {1, 70000, 1, 8}, scales, QuantizeFill::outlier), DType::e4m3);
    expect_same_as_cpu(dense(DType::f16, {70000, 1, 2, 8}, scales, QuantizeFill::outlier), DType::e4m3);
  }
}

TEST_F(GpuQuantize, Strides) {
  const std::vector<int64_t> shape{2, 3, 70, 24};
  const std::vector<std::vector<int64_t>> inputs = {{5040, 24, 72, 1},    {5040, 1680, 1, 70},  {0, 1680, 24, 1},
                                                    {5040, 1680, -24, 1}, {5040, 1680, 24, -1}, {0, 0, 0, 1},
                                                    {15120, 5040, 72, 3}};
  const std::vector<std::vector<int64_t>> outputs = {
      {}, {5040, 24, 72, 1}, {5040, 1680, 1, 70}, {5040, 1680, -24, 1}, {15120, 5040, 72, 3}};
  std::vector<Case> cases;
  for (const auto& from : inputs)
    for (const auto& to : outputs)
      for (const int32_t scales : all_scales)
        cases.push_back({concat("scales ", scales, ", input ", testing::PrintToString(from), ", output ",
                                testing::PrintToString(to)),
                         [=] {
                           QuantizeCall call;
                           call.input = check::make_strided(DType::f16, shape, from);
                           fill_quantize(call.input, QuantizeFill::outlier);
                           call.scales = scales;
                           return call;
                         },
                         DType::e4m3, to});
  expect_same_as_cpu(cases);
}

TEST_F(GpuQuantize, PackedSequences) {
  std::vector<Case> cases;
  for (const int32_t scales : all_scales)
    for (const int64_t dim : {20, 128})
      for (const uint64_t flags : {uint64_t{0}, rotate_and_smooth})
        cases.push_back({concat("scales ", scales, ", dim ", dim, ", flags ", flags),
                         [=] { return packed(DType::f16, scales, dim, flags); }});
  expect_same_as_cpu(cases);
}

TEST_F(GpuQuantize, SuppliedFactors) {
  for (const int32_t scales : all_scales) {
    SCOPED_TRACE(concat("scales ", scales));
    for (const int64_t dim : {20, 80, 128, 776}) {
      QuantizeCall call = dense(DType::f16, {2, 3, 150, dim}, scales, QuantizeFill::special);
      supply(call);
      expect_same_as_cpu(call, DType::e4m3);
    }
    QuantizeCall call = packed(DType::bf16, scales, 64);
    supply(call);
    expect_same_as_cpu(call, DType::e5m2);
  }
}

TEST_F(GpuQuantize, Percentiles) {
  std::vector<Case> cases;
  for (const double percentile : {99.9, 90.0, 1e-6})
    for (const int32_t scales : all_scales)
      for (const uint64_t flags : {uint64_t{0}, rotate_and_smooth}) {
        const std::string what = concat("scales ", scales, ", percentile ", percentile, ", flags ", flags);
        const auto with_percentile = [=](QuantizeCall call) {
          call.percentile = percentile;
          return call;
        };
        cases.push_back(
            {what, [=] {
               return with_percentile(dense(DType::f16, {2, 2, 300, 64}, scales, QuantizeFill::special, flags));
             }});
        cases.push_back({what + ", packed", [=] { return with_percentile(packed(DType::f32, scales, 24, flags)); }});
      }
  expect_same_as_cpu(cases);
}

TEST_F(GpuQuantize, SizesOfZero) {
  std::vector<Case> cases;
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{0, 2, 8, 16}, {2, 0, 8, 16}, {2, 2, 0, 16}, {2, 2, 8, 0}})
    for (const int32_t scales : all_scales)
      for (const std::optional<double> percentile : {std::optional<double>(), std::optional<double>(50)})
        for (const uint64_t flags : {uint64_t{0}, rotate_and_smooth})
          cases.push_back({concat("scales ", scales, ", shape ", testing::PrintToString(shape), ", percentile ",
                                  percentile.value_or(100), ", flags ", flags),
                           [=] {
                             QuantizeCall call = dense(DType::f16, shape, scales, QuantizeFill::normal, flags);
                             call.percentile = percentile;
                             return call;
                           }});
  expect_same_as_cpu(cases);
}

// If lists of lengths are wrong, they are limited to the tensors.
TEST_F(GpuQuantize, HostileLengths) {
  for (const std::vector<int32_t>& list :
       {std::vector<int32_t>{0, -5, 20, 40}, {0, 30, 10, 40}, {7, 1000000, -1, 2147483647}, {0, 40, 40, 40}})
    for (const int32_t scales : all_scales)
      for (const uint64_t flags : {uint64_t{0}, rotate_and_smooth}) {
        QuantizeCall call;
        call.input = make_tensor(DType::f16, {40, 2, 64});
        fill_quantize(call.input, QuantizeFill::normal);
        call.scales = scales, call.flags = flags;
        set_lengths(call, list, 25);
        call.poison(DType::e4m3);
        const cuda::Stream stream;
        OnGpu tensors(call);
        ASSERT_EQ(tensors.enqueue(stream.handle()), RAPT_OK) << rapt_last_error();
        stream.synchronize();
        tensors.download();
        EXPECT_EQ(written_outside(call.output), 0);
      }
}

// While a stream is captured, a call whose kernels are not loaded is refused. If they are loaded, the call is recorded,
// and each replay computes it again.
TEST_F(GpuQuantize, Graphs) {
  const auto context = make_context();
  const QuantizeCall call = dense(DType::f16, {1, 2, 150, 72}, RAPT_SCALE_HEAD, QuantizeFill::outlier);
  const QuantizeCall expected = fresh(call, DType::e4m3, {}), gpu = fresh(call, DType::e4m3, {});
  quantize_on_cpu(expected);
  const cuda::Stream stream;
  OnGpu tensors(gpu);
  cuda::Graph::begin(stream.handle());
  EXPECT_EQ(tensors.enqueue(stream.handle(), context.get()), RAPT_ERROR_INVALID_ARGUMENT);
  EXPECT_NE(std::string(rapt_last_error()).find("captured"), std::string::npos) << rapt_last_error();
  { const cuda::Graph nothing(stream.handle()); }
  const QuantizeCall warm = fresh(call, DType::e4m3, {});
  OnGpu first(warm);
  ASSERT_EQ(first.enqueue(stream.handle(), context.get()), RAPT_OK) << rapt_last_error();
  stream.synchronize();
  cuda::Graph::begin(stream.handle());
  ASSERT_EQ(tensors.enqueue(stream.handle(), context.get()), RAPT_OK) << rapt_last_error();
  const cuda::Graph graph(stream.handle());
  for (int i = 0; i < 3; ++i) graph.replay(stream.handle());
  stream.synchronize();
  tensors.download();
  expect_same_outputs(gpu, expected);
}

TEST_F(GpuQuantize, RefusalsWriteNothing) {
  QuantizeCall call = dense(DType::f16, {1, 2, 70, 64}, RAPT_SCALE_HEAD, QuantizeFill::normal);
  call.poison(DType::e4m3);
  OnGpu tensors(call);
  rapt_quantize_args args = tensors.args();
  args.scales = RAPT_SCALE_TOKEN;
  EXPECT_EQ(rapt_quantize(nullptr, &args, nullptr), RAPT_ERROR_INVALID_ARGUMENT);
  tensors.download();
  each_index(call.output.shape, [&](const auto& at) { EXPECT_TRUE(is_poisoned(call.output, at)); });
}

// Offsets of several gigabytes in an expanded input, many tiles, and equal bits when repeated.
TEST_F(GpuQuantize, LargeTensors) {
  for (const int32_t scales : all_scales) {
    QuantizeCall call;
    call.input = make_tensor(DType::f16, {2, 8, 8192, 128});
    uint32_t random = 1;
    for (int64_t i = 0; i < call.input.size(); ++i) {
      random = random * 1664525u + 1013904223u;
      const auto code = static_cast<uint16_t>((random >> 16 & 0x83ffu) | (random >> 28 | 0x20u) << 9);
      std::memcpy(call.input.data() + 2 * i, &code, sizeof code);
    }
    call.scales = scales;
    SCOPED_TRACE(concat("scales ", scales));
    expect_same_as_cpu(call, DType::e4m3);
  }
}

TEST_F(SmokeQuantize, EveryKernel) {
  for (const int32_t scales : all_scales) {
    SCOPED_TRACE(concat("scales ", scales));
    expect_same_as_cpu(dense(DType::f16, {1, 2, 70, 64}, scales, QuantizeFill::special), DType::e4m3, {}, 0);
    expect_same_as_cpu(dense(DType::f32, {1, 1, 33, 20}, scales, QuantizeFill::special, rotate_and_smooth), DType::sim8,
                       {}, 0);
    QuantizeCall call = packed(DType::bf16, scales, 40, rotate_and_smooth);
    call.percentile = 99;
    expect_same_as_cpu(call, DType::e5m2, {}, 0);
  }
}

}  // namespace rapt::test
