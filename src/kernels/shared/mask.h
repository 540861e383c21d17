// Which keys a query sees by position: causal masks, windows and lengths as one half-open range of keys.
// Compiled by host and device code; includes nothing outside shared/. Definition: docs/semantics.md.
#pragma once

namespace rapt {

enum class CausalKind : unsigned char { none, bottom_right, top_left };  // = rapt::Causal

struct KeyRange {
  long long begin = 0, end = 0;  // begin >= end: no key
  constexpr bool empty() const { return begin >= end; }
};

// a + b held within the range of long long, so that windows and starts near its ends stay right.
constexpr long long saturating_add(long long a, long long b) {
  constexpr long long most = 0x7fffffffffffffff, least = -most - 1;
  if (b > 0 && a > most - b) return most;
  if (b < 0 && a < least - b) return least;
  return a + b;
}

struct PositionMask {
  CausalKind causal = CausalKind::none;
  long long window_left = -1, window_right = -1;  // -1 = open

  // Keys that query i sees among seqlen_k; `offset` is off of docs/semantics.md (0 for top-left causal).
  constexpr KeyRange visible(long long i, long long offset, long long seqlen_k) const {
    const long long diagonal = saturating_add(i, offset);
    KeyRange keys{0, seqlen_k};
    auto limit_end = [&](long long end) { keys.end = end < keys.end ? end : keys.end; };
    if (causal != CausalKind::none) limit_end(saturating_add(diagonal, 1));
    if (window_right >= 0) limit_end(saturating_add(saturating_add(diagonal, window_right), 1));
    if (window_left >= 0) {
      const long long begin = saturating_add(diagonal, -window_left);
      keys.begin = begin > 0 ? begin : 0;
    }
    return keys;
  }
};

// The same ranges in int arithmetic, for GPU kernels: query i sees keys [max(0, i + begin), min(i + end, seqlen_k)).
// Both bounds grow with i. For sequences shorter than Band::longest.
struct Band {
  static constexpr int longest = 1 << 28, open = 1 << 29;
  int begin = -open, end = open, seqlen_k = 0;

  static constexpr Band of(const PositionMask& mask, long long offset, long long seqlen_k) {
    Band band;
    band.seqlen_k = static_cast<int>(seqlen_k);
    long long end = open;
    if (mask.causal != CausalKind::none) end = saturating_add(offset, 1);
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
  static constexpr int held(long long x) { return static_cast<int>(x < -open ? -open : x > open ? open : x); }
};

}  // namespace rapt
