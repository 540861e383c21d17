// Tests the required accuracy of FP8 attention on GPU 0, for the family that the planner chooses and for
// attention_scalar. The twelve cases of the first experiments must be within required_bounds in every pv mode. Every
// number of keys from 1 to 640 must give finite results within the bounds. Every run must give equal bits.
#include "base/error.h"
#include "check/bounds.h"
#include "gpu_support.h"

namespace rapt::test {
namespace {

class GpuFp8Gates : public GpuTest {};

const std::vector<std::string> modes = {"", " pv=f16", " pv=fp8x2", " pv=fp8"};

}  // namespace

TEST_F(GpuFp8Gates, TwelveCasesInEveryMode) {
  std::vector<std::string> lines;
  for (const char* shape : {"b1 h2 q64 d64", "b1 h4 q128 d64", "b1 h8 q512 d64", "b2 h2 q64 d64"})
    for (const char* out : {"f16", "bf16", "f32"})
      for (const std::string& mode : modes) {
        const std::string line = concat("e4m3 out=", out, " ", shape, " scales=head", mode);
        lines.push_back(line);
        lines.push_back(for_attention_scalar(line));
      }
  Failures failures;
  in_parallel(3 * lines.size(), failures, [&](size_t i) {
    const Problem p = parse_problem(lines[i / 3]);
    if (check::required_bounds(p, check::Fill::normal, 0).max_abs > 0.06) failures.add("no gate: " + lines[i / 3]);
    const check::Result result =
        check_problem(p, check::Fill::normal, 1 + i % 3, check::library_kernel(nullptr, first_gpu));
    if (!result.pass || result.out.nan_count + result.out.inf_count > 0)
      failures.add(concat(result.message, "\n    ", result.command, " --device cuda:0"));
  });
  failures.report();
}

TEST_F(GpuFp8Gates, EveryNumberOfKeysInEveryMode) {
  std::vector<Job> jobs;
  for (int keys = 1; keys <= 640; ++keys)
    for (size_t mode = 0; mode < modes.size(); ++mode) {
      const char* scales = keys % 2 == 0 ? "block64" : "block128";
      jobs.push_back({concat("e4m3 out=f16 b1 h1 q70 k", keys, " d64 scales=", scales, modes[mode])});
    }
  expect_pass(jobs);
}

TEST_F(GpuFp8Gates, TheSameBitsEveryTime) {
  for (const std::string& mode : modes)
    for (const char* words :
         {"b1 h8 q512 k512 d64 lse", "b2 h4:2 q70 k300 d128 causal lse", "b1 h8:2 q1 k3000 d64 lse"}) {
      Call call = make(concat("e4m3 out=bf16 scales=head ", words, mode));
      call.in = check::make_inputs(call.problem, check::Fill::outlier, 1);
      run_gpu(call);
      for (int i = 0; i < 5 && !HasFailure(); ++i) {
        Call again = call;
        expect_same_bits(run_gpu(again), call);
      }
    }
}

}  // namespace rapt::test
