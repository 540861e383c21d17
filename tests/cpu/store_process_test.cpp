// Tests the store with several processes: many start at the same time, some are killed, and some have no space, no home
// folder or no compiler. A worker is this program, which runs the disabled test below. Its mode and folder come from
// the environment.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <future>
#include <thread>

#include "jit/cache.h"
#include "jit/image_file.h"
#include "jit_support.h"

namespace rapt::test {
namespace {

using namespace std::chrono_literals;

jit::Store::Options cached_in(const std::string& folder) {
  jit::Store::Options options;
  options.cache_directory = folder;
  return options;
}

std::string entry_of(const jit::Request& request) {
  return jit::signature(request) + "-" + jit::find_compiler()->version + ".image";
}

bool exists(const std::string& path) { return std::filesystem::exists(path); }

void wait_for(const std::function<bool()>& condition, const char* what) {
  const auto deadline = std::chrono::steady_clock::now() + 60s;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) {
      ADD_FAILURE() << "waited a minute for " << what;
      return;
    }
    std::this_thread::sleep_for(1ms);
  }
}

// A process that runs worker() in a mode. Its output goes to the file `log`.
class Worker {
 public:
  Worker(const std::string& mode, const std::string& folder, const std::string& log,
         std::vector<std::string> variables = {})
      : log_(log) {
    variables.push_back("RAPT_TEST_MODE=" + mode);
    variables.push_back("RAPT_TEST_FOLDER=" + folder);
    // If a variable is given twice, the first value counts.
    for (char** variable = environ; *variable; ++variable) variables.emplace_back(*variable);
    std::vector<std::string> words = {"rapt_tests", "--gtest_filter=StoreProcess.DISABLED_Worker",
                                      "--gtest_also_run_disabled_tests", "--gtest_brief=1"};
    std::vector<char*> arguments, environment;
    for (std::string& word : words) arguments.push_back(word.data());
    for (std::string& variable : variables) environment.push_back(variable.data());
    arguments.push_back(nullptr);
    environment.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND,
                                     0600);
    posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
    const int failed = posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr, arguments.data(), environment.data());
    posix_spawn_file_actions_destroy(&actions);
    if (failed != 0) std::abort();
  }
  ~Worker() {
    if (pid_ > 0) kill_now();
  }
  Worker(Worker&& other) noexcept : pid_(other.pid_), log_(std::move(other.log_)) { other.pid_ = -1; }
  Worker& operator=(Worker&&) = delete;

  void kill_now() {
    kill(pid_, SIGKILL);
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
  }
  // Waits for the end of the process, expects success, and returns the output.
  std::string finish() {
    int status = 0;
    EXPECT_EQ(waitpid(pid_, &status, 0), pid_);
    pid_ = -1;
    const std::string printed = file_bytes(log_);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << printed;
    return printed;
  }

 private:
  pid_t pid_ = -1;
  std::string log_;
};

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++found;
  return found;
}

// Gets three kernels from its own Store object. Prints "compiled" or "read" for each.
void get_three(const std::string& folder) {
  jit::Store store(cached_in(folder));
  for (int n = 0; n < 3; ++n) {
    const auto image = store.get(small_kernel(n));
    std::printf("%s\n", image->source == jit::Image::Source::compiled ? "compiled" : "read");
    EXPECT_FALSE(image->bytes.empty());
  }
}

TEST(StoreProcess, DISABLED_Worker) {
  const char* mode_name = std::getenv("RAPT_TEST_MODE");
  ASSERT_NE(mode_name, nullptr) << "run by the other tests of this suite";
  const std::string mode = mode_name, folder = std::getenv("RAPT_TEST_FOLDER");
  const std::string cache_folder = folder + "/cache";
  if (mode == "three") {
    get_three(cache_folder);
  } else if (mode == "three at once") {
    jit::find_compiler();  // done first, so that all processes reach the store at the same time
    write_file(folder + "/ready-" + std::to_string(getpid()), "");
    wait_for([&] { return exists(folder + "/go"); }, "the start");
    get_three(cache_folder);
  } else if (mode == "three, no room") {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{1500, 1500};  // smaller than an image
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    get_three(cache_folder);
  } else if (mode == "fail") {
    jit::Store store(cached_in(cache_folder));
    std::printf("%s\n", error_of([&] { store.get(small_kernel(1)); }, ErrorCode::environment).c_str());
  } else if (mode == "hold") {  // holds a lock and has written a part of an entry when it is killed
    const jit::Cache cache(cache_folder);
    std::string why;
    const auto lock = cache.lock(jit::signature(small_kernel(1)), jit::find_compiler()->version, why);
    ASSERT_TRUE(lock) << why;
    write_file(cache_folder + "/" + entry_of(small_kernel(1)) + ".tmp", "part of an image");
    write_file(folder + "/held", "");
    std::this_thread::sleep_for(1h);
  } else if (mode == "replace") {  // writes an entry repeatedly until it is killed
    const std::string bytes = file_bytes(folder + "/entry"), name = entry_of(small_kernel(1));
    const FileHandle directory = open_file(AT_FDCWD, cache_folder, O_RDONLY | O_DIRECTORY);
    write_file(folder + "/replacing", "");
    while (true) ASSERT_EQ(replace_file(directory.fd(), name, bytes, 0600), "");
  } else {
    FAIL() << mode;
  }
}

TEST(StoreProcess, SixteenAtOnceCompileEachKernelOnce) {
  const TemporaryFolder folder;
  std::vector<Worker> workers;
  for (int n = 0; n < 16; ++n)
    workers.emplace_back("three at once", folder.path(), folder / ("log" + std::to_string(n)));
  const auto ready = [&] {
    const auto names = names_in(folder.path());
    return std::count_if(names.begin(), names.end(), [](const std::string& n) { return n.starts_with("ready-"); });
  };
  wait_for([&] { return ready() == 16; }, "sixteen workers");
  write_file(folder / "go", "");
  int compiled = 0, read = 0;
  for (Worker& worker : workers) {
    const std::string printed = worker.finish();
    compiled += count(printed, "compiled\n");
    read += count(printed, "read\n");
    EXPECT_EQ(count(printed, "rapt: "), 0) << printed;
  }
  EXPECT_EQ(compiled, 3);
  EXPECT_EQ(read, 45);
  EXPECT_EQ(names_in(folder / "cache").size(), 3u) << "no lock and no temporary file is left";
}

TEST(StoreProcess, AKilledOwnerIsFollowedByTheNext) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "cache");
  chmod((folder / "cache").c_str(), 0700);
  Worker owner("hold", folder.path(), folder / "log");
  wait_for([&] { return exists(folder / "held"); }, "the owner");
  jit::Store store(cached_in(folder / "cache"));
  auto image = std::async(std::launch::async, [&] { return store.get(small_kernel(1)); });
  EXPECT_EQ(image.wait_for(200ms), std::future_status::timeout) << "it must wait for the owner";
  EXPECT_EQ(store.get(small_kernel(2))->source, jit::Image::Source::compiled) << "other kernels need not wait";
  owner.kill_now();
  ASSERT_EQ(image.wait_for(30s), std::future_status::ready);
  EXPECT_EQ(image.get()->source, jit::Image::Source::compiled);
  EXPECT_EQ(store.counters().rejected, 0);
  EXPECT_EQ(names_in(folder / "cache").size(), 2u) << "the lock and the part of an entry are gone";
  EXPECT_EQ(jit::Store(cached_in(folder / "cache")).get(small_kernel(1))->source, jit::Image::Source::cache);
}

TEST(StoreProcess, KilledAmidWritingItLeavesWholeEntries) {
  const TemporaryFolder folder;
  const std::string signature = jit::signature(small_kernel(1)), version = jit::find_compiler()->version;
  const std::string path = folder / ("cache/" + entry_of(small_kernel(1)));
  jit::Image big{signature, "sm_80", std::string(4 << 20, 'x'), version, ""};
  const std::string bytes = jit::encode_image(big);
  write_file(folder / "entry", bytes);
  const jit::Cache cache(folder / "cache");
  ASSERT_TRUE(cache.usable()) << cache.note();
  int amid = 0;
  for (int n = 0; n < 20; ++n) {
    std::filesystem::remove(folder / "replacing");
    Worker writer("replace", folder.path(), folder / "log");
    wait_for([&] { return exists(folder / "replacing"); }, "the writer");
    std::this_thread::sleep_for(std::chrono::microseconds(2000 + n * 1370));
    writer.kill_now();
    for (const std::string& name : names_in(folder / "cache"))
      amid += name.ends_with(".tmp") && std::filesystem::file_size(folder / ("cache/" + name)) < bytes.size() ? 1 : 0;
    std::string why;
    const jit::Cache::Found found = cache.read(signature, "sm_80", version, big, why);
    EXPECT_NE(found, jit::Cache::Found::rejected) << why;
  }
  EXPECT_GT(amid, 0) << "no kill came amid a write: this test has shown nothing";
  std::filesystem::remove(path);
  EXPECT_EQ(jit::Store(cached_in(folder / "cache")).get(small_kernel(1))->source, jit::Image::Source::compiled);
  EXPECT_EQ(names_in(folder / "cache"), std::vector<std::string>{entry_of(small_kernel(1))});
}

TEST(StoreProcess, AFullDiskIsSaidOnceAndLeavesNothing) {
  const TemporaryFolder folder;
  const std::string printed = Worker("three, no room", folder.path(), folder / "log").finish();
  EXPECT_EQ(count(printed, "compiled\n"), 3) << printed;
  EXPECT_EQ(count(printed, "rapt: "), 1) << printed;
  EXPECT_TRUE(contains(printed, "cannot store compiled kernels")) << printed;
  EXPECT_TRUE(names_in(folder / "cache").empty());
}

TEST(StoreProcess, ARefusedDirectoryIsSaidOnceOrNotAtAll) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "cache");
  chmod((folder / "cache").c_str(), 0777);
  const std::string warned = Worker("three", folder.path(), folder / "log", {"RAPT_LOG=warn"}).finish();
  EXPECT_EQ(count(warned, "compiled\n"), 3) << warned;
  EXPECT_EQ(count(warned, "rapt: "), 1) << warned;
  EXPECT_TRUE(contains(warned, "is not used")) << warned;
  const std::string quiet = Worker("three", folder.path(), folder / "log", {"RAPT_LOG=off"}).finish();
  EXPECT_EQ(count(quiet, "rapt: "), 0) << quiet;
}

TEST(StoreProcess, WithoutNvrtcTheErrorSaysWhereItLooked) {
  const TemporaryFolder folder;
  const std::string place = folder / "nowhere/libnvrtc.so";
  const std::string printed = Worker("fail", folder.path(), folder / "log", {"RAPT_NVRTC=" + place}).finish();
  EXPECT_TRUE(contains(printed, small_kernel(1).label)) << printed;
  EXPECT_TRUE(contains(printed, place)) << printed;
  EXPECT_TRUE(contains(printed, "NVRTC was not found")) << printed;
  EXPECT_FALSE(exists(folder / "cache")) << "nothing to keep";
}

}  // namespace
}  // namespace rapt::test
