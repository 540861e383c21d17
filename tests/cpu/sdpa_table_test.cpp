// Tests the table of rapt_sdpa_args. For every row, wrong values are refused with a sentence that has the row's name. A
// struct of each earlier header has its old size. New rows are tested automatically.
#include <gtest/gtest.h>

#include <cstddef>
#include <limits>
#include <string>

#include "arguments/sdpa_arguments.h"
#include "rapt/rapt.h"

namespace rapt::test {
namespace {

// A dense call that the library accepts. It has batch 2, 4 heads of q and 2 heads of k, 3 queries and 5 keys.
struct Call {
  static constexpr int64_t q_shape[] = {2, 4, 3, 8}, k_shape[] = {2, 2, 5, 8};
  alignas(64) float memory[2048]{};
  rapt_tensor q = tensor(0, q_shape), k = tensor(256, k_shape), v = tensor(512, k_shape), out = tensor(768, q_shape);
  rapt_sdpa_args args{};

  Call() { args.struct_size = sizeof args, args.q = &q, args.k = &k, args.v = &v, args.out = &out; }
  rapt_tensor tensor(size_t at, const int64_t* shape) {
    return {memory + at, {RAPT_DEVICE_CPU, 0}, RAPT_F32, 4, shape, nullptr};
  }
  // Expects a sentence that begins with the argument's name.
  void expect_refused(const std::string& name) {
    EXPECT_EQ(rapt_prepare(nullptr, &args, nullptr), RAPT_ERROR_INVALID_ARGUMENT) << name;
    const std::string sentence = rapt_last_error();
    EXPECT_TRUE(sentence.starts_with(name + ".") || sentence.starts_with(name + " ") ||
                sentence.starts_with(name + ":"))
        << name << " is not what this is about: " << sentence;
  }
};

// A dtype that the row allows, or a dtype that it does not allow.
rapt_dtype dtype_of(const TensorArgument& row, bool allowed) {
  for (int32_t code = RAPT_F32; code <= RAPT_I64; ++code)
    if (row.dtypes.has(static_cast<DType>(code)) == allowed) return static_cast<rapt_dtype>(code);
  return RAPT_DTYPE_NONE;
}

bool is_packed_list(const TensorArgument& row) { return row.shape.dense[0] == Dim::batch_plus_1; }

}  // namespace

TEST(SdpaTable, EveryTensorRowRefuses) {
  Call accepted;
  ASSERT_EQ(rapt_prepare(nullptr, &accepted.args, nullptr), RAPT_OK) << rapt_last_error();
  for (const TensorArgument& row : tensor_arguments) {
    if (is_packed_list(row)) continue;
    constexpr int64_t wrong[] = {7, 7, 7, 7};
    const bool allowed[] = {false, true, true};
    for (int fault = 0; fault < 3; ++fault) {  // the dtype, the device, the shape
      Call call;
      rapt_tensor tensor = call.tensor(1024, wrong);
      if (call.args.*row.member != nullptr) tensor = *(call.args.*row.member), tensor.shape = wrong;
      tensor.dtype = dtype_of(row, allowed[fault]);
      if (fault == 1) tensor.device = {RAPT_DEVICE_CUDA, 0};
      if (fault == 2 && row.member == &rapt_sdpa_args::q) continue;  // other tensors would be reported as wrong
      if (fault == 1 && row.member == &rapt_sdpa_args::q) continue;  // the same holds for the device of q
      call.args.*row.member = &tensor;
      call.expect_refused(row.name);
    }
  }
}

TEST(SdpaTable, EveryScalarRowRefuses) {
  for (const ScalarArgument& row : scalar_arguments) {
    const auto expect_refused = [&](double real, int64_t whole) {
      Call call;
      call.args.has = row.has;
      if (row.real != nullptr) call.args.*row.real = real;
      if (row.integer != nullptr) call.args.*row.integer = whole;
      if (row.word != nullptr) call.args.*row.word = static_cast<int32_t>(whole);
      call.expect_refused(row.name);
    };
    if (row.real != nullptr) {
      expect_refused(std::numeric_limits<double>::quiet_NaN(), 0);
      expect_refused(1e300, 0);
      expect_refused(1e-300, 0);
      continue;
    }
    if (row.range.low != std::numeric_limits<int64_t>::min()) expect_refused(0, row.range.low - 1);
    if (row.range.high != std::numeric_limits<int64_t>::max()) expect_refused(0, row.range.high + 1);
  }
}

TEST(SdpaTable, EveryFlagAndBitIsKnown) {
  uint64_t bits = 0;
  for (const FlagArgument& row : flag_arguments) {
    EXPECT_EQ(bits & row.bit, 0u) << row.name;
    bits |= row.bit;
  }
  Call call;
  call.args.flags = ~known_flags;
  call.expect_refused("flags");
  Call other;
  other.args.has = ~known_has;
  other.expect_refused("has");
}

TEST(SdpaTable, EarlierStructsEndWhereTheyDid) {
  // There is one line for each struct size of an earlier release.
  ASSERT_GE(earlier_struct_sizes.size(), 1u);
  EXPECT_EQ(earlier_struct_sizes[0], offsetof(rapt_sdpa_args, seqused_q));  // 0.1.0
}

}  // namespace rapt::test
