// Position masks: which keys a query sees, from the positions of query and key (docs/semantics.md). Everything about
// such a mask is here: its parameters, its definition, the range of keys that kernels compute from it, and its keywords
// in a problem line. Compiled by host and device code. Includes nothing outside shared/.
#pragma once

namespace rapt {

enum class Causal : unsigned char { none, bottom_right, top_left };

struct KeyRange {
  long long begin = 0, end = 0;  // begin >= end: no key
  constexpr bool empty() const { return begin >= end; }
};

// Returns a + b, saturated, so that windows and starts near the limits of long long give correct results.
constexpr long long saturating_add(long long a, long long b) {
  constexpr long long most = 0x7fffffffffffffff, least = -most - 1;
  if (b > 0 && a > most - b) return most;
  if (b < 0 && a < least - b) return least;
  return a + b;
}

struct PositionMask {
  Causal causal = Causal::none;
  long long window_left = -1, window_right = -1;  // -1 = open

  constexpr bool operator==(const PositionMask&) const = default;
  constexpr bool present() const { return *this != PositionMask{}; }

  // The definition of the mask, which the oracle uses: returns whether key j passes this mask for a query. (The key is
  // visible if it also passes all other masks.) `position` is the query's index plus the offset.
  constexpr bool sees(long long position, long long j) const {
    if (causal != Causal::none && j > position) return false;
    if (window_left >= 0 && j < saturating_add(position, -window_left)) return false;
    if (window_right >= 0 && j > saturating_add(position, window_right)) return false;
    return true;
  }

  // The same definition as a range, which kernels use: returns the keys among seqlen_k that pass this mask for query i.
  // `offset` is "off" of docs/semantics.md (0 for top-left causal). Both bounds are non-decreasing in i, and
  // key_tiles.h relies on this.
  constexpr KeyRange visible(long long i, long long offset, long long seqlen_k) const {
    const long long diagonal = saturating_add(i, offset);
    KeyRange keys{0, seqlen_k};
    auto limit_end = [&](long long end) { keys.end = end < keys.end ? end : keys.end; };
    if (causal != Causal::none) limit_end(saturating_add(diagonal, 1));
    if (window_right >= 0) limit_end(saturating_add(saturating_add(diagonal, window_right), 1));
    if (window_left >= 0) {
      const long long begin = saturating_add(diagonal, -window_left);
      keys.begin = begin > 0 ? begin : 0;
    }
    return keys;
  }
};

// The same ranges in int arithmetic, for GPU kernels. For query i the keys [max(0, i + begin), min(i + end, seqlen_k))
// pass the mask. Both bounds are non-decreasing in i. Sequences must be shorter than Band::longest.
struct Band {
  static constexpr int longest = 1 << 28, open = 1 << 29;
  int begin = -open, end = open, seqlen_k = 0;

  static constexpr Band of(const PositionMask& mask, long long offset, long long seqlen_k) {
    Band band;
    band.seqlen_k = static_cast<int>(seqlen_k);
    long long end = open;
    if (mask.causal != Causal::none) end = saturating_add(offset, 1);
    if (mask.window_right >= 0) {
      const long long right = saturating_add(saturating_add(offset, mask.window_right), 1);
      end = right < end ? right : end;
    }
    band.end = held(end);
    if (mask.window_left >= 0) band.begin = held(saturating_add(offset, -mask.window_left));
    return band;
  }
  constexpr int first(int i) const { return i + begin > 0 ? i + begin : 0; }
  constexpr int past(int i) const { return i + end < seqlen_k ? i + end : seqlen_k; }

 private:
  // Returns x, clamped to [-open, open].
  static constexpr int held(long long x) { return static_cast<int>(x < -open ? -open : x > open ? open : x); }
};

// Counts the visible (query, key) pairs of a sequence. `Wide` is an integer that holds the product of both lengths.
template <class Wide>
constexpr Wide visible_pairs(const PositionMask& mask, Wide offset, Wide seqlen_q, Wide seqlen_k) {
  // The sum over i in [0, seqlen_q) of clamp(i + first, 0, seqlen_k).
  const auto sum_of_clamped = [=](Wide first) {
    const auto sum_below = [=](Wide n) -> Wide {  // the sum over x < n of clamp(x, 0, seqlen_k)
      if (n <= 0) return 0;
      const Wide ramp = n < seqlen_k ? n : seqlen_k;
      return ramp * (ramp - 1) / 2 + (n - ramp) * seqlen_k;
    };
    return sum_below(first + seqlen_q) - sum_below(first);
  };
  // causal limits keys in the same way as window_right = 0. A window_right that is set is at least 0. So if causal is
  // set, causal is the tighter limit.
  const long long right = mask.causal != Causal::none ? 0 : mask.window_right;
  const Wide ends = right < 0 ? seqlen_q * seqlen_k : sum_of_clamped(offset + right + 1);
  return mask.window_left < 0 ? ends : ends - sum_of_clamped(offset - mask.window_left);
}

#ifndef __CUDACC_RTC__  // for the host only: NVRTC would copy this table into the image of every kernel
// A mask's keyword in a problem line. It is a flag that sets `causal`, or a name with values.
struct PositionWord {
  struct Value {
    const char* name = nullptr;  // in error messages
    long long PositionMask::*field = nullptr;
    long long least = 0;  // the minimum; the maximum is 2^60
    const char* rule = nullptr;
  };
  static constexpr int max_values = 2;

  const char* name;
  Causal causal = Causal::none;
  const char* form = nullptr;  // how the values are written, for error messages
  Value values[max_values] = {};

  constexpr int count() const { return (values[0].field != nullptr) + (values[1].field != nullptr); }
};

inline constexpr PositionWord position_words[] = {
    {"causal", Causal::bottom_right},
    {"causal_top_left", Causal::top_left},
    {"window",
     Causal::none,
     "two bounds: window=L,R, -1 for an open side",
     {{"window_left", &PositionMask::window_left, -1, "must be -1 (open) or 0 to 2^60"},
      {"window_right", &PositionMask::window_right, -1, "must be -1 (open) or 0 to 2^60"}}},
};
#endif

}  // namespace rapt
