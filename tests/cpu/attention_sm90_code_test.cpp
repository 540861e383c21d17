// The machine code of attention_sm90: every kind of configuration compiles without spills, and ptxas serializes no
// wgmma instructions. The number of wgmma instructions is the one calculated from the tiles. Needs NVRTC, no GPU.
#include <gtest/gtest.h>

#include "base/error.h"
#include "device/device.h"
#include "jit/jit.h"
#include "kernels/family.h"
#include "kernels/sm90/config.h"
#include "kernels/sm90/sm90.h"
#include "lab/cubin.h"
#include "runtime/plan.h"

namespace rapt::test {
namespace {

TEST(AttentionSm90Code, NoSpillsAndNoSerializedProducts) {
  std::string why;
  if (jit::find_compiler(&why) == nullptr) GTEST_SKIP() << "no NVRTC: " << why;
  const Device device = device_preset("h200");
  for (const char* line : {"f16 b2 h24 q4096 d64",
                           "f16 b16 h12 q512 d64",
                           "bf16 b8 h16 q256 d80",
                           "bf16 b2 h24 q4096 d64 causal",
                           "bf16 b1 h16 q4096 d128",
                           "f16 b1 h16 q4096 d128 causal",
                           "bf16 h16 d128 varlen=4096,4096",
                           "bf16 b1 h16 q4096 d192:128 causal",
                           "f16 b1 h16 q4096 d192",
                           "bf16 b1 h16 q4096 d256",
                           "f16 b1 h16 q4096 d256 causal",
                           "bf16 out=f32 b1 h16 q4096 d80 lse partial",
                           "bf16 b2 h24 q4096 d64 causal alibi",
                           "f16 b2 h24 q4096 d64 softcap=9 alibi bias=f32[b,h,q,k] mask=[b,h,q,k]",
                           "f16 b2 h24 q4095 d64 softcap=9 alibi bias=f32[b,h,q,k] mask=[b,h,q,k]",
                           "bf16 b2 h24 q4096 d96 causal softcap=9 alibi bias=f32[b,h,q,k] mask=[b,h,q,1]",
                           "bf16 b2 h24 q4096 d96 causal bias=f32[b,h,q,k]",
                           "bf16 b1 h16 q4096 d128 causal softcap=20",
                           "f16 b1 h16 q4096 d128 bias=f32[b,h,q,k]",
                           "bf16 b1 h16 q4096 d128 mask=[b,1,1,k]",
                           "bf16 b1 h16 q4096 d128 causal softcap=9 alibi bias=f32[b,h,q,k] mask=[b,h,q,k]",
                           "bf16 b8 h32:8 q40 k4096 d128 bias=bf16[b,h,q,k]",
                           "bf16 b32 h16:1 q4 k2049 d64 causal bias=f32[1,1,1,k]",
                           "bf16 b32 h16:1 q4 k2048 d128 bias=bf16[1,1,q,k] mask=[1,1,q,k]",
                           "bf16 b1 h16 q4096 d192:128 causal alibi",
                           "f16 b1 h16 q4096 d192 bias=f32[b,h,q,k]",
                           "f16 b1 h16 q4096 d256 causal bias=f32[b,h,q,k]",
                           "f16 b1 h16 q4096 d256 causal softcap=9 alibi bias=f32[b,h,q,k] mask=[b,h,q,k]",
                           "e4m3 out=bf16 b2 h24 q4096 d64 scales=head",
                           "e4m3 out=bf16 b2 h24 q4096 d64 causal scales=head pv=fp8",
                           "e5m2 out=f32 b2 h24 q4096 d64 scales=head lse pv=fp8x2",
                           "e4m3 out=bf16 b8 h16 q4096 d80 scales=head pv=fp8",
                           "e4m3 out=bf16 b1 h16 q4096 d128 causal scales=head",
                           "e4m3 out=bf16 b1 h16 q16384 d128 scales=head pv=fp8",
                           "e4m3 out=bf16 b1 h16 q4096 d128 causal scales=head pv=fp8x2",
                           "e4m3 out=bf16 b1 h16 q1024 d128 causal q_scales=token k_scales=token v_scales=channel",
                           "e4m3 out=bf16 b1 h16 q4096 d128 scales=head softcap=9 alibi bias=f32[b,h,q,k] pv=fp8",
                           "q=bf16 k=e4m3 v=e4m3 b1 h32:8 q512 k8192 d128 causal k_scales=head v_scales=head page=16",
                           "q=bf16 k=e4m3 v=e5m2 b1 h32:8 q4096 d128 k_scales=block64 v_scales=channel",
                           "e4m3 out=bf16 b4 h32:8 q512 k8192 d128 causal scales=head pv=fp8 page=16",
                           "e4m3 out=bf16 b1 h16 q4096 d192 scales=head pv=fp8",
                           "e4m3 out=bf16 b1 h16 q4096 d256 scales=head",
                           "e4m3 out=bf16 b1 h16 q8192 d256 causal scales=head pv=fp8",
                           "e4m3 out=bf16 b1 h16 q4096 d256 scales=head pv=fp8x2",
                           "e4m3 out=bf16 b1 h16 q4096 d256 scales=head mask=[b,h,q,k] pv=fp8"}) {
    SCOPED_TRACE(line);
    const Step step = plan_by(attention_sm90, parse_problem(line), device).steps[0];
    const auto& config = step.config.as<Sm90Config>();
    const KernelUnit unit = step.family->unit(step.config);
    const jit::Image image = jit::compile({.unit = unit.text, .arch = device.arch, .label = line, .files = {}});
    const jit::Resources used = jit::parse_resources(image.log);
    const lab::InstructionCounts counts = lab::count_instructions(image.bytes);
    ASSERT_TRUE(used.known);
    EXPECT_EQ(used.spill_store_bytes + used.spill_load_bytes + used.stack_bytes + counts.local, 0);
    EXPECT_LE(used.shared_bytes + static_cast<int>(unit.smem_bytes), device.smem_per_block);
    EXPECT_LE(used.registers * unit.threads, device.registers_per_sm);
    EXPECT_LE(used.shared_bytes + static_cast<int>(unit.smem_bytes), device.smem_per_sm);
    // C7508: setmaxnreg is ignored. C7512, C7514: wgmma is serialized, because there are too few registers, or because
    // other code uses its registers.
    for (const char* warning : {"C7508", "C7512", "C7514"}) EXPECT_EQ(image.log.find(warning), std::string::npos);
    const int qk = Sm90Layout(config).dim * bytes_of(config.key_type()) / 32,
              pv = config.p_terms > 0 ? config.p_terms * config.block_n / 32 : config.block_n / 16;
    EXPECT_EQ(counts.hgmma + counts.qgmma,
              2 * (qk + pv));  // the products for the first and the last block are outside the loop
  }
}

}  // namespace
}  // namespace rapt::test
