// Time stamps of one launch of a kernel that was compiled with RAPT_TRACE_ON (kernels/device/trace.cuh). The kernel's
// marks fill a memory. From this memory come the stages of each warp, a table, and a trace for Perfetto
// (ui.perfetto.dev) or chrome://tracing. profile_trace.cpp fills the memory on a GPU, and emulate.cpp on this CPU.
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

// Returns `files` (the caller's files of a jit::Request) with device/trace.cuh added, in which the macros are on.
std::map<std::string, std::string> with_trace(std::map<std::string, std::string> files);

// The names of stages that RAPT_TRACE_STAGES lists in the sources of a request, in the same order. Throws
// Error{unsupported} if there are no names, Error{invalid_argument} if the list is malformed.
std::vector<std::string> trace_stages(const jit::Request& request);

// The sizes of the memory for the marks of a launch.
struct TraceShape {
  unsigned ctas = 0, warps = 0, steps = 0, stages = 0;  // same meaning as in TraceBuffer
  unsigned all_ctas = 0;                                // number of CTAs in the launch; `ctas` can be smaller
  size_t marks() const { return size_t{ctas} * warps * steps * stages; }
  size_t all_warps() const { return size_t{ctas} * warps; }
};
// Computes the number of steps (the blocks of keys that a CTA can visit) from the configuration's tiles and the grid.
// If CTAs compute several tiles, some can take more tiles than others. So there is memory for 1.5 times the average.
TraceShape trace_shape(const Problem& problem, const KernelConfig& config, const LaunchShape& launch, int threads,
                       size_t stages);

struct TraceMemory {
  TraceShape shape;
  std::vector<unsigned long long> marks;  // same layout as in TraceBuffer
  std::vector<TraceWarp> of_warps;
  unsigned lost = 0;
};

struct TracedStage {
  unsigned stage = 0, step = 0;                     // stage: index in Trace::names
  unsigned long long begin_cycles = 0, cycles = 0;  // begin and duration, in cycles of the multiprocessor
};
struct TracedWarp {
  unsigned cta = 0, warp = 0;
  unsigned long long sm = 0, begin_cycles = 0, end_cycles = 0;
  std::vector<TracedStage> stages;  // in order of time
};
struct Trace {
  std::vector<std::string> names;  // names of the stages
  std::vector<TracedWarp> warps;   // only warps that have recorded their end
  TraceShape shape;
  bool lost = false;
  double ns_per_cycle = 1;
  std::map<unsigned long long, double> origin_ns;  // key: multiprocessor; value: its time at cycle 0 (kernel begin = 0)

  double ns(const TracedWarp& warp, unsigned long long cycles) const {
    return origin_ns.at(warp.sm) + static_cast<double>(cycles) * ns_per_cycle;
  }
};
// Replaces a "#" in a role by the number of the warpgroup: "consumer #: QK" becomes "consumer 1: QK" for warps 4 to 7.
// Throws Error{internal} if no warp has recorded its end.
Trace read_trace(std::vector<std::string> names, const TraceMemory& memory);

// The two parts of a name. "consumer: QK" has the role "consumer" and the stage "QK"; "QK" has the role "".
std::string role_of(const std::string& name);
std::string stage_of(const std::string& name);

// One row of the table, over all warps that have the stage.
struct StageSummary {
  std::string role, stage;
  double per_warp = 0;                       // how often a warp began the stage (median)
  double median_cycles = 0, q1 = 0, q3 = 0;  // cycles from one begin to the end of the stage
  double share = 0;                          // share of the time of these warps
};
struct TraceSummary {
  std::vector<StageSummary> stages;
  double cta_us = 0, start_us = 0, tail_us = 0;  // medians over the CTAs: the whole time, the time before the first
                                                 // step, the time after the last step; the last two are 0 if there
                                                 // are no repeated stages
  double kernel_us = 0;                          // from the first begin to the last end of a CTA
  double ramp_us = 0, drain_us = 0;              // ramp: until every multiprocessor has begun; drain: from the time at
                                                 // which the first multiprocessor is idle to the end
  size_t sms = 0;
};
TraceSummary summarise(const Trace& trace);

std::string to_text(const Trace& trace, const TraceSummary& summary);
nlohmann::ordered_json to_json(const Trace& trace, const TraceSummary& summary);

// The events in Chrome's trace format. In it, a process stands for a multiprocessor, and a thread for a warp of a CTA.
// If there are more than most_stages stages, whole multiprocessors are left out.
nlohmann::ordered_json chrome_trace(const Trace& trace, const std::string& title, size_t most_stages = 100'000);

}  // namespace rapt::lab
