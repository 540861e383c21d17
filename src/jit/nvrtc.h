// NVRTC's functions as rapt declares them (no toolkit header), and the one instance that this process has opened.
// Used inside src/jit only.
#pragma once

#include <array>
#include <cstddef>
#include <string>

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

// Null where there is none; `why` as in find_compiler().
const Nvrtc* find_nvrtc(std::string* why);

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
