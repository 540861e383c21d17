// parse_problem: converts one line of text to a validated Problem (grammar: docs/problem-line.md). The text can contain
// any bytes. Called by the program, check/ and tests. One table lists every word; all other words are errors.
#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "base/error.h"
#include "problem/hint.h"
#include "problem/problem.h"
#include "problem/value.h"
#include "problem/words.h"

namespace rapt {
namespace {

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

// The form of a word: a dtype without a name (f16), a letter and a size (b2), a flag (causal), or a name and a value
// (page=16).
enum class Form : uint8_t { dtype, size, flag, value };

class LineReader : WordReader {
 public:
  Problem read(std::string_view line);

 private:
  struct Row {
    Form form;
    std::string_view name;
    void (LineReader::*read)(std::string_view value);
  };
  static constexpr size_t row_count = 41 + std::size(position_words);
  static const std::array<Row, row_count>& rows();
  static size_t find(Form form, std::string_view name);

  void read_word();
  std::string hint() const;  // a hint for an unknown word
  bool given(Form form, std::string_view name) const { return !seen_[find(form, name)].empty(); }
  bool given(std::string_view name) const { return given(Form::value, name); }

  // Each of these functions reads one value. word_ is the complete word.
  void read_dtype(std::string_view value);
  template <int64_t PlanFacts::*first, int64_t PlanFacts::*second>
  void read_two_sizes(std::string_view value);
  template <int64_t PlanFacts::*field>
  void read_size(std::string_view value) {
    problem_.*field = integer(value, 0, words::max_size);
  }
  template <int64_t PlanFacts::*field>
  void read_count(std::string_view value) {
    problem_.*field = integer(value, 1, words::max_size);
  }
  template <bool PlanFacts::*field>
  void read_flag(std::string_view) {
    problem_.*field = true;
  }
  void read_position(std::string_view value);
  template <DType PlanFacts::*field>
  void read_one_dtype(std::string_view value) {
    problem_.*field = dtype(value);
  }
  template <std::optional<float> PlanFacts::*field>
  void read_real(std::string_view value) {
    problem_.*field = real(value);
  }
  template <ScaleKind PlanFacts::*field>
  void read_scale_kind(std::string_view value) {
    problem_.*field = choice<ScaleKind>(words::scale_kinds, value, 1);
  }
  template <std::optional<std::vector<int64_t>> Problem::*field>
  void read_strides(std::string_view value) {
    problem_.*field = integers(value, std::numeric_limits<int64_t>::max(), 4);
  }
  template <std::vector<int64_t> Problem::*field>
  void read_starts(std::string_view value);
  void read_bias(std::string_view value);
  void read_mask(std::string_view value) { problem_.mask = {DType::u8, broadcast_axes(value)}; }
  void read_varlen(std::string_view value);
  template <bool PlanFacts::*said, std::vector<int32_t> Problem::*lengths>
  void read_seqused(std::string_view value);
  void read_scales(std::string_view value);
  void read_layout(std::string_view value) { problem_.layout = choice<Layout>(words::layouts, value, 0); }
  void read_mod(std::string_view value) {
    if (value.empty()) fail("needs a digest");
    problem_.mod = value;
  }
  void read_pv(std::string_view value) { problem_.pv = choice<PvMode>(words::pv_modes, value, 1); }
  void read_acc(std::string_view value) { problem_.acc = choice<AccMode>(words::acc_modes, value, 0); }

  // Rules that need the complete line.
  void settle_dtypes();
  void settle_sizes();
  void settle_access();

  Problem problem_;
  std::array<std::string_view, row_count> seen_{};  // for each row of the table, the word as written
};

const std::array<LineReader::Row, LineReader::row_count>& LineReader::rows() {
  using R = LineReader;
  using P = Problem;
  static constexpr std::array<Row, row_count - std::size(position_words)> own{{
      {Form::dtype, "", &R::read_dtype},
      {Form::value, "q", &R::read_one_dtype<&P::q>},
      {Form::value, "k", &R::read_one_dtype<&P::k>},
      {Form::value, "v", &R::read_one_dtype<&P::v>},
      {Form::value, "out", &R::read_one_dtype<&P::out>},
      {Form::size, "b", &R::read_size<&P::batch>},
      {Form::size, "h", &R::read_two_sizes<&P::heads_q, &P::heads_k>},
      {Form::size, "q", &R::read_size<&P::seqlen_q>},
      {Form::size, "k", &R::read_size<&P::seqlen_k>},
      {Form::size, "d", &R::read_two_sizes<&P::head_dim, &P::head_dim_v>},
      {Form::value, "softcap", &R::read_real<&P::softcap>},
      {Form::value, "scale", &R::read_real<&P::scale>},
      {Form::flag, "alibi", &R::read_flag<&P::alibi>},
      {Form::value, "bias", &R::read_bias},
      {Form::value, "mask", &R::read_mask},
      {Form::flag, "sinks", &R::read_flag<&P::sinks>},
      {Form::value, "varlen", &R::read_varlen},
      {Form::value, "seqused", &R::read_seqused<&P::seqused, &P::used_k>},
      {Form::value, "seqused_q", &R::read_seqused<&P::seqused_q, &P::used_q>},
      {Form::value, "page", &R::read_count<&P::page_size>},
      {Form::value, "scales", &R::read_scales},
      {Form::value, "q_scales", &R::read_scale_kind<&P::q_scales>},
      {Form::value, "k_scales", &R::read_scale_kind<&P::k_scales>},
      {Form::value, "v_scales", &R::read_scale_kind<&P::v_scales>},
      {Form::flag, "smooth_k", &R::read_flag<&P::smooth_k>},
      {Form::flag, "hadamard", &R::read_flag<&P::hadamard>},
      {Form::flag, "v_in_k", &R::read_flag<&P::v_in_k>},
      {Form::value, "layout", &R::read_layout},
      {Form::value, "q_strides", &R::read_strides<&P::q_strides>},
      {Form::value, "k_strides", &R::read_strides<&P::k_strides>},
      {Form::value, "v_strides", &R::read_strides<&P::v_strides>},
      {Form::value, "out_strides", &R::read_strides<&P::out_strides>},
      {Form::value, "q_start", &R::read_starts<&P::q_starts>},
      {Form::value, "k_start", &R::read_starts<&P::k_starts>},
      {Form::value, "splits", &R::read_count<&P::splits>},
      {Form::value, "mod", &R::read_mod},
      {Form::flag, "lse", &R::read_flag<&P::lse>},
      {Form::flag, "partial", &R::read_flag<&P::partial>},
      {Form::flag, "invariant", &R::read_flag<&P::invariant>},
      {Form::value, "pv", &R::read_pv},
      {Form::value, "acc", &R::read_acc},
  }};
  static constexpr auto table = [] {
    std::array<Row, row_count> all;
    auto next = std::copy(own.begin(), own.end(), all.begin());
    for (const PositionWord& mask : position_words)
      *next++ = {mask.count() == 0 ? Form::flag : Form::value, mask.name, &R::read_position};
    return all;
  }();
  return table;
}

size_t LineReader::find(Form form, std::string_view name) {
  const auto& table = rows();
  const auto row =
      std::find_if(table.begin(), table.end(), [&](const Row& r) { return r.form == form && r.name == name; });
  return static_cast<size_t>(row - table.begin());
}

// Words.

void LineReader::read_dtype(std::string_view value) { problem_.q = problem_.k = problem_.v = dtype(value); }

// Reads "h32:8". "h32" means "h32:32".
template <int64_t PlanFacts::*first, int64_t PlanFacts::*second>
void LineReader::read_two_sizes(std::string_view value) {
  const size_t colon = value.find(':');
  problem_.*first = problem_.*second = integer(value.substr(0, colon), 0, words::max_size);
  if (colon != std::string_view::npos) problem_.*second = integer(value.substr(colon + 1), 0, words::max_size);
}

void LineReader::read_position(std::string_view value) {
  const std::string_view name = word_.substr(0, word_.find('='));
  const PositionWord& mask = *std::ranges::find(position_words, name, &PositionWord::name);
  PositionMask& position = problem_.position_mask;
  if (mask.count() == 0) {
    if (position.causal != Causal::none) fail("contradicts the other causal word; give one of causal, causal_top_left");
    position.causal = mask.causal;
    return;
  }
  const std::vector<int64_t> values = integers(value, words::max_position, PositionWord::max_values);
  if (std::ssize(values) != mask.count()) fail("needs ", mask.form);
  for (size_t i = 0; i < values.size(); ++i) {
    const PositionWord::Value& one = mask.values[i];
    if (values[i] < one.least) invalid(one.name, " = ", values[i], ": ", one.rule);
    position.*one.field = values[i];
  }
}

void LineReader::read_bias(std::string_view value) {
  const size_t bracket = std::min(value.find('['), value.size());
  problem_.bias = {dtype(value.substr(0, bracket)), broadcast_axes(value.substr(bracket))};
}

template <std::vector<int64_t> Problem::*field>
void LineReader::read_starts(std::string_view value) {
  problem_.*field = integers(value, words::max_position, words::max_list_items);
  problem_.has_starts = true;
}

void LineReader::read_varlen(std::string_view value) {
  Problem& p = problem_;
  p.varlen = true;
  p.seqlen_q = p.seqlen_k = 0;
  each_length(value, [&](std::string_view item) {
    const size_t colon = item.find(':');
    p.lengths_q.push_back(length(item.substr(0, colon)));
    p.lengths_k.push_back(colon == std::string_view::npos ? p.lengths_q.back() : length(item.substr(colon + 1)));
    p.total_q += p.lengths_q.back();
    p.total_k += p.lengths_k.back();
    p.seqlen_q = std::max<int64_t>(p.seqlen_q, p.lengths_q.back());
    p.seqlen_k = std::max<int64_t>(p.seqlen_k, p.lengths_k.back());
  });
}

template <bool PlanFacts::*said, std::vector<int32_t> Problem::*lengths>
void LineReader::read_seqused(std::string_view value) {
  problem_.*said = true;
  each_length(value, [&](std::string_view item) { (problem_.*lengths).push_back(length(item)); });
}

void LineReader::read_scales(std::string_view value) {
  const auto kind = choice<ScaleKind>(words::scale_kinds, value, 1);
  if (kind == ScaleKind::channel) fail("only v has scales by channel: say v_scales=channel");
  problem_.q_scales = problem_.k_scales = problem_.v_scales = kind;
}

// The line.

std::string LineReader::hint() const {
  std::vector<std::string_view> flags, values;
  for (const Row& row : rows())
    if (row.form == Form::flag || row.form == Form::value)
      (row.form == Form::flag ? flags : values).push_back(row.name);
  return word_hint(word_, flags, values);
}

void LineReader::read_word() {
  const size_t equals = word_.find('=');
  const std::string_view name = word_.substr(0, equals);
  size_t row = row_count;
  std::string_view value;
  if (equals != std::string_view::npos) {
    row = find(Form::value, name);
    value = word_.substr(equals + 1);
  } else if (row = find(Form::flag, name); row == row_count) {
    const bool sized = word_.size() > 1 && (is_digit(word_[1]) || word_[1] == '-');
    row = sized ? find(Form::size, word_.substr(0, 1)) : row_count;
    value = word_.substr(1);
    if (dtype_named(word_) != DType::none) row = find(Form::dtype, ""), value = word_;
  }
  if (row == row_count) fail("unknown; ", hint(), "`rapt help problem-line` lists every word");
  if (!seen_[row].empty())
    fail("given twice", seen_[row] == word_ ? std::string() : concat(" (before: ", quoted(seen_[row]), ")"));
  seen_[row] = word_;
  (this->*rows()[row].read)(value);
}

void LineReader::settle_dtypes() {
  const bool each = given("q") || given("k") || given("v");
  if (given(Form::dtype, "") && each)
    invalid("word ", quoted(seen_[find(Form::dtype, "")]),
            ": contradicts q=, k= or v=; give either one dtype (bf16), or each of q=, k= and v=");
  if (!given(Form::dtype, "") && !(given("q") && given("k") && given("v")))
    invalid("dtype missing: give either one dtype (bf16), or each of q=, k= and v=");
  if (!given("out")) problem_.out = words::default_out(problem_.q);
  for (const std::string_view one : {"q_scales", "k_scales", "v_scales"})
    if (given("scales") && given(one))
      invalid("word ", quoted(seen_[find(Form::value, one)]), ": contradicts ",
              quoted(seen_[find(Form::value, "scales")]));
}

void LineReader::settle_sizes() {
  Problem& p = problem_;
  if (!given(Form::size, "d")) invalid("head_dim missing: give d, for example d128");
  if (p.varlen) {
    for (const std::string_view size : {"q", "k"})
      if (given(Form::size, size))
        invalid("word ", quoted(seen_[find(Form::size, size)]), ": not allowed with varlen=, which gives the lengths");
    const auto count = static_cast<int64_t>(p.lengths_q.size());
    if (!given(Form::size, "b") && count == 0) invalid("word 'varlen=': no lengths; an empty batch is b0 varlen=");
    if (given(Form::size, "b") && p.batch != count)
      invalid("word ", quoted(seen_[find(Form::size, "b")]), ": varlen= gives ", count, " sequences");
    p.batch = count;
  } else if (!given(Form::size, "q")) {
    invalid("seqlen_q missing: give q, for example q512, or varlen=");
  } else if (!given(Form::size, "k")) {
    p.seqlen_k = p.seqlen_q;
  }
  if (p.seqused && p.used_k.empty() && p.batch > 0) invalid("word 'seqused=': no lengths for ", p.batch, " sequences");
  if (p.seqused_q && p.used_q.empty() && p.batch > 0)
    invalid("word 'seqused_q=': no lengths for ", p.batch, " sequences");
}

// A problem from text has no addresses. Its tensors are taken to begin at multiples of 16 bytes.
void LineReader::settle_access() {
  Problem& p = problem_;
  p.access_q = access_of(p.q, geometry(p, Slot::q));
  p.access_k = access_of(p.k, geometry(p, Slot::k));
  p.access_v = access_of(p.v, geometry(p, Slot::v));
  p.access_out = access_of(p.out, geometry(p, Slot::out));
  for (Broadcast* const scores : {&p.bias, &p.mask}) scores->access = score_access(p, *scores);
}

Problem LineReader::read(std::string_view line) {
  if (line.size() > words::max_line_bytes)
    invalid("problem line of ", line.size(), " bytes: at most ", words::max_line_bytes);
  for (const char& c : line)
    if ((static_cast<unsigned char>(c) < 0x20 || c == 0x7f) && !is_space(c))
      invalid("problem line: control character at byte ", &c - line.data());
  while (true) {
    while (!line.empty() && is_space(line.front())) line.remove_prefix(1);
    if (line.empty()) break;
    word_ = line.substr(0, static_cast<size_t>(std::find_if(line.begin(), line.end(), is_space) - line.begin()));
    line.remove_prefix(word_.size());
    read_word();
  }
  settle_dtypes();
  settle_sizes();
  validate(problem_);
  settle_access();
  return std::move(problem_);
}
}  // namespace

Problem parse_problem(std::string_view line) { return LineReader().read(line); }

}  // namespace rapt
