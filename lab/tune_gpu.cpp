// The measurements of rapt tune: compiles a configuration, drops it if it spills registers, compares its results with
// the float64 oracle, and times it in turns with the best configuration found so far. Called by tune.cpp.
#include <fmt/format.h>

#include <deque>
#include <map>
#include <optional>

#include "arguments/arguments.h"
#include "base/error.h"
#include "base/log.h"
#include "check/check.h"
#include "check/device_tensors.h"
#include "cuda/cuda.h"
#include "lab/bench.h"
#include "lab/gpu_timer.h"
#include "lab/kernel_limit.h"
#include "lab/shortened.h"
#include "lab/tile_size.h"
#include "lab/tune.h"
#include "lab/tune_fills.h"
#include "runtime/context.h"
#include "runtime/gpu.h"

namespace rapt::lab {
namespace {

// The effort of a comparison: warm-up rounds, measured rounds, and the longest time.
struct Effort {
  int64_t warmup, rounds;
  double seconds;
};
constexpr Effort quick{3, 15, 1.5}, thorough_effort{5, 30, 5};
// No samples of a candidate are taken if its first estimate is longer by this factor than that of the best
// configuration.
constexpr double clearly_slower = 1.5;

// A configuration that is compiled and loaded.
struct Ready {
  ContextHandle context;
  std::shared_ptr<const LoadedPlan> loaded = nullptr;
  bool checked = false, checked_whole = false;
};

// A sentence about the register spills of the kernel, or "" if it has none.
std::string spills(const LoadedKernel& kernel, int device) {
  const jit::Resources resources = jit::parse_resources(kernel.image->log);
  const int bytes = resources.known ? resources.spill_store_bytes + resources.spill_load_bytes
                                    : kernel.kernel->attributes(device).local_bytes;
  return bytes == 0 ? "" : concat("its registers spill (", bytes, " bytes)");
}

// Several sets of tensors of one problem on the GPU. Successive calls use different sets.
struct Tensors {
  Tensors(const Problem& given, uint64_t seed, check::Fill values = check::Fill::normal)
      : problem(given),
        fill(values),
        inputs(check::make_inputs(problem, fill, seed)),
        outputs(check::make_outputs(problem)) {}
  Problem problem;
  check::Fill fill;
  check::Inputs inputs;
  check::Outputs outputs;
  std::deque<check::DeviceCall> sets;
};

class GpuTuneBench final : public TuneBench {
 public:
  GpuTuneBench(const TuneOptions& options, const Device& device, const Problem& problem)
      : options_(options), device_(device), scope_(device.index, nullptr), whole_(problem, options.seed) {}

  Comparison compare(const TunePoint& candidate, const TunePoint& best, bool thorough) override {
    forget_all_but(candidate.words(), best.words());
    Comparison result;
    for (const TunePoint* point : {&best, &candidate})
      if (result = check(*point, thorough); result.kind != Comparison::timed) return result;
    take_samples(ready_.at(candidate.words()), ready_.at(best.words()), thorough ? thorough_effort : quick, result);
    return result;
  }

  std::string how_checked() const override {
    if (!can_check_shorter()) return rows_checked(oracle_row_step(flops(whole_.problem)));
    return concat("candidates on \"", short_line_, "\", the fastest on the problem itself (",
                  rows_checked(oracle_row_step(flops(whole_.problem))), ")");
  }

 private:
  // Makes the configuration ready and checks it once. Returns `timed` if it may be timed.
  Comparison check(const TunePoint& point, bool thorough) {
    const std::string words = point.words();
    Ready& ready = ready_[words];
    if (!ready.loaded) {
      if (std::string why = prepare(point, words, ready); !why.empty()) {
        log_info(concat(words, ": dropped: ", why));
        return {Comparison::dropped, std::move(why)};
      }
    }
    try {
      if (!ready.checked_whole && (thorough || !can_check_shorter())) {
        check_results(whole_, words, ready);
        ready.checked_whole = true;
      }
      if (!ready.checked) check_all_fills(point, words, ready);
      ready.checked = true;
    } catch (const Error& error) {
      // After other failures (an illegal address) the GPU's context is unusable, so the search ends.
      std::string sentence = concat(words, ": ", error.what());
      if (error.code() != ErrorCode::internal) throw Error(error.code(), sentence);
      return {Comparison::wrong, std::move(sentence)};
    }
    return {};
  }

  // Compiles and loads the kernel. Returns "" or the reason why the configuration cannot be used.
  std::string prepare(const TunePoint& point, const std::string& words, Ready& ready) {
    if (whole_.sets.empty()) add_sets(1);
    ready.context = make_context(options_.common, device_, whole_.problem, words);
    check::DeviceCall& call = whole_.sets.front();
    try {
      require_ok(rapt_prepare(ready.context.get(), &call.args(), stream_.handle()));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::internal && error.code() != ErrorCode::out_of_memory) throw;
      return error.what();
    }
    const Problem problem = problem_from(call.args());
    ready.loaded = ready.context->impl.gpu().find(problem, device_.index);
    // The family's own configuration is shipped, so its spills are known and accepted.
    const bool own = point.config == point.family->configure(planned_problem(problem, device_), device_);
    return own || ready.loaded->kernels[0] == nullptr ? "" : spills(*ready.loaded->kernels[0], device_.index);
  }

  // The oracle is slow. So for a large problem we check a smaller problem of the same kind with the same kernel.
  bool can_check_shorter() const {
    return oracle_row_step(flops(whole_.problem)) > 1 && can_be_shortened(whole_.problem);
  }
  // Checks several fills on a smaller problem, because this takes little time. A small problem is checked itself if it
  // cannot be made smaller, or if the smaller problem has another kernel. If a large problem cannot be made smaller,
  // this function does nothing: check() has already checked the large problem with Fill::normal.
  void check_all_fills(const TunePoint& point, const std::string& words, Ready& ready) {
    const bool large = oracle_row_step(flops(whole_.problem)) > 1;
    if (large && !can_be_shortened(whole_.problem)) return;
    const Problem small = can_be_shortened(whole_.problem) ? smaller(point) : whole_.problem;
    short_line_ = to_string(small);
    check_fills(tune_fills(small), [&](check::Fill fill) {
      const auto used = check_results(Tensors(small, options_.seed, fill), words, ready);
      if (have_same_kernel(*used, *ready.loaded)) return;
      if (large)
        throw Error(ErrorCode::internal, concat("\"", short_line_, "\" has another kernel than the problem itself"));
      check_results(Tensors(whole_.problem, options_.seed, fill), words, ready);
    });
  }
  // A problem without elements has no kernel.
  static bool have_same_kernel(const LoadedPlan& a, const LoadedPlan& b) {
    if (a.kernels[0] == nullptr || b.kernels[0] == nullptr) return a.kernels[0] == b.kernels[0];
    return a.kernels[0]->image->signature == b.kernels[0]->image->signature;
  }
  Problem smaller(const TunePoint& point) const {
    const int64_t m = rows_of_a_tile(point.config), n = keys_of_a_step(point.config);
    return shortened(whole_.problem, m + m / 2 + 1, 2 * n + 5);
  }

  // Throws Error{internal} if a result exceeds its bound. Returns the plan that was used.
  std::shared_ptr<const LoadedPlan> check_results(const Tensors& tensors, const std::string& words, Ready& ready) {
    check::DeviceCall call(device_.index, tensors.problem, tensors.inputs, tensors.outputs);
    {
      const KernelLimit limit(concat(to_string(tensors.problem), " --config \"", words, "\""), options_.common.command);
      require_ok(rapt_sdpa(ready.context.get(), &call.args(), stream_.handle()));
      stream_.synchronize();
    }
    call.require_untouched();
    call.download();
    BenchRow row;
    judge_call(tensors.problem, tensors.inputs, tensors.outputs, options_.seed,
               rerun_options(options_.common, device_, words), row, tensors.fill);
    return ready.context->impl.gpu().find(problem_from(call.args()), device_.index);
  }

  Enqueue enqueue_on(const Ready& ready) {
    return [this, context = ready.context.get()](int64_t n) {
      const check::DeviceCall& set = whole_.sets[static_cast<size_t>(n) % whole_.sets.size()];
      require_ok(rapt_sdpa(context, &set.args(), stream_.handle()));
    };
  }

  void take_samples(const Ready& candidate, const Ready& best, const Effort& effort, Comparison& result) {
    const int64_t wanted = input_sets(false, bytes(whole_.problem), device_.l2_bytes);
    add_sets(wanted);
    const std::optional<KernelLimit> limit(std::in_place, to_string(whole_.problem), options_.common.command);
    const double best_us = rough_call_us(stream_, enqueue_on(best)),
                 candidate_us = rough_call_us(stream_, enqueue_on(candidate));
    if (candidate_us > clearly_slower * best_us) {
      result.candidate = {candidate_us, candidate_us, candidate_us};
      result.best = {best_us, best_us, best_us};
      return;
    }
    const GraphShape shape = graph_shape(best_us, wanted);
    add_sets(shape.sets);
    const auto a = graph_sampler(stream_, shape, enqueue_on(candidate)),
               b = graph_sampler(stream_, shape, enqueue_on(best));
    const double round_us = (candidate_us + best_us) * static_cast<double>(shape.launches);
    const int64_t rounds = samples_within(effort.seconds, round_us, effort.rounds);
    const Attempt attempt = steadiest(
        [&] {
          return sampled({a.get(), b.get()}, effort.warmup, rounds);
        },
        effort.seconds);
    result.candidate = quartiles(attempt.samples[0].us), result.best = quartiles(attempt.samples[1].us);
  }

  Attempt sampled(const std::vector<Sampler*>& samplers, int64_t warmup, int64_t rounds) {
    Attempt attempt;
    sample_interleaved(samplers, warmup, random_++);
    for (Sampler* sampler : samplers) sampler->finish();
    sample_interleaved(samplers, rounds, random_++);
    for (Sampler* sampler : samplers) attempt.samples.push_back(sampler->finish());
    return attempt;
  }

  void add_sets(int64_t count) {
    while (static_cast<int64_t>(whole_.sets.size()) < count)
      whole_.sets.emplace_back(device_.index, whole_.problem, whole_.inputs, whole_.outputs, 0);
  }

  void forget_all_but(const std::string& a, const std::string& b) {
    std::erase_if(ready_, [&](const auto& entry) { return entry.first != a && entry.first != b; });
  }

  const TuneOptions& options_;
  const Device device_;
  cuda::ContextScope scope_;
  cuda::Stream stream_;
  Tensors whole_;
  std::string short_line_;              // the last shorter problem
  std::map<std::string, Ready> ready_;  // key: the words of the configuration
  uint64_t random_ = 1;
};

}  // namespace

std::unique_ptr<TuneBench> gpu_tune_bench(const TuneOptions& options, const Device& device, const Problem& problem) {
  return std::make_unique<GpuTuneBench>(options, device, problem);
}

}  // namespace rapt::lab
