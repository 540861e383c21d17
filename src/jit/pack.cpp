// Reads and writes packs. The file begins with the index, in a frame with a checksum. The images follow, each in its
// own frame. Opening a pack reads only the index. An image is read and checked when it is needed.
#include "jit/pack.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <utility>

#include "base/error.h"
#include "jit/image_file.h"

namespace rapt::jit {
namespace {

constexpr std::string_view pack_magic = "raptpak\n";
constexpr uint64_t pack_format = 1;

[[noreturn]] void bad_pack(const std::string& path, const std::string& wrong) {
  throw Error(ErrorCode::environment, concat("pack '", path, "' ", wrong));
}

// Returns the index as bytes. Offsets of images count from the end of the index, so they do not depend on its length.
std::string encode_index(const std::string& compiler, const std::map<std::string, Pack::Place>& places,
                         size_t images_bytes) {
  FieldWriter fields;
  fields.text(compiler);
  fields.number(images_bytes);
  fields.number(places.size());
  for (const auto& [signature, place] : places) {
    fields.text(signature);
    fields.text(place.arch);
    fields.number(place.offset);
    fields.number(place.bytes);
  }
  return framed(pack_magic, pack_format, fields.bytes());
}

// Reads the frame at the beginning of the file. The header of the frame contains its length.
std::string read_index(const FileHandle& file, size_t file_bytes, const std::string& path) {
  std::string index;
  if (file_bytes < frame_head_bytes || !read_exactly(file, 0, frame_head_bytes, index))
    bad_pack(path, concat("is truncated: it holds ", file_bytes, " bytes"));
  if (!index.starts_with(pack_magic)) bad_pack(path, "is not a pack: its first bytes differ");
  const uint64_t bytes = FieldReader(std::string_view(index).substr(magic_bytes + 8)).number();
  if (bytes > largest_index)
    bad_pack(path, concat("has an index of ", bytes, " bytes: must be at most ", largest_index));
  if (bytes > file_bytes || !read_exactly(file, 0, bytes, index))
    bad_pack(path, concat("is truncated or damaged: it holds ", file_bytes, " bytes, but its index needs ", bytes));
  return index;
}

// Returns whether the pack lies beside the library, as in a wheel, has the same owner and group, and has no
// writers that the library does not have. Then it is as safe as the library: whoever can change one can change the
// other.
bool is_as_safe_as_the_library(const struct stat& pack, const std::filesystem::path& folder) {
  Dl_info self{};
  struct stat library {};
  std::error_code failure;
  if (dladdr(reinterpret_cast<const void*>(&write_pack), &self) == 0 || self.dli_fname == nullptr) return false;
  const std::filesystem::path file = std::filesystem::canonical(self.dli_fname, failure);
  if (failure || file.parent_path() != folder || stat(file.c_str(), &library) != 0) return false;
  const auto writers = [](const struct stat& status) { return status.st_mode & (S_IWGRP | S_IWOTH); };
  return pack.st_uid == library.st_uid && pack.st_gid == library.st_gid && (writers(pack) & ~writers(library)) == 0;
}

std::string why_distrusted(const FileHandle& file, const std::string& path) {
  struct stat status {};
  std::error_code failure;
  const std::filesystem::path folder = std::filesystem::canonical(path, failure).parent_path();
  const bool known = !failure && fstat(file.fd(), &status) == 0;
  return known && is_as_safe_as_the_library(status, folder) ? "" : why_others_may_write(file, path);
}

}  // namespace

std::shared_ptr<const Pack> Pack::open(const std::string& path, bool trust_any) {
  auto pack = std::make_shared<Pack>();
  pack->path_ = path;
  size_t file_bytes = 0;
  if (const std::string wrong = open_regular(AT_FDCWD, path, pack->file_, file_bytes); !wrong.empty())
    bad_pack(path, wrong);
  if (!trust_any)
    if (const std::string why = why_distrusted(pack->file_, path); !why.empty())
      bad_pack(path, concat("is not used: ", why, ", but rapt runs the code in it (see docs/packs.md; ",
                            "RAPT_PACKS_TRUST=any accepts every pack)"));
  const std::string index = read_index(pack->file_, file_bytes, path);
  std::string_view content;
  if (const std::string wrong = unframe(index, pack_magic, pack_format, content); !wrong.empty()) bad_pack(path, wrong);

  FieldReader fields(content);
  pack->compiler_ = fields.text();
  const uint64_t images_bytes = fields.number();
  for (uint64_t left = fields.number(); left > 0 && fields.ok(); --left) {
    std::string signature = fields.text();
    Place place;
    place.arch = fields.text();
    place.offset = fields.number();
    place.bytes = fields.number();
    const size_t behind_index = file_bytes - index.size();
    if (place.offset > behind_index || place.bytes > behind_index - place.offset)
      bad_pack(path, concat("is truncated or damaged: it holds ", file_bytes, " bytes, and the image ", signature,
                            " is outside of them"));
    place.offset += index.size();
    if (place.bytes > largest_image)
      bad_pack(path,
               concat("holds ", place.bytes, " bytes for the image ", signature, ": must be at most ", largest_image));
    pack->archs_.insert(place.arch);
    pack->places_.emplace(std::move(signature), std::move(place));
  }
  if (!fields.ok() || !fields.at_end()) bad_pack(path, "is damaged: its fields do not fill its index");
  if (index.size() + images_bytes != file_bytes)
    bad_pack(path, concat(file_bytes < index.size() + images_bytes ? "is truncated" : "is too long", ": it holds ",
                          file_bytes, " bytes, but its header says ", index.size() + images_bytes));
  return pack;
}

bool Pack::read(const std::string& signature, const std::string& arch, Image& image, std::string& why) const {
  const auto found = places_.find(signature);
  if (found == places_.end()) return false;
  std::string bytes;
  if (!read_exactly(file_, found->second.offset, found->second.bytes, bytes)) {
    why = "is truncated";
  } else {
    why = decode_image(bytes, {signature, arch, compiler_}, image);
  }
  if (!why.empty()) why = concat("pack '", path_, "': the entry ", signature, " ", why);
  return why.empty();
}

void write_pack(const std::string& path, const std::vector<Image>& images) {
  if (images.empty()) invalid("pack '", path, "': there are no images to write");
  std::map<std::string, std::string> encoded;  // key: signature; the images have the same order in the file
  std::map<std::string, Pack::Place> places;
  for (const Image& image : images) {
    if (image.compiler != images.front().compiler)
      invalid("pack '", path, "': one image is by NVRTC ", images.front().compiler, ", another by ", image.compiler,
              "; all images of a pack must be by the same compiler");
    const auto [at, is_new] = encoded.emplace(image.signature, encode_image(image));
    if (!is_new && at->second != encode_image(image))
      invalid("pack '", path, "': two images of signature ", image.signature, " differ");
    places[image.signature].arch = image.arch;
  }
  std::string content;
  for (const auto& [signature, bytes] : encoded) {
    places[signature].offset = content.size();
    places[signature].bytes = bytes.size();
    content += bytes;
  }
  const std::string file = encode_index(images.front().compiler, places, content.size()) + content;
  if (const std::string failure = replace_file(AT_FDCWD, path, file, 0644); !failure.empty())
    throw Error(ErrorCode::environment, concat("pack '", path, "': ", failure));
}

PackInfo read_pack_info(const std::string& path, bool trust_any) {
  const std::shared_ptr<const Pack> pack = Pack::open(path, trust_any);
  PackInfo info{pack->compiler(), {}};
  for (const auto& [signature, place] : pack->places()) {
    Image image;
    std::string why;
    if (!pack->read(signature, place.arch, image, why)) throw Error(ErrorCode::environment, why);
    info.entries.push_back({signature, place.arch, image.bytes.size()});
  }
  return info;
}

}  // namespace rapt::jit
