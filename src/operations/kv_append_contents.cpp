// The rules of rapt_kv_append about contents: places in the cache, rotary positions, supplied descales; see
// kv_append_rules.h.
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "operations/kv_append_rules.h"

namespace rapt {
namespace {

using Params = KvAppendParams;

void check_lengths(const Params& p) {
  const IndexRef& list = p.cu_seqlens;
  if (list.at(0) != 0) invalid("cu_seqlens_new[0] = ", list.at(0), ": must be 0");
  for (index_t b = 1; b <= p.batch; ++b)
    if (list.at(b) < list.at(b - 1))
      invalid("cu_seqlens_new[", b, "] = ", list.at(b), ": must not be less than cu_seqlens_new[", b - 1,
              "] = ", list.at(b - 1));
  if (list.at(p.batch) > p.total)
    invalid("cu_seqlens_new[", p.batch, "] = ", list.at(p.batch), ": reaches past k, which has ", p.total, " rows");
}

// The tokens of a sequence.
struct Tokens {
  index_t first_row = 0, count = 0;
  NewToken at(index_t b, index_t i) const { return {b, first_row + i, i, true}; }
};
Tokens tokens_of(const Params& p, index_t b, bool of_q) {
  if (!p.packed) return {0, of_q ? p.seqlen_q : p.seqlen};
  if (!p.cu_seqlens.present()) return {0, p.total};
  return {p.cu_seqlens.at(b), p.cu_seqlens.at(b + 1) - p.cu_seqlens.at(b)};
}

// The name of a token in error sentences: "[1, 3]", packed "[7]".
std::string index_text(const Params& p, const NewToken& token) {
  return p.packed ? concat("[", token.row, "]") : concat("[", token.b, ", ", token.row, "]");
}

// Checks the sequence's last position and its pages.
void check_sequence(const Params& p, index_t b, index_t tokens, const char* source) {
  const index_t start = p.starts.at(b);
  if (start < -most_position || start > most_position)
    invalid(source, "[", b, "] = ", start, ": must be from -2^60 to 2^60");
  if (p.batch_idx.present() && (p.batch_idx.at(b) < 0 || p.batch_idx.at(b) >= p.pages))
    invalid("cache_batch_idx[", b, "] = ", p.batch_idx.at(b), ": must be from 0 to ", p.pages - 1,
            ", a batch row of k_cache");
  const index_t end = start + tokens;
  if (tokens == 0 || end <= 0) return;
  if (end > p.sequence_rows) {
    if (p.block_table != nullptr)
      invalid("block_table: sequence ", b, " has ", end, " tokens after the append (", source, "[", b, "] = ", start,
              " and ", tokens, " new), but its row of the table has pages for ", p.sequence_rows);
    invalid(source, "[", b, "] = ", start, ": ", tokens, " new tokens end at ", end, ", past the capacity ",
            p.sequence_rows, " of k_cache");
  }
  if (p.block_table == nullptr) return;
  for (index_t i = std::max<index_t>(start, 0) / p.page_rows; i <= (end - 1) / p.page_rows; ++i) {
    const int page = p.block_table[b * p.table_batch + i * p.table_column];
    if (page < 0 || page >= p.pages)
      invalid("block_table[", b, ", ", i, "] = ", page, ": must be from 0 to ", p.pages - 1, ", a page of k_cache");
  }
}

void check_slot(const Params& p, const NewToken& token) {
  const index_t slot = p.slots.at(token.b, token.row);
  if (slot >= p.pages * p.page_rows)
    invalid("slot_mapping", index_text(p, token), " = ", slot, ": must be negative (skipped) or less than ",
            p.pages * p.page_rows, ", the rows of k_cache");
}

// Negative positions are legal: such tokens are skipped.
void check_angle(const Params& p, const NewToken& token, bool of_q) {
  const index_t position = rotary_position(p, token, of_q);
  if (position >= p.rotary.positions)
    invalid("cos.shape = [", p.rotary.positions, ", ", p.rotary.rotary_dim / 2, "]: ", of_q ? "q" : "k",
            index_text(p, token), " has rotary position ", position, ", so cos and sin need at least ", position + 1,
            " rows");
}

// Checks that all places differ. Tokens usually come in the order of their places. Then nothing is sorted.
void check_distinct(const Params& p, std::vector<std::pair<index_t, NewToken>>& places) {
  const auto before = [](const auto& a, const auto& b) { return a.first < b.first; };
  if (!std::is_sorted(places.begin(), places.end(), before)) std::stable_sort(places.begin(), places.end(), before);
  const auto same =
      std::adjacent_find(places.begin(), places.end(), [](const auto& a, const auto& b) { return a.first == b.first; });
  if (same == places.end()) return;
  const char* const argument = p.slots.present()          ? "slot_mapping"
                               : p.block_table != nullptr ? "block_table"
                                                          : "cache_batch_idx";
  invalid(argument, ": tokens ", index_text(p, same->second), " and ", index_text(p, (same + 1)->second),
          " both have slot ", same->first, "; two tokens must not have the same place in k_cache");
}

void check_descales(const Params& p, const AppendScales& scales, const char* name) {
  if (scales.kind != ScaleKind::head) return;
  for (index_t b = 0; b < p.batch; ++b) {
    if (tokens_of(p, b, false).count == 0) continue;
    for (index_t h = 0; h < p.heads_k; ++h) {
      const float factor = *scales.at(b, h, 0);
      if (!(factor >= 0x1p-126f) || !std::isfinite(factor))
        invalid(name, "[", b, ", ", h, "] = ", factor, ": must be finite and at least 2^-126");
    }
  }
}

}  // namespace

void check_kv_append_contents(const KvAppendParams& p, const char* source) {
  if (p.cu_seqlens.present()) check_lengths(p);
  const bool is_length = std::string(source) == "seqused_k";
  const bool may_collide = p.slots.present() || p.block_table != nullptr || p.batch_idx.present();
  std::vector<std::pair<index_t, NewToken>> places;
  for (index_t b = 0; b < p.batch; ++b) {
    const Tokens tokens = tokens_of(p, b, false);
    if (!p.slots.present()) {
      if (is_length && p.starts.at(b) < 0)
        invalid(source, "[", b, "] = ", p.starts.at(b), ": a length must not be negative");
      check_sequence(p, b, tokens.count, source);
    }
    for (index_t i = 0; i < tokens.count; ++i) {
      const NewToken token = tokens.at(b, i);
      if (p.slots.present()) check_slot(p, token);
      const CachePlace place = cache_place(p, token);
      if (!place.present()) continue;
      if (p.rotary.present()) {
        if (rotary_position(p, token, false) < 0) continue;
        check_angle(p, token, false);
      }
      if (may_collide) places.emplace_back(place.page * p.page_rows + place.row, token);
    }
    if (!p.has_q()) continue;
    const Tokens queries = tokens_of(p, b, true);
    for (index_t i = 0; i < queries.count; ++i) check_angle(p, queries.at(b, i), true);
  }
  check_distinct(p, places);
  check_descales(p, p.k_scales, "k_descale");
  check_descales(p, p.v_scales, "v_descale");
}

}  // namespace rapt
