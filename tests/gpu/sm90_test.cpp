// Tests attention_sm90 on every problem that it accepts, also on small problems, for which the planner chooses
// attention_sm80.
#include "base/error.h"
#include "check/cases.h"
#include "gpu_support.h"
#include "kernels/family.h"

namespace rapt::test {
namespace {

class GpuSm90 : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (HasFatalFailure() || IsSkipped()) return;
    if (const Device& gpu = cuda::device(0); gpu.arch != "sm_90a") skip(concat(gpu.name, " is not sm_90a"));
  }

  static bool accepted(const std::string& line) {
    const Problem problem = parse_problem(line);
    const Device& gpu = cuda::device(0);
    return attention_sm90.accepts(planned_problem(problem, gpu), gpu, nullptr);
  }
  static void expect_all_pass(const std::vector<Job>& jobs, const std::string& config = "") {
    for (const Job& job : jobs) ASSERT_TRUE(accepted(job.line)) << job.line;
    const auto context = make_context({.config = concat("family=attention_sm90 ", config)});
    expect_pass(jobs, context.get());
  }
};

}  // namespace

TEST_F(GpuSm90, EveryCaseThatItAccepts) {
  for (const char* set : {"smoke", "seed", "ragged", "mask", "varlen"}) {
    std::vector<Job> jobs;
    for (const check::Case& c : check::load_cases(set, cases_directory()))
      for (check::Fill fill : c.fills)
        if (accepted(c.line)) jobs.push_back({c.line, fill});
    std::printf("attention_sm90 takes %zu checks of %s\n", jobs.size(), set);
    expect_all_pass(jobs);
  }
}

// All lengths up to 40, and lengths around the ends of tiles of 64 to 192 rows and 80 to 144 keys.
TEST_F(GpuSm90, EveryLength) {
  std::vector<Job> jobs;
  for (int n = 1; n <= 640; n += n < 40 || n % 16 == 15 || n % 16 == 0 ? 1 : n % 16 == 1 ? 6 : 16 - (n + 1) % 16) {
    jobs.push_back({concat("f16 b1 h2 q70 k", n, " d64")});
    jobs.push_back({concat("bf16 b1 h2:1 q130 k", n, " d128 causal"), check::Fill::hidden_nan});
    jobs.push_back({concat("f16 b1 h1 q200 k", n, " d256 window=30,9")});
    jobs.push_back({concat("bf16 b1 h2 q", n, " k150 d64 causal")});
    jobs.push_back({concat("f16 b1 h2:1 q", n, " k300 d128"), check::Fill::huge});
    jobs.push_back({concat("bf16 b1 h1 q", n, " k", n, " d192:128 causal lse")});
  }
  expect_all_pass(jobs);
}

TEST_F(GpuSm90, EveryHeadDimension) {
  std::vector<Job> jobs;
  for (int d = 8; d <= 256; d += 8)
    for (const char* type : {"f16", "bf16"})
      for (const char* mask : {"", " causal"}) jobs.push_back({concat(type, " b1 h2 q140 k300 d", d, mask)});
  for (const char* dims :
       {"8:256", "256:8", "64:128", "128:64", "192:128", "40:72", "72:40", "16:24", "24:16", "80:96", "104:248"})
    jobs.push_back({concat("bf16 b1 h2 q140 k300 d", dims, " causal")});
  expect_all_pass(jobs);
}

TEST_F(GpuSm90, EveryFillWithWhatItSupports) {
  std::vector<Job> jobs;
  for (const check::Fill fill : {check::Fill::normal, check::Fill::huge, check::Fill::outlier, check::Fill::rescale,
                                 check::Fill::rescale_reversed, check::Fill::hidden_nan, check::Fill::seen_nan})
    for (const char* words :
         {"b2 h4:2 q190 k260 d64 causal lse", "b1 h2 q300 k300 d128 window=40,10 sinks lse",
          "h4:2 d64 varlen=17,0,300,1,64 causal lse", "h2 d128 varlen=17:40,0:3,140:1,1:0,64:500 lse",
          "b3 h2 q140 k150 d64 causal seqused=150,20,33 seqused_q=140,3,0 lse",
          "b2 h2 q70 k150 d64 causal q_start=90,10 lse", "b2 h4:1 q130 k200 d96 layout=bshd causal_top_left lse",
          "b1 h2 q100 k600 d80 invariant lse"})
      for (const char* type : {"f16 ", "bf16 ", "bf16 out=f32 "}) jobs.push_back({concat(type, words), fill});
  jobs.push_back({"bf16 out=f32 b1 h2 q100 k130 d64 causal lse partial"});
  expect_all_pass(jobs);
}

TEST_F(GpuSm90, SoftCapAlibiBiasAndMask) {
  std::vector<Job> jobs;
  for (const check::Fill fill : {check::Fill::normal, check::Fill::huge, check::Fill::outlier, check::Fill::rescale,
                                 check::Fill::rescale_reversed, check::Fill::hidden_nan, check::Fill::seen_nan})
    for (const char* words :
         {"b2 h4:2 q190 k260 d64 causal softcap=20 lse", "b1 h4 q300 k300 d128 softcap=0.3 causal",
          "b2 h4:2 q130 k261 d128 bias=f32[b,1,q,k] lse", "b2 h4 q130 k260 d80 bias=f16[1,h,1,k] lse",
          "b2 h4 q300 k700 d64 bias=bf16[1,h,q,k]", "b3 h4 q130 k260 d128 mask=[b,1,1,k] lse sinks",
          "b3 h4:1 q300 k260 d64 mask=[b,1,q,k]", "b2 h4 q100 k200 d192:128 mask=[b,h,q,1]",
          "b1 h4:1 q200 k300 d256 causal alibi lse", "b1 h8 q400 k400 d96 window=40,10 alibi scale=-0.3 lse",
          "b2 h2 q70 k90 d64 scale=0 bias=f32[b,h,q,k] lse", "b2 h4 q140 k150 d256 bias=f16[1,h,q,k] mask=[b,1,1,k]",
          "h4:2 d64 varlen=17:40,0:3,140:1,1:0,64:500 causal alibi softcap=5 bias=f32[b,h,q,k] mask=[b,1,q,k] lse",
          "b3 h4 q140 k150 d128 causal seqused=150,20,33 seqused_q=140,3,0 softcap=30 mask=[b,1,1,k] lse"})
      for (const char* type : {"f16 ", "bf16 "}) jobs.push_back({concat(type, words), fill});
  expect_all_pass(jobs);
}

// TMA loads bias and mask in boxes, also where their rows end within 16 bytes. The fills masked_rows and rescale have
// masks that hide whole blocks.
TEST_F(GpuSm90, BoxesAndHiddenBlocks) {
  std::vector<Job> jobs;
  for (const check::Fill fill : {check::Fill::normal, check::Fill::huge, check::Fill::masked_rows, check::Fill::rescale,
                                 check::Fill::rescale_reversed, check::Fill::hidden_nan, check::Fill::seen_nan})
    for (const char* words :
         {"b2 h4:2 q300 k704 d64 bias=bf16[1,h,q,k] lse", "b2 h4 q300 k320 d128 causal bias=f32[b,1,q,k] lse",
          "b1 h4 q140 k304 d256 bias=f16[1,h,1,k] lse", "b1 h2 q300 k100 d64 bias=f16[1,1,1,k] mask=[1,1,1,k] lse",
          "b4 h4 q300 k640 d64 mask=[b,1,1,k] lse sinks", "b4 h4:1 q400 k640 d64 mask=[b,1,q,k] lse",
          "b2 h4 q400 k640 d128 causal mask=[b,h,q,k] lse", "b2 h4 q400 k656 d96 window=90,30 mask=[1,h,q,k]",
          "b4 h4 q140 k640 d256 mask=[b,1,1,k] lse", "b2 h4 q300 k640 d64 causal bias=bf16[b,h,q,k] mask=[b,1,q,k] lse",
          "b2 h4 q300 k640 d128 causal softcap=5 alibi bias=f32[b,h,1,k] mask=[b,1,q,k] lse",
          "h4:2 d64 varlen=17:40,0:3,140:100,1:0,64:512 causal mask=[b,1,q,k] lse",
          "b3 h4 q140 k160 d128 causal seqused=150,20,33 seqused_q=140,3,0 mask=[b,1,q,k] lse"})
      for (const char* type : {"f16 ", "bf16 "}) jobs.push_back({concat(type, words), fill});
  expect_all_pass(jobs);
}

// The rows of a tile belong to different heads, which have their own slopes, elements of bias and mask, and sinks.
TEST_F(GpuSm90, RowsOfAGroupHaveTheirOwnSteps) {
  std::vector<Job> jobs;
  for (const check::Fill fill : {check::Fill::normal, check::Fill::huge, check::Fill::hidden_nan})
    for (const char* words :
         {"b2 h8:2 q37 k513 d64 causal alibi sinks lse", "b2 h8:2 q37 k300 d128 bias=f32[b,h,q,k] lse",
          "b1 h8:2 q100 k301 d80 window=60,9 bias=bf16[1,h,q,k] lse", "b2 h4:1 q40 k300 d128 mask=[b,h,q,k] lse",
          "h8:2 d64 varlen=17:40,0:3,140:1,1:0,64:500 causal softcap=5 bias=f16[1,h,1,k] mask=[b,1,q,1] lse",
          "b3 h4:1 q140 k150 d256 causal seqused=150,20,33 seqused_q=140,3,0 alibi bias=f32[b,h,q,k] lse"})
      for (const char* type : {"f16 ", "bf16 "}) jobs.push_back({concat(type, words), fill});
  expect_all_pass(jobs, "packed_heads=4 boxes=0");
}

// Tiles that the planner does not choose now, but that tuning could choose.
TEST_F(GpuSm90, OtherConfigurations) {
  for (const char* config :
       {"warpgroups=2 block_n=64 q_stages=1 kv_stages=7 ping_pong=1", "warpgroups=3 block_n=96 ping_pong=0",
        "warpgroups=2 block_n=176 q_stages=1 kv_stages=2 ping_pong=0",
        "warpgroups=3 block_n=16 q_stages=3 kv_stages=3 ping_pong=1",
        "warpgroups=2 block_n=128 ping_pong=1 causal_or_local=1",
        "warpgroups=4 block_n=64 q_stages=1 kv_stages=4 ping_pong=1",
        "warpgroups=2 block_n=48 q_stages=1 kv_stages=4 ping_pong=0",
        "warpgroups=1 block_n=64 kv_stages=3 ping_pong=0"}) {
    SCOPED_TRACE(config);
    std::vector<Job> jobs;
    for (int k : {1, 15, 16, 17, 63, 64, 65, 100, 128, 129, 200, 300, 513})
      for (const char* tail : {" d64 causal", " d40:72 window=20,5", " d64 causal sinks lse"})
        jobs.push_back({concat("f16 b2 h3 q230 k", k, tail)});
    expect_all_pass(jobs, config);
  }
}

// Tests inputs whose weights must be corrected, and rows of a GQA group that share tiles (no shipped plan does this).
TEST_F(GpuSm90, LargeScoresAndPackedHeads) {
  for (const char* config : {"", "ping_pong=0", "packed_heads=4", "packed_heads=4 warpgroups=3 block_n=96"}) {
    SCOPED_TRACE(config);
    std::vector<Job> jobs;
    for (const check::Fill fill : {check::Fill::normal, check::Fill::huge, check::Fill::outlier, check::Fill::rescale,
                                   check::Fill::rescale_reversed, check::Fill::hidden_nan, check::Fill::seen_nan})
      for (const char* words : {"b2 h8:2 q230 k513 d64 causal sinks lse", "b1 h4:1 q37 k300 d128 window=40,10 lse",
                                "h8:2 d64 varlen=17:40,0:3,140:1,1:0,64:500 causal lse",
                                "b3 h4:1 q140 k150 d64 causal seqused=150,20,33 seqused_q=140,3,0 lse",
                                "b1 h4:1 q100 k600 d80 lse", "b1 h4:1 q100 k600 d256 layout=bshd"})
        for (const char* type : {"f16 ", "bf16 "}) jobs.push_back({concat(type, words), fill});
    std::erase_if(jobs, [&](const Job& job) {  // these tiles need too many registers for wide heads
      return std::string_view(config).find("warpgroups=3") != std::string_view::npos &&
             job.line.find("d256") != std::string::npos;
    });
    jobs.push_back({"bf16 out=f32 b1 h4:1 q100 k130 d64 causal lse partial"});
    expect_all_pass(jobs, config);
  }
}

// Plans for a part of the GPU, such as a MIG slice: a persistent kernel computes all tiles with few CTAs.
TEST_F(GpuSm90, FewerMultiprocessors) {
  for (const int sm_count : {1, 7, 16}) {
    SCOPED_TRACE(sm_count);
    const std::vector<Job> tiles = {{"bf16 b2 h8:2 q700 k900 d128 causal lse"},
                                    {"f16 b1 h16 q600 k600 d64", check::Fill::outlier},
                                    {"bf16 h8 d128 varlen=400:500,0:30,130:1,64:700 causal lse"},
                                    {"f16 b3 h8 q400 k450 d64 causal seqused=450,20,33 seqused_q=400,3,0 lse"}};
    for (const Job& job : tiles) ASSERT_TRUE(accepted(job.line)) << job.line;
    for (const char* config : {"family=attention_sm90", "family=attention_sm80"})
      expect_pass(tiles, make_context({.sm_count = sm_count, .config = config}).get());
    // Decoding: in attention_sm80 the warps of a CTA share the keys. The planner chooses the kernels.
    std::vector<Job> all = tiles;
    for (const char* line : {"bf16 b4 h32:8 q1 k4096 d128", "f16 b1 h8 q1 k3000 d64 lse",
                             "bf16 b3 h16:4 q4 k2000 d128 causal seqused=2000,1,700 lse", "f32 b1 h4 q70 k300 d64"})
      all.push_back({line});
    expect_pass(all, make_context({.sm_count = sm_count}).get());
  }
}

}  // namespace rapt::test
