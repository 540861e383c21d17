// Prepares plans for launch: chooses a plan, gets its kernels from the store, loads them into the GPU's context, and
// keeps the result.
#include "runtime/gpu.h"

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "problem/length_class.h"
#include "runtime/context.h"

namespace rapt {

jit::Request request_for(const KernelUnit& unit, const std::string& arch, const std::string& label,
                         const std::map<std::string, std::string>& files) {
  return {.unit = unit.text, .arch = arch, .label = label, .files = files};
}

namespace {
uint64_t next_id() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

jit::Store::Options store_options(const ContextOptions& options) {
  jit::Store::Options store = options.store ? *options.store : jit::Store::from_environment();
  if (const cuda::Driver* driver = cuda::find_driver()) store.newest_major = cuda::supported_cuda_major(*driver);
  return store;
}

TunedFile tuned_file_of(const ContextOptions& options) {
  if (!options.config.empty() || !options.files.empty()) return {};
  if (options.tuned) return {*options.tuned, true};
  return options.store ? TunedFile() : tuned_file(jit::Store::from_environment().cache_directory);
}
}  // namespace

GpuResources::GpuResources(const ContextOptions& options)
    : id_(next_id()),
      arch_(options.arch),
      config_(options.config),
      sm_count_(options.sm_count),
      family_(options.family),
      files_(options.files),
      line_info_(options.line_info),
      tuned_file_(tuned_file_of(options)),
      store_(store_options(options)) {}

GpuResources::~GpuResources() = default;

Device GpuResources::device(int index) const {
  Device device = cuda::device(index);
  if (!arch_.empty()) device.arch = arch_;
  if (sm_count_ == 0) return device;
  if (sm_count_ < 1 || sm_count_ > device.sm_count)
    invalid("sm_count = ", sm_count_, ": must be from 1 to ", device.sm_count, ", the multiprocessors of ",
            device.name);
  device.sm_count = sm_count_;
  return device;
}

Plan GpuResources::plan(const Problem& problem, const Device& device) const {
  return plan(problem, device, tuned_rows());
}

Plan GpuResources::plan(const Problem& problem, const Device& device, const TunedRows& rows,
                        const TunedRow** used) const {
  if (family_ != nullptr && family_->accepts(planned_problem(problem, device), device, nullptr))
    return plan_by(*family_, problem, device);
  if (!config_.empty()) return plan_with(problem, device, config_, files_.empty());
  return plan_by_row(problem, device, rows, used);
}

const TunedRows& GpuResources::tuned_rows() const {
  std::call_once(tuned_once_, [&] {
    tuned_rows_ = TunedRows::read(tuned_file_);
    tuned_read_ = true;
  });
  return tuned_rows_;
}

std::shared_ptr<const LoadedPlan> GpuResources::find(const Problem& problem, int device_index) const {
  const Key key{longest_of_class(problem), device_index};
  const std::shared_lock lock(plans_mutex_);
  const auto found = plans_.find(key);
  if (found == plans_.end()) return nullptr;
  found->second.last_use.store(clock_.fetch_add(1, std::memory_order_relaxed), std::memory_order_relaxed);
  return found->second.plan;
}

std::shared_ptr<const LoadedPlan> GpuResources::load(const Problem& problem, const Device& device) {
  const TunedRow* row = nullptr;
  const Plan chosen = plan(problem, device, tuned_rows(), &row);
  if (const std::string note = slow_note(problem, device); !note.empty()) warn_once(note);
  if (row == nullptr || row->keeps_planner()) return load(chosen, problem, device);
  try {
    return load(chosen, problem, device);
  } catch (const Error& error) {
    // Without NVRTC the row's kernel cannot be compiled, but a pack can contain the planner's own kernel.
    if (error.code() != ErrorCode::environment && error.code() != ErrorCode::internal) throw;
    warn_once(concat(tuned_rows().place(*row), ": the tuned row is ignored: ", error.what()));
  }
  return load(plan(problem, device, TunedRows()), problem, device);
}

std::shared_ptr<const LoadedPlan> GpuResources::load(const Plan& plan, const Problem& problem, const Device& device) {
  auto loaded = std::make_shared<LoadedPlan>();
  loaded->plan = plan;
  for (size_t i = 0; i < static_cast<size_t>(plan.step_count); ++i)
    loaded->kernels[i] = &kernel_of(plan.steps[i], device, problem);
  remember(problem, device.index, loaded);
  return loaded;
}

std::shared_ptr<const LoadedPlan> GpuResources::plan_of_loaded_kernels(const Problem& problem, const Device& device) {
  // While a stream is captured, the file of tuned rows is not read. If it was not read before, this context has not
  // loaded a kernel either.
  static const TunedRows none;
  const TunedRow* row = nullptr;
  const Plan chosen = plan(problem, device, tuned_read_ ? tuned_rows_ : none, &row);
  if (auto loaded = of_loaded_kernels(chosen, device)) {
    remember(problem, device.index, loaded);
    return loaded;
  }
  // If the row's kernel is not loaded, perhaps the planner's own kernel is. The context does not remember this plan, so
  // a later call can load the row's kernel.
  return row == nullptr ? nullptr : of_loaded_kernels(plan(problem, device, none), device);
}

std::shared_ptr<const LoadedPlan> GpuResources::of_loaded_kernels(const Plan& plan, const Device& device) {
  auto loaded = std::make_shared<LoadedPlan>();
  loaded->plan = plan;
  for (size_t i = 0; i < static_cast<size_t>(plan.step_count); ++i) {
    const LoadedKernel* const known = known_kernel(plan.steps[i], device);
    if (known == nullptr || !known->kernel->is_prepared(device.index, known->unit.smem_bytes)) return nullptr;
    loaded->kernels[i] = known;
  }
  return loaded;
}

const LoadedKernel* GpuResources::known_kernel(const Step& step, const Device& device) {
  const auto same = [&](const StepKernel& known) {
    return known.family == step.family && known.config == step.config && known.arch == device.arch;
  };
  const std::lock_guard lock(kernels_mutex_);
  const auto known = std::find_if(step_kernels_.begin(), step_kernels_.end(), same);
  return known != step_kernels_.end() ? known->kernel : nullptr;
}

const LoadedKernel& GpuResources::kernel_of(const Step& step, const Device& device, const Problem& problem) {
  if (const LoadedKernel* const known = known_kernel(step, device)) {
    known->kernel->prepare(device.index, known->unit.smem_bytes);
    return *known;
  }
  const LoadedKernel& fresh =
      kernel(device, step.family->unit(step.config), concat(step.family->name, " for \"", to_string(problem), "\""));
  const std::lock_guard lock(kernels_mutex_);
  step_kernels_.push_back({step.family, step.config, device.arch, &fresh});
  return fresh;
}

const LoadedKernel& GpuResources::kernel(const Device& device, const KernelUnit& unit, const std::string& label) {
  const std::pair<std::string, std::string> key{unit.text, device.arch};
  const LoadedKernel* found = nullptr;
  {
    const std::lock_guard lock(kernels_mutex_);
    const auto known = kernels_.find(key);
    if (known != kernels_.end()) found = known->second.get();
  }
  if (found == nullptr) {  // not under the lock, because the store itself compiles each key only once
    auto fresh = std::make_unique<LoadedKernel>();
    jit::Request request = request_for(unit, device.arch, label, files_);
    request.line_info = line_info_;
    fresh->image = store_.get(request);
    fresh->kernel =
        std::make_unique<cuda::Kernel>(fresh->image->bytes.data(), fresh->image->bytes.size(), "rapt_kernel");
    fresh->unit = unit;
    const std::lock_guard lock(kernels_mutex_);
    found = kernels_.try_emplace(key, std::move(fresh)).first->second.get();
  }
  found->kernel->prepare(device.index, unit.smem_bytes);
  return *found;
}

bool GpuResources::has_kernel(const Device& device, const KernelUnit& unit) {
  const std::lock_guard lock(kernels_mutex_);
  return kernels_.contains({unit.text, device.arch});
}

size_t GpuResources::known_plans() const {
  const std::shared_lock lock(plans_mutex_);
  return plans_.size();
}

void GpuResources::remember(const Problem& problem, int device_index, std::shared_ptr<const LoadedPlan> plan) {
  const std::unique_lock lock(plans_mutex_);
  if (plans_.size() >= remembered_plans) {
    const auto oldest = std::min_element(plans_.begin(), plans_.end(), [](const auto& a, const auto& b) {
      return a.second.last_use.load(std::memory_order_relaxed) < b.second.last_use.load(std::memory_order_relaxed);
    });
    plans_.erase(oldest);
  }
  Remembered& entry = plans_[Key{longest_of_class(problem), device_index}];
  entry.plan = std::move(plan);
  entry.last_use.store(clock_.fetch_add(1, std::memory_order_relaxed), std::memory_order_relaxed);
}

}  // namespace rapt
