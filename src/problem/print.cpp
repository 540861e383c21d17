// to_string: prints a Problem as its canonical line, words in the order of docs/problem-line.md, without defaults.
// Called by explain, logs, errors and the program. Independent of the locale; floats print in their shortest exact
// form.
#include <algorithm>
#include <charconv>
#include <span>

#include "problem/problem.h"
#include "problem/words.h"

namespace rapt {
namespace {

class LineWriter {
 public:
  explicit LineWriter(const Problem& problem) : p_(problem) {}
  std::string write() &&;

 private:
  void dtypes();
  void sizes();
  void scores();
  void lengths();
  void scales();
  void layout();
  void starts();
  void modes();

  // Begins a word: writes a blank, except at the start of the line, and the text.
  LineWriter& word(std::string_view text) {
    if (!line_.empty()) line_ += ' ';
    return add(text);
  }
  LineWriter& add(std::string_view text) {
    line_ += text;
    return *this;
  }
  template <class Number>
  LineWriter& number(Number value) {
    char digits[64];
    line_.append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
    return *this;
  }
  template <class Number>
  LineWriter& numbers(const std::vector<Number>& values) {
    for (size_t i = 0; i < values.size(); ++i) add(i ? "," : "").number(values[i]);
    return *this;
  }
  void flag(std::string_view name, bool on) {
    if (on) word(name);
  }
  void two_sizes(std::string_view letter, int64_t first, int64_t second) {
    word(letter).number(first);
    if (first != second) add(":").number(second);
  }
  void position(const PositionWord& mask);
  void broadcast(std::string_view name, const Broadcast& tensor, std::string_view dtype);
  void strides(std::string_view name, const std::optional<std::vector<int64_t>>& values) {
    if (values) word(name).numbers(*values);
  }

  const Problem& p_;
  std::string line_;
};

void LineWriter::dtypes() {
  if (p_.q == p_.k && p_.q == p_.v) {
    word(name_of(p_.q));
  } else {
    word("q=").add(name_of(p_.q)).word("k=").add(name_of(p_.k)).word("v=").add(name_of(p_.v));
  }
  if (p_.out != words::default_out(p_.q)) word("out=").add(name_of(p_.out));
}

// The lengths of varlen give seqlen_q and seqlen_k. If the lengths are unknown (a call), the maxima are printed.
void LineWriter::sizes() {
  word("b").number(p_.batch);
  two_sizes("h", p_.heads_q, p_.heads_k);
  const bool lengths_known = p_.varlen && std::ssize(p_.lengths_q) == p_.batch;
  if (!lengths_known) word("q").number(p_.seqlen_q).word("k").number(p_.seqlen_k);
  two_sizes("d", p_.head_dim, p_.head_dim_v);
}

void LineWriter::broadcast(std::string_view name, const Broadcast& tensor, std::string_view dtype) {
  if (!tensor.present()) return;
  word(name).add(dtype).add("[");
  for (size_t axis = 0; axis < 4; ++axis)
    add(axis ? "," : "").add(tensor.one[axis] ? "1" : words::score_axes.substr(axis, 1));
  add("]");
}

void LineWriter::position(const PositionWord& mask) {
  const std::span values(mask.values, static_cast<size_t>(mask.count()));
  if (values.empty()) return flag(mask.name, p_.position_mask.causal == mask.causal);
  const auto given = [this](const auto& value) { return p_.position_mask.*value.field != PositionMask{}.*value.field; };
  if (std::none_of(values.begin(), values.end(), given)) return;
  word(mask.name);
  for (const auto& value : values) add(&value == values.data() ? "=" : ",").number(p_.position_mask.*value.field);
}

void LineWriter::scores() {
  for (const PositionWord& mask : position_words) position(mask);
  if (p_.softcap) word("softcap=").number(*p_.softcap);
  if (p_.scale) word("scale=").number(*p_.scale);
  flag("alibi", p_.alibi);
  broadcast("bias=", p_.bias, name_of(p_.bias.dtype));
  broadcast("mask=", p_.mask, "");
  flag("sinks", p_.sinks);
}

void LineWriter::lengths() {
  if (p_.varlen) {
    word("varlen=");
    const bool pairs = p_.lengths_q != p_.lengths_k;
    if (std::ssize(p_.lengths_q) != p_.batch) {
      add("?").number(p_.total_q).add(":").number(p_.total_k);
    } else if (pairs) {
      for (size_t b = 0; b < p_.lengths_q.size(); ++b)
        add(b ? "," : "").number(p_.lengths_q[b]).add(":").number(p_.lengths_k[b]);
    } else {
      numbers(p_.lengths_q);
    }
  }
  if (p_.seqused) word("seqused=").add(std::ssize(p_.used_k) == p_.batch ? "" : "?").numbers(p_.used_k);
  if (p_.seqused_q) word("seqused_q=").add(std::ssize(p_.used_q) == p_.batch ? "" : "?").numbers(p_.used_q);
  if (p_.page_size > 0) word("page=").number(p_.page_size);
}

void LineWriter::scales() {
  const auto kind = [this](std::string_view name, ScaleKind value) {
    if (value != ScaleKind::none) word(name).add(words::name(words::scale_kinds, value));
  };
  if (p_.q_scales == p_.k_scales && p_.q_scales == p_.v_scales) {
    kind("scales=", p_.q_scales);
  } else {
    kind("q_scales=", p_.q_scales);
    kind("k_scales=", p_.k_scales);
    kind("v_scales=", p_.v_scales);
  }
  flag("smooth_k", p_.smooth_k);
  flag("hadamard", p_.hadamard);
}

void LineWriter::layout() {
  flag("v_in_k", p_.v_in_k);
  if (p_.layout != Layout::bhsd) word("layout=").add(words::name(words::layouts, p_.layout));
  strides("q_strides=", p_.q_strides);
  strides("k_strides=", p_.k_strides);
  strides("v_strides=", p_.v_strides);
  strides("out_strides=", p_.out_strides);
}

void LineWriter::starts() {
  if (!p_.q_starts.empty()) word("q_start=").numbers(p_.q_starts);
  if (!p_.k_starts.empty()) word("k_start=").numbers(p_.k_starts);
  if (p_.has_starts && p_.q_starts.empty() && p_.k_starts.empty()) word("q_start=?");
}

void LineWriter::modes() {
  if (p_.splits > 0) word("splits=").number(p_.splits);
  if (!p_.mod.empty()) word("mod=").add(p_.mod);
  flag("lse", p_.lse);
  flag("partial", p_.partial);
  flag("invariant", p_.invariant);
  if (p_.pv != PvMode::automatic) word("pv=").add(words::name(words::pv_modes, p_.pv));
  if (p_.acc != AccMode::f32) word("acc=").add(words::name(words::acc_modes, p_.acc));
  if (p_.op != Op::forward) word("op=").add(words::name(words::ops, p_.op));
}

std::string LineWriter::write() && {
  dtypes();
  sizes();
  scores();
  lengths();
  scales();
  layout();
  starts();
  modes();
  return std::move(line_);
}
}  // namespace

std::string to_string(const Problem& problem) { return LineWriter(problem).write(); }

}  // namespace rapt
