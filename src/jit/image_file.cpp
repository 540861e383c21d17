// The frame around stored bytes, and images in a frame; see image_file.h.
#include "jit/image_file.h"

#include "base/error.h"

namespace rapt::jit {
namespace {

constexpr std::string_view image_magic = "raptimg\n";
constexpr uint64_t image_format = 1;

}  // namespace

void FieldWriter::number(uint64_t value) {
  for (int shift = 0; shift < 64; shift += 8) bytes_ += static_cast<char>(static_cast<unsigned char>(value >> shift));
}

void FieldWriter::text(std::string_view value) {
  number(value.size());
  raw(value);
}

std::string_view FieldReader::take(size_t bytes) {
  if (bytes > left_.size()) {
    ok_ = false;
    left_ = {};
    return {};
  }
  const std::string_view taken = left_.substr(0, bytes);
  left_.remove_prefix(bytes);
  return taken;
}

uint64_t FieldReader::number() {
  uint64_t value = 0;
  int shift = 0;
  for (const char byte : take(8)) {
    value |= uint64_t{static_cast<unsigned char>(byte)} << shift;
    shift += 8;
  }
  return value;
}

std::string FieldReader::text() { return std::string(take(number())); }

std::string framed(std::string_view magic, uint64_t format, std::string_view fields) {
  FieldWriter out;
  out.raw(magic);
  out.number(format);
  out.number(frame_head_bytes + fields.size() + checksum_bytes);
  out.raw(fields);
  out.raw(sha256(out.bytes()));
  return std::move(out.bytes());
}

std::string unframe(std::string_view bytes, std::string_view magic, uint64_t format, std::string_view& fields) {
  if (bytes.size() < frame_head_bytes) return concat("is truncated: it holds ", bytes.size(), " bytes");
  if (!bytes.starts_with(magic)) return "is not a file of rapt: its first bytes differ";
  FieldReader head(bytes.substr(magic_bytes, 16));
  if (const uint64_t found = head.number(); found != format)
    return concat("has format ", found, "; this build reads format ", format);
  if (const uint64_t length = head.number(); length != bytes.size())
    return concat(bytes.size() < length ? "is truncated" : "is too long", ": it holds ", bytes.size(),
                  " bytes, but its header says ", length);
  if (bytes.size() < frame_head_bytes + checksum_bytes)
    return concat("is truncated: it holds ", bytes.size(), " bytes");
  const std::string_view summed = bytes.substr(0, bytes.size() - checksum_bytes);
  if (sha256(summed) != bytes.substr(summed.size())) return "is damaged (checksum mismatch)";
  fields = summed.substr(frame_head_bytes);
  return "";
}

std::string encode_image(const Image& image) {
  FieldWriter fields;
  for (const std::string* text : {&image.signature, &image.arch, &image.compiler, &image.log, &image.bytes})
    fields.text(*text);
  return framed(image_magic, image_format, fields.bytes());
}

std::string decode_image(std::string_view bytes, const WantedImage& wanted, Image& image) {
  std::string_view content;
  if (std::string wrong = unframe(bytes, image_magic, image_format, content); !wrong.empty()) return wrong;
  FieldReader fields(content);
  Image found;
  for (std::string* text : {&found.signature, &found.arch, &found.compiler, &found.log, &found.bytes})
    *text = fields.text();
  if (!fields.ok() || !fields.at_end()) return "is damaged (its fields do not fill it)";
  if (found.signature != wanted.signature) return concat("holds another kernel, of signature ", found.signature);
  if (found.arch != wanted.arch) return concat("holds a kernel for ", found.arch);
  if (!wanted.compiler.empty() && found.compiler != wanted.compiler)
    return concat("was compiled by NVRTC ", found.compiler);
  image = std::move(found);
  return "";
}

}  // namespace rapt::jit
