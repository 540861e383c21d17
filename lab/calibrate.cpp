// rapt calibrate: static scales from sample files. Called by program.cpp. Writes its output completely or not at all.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "lab/output.h"
#include "lab/progress.h"
#include "lab/quantize.h"

namespace rapt::lab {
namespace {

// The magnitudes of all values that share a scale, over all samples. Without a percentile it keeps only the maximum.
class Magnitudes {
 public:
  explicit Magnitudes(double percentile) : percentile_(percentile) {}
  void add(double y) {
    const auto magnitude = static_cast<float>(std::fabs(y));
    if (!std::isfinite(magnitude)) return;
    if (percentile_ >= 100)
      max_ = std::max(max_, magnitude);
    else
      all_.push_back(magnitude);
  }
  // The percentile of the magnitudes, by the same rule as rapt_quantize.
  float amax() {
    if (percentile_ >= 100 || all_.empty()) return max_;
    const auto count = static_cast<double>(all_.size());
    const auto rank = static_cast<size_t>(std::clamp(std::ceil(percentile_ / 100 * count), 1.0, count));
    std::nth_element(all_.begin(), all_.begin() + static_cast<int64_t>(rank) - 1, all_.end());
    return all_[rank - 1];
  }

 private:
  double percentile_;
  float max_ = 0;
  std::vector<float> all_;
};

// The means that rapt_quantize subtracts: for each channel, the mean of the finite values of one sequence. The first
// index is b * heads + h, the second is the channel.
std::vector<std::vector<double>> means_of(const AttentionInput& input, bool rotated) {
  std::vector<std::vector<double>> means(static_cast<size_t>(input.batch() * input.heads()));
  for (auto& mean : means) mean.assign(static_cast<size_t>(input.dim()), 0.0);
  std::vector<std::vector<double>> counts = means;
  input.each_row(rotated, [&](int64_t b, int64_t h, int64_t, const auto&, const double* row) {
    const auto place = static_cast<size_t>(b * input.heads() + h);
    for (size_t d = 0; d < means[place].size(); ++d)
      if (std::isfinite(row[d])) means[place][d] += row[d], counts[place][d] += 1;
  });
  for (size_t place = 0; place < means.size(); ++place)
    for (size_t d = 0; d < means[place].size(); ++d) means[place][d] /= std::max(counts[place][d], 1.0);
  return means;
}

class Calibration {
 public:
  explicit Calibration(const CalibrateOptions& options)
      : names_(tensor_names(options.tensors)), layout_(options.layout) {
    scales_.dtype = fp8_named(options.dtype);
    scales_.granularity = scale_kind_named(options.granularity);
    if (scales_.granularity != ScaleKind::head && scales_.granularity != ScaleKind::tensor)
      invalid("--granularity ", options.granularity,
              ": must be tensor or head; a finer scale would depend on the sequence");
    scales_.percentile = options.percentile.value_or(100);
    if (!(scales_.percentile > 0 && scales_.percentile <= 100))
      invalid("--percentile ", scales_.percentile, ": must be above 0 and at most 100");
    scales_.hadamard = options.hadamard, scales_.smooth_k = options.smooth_k;
    check_preparation(names_, options.hadamard, options.smooth_k);
  }

  void add(const std::string& path) {
    const TensorFile file = read_safetensors(FileSource(path));
    for (const std::string& name : names_) add(path, attention_input(path, file, name, layout_));
    ++scales_.samples;
  }

  const StaticScales& finish() {
    for (auto& [name, groups] : magnitudes_)
      for (Magnitudes& group : groups) {
        scales_.amax[name].push_back(group.amax());
        scales_.descale[name].push_back(descale_of(group.amax(), scales_.dtype));
      }
    return scales_;
  }

 private:
  void add(const std::string& path, const AttentionInput& input) {
    const bool by_head = scales_.granularity == ScaleKind::head;
    const auto count = static_cast<size_t>(by_head ? input.heads() : 1);
    auto& groups = magnitudes_.try_emplace(input.name, count, Magnitudes(scales_.percentile)).first->second;
    if (groups.size() != count)
      invalid(path, ": tensor '", input.name, "' has ", count, " heads, but the files before have ", groups.size());
    const bool rotated = scales_.hadamard && input.name != "v";
    std::vector<std::vector<double>> means;
    if (scales_.smooth_k && input.name == "k") means = means_of(input, rotated);
    input.each_row(rotated, [&](int64_t b, int64_t h, int64_t, const auto&, const double* row) {
      Magnitudes& group = groups[by_head ? static_cast<size_t>(h) : 0];
      for (size_t d = 0; d < static_cast<size_t>(input.dim()); ++d)
        group.add(means.empty() ? row[d] : row[d] - means[static_cast<size_t>(b * input.heads() + h)][d]);
    });
  }

  const std::vector<std::string> names_;
  const std::string layout_;
  StaticScales scales_;
  std::map<std::string, std::vector<Magnitudes>> magnitudes_;
};

void print_text(const StaticScales& scales, const CalibrateOptions& options) {
  fmt::print("samples  {}\n", scales.samples);
  for (const auto& [name, amax] : scales.amax) {
    const auto [low, high] = std::minmax_element(amax.begin(), amax.end());
    if (amax.empty())
      fmt::print("{}        no heads\n", name);
    else
      fmt::print("{}        {} {}: largest values {:.4g} to {:.4g}\n", name, amax.size(),
                 amax.size() == 1 ? "factor" : "factors", *low, *high);
  }
  fmt::print("output   {}\n", options.output);
}

}  // namespace

int calibrate(const CalibrateOptions& options) {
  Calibration calibration(options);
  for (const std::string& path : options.inputs) check_output_file("-o", options.output, "a sample", path);
  Progress progress(options.inputs.size());
  for (size_t i = 0; i < options.inputs.size(); ++i) {
    progress.at(i, options.inputs[i]);
    calibration.add(options.inputs[i]);
  }
  progress.clear();
  const StaticScales& scales = calibration.finish();
  const std::string text = to_json(scales);
  AtomicFile file(options.output);
  file.write(text);
  file.commit();
  if (options.common.json)
    fmt::print("{}", text);
  else
    print_text(scales, options);
  return exit_success;
}

}  // namespace rapt::lab
