// Compares an output with the oracle: errors, classes of non-finite values, unwritten elements, overwritten margins.
// Used by check.cpp, tests and lab.
#pragma once

#include <string>
#include <vector>

#include "oracle.h"

namespace rapt::check {

struct Errors {
  int64_t count = 0;  // elements compared
  double max_abs = 0, mean_abs = 0, rel_rms = 0, cosine = 1;
  double max_reference = 0;              // largest finite |reference|
  int64_t nan_count = 0, inf_count = 0;  // in the output
  int64_t wrong_class = 0;               // finite where the reference is not, or vice versa
  int64_t unwritten = 0;                 // elements that still hold the poison
  int64_t overwritten = 0;               // rows outside all sequences that were written, and overwritten margins
  int64_t worst = -1;  // element (row * dim + d, Reading's numbering) of max_abs, or the first of a wrong class
  double worst_got = 0, worst_want = 0;

  // Adds another sample of the same problem. Keeps sums, so rel_rms is pooled, not averaged.
  void add(const Errors& other);
  bool sound() const { return wrong_class == 0 && unwritten == 0 && overwritten == 0; }

  double sum_abs = 0, sum_square = 0, sum_reference_square = 0, sum_output_square = 0, sum_product = 0;
};

// Reference values outside the output format's range count as non-finite: there an Inf is correct.
Errors compare_out(const Problem& problem, const HostTensor& out, const Reference& reference);
// An lse of -inf must be exactly -inf.
Errors compare_lse(const Problem& problem, const HostTensor& lse, const Reference& reference);
// The worst |lse - reference| relative to lse_bound of its row (*worst_row). Above 1 is a failure.
double worst_lse_share(const Problem& problem, const HostTensor& lse, const Reference& reference,
                       int64_t* worst_row = nullptr);

// Element of out or lse as "[b=0, h=3, i=17, d=5]" (packed: t= and h=).
std::string describe_element(const Problem& problem, int64_t element, int64_t dim);

// Tensor coordinates of a row in Reading's numbering: {b, h, i} or packed {t, h}.
std::vector<int64_t> row_coordinates(const Problem& problem, int64_t row);

}  // namespace rapt::check
