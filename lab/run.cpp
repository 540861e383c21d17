// rapt run: computes attention on tensors from a file; reports its time and its error against the float64 oracle.
// Called by program.cpp. Writes its output completely or not at all.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "check/check.h"
#include "check/device_tensors.h"
#include "lab/commands.h"
#include "lab/gpu_timer.h"
#include "lab/load.h"
#include "lab/npy.h"
#include "lab/originals.h"
#include "lab/output.h"
#include "lab/progress.h"
#include "lab/statistics.h"
#include "runtime/plan.h"

namespace rapt::lab {
namespace {

constexpr double timing_seconds = 0.5;

int64_t samples_that_fit(double seconds_each) {
  return std::clamp<int64_t>(static_cast<int64_t>(timing_seconds / std::max(seconds_each, 1e-6)), 5, 200);
}

// Makes a few warm-up calls. Then times as many calls as fit in half a second, at least 5 and at most 200.
Samples run_on_cpu(const LoadedProblem& loaded, const check::Outputs& outputs, rapt_context* context) {
  const check::SdpaCall call(loaded.problem, loaded.inputs, outputs);
  require_ok(rapt_prepare(context, &call.args, nullptr));
  const auto once = [&](int64_t) { require_ok(rapt_sdpa(context, &call.args, nullptr)); };
  const auto begin = std::chrono::steady_clock::now();
  once(0);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  const int64_t iterations = samples_that_fit(seconds.count());
  return time_calls(std::min<int64_t>(3, iterations), iterations, once);
}

// Copies the tensors to the GPU and the results back, outside the timing. The calls are timed with warm caches.
Samples run_on_gpu(const LoadedProblem& loaded, const check::Outputs& outputs, rapt_context* context, int index) {
  const cuda::ContextScope scope(index, nullptr);
  const cuda::Stream stream;
  check::DeviceCall call(index, loaded.problem, loaded.inputs, outputs);
  require_ok(rapt_prepare(context, &call.args(), stream.handle()));
  const Enqueue once = [&](int64_t) { require_ok(rapt_sdpa(context, &call.args(), stream.handle())); };
  const double call_us = rough_call_us(stream, once);
  const auto sampler = event_sampler(stream, calls_per_sample(call_us), once);
  const int64_t samples = samples_that_fit(call_us * 1e-6 * static_cast<double>(calls_per_sample(call_us)));
  sample_interleaved({sampler.get()}, samples, 0);
  Samples taken = sampler->finish();
  call.require_untouched();
  call.download();
  return taken;
}

bool is_folder(const std::string& path) { return path.ends_with('/') || std::filesystem::is_directory(path); }

void write_outputs(const std::string& path, const Problem& problem, const check::Outputs& outputs) {
  const check::HostTensor o = as_stored(problem, outputs.out);
  if (is_folder(path)) {
    make_directories(path);
    write_npy(path + "/o.npy", o);
    write_npy(path + "/lse.npy", outputs.lse);
  } else {
    write_safetensors(path, {{"o", o}, {"lse", outputs.lse}}, {{"problem", to_string(problem)}});
  }
}

void check_output_path(const std::string& path, const std::string& input) {
  if (path.empty()) return;
  if (!is_folder(path)) {
    if (!path.ends_with(".safetensors"))
      invalid("-o ", path, ": must end with .safetensors, or be a folder (for o.npy and lse.npy)");
    return check_output_file("-o", path, "the input", input);
  }
  // All files of an input folder are read. So if o.npy were written beside q.npy, the next run would refuse the folder.
  std::error_code ignored;
  bool of_inputs = std::filesystem::equivalent(path, input, ignored);
  for (const char* name : {"q.npy", "k.npy", "v.npy"})
    of_inputs = of_inputs || std::filesystem::exists(std::filesystem::path(path) / name, ignored);
  if (of_inputs) invalid("-o ", path, ": holds inputs (q.npy, k.npy, v.npy); name another folder");
  if (std::filesystem::exists(path, ignored) && !std::filesystem::is_directory(path, ignored))
    invalid("-o ", path, ": is a file, not a folder");
}

// The errors relative to attention on the original tensors. They are computed on the same rows as the other errors.
check::Errors total_errors(const LoadedProblem& originals, const check::Outputs& outputs, int64_t row_step) {
  const check::Reading reading(originals.problem, originals.inputs);
  return check::compare_out(originals.problem, outputs.out, check::forward(reading, {.row_step = row_step}));
}

// For FP8 inputs: the error with the quantisation error included, or the reason why it is not known.
struct Total {
  std::string original, note;
  std::optional<check::Errors> errors;
};

struct Report {
  Problem problem;
  Device device;
  std::string plan;
  Samples samples;
  Quartiles time;
  int64_t row_step = 1;
  check::Result verdict;
  std::optional<Total> total;  // only for FP8 inputs
  double gflops() const { return flops(problem) / time.median / 1e3; }
};

void print_total(const Total& total) {
  if (total.errors)
    fmt::print(
        "         with the quantisation error, against float64 attention on {}: max {:.3g}, mean {:.3g}, rel_rms "
        "{:.3g}\n",
        total.original, total.errors->max_abs, total.errors->mean_abs, total.errors->rel_rms);
  else
    fmt::print("         without the quantisation error, which is unknown: {} (pass --original FILE)\n", total.note);
}

void print_text(const Report& r, const RunOptions& options, const std::map<std::string, std::string>& metadata) {
  fmt::print("input    {}\n", options.input);
  for (const auto& [key, value] : metadata)
    if (!key.ends_with("_sha256")) fmt::print("         {}: {}\n", key, value);
  fmt::print("problem  {}\n", to_string(r.problem));
  if (r.device.kind == DeviceKind::cuda)
    fmt::print("backend  {}; {}\n", title_of(r.device), r.plan);
  else
    fmt::print("backend  cpu: {}, {} thread{}\n", r.plan, r.device.threads, r.device.threads == 1 ? "" : "s");
  fmt::print("time     {:.1f} us (median of {}; quartiles {:.1f} and {:.1f})\n", r.time.median, r.samples.us.size(),
             r.time.q1, r.time.q3);
  fmt::print("speed    {:.1f} GFLOP/s\n", r.gflops());
  const check::Errors& e = r.verdict.out;
  const char* what = r.total ? "kernel only, against float64 attention on the FP8 values" : "against float64";
  fmt::print("error    {}: max {:.3g} (bound {:.3g}), mean {:.3g}, rel_rms {:.3g}; {}\n", what, e.max_abs,
             r.verdict.bounds.max_abs, e.mean_abs, e.rel_rms, rows_checked(r.row_step));
  if (r.total) print_total(*r.total);
  if (r.verdict.refused)
    fmt::print("UNJUDGED {}\n", r.verdict.message);
  else if (!r.verdict.pass)
    fmt::print("WRONG    {}\n         to reproduce: {}\n", r.verdict.message, options.common.command);
  fmt::print("output   {}\n", options.output.empty() ? "not written (-o FILE.safetensors writes o and lse)"
                              : r.verdict.pass       ? options.output
                              : r.verdict.refused    ? "not written, because it was not checked"
                                                     : "not written, because it is wrong");
}

void print_json(const Report& r, const RunOptions& options) {
  const check::Errors& e = r.verdict.out;
  nlohmann::ordered_json all = {
      {"input", options.input},
      {"problem", to_string(r.problem)},
      {"device", title_of(r.device)},
      {"plan", r.plan},
      {"threads", r.device.kind == DeviceKind::cuda ? 0 : r.device.threads},
      {"us", {{"median", r.time.median}, {"q1", r.time.q1}, {"q3", r.time.q3}, {"samples", r.samples.us.size()}}},
      {"gflops", r.gflops()},
      {"err",
       {{"max_abs", e.max_abs},
        {"mean_abs", e.mean_abs},
        {"rel_rms", e.rel_rms},
        {"compared", e.count},
        {"row_step", r.row_step}}},
      {"pass", r.verdict.pass},
      {"message", r.verdict.message},
      {"output", r.verdict.pass && !options.output.empty() ? nlohmann::ordered_json(options.output) : nullptr}};
  if (r.total) {  // in this case "err" is only the error of the kernel
    all["err_with_quantising"] = nullptr;
    if (const auto& total = r.total->errors)
      all["err_with_quantising"] = {
          {"max_abs", total->max_abs}, {"mean_abs", total->mean_abs}, {"rel_rms", total->rel_rms}};
    all["original"] =
        r.total->original.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(r.total->original);
    all["original_note"] = r.total->note;
  }
  fmt::print("{}\n", all.dump(2));
}

}  // namespace

int run(const RunOptions& options) {
  Report report;
  report.device = chosen_device(options.common, true);
  check_output_path(options.output, options.input);
  const LoadedProblem loaded = load_problem(options.input, options.words);
  if (!loaded.note.empty()) print_error("rapt: note: {}\n", loaded.note);
  const std::optional<Originals> originals = find_originals(options.input, loaded, options.original);
  const ContextHandle context = make_context(options.common, report.device, loaded.problem);

  Progress progress(1);
  progress.at(0, to_string(loaded.problem));
  report.problem = loaded.problem;
  report.plan = to_string(plan(loaded.problem, report.device));
  const check::Outputs outputs = check::make_outputs(loaded.problem);
  report.samples = report.device.kind == DeviceKind::cuda
                       ? run_on_gpu(loaded, outputs, context.get(), report.device.index)
                       : run_on_cpu(loaded, outputs, context.get());
  report.time = quartiles(report.samples.us);
  report.row_step = oracle_row_step(flops(loaded.problem));
  report.verdict = check::judge(loaded.problem, std::nullopt, loaded.inputs, outputs, report.row_step);
  if (originals) {
    report.total = Total{originals->path, originals->note, std::nullopt};
    if (!originals->path.empty()) report.total->errors = total_errors(originals->loaded, outputs, report.row_step);
  }
  progress.clear();
  if (!options.output.empty() && report.verdict.pass) write_outputs(options.output, loaded.problem, outputs);

  if (options.common.json)
    print_json(report, options);
  else
    print_text(report, options, loaded.metadata);
  if (report.verdict.refused) return exit_environment;
  return report.verdict.pass ? exit_success : exit_check_failed;
}

}  // namespace rapt::lab
