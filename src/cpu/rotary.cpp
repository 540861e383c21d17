// Frequencies of rotary embeddings by the rules of Hugging Face transformers (modeling_rope_utils.py), in float64.
#include "cpu/rotary.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace rapt::cpu {
namespace {

constexpr double two_pi = 2 * std::numbers::pi;

double mixed(double a, double b, double share_of_b) { return a * (1 - share_of_b) + b * share_of_b; }

// The number of the pair that turns `turns` times in the original context; not a whole number.
double pair_of_turns(const RotaryRule& r, double turns, double dim) {
  return dim * std::log(r.original_max_position_embeddings / (turns * two_pi)) / (2 * std::log(r.base));
}

// YARN: pairs below `low` keep their frequency, pairs above `high` have the frequency divided by factor.
void apply_yarn(const RotaryRule& r, double dim, std::vector<double>& f) {
  double low = pair_of_turns(r, r.beta_fast, dim), high = pair_of_turns(r, r.beta_slow, dim);
  if (r.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0), high = std::min(high, dim - 1);
  if (low == high) high += 0.001;
  for (size_t j = 0; j < f.size(); ++j) {
    const double ramp = std::clamp((static_cast<double>(j) - low) / (high - low), 0.0, 1.0);
    f[j] = mixed(f[j], f[j] / r.factor, ramp);
  }
}

void apply_llama3(const RotaryRule& r, std::vector<double>& f) {
  const double context = r.original_max_position_embeddings;
  for (double& x : f) {
    const double wavelength = two_pi / x;
    if (wavelength < context / r.high_freq_factor) continue;
    const double kept = (context / wavelength - r.low_freq_factor) / (r.high_freq_factor - r.low_freq_factor);
    x = wavelength > context / r.low_freq_factor ? x / r.factor : mixed(x / r.factor, x, kept);
  }
}

}  // namespace

double yarn_attention_factor(double factor) { return yarn_attention_factor(factor, 1, 0); }
double yarn_attention_factor(double factor, double mscale, double mscale_all_dim) {
  const auto scale = [&](double m) { return factor <= 1 ? 1.0 : 0.1 * m * std::log(factor) + 1; };
  return scale(mscale) / scale(mscale_all_dim);
}

std::vector<double> rotary_frequencies(const RotaryRule& r, int64_t rotary_dim) {
  const auto dim = static_cast<double>(rotary_dim);
  double base = r.base;
  if (r.kind == RAPT_ROTARY_DYNAMIC) {
    const double stretch = std::max(r.seqlen / r.original_max_position_embeddings, 1.0);
    base *= std::pow(r.factor * stretch - (r.factor - 1), dim / (dim - 2));
  }
  std::vector<double> f(static_cast<size_t>(rotary_dim / 2));
  for (size_t j = 0; j < f.size(); ++j) f[j] = std::pow(base, -2 * static_cast<double>(j) / dim);
  if (r.kind == RAPT_ROTARY_LINEAR)
    for (double& x : f) x /= r.factor;
  if (r.kind == RAPT_ROTARY_YARN) apply_yarn(r, dim, f);
  if (r.kind == RAPT_ROTARY_LLAMA3) apply_llama3(r, f);
  return f;
}

void fill_rotary_tables(ThreadPool& pool, const std::vector<double>& frequencies, int64_t first_position,
                        int64_t positions, double attention_factor, const RotaryOutput& cos, const RotaryOutput& sin) {
  pool.parallel_for(positions, [&](int, int64_t i) {
    for (size_t j = 0; j < frequencies.size(); ++j) {
      const double angle = static_cast<double>(first_position + i) * frequencies[j];
      const auto column = static_cast<int64_t>(j);
      cos.data[i * cos.row + column * cos.column] = static_cast<float>(attention_factor * std::cos(angle));
      sin.data[i * sin.row + column * sin.column] = static_cast<float>(attention_factor * std::sin(angle));
    }
  });
}

}  // namespace rapt::cpu
