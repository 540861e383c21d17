// Records the file with the tensors before quantisation, finds this file again and verifies it.
#include "lab/originals.h"

#include <filesystem>

#include "base/error.h"
#include "jit/jit.h"
#include "lab/npy.h"

namespace rapt::lab {
namespace {

using check::HostTensor;

constexpr const char* path_key = "rapt_original";
constexpr const char* sum_key = "rapt_original_sha256";
constexpr const char* names[] = {"q", "k", "v"};

// A checksum of q, k and v in their stored form. If one byte changes, the checksum changes.
std::string sum_of(const std::map<std::string, HostTensor>& tensors) {
  std::string sums;
  for (const char* name : names) {
    const auto found = tensors.find(name);
    if (found != tensors.end()) sums += jit::sha256(contiguous_bytes(found->second));
  }
  return jit::sha256(sums);
}

// The path of `to` relative to the folder of `from`.
std::string relative(const std::filesystem::path& to, const std::filesystem::path& from) {
  return std::filesystem::proximate(std::filesystem::absolute(to), std::filesystem::absolute(from).parent_path())
      .string();
}
std::string beside(const std::filesystem::path& from, const std::filesystem::path& path) {
  return (from.parent_path() / path).lexically_normal().string();
}

std::map<std::string, HostTensor> tensors_of(const std::string& path) {
  if (!std::filesystem::is_directory(path)) return read_safetensors(FileSource(path)).tensors;
  std::map<std::string, HostTensor> tensors;
  for (const char* name : names) tensors[name] = read_npy(FileSource(path + "/" + name + ".npy"), DType::none);
  return tensors;
}

HostTensor original_of(const std::string& path, const std::map<std::string, HostTensor>& tensors, const char* name,
                       const Problem& problem, const HostTensor& quantised) {
  const auto found = tensors.find(name);
  if (found == tensors.end()) invalid(path, ": tensor '", name, "' is missing");
  if (!is_attention_output(found->second.dtype))
    invalid(path, ": tensor '", name, "' is ", name_of(found->second.dtype), ": must be f32, f16 or bf16");
  // as_stored() swaps two dimensions or none. So it also converts from the stored order to the logical order.
  const HostTensor original = as_stored(problem, found->second);
  if (original.shape != quantised.shape)
    invalid(path, ": tensor '", name, "' has another shape than the quantised tensor");
  return original;
}

LoadedProblem load_originals(const std::string& path, const LoadedProblem& quantised) {
  const auto tensors = tensors_of(path);
  const auto noted = quantised.metadata.find(sum_key);
  if (noted != quantised.metadata.end() && noted->second != sum_of(tensors))
    invalid(path, ": its q, k and v are not the tensors that were quantised");
  LoadedProblem loaded = quantised;
  Problem& p = loaded.problem;
  check::Inputs& in = loaded.inputs;
  in.q = original_of(path, tensors, "q", p, in.q);
  in.k = original_of(path, tensors, "k", p, in.k);
  in.v = original_of(path, tensors, "v", p, in.v);
  in.q_descale = in.k_descale = in.v_descale = in.k_mean = HostTensor();
  p.q = in.q.dtype, p.k = in.k.dtype, p.v = in.v.dtype;
  p.q_scales = p.k_scales = p.v_scales = ScaleKind::none;
  p.smooth_k = p.hadamard = false;
  p.pv = PvMode::automatic;
  return loaded;
}

bool holds_codes(const std::map<std::string, HostTensor>& tensors) {
  for (const char* name : names) {
    const auto found = tensors.find(name);
    if (found != tensors.end() && (is_fp8(found->second.dtype) || found->second.dtype == DType::u8)) return true;
  }
  return false;
}

}  // namespace

void record_original(const std::string& input, const TensorFile& before, const std::string& output,
                     std::map<std::string, std::string>& metadata) {
  const auto path = before.metadata.find(path_key);
  if (path != before.metadata.end()) {
    metadata[path_key] = relative(beside(input, path->second), output);
  } else if (!holds_codes(before.tensors)) {
    metadata[path_key] = relative(input, output);
    metadata[sum_key] = sum_of(before.tensors);
  }
}

std::optional<Originals> find_originals(const std::string& input, const LoadedProblem& quantised,
                                        const std::string& path) {
  const Problem& p = quantised.problem;
  if (!is_fp8(p.q) && !is_fp8(p.k) && !is_fp8(p.v)) {
    if (!path.empty()) invalid("--original ", path, ": q, k and v of ", input, " are not quantised");
    return std::nullopt;
  }
  if (!path.empty()) return Originals{path, "", load_originals(path, quantised)};
  const auto noted = quantised.metadata.find(path_key);
  if (noted == quantised.metadata.end()) return Originals{"", "the file does not name its original", {}};
  const std::string found = beside(input, noted->second);
  try {
    return Originals{found, "", load_originals(found, quantised)};
  } catch (const Error& error) {
    return Originals{"", error.what(), {}};
  }
}

}  // namespace rapt::lab
