// ScaleKind: which elements share a descale. Compiled by host and device code; includes nothing outside shared/.
#pragma once

namespace rapt {

enum class ScaleKind : unsigned char { none, tensor, head, token, block64, block128, channel };  // = rapt_scale_kind

// Returns the number of rows (queries or keys) of a sequence that share a descale; 0: all rows share one.
constexpr int rows_sharing(ScaleKind kind) {
  return kind == ScaleKind::token ? 1 : kind == ScaleKind::block64 ? 64 : kind == ScaleKind::block128 ? 128 : 0;
}

}  // namespace rapt
