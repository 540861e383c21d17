// Hints for unknown words of a problem line: names from other libraries, flags with a value, misspellings.
#include "problem/hint.h"

#include <algorithm>

#include "base/error.h"
#include "base/nearest.h"
#include "problem/value.h"

namespace rapt {
namespace {

// A name in other libraries and the word for it in a problem line. If the word ends with '=', or is the letter of a
// size, the value is appended.
struct Alias {
  std::string_view other, word;
  bool takes_value = false;
};
constexpr Alias aliases[] = {
    {"fp32", "f32"},
    {"float32", "f32"},
    {"float", "f32"},
    {"fp16", "f16"},
    {"float16", "f16"},
    {"half", "f16"},
    {"bfloat16", "bf16"},
    {"fp8", "e4m3"},
    {"float8_e4m3fn", "e4m3"},
    {"e4m3fn", "e4m3"},
    {"float8_e5m2", "e5m2"},
    {"batch", "b", true},
    {"batch_size", "b", true},
    {"heads", "h", true},
    {"heads_q", "h", true},
    {"num_heads", "h", true},
    {"heads_k", "hQ:K"},
    {"num_kv_heads", "hQ:K"},
    {"seqlen", "q", true},
    {"seqlen_q", "q", true},
    {"seqlen_k", "k", true},
    {"dim", "d", true},
    {"head_dim", "d", true},
    {"head_dim_v", "dD:V"},
    {"softmax_scale", "scale=", true},
    {"sm_scale", "scale=", true},
    {"logits_soft_cap", "softcap=", true},
    {"window_size", "window=", true},
    {"window_left", "window=L,R"},
    {"window_right", "window=L,R"},
    {"sliding_window", "window=L,R"},
    {"alibi_slopes", "alibi"},
    {"attn_mask", "mask=[b,h,q,k]"},
    {"attn_bias", "bias=f32[b,h,q,k]"},
    {"return_lse", "lse"},
    {"sink", "sinks"},
    {"s_aux", "sinks"},
    {"cu_seqlens", "varlen="},
    {"cu_seqlens_q", "varlen="},
    {"cu_seqlens_k", "varlen="},
    {"seqused_k", "seqused=", true},
    {"page_size", "page=", true},
    {"num_splits", "splits=", true},
    {"bhsd", "layout=bhsd"},
    {"bshd", "layout=bshd"},
};

std::string lower(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return result;
}

bool has(const std::vector<std::string_view>& words, std::string_view word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

// Returns the word for `name` (lower case) and an optional `value`, or "" if the name is unknown.
std::string word_for(std::string_view name, std::string_view value, const std::vector<std::string_view>& flags,
                     const std::vector<std::string_view>& values) {
  if (has(flags, name)) return std::string(name);
  if (has(values, name)) return concat(name, "=", value);
  if (dtype_named(name) != DType::none) return std::string(name);
  for (const Alias& alias : aliases)
    if (alias.other == name) return concat(alias.word, alias.takes_value ? value : std::string_view());
  return "";
}

}  // namespace

std::string word_hint(std::string_view word, const std::vector<std::string_view>& flags,
                      const std::vector<std::string_view>& values) {
  const size_t equals = word.find('=');
  std::string name = lower(word.substr(0, equals));
  const std::string_view value = equals == std::string_view::npos ? std::string_view() : word.substr(equals + 1);
  if (name == "dtype" && dtype_named(lower(value)) != DType::none) name = lower(value);
  std::string found = word_for(name, value, flags, values);
  for (const std::string_view prefix : {"is_", "use_", "has_", "with_"})
    if (found.empty() && name.starts_with(prefix)) found = word_for(name.substr(prefix.size()), value, flags, values);
  if (found.empty()) {  // perhaps a misspelling: first search words of the same form
    const bool valued = equals != std::string_view::npos;
    std::string_view near = nearest(name, valued ? values : flags);
    bool near_valued = valued;
    if (near.empty()) near = nearest(name, valued ? flags : values), near_valued = !valued;
    if (!near.empty()) found = concat(near, near_valued ? "=" : "", near_valued ? value : std::string_view());
  }
  const bool off = value == "false" || value == "False" || value == "0" || value == "no";
  if (off && has(flags, found)) return concat("leave it out for no ", found, "; ");
  return found.empty() || found == word ? "" : concat("did you mean ", quoted(found), "? ");
}

bool looks_like_bshd(int64_t heads_q, int64_t seqlen_q, int64_t heads_k, int64_t seqlen_k) {
  constexpr int64_t most_heads = 256;  // the largest plausible number of heads of k
  return heads_q > 0 && seqlen_k > 0 && heads_k > seqlen_k && seqlen_k <= most_heads && seqlen_q % seqlen_k == 0;
}

}  // namespace rapt
