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

// Which copies of K and V the kernel makes before it computes its tiles (ConvertedKv).
struct Sm90Conversion {
  int p_terms;               // 1: pv=fp8, 2: pv=fp8x2, 0: 16-bit weights
  int k_element, v_element;  // bytes of an element of converted K and V; 0: the tensor is not converted
  int64_t pitch;             // keys of a sequence of the longest length; a row of transposed V has up to 128 in a tile
  int64_t sequences, k_elements, v_elements;

  explicit Sm90Conversion(const Problem& p)
      : p_terms(p.pv == PvMode::fp8     ? 1
                : p.pv == PvMode::fp8x2 ? 2
                                        : 0),
        k_element(is_tensor_core_fp8(p.k) && !is_tensor_core_fp8(p.q) ? 2 : 0),
        v_element(!is_tensor_core_fp8(p.v) ? 0
                  : p_terms > 0            ? 1
                                           : 2),
        pitch((p.seqlen_k + 127) / 128 * 128),
        sequences(p.batch * p.heads_k),
        k_elements(sequences * pitch * p.head_dim),
        v_elements(sequences * pitch * p.head_dim_v) {}

  int64_t k_bytes() const { return k_elements * k_element; }
  int64_t v_bytes() const { return v_elements * v_element; }
  int64_t bytes() const { return k_bytes() + v_bytes(); }
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
