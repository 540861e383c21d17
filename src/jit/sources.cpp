// Follows the #include lines of a unit through embedded files and the caller's files, and computes the signature over
// them. A name is first searched in the folder of the file that includes it, as host compilers do, then in the root
// folder (src/kernels).
#include "jit/sources.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.h"
#include "jit/nvrtc.h"

namespace rapt::jit {
namespace {

class Collector {
 public:
  explicit Collector(const Request& request) : request_(request) {}

  Sources run() {
    Sources sources;
    sources.unit = with_full_names("", request_.unit);
    while (!pending_.empty()) {
      const std::string name = std::move(pending_.back());
      pending_.pop_back();
      if (sources.headers.contains(name)) continue;
      sources.headers[name];  // added before its own includes are read: files may include each other
      sources.headers[name] = with_full_names(name, *find(name));
    }
    return sources;
  }

 private:
  const std::string* find(const std::string& name) {
    if (const auto own = request_.files.find(name); own != request_.files.end()) return &own->second;
    const auto embedded = embedded_files().find(name);
    if (embedded == embedded_files().end()) return nullptr;
    return &embedded_copies_.try_emplace(name, embedded->second).first->second;
  }

  std::string resolve(const std::string& includer, std::string_view name) {
    const size_t slash = includer.rfind('/');
    const std::string beside =
        slash == std::string::npos ? std::string(name) : includer.substr(0, slash + 1).append(name);
    for (const std::string& path : {normalised(beside), normalised(std::string(name))})
      if (!path.empty() && find(path)) return path;
    invalid(includer.empty() ? "the unit" : includer, " includes \"", name,
            "\", which is neither a built-in kernel file nor a file of the caller", request_.label.empty() ? "" : " (",
            request_.label, request_.label.empty() ? "" : ")");
  }

  // Returns the source with full names in its include lines. Adds the included files to the list.
  std::string with_full_names(const std::string& includer, std::string_view text) {
    std::string out;
    out.reserve(text.size() + 64);
    while (!text.empty()) {
      const std::string_view line =
          text.substr(0, text.find('\n') == std::string_view::npos ? text.size() : text.find('\n') + 1);
      text.remove_prefix(line.size());
      const Span name = include_name(includer, line);
      if (name.begin == name.end) {
        out += line;
        continue;
      }
      pending_.push_back(resolve(includer, line.substr(name.begin, name.end - name.begin)));
      out.append(line.substr(0, name.begin)).append(pending_.back()).append(line.substr(name.end));
    }
    return out;
  }

  struct Span {
    size_t begin = 0, end = 0;
  };

  // Returns the position of the name between quotes in an include line. For all other lines the result is empty. NVRTC
  // itself handles <...>.
  static Span include_name(const std::string& includer, std::string_view line) {
    size_t at = 0;
    const auto skip_blanks = [&] { at = std::min(line.find_first_not_of(" \t", at), line.size()); };
    const auto skip_word = [&](std::string_view word) {
      const bool there = line.substr(at).starts_with(word);
      at += there ? word.size() : 0;
      return there;
    };
    skip_blanks();
    if (!skip_word("#")) return {};
    skip_blanks();
    if (!skip_word("include")) return {};
    skip_blanks();
    if (skip_word("<")) return {};
    const size_t begin = at + 1, end = line.find('"', begin);
    if (!skip_word("\"") || end == std::string_view::npos)
      invalid(includer.empty() ? "the unit" : includer, " has the line '",
              line.substr(0, line.find_last_not_of("\r\n") + 1), "': an include must have its file name in quotes");
    return {begin, end};
  }

  const Request& request_;
  std::vector<std::string> pending_;
  std::map<std::string, std::string> embedded_copies_;
};

// Writes the length before the text, so two different lists never give the same bytes.
void append_field(std::string& bytes, std::string_view field) {
  bytes += std::to_string(field.size());
  bytes += ':';
  bytes += field;
}

}  // namespace

std::string normalised(const std::string& path) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string part = path.substr(begin, end - begin);
    begin = end + 1;
    if (part.empty() || part == ".") continue;
    if (part != "..") {
      parts.push_back(part);
    } else if (parts.empty()) {
      return "";
    } else {
      parts.pop_back();
    }
  }
  std::string joined;
  for (const std::string& part : parts) joined += (joined.empty() ? "" : "/") + part;
  return joined;
}

Sources collect_sources(const Request& request) { return Collector(request).run(); }

std::string signature(const Request& request) {
  const Sources sources = collect_sources(request);
  std::string bytes = "rapt signature 1\n";
  append_field(bytes, request.arch);
  for (const char* option : fixed_options) append_field(bytes, option);
  if (request.line_info) append_field(bytes, line_info_option);
  append_field(bytes, sources.unit);
  for (const auto& [name, text] : sources.headers) {
    append_field(bytes, name);
    append_field(bytes, text);
  }
  return sha256(bytes);
}

}  // namespace rapt::jit
