// The C ABI, the only place that turns exceptions into status codes. It also keeps this thread's last error sentence.
#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <new>
#include <optional>
#include <string>

#include "arguments/sdpa_arguments.h"
#include "arguments/tensor_rules.h"
#include "base/error.h"
#include "operations/sdpa.h"
#include "rapt/rapt.h"
#include "runtime/context.h"
#include "runtime/gpu.h"

namespace {

// An array of fixed size, so that reporting "out of memory" allocates nothing.
thread_local char last_error[1024] = "";

rapt_status report(rapt_status status, const char* message) {
  const size_t length = std::min(std::strlen(message), sizeof last_error - 1);
  std::memcpy(last_error, message, length);
  last_error[length] = '\0';
  return status;
}

template <class Body>
rapt_status guard(const Body& body) {
  last_error[0] = '\0';
  try {
    body();
    return RAPT_OK;
  } catch (const rapt::Error& error) {
    return report(static_cast<rapt_status>(error.code()), error.what());
  } catch (const std::bad_alloc&) {
    return report(RAPT_ERROR_OUT_OF_MEMORY, "out of memory");
  } catch (const std::exception& error) {
    return report(RAPT_ERROR_INTERNAL, error.what());
  } catch (...) {
    return report(RAPT_ERROR_INTERNAL, "unknown exception");
  }
}

// The sizes that an argument struct had in earlier headers. Callers that were compiled with these headers still work.
template <class Args>
constexpr std::array<size_t, 0> earlier_sizes{};
template <>
constexpr std::array earlier_sizes<rapt_sdpa_args> = rapt::earlier_struct_sizes;

// The arguments in this build's struct. A caller that was compiled with an older header passes a shorter struct; its
// missing fields become 0, which means absent.
template <class Args>
class Arguments {
 public:
  explicit Arguments(const Args* args) : known_(args) {
    if (args == nullptr) rapt::invalid("args = NULL: must point to the arguments");
    if (args->struct_size >= sizeof(Args)) return;
    const auto& known = earlier_sizes<Args>;
    if (std::find(known.begin(), known.end(), args->struct_size) == known.end())
      rapt::invalid("args.struct_size = ", args->struct_size, ": must be at least ", sizeof(Args),
                    ", or the sizeof of an earlier rapt.h");
    std::memcpy(&completed_.emplace(), args, args->struct_size);
    completed_->struct_size = sizeof(Args);
    known_ = &*completed_;
  }
  Arguments(const Arguments&) = delete;
  Arguments& operator=(const Arguments&) = delete;
  operator const Args&() const { return *known_; }

 private:
  const Args* known_;
  std::optional<Args> completed_;
};

rapt::Context& resolve(rapt_context* context) {
  return context != nullptr ? context->impl : rapt::Context::process_default();
}

}  // namespace

rapt_status rapt_context_create(const rapt_context_options* options, rapt_context** context) {
  return guard([&] {
    if (context == nullptr) rapt::invalid("context = NULL: must point to a rapt_context*");
    int threads = 0;
    if (options != nullptr) {
      rapt::check_struct_size("options", options->struct_size, options, sizeof *options);
      threads = options->num_threads;
      if (threads < 0 || threads > 4096) rapt::invalid("num_threads = ", threads, ": must be 0 (automatic) to 4096");
      if (options->reserved != 0) rapt::invalid("reserved = ", options->reserved, ": must be 0");
    }
    *context = new rapt_context(rapt::ContextOptions{.threads = threads});
  });
}

void rapt_context_destroy(rapt_context* context) { delete context; }

rapt_status rapt_sdpa(rapt_context* context, const rapt_sdpa_args* args, void* stream) {
  return guard([&] { rapt::sdpa(resolve(context), Arguments(args), stream); });
}

rapt_status rapt_prepare(rapt_context* context, const rapt_sdpa_args* args, void* stream) {
  return guard([&] { rapt::prepare(resolve(context), Arguments(args), stream); });
}

rapt_status rapt_workspace_size(rapt_context* context, const rapt_sdpa_args* args, size_t* bytes, size_t* zero_bytes) {
  return guard([&] {
    size_t zero = 0;
    const size_t total = rapt::workspace_size(resolve(context), Arguments(args), zero);
    if (bytes != nullptr) *bytes = total;
    if (zero_bytes != nullptr) *zero_bytes = zero;
  });
}

rapt_status rapt_explain(rapt_context* context, const rapt_sdpa_args* args, char* buffer, size_t capacity,
                         size_t* length) {
  return guard([&] {
    if (buffer == nullptr && capacity != 0) rapt::invalid("buffer = NULL: capacity must be 0, not ", capacity);
    const std::string text = rapt::explain(resolve(context), Arguments(args));
    if (length != nullptr) *length = text.size();
    if (capacity == 0) return;
    const size_t copied = std::min(text.size(), capacity - 1);
    std::memcpy(buffer, text.data(), copied);
    buffer[copied] = '\0';
  });
}

rapt_status rapt_merge(rapt_context* context, const rapt_merge_args* args, void* stream) {
  return guard([&] { rapt::merge(resolve(context), Arguments(args), stream); });
}

rapt_status rapt_quantize(rapt_context* context, const rapt_quantize_args* args, void* stream) {
  return guard([&] { rapt::quantize(resolve(context), Arguments(args), stream); });
}

rapt_status rapt_kv_append(rapt_context* context, const rapt_kv_append_args* args, void* stream) {
  return guard([&] { rapt::kv_append(resolve(context), Arguments(args), stream); });
}

rapt_status rapt_rotary_tables(rapt_context* context, const rapt_rotary_args* args) {
  return guard([&] { rapt::rotary_tables(resolve(context), Arguments(args)); });
}

rapt_status rapt_qk(rapt_context* context, const rapt_qk_args* args, void* stream) {
  return guard([&] { rapt::qk(resolve(context), Arguments(args), stream); });
}

rapt_status rapt_gemm(rapt_context* context, const rapt_gemm_args* args, void* stream) {
  return guard([&] { rapt::gemm(resolve(context), Arguments(args), stream); });
}

rapt_status rapt_load_pack(rapt_context* context, const char* path) {
  return guard([&] {
    if (path == nullptr) rapt::invalid("path = NULL: must name a pack");
    resolve(context).gpu().store().load_pack(path);
  });
}

#define RAPT_TEXT_OF(x) #x
#define RAPT_TEXT(x) RAPT_TEXT_OF(x)
const char* rapt_version(void) {
  return RAPT_TEXT(RAPT_VERSION_MAJOR) "." RAPT_TEXT(RAPT_VERSION_MINOR) "." RAPT_TEXT(RAPT_VERSION_PATCH);
}

const char* rapt_last_error(void) { return last_error; }
