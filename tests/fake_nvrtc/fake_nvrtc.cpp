// The stand-in for libnvrtc.so. It reads its version and its architectures ("12 8 80 90 100") from a file beside it.
// The name of this file is the stand-in's own name with ".facts". It "compiles" any source to a text that has the
// version and the architecture. tests/cpu/nvrtc_test.cpp copies the stand-in to the places where a process searches for
// NVRTC.
#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

namespace {

struct Facts {
  int major = 0, minor = 0;
  std::vector<int> architectures;
};

extern "C" int nvrtcVersion(int* major, int* minor);

const Facts& facts() {
  static const Facts& known = *[] {
    auto* read = new Facts;
    Dl_info self{};
    dladdr(reinterpret_cast<const void*>(&nvrtcVersion), &self);
    std::ifstream file(std::string(self.dli_fname) + ".facts");
    file >> read->major >> read->minor;
    for (int arch = 0; file >> arch;) read->architectures.push_back(arch);
    return read;
  }();
  return known;
}

struct Program {
  std::string image;
};

void give(const std::string& text, char* to) { std::memcpy(to, text.c_str(), text.size() + 1); }

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

int nvrtcVersion(int* major, int* minor) {
  *major = facts().major;
  *minor = facts().minor;
  return 0;
}
const char* nvrtcGetErrorString(int) { return "an error of the stand-in"; }
int nvrtcGetNumSupportedArchs(int* count) {
  *count = static_cast<int>(facts().architectures.size());
  return 0;
}
int nvrtcGetSupportedArchs(int* architectures) {
  for (const int each : facts().architectures) *architectures++ = each;
  return 0;
}
int nvrtcCreateProgram(Program** program, const char*, const char*, int, const char* const*, const char* const*) {
  *program = new Program;
  return 0;
}
int nvrtcDestroyProgram(Program** program) {
  delete *program;
  *program = nullptr;
  return 0;
}
int nvrtcCompileProgram(Program* program, int count, const char* const* options) {
  const std::string version = std::to_string(facts().major) + "." + std::to_string(facts().minor);
  program->image = "Cuda compilation tools, release " + version + ", V" + version + ".7\n";
  for (int i = 0; i < count; ++i) program->image += std::string(options[i]) + "\n";
  return 0;
}
int nvrtcGetProgramLogSize(Program*, size_t* bytes) {
  *bytes = 1;
  return 0;
}
int nvrtcGetProgramLog(Program*, char* log) {
  *log = '\0';
  return 0;
}
int nvrtcGetCUBINSize(Program* program, size_t* bytes) {
  *bytes = program->image.size() + 1;
  return 0;
}
int nvrtcGetCUBIN(Program* program, char* image) {
  give(program->image, image);
  return 0;
}
int nvrtcGetPTXSize(Program* program, size_t* bytes) { return nvrtcGetCUBINSize(program, bytes); }
int nvrtcGetPTX(Program* program, char* image) { return nvrtcGetCUBIN(program, image); }
}
#pragma GCC visibility pop
