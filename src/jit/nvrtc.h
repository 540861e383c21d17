// NVRTC's functions as rapt declares them (no toolkit header), and the one instance that this process has opened.
// Used inside src/jit only.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "jit/jit.h"

namespace rapt::jit {

// What every kernel is compiled with, beside --gpu-architecture. They are part of the signature. No -use_fast_math:
// what is approximate is written out in the kernels. -default-device: files shared with the host need no attributes.
inline constexpr std::array<const char*, 3> fixed_options = {"--std=c++20", "-default-device", "--ptxas-options=-v"};

struct Nvrtc {
  using Program = struct OpaqueProgram*;
  using Result = int;  // 0 = success

  const char* (*error_string)(Result);
  Result (*version)(int* major, int* minor);
  Result (*supported_count)(int* count);
  Result (*supported)(int* architectures);
  Result (*create)(Program*, const char* text, const char* name, int count, const char* const* headers,
                   const char* const* names);
  Result (*destroy)(Program*);
  Result (*compile)(Program, int count, const char* const* options);
  Result (*log_size)(Program, size_t*);
  Result (*log)(Program, char*);
  Result (*cubin_size)(Program, size_t*);
  Result (*cubin)(Program, char*);
  Result (*ptx_size)(Program, size_t*);
  Result (*ptx)(Program, char*);

  Compiler about;
};

// What a kernel needs of NVRTC.
struct CompilerNeeds {
  int newest_major = 0;   // the driver's CUDA: code of a later one would not load; 0 = any
  std::string arch = {};  // must be known, itself or an older one that runs as well (known_architecture()); "" = any
};
// The first one that fits. Candidates are opened one after another and stay open. Null where none fits; `why` then
// names every one with its version and what is wrong with it.
const Nvrtc* find_nvrtc(const CompilerNeeds& needs, std::string* why);

// What to compile for a card of architecture `arch`: that itself if this NVRTC knows it; else the newest of the same
// major version below it, whose code runs there too; "" if there is none. Throws where `arch` is no architecture.
std::string known_architecture(const Compiler& compiler, const std::string& arch);
// `arch` and the older ones whose code runs on its cards, newest first; PTX is compiled for what it says alone.
std::vector<std::string> architectures_that_run_on(const std::string& arch);

// "80, 90"
std::string list_of(const std::vector<int>& numbers);

// Compiles with this one for exactly the request's architecture.
Image compile_with(const Nvrtc& nvrtc, const Request& request);

// Fills the table from a library opened by dlopen. False with the reason in `why` where it cannot be used.
bool fill_nvrtc(void* library, Nvrtc& nvrtc, std::string& why);

// One program compiled: the log, and the image (empty when it failed).
struct Compiled {
  bool ok = false;
  std::string log, image;
};
struct Sources;
Compiled run_nvrtc(const Nvrtc& nvrtc, const Sources& sources, const std::string& arch);

}  // namespace rapt::jit
