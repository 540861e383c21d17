// Finds and opens NVRTC: $RAPT_NVRTC, else the loader's path, pip's package, toolkit folders. Each library is opened
// once in a process. The result of each place is kept for the error message.
#include <dlfcn.h>
#include <fcntl.h>
#include <glob.h>
#include <link.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "jit/nvrtc.h"
#include "jit/sources.h"

namespace rapt::jit {
namespace {

constexpr std::array<const char*, 3> library_names = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"};
constexpr int oldest_major = 12;  // the first version with C++20

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash);
}

bool is_folder(const std::string& path) {
  struct stat status {};
  return stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

// Folders that match the pattern, in reverse order: cuda-13.1 before cuda-13.0.
std::vector<std::string> folders_like(const std::string& pattern) {
  glob_t found{};
  std::vector<std::string> folders;
  if (glob(pattern.c_str(), 0, nullptr, &found) == 0) folders.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  globfree(&found);
  std::reverse(folders.begin(), folders.end());
  return folders;
}

// Opens the candidates one after another until one fits, and keeps the result of each place.
class Search {
 public:
  // Returns the first NVRTC that fits. If none fits, returns null, and `why` describes each one.
  const Nvrtc* find(const CompilerNeeds& needs, std::string* why) {
    const std::lock_guard lock(mutex_);
    std::string misfits;
    for (size_t at = 0; at < opened_.size() || open_next();) {
      if (at == opened_.size()) continue;  // there was no library in that place
      const Nvrtc& nvrtc = *opened_[at++];
      const std::string wrong = why_unfit(nvrtc.about, needs);
      if (wrong.empty()) return &nvrtc;
      misfits +=
          concat(misfits.empty() ? "" : "; ", "NVRTC ", nvrtc.about.version, " (", nvrtc.about.path, ") ", wrong);
    }
    if (why) *why = opened_.empty() ? nothing_found() : nothing_fits(needs, misfits);
    return nullptr;
  }

 private:
  struct Opened : Nvrtc {
    void* library = nullptr;
  };
  std::mutex mutex_;
  const std::string given_ = environment("RAPT_NVRTC");  // if it is set, no other place is searched
  bool listed_ = false, listed_all_ = false;
  std::deque<std::string> places_;  // files, and names for the loader, that were not tried yet
  std::vector<std::unique_ptr<Opened>> opened_;
  std::string answers_;              // faults of libraries that exist but cannot be used
  std::vector<std::string> absent_;  // places without a library

  // Tries one more place. Returns false if none is left.
  bool open_next() {
    if (places_.empty() && !list_places()) return false;
    if (places_.empty()) return true;
    const std::string place = places_.front();
    places_.pop_front();
    open(place);
    return true;
  }

  // The loader's names come first. Folders are searched only if no library with these names fits.
  bool list_places() {
    if (listed_all_) return false;
    listed_all_ = listed_ || !given_.empty();
    if (!given_.empty()) {
      is_folder(given_) ? add_folder(given_) : places_.push_back(given_);
    } else if (!listed_) {
      places_.assign(library_names.begin(), library_names.end());
    } else {
      for (const std::string& packages : python_packages())
        for (const char* folder : {"/nvidia/cu13/lib", "/nvidia/cuda_nvrtc/lib"}) add_pattern(packages + folder);
      for (const std::string& pattern : toolkit_patterns()) add_pattern(pattern);
    }
    listed_ = true;
    return true;
  }

  void add_folder(const std::string& folder) {
    const size_t before = places_.size();
    for (const char* name : library_names)
      if (const std::string path = folder + "/" + name; access(path.c_str(), F_OK) == 0) places_.push_back(path);
    if (places_.size() == before) absent_.push_back(folder);
  }

  void add_pattern(const std::string& pattern) {
    const std::vector<std::string> folders = folders_like(pattern);
    if (folders.empty()) absent_.push_back(pattern);
    for (const std::string& folder : folders) add_folder(folder);
  }

  // Opens a file, or a name for the loader. A file is examined first: opening a FIFO would wait for its writer.
  void open(const std::string& place) {
    FileHandle file;
    size_t bytes = 0;
    if (place.find('/') != std::string::npos) {
      if (access(place.c_str(), F_OK) != 0) return absent_.push_back(place);
      if (const std::string wrong = open_regular(AT_FDCWD, place, file, bytes); !wrong.empty())
        return note(place, wrong);
    }
    void* library = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) return note(place, dlerror());
    const auto is_same = [&](const auto& other) { return other->library == library; };
    auto made = std::make_unique<Opened>();
    std::string why;
    const bool again = std::any_of(opened_.begin(), opened_.end(), is_same);  // another name for the same file
    if (!again && fill_nvrtc(library, *made, why)) {
      made->library = library;
      opened_.push_back(std::move(made));
      return;
    }
    if (!again) note(place, why);
    dlclose(library);
  }

  static std::string why_unfit(const Compiler& compiler, const CompilerNeeds& needs) {
    if (needs.newest_major > 0 && compiler.major > needs.newest_major)
      return concat("is newer than the driver, which supports CUDA ", needs.newest_major, ".x");
    if (!needs.arch.empty() && known_architecture(compiler, needs.arch).empty())
      return concat("compiles for ", list_of(compiler.architectures), " only, not for ", needs.arch);
    return "";
  }

  std::string nothing_fits(const CompilerNeeds& needs, const std::string& misfits) const {
    const std::string rule = concat(
        needs.arch.empty() ? "" : concat(" that compiles for ", needs.arch),
        needs.newest_major > 0 ? concat(", of CUDA ", needs.newest_major, " or older (or update the driver)") : "");
    return concat(given_.empty() ? "" : concat("RAPT_NVRTC = '", given_, "': "), misfits, "; install an NVRTC", rule,
                  ", or set RAPT_NVRTC to its file or folder",
                  answers_.empty() ? "" : concat("; not usable: ", answers_));
  }

  std::string nothing_found() const {
    std::string places;
    for (const std::string& place : absent_) places += (places.empty() ? "there is nothing at " : ", ") + place;
    return concat("NVRTC was not found (run pip install nvidia-cuda-nvrtc, or set RAPT_NVRTC to its file or folder): ",
                  answers_, !answers_.empty() && !places.empty() ? "; " : "", places);
  }

  // Patterns of pip's folders, found without running Python: beside this library (a wheel), in the active environment,
  // in the running program's prefix, in the user's and the system's folders.
  static std::vector<std::string> python_packages() {
    std::vector<std::string> patterns;
    Dl_info self{};
    if (dladdr(reinterpret_cast<const void*>(&find_nvrtc), &self) != 0 && self.dli_fname)
      if (const std::string package = folder_of(self.dli_fname); !package.empty())
        patterns.push_back(folder_of(package));
    std::vector<std::string> prefixes = {environment("VIRTUAL_ENV"), environment("CONDA_PREFIX"), program_prefix()};
    if (const std::string home = environment("HOME"); !home.empty()) prefixes.push_back(home + "/.local");
    prefixes.insert(prefixes.end(), {"/usr/local", "/usr"});
    for (const std::string& prefix : prefixes) {
      const std::string pattern = prefix + "/lib/python3*/*-packages";
      if (!prefix.empty() && std::find(patterns.begin(), patterns.end(), pattern) == patterns.end())
        patterns.push_back(pattern);
    }
    return patterns;
  }

  static std::string program_prefix() {
    std::array<char, PATH_MAX> path{};
    const ssize_t length = readlink("/proc/self/exe", path.data(), path.size());
    return length > 0 ? folder_of(folder_of(std::string(path.data(), static_cast<size_t>(length)))) : "";
  }

  static std::vector<std::string> toolkit_patterns() {
    std::vector<std::string> patterns;
    if (const std::string conda = environment("CONDA_PREFIX"); !conda.empty()) patterns.push_back(conda + "/lib");
    for (const char* root : {"/usr/local/cuda", "/usr/local/cuda-*", "/opt/cuda"})
      for (const char* folder : {"/lib64", "/targets/*/lib"}) patterns.push_back(concat(root, folder));
    return patterns;
  }

  void note(const std::string& place, const std::string& answer) {
    if (answer.ends_with("cannot open shared object file: No such file or directory")) {
      absent_.push_back(place);
    } else {
      if (!answers_.empty()) answers_ += "; ";
      answers_ += answer.starts_with(place) ? answer : concat(place, ": ", answer);
    }
  }
};

// Returns "13.0.88" from the banner that NVRTC writes into PTX, "Cuda compilation tools, release 13.0, V13.0.88".
// Returns "" if the text does not contain the banner.
std::string version_in(std::string_view text, const std::string& short_version) {
  const std::string mark = "release " + short_version + ", V";
  const size_t at = text.find(mark);
  if (at == std::string_view::npos) return "";
  const std::string_view rest = text.substr(at + mark.size(), 32);
  return std::string(rest.substr(0, rest.find_first_not_of("0123456789.")));
}

// The argument of dl_iterate_phdr(): searches the banner among the constants of the library at `base`.
struct BannerSearch {
  const char* base = nullptr;
  std::string short_version, found;
};

int look_for_banner(dl_phdr_info* object, size_t, void* data) {
  BannerSearch& search = *static_cast<BannerSearch*>(data);
  if (object->dlpi_addr != reinterpret_cast<ElfW(Addr)>(search.base)) return 0;
  constexpr std::string_view banner = "Cuda compilation tools, ";
  for (int i = 0; i < object->dlpi_phnum && search.found.empty(); ++i) {
    const ElfW(Phdr)& segment = object->dlpi_phdr[i];
    if (segment.p_type != PT_LOAD || segment.p_flags != PF_R) continue;
    const char* begin = search.base + segment.p_vaddr;
    const auto* hit = static_cast<const char*>(memmem(begin, segment.p_filesz, banner.data(), banner.size()));
    if (!hit) continue;
    const size_t bytes = std::min<size_t>(128, static_cast<size_t>(begin + segment.p_filesz - hit));
    search.found = version_in({hit, bytes}, search.short_version);
  }
  return 1;
}

// Reads the full version from the banner in the library. If the library does not contain the banner, compiles an empty
// kernel to PTX and reads the banner from the PTX (40 ms).
std::string full_version(const Nvrtc& nvrtc) {
  BannerSearch search{nullptr, nvrtc.about.version, {}};
  Dl_info place{};
  if (dladdr(reinterpret_cast<const void*>(nvrtc.version), &place) != 0) {
    search.base = static_cast<const char*>(place.dli_fbase);
    dl_iterate_phdr(look_for_banner, &search);
  }
  if (!search.found.empty()) return search.found;
  const Sources empty_kernel{"extern \"C\" __global__ void rapt_kernel() {}", {}};
  try {
    const Compiled ptx = run_nvrtc(nvrtc, empty_kernel, concat("compute_", nvrtc.about.architectures.back()));
    return version_in(ptx.image, nvrtc.about.version);
  } catch (const Error&) {
    return "";  // then only "13.0" is known
  }
}

template <class Function>
bool load(void* library, const char* name, Function& function, std::string& why) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (!function) why = concat("has no function ", name);
  return function != nullptr;
}

}  // namespace

bool fill_nvrtc(void* library, Nvrtc& nvrtc, std::string& why) {
  const auto get = [&](const char* name, auto& function) { return load(library, name, function, why); };
  if (!get("nvrtcVersion", nvrtc.version) || !get("nvrtcGetErrorString", nvrtc.error_string)) return false;
  Compiler& about = nvrtc.about;
  if (nvrtc.version(&about.major, &about.minor) != 0) {
    why = "nvrtcVersion fails";
    return false;
  }
  about.version = concat(about.major, '.', about.minor);
  if (about.major < oldest_major) {
    why = concat("is version ", about.version, ", rapt needs ", oldest_major, ".0 or newer (C++20)");
    return false;
  }
  if (!get("nvrtcGetNumSupportedArchs", nvrtc.supported_count) || !get("nvrtcGetSupportedArchs", nvrtc.supported) ||
      !get("nvrtcCreateProgram", nvrtc.create) || !get("nvrtcDestroyProgram", nvrtc.destroy) ||
      !get("nvrtcCompileProgram", nvrtc.compile) || !get("nvrtcGetProgramLogSize", nvrtc.log_size) ||
      !get("nvrtcGetProgramLog", nvrtc.log) || !get("nvrtcGetCUBINSize", nvrtc.cubin_size) ||
      !get("nvrtcGetCUBIN", nvrtc.cubin) || !get("nvrtcGetPTXSize", nvrtc.ptx_size) || !get("nvrtcGetPTX", nvrtc.ptx))
    return false;
  int count = 0;
  if (nvrtc.supported_count(&count) != 0 || count <= 0) {
    why = "nvrtcGetNumSupportedArchs names none";
    return false;
  }
  about.architectures.resize(static_cast<size_t>(count));
  if (nvrtc.supported(about.architectures.data()) != 0) {
    why = "nvrtcGetSupportedArchs fails";
    return false;
  }
  link_map* map = nullptr;
  if (dlinfo(library, RTLD_DI_LINKMAP, &map) == 0) about.path = map->l_name;
  if (const std::string version = full_version(nvrtc); !version.empty()) about.version = version;
  return true;
}

const Nvrtc* find_nvrtc(const CompilerNeeds& needs, std::string* why) {
  static Search& search = *new Search;  // never destroyed: threads may still compile while the process ends
  return search.find(needs, why);
}

}  // namespace rapt::jit
