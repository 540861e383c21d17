// The descriptor of a matrix in shared memory for wgmma (PTX ISA 9.0, section 9.7.15.5.1). Used by ptx/wgmma.cuh and by
// its stand-in on a CPU.
#pragma once

namespace rapt {

// The matrix has rows of 128 bytes under the 128-byte swizzle. It must begin at a multiple of 1024 bytes.
struct MatrixDescriptor {
  unsigned low, high;

  // Bytes between groups of eight rows, and between columns of 128 bytes (only for matrices whose rows are the
  // reduction: V). Both multiples of 16.
  static MatrixDescriptor of(unsigned address, unsigned group_bytes, unsigned column_bytes = 16) {
    return {(address & 0x3ffffu) >> 4 | column_bytes >> 4 << 16, group_bytes >> 4 | 1u << 30};
  }
  // The same matrix, `bytes` further. The sum always fits into the address field.
  MatrixDescriptor advanced(unsigned bytes) const { return {low + (bytes >> 4), high}; }
  unsigned long long word() const { return static_cast<unsigned long long>(high) << 32 | low; }
};

}  // namespace rapt
