// Tests attention_decode on every problem that it accepts, also those for which the planner prefers another family.
#include "base/error.h"
#include "check/cases.h"
#include "gpu_support.h"
#include "kernels/family.h"

namespace rapt::test {
namespace {

class GpuDecode : public GpuTest {
 protected:
  static bool accepted(const std::string& line) {
    const Problem problem = parse_problem(line);
    const Device& gpu = cuda::device(0);
    return attention_decode.accepts(planned_problem(problem, gpu), gpu, nullptr);
  }
  static void expect_all_pass(const std::vector<Job>& jobs, const std::string& config = "") {
    for (const Job& job : jobs) ASSERT_TRUE(accepted(job.line)) << job.line;
    const auto context = make_context({.config = concat("family=attention_decode ", config)});
    expect_pass(jobs, context.get());
  }
};

// One test for each set of cases, so that each is within the time limit of the watchdog.
class GpuDecodeCases : public GpuDecode, public testing::WithParamInterface<const char*> {};

}  // namespace

TEST_P(GpuDecodeCases, EveryCaseThatItAccepts) {
  std::vector<Job> jobs;
  for (const check::Case& c : check::load_cases(GetParam(), cases_directory()))
    for (check::Fill fill : c.fills)
      if (accepted(c.line)) jobs.push_back({c.line, fill});
  std::printf("attention_decode takes %zu checks of %s\n", jobs.size(), GetParam());
  EXPECT_FALSE(jobs.empty());
  expect_all_pass(jobs);
}

INSTANTIATE_TEST_SUITE_P(Set, GpuDecodeCases,
                         testing::Values("smoke", "seed", "ragged", "mask", "varlen", "quant", "paged"),
                         [](const auto& instance) { return std::string(instance.param); });

TEST_F(GpuDecode, EveryLength) {
  std::vector<Job> jobs;
  for (int n = 1; n <= 1100; n += n < 40 || n % 64 >= 62 || n % 64 <= 1 ? 1 : 60) {
    jobs.push_back({concat("f16 b2 h4:2 q1 k", n, " d64 lse")});
    jobs.push_back({concat("bf16 b1 h8:2 q3 k", n, " d128 causal lse"), check::Fill::hidden_nan});
    jobs.push_back({concat("f16 b1 h2:1 q2 k", n, " d256 window=30,9 lse"), check::Fill::huge});
    jobs.push_back({concat("q=bf16 k=e4m3 v=e4m3 b2 h4:1 q1 k", n, " d128 k_scales=head v_scales=head lse")});
    jobs.push_back({concat("bf16 b3 h4:2 q1 k", n, " d128 page=16 seqused=", n, ",", n / 2, ",0 lse")});
  }
  for (int n = 1; n <= 128; ++n) jobs.push_back({concat("bf16 b1 h4:2 q", n, " k300 d64 causal lse")});
  expect_all_pass(jobs);
}

// Long keys, which many CTAs share, and sequences of very different lengths. The 200 sequences are packed: then only
// the keys in use take memory. With seqused, each of the 20 sequences has memory for 9000 keys.
TEST_F(GpuDecode, LongAndUnequalKeys) {
  std::string used = "9000", packed = "1:9000";
  for (int i = 1; i < 200; ++i) {
    const int keys = i % 5 == 0 ? 0 : i * 37 % 300;
    if (i < 20) used += concat(",", keys);
    packed += concat(",1:", keys);
  }
  expect_all_pass({{"bf16 b1 h32:8 q1 k9001 d128 lse"},
                   {"f16 b3 h8:8 q2 k5000 d64 causal lse"},
                   {concat("bf16 b20 h8:2 q1 k9000 d64 seqused=", used, " lse")},
                   {concat("bf16 h8:2 d64 varlen=", packed, " lse")},
                   {concat("bf16 h8:2 d64 varlen=", packed, " page=16 lse"), check::Fill::rescale},
                   {"bf16 b1 h32:8 q1 k9001 d128 sinks softcap=20 lse"}});
}

// The order in which CTAs arrive must not change a bit, and counters must return to 0.
TEST_F(GpuDecode, RepeatsBits) {
  const auto context = make_context({.config = "family=attention_decode"});
  for (const char* line : {"bf16 b1 h32:8 q1 k9001 d128 lse", "f16 b7 h8:2 q5 k3001 d64 causal lse"}) {
    Call expected = make(line);
    fill_hash(expected);
    run_gpu(expected, context.get());
    for (int i = 0; i < 200; ++i) ASSERT_TRUE(repeats_on_gpu(expected, context.get())) << line << ", call " << i;
  }
}

}  // namespace rapt::test
