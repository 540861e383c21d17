// bench on the CPU: calls rotate through copies of the inputs, timed by the host's clock.
// Called by bench.cpp.
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <deque>

#include "check/poison.h"
#include "lab/bench.h"
#include "lab/machine.h"

namespace rapt::lab {
namespace {

check::HostTensor clone(const check::HostTensor& tensor) {
  if (!tensor.present()) return {};
  check::HostTensor copy = check::make_strided(tensor.dtype, tensor.shape, tensor.strides);
  const check::Span span = check::reach(tensor.shape, tensor.strides);
  const int64_t width = bytes_of(tensor.dtype);
  std::memcpy(copy.data() + span.first * width, tensor.data() + span.first * width,
              static_cast<size_t>((span.last - span.first + 1) * width));
  return copy;
}

// All memory that one call uses: a copy of the inputs, and outputs.
struct Set {
  Set(const Problem& problem, const check::Inputs& from)
      : inputs{.q = clone(from.q),
               .k = clone(from.k),
               .v = clone(from.v),
               .bias = clone(from.bias),
               .mask = clone(from.mask),
               .alibi_slopes = clone(from.alibi_slopes),
               .sinks = clone(from.sinks),
               .cu_seqlens_q = clone(from.cu_seqlens_q),
               .cu_seqlens_k = clone(from.cu_seqlens_k),
               .seqused_q = clone(from.seqused_q),
               .seqused_k = clone(from.seqused_k),
               .q_descale = clone(from.q_descale),
               .k_descale = clone(from.k_descale),
               .v_descale = clone(from.v_descale),
               .k_mean = clone(from.k_mean),
               .q_starts = clone(from.q_starts),
               .k_starts = clone(from.k_starts)},
        outputs(check::make_outputs(problem)),
        call(problem, inputs, outputs) {}
  check::Inputs inputs;
  check::Outputs outputs;
  check::SdpaCall call;
};

class CpuBench final : public Bench {
 public:
  CpuBench(const BenchOptions& options, const Device& device)
      : options_(options), device_(device), machine_(this_machine()) {
    if (options.timer == "graph" || options.timer == "event")
      invalid("--timer ", options.timer, ": is for GPUs; on the CPU use --timer host");
    roof_ = measure_roof(device_.threads, roof_buffer());
  }

  std::string card() const override { return file_safe(machine_.cpu_name); }
  std::string headline() const override {
    return fmt::format("{}, {}, {} threads; measured peak: {:.1f} GFLOP/s f32{}, {:.1f} GB/s read; inputs {}",
                       machine_.cpu_name, name_of(device_.isa), device_.threads, roof_.fma_flops / 1e9,
                       roof_.bf16_flops > 0 ? fmt::format(", {:.1f} bf16", roof_.bf16_flops / 1e9) : "",
                       roof_.read_bytes / 1e9, options_.l2);
  }

  Measured measure(const Problem& problem) override {
    try {
      return {.rows = {row_of(problem)}, .faults = {}};
    } catch (const Error& error) {
      if (error.code() != ErrorCode::unsupported && error.code() != ErrorCode::internal) throw;
      return {.rows = {}, .faults = {{"rapt", error}}};
    }
  }

 private:
  BenchRow row_of(const Problem& problem) {
    const check::Inputs inputs = check::make_inputs(problem, check::Fill::normal, options_.seed);
    const ContextHandle context = make_context(options_.common, device_, problem);
    std::deque<Set> sets;  // a deque does not move its elements, and a Set holds addresses of its own tensors
    sets.emplace_back(problem, inputs);
    BenchRow row = described(problem);
    const auto begin = std::chrono::steady_clock::now();
    require_ok(rapt_prepare(context.get(), &sets[0].call.args, nullptr));
    row.cold_us = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
    require_ok(rapt_sdpa(context.get(), &sets[0].call.args, nullptr));
    judge_call(problem, sets[0].inputs, sets[0].outputs, options_.seed, rerun_options(options_.common, device_), row);
    row.input_sets = sets_needed(problem);
    while (static_cast<int64_t>(sets.size()) < row.input_sets) sets.emplace_back(problem, inputs);
    const auto call = [&](int64_t n) {
      const Set& set = sets[static_cast<size_t>(n % row.input_sets)];
      require_ok(rapt_sdpa(context.get(), &set.call.args, nullptr));
    };
    Attempt attempt = steadiest(
        [&] {
          Attempt one;
          one.samples = {time_calls(options_.warmup, options_.iterations, call, options_.budget / most_attempts)};
          return one;
        },
        options_.budget);
    row.samples = std::move(attempt.samples[0]);
    row.attempts = attempt.attempts;
    return row;
  }

  int64_t roof_buffer() const {
    const int64_t wanted = std::max<int64_t>(2 * machine_.last_level_cache(), int64_t{256} << 20);
    return machine_.available_bytes > 0 ? std::min(wanted, machine_.available_bytes / 4) : wanted;
  }

  BenchRow described(const Problem& problem) const {
    const Plan chosen = plan(problem, device_);
    BenchRow row;
    row.problem = to_string(problem);
    describe_plan(chosen, row);
    for (int step = 0; step < chosen.step_count; ++step)
      if (chosen.steps[static_cast<size_t>(step)].config.word("isa") == name_of(CpuIsa::avx512_bf16))
        row.unit = Unit::bf16;
    row.timer = "host";
    row.l2 = options_.l2;
    row.card = card();
    row.command = options_.common.command;
    row.version = rapt_version();
    row.threads = device_.threads;
    row.flops = flops(problem);
    row.bytes = bytes(problem);
    row.roof = roof_;
    return row;
  }

  // warm: all sets together are twice as large as the private caches of all used cores together. So a set is no longer
  // in a private cache when it is used again. cold: all sets together are twice as large as the last-level cache, so
  // every call reads from memory.
  int64_t sets_needed(const Problem& problem) const {
    const bool cold = options_.l2 == "cold";
    const int64_t target = cold ? 2 * machine_.last_level_cache() : 2 * device_.l2_bytes * device_.threads;
    if (cold && target == 0)
      throw Error(ErrorCode::environment, "--l2 cold: the system does not report its cache sizes");
    if (machine_.available_bytes > 0 && target > machine_.available_bytes / 2)
      throw Error(ErrorCode::environment,
                  concat("--l2 ", options_.l2, ": needs ", target >> 20, " MiB of inputs, more than half of the ",
                         machine_.available_bytes >> 20, " MiB available"));
    const double per_set = std::max(bytes(problem), 64.0);
    return std::max<int64_t>(2, static_cast<int64_t>(std::ceil(static_cast<double>(target) / per_set)));
  }

  const BenchOptions& options_;
  Device device_;
  Machine machine_;
  Roof roof_;
};

}  // namespace

std::unique_ptr<Bench> cpu_bench(const BenchOptions& options, const Device& device) {
  return std::make_unique<CpuBench>(options, device);
}

}  // namespace rapt::lab
