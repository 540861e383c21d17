// BenchRow: one measurement, as bench prints it and as it stands in results/ (schema: docs/results-schema.json).
// Called by bench and tests.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "check/compare.h"
#include "lab/roof.h"
#include "lab/statistics.h"

namespace rapt::lab {

inline constexpr const char* bench_schema = "rapt.bench/1";

struct BenchRow {
  std::string problem;
  std::string arm = "rapt";  // who computed: peers come with the peer benchmark
  std::string family, config;
  std::string signature;  // of a compiled GPU kernel
  Samples samples;
  double cold_us = 0;  // plan, compile, load
  std::string timer = "host", l2 = "warm";
  bool pdl = false;  // programmatic dependent launch
  int64_t input_sets = 1;
  check::Errors err;
  int64_t row_step = 1;  // queries of each head that were checked: every row_step-th
  std::string card, driver, nvrtc, command, version;
  int threads = 1;
  double flops = 0, bytes = 0;
  bool bf16_products = false;
  Roof roof;

  double gflops() const;  // by the median
  double gbytes() const;
  double roof_share() const;  // of the time that the measured roof allows: 1 = at the roof
};

nlohmann::ordered_json to_json(const BenchRow& row);

}  // namespace rapt::lab
