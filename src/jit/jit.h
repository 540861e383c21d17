// From source to machine code: opens NVRTC at run time, computes the signature of a compilation, and stores the
// results. Used by context.cpp, lab/ and tests. Independent of attention and of the driver.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace rapt::jit {

// The device sources embedded in the library: "sm80/attention_sm80.cuh", "shared/variant.h" -> source.
const std::map<std::string_view, std::string_view>& embedded_files();

// One translation unit. Its entry is `extern "C" __global__ ... rapt_kernel`.
struct Request {
  std::string unit;                          // the source; its #include lines name embedded files, or files in `files`
  std::string arch;                          // "sm_80", "sm_90a": a cubin; "compute_89": PTX, which the driver compiles
  std::string label;                         // for messages: the family and the problem line
  std::map<std::string, std::string> files;  // the caller's files; they replace embedded files of the same name
  bool line_info = false;  // adds the table of source lines; the machine code stays the same. Packs have no such tables
};

// SHA-256 (64 hex digits) over the unit, every file that it reaches, arch and options. The compiler's version is not
// part of it: the key of the cache also contains the NVRTC version, and a pack stores the NVRTC version in its index.
std::string signature(const Request& request);

// The report of ptxas about a kernel. It is in the compiler's log; for PTX there is no report, because the driver
// compiles it later.
struct Resources {
  int registers = 0, spill_store_bytes = 0, spill_load_bytes = 0, stack_bytes = 0, shared_bytes = 0, barriers = 0;
  bool known = false;
  std::vector<std::string> warnings;  // warnings of ptxas: C75xx and others
};
Resources parse_resources(std::string_view log);

struct Image {
  std::string signature, arch;
  std::string bytes;     // a cubin, or PTX with its final NUL
  std::string compiler;  // "13.0.88" if known, else "13.0"
  std::string log;
  enum class Source { compiled, memory, pack, cache } source = Source::compiled;
  double milliseconds = 0;  // the time to compile the image, or to read and check it
};

// NVRTC. It is searched at $RAPT_NVRTC (a file or a folder), in the loader's path, in the pip package's folder, and in
// toolkit folders. It is opened once in a process.
struct Compiler {
  std::string path, version;  // version: "13.0"; "13.0.88" if the library's build is known
  int major = 0, minor = 0;
  std::vector<int> architectures;  // 75, 80, 86, ...
};
// The first NVRTC of at most CUDA `newest_major` (0 = any). Null if there is none; then `why` lists the searched places
// and the result of each.
const Compiler* find_compiler(std::string* why = nullptr, int newest_major = 0);
// Compiles without a store. Throws Error{environment} if there is no NVRTC. If compiling fails, throws Error{internal}
// with the log, or Error{invalid_argument} if the unit includes files of the caller.
Image compile(const Request& request);

// Provides images. It searches memory, packs and the cache directory in this order, then compiles with NVRTC.
// Thread-safe. While one thread compiles a key, other threads of this Store wait for the result. Processes with the
// same cache directory wait for each other, too.
class Store {
 public:
  struct Options {
    std::string cache_directory;  // "": no cache directory
    std::vector<std::string> packs;
    bool use_compiler = true;
    std::string cache_note = {};  // why there is no cache directory, if the user did not turn it off
    int newest_major = 0;         // NVRTC of a later CUDA is not used: the driver could not load its code. 0 = any
    bool trust_any_pack = false;  // false: refuse a pack that another user made or can change
  };
  // Reads $RAPT_CACHE ("off" = none; default: $XDG_CACHE_HOME/rapt or ~/.cache/rapt), $RAPT_PACKS (paths separated by
  // ':'), $RAPT_PACKS_TRUST ("owner" or "any").
  static Options from_environment();
  explicit Store(Options options);
  ~Store();

  std::shared_ptr<const Image> get(const Request& request);
  void load_pack(const std::string& path);  // throws Error with the path and the fault

  struct Counters {
    int64_t compiled = 0, memory = 0, pack = 0, cache = 0, rejected = 0;  // rejected: damaged or foreign entries
  };
  Counters counters() const;
  const std::string& cache_directory() const;  // "": none. A missing directory is created with the first kernel
  std::string cache_note() const;              // why there is no cache directory, or ""

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Writes a pack: images in one file. Equal contents give equal bytes: images are sorted by signature, and times and
// paths are not stored.
void write_pack(const std::string& path, const std::vector<Image>& images);
struct PackInfo {
  std::string compiler;
  struct Entry {
    std::string signature, arch;
    size_t bytes = 0;
  };
  std::vector<Entry> entries;
};
// Returns the contents of a pack. The default of `trust_any` (see trust_any_pack) is true, because reading a pack
// executes nothing.
PackInfo read_pack_info(const std::string& path, bool trust_any = true);

// SHA-256 (FIPS 180-4) as 64 hex digits.
std::string sha256(std::string_view bytes);

}  // namespace rapt::jit
