// Declarations of NVRTC's functions (without a toolkit header), and the opened NVRTC of this process. Used only inside
// src/jit.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "jit/jit.h"

namespace rapt::jit {

// The compiler options of every kernel, besides --gpu-architecture. They are part of the signature. No -use_fast_math:
// the kernels contain their approximations explicitly. -default-device: shared files need no __device__ attributes.
inline constexpr std::array<const char*, 3> fixed_options = {"--std=c++20", "-default-device", "--ptxas-options=-v"};
// Used if Request::line_info is set.
inline constexpr const char* line_info_option = "-lineinfo";

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

// What a kernel requires from NVRTC.
struct CompilerNeeds {
  int newest_major = 0;   // the CUDA version of the driver, which cannot load code of a later one. 0 = any
  std::string arch = {};  // NVRTC must support it, or an older one that also runs (known_architecture()). "" = any
};
// The first NVRTC that fits. Candidates are opened one after another and stay open. Null if none fits; then `why` lists
// each candidate with its version and fault.
const Nvrtc* find_nvrtc(const CompilerNeeds& needs, std::string* why);

// Returns the architecture to compile for on a GPU of architecture `arch`. This is `arch` itself if this NVRTC supports
// it, else the newest older one of the same major version, whose code also runs on this GPU. Returns "" if there is
// none. Throws if `arch` is invalid.
std::string known_architecture(const Compiler& compiler, const std::string& arch);
// Returns `arch` and the older architectures whose code runs on GPUs of `arch`, newest first. For PTX it returns only
// `arch`.
std::vector<std::string> architectures_that_run_on(const std::string& arch);

// "80, 90"
std::string list_of(const std::vector<int>& numbers);

// Compiles with this NVRTC for exactly the request's architecture.
Image compile_with(const Nvrtc& nvrtc, const Request& request);

// Fills the table from a library opened by dlopen. Returns false and sets `why` if it cannot be used.
bool fill_nvrtc(void* library, Nvrtc& nvrtc, std::string& why);

// The result of compiling one program: the log, and the image (empty on failure).
struct Compiled {
  bool ok = false;
  std::string log, image;
};
struct Sources;
Compiled run_nvrtc(const Nvrtc& nvrtc, const Sources& sources, const std::string& arch, bool line_info = false);

}  // namespace rapt::jit
