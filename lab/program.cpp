// The rapt program: parses the command line, runs a command, and turns errors into a sentence and an exit code. Called
// by main(). Exit codes: 0 success, 1 a check failed, 2 wrong input or usage, 3 something in the environment is missing
// or failed.
#include "lab/program.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <functional>
#include <map>
#include <new>
#include <system_error>

#include "base/error.h"
#include "base/nearest.h"
#include "lab/commands.h"
#include "lab/file.h"
#include "lab/ladder.h"
#include "lab/output.h"
#include "lab/pack.h"
#include "lab/process.h"
#include "lab/profile.h"
#include "lab/quantize.h"
#include "lab/tune.h"

namespace rapt::lab {
namespace {

// Checks the value of --seed. CLI11 would change a number that is too large (wrap or saturate it). A seed must be used
// exactly as given, so such a number is rejected.
std::string seed_text(const std::string& text) {
  uint64_t seed = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), seed);
  if (status == std::errc() && end == text.data() + text.size()) return "";
  return text + " must be a whole number from 0 to 2^64 - 1";
}

// Checks the value of --sm-count. The upper limit depends on the GPU, so apply_sm_count() checks it. CLI11 would read
// "010" as an octal number, so a number must be written without leading zeros.
std::string sm_count_text(const std::string& text) {
  int count = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (status == std::errc() && count > 0 && std::to_string(count) == text) return "";
  return text + " must be a whole number from 1 to the number of multiprocessors of the GPU";
}

// The command line, quoted for a shell.
std::string command_line(int argc, const char* const* argv) {
  std::string line = "rapt";
  for (int i = 1; i < argc; ++i) line += " " + shell_word(argv[i]);
  return line;
}

// Checks the value of --budget. Returns "" or an error text. CLI::Range cannot do this check, because it accepts nan.
std::string seconds_text(const std::string& text) {
  double seconds = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (status == std::errc() && end == text.data() + text.size() && seconds > 0 && seconds <= 1e6) return "";
  return text + " must be a number of seconds above 0 and at most 1000000";
}

// True for failures of rapt, false for wrong input and missing components. After a failure, the program prints the
// command that reproduces it.
bool is_failure(ErrorCode code) {
  return code == ErrorCode::internal || code == ErrorCode::device || code == ErrorCode::out_of_memory;
}

class Program {
 public:
  Program(int argc, const char* const* argv) : argc_(argc), argv_(argv) {
    app_.require_subcommand(1);
    app_.set_version_flag("--version", std::string("rapt ") + rapt_version());
    app_.footer(
        "rapt COMMAND --help shows the options of a command, with examples. rapt help problem-line explains problem "
        "lines.\n"
        "Exit codes: 0 success, 1 a check failed, 2 wrong input or usage, 3 an environment error (driver, NVRTC, "
        "file), 130 Ctrl-C ended tune.");
    add_info();
    add_run();
    add_check();
    add_bench();
    add_tune();
    add_explain();
    add_profile();
    add_pack();
    add_quantize();
    add_calibrate();
    add_help();
    overview_ = app_.help();  // app_.help() changes after a command is parsed
  }

  // The errno of a failed write to stdout. 0 means that no failure is known yet. The last flush can still find one.
  int output_error() const { return output_error_; }

  int execute() {
    try {
      app_.parse(argc_, argv_);
    } catch (const CLI::ParseError& error) {
      if (error.get_exit_code() == 0) return app_.exit(error);  // --help, --version
      print_error("rapt: {}\n      see {} --help\n", sentence_of(error), usage());
      return exit_wrong_input;
    }
    return run_catching();
  }

 private:
  int run_catching() {
    try {
      return action_();
    } catch (const Error& error) {
      print_error("rapt: {}\n", in_users_words(error.what()));
      if (is_failure(error.code())) print_error("to reproduce: {}\n", command_line(argc_, argv_));
      return exit_code(error.code());
    } catch (const std::bad_alloc&) {
      print_error("rapt: out of memory\nto reproduce: {}\n", command_line(argc_, argv_));
      return exit_environment;
    } catch (const std::system_error& error) {
      if (std::ferror(stdout) == 0) return internal_error(error);
      output_error_ = error.code().value();
      return exit_success;  // its output is checked later
    } catch (const std::exception& error) {
      return internal_error(error);
    }
  }
  std::string in_users_words(const char* sentence) const {
    const auto parsed = commons_.find(app_.get_subcommands().at(0)->get_name());
    return parsed == commons_.end() ? sentence : with_variant_path(sentence, *parsed->second);
  }
  int internal_error(const std::exception& error) const {
    print_error("rapt: internal error: {}\nto reproduce: {}\n", error.what(), command_line(argc_, argv_));
    return exit_check_failed;
  }

  // Returns the error sentence. It proposes the word that the user probably meant.
  std::string sentence_of(const CLI::ParseError& error) const {
    const std::vector<CLI::App*> parsed_commands = app_.get_subcommands();
    if (parsed_commands.empty() && argc_ > 1 && argv_[1][0] != '-')
      return concat("there is no command ", in_quotes(argv_[1]), did_you_mean(argv_[1], command_names()));
    if (parsed_commands.empty()) return error.what();
    std::vector<std::string_view> known;
    for (const CLI::Option* option : parsed_commands[0]->get_options())
      for (const std::string& name : option->get_lnames()) known.push_back(name);
    std::string hints;
    for (int i = 2; i < argc_; ++i) {
      const std::string_view word = argv_[i], name = word.substr(0, word.find('='));
      if (!name.starts_with("--") || std::find(known.begin(), known.end(), name.substr(2)) != known.end()) continue;
      const std::string_view near = nearest(name.substr(2), known);
      if (!near.empty()) hints += concat("; ", name, ": did you mean --", near, "?");
    }
    return error.what() + hints;
  }

  std::vector<std::string_view> command_names() const {
    std::vector<std::string_view> names;
    for (const CLI::App* command : app_.get_subcommands({})) names.push_back(command->get_name());
    return names;
  }

  std::string usage() const {
    const std::vector<CLI::App*> parsed_commands = app_.get_subcommands();
    return parsed_commands.empty() ? "rapt" : "rapt " + parsed_commands[0]->get_name();
  }

  // Adds a subcommand with --json. The parser fills `common`.
  CLI::App* add(const char* name, const char* help, const char* examples, Common& common) {
    CLI::App* sub = app_.add_subcommand(name, help);
    sub->footer(std::string("Examples:\n") + examples);
    sub->add_flag("--json", common.json, "Print JSON");
    common.command = command_line(argc_, argv_);
    commons_[name] = &common;
    return sub;
  }
  static void add_device(CLI::App* sub, Common& common) {
    sub->add_option("--device", common.device, "cpu or cuda:N. Default: cuda:0 if rapt can use it, else cpu");
    sub->add_option("--threads", common.threads,
                    "Number of CPU threads; also selects the CPU. Default: all CPUs available to the process")
        ->check(CLI::Range(1, 4096));
  }
  static void add_arch(CLI::App* sub, Common& common) {
    sub->add_option("--arch", common.arch,
                    "Architecture to plan and compile for: cpu-avx2, sm_89, compute_89 (PTX); explain also takes GPU "
                    "names (l4 h100). Default: that of the device");
  }
  static void add_sm_count(CLI::App* sub, Common& common) {
    sub->add_option("--sm-count", common.sm_count,
                    "Plan as if the GPU had N multiprocessors, from 1 to its own number. Default: all of the GPU")
        ->type_name("N")
        ->check(sm_count_text);
  }
  // Adds the options that override the planner's choice of a GPU kernel.
  static void add_config(CLI::App* sub, Common& common, const char* help) {
    sub->add_option("--config", common.configs, help)->allow_extra_args(false);
    sub->add_option(
           "--family", common.family,
           "Kernel family to use instead of the planner's choice: attention_sm90, attention_decode, attention_sm80, "
           "attention_scalar")
        ->allow_extra_args(false);
    sub->parse_complete_callback([&common] { apply_family_option(common); });
  }
  static void add_variant(CLI::App* sub, Common& common, const char* more = "") {
    sub->add_option(
        "--variant", common.variant,
        concat("Compile FILE.cuh in place of the built-in kernel source with the same file name; if there is none, "
               "in place of the chosen kernel's source",
               more));
  }
  static void add_problem(CLI::App* sub, std::vector<std::string>& words) {
    sub->add_option("problem", words, "Words of a problem line, in one argument or several");
  }

  void add_info() {
    CLI::App* sub = add("info", "Show this program's build, the machine, and what rapt can use",
                        "  rapt info\n  rapt info --json\n  rapt info --kernels --arch sm_89", info_);
    sub->add_flag("--kernels", info_kernels_,
                  "Show registers, spills, shared memory and occupancy of all shipped GPU kernels");
    sub->add_option("--arch", info_.arch, "With --kernels: show only this architecture, such as sm_89")
        ->needs(sub->get_option("--kernels"));
    sub->callback([this] { action_ = [this] { return info_kernels_ ? info_kernels(info_) : info(info_); }; });
  }

  void add_run() {
    CLI::App* sub = add("run", "Run attention on tensors from a file; show its time and its error against float64",
                        "  rapt run examples/data/minilm-layer0.safetensors\n"
                        "  rapt run qkv.safetensors causal window=128,0 -o out.safetensors\n"
                        "  rapt run folder-of-npy/ bf16 layout=bshd -o results/ --threads 4",
                        run_.common);
    sub->add_option("input", run_.input,
                    "FILE.safetensors or a folder of NAME.npy with q k v; optional: bias mask alibi_slopes "
                    "sinks cu_seqlens_q cu_seqlens_k seqused_q seqused_k q_descale k_descale v_descale k_mean")
        ->required();
    sub->add_option("words", run_.words,
                    "Words of a problem line for what the tensors do not determine: causal, window=L,R, softcap=, "
                    "scale=, layout=bshd ...");
    sub->add_option("-o,--output", run_.output,
                    "Write o and lse to FILE.safetensors, or o.npy and lse.npy to a folder. Default: not written");
    sub->add_option("--original", run_.original,
                    "File of the original tensors of FP8 inputs, to report the quantisation error. Default: the file "
                    "that rapt quantize recorded");
    add_device(sub, run_.common);
    sub->callback([this] { action_ = [this] { return run(run_); }; });
  }

  void add_check() {
    CLI::App* sub = add("check", "Compare rapt with a float64 reference on seeded random inputs",
                        "  rapt check \"bf16 b2 h32:8 q128 k512 d128 causal\"\n"
                        "  rapt check \"f32 h2 q64 d64\" --fill outlier --seed 7\n"
                        "  rapt check --cases smoke --device cuda:0\n"
                        "  rapt check \"f16 h1 q100 d64 window=16,0\" --stages\n"
                        "  rapt check \"f16 h8 q512 d64\" --variant my/attention_sm80.cuh --arch sm_89",
                        check_.common);
    add_problem(sub, check_.words);
    sub->add_option("--cases", check_.cases, "A built-in set of problems (smoke), or a file of problem lines");
    sub->add_option("--fill", check_.fill,
                    "Distribution of the input values: normal outlier huge near_ties constant masked_rows hidden_nan "
                    "(NaN in masked keys) seen_nan (NaN in visible keys) integers rescale rescale_reversed");
    sub->add_option("--seed", check_.seed, "Seed of the random inputs")->capture_default_str()->check(seed_text);
    sub->add_flag("--stages", check_.stages,
                  "Show the first stage (inputs, S, maximum, sum, P, O) that exceeds its error bound");
    add_device(sub, check_.common);
    add_arch(sub, check_.common);
    add_sm_count(sub, check_.common);
    add_config(sub, check_.common, "Override the planner's choice for a GPU kernel: \"block_m=64 stages=3\"");
    add_variant(sub, check_.common, ". Without a GPU and with --arch sm_NN, the kernel is emulated on the CPU");
    sub->callback([this] { action_ = [this] { return check(check_); }; });
  }

  void add_bench() {
    CLI::App* sub =
        add("bench",
            "Check a problem or a suite for correctness, then time it and compare with this machine's measured peak",
            "  rapt bench \"f32 h8 q512 d64\"\n"
            "  rapt bench \"f16 h32 q1 k4096 d128\" --l2 cold --threads 1\n"
            "  rapt bench \"f16 h8 q512 d64\" --device cuda:0 --config \"\" --config \"block_m=64\"\n"
            "  rapt bench \"f16 h8 q512 d64\" --ladder\n"
            "  rapt bench --suite perf --save\n"
            "  rapt bench --suite my-problems.txt --output rows.jsonl",
            bench_.common);
    add_problem(sub, bench_.words);
    sub->add_option(
        "--suite", bench_.suite,
        "A built-in set of problems (perf: at most 3 minutes on a GPU; perf-long; features; features-small), or a file "
        "of problem lines");
    sub->add_option("--warmup", bench_.warmup, "Number of calls before the first sample")
        ->capture_default_str()
        ->check(CLI::Range(0, 1000000));
    sub->add_option("--iterations", bench_.iterations, "Number of samples")
        ->capture_default_str()
        ->check(CLI::Range(1, 1000000));
    sub->add_option("--budget", bench_.budget,
                    "Seconds for the samples of a problem. Too little time gives fewer samples, but at least 5")
        ->capture_default_str()
        ->check(seconds_text);
    sub->add_option(
        "--timer", bench_.timer,
        "graph (CUDA graphs of many launches), event (loops of launches between GPU events) or "
        "host (the CPU clock; on a GPU the host's time per launch). Default: graph on a GPU, host on the CPU");
    sub->add_option(
           "--l2", bench_.l2,
           "warm: inputs stay in the last-level cache (GPU: L2); cold: calls rotate through input sets that together "
           "have twice its size")
        ->capture_default_str();
    sub->add_option("--seed", bench_.seed, "Seed of the random inputs")->capture_default_str()->check(seed_text);
    sub->add_flag("--save", bench_.save, "Write the rows to results/<card>/<UTC>-<suite>.jsonl");
    sub->add_option("--output", bench_.output, "Write the rows to this file");
    add_device(sub, bench_.common);
    add_arch(sub, bench_.common);
    add_sm_count(sub, bench_.common);
    add_config(
        sub, bench_.common,
        "Override the planner's choice for a GPU kernel: \"block_m=64 stages=3\". Repeat the option to compare several "
        "configurations (\"\" is the configuration of a normal call)");
    sub->add_option("--against", bench_.common.against, "Also time this kernel family. May be repeated")
        ->allow_extra_args(false);
    add_variant(sub, bench_.common);
    sub->add_flag("--ladder", bench_.ladder,
                  "Compare each step from a scalar kernel to the shipped kernel (rapt help ladder)");
    sub->callback([this] { action_ = [this] { return bench_.ladder ? ladder(bench_) : bench(bench_); }; });
  }

  void add_tune() {
    CLI::App* sub =
        add("tune", "Search for a faster configuration of a GPU kernel on this GPU, and keep it for the planner",
            "  rapt tune \"bf16 b4 h32:8 q4096 d128 causal\"\n"
            "  rapt tune --suite my-problems.txt --budget 60\n"
            "  rapt tune \"f16 h8 q512 d64\" --family attention_sm80 --output ./rows.txt\n"
            "  rapt tune \"f16 h8 q512 d64\" --dry-run --arch sm_89",
            tune_.common);
    add_problem(sub, tune_.words);
    sub->add_option("--suite", tune_.suite, "A built-in set of problems (perf), or a file of problem lines");
    sub->add_option("--family", tune_.family,
                    "Search only this kernel family: attention_sm90, attention_decode, attention_sm80, "
                    "attention_scalar. Default: all "
                    "families that accept the problem");
    sub->add_option("--budget", tune_.budget,
                    "Seconds for the search of each problem. Then it stops after the current candidate")
        ->capture_default_str()
        ->check(seconds_text);
    sub->add_option("--output", tune_.output,
                    "File to write the rows to. Default: RAPT_TUNED, otherwise tuned.txt in the cache directory");
    sub->add_flag("--again", tune_.again,
                  "Also measure problems that already have a row for this GPU and this version of rapt");
    sub->add_flag("--dry-run", tune_.dry_run,
                  "List the first candidates and measure nothing. With --arch it needs no GPU");
    sub->add_option("--seed", tune_.seed, "Seed of the random inputs")->capture_default_str()->check(seed_text);
    add_device(sub, tune_.common);
    add_arch(sub, tune_.common);
    add_sm_count(sub, tune_.common);
    sub->callback([this] { action_ = [this] { return tune(tune_); }; });
  }

  void add_explain() {
    CLI::App* sub = add("explain", "Show which kernel family runs a problem on a device, and why the others do not",
                        "  rapt explain \"bf16 b2 h32:8 q4096 d128 causal\"\n"
                        "  rapt explain \"f16 h8 q512 d64\" --arch l4\n"
                        "  rapt explain \"bf16 h32 q4096 d128 causal\" --arch h200 --sm-count 16\n"
                        "  rapt explain \"f32 h8 q512 d64\" --arch cpu-avx2 --json\n"
                        "  rapt explain \"f16 h8 q512 d64\" --arch sm_89 --variant my/attention_sm80.cuh",
                        explain_.common);
    add_problem(sub, explain_.words);
    sub->get_option("problem")->required();
    add_device(sub, explain_.common);
    add_arch(sub, explain_.common);
    add_sm_count(sub, explain_.common);
    add_config(sub, explain_.common, "Override the planner's choice for a GPU kernel: \"block_m=64 stages=3\"");
    add_variant(sub, explain_.common);
    sub->callback([this] { action_ = [this] { return explain(explain_); }; });
  }

  void add_profile() {
    CLI::App* sub = add("profile",
                        "Show what limits the speed of a problem's GPU kernel: counters and hot spots of Nsight "
                        "Compute (ncu), or times of its stages",
                        "  rapt profile \"f16 h8 q512 d64\"\n"
                        "  rapt profile \"f16 h8 q512 d64\" --trace\n"
                        "  rapt profile \"f16 b4 h32 q4096 d128 causal\" --gate tensor=40 --gate memory=off\n"
                        "  rapt profile \"f16 h8 q512 d64\" --config \"stages=3\" --name three-stages\n"
                        "  RAPT_NCU=/opt/nvidia/nsight-compute/2025.2.1/ncu rapt profile \"f16 h8 q512 d64\"",
                        profile_.common);
    add_problem(sub, profile_.words);
    sub->get_option("problem")->required();
    sub->add_option(
           "--gate", profile_.gates,
           "NAME=VALUE replaces the default limit of a gate: tensor=20 occupancy=25 memory=70 (per cent) or off; "
           "fp8=some, fp8=none or fp8=off")
        ->allow_extra_args(false);
    sub->add_option("--name", profile_.name, "The last part of the names of the result files; default: the problem");
    sub->add_option("--seed", profile_.seed, "Seed of the inputs")->capture_default_str()->check(seed_text);
    sub->add_flag("--trace", profile_.trace,
                  "Measure the kernel's stages with time stamps of the kernel itself, without ncu; write a trace for "
                  "ui.perfetto.dev. Default if there is no ncu");
    sub->add_flag("--launch-only", profile_.launch_only,
                  "Only launch the kernel, as ncu needs it: a warm call, its check, and the call to be profiled");
    add_device(sub, profile_.common);
    add_arch(sub, profile_.common);
    add_sm_count(sub, profile_.common);
    add_config(sub, profile_.common, "Override the planner's choice for a GPU kernel: \"block_m=64 stages=3\"");
    add_variant(sub, profile_.common);
    sub->callback([this] { action_ = [this] { return profile(profile_); }; });
  }

  void add_pack() {
    CLI::App* sub = add("pack", "Compile the GPU kernels of problems into one file; needs NVRTC, but no GPU",
                        "  rapt pack \"bf16 b2 h32:8 q4096 d128 causal\" --arch sm_90a -o mine.pack\n"
                        "  rapt pack --arch sm_89,sm_90a --cases perf --cases my-problems.txt -o perf.pack\n"
                        "  rapt pack --arch sm_89 --cases shipped --ledger src/kernels/resources.json",
                        pack_.common);
    add_problem(sub, pack_.words);
    sub->add_option("--cases", pack_.cases, "Built-in sets of problems (perf) or files of problem lines")
        ->expected(1)
        ->allow_extra_args(false);
    sub->add_option("--arch", pack_.common.arch, "Architectures or GPU names, separated by commas: sm_80,sm_89,h100");
    sub->add_option("-o,--output", pack_.output, "FILE.pack to write. RAPT_PACKS=FILE.pack loads it");
    add_variant(sub, pack_.common);
    sub->add_option(
        "--ledger", pack_.ledger,
        "Compare registers, spills, shared memory and occupancy of the kernels with the values in this file");
    sub->add_flag("--update", pack_.update, "Rewrite the --ledger file instead");
    sub->add_option("--threads", pack_.common.threads,
                    "Number of parallel compilations. Default: all CPUs available to the process")
        ->check(CLI::Range(1, 4096));
    sub->callback([this] { action_ = [this] { return pack(pack_); }; });
  }

  // Adds the options for tensors that quantize and calibrate share.
  template <class Options>
  static void add_preparation(CLI::App* sub, Options& options) {
    sub->add_option("--tensors", options.tensors, "The tensors to use: some of q,k,v")->capture_default_str();
    sub->add_option("--layout", options.layout, "Order of the dimensions of dense tensors: bhsd or bshd")
        ->capture_default_str();
    sub->add_flag("--hadamard", options.hadamard, "Rotate q and k, to spread outliers over the channels");
    sub->add_flag("--smooth-k", options.smooth_k, "Subtract each channel's mean from k, and write it as k_mean");
    sub->add_option("--percentile", options.percentile,
                    "Clip at this percentile of |x|; larger values saturate. Default: 100 (no clipping)");
  }

  void add_quantize() {
    CLI::App* sub =
        add("quantize", "Convert q, k and v in a file to FP8 for rapt run, and report the quantisation error",
            "  rapt quantize examples/data/minilm-layer0.safetensors -o build/fp8.safetensors\n"
            "  rapt quantize qkv.safetensors -o fp8.safetensors --scales q=token,k=block64,v=channel "
            "--hadamard --smooth-k\n"
            "  rapt quantize qkv.safetensors -o kv8.safetensors --tensors k,v --dtype k=e4m3,v=e5m2\n"
            "  rapt quantize qkv.safetensors -o fp8.safetensors --scales-file scales.json",
            quantize_.common);
    sub->add_option("input", quantize_.input, "FILE.safetensors with q, k and v (f32, f16 or bf16)")->required();
    sub->add_option("-o,--output", quantize_.output, "FILE.safetensors to write; input for rapt run")->required();
    CLI::Option* dtype = sub->add_option("--dtype", quantize_.dtype, "e4m3, e5m2 or sim8; or q=e4m3,k=e5m2,v=e4m3")
                             ->capture_default_str();
    CLI::Option* scales =
        sub->add_option("--scales", quantize_.scales,
                        "tensor, head, token, block64, block128 or, for v, channel; or q=token,k=block64,v=channel")
            ->capture_default_str();
    add_preparation(sub, quantize_);
    CLI::Option* file = sub->add_option("--scales-file", quantize_.scales_file,
                                        "Use the scales and options in this file of rapt calibrate");
    for (CLI::Option* other :
         {dtype, scales, sub->get_option("--hadamard"), sub->get_option("--smooth-k"), sub->get_option("--percentile")})
      file->excludes(other);
    add_device(sub, quantize_.common);
    sub->callback([this] { action_ = [this] { return quantize(quantize_); }; });
  }

  void add_calibrate() {
    CLI::App* sub = add("calibrate", "Compute static scales from sample files",
                        "  rapt calibrate examples/data/minilm-layer0.safetensors -o build/scales.json\n"
                        "  rapt calibrate samples/*.safetensors -o scales.json --percentile 99.99 --hadamard",
                        calibrate_.common);
    sub->add_option("inputs", calibrate_.inputs, "FILE.safetensors with q, k and v, one or more")->required();
    sub->add_option("-o,--output", calibrate_.output, "FILE.json to write; input for rapt quantize --scales-file")
        ->required();
    sub->add_option("--dtype", calibrate_.dtype, "e4m3, e5m2 or sim8")->capture_default_str();
    sub->add_option("--granularity", calibrate_.granularity, "head (one scale per head) or tensor (one scale)")
        ->capture_default_str();
    add_preparation(sub, calibrate_);
    sub->callback([this] { action_ = [this] { return calibrate(calibrate_); }; });
  }

  void add_help() {
    CLI::App* sub = app_.add_subcommand("help", "Show a page of the manual, or the help of a command");
    std::string pages;
    for (const std::string_view name : page_names()) pages += concat(pages.empty() ? "" : " ", name);
    sub->add_option("topic", topic_, "A command, or a page: " + pages);
    sub->footer("Examples:\n  rapt help problem-line\n  rapt help check");
    sub->callback([this] { action_ = [this] { return help(); }; });
  }

  int help() const {
    const std::string_view page = page_named(topic_);
    std::string text(page);
    if (topic_.empty()) text = overview_;
    for (const CLI::App* command : app_.get_subcommands({}))
      if (page.empty() && command->get_name() == topic_) text = command->help(app_.get_name());
    if (text.empty()) {
      std::vector<std::string_view> topics = command_names();
      for (const std::string_view name : page_names()) topics.push_back(name);
      std::string all;
      for (const std::string_view topic : topics) all += concat(all.empty() ? "" : " ", topic);
      invalid("help ", topic_, ": must be one of ", all, did_you_mean(topic_, topics));
    }
    fmt::print("{}", text);
    return exit_success;
  }

  int argc_;
  const char* const* argv_;
  CLI::App app_{"rapt: scaled dot-product attention for CPUs and NVIDIA GPUs", "rapt"};
  Common info_;
  RunOptions run_;
  CheckOptions check_;
  BenchOptions bench_;
  TuneOptions tune_;
  ExplainOptions explain_;
  ProfileOptions profile_;
  PackOptions pack_;
  QuantizeOptions quantize_;
  CalibrateOptions calibrate_;
  std::string topic_, overview_;
  bool info_kernels_ = false;
  int output_error_ = 0;
  std::map<std::string, const Common*> commons_;  // key: the command
  std::function<int()> action_;
};

}  // namespace

int run_program(int argc, const char* const* argv) {
  occupy_standard_streams();
  remove_unfinished_file_on_signals();
  Program program(argc, argv);
  const int code = program.execute();
  return code_of_output(code, program.output_error());
}

}  // namespace rapt::lab
