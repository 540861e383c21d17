// Compiles a unit with NVRTC: the NVRTC program, options, error sentences. Thread-safe, because NVRTC is thread-safe
// for different programs. Called by the store, by packs and by the lab.
#include "jit/nvrtc.h"

#include <algorithm>
#include <cctype>
#include <chrono>
#include <vector>

#include "base/error.h"
#include "base/signals.h"
#include "jit/sources.h"

namespace rapt::jit {
namespace {

// Destroys the NVRTC program at the end of the scope, also after an exception.
class ProgramScope {
 public:
  ProgramScope(const Nvrtc& nvrtc, const Sources& sources) : nvrtc_(nvrtc) {
    std::vector<const char*> names, texts;
    for (const auto& [name, text] : sources.headers) {
      names.push_back(name.c_str());
      texts.push_back(text.c_str());
    }
    check(nvrtc.create(&program_, sources.unit.c_str(), "unit.cu", static_cast<int>(names.size()), texts.data(),
                       names.data()),
          "nvrtcCreateProgram");
  }
  ~ProgramScope() { nvrtc_.destroy(&program_); }
  ProgramScope(const ProgramScope&) = delete;
  ProgramScope& operator=(const ProgramScope&) = delete;

  Nvrtc::Program get() const { return program_; }

  void check(Nvrtc::Result result, const char* function) const {
    if (result != 0)
      throw Error(ErrorCode::internal, concat(function, ": ", nvrtc_.error_string(result), " (NVRTC ",
                                              nvrtc_.about.version, ", ", nvrtc_.about.path, ")"));
  }

  std::string text(Nvrtc::Result (*size_of)(Nvrtc::Program, size_t*), Nvrtc::Result (*read)(Nvrtc::Program, char*),
                   const char* function) const {
    size_t bytes = 0;
    check(size_of(program_, &bytes), function);
    std::string out(bytes, '\0');
    if (bytes > 0) check(read(program_, out.data()), function);
    return out;
  }

 private:
  const Nvrtc& nvrtc_;
  Nvrtc::Program program_ = nullptr;
};

bool is_ptx_arch(std::string_view arch) { return arch.starts_with("compute_"); }

// Returns the log without the parts that differ between runs, so that equal code gives equal images.
std::string without_times(std::string_view log) {
  std::string kept;
  log = log.substr(0, log.find('\0'));
  while (!log.empty()) {
    const std::string_view line = log.substr(0, std::min(log.find('\n'), log.size() - 1) + 1);
    log.remove_prefix(line.size());
    if (line.find("Compile time = ") == std::string_view::npos) kept += line;
  }
  return kept;
}

// The parts of "sm_90a".
struct Architecture {
  std::string_view prefix, suffix;
  int number = 0;
};

Architecture parts_of(const std::string& arch) {
  Architecture parts;
  const std::string_view text = arch;
  parts.prefix = text.substr(0, text.starts_with("sm_") ? 3 : is_ptx_arch(text) ? 8 : text.size());
  const std::string_view digits = text.substr(parts.prefix.size());
  size_t count = 0;
  while (count < digits.size() && count < 4 && std::isdigit(static_cast<unsigned char>(digits[count])))
    parts.number = 10 * parts.number + (digits[count++] - '0');
  parts.suffix = digits.substr(count);
  if (count == 0 || !(parts.suffix.empty() || parts.suffix == "a" || parts.suffix == "f"))
    invalid("architecture '", arch, "': must be sm_NN or compute_NN, optionally with the suffix a or f");
  return parts;
}

// Jetson, Drive and other systems on a chip: NVIDIA does not promise that their code runs on other chips.
bool is_embedded(int number) { return number == 87 || number == 88 || number == 101; }

void require_architecture(const Compiler& compiler, const std::string& arch) {
  const std::string best = known_architecture(compiler, arch);
  if (best == arch) return;
  throw Error(ErrorCode::environment,
              concat("architecture '", arch, "': NVRTC ", compiler.version, " (", compiler.path, ") compiles for ",
                     list_of(compiler.architectures), " only",
                     best.empty() ? "" : concat("; its code for ", best, " runs on that GPU, too")));
}

// Returns the lines of the log from the first error on, at most `most` lines.
std::string first_errors(const std::string& log, size_t most) {
  size_t at = log.find("error");
  at = at == std::string::npos ? 0 : log.rfind('\n', at) + 1;  // npos + 1 = 0
  std::string lines;
  for (size_t line = 0; line < most && at < log.size(); ++line) {
    const size_t end = std::min(log.find('\n', at), log.size());
    if (end > at) lines += "\n  " + log.substr(at, end - at);
    at = end + 1;
  }
  return lines;
}

}  // namespace

Compiled run_nvrtc(const Nvrtc& nvrtc, const Sources& sources, const std::string& arch, bool line_info) {
  const std::string arch_option = "--gpu-architecture=" + arch;
  std::vector<const char*> options = {arch_option.c_str()};
  options.insert(options.end(), fixed_options.begin(), fixed_options.end());
  if (line_info) options.push_back(line_info_option);
  const ProgramScope program(nvrtc, sources);
  Compiled compiled;
  const Nvrtc::Result result = [&] {
    // While NVRTC compiles, it replaces the handlers of SIGINT and SIGTERM for the whole process. Its handler would end
    // the process with exit code 4. So these signals wait until NVRTC has put the program's own handlers back.
    const SignalBlock until_the_end(end_signals());
    return nvrtc.compile(program.get(), static_cast<int>(options.size()), options.data());
  }();
  compiled.log = without_times(program.text(nvrtc.log_size, nvrtc.log, "nvrtcGetProgramLog"));
  constexpr Nvrtc::Result compilation_failed = 6;
  if (result == compilation_failed) return compiled;
  program.check(result, "nvrtcCompileProgram");
  compiled.image = is_ptx_arch(arch) ? program.text(nvrtc.ptx_size, nvrtc.ptx, "nvrtcGetPTX")
                                     : program.text(nvrtc.cubin_size, nvrtc.cubin, "nvrtcGetCUBIN");
  compiled.ok = !compiled.image.empty();
  return compiled;
}

std::string list_of(const std::vector<int>& numbers) {
  std::string list;
  for (const int each : numbers) list += concat(list.empty() ? "" : ", ", each);
  return list;
}

std::vector<std::string> architectures_that_run_on(const std::string& arch) {
  const Architecture own = parts_of(arch);
  std::vector<std::string> all = {arch};
  if (!own.suffix.empty()) all.push_back(concat(own.prefix, own.number));
  for (int number = own.number - 1; number >= own.number / 10 * 10 && !is_ptx_arch(arch); --number)
    if (!is_embedded(number)) all.push_back(concat(own.prefix, number));
  return all;
}

std::string known_architecture(const Compiler& compiler, const std::string& arch) {
  const auto knows = [&](int number) {
    return std::find(compiler.architectures.begin(), compiler.architectures.end(), number) !=
           compiler.architectures.end();
  };
  const Architecture own = parts_of(arch);
  if (knows(own.number)) return arch;
  for (int number = own.number - 1; number >= own.number / 10 * 10; --number)
    if (knows(number) && !is_embedded(number)) return concat(own.prefix, number);
  return "";
}

const Compiler* find_compiler(std::string* why, int newest_major) {
  const Nvrtc* nvrtc = find_nvrtc({.newest_major = newest_major}, why);
  return nvrtc ? &nvrtc->about : nullptr;
}

Image compile(const Request& request) {
  std::string why;
  const Nvrtc* nvrtc = find_nvrtc({}, &why);
  if (!nvrtc)
    throw Error(ErrorCode::environment, concat("cannot compile ", request.label, " for ", request.arch, ": ", why));
  return compile_with(*nvrtc, request);
}

Image compile_with(const Nvrtc& nvrtc, const Request& request) {
  const auto begin = std::chrono::steady_clock::now();
  require_architecture(nvrtc.about, request.arch);
  Compiled compiled = run_nvrtc(nvrtc, collect_sources(request), request.arch, request.line_info);
  if (!compiled.ok)
    throw Error(request.files.empty() ? ErrorCode::internal : ErrorCode::invalid_argument,
                concat(request.label, ": NVRTC ", nvrtc.about.version, " cannot compile it for ", request.arch, ":",
                       first_errors(compiled.log, 12)));
  Image image;
  image.signature = signature(request);
  image.arch = request.arch;
  image.bytes = std::move(compiled.image);
  image.compiler = nvrtc.about.version;
  image.log = std::move(compiled.log);
  image.source = Image::Source::compiled;
  image.milliseconds = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  return image;
}

}  // namespace rapt::jit
