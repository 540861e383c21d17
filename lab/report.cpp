// BenchRow as JSON.
// Called by bench and tests.
#include "lab/report.h"

#include <nlohmann/json.hpp>

#include "rapt_build_info.h"

namespace rapt::lab {

double BenchRow::gflops() const { return flops / quartiles(samples.us).median / 1e3; }
double BenchRow::gbytes() const { return bytes / quartiles(samples.us).median / 1e3; }
double BenchRow::roof_share() const {
  return roof_seconds(roof, flops, bytes, unit) * 1e6 / quartiles(samples.us).median;
}

namespace {

template <class T>
nlohmann::ordered_json or_null(const std::optional<T>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
}
// A rate or share. Null if it is 0, which means that it was not measured.
nlohmann::ordered_json measured(double value) {
  return value > 0 ? nlohmann::ordered_json(value) : nlohmann::ordered_json(nullptr);
}

// The clocks of a GPU; null on the CPU. A field that NVML does not report is null.
nlohmann::ordered_json clocks_json(const BenchRow& row) {
  const GpuClocks &before = row.clocks_before, &after = row.clocks_after;
  if (row.threads > 0) return nullptr;
  nlohmann::ordered_json throttle = nullptr;
  if (before.limits || after.limits) throttle = limit_names(before.limits.value_or(0) | after.limits.value_or(0));
  return {{"sm_mhz", {or_null(before.sm_mhz), or_null(after.sm_mhz)}},
          {"memory_mhz", {or_null(before.memory_mhz), or_null(after.memory_mhz)}},
          {"throttle", throttle}};
}

nlohmann::ordered_json bound_json(const Bound& bound) {
  nlohmann::ordered_json units = nlohmann::ordered_json::object();
  for (const UnitTime& unit : bound.units) units[std::string(unit.unit)] = unit.us;
  return {{"bound", bound.unit}, {"floor_us", bound.floor_us}, {"launch_us", bound.launch_us}, {"units_us", units}};
}

nlohmann::ordered_json roofline_json(const std::optional<Roofline>& roofline) {
  if (!roofline) return nullptr;
  return {{"kernel", bound_json(roofline->kernel)}, {"card", bound_json(roofline->card)}};
}

// The peaks of a GPU. Null on the CPU, whose peaks are in gemm_tflops and bandwidth.
nlohmann::ordered_json peaks_json(const BenchRow& row) {
  if (row.threads > 0) return nullptr;
  const Roof& roof = row.roof;
  return {{"f32_tflops", measured(roof.fma_flops / 1e12)},
          {"mma_f16_tflops", measured(roof.f16_flops / 1e12)},
          {"mma_tf32_tflops", measured(roof.tf32_flops / 1e12)},
          {"mma_fp8_tflops", measured(roof.fp8_flops / 1e12)},
          {"wgmma_f16_tflops", measured(roof.wgmma_f16_flops / 1e12)},
          {"wgmma_fp8_tflops", measured(roof.wgmma_fp8_flops / 1e12)},
          {"exp2_gops", measured(roof.exponentials / 1e9)},
          {"l2_gbs", measured(roof.l2_bytes / 1e9)},
          {"dram_gbs", measured(roof.read_bytes / 1e9)},
          {"launch_us", measured(roof.launch_seconds * 1e6)}};
}

}  // namespace

nlohmann::ordered_json to_json(const BenchRow& row) {
  const Quartiles time = quartiles(row.samples.us);
  nlohmann::ordered_json json = {
      {"schema", bench_schema},
      {"problem", row.problem},
      {"arm", row.implementation},
      {"family", row.family},
      {"config", row.config},
      {"signature", row.signature},
      {"arch", row.arch},
      {"sm_count", or_null(row.sm_count)},
      {"registers", or_null(row.registers)},
      {"spill_bytes", or_null(row.spill_bytes)},
      {"us", row.samples.us},
      {"median", time.median},
      {"q1", time.q1},
      {"q3", time.q3},
      {"spread", spread(row.samples)},
      {"attempts", row.attempts},
      {"calls", row.samples.calls},
      {"cold_us", row.cold_us},
      {"first_us", or_null(row.first_us)},
      {"host_us", or_null(row.host_us)},
      {"timer", row.timer},
      {"pdl", row.pdl},
      {"l2", row.l2},
      {"input_sets", row.input_sets},
      {"err", {{"max_abs", row.err.max_abs}, {"mean_abs", row.err.mean_abs}, {"rel_rms", row.err.rel_rms}}},
      {"checked_rows", row.row_step},
      {"gflops", row.gflops()},
      {"gbytes", row.gbytes()},
      {"roof_share", measured(row.roof_share())},
      {"card", row.card},
      {"threads", row.threads},
      {"driver", row.driver},
      {"nvrtc", row.nvrtc},
      {"version", row.version},
      {"commit", build_commit},
      {"dirty", build_dirty},
      {"command", row.command},
      {"gemm_tflops",
       {{"f32", measured(row.roof.fma_flops / 1e12)},
        {"bf16", measured(row.roof.bf16_flops / 1e12)},
        {"f16", measured(row.roof.f16_flops / 1e12)},
        {"fp8", measured(row.roof.best_fp8_flops() / 1e12)}}},
      {"bandwidth", measured(row.roof.read_bytes / 1e9)},
      {"clocks", clocks_json(row)},
      {"roofline", roofline_json(row.roofline)},
      {"peaks", peaks_json(row)}};
  return json;
}

}  // namespace rapt::lab
