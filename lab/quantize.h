// The options of rapt quantize and rapt calibrate, and the code that both use: reading q, k and v from a file, and
// files of static scales. Called by program.cpp and tests.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "check/tensor.h"
#include "lab/commands.h"
#include "lab/safetensors.h"

namespace rapt::lab {

struct QuantizeOptions {
  Common common;
  std::string input, output;
  std::string tensors = "q,k,v";
  std::string dtype = "e4m3";   // for all tensors, or q=e4m3,k=e5m2
  std::string scales = "head";  // for all tensors, or q=token,k=block64
  std::string layout = "bhsd";  // order of the dimensions of dense tensors
  bool hadamard = false, smooth_k = false;
  std::optional<double> percentile;
  std::string scales_file;  // static scales to use instead of computed ones
};
struct CalibrateOptions {
  Common common;
  std::vector<std::string> inputs;
  std::string output;
  std::string tensors = "q,k,v";
  std::string dtype = "e4m3";
  std::string granularity = "head";  // "head" or "tensor"
  std::string layout = "bhsd";
  bool hadamard = false, smooth_k = false;
  std::optional<double> percentile;
};
int quantize(const QuantizeOptions& options);
int calibrate(const CalibrateOptions& options);

// q, k or v of a file in the library's order, which is [batch, heads, seqlen, dim], or [total, heads, dim] if packed.
struct AttentionInput {
  std::string name;          // "q", "k" or "v"
  check::HostTensor tensor;  // a view of the file's tensor
  std::optional<check::HostTensor> cu_seqlens;
  std::vector<int64_t> ends;  // the ends of packed sequences (cu_seqlens): the first entry is 0

  bool packed() const { return cu_seqlens.has_value(); }
  int64_t batch() const { return packed() ? static_cast<int64_t>(ends.size()) - 1 : tensor.shape[0]; }
  int64_t heads() const { return tensor.shape[1]; }
  int64_t dim() const { return tensor.shape.back(); }
  int64_t max_seqlen() const;
  // Calls visit(b, h, s, at, row) for each row of each sequence b and head h, in order. `row` has the values as
  // float64, after the rotation if `rotated`. `at` is {b, h, s}, or {t, h} if packed.
  using Visit = std::function<void(int64_t b, int64_t h, int64_t s, const std::vector<int64_t>& at, double* row)>;
  void each_row(bool rotated, const Visit& visit) const;
};
// Reads tensor `name` of the file. Throws an Error that names the file and the tensor if the tensor is wrong.
AttentionInput attention_input(const std::string& path, const TensorFile& file, const std::string& name,
                               const std::string& layout);
std::vector<std::string> tensor_names(const std::string& list);  // "q,k" of --tensors
// Parses --dtype or --scales: "e4m3", or "q=e4m3,k=e5m2" with a value for each of the names.
std::map<std::string, std::string> for_each_tensor(const char* option, const std::string& value,
                                                   const std::vector<std::string>& names);
DType fp8_named(const std::string& name);
ScaleKind scale_kind_named(const std::string& name);
const char* name_of(ScaleKind kind);
double largest_code(DType dtype);
// Checks that q and k are rotated together, and that smoothing is for k.
void check_preparation(const std::vector<std::string>& names, bool hadamard, bool smooth_k);

// The descale that rapt_quantize computes for values with maximum amax.
float descale_of(double amax, DType dtype);

// Static scales. Schema: docs/lab.md.
struct StaticScales {
  DType dtype = DType::e4m3;
  ScaleKind granularity = ScaleKind::head;  // head or tensor
  double percentile = 100;
  bool hadamard = false, smooth_k = false;
  int64_t samples = 0;                                // number of sample files
  std::map<std::string, std::vector<float>> descale;  // key: tensor; index: head
  // The maxima from which the descales were computed, in the same form. They are written, but never read.
  std::map<std::string, std::vector<float>> amax;
};
std::string to_json(const StaticScales& scales);
StaticScales parse_static_scales(const std::string& text, const std::string& where);

}  // namespace rapt::lab
