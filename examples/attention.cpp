// Attention from C++ on the tensors of a transformer: q, k and v are three slices of one fused projection.
//
// With an installed rapt:  c++ -std=c++20 attention.cpp $(pkg-config --cflags --libs rapt) -o attention
// Prints the kernel that the library chose. Computes attention over all keys, and over two halves that are then merged.
// Exits with 1 if the two results differ.
#include <algorithm>
#include <array>
#include <cmath>
#include <iostream>
#include <rapt/rapt.hpp>
#include <vector>

int main() try {
  constexpr int64_t batch = 2, heads = 4, seqlen = 150, dim = 32;
  // Each token has one row, with the order heads x (q | k | v) x dim. The strides describe this order, so nothing is
  // copied or transposed.
  constexpr int64_t row = heads * 3 * dim;
  std::vector<float> fused(batch * seqlen * row);
  for (size_t i = 0; i < fused.size(); ++i) fused[i] = std::sin(0.37f * static_cast<float>(i % 9973));

  const rapt::Dims shape{batch, heads, seqlen, dim}, strides{seqlen * row, 3 * dim, row, 1};
  const rapt::Tensor q(fused.data(), shape, strides), k(fused.data() + dim, shape, strides),
      v(fused.data() + 2 * dim, shape, strides);
  std::vector<float> whole(batch * heads * seqlen * dim);
  const rapt::Tensor out(whole.data(), shape);

  std::cout << rapt::explain(q, k, v, out);
  rapt::sdpa(q, k, v, out);

  // The same attention over two halves of the keys, as in ring attention or with a split cache. Each half gives a
  // partial state, and merge() combines them.
  constexpr int64_t first = 90;
  std::array<std::vector<float>, 2> part_out, part_lse;
  std::vector<rapt::PartialState> states;
  for (size_t part = 0; part < 2; ++part) {
    const int64_t begin = part == 0 ? 0 : first, length = part == 0 ? first : seqlen - first;
    const rapt::Dims keys{batch, heads, length, dim};
    const rapt::Tensor k_part(fused.data() + dim + begin * row, keys, strides),
        v_part(fused.data() + 2 * dim + begin * row, keys, strides);
    part_out[part].resize(whole.size());
    part_lse[part].resize(batch * heads * seqlen);
    states.push_back({.out = {part_out[part].data(), shape}, .lse = {part_lse[part].data(), {batch, heads, seqlen}}});
    rapt::sdpa(q, k_part, v_part, states[part].out, {.lse = states[part].lse, .partial = true});
  }
  std::vector<float> merged(whole.size());
  rapt::merge(states, rapt::Tensor(merged.data(), shape));

  float difference = 0;
  for (size_t i = 0; i < whole.size(); ++i) difference = std::max(difference, std::fabs(whole[i] - merged[i]));
  std::cout << "largest difference of whole and merged halves: " << difference << "\n";
  return difference < 1e-5f ? 0 : 1;
} catch (const rapt::Exception& error) {
  std::cerr << "rapt: " << error.what() << "\n";
  return 1;
}
