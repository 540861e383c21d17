// An image as bytes, for a cache file or a pack entry; and the fields of both formats.
// Used by cache.cpp and pack.cpp.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "jit/jit.h"

namespace rapt::jit {

// Writes little-endian numbers. Writes texts with their length before the text.
class FieldWriter {
 public:
  void number(uint64_t value);
  void text(std::string_view value);
  void raw(std::string_view value) { bytes_ += value; }
  std::string& bytes() { return bytes_; }

 private:
  std::string bytes_;
};

// Reads the fields. Past the end it returns zeros and empty texts, and ok() becomes false.
class FieldReader {
 public:
  explicit FieldReader(std::string_view bytes) : left_(bytes) {}
  uint64_t number();
  std::string text();
  bool ok() const { return ok_; }
  bool at_end() const { return left_.empty(); }

 private:
  std::string_view take(size_t bytes);
  std::string_view left_;
  bool ok_ = true;
};

// Far more than any kernel needs. A file or entry that claims more is refused before memory is allocated for it.
constexpr size_t largest_image = size_t{256} << 20, largest_index = size_t{64} << 20;

// Returns magic, format, total length, fields, and the SHA-256 of all these bytes.
std::string encode_image(const Image& image);

// The required properties of an entry. compiler = "": any compiler.
struct WantedImage {
  std::string signature, arch, compiler;
};
// Returns "" and sets `image`, or returns the fault of the bytes ("is truncated: ...").
std::string decode_image(std::string_view bytes, const WantedImage& wanted, Image& image);

// The frame of images and of a pack's index: text(8 bytes of magic), format, length, fields, checksum.
constexpr size_t magic_bytes = 8, frame_head_bytes = magic_bytes + 16, checksum_bytes = 64;
std::string framed(std::string_view magic, uint64_t format, std::string_view fields);
// Checks a frame. Returns "" and sets `fields`, or returns the fault.
std::string unframe(std::string_view bytes, std::string_view magic, uint64_t format, std::string_view& fields);

}  // namespace rapt::jit
