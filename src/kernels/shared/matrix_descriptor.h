// The descriptor of a matrix in shared memory for wgmma (PTX ISA 9.0, section 9.7.15.5.1). Used by ptx/wgmma.cuh and by
// the emulation of wgmma on a CPU.
#pragma once

namespace rapt {

// The matrix has rows of 128 bytes under the 128-byte swizzle. It must begin at a multiple of 1024 bytes.
struct MatrixDescriptor {
  unsigned low, high;

  // group_bytes: from one group of eight rows to the next. column_bytes: from one 128-byte column to the next; it is
  // used only if the product sums over the rows of the matrix (V). Both must be multiples of 16.
  static MatrixDescriptor of(unsigned address, unsigned group_bytes, unsigned column_bytes = 16) {
    return {(address & 0x3ffffu) >> 4 | column_bytes >> 4 << 16, group_bytes >> 4 | 1u << 30};
  }
  // Returns the descriptor of the matrix that begins `bytes` later. The sum always fits into the address field.
  MatrixDescriptor advanced(unsigned bytes) const { return {low + (bytes >> 4), high}; }
  unsigned long long word() const { return static_cast<unsigned long long>(high) << 32 | low; }
};

}  // namespace rapt
