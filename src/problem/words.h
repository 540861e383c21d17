// The words of a problem line that name a choice, and the limits of its numbers.
// Included by parse.cpp, print.cpp and validate.cpp only. The enums of problem.h are the indices of the arrays.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "problem/problem.h"

namespace rapt::words {

inline constexpr std::array<std::string_view, 4> ops{"forward", "backward", "merge", "quantize"};
inline constexpr std::array<std::string_view, 7> scale_kinds{"none",    "tensor",   "head",   "token",
                                                             "block64", "block128", "channel"};
inline constexpr std::array<std::string_view, 4> pv_modes{"auto", "f16", "fp8", "fp8x2"};
inline constexpr std::array<std::string_view, 3> acc_modes{"f32", "f16", "tf32"};
inline constexpr std::array<std::string_view, 2> layouts{"bhsd", "bshd"};
inline constexpr std::string_view score_axes = "bhqk";  // the letters of bias=f32[1,h,q,k]

inline constexpr size_t max_line_bytes = size_t{1} << 24;  // the maximum for a line, and for an @file
inline constexpr size_t max_list_items = size_t{1} << 20;  // the maximum for varlen=, seqused=, q_start=, k_start=
inline constexpr size_t max_mod_chars = 64;                // SHA-256 in hexadecimal
inline constexpr int64_t max_size = int64_t{1} << 40;      // the maximum for one dimension
inline constexpr int64_t max_elements =
    (int64_t{1} << 60) - 1;  // the maximum for one tensor: the bytes of 8-byte elements still fit into int64
inline constexpr int64_t max_position = int64_t{1}
                                        << 60;  // |window bound|, |start|: sums of three of them stay in int64

template <class Enum, size_t n>
constexpr std::string_view name(const std::array<std::string_view, n>& names, Enum value) {
  const auto index = static_cast<size_t>(value);
  return index < n ? names[index] : std::string_view("?");
}

// The dtype of out in a line without out=.
constexpr DType default_out(DType q) { return is_fp8(q) ? DType::f16 : q; }

}  // namespace rapt::words
