// Implements length_class.h.
#include "problem/length_class.h"

#include <algorithm>
#include <bit>

#include "kernels/shared/mask.h"

namespace rapt {

int64_t longest_of_class(int64_t length) {
  if (length <= 16) return length;
  // 2^octave < length <= 2^(octave + 1)
  const int octave = static_cast<int>(std::bit_width(static_cast<uint64_t>(length - 1))) - 1;
  const int64_t step = int64_t{1} << (octave - 3), longest = (length + step - 1) / step * step;
  return length < Band::longest ? std::min<int64_t>(longest, Band::longest - 1) : longest;
}

Problem longest_of_class(const Problem& problem) {
  Problem longest;
  static_cast<PlanFacts&>(longest) = problem;
  for (int64_t PlanFacts::*const length :
       {&PlanFacts::seqlen_q, &PlanFacts::seqlen_k, &PlanFacts::total_q, &PlanFacts::total_k})
    longest.*length = longest_of_class(problem.*length);
  return longest;
}

}  // namespace rapt
