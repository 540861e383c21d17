// The rungs of the ladder and how each becomes a kernel. ladder_bench.cpp checks and times them.
#include "lab/ladder.h"

#include <algorithm>

#include "base/error.h"
#include "lab/device_sources.h"
#include "runtime/gpu.h"

namespace rapt::lab {
namespace {

const Rung rungs[] = {
    {"scalar", "D.1", "100-200 us", &attention_scalar, "", ""},
    {"tiled", "D.2", "< 50 us", &attention_sm80, "ladder/tiled.cuh",
     "block_m=32 block_n=64 warps_m=4 warps_n=1 q_in_registers=0 min_blocks=1 scale_in_exp2=0 programmatic=0 "
     "stages=2"},
    {"tensor", "D.3", "< 20 us", &attention_sm80, "ladder/tensor.cuh",
     "block_m=64 block_n=64 warps_m=4 warps_n=1 q_in_registers=1 min_blocks=1 scale_in_exp2=0 programmatic=0 "
     "stages=1"},
    {"pipelined", "D.4, stage2", "< 10 us", &attention_sm80, "ladder/pipelined.cuh",
     "block_m=64 block_n=64 warps_m=4 warps_n=1 q_in_registers=1 min_blocks=1 scale_in_exp2=0 programmatic=0 "
     "stages=2"},
    {"swizzled", "D.5", "< 5 us", &attention_sm80, "",
     "block_m=64 block_n=64 warps_m=4 warps_n=1 q_in_registers=1 min_blocks=1 programmatic=0 stages=3"},
    {"ws_p1", "ws_p1", "", &attention_sm80, "ladder/warp_specialised.cuh",
     "block_m=64 block_n=64 warps_m=5 warps_n=1 q_in_registers=1 min_blocks=2 scale_in_exp2=0 programmatic=0 "
     "stages=2"},
    {"ws_p2", "ws_p2", "", &attention_sm80, "ladder/warp_specialised.cuh",
     "block_m=64 block_n=64 warps_m=6 warps_n=1 q_in_registers=1 min_blocks=2 scale_in_exp2=0 programmatic=0 "
     "stages=2"},
    {"persistent", "", "", &attention_sm80, "ladder/persistent.cuh",
     "block_m=64 block_n=64 warps_m=5 warps_n=1 q_in_registers=1 min_blocks=2 scale_in_exp2=0 programmatic=0 "
     "stages=2",
     RungLaunch::persistent},
    {"shipped", "", "", &attention_sm80, "", ""},
    {"l2_window", "", "", &attention_sm80, "", "", RungLaunch::l2_window},
};

constexpr std::string_view folder = "ladder/";

// All sources of the folder ladder/ under their own names. In addition, the rung's source gets the name of the file
// that the family's translation unit includes.
std::map<std::string, std::string> files_of(const Rung& rung) {
  std::map<std::string, std::string> files;
  if (*rung.source == '\0') return files;
  for (const auto& [path, text] : device_sources())
    if (path.starts_with(folder)) files.emplace(path.substr(folder.size()), text);
  files.emplace(rung.family->text, device_sources().at(rung.source));
  return files;
}

}  // namespace

std::span<const Rung> ladder_rungs() { return rungs; }

void require_ladder_problem(const Problem& problem) {
  const std::string heads =
      problem.heads_q == problem.heads_k ? concat(problem.heads_q) : concat(problem.heads_q, ":", problem.heads_k);
  constexpr int64_t tile = 64;  // a multiple of every rung's block_m and block_n
  const bool whole = problem.seqlen_q >= tile && problem.seqlen_q % tile == 0 && problem.seqlen_k >= tile &&
                     problem.seqlen_k % tile == 0 && problem.batch > 0 && problem.heads_q > 0;
  if (whole && problem == parse_problem(concat("f16 b", problem.batch, " h", heads, " q", problem.seqlen_q, " k",
                                               problem.seqlen_k, " d64")))
    return;
  unsupported("--ladder: ", to_string(problem), ": must be a dense f16 problem of head_dim 64",
              " without options, with lengths that are multiples of ", tile, ", such as \"f16 b1 h8 q512 d64\"");
}

RungKernel rung_kernel(const Rung& rung, const Problem& problem, const Device& device) {
  RungKernel kernel;
  std::string why;
  if (!rung.family->accepts(problem, device, &why)) unsupported(why);
  kernel.config = rung.family->configure(problem, device);
  kernel.config.apply(rung.config);
  kernel.unit = rung.family->unit(kernel.config);
  kernel.files = files_of(rung);
  kernel.request = request_for(kernel.unit, device.arch,
                               concat("rung ", rung.name, " for \"", to_string(problem), "\""), kernel.files);
  return kernel;
}

cuda::L2Window kv_window(const AttentionParams& params, const Problem& problem) {
  const auto begin_of = [](const TensorRef& tensor) { return static_cast<const char*>(tensor.data); };
  const auto bytes_of_tensor = [&](DType dtype, int64_t dim) {
    return problem.batch * problem.heads_k * problem.seqlen_k * dim * bytes_of(dtype);
  };
  const char *const k = begin_of(params.k), *const v = begin_of(params.v);
  const char* const begin = std::min(k, v);
  const char* const end =
      std::max(k + bytes_of_tensor(problem.k, problem.head_dim), v + bytes_of_tensor(problem.v, problem.head_dim_v));
  return {begin, static_cast<size_t>(end - begin)};
}

}  // namespace rapt::lab
