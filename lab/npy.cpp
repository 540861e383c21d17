// Reader and writer of .npy files.
// A small parser reads the header's dict. It knows the three fields of this dict and no other Python. Memory use is
// limited by the size of the file: shape and dtype must match the number of bytes after the header.
#include "lab/npy.h"

#include <cstring>
#include <string_view>

#include "base/error.h"
#include "lab/safetensors.h"

namespace rapt::lab {
namespace {

constexpr int64_t largest_header = 1 << 16;  // numpy itself warns above 10,000
constexpr size_t largest_rank = 8;
constexpr std::string_view magic = "\x93NUMPY";

struct Header {
  std::string descr;
  bool fortran_order = false;
  std::vector<int64_t> shape;
  int64_t data_begin = 0;
};

// Parses the dict: {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
class DictCursor {
 public:
  DictCursor(const std::string& file, std::string_view text) : file_(file), text_(text) {}

  Header parse() {
    Header header;
    bool has_descr = false, has_order = false, has_shape = false;
    expect('{');
    while (!accept('}')) {
      const std::string key = quoted_text();
      expect(':');
      bool* seen = key == "descr"           ? &has_descr
                   : key == "fortran_order" ? &has_order
                   : key == "shape"         ? &has_shape
                                            : nullptr;
      if (seen == nullptr) invalid(file_, ": header field ", in_quotes(key), ": must be descr, fortran_order or shape");
      if (*seen) invalid(file_, ": header field ", in_quotes(key), " appears twice");
      *seen = true;
      if (seen == &has_descr) header.descr = descr();
      if (seen == &has_order) header.fortran_order = boolean();
      if (seen == &has_shape) header.shape = shape();
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    skip_space();
    if (at_ != text_.size()) fail("the end of the header");
    if (!has_descr || !has_order || !has_shape)
      invalid(file_, ": the header lacks ", !has_descr ? "descr" : !has_order ? "fortran_order" : "shape");
    return header;
  }

 private:
  [[noreturn]] void fail(const char* wanted) const {
    invalid(file_, ": the header holds ", in_quotes(text_.substr(at_, 12)), " at its byte ", at_, ": must be ", wanted);
  }
  void skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }
  bool accept(char c) {
    skip_space();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    const char wanted[] = {'\'', c, '\'', '\0'};
    if (!accept(c)) fail(wanted);
  }
  bool accept_word(std::string_view word) {
    skip_space();
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }

  std::string quoted_text() {
    const char quote = accept('\'') ? '\'' : accept('"') ? '"' : '\0';
    if (quote == '\0') fail("a quoted string");
    const size_t end = text_.find_first_of("'\"\\\n", at_);
    if (end == std::string_view::npos || text_[end] != quote) fail("a plain quoted string");
    std::string text(text_.substr(at_, end - at_));
    at_ = end + 1;
    return text;
  }
  std::string descr() {
    skip_space();
    if (at_ < text_.size() && text_[at_] == '[')
      invalid(file_, ": descr is a structured type: only plain arrays are read");
    return quoted_text();
  }
  bool boolean() {
    if (accept_word("True")) return true;
    if (!accept_word("False")) fail("True or False");
    return false;
  }
  int64_t whole_number() {
    skip_space();
    const size_t begin = at_;
    int64_t value = 0;
    for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_)
      if (__builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, text_[at_] - '0', &value))
        invalid(file_, ": shape holds ", in_quotes(text_.substr(begin, 24)), ": must be below 2^63");
    if (at_ == begin) fail("a whole number");
    return value;
  }
  std::vector<int64_t> shape() {
    std::vector<int64_t> sizes;
    expect('(');
    while (!accept(')')) {
      if (sizes.size() == largest_rank) invalid(file_, ": shape has more than ", largest_rank, " dimensions");
      sizes.push_back(whole_number());
      if (!accept(',')) {
        expect(')');
        break;
      }
    }
    return sizes;
  }

  const std::string& file_;
  std::string_view text_;
  size_t at_ = 0;
};

Header read_header(const ByteSource& source) {
  unsigned char start[12] = {};
  const int64_t version_end = static_cast<int64_t>(magic.size()) + 2;
  if (source.size() >= version_end) source.read(0, version_end, start);
  if (std::memcmp(start, magic.data(), magic.size()) != 0)
    invalid(source.name(), ": does not start with the bytes \\x93NUMPY of a .npy file");
  const int major = start[6], minor = start[7];
  if (major < 1 || major > 3 || minor != 0)
    invalid(source.name(), ": version ", major, ".", minor, ": must be 1.0, 2.0 or 3.0");
  const int64_t length_size = major == 1 ? 2 : 4;
  source.read(version_end, length_size, start + version_end);
  int64_t length = 0;
  for (int64_t i = length_size - 1; i >= 0; --i) length = length << 8 | start[version_end + i];
  const int64_t text_begin = version_end + length_size;
  if (length > source.size() - text_begin)
    invalid(source.name(), ": header length ", length, " exceeds the ", source.size() - text_begin,
            " bytes that follow it");
  if (length > largest_header) invalid(source.name(), ": header length ", length, ": must be at most ", largest_header);
  std::string text(static_cast<size_t>(length), '\0');
  source.read(text_begin, length, text.data());
  Header header = DictCursor(source.name(), text).parse();
  header.data_begin = text_begin + length;
  return header;
}

// descr is <byte order><kind><bytes>, such as "<f4".
DType dtype_of(const std::string& file, const std::string& descr, DType raw) {
  const std::string where = concat(file, ": descr ", in_quotes(descr));
  const std::string kind = descr.empty() ? "" : descr.substr(1);
  if (!kind.empty() && kind[0] == 'O') invalid(where, ": holds pickled Python objects, which are never loaded");
  if (!descr.empty() && descr[0] == '>') invalid(where, ": is big-endian: must be little-endian ('<')");
  const bool known_order = !descr.empty() && (descr[0] == '<' || descr[0] == '|');
  const bool raw1 = kind == "u1" || kind == "V1", raw2 = kind == "u2" || kind == "V2";
  if (known_order && ((raw1 && is_fp8(raw)) || (raw2 && is_16bit(raw)))) return raw;
  if (known_order && (raw2 || kind == "V1"))
    invalid(where, ": raw bytes; add a word for their format, such as q=", raw2 ? "bf16" : "e4m3");
  if (known_order && (kind == "u1" || kind == "b1")) return DType::u8;
  if (descr == "<f4") return DType::f32;
  if (descr == "<f2") return DType::f16;
  if (descr == "<i4") return DType::i32;
  if (descr == "<i8") return DType::i64;
  invalid(where, ": must be one of <f4 <f2 <i4 <i8 |u1 |b1, or raw u1 u2 V1 V2",
          kind == "f8" ? " (convert <f8 to <f4 first)" : "");
}

std::vector<int64_t> fortran_strides(const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides;
  int64_t stride = 1;
  for (const int64_t size : shape) {
    strides.push_back(stride);
    stride *= size > 0 ? size : 1;
  }
  return strides;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "(";
  for (const int64_t size : shape)
    text += std::to_string(size) + (shape.size() == 1 ? "," : &size == &shape.back() ? "" : ", ");
  return text + ")";
}

const char* descr_of(DType dtype) {
  switch (dtype) {
    case DType::f32: return "<f4";
    case DType::f16: return "<f2";
    case DType::bf16: return "<V2";
    case DType::sim8:
    case DType::u8: return "|u1";
    case DType::i32: return "<i4";
    case DType::i64: return "<i8";
    case DType::none: break;
    default: return "|V1";  // FP8, which has no name in numpy
  }
  invalid("dtype none: an absent tensor has no .npy file");
}

}  // namespace

check::HostTensor read_npy(const ByteSource& source, DType raw) {
  const Header header = read_header(source);
  const DType dtype = dtype_of(source.name(), header.descr, raw);
  const int64_t needed = bytes_of_shape(header.shape, bytes_of(dtype)), present = source.size() - header.data_begin;
  if (needed != present)
    invalid(source.name(), ": shape ", shape_text(header.shape), " of ", in_quotes(header.descr), " needs ",
            needed < 0 ? std::string("more than 2^63") : std::to_string(needed), " bytes, but ", present,
            " follow the header");
  check::HostTensor tensor = header.fortran_order
                                 ? check::make_strided(dtype, header.shape, fortran_strides(header.shape))
                                 : check::make_tensor(dtype, header.shape);
  source.read(header.data_begin, present, tensor.data());
  return tensor;
}

void write_npy(const std::string& path, const check::HostTensor& tensor) {
  std::string header = concat("{'descr': '", descr_of(tensor.dtype),
                              "', 'fortran_order': False, 'shape': ", shape_text(tensor.shape), ", }");
  const size_t prefix = magic.size() + 4;
  header.append((64 - (prefix + header.size() + 1) % 64) % 64, ' ');
  header += '\n';
  const char version_and_length[] = {1, 0, static_cast<char>(header.size()), static_cast<char>(header.size() >> 8)};
  AtomicFile file(path);
  file.write(magic);
  file.write(version_and_length, sizeof version_and_length);
  file.write(header);
  file.write(contiguous_bytes(tensor));
  file.commit();
}

}  // namespace rapt::lab
