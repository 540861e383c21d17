// BenchRow as JSON.
// Called by bench and tests.
#include "lab/report.h"

#include <nlohmann/json.hpp>

#include "rapt_build_info.h"

namespace rapt::lab {

double BenchRow::gflops() const { return flops / quartiles(samples.us).median / 1e3; }
double BenchRow::gbytes() const { return bytes / quartiles(samples.us).median / 1e3; }
double BenchRow::roof_share() const {
  return roof_seconds(roof, flops, bytes, bf16_products) * 1e6 / quartiles(samples.us).median;
}

nlohmann::ordered_json to_json(const BenchRow& row) {
  const Quartiles time = quartiles(row.samples.us);
  const nlohmann::ordered_json none = nullptr;
  nlohmann::ordered_json json = {
      {"schema", bench_schema},
      {"problem", row.problem},
      {"arm", row.arm},
      {"family", row.family},
      {"config", row.config},
      {"signature", row.signature},
      {"us", row.samples.us},
      {"median", time.median},
      {"q1", time.q1},
      {"q3", time.q3},
      {"calls", row.samples.calls},
      {"cold_us", row.cold_us},
      {"timer", row.timer},
      {"pdl", row.pdl},
      {"l2", row.l2},
      {"input_sets", row.input_sets},
      {"err", {{"max_abs", row.err.max_abs}, {"mean_abs", row.err.mean_abs}, {"rel_rms", row.err.rel_rms}}},
      {"checked_rows", row.row_step},
      {"gflops", row.gflops()},
      {"gbytes", row.gbytes()},
      {"roof_share", row.roof_share()},
      {"card", row.card},
      {"threads", row.threads},
      {"driver", row.driver},
      {"nvrtc", row.nvrtc},
      {"version", row.version},
      {"commit", build_commit},
      {"dirty", build_dirty},
      {"command", row.command},
      {"gemm_tflops",
       {{"f32", row.roof.fma_flops / 1e12},
        {"bf16", row.roof.bf16_flops > 0 ? nlohmann::ordered_json(row.roof.bf16_flops / 1e12) : none},
        {"f16", none},
        {"fp8", none}}},
      {"bandwidth", row.roof.read_bytes / 1e9}};
  return json;
}

}  // namespace rapt::lab
