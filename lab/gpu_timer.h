// Timing of calls on a GPU: with CUDA graphs of many launches, or with loops of launches between two events. Also
// measures the host time of a launch. Called by bench, run and the ladder, in a ContextScope of the GPU.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "cuda/cuda.h"
#include "lab/statistics.h"

namespace rapt::lab {

// Enqueues call number n. It uses input set n modulo the number of sets.
using Enqueue = std::function<void(int64_t n)>;

// Successive calls use different input sets. Returns the minimum number of sets. This is four; if `cold`, also enough
// that all sets together are larger than twice the GPU's L2, so no call finds its inputs in L2. Throws
// Error{unsupported} if more than 2048 sets would be necessary.
int64_t input_sets(bool cold, double bytes_per_set, int64_t l2_bytes);

// `graphs` CUDA graphs of `launches` calls each, replayed one after another. All graphs together use each of the `sets`
// input sets equally often, and use a set again only after all other sets.
struct GraphShape {
  int64_t launches = 1, graphs = 1, sets = 1;
};
// Chooses the shape for calls of `call_us`. A replay takes at least 0.3 ms if 200 launches, the maximum, are sufficient
// for that. The shape uses `sets` sets, or a few more so that all graphs have the same number of launches.
GraphShape graph_shape(double call_us, int64_t sets);
// The number of calls in one sample of the other timers, by the same rule.
int64_t calls_per_sample(double call_us);

class Sampler {
 public:
  virtual ~Sampler() = default;
  virtual void sample() = 0;     // takes a sample; may return before the GPU has finished
  virtual Samples finish() = 0;  // waits, and returns the samples since the last finish()
};
// One sample is one replay. Captures all calls at construction: the context must have been prepared.
std::unique_ptr<Sampler> graph_sampler(const cuda::Stream& stream, const GraphShape& shape, Enqueue enqueue);
// One sample is a loop of calls. If a call takes longer on the host than on the GPU, this measures the host.
std::unique_ptr<Sampler> event_sampler(const cuda::Stream& stream, int64_t calls, Enqueue enqueue);
// One sample is the host time of a loop of calls. It does not wait for the GPU.
std::unique_ptr<Sampler> launch_sampler(const cuda::Stream& stream, int64_t calls, Enqueue enqueue);

// The approximate GPU time of a call. graph_shape() and calls_per_sample() need it.
double rough_call_us(const cuda::Stream& stream, const Enqueue& enqueue);

// Runs `rounds` rounds. In each round every sampler takes one sample; `seed` gives a new order for each round.
void sample_interleaved(const std::vector<Sampler*>& samplers, int64_t rounds, uint64_t seed);

}  // namespace rapt::lab
