// The frequencies of rotary embeddings, and tables of cosines and sines. Called by operations/rotary_tables.cpp.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/threads.h"
#include "rapt/rapt.h"

namespace rapt::cpu {

// One rule with all of its parameters. They have the names and meanings of rapt_rotary_args.
struct RotaryRule {
  rapt_rotary_kind kind = RAPT_ROTARY_DEFAULT;
  double base = 10000, factor = 1;
  double original_max_position_embeddings = 1, seqlen = 0;
  double beta_fast = 32, beta_slow = 1;
  double low_freq_factor = 1, high_freq_factor = 4;
  bool truncate = true;
};

// The attention factor of YARN if none is given.
double yarn_attention_factor(double factor);
double yarn_attention_factor(double factor, double mscale, double mscale_all_dim);

// Returns the rotary_dim / 2 angles between neighbouring positions.
std::vector<double> rotary_frequencies(const RotaryRule& rule, int64_t rotary_dim);

// A table of f32 in host memory; strides in elements.
struct RotaryOutput {
  float* data;
  int64_t row, column;
};
// Row i of the tables is position first_position + i. All values are multiplied by `attention_factor`.
void fill_rotary_tables(ThreadPool& pool, const std::vector<double>& frequencies, int64_t first_position,
                        int64_t positions, double attention_factor, const RotaryOutput& cos, const RotaryOutput& sin);

}  // namespace rapt::cpu
