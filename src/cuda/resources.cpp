// Owners of driver handles: device memory, streams, events and graphs. Create each in a ContextScope. Used by lab,
// check, tests and the workspaces of calls. Destructors never throw, and do nothing in a forked child.
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "cuda/driver.h"

namespace rapt::cuda {

bool is_capturing(StreamHandle stream) {
  const Driver& driver = cuda::driver();
  CaptureStatus status = CaptureStatus::none;
  const Result result = driver.cuStreamIsCapturing(stream, &status);
  if (result == result::stream_capture_implicit)
    fail(driver, result, "using the legacy default stream while a stream that synchronises with it is captured");
  check(driver, result, "asking whether a stream is captured (cuStreamIsCapturing)");
  return status != CaptureStatus::none;  // an invalidated capture also has not ended
}

void synchronize(StreamHandle stream) {
  const Driver& driver = cuda::driver();
  check(driver, driver.cuStreamSynchronize(stream), "waiting for a stream (cuStreamSynchronize)");
}

UncapturedScope::UncapturedScope() {
  const Driver& driver = cuda::driver();
  CaptureMode mode = CaptureMode::relaxed;
  check(driver, driver.cuThreadExchangeStreamCaptureMode(&mode),
        "changing the thread's capture mode (cuThreadExchangeStreamCaptureMode)");
  outer_ = static_cast<int>(mode);
}

UncapturedScope::~UncapturedScope() {
  CaptureMode mode = static_cast<CaptureMode>(outer_);
  if (const Driver* driver = opened_driver()) driver->cuThreadExchangeStreamCaptureMode(&mode);
}

uint64_t stream_id(StreamHandle stream) {
  const Driver& driver = cuda::driver();
  unsigned long long id = 0;
  check(driver, driver.cuStreamGetId(stream, &id), "asking for a stream's id (cuStreamGetId)");
  return id;
}

Buffer::Buffer(size_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  const Driver& driver = cuda::driver();
  ContextHandle context = nullptr;
  check(driver, driver.cuCtxGetCurrent(&context), "asking for the current context (cuCtxGetCurrent)");
  context_ = context;
  const Result result = driver.cuMemAlloc(&data_, bytes);
  if (result != result::success) fail(driver, result, concat("allocating ", bytes, " bytes on the GPU (cuMemAlloc)"));
}

Buffer::~Buffer() { release(); }

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, 0)),
      bytes_(std::exchange(other.bytes_, 0)),
      context_(std::exchange(other.context_, nullptr)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this == &other) return *this;
  release();
  data_ = std::exchange(other.data_, 0);
  bytes_ = std::exchange(other.bytes_, 0);
  context_ = std::exchange(other.context_, nullptr);
  return *this;
}

void Buffer::release() noexcept {
  const Driver* driver = opened_driver();
  if (data_ == 0 || driver == nullptr) return;
  // If the context was destroyed, its memory is already free.
  if (driver->cuCtxPushCurrent(static_cast<ContextHandle>(context_)) != result::success) return;
  driver->cuMemFree(data_);
  ContextHandle popped = nullptr;
  driver->cuCtxPopCurrent(&popped);
}

namespace {

void check_range(size_t bytes, size_t offset, size_t size) {
  if (offset > size || bytes > size - offset)
    throw Error(ErrorCode::internal,
                concat("copy of ", bytes, " bytes at offset ", offset, ": the buffer has ", size, " bytes"));
}

// Fills, and copies of pageable memory, can return before the GPU is done, and other streams do not wait for them.
void finish_default_stream(const Driver& driver) {
  check(driver, driver.cuStreamSynchronize(legacy_stream), "waiting for a copy (cuStreamSynchronize)");
}

}  // namespace

void Buffer::upload(const void* from, size_t bytes, size_t offset) {
  check_range(bytes, offset, bytes_);
  if (bytes == 0) return;
  const Driver& driver = cuda::driver();
  check(driver, driver.cuMemcpyHtoD(data_ + offset, from, bytes), "copying to the GPU (cuMemcpyHtoD)");
  finish_default_stream(driver);
}

void copy_to_host(void* to, const void* from, size_t bytes, StreamHandle stream) {
  const Driver& driver = cuda::driver();
  check(driver, driver.cuStreamSynchronize(stream), "waiting for a stream (cuStreamSynchronize)");
  if (bytes == 0) return;
  check(driver, driver.cuMemcpyDtoH(to, reinterpret_cast<DevicePtr>(from), bytes),
        "copying from the GPU (cuMemcpyDtoH)");
}

void Buffer::download(void* to, size_t bytes, size_t offset) const {
  check_range(bytes, offset, bytes_);
  if (bytes == 0) return;
  const Driver& driver = cuda::driver();
  check(driver, driver.cuMemcpyDtoH(to, data_ + offset, bytes), "copying from the GPU (cuMemcpyDtoH)");
}

void Buffer::fill(unsigned char value) {
  if (bytes_ == 0) return;
  const Driver& driver = cuda::driver();
  check(driver, driver.cuMemsetD8(data_, value, bytes_), "filling GPU memory (cuMemsetD8)");
  finish_default_stream(driver);
}

void Buffer::clear(StreamHandle stream) {
  if (bytes_ == 0) return;
  const Driver& driver = cuda::driver();
  check(driver, driver.cuMemsetD8Async(data_, 0, bytes_, stream), "clearing GPU memory (cuMemsetD8Async)");
}

Stream::Stream() {
  const Driver& driver = cuda::driver();
  check(driver, driver.cuStreamCreate(&handle_, stream_non_blocking), "making a stream (cuStreamCreate)");
}

Stream::~Stream() {
  if (const Driver* driver = opened_driver()) driver->cuStreamDestroy(handle_);
}

void Stream::synchronize() const { cuda::synchronize(handle_); }

Event::Event() {
  const Driver& driver = cuda::driver();
  check(driver, driver.cuEventCreate(&handle_, 0), "making an event (cuEventCreate)");
}

Event::~Event() {
  if (const Driver* driver = opened_driver()) driver->cuEventDestroy(handle_);
}

void Event::record(StreamHandle stream) {
  const Driver& driver = cuda::driver();
  check(driver, driver.cuEventRecord(handle_, stream), "recording an event (cuEventRecord)");
}

void Event::synchronize() const {
  const Driver& driver = cuda::driver();
  check(driver, driver.cuEventSynchronize(handle_), "waiting for an event (cuEventSynchronize)");
}

void Event::order_before(StreamHandle stream) const {
  const Driver& driver = cuda::driver();
  check(driver, driver.cuStreamWaitEvent(stream, handle_, 0), "ordering a stream after an event (cuStreamWaitEvent)");
}

double Event::microseconds(const Event& begin, const Event& end) {
  const Driver& driver = cuda::driver();
  float milliseconds = 0;
  check(driver, driver.cuEventElapsedTime(&milliseconds, begin.handle_, end.handle_),
        "timing between events (cuEventElapsedTime)");
  return 1e3 * static_cast<double>(milliseconds);
}

void Graph::begin(StreamHandle stream) {
  const Driver& driver = cuda::driver();
  check(driver, driver.cuStreamBeginCapture(stream, CaptureMode::thread_local_),
        "starting to capture a stream (cuStreamBeginCapture)");
}

Graph::Graph(StreamHandle stream) {
  const Driver& driver = cuda::driver();
  check(driver, driver.cuStreamEndCapture(stream, &graph_), "ending a stream's capture (cuStreamEndCapture)");
  const Result result = driver.cuGraphInstantiateWithFlags(&executable_, graph_, 0);
  if (result == result::success) return;
  driver.cuGraphDestroy(graph_);
  fail(driver, result, "making a captured graph ready (cuGraphInstantiateWithFlags)");
}

Graph::~Graph() {
  const Driver* driver = opened_driver();
  if (driver == nullptr) return;
  driver->cuGraphExecDestroy(executable_);
  driver->cuGraphDestroy(graph_);
}

void Graph::replay(StreamHandle stream) const {
  const Driver& driver = cuda::driver();
  check(driver, driver.cuGraphLaunch(executable_, stream), "replaying a graph (cuGraphLaunch)");
}

PersistingL2::Limits PersistingL2::limits(int device_index) {
  const Driver& driver = cuda::driver();
  const auto read = [&](DeviceAttribute which) {
    int bytes = 0;
    check(driver, driver.cuDeviceGetAttribute(&bytes, which, device_handle(device_index)),
          "asking for the limits of persisting L2 lines (cuDeviceGetAttribute)");
    return static_cast<size_t>(std::max(bytes, 0));
  };
  if (driver.cuCtxSetLimit == nullptr || driver.cuCtxResetPersistingL2Cache == nullptr) return {};
  return {read(DeviceAttribute::persisting_l2_bytes), read(DeviceAttribute::l2_window_bytes)};
}

PersistingL2::PersistingL2(int device_index, size_t bytes) : bytes_(std::min(bytes, limits(device_index).bytes)) {
  if (bytes_ == 0) unsupported(device(device_index).name, ": no part of its L2 cache can be set aside");
  const Driver& driver = cuda::driver();
  check(driver, driver.cuCtxSetLimit(Limit::persisting_l2_bytes, bytes_),
        "setting aside a part of the L2 cache (cuCtxSetLimit)");
}

PersistingL2::~PersistingL2() {
  const Driver* driver = opened_driver();
  if (driver == nullptr) return;
  driver->cuCtxResetPersistingL2Cache();
  driver->cuCtxSetLimit(Limit::persisting_l2_bytes, 0);
}

}  // namespace rapt::cuda
