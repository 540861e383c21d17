// The translation unit of a GPU kernel: its file, its config as a value, its entry. Used by GPU families' host halves;
// the lab writes and overrides configs with the same words.
#pragma once

#include <string>
#include <string_view>

#include "kernels/shared/config.h"

namespace rapt {

// A unit that includes `file` and whose entry rapt_kernel calls rapt::`function`<cfg>(const `params`&).
std::string emit_unit(const char* file, const char* function, const AttentionConfig& config,
                      const char* params = "AttentionParams");

// "block_m=64 block_n=64 warps_m=4 ...": every field, in order.
std::string to_string(const AttentionConfig& config);

// Changes the fields that `words` names ("block_m=32 q_in_registers=1"). Throws Error naming an unknown field or value.
void apply_words(std::string_view words, AttentionConfig& config);

}  // namespace rapt
