// Intentional defects of kernels, as edits of their source, and the tables of the defects of attention_sm90 and
// attention_decode. A kernel with a defect must fail a check that the correct kernel passes. Used by
// known_bad_emulation_test.cpp, which emulates the kernels, and by tests/gpu/known_bad_test.cpp, which runs them on a
// GPU and has the table of the other families.
#pragma once

#include <cctype>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "check/fill.h"
#include "jit/jit.h"
#include "kernels/family.h"
#include "tests/cpu/random_schedules.h"

namespace rapt::test {

// An edit replaces a piece of the source. The piece must occur exactly once in the file. A space in it matches any
// white space.
struct Edit {
  const char* name;
  const Family* family;
  const char* file;
  const char *text, *instead;
  const char* line;  // the problem for which the check must fail
  check::Fill fill = check::Fill::normal;
  bool only_emulated = false;  // true: the defect is not tested on a GPU, because its result depends on timing there
};

// The value of --config for an edit. The tiles of attention_sm90 are small, so that a small problem has several blocks
// of keys.
inline std::string config_of(const Edit& edit) {
  const std::string family = std::string("family=") + edit.family->name;
  if (std::string_view(edit.line).find("invariant") != std::string_view::npos)
    return family + " block_n=16 part_keys=64";
  return edit.family == &attention_sm90 ? family + " warpgroups=2 block_n=32 kv_stages=3" : family;
}

inline const std::vector<Edit>& sm90_edits() {
  using check::Fill;
  // attention_sm90 visits keys from the last to the first. So it must rescale only with Fill::rescale_reversed.
  static const std::vector<Edit> edits = {
      {"sm90_dropped_last_block", &attention_sm90, "sm90/row_tile.cuh", "begin + keys.count(cfg.block_n)",
       "begin + keys.count(cfg.block_n) - 1", "f16 b1 h2 q70 k100 d16"},
      {"sm90_padding_seen", &attention_sm90, "sm90/attention_sm90.cuh", "!cfg.causal_or_local ? band.seqlen_k",
       "!cfg.causal_or_local ? band.seqlen_k + 1", "bf16 b1 h2 q40 k100 d16"},
      {"sm90_diagonal_off_by_one", &attention_sm90, "sm90/attention_sm90.cuh", "band.past(i)) - shift",
       "band.past(i + 1)) - shift", "f16 b1 h2 q96 d16 causal"},
      {"sm90_window_begin_off_by_one", &attention_sm90, "sm90/attention_sm90.cuh",
       "band.first(i) :", "band.first(i - 1) :", "f16 b1 h2 q70 k200 d16 window=8,0"},
      {"sm90_row_max_too_large", &attention_sm90, "sm90/softmax.cuh", "set_row_max(half, first[half])",
       "set_row_max(half, first[half] + 300.0f)", "f16 b1 h2 q64 d16"},
      {"sm90_unguarded_infinity", &attention_sm90, "sm90/softmax.cuh",
       "is_unsafe(half) ? 0.0f : __fmul_rn(to, c.of(half))", "__fmul_rn(to, c.of(half))",
       "f16 b1 h2 q70 k200 d16 window=8,0"},
      {"sm90_masked_first_scores", &attention_sm90, "sm90/softmax.cuh", "if (!__any_sync(~0u, masked)) return;",
       "return;", "f16 b1 h2 q70 k200 d16 window=8,0 lse"},
      {"sm90_large_scores_by_the_polynomial", &attention_sm90, "sm90/attention_sm90.cuh",
       "__all_sync(~0u, cap.all_small(s))) return", "true) return", "f16 b1 h2 q100 k100 d16 softcap=2"},
      {"sm90_capped_without_mask", &attention_sm90, "sm90/attention_sm90.cuh", "if (!masked && softmax.is_steady",
       "if (softmax.is_steady", "f16 b1 h2 q100 k200 d16 softcap=20 causal window=40,0"},
      {"sm90_skipped_rescale", &attention_sm90, "sm90/attention_sm90.cuh",
       "if (rescales) rescale(o, softmax.output_scale),", "static_cast<void>(rescales),", "f16 b1 h1 q32 k600 d16",
       Fill::rescale_reversed},
      {"sm90_sum_not_rescaled", &attention_sm90, "sm90/softmax.cuh", "row_sum[half] *= factor;", "",
       "f16 b1 h1 q32 k600 d16", Fill::rescale_reversed},
      {"sm90_clamped_rescale", &attention_sm90, "sm90/softmax.cuh",
       "= Rules::rescale_factor(row_max[half], to, c.of(half));",
       "= fmaxf(Rules::rescale_factor(row_max[half], to, c.of(half)), 1e-6f);", "f16 b1 h1 q32 k600 d16",
       Fill::rescale_reversed},
      {"sm90_sum_mixes_rows", &attention_sm90, "sm90/epilogue.cuh", "quad_sum(softmax.row_sum[half])",
       "2.0f * (quad_sum(softmax.row_sum[0]) + quad_sum(softmax.row_sum[1])) / 4.0f", "f16 b1 h2 q64 d16"},
      {"sm90_lse_in_base_two", &attention_sm90, "sm90/epilogue.cuh", "top + log2_approx(sum) * ln_2",
       "top + log2_approx(sum)", "f16 b1 h2 q64 d16"},
      {"sm90_sink_left_out", &attention_sm90, "sm90/epilogue.cuh",
       "sum = sum * moved + exp2_approx((sink - base) * log2_e);", "sum = sum * moved;", "f16 b1 h4 q40 k90 d16 sinks"},
      {"sm90_values_of_the_stage_before", &attention_sm90, "sm90/attention_sm90.cuh",
       "MatrixDescriptor::of(warp_uniform(shared.kv(at.stage)), group_bytes,",
       "MatrixDescriptor::of(warp_uniform(shared.kv((at.stage + cfg.kv_stages - 1) % cfg.kv_stages)), group_bytes,",
       "f16 b1 h2 q64 k100 d16"},
      {"sm90_head_of_another_page", &attention_sm90, "sm90/sm90.h", "return n * page + h * head;", "return n * page;",
       "f16 b1 h2 q64 k100 d16 page=16"},
      {"sm90_values_read_before_they_arrive", &attention_sm90, "sm90/attention_sm90.cuh",
       "wait_barrier(shared.kv_full(at.stage), at.phase); RAPT_TRACE_NEXT(\"consumer #: P.V\");",
       "struct Late { unsigned barrier, phase; ~Late() { wait_barrier(barrier, phase); } };"
       " const Late late{shared.kv_full(at.stage), at.phase};",
       "f16 b1 h2 q64 k200 d16", Fill::normal, true},
      {"sm90_weights_of_the_neighbour_key", &attention_sm90, "sm90/fragments.cuh",
       "s[0][first][half], s[0][first][half + 1]); } else", "s[0][first][half + 1], s[0][first][half]); } else",
       "bf16 b1 h2 q64 d16"},
      {"sm90_first_column_of_q_only", &attention_sm90, "sm90/attention_sm90.cuh",
       "q.advanced(column * cfg.block_m() * 128 + within)", "q.advanced(within)", "f16 b1 h1 q64 k64 d80"},
      {"sm90_head_of_another_group", &attention_sm90, "sm90/producer.cuh",
       "params.scheduler.group.quotient(static_cast<unsigned>(head))",
       "params.scheduler.group.quotient(static_cast<unsigned>(head)) ^ 1", "f16 b1 h4:2 q17 k129 d16"},
      {"sm90_keys_of_the_first_sequence", &attention_sm90, "sm90/producer.cuh",
       "clamped(p.cu_seqlens_k[tile.batch()], 0, p.total_k)", "clamped(p.cu_seqlens_k[0], 0, p.total_k)",
       "f16 h4:2 d16 varlen=17,0,64,100"},
      {"sm90_hidden_nan_kept", &attention_sm90, "sm90/attention_sm90.cuh", "__any_sync(~0u, !finite)",
       "__any_sync(~0u, false)", "f16 b1 h2 q70 k200 d16 window=8,0", Fill::hidden_nan},
      {"sm90_seen_nan_lost", &attention_sm90, "sm90/epilogue.cuh", "if (counts.word[i] & 0xffffu)",
       "if (counts.word[i] & 0u)", "bf16 b1 h2 q96 d16 causal", Fill::seen_nan},
      {"sm90_rows_stored_past_the_last", &attention_sm90, "sm90/epilogue.cuh",
       "n < tiles ? tile.seqlen_q() - first_row : 0", "n < tiles ? 16 : 0", "f16 b2 h2 q130 k60 d16 seqused_q=33,20"},
      {"sm90_boxes_without_swizzle", &attention_sm90, "sm90/score_boxes.cuh", "of_lane ^ permutation", "of_lane",
       "f16 b1 h2 q70 k96 d16 bias=f16[1,h,q,k]"},
      {"sm90_seen_blocks_skipped", &attention_sm90, "sm90/score_boxes.cuh", "any |= word;", "any &= word;",
       "f16 b2 h2 q70 k96 d16 mask=[b,1,1,k]"},
      {"sm90_mask_of_whole_blocks_only", &attention_sm90, "sm90/attention_sm90.cuh",
       "if (masks) boxes().mask_scores(s);", "", "f16 b2 h2 q70 k96 d16 mask=[b,1,q,k]"},
      {"sm90_no_rescale_after_skipped_blocks", &attention_sm90, "sm90/attention_sm90.cuh",
       "if (accumulate) rescale(o, softmax.output_scale);", "", "f16 b6 h1 q70 k608 d16 mask=[b,1,q,k]",
       Fill::rescale_reversed},
      {"sm90_unused_queries_unwritten", &attention_sm90, "sm90/attention_sm90.cuh",
       "if (p.seqused_q.present() && pass == NanPass::normal) clear_unused(p, tile);", "",
       "f16 b2 h2 q70 k60 d16 seqused_q=33,0 lse"},
      {"sm90_pages_of_the_block_before", &attention_sm90, "sm90/producer.cuh", "shared.pages(key / cfg.block_n) + 4",
       "shared.pages(key / cfg.block_n + 1) + 4", "f16 b1 h2 q70 k300 d16 page=8"},
      {"sm90_fp8_keys_in_another_order", &attention_sm90, "sm90/sm90.h", "return 2 * slots;", "return 2 * (slots ^ 1);",
       "e4m3 b1 h2 q64 k100 d32 scales=head pv=fp8"},
      {"sm90_second_term_lost", &attention_sm90, "sm90/fragments.cuh", "term[t][step][i] = low[t] | high[t] << 16",
       "term[t][step][i] = low[0] | high[0] << 16", "e4m3 b1 h2 q64 k100 d32 scales=head pv=fp8x2"},
      {"sm90_query_descale_lost", &attention_sm90, "sm90/scores.cuh",
       "factor *= *p.q_scale.at(batch, head(0, half), tile.first_q(), query(0, half));", "",
       "e4m3 b1 h2 q64 k100 d32 scales=head"},
      {"sm90_descale_of_another_row", &attention_sm90, "sm90/scores.cuh", "factor[by_row ? half : 0]", "factor[0]",
       "e4m3 b1 h2 q64 k100 d32 q_scales=token k_scales=head v_scales=head"},
      {"sm90_value_descale_lost", &attention_sm90, "sm90/epilogue.cuh",
       "p.v_scale.present() ? *p.v_scale.at(tile.batch(), head_k(row), 0, 0) : 1.0f", "1.0f",
       "e4m3 b1 h2 q64 k100 d32 scales=head"},
      {"sm90_key_descale_of_the_block_before", &attention_sm90, "sm90/scores.cuh", "descale_of(key + first)",
       "descale_of(key + first - 64)", "e4m3 b1 h2 q64 k250 d32 q_scales=head k_scales=block64 v_scales=head"},
      {"sm90_heads_of_converted_keys_mixed", &attention_sm90, "sm90/convert_kv.cuh", "sequence - batch * heads.value",
       "0", "q=f16 k=e4m3 v=e4m3 b1 h2 q64 k100 d32 k_scales=head v_scales=head"},
      {"sm90_first_page_of_every_block", &attention_sm90, "sm90/producer.cuh",
       "entry(tile.batch(), static_cast<unsigned>(key + i * cfg.page_rows))",
       "entry(tile.batch(), static_cast<unsigned>(key))", "f16 b1 h2 q70 k300 d16 page=8"},
  };
  return edits;
}

// Pages, and what attention_decode does differently from attention_sm80, whose loop over keys it shares.
inline const std::vector<Edit>& decode_edits() {
  using check::Fill;
  static const std::vector<Edit> edits = {
      {"decode_part_left_out_of_the_merge", &attention_decode, "sm80/attention_decode.cuh",
       "if (group < part_groups && chunk", "if (group < part_groups / 2 && chunk", "f16 b1 h4:2 q1 k700 d64"},
      {"decode_parts_not_rescaled", &attention_decode, "sm80/attention_decode.cuh",
       "Softmax::rescale_factor(from, this->row_max, this->scale_log2)", "1.0f", "f16 b1 h4:2 q1 k700 d64"},
      {"decode_parts_rescaled_without_the_scale", &attention_decode, "sm80/attention_decode.cuh",
       "Softmax::rescale_factor(from, this->row_max, this->scale_log2)",
       "Softmax::rescale_factor(from, this->row_max, log2_e)", "f16 b1 h4:2 q1 k700 d64"},
      {"decode_sum_of_parts_not_rescaled", &attention_decode, "sm80/attention_decode.cuh",
       "this->row_sum = fmaf(by, part.row_sum, this->row_sum);", "this->row_sum += part.row_sum;",
       "f16 b1 h4:2 q1 k700 d64"},
      {"decode_two_parts_not_merged", &attention_decode, "sm80/attention_decode.cuh", "parts > 1 && is_last_arrival",
       "parts > 2 && is_last_arrival", "f16 b1 h2 q1 k500 d64"},
      {"decode_seen_nan_of_a_part_lost", &attention_decode, "sm80/attention_decode.cuh",
       "if (sums.o[i] > 0.0f) to[chunk * 8 + i]", "if (sums.o[i] < 0.0f) to[chunk * 8 + i]",
       "bf16 b1 h4:2 q4 k700 d64 causal", Fill::seen_nan},
      {"decode_query_of_the_first_head", &attention_decode, "sm80/attention_sm80.cuh",
       "p.q.index(cta.batch, head_of<cfg>(p, cta, row),", "p.q.index(cta.batch, cta.head,", "f16 b1 h4:2 q1 k300 d64"},
      {"decode_unused_queries_unwritten", &attention_decode, "sm80/attention_decode.cuh",
       "if (params.sm80.attention.seqused_q.present()) clear_unused_decode_rows", "if (false) clear_unused_decode_rows",
       "f16 b2 h4:2 q3 k300 d64 seqused_q=3,1 lse"},
      {"decode_length_of_another_sequence", &attention_decode, "shared/params.h",
       "clamped(p.seqused_k[b], 0, s.seqlen_k)", "clamped(p.seqused_k[b > 0 ? b - 1 : 0], 0, s.seqlen_k)",
       "f16 b3 h4:2 q1 k300 d64 seqused=300,40,170"},
      {"paged_next_page", &attention_decode, "shared/params.h", "static_cast<index_t>(page_size.quotient(j)) * column",
       "static_cast<index_t>(page_size.quotient(j) + 1) * column", "bf16 b2 h4:2 q1 k200 d64 page=16"},
      {"paged_table_of_the_first_sequence", &attention_decode, "shared/params.h",
       "data + b * batch + static_cast<index_t>(page", "data + 0 * b + static_cast<index_t>(page",
       "bf16 b2 h4:2 q1 k200 d64 page=16"},
      {"paged_row_of_another_page_size", &attention_decode, "shared/params.h",
       "static_cast<index_t>(j - page_size.quotient(j) * page_size.value)", "static_cast<index_t>(j % 8u)",
       "bf16 b2 h4:2 q1 k200 d64 page=16"},
      {"paged_length_ignored", &attention_decode, "shared/params.h", "clamped(p.seqused_k[b], 0, s.seqlen_k)",
       "s.seqlen_k", "bf16 b2 h4:2 q1 k200 d64 page=16 seqused=33,200"},
      {"paged_scale_of_the_sequence", &attention_decode, "shared/kv_view.h", "scale.data + place.page * scale.batch",
       "scale.data + batch * scale.batch",
       "q=bf16 k=e4m3 v=e4m3 b2 h4:2 q1 k200 d64 k_scales=token v_scales=token page=16"},
      {"paged_scale_of_the_first_row", &attention_decode, "shared/kv_view.h", "place.row * scale.position;",
       "0 * place.row;", "q=bf16 k=e4m3 v=e4m3 b2 h4:2 q1 k200 d64 k_scales=token v_scales=token page=16",
       Fill::outlier},
      {"paged_sm80_next_key", &attention_sm80, "sm80/attention_sm80.cuh",
       "paged_row_offset(paged_rows_smem(n_block), r,", "paged_row_offset(paged_rows_smem(n_block), r > 0 ? r - 1 : 0,",
       "bf16 b2 h4:2 q40 k200 d64 page=16"},
      {"paged_rows_of_the_block_before", &attention_decode, "sm80/attention_sm80.cuh",
       "first_key_of_block(n_block), page_entries_smem(n_block), paged",
       "first_key_of_block(n_block), page_entries_smem(n_block + 1), paged",
       "bf16 b1 h4:2 q1 k2900 d64 page=16 splits=2"},
      {"latent_values_of_another_block", &attention_decode, "sm80/wide_attention.cuh",
       "multiply_v<KPiece>(o, buffer, 0)", "multiply_v<KPiece>(o, after(buffer), 0)",
       "bf16 b1 h16:1 q1 k200 d264:256 v_in_k"},
  };
  return edits;
}

// Defects by which the bits of a row depend on other rows or keys. The results are right, so only the comparison of
// random schedules (invariance_schedules()) finds these defects.
inline const std::vector<Edit>& invariance_edits() {
  static const std::vector<Edit> edits = {
      {"invariant_parts_begin_at_the_window", &attention_decode, "sm80/decode_walk.cuh",
       "(work.first_block / part_blocks + part) * part_blocks", "work.first_block + part * part_blocks",
       "f16 b1 h4:2 q33 k300 d32 causal lse invariant window=90,0"},
      {"invariant_rows_of_a_warp_decide_together", &attention_decode, "device/softmax.cuh",
       "m = exceeds_threshold(maximum, m, row_scale_log2(mt, half)) ? maximum : m;", "m = fmaxf(maximum, m);",
       "f16 b1 h4:2 q33 k300 d32 causal lse invariant window=90,0"},
  };
  return edits;
}
// The schedules for these defects. They have the kernel of the lines above.
inline ScheduleProblem invariance_schedules() { return {"f16", " causal window=90,0", 4, 2, 32, {330, 150}, 40, {}}; }

// The defects that are also tested under emulation.
inline std::vector<Edit> emulated_edits() {
  std::vector<Edit> all = sm90_edits();
  all.insert(all.end(), decode_edits().begin(), decode_edits().end());
  return all;
}

struct Place {
  size_t begin = 0, length = 0;
};

// The positions of `piece` in `text`. A space in the piece matches any white space.
inline std::vector<Place> occurrences(std::string_view text, std::string_view piece) {
  const auto blank = [](char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; };
  std::vector<Place> places;
  for (size_t begin = 0; begin < text.size(); ++begin) {
    size_t at = begin, i = 0;
    for (; i < piece.size() && at < text.size(); ++i) {
      if (!blank(piece[i])) {
        if (text[at++] != piece[i]) break;
        continue;
      }
      if (!blank(text[at])) break;
      while (at < text.size() && blank(text[at])) ++at;
    }
    if (i == piece.size()) places.push_back({begin, at - begin});
  }
  return places;
}

// The source with the defect. Throws Error{invalid_argument} if the edit's piece does not occur exactly once.
inline std::string edited(const Edit& edit) {
  const auto file = jit::embedded_files().find(edit.file);
  if (file == jit::embedded_files().end()) invalid(edit.name, ": there is no ", edit.file);
  const std::vector<Place> places = occurrences(file->second, edit.text);
  if (places.size() != 1) invalid(edit.name, ": \"", edit.text, "\" occurs ", places.size(), " times in ", edit.file);
  return std::string(file->second).replace(places[0].begin, places[0].length, edit.instead);
}

}  // namespace rapt::test
