// Tests packs: writing a pack twice gives identical bytes, entries are read one by one, truncated or changed packs are
// refused, and packs need no compiler.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "jit/image_file.h"
#include "jit_support.h"

namespace rapt::test {
namespace {

// Two kernels, compiled only once.
const std::vector<jit::Image>& two_images() {
  static const std::vector<jit::Image> images = {jit::compile(small_kernel(1)), jit::compile(small_kernel(2, "sm_89"))};
  return images;
}

jit::Store::Options only_packs(std::vector<std::string> packs) {
  jit::Store::Options options;
  options.packs = std::move(packs);
  options.use_compiler = false;
  return options;
}

TEST(Pack, IsTheSameBytesForTheSameImages) {
  const TemporaryFolder folder;
  jit::write_pack(folder / "a.pack", two_images());
  const std::vector<jit::Image> again = {jit::compile(small_kernel(2, "sm_89")), jit::compile(small_kernel(1)),
                                         two_images()[0]};  // in another order, and one image twice
  jit::write_pack(folder / "b.pack", again);
  EXPECT_EQ(file_bytes(folder / "a.pack"), file_bytes(folder / "b.pack"));
  EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"a.pack", "b.pack"})) << "nothing else is left";
}

TEST(Pack, SaysWhatItHolds) {
  const TemporaryFolder folder;
  jit::write_pack(folder / "a.pack", two_images());
  const jit::PackInfo info = jit::read_pack_info(folder / "a.pack");
  EXPECT_EQ(info.compiler, jit::find_compiler()->version);
  ASSERT_EQ(info.entries.size(), 2u);
  EXPECT_LT(info.entries[0].signature, info.entries[1].signature);
  for (const jit::Image& image : two_images()) {
    const auto& entry = info.entries[info.entries[0].signature == image.signature ? 0 : 1];
    EXPECT_EQ(entry.signature, image.signature);
    EXPECT_EQ(entry.arch, image.arch);
    EXPECT_EQ(entry.bytes, image.bytes.size());
  }
}

TEST(Pack, ServesAStoreThatMayNotCompile) {
  const TemporaryFolder folder;
  jit::write_pack(folder / "a.pack", two_images());
  jit::Store store(only_packs({folder / "a.pack"}));
  const auto image = store.get(small_kernel(1));
  EXPECT_EQ(image->bytes, two_images()[0].bytes);
  EXPECT_EQ(image->log, two_images()[0].log);
  EXPECT_EQ(image->compiler, two_images()[0].compiler);
  EXPECT_EQ(image->source, jit::Image::Source::pack);
  EXPECT_EQ(store.get(small_kernel(1))->source, jit::Image::Source::memory);
  EXPECT_EQ(store.counters().pack, 1);
  EXPECT_EQ(store.counters().memory, 1);
  EXPECT_EQ(store.counters().compiled, 0);
}

TEST(Pack, AMissingKernelNamesTheLineToAdd) {
  const TemporaryFolder folder;
  jit::write_pack(folder / "a.pack", two_images());
  jit::Store store(only_packs({folder / "a.pack"}));
  for (int repeat = 0; repeat < 2; ++repeat) {  // the second load must fail, too
    const std::string message = error_of([&] { store.get(small_kernel(3, "sm_89")); }, ErrorCode::environment);
    EXPECT_TRUE(contains(message, small_kernel(3).label)) << message;
    EXPECT_TRUE(contains(message, "(sm_89)")) << message;
    EXPECT_TRUE(contains(message, "rapt pack")) << message;
  }
  store.load_pack(folder / "a.pack");
  EXPECT_TRUE(contains(error_of([&] { jit::Store(only_packs({})).get(small_kernel(1)); }, ErrorCode::environment),
                       "no pack is loaded"));
}

TEST(Pack, OfAnotherCompilerIsUsed) {
  const TemporaryFolder folder;
  jit::Image foreign = two_images()[0];
  foreign.compiler = "12.9.41";
  foreign.bytes = "made elsewhere";
  jit::write_pack(folder / "a.pack", {foreign});
  jit::Store store(only_packs({folder / "a.pack"}));
  EXPECT_EQ(store.get(small_kernel(1))->bytes, "made elsewhere");
  EXPECT_EQ(store.get(small_kernel(1))->compiler, "12.9.41");
}

TEST(Pack, TruncatedAnywhereIsRefused) {
  const TemporaryFolder folder;
  jit::write_pack(folder / "a.pack", two_images());
  const std::string whole = file_bytes(folder / "a.pack"), path = folder / "cut.pack";
  jit::Store store(only_packs({}));
  for (size_t length = 0; length < whole.size(); length += 64) {
    write_file(path, whole.substr(0, length));
    const std::string message = error_of([&] { store.load_pack(path); }, ErrorCode::environment);
    EXPECT_TRUE(contains(message, path) && contains(message, "truncated")) << length << ": " << message;
  }
  write_file(path, whole + "x");
  EXPECT_TRUE(contains(error_of([&] { store.load_pack(path); }, ErrorCode::environment), "too long"));
  EXPECT_TRUE(contains(error_of([&] { store.load_pack(folder / "none"); }, ErrorCode::environment), "none"));
  EXPECT_TRUE(
      contains(error_of([&] { store.load_pack(folder.path()); }, ErrorCode::environment), "not a regular file"));
}

TEST(Pack, OneFlippedBitAnywhereIsFound) {
  const TemporaryFolder folder;
  jit::write_pack(folder / "a.pack", two_images());
  const std::string whole = file_bytes(folder / "a.pack"), path = folder / "flipped.pack";
  for (size_t at = 0; at < whole.size(); at += at < 700 ? 1 : 1 + whole.size() / 100) {  // the index takes 700 bytes
    std::string flipped = whole;
    flipped[at] = static_cast<char>(flipped[at] ^ (1 << at % 8));
    write_file(path, flipped);
    const std::string message = error_of([&] { jit::read_pack_info(path); }, ErrorCode::environment);
    EXPECT_TRUE(contains(message, path)) << at << ": " << message;
  }
}

TEST(Pack, ADamagedEntryIsNotUsedAndTheOthersAre) {
  const TemporaryFolder folder;
  jit::write_pack(folder / "a.pack", two_images());
  std::string bytes = file_bytes(folder / "a.pack");
  const size_t inside = bytes.find(two_images()[0].bytes);
  ASSERT_NE(inside, std::string::npos);
  bytes[inside + 100] = static_cast<char>(bytes[inside + 100] ^ 4);
  write_file(folder / "a.pack", bytes);
  jit::Store store(only_packs({folder / "a.pack"}));
  EXPECT_EQ(store.get(small_kernel(2, "sm_89"))->bytes, two_images()[1].bytes);
  const std::string message = error_of([&] { store.get(small_kernel(1)); }, ErrorCode::environment);
  EXPECT_TRUE(contains(message, folder / "a.pack")) << message;
  EXPECT_TRUE(contains(message, "checksum")) << message;
  EXPECT_EQ(store.counters().rejected, 1);

  jit::Store::Options compiling = only_packs({folder / "a.pack"});
  compiling.use_compiler = true;
  jit::Store other(compiling);
  EXPECT_EQ(other.get(small_kernel(1))->bytes, two_images()[0].bytes);
  EXPECT_EQ(other.counters().compiled, 1);
  EXPECT_EQ(other.counters().rejected, 1);
}

TEST(Pack, WritingRefusesWhatIsNoPack) {
  const TemporaryFolder folder;
  std::vector<jit::Image> images = two_images();
  EXPECT_TRUE(contains(error_of([&] { jit::write_pack(folder / "x", {}); }, ErrorCode::invalid_argument), "no images"));
  images[1].compiler = "12.8.93";
  EXPECT_TRUE(
      contains(error_of([&] { jit::write_pack(folder / "x", images); }, ErrorCode::invalid_argument), "12.8.93"));
  images = {two_images()[0], two_images()[0]};
  images[1].bytes += "x";
  EXPECT_TRUE(
      contains(error_of([&] { jit::write_pack(folder / "x", images); }, ErrorCode::invalid_argument), "differ"));
  EXPECT_TRUE(contains(error_of([&] { jit::write_pack(folder / "none/x", two_images()); }, ErrorCode::environment),
                       folder / "none/x"));
  EXPECT_TRUE(names_in(folder.path()).empty());
}

// A pack whose index gives this place for its only image.
std::string pack_with_place(uint64_t offset, uint64_t bytes) {
  const std::string content(100, 'x');
  jit::FieldWriter fields;
  fields.text("13.0.88");
  fields.number(content.size());
  fields.number(1);
  fields.text(jit::signature(small_kernel(1)));
  fields.text("sm_80");
  fields.number(offset);
  fields.number(bytes);
  return jit::framed("raptpak\n", 1, fields.bytes()) + content;
}

TEST(Pack, PlacesOutsideTheFileAreRefusedWhenItIsOpened) {
  const TemporaryFolder folder;
  jit::Store store(only_packs({}));
  const auto message = [&](uint64_t offset, uint64_t bytes) {
    write_file(folder / "a.pack", pack_with_place(offset, bytes));
    return error_of([&] { store.load_pack(folder / "a.pack"); }, ErrorCode::environment);
  };
  write_file(folder / "a.pack", pack_with_place(0, 100));
  EXPECT_NO_THROW(store.load_pack(folder / "a.pack")) << "the image is looked at when it is wanted";
  for (const auto& [offset, bytes] : std::vector<std::pair<uint64_t, uint64_t>>{
           {0, 101}, {100, 1}, {101, 0}, {1 << 20, 1}, {1, UINT64_MAX}, {UINT64_MAX, 1}, {UINT64_MAX - 50, 100}}) {
    const std::string said = message(offset, bytes);
    EXPECT_TRUE(contains(said, "truncated") && contains(said, folder / "a.pack")) << offset << ", " << bytes << said;
  }
}

TEST(Pack, AnIndexThatClaimsTooMuchIsRefused) {
  const TemporaryFolder folder;
  jit::FieldWriter head;
  head.raw("raptpak\n");
  head.number(1);
  head.number(uint64_t{1} << 39);
  write_file(folder / "a.pack", head.bytes());
  ASSERT_EQ(truncate((folder / "a.pack").c_str(), int64_t{1} << 40), 0);  // a sparse file
  const std::string said = error_of([&] { jit::Store(only_packs({folder / "a.pack"})); }, ErrorCode::environment);
  EXPECT_TRUE(contains(said, "must be at most 67108864")) << said;
}

// The signature belongs to an image of another architecture, so either the index or the entry is wrong.
TEST(Pack, AnImageOfAnotherArchitectureIsNotUsed) {
  const TemporaryFolder folder;
  jit::Image foreign = two_images()[0];
  foreign.arch = "sm_89";
  jit::write_pack(folder / "a.pack", {foreign});
  jit::Store store(only_packs({folder / "a.pack"}));
  const std::string said = error_of([&] { store.get(small_kernel(1)); }, ErrorCode::environment);
  EXPECT_TRUE(contains(said, "holds a kernel for sm_89")) << said;
  EXPECT_EQ(store.counters().rejected, 1);
}

class PackTrust : public testing::Test {
 protected:
  PackTrust() {
    std::filesystem::create_directory(folder / "packs");
    chmod((folder / "packs").c_str(), 0755);
    jit::write_pack(path, {{jit::signature(small_kernel(1)), "sm_80", "code", "13.0.88", ""}});
    chmod(path.c_str(), 0644);
  }
  void expect_used() const {
    jit::Store store(only_packs({path}));
    EXPECT_EQ(store.get(small_kernel(1))->bytes, "code");
  }
  // Expects the pack to be refused through RAPT_PACKS and rapt_load_pack, but not if all packs are trusted.
  void expect_refused(const std::string& reason) const {
    for (const bool at_start : {true, false}) {
      jit::Store later(only_packs({}));
      const std::string said = error_of(
          [&] { at_start ? (void)jit::Store(only_packs({path})) : later.load_pack(path); }, ErrorCode::environment);
      for (const std::string& part : {path, reason, std::string("RAPT_PACKS_TRUST=any")})
        EXPECT_TRUE(contains(said, part)) << part << ": " << said;
    }
    jit::Store::Options options = only_packs({path});
    options.trust_any_pack = true;
    jit::Store store(options);
    EXPECT_EQ(store.get(small_kernel(1))->bytes, "code");
    EXPECT_THROW(jit::read_pack_info(path, false), Error);
    EXPECT_EQ(jit::read_pack_info(path).entries.size(), 1u) << "told about, not run";
  }

  TemporaryFolder folder;
  const std::string path = folder / "packs/a.pack";
};

TEST_F(PackTrust, ThatOthersMayWriteToIsRefused) {
  expect_used();
  for (const mode_t mode : {0664, 0646, 0666, 0777}) {
    chmod(path.c_str(), mode);
    expect_refused("may be written by its group or others");
  }
  chmod(path.c_str(), 0600);
  expect_used();
}

TEST_F(PackTrust, InAFolderThatOthersMayWriteToIsRefused) {
  for (const mode_t mode : {0775, 0757, 0777}) {
    chmod((folder / "packs").c_str(), mode);
    expect_refused(concat("its folder '", folder / "packs", "' may be written"));
  }
  chmod((folder / "packs").c_str(), 01777);
  expect_used();
}

TEST_F(PackTrust, ALinkIsWhatItLeadsTo) {
  std::filesystem::create_directory(folder / "open");
  chmod((folder / "open").c_str(), 0777);
  std::filesystem::create_symlink(path, folder / "open/link.pack");
  EXPECT_NO_THROW(jit::Store(only_packs({folder / "open/link.pack"})));
  chmod((folder / "packs").c_str(), 0777);
  EXPECT_THROW(jit::Store(only_packs({folder / "open/link.pack"})), Error);
}

// This happens in a shared environment whose group installs packages. The pack of a wheel is as safe as the library of
// the wheel.
TEST_F(PackTrust, BesideTheLibraryAndNoMoreWritableIsUsed) {
  if (std::getenv("RAPT_TEST_CHILD") != nullptr) {  // the library is this program
    const std::filesystem::path own = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "packs/a.pack";
    for (const auto& [mode, used] : {std::pair(0644, true), std::pair(0664, true), std::pair(0666, false)}) {
      chmod(own.c_str(), static_cast<mode_t>(mode));
      const std::string beside = own.parent_path().parent_path() / "beside.pack";
      std::filesystem::copy_file(own, beside, std::filesystem::copy_options::overwrite_existing);
      chmod(beside.c_str(), static_cast<mode_t>(mode));
      if (used)
        EXPECT_NO_THROW(jit::Store(only_packs({beside}))) << mode;
      else
        EXPECT_THROW(jit::Store(only_packs({beside})), Error) << mode;
    }
    return;
  }
  std::filesystem::copy_file("/proc/self/exe", folder / "program");
  chmod((folder / "program").c_str(), 0775);
  chmod(folder.path().c_str(), 0775);
  const std::string command =
      concat("RAPT_TEST_CHILD=1 '", folder / "program",
             "' --gtest_brief=1 --gtest_filter=PackTrust.BesideTheLibraryAndNoMoreWritableIsUsed");
  EXPECT_EQ(std::system(command.c_str()), 0);
}

TEST_F(PackTrust, OfAnotherUserIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  ASSERT_EQ(chown(path.c_str(), 12345, 12345), 0);
  expect_refused("belongs to user 12345");
  ASSERT_EQ(chown(path.c_str(), 0, 0), 0);
  ASSERT_EQ(chown((folder / "packs").c_str(), 12345, 12345), 0);
  expect_refused("its folder");
}

}  // namespace
}  // namespace rapt::test
