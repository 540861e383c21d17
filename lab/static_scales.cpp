// Reads and writes static scales as a JSON file with schema rapt.scales/1 (docs/lab.md). calibrate writes this file,
// and quantize reads it.
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "check/format.h"
#include "lab/quantize.h"

namespace rapt::lab {
namespace {

using json = nlohmann::ordered_json;
constexpr const char* schema = "rapt.scales/1";

std::vector<float> factors_from(const std::string& name, const json& array, ScaleKind granularity) {
  if (array.is_object()) invalid("tensors.", name, ".descale is ", array.dump(), ": must be a list of numbers");
  std::vector<float> factors;
  for (const json& number : array) {
    const auto factor = static_cast<float>(number.get<double>());
    if (!std::isfinite(factor) || factor < 0x1p-126f)
      invalid("tensors.", name, ".descale holds ", number.dump(), ": must be finite and at least 2^-126");
    factors.push_back(factor);
  }
  if (factors.empty() || (granularity == ScaleKind::tensor && factors.size() != 1))
    invalid("tensors.", name, ".descale holds ", factors.size(), " numbers: must be ",
            granularity == ScaleKind::tensor ? "one" : "one for each head");
  return factors;
}

}  // namespace

std::string to_json(const StaticScales& s) {
  json tensors = json::object();
  for (const auto& [name, factors] : s.descale) tensors[name] = {{"amax", s.amax.at(name)}, {"descale", factors}};
  const json all = {{"schema", schema},           {"dtype", name_of(s.dtype)}, {"granularity", name_of(s.granularity)},
                    {"percentile", s.percentile}, {"hadamard", s.hadamard},    {"smooth_k", s.smooth_k},
                    {"samples", s.samples},       {"tensors", tensors}};
  return all.dump(2) + "\n";
}

StaticScales parse_static_scales(const std::string& text, const std::string& where) {
  try {
    const json all = json::parse(text);
    if (all.at("schema") != schema) invalid("schema is ", all.at("schema").dump(), ": must be \"", schema, "\"");
    StaticScales s;
    s.dtype = fp8_named(all.at("dtype").get<std::string>());
    s.granularity = scale_kind_named(all.at("granularity").get<std::string>());
    if (s.granularity != ScaleKind::head && s.granularity != ScaleKind::tensor)
      invalid("granularity is ", name_of(s.granularity), ": must be tensor or head");
    all.at("percentile").get_to(s.percentile);
    all.at("hadamard").get_to(s.hadamard);
    all.at("smooth_k").get_to(s.smooth_k);
    all.at("samples").get_to(s.samples);
    for (const auto& [name, entry] : all.at("tensors").items())
      s.descale[name] = factors_from(name, entry.at("descale"), s.granularity);
    return s;
  } catch (const std::exception& error) {
    invalid(where, ": not a file of scales: ", error.what());
  }
}

double largest_code(DType dtype) { return check::largest_finite(dtype); }

float descale_of(double amax, DType dtype) {
  if (amax == 0) return 1.0f;
  return std::fmax(static_cast<float>(amax) / static_cast<float>(largest_code(dtype)), 0x1p-126f);
}

}  // namespace rapt::lab
