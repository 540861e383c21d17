// The built-in tables of tiles. A family has a table of rows. Each row says for which problems its tiles are meant.
// Some rows also name a measurement of these tiles. tests/cpu/tuned_test.cpp compares the rows with their measurements
// under results/. Rows that `rapt tune` writes (runtime/tuned_rows.h) take precedence over these tables.
#pragma once

namespace rapt {

// A condition on a fact about the problem or the GPU.
enum class When : unsigned char { either, no, yes };
constexpr bool holds(When when, bool fact) { return when == When::either || (when == When::yes) == fact; }

// One measurement. Its file names the GPU, the driver, the date and the command, and has all samples.
struct Measured {
  const char* problem = nullptr;  // null: not measured; registers and shared memory suffice
  double median_us = 0.0;
  const char* file = nullptr;  // under results/
};

}  // namespace rapt
