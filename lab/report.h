// BenchRow: one measurement, as bench prints it and as results/ stores it (schema: docs/results-schema.json). Called by
// bench and tests.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "check/compare.h"
#include "lab/gpu_clocks.h"
#include "lab/roof.h"
#include "lab/roofline.h"
#include "lab/statistics.h"

namespace rapt::lab {

inline constexpr const char* bench_schema = "rapt.bench/1";

struct BenchRow {
  std::string problem;
  std::string implementation = "rapt";  // the implementation: rapt, "rapt WORDS" with --config WORDS, or a peer
  std::string family, config;
  std::string signature;  // of a compiled GPU kernel, like the next three fields
  std::string arch;
  std::optional<int> registers, spill_bytes;  // per thread; absent if only the driver knows
  Samples samples;
  int attempts = 1;                         // how often the samples were taken; these had the smallest spread
  GpuClocks clocks_before, clocks_after;    // GPU: after the warm-up and after the samples, while kernels run
  double cold_us = 0;                       // rapt_prepare in a new context: plan, compile or fetch, load
  std::optional<double> first_us, host_us;  // GPU: the first call after that; host time of a warm call
  std::string timer = "host", l2 = "warm";
  bool pdl = false;  // programmatic dependent launch
  int64_t input_sets = 1;
  check::Errors err;
  int64_t row_step = 1;  // every row_step-th query of each head was checked
  std::string card, driver, nvrtc, command, version;
  int threads = 1;
  double flops = 0, bytes = 0;
  Unit unit = Unit::f32;
  Roof roof;
  std::optional<Roofline> roofline;  // GPU

  double gflops() const;  // from the median
  double gbytes() const;
  double roof_share() const;  // fraction of the measured peak: 1 = at the peak, 0 = not measured
};

nlohmann::ordered_json to_json(const BenchRow& row);

}  // namespace rapt::lab
