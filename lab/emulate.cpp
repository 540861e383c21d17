// From a problem to a kernel that runs on this CPU: plan, text, compiler, dlopen, launch.
#include "lab/emulate.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <mutex>

#include "base/error.h"
#include "check/work.h"
#include "cpu/threads.h"
#include "jit/sources.h"
#include "kernels/family.h"
#include "lab/apart.h"
#include "lab/emulation/launch.h"
#include "lab/host_compiler.h"
#include "lab/progress.h"
#include "operations/bind.h"
#include "operations/sdpa.h"
#include "runtime/gpu.h"
#include "runtime/plan.h"

namespace rapt::lab {

// lab/emulation, by names from there; written by rapt_embed (cmake/RaptLab.cmake).
const std::map<std::string_view, std::string_view>& emulation_texts();

namespace {

using cuda_emulation::Launch;

constexpr unsigned most_seconds = 120;  // of a call, which takes a few where a problem is not too large

int64_t div_up(int64_t n, int64_t by) { return (n + by - 1) / by; }
unsigned narrow(int64_t n) { return static_cast<unsigned>(n); }

// check_problem() asks for lse whatever the problem says.
Problem with_lse(Problem problem) {
  problem.lse = true;
  return problem;
}

Step step_of(const EmulatedProblem& asked, const Device& device, bool own_text) {
  const Plan plan = plan_with(with_lse(asked.problem), device, asked.config, own_text);
  return plan.step_count == 0 ? Step{} : plan.steps[0];  // a GPU's plan has one step or none
}

struct Prepared {  // a launch, the parameters that it points to, and memory that they point to
  std::string params;
  Launch launch{};
  std::vector<unsigned> counters;
};

// What stands for a tensor map in an emulated kernel's parameters.
cuda_emulation::EmulatedMap emulated_map(const TensorMapSpec& spec) {
  if (spec.rank != 4 || (spec.element != TensorElement::f16 && spec.element != TensorElement::bf16) ||
      spec.swizzle != TensorSwizzle::bytes_128)
    unsupported("emulation: tensor maps must have four dimensions of 16-bit elements and the 128-byte swizzle");
  cuda_emulation::EmulatedMap map{};
  map.base = static_cast<const char*>(spec.base);
  for (size_t i = 0; i < 4; ++i) map.sizes[i] = static_cast<long>(spec.sizes[i]);
  for (size_t i = 0; i < 3; ++i) map.strides[i] = static_cast<long>(spec.strides[i]);
  map.columns = static_cast<int>(spec.box[0]), map.rows = static_cast<int>(spec.box[1]);
  return map;
}

Prepared launch_of(const Step& step, const KernelUnit& unit, const rapt_sdpa_args& args, const Problem& problem) {
  const AttentionParams params = attention_params(args, problem);
  Prepared made;
  auto* const counter_bytes = step.family->counter_bytes;
  made.counters.resize((counter_bytes == nullptr ? 0 : counter_bytes(problem, step.config)) / sizeof(unsigned));
  const LaunchSpec spec =
      step.family->launch_spec({step.config, problem, params, Workspace{made.counters.data(), nullptr}});
  made.params.assign(reinterpret_cast<const char*>(spec.params()), spec.param_bytes());
  for (const LaunchSpec::Map* map = spec.begin_maps(); map != spec.end_maps(); ++map) {
    const cuda_emulation::EmulatedMap stand_in = emulated_map(map->spec);
    std::memcpy(made.params.data() + map->offset, &stand_in, sizeof stand_in);
  }
  made.launch = {
      nullptr, spec.param_bytes(), {spec.grid_x, spec.grid_y, spec.grid_z}, narrow(unit.threads), unit.smem_bytes};
  return made;
}

int64_t rows_of_a_tile(const KernelConfig& c) { return c.number("block_m", 64 * c.number("warpgroups", 1)); }
int64_t keys_of_a_step(const KernelConfig& c) { return c.number("block_n") * c.number("warps_k", 1); }

// Multiply-adds of both products, in whole tiles: what a tile leaves empty is computed, too.
double operations(const Problem& p, const KernelConfig& c) {
  const int64_t m = rows_of_a_tile(c), n = keys_of_a_step(c);
  const auto rows = static_cast<double>(div_up(p.seqlen_q, m) * m),
             keys = static_cast<double>(div_up(p.seqlen_k, n) * n);
  return static_cast<double>(p.batch * p.heads_q * (p.head_dim + p.head_dim_v)) * rows * keys;
}

// A problem of the same kind with so many rows and keys at most, and few heads.
Problem shortened(Problem p, int64_t rows, int64_t keys) {
  const int64_t group = p.group();
  if (p.seqlen_q == p.seqlen_k) rows = keys = std::max(rows, keys);
  p.batch = 1;
  p.heads_k = group > 1 ? 1 : std::min<int64_t>(p.heads_k, 2);
  p.heads_q = group * p.heads_k;
  p.seqlen_q = std::min(p.seqlen_q, rows), p.seqlen_k = std::min(p.seqlen_k, keys);
  return parse_problem(to_string(p));
}

bool can_be_shortened(const Problem& p) {
  return !p.varlen && !p.seqused && !p.seqused_q && p.q_starts.size() <= 1 && p.k_starts.size() <= 1 &&
         p.page_size == 0 && !p.q_strides && !p.k_strides && !p.v_strides && !p.out_strides;
}

// `extern __shared__ float memory[];` becomes `float* const memory = ...`, the block's one memory (emulation/entry.h).
std::string with_one_shared_memory(std::string text) {
  constexpr std::string_view word = "__shared__", first = "extern";
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
    const size_t before = text.find_last_of(";{}\n", at), begin = before == std::string::npos ? 0 : before + 1;
    const size_t external = text.find(first, begin), end = text.find(';', at), bracket = text.rfind("[]", end);
    if (external > at || end == std::string::npos || bracket == std::string::npos || bracket < at) continue;
    const size_t name = text.find_last_of(" \t\n", text.find_last_not_of(" \t\n", bracket - 1)) + 1;
    text.replace(bracket, 2, " = rapt::cuda_emulation::SharedMemory()");
    text.insert(name, "* const ");
    text.erase(at, word.size());
    text.erase(external, first.size());
  }
  return text;
}

}  // namespace

EmulatedProblems emulated_problems(const EmulatedProblem& asked, const Device& device, bool own_text) {
  const Step step = step_of(asked, device, own_text);
  if (step.family == nullptr || operations(asked.problem, step.config) <= most_emulated) return {false, {asked}};
  EmulatedProblems problems{true, {}};
  if (!can_be_shortened(asked.problem)) return problems;
  const KernelConfig& config = step.config;
  const int64_t m = rows_of_a_tile(config), n = keys_of_a_step(config);
  for (const auto& [rows, keys] : {std::pair{m + m / 2 + 1, 2 * n + 5}, {m / 2 + 1, n / 2 + 1}}) {
    EmulatedProblem shorter{shortened(asked.problem, rows, keys), asked.config};
    const KernelConfig chosen = step_of(shorter, device, own_text).config;
    // Words that come later hold.
    shorter.config = concat(asked.config, asked.config.empty() ? "" : " ", config.words_unlike(chosen));
    const bool met = !problems.run.empty() && problems.run[0].problem == shorter.problem;
    if (!met && operations(shorter.problem, config) <= most_emulated) problems.run.push_back(std::move(shorter));
  }
  return problems;
}

struct Emulator::Unit {
  Step step;
  KernelUnit kernel;
  jit::Request request;
};

// A loaded library; what it was made of is removed.
struct Emulator::Library {
  explicit Library(const std::string& path) : handle(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (handle == nullptr)
      throw Error(ErrorCode::environment, concat("the emulated kernel cannot be loaded: ", dlerror()));
    entry = reinterpret_cast<cuda_emulation::Entry>(dlsym(handle, "rapt_emulate"));
    if (entry == nullptr) throw Error(ErrorCode::internal, "the emulated kernel has no entry");
  }
  ~Library() { dlclose(handle); }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  void* handle;
  cuda_emulation::Entry entry = nullptr;
};

namespace {

// Compiles one unit; returns the path of its library.
std::string build(const jit::Request& request, const HostCompiler& compiler, const FreshFolder& folder,
                  const std::string& name) {
  const jit::Sources sources = jit::collect_sources(request);
  for (const auto& [file, text] : sources.headers) folder.write(concat(name, "/", file), with_one_shared_memory(text));
  for (const auto& [file, text] : emulation_texts()) folder.write(concat(name, "/", file), text);
  folder.write(concat(name, "/unit.cpp"), concat("#include \"shared_memory.h\"\n", with_one_shared_memory(sources.unit),
                                                 "#include \"entry.h\"\n"));
  const std::string root = concat(folder.path(), "/", name), library = root + ".so";
  const std::string said =
      run_compiler(compiler,
                   {"-std=c++20", "-O1", "-shared", "-fPIC", "-fvisibility=hidden", "-fno-strict-aliasing",
                    "-ffp-contract=off", "-w", concat("-I", root), concat(root, "/unit.cpp"), "-o", library},
                   folder, name);
  if (!said.empty())
    throw Error(ErrorCode::environment, concat(request.label, " cannot be emulated: ", compiler.words[0],
                                               " does not compile it for this CPU:\n", said));
  return library;
}

}  // namespace

Emulator::Emulator(const Common& options, const Device& device) : options_(options), device_(device) {
  compiler_ = find_host_compiler().words[0];
}
Emulator::~Emulator() = default;

Emulator::Unit Emulator::unit_of(const EmulatedProblem& asked) const {
  Unit unit{step_of(asked, device_, options_.variant.empty()), {}, {}};
  if (unit.step.family == nullptr) return unit;
  unit.kernel = unit.step.family->unit(unit.step.config);
  std::map<std::string, std::string> files = variant_files(options_, device_, asked.problem);
  for (const auto& [name, text] : emulation_texts())
    if (name.starts_with("ptx/")) files.emplace(name, text);
  unit.request = request_for(unit.kernel, device_.arch,
                             concat(unit.step.family->name, " for \"", to_string(asked.problem), "\""), files);
  return unit;
}

void Emulator::compile(const std::vector<EmulatedProblem>& problems) {
  std::map<std::string, Unit> wanted;
  for (const EmulatedProblem& problem : problems) {
    try {
      Unit unit = unit_of(problem);
      if (unit.step.family != nullptr && !libraries_.contains(unit.kernel.text))
        wanted.emplace(unit.kernel.text, std::move(unit));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::unsupported) throw;  // the check says so of this problem
    }
  }
  if (wanted.empty()) return;
  std::vector<const Unit*> units;
  for (const auto& [text, unit] : wanted) units.push_back(&unit);
  const HostCompiler compiler = find_host_compiler();
  const SignalsWait wait;
  const FreshFolder folder;
  std::mutex mutex;  // of the rest
  std::exception_ptr failure;
  Progress progress(units.size());
  const check::Stage stage("compiling for this CPU", static_cast<int64_t>(units.size()));
  size_t begun = 0;
  const auto count = static_cast<int64_t>(units.size());
  cpu::ThreadPool pool(static_cast<int>(std::min<int64_t>(count, cpu::available_threads())));
  pool.parallel_for(count, [&](int, int64_t at) {
    const Unit& unit = *units[static_cast<size_t>(at)];
    try {
      {
        const std::lock_guard lock(mutex);
        if (failure || SignalsWait::one_waits()) return;
        progress.at(begun++, unit.request.label);
      }
      const std::string path = build(unit.request, compiler, folder, concat("kernel", at));
      auto library = std::make_unique<Library>(path);
      const std::lock_guard lock(mutex);
      libraries_[unit.kernel.text] = std::move(library);
      check::step_done();
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
    }
  });
  if (failure) std::rethrow_exception(failure);
}

check::Kernel Emulator::kernel(const std::string& config) {
  return [this, config](const Problem& problem, const check::Inputs& inputs, const check::Outputs& outputs) {
    run({problem, config}, inputs, outputs);
  };
}

void Emulator::run(const EmulatedProblem& asked, const check::Inputs& inputs, const check::Outputs& outputs) {
  const Unit unit = unit_of(asked);
  if (unit.step.family == nullptr) return;
  if (!libraries_.contains(unit.kernel.text)) compile({asked});
  const Library& library = *libraries_.at(unit.kernel.text);
  const SharedCall call(asked.problem, inputs, outputs);
  Prepared made = launch_of(unit.step, unit.kernel, call.args(), asked.problem);
  made.launch.params = made.params.data();
  if (made.launch.grid[0] == 0) return;
  const std::string wrong = run_apart([&] { library.entry(made.launch); }, most_seconds);
  if (!wrong.empty()) throw Error(ErrorCode::internal, concat("the emulated kernel failed: ", wrong));
  call.require_untouched();
  call.copy_back();
}

}  // namespace rapt::lab
