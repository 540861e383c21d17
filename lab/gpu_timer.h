// Timing of calls on a GPU: CUDA graphs of many launches, loops of launches between two events, and what a launch costs
// the host. Called by bench, run and the ladder, in a ContextScope of the GPU.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "cuda/cuda.h"
#include "lab/statistics.h"

namespace rapt::lab {

// Enqueues call number n, which works on input set n modulo the number of sets.
using Enqueue = std::function<void(int64_t n)>;

// Sets of inputs that calls rotate through, at least: four, or cold so many that they exceed the card's L2 twice and no
// call finds its own there. Throws Error{unsupported} where that takes more than 2048.
int64_t input_sets(bool cold, double bytes_per_set, int64_t l2_bytes);

// `graphs` CUDA graphs of `launches` calls each, replayed one after another. Together they call on each of `sets` input
// sets equally often, so that each is met again only after all the others.
struct GraphShape {
  int64_t launches = 1, graphs = 1, sets = 1;
};
// Replays last 0.3 ms or more, as far as 200 launches reach, on `sets` sets or a few more.
GraphShape graph_shape(double call_us, int64_t sets);
// Calls of one sample of the other timers, by the same rule.
int64_t calls_per_sample(double call_us);

class Sampler {
 public:
  virtual ~Sampler() = default;
  virtual void sample() = 0;     // takes a sample; may return before the GPU has done it
  virtual Samples finish() = 0;  // waits, and hands over what was sampled since the last finish()
};
// One sample is one replay. Captures all calls at once: the context must have been prepared.
std::unique_ptr<Sampler> graph_sampler(const cuda::Stream& stream, const GraphShape& shape, Enqueue enqueue);
// One sample is a loop of calls; where a call costs the host more than the GPU, this measures the host.
std::unique_ptr<Sampler> event_sampler(const cuda::Stream& stream, int64_t calls, Enqueue enqueue);
// Wall time of the calls alone, while the GPU works behind them.
std::unique_ptr<Sampler> launch_sampler(const cuda::Stream& stream, int64_t calls, Enqueue enqueue);

// About what a call takes on the GPU, to choose the above by.
double rough_call_us(const cuda::Stream& stream, const Enqueue& enqueue);

// `rounds` rounds in which each sampler takes one sample, in an order drawn anew for each round from `seed`.
void sample_interleaved(const std::vector<Sampler*>& samplers, int64_t rounds, uint64_t seed);

}  // namespace rapt::lab
