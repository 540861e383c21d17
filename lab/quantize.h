// The options of rapt quantize and rapt calibrate, and their common parts: the q, k and v of a file, and static scales
// as a file. Called by program.cpp and tests.
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
  std::string scales = "head";  // likewise
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
  std::string granularity = "head";  // or tensor
  std::string layout = "bhsd";
  bool hadamard = false, smooth_k = false;
  std::optional<double> percentile;
};
int quantize(const QuantizeOptions& options);
int calibrate(const CalibrateOptions& options);

// q, k or v of a file in the library's order: [batch, heads, seqlen, dim], packed [total, heads, dim].
struct AttentionInput {
  std::string name;          // "q"
  check::HostTensor tensor;  // a view of the file's
  std::optional<check::HostTensor> cu_seqlens;
  std::vector<int64_t> ends;  // of packed sequences; the first entry is 0

  bool packed() const { return cu_seqlens.has_value(); }
  int64_t batch() const { return packed() ? static_cast<int64_t>(ends.size()) - 1 : tensor.shape[0]; }
  int64_t heads() const { return tensor.shape[1]; }
  int64_t dim() const { return tensor.shape.back(); }
  int64_t max_seqlen() const;
  // Calls visit(b, h, s, position, row) for the rows of sequence b and head h in order. A row is float64, rotated on
  // request. `position` is {b, h, s}, packed {t, h}.
  using Visit = std::function<void(int64_t b, int64_t h, int64_t s, const std::vector<int64_t>& at, double* row)>;
  void each_row(bool rotated, const Visit& visit) const;
};
// Throws Error with file and tensor.
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

// The scale of values with maximum amax, as rapt_quantize computes it.
float descale_of(double amax, DType dtype);

// Static scales. Schema: docs/lab.md.
struct StaticScales {
  DType dtype = DType::e4m3;
  ScaleKind granularity = ScaleKind::head;  // or tensor
  double percentile = 100;
  bool hadamard = false, smooth_k = false;
  int64_t samples = 0;                                // number of files
  std::map<std::string, std::vector<float>> descale;  // by tensor, then by head
  // likewise: the maxima that gave the scales; written, but not read
  std::map<std::string, std::vector<float>> amax;
};
std::string to_json(const StaticScales& scales);
StaticScales parse_static_scales(const std::string& text, const std::string& where);

}  // namespace rapt::lab
