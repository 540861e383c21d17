// Tests the store in one process: the order of its sources, damaged entries, directories that cannot be used or must
// not be used, and threads that need the same kernel.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <cstdio>
#include <map>
#include <optional>
#include <thread>

#include "jit/cache.h"
#include "jit/image_file.h"
#include "jit_support.h"

namespace rapt::test {
namespace {

using Source = jit::Image::Source;

jit::Store::Options cached_in(const std::string& folder) {
  jit::Store::Options options;
  options.cache_directory = folder;
  return options;
}

std::string entry_of(const jit::Request& request) {
  return jit::signature(request) + "-" + jit::find_compiler()->version + ".image";
}

TEST(Store, CompilesThenRemembersThenReads) {
  const TemporaryFolder folder;
  jit::Store first(cached_in(folder / "cache"));
  const auto compiled = first.get(small_kernel(1));
  EXPECT_EQ(compiled->source, Source::compiled);
  EXPECT_EQ(first.get(small_kernel(1))->source, Source::memory);
  EXPECT_EQ(first.cache_directory(), folder / "cache");
  EXPECT_EQ(first.cache_note(), "");
  EXPECT_EQ(names_in(folder / "cache"), std::vector<std::string>{entry_of(small_kernel(1))})
      << "no lock and no temporary file is left";
  struct stat status {};
  ASSERT_EQ(stat((folder / "cache").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700u);

  jit::Store second(cached_in(folder / "cache"));
  const auto read = second.get(small_kernel(1));
  EXPECT_EQ(read->source, Source::cache);
  EXPECT_EQ(read->bytes, compiled->bytes);
  EXPECT_EQ(read->log, compiled->log);
  EXPECT_EQ(read->compiler, compiled->compiler);
  EXPECT_EQ(second.counters().compiled, 0);
  EXPECT_EQ(second.counters().cache, 1);
}

TEST(Store, AnotherTextArchitectureOrCompilerIsAnotherKernel) {
  const TemporaryFolder folder;
  jit::Store(cached_in(folder.path())).get(small_kernel(1));
  jit::Store store(cached_in(folder.path()));
  EXPECT_EQ(store.get(small_kernel(2))->source, Source::compiled);
  EXPECT_EQ(store.get(small_kernel(1, "sm_89"))->source, Source::compiled);
  // An entry of another NVRTC version has another file name. If it has this version's file name, it is rejected.
  jit::Image foreign = *store.get(small_kernel(1));
  foreign.compiler = "13.1.5";
  write_file(folder / entry_of(small_kernel(1)), jit::encode_image(foreign));
  jit::Store third(cached_in(folder.path()));
  EXPECT_EQ(third.get(small_kernel(1))->source, Source::compiled);
  EXPECT_EQ(third.counters().rejected, 1);
}

TEST(Store, LoadsFast) {
  const TemporaryFolder folder;
  jit::Request request = small_kernel(1);
  std::string text = "constexpr int values[] = {";  // code of the size of an attention kernel
  for (int i = 0; i < 16000; ++i) text += std::to_string(i * 7919 % 65537) + ",";
  request.unit = "__constant__ int table[16000] = " + text.substr(text.find('{')) + "};\n" +
                 "extern \"C\" __global__ void rapt_kernel(int* out) { out[threadIdx.x] = table[threadIdx.x]; }\n";
  const size_t bytes = jit::Store(cached_in(folder.path())).get(request)->bytes.size();
  EXPECT_GT(bytes, 60000u);
  double best = 1e9;
  for (int repeat = 0; repeat < 5; ++repeat) {
    jit::Store store(cached_in(folder.path()));
    const auto begin = std::chrono::steady_clock::now();
    ASSERT_EQ(store.get(request)->source, Source::cache);
    best = std::min(best, std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
  }
  std::printf("loading %zu bytes from the cache directory: %.2f ms\n", bytes, best);
  EXPECT_LT(best, 50.0) << "5 ms are wanted of a quiet machine";
}

TEST(Store, TruncatedAndFlippedEntriesAreRejected) {
  const TemporaryFolder folder;
  const std::string name = entry_of(small_kernel(1)), path = folder / name;
  jit::Store(cached_in(folder.path())).get(small_kernel(1));
  const std::string whole = file_bytes(path), signature = jit::signature(small_kernel(1));
  const jit::Cache cache(folder.path());
  const auto found = [&](const std::string& bytes) {
    write_file(path, bytes);
    jit::Image image;
    std::string why;
    const jit::Cache::Found result = cache.read(signature, "sm_80", jit::find_compiler()->version, image, why);
    EXPECT_EQ(result == jit::Cache::Found::rejected, contains(why, path)) << why;
    return result;
  };
  EXPECT_EQ(found(whole), jit::Cache::Found::hit);
  EXPECT_EQ(found(whole + "x"), jit::Cache::Found::rejected);
  for (size_t length = 0; length < whole.size(); length += 64)
    EXPECT_EQ(found(whole.substr(0, length)), jit::Cache::Found::rejected) << length;
  for (size_t at = 0; at < whole.size(); at += 1 + whole.size() / 1000) {
    std::string flipped = whole;
    flipped[at] = static_cast<char>(flipped[at] ^ (1 << at % 8));
    EXPECT_EQ(found(flipped), jit::Cache::Found::rejected) << at;
  }
}

TEST(Store, DamagedEntriesAreCompiledAgainAndReplaced) {
  const TemporaryFolder folder;
  const std::string path = folder / entry_of(small_kernel(1));
  jit::Store(cached_in(folder.path())).get(small_kernel(1));
  const std::string whole = file_bytes(path);
  jit::Store(cached_in(folder.path())).get(small_kernel(2));
  std::string flipped = whole;
  flipped[whole.size() / 2] = static_cast<char>(flipped[whole.size() / 2] ^ 1);
  const std::vector<std::string> damaged = {"",
                                            whole.substr(0, 64),
                                            whole.substr(0, whole.size() - 1),
                                            flipped,
                                            file_bytes(folder / entry_of(small_kernel(2))),
                                            std::string(1000, 'x')};
  for (const std::string& bytes : damaged) {
    write_file(path, bytes);
    jit::Store store(cached_in(folder.path()));
    EXPECT_EQ(store.get(small_kernel(1))->source, Source::compiled);
    EXPECT_EQ(store.counters().rejected, 1);
    EXPECT_EQ(file_bytes(path), whole) << "replaced by a sound one";
    EXPECT_EQ(jit::Store(cached_in(folder.path())).get(small_kernel(1))->source, Source::cache);
  }
}

TEST(Store, AnEntryThatIsNoFileIsLeftAside) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / entry_of(small_kernel(1)));
  std::filesystem::create_symlink("/etc/passwd", folder / entry_of(small_kernel(2)));
  jit::Store store(cached_in(folder.path()));
  EXPECT_EQ(store.get(small_kernel(1))->source, Source::compiled);
  EXPECT_EQ(store.get(small_kernel(2))->source, Source::compiled);
  EXPECT_EQ(store.counters().rejected, 2);
  EXPECT_FALSE(std::filesystem::is_symlink(folder / entry_of(small_kernel(2)))) << "replaced, not written through";
}

TEST(Store, ADirectoryThatOthersMayWriteToIsRefused) {
  for (const mode_t mode : {0770, 0702, 0777}) {
    const TemporaryFolder folder;
    const std::string path = folder / "cache";
    std::filesystem::create_directory(path);
    ASSERT_EQ(chmod(path.c_str(), mode), 0);
    jit::Store store(cached_in(path));
    EXPECT_EQ(store.get(small_kernel(1))->source, Source::compiled);
    EXPECT_EQ(store.cache_directory(), "");
    EXPECT_TRUE(contains(store.cache_note(), path)) << store.cache_note();
    EXPECT_TRUE(contains(store.cache_note(), "may write")) << store.cache_note();
    EXPECT_TRUE(names_in(path).empty()) << "nothing is put there";
  }
}

TEST(Store, WorksWhereNoDirectoryCanBeMadeOrWritten) {
  const TemporaryFolder folder;
  write_file(folder / "file", "");
  jit::Store below_a_file(cached_in(folder / "file/cache"));
  EXPECT_EQ(below_a_file.get(small_kernel(1))->source, Source::compiled);
  EXPECT_EQ(below_a_file.cache_directory(), "");
  EXPECT_TRUE(contains(below_a_file.cache_note(), folder / "file/cache"));

  jit::Store no_home(cached_in(folder / "none/.cache/rapt"));
  EXPECT_EQ(no_home.get(small_kernel(1))->source, Source::compiled);
  EXPECT_FALSE(std::filesystem::exists(folder / "none")) << "a home is not made";

  jit::Store read_only(cached_in("/proc"));  // even root cannot create a file there
  EXPECT_EQ(read_only.get(small_kernel(1))->source, Source::compiled);
  EXPECT_EQ(read_only.get(small_kernel(1))->source, Source::memory);
}

TEST(Store, ADirectoryRemovedMeanwhileDoesNoHarm) {
  const TemporaryFolder folder;
  jit::Store store(cached_in(folder / "cache"));
  EXPECT_EQ(store.get(small_kernel(1))->source, Source::compiled);
  std::filesystem::remove_all(folder / "cache");
  EXPECT_EQ(store.get(small_kernel(2))->source, Source::compiled);
}

TEST(Store, WithoutADirectoryItCompilesOnceAProcess) {
  jit::Store store(jit::Store::Options{});
  EXPECT_EQ(store.get(small_kernel(1))->source, Source::compiled);
  EXPECT_EQ(store.get(small_kernel(1))->source, Source::memory);
  EXPECT_EQ(store.cache_directory(), "");
  EXPECT_EQ(store.cache_note(), "");
}

TEST(Store, ThreadsThatWantTheSameKernelCompileItOnce) {
  const TemporaryFolder folder;
  jit::Store store(cached_in(folder.path()));
  std::vector<std::shared_ptr<const jit::Image>> images(12);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < images.size(); ++i)
    threads.emplace_back([&, i] { images[i] = store.get(small_kernel(static_cast<int>(i % 3))); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(store.counters().compiled, 3);
  EXPECT_EQ(store.counters().memory, 9);
  for (size_t i = 3; i < images.size(); ++i) EXPECT_EQ(images[i]->bytes, images[i % 3]->bytes);
}

TEST(Store, AFailureIsToldToEveryWaiterAndForgotten) {
  const TemporaryFolder folder;
  jit::Store store(cached_in(folder.path()));
  jit::Request wrong = small_kernel(1);
  wrong.unit = "int a = nothing;\n";
  std::vector<std::string> messages(6);
  std::vector<std::thread> threads;
  for (std::string& message : messages)
    threads.emplace_back([&] { message = error_of([&] { store.get(wrong); }, ErrorCode::internal); });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& message : messages) EXPECT_TRUE(contains(message, "\"nothing\" is undefined")) << message;
  EXPECT_TRUE(names_in(folder.path()).empty());
  EXPECT_EQ(store.counters().compiled, 0);
  EXPECT_EQ(store.get(small_kernel(1))->source, Source::compiled);
}

// Sets or unsets environment variables for a scope.
class Environment {
 public:
  explicit Environment(const std::map<std::string, const char*>& values) {
    for (const auto& [name, value] : values) {
      const char* old = std::getenv(name.c_str());
      old_.emplace_back(name, old ? std::optional<std::string>(old) : std::nullopt);
      set(name, value);
    }
  }
  ~Environment() {
    for (const auto& [name, value] : old_) set(name, value ? value->c_str() : nullptr);
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  static void set(const std::string& name, const char* value) {
    if (value ? setenv(name.c_str(), value, 1) : unsetenv(name.c_str())) std::abort();
  }
  std::vector<std::pair<std::string, std::optional<std::string>>> old_;
};

TEST(Store, OptionsComeFromTheEnvironment) {
  const auto options_of = [](const char* cache, const char* xdg, const char* home, const char* packs) {
    const Environment scope({{"RAPT_CACHE", cache}, {"XDG_CACHE_HOME", xdg}, {"HOME", home}, {"RAPT_PACKS", packs}});
    return jit::Store::from_environment();
  };
  EXPECT_EQ(options_of("/c", "/x", "/h", nullptr).cache_directory, "/c");
  EXPECT_EQ(options_of(nullptr, "/x", "/h", nullptr).cache_directory, "/x/rapt");
  EXPECT_EQ(options_of("", "x", "/h", nullptr).cache_directory, "/h/.cache/rapt") << "a relative XDG path is none";
  EXPECT_EQ(options_of("off", "/x", "/h", nullptr).cache_directory, "");
  EXPECT_EQ(options_of("./c", "/x", "/h", nullptr).cache_directory, "./c");
  for (const char* word : {"OFF", "Off", "none", "0", "cache"}) {
    const jit::Store::Options wrong = options_of(word, "/x", "/h", nullptr);
    EXPECT_EQ(wrong.cache_directory, "") << word;
    EXPECT_TRUE(contains(wrong.cache_note, concat("RAPT_CACHE = '", word, "': must be off or"))) << wrong.cache_note;
  }
  EXPECT_EQ(options_of("off", nullptr, nullptr, nullptr).cache_note, "");
  const jit::Store::Options none = options_of(nullptr, nullptr, nullptr, ":/a b/x.pack::y.pack");
  EXPECT_EQ(none.cache_directory, "");
  EXPECT_TRUE(contains(none.cache_note, "HOME"));
  EXPECT_EQ(none.packs, (std::vector<std::string>{"/a b/x.pack", "y.pack"}));
}

TEST(Store, WhosePacksAreTrustedComesFromTheEnvironment) {
  const auto trusts_any = [](const char* value) {
    const Environment scope(std::map<std::string, const char*>{{"RAPT_PACKS_TRUST", value}});
    return jit::Store::from_environment().trust_any_pack;
  };
  EXPECT_FALSE(trusts_any(nullptr));
  EXPECT_FALSE(trusts_any("owner"));
  EXPECT_TRUE(trusts_any("any"));
  testing::internal::CaptureStderr();
  for (const char* wrong : {"ANY", "yes", "1", "any "}) EXPECT_FALSE(trusts_any(wrong)) << wrong;
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(contains(said, "RAPT_PACKS_TRUST = 'yes': must be owner or any; using owner")) << said;
}

TEST(Store, AskingWhereKernelsAreKeptMakesNoDirectory) {
  const TemporaryFolder folder;
  const jit::Store store(cached_in(folder / "above/cache"));
  EXPECT_EQ(store.cache_directory(), folder / "above/cache");
  EXPECT_EQ(store.cache_note(), "");
  EXPECT_TRUE(names_in(folder.path()).empty());
  const jit::Store nowhere(cached_in(folder / "no/home/cache"));
  EXPECT_EQ(nowhere.cache_directory(), "");
  EXPECT_TRUE(contains(nowhere.cache_note(), "is not used")) << nowhere.cache_note();
}

// A link leads to a valid entry. But the target is in another folder, and anyone who can write to that folder could
// have made it.
TEST(Store, LinksToSoundEntriesAreNotFollowed) {
  const TemporaryFolder folder;
  const std::string name = entry_of(small_kernel(1));
  jit::Store(cached_in(folder / "cache")).get(small_kernel(1));
  std::filesystem::rename(folder / ("cache/" + name), folder / "elsewhere");
  std::filesystem::create_symlink(folder / "elsewhere", folder / ("cache/" + name));
  jit::Store store(cached_in(folder / "cache"));
  EXPECT_EQ(store.get(small_kernel(1))->source, Source::compiled);
  EXPECT_EQ(store.counters().rejected, 1);
  EXPECT_TRUE(std::filesystem::is_regular_file(std::filesystem::symlink_status(folder / ("cache/" + name))));
}

TEST(Store, AnEntryForAnotherArchitectureIsRejected) {
  const TemporaryFolder folder;
  jit::Image foreign = *jit::Store(cached_in(folder.path())).get(small_kernel(1));
  foreign.arch = "sm_89";
  write_file(folder / entry_of(small_kernel(1)), jit::encode_image(foreign));
  jit::Store store(cached_in(folder.path()));
  const auto image = store.get(small_kernel(1));
  EXPECT_EQ(image->source, Source::compiled);
  EXPECT_EQ(image->arch, "sm_80");
  EXPECT_EQ(store.counters().rejected, 1);
}

TEST(Store, WhatIsSaidOfADamagedEntryIsTrue) {
  const TemporaryFolder folder;
  const std::string path = folder / entry_of(small_kernel(3));
  jit::Store(cached_in(folder.path())).get(small_kernel(3));
  const std::string whole = file_bytes(path);
  std::string flipped = whole;
  flipped[whole.size() / 2] = static_cast<char>(flipped[whole.size() / 2] ^ 1);
  write_file(path, flipped);
  testing::internal::CaptureStderr();
  jit::Store(cached_in(folder.path())).get(small_kernel(3));
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(contains(said, path + " is damaged (checksum mismatch); recompiling and replacing it")) << said;
  EXPECT_EQ(file_bytes(path), whole);
}

TEST(Store, CompilersNewerThanTheDriverAreRefused) {
  jit::Store::Options options;
  options.newest_major = 11;  // older than any NVRTC that rapt supports
  jit::Store store(options);
  try {
    store.get(small_kernel(1));
    FAIL() << "compiled for a driver that cannot load it";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::environment);
    EXPECT_TRUE(contains(error.what(), "NVRTC " + jit::find_compiler()->version)) << error.what();
    EXPECT_TRUE(contains(error.what(), "CUDA 11.x")) << error.what();
  }
}

}  // namespace
}  // namespace rapt::test
