// Time stamps of one launch of a kernel that was compiled with RAPT_TRACE_ON (kernels/device/trace.cuh): the memory
// that the marks fill, the stages of each warp, a table, and a trace for Perfetto (ui.perfetto.dev) or
// chrome://tracing. profile_trace.cpp fills the memory on a GPU, emulate.cpp on this CPU.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "jit/jit.h"
#include "kernels/family.h"
#include "kernels/shared/trace_buffer.h"

namespace rapt::lab {

inline constexpr const char* trace_variable = "rapt_trace_buffer";

// The caller's files of a request, and device/trace.cuh with its macros switched on.
std::map<std::string, std::string> with_trace(std::map<std::string, std::string> files);

// The names of RAPT_TRACE_STAGES in the sources of a request, in their order. Throws Error{unsupported} if there are
// none, Error{invalid_argument} if they are malformed.
std::vector<std::string> trace_stages(const jit::Request& request);

// How much memory the marks of a launch need.
struct TraceShape {
  unsigned ctas = 0, warps = 0, steps = 0, stages = 0;  // as in TraceBuffer
  unsigned all_ctas = 0;                                // of the launch; `ctas` may be fewer
  size_t marks() const { return size_t{ctas} * warps * steps * stages; }
  size_t all_warps() const { return size_t{ctas} * warps; }
  size_t counts() const { return all_warps() * stages; }
};
// Computes the number of steps (the blocks of keys that a CTA may visit) from the configuration's tiles and the grid.
// With a dynamic schedule some CTAs take more tiles than others. So there is memory for 1.5 times the average.
TraceShape trace_shape(const Problem& problem, const KernelConfig& config, const LaunchShape& launch, int threads,
                       size_t stages);

struct TraceMemory {
  TraceShape shape;
  std::vector<unsigned long long> marks;  // as in TraceBuffer
  std::vector<TraceWarp> of_warps;
  unsigned lost = 0;
};

struct TracedStage {
  unsigned stage = 0, step = 0;                     // stage: index of the names
  unsigned long long begin_cycles = 0, cycles = 0;  // of its multiprocessor
};
struct TracedWarp {
  unsigned cta = 0, warp = 0;
  unsigned long long sm = 0, begin_cycles = 0, end_cycles = 0;
  std::vector<TracedStage> stages;  // in order of time
};
struct Trace {
  std::vector<std::string> names;  // of the stages
  std::vector<TracedWarp> warps;   // those that ran to their end
  TraceShape shape;
  bool lost = false;
  double ns_per_cycle = 1;
  std::map<unsigned long long, double> origin_ns;  // of a multiprocessor: its time at cycle 0, since the kernel's begin

  double ns(const TracedWarp& warp, unsigned long long cycles) const {
    return origin_ns.at(warp.sm) + static_cast<double>(cycles) * ns_per_cycle;
  }
};
// A "#" in a role becomes the number of the warpgroup: "consumer #: QK" of warps 4 to 7 is "consumer 1: QK".
// Throws Error{internal} if no warp ran to its end.
Trace read_trace(std::vector<std::string> names, const TraceMemory& memory);

// "consumer: QK" -> "consumer" and "QK"; "QK" -> "" and "QK".
std::string role_of(const std::string& name);
std::string stage_of(const std::string& name);

// One row of the table, over all warps that have the stage.
struct StageSummary {
  std::string role, stage;
  double per_warp = 0;                       // median number of times that a warp began it
  double median_cycles = 0, q1 = 0, q3 = 0;  // of one time
  double share = 0;                          // of the time of these warps
};
struct TraceSummary {
  std::vector<StageSummary> stages;
  double cta_us = 0, start_us = 0, tail_us = 0;  // medians over the CTAs: whole time, before the first step, after the
                                                 // last; start and tail are 0 if there are no repeated stages
  double kernel_us = 0;                          // from the first begin to the last end
  double ramp_us = 0, drain_us = 0;              // until every multiprocessor has begun; since the first has ended
  size_t sms = 0;
};
TraceSummary summarise(const Trace& trace);

std::string to_text(const Trace& trace, const TraceSummary& summary);
nlohmann::ordered_json to_json(const Trace& trace, const TraceSummary& summary);

// The events in Chrome's trace format. A process is a multiprocessor, a thread a warp of a CTA. Whole multiprocessors
// are left out beyond most_stages.
nlohmann::ordered_json chrome_trace(const Trace& trace, const std::string& title, size_t most_stages = 100'000);

}  // namespace rapt::lab
