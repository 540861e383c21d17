// rapt bench: the time of one problem or a suite, checked first, with its share of the roof measured in the same run.
// Called by program.cpp. A wrong kernel is never timed; a result file is whole or absent.
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <deque>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "check/cases.h"
#include "check/check.h"
#include "check/poison.h"
#include "error.h"
#include "lab/commands.h"
#include "lab/file.h"
#include "lab/machine.h"
#include "lab/progress.h"
#include "lab/report.h"
#include "plan.h"

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

// The same values at other addresses, with outputs of their own: what one call touches.
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
               .seqused_k = clone(from.seqused_k),
               .q_descale = clone(from.q_descale),
               .k_descale = clone(from.k_descale),
               .v_descale = clone(from.v_descale),
               .q_starts = clone(from.q_starts),
               .k_starts = clone(from.k_starts)},
        outputs(check::make_outputs(problem)),
        call(problem, inputs, outputs) {}
  check::Inputs inputs;
  check::Outputs outputs;
  check::SdpaCall call;
};

class Bench {
 public:
  explicit Bench(const BenchOptions& options)
      : options_(options),
        device_(chosen_device(options.common, true)),
        machine_(this_machine()),
        context_(make_context(options.common.threads)) {
    if (options.timer == "graph" || options.timer == "event")
      unsupported("--timer ", options.timer, ": waits for the GPU backend; on the CPU use --timer host");
    if (options.timer != "host") invalid("--timer ", options.timer, ": must be graph, event or host");
    if (options.l2 != "warm" && options.l2 != "cold") invalid("--l2 ", options.l2, ": must be warm or cold");
    roof_ = measure_roof(device_.threads, roof_buffer());
  }

  const Roof& roof() const { return roof_; }
  const Machine& machine() const { return machine_; }
  const Device& device() const { return device_; }

  // Throws Error{unsupported} when no kernel takes the problem, and Error{internal} when the result is wrong.
  BenchRow measure(const Problem& problem) {
    const check::Inputs inputs = check::make_inputs(problem, check::Fill::normal, options_.seed);
    std::deque<Set> sets;  // a deque, since a Set holds addresses of its own tensors
    sets.emplace_back(problem, inputs);
    BenchRow row = described(problem);
    const auto begin = std::chrono::steady_clock::now();
    require_ok(rapt_prepare(context_.get(), &sets[0].call.args, nullptr));
    row.cold_us = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
    judge(problem, sets[0], row);
    row.input_sets = sets_needed(problem);
    while (static_cast<int64_t>(sets.size()) < row.input_sets) sets.emplace_back(problem, inputs);
    row.samples = time_calls(options_.warmup, options_.iterations, [&](int64_t n) {
      const Set& set = sets[static_cast<size_t>(n % row.input_sets)];
      require_ok(rapt_sdpa(context_.get(), &set.call.args, nullptr));
    });
    return row;
  }

 private:
  int64_t roof_buffer() const {
    const int64_t wanted = std::max<int64_t>(2 * machine_.last_level_cache(), int64_t{256} << 20);
    return machine_.available_bytes > 0 ? std::min(wanted, machine_.available_bytes / 4) : wanted;
  }

  BenchRow described(const Problem& problem) const {
    const Plan chosen = plan(problem, device_);
    std::string line = to_string(chosen);
    for (size_t at = 0; (at = line.find('\n', at)) != std::string::npos;)
      line.replace(at, 1, at + 1 == line.size() ? "" : " + ");
    BenchRow row;
    row.problem = to_string(problem);
    row.family = line.substr(0, line.find(' '));
    row.config = line.size() > row.family.size() ? line.substr(row.family.size() + 1) : "";
    for (int step = 0; step < chosen.step_count; ++step)
      row.bf16_products =
          row.bf16_products || chosen.steps[static_cast<size_t>(step)].config.isa == CpuIsa::avx512_bf16;
    row.timer = options_.timer;
    row.l2 = options_.l2;
    row.card = file_safe(machine_.cpu_name);
    row.command = options_.common.command;
    row.version = rapt_version();
    row.threads = device_.threads;
    row.flops = flops(problem);
    row.bytes = bytes(problem);
    row.roof = roof_;
    return row;
  }

  void judge(const Problem& problem, const Set& set, BenchRow& row) {
    require_ok(rapt_sdpa(context_.get(), &set.call.args, nullptr));
    row.row_step = oracle_row_step(row.flops);
    const check::Result result = check::judge(problem, check::Fill::normal, set.inputs, set.outputs, row.row_step);
    row.err = result.out;
    if (!result.pass)
      throw Error(ErrorCode::internal, concat(result.message, "\n        again: ",
                                              check::rerun_command(problem, check::Fill::normal, options_.seed)));
  }

  // warm: together the sets exceed every core's private cache twice, so that no call finds its own last inputs there.
  // cold: they exceed the last-level cache twice, so that every call reads from memory.
  int64_t sets_needed(const Problem& problem) const {
    const bool cold = options_.l2 == "cold";
    const int64_t target = cold ? 2 * machine_.last_level_cache() : 2 * device_.l2_bytes * device_.threads;
    if (cold && target == 0)
      throw Error(ErrorCode::environment, "--l2 cold: the system does not tell the size of its caches");
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
  ContextHandle context_;
  Roof roof_;
};

std::vector<Problem> problems_of(const BenchOptions& options) {
  if (options.words.empty() == options.suite.empty()) invalid("bench: give a problem line or --suite, one of them");
  std::vector<Problem> problems;
  if (options.suite.empty()) problems.push_back(parse_problem(joined(options.words)));
  if (!options.suite.empty())
    for (const check::Case& c : check::load_cases(options.suite, cases_directory())) problems.push_back(c.problem());
  if (problems.empty()) invalid("--suite ", options.suite, ": has no problem lines");
  return problems;
}

std::string output_path(const BenchOptions& options, const std::string& card) {
  if (!options.output.empty()) return options.output;
  if (!options.save) return "";
  const std::string suite = options.suite.empty() ? "problem" : std::filesystem::path(options.suite).stem().string();
  const std::string folder = "results/" + card;
  make_directories(folder);
  return folder + "/" + utc_stamp() + "-" + suite + ".jsonl";
}

void write_rows(const std::string& path, const std::vector<BenchRow>& rows) {
  AtomicFile file(path);
  for (const BenchRow& row : rows) file.write(to_json(row).dump() + "\n");
  file.commit();
}

void print_row(const BenchRow& row) {
  const Quartiles time = quartiles(row.samples.us);
  fmt::print("{:>10.1f} {:>10.1f} {:>10.1f} {:>9.1f} {:>8.2f} {:>5.0f}%  {:.1e}  {}  [{} {}]\n", time.median, time.q1,
             time.q3, row.gflops(), row.gbytes(), 100 * row.roof_share(), row.err.max_abs, row.problem, row.family,
             row.config);
}

}  // namespace

int bench(const BenchOptions& options) {
  const std::vector<Problem> problems = problems_of(options);
  Bench bench(options);
  const bool text = !options.common.json;
  if (text)
    fmt::print("{}, {}, {} threads; roof measured now: {:.1f} GFLOP/s f32{}, {:.1f} GB/s read; inputs {}\n",
               bench.machine().cpu_name, name_of(bench.device().isa), bench.device().threads,
               bench.roof().fma_flops / 1e9,
               bench.roof().bf16_flops > 0 ? fmt::format(", {:.1f} bf16", bench.roof().bf16_flops / 1e9) : "",
               bench.roof().read_bytes / 1e9, options.l2);
  if (text)
    fmt::print("{:>10} {:>10} {:>10} {:>9} {:>8} {:>6}  max error\n", "median us", "q1", "q3", "GFLOP/s", "GB/s",
               "roof");
  std::vector<BenchRow> rows;
  int wrong = 0;
  Progress progress(problems.size());
  for (size_t i = 0; i < problems.size(); ++i) {
    progress.at(i, to_string(problems[i]));
    try {
      rows.push_back(bench.measure(problems[i]));
      progress.clear();
      if (text) print_row(rows.back());
      if (!text) fmt::print("{}\n", to_json(rows.back()).dump());
    } catch (const Error& error) {
      progress.clear();
      if (error.code() != ErrorCode::unsupported && error.code() != ErrorCode::internal) throw;
      wrong += error.code() == ErrorCode::internal;
      fmt::print(stderr, "{}  {}\n        {}\n", error.code() == ErrorCode::internal ? "WRONG, not timed" : "refused",
                 to_string(problems[i]), error.what());
    }
    std::fflush(stdout);
  }
  const std::string path = rows.empty() ? "" : output_path(options, file_safe(bench.machine().cpu_name));
  if (!path.empty()) write_rows(path, rows);
  if (!path.empty() && text) fmt::print("wrote {}\n", path);
  if (wrong > 0) return exit_check_failed;
  return rows.empty() ? exit_environment : exit_fine;
}

}  // namespace rapt::lab
