// Proves that the checks can fail. Each defect is an edit of a kernel's source. A kernel with a defect must fail a
// check that the correct kernel passes. There is at least one defect for each family, mask, option of scores and kind
// of tensor. The edits of attention_sm90 and attention_decode are in tests/cpu/known_bad_edits.h, which also says how
// an edit names its place. One test needs no GPU: it checks that each place exists. So if a kernel changes, this test
// shows which edits must change, too.
#include "base/error.h"
#include "gpu_support.h"
#include "jit/jit.h"
#include "kernels/family.h"
#include "tests/cpu/known_bad_edits.h"

namespace rapt::test {
namespace {

using check::Fill;

const std::vector<Edit> edits_of_sm80_and_scalar = {
    // attention_sm80
    {"sm80_dropped_tail_step", &attention_sm80, "shared/key_tiles.h", "(some.end + size - 1) / size", "some.end / size",
     "f16 b1 h2 q40 k300 d64"},
    {"sm80_padding_seen", &attention_sm80, "shared/key_tiles.h", "past > full.end ||", "past > full.end + 1000 ||",
     "bf16 b1 h2 q40 k100 d64"},
    {"sm80_diagonal_off_by_one", &attention_sm80, "sm80/attention_sm80.cuh",
     "cfg.causal_or_local ? band.past(row) : band.seqlen_k) - key0",
     "cfg.causal_or_local ? band.past(row + 1) : band.seqlen_k) - key0", "f16 b1 h2 q96 d64 causal"},
    {"sm80_window_left_off_by_one", &attention_sm80, "sm80/attention_sm80.cuh",
     "(cfg.causal_or_local ? band.first(row) : 0) - key0", "(cfg.causal_or_local ? band.first(row - 1) : 0) - key0",
     "f16 b1 h2 q70 k200 d64 window=8,0"},
    {"sm80_window_right_ignored", &attention_sm80, "shared/mask.h", "end = right < end ? right : end;", "(void)right;",
     "f16 b1 h2 q50 k90 d32 window=-1,5"},
    {"sm80_key_range_of_another_corner", &attention_sm80, "shared/mask.h", "end = saturating_add(offset, 1)", "end = 1",
     "f16 b1 h2 q70 k130 d32 causal"},
    {"sm80_skipped_rescale", &attention_sm80, "device/softmax.cuh",
     "o[mt][n][2 * half] *= factor, o[mt][n][2 * half + 1] *= factor;", "(void)factor;", "f16 b1 h1 q32 k600 d64",
     Fill::rescale},
    {"sm80_sum_not_rescaled", &attention_sm80, "device/softmax.cuh", "row_sum[mt][half] *= factor;", "(void)factor;",
     "f16 b1 h1 q32 k600 d64", Fill::rescale},
    {"sm80_sum_mixes_rows", &attention_sm80, "device/softmax.cuh", "x += __shfl_xor_sync(~0u, x, 1);",
     "x += __shfl_xor_sync(~0u, x, 4);", "f16 b1 h2 q64 d64"},
    {"sm80_parts_not_rescaled", &attention_sm80, "sm80/epilogue.cuh", "all.o[i] = fmaf(factor, x[i], all.o[i])",
     "all.o[i] += x[i]", "f16 b1 h2 q64 k300 d64"},
    {"sm80_mask_ignored", &attention_sm80, "device/score_tile.cuh", "mask.bits(n, 0) != 0", "true",
     "f16 b2 h2 q30 k70 d32 mask=[b,h,q,k]"},
    {"sm80_mask_of_another_row", &attention_sm80, "device/score_tile.cuh", "rows.query(mt, half) * t.query", "0",
     "f16 b2 h2 q30 k70 d32 mask=[1,1,q,k]"},
    {"sm80_octet_keys_in_order", &attention_sm80, "device/tile.cuh", "{ return octets ? octet_key(row) : row; }",
     "{ return row; }", "f16 b2 h2 q30 k72 d32 mask=[b,h,q,k]"},
    {"sm80_octets_as_pairs", &attention_sm80, "device/score_tile.cuh", "n / tiles * 8 * tiles + n % tiles * 2", "8 * n",
     "bf16 b1 h2 q33 k72 d32 bias=f32[1,h,q,k]"},
    {"sm80_bias_subtracted", &attention_sm80, "device/score_tile.cuh", "x += bias.value(n, 0)", "x -= bias.value(n, 0)",
     "bf16 b1 h2 q33 k77 d32 bias=f32[1,h,q,k]"},
    {"sm80_alibi_signed", &attention_sm80, "device/score_tile.cuh", "fabsf(static_cast<float>(static_cast<int>(first))",
     "(static_cast<float>(static_cast<int>(first))", "f16 b1 h4 q64 d32 alibi"},
    {"sm80_softcap_without_slope", &attention_sm80, "device/score.cuh", "t, tanh.term[0])", "t, 1.0f)",
     "f16 b1 h2 q100 d64 softcap=5"},
    {"sm80_sink_left_out", &attention_sm80, "sm80/epilogue.cuh",
     "sum = sum * rescale + exp2_approx((sink - shift) * log2_e);", "sum = sum * rescale;",
     "f16 b1 h4 q40 k90 d32 sinks"},
    {"sm80_hidden_nan_kept", &attention_sm80, "sm80/attention_sm80.cuh", "return pass == zero_non_finite || any;",
     "return false;", "f16 b1 h2 q70 k200 d64 window=8,0", Fill::hidden_nan},
    {"sm80_seen_nan_spreads", &attention_sm80, "sm80/attention_sm80.cuh", "return pass == zero_non_finite || any;",
     "return false;", "bf16 b1 h2 q96 d64 causal", Fill::seen_nan},
    {"sm80_seen_nan_lost", &attention_sm80, "sm80/attention_sm80.cuh", "return pass == zero_non_finite || any;",
     "return pass == normal && any;", "bf16 b1 h2 q96 d64 causal", Fill::seen_nan},
    {"sm80_head_of_another_group", &attention_sm80, "sm80/attention_sm80.cuh", "scheduler.group.quotient(work.head)",
     "scheduler.group.quotient(work.head) ^ 1", "f16 b1 h4:2 q17 k129 d128"},
    {"sm80_values_of_the_first_sequence", &attention_sm80, "sm80/attention_sm80.cuh",
     "v_view.rows = KvView(p, p.v, bytes_of(cfg.v), cta.batch, head_k, sequence.first_k)",
     "v_view.rows = KvView(p, p.v, bytes_of(cfg.v), cta.batch, head_k, 0)", "f16 h4:2 d64 varlen=17,0,64,100"},
    {"sm80_base_two", &attention_sm80, "device/softmax.cuh",
     "return row_scale[per_row_scale ? mt : 0][per_row_scale ? half : 0];",
     "return row_scale[per_row_scale ? mt : 0][per_row_scale ? half : 0] * ln_2;", "f16 b1 h2 q64 d64"},
    {"sm80_lse_in_base_two", &attention_sm80, "sm80/epilogue.cuh", "max_logit + log2_approx(sum) * ln_2",
     "max_logit + log2_approx(sum)", "f16 b1 h2 q64 d64"},
    {"sm80_swizzle_on_one_side", &attention_sm80, "device/tile.cuh",
     "cp_async_16(to + Tile::offset(row, chunk), source,",
     "cp_async_16(to + (row * Tile::chunks + chunk) * 16, source,", "f16 b1 h2 q64 d64"},
    {"sm80_used_length_ignored", &attention_sm80, "shared/params.h", "clamped(p.seqused_k[b], 0, s.seqlen_k)",
     "s.seqlen_k", "f16 b2 h2 q20 k60 d16 seqused=33,0"},
    {"sm80_unused_queries_computed", &attention_sm80, "shared/params.h", "clamped(p.seqused_q[b], 0, s.seqlen_q)",
     "s.seqlen_q", "f16 b2 h2 q70 k60 d16 seqused_q=33,0 lse"},
    {"sm80_unused_queries_unwritten", &attention_sm80, "sm80/attention_sm80.cuh",
     "a.seqused_q.present() && Cta::slice() == 0) clear_unused_rows", "false) clear_unused_rows",
     "f16 b2 h2 q70 k60 d16 seqused_q=33,0 lse"},
    {"sm80_starts_added", &attention_sm80, "shared/params.h", "clamped(q, -limit, limit) - clamped(k, -limit, limit)",
     "clamped(q, -limit, limit) + clamped(k, -limit, limit)", "bf16 b2 h2 q20 k60 d16 causal q_start=40,7 k_start=0,3"},
    // attention_sm80 with head dims above 256
    {"sm80_wide_sum_of_one_warp", &attention_sm80, "sm80/wide_attention.cuh", "return x + y;", "return x;",
     "f16 b1 h2 q40 k100 d264"},
    {"sm80_wide_values_of_the_first_piece", &attention_sm80, "sm80/wide_attention.cuh",
     "(piece - wide.k_pieces) * cfg.v_piece, slice()", "0, slice()", "f16 b1 h2 q40 k100 d264"},
    {"sm80_wide_columns_of_the_first_slice", &attention_sm80, "sm80/wide_attention.cuh",
     "cfg.v_piece, slice() * wide.columns,", "cfg.v_piece, 0,", "bf16 b1 h2 q40 k100 d40:512"},
    {"sm80_wide_last_channels_lost", &attention_sm80, "sm80/wide_attention.cuh", "piece * steps + kk >= all_steps",
     "piece * steps + kk >= all_steps - 1", "f16 b1 h2 q40 k100 d264:8"},
    {"sm80_wide_block_skipped", &attention_sm80, "sm80/wide_attention.cuh", "visits(key0, key0 + cta_block_n)",
     "visits(key0, key0 + cfg.block_n)", "f16 b1 h2 q70 k300 d320 window=30,0"},
    {"sm80_wide_hidden_nan_kept", &attention_sm80, "sm80/wide_attention.cuh", "return pass == zero_non_finite || any;",
     "return false;", "f16 b1 h2 q70 k200 d264 window=8,0", Fill::hidden_nan},
    {"sm80_wide_seen_nan_lost", &attention_sm80, "sm80/wide_attention.cuh", "return pass == zero_non_finite || any;",
     "return pass == normal && any;", "bf16 b1 h2 q96 d264 causal", Fill::seen_nan},
    // attention_sm80 on FP8 tensors
    {"sm80_key_scale_as_tensor", &attention_sm80, "sm80/descale.cuh", "p.k_scale.at(cta.batch, cta.head_k, 0, 0)",
     "p.k_scale.at(0, 0, 0, 0)", "e4m3 out=f16 b2 h4:2 q64 d64 scales=head", Fill::outlier},
    {"sm80_query_scale_of_the_kv_head", &attention_sm80, "sm80/descale.cuh", "p.q_scale.at(cta.batch, cta.head, 0, 0)",
     "p.q_scale.at(cta.batch, cta.head_k, 0, 0)", "e4m3 out=f16 b2 h4:2 q64 d64 scales=head", Fill::outlier},
    {"sm80_scale_of_the_first_block", &attention_sm80, "sm80/descale.cuh", "key / keys_per_descale * ref.position",
     "0 * ref.position", "e4m3 out=f16 b1 h2 q64 k300 d64 scales=block64", Fill::outlier},
    {"sm80_row_scale_ignored", &attention_sm80, "sm80/attention_sm80.cuh",
     "factor *= *p.q_scale.at(cta.batch, head_of<cfg>(p, cta, cta.first_row + row), cta.first_q,",
     "factor *= 1.0f + 0.0f * static_cast<float>(", "e4m3 out=f16 b1 h2 q100 k70 d64 q_scales=block64", Fill::outlier},
    {"sm80_token_scale_of_the_first_key", &attention_sm80, "sm80/descale.cuh", "first[key * stride]", "first[0]",
     "e4m3 out=f16 b1 h2 q64 k300 d64 scales=token"},
    {"sm80_channel_scale_as_tensor", &attention_sm80, "sm80/epilogue.cuh", "[column * p.v_scale.channel]", "[0]",
     "e4m3 out=f16 b2 h4:2 q33 k150 d32 q_scales=head k_scales=head v_scales=channel"},
    {"sm80_channels_out_of_order", &attention_sm80, "sm80/fragments.cuh", "(lane % 4 * 2 + i) * width",
     "(lane % 4 + 4 * i) * width", "e4m3 out=f16 b1 h2 q64 d64"},
    {"sm80_tf32_low_term_lost", &attention_sm80, "sm80/tf32.cuh", "detail::bits_of(x - high)",
     "detail::bits_of(0.0f * (x - high))", "f32 b1 h2 q64 d64"},
    {"sm80_tf32_dropped_channels", &attention_sm80, "sm80/tf32.cuh", "group < groups; ++group",
     "group < groups - 1; ++group", "f32 b1 h2 q64 d64"},
    {"sm80_tf32_values_of_another_key", &attention_sm80, "sm80/tf32.cuh", "first_key + lane % 4 * 2 + 1,",
     "first_key + lane % 4 + 4,", "f32 b1 h2 q64 d64"},
    {"sm80_tf32_row_halves_exchanged", &attention_sm80, "sm80/tf32.cuh", "i % 2 * 2 + half", "i % 2 * 2 + 1 - half",
     "q=f16 k=bf16 v=f16 out=f16 b1 h2 q64 d64"},
    {"sm80_tf32_hidden_nan_kept", &attention_sm80, "device/numeric.cuh", "return (code & 0x7f800000u) != 0x7f800000u",
     "return true", "f32 b1 h2 q70 k200 d64 window=8,0", Fill::hidden_nan},
    {"sm80_values_of_the_next_channel", &attention_sm80, "sm80/fragments.cuh", "byte_perm(r[i], 0, 0x3120)", "r[i]",
     "q=f16 k=e4m3 v=e4m3 out=f16 b1 h2 q64 d64"},
    {"sm80_query_in_its_own_order", &attention_sm80, "sm80/fragments.cuh",
     "Tile::offset(row, 2 * group + i % 2) + i / 2 * 4", "Tile::offset(row, word / 4) + i % 4 * 4",
     "q=f16 k=e4m3 v=f16 out=f16 b1 h2 q64 d64"},
    {"sm80_row_not_brought_back", &attention_sm80, "sm80/fragments.cuh", "detail::bits_of(1.0f / scale_up)",
     "detail::bits_of(1.0f)", "q=bf16 k=e4m3 v=e4m3 out=bf16 b1 h2 q64 d64"},
    {"sm80_second_term_lost", &attention_sm80, "sm80/fragments.cuh", "codes[1] = pack_e4m3x2(",
     "codes[1] = 0 * pack_e4m3x2(", "e4m3 out=f16 b1 h2 q64 d64 pv=fp8x2"},
    {"sm80_weights_saturate", &attention_sm80, "sm80/attention_sm80.cuh", "cfg.p_terms == 0 ? 0 : 8",
     "cfg.p_terms == 0 ? 0 : 10", "e4m3 out=f16 b1 h2 q64 k100 d64 pv=fp8"},
    {"sm80_scale_of_weights_kept", &attention_sm80, "sm80/epilogue.cuh", "factor = 1.0f / Softmax::p_scale",
     "factor = 1.0f", "e4m3 out=f16 b1 h2 q64 d64 pv=fp8"},
    {"sm80_mean_left_out_of_lse", &attention_sm80, "sm80/epilogue.cuh", "fmaf(mean_logit(row), p.scale, max_logit)",
     "max_logit", "e4m3 out=f16 b1 h2 q64 d64 scales=head smooth_k"},
    {"sm80_nan_code_of_e4m3_kept", &attention_sm80, "device/numeric.cuh", "return (code & 0x7fu) != 0x7fu",
     "return true", "e4m3 out=f16 b1 h2 q70 k200 d64 window=8,0", Fill::hidden_nan},
    // attention_scalar
    {"scalar_unused_queries_unwritten", &attention_scalar, "scalar/attention_scalar.cuh",
     "warp * rows + r < tile.stored_rows) store(r)", "warp * rows + r < tile.used_rows) store(r)",
     "f32 b2 h2 q70 k60 d16 seqused_q=33,0 lse"},
    {"scalar_unused_queries_get_the_sink", &attention_scalar, "scalar/attention_scalar.cuh",
     "p.sinks != nullptr && warp * rows + r < tile.used_rows", "p.sinks != nullptr",
     "f32 b2 h2 q70 k60 d16 seqused_q=33,0 sinks lse"},
    {"scalar_dropped_tail_tile", &attention_scalar, "scalar/attention_scalar.cuh",
     "first < tiles.some.end; first += cfg.block_n", "first + cfg.block_n <= tiles.some.end; first += cfg.block_n",
     "f32 b1 h2 q40 k100 d32"},
    {"scalar_diagonal_off_by_one", &attention_scalar, "scalar/attention_scalar.cuh", "j < visible[r].end",
     "j <= visible[r].end", "f32 b1 h2 q70 k130 d32 causal"},
    {"scalar_window_left_off_by_one", &attention_scalar, "scalar/attention_scalar.cuh", "j >= visible[r].begin",
     "j + 1 >= visible[r].begin", "f32 b1 h2 q70 k200 d64 window=8,0"},
    {"scalar_skipped_rescale", &attention_scalar, "scalar/attention_scalar.cuh",
     "fmaf(o[r][c], rescale[r], partial[r][c])", "o[r][c] + partial[r][c]", "f32 b1 h1 q32 k256 d64", Fill::rescale},
    {"scalar_sum_of_one_lane", &attention_scalar, "scalar/attention_scalar.cuh",
     "x += __shfl_xor_sync(all_lanes, x, step);", "x += x;", "f32 b1 h2 q64 d64"},
    {"scalar_mask_inverted", &attention_scalar, "device/score.cuh", "mask[j * p.mask.key] != 0",
     "mask[j * p.mask.key] == 0", "f32 b2 h2 q30 k70 d32 mask=[b,h,q,k]"},
    {"scalar_bias_of_one_key", &attention_scalar, "device/score.cuh", "(bias, j * p.bias.key)", "(bias, 0)",
     "f32 b1 h2 q33 k77 d32 bias=f32[1,h,q,k]"},
    {"scalar_alibi_signed", &attention_scalar, "device/score.cuh", "distance < 0 ? -distance : distance", "distance",
     "f32 b1 h4 q64 d32 alibi"},
    {"scalar_softcap_linear", &attention_scalar, "device/score.cuh", "return tanhf(x);", "return x;",
     "f32 b1 h2 q33 k77 d32 softcap=2"},
    {"scalar_sink_left_out", &attention_scalar, "scalar/attention_scalar.cuh",
     "total = fmaf(total, weight, exp_minus(sink, from));", "total *= weight;", "f32 b1 h4 q40 k90 d32 sinks"},
    {"scalar_hidden_nan_kept", &attention_scalar, "scalar/attention_scalar.cuh",
     "if ((seen_keys[r] >> j & 1u) == 0) continue;", "", "f32 b1 h2 q70 k130 d32 causal", Fill::seen_nan},
    {"scalar_channel_scale_as_tensor", &attention_scalar, "scalar/attention_scalar.cuh", "[c * scale.channel]", "[0]",
     "sim8 out=f32 b2 h4:2 q33 k150 d32 q_scales=head k_scales=head v_scales=channel"},
    {"scalar_head_scale_as_tensor", &attention_scalar, "shared/params.h", "data + b * batch + h * head + p * position",
     "data + b * batch + p * position", "sim8 out=f16 b2 h4:2 q64 d64 scales=head"},
    {"scalar_lse_without_sum", &attention_scalar, "scalar/attention_scalar.cuh", "top + logf(total)", "top",
     "f32 b1 h2 q64 d64"},
};

std::vector<Edit> all_edits() {
  std::vector<Edit> all = edits_of_sm80_and_scalar;
  const std::vector<Edit> emulated = emulated_edits();
  all.insert(all.end(), emulated.begin(), emulated.end());
  return all;
}
const std::vector<Edit> edits = all_edits();

class GpuKnownBad : public GpuTest {
 protected:
  // The edits whose family runs on this GPU and whose result does not depend on timing.
  static std::vector<Edit> runnable() {
    std::vector<Edit> some = edits;
    const bool has_sm90 = cuda::device(0).arch == "sm_90a";
    std::erase_if(
        some, [&](const Edit& edit) { return edit.only_emulated || (edit.family == &attention_sm90 && !has_sm90); });
    return some;
  }
};

}  // namespace

TEST(KnownBadSource, EveryEditOccursOnce) {
  for (const Edit& edit : edits) EXPECT_NO_THROW(edited(edit)) << edit.name;
  for (const Edit& edit : invariance_edits()) EXPECT_NO_THROW(edited(edit)) << edit.name;
}

// With RAPT_TEST_COMPILE=1 every edited source is compiled, without a GPU. It takes half a minute.
TEST(KnownBadSource, EveryEditCompiles) {
  const char* wanted = std::getenv("RAPT_TEST_COMPILE");
  if (wanted == nullptr || std::string(wanted) != "1") GTEST_SKIP() << "RAPT_TEST_COMPILE is not 1";
  Failures failures;
  std::vector<Edit> every = edits;
  every.insert(every.end(), invariance_edits().begin(), invariance_edits().end());
  in_parallel(every.size(), failures, [&](size_t i) {
    const Edit& edit = every[i];
    const Step step = plan_with(parse_problem(edit.line), device_preset("h100"), config_of(edit)).steps[0];
    if (step.family != edit.family) failures.add(concat(edit.name, ": taken by ", step.family->name));
    jit::compile({.unit = step.family->unit(step.config).text,
                  .arch = "sm_90a",
                  .label = edit.name,
                  .files = {{edit.file, edited(edit)}}});
  });
  failures.report();
}

TEST_F(GpuKnownBad, TheSoundKernelsPass) {
  std::map<std::string, std::vector<Job>> jobs;  // by configuration
  for (const Edit& edit : runnable()) {
    const Plan chosen = plan_with(parse_problem(edit.line), cuda::device(0), config_of(edit));
    EXPECT_STREQ(chosen.steps[0].family->name, edit.family->name) << edit.name;
    jobs[config_of(edit)].push_back({edit.line, edit.fill});
  }
  for (const auto& [config, some] : jobs) expect_pass(some, make_context({.config = config}).get());
}

TEST_F(GpuKnownBad, EveryDefectFailsItsCheck) {
  Failures failures;
  const std::vector<Edit> some = runnable();
  in_parallel(some.size(), failures, [&](size_t i) {
    const Edit& edit = some[i];
    const auto context = make_context({.files = {{edit.file, edited(edit)}}, .config = config_of(edit)});
    const check::Kernel kernel = check::library_kernel(context.get(), first_gpu);
    const check::Result result = check_problem(parse_problem(edit.line), edit.fill, 1, kernel);
    if (result.samples == 0)
      failures.add(concat(edit.name, " did not run: ", result.message));
    else if (result.pass)
      failures.add(concat(edit.name, " passes ", result.command, " --device cuda:0"));
  });
  failures.report();
}

TEST_F(GpuKnownBad, SchedulesFindDefectsOfInvariance) {
  const auto differing_rows = [](rapt_context* context) {
    RandomSchedules schedules(invariance_schedules(), 3, [=](Call& call) { run_gpu(call, context); });
    return schedules.differing_rows(40);
  };
  const std::string config = config_of(invariance_edits().front());
  EXPECT_EQ(differing_rows(make_context({.config = config}).get()), 0);
  for (const Edit& edit : invariance_edits())
    EXPECT_GT(differing_rows(make_context({.files = {{edit.file, edited(edit)}}, .config = config}).get()), 0)
        << edit.name;
}

}  // namespace rapt::test
