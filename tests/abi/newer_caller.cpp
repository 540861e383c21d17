// A program that was compiled with a later header, whose structs have one more field, runs with this library. If the
// field is not set (0), calls work. If it is set, the call is refused and its output stays unchanged.
#include "rapt/rapt.h"
// This include must follow rapt.h, because it uses its structs.
#include "calls.h"

namespace {
template <class Args>
struct Longer : Args {
  const void* later_field = nullptr;
  Longer() : Args{} { this->struct_size = sizeof(Longer); }
};

template <class Args, class Call>
void run(const Call& call) {
  Longer<Args> args;
  call(args, true);
  args.later_field = &args;
  call(args, false);
  abi::expect(std::strstr(rapt_last_error(), "struct_size") != nullptr, "the sentence names struct_size");
}
}  // namespace

int main() {
  run<rapt_sdpa_args>([](auto& args, bool accepted) { abi::attention(args, accepted); });
  run<rapt_merge_args>([](auto& args, bool accepted) { abi::merge(args, accepted); });
  run<rapt_quantize_args>([](auto& args, bool accepted) { abi::quantize(args, accepted); });
  run<rapt_kv_append_args>([](auto& args, bool accepted) { abi::kv_append(args, accepted); });
  run<rapt_rotary_args>([](auto& args, bool accepted) { abi::rotary_tables(args, accepted); });
  run<rapt_qk_args>([](auto& args, bool accepted) { abi::qk(args, accepted); });
  run<rapt_gemm_args>([](auto& args, bool accepted) { abi::gemm(args, accepted); });
  Longer<rapt_context_options> options;
  options.later_field = &options;
  rapt_context* context = nullptr;
  abi::expect(rapt_context_create(&options, &context) == RAPT_ERROR_INVALID_ARGUMENT, "a later option is refused");
  options.later_field = nullptr;
  abi::expect(rapt_context_create(&options, &context) == RAPT_OK, "rapt_context_create");
  rapt_context_destroy(context);
  std::printf("newer caller: %d failures\n", abi::failures);
  return abi::failures == 0 ? 0 : 1;
}
