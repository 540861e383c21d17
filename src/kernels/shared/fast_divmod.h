// FastDivmod: division by a number that is known before the kernel starts. Compiled by host and device code; includes
// nothing outside shared/.
#pragma once

namespace rapt {

// Computes n / value by one multiplication, for n < 2^31 (Granlund & Montgomery 1994). Reason: a CTA begins with
// several dependent divisions, each of which would take about a hundred cycles.
struct FastDivmod {
  unsigned value = 1, magic = 1u << 31, shift = 31;

  static constexpr FastDivmod by(unsigned value) {
    unsigned bits = 0;
    while (bits < 31 && (1u << bits) < value) ++bits;
    const unsigned long long magic = (1ull << (31 + bits)) / value + (value == 1 ? 0 : 1);
    return {value, static_cast<unsigned>(magic), 31 + bits};
  }
  constexpr unsigned quotient(unsigned n) const { return static_cast<unsigned>((n * 1ull * magic) >> shift); }
};

}  // namespace rapt
