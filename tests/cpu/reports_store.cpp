// Reports R174..R178: several processes that compile kernels at the same time, a process that is killed while it
// compiles, and sources that change but keep old times. The processes run this program again. reports.h describes each
// report.
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <map>
#include <thread>

#include "device/device.h"
#include "jit_support.h"
#include "kernels/family.h"
#include "reports_process.h"
#include "runtime/gpu.h"
#include "runtime/plan.h"

namespace rapt::test {
namespace {

using namespace std::chrono_literals;
using Source = jit::Image::Source;

std::string test_folder() {
  const char* folder = std::getenv("RAPT_TEST_FOLDER");
  return folder ? folder : "";
}

jit::Store::Options cached_in(const std::string& folder) {
  jit::Store::Options options;
  options.cache_directory = folder;
  return options;
}

// The kernel of a problem on an L4. Compiling it takes almost a second.
jit::Request attention_request(const std::string& line) {
  const Device device = device_preset("l4");
  const Step step = plan(parse_problem(line), device).steps[0];
  return request_for(step.family->unit(step.config), device.arch, concat(step.family->name, " for \"", line, "\""));
}

// Waits until the condition is true, at most a minute. Returns false if it did not become true.
template <class Condition>
bool within_a_minute(const Condition& condition) {
  const auto deadline = std::chrono::steady_clock::now() + 60s;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(1ms);
  }
  return true;
}

size_t names_ending(const std::string& folder, const std::string& end) {
  if (!std::filesystem::exists(folder)) return 0;
  const std::vector<std::string> names = names_in(folder);
  return static_cast<size_t>(
      std::count_if(names.begin(), names.end(), [&](const std::string& name) { return name.ends_with(end); }));
}

std::vector<std::string> lines_with(const std::string& text, const std::string& start) {
  std::vector<std::string> lines;
  for (size_t at = text.find(start); at != std::string::npos; at = text.find(start, at + 1))
    if (at == 0 || text[at - 1] == '\n') lines.push_back(text.substr(at, text.find('\n', at) - at));
  return lines;
}

// ---- R174

constexpr int builders = 8;

// Waits until all builders are ready. Then gets eight kernels, from number `first` on, and prints the source of each.
void build_all(int first) {
  const std::string folder = test_folder();
  jit::find_compiler();  // done first, so that all processes reach the store at the same time
  write_file(folder + "/ready-" + std::to_string(first), "");
  ASSERT_TRUE(within_a_minute([&] { return std::filesystem::exists(folder + "/go"); }));
  jit::Store store(cached_in(folder + "/cache"));
  for (int i = 0; i < builders; ++i) {
    const int n = (first + i) % builders;
    const auto image = store.get(small_kernel(n));
    std::printf("kernel %d %s\n", n, jit::sha256(image->bytes + image->log).c_str());
    if (image->source == Source::compiled) std::printf("compiled %d\n", n);
  }
}

void build_at_once() {
  const TemporaryFolder folder;
  std::vector<ReportProcess> processes;
  for (int n = 0; n < builders; ++n)
    processes.emplace_back("R174", std::to_string(n), concat("RAPT_TEST_FOLDER='", folder.path(), "'"));
  EXPECT_TRUE(within_a_minute([&] { return names_in(folder.path()).size() >= builders; }));
  write_file(folder / "go", "");
  std::map<std::string, int> results;  // key: line; value: number of processes that printed it
  for (ReportProcess& process : processes) {
    const std::string text = process.finish();
    EXPECT_EQ(lines_with(text, "rapt: ").size(), 0u) << text;
    for (const char* start : {"kernel ", "compiled "})
      for (const std::string& line : lines_with(text, start)) ++results[line];
  }
  EXPECT_EQ(results.size(), 2u * builders) << "eight kernels, the same ones for all, each compiled by someone";
  for (const auto& [line, count] : results) EXPECT_EQ(count, line.starts_with("kernel") ? builders : 1) << line;
  EXPECT_EQ(names_in(folder / "cache").size(), static_cast<size_t>(builders)) << "no lock, log or temporary is left";
}

// ---- R176

const char* const slow_line = "f16 b1 h8 q4096 k4096 d256 causal softcap=5 lse";

// A process that compiles a kernel, and prints its process id first.
void build_slowly() {
  write_file(test_folder() + "/pid.tmp", std::to_string(getpid()));
  std::filesystem::rename(test_folder() + "/pid.tmp", test_folder() + "/pid");
  jit::Store store(cached_in(test_folder() + "/cache"));
  const auto image = store.get(attention_request(slow_line));
  std::printf("%s\n", image->source == Source::compiled ? "compiled" : "read");
}

}  // namespace

TEST(Reports, R174) {
  if (!report_role().empty()) return build_all(std::stoi(report_role()));
  for (int round = 0; round < 5 && !HasFailure(); ++round) build_at_once();
}

TEST(Reports, R176) {
  if (!report_role().empty()) return build_slowly();
  const TemporaryFolder folder;
  const std::string cache = folder / "cache", environment = concat("RAPT_TEST_FOLDER='", folder.path(), "'");
  ReportProcess killed("R176", "builder", environment);
  ASSERT_TRUE(within_a_minute([&] { return names_ending(cache, ".lock") == 1; })) << "the builder takes its lock";
  ASSERT_EQ(kill(std::stoi(file_bytes(folder / "pid")), SIGKILL), 0);
  EXPECT_FALSE(contains(killed.output(), "compiled"));
  ASSERT_EQ(names_ending(cache, ".image"), 0u) << "killed too late: this test has shown nothing";
  ASSERT_EQ(names_ending(cache, ".lock"), 1u) << "its lock file lies there";
  const auto begin = std::chrono::steady_clock::now();
  const std::string printed = ReportProcess("R176", "builder", environment).finish();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 60s);
  EXPECT_EQ(lines_with(printed, "compiled").size(), 1u) << printed;
  EXPECT_EQ(names_ending(cache, ".lock"), 0u);
  EXPECT_EQ(names_ending(cache, ".image"), 1u);
}

namespace {

// A kernel that uses a constant. The constant is in a file on disk, which another file includes.
jit::Request request_of_files(const std::string& folder) {
  jit::Request request = small_kernel(1);
  request.unit =
      "#include \"outer.cuh\"\n"
      "extern \"C\" __global__ void rapt_kernel(int* out) { out[threadIdx.x] = answer; }\n";
  for (const char* name : {"outer.cuh", "inner.cuh"}) request.files.emplace(name, file_bytes(folder + "/" + name));
  return request;
}

void write_old_file(const std::string& path, const std::string& text) {
  write_file(path, text);
  std::filesystem::last_write_time(path, std::filesystem::file_time_type::clock::now() - 24h * 365 * 20);
}

}  // namespace

TEST(Reports, R178) {
  const TemporaryFolder folder;
  const auto built = [&] { return jit::Store(cached_in(folder / "cache")).get(request_of_files(folder.path())); };
  write_old_file(folder / "outer.cuh", "#pragma once\n#include \"inner.cuh\"\n");
  write_old_file(folder / "inner.cuh", "#pragma once\nconstexpr int answer = 12345;\n");
  const auto first = built();
  EXPECT_EQ(first->source, Source::compiled);
  EXPECT_EQ(built()->source, Source::cache);
  write_old_file(folder / "inner.cuh", "#pragma once\nconstexpr int answer = 54321;\n");  // same length, same time
  const auto second = built();
  EXPECT_EQ(second->source, Source::compiled);
  EXPECT_NE(second->bytes, first->bytes);
  write_old_file(folder / "inner.cuh", "#pragma once\nconstexpr int answer = 12345;\n");
  const auto again = built();
  EXPECT_EQ(again->source, Source::cache) << "the first one is still good";
  EXPECT_EQ(again->bytes, first->bytes);

  // The library's own sources also count, including those shared with the host, and the architecture.
  const jit::Request request = attention_request(slow_line);
  const std::string signature = jit::signature(request);
  for (const char* name : {"sm80/attention_sm80.cuh", "device/softmax.cuh", "ptx/mma.cuh", "shared/params.h",
                           "shared/variant.h", "shared/mask.h"}) {
    jit::Request edited = request;
    edited.files[name] = std::string(jit::embedded_files().at(name)) + " ";
    EXPECT_NE(jit::signature(edited), signature) << name;
  }
  jit::Request elsewhere = request;
  elsewhere.arch = "sm_80";
  EXPECT_NE(jit::signature(elsewhere), signature);
}

}  // namespace rapt::test
