// Tests the .npy reader and writer: round trips, the forms of headers that numpy writes, and malformed files, each of
// which must give one error sentence. Files are built in memory from a dict and data.
#include "lab/npy.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "base/error.h"

namespace rapt::lab {
namespace {

std::string file_of(int version, const std::string& dict, const std::string& data) {
  std::string bytes = "\x93NUMPY";
  bytes += {static_cast<char>(version), '\0'};
  for (int i = 0; i < (version == 1 ? 2 : 4); ++i) bytes += static_cast<char>(dict.size() >> (8 * i));
  return bytes + dict + data;
}

std::string plain(const std::string& descr, const std::string& shape, const std::string& data) {
  return file_of(1, "{'descr': '" + descr + "', 'fortran_order': False, 'shape': " + shape + ", }      \n", data);
}

check::HostTensor read(const std::string& bytes, DType raw = DType::none) {
  return read_npy(MemorySource("x.npy", bytes), raw);
}

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

std::vector<Hostile> hostile_files() {
  const std::string four(4, 'x'), magic("\x93NUMPY");
  const auto dict = [&](const std::string& text) { return file_of(1, text, four); };
  return {
      {"empty", "", "does not start with"},
      {"another format", "PK\x03\x04 and so on", "does not start with"},
      {"version 4", file_of(4, "{}", ""), "version 4.0"},
      {"version 1.1", magic + std::string("\x01\x01\x02\x00{}", 6), "version 1.1"},
      {"no length", magic + std::string("\x01\x00", 2), "are outside the file of 8 bytes"},
      {"length over the end", magic + std::string("\x01\x00\xff\xff{}", 6), "header length 65535 exceeds the 2 bytes"},
      {"length of 4 GiB", magic + std::string("\x02\x00\xff\xff\xff\xff{}", 8), "header length 4294967295 exceeds"},
      {"header of 1 MB", file_of(3, "{" + std::string(1 << 20, ' ') + "}", ""),
       "header length 1048578: must be at most"},
      {"empty dict", dict("{}"), "lacks descr"},
      {"no dict", dict("(1,)"), "must be '{'"},
      {"cut dict", dict("{'descr': '<f4'"), "must be '}'"},
      {"no shape", dict("{'descr': '<f4', 'fortran_order': False}"), "lacks shape"},
      {"unknown field", dict("{'x': 1}"), "header field 'x'"},
      {"field twice", dict("{'descr': '<f4', 'descr': '<f4'}"), "'descr' appears twice"},
      {"text after the dict", dict("{'descr': '<f4', 'fortran_order': False, 'shape': (1,)} 1"), "must be the end"},
      {"order is a number", dict("{'descr': '<f4', 'fortran_order': 1, 'shape': (1,)}"), "must be True or False"},
      {"an expression", dict("{'descr': '<f4', 'fortran_order': False, 'shape': (2**2,)}"), "must be ')'"},
      {"pickled objects", plain("|O", "(1,)", four), "holds pickled Python objects, which are never loaded"},
      {"structured type", dict("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}"), "structured type"},
      {"big-endian", plain(">f4", "(1,)", four), "is big-endian"},
      {"f64", plain("<f8", "(1,)", four + four), "convert <f8 to <f4"},
      {"complex", plain("<c8", "(1,)", four + four), "descr '<c8': must be one of"},
      {"no descr", plain("", "(1,)", four), "descr '': must be one of"},
      {"raw without a name", plain("<V2", "(2,)", four), "add a word for their format, such as q=bf16"},
      {"negative size", plain("<f4", "(-1,)", four), "must be a whole number"},
      {"size of 2^63", plain("<f4", "(9223372036854775808,)", four), "must be below 2^63"},
      {"size of 40 digits", plain("<f4", "(1234567890123456789012345678901234567890,)", four), "must be below 2^63"},
      {"product overflows", plain("<f4", "(4294967296, 4294967296)", four), "needs more than 2^63"},
      {"product wraps to 4", plain("<f4", "(4611686018427387905,)", four), "needs more than 2^63"},
      {"overflow beside a zero", plain("<f4", "(0, 4294967296, 4294967296)", ""), "needs more than 2^63"},
      {"nine dimensions", plain("<f4", "(1, 1, 1, 1, 1, 1, 1, 1, 1)", four), "more than 8 dimensions"},
      {"data too short", plain("<f4", "(2,)", four), "needs 8 bytes, but 4 follow"},
      {"data too long", plain("<f2", "(1,)", four), "needs 2 bytes, but 4 follow"},
      {"control characters", plain("\x1b[31m", "(1,)", four), "descr '?[31m'"},
  };
}

TEST(Npy, HostileFilesEndInOneSentence) {
  for (const Hostile& hostile : hostile_files()) {
    const std::string sentence = failure(hostile.bytes);
    EXPECT_NE(sentence.find(hostile.part_of_sentence), std::string::npos) << hostile.name << ": " << sentence;
    EXPECT_EQ(sentence.find("x.npy"), 0u) << hostile.name << ": " << sentence;
    EXPECT_EQ(sentence.find('\n'), std::string::npos) << hostile.name;
  }
}

TEST(Npy, EveryTruncationOfAGoodFileFails) {
  const std::string good = plain("<f2", "(1, 2)", "abcd");
  ASSERT_EQ(failure(good), "");
  for (size_t size = 0; size < good.size(); ++size) EXPECT_NE(failure(good.substr(0, size)), "") << size;
}

TEST(Npy, ReadsEveryVersionAndSpelling) {
  const std::string one("\x00\x3c\x00\x40", 4);
  for (const int version : {1, 2, 3}) {
    const check::HostTensor tensor =
        read(file_of(version, "{\"shape\":(2,),\"fortran_order\":False,\"descr\":\"<f2\"}", one));
    EXPECT_EQ(tensor.at({0}), 1.0) << version;
    EXPECT_EQ(tensor.at({1}), 2.0) << version;
  }
  EXPECT_EQ(read(plain("<f2", "()", one.substr(0, 2))).shape.size(), 0u);
  EXPECT_EQ(read(plain("|b1", "(4,)", "\x01\x01\x01\x01")).dtype, DType::u8);
  EXPECT_EQ(read(plain("<i8", "(0, 3)", "")).size(), 0);
}

TEST(Npy, FortranOrderBecomesStrides) {
  const std::string data(
      "\x01\x00\x00\x00\x02\x00\x00\x00\x03\x00\x00\x00\x04\x00\x00\x00\x05\x00\x00\x00\x06\x00\x00\x00", 24);
  const check::HostTensor tensor =
      read(file_of(1, "{'descr': '<i4', 'fortran_order': True, 'shape': (2, 3), }\n", data));
  EXPECT_EQ(tensor.strides, (std::vector<int64_t>{1, 2}));
  int32_t value = 0;
  std::memcpy(&value, tensor.data() + tensor.index({1, 2}) * 4, sizeof value);
  EXPECT_EQ(value, 6);
}

TEST(Npy, RawBytesTakeTheNamedDtypeOfTheirWidth) {
  const std::string bf16("\x80\x3f\x00\x40", 4);
  EXPECT_EQ(read(plain("<V2", "(2,)", bf16), DType::bf16).at({1}), 2.0);
  EXPECT_EQ(read(plain("<u2", "(2,)", bf16), DType::bf16).at({0}), 1.0);
  EXPECT_EQ(read(plain("|V1", "(4,)", bf16), DType::e4m3).dtype, DType::e4m3);
  EXPECT_EQ(read(plain("|u1", "(4,)", bf16), DType::e5m2).dtype, DType::e5m2);
  EXPECT_EQ(read(plain("|u1", "(4,)", bf16), DType::bf16).dtype,
            DType::u8);  // one byte is too narrow for bf16, so the array keeps its own dtype
  EXPECT_EQ(read(plain("<f4", "(1,)", bf16), DType::bf16).dtype, DType::f32);
}

TEST(Npy, RoundTripOfEveryDtype) {
  const std::string path = testing::TempDir() + "rapt-npy-" + std::to_string(getpid()) + ".npy";
  for (const DType dtype :
       {DType::f32, DType::f16, DType::bf16, DType::e4m3, DType::e5m2, DType::u8, DType::i32, DType::i64}) {
    check::HostTensor tensor = check::make_strided(dtype, {2, 3}, {1, 2});
    for (int64_t i = 0; i < 6 * bytes_of(dtype); ++i) tensor.data()[i] = static_cast<std::byte>(i + 1);
    write_npy(path, tensor);
    const check::HostTensor back = read_npy(FileSource(path), dtype);
    EXPECT_EQ(back.dtype, dtype) << name_of(dtype);
    EXPECT_EQ(back.shape, tensor.shape);
    const size_t width = static_cast<size_t>(bytes_of(dtype));
    EXPECT_EQ(std::memcmp(back.data() + back.index({1, 2}) * bytes_of(dtype),
                          tensor.data() + tensor.index({1, 2}) * bytes_of(dtype), width),
              0);
    EXPECT_EQ(std::memcmp(back.data() + back.index({0, 1}) * bytes_of(dtype),
                          tensor.data() + tensor.index({0, 1}) * bytes_of(dtype), width),
              0);
  }
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace rapt::lab
