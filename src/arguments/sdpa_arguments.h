// The one table of rapt_sdpa_args: every tensor and every plain value, with what the run time does with it.
// Read by arguments.cpp (overlaps, contents), recent_calls.cpp (equality of calls), device_contents.cpp and
// host_lists.cpp. A new argument is one row here; a field without a row does not compile.
#pragma once

#include <array>
#include <cstddef>
#include <tuple>

#include "rapt/rapt.h"

namespace rapt {

enum class Role : unsigned char {
  output,
  input,     // only kernels read its contents
  checked,   // input whose contents have a rule: the CPU checks them, a GPU with RAPT_CHECK_CONTENTS
  lengths,   // checked; i32 on GPUs, on the CPU also i64
  positions  // checked; i64 on GPUs, on the CPU also i32
};

struct TensorArgument {
  const char* name;
  const rapt_tensor* rapt_sdpa_args::*member;
  Role role;
  constexpr bool has_checked_contents() const { return role >= Role::checked; }
  constexpr bool is_list() const { return role >= Role::lengths; }
  constexpr rapt_dtype list_dtype() const { return role == Role::lengths ? RAPT_I32 : RAPT_I64; }  // what kernels read
};

inline constexpr std::array tensor_arguments{
    TensorArgument{"out", &rapt_sdpa_args::out, Role::output},  // outputs come first
    TensorArgument{"lse", &rapt_sdpa_args::lse, Role::output},
    TensorArgument{"q", &rapt_sdpa_args::q, Role::input},
    TensorArgument{"k", &rapt_sdpa_args::k, Role::input},
    TensorArgument{"v", &rapt_sdpa_args::v, Role::input},
    TensorArgument{"bias", &rapt_sdpa_args::bias, Role::input},
    TensorArgument{"mask", &rapt_sdpa_args::mask, Role::checked},
    TensorArgument{"alibi_slopes", &rapt_sdpa_args::alibi_slopes, Role::input},
    TensorArgument{"sinks", &rapt_sdpa_args::sinks, Role::input},
    TensorArgument{"cu_seqlens_q", &rapt_sdpa_args::cu_seqlens_q, Role::lengths},
    TensorArgument{"cu_seqlens_k", &rapt_sdpa_args::cu_seqlens_k, Role::lengths},
    TensorArgument{"seqused_q", &rapt_sdpa_args::seqused_q, Role::lengths},
    TensorArgument{"seqused_k", &rapt_sdpa_args::seqused_k, Role::lengths},
    TensorArgument{"block_table", &rapt_sdpa_args::block_table, Role::input},
    TensorArgument{"q_descale", &rapt_sdpa_args::q_descale, Role::checked},
    TensorArgument{"k_descale", &rapt_sdpa_args::k_descale, Role::checked},
    TensorArgument{"v_descale", &rapt_sdpa_args::v_descale, Role::checked},
    TensorArgument{"k_mean", &rapt_sdpa_args::k_mean, Role::checked},
    TensorArgument{"q_starts", &rapt_sdpa_args::q_starts, Role::positions},
    TensorArgument{"k_starts", &rapt_sdpa_args::k_starts, Role::positions},
};
inline constexpr size_t output_count = 2;

// Plain values that decide what a call computes.
inline constexpr std::tuple value_arguments{
    &rapt_sdpa_args::has,          &rapt_sdpa_args::flags,       &rapt_sdpa_args::softmax_scale,
    &rapt_sdpa_args::softcap,      &rapt_sdpa_args::window_left, &rapt_sdpa_args::window_right,
    &rapt_sdpa_args::q_start,      &rapt_sdpa_args::k_start,     &rapt_sdpa_args::max_seqlen_q,
    &rapt_sdpa_args::max_seqlen_k, &rapt_sdpa_args::splits,      &rapt_sdpa_args::q_scales,
    &rapt_sdpa_args::k_scales,     &rapt_sdpa_args::v_scales,    &rapt_sdpa_args::pv,
    &rapt_sdpa_args::acc,          &rapt_sdpa_args::reserved};

// Fields of which a call that is remembered has none (RecentCall::can_remember).
inline constexpr std::tuple unremembered_arguments{&rapt_sdpa_args::struct_size, &rapt_sdpa_args::score_mod,
                                                   &rapt_sdpa_args::workspace, &rapt_sdpa_args::workspace_bytes};

namespace detail {
template <class Value>
constexpr size_t size_of_member(Value rapt_sdpa_args::*) {
  return sizeof(Value);  // NOLINT(bugprone-sizeof-expression): of a field that is a pointer the pointer is meant
}
constexpr size_t listed_bytes() {
  const auto sum = [](auto... member) { return (size_t{0} + ... + size_of_member(member)); };
  return tensor_arguments.size() * sizeof(void*) + std::apply(sum, value_arguments) +
         std::apply(sum, unremembered_arguments);
}
}  // namespace detail
static_assert(detail::listed_bytes() == sizeof(rapt_sdpa_args), "every field of rapt_sdpa_args has a row above");

}  // namespace rapt
