// Compares a call with a recent call, and updates the recent call to new lengths and strides.
#include "runtime/recent_calls.h"

#include <algorithm>
#include <cstring>
#include <tuple>
#include <type_traits>

#include "arguments/arguments.h"
#include "arguments/sdpa_arguments.h"
#include "arguments/tensor_rules.h"
#include "kernels/shared/mask.h"
#include "problem/length_class.h"

namespace rapt {
namespace {

__extension__ typedef __int128 Int128;

constexpr int64_t most_elements = int64_t{1} << 60;  // the maximum span of a tensor (tensor_rules.h)

unsigned alignment_of(const void* data) { return static_cast<unsigned>(reinterpret_cast<uintptr_t>(data) % 16); }

// Compares all values except max_seqlen_q and max_seqlen_k. Compares bits, so NaN equals NaN and -0 differs from 0.
bool same_values(const rapt_sdpa_args& a, const rapt_sdpa_args& b) {
  const auto same_value = [&](auto member) {
    if constexpr (std::is_same_v<decltype(member), int64_t rapt_sdpa_args::*>)
      if (member == &rapt_sdpa_args::max_seqlen_q || member == &rapt_sdpa_args::max_seqlen_k) return true;
    // NOLINTNEXTLINE(bugprone-suspicious-memory-comparison): intended, compares the bits of a double
    return std::memcmp(&(a.*member), &(b.*member), sizeof(a.*member)) == 0;
  };
  return std::apply([&](auto... member) { return (... && same_value(member)); }, value_arguments);
}

const Access* access_of_argument(const Problem& p, size_t argument) {
  const auto member = tensor_arguments[argument].member;
  if (member == &rapt_sdpa_args::q) return &p.access_q;
  if (member == &rapt_sdpa_args::k) return &p.access_k;
  if (member == &rapt_sdpa_args::v) return &p.access_v;
  if (member == &rapt_sdpa_args::out) return &p.access_out;
  return nullptr;
}

const Broadcast* broadcast_argument(const Problem& p, size_t argument) {
  const auto member = tensor_arguments[argument].member;
  return member == &rapt_sdpa_args::bias ? &p.bias : member == &rapt_sdpa_args::mask ? &p.mask : nullptr;
}

}  // namespace

RecentCall::Facts RecentCall::facts_of(const rapt_tensor* tensor) {
  Facts facts;
  if (tensor == nullptr) return facts;
  facts.present = true, facts.has_strides = tensor->strides != nullptr, facts.has_data = tensor->data != nullptr;
  facts.alignment = alignment_of(tensor->data);
  facts.device = tensor->device, facts.dtype = tensor->dtype, facts.rank = tensor->rank;
  std::copy_n(tensor->shape, tensor->rank, facts.shape.begin());
  const auto strides = strides_of(*tensor);
  std::copy_n(strides.begin(), tensor->rank, facts.strides.begin());
  return facts;
}

bool RecentCall::compute_byte_range(Facts& facts) {
  const int64_t width = bytes_of(static_cast<DType>(facts.dtype));
  Int128 span = 0;
  facts.first_byte = 0, facts.end_byte = width;
  for (size_t i = 0; i < static_cast<size_t>(facts.rank); ++i) {
    if (facts.shape[i] == 0) {
      facts.first_byte = facts.end_byte = 0;
      return true;
    }
    const Int128 reach = static_cast<Int128>(facts.shape[i] - 1) * facts.strides[i];
    span += reach < 0 ? -reach : reach;
    if (span > most_elements / width) return false;
    (reach < 0 ? facts.first_byte : facts.end_byte) += static_cast<int64_t>(reach) * width;
  }
  return true;
}

// Returns true if the tensors differ at most in address, sizes and strides.
bool RecentCall::same_kind(const Facts& facts, const rapt_tensor* tensor) {
  if (tensor == nullptr || !facts.present) return (tensor != nullptr) == facts.present;
  return tensor->dtype == facts.dtype && tensor->rank == facts.rank && tensor->device.type == facts.device.type &&
         tensor->device.index == facts.device.index && (tensor->data != nullptr) == facts.has_data &&
         alignment_of(tensor->data) == facts.alignment && (tensor->strides != nullptr) == facts.has_strides &&
         (facts.rank == 0 || tensor->shape != nullptr);
}

// Returns true if sizes and strides are equal. The tensors must be of the same kind.
bool RecentCall::same_layout(const Facts& facts, const rapt_tensor* tensor) {
  const size_t bytes = static_cast<size_t>(facts.rank) * sizeof(int64_t);
  return bytes == 0 || (std::memcmp(tensor->shape, facts.shape.data(), bytes) == 0 &&
                        (!facts.has_strides || std::memcmp(tensor->strides, facts.strides.data(), bytes) == 0));
}

int64_t RecentCall::Extent::of(const Lengths& lengths) const {
  const int64_t n = lengths[static_cast<size_t>(length_index)];
  return rows_per_group == 1 ? n : n / rows_per_group + (n % rows_per_group != 0);
}

bool RecentCall::has_sizes(const Facts& facts, const rapt_tensor* tensor, const Lengths& lengths) {
  for (size_t i = 0; i < static_cast<size_t>(facts.rank); ++i) {
    const bool fixed = facts.extents[i].length_index < 0;
    if (tensor->shape[i] != (fixed ? facts.shape[i] : facts.extents[i].of(lengths))) return false;
  }
  return true;
}

RecentCall::Lengths RecentCall::lengths() const {
  return {problem_.seqlen_q, problem_.seqlen_k, problem_.total_q, problem_.total_k};
}

// Finds the dimensions of each argument whose size depends on a sequence length (see the shapes in rapt.h).
void RecentCall::find_extents() {
  const bool varlen = problem_.varlen;
  const auto facts = [&](auto member) -> Facts& {
    size_t i = 0;
    while (tensor_arguments[i].member != member) ++i;
    return facts_[i];
  };
  const auto set = [&](Facts& of, int axis, Extent extent) {
    if (of.present && axis >= 0 && axis < of.rank) of.extents[static_cast<size_t>(axis)] = extent;
  };
  const auto descale = [&](Facts& of, ScaleKind kind, const Extent& rows, int8_t sequence) {
    const int sharing = rows_sharing(kind);
    if (sharing == 1) set(of, of.rank - 1, rows);
    if (sharing > 1) set(of, of.rank - 1, {sequence, static_cast<uint8_t>(sharing)});
  };
  const Extent rows_q{static_cast<int8_t>(varlen ? 2 : 0)}, rows_k{static_cast<int8_t>(varlen ? 3 : 1)};
  const int axis = varlen ? 0 : 2;
  set(facts(&rapt_sdpa_args::q), axis, rows_q), set(facts(&rapt_sdpa_args::out), axis, rows_q);
  const bool paged = problem_.page_size > 0;  // the sizes of a cache do not follow from lengths
  if (!paged) set(facts(&rapt_sdpa_args::k), axis, rows_k), set(facts(&rapt_sdpa_args::v), axis, rows_k);
  Facts& lse = facts(&rapt_sdpa_args::lse);
  set(lse, lse.rank - 1, rows_q);
  for (Facts* const of : {&facts(&rapt_sdpa_args::bias), &facts(&rapt_sdpa_args::mask)})
    for (int i = 1; i <= std::min(of->rank, 2); ++i)
      if (of->shape[static_cast<size_t>(of->rank - i)] != 1) set(*of, of->rank - i, {static_cast<int8_t>(2 - i)});
  descale(facts(&rapt_sdpa_args::q_descale), problem_.q_scales, rows_q, 0);
  descale(facts(&rapt_sdpa_args::k_descale), problem_.k_scales, paged ? Extent{} : rows_k, 1);
  descale(facts(&rapt_sdpa_args::v_descale), problem_.v_scales, paged ? Extent{} : rows_k, 1);
}

// Checks the limits on numbers of elements, for the longest lengths of the length class. The product is computed in
// double. It must be at most half the limit, so that rounding does not matter.
bool RecentCall::length_class_fits_limits() {
  const Lengths now = lengths();
  for (size_t i = 0; i < now.size(); ++i) {
    if (now[i] < 0 || now[i] >= Band::longest) return false;
    longest_[i] = longest_of_class(now[i]);
  }
  return std::all_of(facts_.begin(), facts_.end(), [&](const Facts& facts) {
    double elements = static_cast<double>(std::max<int64_t>(problem_.splits, 1));
    for (size_t i = 0; i < static_cast<size_t>(facts.rank); ++i) {
      const int64_t size = facts.extents[i].length_index < 0 ? facts.shape[i] : facts.extents[i].of(longest_);
      elements *= static_cast<double>(std::max<int64_t>(size, 1));
    }
    return elements < 0.5 * static_cast<double>(most_elements);
  });
}

// Copies the sizes and strides of the new call. Returns false if they break a rule, or if that is not known without the
// full check.
bool RecentCall::update_layout(size_t argument, const rapt_tensor* tensor) {
  Facts& facts = facts_[argument];
  if (same_layout(facts, tensor)) return true;
  std::copy_n(tensor->shape, facts.rank, facts.shape.begin());
  facts.strides = strides_of(*tensor);
  if (!compute_byte_range(facts)) return false;
  const Geometry geometry{facts.rank, facts.shape, facts.strides};
  const Access* const access = access_of_argument(problem_, argument);
  const auto member = tensor_arguments[argument].member;
  const bool cache = problem_.page_size > 0 && (member == &rapt_sdpa_args::k || member == &rapt_sdpa_args::v);
  if (access != nullptr && access_of(dtype_of(*tensor), geometry, facts.alignment, cache) != *access) return false;
  const Broadcast* const scores = broadcast_argument(problem_, argument);
  if (scores != nullptr && score_access(scores->dtype, geometry, facts.alignment) != scores->access) return false;
  return argument >= output_count || !overlaps_itself(geometry);
}

// Compares the address ranges of the tensors. Slices of one buffer can interleave without overlapping. For such slices
// this function returns false, and then the full check runs.
bool RecentCall::outputs_disjoint(const rapt_sdpa_args& args) const {
  const auto address = [&](size_t i) { return reinterpret_cast<uintptr_t>((args.*tensor_arguments[i].member)->data); };
  for (size_t i = 0; i < output_count; ++i) {
    if (!facts_[i].present || facts_[i].end_byte == 0) continue;
    const uintptr_t base = address(i);
    const uintptr_t first = base + static_cast<uintptr_t>(facts_[i].first_byte),
                    end = base + static_cast<uintptr_t>(facts_[i].end_byte);
    for (size_t j = i + 1; j < facts_.size(); ++j) {
      if (!facts_[j].present || facts_[j].end_byte == 0) continue;
      const uintptr_t other = address(j);
      if (first < other + static_cast<uintptr_t>(facts_[j].end_byte) &&
          other + static_cast<uintptr_t>(facts_[j].first_byte) < end)
        return false;
    }
  }
  return true;
}

RecentCall::RecentCall(uint64_t context_id, const rapt_sdpa_args& args, const Problem& problem,
                       std::shared_ptr<const LoadedPlan> plan)
    : context_id_(context_id), args_(args), problem_(problem), plan_(std::move(plan)) {
  for (size_t i = 0; i < facts_.size(); ++i) {
    facts_[i] = facts_of(args.*tensor_arguments[i].member);
    if (facts_[i].present && !compute_byte_range(facts_[i])) context_id_ = 0;  // makes it match no call
  }
  v_at_k_ = args.k != nullptr && args.v != nullptr && args.k->data == args.v->data;
  find_extents();
  can_follow_ = length_class_fits_limits();
  if (problem_.page_size == 0) return;
  can_follow_ = can_follow_ && args.k->shape[0] > 0;
  if (__builtin_mul_overflow(args.block_table->shape[1], problem_.page_size, &most_keys_)) most_keys_ = INT64_MAX;
}

bool RecentCall::can_remember(const rapt_sdpa_args& args) {
  return args.struct_size == sizeof args && (args.flags & RAPT_CHECK_CONTENTS) == 0 && args.workspace == nullptr &&
         args.workspace_bytes == 0 && args.score_mod == nullptr;
}

bool RecentCall::same_kind(uint64_t context_id, const rapt_sdpa_args& args) const {
  if (context_id_ != context_id || !same_values(args, args_)) return false;
  for (size_t i = 0; i < facts_.size(); ++i)
    if (!same_kind(facts_[i], args.*tensor_arguments[i].member)) return false;
  return (args.k->data == args.v->data) == v_at_k_;
}

bool RecentCall::same_layouts(const rapt_sdpa_args& args) const {
  if (args.max_seqlen_q != args_.max_seqlen_q || args.max_seqlen_k != args_.max_seqlen_k) return false;
  for (size_t i = 0; i < facts_.size(); ++i)
    if (facts_[i].present && !same_layout(facts_[i], args.*tensor_arguments[i].member)) return false;
  return true;
}

// The lengths that `args` asks for. A length that breaks a rule of paged keys becomes -1.
RecentCall::Lengths RecentCall::lengths_of(const rapt_sdpa_args& args) const {
  const bool varlen = problem_.varlen;
  Lengths asked{varlen ? args.max_seqlen_q : args.q->shape[2], varlen ? args.max_seqlen_k : args.k->shape[2],
                varlen ? args.q->shape[0] : 0, varlen ? args.k->shape[0] : 0};
  if (problem_.page_size == 0) return asked;
  const bool given = (args.has & RAPT_HAS_MAX_SEQLEN_K) != 0;  // otherwise the table gives the length
  asked[1] = !given ? problem_.seqlen_k : args.max_seqlen_k <= most_keys_ ? args.max_seqlen_k : -1;
  asked[3] = problem_.total_k;
  return asked;
}

bool RecentCall::follow(const rapt_sdpa_args& args) {
  if (!can_follow_) return false;
  const auto tensor = [&](size_t i) { return args.*tensor_arguments[i].member; };
  const Lengths now = lengths(), asked = lengths_of(args);
  for (size_t i = 0; i < now.size(); ++i) {
    if (asked[i] == now[i]) continue;
    if (asked[i] < 0 || asked[i] >= Band::longest) return false;
    const bool grew_within_class = asked[i] > now[i] && asked[i] <= longest_[i];
    if (!grew_within_class && longest_of_class(asked[i]) != longest_[i]) return false;
  }
  for (size_t i = 0; i < facts_.size(); ++i)
    if (facts_[i].present && !has_sizes(facts_[i], tensor(i), asked)) return false;

  for (size_t i = 0; i < facts_.size(); ++i) {
    if (!facts_[i].present || update_layout(i, tensor(i))) continue;
    context_id_ = 0;  // matches no call from now on: its facts are only half updated
    return false;
  }
  if (v_at_k_ && is_v_in_k(*args.k, *args.v) != problem_.v_in_k) {
    context_id_ = 0;
    return false;
  }
  args_.max_seqlen_q = args.max_seqlen_q, args_.max_seqlen_k = args.max_seqlen_k;
  problem_.seqlen_q = asked[0], problem_.seqlen_k = asked[1], problem_.total_q = asked[2], problem_.total_k = asked[3];
  return outputs_disjoint(args);
}

RecentCalls& RecentCalls::of_this_thread() {
  static thread_local RecentCalls calls;
  return calls;
}

const RecentCall* RecentCalls::find(uint64_t context_id, const rapt_sdpa_args& args) {
  if (!RecentCall::can_remember(args)) return nullptr;
  std::array<RecentCall*, 4> candidates{};  // newest first
  size_t count = 0;
  for (size_t i = 0; i < calls_.size(); ++i) {
    RecentCall& call = calls_[(newest_ + i) % calls_.size()];
    if (!call.same_kind(context_id, args)) continue;
    if (call.same_layouts(args)) {
      if (call.outputs_disjoint(args)) return &call;
      continue;
    }
    candidates[count++] = &call;
  }
  for (size_t i = 0; i < count; ++i)
    if (candidates[i]->follow(args)) return candidates[i];
  return nullptr;
}

void RecentCalls::add(RecentCall call) {
  newest_ = (newest_ + calls_.size() - 1) % calls_.size();
  calls_[newest_] = std::move(call);
}

}  // namespace rapt
