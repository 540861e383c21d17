// Chooses the tiles of attention_sm90, and estimates times (docs/lab-notebook.md, "a model chooses the tiles"). Host
// only.
#pragma once

#include "device/device.h"
#include "kernels/sm90/config.h"
#include "problem/problem.h"

namespace rapt {

struct Sm90Choice {
  Sm90Config tiles;  // without the fields of AttentionVariant
  double us;         // the estimated time of a launch on an H200
};

// Returns the fastest tiles. `invariant` plans must not depend on lengths, so their tiles depend only on the head dims,
// on the operations on scores and on the presence of a mask. head_dim and head_dim_v must be at most 256.
Sm90Choice choose_sm90_tiles(const Problem& p, const Device& device);

// Returns whether TMA can load the bias and the mask of the problem for these tiles. `invariant` plans must not depend
// on strides, which can depend on lengths.
bool can_load_boxes(const Problem& p, const Sm90Config& tiles);

// Returns the estimated time of attention_sm80 in microseconds, or infinity if the problem has too many tiles for the
// small tiles that make attention_sm80 faster than attention_sm90.
double estimated_sm80_us(const Problem& p, const Device& device);

// The lengths by which tiles are chosen. For packed sequences: the mean lengths, and the largest number of keys.
struct TypicalLengths {
  double sequences, q, k;
  int64_t most_k;

  static TypicalLengths of(const Problem& p);
};

}  // namespace rapt
