// Finds NVRTC and opens it, once a process: $RAPT_NVRTC, else the loader's path, pip's package, toolkit folders.
// Keeps what every place answered, for the error of those who have none.
#include <dlfcn.h>
#include <glob.h>
#include <link.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "error.h"
#include "jit/nvrtc.h"
#include "jit/sources.h"

namespace rapt::jit {
namespace {

constexpr std::array<const char*, 3> library_names = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"};
constexpr int oldest_major = 12;  // the first with C++20

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

// Folders that match the pattern, the last name first: cuda-13.1 before cuda-13.0.
std::vector<std::string> folders_like(const std::string& pattern) {
  glob_t found{};
  std::vector<std::string> folders;
  if (glob(pattern.c_str(), 0, nullptr, &found) == 0) folders.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  globfree(&found);
  std::reverse(folders.begin(), folders.end());
  return folders;
}

class Search {
 public:
  // Tries one file, or a name for the loader.
  bool try_file(const std::string& path) {
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) {
      note(path, dlerror());
      return false;
    }
    Nvrtc nvrtc{};
    std::string why;
    if (!fill_nvrtc(library, nvrtc, why)) {
      note(path, why);
      dlclose(library);
      return false;
    }
    found_ = std::move(nvrtc);
    return true;
  }

  bool try_folder(const std::string& folder) {
    bool any = false;
    for (const char* name : library_names) {
      const std::string path = folder + "/" + name;
      if (access(path.c_str(), F_OK) != 0) continue;
      any = true;
      if (try_file(path)) return true;
    }
    if (!any) absent_.push_back(folder);
    return false;
  }

  bool try_pattern(const std::string& pattern) {
    const std::vector<std::string> folders = folders_like(pattern);
    if (folders.empty()) absent_.push_back(pattern);
    return std::any_of(folders.begin(), folders.end(), [&](const std::string& folder) { return try_folder(folder); });
  }

  bool run() {
    if (const std::string given = environment("RAPT_NVRTC"); !given.empty())  // then nothing else will do
      return is_folder(given) ? try_folder(given) : try_file(given);
    const auto on_loader_path = [&](const char* name) { return try_file(name); };
    if (std::any_of(library_names.begin(), library_names.end(), on_loader_path)) return true;
    std::vector<std::string> patterns;
    for (const std::string& packages : python_packages())
      for (const char* folder : {"/nvidia/cu13/lib", "/nvidia/cuda_nvrtc/lib"}) patterns.push_back(packages + folder);
    for (const std::string& pattern : toolkit_patterns()) patterns.push_back(pattern);
    return std::any_of(patterns.begin(), patterns.end(), [&](const std::string& each) { return try_pattern(each); });
  }

  const Nvrtc* found() const { return found_ ? &*found_ : nullptr; }

  std::string failure() const {
    std::string places;
    for (const std::string& place : absent_) places += (places.empty() ? "there is nothing at " : ", ") + place;
    return concat("NVRTC was not found (pip install nvidia-cuda-nvrtc, or name its file or folder in RAPT_NVRTC): ",
                  answers_, !answers_.empty() && !places.empty() ? "; " : "", places);
  }

 private:
  std::optional<Nvrtc> found_;

  // Patterns of the folders that pip installs to, without asking a Python: this library's neighbours (a wheel), the
  // environment that is active, the running program's prefix, the user's and the system's.
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

  std::string answers_;              // of libraries that are there and cannot be used
  std::vector<std::string> absent_;  // where there is none
};

// "13.0.88" from the banner that NVRTC writes into PTX, "Cuda compilation tools, release 13.0, V13.0.88"; "" without.
std::string version_in(std::string_view text, const std::string& short_version) {
  const std::string mark = "release " + short_version + ", V";
  const size_t at = text.find(mark);
  if (at == std::string_view::npos) return "";
  const std::string_view rest = text.substr(at + mark.size(), 32);
  return std::string(rest.substr(0, rest.find_first_not_of("0123456789.")));
}

// What dl_iterate_phdr() is asked for: the banner among the constants of the library that lies at `base`.
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

// Where the banner is not found in the library, PTX is made to read it there (40 ms).
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
    return "";  // "13.0" alone is known then
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

const Nvrtc* find_nvrtc(std::string* why) {
  // Never destroyed: threads may still compile while the process ends.
  static const Search& search = *[] {
    auto* made = new Search;
    made->run();
    return made;
  }();
  if (search.found()) return search.found();
  if (why) *why = search.failure();
  return nullptr;
}

}  // namespace rapt::jit
