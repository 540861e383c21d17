// Loads tensors from files, and builds the Problem that the tensors and the user's words describe. It adds words for
// the shapes and dtypes of the tensors, and parses all words as one problem line. So there is only one grammar.
#include "lab/load.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "check/poison.h"
#include "lab/npy.h"
#include "lab/pages.h"
#include "problem/dtypes.h"
#include "problem/hint.h"

namespace rapt::lab {
namespace {

using check::HostTensor;
using check::Inputs;

constexpr std::pair<const char*, HostTensor Inputs::*> known_tensors[] = {
    {"q", &Inputs::q},
    {"k", &Inputs::k},
    {"v", &Inputs::v},
    {"bias", &Inputs::bias},
    {"mask", &Inputs::mask},
    {"alibi_slopes", &Inputs::alibi_slopes},
    {"sinks", &Inputs::sinks},
    {"cu_seqlens_q", &Inputs::cu_seqlens_q},
    {"cu_seqlens_k", &Inputs::cu_seqlens_k},
    {"seqused_q", &Inputs::seqused_q},
    {"seqused_k", &Inputs::seqused_k},
    {"q_descale", &Inputs::q_descale},
    {"k_descale", &Inputs::k_descale},
    {"v_descale", &Inputs::v_descale},
    {"k_mean", &Inputs::k_mean},
};

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text;
  for (const int64_t size : shape) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return "[" + text + "]";
}

// The dtype that the words give to tensor `name`: "q=e4m3" for q, or "e4m3" for q, k and v.
DType dtype_in_words(const std::vector<std::string>& words, const std::string& name) {
  for (const std::string& word : words) {
    if (word.starts_with(name + "=")) return input_dtypes.named(word.substr(name.size() + 1));
    if (name.size() == 1 && input_dtypes.named(word) != DType::none) return input_dtypes.named(word);
  }
  return DType::none;
}

class Loader {
 public:
  Loader(std::string path, std::vector<std::string> words) : path_(std::move(path)), words_(std::move(words)) {}

  LoadedProblem load() {
    if (std::filesystem::is_directory(path_))
      read_folder();
    else
      take(read_safetensors(FileSource(path_)));
    adopt_words();
    for (const char* name : {"q", "k", "v"}) require(name);
    for (const char* name : {"q", "k", "v"}) settle_dtype(name);
    packed_ = in().cu_seqlens_q.present() || in().cu_seqlens_k.present();
    if (packed_ && !has_word("layout=")) words_.push_back("layout=bshd");  // packed files are [total, heads, dim]
    arrange();
    if (!packed_ && !paged() && !has_word("layout=")) loaded_.note = layout_note(in().q, in().k);
    if (paged()) gather_keys();
    describe();
    parse();
    refuse_missing_tensors();
    if (paged()) gather_descales();
    return std::move(loaded_);
  }

 private:
  Inputs& in() { return loaded_.inputs; }
  HostTensor& tensor(const std::string& name) {
    for (const auto& [known, member] : known_tensors)
      if (name == known) return in().*member;
    if (name == "block_table") return block_table_;
    std::string list;
    for (const auto& [known, member] : known_tensors) list += std::string(" ") + known;
    list += " block_table";
    invalid(path_, ": tensor ", in_quotes(name), ": must be one of", list);
  }

  void take(TensorFile file) {
    for (auto& [name, stored] : file.tensors) tensor(name) = std::move(stored);
    loaded_.metadata = std::move(file.metadata);
  }
  void read_folder() {
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      if (entry.path().extension() != ".npy") continue;
      const std::string name = entry.path().stem().string();
      tensor(name) = read_npy(FileSource(entry.path().string()), dtype_in_words(words_, name));
    }
  }
  // Adds the words that rapt quantize wrote into the file: formats, kinds of scales, rotation and smoothing. The user's
  // own words have priority.
  void adopt_words() {
    const auto noted = loaded_.metadata.find("rapt_words");
    if (noted == loaded_.metadata.end()) return;
    std::istringstream words(noted->second);
    for (std::string word; words >> word;) {
      const size_t equals = word.find('=');
      const std::string key = word.substr(0, equals == std::string::npos ? equals : equals + 1);
      const bool is_scale = key == "q_scales=" || key == "k_scales=" || key == "v_scales=";
      const bool is_dtype = key == "q=" || key == "k=" || key == "v=";
      if (!is_scale && !is_dtype && key != "layout=" && key != "smooth_k" && key != "hadamard")
        invalid(path_, ": metadata 'rapt_words' holds ", in_quotes(word), ": must be words that rapt quantize writes");
      const bool said = has_word(key) || (is_scale && has_word("scales=")) ||
                        (is_dtype && dtype_in_words(words_, key.substr(0, 1)) != DType::none);
      if (!said) words_.push_back(word);
    }
  }
  void require(const char* name) {
    if (!tensor(name).present()) invalid(path_, ": tensor '", name, "' is missing: attention needs q, k and v");
  }

  // Gives raw bytes the format that the words name. Files store sim8 as raw bytes, because no file format has a name
  // for it. Some file formats have no name for FP8 either.
  void settle_dtype(const char* name) {
    HostTensor& t = tensor(name);
    const DType named = dtype_in_words(words_, name);
    if (t.dtype == DType::u8 && is_fp8(named)) t.dtype = named;
    if (!is_attention_input(t.dtype))
      invalid(path_, ": tensor '", name, "' is ", rapt::name_of(t.dtype),
              t.dtype == DType::u8 ? concat(": add a word for the format of its bytes, such as ", name, "=e4m3")
                                   : ": must be " + input_dtypes.names());
  }

  bool paged() const { return block_table_.present(); }
  Layout layout() const { return has_word("layout=bshd") ? Layout::bshd : Layout::bhsd; }

  // Reorders the dimensions from the stored order to the logical order, which is [batch, heads, seqlen, dim], or
  // [total, heads, dim] for packed tensors. Keys and values in pages have pages as their batch.
  void arrange() {
    for (const char* name : {"q", "k", "v"}) {
      HostTensor& t = tensor(name);
      const bool in_pages = paged() && *name != 'q', packed = packed_ && !in_pages;
      if (t.shape.size() != (packed ? 3 : 4))
        invalid(path_, ": tensor '", name, "' has shape ", shape_text(t.shape), ": must be of rank ",
                packed     ? "3 ([total, heads, dim], because cu_seqlens are given)"
                : in_pages ? "4 ([num_pages, heads, page_size, dim], because block_table is given)"
                           : "4 ([batch, heads, seqlen, dim])");
      if (layout() != (packed ? Layout::bhsd : Layout::bshd)) continue;
      const size_t first = packed ? 0 : 1;
      std::swap(t.shape[first], t.shape[first + 1]);
      std::swap(t.strides[first], t.strides[first + 1]);
    }
    for (HostTensor* t : {&in().bias, &in().mask})
      for (; t->present() && t->shape.size() < 4;) {
        t->shape.insert(t->shape.begin(), 1);
        t->strides.insert(t->strides.begin(), 0);
      }
  }

  // The number in the word k4096; -1: there is no such word.
  int64_t longest_in_words() const {
    for (const std::string& word : words_) {
      int64_t keys = 0;
      const char* const end = word.data() + word.size();
      if (!word.starts_with("k") || word.size() < 2) continue;
      const auto [read, error] = std::from_chars(word.data() + 1, end, keys);
      if (error == std::errc{} && read == end && keys >= 0) return keys;
    }
    return -1;
  }

  // Replaces keys and values in pages by dense or packed ones, in which rows without a key are 0.
  void gather_keys() {
    if (in().cu_seqlens_k.present())
      invalid(path_,
              ": tensor 'cu_seqlens_k': must be absent, because block_table is given; seqused_k has the lengths");
    pages_k_ = in().k;
    const HostTensor &k = pages_k_, v = in().v;
    for (const size_t axis : {size_t{0}, size_t{1}, size_t{2}})
      if (k.shape[axis] != v.shape[axis])
        invalid(path_, ": tensor 'v' has shape ", shape_text(v.shape), ", k ", shape_text(k.shape),
                ": pages, heads and page_size must be equal");
    if (k.shape[3] != in().q.shape.back())
      invalid(path_, ": tensor 'k' has head_dim ", k.shape[3], ", q ", in().q.shape.back(), ": must be equal");
    if (!packed_ && block_table_.shape.size() == 2 && block_table_.shape[0] != in().q.shape[0])
      invalid(path_, ": tensor 'block_table' has shape ", shape_text(block_table_.shape),
              ": must be [batch, pages], and q has a batch of ", in().q.shape[0]);
    const bool used = in().seqused_k.present();
    places_ = read_places(path_, block_table_, k, longest_in_words(),
                          used ? integers("seqused_k", in().seqused_k) : std::vector<int64_t>{});
    in().k = gathered(k, k.shape.back()), in().v = gathered(v, v.shape.back());
    say(concat("page=", places_.page_size));
    if (!packed_) return;
    in().seqused_k = {};
    in().cu_seqlens_k = check::make_tensor(DType::i32, {static_cast<int64_t>(places_.lengths.size()) + 1});
    int64_t end = 0;
    for (size_t b = 0; b < places_.lengths.size(); ++b)
      in().cu_seqlens_k.set({static_cast<int64_t>(b) + 1}, static_cast<double>(end += places_.lengths[b]));
  }
  HostTensor gathered(const HostTensor& pages, int64_t dim) const {
    const int64_t heads = pages.shape[1], batch = block_table_.shape[0];
    const std::vector<int64_t> shape = packed_ ? std::vector<int64_t>{places_.total(), heads, dim}
                                               : std::vector<int64_t>{batch, heads, places_.longest, dim};
    HostTensor to = check::make_strided(pages.dtype, shape, check::layout_strides(layout(), shape));
    gather(places_, pages, to);
    return to;
  }

  // The shape of descales of single keys in pages.
  std::vector<int64_t> page_descale_shape() const { return {pages_k_.shape[0], places_.page_size, pages_k_.shape[1]}; }
  // The same for the descales of single keys, [num_pages, page_size, heads]. They become [batch, heads, seqlen], packed
  // [heads, total].
  void gather_descales() {
    const struct {
      const char* name;
      ScaleKind kind;
      HostTensor& descale;
    } both[] = {{"k_descale", loaded_.problem.k_scales, in().k_descale},
                {"v_descale", loaded_.problem.v_scales, in().v_descale}};
    for (const auto& [name, kind, descale] : both) {
      if (kind != ScaleKind::token) continue;
      if (descale.shape != page_descale_shape())
        invalid(path_, ": tensor '", name, "' has shape ", shape_text(descale.shape),
                ": must be [num_pages, page_size, heads_k] = ", shape_text(page_descale_shape()));
      HostTensor pages = descale;  // as [num_pages, heads, page_size, 1]
      std::swap(pages.shape[1], pages.shape[2]), std::swap(pages.strides[1], pages.strides[2]);
      pages.shape.push_back(1), pages.strides.push_back(1);
      const int64_t heads = pages.shape[1], total = places_.total();
      descale = packed_ ? check::make_tensor(DType::f32, {heads, total})
                        : check::make_tensor(DType::f32, {block_table_.shape[0], heads, places_.longest});
      HostTensor to = descale;  // as [total, heads, 1] or [batch, heads, seqlen, 1]
      if (packed_) std::swap(to.shape[0], to.shape[1]), std::swap(to.strides[0], to.strides[1]);
      to.shape.push_back(1), to.strides.push_back(1);
      gather(places_, pages, to);
    }
  }

  bool has_word(const std::string& start) const {
    return std::any_of(words_.begin(), words_.end(), [&](const std::string& word) { return word.starts_with(start); });
  }
  void say(const std::string& word) {
    if (std::find(words_.begin(), words_.end(), word) == words_.end()) derived_.push_back(word);
  }

  // Adds the words that follow from the tensors.
  void describe() {
    const HostTensor &q = in().q, &k = in().k, &v = in().v;
    describe_dtypes();
    if (packed_) {
      say("varlen=" + lengths());
    } else {
      say(concat("b", q.shape[0]));
      say(concat("q", q.shape[2]));
      say(concat("k", k.shape[2]));
    }
    say_pair("h", q.shape[1], k.shape[1]);
    say_pair("d", q.shape.back(), v.shape.back());
    if (in().seqused_k.present()) say("seqused=" + join(integers("seqused_k", in().seqused_k)));
    if (in().seqused_q.present()) say("seqused_q=" + join(integers("seqused_q", in().seqused_q)));
    if (in().alibi_slopes.present()) say("alibi");
    if (in().sinks.present()) say("sinks");
    describe_broadcast("bias", in().bias);
    describe_broadcast("mask", in().mask);
    describe_scales("q", in().q_descale, q);
    describe_scales("k", in().k_descale, k);
    describe_scales("v", in().v_descale, v);
    if (in().k_mean.present()) say("smooth_k");
    say("lse");
  }

  void describe_dtypes() {
    const DType q = in().q.dtype, k = in().k.dtype, v = in().v.dtype;
    const bool one_word = std::any_of(words_.begin(), words_.end(),
                                      [](const std::string& w) { return input_dtypes.named(w) != DType::none; });
    if (q == k && q == v && (one_word || !(has_word("q=") || has_word("k=") || has_word("v="))))
      return say(rapt::name_of(q));
    say(concat("q=", rapt::name_of(q)));
    say(concat("k=", rapt::name_of(k)));
    say(concat("v=", rapt::name_of(v)));
  }

  // Adds the word for a pair of sizes: h32:8, or the short form h12 for two equal sizes. If the user wrote h12:12, this
  // form stays.
  void say_pair(const char* letter, int64_t first, int64_t second) {
    const std::string pair = concat(letter, first, ":", second);
    if (first != second || std::find(words_.begin(), words_.end(), pair) != words_.end()) return say(pair);
    say(concat(letter, first));
  }

  std::vector<int64_t> integers(const char* name, const HostTensor& t) {
    if (t.dtype != DType::i32 || t.shape.size() != 1)
      invalid(path_, ": tensor '", name, "' is ", rapt::name_of(t.dtype), " ", shape_text(t.shape),
              ": must be i32 of rank 1");
    std::vector<int64_t> values;
    for (int64_t i = 0; i < t.shape[0]; ++i) {
      int32_t value = 0;
      std::memcpy(&value, t.data() + i * t.strides[0] * bytes_of(t.dtype), sizeof value);
      if (value < 0) invalid(path_, ": tensor '", name, "' holds ", value, " at ", i, ": must not be negative");
      values.push_back(value);
    }
    return values;
  }
  static std::string join(const std::vector<int64_t>& values) {
    std::string text;
    for (const int64_t value : values) text += (text.empty() ? "" : ",") + std::to_string(value);
    return text;
  }

  // The lengths of the sequences: differences of neighbouring elements of cu_seqlens. The library checks them, too. But
  // they must be checked here first, because a word cannot hold a negative length.
  std::vector<int64_t> differences(const char* name, const HostTensor& cu, int64_t rows) {
    if (!cu.present()) invalid(path_, ": tensor '", name, "' is missing: give both cu_seqlens_q and cu_seqlens_k");
    const std::vector<int64_t> ends = integers(name, cu);
    if (ends.empty() || ends[0] != 0)
      invalid(path_, ": tensor '", name, "' ", shape_text(cu.shape), ": must start with 0");
    std::vector<int64_t> lengths;
    for (size_t b = 1; b < ends.size(); ++b) {
      if (ends[b] < ends[b - 1])
        invalid(path_, ": tensor '", name, "' holds ", ends[b], " at ", b, " after ", ends[b - 1],
                ": must never decrease");
      lengths.push_back(ends[b] - ends[b - 1]);
    }
    if (ends.back() > rows)
      invalid(path_, ": tensor '", name, "' ends with ", ends.back(), ", but there are ", rows, " rows");
    return lengths;
  }
  std::string lengths() {
    const std::vector<int64_t> q = differences("cu_seqlens_q", in().cu_seqlens_q, in().q.shape[0]);
    const std::vector<int64_t> k = differences("cu_seqlens_k", in().cu_seqlens_k, in().k.shape[0]);
    if (q.size() != k.size())
      invalid(path_, ": cu_seqlens_q has ", q.size(), " sequences, cu_seqlens_k for ", k.size(), ": must be equal");
    std::string text;
    for (size_t b = 0; b < q.size(); ++b) text += concat(b == 0 ? "" : ",", q[b], ":", k[b]);
    if (q.empty()) say("b0");
    return text;
  }

  // Adds a word such as bias=f32[1,h,q,k] or mask=[b,1,q,k]. If a size is neither 1 nor the full size, the library
  // reports it later.
  void describe_broadcast(const char* name, const HostTensor& t) {
    if (!t.present()) return;
    std::string axes;
    for (size_t d = 0; d < 4; ++d) axes += concat(d == 0 ? "[" : ",", t.shape[d] == 1 ? '1' : "bhqk"[d]);
    say(concat(name, "=", t.dtype == DType::u8 ? "" : rapt::name_of(t.dtype), axes, "]"));
  }

  // If the words do not name the kind of scales, finds the kind whose shape fits.
  void describe_scales(const char* name, const HostTensor& descale, const HostTensor& t) {
    if (!descale.present() || has_word("scales=") || has_word(concat(name, "_scales="))) return;
    const int64_t heads = t.shape[1], batch = packed_ ? in().cu_seqlens_q.shape[0] - 1 : t.shape[0];
    const int64_t rows = packed_ ? t.shape[0] : t.shape[2];
    using Shape = std::vector<int64_t>;
    const auto blocks = [&](int64_t n) { return Shape{batch, heads, (rows + n - 1) / n}; };
    std::vector<std::pair<const char*, Shape>> kinds = {
        {"tensor", {}}, {"tensor", {1}}, {"head", {batch, heads}}, {"token", packed_ ? Shape{heads, rows} : blocks(1)}};
    if (paged() && *name != 'q') kinds.back().second = page_descale_shape();
    if (!packed_) kinds.insert(kinds.end(), {{"block64", blocks(64)}, {"block128", blocks(128)}});
    if (*name == 'v') kinds.push_back({"channel", {batch, heads, t.shape.back()}});
    std::string fitting, all;
    int count = 0;
    for (const auto& [kind, shape] : kinds) {
      if (shape != descale.shape) continue;
      fitting = kind, ++count;
      all += concat(all.empty() ? "" : " or ", name, "_scales=", kind);
    }
    if (count != 1)
      invalid(path_, ": tensor '", name, "_descale' has shape ", shape_text(descale.shape), ": add one of the words ",
              count > 1 ? all : concat("for its granularity, such as ", name, "_scales=block64"));
    say(concat(name, "_scales=", fitting));
  }

  void parse() {
    std::string line;
    for (const auto* list : {&derived_, &words_})
      for (const std::string& word : *list) line += word + " ";
    try {
      loaded_.problem = parse_problem(line);
      if (loaded_.problem.v_in_k) invalid("v_in_k: the input has its own tensor 'v'; leave v_in_k out");
      add_strides(line);
    } catch (const Error& error) {
      throw Error(error.code(),
                  concat(path_, ": ", error.what(), " (dtypes, sizes and lengths come from the tensors)"));
    }
    loaded_.problem.alibi_per_batch = in().alibi_slopes.present() && in().alibi_slopes.shape.size() == 2;
    if (packed_) loaded_.problem.total_q = in().q.shape[0], loaded_.problem.total_k = in().k.shape[0];
    make_starts(loaded_.problem.q_starts, in().q_starts);
    make_starts(loaded_.problem.k_starts, in().k_starts);
  }

  // Adds the strides if no layout word describes the order of the elements (Fortran order).
  void add_strides(std::string line) {
    const std::string before = line;
    for (const auto& [name, t] :
         {std::pair<const char*, const HostTensor*>{"q", &in().q}, {"k", &in().k}, {"v", &in().v}})
      if (t->size() > 0 && t->strides != check::layout_strides(loaded_.problem.layout, t->shape))
        line += concat(name, "_strides=", join(t->strides), " ");
    if (line != before) loaded_.problem = parse_problem(line);
  }

  static void make_starts(const std::vector<int64_t>& starts, HostTensor& tensor) {
    if (starts.size() < 2) return;  // one start for all sequences is a number, not a list
    tensor = check::make_tensor(DType::i64, {static_cast<int64_t>(starts.size())});
    std::memcpy(tensor.data(), starts.data(), starts.size() * sizeof(int64_t));
  }

  void refuse_missing_tensors() {
    const Problem& p = loaded_.problem;
    const std::tuple<bool, const char*, const char*, const HostTensor*> needs[] = {
        {p.alibi, "alibi", "alibi_slopes", &in().alibi_slopes},
        {p.sinks, "sinks", "sinks", &in().sinks},
        {p.bias.present(), "bias=", "bias", &in().bias},
        {p.mask.present(), "mask=", "mask", &in().mask},
        {p.varlen, "varlen=", "cu_seqlens_q", &in().cu_seqlens_q},
        {p.seqused, "seqused=", "seqused_k", &in().seqused_k},
        {p.seqused_q, "seqused_q=", "seqused_q", &in().seqused_q},
        {p.q_scales != ScaleKind::none, "q_scales", "q_descale", &in().q_descale},
        {p.k_scales != ScaleKind::none, "k_scales", "k_descale", &in().k_descale},
        {p.v_scales != ScaleKind::none, "v_scales", "v_descale", &in().v_descale},
        {p.smooth_k, "smooth_k", "k_mean", &in().k_mean},
    };
    for (const auto& [said, word, name, t] : needs)
      if (said && !t->present()) invalid(path_, ": the words have ", word, ", but tensor '", name, "' is missing");
  }

  std::string path_;
  std::vector<std::string> words_, derived_;
  LoadedProblem loaded_;
  bool packed_ = false;
  HostTensor block_table_, pages_k_;  // keys in pages, if a block_table is given
  PagePlaces places_;
};

}  // namespace

LoadedProblem load_problem(const std::string& path, const std::vector<std::string>& words) {
  return Loader(path, words).load();
}

std::string layout_note(const check::HostTensor& q, const check::HostTensor& k) {
  constexpr int64_t unusual_heads = 128;  // models have fewer
  if (q.shape.size() != 4 || k.shape.size() != 4 || q.shape[1] <= q.shape[2] || k.shape[1] <= unusual_heads ||
      !looks_like_bshd(q.shape[1], q.shape[2], k.shape[1], k.shape[2]))
    return "";
  return concat("q ", shape_text(q.shape), ", k ", shape_text(k.shape), ": ", k.shape[1], " heads of ", k.shape[2],
                " keys? The shape looks like bshd, [batch, seqlen, heads, dim]: add layout=bshd");
}

check::HostTensor as_stored(const Problem& problem, const check::HostTensor& tensor) {
  check::HostTensor stored = tensor;
  const bool swap = problem.varlen ? problem.layout == Layout::bhsd : problem.layout == Layout::bshd;
  const size_t first = problem.varlen ? 0 : 1;
  if (swap) {
    std::swap(stored.shape[first], stored.shape[first + 1]);
    std::swap(stored.strides[first], stored.strides[first + 1]);
  }
  return stored;
}

}  // namespace rapt::lab
