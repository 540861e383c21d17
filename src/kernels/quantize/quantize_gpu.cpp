// Quantisation, host code: the kernels of a call, their translation units and launches. The kernels are in
// quantize.cuh.
#include "kernels/quantize/quantize_gpu.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/config_table.h"

namespace rapt {
// Converts the enumerations in the config table to text.
static std::string config_word(QuantizeStep step) {
  constexpr const char* names[] = {"mean", "clear", "amax", "finish", "select", "encode"};
  return names[static_cast<size_t>(step)];
}
static std::string config_code(QuantizeStep step) { return concat("rapt::QuantizeStep::", config_word(step)); }
static std::string config_word(ScaleKind group) {
  constexpr const char* names[] = {"", "tensor", "head", "token", "block64", "block128", "channel"};
  return names[static_cast<size_t>(group)];
}
static std::string config_code(ScaleKind group) { return concat("rapt::ScaleKind::", config_word(group)); }

namespace {

// Returns whether every row is contiguous, consists of whole chunks of 8 channels, and is aligned to `alignment` bytes.
bool has_vectors(const TensorRef& t, index_t dim, int alignment) {
  const auto is_multiple = [&](index_t elements) { return elements * bytes_of(t.dtype) % alignment == 0; };
  return dim > 0 && dim % QuantizeConfig::chunk == 0 && t.column == 1 &&
         reinterpret_cast<uintptr_t>(t.data) % static_cast<uintptr_t>(alignment) == 0 && is_multiple(t.batch) &&
         is_multiple(t.head) && is_multiple(t.row);
}

constexpr ConfigField config_fields[] = {
    config_field<QuantizeConfig, &QuantizeConfig::step>("step"),
    config_field<QuantizeConfig, &QuantizeConfig::input>("input"),
    config_field<QuantizeConfig, &QuantizeConfig::output>("output"),
    config_field<QuantizeConfig, &QuantizeConfig::dim>("dim"),
    config_field<QuantizeConfig, &QuantizeConfig::group>("group"),
    config_field<QuantizeConfig, &QuantizeConfig::descales_ready>("descales_ready"),
    config_field<QuantizeConfig, &QuantizeConfig::hadamard>("hadamard"),
    config_field<QuantizeConfig, &QuantizeConfig::smooth>("smooth"),
    config_field<QuantizeConfig, &QuantizeConfig::input_vectors>("input_vectors"),
    config_field<QuantizeConfig, &QuantizeConfig::output_vectors>("output_vectors"),
};
constexpr ConfigType config_table = config_type<QuantizeConfig>("QuantizeConfig", config_fields);

// The configuration of one step. Fields that the step does not use keep their defaults, so that calls share kernels.
QuantizeConfig config_of(const QuantizeParams& p, QuantizeStep step) {
  QuantizeConfig c;
  c.step = step;
  c.group = p.group;
  if (step == QuantizeStep::clear || step == QuantizeStep::finish) {
    c.dim = 1;
    if (step == QuantizeStep::finish) c.output = p.output.dtype;
    return c;
  }
  c.dim = static_cast<int>(p.dim);
  c.input = p.input.dtype;
  c.hadamard = p.hadamard && p.dim > 0;
  c.input_vectors = has_vectors(p.input, p.dim, 16);
  if (step == QuantizeStep::mean) {
    c.group = ScaleKind::tensor;
    return c;
  }
  c.smooth = p.mean != nullptr && p.dim > 0;
  if (step == QuantizeStep::select || step == QuantizeStep::encode) c.output = p.output.dtype;
  if (step == QuantizeStep::encode) {
    c.output_vectors = has_vectors(p.output, p.dim, QuantizeConfig::chunk);
    c.descales_ready = p.supplied || rows_sharing(p.group) == 0 || p.percentile < 100;
  }
  return c;
}

}  // namespace

std::vector<QuantizeConfig> quantize_configs(const QuantizeParams& p) {
  constexpr index_t max_channels = index_t{1} << 24;  // chunks of a tile are counted in int
  constexpr index_t max_rows = index_t{1} << 36;      // a thread counts its rows in unsigned
  if (p.dim > max_channels) unsupported("input: dim = ", p.dim, ": a GPU quantises at most 2^24 channels of a head");
  if (p.mean != nullptr && p.seqlen > max_rows)
    unsupported("input: seqlen = ", p.seqlen, ": a GPU finds means of at most 2^36 rows");
  std::vector<QuantizeStep> steps;
  if (p.mean != nullptr) steps.push_back(QuantizeStep::mean);
  if (!p.supplied) {
    if (p.percentile < 100)
      steps.push_back(QuantizeStep::select);
    else if (rows_sharing(p.group) == 0)
      steps.insert(steps.end(), {QuantizeStep::clear, QuantizeStep::amax, QuantizeStep::finish});
  }
  steps.push_back(QuantizeStep::encode);
  std::vector<QuantizeConfig> configs;
  for (const QuantizeStep step : steps) {
    const QuantizeConfig config = config_of(p, step);
    if (quantize_work_items(p, config) > 0) configs.push_back(config);
  }
  return configs;
}

KernelUnit quantize_unit(const QuantizeConfig& c) {
  return {emit_unit("quantize/quantize.cuh", "quantize", config_table, &c, "QuantizeParams", "cfg.min_blocks()"),
          c.threads(), static_cast<size_t>(c.shared_words()) * sizeof(unsigned)};
}

LaunchSpec quantize_launch(const QuantizeParams& params, const QuantizeConfig& config) {
  LaunchSpec spec(params);
  const QuantizeGrid grid = quantize_grid(params, config);
  spec.grid_x = static_cast<unsigned>(grid.x);
  spec.grid_y = static_cast<unsigned>(grid.y);
  spec.grid_z = static_cast<unsigned>(grid.z);
  return spec;
}

}  // namespace rapt
