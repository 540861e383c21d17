// BenchRow: one measurement. bench prints it, and stores it in results/ (schema: docs/results-schema.json). Called by
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
  std::string implementation = "rapt";  // "rapt"; with --config WORDS "rapt WORDS"; or the name of a peer
  std::string family, config;
  std::string signature;  // signature of the compiled GPU kernel; the next three fields also describe this kernel
  std::string arch;
  std::optional<int> sm_count;                // GPU only: multiprocessors for which the kernel was planned
  std::optional<int> registers, spill_bytes;  // per thread; absent if only the driver knows them
  Samples samples;
  int attempts = 1;                         // number of attempts; `samples` are from the one with the smallest spread
  GpuClocks clocks_before, clocks_after;    // GPU only: read after warm-up and after sampling, while kernels run
  double cold_us = 0;                       // time of rapt_prepare in a new context: plan, compile or fetch, load
  std::optional<double> first_us, host_us;  // GPU only: first call after rapt_prepare; host time of a warm call
  std::string timer = "host", l2 = "warm";
  bool pdl = false;  // programmatic dependent launch
  int64_t input_sets = 1;
  check::Errors err;
  int64_t row_step = 1;  // the check compared every row_step-th query of each head
  std::string card, driver, nvrtc, command, version;
  int threads = 1;
  double flops = 0, bytes = 0;
  Unit unit = Unit::f32;
  Roof roof;
  std::optional<Roofline> roofline;  // GPU only

  double gflops() const;  // computed from the median
  double gbytes() const;
  double roof_share() const;  // fraction of the measured peak: 1 = at the peak, 0 = not measured
};

nlohmann::ordered_json to_json(const BenchRow& row);

}  // namespace rapt::lab
