// rapt bench LINE --ladder: the oracle checks every rung; the correct ones are timed side by side and their
// instructions are counted. A wrong rung is never timed.
#include <fmt/format.h>

#include <deque>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "check/check.h"
#include "check/device_tensors.h"
#include "lab/cubin.h"
#include "lab/file.h"
#include "lab/gpu_timer.h"
#include "lab/ladder.h"
#include "lab/machine.h"
#include "lab/output.h"
#include "lab/report.h"
#include "lab/roof_gpu.h"
#include "operations/bind.h"
#include "runtime/context.h"
#include "runtime/gpu_call.h"

namespace rapt::lab {
namespace {

// A rung that was compiled, loaded and found correct.
struct ReadyRung {
  const Rung& rung;
  RungKernel kernel;
  ContextHandle context;
  const LoadedKernel* loaded = nullptr;
  unsigned resident_blocks = 0;  // the number of blocks that the GPU holds at once
  BenchRow row = {};
  std::unique_ptr<Sampler> sampler = nullptr;
};

class LadderBench {
 public:
  LadderBench(const BenchOptions& options, const Problem& problem, const Device& device)
      : options_(options), problem_(problem), device_(device), scope_(device.index, nullptr) {}

  int run() {
    const Roof roof = measure_gpu_roof(cuda::device(device_.index));
    fmt::print("{}, {}{}, {}; {}; mma.sync {:.1f} TFLOP/s f16, fused multiply-adds {:.1f} f32, reads {:.0f} GB/s\n",
               title_of(device_), device_.arch, sm_count_note(options_.common), driver_text(), to_string(problem_),
               roof.f16_flops / 1e12, roof.fma_flops / 1e12, roof.read_bytes / 1e9);
    const check::Inputs inputs = check::make_inputs(problem_, check::Fill::normal, options_.seed);
    bool wrong = false;
    for (const Rung& rung : ladder_rungs()) {
      try {
        ready_.push_back(checked(rung, inputs));
        ready_.back().row.roof = roof;
      } catch (const Error& error) {
        const bool expected = error.code() == ErrorCode::unsupported || error.code() == ErrorCode::internal;
        if (!expected && rung.launch != RungLaunch::l2_window) throw;
        wrong = wrong || error.code() == ErrorCode::internal;
        print_error("{}  rung {}\n        {}\n", error.code() == ErrorCode::internal ? "WRONG, not timed" : "refused",
                    rung.name, error.what());
      }
    }
    if (ready_.empty()) return wrong ? exit_check_failed : exit_environment;
    take_samples(inputs);
    print_times();
    print_contents();
    write();
    return wrong ? exit_check_failed : exit_success;
  }

 private:
  void launch(const ReadyRung& ready, const check::DeviceCall& call) const {
    const AttentionParams params = attention_params(call.args(), problem_);
    LaunchSpec spec = ready.rung.family->launch_spec({ready.kernel.config, problem_, params});
    if (ready.rung.launch == RungLaunch::persistent) spec.grid_x = std::min(spec.grid_x, ready.resident_blocks);
    cuda::Kernel::Launch launch = driver_launch(*ready.loaded, spec, stream_.handle());
    if (ready.rung.launch == RungLaunch::l2_window) launch.l2_window = window_of(params);
    ready.loaded->kernel->launch(launch, spec.params());
  }

  // Throws Error{unsupported} if the GPU cannot give this call a window.
  cuda::L2Window window_of(const AttentionParams& params) const {
    cuda::L2Window window = kv_window(params, problem_);
    const cuda::PersistingL2::Limits limits = cuda::PersistingL2::limits(device_.index);
    if (limits.bytes == 0) unsupported(device_.name, ": no part of its L2 cache can be set aside");
    if (window.bytes > limits.window_bytes)
      unsupported("K and V lie within ", window.bytes, " bytes, the GPU allows a window of ", limits.window_bytes);
    window.share = window_share_;
    return window;
  }

  ReadyRung checked(const Rung& rung, const check::Inputs& inputs) {
    RungKernel kernel = rung_kernel(rung, problem_, device_);
    ContextOptions options;
    options.arch = device_.arch;
    options.sm_count = options_.common.sm_count;
    options.files = kernel.files;
    options.tuned = "";  // no tuned rows: the comparison is with the shipped configuration
    ReadyRung ready{rung, std::move(kernel), ContextHandle(new rapt_context(std::move(options)))};
    ready.loaded = &ready.context->impl.gpu().kernel(device_, ready.kernel.unit, ready.kernel.request.label);
    ready.resident_blocks = resident_blocks(ready);
    const check::Outputs outputs = check::make_outputs(problem_);
    check::DeviceCall call(device_.index, problem_, inputs, outputs);
    launch(ready, call);
    stream_.synchronize();
    call.require_untouched();
    call.download();
    describe(ready);
    judge(ready.row, inputs, outputs);
    return ready;
  }

  unsigned resident_blocks(const ReadyRung& ready) const {
    const KernelUnit& unit = ready.kernel.unit;
    return static_cast<unsigned>(device_.sm_count *
                                 ready.loaded->kernel->blocks_per_sm(device_.index, unit.threads, unit.smem_bytes));
  }

  void judge(BenchRow& row, const check::Inputs& inputs, const check::Outputs& outputs) const {
    row.row_step = oracle_row_step(flops(problem_));
    const check::Result result = check::judge(problem_, check::Fill::normal, inputs, outputs, row.row_step);
    row.err = result.out;
    if (!result.pass)
      throw Error(ErrorCode::internal,
                  concat(result.message, "\n        to reproduce: rapt bench \"", to_string(problem_),
                         "\" --ladder --seed ", options_.seed, rerun_options(options_.common, device_)));
  }

  void describe(ReadyRung& ready) const {
    BenchRow& row = ready.row;
    const jit::Image& image = *ready.loaded->image;
    row.problem = to_string(problem_);
    row.implementation = concat("ladder ", ready.rung.name);
    row.family = ready.rung.family->name;
    row.config = ready.kernel.config.words();
    row.signature = image.signature;
    row.arch = device_.arch;
    row.sm_count = device_.sm_count;
    row.registers = ready.loaded->kernel->attributes(device_.index).registers;
    if (const jit::Resources resources = jit::parse_resources(image.log); resources.known)
      row.spill_bytes = resources.spill_store_bytes + resources.spill_load_bytes;
    row.cold_us = image.milliseconds * 1e3;
    row.timer = "graph";
    row.l2 = options_.l2;
    row.pdl = ready.kernel.config.number("programmatic") != 0;
    row.card = file_safe(device_.name);
    row.driver = driver_text();
    row.nvrtc = image.compiler;
    row.command = options_.common.command;
    row.version = rapt_version();
    row.threads = 0;
    row.flops = flops(problem_);
    row.bytes = bytes(problem_);
    row.unit = Unit::f16;
  }

  // Rungs with L2 windows are timed after the others, because their lines stay in the L2 cache.
  void take_samples(const check::Inputs& inputs) {
    const check::Outputs outputs = check::make_outputs(problem_);
    Sets sets;
    const int64_t wanted = input_sets(options_.l2 == "cold", bytes(problem_), device_.l2_bytes);
    const auto add_sets = [&](int64_t count) {
      while (static_cast<int64_t>(sets.size()) < count) sets.emplace_back(device_.index, problem_, inputs, outputs, 0);
    };
    add_sets(wanted);
    std::vector<TimedRung> usual, with_window;
    for (ReadyRung& ready : ready_) {  // each rung has its own shape: their times differ by two orders of magnitude
      const GraphShape shape = graph_shape(rough_call_us(stream_, enqueue_on(sets, ready)), wanted);
      add_sets(shape.sets);
      (ready.rung.launch == RungLaunch::l2_window ? with_window : usual).push_back({ready, shape});
    }
    take_samples(sets, usual);
    if (!with_window.empty()) take_samples_with_window(sets, with_window);
    while (!ready_.empty() && ready_.back().row.samples.us.empty()) ready_.pop_back();  // rungs with windows are last
  }

  using Sets = std::deque<check::DeviceCall>;
  struct TimedRung {
    ReadyRung& ready;
    GraphShape shape;
  };

  Enqueue enqueue_on(const Sets& sets, const ReadyRung& ready) const {
    return [this, &sets, &ready](int64_t n) { launch(ready, sets[static_cast<size_t>(n) % sets.size()]); };
  }

  // If the GPU refuses the windows, only the rungs with windows are dropped.
  void take_samples_with_window(const Sets& sets, const std::vector<TimedRung>& timed) {
    try {
      const size_t wanted = window_bytes(sets);
      const cuda::PersistingL2 part(device_.index, wanted);
      window_share_ = std::min(1.0f, static_cast<float>(part.bytes()) / static_cast<float>(wanted));
      fmt::print("L2 window: {:.1f} MiB of the L2 cache are set aside for {:.1f} MiB\n",
                 static_cast<double>(part.bytes()) / (1 << 20), static_cast<double>(wanted) / (1 << 20));
      take_samples(sets, timed);
    } catch (const Error& error) {
      print_error("refused  rung l2_window\n        {}\n", error.what());
      for (const auto& [ready, shape] : timed) ready.sampler.reset(), ready.row.samples.us.clear();
    }
  }

  // The sum of the windows of all input sets.
  size_t window_bytes(const Sets& sets) const {
    size_t all = 0;
    for (const check::DeviceCall& set : sets) all += kv_window(attention_params(set.args(), problem_), problem_).bytes;
    return all;
  }

  void take_samples(const Sets& sets, const std::vector<TimedRung>& timed) {
    std::vector<Sampler*> samplers;
    for (const auto& [ready, shape] : timed) {
      ready.sampler = graph_sampler(stream_, shape, enqueue_on(sets, ready));
      ready.row.input_sets = static_cast<int64_t>(sets.size());
      samplers.push_back(ready.sampler.get());
    }
    sample_interleaved(samplers, options_.warmup, options_.seed);
    for (Sampler* sampler : samplers) sampler->finish();
    sample_interleaved(samplers, options_.iterations, options_.seed + 1);
    for (const auto& [ready, shape] : timed) {
      ready.row.samples = ready.sampler->finish();
      ready.sampler.reset();  // the graphs of the sampler point into the sets
    }
  }

  void print_times() const {
    fmt::print("\n{:<10} {:<12} {:>10} {:>10} {:>10} {:>10} {:>7} {:>9} {:>6}  max error\n", "rung", "old name",
               "L4 target", "median us", "q1", "q3", "gain", "TFLOP/s", "roof");
    double before = 0;
    for (const ReadyRung& ready : ready_) {
      const Quartiles time = quartiles(ready.row.samples.us);
      fmt::print("{:<10} {:<12} {:>10} {:>10.2f} {:>10.2f} {:>10.2f} {:>7} {:>9.2f} {:>5.0f}%  {:.1e}\n",
                 ready.rung.name, ready.rung.old_name, ready.rung.target, time.median, time.q1, time.q3,
                 before > 0 ? fmt::format("{:.2f}x", before / time.median) : "", ready.row.gflops() / 1e3,
                 100 * ready.row.roof_share(), ready.row.err.max_abs);
      before = time.median;
    }
  }

  // Prints the instructions in the code and the occupancy.
  void print_contents() const {
    fmt::print("\n{:<10} {:>7} {:>7} {:>9} {:>6} {:>6}  {:>6} {:>6} {:>6} {:>6} {:>6} {:>8} {:>8} {:>6}\n", "rung",
               "threads", "regs", "shared", "blocks", "occup", "HMMA", "LDSM", "LDGSTS", "FFMA", "MUFU", "LDG.128",
               "LDS.128", "spills");
    for (const ReadyRung& ready : ready_) {
      const cuda::KernelAttributes attributes = ready.loaded->kernel->attributes(device_.index);
      const KernelUnit& unit = ready.kernel.unit;
      const int blocks = ready.loaded->kernel->blocks_per_sm(device_.index, unit.threads, unit.smem_bytes);
      const auto shared = static_cast<int64_t>(unit.smem_bytes) + attributes.static_shared_bytes;
      fmt::print("{:<10} {:>7} {:>7} {:>9} {:>6} {:>5.0f}%  {}\n", ready.rung.name, unit.threads, attributes.registers,
                 shared, blocks, 100.0 * blocks * unit.threads / device_.threads_per_sm, contents_of(ready));
    }
  }

  static std::string contents_of(const ReadyRung& ready) {
    const std::string& image = ready.loaded->image->bytes;
    if (!image.starts_with("\x7f"
                           "ELF"))
      return "PTX: only the driver knows its instructions";
    const InstructionCounts n = count_instructions(image);
    return fmt::format("{:>6} {:>6} {:>6} {:>6} {:>6} {:>8} {:>8} {:>6}", n.hmma, n.ldsm, n.ldgsts, n.ffma, n.mufu,
                       fmt::format("{}/{}", n.ldg_16, n.ldg), fmt::format("{}/{}", n.lds_16, n.lds), n.local);
  }

  void write() const {
    std::string path = options_.output;
    if (path.empty() && options_.save) {
      const std::string folder = "results/" + file_safe(device_.name);
      make_directories(folder);
      path = folder + "/" + utc_stamp() + "-ladder.jsonl";
    }
    if (path.empty()) return;
    AtomicFile file(path);
    for (const ReadyRung& ready : ready_) file.write(to_json(ready.row).dump() + "\n");
    file.commit();
    fmt::print("wrote {}\n", path);
  }

  const BenchOptions& options_;
  const Problem& problem_;
  const Device device_;
  cuda::ContextScope scope_;
  cuda::Stream stream_;
  std::deque<ReadyRung> ready_;
  float window_share_ = 1.0f;  // the share of a window's lines that persist in the L2 cache
};

}  // namespace

int ladder(const BenchOptions& options) {
  if (options.words.empty() || !options.suite.empty()) invalid("--ladder: takes one problem line and no --suite");
  check_output_file("--output", options.output);
  if (!options.common.configs.empty()) invalid("--ladder --config: not allowed; each rung has a fixed configuration");
  if (!options.common.variant.empty()) invalid("--ladder --variant: not allowed; each rung has its own source");
  if (!options.timer.empty() && options.timer != "graph")
    invalid("--ladder --timer ", options.timer, ": must be graph");
  if (options.common.json) invalid("--ladder --json: not available; use --output FILE for the rows");
  const Problem problem = parse_problem(joined(options.words));
  require_ladder_problem(problem);
  const Device device = chosen_device(options.common, true);
  if (device.kind != DeviceKind::cuda) throw Error(ErrorCode::environment, "--ladder: needs a GPU");
  return LadderBench(options, problem, device).run();
}

}  // namespace rapt::lab
