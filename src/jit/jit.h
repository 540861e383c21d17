// Text in, machine code out: NVRTC opened at run time, the signature of what is compiled, and the store that keeps it.
// Used by context.cpp, lab/ and tests; knows nothing of attention and nothing of the driver.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace rapt::jit {

// Device files carried in the library: "sm80/attention_sm80.cuh", "device/tile.cuh", "shared/config.h" -> text.
const std::map<std::string_view, std::string_view>& embedded_files();

// One translation unit. Its entry is `extern "C" __global__ ... rapt_kernel`.
struct Request {
  std::string unit;                          // text; its #include lines name embedded files or `files`
  std::string arch;                          // "sm_80", "sm_90a": a cubin; "compute_89": PTX that the driver compiles
  std::string label;                         // for messages: the family and the problem line that need it
  std::map<std::string, std::string> files;  // files of the caller's: they come before embedded ones of the same name
};

// SHA-256 (64 hex digits) over the unit, every file reachable from it, arch and the options. Not the compiler: the
// cache's key adds the NVRTC version, and a pack carries it in its manifest.
std::string signature(const Request& request);

// What ptxas said about the kernel (from the log; a PTX image has none until a driver compiles it).
struct Resources {
  int registers = 0, spill_store_bytes = 0, spill_load_bytes = 0, stack_bytes = 0, shared_bytes = 0, barriers = 0;
  bool known = false;
  std::vector<std::string> warnings;  // ptxas C75xx and other warnings
};
Resources parse_resources(std::string_view log);

struct Image {
  std::string signature, arch;
  std::string bytes;     // cubin, or PTX text with its final NUL
  std::string compiler;  // "13.0.88" where known, else "13.0"
  std::string log;
  enum class Source { compiled, memory, pack, cache } source = Source::compiled;
  double milliseconds = 0;  // to get it: compile, or read and check
};

// NVRTC. Looked for at $RAPT_NVRTC (a file or a folder), on the loader's path, in the pip package's folder, in toolkit
// folders; opened once a process.
struct Compiler {
  std::string path, version;  // version as "13.0"; "13.0.88" where the library's build says so
  int major = 0, minor = 0;
  std::vector<int> architectures;  // 75, 80, 86, ...
};
// The first one of at most CUDA `newest_major` (0 = any). Null where there is none; `why` then lists where it looked
// and what each place answered.
const Compiler* find_compiler(std::string* why = nullptr, int newest_major = 0);
// Compiles without any store. Throws Error{environment} without NVRTC, Error{internal} with the log when it fails
// (Error{invalid_argument} when the unit includes files of the caller's).
Image compile(const Request& request);

// Where images come from, in this order: memory, packs, the cache directory, NVRTC. Thread-safe; each key is compiled
// once at a time, in this process and across processes.
class Store {
 public:
  struct Options {
    std::string cache_directory;  // "" = no cache directory
    std::vector<std::string> packs;
    bool use_compiler = true;
    std::string cache_note = {};  // why there is no cache directory, where that is nobody's wish
    int newest_major = 0;         // an NVRTC of a later CUDA is not used: the driver could not load its code; 0 = any
    bool trust_any_pack = false;  // else a pack is refused that another user made or may change
  };
  // $RAPT_CACHE ("off" = none; default $XDG_CACHE_HOME/rapt or ~/.cache/rapt), $RAPT_PACKS (paths with ':' between),
  // $RAPT_PACKS_TRUST ("owner" or "any").
  static Options from_environment();
  explicit Store(Options options);
  ~Store();

  std::shared_ptr<const Image> get(const Request& request);
  void load_pack(const std::string& path);  // throws Error naming the path and what is wrong

  struct Counters {
    int64_t compiled = 0, memory = 0, pack = 0, cache = 0, rejected = 0;  // rejected: corrupt or foreign entries
  };
  Counters counters() const;
  const std::string& cache_directory() const;  // "" = none; one that is not there yet is made by the first kernel
  std::string cache_note() const;              // why there is none, or ""

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// A pack: images in one file, byte-identical for equal contents (sorted by signature, no times, no paths).
void write_pack(const std::string& path, const std::vector<Image>& images);
struct PackInfo {
  std::string compiler;
  struct Entry {
    std::string signature, arch;
    size_t bytes = 0;
  };
  std::vector<Entry> entries;
};
// What is in it; `trust_any` as in Store::Options (reading alone runs nothing).
PackInfo read_pack_info(const std::string& path, bool trust_any = true);

// SHA-256 (FIPS 180-4) as 64 hex digits.
std::string sha256(std::string_view bytes);

}  // namespace rapt::jit
