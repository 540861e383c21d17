// Tests files that rapt writes and reads: temporary names are unpredictable, files are written completely or not at
// all, and rapt reads only regular files of limited size.
#include "base/files.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <set>
#include <thread>

#include "check/cases.h"
#include "jit/cache.h"
#include "jit_support.h"
#include "lab/file.h"
#include "lab/safetensors.h"
#include "problem/problem.h"

namespace rapt::test {
namespace {

// If a test waits for the writer of a FIFO, it would never end. This class then ends the program.
struct Watchdog {
  Watchdog() { alarm(20); }
  ~Watchdog() { alarm(0); }
};

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

TEST(Files, FreshNamesDiffer) {
  std::set<std::string> names;
  for (int i = 0; i < 1000; ++i) names.insert(temporary_name("a/b.pack"));
  EXPECT_EQ(names.size(), 1000u);
  for (const std::string& name : names) EXPECT_TRUE(name.starts_with("a/b.pack.") && name.ends_with(".tmp")) << name;
}

TEST(Files, AnExistingTemporaryIsNotTaken) {
  const TemporaryFolder folder;
  write_file(folder / "victim", "precious");
  const auto refused = [&](const std::string& temporary) {
    NewFile file(AT_FDCWD, folder / "target", temporary);
    return file.create(0600);
  };
  std::filesystem::create_symlink(folder / "victim", folder / "link");
  std::filesystem::create_symlink(folder / "nowhere", folder / "dangling");
  write_file(folder / "taken", "taken");
  for (const char* name : {"link", "dangling", "taken"})
    EXPECT_TRUE(contains(refused(folder / name), "exists")) << name;
  EXPECT_EQ(file_bytes(folder / "victim"), "precious");
  EXPECT_EQ(file_bytes(folder / "taken"), "taken") << "nor removed afterwards";
  EXPECT_FALSE(std::filesystem::exists(folder / "nowhere"));
}

// Another user has created links with the temporary names of older versions.
TEST(Files, LinksPlacedByOthersAreNotFollowed) {
  const TemporaryFolder folder;
  write_file(folder / "victim", "precious");
  for (const std::string& name : {std::string("a.pack.tmp"), concat("o.safetensors.part-", getpid())})
    std::filesystem::create_symlink(folder / "victim", folder / name);
  jit::write_pack(folder / "a.pack", {{jit::signature(small_kernel(1)), "sm_80", "code", "13.0.88", ""}});
  lab::AtomicFile file(folder / "o.safetensors");
  file.write("half");
  file.commit();
  EXPECT_EQ(file_bytes(folder / "victim"), "precious");
  EXPECT_EQ(file_bytes(folder / "o.safetensors"), "half");
}

TEST(Files, WritersOfOneTargetDoNotDisturbEachOther) {
  const TemporaryFolder folder;
  const auto images = [](int n) {
    return std::vector<jit::Image>{
        {jit::signature(small_kernel(n)), "sm_80", std::string(1 << 20, static_cast<char>('a' + n)), "13.0.88", ""}};
  };
  std::vector<std::thread> threads;
  for (int n = 0; n < 4; ++n)
    threads.emplace_back([&, n] {
      for (int i = 0; i < 10; ++i) EXPECT_NO_THROW(jit::write_pack(folder / "a.pack", images(n)));
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(jit::read_pack_info(folder / "a.pack").entries.size(), 1u) << "one of them, whole";
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"a.pack"});
}

TEST(Files, WhatIsNotARegularFileIsNotReplaced) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "directory");
  ASSERT_EQ(mkfifo((folder / "fifo").c_str(), 0600), 0);
  std::filesystem::create_symlink("/dev/null", folder / "device");
  for (const char* name : {"directory", "fifo", "device"}) {
    EXPECT_TRUE(contains(message_of([&] { lab::AtomicFile(folder / name); }), "not a regular file")) << name;
    EXPECT_TRUE(contains(replace_file(AT_FDCWD, folder / name, "x", 0600), "not a regular file")) << name;
  }
  EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"device", "directory", "fifo"}));
  write_file(folder / "file", "old");
  std::filesystem::create_symlink(folder / "file", folder / "link");
  EXPECT_EQ(replace_file(AT_FDCWD, folder / "link", "new", 0600), "");
  EXPECT_EQ(file_bytes(folder / "link"), "new");
  EXPECT_EQ(file_bytes(folder / "file"), "old") << "the link is replaced, not written through";
}

TEST(Files, NoReaderWaitsForAFifo) {
  const Watchdog watchdog;
  const TemporaryFolder folder;
  const std::string fifo = folder / "fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  const std::string rule = "is not a regular file";
  jit::Store store(jit::Store::Options{});
  const std::function<void()> readers[] = {
      [&] { lab::FileSource source(fifo); }, [&] { lab::read_text_file(fifo); },
      [&] { check::load_cases(fifo); },      [&] { store.load_pack(fifo); },
      [&] { jit::read_pack_info(fifo); },    [&] { parse_problem("f16 d64 varlen=@" + fifo); }};
  for (const auto& reader : readers) EXPECT_TRUE(contains(message_of(reader), rule));
  const jit::Cache cache(folder.path());
  jit::Image image;
  std::string why;
  ASSERT_EQ(mkfifo((folder / "signature-13.0.image").c_str(), 0600), 0);
  EXPECT_EQ(cache.read("signature", "sm_80", "13.0", image, why), jit::Cache::Found::rejected);
  EXPECT_TRUE(contains(why, rule)) << why;
}

TEST(Files, EndlessAndHugeFilesAreRefused) {
  const Watchdog watchdog;
  const TemporaryFolder folder;
  EXPECT_TRUE(contains(message_of([] { check::load_cases("/dev/zero"); }), "is not a regular file"));
  const std::string huge = folder / "huge.txt";
  write_file(huge, "");
  ASSERT_EQ(truncate(huge.c_str(), int64_t{1} << 40), 0);  // a sparse file
  EXPECT_TRUE(contains(message_of([&] { check::load_cases(huge); }), "is larger than 16777216 bytes"));
  EXPECT_TRUE(contains(message_of([&] { lab::read_text_file(huge); }), "is larger than 67108864 bytes"));
  EXPECT_TRUE(contains(message_of([&] { parse_problem("f16 d64 varlen=@" + huge); }), "is larger than 16777216 bytes"));
  std::filesystem::create_directory(folder / "cache");
  chmod((folder / "cache").c_str(), 0700);
  std::filesystem::rename(huge, folder / "cache/signature-13.0.image");
  const jit::Cache cache(folder / "cache");
  jit::Image image;
  std::string why;
  EXPECT_EQ(cache.read("signature", "sm_80", "13.0", image, why), jit::Cache::Found::rejected);
  EXPECT_TRUE(contains(why, "is larger than")) << why;
}

TEST(Files, FilesOfProcAreReadToTheirEnd) {
  std::string text;
  EXPECT_EQ(read_regular(AT_FDCWD, "/proc/self/status", 1 << 20, text), "");
  EXPECT_TRUE(contains(text, "Name:"));
  EXPECT_TRUE(contains(read_regular(AT_FDCWD, "/proc/self/status", 16, text), "is larger than 16 bytes"));
}

}  // namespace
}  // namespace rapt::test
