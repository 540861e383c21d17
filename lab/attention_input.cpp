// Reads q, k and v from a file for quantize and calibrate, and parses the options that both commands have.
#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "check/rotation.h"
#include "check/work.h"
#include "lab/quantize.h"

namespace rapt::lab {
namespace {

constexpr const char* scale_names[] = {"none", "tensor", "head", "token", "block64", "block128", "channel"};

std::vector<std::string> parts_of(const std::string& list) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    parts.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

// Reads and checks the ends of the packed sequences from the file's cu_seqlens.
std::vector<int64_t> ends_of(const std::string& where, const check::HostTensor& cu, int64_t rows) {
  if (cu.dtype != DType::i32 || cu.shape.size() != 1 || cu.shape[0] < 1)
    invalid(where, ": must be i32 of rank 1 with at least one element");
  std::vector<int64_t> ends;
  for (int64_t b = 0; b < cu.shape[0]; ++b) {
    ends.push_back(static_cast<int64_t>(cu.at({b})));
    if (b == 0 ? ends[0] != 0 : ends.back() < ends[static_cast<size_t>(b) - 1])
      invalid(where, " holds ", ends.back(), " at ", b, ": must start with 0 and never decrease");
  }
  if (ends.back() > rows) invalid(where, " ends with ", ends.back(), ", but there are ", rows, " rows");
  return ends;
}

}  // namespace

int64_t AttentionInput::max_seqlen() const {
  if (!packed()) return tensor.shape[2];
  int64_t most = 0;
  for (size_t b = 1; b < ends.size(); ++b) most = std::max(most, ends[b] - ends[b - 1]);
  return most;
}

void AttentionInput::each_row(bool rotated, const Visit& visit) const {
  const check::Stage stage("reading rows", batch() * heads() * max_seqlen());
  std::vector<double> row(static_cast<size_t>(dim()));
  for (int64_t b = 0; b < batch(); ++b)
    for (int64_t h = 0; h < heads(); ++h) {
      const int64_t first = packed() ? ends[static_cast<size_t>(b)] : 0;
      const int64_t rows = packed() ? ends[static_cast<size_t>(b) + 1] - first : tensor.shape[2];
      for (int64_t s = 0; s < rows; ++s) {
        std::vector<int64_t> at = packed() ? std::vector<int64_t>{first + s, h} : std::vector<int64_t>{b, h, s};
        at.push_back(0);
        for (int64_t d = 0; d < dim(); ++d) at.back() = d, row[static_cast<size_t>(d)] = tensor.at(at);
        if (rotated) check::rotate(row.data(), dim());
        at.pop_back();
        visit(b, h, s, at, row.data());
        check::step_done();
      }
    }
}

AttentionInput attention_input(const std::string& path, const TensorFile& file, const std::string& name,
                               const std::string& layout) {
  const auto found = file.tensors.find(name);
  if (found == file.tensors.end()) invalid(path, ": tensor '", name, "' is missing");
  if (layout != "bhsd" && layout != "bshd") invalid("--layout ", layout, ": must be bhsd or bshd");
  AttentionInput input{name, found->second, {}, {}};
  if (!is_attention_output(input.tensor.dtype))
    invalid(path, ": tensor '", name, "' is ", rapt::name_of(input.tensor.dtype), ": must be f32, f16 or bf16");
  const std::string list = name == "q" ? "cu_seqlens_q" : "cu_seqlens_k";
  const auto cu = file.tensors.find(list);
  const size_t rank = cu == file.tensors.end() ? 4 : 3;
  if (input.tensor.shape.size() != rank)
    invalid(path, ": tensor '", name, "' is of rank ", input.tensor.shape.size(), ": must be ", rank,
            rank == 3 ? concat(", [total, heads, dim], because the file has ", list) : ", [batch, heads, seqlen, dim]");
  if (rank == 3) {
    input.cu_seqlens = cu->second;
    input.ends = ends_of(concat(path, ": tensor '", list, "'"), cu->second, input.tensor.shape[0]);
  } else if (layout == "bshd") {
    std::swap(input.tensor.shape[1], input.tensor.shape[2]);
    std::swap(input.tensor.strides[1], input.tensor.strides[2]);
  }
  return input;
}

std::vector<std::string> tensor_names(const std::string& list) {
  std::vector<std::string> names = parts_of(list);
  for (const std::string& name : names) {
    if (name != "q" && name != "k" && name != "v") invalid("--tensors ", list, ": must name some of q, k and v");
    if (std::count(names.begin(), names.end(), name) > 1) invalid("--tensors ", list, ": names ", name, " twice");
  }
  return names;
}

std::map<std::string, std::string> for_each_tensor(const char* option, const std::string& value,
                                                   const std::vector<std::string>& names) {
  std::map<std::string, std::string> values;
  if (value.find('=') == std::string::npos) {
    for (const std::string& name : names) values[name] = value;
    return values;
  }
  for (const std::string& part : parts_of(value)) {
    const std::string name = part.substr(0, part.find('='));
    if (part.size() < 3 || part[1] != '=' || std::find(names.begin(), names.end(), name) == names.end())
      invalid(option, " ", value, ": ", in_quotes(part), ": must be TENSOR=VALUE with one of the tensors to quantise");
    if (!values.emplace(name, part.substr(2)).second) invalid(option, " ", value, ": names ", name, " twice");
  }
  for (const std::string& name : names)
    if (!values.contains(name)) invalid(option, " ", value, ": has no value for ", name);
  return values;
}

DType fp8_named(const std::string& name) {
  for (const DType dtype : {DType::e4m3, DType::e5m2, DType::sim8})
    if (name == rapt::name_of(dtype)) return dtype;
  invalid("dtype ", in_quotes(name), ": must be e4m3, e5m2 or sim8");
}

ScaleKind scale_kind_named(const std::string& name) {
  for (int kind = 1; kind < static_cast<int>(std::size(scale_names)); ++kind)
    if (name == scale_names[kind]) return static_cast<ScaleKind>(kind);
  invalid("scales ", in_quotes(name), ": must be tensor, head, token, block64, block128 or, for v, channel");
}

const char* name_of(ScaleKind kind) { return scale_names[static_cast<int>(kind)]; }

void check_preparation(const std::vector<std::string>& names, bool hadamard, bool smooth_k) {
  const auto named = [&](const char* name) { return std::find(names.begin(), names.end(), name) != names.end(); };
  if (hadamard && !(named("q") && named("k"))) invalid("--hadamard: rotates q and k; --tensors must name both");
  if (smooth_k && !named("k")) invalid("--smooth-k: smooths k; --tensors must name k");
}

}  // namespace rapt::lab
