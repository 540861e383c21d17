// rapt quantize: converts q, k and v of a file to FP8 codes with descales. rapt run reads the result. Also reports the
// quantisation error. Called by program.cpp. Writes its output completely or not at all.
#include "lab/quantize.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "cuda/cuda.h"
#include "lab/originals.h"
#include "lab/output.h"
#include "lab/progress.h"

namespace rapt::lab {
namespace {

using check::HostTensor;

// The result for one tensor.
struct Quantized {
  std::string name;
  DType dtype = DType::none;
  ScaleKind scales = ScaleKind::none;
  HostTensor stored, descale, mean;  // stored: in the file's layout; mean: only for smoothed k
  double rel_rms = 0, max_abs = 0;
  int64_t saturated = 0, elements = 0;
};

std::vector<int64_t> descale_shape(const AttentionInput& input, ScaleKind kind) {
  const int64_t batch = input.batch(), heads = input.heads(), seqlen = input.max_seqlen();
  switch (kind) {
    case ScaleKind::none:
    case ScaleKind::tensor: return {1};
    case ScaleKind::head: return {batch, heads};
    case ScaleKind::token:
      return input.packed() ? std::vector<int64_t>{heads, input.tensor.shape[0]}
                            : std::vector<int64_t>{batch, heads, seqlen};
    case ScaleKind::block64: return {batch, heads, (seqlen + 63) / 64};
    case ScaleKind::block128: return {batch, heads, (seqlen + 127) / 128};
    case ScaleKind::channel: return {batch, heads, input.dim()};
  }
  return {};
}

// The scale of channel d of a row.
double descale_at(const Quantized& q, const AttentionInput& input, int64_t b, int64_t h, int64_t s,
                  const std::vector<int64_t>& at, int64_t d) {
  switch (q.scales) {
    case ScaleKind::none:
    case ScaleKind::tensor: return q.descale.at({0});
    case ScaleKind::head: return q.descale.at({b, h});
    case ScaleKind::token: return input.packed() ? q.descale.at({h, at[0]}) : q.descale.at({b, h, s});
    case ScaleKind::block64: return q.descale.at({b, h, s / 64});
    case ScaleKind::block128: return q.descale.at({b, h, s / 128});
    case ScaleKind::channel: return q.descale.at({b, h, d});
  }
  return 1;
}

// The tensors on the device. On a GPU they are copies, and the results are copied back at the end.
class Places {
 public:
  explicit Places(const Device& device) : device_(device) {}

  check::Placement placement() {
    return [this](const char* name, const HostTensor& t) {
      if (device_.kind == DeviceKind::cpu) return check::in_host_memory(name, t);
      copies_.push_back({&t, cuda::Buffer(std::max<size_t>(bytes_of_tensor(t), 1))});
      if (bytes_of_tensor(t) > 0) copies_.back().buffer.upload(t.data(), bytes_of_tensor(t));
      return check::Address{copies_.back().buffer.data(), handle_of(device_)};
    };
  }
  void fetch(const HostTensor& t) const {
    for (const Copy& copy : copies_)
      if (copy.host == &t && bytes_of_tensor(t) > 0) copy.buffer.download(t.data(), bytes_of_tensor(t));
  }

 private:
  struct Copy {
    const HostTensor* host;
    cuda::Buffer buffer;
  };
  // All tensors are contiguous.
  static size_t bytes_of_tensor(const HostTensor& t) { return static_cast<size_t>(t.size() * bytes_of(t.dtype)); }

  const Device& device_;
  std::deque<Copy> copies_;
};

struct Preparation {
  bool hadamard = false, smooth_k = false;
  std::optional<double> percentile;
  std::optional<StaticScales> supplied;

  bool rotates(const std::string& name) const { return hadamard && name != "v"; }
  bool smooths(const std::string& name) const { return smooth_k && name == "k"; }
};

void call_library(const AttentionInput& input, const HostTensor& output, const Quantized& q, const Preparation& how,
                  const Device& device, rapt_context* context) {
  std::optional<cuda::ContextScope> scope;
  std::optional<cuda::Stream> stream;
  if (device.kind == DeviceKind::cuda) scope.emplace(device.index, nullptr), stream.emplace();
  Places places(device);
  const check::Placement place = places.placement();
  const HostTensor absent, &list = input.packed() ? *input.cu_seqlens : absent;
  const check::View from("input", input.tensor, place), to("output", output, place),
      factors("descale", q.descale, place), mean("mean", q.mean, place), cu("cu_seqlens", list, place);
  rapt_quantize_args args{};
  args.struct_size = sizeof args;
  args.input = from.get(), args.output = to.get(), args.descale = factors.get();
  args.mean = mean.get(), args.cu_seqlens = cu.get();
  args.scales = static_cast<int32_t>(q.scales);
  if (how.rotates(q.name)) args.flags |= RAPT_QUANTIZE_HADAMARD;
  if (how.smooths(q.name)) args.flags |= RAPT_QUANTIZE_SMOOTH;
  if (how.supplied) args.flags |= RAPT_QUANTIZE_SUPPLIED;
  if (how.percentile) args.has |= RAPT_QUANTIZE_HAS_PERCENTILE, args.percentile = *how.percentile;
  if (input.packed()) args.has |= RAPT_QUANTIZE_HAS_MAX_SEQLEN, args.max_seqlen = input.max_seqlen();
  require_ok(rapt_quantize(context, &args, stream ? stream->handle() : nullptr));
  if (!stream) return;
  stream->synchronize();
  for (const HostTensor* t : {&output, &q.descale, &q.mean}) places.fetch(*t);
}

// Measures the errors of the dequantised values. rel_rms is relative to the tensor itself (rotated if --hadamard is
// given, and before the mean is subtracted). Elements that are not finite have no error; infinite ones count as
// saturated.
void measure(const AttentionInput& input, const HostTensor& output, const Preparation& how, Quantized& q) {
  double error_square = 0, square = 0;
  input.each_row(how.rotates(q.name), [&](int64_t b, int64_t h, int64_t s, const auto& place, const double* row) {
    std::vector<int64_t> at = place;
    at.push_back(0);
    double length = 0;
    for (int64_t d = 0; d < input.dim(); ++d)
      if (std::isfinite(row[d])) length += row[d] * row[d];
    const double rounding = 1e-6 * std::sqrt(length);  // rounding error of y: the library computes it as a float
    for (int64_t d = 0; d < input.dim(); ++d) {
      q.saturated += std::isinf(row[d]);
      if (!std::isfinite(row[d])) continue;
      at.back() = d;
      const double mean = q.mean.present() ? q.mean.at({b, h, d}) : 0, y = row[d] - mean;
      const double descale = descale_at(q, input, b, h, s, place, d), error = output.at(at) * descale - y;
      error_square += error * error, square += row[d] * row[d];
      q.max_abs = std::max(q.max_abs, std::fabs(error));
      q.saturated += std::fabs(y) > largest_code(q.dtype) * descale * (1 + 1e-6) + rounding;
      ++q.elements;
    }
  });
  q.rel_rms = error_square == 0 ? 0 : std::sqrt(error_square / square);
}

// The static scales of a tensor. They are the same for each sequence.
HostTensor supplied_descale(const StaticScales& scales, const AttentionInput& input, const std::string& where) {
  const auto found = scales.descale.find(input.name);
  if (found == scales.descale.end()) invalid(where, ": has no scales for ", input.name);
  const std::vector<float>& factors = found->second;
  HostTensor descale = check::make_tensor(DType::f32, descale_shape(input, scales.granularity));
  if (scales.granularity == ScaleKind::tensor) {
    descale.set({0}, factors[0]);
    return descale;
  }
  if (static_cast<int64_t>(factors.size()) != input.heads())
    invalid(where, ": has scales for ", factors.size(), " heads of ", input.name, ", which has ", input.heads());
  for (int64_t b = 0; b < input.batch(); ++b)
    for (int64_t h = 0; h < input.heads(); ++h) descale.set({b, h}, factors[static_cast<size_t>(h)]);
  return descale;
}

Quantized quantize_one(const AttentionInput& input, DType dtype, ScaleKind kind, const Preparation& how,
                       const QuantizeOptions& options, const Device& device, rapt_context* context) {
  if (kind == ScaleKind::channel && input.name != "v") invalid("--scales: channel is only for v, not for ", input.name);
  Quantized q{.name = input.name, .dtype = dtype, .scales = kind, .stored = {}, .descale = {}, .mean = {}};
  q.descale = how.supplied ? supplied_descale(*how.supplied, input, options.scales_file)
                           : check::make_tensor(DType::f32, descale_shape(input, kind));
  if (how.smooths(q.name)) q.mean = check::make_tensor(DType::f32, {input.batch(), input.heads(), input.dim()});
  HostTensor output = check::make_strided(dtype, input.tensor.shape, input.tensor.strides);
  call_library(input, output, q, how, device, context);
  measure(input, output, how, q);
  q.stored = output;
  if (!input.packed() && options.layout == "bshd") {
    std::swap(q.stored.shape[1], q.stored.shape[2]);
    std::swap(q.stored.strides[1], q.stored.strides[2]);
  }
  if (dtype == DType::sim8) q.stored.dtype = DType::u8;  // the file format has no name for sim8; the words name it
  return q;
}

// The words that rapt run needs in addition to the tensors. load.cpp reads them. `before`: words in the input file for
// tensors that were quantised earlier. These words are kept.
std::string words_of(const std::vector<Quantized>& all, const Preparation& how, const std::string& layout,
                     const std::string& before) {
  std::string words;
  const auto say = [&](const std::string& word) {
    if ((" " + words + " ").find(" " + word + " ") == std::string::npos) words += (words.empty() ? "" : " ") + word;
  };
  std::istringstream stream(before);
  for (std::string word; stream >> word;) {
    if (word == "layout=bshd" && layout != "bshd")
      invalid("--layout ", layout, ": but the input's metadata 'rapt_words' says layout=bshd");
    say(word);
  }
  for (const Quantized& q : all) {
    if (q.dtype == DType::sim8) say(q.name + "=sim8");
    say(concat(q.name, "_scales=", name_of(q.scales)));
  }
  if (how.smooth_k) say("smooth_k");
  if (how.hadamard) say("hadamard");
  if (layout == "bshd") say("layout=bshd");
  return words;
}

void write_output(const QuantizeOptions& options, TensorFile file, const std::vector<Quantized>& all,
                  const std::string& words) {
  std::map<std::string, std::string> metadata = file.metadata;
  record_original(options.input, file, options.output, metadata);
  file.metadata = std::move(metadata);
  for (const Quantized& q : all) {
    file.tensors[q.name] = q.stored;
    file.tensors[q.name + "_descale"] = q.descale;
    if (q.mean.present()) file.tensors[q.name + "_mean"] = q.mean;
  }
  file.metadata.erase("problem");  // it names the old dtypes
  file.metadata["rapt_words"] = words;
  std::vector<NamedTensor> tensors;
  for (auto& [name, tensor] : file.tensors) tensors.push_back({name, tensor});
  write_safetensors(options.output, tensors, file.metadata);
}

void check_paths(const QuantizeOptions& options) {
  if (!options.output.ends_with(".safetensors")) invalid("-o ", options.output, ": must end with .safetensors");
  check_output_file("-o", options.output, "the input", options.input);
  check_output_file("-o", options.output, "the file of scales", options.scales_file);
}

Preparation preparation_of(const QuantizeOptions& options, const std::vector<std::string>& names) {
  Preparation how{options.hadamard, options.smooth_k, options.percentile, {}};
  if (!options.scales_file.empty()) {
    how.supplied = parse_static_scales(read_text_file(options.scales_file), options.scales_file);
    how.hadamard = how.supplied->hadamard, how.smooth_k = how.supplied->smooth_k;
  }
  check_preparation(names, how.hadamard, how.smooth_k);
  return how;
}

void print_text(const std::vector<Quantized>& all, const std::string& words, const QuantizeOptions& options,
                const Device& device) {
  fmt::print("input    {}\nbackend  {}\nwords    {}\n", options.input, title_of(device), words);
  fmt::print("{:<8} {:>6} {:>9} {:>8} {:>10} {:>10} {:>10}\n", "tensor", "dtype", "scales", "factors", "rel_rms",
             "max_abs", "saturated");
  for (const Quantized& q : all)
    fmt::print("{:<8} {:>6} {:>9} {:>8} {:>10.3g} {:>10.3g} {:>10}\n", q.name, rapt::name_of(q.dtype),
               name_of(q.scales), q.descale.size(), q.rel_rms, q.max_abs, q.saturated);
  fmt::print("output   {}\n", options.output);
}

void print_json(const std::vector<Quantized>& all, const std::string& words, const QuantizeOptions& options,
                const Device& device) {
  nlohmann::ordered_json tensors;
  for (const Quantized& q : all)
    tensors[q.name] = {{"dtype", rapt::name_of(q.dtype)},
                       {"scales", name_of(q.scales)},
                       {"factors", q.descale.size()},
                       {"rel_rms", q.rel_rms},
                       {"max_abs", q.max_abs},
                       {"saturated", q.saturated},
                       {"elements", q.elements}};
  const nlohmann::ordered_json report = {{"input", options.input},
                                         {"output", options.output},
                                         {"device", title_of(device)},
                                         {"words", words},
                                         {"tensors", tensors}};
  fmt::print("{}\n", report.dump(2));
}

}  // namespace

int quantize(const QuantizeOptions& options) {
  const Device device = chosen_device(options.common, true);
  check_paths(options);
  const std::vector<std::string> names = tensor_names(options.tensors);
  const Preparation how = preparation_of(options, names);
  const auto dtypes = for_each_tensor("--dtype", options.dtype, names);
  const auto scales = for_each_tensor("--scales", options.scales, names);
  const TensorFile file = read_safetensors(FileSource(options.input));
  if (const auto q = file.tensors.find("q"), k = file.tensors.find("k");
      q != file.tensors.end() && k != file.tensors.end() && options.layout == "bhsd")
    if (const std::string note = layout_note(q->second, k->second); !note.empty())
      print_error("rapt: note: {} (here --layout bshd)\n", note);
  const ContextHandle context = make_context(options.common, device, Problem{});
  std::vector<Quantized> all;
  Progress progress(names.size());
  for (const std::string& name : names) {
    progress.at(all.size(), name);
    const AttentionInput input = attention_input(options.input, file, name, options.layout);
    const DType dtype = how.supplied ? how.supplied->dtype : fp8_named(dtypes.at(name));
    const ScaleKind kind = how.supplied ? how.supplied->granularity : scale_kind_named(scales.at(name));
    all.push_back(quantize_one(input, dtype, kind, how, options, device, context.get()));
  }
  progress.clear();
  const auto before = file.metadata.find("rapt_words");
  const std::string words = words_of(all, how, options.layout, before == file.metadata.end() ? "" : before->second);
  write_output(options, file, all, words);
  if (options.common.json)
    print_json(all, words, options, device);
  else
    print_text(all, words, options, device);
  return exit_success;
}

}  // namespace rapt::lab
