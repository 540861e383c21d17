// The table of rapt_sdpa_args: every tensor, scalar and flag, with its rules and its uses. Read by arguments.cpp (the
// rules), recent_calls.cpp (equality of calls), device_contents.cpp, host_lists.cpp, c_api.cpp (structs of earlier
// headers) and python/src/parameters.h (Python's parameters and their documentation, PyTorch's operators, JAX's
// attributes). A new argument needs one new row. If a field has no row, this header does not compile.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <tuple>
#include <utility>

#include "kernels/shared/mask.h"
#include "problem/dtypes.h"
#include "rapt/rapt.h"

namespace rapt {

enum class Role : unsigned char {
  output,
  input,     // only kernels read its contents
  checked,   // input with checked contents: always on the CPU; on a GPU with RAPT_CHECK_CONTENTS
  lengths,   // checked; i32 on GPUs; i32 or i64 on the CPU
  positions  // checked; i64 on GPUs; i64 or i32 on the CPU
};

// The dimensions that tensors of a call share. The first tensor in the table that has a dimension determines its size.
enum class Dim : unsigned char {
  none,
  batch,
  batch_plus_1,
  heads_q,
  heads_k,
  seqlen_q,  // for packed tensors: the maximum
  seqlen_k,
  total_q,
  total_k,
  head_dim,
  head_dim_v,
  pages,      // of a paged cache
  page_size,  // in keys
  sequence_pages,
  count
};
inline constexpr const char* dim_names[] = {"",           "batch",     "batch + 1", "heads_q", "heads_k",
                                            "seqlen_q",   "seqlen_k",  "total_q",   "total_k", "head_dim",
                                            "head_dim_v", "num_pages", "page_size", "pages"};
using Dims = std::array<Dim, 4>;  // unused entries at the end are Dim::none
constexpr int rank_of(const Dims& dims) {
  int rank = 0;
  for (const Dim dim : dims) rank += dim != Dim::none;
  return rank;
}

struct ShapeRule {
  enum Kind : unsigned char {
    dims,
    broadcast,  // right-aligned to [batch, heads_q, seqlen_q, seqlen_k]
    scales      // determined by its *_scales argument
  };
  Kind kind = dims;
  Dims dense{}, packed{};
  Dims other{};  // an alternative shape of another rank
  Dims paged{};  // K and V with block_table; unused for other tensors
};

struct TensorArgument {
  const char* name;
  const rapt_tensor* rapt_sdpa_args::*member;
  Role role;
  Dtypes dtypes;  // for lengths and positions: the dtypes that the CPU accepts
  ShapeRule shape;
  // The parameter's text in Python's documentation. Neighbouring rows with the same text are documented together.
  const char* doc = "";
  // Python parameter name; null: none. If a ScalarArgument has the same keyword, the parameter accepts either.
  const char* keyword = name;
  // The struct version that introduced the field. Each release that adds fields increments the version.
  int since = 1;

  constexpr bool has_checked_contents() const { return role >= Role::checked; }
  // Returns whether the tensor is an index array: lengths (cu_seqlens, seqused) or positions (starts).
  constexpr bool is_list() const { return role >= Role::lengths; }
  // The dtype that kernels read.
  constexpr rapt_dtype list_dtype() const { return role == Role::lengths ? RAPT_I32 : RAPT_I64; }
  constexpr bool is_differentiable() const { return dtypes.has(DType::f32); }
};

namespace detail {
constexpr ShapeRule by_layout(Dims dense, Dims packed, Dims paged = {}) {
  return {ShapeRule::dims, dense, packed, {}, paged};
}
constexpr ShapeRule always(Dims dims) { return by_layout(dims, dims); }
constexpr ShapeRule either(Dims one, Dims other) { return {ShapeRule::dims, one, one, other, {}}; }

constexpr auto tensor_rows() {
  using enum Dim;
  using enum Role;
  using A = rapt_sdpa_args;
  constexpr Dtypes f32{DType::f32}, u8{DType::u8}, i32{DType::i32}, list{DType::i32, DType::i64};
  constexpr Dtypes floats{DType::f32, DType::f16, DType::bf16};
  constexpr ShapeRule broadcast{ShapeRule::broadcast}, scales{ShapeRule::scales};
  constexpr ShapeRule of_q = by_layout({batch, heads_q, seqlen_q, head_dim}, {total_q, heads_q, head_dim});
  constexpr ShapeRule of_k = by_layout({batch, heads_k, seqlen_k, head_dim}, {total_k, heads_k, head_dim},
                                       {pages, heads_k, page_size, head_dim});
  constexpr ShapeRule of_v = by_layout({batch, heads_k, seqlen_k, head_dim_v}, {total_k, heads_k, head_dim_v},
                                       {pages, heads_k, page_size, head_dim_v});
  constexpr ShapeRule of_out = by_layout({batch, heads_q, seqlen_q, head_dim_v}, {total_q, heads_q, head_dim_v});
  constexpr ShapeRule of_lse = by_layout({batch, heads_q, seqlen_q}, {heads_q, total_q});
  constexpr const char* cu_seqlens =
      "int32 [batch + 1]; give both or neither. Sequence b has the rows cu[b] to cu[b + 1] - 1.";
  constexpr const char* start =
      "position of the first query or key: int, or int64 [batch] (for chunked prefill, ring attention).";
  constexpr const char* descale =
      "float32 scales of the stored values. Their granularity (q_scales, k_scales, v_scales) gives the shape. "
      "\"tensor\": [] or [1]. \"head\": [batch, heads]. \"token\": [batch, heads, seqlen]. \"block64\", \"block128\": "
      "[batch, heads, ceil(seqlen / n)]. For v also \"channel\": [batch, heads_k, head_dim_v]. For packed tensors, "
      "\"token\": [heads, total]; blocks: [batch, heads, ceil(max_seqlen / n)], and the first block of each sequence "
      "begins at its first row. With block_table, \"token\" for k and v: [num_pages, page_size, heads_k].";
  return std::array{
      TensorArgument{"out", &A::out, output, floats, of_out},  // outputs come first
      TensorArgument{"lse", &A::lse, output, f32, of_lse},
      TensorArgument{"q", &A::q, input, input_dtypes, of_q},
      TensorArgument{"k", &A::k, input, input_dtypes, of_k},
      TensorArgument{"v", &A::v, input, input_dtypes, of_v},
      TensorArgument{"cu_seqlens_q", &A::cu_seqlens_q, lengths, list, always({batch_plus_1}), cu_seqlens},
      TensorArgument{"cu_seqlens_k", &A::cu_seqlens_k, lengths, list, always({batch_plus_1}), cu_seqlens},
      TensorArgument{"bias", &A::bias, input, floats, broadcast,
                     "added to x; float32, float16 or bfloat16, broadcast right-aligned to [batch, heads_q, seqlen_q, "
                     "seqlen_k] (packed: to [batch, heads_q, max_seqlen_q, max_seqlen_k])."},
      TensorArgument{"mask", &A::mask, checked, u8, broadcast,
                     "bool (or uint8 of 0 and 1), True keeps a key, False masks it; broadcasts like bias."},
      TensorArgument{"alibi_slopes", &A::alibi_slopes, input, f32, either({heads_q}, {batch, heads_q}),
                     "float32 [heads_q] or [batch, heads_q]."},
      TensorArgument{"sinks", &A::sinks, input, f32, always({heads_q}),
                     "float32 [heads_q]: one logit per head. exp(sink) is added to the denominator only."},
      TensorArgument{"seqused_q", &A::seqused_q, lengths, list, always({batch}),
                     "int32 [batch]: number of queries in use of each sequence, packed or not. Later rows get out = 0 "
                     "and lse = -inf; the values of q in these rows have no effect.",
                     "seqused_q", 2},
      TensorArgument{"seqused_k", &A::seqused_k, lengths, list, always({batch}),
                     "int32 [batch]: number of keys in use of each sequence, packed or not."},
      TensorArgument{
          "block_table", &A::block_table, checked, i32, always({batch, sequence_pages}),
          "int32 [batch, pages]: K and V are a paged cache. k is then [num_pages, heads_k, page_size, "
          "head_dim] and v [num_pages, heads_k, page_size, head_dim_v], with any strides. Key j of sequence b "
          "is row j % page_size of page block_table[b, j // page_size]. seqused_k gives the lengths. Entries "
          "past a length are not read. Give max_seqlen_k if it is less than pages * page_size."},
      TensorArgument{"q_descale", &A::q_descale, checked, f32, scales, descale},
      TensorArgument{"k_descale", &A::k_descale, checked, f32, scales, descale},
      TensorArgument{"v_descale", &A::v_descale, checked, f32, scales, descale},
      TensorArgument{"k_mean", &A::k_mean, checked, f32, always({batch, heads_k, head_dim}),
                     "float32 [batch, heads_k, head_dim]: the mean that was subtracted from k before quantisation, as "
                     "quantize(k, smooth=True) does. Key j is k[j] * k_descale + k_mean; x, lse, softcap and sinks use "
                     "this key. FP8 k only."},
      TensorArgument{"q_starts", &A::q_starts, positions, list, always({batch}), start, "q_start"},
      TensorArgument{"k_starts", &A::k_starts, positions, list, always({batch}), start, "k_start"},
  };
}
}  // namespace detail
inline constexpr std::array tensor_arguments = detail::tensor_rows();
inline constexpr size_t output_count = 2;

// An enumerator: its word in Python and its value in the C ABI.
struct Word {
  const char* word;
  int32_t value;
};
inline constexpr Word scale_words[] = {{"tensor", RAPT_SCALE_TENSOR},     {"head", RAPT_SCALE_HEAD},
                                       {"token", RAPT_SCALE_TOKEN},       {"block64", RAPT_SCALE_BLOCK64},
                                       {"block128", RAPT_SCALE_BLOCK128}, {"channel", RAPT_SCALE_CHANNEL}};
inline constexpr Word pv_words[] = {{"f16", RAPT_PV_F16}, {"fp8", RAPT_PV_FP8}, {"fp8x2", RAPT_PV_FP8X2}};
inline constexpr Word acc_words[] = {{"f32", RAPT_ACC_F32}, {"f16", RAPT_ACC_F16}, {"tf32", RAPT_ACC_TF32}};

struct Range {
  int64_t low = std::numeric_limits<int64_t>::min(), high = std::numeric_limits<int64_t>::max();
  const char* rule = "";  // ends the error sentence for a value outside the range
};

// A scalar argument: a real number, an integer or an enumerator. Real numbers must be finite floats.
struct ScalarArgument {
  const char* name;
  const char* keyword;   // Python parameter name; null: none
  const char* doc = "";  // as in TensorArgument, whose text is used if the parameter may also be an array
  double rapt_sdpa_args::*real = nullptr;
  int64_t rapt_sdpa_args::*integer = nullptr;  // exactly one of these three is non-null
  int32_t rapt_sdpa_args::*word = nullptr;
  uint64_t has = 0;  // RAPT_HAS_* bit; 0 if the field has none
  Range range{};     // the allowed values of an integer or enumerator
  std::span<const Word> words{};
  int since = 1;
  long long PositionMask::*position = nullptr;  // position masks: the PositionMask member that receives the value
};

namespace detail {
constexpr auto scalar_rows() {
  using A = rapt_sdpa_args;
  constexpr int64_t most = std::numeric_limits<int64_t>::max(), size = int64_t{1} << 40, position = int64_t{1} << 60;
  constexpr Range any, sizes{0, size, "must be from 0 to 2^40"}, counts{1, most, "must be 1 or more"};
  constexpr Range positions{-position, position, "must be within -2^60 to 2^60"};
  constexpr const char* max_seqlen =
      "int, required with cu_seqlens; max_seqlen_k also goes with block_table. A longer sequence is an error on the "
      "CPU and "
      "with check_contents; without this check, a GPU uses only the first max_seqlen rows of such a sequence.";
  const auto real = [](const char* name, const char* keyword, double A::*field, uint64_t has, const char* doc,
                       int since = 1) {
    return ScalarArgument{name, keyword, doc, field, nullptr, nullptr, has, {}, {}, since};
  };
  const auto integer = [](const char* name, const char* keyword, int64_t A::*field, uint64_t has, Range range,
                          const char* doc, int since = 1) {
    return ScalarArgument{name, keyword, doc, nullptr, field, nullptr, has, range, {}, since};
  };
  constexpr const char* granularity = "granularity of q_descale, k_descale, v_descale (see there).";
  const auto mask = [](const char* name, const char* keyword, int64_t A::*field, uint64_t has, Range range,
                       long long PositionMask::*to, const char* doc, int since = 1) {
    return ScalarArgument{name, keyword, doc, nullptr, field, nullptr, has, range, {}, since, to};
  };
  const auto word = [](const char* name, int32_t A::*field, std::span<const Word> words, const char* rule,
                       const char* doc, int since = 1) {
    return ScalarArgument{name, name, doc, nullptr, nullptr, field, 0, {0, words.back().value, rule}, words, since};
  };
  return std::array{
      real("softmax_scale", "scale", &A::softmax_scale, RAPT_HAS_SCALE,
           "any finite number. Default: 1 / sqrt(head_dim)."),
      real("softcap", "softcap", &A::softcap, RAPT_HAS_SOFTCAP, "> 0, in units of x."),
      mask("window_left", nullptr, &A::window_left, RAPT_HAS_WINDOW, any, &PositionMask::window_left, ""),
      mask("window_right", nullptr, &A::window_right, RAPT_HAS_WINDOW, any, &PositionMask::window_right, ""),
      integer("q_start", "q_start", &A::q_start, RAPT_HAS_Q_START, positions, ""),
      integer("k_start", "k_start", &A::k_start, RAPT_HAS_K_START, positions, ""),
      integer("max_seqlen_q", "max_seqlen_q", &A::max_seqlen_q, RAPT_HAS_MAX_SEQLEN_Q, sizes, max_seqlen),
      integer("max_seqlen_k", "max_seqlen_k", &A::max_seqlen_k, RAPT_HAS_MAX_SEQLEN_K, sizes, max_seqlen),
      integer("splits", "splits", &A::splits, RAPT_HAS_SPLITS, counts,
              "largest number of parts to split the keys into, 1 or more. Default: the planner chooses."),
      word("q_scales", &A::q_scales, scale_words, "not a rapt_scale_kind", granularity),
      word("k_scales", &A::k_scales, scale_words, "not a rapt_scale_kind", granularity),
      word("v_scales", &A::v_scales, scale_words, "not a rapt_scale_kind", granularity),
      word("pv", &A::pv, pv_words, "not a rapt_pv_mode",
           "format of the softmax weights in P V for FP8 v: \"f16\", \"fp8\" or \"fp8x2\". Default: \"f16\"."),
      word("acc", &A::acc, acc_words, "not a rapt_acc_mode",
           "precision of the products Q K and P V. \"f16\": sums are float16; needs float16 q, k and v, and a GPU. "
           "\"tf32\": float32 numbers are rounded to TF32; needs float32 q, k or v, and a GPU. Default: \"f32\"."),
      ScalarArgument{"reserved", nullptr, "", nullptr, nullptr, &A::reserved, 0, {0, 0, "must be 0"}},
  };
}
}  // namespace detail
inline constexpr std::array scalar_arguments = detail::scalar_rows();

struct FlagArgument {
  const char* name;
  const char* keyword;  // Python parameter name; null: none
  uint64_t bit;
  const char* doc = "";
};
inline constexpr std::array flag_arguments{
    FlagArgument{"RAPT_CAUSAL", nullptr, RAPT_CAUSAL},
    FlagArgument{"RAPT_CAUSAL_TOP_LEFT", nullptr, RAPT_CAUSAL_TOP_LEFT},
    FlagArgument{"RAPT_PARTIAL", "partial", RAPT_PARTIAL,
                 "True: out is float32, and (out, lse) is a partial state for merge()."},
    FlagArgument{"RAPT_INVARIANT", "invariant", RAPT_INVARIANT,
                 "True: the bits of a row do not depend on other rows, heads, sequences or lengths of the call, nor on "
                 "pages. The call is slower."},
    FlagArgument{"RAPT_CHECK_CONTENTS", "check_contents", RAPT_CHECK_CONTENTS,
                 "True: on GPUs, rapt waits for the stream, copies lengths, starts, mask, descales and k_mean to the "
                 "host, and checks their values."},
};

inline constexpr uint64_t known_has = [] {
  uint64_t bits = 0;
  for (const ScalarArgument& row : scalar_arguments) bits |= row.has;
  return bits;
}();
inline constexpr uint64_t known_flags = [] {
  uint64_t bits = 0;
  for (const FlagArgument& row : flag_arguments) bits |= row.bit;
  return bits;
}();

// Fields that are null or zero in every remembered call, except struct_size (see RecentCall::can_remember).
inline constexpr std::tuple unremembered_arguments{&rapt_sdpa_args::struct_size, &rapt_sdpa_args::score_mod,
                                                   &rapt_sdpa_args::workspace, &rapt_sdpa_args::workspace_bytes};

namespace detail {
template <size_t i>
constexpr auto field_of() {
  constexpr ScalarArgument row = scalar_arguments[i];
  if constexpr (row.real != nullptr)
    return row.real;
  else if constexpr (row.integer != nullptr)
    return row.integer;
  else
    return row.word;
}
template <size_t... i>
constexpr auto fields_of(std::index_sequence<i...>) {
  return std::tuple{&rapt_sdpa_args::has, &rapt_sdpa_args::flags, field_of<i>()...};
}
}  // namespace detail

// The scalars that affect the result of a call, as a tuple of pointers to fields.
inline constexpr std::tuple value_arguments = detail::fields_of(std::make_index_sequence<scalar_arguments.size()>{});

namespace detail {
template <class Value>
constexpr size_t size_of_member(Value rapt_sdpa_args::*) {
  return sizeof(Value);  // NOLINT(bugprone-sizeof-expression): intended, the size of a pointer field itself
}
constexpr size_t listed_bytes() {
  const auto sum = [](auto... member) { return (size_t{0} + ... + size_of_member(member)); };
  return tensor_arguments.size() * sizeof(void*) + std::apply(sum, value_arguments) +
         std::apply(sum, unremembered_arguments);
}
// Fields are only added at the end. So an earlier struct version is the current struct without the fields added since
// then.
constexpr size_t size_of_struct(int version) {
  size_t size = sizeof(rapt_sdpa_args);
  for (const TensorArgument& row : tensor_arguments) size -= row.since > version ? sizeof(void*) : 0;
  for (const ScalarArgument& row : scalar_arguments)
    size -= row.since <= version ? 0 : row.word != nullptr ? sizeof(int32_t) : sizeof(int64_t);
  return size;
}
constexpr int newest() {
  int newest = 1;
  for (const TensorArgument& row : tensor_arguments) newest = row.since > newest ? row.since : newest;
  for (const ScalarArgument& row : scalar_arguments) newest = row.since > newest ? row.since : newest;
  return newest;
}
}  // namespace detail
static_assert(detail::listed_bytes() == sizeof(rapt_sdpa_args), "every field of rapt_sdpa_args has a row above");

// The sizes of the struct in earlier headers.
inline constexpr std::array earlier_struct_sizes = [] {
  std::array<size_t, detail::newest() - 1> sizes{};
  for (size_t i = 0; i < sizes.size(); ++i) sizes[i] = detail::size_of_struct(static_cast<int>(i) + 1);
  return sizes;
}();

}  // namespace rapt
