// Measured choices of tiles. A family keeps them as rows: conditions, tiles, and the measurement for which they were
// the fastest. The first row whose conditions hold is chosen. tests/cpu/tuned_test.cpp compares each row with its
// measurement under results/. Rows of a user's own GPU come from `rapt tune` and take precedence.
#pragma once

namespace rapt {

// A condition on a fact about the problem or the GPU.
enum class When : unsigned char { either, no, yes };
constexpr bool holds(When when, bool fact) { return when == When::either || (when == When::yes) == fact; }

// One measurement. The file has the card, the driver, the date, the command and all samples.
struct Measured {
  const char* problem = nullptr;  // null: no measurement; the tiles are those that fit registers and shared memory
  double median_us = 0.0;
  const char* file = nullptr;  // under results/
};

}  // namespace rapt
