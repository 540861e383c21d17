// Random schedules for `invariant`: sequences are computed as a whole, and then in random calls, as a server does. A
// call has some query rows of several sequences and the keys up to these rows, or more; it is dense, packed or paged;
// it has all heads or a few. Each row must have the bits that it has in the whole sequence. Needs GoogleTest. Included
// by tests of the CPU backend, of emulated kernels and of GPUs.
#pragma once

#include <algorithm>
#include <cstring>
#include <random>

#include "base/error.h"
#include "tests/cpu/support.h"

namespace rapt::test {

struct ScheduleProblem {
  std::string dtypes;   // the first words of a problem line
  std::string options;  // further words; without "causal", each call has all keys of its sequences
  int64_t heads_q = 1, heads_k = 1, head_dim = 64;
  std::vector<int64_t> lengths;  // of the sequences
  // The most query rows of a call's sequence, and the sizes of pages. Without sizes, no call has pages.
  int64_t most_rows = 64;
  std::vector<int64_t> page_sizes = {1, 7, 16, 64, 256};
};

class RandomSchedules {
 public:
  using Run = std::function<void(Call& call)>;  // computes call.out

  RandomSchedules(ScheduleProblem problem, unsigned seed, Run run)
      : p_(std::move(problem)), run_(std::move(run)), random_(seed) {
    for (size_t s = 0; s < p_.lengths.size(); ++s) {
      const int64_t n = p_.lengths[s];
      Call whole = make(concat(p_.dtypes, " b1 h", p_.heads_q, ":", p_.heads_k, " q", n, " k", n, words()));
      fill_hash(whole, 100 * seed + s);
      const Pieces all{{{s, 0, n, n}}, 0, p_.heads_k, group()};
      fill_of_heads(whole, all);
      run_(whole);
      whole_.push_back(std::move(whole));
    }
  }

  const std::vector<Call>& whole() const { return whole_; }

  // Runs `count` random calls and compares their rows with the rows of whole().
  void expect_same_bits(int count) {
    const int64_t rows = differing_rows(count);
    EXPECT_EQ(rows, 0) << "rows that differ from the whole sequence; the first: " << first_difference_;
  }
  // The same, but returns the number of rows that differ. It stops after the first call with such a row.
  int64_t differing_rows(int count) {
    int64_t different = 0;
    for (int i = 0; i < count && different == 0 && !testing::Test::HasFailure(); ++i) {
      const bool plain = below(4) == 0, packed = !plain && below(2) == 0, starts = causal() && below(4) == 0;
      const Pieces pieces = random_pieces(plain, starts);
      Call call = make(line_of(pieces, plain, packed, starts));
      SCOPED_TRACE(to_string(call.problem));
      copy_inputs(call, pieces, packed);
      run_(call);
      different = compare(call, pieces, packed);
    }
    return different;
  }

 private:
  // Query rows [first, first + rows) of a sequence, with its first `keys` keys.
  struct Piece {
    size_t sequence;
    int64_t first, rows, keys;
  };
  // The pieces of a call, the first and the number of its KV heads, and the query heads of a KV head.
  struct Pieces {
    std::vector<Piece> of;
    int64_t first_head, heads_k, group;
    int64_t most(int64_t Piece::*member) const {
      int64_t most = 0;
      for (const Piece& piece : of) most = std::max(most, piece.*member);
      return most;
    }
  };

  int64_t group() const { return p_.heads_q / p_.heads_k; }
  bool causal() const { return p_.options.find("causal") != std::string::npos; }
  size_t shortest_sequence() const {
    return static_cast<size_t>(std::min_element(p_.lengths.begin(), p_.lengths.end()) - p_.lengths.begin());
  }
  int64_t below(int64_t n) { return std::uniform_int_distribution<int64_t>(0, n - 1)(random_); }
  std::string words() const { return concat(" d", p_.head_dim, " lse invariant", p_.options); }

  int64_t random_rows(int64_t most) {
    most = std::min(most, p_.most_rows);
    const int64_t kind = below(3);
    return kind == 0 ? 1 : 1 + below(kind == 1 ? std::min<int64_t>(most, 9) : most);
  }
  Pieces random_pieces(bool plain, bool starts) {
    Pieces pieces{{}, below(p_.heads_k), 1, 1 + below(group())};
    pieces.heads_k = 1 + below(p_.heads_k - pieces.first_head);
    const int64_t count = 1 + below(4), shortest = p_.lengths[shortest_sequence()];
    const int64_t first = below(shortest), rows = random_rows(shortest - first),
                  keys = starts ? first + rows + below(shortest - first - rows + 1) : first + rows;
    for (int64_t i = 0; i < count; ++i) {
      const auto s = static_cast<size_t>(below(static_cast<int64_t>(p_.lengths.size())));
      Piece piece{s, first, rows, keys};
      if (plain && !causal()) piece.sequence = shortest_sequence();
      if (!plain) {
        const int64_t n = p_.lengths[s];
        piece.first = below(n), piece.rows = random_rows(n - piece.first), piece.keys = piece.first + piece.rows;
        if (starts) piece.keys += below(n - piece.keys + 1);
      }
      if (!causal()) piece.keys = p_.lengths[piece.sequence];
      pieces.of.push_back(piece);
    }
    return pieces;
  }

  // plain: all pieces have the same lengths, without lists of lengths.
  std::string line_of(const Pieces& pieces, bool plain, bool packed, bool starts) {
    const auto list = [&](auto&& value) {
      std::string text;
      for (const Piece& piece : pieces.of) text += concat(text.empty() ? "" : ",", value(piece));
      return text;
    };
    std::string line = concat(p_.dtypes, " h", pieces.heads_k * pieces.group, ":", pieces.heads_k, words());
    if (packed) {
      line += " varlen=" + list([](const Piece& piece) { return concat(piece.rows, ":", piece.keys); });
    } else {
      const int64_t more = plain ? 0 : below(3);  // rows and keys that no sequence uses
      line += concat(" b", pieces.of.size(), " q", pieces.most(&Piece::rows) + more, " k",
                     pieces.most(&Piece::keys) + 5 * more);
      if (!plain)
        line += " seqused_q=" + list([](const Piece& piece) { return piece.rows; }) +
                " seqused=" + list([](const Piece& piece) { return piece.keys; });
    }
    if (starts) line += " q_start=" + list([](const Piece& piece) { return piece.first; });
    if (!p_.page_sizes.empty() && below(2) == 0)
      line += concat(" page=", p_.page_sizes[static_cast<size_t>(below(static_cast<int64_t>(p_.page_sizes.size())))]);
    return line;
  }

  // Values that depend on the head, and descales that also depend on the sequence and, with `token`, on the key.
  static double descale(size_t sequence, int64_t head, int64_t key) {
    return 0.5 + static_cast<double>((sequence * 5 + static_cast<size_t>(head * 3 + key * 7)) % 16) / 32;
  }
  void fill_of_heads(Call& call, const Pieces& pieces) const {
    for (int64_t h = 0; h < call.problem.heads_q; ++h) {
      const int64_t head = original_head(h, pieces);
      if (call.in.alibi_slopes.present()) call.in.alibi_slopes.set({h}, 0.01 * static_cast<double>(1 + head));
      if (call.in.sinks.present()) call.in.sinks.set({h}, 0.5 * static_cast<double>(head) - 1);
    }
    fill_descales(call.in.k_descale, call.problem, pieces);
    fill_descales(call.in.v_descale, call.problem, pieces);
    fill_scores(call.in.bias, pieces, [](size_t x) { return static_cast<double>(x % 64) / 16 - 2; });
    fill_scores(call.in.mask, pieces, [](size_t x) { return x % 4 == 0 ? 0.0 : 1.0; });
  }
  // k and v have the same kind of descales.
  void fill_descales(HostTensor& scales, const Problem& problem, const Pieces& pieces) const {
    if (!scales.present()) return;
    const bool of_keys = problem.k_scales == ScaleKind::token;
    int64_t packed_row = 0;
    for (size_t b = 0; b < pieces.of.size(); packed_row += pieces.of[b++].keys)
      for (int64_t h = 0; h < pieces.heads_k; ++h)
        for (int64_t j = 0; j < (of_keys ? pieces.of[b].keys : 1); ++j) {
          const auto batch = static_cast<int64_t>(b);
          const double value = descale(pieces.of[b].sequence, pieces.first_head + h, j);
          if (!of_keys)
            scales.set({batch, h}, value);
          else
            problem.varlen ? scales.set({h, packed_row + j}, value) : scales.set({batch, h, j}, value);
        }
  }
  // A bias or a mask [b, h, q, k]. value: of a hash of sequence, head, query and key.
  void fill_scores(HostTensor& t, const Pieces& pieces, const std::function<double(size_t hash)>& value) const {
    if (!t.present()) return;
    for (size_t b = 0; b < pieces.of.size(); ++b) {
      const Piece& piece = pieces.of[b];
      for (int64_t h = 0; h < t.shape[1]; ++h)
        for (int64_t i = 0; i < piece.rows; ++i)
          for (int64_t j = 0; j < piece.keys; ++j) {
            const int64_t place = (original_head(h, pieces) * 8191 + piece.first + i) * 65537 + j;
            const size_t hash = (static_cast<size_t>(place) + piece.sequence * 31) * 0x9e3779b97f4a7c15u >> 40;
            t.set({static_cast<int64_t>(b), h, i, j}, value(hash));
          }
    }
  }
  // The head of the whole sequence for query head h of a call.
  int64_t original_head(int64_t h, const Pieces& pieces) const {
    return (pieces.first_head + h / pieces.group) * group() + h % pieces.group;
  }

  // The bytes of a row of q, k, v or out. `packed_row`: the packed row of row 0.
  static std::byte* row_of(const HostTensor& t, bool packed, int64_t batch, int64_t packed_row, int64_t head,
                           int64_t row) {
    const int64_t at = packed ? t.index({packed_row + row, head, 0}) : t.index({batch, head, row, 0});
    return t.data() + at * bytes_of(t.dtype);
  }
  static size_t row_bytes(const HostTensor& t) { return static_cast<size_t>(t.shape.back() * bytes_of(t.dtype)); }

  void copy_inputs(Call& call, const Pieces& pieces, bool packed) const {
    fill_of_heads(call, pieces);
    int64_t q_row = 0, k_row = 0;
    for (size_t b = 0; b < pieces.of.size(); ++b) {
      const Piece& piece = pieces.of[b];
      const check::Inputs& from = whole_[piece.sequence].in;
      const auto batch = static_cast<int64_t>(b);
      for (int64_t h = 0; h < pieces.heads_k * pieces.group; ++h)
        for (int64_t i = 0; i < piece.rows; ++i)
          std::memcpy(row_of(call.in.q, packed, batch, q_row, h, i),
                      row_of(from.q, false, 0, 0, original_head(h, pieces), piece.first + i), row_bytes(from.q));
      for (int64_t h = 0; h < pieces.heads_k; ++h)
        for (int64_t j = 0; j < piece.keys; ++j) {
          const int64_t head = pieces.first_head + h;
          std::memcpy(row_of(call.in.k, packed, batch, k_row, h, j), row_of(from.k, false, 0, 0, head, j),
                      row_bytes(from.k));
          std::memcpy(row_of(call.in.v, packed, batch, k_row, h, j), row_of(from.v, false, 0, 0, head, j),
                      row_bytes(from.v));
        }
      q_row += piece.rows, k_row += piece.keys;
    }
  }

  // Returns the number of rows that differ.
  int64_t compare(const Call& call, const Pieces& pieces, bool packed) {
    int64_t q_row = 0, different = 0;
    for (size_t b = 0; b < pieces.of.size(); q_row += pieces.of[b++].rows) {
      const Piece& piece = pieces.of[b];
      const check::Outputs& expected = whole_[piece.sequence].out;
      const auto batch = static_cast<int64_t>(b);
      for (int64_t h = 0; h < pieces.heads_k * pieces.group; ++h)
        for (int64_t i = 0; i < piece.rows; ++i) {
          const int64_t head = original_head(h, pieces), row = piece.first + i;
          const bool same = std::memcmp(row_of(call.out.out, packed, batch, q_row, h, i),
                                        row_of(expected.out, false, 0, 0, head, row), row_bytes(expected.out)) == 0;
          const double lse = packed ? call.out.lse.at({h, q_row + i}) : call.out.lse.at({batch, h, i});
          if (same && lse == expected.lse.at({0, head, row})) continue;
          if (different++ == 0)
            first_difference_ = concat(same ? "lse of " : "", "row ", row, " of head ", head, " of sequence ",
                                       piece.sequence, " in ", to_string(call.problem));
        }
    }
    return different;
  }

  const ScheduleProblem p_;
  const Run run_;
  std::mt19937 random_;
  std::vector<Call> whole_;
  std::string first_difference_;
};

}  // namespace rapt::test
