// The recent calls of this thread. A repeated call is not planned again, and its arguments are not checked again,
// except for overlaps. So a warm GPU call costs little more than its launch. Used by sdpa.cpp. A call is repeated if it
// differs at most in the addresses of its tensors, and the new addresses have the same alignment. The plan is also
// reused if only strides differ, or lengths that stay in the same length class. Then follow() checks the rules for
// lengths and strides.
#pragma once

#include <array>
#include <memory>

#include "arguments/sdpa_arguments.h"
#include "problem/problem.h"
#include "rapt/rapt.h"
#include "runtime/gpu.h"

namespace rapt {

class RecentCall {
 public:
  RecentCall() = default;
  RecentCall(uint64_t context_id, const rapt_sdpa_args& args, const Problem& problem,
             std::shared_ptr<const LoadedPlan> plan);

  // If the next three functions all return true, `args` would pass every check and give the same problem.

  // Returns true if `args` has the values, types, devices and alignments of the remembered call. Lengths and strides
  // can differ.
  bool same_kind(uint64_t context_id, const rapt_sdpa_args& args) const;
  // Requires same_kind(). Returns true if all lengths, sizes and strides are equal, too.
  bool same_layouts(const rapt_sdpa_args& args) const;
  // Requires same_kind(), and that the sizes of `args` are those of the remembered call. Returns true if no output
  // overlaps an input or another output.
  bool outputs_disjoint(const rapt_sdpa_args& args) const;

  // Requires same_kind(). Replaces the remembered call by `args` if the lengths stay in their length classes
  // (length_class.h) and the strides obey the rules. Returns whether `args` can use the plan. This is false if the call
  // was not replaced, or if an output overlaps. If strides break a rule, this object matches no call any more.
  bool follow(const rapt_sdpa_args& args);

  const Problem& problem() const { return problem_; }
  const LoadedPlan& plan() const { return *plan_; }

  // Returns false for calls that check contents or bring their own workspace. Such calls are checked completely every
  // time.
  static bool can_remember(const rapt_sdpa_args& args);

 private:
  using Lengths = std::array<int64_t, 4>;  // seqlen_q, seqlen_k, total_q, total_k
  // A size that follows from a length: the number of groups of `rows_per_group` rows.
  struct Extent {
    int8_t length_index = -1;  // index in Lengths; -1: the size is fixed
    uint8_t rows_per_group = 1;
    int64_t of(const Lengths& lengths) const;
  };
  struct Facts {
    bool present = false, has_strides = false, has_data = false;
    unsigned alignment = 0;  // the address modulo 16
    rapt_device device{};
    int32_t dtype = 0, rank = 0;
    std::array<Extent, 4> extents{};
    std::array<int64_t, 4> shape{}, strides{};
    int64_t first_byte = 0, end_byte = 0;  // relative to the address
  };
  static Facts facts_of(const rapt_tensor* tensor);
  static bool compute_byte_range(Facts& facts);  // uses shape and strides; false if too large
  static bool same_kind(const Facts& facts, const rapt_tensor* tensor);
  static bool same_layout(const Facts& facts, const rapt_tensor* tensor);
  static bool has_sizes(const Facts& facts, const rapt_tensor* tensor, const Lengths& lengths);
  Lengths lengths() const;
  Lengths lengths_of(const rapt_sdpa_args& args) const;
  void find_extents();
  bool length_class_fits_limits();
  bool update_layout(size_t argument, const rapt_tensor* tensor);

  uint64_t context_id_ = 0;
  bool can_follow_ = false;
  bool v_at_k_ = false;                                 // the address of v is that of k
  int64_t most_keys_ = 0;                               // paged keys: the keys of a row of block_table
  Lengths longest_{};                                   // longest lengths of the classes; valid if can_follow_
  rapt_sdpa_args args_{};                               // only its values are valid; its pointers are old
  std::array<Facts, tensor_arguments.size()> facts_{};  // in the order of tensor_arguments
  Problem problem_;
  std::shared_ptr<const LoadedPlan> plan_;
};

// The last calls of this thread. A new call replaces the oldest one.
class RecentCalls {
 public:
  static RecentCalls& of_this_thread();
  // Returns the remembered call that equals `args`. If there is none, returns one for which follow() was true, or null.
  const RecentCall* find(uint64_t context_id, const rapt_sdpa_args& args);
  void add(RecentCall call);

 private:
  std::array<RecentCall, 4> calls_;
  size_t newest_ = 0;
};

}  // namespace rapt
