// Reports that need one or two GPUs. Their rows are in tests/cpu/reports.h; the parts without a GPU run in rapt_tests.
#include "../cpu/reports.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <thread>

#include "../cpu/append_then_attend.h"
#include "base/error.h"
#include "check/paged.h"
#include "cuda/driver.h"
#include "gpu_support.h"
#include "jit/jit.h"
#include "kernels/family.h"
#include "placed_tensors.h"
#include "prim_args.cuh"

namespace rapt::test {

const std::map<std::string_view, std::string_view>& device_sources();  // the files of this folder

namespace {

class GpuReports : public GpuTest {};

class GpuTwoDevicesReports : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (!IsSkipped() && cuda::device_count() < 2) skip("one GPU");
  }
};

std::set<std::string> tests_of(const char* suite_name) {
  std::set<std::string> names;
  const testing::UnitTest& unit = *testing::UnitTest::GetInstance();
  for (int s = 0; s < unit.total_test_suite_count(); ++s) {
    const testing::TestSuite& suite = *unit.GetTestSuite(s);
    if (std::string_view(suite.name()) != suite_name) continue;
    for (int t = 0; t < suite.total_test_count(); ++t) names.insert(suite.GetTestInfo(t)->name());
  }
  return names;
}

// A kernel whose entry calls rapt::test::`call` of reports_kernels.cuh.
jit::Request request(const std::string& call, const std::string& arch) {
  jit::Request request{
      .unit = concat("#include \"reports_kernels.cuh\"\nextern \"C\" __global__ void rapt_kernel(const ",
                     "__grid_constant__ rapt::test::PrimArgs args) { rapt::test::", call, "(args); }\n"),
      .arch = arch,
      .label = "the reports' " + call,
      .files = {}};
  for (const auto& [name, text] : device_sources()) request.files.emplace(name, text);
  return request;
}

// The same kernel, loaded on GPU 0.
class Task {
 public:
  explicit Task(const std::string& call, size_t smem_bytes = 0)
      : image_(jit::Store(jit::Store::from_environment()).get(request(call, cuda::device(0).arch))),
        kernel_(image_->bytes.data(), image_->bytes.size(), "rapt_kernel"),
        smem_bytes_(smem_bytes) {
    kernel_.prepare(0, smem_bytes);
  }
  void launch(const PrimArgs& args, cuda::StreamHandle stream, unsigned blocks = 64) const {
    kernel_.launch({.grid_x = blocks, .threads = 256, .smem_bytes = smem_bytes_, .stream = stream}, &args);
  }

 private:
  std::shared_ptr<const jit::Image> image_;
  cuda::Kernel kernel_;
  size_t smem_bytes_;
};

constexpr const char *fill_one = "fill<0x3c00>", *fill_nan = "fill<0x7fff>";  // f16; the second is NaN in bf16 and f32

int64_t elements_that_differ(const HostTensor& tensor, double value) {
  int64_t different = 0;
  each_index(tensor.shape, [&](const auto& at) { different += tensor.at(at) == value ? 0 : 1; });
  return different;
}

}  // namespace

TEST(GpuReportTable, EveryRowThatTakesAGpuHasItsTest) {
  std::set<std::string> on_one, on_two;
  for (const Report& r : reports) {
    if (r.runs == Runs::gpu) on_one.insert(std::string(r.id));
    if (r.runs == Runs::two_gpus) on_two.insert(std::string(r.id));
  }
  EXPECT_EQ(tests_of("GpuReports"), on_one);
  EXPECT_EQ(tests_of("GpuTwoDevicesReports"), on_two);
}

TEST(GpuReportTable, ItsKernelsCompile) {
  std::string why;
  if (jit::find_compiler(&why) == nullptr) GTEST_SKIP() << why;
  for (const char* call : {"spin", fill_one, fill_nan, "copy", "count_differences", "leave_nan"})
    EXPECT_NO_THROW(jit::compile(request(call, "sm_90a"))) << call;
}

namespace {

// A call whose q, k and v are set to 1 by earlier work on the stream, and whose output is copied by later work.
class LateInputs {
 public:
  LateInputs() : call_(make("f16 b1 h1 q128 k128 d64 lse")), gpu_(call_), copied_(count * 2) {}

  // Enqueues all work on the stream. If `late`, this work begins after 50 ms of other work.
  void enqueue(const cuda::Stream& stream, bool late) {
    const rapt_sdpa_args& args = gpu_.args();
    if (late) spin_.launch({.n = 50'000'000}, stream.handle(), 1);
    for (const rapt_tensor* tensor : {args.q, args.k, args.v})
      fill_.launch({.out = tensor->data, .n = count}, stream.handle());
    gpu_.expect_enqueue(stream.handle());
    copy_.launch({.a = args.out->data, .out = copied_.data(), .n = count}, stream.handle());
  }
  int wrong_elements() const {
    std::vector<unsigned short> out(count);
    copied_.download(out.data(), copied_.bytes());
    return static_cast<int>(count - std::count(out.begin(), out.end(), 0x3c00));
  }
  void restart() {  // sets inputs to 0 and outputs to NaN
    gpu_.restart();
    copied_.fill(0xff);
  }
  const Task& spin() const { return spin_; }

 private:
  static constexpr long count = 128 * 64;
  const Task spin_{"spin"}, fill_{fill_one}, copy_{"copy"};
  const Call call_;
  GpuCall gpu_;
  cuda::Buffer copied_;
};

}  // namespace

TEST_F(GpuReports, R98) {
  LateInputs call;
  const cuda::Stream stream;  // does not wait for the default stream
  for (int i = 0; i < 100 && !HasFailure(); ++i) {
    call.restart();
    call.enqueue(stream, true);
    stream.synchronize();
    EXPECT_EQ(call.wrong_elements(), 0) << "repeat " << i;
  }
  // A call continues while the default stream is busy, because none of its work is there.
  call.restart();
  cuda::Event call_done, default_done;
  call.spin().launch({.n = 200'000'000}, nullptr, 1);
  default_done.record(nullptr);
  call.enqueue(stream, false);
  call_done.record(stream.handle());
  stream.synchronize();
  default_done.synchronize();
  EXPECT_EQ(call.wrong_elements(), 0);
  EXPECT_GT(cuda::Event::microseconds(call_done, default_done), 0) << "the call waited for the default stream";
}

namespace {

// The lengths of two sequences in a replay. exchanged: each sequence has the pages of the other one.
struct Replay {
  int first, second;
  bool exchanged = false;
};
constexpr Replay replays[] = {{2, 2, true}, {8192, 17}, {0, 8191}, {8192, 17, true}, {2, 2}};

// Records a decoding step for the lengths 2 and 2, and replays it with others.
void expect_replays_dense_keys() {
  Call call = make("f16 b2 h8:2 q1 k8192 d128 seqused=2,2 lse");
  fill_hash(call);
  GpuCall gpu(call);
  const cuda::Stream stream;
  ASSERT_EQ(rapt_prepare(nullptr, &gpu.args(), stream.handle()), RAPT_OK) << rapt_last_error();
  cuda::Graph::begin(stream.handle());
  gpu.expect_enqueue(stream.handle());
  const cuda::Graph graph(stream.handle());
  for (const Replay& replay : replays) {
    SCOPED_TRACE(concat(replay.first, ", ", replay.second));
    put(call.in.seqused_k, {0}, replay.first), put(call.in.seqused_k, {1}, replay.second);
    gpu.restart();
    graph.replay(stream.handle());
    stream.synchronize();
    Call eager = call;
    expect_same_bits(gpu.result(), run_gpu(eager));
    expect_oracle(eager);
  }
}

// A view of the tensor with its two batch rows exchanged.
HostTensor exchange_rows(HostTensor tensor) {
  tensor.offset += tensor.strides[0];
  tensor.strides[0] = -tensor.strides[0];
  return tensor;
}

// The same step over keys in pages of 16. Lengths and block table change in GPU memory, at the addresses of the
// recorded call.
class PagedStep {
 public:
  PagedStep() {
    args_.struct_size = sizeof args_;
    args_.q = q_.get(), args_.k = k_.get(), args_.v = v_.get(), args_.out = out_.get(), args_.lse = lse_.get();
    args_.block_table = &table_.tensor, args_.seqused_k = &used_.tensor;
  }
  const rapt_sdpa_args& args() const { return args_; }

  void set(const Replay& replay) {
    const int lengths[] = {replay.first, replay.second};
    for (int64_t b = 0; b < 2; ++b) {
      put(used_row_, {b}, lengths[b]), put(dense_.in.seqused_k, {b}, lengths[b]);
      const int64_t from = replay.exchanged ? 1 - b : b;
      for (int64_t i = 0; i < columns; ++i)  // entries past the end are not pages
        put(table_rows_, {b, i}, i * page < lengths[b] ? pages_.block_table.at({from, i}) : 1e9);
    }
    table_.upload(), used_.upload();
  }
  // Waits for the stream. The call with dense keys that has the outputs of the GPU.
  Call result(const cuda::Stream& stream, const Replay& replay) {
    stream.synchronize();
    placed_.download();
    Call call = dense_;
    if (replay.exchanged) call.in.k = exchange_rows(call.in.k), call.in.v = exchange_rows(call.in.v);
    return call;
  }

 private:
  static constexpr int64_t page = 16, columns = 8192 / page;
  static Call hashed(const std::string& line) {
    Call call = make(line);
    fill_hash(call);
    call.out = check::make_outputs(call.problem);
    return call;
  }
  static check::PagedKeys pages_of(const Call& call) {
    Problem problem = call.problem;
    problem.page_size = page;
    return check::make_paged(problem, call.in);
  }

  Call dense_ = hashed("f16 b2 h8:2 q1 k8192 d128 seqused=8192,8192 lse");
  check::PagedKeys pages_ = pages_of(dense_);
  HostTensor table_rows_ = make_tensor(DType::i32, {2, columns}), used_row_ = make_tensor(DType::i32, {2});
  PlacedTensors placed_{4096};
  const check::View q_{"q", dense_.in.q, placed_.placement()}, k_{"k", pages_.k, placed_.placement()},
      v_{"v", pages_.v, placed_.placement()}, out_{"out", dense_.out.out, placed_.placement()},
      lse_{"lse", dense_.out.lse, placed_.placement()}, table_view_{"block_table", table_rows_, check::in_host_memory},
      used_view_{"seqused_k", used_row_, check::in_host_memory};
  ChangingTensor table_{table_rows_, *table_view_.get()}, used_{used_row_, *used_view_.get()};
  rapt_sdpa_args args_{};
};

void expect_replays_pages() {
  PagedStep step;
  step.set(replays[0]);
  const cuda::Stream stream;
  ASSERT_EQ(rapt_prepare(nullptr, &step.args(), stream.handle()), RAPT_OK) << rapt_last_error();
  cuda::Graph::begin(stream.handle());
  EXPECT_EQ(rapt_sdpa(nullptr, &step.args(), stream.handle()), RAPT_OK) << rapt_last_error();
  const cuda::Graph graph(stream.handle());
  for (const Replay& replay : replays) {
    SCOPED_TRACE(concat("pages, ", replay.first, ", ", replay.second, replay.exchanged ? ", exchanged" : ""));
    step.set(replay);
    graph.replay(stream.handle());
    const Call replayed = step.result(stream, replay);
    expect_oracle(replayed);
    const auto out = bits(replayed.out.out), lse = bits(replayed.out.lse);
    ASSERT_EQ(rapt_sdpa(nullptr, &step.args(), stream.handle()), RAPT_OK) << rapt_last_error();
    const Call eager = step.result(stream, replay);
    EXPECT_EQ(out, bits(eager.out.out));
    EXPECT_EQ(lse, bits(eager.out.lse));
  }
}

}  // namespace

// The lengths grow between recording and replay.
TEST_F(GpuReports, R104) {
  expect_replays_dense_keys();
  expect_replays_pages();
}

TEST_F(GpuReports, R111) {
  std::string lengths = "513";
  for (int i = 0; i < 40; ++i) lengths += ",3";
  for (const char* words : {" h2 d128 lse invariant", " h2 d128 lse"}) {
    SCOPED_TRACE(words);
    Call alone = make(concat("bf16 varlen=513", words)), together = make(concat("bf16 varlen=", lengths, words));
    fill_hash(together);
    alone.in.q = slice(together.in.q, 0, 0, 513);
    alone.in.k = slice(together.in.k, 0, 0, 513);
    alone.in.v = slice(together.in.v, 0, 0, 513);
    expect_oracle(run_gpu(alone));
    expect_oracle(run_gpu(together));
    if (!alone.problem.invariant) continue;
    expect_same_bits(alone.out.out, slice(together.out.out, 0, 0, 513));
    expect_same_bits(alone.out.lse, slice(together.out.lse, 1, 0, 513));
  }
}

namespace {

// Repeats the call. Before each time, the shared memory of every multiprocessor and the outputs are filled with NaN.
void expect_stable_after_nan(const std::string& line, int times) {
  SCOPED_TRACE(line);
  Call call = make(line);
  fill_hash(call);
  GpuCall gpu(call);
  const Device& device = cuda::device(0);
  const auto smem_bytes = static_cast<size_t>(device.smem_per_block);
  const Task leave_nan("leave_nan", smem_bytes), fill(fill_nan), copy("copy"), compare("count_differences");
  const cuda::Stream stream;
  cuda::Buffer differences(sizeof(unsigned));
  differences.fill(0);
  const auto dirty = [&] {
    leave_nan.launch({.n = static_cast<long>(smem_bytes / 4)}, stream.handle(), static_cast<unsigned>(device.sm_count));
  };

  dirty();
  gpu.expect_enqueue(stream.handle());
  stream.synchronize();
  const Call& first = gpu.result();
  expect_oracle(first);
  expect_finite(first.out.out);
  expect_finite(first.out.lse);

  struct Output {
    void* data;
    long halves;  // elements of 16 bits
    cuda::Buffer expected;
  };
  std::array<Output, 2> outputs;
  outputs[0] = {gpu.args().out->data, static_cast<long>(first.out.out.size()), {}};
  outputs[1] = {gpu.args().lse->data, 2 * static_cast<long>(first.out.lse.size()), {}};
  for (Output& o : outputs) {
    o.expected = cuda::Buffer(static_cast<size_t>(o.halves) * 2);
    copy.launch({.a = o.data, .out = o.expected.data(), .n = o.halves}, stream.handle());
  }
  for (int i = 0; i < times; ++i) {
    dirty();
    for (const Output& o : outputs) fill.launch({.out = o.data, .n = o.halves}, stream.handle());
    gpu.expect_enqueue(stream.handle());
    for (const Output& o : outputs)
      compare.launch({.a = o.data, .b = o.expected.data(), .out = differences.data(), .n = o.halves}, stream.handle());
  }
  stream.synchronize();
  unsigned different = 0;
  differences.download(&different, sizeof different);
  gpu.result();  // inputs and guards are unchanged
  EXPECT_EQ(different, 0u) << "halves of outputs, over " << times << " calls";
}

}  // namespace

TEST_F(GpuReports, R112) {
  const std::string line = "bf16 h64:16 d128 varlen=33:272,11:192,11:240,11:64,11:288,11:544,12:448";
  for (const char* words : {" lse", " causal lse", " page=16 lse", " causal page=16 lse"})
    expect_stable_after_nan(line + words, 500);
}

// The stream orders the append before the attention. Each run first appends NaN at the same places. 500 runs without
// waiting in between give the bits of a run that waits.
TEST_F(GpuReports, R114) {
  const cuda::Stream stream;
  for (const int64_t old : {15, 16, 17})
    for (const int64_t fresh : {1, 2, 3}) {
      SCOPED_TRACE(concat(old, " old tokens, ", fresh, " new"));
      const AppendThenAttend step(old, fresh);
      HostTensor no_numbers = make_tensor(DType::f16, step.append.k.shape);
      fill(no_numbers, nan);
      PlacedTensors placed(256);
      const AppendArgs places(step.append, placed.placement());
      const check::View no_keys("k", no_numbers, placed.placement());
      rapt_kv_append_args erase = places.args;
      erase.k = erase.v = no_keys.get();
      step.with_attention(places.args, placed.placement(), [&](const rapt_sdpa_args& attention) {
        const auto run = [&](bool wait) {
          ASSERT_EQ(rapt_kv_append(nullptr, &erase, stream.handle()), RAPT_OK) << rapt_last_error();
          ASSERT_EQ(rapt_kv_append(nullptr, &places.args, stream.handle()), RAPT_OK) << rapt_last_error();
          if (wait) stream.synchronize();
          ASSERT_EQ(rapt_sdpa(nullptr, &attention, stream.handle()), RAPT_OK) << rapt_last_error();
        };
        const auto result = [&] {
          stream.synchronize();
          placed.download();
          return bits(step.out);
        };
        run(true);
        const std::vector<unsigned char> expected = result();
        const HostTensor dense = step.dense();
        each_index(dense.shape, [&](const auto& at) { ASSERT_NEAR(step.out.at(at), dense.at(at), 2e-3); });
        for (int i = 0; i < 500; ++i) run(false);
        EXPECT_EQ(result(), expected);
      });
    }
}

namespace {

// All three inputs are 1, so every output is 1.
Call call_of_ones() {
  Call call = make("f16 b4 h32 q16 k16 d64 lse");
  for (HostTensor* tensor : {&call.in.q, &call.in.k, &call.in.v}) fill(*tensor, 1);
  return call;
}

// The number of the current device; -1 if there is none.
int current_device() {
  cuda::DeviceHandle handle = 0;
  if (cuda::driver().cuCtxGetDevice(&handle) != cuda::result::success) return -1;
  for (int index = 0; index < cuda::device_count(); ++index)
    if (cuda::device_handle(index) == handle) return index;
  return -1;
}

// Calls on tensors and streams of GPU `index` while another GPU is current. Errors are added to `failures`.
void call_from_another_device(int index, int current, Failures& failures) {
  const cuda::ContextScope making(index, nullptr);
  const cuda::Stream own;
  const Call call = call_of_ones();
  for (cuda::StreamHandle stream : {static_cast<cuda::StreamHandle>(nullptr), own.handle()})
    for (int i = 0; i < 10; ++i) {
      GpuCall gpu(call, index);
      {
        const cuda::ContextScope elsewhere(current, nullptr);
        if (gpu.enqueue(stream) != RAPT_OK) failures.add(gpu.call().message);
        if (current_device() != current) failures.add(concat("current is ", current_device(), ", was ", current));
      }
      float first = 0;
      cuda::copy_to_host(&first, gpu.args().lse->data, sizeof first, stream);  // waits
      if (const int64_t wrong = elements_that_differ(gpu.result().out.out, 1.0); wrong != 0)
        failures.add(concat(wrong, " elements on cuda:", index, " are not 1"));
    }
}

}  // namespace

TEST_F(GpuTwoDevicesReports, R100) {
  Failures failures;
  call_from_another_device(1, 0, failures);
  std::vector<std::thread> threads;
  for (int index : {0, 1})
    threads.emplace_back([&failures, index] {
      try {
        call_from_another_device(index, 1 - index, failures);
      } catch (const Error& error) {
        failures.add(error.what());
      }
    });
  for (std::thread& thread : threads) thread.join();
  failures.report();
}

TEST_F(GpuTwoDevicesReports, R102) {
  Call call = make("f16 b1 h2 q512 k512 d256 lse");
  fill_hash(call);
  const Step step = plan(call.problem, cuda::device(0)).steps[0];
  ASSERT_GT(step.family->unit(step.config).smem_bytes, size_t{48} << 10) << "needs no opt-in and shows nothing";
  const auto context = make_context();  // a new context, which has loaded nothing
  for (int index : {0, 1, 0}) {
    SCOPED_TRACE(index);
    const cuda::ContextScope scope(index, nullptr);
    const cuda::Stream stream;
    GpuCall gpu(call, index);
    gpu.expect_enqueue(stream.handle(), context.get());
    stream.synchronize();
    expect_oracle(gpu.result());
  }
}

}  // namespace rapt::test
