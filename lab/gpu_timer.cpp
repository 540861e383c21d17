// Samplers that use events and graphs. Samples of GPU time are enqueued without gaps, so the GPU is never idle between
// two samples. Only finish() waits for the GPU.
#include "lab/gpu_timer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <utility>

#include "base/error.h"

namespace rapt::lab {
namespace {

constexpr double replay_us = 300;
constexpr int64_t most_launches = 200, warm_sets = 4, max_sets = 2048;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Takes samples between events. `enqueue_sample` puts the work of a sample on the stream.
class EventSampler : public Sampler {
 public:
  EventSampler(const cuda::Stream& stream, int64_t calls) : stream_(stream), calls_(calls) {}

  void sample() override {
    Interval& interval = intervals_.emplace_back();
    interval.begin.record(stream_.handle());
    enqueue_sample();
    interval.end.record(stream_.handle());
  }

  Samples finish() override {
    stream_.synchronize();
    Samples samples;
    samples.calls = calls_;
    for (const Interval& i : intervals_)
      samples.us.push_back(cuda::Event::microseconds(i.begin, i.end) / static_cast<double>(calls_));
    intervals_.clear();
    return samples;
  }

 protected:
  const cuda::Stream& stream_;
  const int64_t calls_;

 private:
  virtual void enqueue_sample() = 0;
  struct Interval {
    cuda::Event begin, end;
  };
  std::deque<Interval> intervals_;
};

class LoopSampler final : public EventSampler {
 public:
  LoopSampler(const cuda::Stream& stream, int64_t calls, Enqueue enqueue)
      : EventSampler(stream, calls), enqueue_(std::move(enqueue)) {}

 private:
  void enqueue_sample() override {
    for (int64_t n = 0; n < calls_; ++n) enqueue_(next_++);
  }
  Enqueue enqueue_;
  int64_t next_ = 0;
};

class GraphSampler final : public EventSampler {
 public:
  GraphSampler(const cuda::Stream& stream, const GraphShape& shape, const Enqueue& enqueue)
      : EventSampler(stream, shape.launches) {
    int64_t call = 0;
    for (int64_t g = 0; g < shape.graphs; ++g) capture(enqueue, call);
  }

 private:
  void capture(const Enqueue& enqueue, int64_t& call) {
    cuda::Graph::begin(stream_.handle());
    try {
      for (int64_t n = 0; n < calls_; ++n) enqueue(call++);
    } catch (...) {
      end_failed_capture();
      throw;
    }
    graphs_.emplace_back(stream_.handle());
  }
  // A stream that is still capturing cannot be destroyed.
  void end_failed_capture() {
    try {
      const cuda::Graph unused(stream_.handle());
    } catch (const Error&) {  // an earlier error has ended the capture; that error is the one to report
    }
  }
  void enqueue_sample() override {
    graphs_[static_cast<size_t>(next_)].replay(stream_.handle());
    next_ = (next_ + 1) % static_cast<int64_t>(graphs_.size());
  }
  std::deque<cuda::Graph> graphs_;
  int64_t next_ = 0;
};

class LaunchSampler final : public Sampler {
 public:
  LaunchSampler(const cuda::Stream& stream, int64_t calls, Enqueue enqueue)
      : stream_(stream), enqueue_(std::move(enqueue)) {
    samples_.calls = calls;
  }
  void sample() override {
    using Clock = std::chrono::steady_clock;
    const Clock::time_point begin = Clock::now();
    for (int64_t n = 0; n < samples_.calls; ++n) enqueue_(next_++);
    const std::chrono::duration<double, std::micro> us = Clock::now() - begin;
    samples_.us.push_back(us.count() / static_cast<double>(samples_.calls));
    stream_.synchronize();  // otherwise the launch queue would become full, and a launch would wait for the GPU
  }
  Samples finish() override { return std::exchange(samples_, Samples{.us = {}, .calls = samples_.calls}); }

 private:
  const cuda::Stream& stream_;
  Enqueue enqueue_;
  Samples samples_;
  int64_t next_ = 0;
};

// splitmix64 (Steele, Lea, Flood 2014). It gives the same order on every machine, but std::shuffle does not.
uint64_t next_random(uint64_t& state) {
  uint64_t z = (state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

}  // namespace

int64_t input_sets(bool cold, double bytes_per_set, int64_t l2_bytes) {
  if (!cold) return warm_sets;
  const auto sets = static_cast<int64_t>(std::ceil(2 * static_cast<double>(l2_bytes) / std::max(bytes_per_set, 1.0)));
  if (sets > max_sets)
    unsupported("--l2 cold: the problem needs ", sets, " sets of inputs to exceed twice the L2 of ", l2_bytes >> 20,
                " MiB; at most ", max_sets, " are allowed: use --l2 warm or a larger batch");
  return std::max(sets, warm_sets);
}

GraphShape graph_shape(double call_us, int64_t sets) {
  GraphShape shape;
  const int64_t wanted = calls_per_sample(call_us);
  shape.sets = sets;
  if (wanted >= sets) {
    shape.launches = std::min(ceil_div(wanted, sets), most_launches / sets) * sets;
    return shape;
  }
  shape.graphs = ceil_div(sets, wanted);
  shape.launches = ceil_div(sets, shape.graphs);
  shape.sets = shape.launches * shape.graphs;
  return shape;
}

int64_t calls_per_sample(double call_us) {
  return std::clamp(static_cast<int64_t>(std::ceil(replay_us / std::max(call_us, 0.1))), int64_t{1}, most_launches);
}

std::unique_ptr<Sampler> graph_sampler(const cuda::Stream& stream, const GraphShape& shape, Enqueue enqueue) {
  return std::make_unique<GraphSampler>(stream, shape, enqueue);
}
std::unique_ptr<Sampler> event_sampler(const cuda::Stream& stream, int64_t calls, Enqueue enqueue) {
  return std::make_unique<LoopSampler>(stream, calls, std::move(enqueue));
}
std::unique_ptr<Sampler> launch_sampler(const cuda::Stream& stream, int64_t calls, Enqueue enqueue) {
  return std::make_unique<LaunchSampler>(stream, calls, std::move(enqueue));
}

double rough_call_us(const cuda::Stream& stream, const Enqueue& enqueue) {
  LoopSampler sampler(stream, 4, enqueue);
  sampler.sample();
  sampler.sample();
  return sampler.finish().us.back();
}

void sample_interleaved(const std::vector<Sampler*>& samplers, int64_t rounds, uint64_t seed) {
  std::vector<Sampler*> order = samplers;
  for (int64_t round = 0; round < rounds; ++round) {
    for (size_t left = order.size(); left > 1; --left) std::swap(order[left - 1], order[next_random(seed) % left]);
    for (Sampler* sampler : order) sampler->sample();
  }
}

}  // namespace rapt::lab
