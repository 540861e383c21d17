// The oracle: attention in float64 with plain loops, from the decoded inputs. It defines the correct result. Used by
// compare, plain, known_bad, stages, tests and lab. From src/ it uses only Problem (see oracle.cpp).
#pragma once

#include <functional>
#include <vector>

#include "tensor.h"

namespace rapt::check {

// One sequence, as the tensors describe it. The lengths are limited to the maxima, and count only queries and keys in
// use.
struct Sequence {
  int64_t first_q = 0, first_k = 0;  // packed rows of the first query and the first key; 0 for dense tensors
  int64_t seqlen_q = 0, seqlen_k = 0;
  int64_t offset = 0;  // query i is at key position i + offset
  int64_t rows_q = 0;  // seqlen_q plus the number of unused rows after it (seqused_q)
};

// A problem and its tensors, decoded once. Rows are numbered (b * heads + h) * seqlen + i, or packed h * total + row.
class Reading {
 public:
  Reading(const Problem& problem, const Inputs& inputs);

  std::vector<Sequence> sequences;
  std::vector<double> q, k, v;  // [row][dim]: decoded and scaled, and k_mean is added; rows outside lengths are 0
  double scale = 1;
  int64_t rows_q = 0, rows_k = 0;

  const Problem& problem() const { return problem_; }
  int64_t kv_head(int64_t h) const { return h / (problem_.heads_q / problem_.heads_k); }
  int64_t row_q(int64_t b, int64_t h, int64_t i) const;
  int64_t row_k(int64_t b, int64_t kv_head, int64_t j) const;
  const double* q_row(int64_t b, int64_t h, int64_t i) const { return &q[row_q(b, h, i) * problem_.head_dim]; }
  const double* k_row(int64_t b, int64_t h, int64_t j) const { return &k[row_k(b, h, j) * problem_.head_dim]; }
  // For each element of a key: |stored value * descale| + |k_mean|. Without k_mean this is |k|. With k_mean it can be
  // larger than |k|, because the two terms can have different signs.
  const double* k_size_row(int64_t b, int64_t h, int64_t j) const {
    return &k_size_[row_k(b, h, j) * problem_.head_dim];
  }
  const double* v_row(int64_t b, int64_t h, int64_t j) const { return &v[row_k(b, h, j) * problem_.head_dim_v]; }

  bool visible(int64_t b, int64_t h, int64_t i, int64_t j) const;  // by lengths, causal, window and mask
  double bias(int64_t b, int64_t h, int64_t i, int64_t j) const;   // 0 if there is no bias
  double alibi(int64_t b, int64_t h, int64_t i, int64_t j) const;  // the term -slope * |i + off - j|
  bool has_sink() const { return inputs_.sinks.present() && !problem_.partial; }
  double sink(int64_t h) const { return inputs_.sinks.at({h}); }
  // The logit after scale, cap, bias and ALiBi; -inf for a masked key. The second function takes the dot product.
  double logit(int64_t b, int64_t h, int64_t i, int64_t j) const;
  double logit_of(double dot, int64_t b, int64_t h, int64_t i, int64_t j) const;

 private:
  void read_sequences();
  void add_k_mean();
  std::vector<double> k_size_;  // same layout as k
  Problem problem_;             // copies (the tensors' copies share memory), so a Reading can outlive its arguments
  Inputs inputs_;
};

// untouched: the row is in no sequence. computed: the reference has its values. skipped: the row was not requested.
enum class RowState : char { untouched, computed, skipped };

// The results for each row, in Reading's numbering.
struct Reference {
  int64_t rows = 0, head_dim_v = 0;
  std::vector<RowState> state;
  std::vector<double> out, lse;  // [row][dim], [row]
  // Condition numbers for bounds. logit_size: for each logit that is less than 40 below the row's maximum, take the sum
  // of the sizes of its terms; logit_size is the largest of these sums. weighted_v: sum_j p |v|. spread_v: sum_j p |v -
  // out|.
  std::vector<double> logit_size, weighted_v, spread_v;
  // Condition numbers for problems whose pv rounds weights to FP8; empty for other problems. square_v = sum_j (p v)^2.
  // floor_v = sum_j (e v)^2. Here e = min(w, 2^-18) / l is the largest rounding error of a subnormal weight w = p l,
  // and l is the row sum. quartic_v = sum_j p^4 |v_j|^4 for each row. All three sums leave out keys at the maximum,
  // because their weight of 1 is exact.
  std::vector<double> square_v, floor_v, quartic_v;
  // If q and k are FP8: sum_j (p (v - out))^2, by which independent errors of the logits move the output.
  std::vector<double> scatter_v;
};

// Intermediate values, [row][seqlen_k]. Masked keys have s = -inf and p = 0.
struct Capture {
  int64_t keys = 0;
  std::vector<double> s, s_size, p;  // s_size: the sum of the sizes of a score's terms; p: normalised weights
  std::vector<double> row_max, row_sum;
};

struct ForwardOptions {
  int64_t key_begin = 0, key_end = -1;  // use only these keys of each sequence (-1: to its end), for a partial state
  bool sinks = true;                    // false: leave the sinks out; merge_states adds them
  int64_t row_step = 1;                 // compute only every row_step-th query of each head
  Capture* capture = nullptr;
};

Reference forward(const Reading& reading, const ForwardOptions& options = {});
Reference forward(const Problem& problem, const Inputs& inputs, const ForwardOptions& options = {});

// Merges states over disjoint sets of keys. sinks (f32 [heads_q] or absent) are added once.
Reference merge_states(const Problem& problem, const std::vector<Reference>& parts, const HostTensor& sinks = {});

// The gradients of sum(out * d_out) with respect to the decoded q, k and v. Rows have Reading's numbering.
struct Gradients {
  std::vector<double> dq, dk, dv;
};
Gradients backward(const Problem& problem, const Inputs& inputs, const std::vector<double>& d_out);

// For each key row of Reading: 1 if lengths and masks let some query see it, otherwise 0.
std::vector<char> keys_seen(const Reading& reading);

// Calls body(n) for n from 0 to count - 1, on all CPUs of the machine.
void for_each_parallel(int64_t count, const std::function<void(int64_t)>& body);

}  // namespace rapt::check
