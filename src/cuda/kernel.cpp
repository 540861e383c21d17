// Kernel: loads an image into the driver, prepares it for a device, and launches it with one driver call. Created and
// prepared by the context of rapt, check and lab.
#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <sstream>
#include <string>

#include "base/error.h"
#include "cuda/driver.h"

namespace rapt::cuda {
namespace {

constexpr size_t smem_bytes_without_opt_in = 48 * 1024;
constexpr int carveout_all_shared = 100;  // percent: the least L1 that the GPU allows
constexpr unsigned grid_x_limit = 0x7fffffff, grid_yz_limit = 65535, threads_limit = 1024;
constexpr unsigned cluster_limit = 8;  // blocks per cluster on every sm_90; a larger cluster needs a kernel attribute

// The buffer for messages of the driver's PTX compiler. The driver can compile after loading, so the buffer lives as
// long as the library.
struct JitLog {
  std::array<char, 4096> text{};
  std::array<JitOption, 2> options{JitOption::error_log, JitOption::error_log_bytes};
  std::array<void*, 2> values{text.data(), reinterpret_cast<void*>(text.size() - 1)};

  // Returns the first lines of the messages, " [a line | a line]", or "" if there are none.
  std::string first_lines() const {
    std::istringstream all(text.data());
    std::string lines;
    int count = 0;
    for (std::string line; count < 4 && std::getline(all, line);)
      if (!line.empty()) lines += (count++ == 0 ? "" : " | ") + line;
    return lines.empty() ? "" : concat(" [", lines, "]");
  }
};

// What prepare() has done on one device.
struct Prepared {
  // The function in the primary context. No other context is guaranteed to outlive the kernel.
  std::atomic<FunctionHandle> function{nullptr};
  size_t smem_bytes = 0;  // dynamic shared memory requested so far; guarded by the mutex
};

}  // namespace

struct Kernel::Impl {
  const Driver& driver;
  std::string entry;
  LibraryHandle library = nullptr;
  KernelHandle kernel = nullptr;
  JitLog log;
  std::mutex preparing;
  std::array<Prepared, max_devices> prepared;

  Impl(const Driver& d, const char* name) : driver(d), entry(name) {}
  ~Impl() {
    const Driver* usable = opened_driver();
    if (usable != nullptr && library != nullptr) usable->cuLibraryUnload(library);
  }

  void check_loading(Result result, const char* doing) const {
    if (result != result::success) fail(driver, result, concat(entry, ": ", doing), log.first_lines());
  }
  int attribute(FunctionAttribute which, int device_index) const {
    int value = 0;
    check_loading(driver.cuKernelGetAttribute(&value, which, kernel, device_handle(device_index)),
                  "reading its attributes (cuKernelGetAttribute)");
    return value;
  }
  void set(FunctionAttribute which, int value, int device_index) const {
    check_loading(driver.cuKernelSetAttribute(which, value, kernel, device_handle(device_index)),
                  "setting its shared memory (cuKernelSetAttribute)");
  }
  void allow_shared_memory(int device_index, size_t smem_bytes);
};

Kernel::Kernel(const void* image, size_t bytes, const char* entry) : impl_(std::make_unique<Impl>(driver(), entry)) {
  if (bytes == 0) throw Error(ErrorCode::internal, concat(entry, ": its image is empty"));
  // The driver finds the end of PTX by its NUL, which this copy has. The driver keeps its own copy.
  const std::string terminated(static_cast<const char*>(image), bytes);
  JitLog& log = impl_->log;
  impl_->check_loading(
      impl_->driver.cuLibraryLoadData(&impl_->library, terminated.c_str(), log.options.data(), log.values.data(),
                                      static_cast<unsigned>(log.options.size()), nullptr, nullptr, 0),
      "loading its image (cuLibraryLoadData)");
  impl_->check_loading(impl_->driver.cuLibraryGetKernel(&impl_->kernel, impl_->library, entry),
                       "finding it in its image (cuLibraryGetKernel)");
}

Kernel::~Kernel() = default;

void Kernel::Impl::allow_shared_memory(int device_index, size_t smem_bytes) {
  const Device& gpu = device(device_index);
  const auto fixed = static_cast<size_t>(attribute(FunctionAttribute::static_smem_bytes, device_index));
  if (fixed + smem_bytes > static_cast<size_t>(gpu.smem_per_block))
    unsupported(entry, ": ", fixed + smem_bytes, " bytes of shared memory: a block of ", gpu.name, " has at most ",
                gpu.smem_per_block);
  if (fixed + smem_bytes > smem_bytes_without_opt_in)
    set(FunctionAttribute::max_dynamic_smem_bytes, static_cast<int>(smem_bytes), device_index);
  set(FunctionAttribute::smem_carveout_percent, carveout_all_shared, device_index);
}

void Kernel::prepare(int device_index, size_t smem_bytes) {
  const ContextScope scope(device_index, nullptr);
  Impl& impl = *impl_;
  Prepared& here = impl.prepared[static_cast<size_t>(device_index)];
  const std::lock_guard<std::mutex> lock(impl.preparing);
  if (smem_bytes > here.smem_bytes) {
    impl.allow_shared_memory(device_index, smem_bytes);
    here.smem_bytes = smem_bytes;
  }
  const bool primary = primary_in_scope() == device_index;
  if (primary && here.function.load(std::memory_order_relaxed) != nullptr) return;
  FunctionHandle function = nullptr;
  impl.check_loading(impl.driver.cuKernelGetFunction(&function, impl.kernel), "loading it (cuKernelGetFunction)");
  if (primary) here.function.store(function, std::memory_order_release);
}

bool Kernel::is_prepared(int device_index, size_t smem_bytes) const {
  const ContextScope scope(device_index, nullptr);
  const Prepared& here = impl_->prepared[static_cast<size_t>(device_index)];
  const std::lock_guard<std::mutex> lock(impl_->preparing);
  return primary_in_scope() == device_index && here.function.load(std::memory_order_relaxed) != nullptr &&
         here.smem_bytes >= smem_bytes;
}

KernelAttributes Kernel::attributes(int device_index) const {
  const auto read = [&](FunctionAttribute which) { return impl_->attribute(which, device_index); };
  KernelAttributes result;
  result.registers = read(FunctionAttribute::registers);
  result.local_bytes = read(FunctionAttribute::local_bytes);
  result.static_shared_bytes = read(FunctionAttribute::static_smem_bytes);
  result.max_threads = read(FunctionAttribute::max_threads);
  return result;
}

void Kernel::write_global(const char* name, const void* from, size_t bytes) const {
  const Driver& driver = impl_->driver;
  if (driver.cuLibraryGetGlobal == nullptr)
    throw Error(ErrorCode::environment, "this driver has no cuLibraryGetGlobal: a newer driver is needed");
  DevicePtr to = 0;
  size_t found = 0;
  check(driver, driver.cuLibraryGetGlobal(&to, &found, impl_->library, name),
        "finding a variable of the image (cuLibraryGetGlobal)");
  if (found != bytes)
    throw Error(ErrorCode::internal, concat(impl_->entry, ": ", name, " has ", found, " bytes: must be ", bytes));
  check(driver, driver.cuMemcpyHtoD(to, from, bytes), "writing a variable of the image (cuMemcpyHtoD)");
  synchronize(legacy_stream);  // the copy may still be under way
}

int Kernel::blocks_per_sm(int device_index, int threads, size_t smem_bytes) const {
  const ContextScope scope(device_index, nullptr);
  int blocks = 0;
  check(impl_->driver,
        impl_->driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(
            &blocks, reinterpret_cast<FunctionHandle>(impl_->kernel), threads, smem_bytes),
        "counting resident blocks (cuOccupancyMaxActiveBlocksPerMultiprocessor)");
  return blocks;
}

namespace {

std::string to_string(const Kernel::Launch& launch) {
  return concat("grid ", launch.grid_x, " x ", launch.grid_y, " x ", launch.grid_z, ", ", launch.threads,
                " threads a block, ", launch.smem_bytes, " bytes of shared memory");
}

bool within(unsigned value, unsigned limit) { return value - 1 < limit; }  // 1..limit

[[noreturn]] void refuse(const std::string& entry, const Kernel::Launch& launch) {
  throw Error(ErrorCode::unsupported,
              concat(entry, ": ", to_string(launch), ": a launch takes 1 to ", grid_x_limit, " x ", grid_yz_limit,
                     " x ", grid_yz_limit, " blocks of 1 to ", threads_limit, " threads"));
}

bool is_clustered(const Kernel::Launch& launch) {
  return ((launch.cluster_x - 1) | (launch.cluster_y - 1) | (launch.cluster_z - 1)) != 0;
}

// Checks the rules of clusters, because the driver reports every broken rule only as "misconfigured cluster".
void require_cluster(const std::string& entry, const Kernel::Launch& launch) {
  const unsigned x = launch.cluster_x, y = launch.cluster_y, z = launch.cluster_z;
  const auto refuse_it = [&](const std::string& rule) {
    throw Error(ErrorCode::unsupported, concat(entry, ": cluster ", x, " x ", y, " x ", z, ": ", rule));
  };
  if (!within(x, cluster_limit) || !within(y, cluster_limit) || !within(z, cluster_limit) || x * y * z > cluster_limit)
    refuse_it(concat("a cluster takes 1 to ", cluster_limit, " blocks"));
  if (launch.grid_x % x != 0 || launch.grid_y % y != 0 || launch.grid_z % z != 0)
    refuse_it(concat("it must divide the grid, which is ", launch.grid_x, " x ", launch.grid_y, " x ", launch.grid_z));
}

// Returns the number of launch attributes that differ from the driver's defaults.
unsigned fill_attributes(const std::string& entry, const Kernel::Launch& launch, LaunchAttribute (&attributes)[4]) {
  unsigned count = 0;
  if (launch.programmatic) {
    attributes[count].id = LaunchAttributeId::programmatic_stream_serialization;
    attributes[count++].value.programmatic_stream_serialization_allowed = 1;
  }
  if (is_clustered(launch)) {
    require_cluster(entry, launch);
    attributes[count].id = LaunchAttributeId::cluster_dimension;
    attributes[count++].value.cluster = {launch.cluster_x, launch.cluster_y, launch.cluster_z};
  }
  if (launch.cooperative) {
    attributes[count].id = LaunchAttributeId::cooperative;
    attributes[count++].value.cooperative = 1;
  }
  if (launch.l2_window.bytes > 0) {
    const L2Window& window = launch.l2_window;
    attributes[count].id = LaunchAttributeId::access_policy_window;
    attributes[count++].value.window = {window.begin, window.bytes, window.share, AccessProperty::persisting,
                                        AccessProperty::normal};
  }
  return count;
}

}  // namespace

void Kernel::launch(const Launch& launch, const void* params) const {
  const Impl& impl = *impl_;
  if (!within(launch.grid_x, grid_x_limit) || !within(launch.grid_y, grid_yz_limit) ||
      !within(launch.grid_z, grid_yz_limit) || !within(launch.threads, threads_limit))
    refuse(impl.entry, launch);
  // In the primary context the launch uses the function that prepare() stored. In other contexts it uses the kernel
  // itself, and the driver looks up the function.
  const int index = primary_in_scope();
  FunctionHandle function = nullptr;
  if (index >= 0) function = impl.prepared[static_cast<size_t>(index)].function.load(std::memory_order_acquire);
  if (function == nullptr) function = reinterpret_cast<FunctionHandle>(impl.kernel);

  LaunchAttribute attributes[4];
  const unsigned count = fill_attributes(impl.entry, launch, attributes);
  const LaunchConfig config{launch.grid_x,
                            launch.grid_y,
                            launch.grid_z,
                            launch.threads,
                            1,
                            1,
                            static_cast<unsigned>(launch.smem_bytes),
                            launch.stream,
                            count > 0 ? attributes : nullptr,
                            count};
  void* parameters[] = {const_cast<void*>(params)};
  const Result result = impl.driver.cuLaunchKernelEx(&config, function, parameters, nullptr);
  if (result != result::success) fail(impl.driver, result, concat(impl.entry, ": launching it: ", to_string(launch)));
}

}  // namespace rapt::cuda
