// Reader and writer of .safetensors files.
// The header is parsed as events, not as a tree. So the parser stops immediately if the structure is unknown or too
// deep, or if a name appears twice. Memory use is limited by the size of the file, because the offsets must cover the
// data exactly, without gaps or overlaps.
#include "lab/safetensors.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"

namespace rapt::lab {
namespace {

using nlohmann::json;

constexpr int64_t length_bytes = 8;
constexpr int64_t largest_header = 100'000'000;  // the limit of the format's reference implementation
constexpr size_t largest_rank = 8;

struct DTypeName {
  const char* name;
  DType dtype;
};
constexpr DTypeName dtype_names[] = {{"F32", DType::f32},      {"F16", DType::f16},      {"BF16", DType::bf16},
                                     {"F8_E4M3", DType::e4m3}, {"F8_E5M2", DType::e5m2}, {"U8", DType::u8},
                                     {"BOOL", DType::u8},      {"I32", DType::i32},      {"I64", DType::i64}};

struct Entry {
  std::string name, dtype;
  std::vector<int64_t> shape, offsets;
  bool has_dtype = false, has_shape = false, has_offsets = false;
};

// Receives the parser's events. Allows only a header {name: {dtype, shape, data_offsets}, "__metadata__": {text:
// text}}.
class HeaderEvents : public nlohmann::json_sax<json> {
 public:
  explicit HeaderEvents(const std::string& file) : file_(file) {}
  std::vector<Entry> entries;
  std::map<std::string, std::string> metadata;

  bool null() override { unexpected("null"); }
  bool boolean(bool) override { unexpected("a boolean"); }
  bool number_float(double, const std::string&) override { unexpected("a fraction"); }
  bool number_integer(int64_t value) override { unexpected(concat("the number ", value).c_str()); }
  bool binary(json::binary_t&) override { unexpected("binary data"); }

  bool number_unsigned(uint64_t value) override {
    if (list_ == nullptr) unexpected("a number");
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
      invalid(place(), " holds ", value, ": must be below 2^63");
    if (list_->size() >= (list_ == &entries.back().shape ? largest_rank : 2))
      invalid(place(), " has too many numbers: shape takes at most ", largest_rank, ", data_offsets 2");
    list_->push_back(static_cast<int64_t>(value));
    return true;
  }

  bool string(std::string& text) override {
    if (in_metadata_ && depth_ == 2) {
      if (!metadata.emplace(key_, text).second) invalid(file_, ": __metadata__ has ", in_quotes(key_), " twice");
    } else if (depth_ == 2 && key_ == "dtype") {
      once(entries.back().has_dtype);
      entries.back().dtype = text;
    } else {
      unexpected("a text");
    }
    return true;
  }

  bool start_object(size_t) override {
    if (depth_ > 1 || list_ != nullptr) unexpected("an object");
    if (++depth_ == 2) start_entry();
    return true;
  }

  bool key(std::string& text) override {
    key_ = text;
    if (depth_ == 2 && !in_metadata_ && text != "dtype" && text != "shape" && text != "data_offsets")
      invalid(place(), ": unknown field; a tensor has dtype, shape and data_offsets");
    return true;
  }

  bool end_object() override {
    if (depth_-- == 2 && !in_metadata_) {
      const Entry& entry = entries.back();
      if (!entry.has_dtype || !entry.has_shape || !entry.has_offsets)
        invalid(file_, ": tensor ", in_quotes(entry.name), " lacks ",
                !entry.has_dtype   ? "dtype"
                : !entry.has_shape ? "shape"
                                   : "data_offsets");
    }
    return true;
  }

  bool start_array(size_t) override {
    const bool fits = depth_ == 2 && !in_metadata_ && list_ == nullptr && (key_ == "shape" || key_ == "data_offsets");
    if (!fits) unexpected("a list");
    Entry& entry = entries.back();
    once(key_ == "shape" ? entry.has_shape : entry.has_offsets);
    list_ = key_ == "shape" ? &entry.shape : &entry.offsets;
    return true;
  }

  bool end_array() override {
    if (list_ == &entries.back().offsets && list_->size() != 2) invalid(place(), " must hold two numbers");
    list_ = nullptr;
    return true;
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) override {
    invalid(file_, ": the header is not valid JSON near its byte ", position);
  }

 private:
  void start_entry() {
    in_metadata_ = key_ == "__metadata__";
    if (!names_.insert(key_).second) invalid(file_, ": tensor ", in_quotes(key_), " appears twice in the header");
    if (!in_metadata_) entries.emplace_back().name = key_;
  }
  void once(bool& seen) const {
    if (seen) invalid(place(), " appears twice");
    seen = true;
  }
  std::string place() const {
    if (depth_ < 2) return concat(file_, ": header field ", in_quotes(key_));
    if (in_metadata_) return concat(file_, ": __metadata__ field ", in_quotes(key_));
    return concat(file_, ": tensor ", in_quotes(entries.back().name), ", field ", in_quotes(key_));
  }
  [[noreturn]] void unexpected(const char* what) const {
    if (depth_ == 0) invalid(file_, ": the header is ", what, ": must be one JSON object");
    invalid(place(), " holds ", what, ": a tensor has dtype (text), shape and data_offsets (lists of whole numbers)",
            ", __metadata__ has texts");
  }

  std::string file_, key_;
  std::set<std::string> names_;
  std::vector<int64_t>* list_ = nullptr;
  int depth_ = 0;
  bool in_metadata_ = false;
};

std::string read_header(const ByteSource& source) {
  if (source.size() < length_bytes)
    invalid(source.name(), ": has ", source.size(), " bytes: a .safetensors file starts with an 8-byte header length");
  unsigned char raw[length_bytes];
  source.read(0, length_bytes, raw);
  uint64_t length = 0;
  for (int i = length_bytes - 1; i >= 0; --i) length = length << 8 | raw[i];
  if (length > static_cast<uint64_t>(source.size() - length_bytes))
    invalid(source.name(), ": header length ", length, " exceeds the ", source.size() - length_bytes,
            " bytes that follow it");
  if (length > static_cast<uint64_t>(largest_header))
    invalid(source.name(), ": header length ", length, ": must be at most ", largest_header);
  std::string header(length, '\0');
  source.read(length_bytes, static_cast<int64_t>(length), header.data());
  return header;
}

DType dtype_of(const std::string& file, const Entry& entry) {
  for (const DTypeName& known : dtype_names)
    if (entry.dtype == known.name) return known.dtype;
  invalid(file, ": tensor ", in_quotes(entry.name), ", dtype ", in_quotes(entry.dtype),
          ": must be one of F32 F16 BF16 F8_E4M3 F8_E5M2 U8 BOOL I32 I64",
          entry.dtype == "F64" ? " (convert F64 to F32 first)" : "");
}

// Checks a rule of the format: the tensors, sorted by offset, cover the data without gaps or overlaps.
void check_regions(const std::string& file, const std::vector<Entry>& entries, int64_t data_bytes) {
  std::vector<const Entry*> ordered;
  for (const Entry& entry : entries) ordered.push_back(&entry);
  std::sort(ordered.begin(), ordered.end(), [](const Entry* a, const Entry* b) { return a->offsets < b->offsets; });
  int64_t covered = 0;
  for (const Entry* entry : ordered) {
    const int64_t begin = entry->offsets[0], end = entry->offsets[1];
    const auto refuse = [&](const auto&... rule) {
      invalid(file, ": tensor ", in_quotes(entry->name), ", data_offsets [", begin, ", ", end, "]", rule...);
    };
    if (begin > end) refuse(": the first must not exceed the second");
    if (end > data_bytes) refuse(": end after the ", data_bytes, " bytes of data");
    if (begin < covered) refuse(": overlap the tensor before, which ends at ", covered);
    if (begin > covered) refuse(": leave a gap after byte ", covered);
    const int64_t needed = bytes_of_shape(entry->shape, bytes_of(dtype_of(file, *entry)));
    if (needed != end - begin)
      refuse(": hold ", end - begin, " bytes, but shape and dtype need ",
             needed < 0 ? std::string("more than 2^63") : std::to_string(needed));
    covered = end;
  }
  if (covered != data_bytes) invalid(file, ": ", data_bytes - covered, " bytes of data do not belong to any tensor");
}

const char* dtype_name(DType dtype, const std::string& name) {
  for (const DTypeName& known : dtype_names)
    if (known.dtype == dtype) return known.name;
  invalid("tensor ", in_quotes(name), ", dtype ", name_of(dtype), ": has no .safetensors name");
}

void append_elements(const check::HostTensor& tensor, size_t dim, int64_t index, std::string& bytes) {
  const int64_t width = bytes_of(tensor.dtype);
  if (dim == tensor.shape.size()) {
    bytes.append(reinterpret_cast<const char*>(tensor.data() + index * width), static_cast<size_t>(width));
    return;
  }
  if (dim + 1 == tensor.shape.size() && tensor.strides[dim] == 1) {
    bytes.append(reinterpret_cast<const char*>(tensor.data() + index * width),
                 static_cast<size_t>(tensor.shape[dim] * width));
    return;
  }
  for (int64_t i = 0; i < tensor.shape[dim]; ++i)
    append_elements(tensor, dim + 1, index + i * tensor.strides[dim], bytes);
}

}  // namespace

std::string contiguous_bytes(const check::HostTensor& tensor) {
  std::string bytes;
  bytes.reserve(static_cast<size_t>(bytes_of_shape(tensor.shape, bytes_of(tensor.dtype))));
  if (tensor.size() > 0) append_elements(tensor, 0, 0, bytes);
  return bytes;
}

TensorFile read_safetensors(const ByteSource& source) {
  const std::string header = read_header(source);
  HeaderEvents events(source.name());
  if (header.empty() || header[0] != '{') invalid(source.name(), ": the header does not start with '{'");
  json::sax_parse(header, &events);
  const int64_t data_begin = length_bytes + static_cast<int64_t>(header.size());
  check_regions(source.name(), events.entries, source.size() - data_begin);

  TensorFile file;
  file.metadata = std::move(events.metadata);
  for (const Entry& entry : events.entries) {
    check::HostTensor tensor = check::make_tensor(dtype_of(source.name(), entry), entry.shape);
    source.read(data_begin + entry.offsets[0], entry.offsets[1] - entry.offsets[0], tensor.data());
    file.tensors.emplace(entry.name, std::move(tensor));
  }
  return file;
}

namespace {
// Builds the text of the header field by field. An ordered_json would be slow, because it searches all its names for
// each new name.
std::string header_text(const std::vector<const NamedTensor*>& tensors,
                        const std::map<std::string, std::string>& metadata) {
  std::string text = "{";
  const auto field = [&](const std::string& name, const nlohmann::ordered_json& value) {
    text += concat(text.size() > 1 ? "," : "", json(name).dump(), ":", value.dump());
  };
  if (!metadata.empty()) field("__metadata__", metadata);
  int64_t offset = 0;
  for (const NamedTensor* named : tensors) {
    const int64_t size = bytes_of_shape(named->tensor.shape, bytes_of(named->tensor.dtype));
    field(named->name, {{"dtype", dtype_name(named->tensor.dtype, named->name)},
                        {"shape", named->tensor.shape},
                        {"data_offsets", {offset, offset + size}}});
    offset += size;
  }
  return text + "}";
}
}  // namespace

void write_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<const NamedTensor*> ordered;
  for (const NamedTensor& named : tensors) ordered.push_back(&named);
  std::stable_sort(ordered.begin(), ordered.end(), [](const NamedTensor* a, const NamedTensor* b) {
    return bytes_of(a->tensor.dtype) > bytes_of(b->tensor.dtype);
  });
  std::string text = header_text(ordered, metadata);
  text.append((64 - (text.size() + length_bytes) % 64) % 64, ' ');

  AtomicFile file(path);
  char length[length_bytes];
  for (int i = 0; i < length_bytes; ++i) length[i] = static_cast<char>(text.size() >> (8 * i));
  file.write(length, sizeof length);
  file.write(text);
  for (const NamedTensor* named : ordered) file.write(contiguous_bytes(named->tensor));
  file.commit();
}

}  // namespace rapt::lab
