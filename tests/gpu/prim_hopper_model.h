// The host model of sm_90a's layouts (PTX ISA 9.0, sections 5.5.7 and 9.7.15), and the checks that compare the kernels
// of prim_hopper.cuh with it. Used by prim_hopper_test.cpp on a GPU, and by tests/cpu/prim_hopper_emulation_test.cpp.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "kernels/shared/dtype.h"

namespace rapt::test {

// One launch of a kernel of prim_hopper.cuh: the call as it is written in the source, and the operands. After the
// launch, `out` holds the result.
struct HopperLaunch {
  std::string call;
  unsigned threads = 128;
  size_t smem_bytes = 0;
  std::vector<unsigned char> a{}, b{}, out{};
};
using RunHopper = std::function<void(HopperLaunch&)>;

// The 128-byte swizzle: 16-byte pieces are permuted within 128 bytes by the number of the line among eight.
inline size_t swizzled_byte(size_t byte) { return byte ^ (byte / 128 % 8 * 16); }

// The place of an element of a matrix in shared memory, in bytes. The layout is [column of 64][row][64]. In a K-major
// matrix (q, k) the index of the sum runs along a row. In an MN-major matrix (v) each index of the sum has its own row.
inline size_t place_of(size_t row, size_t column, size_t rows) {
  return swizzled_byte(column / 64 * rows * 128 + row * 128 + column % 64 * 2);
}

struct WholeMatrix {  // a matrix of small integers, so that products and sums are exact
  size_t rows, columns;
  std::vector<float> values;
  WholeMatrix(size_t row_count, size_t column_count, unsigned seed)
      : rows(row_count), columns(column_count), values(row_count * column_count) {
    std::mt19937 random(seed);
    for (float& x : values) x = static_cast<float>(static_cast<int>(random() % 17) - 8);
  }
  float at(size_t row, size_t column) const { return values[row * columns + column]; }
};

inline unsigned short code_of(DType type, float x) { return type == DType::f16 ? float_to_f16(x) : float_to_bf16(x); }

template <class T>
void put(std::vector<unsigned char>& bytes, size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
}

// Padding columns hold NaN, because no product must read them.
inline std::vector<unsigned char> image_of(const WholeMatrix& matrix, DType type) {
  std::vector<unsigned char> image((matrix.columns + 63) / 64 * matrix.rows * 128, 0xff);
  for (size_t r = 0; r < matrix.rows; ++r)
    for (size_t c = 0; c < matrix.columns; ++c) put(image, place_of(r, c, matrix.rows), code_of(type, matrix.at(r, c)));
  return image;
}

// The row and column of a thread's register of the accumulators. Registers of the A operand are laid out in the same
// way: register r of a thread holds elements 2r and 2r + 1 of its accumulators for 16 columns.
struct Cell {
  size_t row, column;
};
inline Cell accumulator_cell(size_t thread, size_t i) {
  const size_t lane = thread % 32, warp = thread / 32;
  return {16 * warp + lane / 4 + 8 * (i / 2 % 2), 8 * (i / 4) + 2 * (lane % 4) + i % 2};
}

inline std::vector<unsigned char> fragments_of(const WholeMatrix& a, DType type) {
  std::vector<unsigned char> words(a.columns / 16 * 128 * 16);
  for (size_t step = 0; step < a.columns / 16; ++step)
    for (size_t thread = 0; thread < 128; ++thread)
      for (size_t i = 0; i < 8; ++i) {
        const Cell cell = accumulator_cell(thread, i);
        put(words, ((step * 128 + thread) * 8 + i) * 2, code_of(type, a.at(cell.row, 16 * step + cell.column)));
      }
  return words;
}

// Checks `out` of a launch: the registers must hold want(row, column) of a 64 x n matrix.
template <class Want>
void expect_accumulators(const HopperLaunch& launch, size_t n, const Want& want) {
  int64_t wrong = 0;
  for (size_t thread = 0; thread < 128; ++thread)
    for (size_t i = 0; i < n / 2; ++i) {
      float got;
      std::memcpy(&got, launch.out.data() + (thread * (n / 2) + i) * sizeof got, sizeof got);
      const Cell cell = accumulator_cell(thread, i);
      if (got != want(cell.row, cell.column) && wrong++ == 0)
        ADD_FAILURE() << launch.call << ": thread " << thread << ", register " << i << " is " << got << ", row "
                      << cell.row << ", column " << cell.column << " of the product is " << want(cell.row, cell.column);
    }
  EXPECT_EQ(wrong, 0) << launch.call;
}

inline std::vector<unsigned char> addends(size_t n, float value) {
  std::vector<unsigned char> out(128 * n / 2 * sizeof(float));
  for (size_t i = 0; i < out.size(); i += sizeof value) put(out, i, value);
  return out;
}

inline std::string word_of(DType type) { return type == DType::f16 ? "rapt::DType::f16" : "rapt::DType::bf16"; }

// Checks descriptors and swizzle of K-major operands, the layout of the accumulators, and that products are added to
// them.
inline void check_multiply_shared(const RunHopper& run, size_t n, size_t dim, DType type) {
  const WholeMatrix a(64, dim, 1), b(n, dim, 2);
  HopperLaunch launch{concat("multiply_shared<", n, ", ", dim, ", ", word_of(type), ">")};
  launch.a = image_of(a, type);
  const std::vector<unsigned char> image = image_of(b, type);
  launch.a.insert(launch.a.end(), image.begin(), image.end());
  launch.smem_bytes = launch.a.size();
  launch.out = addends(n, 5.0f);
  run(launch);
  expect_accumulators(launch, n, [&](size_t row, size_t column) {
    float sum = 5.0f;
    for (size_t k = 0; k < dim; ++k) sum += a.at(row, k) * b.at(column, k);
    return sum;
  });
}

// Checks the layout of A in registers, descriptors of MN-major operands with several panels, and that the first product
// overwrites the accumulators.
inline void check_multiply_registers(const RunHopper& run, size_t n, size_t keys, DType type) {
  const WholeMatrix a(64, keys, 3), b(keys, n, 4);
  HopperLaunch launch{concat("multiply_registers<", n, ", ", keys, ", ", word_of(type), ">")};
  launch.a = fragments_of(a, type), launch.b = image_of(b, type);
  launch.smem_bytes = launch.b.size();
  launch.out = addends(n, NAN);
  run(launch);
  expect_accumulators(launch, n, [&](size_t row, size_t column) {
    float sum = 0.0f;
    for (size_t k = 0; k < keys; ++k) sum += a.at(row, k) * b.at(k, column);
    return sum;
  });
}

inline unsigned out_word(const HopperLaunch& launch, size_t at) {
  unsigned word;
  std::memcpy(&word, launch.out.data() + at * sizeof word, sizeof word);
  return word;
}

inline void check_hand_over(const RunHopper& run, const std::string& call) {
  constexpr unsigned rounds = 9;
  HopperLaunch launch{call, 256, 1024};
  launch.out.assign(128 * sizeof(unsigned), 0xa5);
  run(launch);
  for (unsigned thread = 0; thread < 128; ++thread)
    EXPECT_EQ(out_word(launch, thread), 1000 * rounds * (rounds - 1) / 2 + rounds * (127 - thread))
        << call << ", thread " << thread;
}

inline void check_move_registers(const RunHopper& run) {
  constexpr size_t numbers = 200, threads = 256;
  const WholeMatrix values(numbers, threads, 5);
  HopperLaunch launch{"move_registers", 384};
  launch.a.resize(values.values.size() * sizeof(float));
  std::memcpy(launch.a.data(), values.values.data(), launch.a.size());
  launch.out.assign(threads * sizeof(float), 0xa5);
  run(launch);
  for (size_t thread = 0; thread < threads; ++thread) {
    float want = 0, got;
    for (size_t i = 0; i < numbers; ++i) want += values.at(i, thread) * static_cast<float>(i % 7 + 1);
    std::memcpy(&got, launch.out.data() + thread * sizeof got, sizeof got);
    EXPECT_EQ(got, want) << "thread " << thread;
  }
}

// A packed tensor [batch][head][row][column] of 16-bit numbers, whose rows have `pitch` elements.
struct BoxedTensor {
  static constexpr int columns = 80, rows = 50, heads = 3, batches = 2, pitch = 96;
  std::vector<unsigned short> memory = std::vector<unsigned short>(pitch * rows * heads * batches, 0xeeee);

  static unsigned short code(int x, int row, int head, int batch) {
    if (x < 0 || x >= columns || row < 0 || row >= rows || head < 0 || head >= heads || batch < 0 || batch >= batches)
      return 0;
    return static_cast<unsigned short>(((batch * heads + head) * rows + row) * 97 + x + 1);
  }
  BoxedTensor() {
    for (int b = 0; b < batches; ++b)
      for (int h = 0; h < heads; ++h)
        for (int r = 0; r < rows; ++r)
          for (int c = 0; c < columns; ++c)
            memory[static_cast<size_t>(((b * heads + h) * rows + r) * pitch + c)] = code(c, r, h, b);
  }
};
struct BoxCorner {
  int x, row, head, batch;
};
constexpr BoxCorner box_corners[] = {{0, 0, 0, 0},   {64, 0, 1, 1}, {0, 40, 2, 0}, {64, 49, 2, 1},
                                     {16, 7, 1, 0},  {0, -5, 0, 1}, {-8, 3, 0, 0}, {0, 50, 1, 1},
                                     {128, 0, 0, 0}, {0, 0, 3, 1},  {8, 21, 2, 1}};

inline void expect_box(const HopperLaunch& launch, int rows, const BoxCorner& at) {
  int64_t wrong = 0;
  for (int r = 0; r < rows; ++r)
    for (int c = 0; c < 64; ++c) {
      unsigned short got;
      std::memcpy(&got, launch.out.data() + place_of(static_cast<size_t>(r), static_cast<size_t>(c), 0), sizeof got);
      if (got != BoxedTensor::code(at.x + c, at.row + r, at.head, at.batch) && wrong++ == 0)
        ADD_FAILURE() << "row " << r << ", column " << c << ": " << got;
    }
  EXPECT_EQ(wrong, 0);
}

}  // namespace rapt::test
