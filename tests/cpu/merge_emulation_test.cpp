// Emulates merge.cuh on this CPU (emulation.h) and compares with rapt_merge on the CPU. The bits must be equal, because
// both compute in double, in the given order.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <memory>

#include "check/fill.h"
#include "kernels/merge/merge_gpu.h"
#include "operations/bind_merge.h"
#include "rapt/rapt.h"
#include "tests/cpu/emulation.h"
// The kernel uses names that CUDA declares without a header.
#include "kernels/merge/merge.cuh"

namespace rapt {

alignas(16) double merge_shared[merge_smem_bytes({}) / sizeof(double)];

namespace {

using check::HostTensor;

constexpr float infinity = std::numeric_limits<float>::infinity();

struct States {
  std::vector<HostTensor> outs, lses;
  HostTensor sinks;
};

// Random states of queries [batch, heads, rows]. Part 1 is empty everywhere, part 2 in every third row; the outputs of
// empty parts are NaN. Strides differ between parts.
States make_states(int64_t count, int64_t batch, int64_t heads, int64_t rows, int64_t channels) {
  States states;
  for (int64_t p = 0; p < count; ++p) {
    const bool bshd = p % 2 == 1;
    const std::vector<int64_t> strides =
        bshd ? std::vector<int64_t>{rows * heads * channels, channels, heads * channels, 1}
             : std::vector<int64_t>{heads * rows * channels, rows * channels, channels, 1};
    HostTensor out = check::make_strided(DType::f32, {batch, heads, rows, channels}, strides);
    HostTensor lse = check::make_tensor(DType::f32, {batch, heads, rows});
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t h = 0; h < heads; ++h)
        for (int64_t i = 0; i < rows; ++i) {
          const auto at = static_cast<uint64_t>((b * heads + h) * rows + i), part = static_cast<uint64_t>(p);
          const bool empty = p == 1 || (p == 2 && i % 3 == 0);
          lse.set({b, h, i}, empty ? -double{infinity} : 5 * check::normal(1, part, at));
          for (int64_t c = 0; c < channels; ++c)
            out.set({b, h, i, c}, empty ? std::nan("") : check::normal(2 + part, at, static_cast<uint64_t>(c)));
        }
    states.outs.push_back(out);
    states.lses.push_back(lse);
  }
  states.sinks = check::make_tensor(DType::f32, {heads});
  for (int64_t h = 0; h < heads; ++h) states.sinks.set({h}, check::normal(3, 0, static_cast<uint64_t>(h)));
  return states;
}

// The rapt_merge_args for states and outputs. Owns everything to which they point.
class MergeCall {
 public:
  MergeCall(const States& states, bool sinks, const HostTensor& out, const HostTensor& lse)
      : sinks_("sinks", sinks ? states.sinks : absent_, check::in_host_memory),
        out_("out", out, check::in_host_memory),
        lse_("lse", lse, check::in_host_memory) {
    for (const auto* tensors : {&states.outs, &states.lses})
      for (const HostTensor& tensor : *tensors)
        views_.push_back(std::make_unique<check::View>("part", tensor, check::in_host_memory));
    for (const auto& view : views_) pointers_.push_back(view->get());
    args.struct_size = sizeof args;
    args.count = static_cast<int64_t>(states.outs.size());
    args.outs = pointers_.data();
    args.lses = pointers_.data() + args.count;
    args.sinks = sinks_.get();
    args.out = out_.get();
    args.lse = lse_.get();
  }
  rapt_merge_args args{};

 private:
  const HostTensor absent_;
  check::View sinks_, out_, lse_;
  std::vector<std::unique_ptr<check::View>> views_;
  std::vector<const rapt_tensor*> pointers_;
};

void emulate(const rapt_merge_args& args) {
  const MergeParams params = merge_params(args);
  // There are fewer blocks than rows, so each block loops over rows.
  cuda_emulation::launch(2, MergeConfig().threads(), reinterpret_cast<float*>(merge_shared),
                         merge_smem_bytes({}) / static_cast<int>(sizeof(float)), [&] {
                           switch (params.out.dtype) {
                             case DType::f32: return merge_states<MergeConfig{DType::f32}>(params);
                             case DType::f16: return merge_states<MergeConfig{DType::f16}>(params);
                             default: return merge_states<MergeConfig{DType::bf16}>(params);
                           }
                         });
}

void expect_same(const States& states, bool sinks, DType dtype, int64_t channels) {
  const auto& shape = states.lses[0].shape;
  const std::vector<int64_t> out_shape{shape[0], shape[1], shape[2], channels};
  const HostTensor out = check::make_tensor(dtype, out_shape), lse = check::make_tensor(DType::f32, shape);
  const HostTensor want = check::make_tensor(dtype, out_shape), want_lse = check::make_tensor(DType::f32, shape);
  for (int64_t i = 0; i < lse.size(); ++i) reinterpret_cast<float*>(lse.data())[i] = 12345.0f;  // to be overwritten
  const MergeCall cpu(states, sinks, want, want_lse);
  ASSERT_EQ(rapt_merge(nullptr, &cpu.args, nullptr), RAPT_OK) << rapt_last_error();
  emulate(MergeCall(states, sinks, out, lse).args);
  EXPECT_EQ(std::memcmp(out.data(), want.data(), static_cast<size_t>(out.size() * bytes_of(dtype))), 0);
  EXPECT_EQ(std::memcmp(lse.data(), want_lse.data(), static_cast<size_t>(lse.size()) * sizeof(float)), 0);
}

TEST(MergeEmulated, SameBitsAsTheCpu) {
  RAPT_NEEDS_FIBERS();
  for (const int64_t count : {1, 2, 5, 48})
    for (const bool sinks : {false, true})
      for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
        SCOPED_TRACE(testing::Message() << count << " parts, sinks " << sinks << ", " << name_of(dtype));
        expect_same(make_states(count, 2, 3, 7, 40), sinks, dtype, 40);
      }
}

TEST(MergeEmulated, AnEmptyPartChangesNoBit) {
  RAPT_NEEDS_FIBERS();
  const States states = make_states(2, 1, 2, 9, 24);
  const HostTensor out = check::make_tensor(DType::f32, {1, 2, 9, 24}), lse = check::make_tensor(DType::f32, {1, 2, 9});
  emulate(MergeCall(states, false, out, lse).args);
  EXPECT_EQ(std::memcmp(out.data(), states.outs[0].data(), 1 * 2 * 9 * 24 * sizeof(float)), 0);
  EXPECT_EQ(std::memcmp(lse.data(), states.lses[0].data(), 1 * 2 * 9 * sizeof(float)), 0);
}

TEST(MergeEmulated, RefusesMorePartsThanALaunchTakes) {
  const States states = make_states(49, 1, 1, 1, 1);
  const HostTensor out = check::make_tensor(DType::f32, {1, 1, 1, 1});
  EXPECT_THROW(merge_params(MergeCall(states, false, out, {}).args), std::runtime_error);
}

}  // namespace
}  // namespace rapt
