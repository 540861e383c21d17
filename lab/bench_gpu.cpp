// bench on a GPU: checks each configuration (one per --config), then samples all of them, in a new random order in
// every round. Called by bench.cpp.
#include <fmt/format.h>

#include <chrono>
#include <deque>
#include <optional>

#include "arguments/arguments.h"
#include "check/device_tensors.h"
#include "cuda/driver.h"
#include "lab/bench.h"
#include "lab/gpu_clocks.h"
#include "lab/gpu_timer.h"
#include "lab/kernel_limit.h"
#include "lab/machine.h"
#include "lab/roof_gpu.h"
#include "runtime/context.h"
#include "runtime/gpu.h"

namespace rapt::lab {
namespace {

using Clock = std::chrono::steady_clock;

double us_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

// One configuration on one problem, checked and ready to be sampled.
struct Candidate {
  ContextHandle context;
  BenchRow row;
  std::shared_ptr<const LoadedPlan> loaded = nullptr;
  std::unique_ptr<Sampler> sampler = nullptr, host = nullptr;
};

std::string peaks_text(const Roof& roof) {
  std::string products;
  const auto add = [&](const char* name, double flops) {
    if (flops > 0) products += fmt::format("{}{} {:.1f}", products.empty() ? "" : ", ", name, flops / 1e12);
  };
  add("mma.sync f16", roof.f16_flops);
  add("mma.sync tf32", roof.tf32_flops);
  add("mma.sync fp8", roof.fp8_flops);
  add("wgmma f16", roof.wgmma_f16_flops);
  add("wgmma fp8", roof.wgmma_fp8_flops);
  add("f32", roof.fma_flops);
  return fmt::format("measured peaks: {} TFLOP/s; exp2 {:.2f} T/s; L2 {:.0f}, DRAM {:.0f} GB/s; launch {:.2f} us",
                     products, roof.exponentials / 1e12, roof.l2_bytes / 1e9, roof.read_bytes / 1e9,
                     roof.launch_seconds * 1e6);
}

class GpuBench final : public Bench {
 public:
  GpuBench(const BenchOptions& options, const Device& device)
      : options_(options), device_(device), scope_(device.index, nullptr), clocks_(device) {
    if (const jit::Compiler* compiler = jit::find_compiler()) nvrtc_ = compiler->version;
    try {
      roof_ = measure_gpu_roof(cuda::device(device.index));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::environment) throw;
      roof_note_ = error.what();  // kernels from packs run without NVRTC, but measuring the peak needs it
    }
  }

  std::string card() const override { return file_safe(device_.name); }
  std::string headline() const override {
    const std::string clocks = clocks_.note().empty() ? "" : "\n" + clocks_.note();
    return fmt::format("{}, {}{}, {}; timer {}, inputs {}\n{}{}", title_of(device_), device_.arch,
                       sm_count_note(options_.common), driver_text(), timer(), options_.l2,
                       roof_note_.empty() ? peaks_text(roof_) : "peak not measured: " + roof_note_, clocks);
  }

  Measured measure(const Problem& problem) override {
    const check::Inputs inputs = check::make_inputs(problem, check::Fill::normal, options_.seed);
    Measured measured;
    int64_t sets = 0;
    try {
      sets = input_sets(options_.l2 == "cold", bytes(problem), device_.l2_bytes);
    } catch (const Error& error) {
      measured.faults.push_back({"rapt", error});
      return measured;
    }
    std::deque<Candidate> candidates;
    for (size_t i = 0; i < configs().size(); ++i) {
      const std::string config = configs()[i];
      const bool shipped = i >= configs().size() - options_.common.against.size();
      try {
        candidates.push_back(checked_candidate(problem, inputs, config, shipped));
      } catch (const Error& error) {
        // In a suite, --config may be invalid for the kernel of one of the problems.
        const bool of_config = error.code() == ErrorCode::invalid_argument && !config.empty();
        if (error.code() != ErrorCode::unsupported && error.code() != ErrorCode::internal && !of_config) throw;
        measured.faults.push_back(
            {candidate_name(config, shipped), Error(error.code(), with_variant_path(error.what(), options_.common))});
      }
    }
    if (!candidates.empty()) take_samples(problem, inputs, sets, candidates);
    for (Candidate& candidate : candidates) measured.rows.push_back(std::move(candidate.row));
    return measured;
  }

 private:
  std::string timer() const { return options_.timer.empty() ? "graph" : options_.timer; }
  std::vector<std::string> configs() const {
    return options_.common.configs.empty() ? std::vector<std::string>{""} : options_.common.configs;
  }
  // shipped: the candidate is one of --against. Even with --variant, it uses the library's own source.
  std::string candidate_name(const std::string& config, bool shipped) const {
    if (configs().size() == 1) return "rapt";
    const std::string name = options_.common.variant.empty() || shipped ? "rapt" : "rapt variant";
    return config.empty() ? name : name + " " + config;
  }

  Candidate checked_candidate(const Problem& problem, const check::Inputs& inputs, const std::string& config,
                              bool shipped) {
    Common common = options_.common;
    if (shipped) common.variant.clear();
    Candidate candidate{make_context(common, device_, problem, config), {}};
    const check::Outputs outputs = check::make_outputs(problem);
    check::DeviceCall call(device_.index, problem, inputs, outputs);
    std::optional<KernelLimit> limit(std::in_place, to_string(problem), options_.common.command);
    const auto begin = Clock::now();
    require_ok(rapt_prepare(candidate.context.get(), &call.args(), stream_.handle()));
    const double cold_us = us_since(begin);
    candidate.loaded = candidate.context->impl.gpu().find(problem_from(call.args()), device_.index);
    candidate.row = make_row(problem, *candidate.loaded);
    candidate.row.implementation = candidate_name(config, shipped);
    candidate.row.cold_us = cold_us;
    const auto first = Clock::now();
    require_ok(rapt_sdpa(candidate.context.get(), &call.args(), stream_.handle()));
    stream_.synchronize();
    candidate.row.first_us = us_since(first);
    call.require_untouched();
    call.download();
    limit.reset();
    judge_call(problem, inputs, outputs, options_.seed, rerun_options(common, device_, config), candidate.row);
    return candidate;
  }

  BenchRow make_row(const Problem& problem, const LoadedPlan& loaded) const {
    BenchRow row;
    row.problem = to_string(problem);
    describe_kernels(loaded, row);
    row.arch = device_.arch;
    row.sm_count = device_.sm_count;
    row.unit = problem.q == DType::f32 ? Unit::f32 : Unit::f16;
    row.timer = timer();
    row.l2 = options_.l2;
    row.card = card();
    row.driver = driver_text();
    row.command = options_.common.command;
    row.version = rapt_version();
    row.threads = 0;
    row.flops = flops(problem);
    row.bytes = bytes(problem);
    row.roof = roof_;
    return row;
  }

  void describe_kernels(const LoadedPlan& loaded, BenchRow& row) const {
    describe_plan(loaded.plan, row);
    const LoadedKernel* kernel = loaded.kernels[0];
    if (kernel == nullptr) return;
    row.pdl = loaded.plan.steps[0].config.number("programmatic") != 0;
    row.signature = kernel->image->signature;
    row.nvrtc = kernel->image->compiler.empty() ? nvrtc_ : kernel->image->compiler;
    row.registers = kernel->kernel->attributes(device_.index).registers;
    const jit::Resources resources = jit::parse_resources(kernel->image->log);
    if (resources.known) row.spill_bytes = resources.spill_store_bytes + resources.spill_load_bytes;
  }

  // All candidates use the same input sets. There are at least `wanted` of them.
  void take_samples(const Problem& problem, const check::Inputs& inputs, int64_t wanted,
                    std::deque<Candidate>& candidates) {
    const check::Outputs outputs = check::make_outputs(problem);
    std::deque<check::DeviceCall> sets;
    const auto add_sets = [&](int64_t count) {
      while (static_cast<int64_t>(sets.size()) < count) sets.emplace_back(device_.index, problem, inputs, outputs, 0);
    };
    add_sets(wanted);
    const auto enqueue_on = [&](const Candidate& candidate) -> Enqueue {
      return [&sets, this, context = candidate.context.get()](int64_t n) {
        const check::DeviceCall& set = sets[static_cast<size_t>(n) % sets.size()];
        require_ok(rapt_sdpa(context, &set.args(), stream_.handle()));
      };
    };
    const double call_us = rough_call_us(stream_, enqueue_on(candidates[0]));
    const GraphShape shape = graph_shape(call_us, wanted);
    add_sets(shape.sets);
    for (Candidate& candidate : candidates) {
      describe_sampling(problem, static_cast<int64_t>(sets.size()), candidate);
      candidate.host = launch_sampler(stream_, calls_per_sample(call_us), enqueue_on(candidate));
      candidate.sampler = device_sampler(shape, call_us, enqueue_on(candidate));
    }
    const double sample_us =
        call_us * static_cast<double>(timer() == "graph" ? shape.launches : calls_per_sample(call_us));
    take_attempts(sample_us, candidates);
    for (Candidate& candidate : candidates) candidate.sampler.reset();  // its graphs point into the input sets
  }

  void describe_sampling(const Problem& problem, int64_t sets, Candidate& candidate) const {
    candidate.row.input_sets = sets;
    const bool from_l2 = static_cast<double>(sets) * bytes(problem) <= static_cast<double>(device_.l2_bytes);
    candidate.row.roofline = roofline(problem, candidate.loaded->plan, roof_, from_l2);
  }

  // sample_us: the approximate time of a sample.
  void take_attempts(double sample_us, std::deque<Candidate>& candidates) {
    std::vector<Sampler*> samplers, hosts;
    for (const Candidate& candidate : candidates) {
      hosts.push_back(candidate.host.get());
      samplers.push_back(candidate.sampler ? candidate.sampler.get() : candidate.host.get());
    }
    const double round_us = sample_us * static_cast<double>(candidates.size());
    const int64_t rounds = samples_within(options_.budget, round_us, options_.iterations);
    uint64_t seed = options_.seed;
    const Attempt attempt = steadiest([&] { return one_attempt(samplers, rounds, seed++); }, options_.budget);
    if (timer() != "host") sample_interleaved(hosts, host_samples, options_.seed + 2);
    for (size_t i = 0; i < candidates.size(); ++i) {
      BenchRow& row = candidates[i].row;
      row.samples = attempt.samples[i];
      row.attempts = attempt.attempts;
      row.clocks_before = attempt.clocks_before;
      row.clocks_after = attempt.clocks_after;
      row.host_us = quartiles(timer() == "host" ? row.samples.us : hosts[i]->finish().us).median;
    }
  }

  // The clocks are read while the GPU still works on what was enqueued.
  Attempt one_attempt(const std::vector<Sampler*>& samplers, int64_t rounds, uint64_t seed) const {
    Attempt attempt;
    sample_interleaved(samplers, options_.warmup, seed);
    attempt.clocks_before = clocks_.read();
    for (Sampler* sampler : samplers) sampler->finish();
    sample_interleaved(samplers, rounds, seed + 1);
    attempt.clocks_after = clocks_.read();
    for (Sampler* sampler : samplers) attempt.samples.push_back(sampler->finish());
    return attempt;
  }

  // Returns null for --timer host.
  std::unique_ptr<Sampler> device_sampler(const GraphShape& shape, double call_us, Enqueue enqueue) const {
    if (timer() == "graph") return graph_sampler(stream_, shape, std::move(enqueue));
    if (timer() == "event") return event_sampler(stream_, calls_per_sample(call_us), std::move(enqueue));
    return nullptr;
  }

  static constexpr int64_t host_samples = 11;
  const BenchOptions& options_;
  Device device_;
  cuda::ContextScope scope_;
  cuda::Stream stream_;
  GpuClockReader clocks_;
  Roof roof_;
  std::string roof_note_, nvrtc_;
};

}  // namespace

std::unique_ptr<Bench> gpu_bench(const BenchOptions& options, const Device& device) {
  return std::make_unique<GpuBench>(options, device);
}

}  // namespace rapt::lab
