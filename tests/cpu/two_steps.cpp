// The kernels of two_steps.h and their host code.
#include "two_steps.h"

#include <algorithm>

namespace rapt::test {
namespace {

struct TwoStepsConfig {
  int splits = 4;
  bool operator==(const TwoStepsConfig&) const = default;
};
constexpr ConfigField fields[] = {config_field<TwoStepsConfig, &TwoStepsConfig::splits>("splits", ConfigRole::tunable)};
constexpr ConfigType config_table = config_type<TwoStepsConfig>("TwoStepsConfig", fields);

// The same struct as in the kernels' source.
struct TwoStepsParams {
  AttentionParams attention;
  float* states;
  unsigned* arrived;
  int splits;
  unsigned blocks;
};

constexpr const char* head = R"(#include "shared/params.h"
struct TwoStepsParams {
  rapt::AttentionParams attention;
  float* states;
  unsigned* arrived;
  int splits;
  unsigned blocks;
};
struct Row {
  long b, h, i;
  __device__ Row(const rapt::AttentionParams& a, long row)
      : b(row / (a.heads_q * a.seqlen_q)), h(row / a.seqlen_q % a.heads_q), i(row % a.seqlen_q) {}
};
)";

// A thread computes a row and a part of the keys. Its state is the maximum, the sum of the weights, and the sum of the
// weighted values.
constexpr const char* parts_text = R"(
__device__ float score(const rapt::AttentionParams& a, const Row& r, long key) {
  const float* q = static_cast<const float*>(a.q.data) + a.q.index(r.b, r.h, r.i);
  const float* k = static_cast<const float*>(a.k.data) + a.k.index(r.b, r.h / a.group, key);
  float sum = 0;
  for (long d = 0; d < a.head_dim; ++d) sum += q[d * a.q.column] * k[d * a.k.column];
  return sum * a.scale;
}
__device__ void part(const TwoStepsParams& p, long index) {
  const rapt::AttentionParams& a = p.attention;
  const Row r(a, index / p.splits);
  const long keys = (a.seqlen_k + p.splits - 1) / p.splits, begin = index % p.splits * keys;
  const long end = begin + keys < a.seqlen_k ? begin + keys : a.seqlen_k;
  float* state = p.states + index * (a.head_dim_v + 2);
  float most = -1e30f, sum = 0;
  for (long key = begin; key < end; ++key) most = fmaxf(most, score(a, r, key));
  for (long c = 0; c < a.head_dim_v; ++c) state[2 + c] = 0;
  for (long key = begin; key < end; ++key) {
    const float weight = expf(score(a, r, key) - most);
    const float* v = static_cast<const float*>(a.v.data) + a.v.index(r.b, r.h / a.group, key);
    sum += weight;
    for (long c = 0; c < a.head_dim_v; ++c) state[2 + c] += weight * v[c * a.v.column];
  }
  state[0] = most, state[1] = sum;
}
extern "C" __global__ void rapt_kernel(const __grid_constant__ TwoStepsParams p) {
  const long index = blockIdx.x * 128l + threadIdx.x;
  if (index < p.attention.batch * p.attention.heads_q * p.attention.seqlen_q * p.splits) part(p, index);
  if (threadIdx.x == 0) atomicAdd(p.arrived, 1u);
}
)";

constexpr const char* combine_text = R"(
__device__ void combine(const TwoStepsParams& p, long row, bool complete) {
  const rapt::AttentionParams& a = p.attention;
  const Row r(a, row);
  const long width = a.head_dim_v + 2;
  const float* states = p.states + row * p.splits * width;
  float most = -1e30f, sum = 0;
  for (int s = 0; s < p.splits; ++s) most = fmaxf(most, states[s * width]);
  for (int s = 0; s < p.splits; ++s) sum += states[s * width + 1] * expf(states[s * width] - most);
  float* out = static_cast<float*>(a.out.data) + a.out.index(r.b, r.h, r.i);
  for (long c = 0; c < a.head_dim_v; ++c) {
    float value = 0;
    for (int s = 0; s < p.splits; ++s) value += states[s * width + 2 + c] * expf(states[s * width] - most);
    out[c * a.out.column] = complete ? value / sum : __int_as_float(0x7fc00000);
  }
}
extern "C" __global__ void rapt_kernel(const __grid_constant__ TwoStepsParams p) {
  __shared__ unsigned arrived;
  if (threadIdx.x == 0) arrived = *p.arrived, *p.arrived = 0;
  __syncthreads();
  const long rows = p.attention.batch * p.attention.heads_q * p.attention.seqlen_q;
  for (long row = threadIdx.x; row < rows; row += 128) combine(p, row, arrived == p.blocks);
}
)";

int64_t states_of(const Problem& p, const KernelConfig& config) {
  return p.batch * p.heads_q * p.seqlen_q * config.as<TwoStepsConfig>().splits;
}

bool accepts(const Problem& p, const Device& device, std::string* why) {
  const bool plain = p.q == DType::f32 && p.k == DType::f32 && p.v == DType::f32 && p.out == DType::f32 && !p.varlen &&
                     !p.position_mask.present() && !p.softcap && !p.lse && !p.seqused && !p.seqused_q &&
                     !p.bias.present() && !p.mask.present() && !p.alibi && !p.sinks && p.seqlen_k > 0;
  if (why != nullptr) *why = "two_steps: plain f32 only";
  return plain && device.kind == DeviceKind::cuda;
}

KernelConfig configure(const Problem&, const Device&) { return {config_table, TwoStepsConfig{}}; }

size_t workspace_bytes(const Problem& p, const KernelConfig& config) {
  return static_cast<size_t>(states_of(p, config) * (p.head_dim_v + 2)) * sizeof(float);
}
size_t counter_bytes(const Problem&, const KernelConfig&) { return sizeof(unsigned); }

thread_local Workspace given;

LaunchSpec spec_of(const StepCall& call, bool combines) {
  const auto blocks = static_cast<unsigned>((states_of(call.problem, call.config) + 127) / 128);
  given = call.workspace;
  LaunchSpec spec(TwoStepsParams{call.params, static_cast<float*>(call.workspace.scratch),
                                 static_cast<unsigned*>(call.workspace.counters),
                                 call.config.as<TwoStepsConfig>().splits, blocks});
  spec.grid_x = combines ? std::min(blocks, 1u) : blocks;
  return spec;
}

const Family combining{
    .name = "two_steps_combine",
    .accepts = accepts,
    .configure = configure,
    .config_type = config_table,
    .workspace_bytes = workspace_bytes,
    .text = "two_steps",
    .unit =
        [](const KernelConfig&) {
          return KernelUnit{std::string(head) + combine_text, 128, 0};
        },
    .launch_spec = [](const StepCall& call) { return spec_of(call, true); },
};

}  // namespace

const Family two_steps{
    .name = "two_steps",
    .accepts = accepts,
    .configure = configure,
    .config_type = config_table,
    .workspace_bytes = workspace_bytes,
    .text = "two_steps",
    .unit =
        [](const KernelConfig&) {
          return KernelUnit{std::string(head) + parts_text, 128, 0};
        },
    .launch_spec = [](const StepCall& call) { return spec_of(call, false); },
    .next =
        [](const Problem&, const Device&, const KernelConfig& config) {
          return Step{&combining, config};
        },
    .counter_bytes = counter_bytes,
};

Workspace last_workspace() { return given; }

}  // namespace rapt::test
