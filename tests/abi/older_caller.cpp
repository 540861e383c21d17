// A program that was compiled with the header of 0.1.0 (rapt_0.1.0.h, an unchanged copy) runs with this library.
#include "rapt_0.1.0.h"
// This include must follow rapt_0.1.0.h, because it uses its structs.
#include "calls.h"

namespace {
template <class Args>
Args sized() {
  Args args{};
  args.struct_size = sizeof args;
  return args;
}

void too_short() {
  auto args = sized<rapt_sdpa_args>();
  args.struct_size -= 8;
  abi::expect(rapt_sdpa(nullptr, &args, nullptr) == RAPT_ERROR_INVALID_ARGUMENT, "a struct shorter than any header's");
  abi::expect(std::strstr(rapt_last_error(), "args.struct_size") != nullptr, "the sentence names struct_size");
}
}  // namespace

int main() {
  auto attention = sized<rapt_sdpa_args>();
  abi::attention(attention);
  auto merge = sized<rapt_merge_args>();
  abi::merge(merge);
  auto quantize = sized<rapt_quantize_args>();
  abi::quantize(quantize);
  auto qk = sized<rapt_qk_args>();
  abi::qk(qk);
  auto gemm = sized<rapt_gemm_args>();
  abi::gemm(gemm);
  const auto options = sized<rapt_context_options>();
  rapt_context* context = nullptr;
  abi::expect(rapt_context_create(&options, &context) == RAPT_OK, "rapt_context_create");
  rapt_context_destroy(context);
  too_short();
  std::printf("older caller: %d failures\n", abi::failures);
  return abi::failures == 0 ? 0 : 1;
}
