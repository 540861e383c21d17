// rapt.kv_append and rapt.rotary_tables. They write to arrays that the caller or python/rapt has allocated. Called by
// python/rapt.
#include "call.h"
#include "reading.h"

namespace rapt::python {
namespace {

// The arguments of _core.kv_append, in their order.
enum AppendArgument {
  a_k,
  a_v,
  a_k_cache,
  a_v_cache,
  a_cu_seqlens_new,
  a_seqused_k,
  a_starts,
  a_slot_mapping,
  a_block_table,
  a_cache_batch_idx,
  a_k_descale,
  a_v_descale,
  a_cos,
  a_sin,
  a_positions,
  a_q,
  a_q_out,
  a_k_scales,  // None, "head" or "token"
  a_v_scales,
  a_layout,
  a_interleaved,
  a_q_at_start,
  a_check_contents,
  a_k_cache_dtype,  // the format of uint8 storage
  a_v_cache_dtype,
  a_context,
  append_argument_count
};

bool is_token(PyObject* scales) { return scales != Py_None && scale_kind("scales", scales) == RAPT_SCALE_TOKEN; }

void append(PyObject* const* args) {
  const bool swapped = word_value("layout", args[a_layout], {{"bhsd", 0}, {"bshd", 1}}) != 0;
  Reading reading("k", args[a_k]);
  rapt_kv_append_args call{};
  call.struct_size = sizeof call;
  const auto tokens = [&](const char* name, PyObject* array) {
    const rapt_tensor* const tensor = reading.input(name, array);
    if (tensor != nullptr && swapped) swap_heads(reading.last());
    return tensor;
  };
  const auto output = [&](const char* name, PyObject* array) {
    const rapt_tensor* const tensor = reading.output(name, array);
    if (tensor != nullptr && swapped) swap_heads(reading.last());
    return tensor;
  };
  call.k = tokens("k", args[a_k]);
  call.v = tokens("v", args[a_v]);
  call.k_cache = output("k_cache", args[a_k_cache]);
  if (call.k_cache != nullptr) set_stored_dtype("k_cache", "k_cache_dtype", args[a_k_cache_dtype], reading.last());
  call.v_cache = output("v_cache", args[a_v_cache]);
  if (call.v_cache != nullptr) set_stored_dtype("v_cache", "v_cache_dtype", args[a_v_cache_dtype], reading.last());
  call.cu_seqlens_new = reading.input("cu_seqlens_new", args[a_cu_seqlens_new]);
  call.seqused_k = reading.input("seqused_k", args[a_seqused_k]);
  call.starts = reading.input("starts", args[a_starts]);
  call.slot_mapping = reading.input("slot_mapping", args[a_slot_mapping]);
  call.block_table = reading.input("block_table", args[a_block_table]);
  call.cache_batch_idx = reading.input("cache_batch_idx", args[a_cache_batch_idx]);
  const auto descale = [&](const char* name, PyObject* array, PyObject* scales) {
    return is_token(scales) ? reading.output(name, array) : reading.input(name, array);
  };
  call.k_descale = descale("k_descale", args[a_k_descale], args[a_k_scales]);
  call.v_descale = descale("v_descale", args[a_v_descale], args[a_v_scales]);
  if (args[a_k_scales] != Py_None) call.k_scales = scale_kind("k_scales", args[a_k_scales]);
  if (args[a_v_scales] != Py_None) call.v_scales = scale_kind("v_scales", args[a_v_scales]);
  call.cos = reading.input("cos", args[a_cos]);
  call.sin = reading.input("sin", args[a_sin]);
  call.positions = reading.input("positions", args[a_positions]);
  call.q = tokens("q", args[a_q]);
  call.q_out = output("q_out", args[a_q_out]);
  if (boolean("interleaved", args[a_interleaved])) call.flags |= RAPT_KV_APPEND_INTERLEAVED;
  if (boolean("q_at_start", args[a_q_at_start])) call.flags |= RAPT_KV_APPEND_Q_AT_START;
  if (boolean("check_contents", args[a_check_contents])) call.flags |= RAPT_KV_APPEND_CHECK_CONTENTS;
  reading.call(args[a_context], rapt_kv_append, call);
  for (const AppendArgument written : {a_k_cache, a_v_cache, a_q_out})
    if (args[written] != Py_None) report_written(reading.framework(), args[written]);
  if (is_token(args[a_k_scales])) report_written(reading.framework(), args[a_k_descale]);
  if (is_token(args[a_v_scales])) report_written(reading.framework(), args[a_v_descale]);
}

// The arguments of _core.rotary_tables: cos, sin, kind, first_position, truncate, context, then the values of
// rotary_values in their order; None: absent.
enum RotaryArgument { r_cos, r_sin, r_kind, r_first_position, r_truncate, r_context, r_values };
struct RotaryValue {
  const char* name;
  uint64_t bit;
  double rapt_rotary_args::*number;  // null: seqlen
};
constexpr RotaryValue rotary_values[] = {
    {"base", RAPT_ROTARY_HAS_BASE, &rapt_rotary_args::base},
    {"factor", RAPT_ROTARY_HAS_FACTOR, &rapt_rotary_args::factor},
    {"seqlen", RAPT_ROTARY_HAS_SEQLEN, nullptr},
    {"original_max_position_embeddings", RAPT_ROTARY_HAS_ORIGINAL_MAX_POSITION_EMBEDDINGS,
     &rapt_rotary_args::original_max_position_embeddings},
    {"beta_fast", RAPT_ROTARY_HAS_BETA_FAST, &rapt_rotary_args::beta_fast},
    {"beta_slow", RAPT_ROTARY_HAS_BETA_SLOW, &rapt_rotary_args::beta_slow},
    {"attention_factor", RAPT_ROTARY_HAS_ATTENTION_FACTOR, &rapt_rotary_args::attention_factor},
    {"mscale", RAPT_ROTARY_HAS_MSCALE, &rapt_rotary_args::mscale},
    {"mscale_all_dim", RAPT_ROTARY_HAS_MSCALE_ALL_DIM, &rapt_rotary_args::mscale_all_dim},
    {"low_freq_factor", RAPT_ROTARY_HAS_LOW_FREQ_FACTOR, &rapt_rotary_args::low_freq_factor},
    {"high_freq_factor", RAPT_ROTARY_HAS_HIGH_FREQ_FACTOR, &rapt_rotary_args::high_freq_factor}};
constexpr Py_ssize_t rotary_argument_count = r_values + static_cast<Py_ssize_t>(std::size(rotary_values));

void fill_tables(PyObject* const* args) {
  Reading reading("cos", args[r_cos]);
  rapt_rotary_args call{};
  call.struct_size = sizeof call;
  call.cos = reading.output("cos", args[r_cos]);
  call.sin = reading.output("sin", args[r_sin]);
  call.kind = word_value("kind", args[r_kind],
                         {{"default", RAPT_ROTARY_DEFAULT},
                          {"linear", RAPT_ROTARY_LINEAR},
                          {"dynamic", RAPT_ROTARY_DYNAMIC},
                          {"yarn", RAPT_ROTARY_YARN},
                          {"llama3", RAPT_ROTARY_LLAMA3}});
  call.first_position = integer("first_position", args[r_first_position]);
  if (!boolean("truncate", args[r_truncate])) call.flags |= RAPT_ROTARY_NO_TRUNCATE;
  for (size_t i = 0; i < std::size(rotary_values); ++i) {
    PyObject* const value = args[static_cast<size_t>(r_values) + i];
    if (value == Py_None) continue;
    const RotaryValue& one = rotary_values[i];
    call.has |= one.bit;
    if (one.number == nullptr)
      call.seqlen = integer(one.name, value);
    else
      call.*one.number = number(one.name, value);
  }
  const ContextHandle context(args[r_context]);
  call_c([&] { return rapt_rotary_tables(context.get(), &call); });
  for (const RotaryArgument written : {r_cos, r_sin}) report_written(reading.framework(), args[written]);
}

}  // namespace

PyObject* kv_append(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return guarded("kv_append", count, append_argument_count, [&] {
    append(args);
    return Py_NewRef(Py_None);
  });
}

PyObject* rotary_tables(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return guarded("rotary_tables", count, rotary_argument_count, [&] {
    fill_tables(args);
    return Py_NewRef(Py_None);
  });
}

}  // namespace rapt::python
