// Comparison of a call with a remembered one.
#include "runtime/recent_calls.h"

#include <algorithm>
#include <cstring>
#include <tuple>

#include "arguments/sdpa_arguments.h"
#include "arguments/tensor_rules.h"

namespace rapt {
namespace {

unsigned alignment_of(const void* data) { return static_cast<unsigned>(reinterpret_cast<uintptr_t>(data) % 16); }

// Bit by bit, so that NaN equals itself and -0 does not equal 0.
bool same_values(const rapt_sdpa_args& a, const rapt_sdpa_args& b) {
  const auto same = [&](auto... member) {
    // NOLINTNEXTLINE(bugprone-suspicious-memory-comparison): the bits of a double are meant
    return (... && (std::memcmp(&(a.*member), &(b.*member), sizeof(a.*member)) == 0));
  };
  return std::apply(same, value_arguments);
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
  if (element_count(*tensor) == 0) return facts;
  const int64_t width = bytes_of(dtype_of(*tensor));
  facts.past_byte = width;
  for (size_t i = 0; i < static_cast<size_t>(tensor->rank); ++i) {
    const int64_t reach = (facts.shape[i] - 1) * facts.strides[i] * width;
    (reach < 0 ? facts.first_byte : facts.past_byte) += reach;
  }
  return facts;
}

bool RecentCall::same(const Facts& facts, const rapt_tensor* tensor) {
  if (tensor == nullptr || !facts.present) return (tensor != nullptr) == facts.present;
  const size_t bytes = static_cast<size_t>(facts.rank) * sizeof(int64_t);
  return tensor->dtype == facts.dtype && tensor->rank == facts.rank && tensor->device.type == facts.device.type &&
         tensor->device.index == facts.device.index && (tensor->data != nullptr) == facts.has_data &&
         alignment_of(tensor->data) == facts.alignment && (tensor->strides != nullptr) == facts.has_strides &&
         (bytes == 0 || (tensor->shape != nullptr && std::memcmp(tensor->shape, facts.shape.data(), bytes) == 0 &&
                         (!facts.has_strides || std::memcmp(tensor->strides, facts.strides.data(), bytes) == 0)));
}

// Slices of one buffer interleave without overlapping; those take the long way.
bool RecentCall::outputs_apart(const rapt_sdpa_args& args) const {
  const auto address = [&](size_t i) { return reinterpret_cast<uintptr_t>((args.*tensor_arguments[i].member)->data); };
  for (size_t i = 0; i < output_count; ++i) {
    if (!facts_[i].present || facts_[i].past_byte == 0) continue;
    const uintptr_t base = address(i);
    const uintptr_t first = base + static_cast<uintptr_t>(facts_[i].first_byte),
                    past = base + static_cast<uintptr_t>(facts_[i].past_byte);
    for (size_t j = i + 1; j < facts_.size(); ++j) {
      if (!facts_[j].present || facts_[j].past_byte == 0) continue;
      const uintptr_t other = address(j);
      if (first < other + static_cast<uintptr_t>(facts_[j].past_byte) &&
          other + static_cast<uintptr_t>(facts_[j].first_byte) < past)
        return false;
    }
  }
  return true;
}

RecentCall::RecentCall(uint64_t owner, const rapt_sdpa_args& args, const Problem& problem,
                       std::shared_ptr<const LoadedPlan> plan)
    : owner_(owner), args_(args), problem_(problem), plan_(std::move(plan)) {
  for (size_t i = 0; i < facts_.size(); ++i) facts_[i] = facts_of(args.*tensor_arguments[i].member);
}

bool RecentCall::can_remember(const rapt_sdpa_args& args) {
  return args.struct_size == sizeof args && (args.flags & RAPT_CHECK_CONTENTS) == 0 && args.workspace == nullptr &&
         args.workspace_bytes == 0 && args.score_mod == nullptr;
}

bool RecentCall::matches(uint64_t owner, const rapt_sdpa_args& args) const {
  if (owner_ != owner || !can_remember(args) || !same_values(args, args_)) return false;
  for (size_t i = 0; i < facts_.size(); ++i)
    if (!same(facts_[i], args.*tensor_arguments[i].member)) return false;
  return outputs_apart(args);
}

RecentCalls& RecentCalls::of_this_thread() {
  static thread_local RecentCalls calls;
  return calls;
}

const RecentCall* RecentCalls::find(uint64_t owner, const rapt_sdpa_args& args) {
  for (size_t i = 0; i < calls_.size(); ++i) {
    const RecentCall& call = calls_[(newest_ + i) % calls_.size()];
    if (call.matches(owner, args)) return &call;
  }
  return nullptr;
}

void RecentCalls::add(RecentCall call) {
  newest_ = (newest_ + calls_.size() - 1) % calls_.size();
  calls_[newest_] = std::move(call);
}

}  // namespace rapt
