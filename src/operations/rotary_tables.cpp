// rapt_rotary_tables: checks the rules and fills the tables on the CPU. Called by c_api.cpp.
#include <cmath>
#include <mutex>

#include "arguments/tensor_rules.h"
#include "base/error.h"
#include "cpu/arithmetic.h"
#include "cpu/rotary.h"
#include "operations/sdpa.h"
#include "runtime/context.h"

namespace rapt {
namespace {

using Args = rapt_rotary_args;

constexpr unsigned kind_bit(rapt_rotary_kind kind) { return 1u << static_cast<unsigned>(kind); }
constexpr unsigned yarn = kind_bit(RAPT_ROTARY_YARN), llama3 = kind_bit(RAPT_ROTARY_LLAMA3);
constexpr unsigned dynamic = kind_bit(RAPT_ROTARY_DYNAMIC);
constexpr unsigned scaled = kind_bit(RAPT_ROTARY_LINEAR) | dynamic | yarn | llama3;
constexpr unsigned all_kinds = kind_bit(RAPT_ROTARY_DEFAULT) | scaled;
constexpr const char* kind_names[] = {"default", "linear", "dynamic", "yarn", "llama3"};  // for error sentences

// A parameter: its bit of `has`, the kinds that use it, the kinds that require it, and the number that it must exceed.
struct Parameter {
  const char* name;
  uint64_t bit;
  double Args::*number;  // null: seqlen
  unsigned used, required;
  double above;
};
constexpr Parameter parameters[] = {
    {"base", RAPT_ROTARY_HAS_BASE, &Args::base, all_kinds, 0, 1},
    {"factor", RAPT_ROTARY_HAS_FACTOR, &Args::factor, scaled, scaled, 0},
    {"seqlen", RAPT_ROTARY_HAS_SEQLEN, nullptr, dynamic, 0, -1},
    {"original_max_position_embeddings", RAPT_ROTARY_HAS_ORIGINAL_MAX_POSITION_EMBEDDINGS,
     &Args::original_max_position_embeddings, dynamic | yarn | llama3, dynamic | yarn | llama3, 0},
    {"beta_fast", RAPT_ROTARY_HAS_BETA_FAST, &Args::beta_fast, yarn, 0, 0},
    {"beta_slow", RAPT_ROTARY_HAS_BETA_SLOW, &Args::beta_slow, yarn, 0, 0},
    {"attention_factor", RAPT_ROTARY_HAS_ATTENTION_FACTOR, &Args::attention_factor, yarn, 0, 0},
    {"mscale", RAPT_ROTARY_HAS_MSCALE, &Args::mscale, yarn, 0, 0},
    {"mscale_all_dim", RAPT_ROTARY_HAS_MSCALE_ALL_DIM, &Args::mscale_all_dim, yarn, 0, 0},
    {"low_freq_factor", RAPT_ROTARY_HAS_LOW_FREQ_FACTOR, &Args::low_freq_factor, llama3, llama3, 0},
    {"high_freq_factor", RAPT_ROTARY_HAS_HIGH_FREQ_FACTOR, &Args::high_freq_factor, llama3, llama3, 0}};

bool has(const Args& a, uint64_t bit) { return (a.has & bit) != 0; }

void check_parameters(const Args& a) {
  constexpr uint64_t known = (RAPT_ROTARY_HAS_HIGH_FREQ_FACTOR << 1) - 1;
  if ((a.has & ~known) != 0) invalid("has = ", a.has, ": unknown bits ", a.has & ~known);
  if ((a.flags & ~RAPT_ROTARY_NO_TRUNCATE) != 0)
    invalid("flags = ", a.flags, ": unknown bits ", a.flags & ~RAPT_ROTARY_NO_TRUNCATE);
  if (a.reserved != 0) invalid("reserved = ", a.reserved, ": must be 0");
  if (a.kind < RAPT_ROTARY_DEFAULT || a.kind > RAPT_ROTARY_LLAMA3)
    invalid("kind = ", a.kind, ": must be a rapt_rotary_kind");
  const unsigned kind = 1u << static_cast<unsigned>(a.kind);
  const char* const name = kind_names[a.kind];
  for (const Parameter& one : parameters) {
    if (!has(a, one.bit)) {
      if ((one.required & kind) != 0) invalid(one.name, ": required with kind = ", name);
      continue;
    }
    const double value = one.number != nullptr ? a.*one.number : static_cast<double>(a.seqlen);
    if ((one.used & kind) == 0) invalid(one.name, " = ", value, ": kind = ", name, " does not use it");
    if (!(value > one.above) || !std::isfinite(value))
      invalid(one.name, " = ", value, ": must be finite and above ", one.above);
  }
  if (a.flags != 0 && kind != yarn) invalid("truncate = false: kind = ", name, " does not use it");
  if (has(a, RAPT_ROTARY_HAS_MSCALE) != has(a, RAPT_ROTARY_HAS_MSCALE_ALL_DIM))
    invalid("mscale and mscale_all_dim: give both or neither");
  if (has(a, RAPT_ROTARY_HAS_MSCALE) && has(a, RAPT_ROTARY_HAS_ATTENTION_FACTOR))
    invalid("attention_factor = ", a.attention_factor, ": given with mscale, which also determines it");
  if (kind == llama3 && a.high_freq_factor <= a.low_freq_factor)
    invalid("high_freq_factor = ", a.high_freq_factor, ": must be above low_freq_factor = ", a.low_freq_factor);
}

void check_tables(const Args& a) {
  for (const auto& [name, tensor] : {std::pair{"cos", a.cos}, {"sin", a.sin}}) {
    if (tensor == nullptr) invalid(name, " = NULL: cos and sin are required");
    check_tensor(name, *tensor);
    if (tensor->device.type != RAPT_DEVICE_CPU) invalid(name, ".device: must be the CPU; copy the tables to the GPU");
    require_dtype(name, *tensor, {DType::f32});
    require_rank(name, *tensor, 2, "[positions, rotary_dim / 2]");
    check_output_layout(name, *tensor);
  }
  require_shape("sin", *a.sin, {a.cos->shape[0], a.cos->shape[1]}, "that of cos");
  check_disjoint("cos", *a.cos, "sin", *a.sin);
  constexpr int64_t most = int64_t{1} << 40;
  if (a.cos->shape[0] > most || a.cos->shape[1] > most)
    invalid("cos.shape = ", shape_text(*a.cos), ": sizes must be at most 2^40");
  if (a.kind == RAPT_ROTARY_DYNAMIC && a.cos->shape[1] < 2)
    invalid("cos.shape = ", shape_text(*a.cos), ": kind = dynamic needs a rotary_dim of at least 4");
  if (a.first_position < 0 || a.first_position > most)
    invalid("first_position = ", a.first_position, ": must be from 0 to 2^40");
}

cpu::RotaryRule rule_of(const Args& a) {
  cpu::RotaryRule r;
  r.kind = static_cast<rapt_rotary_kind>(a.kind);
  const auto set = [&](uint64_t bit, double& to, double value) {
    if (has(a, bit)) to = value;
  };
  set(RAPT_ROTARY_HAS_BASE, r.base, a.base);
  set(RAPT_ROTARY_HAS_FACTOR, r.factor, a.factor);
  set(RAPT_ROTARY_HAS_SEQLEN, r.seqlen, static_cast<double>(a.seqlen));
  set(RAPT_ROTARY_HAS_ORIGINAL_MAX_POSITION_EMBEDDINGS, r.original_max_position_embeddings,
      a.original_max_position_embeddings);
  set(RAPT_ROTARY_HAS_BETA_FAST, r.beta_fast, a.beta_fast);
  set(RAPT_ROTARY_HAS_BETA_SLOW, r.beta_slow, a.beta_slow);
  set(RAPT_ROTARY_HAS_LOW_FREQ_FACTOR, r.low_freq_factor, a.low_freq_factor);
  set(RAPT_ROTARY_HAS_HIGH_FREQ_FACTOR, r.high_freq_factor, a.high_freq_factor);
  r.truncate = (a.flags & RAPT_ROTARY_NO_TRUNCATE) == 0;
  return r;
}

double attention_factor_of(const Args& a) {
  if (a.kind != RAPT_ROTARY_YARN) return 1;
  if (has(a, RAPT_ROTARY_HAS_ATTENTION_FACTOR)) return a.attention_factor;
  if (has(a, RAPT_ROTARY_HAS_MSCALE)) return cpu::yarn_attention_factor(a.factor, a.mscale, a.mscale_all_dim);
  return cpu::yarn_attention_factor(a.factor);
}

cpu::RotaryOutput output_of(const rapt_tensor& t) {
  const auto s = strides_of(t);
  return {static_cast<float*>(t.data), s[0], s[1]};
}

}  // namespace

void rotary_tables(Context& context, const rapt_rotary_args& args) {
  check_struct_size("args", args.struct_size, &args, sizeof args);
  check_parameters(args);
  check_tables(args);
  const cpu::DefaultArithmetic scope;
  const std::vector<double> frequencies = cpu::rotary_frequencies(rule_of(args), 2 * args.cos->shape[1]);
  CpuResources& cpu = context.cpu();
  const std::lock_guard<std::mutex> lock(cpu.call_mutex);
  cpu::fill_rotary_tables(cpu.pool, frequencies, args.first_position, args.cos->shape[0], attention_factor_of(args),
                          output_of(*args.cos), output_of(*args.sin));
}

}  // namespace rapt
