// Checks that each rung of the ladder agrees with its description. The rungs are compiled as in rapt bench --ladder,
// and their instructions are counted. The counting itself is tested with small kernels. Needs NVRTC, no GPU.
#include "lab/ladder.h"

#include <gtest/gtest.h>

#include "lab/cubin.h"
#include "lab/kernels.h"
#include "runtime/plan.h"
#include "tests/cpu/jit_support.h"

namespace rapt::test {
namespace {

constexpr const char* mission = "f16 b1 h8 q512 d64";
constexpr const char* architectures[] = {"sm_80", "sm_89", "sm_90a"};

jit::Image compiled(const std::string& unit, const std::string& arch) {
  return jit::compile({.unit = unit, .arch = arch, .label = "a test", .files = {}});
}

lab::InstructionCounts counts_of(const std::string& body, const std::string& arch) {
  const std::string unit =
      "extern \"C\" __global__ void rapt_kernel(float* p) {\n  __shared__ __align__(16) float s[4096];\n" + body +
      "}\n";
  return lab::count_instructions(compiled(unit, arch).bytes);
}

std::string repeated(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

class CubinOn : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Architectures, CubinOn, testing::ValuesIn(architectures),
                         [](const auto& test) { return std::string(test.param); });

TEST_P(CubinOn, CountsAsManyAsWereWritten) {
  const std::string address = "  unsigned a = (unsigned)__cvta_generic_to_shared(s + threadIdx.x * 4);\n";
  const auto copies = counts_of(
      address +
          repeated(
              "  asm volatile(\"cp.async.cg.shared.global [%0], [%1], 16;\" :: \"r\"(a), \"l\"(p) : \"memory\");\n", 3),
      GetParam());
  EXPECT_EQ(copies.ldgsts, 3);
  EXPECT_EQ(copies.ldsm + copies.hmma + copies.ldg + copies.arrives, 0);
  const auto arrivals = counts_of(
      address +
          repeated("  asm volatile(\"cp.async.mbarrier.arrive.noinc.shared.b64 [%0];\" :: \"r\"(a) : \"memory\");\n",
                   2),
      GetParam());
  EXPECT_EQ(arrivals.arrives, 2);
  EXPECT_EQ(arrivals.ldgsts, 0);

  const auto load = [](int offset) {  // equal kernels would be merged
    return concat("  asm volatile(\"ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4 + ", offset,
                  "];\" : \"=r\"(r[0]), \"=r\"(r[1]), \"=r\"(r[2]), \"=r\"(r[3]) : \"r\"(a));\n");
  };
  const std::string product =
      "  asm volatile(\"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%4, "
      "%5}, "
      "{%0, %1, %2, %3};\" : \"+f\"(d[0]), \"+f\"(d[1]), \"+f\"(d[2]), \"+f\"(d[3]) : \"r\"(r[0]), \"r\"(r[1]), "
      "\"r\"(r[2]), \"r\"(r[3]));\n";
  const auto tensor =
      counts_of(address + "  unsigned r[4]; float d[4] = {};\n" + load(0) + repeated(product, 3) + load(512) +
                    repeated(product, 2) + "  p[threadIdx.x] = d[0] + d[1] + d[2] + d[3];\n",
                GetParam());
  EXPECT_EQ(tensor.ldsm, 2);
  EXPECT_EQ(tensor.hmma, 5);
  EXPECT_EQ(tensor.ldgsts, 0);

  const auto special =
      counts_of("  float x = p[threadIdx.x];\n" + repeated("  asm(\"ex2.approx.ftz.f32 %0, %0;\" : \"+f\"(x));\n", 7) +
                    "  p[threadIdx.x] = x;\n",
                GetParam());
  EXPECT_EQ(special.mufu, 7);
  EXPECT_EQ(special.ffma, 0);

  const auto fused = counts_of("  float x = p[threadIdx.x], y = p[threadIdx.x + 32];\n" +
                                   repeated("  x = fmaf(x, y, x);\n", 6) + "  p[threadIdx.x] = x;\n",
                               GetParam());
  EXPECT_EQ(fused.ffma, 6);
  EXPECT_EQ(fused.ldg, 2);
  EXPECT_EQ(fused.ldg_16, 0);
}

TEST_P(CubinOn, TellsWideAccessesFromNarrow) {
  const auto wide = counts_of(
      "  ((float4*)s)[threadIdx.x] = ((float4*)p)[threadIdx.x];\n  __syncthreads();\n"
      "  ((float4*)p)[threadIdx.x] = ((float4*)s)[threadIdx.x ^ 1];\n",
      GetParam());
  EXPECT_EQ(wide.ldg, 1);
  EXPECT_EQ(wide.ldg_16, 1);
  EXPECT_EQ(wide.sts_16, 1);
  EXPECT_EQ(wide.lds_16, 1);
  const auto narrow = counts_of(
      "  ((float2*)s)[threadIdx.x] = ((float2*)p)[threadIdx.x];\n  __syncthreads();\n  p[threadIdx.x] = s[threadIdx.x "
      "^ 1];\n",
      GetParam());
  EXPECT_EQ(narrow.ldg, 1);
  EXPECT_EQ(narrow.sts, 1);
  EXPECT_EQ(narrow.lds, 1);
  EXPECT_EQ(narrow.ldg_16 + narrow.sts_16 + narrow.lds_16, 0);
}

TEST_P(CubinOn, SeesLocalMemory) {
  // Registers have no index at run time. So an array that is written at many run-time indices is in local memory.
  const auto kernel = [](const std::string& place) {
    return "  float x[32];\n  for (int i = 0; i < 32; ++i) x[i] = p[i];\n  for (int i = 0; i < 20; ++i) x[" + place +
           "] = p[40] * i;\n  for (int i = 0; i < 32; ++i) p[100 + i] = x[i];\n";
  };
  EXPECT_GT(counts_of(kernel("(int)p[41 + i] & 31"), GetParam()).local, 0);
  EXPECT_EQ(counts_of(kernel("i"), GetParam()).local, 0);
}

TEST(Cubin, RefusesWhatIsNone) {
  const std::string cubin =
      compiled("extern \"C\" __global__ void rapt_kernel(float* p) { p[0] = 1; }\n", "sm_80").bytes;
  EXPECT_GT(lab::count_instructions(cubin).total, 0);
  EXPECT_THROW(lab::count_instructions(cubin, "another"), Error);
  EXPECT_THROW(lab::count_instructions("// PTX text"), Error);
  // NVRTC puts the section table after the code, so every shorter file is incomplete.
  for (size_t size = 0; size < 64; ++size) EXPECT_THROW(lab::count_instructions(cubin.substr(0, size)), Error) << size;
  for (size_t size = 64; size < cubin.size(); size += 97) {
    try {
      const lab::InstructionCounts counts = lab::count_instructions(cubin.substr(0, size));
      EXPECT_EQ(counts.total, lab::count_instructions(cubin).total) << size;
    } catch (const Error&) {
    }
  }
}

struct CompiledRung {
  lab::RungKernel kernel;
  jit::Resources resources;
  lab::InstructionCounts counts;
};

class RungsOn : public testing::TestWithParam<const char*> {
 protected:
  // Each rung is compiled once for each architecture.
  const CompiledRung& rung(const std::string& name) const {
    static std::map<std::pair<std::string, std::string>, CompiledRung> known;
    const auto key = std::pair(std::string(GetParam()), name);
    if (const auto found = known.find(key); found != known.end()) return found->second;
    for (const lab::Rung& candidate : lab::ladder_rungs()) {
      if (name != candidate.name) continue;
      lab::RungKernel kernel = lab::rung_kernel(candidate, parse_problem(mission), device_preset(GetParam()));
      const jit::Image image = jit::compile(kernel.request);
      return known
          .emplace(key, CompiledRung{std::move(kernel), jit::parse_resources(image.log),
                                     lab::count_instructions(image.bytes)})
          .first->second;
    }
    throw std::out_of_range(name);
  }

  // The number of blocks that a multiprocessor holds at once.
  static int blocks_of(const CompiledRung& one) {
    const int64_t shared_bytes = one.resources.shared_bytes + static_cast<int64_t>(one.kernel.unit.smem_bytes);
    return lab::occupancy(device_preset(GetParam()),
                          {one.resources.registers, one.kernel.unit.threads, one.resources.barriers, shared_bytes})
        .blocks;
  }
};
INSTANTIATE_TEST_SUITE_P(Architectures, RungsOn, testing::ValuesIn(architectures),
                         [](const auto& test) { return std::string(test.param); });

TEST_P(RungsOn, NoRungSpillsAndAllFitTheirCard) {
  for (const lab::Rung& each : lab::ladder_rungs()) {
    const CompiledRung& one = rung(each.name);
    ASSERT_TRUE(one.resources.known) << each.name;
    EXPECT_EQ(one.counts.local, 0) << each.name;
    EXPECT_EQ(one.resources.spill_store_bytes + one.resources.spill_load_bytes + one.resources.stack_bytes, 0)
        << each.name;
    EXPECT_TRUE(one.resources.warnings.empty()) << each.name << ": " << one.resources.warnings[0];
    EXPECT_GE(blocks_of(one), 1) << each.name;
  }
}

TEST_P(RungsOn, ScalarUsesTheOrdinaryCoresOnly) {
  const lab::InstructionCounts& counts = rung("scalar").counts;
  EXPECT_EQ(counts.hmma + counts.ldsm + counts.ldgsts, 0);
  EXPECT_GE(counts.ffma, 16);
  EXPECT_EQ(counts.ldg_16, 0) << "its loads are of single elements";
}

TEST_P(RungsOn, TiledUnrollsFusedMultiplyAddsAndReadsWide) {
  const lab::InstructionCounts& counts = rung("tiled").counts;
  EXPECT_EQ(counts.hmma + counts.ldsm + counts.ldgsts, 0);
  EXPECT_GE(counts.ffma, 512);   // two products, four steps of 4 x 4 x 4 each
  EXPECT_GE(counts.ldg_16, 10);  // 2 of Q, 4 of K, 4 of V
  EXPECT_EQ(counts.ldg, counts.ldg_16);
  EXPECT_GE(counts.lds_16, 64);
}

TEST_P(RungsOn, TensorHasTensorCoresAndWaitsForItsLoads) {
  const lab::InstructionCounts& counts = rung("tensor").counts;
  EXPECT_EQ(counts.hmma, 64);  // 16 x 64 x 64 twice, in pieces of 16 x 8 x 16
  EXPECT_GE(counts.ldsm, 32);
  EXPECT_EQ(counts.ldgsts, 0);
  EXPECT_GE(counts.ldg_16, 12);  // 4 of each tile
  EXPECT_GT(counts.lds_16, 0) << "scores come back from shared memory";
  EXPECT_LT(counts.ffma, 64);
}

TEST_P(RungsOn, PipelinedCopiesAsynchronouslyAndKeepsScoresInRegisters) {
  const lab::InstructionCounts& counts = rung("pipelined").counts;
  EXPECT_EQ(counts.hmma, 64);
  EXPECT_GE(counts.ldgsts, 12);
  EXPECT_EQ(counts.ldg_16, 0) << "tiles do not pass through registers";
  EXPECT_EQ(counts.sts + counts.lds, 0) << "nor do scores pass through shared memory";
  EXPECT_EQ(counts.arrives, 0) << "it waits for groups of copies and for the whole block";
  EXPECT_LE(counts.ffma, 16);
}

TEST_P(RungsOn, SwizzledFoldsTheScaleIntoTheExponent) {
  const CompiledRung& one = rung("swizzled");
  EXPECT_GE(one.counts.hmma, 64);
  EXPECT_GT(one.counts.ldgsts, 0);
  EXPECT_EQ(one.kernel.config.number("stages"), 3);
  EXPECT_EQ(one.kernel.config.number("scale_in_exp2"), 1);
  constexpr int scores = 32;  // number of scores of a lane in a step; each needs a fused operation
  EXPECT_GE(one.counts.ffma, scores);
  EXPECT_LT(rung("pipelined").counts.ffma, scores);
}

TEST_P(RungsOn, WarpSpecialisedLoadsInItsProducersAndMeetsAtBarriers) {
  constexpr int copies_of_q = 4;  // copies per lane of a consumer warp, which loads 16 rows of 128 bytes
  for (const int producers : {1, 2}) {
    const CompiledRung& one = rung(concat("ws_p", producers));
    EXPECT_EQ(one.kernel.unit.threads, 32 * (4 + producers));
    EXPECT_EQ(one.counts.hmma, 64);
    EXPECT_EQ(one.counts.ldgsts, copies_of_q + 2 * 16 / producers) << "the producers share the 16 rows of K and of V";
    EXPECT_EQ(one.counts.arrives, 2) << "of K and of V";
    EXPECT_EQ(one.counts.ldg_16, 0);
    EXPECT_EQ(one.counts.lds_16 + one.counts.sts_16, 0) << "scores stay in registers";
    EXPECT_LE(one.counts.ffma, 16);
    EXPECT_EQ(blocks_of(one), 2);
  }
}

TEST_P(RungsOn, PersistentIsWarpSpecialisedWithALoopOverTiles) {
  const CompiledRung& one = rung("persistent");
  EXPECT_EQ(one.counts.hmma, 64);
  EXPECT_EQ(one.counts.arrives, 2);
  EXPECT_EQ(one.kernel.unit.threads, rung("ws_p1").kernel.unit.threads);
  EXPECT_EQ(one.counts.ldgsts, rung("ws_p1").counts.ldgsts + 4) << "Q of the next tile is loaded early";
  EXPECT_EQ(one.counts.ldg_16 + one.counts.lds_16 + one.counts.sts_16, 0);
  EXPECT_EQ(blocks_of(one), 2);
}

const lab::Rung& rung_named(const std::string& name) {
  for (const lab::Rung& each : lab::ladder_rungs())
    if (name == each.name) return each;
  throw std::out_of_range(name);
}

TEST_P(RungsOn, ShippedIsWhatThePlannerChooses) {
  const Problem problem = parse_problem(mission);
  const Device device = device_preset(GetParam());
  const Plan chosen = plan(problem, device);
  for (const char* name : {"shipped", "l2_window"}) {  // only their launches differ
    const lab::RungKernel shipped = lab::rung_kernel(rung_named(name), problem, device);
    EXPECT_EQ(chosen.steps[0].family->unit(chosen.steps[0].config).text, shipped.unit.text);
    EXPECT_TRUE(shipped.files.empty());
  }
}

TEST(Ladder, EveryRungHasASignatureOfItsOwn) {
  std::map<std::string, std::string> met;
  for (const lab::Rung& rung : lab::ladder_rungs()) {
    if (rung.launch == lab::RungLaunch::l2_window) continue;  // it has the kernel of rung `shipped`
    const std::string signature =
        jit::signature(lab::rung_kernel(rung, parse_problem(mission), device_preset("sm_89")).request);
    EXPECT_TRUE(met.emplace(signature, rung.name).second) << rung.name << " is " << met[signature];
  }
}

TEST(Ladder, TheL2WindowCoversKeysAndValuesOnly) {
  const Problem problem = parse_problem("f16 b2 h8:4 q128 k448 d64");
  constexpr size_t tensor = 2 * 4 * 448 * 64 * 2;
  alignas(16) static char memory[4 * tensor];
  AttentionParams params;
  const auto window = [&](size_t k, size_t v) {
    params.k.data = memory + k, params.v.data = memory + v;
    return lab::kv_window(params, problem);
  };
  EXPECT_EQ(window(tensor, 2 * tensor).begin, memory + tensor);
  EXPECT_EQ(window(tensor, 2 * tensor).bytes, 2 * tensor);
  EXPECT_EQ(window(3 * tensor, 0).begin, memory);
  EXPECT_EQ(window(3 * tensor, 0).bytes, 4 * tensor);  // one window also covers what lies between them
}

TEST(Ladder, RefusesWhatARungWouldComputeWrongly) {
  EXPECT_NO_THROW(lab::require_ladder_problem(parse_problem(mission)));
  EXPECT_NO_THROW(lab::require_ladder_problem(parse_problem("f16 b3 h8:2 q128 k448 d64")));
  for (const char* line : {"bf16 b1 h8 q512 d64", "f16 b1 h8 q512 d128", "f16 b1 h8 q500 d64", "f16 b1 h8 q512 k96 d64",
                           "f16 b1 h8 q512 d64:128", "f16 b1 h8 q512 d64 causal", "f16 b1 h8 q512 d64 lse",
                           "f16 b1 h8 q512 d64 window=3,0", "f16 b1 h8 q512 d64 softcap=30", "f16 b1 h8 q512 d64 alibi",
                           "f16 b1 h8 q512 d64 scale=0.5", "f16 b1 h8 q512 d64 layout=bshd", "f16 b0 h8 q512 d64",
                           "f16 b2 h8 varlen=64,64 d64", "f16 b1 h8 q512 d64 acc=f16", "f16 b1 h8 q512 k0 d64"}) {
    try {
      lab::require_ladder_problem(parse_problem(line));
      ADD_FAILURE() << line << " was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(static_cast<int>(error.code()), static_cast<int>(ErrorCode::unsupported)) << line;
      EXPECT_NE(std::string(error.what()).find("--ladder"), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace rapt::test
