// Compares an output with the oracle: errors, kinds of non-finite values, unwritten elements, overwritten margins.
// Used by check.cpp, tests and lab.
#pragma once

#include <string>
#include <vector>

#include "oracle.h"

namespace rapt::check {

struct Errors {
  int64_t count = 0;  // number of compared elements
  double max_abs = 0, mean_abs = 0, rel_rms = 0, cosine = 1;
  double max_reference = 0;              // largest finite |reference|
  int64_t nan_count = 0, inf_count = 0;  // number of NaN and Inf in the output
  int64_t wrong_class = 0;               // elements that are finite where the reference is not, or the reverse
  int64_t unwritten = 0;                 // elements that still hold the poison (poison.h)
  int64_t overwritten = 0;               // elements that were written outside all sequences, or in the margins
  int64_t worst = -1;  // element (row * dim + d, Reading's numbering) with max_abs, or the first one of a wrong class
  double worst_got = 0, worst_want = 0;

  // Adds another sample of the same problem. The members are sums, so rel_rms is computed over all elements of all
  // samples; it is not a mean over samples.
  void add(const Errors& other);
  bool sound() const { return wrong_class == 0 && unwritten == 0 && overwritten == 0; }

  double sum_abs = 0, sum_square = 0, sum_reference_square = 0, sum_output_square = 0, sum_product = 0;
};

// A reference value that is too large for the output's format counts as infinite, so an Inf is correct for it.
Errors compare_out(const Problem& problem, const HostTensor& out, const Reference& reference);
// An lse of -inf must be exactly -inf.
Errors compare_lse(const Problem& problem, const HostTensor& lse, const Reference& reference);
// The largest |lse - reference|, divided by the lse_bound of its row. *worst_row gets this row. A value above 1 is a
// failure.
double worst_lse_share(const Problem& problem, const HostTensor& lse, const Reference& reference,
                       int64_t* worst_row = nullptr, bool narrow_products = false);

// An element of out or lse as text: "[b=0, h=3, i=17, d=5]". For packed tensors t= and h= are used.
std::string describe_element(const Problem& problem, int64_t element, int64_t dim);

// The tensor coordinates of a row in Reading's numbering: {b, h, i}, or {t, h} for packed tensors.
std::vector<int64_t> row_coordinates(const Problem& problem, int64_t row);

}  // namespace rapt::check
