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
// Rates and shares. 0: not measured.
nlohmann::ordered_json measured(double value) {
  return value > 0 ? nlohmann::ordered_json(value) : nlohmann::ordered_json(nullptr);
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
      {"registers", or_null(row.registers)},
      {"spill_bytes", or_null(row.spill_bytes)},
      {"us", row.samples.us},
      {"median", time.median},
      {"q1", time.q1},
      {"q3", time.q3},
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
        {"fp8", nullptr}}},
      {"bandwidth", measured(row.roof.read_bytes / 1e9)}};
  return json;
}

}  // namespace rapt::lab
