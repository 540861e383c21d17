// Tests the .safetensors reader and writer: round trips, and malformed files, each of which must give one error
// sentence. Files are built in memory from the text of a header and data, so each rule of the format is tested by one
// line.
#include "lab/safetensors.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>

#include "base/error.h"

namespace rapt::lab {
namespace {

std::string length_prefix(uint64_t length) {
  std::string bytes(8, '\0');
  for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(length >> (8 * i));
  return bytes;
}

std::string file_of(const std::string& header, const std::string& data) {
  return length_prefix(header.size()) + header + data;
}

TensorFile read(const std::string& bytes) { return read_safetensors(MemorySource("x.safetensors", bytes)); }

// The error sentence for reading `bytes`; "" if there is none.
std::string failure(const std::string& bytes) {
  try {
    read(bytes);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
  return "";
}

struct Hostile {
  const char* name;
  std::string bytes;
  const char* part_of_sentence;
};

const std::string four(4, 'x');

std::vector<Hostile> hostile_files() {
  const uint64_t all_ones = std::numeric_limits<uint64_t>::max();
  const auto one = [](const std::string& fields) { return file_of("{\"q\":{" + fields + "}}", four); };
  return {
      {"empty", "", "has 0 bytes"},
      {"seven bytes", "1234567", "has 7 bytes"},
      {"length of 2^64-1", length_prefix(all_ones) + "{}", "header length 18446744073709551615 exceeds the 2 bytes"},
      {"length of 2^63", length_prefix(uint64_t{1} << 63) + "{}", "header length 9223372036854775808 exceeds"},
      {"length of 4 GiB", length_prefix(uint64_t{4} << 30) + "{}", "header length 4294967296 exceeds"},
      {"length one too long", length_prefix(3) + "{}", "header length 3 exceeds the 2 bytes"},
      {"no header", file_of("", ""), "does not start with '{'"},
      {"list as header", file_of("[]", ""), "does not start with '{'"},
      {"cut JSON", file_of("{\"q\":", ""), "not valid JSON near its byte"},
      {"text after JSON", file_of("{}{}", ""), "not valid JSON"},
      {"bad UTF-8", file_of("{\"\xff\":{}}", ""), "not valid JSON"},
      {"deep lists", file_of("{\"q\":" + std::string(100000, '['), ""), "holds a list"},
      {"deep objects", file_of("{\"q\":{\"dtype\":{\"a\":{}}}}", ""), "'dtype' holds an object"},
      {"nested shape", one(R"("dtype":"F32","shape":[[1]],"data_offsets":[0,4])"), "'shape' holds a list"},
      {"tensor is a number", file_of("{\"q\":5}", ""), "'q' holds a number"},
      {"unknown dtype", one(R"("dtype":"F33","shape":[1],"data_offsets":[0,4])"), "dtype 'F33': must be one of F32"},
      {"F64", one(R"("dtype":"F64","shape":[1],"data_offsets":[0,4])"), "convert F64 to F32"},
      {"dtype a number", one(R"("dtype":4,"shape":[1],"data_offsets":[0,4])"), "'dtype' holds a number"},
      {"unknown field", one(R"("dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1)"), "'x': unknown field"},
      {"field twice", one(R"("dtype":"F32","dtype":"F32")"), "'dtype' appears twice"},
      {"shape twice", one(R"("shape":[1],"shape":[1])"), "'shape' appears twice"},
      {"no offsets", one(R"("dtype":"F32","shape":[1])"), "'q' lacks data_offsets"},
      {"no dtype", one(R"("shape":[1],"data_offsets":[0,4])"), "'q' lacks dtype"},
      {"one offset", one(R"("dtype":"F32","shape":[1],"data_offsets":[0])"), "must hold two numbers"},
      {"three offsets", one(R"("dtype":"F32","shape":[1],"data_offsets":[0,4,4])"), "too many numbers"},
      {"nine dimensions", one(R"("dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,4])"), "too many numbers"},
      {"negative size", one(R"("dtype":"F32","shape":[-1],"data_offsets":[0,4])"), "holds the number -1"},
      {"fraction", one(R"("dtype":"F32","shape":[1.0],"data_offsets":[0,4])"), "holds a fraction"},
      {"size of 2^63", one(R"("dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,4])"),
       "must be below 2^63"},
      {"size of 2^65", one(R"("dtype":"F32","shape":[36893488147419103232],"data_offsets":[0,4])"), "holds a fraction"},
      {"product overflows", one(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4])"),
       "need more than 2^63"},
      {"product wraps to 4", one(R"("dtype":"F32","shape":[4611686018427387905],"data_offsets":[0,4])"),
       "need more than 2^63"},
      {"overflow beside a zero",
       file_of(R"({"q":{"dtype":"U8","shape":[0,4294967296,4294967296],"data_offsets":[0,0]}})", ""),
       "need more than 2^63"},
      {"shape too small", one(R"("dtype":"F16","shape":[1],"data_offsets":[0,4])"),
       "hold 4 bytes, but shape and dtype need 2"},
      {"shape too large", one(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])"), "need 8"},
      {"offsets swapped", one(R"("dtype":"F32","shape":[1],"data_offsets":[4,0])"), "must not exceed the second"},
      {"region outside", one(R"("dtype":"F32","shape":[2],"data_offsets":[0,8])"), "end after the 4 bytes of data"},
      {"region far outside",
       one(R"("dtype":"U8","shape":[4],"data_offsets":[9223372036854775803,9223372036854775807])"),
       "end after the 4 bytes of data"},
      {"gap", one(R"("dtype":"F16","shape":[1],"data_offsets":[2,4])"), "leave a gap after byte 0"},
      {"bytes of nobody", one(R"("dtype":"F16","shape":[1],"data_offsets":[0,2])"),
       "2 bytes of data do not belong to any tensor"},
      {"overlap",
       file_of(
           R"({"q":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"k":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
           four),
       "'k', data_offsets [2, 4]: overlap the tensor before"},
      {"same region twice",
       file_of(
           R"({"q":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"k":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
           four),
       "overlap"},
      {"name twice",
       file_of(
           R"({"q":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"q":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
           four),
       "'q' appears twice"},
      {"metadata of numbers", file_of(R"({"__metadata__":{"a":1}})", ""), "__metadata__ field 'a' holds a number"},
      {"metadata twice", file_of(R"({"__metadata__":{"a":"1","a":"2"}})", ""), "__metadata__ has 'a' twice"},
      {"control characters", one(R"("dtype":"\u001b[31m","shape":[1],"data_offsets":[0,4])"), "dtype '?[31m'"},
  };
}

TEST(Safetensors, HostileFilesEndInOneSentence) {
  for (const Hostile& hostile : hostile_files()) {
    const std::string sentence = failure(hostile.bytes);
    EXPECT_NE(sentence.find(hostile.part_of_sentence), std::string::npos) << hostile.name << ": " << sentence;
    EXPECT_EQ(sentence.find("x.safetensors"), 0u) << hostile.name << ": " << sentence;
    EXPECT_EQ(sentence.find('\n'), std::string::npos) << hostile.name;
  }
}

TEST(Safetensors, EveryTruncationOfAGoodFileFails) {
  const std::string good = file_of(R"({"q":{"dtype":"F16","shape":[2],"data_offsets":[0,4]}})", four);
  ASSERT_EQ(failure(good), "");
  for (size_t size = 0; size < good.size(); ++size) EXPECT_NE(failure(good.substr(0, size)), "") << size;
  EXPECT_NE(failure(good + "x"), "");
}

TEST(Safetensors, ReadsValuesScalarsAndEmptyTensors) {
  const TensorFile file = read(file_of(
      R"({"s":{"dtype":"F16","shape":[],"data_offsets":[4,6]},"e":{"dtype":"F32","shape":[3,0],"data_offsets":[6,6]},)"
      R"("__metadata__":{"a":"b"},"q":{"dtype":"I32","shape":[1],"data_offsets":[0,4]}}   )",
      std::string("\x01\x02\x00\x00\x00\x3c", 6)));
  ASSERT_EQ(file.tensors.size(), 3u);
  EXPECT_EQ(file.metadata.at("a"), "b");
  EXPECT_EQ(file.tensors.at("s").shape.size(), 0u);
  EXPECT_EQ(file.tensors.at("s").at({}), 1.0);
  EXPECT_EQ(file.tensors.at("e").size(), 0);
  int32_t value = 0;
  std::memcpy(&value, file.tensors.at("q").data(), sizeof value);
  EXPECT_EQ(value, 0x201);
}

class SafetensorsFile : public testing::Test {
 protected:
  void SetUp() override {
    folder = std::filesystem::path(testing::TempDir()) / ("rapt-safetensors-" + std::to_string(getpid()));
    std::filesystem::create_directories(folder);
  }
  void TearDown() override { std::filesystem::remove_all(folder); }
  size_t files() const {
    return static_cast<size_t>(
        std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator()));
  }
  std::filesystem::path folder;
};

TEST_F(SafetensorsFile, RoundTripKeepsStridedValuesInLogicalOrder) {
  const std::string path = folder / "o.safetensors";
  check::HostTensor half = check::make_strided(DType::f16, {2, 3}, {1, 2});  // column-major
  for (int64_t i = 0; i < 2; ++i)
    for (int64_t j = 0; j < 3; ++j) half.set({i, j}, static_cast<double>(10 * i + j));
  check::HostTensor wide = check::make_tensor(DType::f32, {2});
  wide.set({1}, -2.5);
  write_safetensors(path, {{"o", half}, {"lse", wide}}, {{"problem", "f16"}});
  const TensorFile file = read_safetensors(FileSource(path));
  EXPECT_EQ(file.metadata.at("problem"), "f16");
  for (int64_t i = 0; i < 2; ++i)
    for (int64_t j = 0; j < 3; ++j) EXPECT_EQ(file.tensors.at("o").at({i, j}), static_cast<double>(10 * i + j));
  EXPECT_EQ(file.tensors.at("o").strides, (std::vector<int64_t>{3, 1}));
  EXPECT_EQ(file.tensors.at("lse").at({1}), -2.5);
  EXPECT_EQ(files(), 1u);
}

TEST_F(SafetensorsFile, AFailedWriteLeavesTheOldFileAndNothingElse) {
  const std::string path = folder / "o.safetensors";
  std::ofstream(path) << "old";
  check::HostTensor tensor = check::make_tensor(DType::sim8, {2});  // .safetensors has no name for sim8
  EXPECT_THROW(write_safetensors(path, {{"o", tensor}}), Error);
  {
    AtomicFile unfinished(path);
    unfinished.write("half");
    EXPECT_EQ(files(), 2u);
  }
  EXPECT_EQ(files(), 1u);
  std::string text;
  std::ifstream(path) >> text;
  EXPECT_EQ(text, "old");
}

// The time is proportional to the number of tensors, not to its square. Four times as many tensors take about four
// times as long, not 16 times.
TEST_F(SafetensorsFile, ManyTensors) {
  const std::string path = folder / "many.safetensors";
  const int64_t count = std::getenv("RAPT_TEST_QUICK") != nullptr ? 20'000 : 100'000;
  const auto seconds_of = [&](int64_t some) {
    std::vector<NamedTensor> tensors;
    for (int64_t i = 0; i < some; ++i) {
      tensors.push_back({"tensor." + std::to_string(i), check::make_tensor(DType::i32, {1})});
      tensors.back().tensor.set({0}, static_cast<double>(i));
    }
    double least = 1e9;
    for (int round = 0; round < 2; ++round) {
      const auto begin = std::chrono::steady_clock::now();
      write_safetensors(path, tensors);
      const TensorFile file = read_safetensors(FileSource(path));
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
      EXPECT_EQ(std::ssize(file.tensors), some);
      EXPECT_EQ(file.tensors.at("tensor.17").at({0}), 17.0);
      least = std::min(least, seconds.count());
    }
    return least;
  };
  const double quarter = seconds_of(count / 4);
  EXPECT_LT(seconds_of(count), 10 * quarter);
}

TEST_F(SafetensorsFile, WhatIsNoReadableFileIsNamed) {
  EXPECT_THROW(FileSource(folder / "missing.safetensors"), Error);
  EXPECT_THROW(FileSource{folder.string()}, Error);
  EXPECT_THROW(AtomicFile(folder / "no" / "such" / "folder"), Error);
}

TEST(Safetensors, TheSampleIsWhatItsReadmeSays) {
  const TensorFile file = read_safetensors(FileSource(RAPT_SOURCE_DIR "/examples/data/minilm-layer0.safetensors"));
  for (const char* name : {"q", "k", "v"}) {
    ASSERT_EQ(file.tensors.count(name), 1u) << name;
    EXPECT_EQ(file.tensors.at(name).shape, (std::vector<int64_t>{1, 12, 331, 32})) << name;
    EXPECT_EQ(file.tensors.at(name).dtype, DType::f16) << name;
  }
  EXPECT_EQ(file.metadata.at("problem"), "f16 b1 h12 q331 k331 d32");
}

}  // namespace
}  // namespace rapt::lab
