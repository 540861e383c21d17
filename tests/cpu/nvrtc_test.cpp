// Tests which NVRTC is used if there are several, and how kernels are compiled for a GPU that NVRTC does not know. The
// tests put stand-ins (tests/fake_nvrtc) into folders, which a separate process searches. Needs neither NVRTC nor a
// GPU.
#include "jit/nvrtc.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "child_process.h"
#include "cuda/cuda.h"
#include "jit_support.h"
#include "runtime/context.h"
#include "runtime/gpu.h"
#include "runtime/plan.h"

namespace rapt::test {
namespace {

// Puts a stand-in into `folder`. `facts`: its version and the architectures that it supports, "12 8 80 90 100".
void put_nvrtc(const std::string& folder, const std::string& name, const std::string& facts) {
  std::filesystem::create_directories(folder);
  std::filesystem::copy_file(concat(RAPT_BINARY_DIR, "/fake_nvrtc/libnvrtc.so"), folder + "/" + name);
  write_file(folder + "/" + name + ".facts", facts);
}

const std::string no_places = "-u RAPT_NVRTC -u VIRTUAL_ENV -u CONDA_PREFIX -u RAPT_PACKS RAPT_CACHE=off ";

std::string loader_path(const std::string& folder) { return concat(no_places, "LD_LIBRARY_PATH='", folder, "' "); }

const jit::Compiler& compiler_for(int newest_major, const std::string& arch = "") {
  std::string why;
  const jit::Nvrtc* found = jit::find_nvrtc({newest_major, arch}, &why);
  EXPECT_NE(found, nullptr) << why;
  static const jit::Compiler none;
  return found ? found->about : none;
}

std::string image_for(const std::string& arch, int newest_major) {
  jit::Store::Options options;
  options.newest_major = newest_major;
  jit::Store store(options);
  const auto image = store.get(small_kernel(1, arch));
  EXPECT_TRUE(contains(image->bytes, "--gpu-architecture=" + image->arch + "\n")) << image->bytes;
  EXPECT_EQ(image->signature, jit::signature(small_kernel(1, image->arch)));
  return image->arch;
}

std::string refusal_of(const std::string& arch, int newest_major) {
  jit::Store::Options options;
  options.newest_major = newest_major;
  jit::Store store(options);
  return error_of([&] { store.get(small_kernel(1, arch)); }, ErrorCode::environment);
}

TEST(Nvrtc, OneTooNewForTheDriverDoesNotHideTheNext) {
  const TemporaryFolder folder;
  put_nvrtc(folder.path(), "libnvrtc.so.13", "13 0 80 90 100");
  put_nvrtc(folder.path(), "libnvrtc.so.12", "12 4 80 90");
  in_child(loader_path(folder.path()), [] {
    EXPECT_EQ(compiler_for(0).version, "13.0.7") << "the first one, where anything fits";
    EXPECT_EQ(compiler_for(13).version, "13.0.7");
    EXPECT_EQ(compiler_for(12).version, "12.4.7");
    EXPECT_EQ(jit::find_compiler(nullptr, 12), &compiler_for(12)) << "opened once";
    EXPECT_EQ(compiler_for(13).version, "13.0.7") << "still";
    EXPECT_EQ(image_for("sm_90a", 12), "sm_90a");
    EXPECT_EQ(compiler_for(0, "sm_100").version, "13.0.7");
  });
}

TEST(Nvrtc, ThePipPackagesOneIsFoundBehindTheLoaders) {
  const TemporaryFolder folder;
  put_nvrtc(folder / "loader", "libnvrtc.so.13", "13 0 80 90 100");
  put_nvrtc(folder / "venv/lib/python3.11/site-packages/nvidia/cuda_nvrtc/lib", "libnvrtc.so.12", "12 8 80 90 100");
  in_child(concat(loader_path(folder / "loader"), "VIRTUAL_ENV='", folder / "venv", "' "), [] {
    EXPECT_EQ(compiler_for(12).version, "12.8.7");
    EXPECT_TRUE(contains(compiler_for(12).path, "site-packages"));
  });
}

TEST(Nvrtc, OneThatDoesNotKnowTheCardDoesNotHideTheNext) {
  const TemporaryFolder folder;
  put_nvrtc(folder.path(), "libnvrtc.so.13", "13 0 80 90");
  put_nvrtc(folder.path(), "libnvrtc.so.12", "12 8 80 90 100 120");
  in_child(loader_path(folder.path()), [] {
    EXPECT_EQ(compiler_for(0, "sm_120").version, "12.8.7");
    EXPECT_EQ(image_for("sm_121", 13), "sm_120");
  });
}

TEST(Nvrtc, WhereNoneFitsTheSentenceNamesAllOfThem) {
  const TemporaryFolder folder;
  put_nvrtc(folder.path(), "libnvrtc.so.13", "13 1 80 90");
  put_nvrtc(folder.path(), "libnvrtc.so.12", "12 8 80 90");
  in_child(loader_path(folder.path()), [] {
    const std::string too_new = refusal_of("sm_90a", 11);
    for (const char* part : {"NVRTC 13.1.7", "NVRTC 12.8.7", "libnvrtc.so.12", "CUDA 11.x", "of CUDA 11 or older"})
      EXPECT_TRUE(contains(too_new, part)) << part << ": " << too_new;
    const std::string unknown = refusal_of("sm_130", 12);
    for (const char* part : {"sm_130", "13.1.7", "newer than the driver, which supports CUDA 12.x", "12.8.7", "80, 90"})
      EXPECT_TRUE(contains(unknown, part)) << part << ": " << unknown;
  });
}

TEST(Nvrtc, TheNamedOneIsTheOnlyOne) {
  const TemporaryFolder folder;
  put_nvrtc(folder.path(), "libnvrtc.so.12", "12 4 80 90");
  put_nvrtc(folder / "named", "my-nvrtc.so", "13 0 80 90");
  in_child(concat(loader_path(folder.path()), "RAPT_NVRTC='", folder / "named/my-nvrtc.so", "' "), [] {
    EXPECT_EQ(compiler_for(13).version, "13.0.7");
    const std::string message = refusal_of("sm_90a", 12);
    for (const char* part : {"RAPT_NVRTC = ", "13.0.7", "CUDA 12.x"})
      EXPECT_TRUE(contains(message, part)) << part << ": " << message;
    EXPECT_FALSE(contains(message, "12.4.7")) << message;
  });
}

TEST(Nvrtc, AFifoIsRefusedAndNotWaitedFor) {
  const TemporaryFolder folder;
  ASSERT_EQ(mkfifo((folder / "libnvrtc.so.13").c_str(), 0600), 0);
  put_nvrtc(folder.path(), "libnvrtc.so.12", "12 4 80 90");
  in_child(
      concat(no_places, "RAPT_NVRTC='", folder / "libnvrtc.so.13", "' "),
      [] {
        std::string why;
        EXPECT_EQ(jit::find_compiler(&why), nullptr);
        EXPECT_TRUE(contains(why, "libnvrtc.so.13: is not a regular file")) << why;
      },
      "file");
  in_child(
      concat(no_places, "RAPT_NVRTC='", folder.path(), "' "), [] { EXPECT_EQ(compiler_for(0).version, "12.4.7"); },
      "folder");
}

// A GPU of compute capability x.y also runs code for x.0. So an NVRTC that does not know x.y compiles for an older
// minor version.
TEST(Nvrtc, CompilesForTheNewestKnownMinorVersion) {
  jit::Compiler compiler;
  compiler.architectures = {75, 80, 86, 87, 89, 90, 100, 101, 120};
  const auto known = [&](const char* arch) { return jit::known_architecture(compiler, arch); };
  EXPECT_EQ(known("sm_103"), "sm_100") << "10.1 is an embedded chip";
  EXPECT_EQ(known("sm_101"), "sm_101");
  EXPECT_EQ(known("sm_121"), "sm_120");
  EXPECT_EQ(known("sm_88"), "sm_86");
  EXPECT_EQ(known("sm_90a"), "sm_90a") << "the exact chip";
  EXPECT_EQ(known("sm_91"), "sm_90");
  EXPECT_EQ(known("sm_103a"), "sm_100") << "no variant of another chip";
  EXPECT_EQ(known("compute_121"), "compute_120");
  EXPECT_EQ(known("sm_110"), "") << "another major version";
  EXPECT_EQ(known("sm_130"), "");
  compiler.architectures = {86};
  EXPECT_EQ(known("sm_80"), "") << "above the card";
  const std::string refusal = error_of([&] { known("ampere"); }, ErrorCode::invalid_argument);
  EXPECT_TRUE(contains(refusal, "'ampere'"));
}

// Tests the whole path, with GPUs of the stand-in driver and kernels of the stand-in NVRTC.
TEST(Nvrtc, MinorVersionsOfCardsAreServed) {
  const TemporaryFolder folder;
  put_nvrtc(folder.path(), "libnvrtc.so.12", "12 8 80 86 89 90 100 101 120");
  const std::string environment =
      concat(no_places, "RAPT_NVRTC='", folder.path(), "' LD_LIBRARY_PATH='", RAPT_BINARY_DIR,
             "/fake_cuda' FAKE_CUDA_VERSION=12080 FAKE_CUDA_DEVICES=3 FAKE_CUDA_SM=103,121,90 ");
  in_child(environment, [] {
    rapt_context context(ContextOptions{});
    const char* compiled_for[] = {"sm_100", "sm_120", "sm_90a"};
    ASSERT_EQ(cuda::device_count(), 3);
    for (int index = 0; index < 3; ++index) {
      const cuda::ContextScope scope(index, nullptr);
      const Device device = context.impl.gpu().device(index);
      const auto loaded = context.impl.gpu().load(parse_problem("f16 b1 h2 q70 k90 d64 lse"), device);
      EXPECT_EQ(loaded->kernels[0]->image->arch, compiled_for[index]);
    }
  });
}

TEST(Nvrtc, PacksForAnOlderMinorVersionAreUsed) {
  const TemporaryFolder folder;
  jit::Image image{jit::signature(small_kernel(1, "sm_120")), "sm_120", "code", "12.8.93", ""};
  jit::write_pack(folder / "a.pack", {image});
  jit::Store::Options options;
  options.packs = {folder / "a.pack"};
  options.use_compiler = false;
  jit::Store store(options);
  EXPECT_EQ(store.get(small_kernel(1, "sm_121"))->arch, "sm_120");
  EXPECT_EQ(store.get(small_kernel(1, "sm_121"))->source, jit::Image::Source::memory);
  EXPECT_EQ(store.get(small_kernel(1, "sm_120"))->bytes, "code");
  EXPECT_TRUE(contains(error_of([&] { store.get(small_kernel(2, "sm_121")); }, ErrorCode::environment), "sm_121"));
  EXPECT_TRUE(contains(error_of([&] { store.get(small_kernel(1, "compute_121")); }, ErrorCode::environment), "121"));
}

}  // namespace
}  // namespace rapt::test
