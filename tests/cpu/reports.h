// The table of public bug reports that became tests. There is one row for each report. It says where the test runs.
// `source` names a public thread; inputs and expectations of the tests are this project's own. Read by
// reports_table.cpp and by tests/gpu/reports_test.cpp, which check that tests and rows agree. reports_table.cpp prints
// the number of reports.
#pragma once

#include <string_view>

namespace rapt::test {

enum class Where { cpu_and_gpu, gpu, cpu, host };

// all: the complete test runs everywhere, as Reports.<id> of rapt_tests.
// gpu, two_gpus: the part that needs no GPU runs as Reports.<id>. The other part runs as GpuReports.<id> or
// GpuTwoDevicesReports.<id> of rapt_gpu_tests, and is skipped without GPUs.
// python: it runs as test_report_<id> of tests/python, if the frameworks are installed. Another test checks that
// test_report_<id> exists.
enum class Runs { all, gpu, two_gpus, python };

struct Report {
  std::string_view id;
  std::string_view source;
  std::string_view title;
  Where where;
  Runs runs;

  // The number of GPUs that the complete test needs.
  constexpr int gpus() const { return runs == Runs::gpu ? 1 : runs == Runs::two_gpus ? 2 : 0; }
};

namespace report_words {
inline constexpr Where both = Where::cpu_and_gpu, gpu = Where::gpu, cpu = Where::cpu, host = Where::host;
inline constexpr Runs all = Runs::all, on_gpu = Runs::gpu, on_two_gpus = Runs::two_gpus, in_python = Runs::python;

inline constexpr Report reports[] = {
    {"R01", "pytorch/pytorch#103749", "a query that sees nothing gives NaN", both, all},
    {"R04", "Dao-AILab/flash-attention#978", "lse of an empty row is +inf", both, all},
    {"R06", "vllm-project/vllm#39148", "merging two empty parts gives NaN", both, all},
    {"R08", "pytorch/pytorch#127055", "first key tiles wholly -inf give NaN", both, all},
    {"R10", "NVIDIA-NeMo/Automodel#2658", "-inf and lowest finite bias in one row", both, all},
    {"R12", "pytorch/pytorch#109517", "first tile holds only the lowest finite bias", both, all},
    {"R13", "pytorch/pytorch#103082", "causal decode sees key 0 only", both, all},
    {"R15", "Dao-AILab/flash-attention#1778", "bottom-right causal with more queries than keys", both, all},
    {"R17", "gittensor-ai-lab/sparkinfer#3", "chunked prefill ignores the offset", both, all},
    {"R20", "Dao-AILab/flash-attention#1537", "empty sequence among single queries", both, all},
    {"R22", "Dao-AILab/flash-attention#1713", "a sequence without queries shifts the next one's keys", both, all},
    {"R24", "Dao-AILab/flash-attention#2862", "cu_seqlens read one past its end", both, all},
    {"R26", "Dao-AILab/flash-attention#1228", "rows past cu_seqlens[-1] are garbage", both, all},
    {"R28", "facebookresearch/xformers#1122", "lengths beyond the tensor are read", both, all},
    {"R30", "Dao-AILab/flash-attention#742", "cu_seqlens of wrong length or rank", both, all},
    {"R31", "pytorch/pytorch#174939", "zero-sized inputs kill the process", both, all},
    {"R33", "pytorch/pytorch#191325", "zero kv heads: modulo by zero", both, all},
    {"R35", "meta-pytorch/attention-gym#50", "rows after the last full tile drift", both, all},
    {"R37", "ggml-org/llama.cpp#29034", "tile padding passes through the soft cap", both, all},
    {"R40", "flashinfer-ai/flashinfer#4654", "last partial scale block", both, all},
    {"R41", "triton-lang/triton#621", "only 64 of 128 channels used", both, all},
    {"R43", "Dao-AILab/flash-attention#1645", "head_dim 512 refused late", both, all},
    {"R45", "thu-ml/SageAttention#105", "head_dim_v differs from head_dim", both, all},
    {"R47", "pytorch/pytorch#112577", "head-expanded K and V", both, all},
    {"R49", "NVIDIA/TransformerEngine#1195", "views into one fused buffer", both, all},
    {"R51", "pytorch/pytorch#187506", "last stride of 2", cpu, all},
    {"R53", "vllm-project/vllm#40737", "meaningless stride of a size-1 dimension", both, all},
    {"R55", "pytorch/pytorch#138340", "memory order of the output", both, all},
    {"R56", "pytorch/pytorch#183484", "base pointers off by some elements", both, all},
    {"R58", "pytorch/pytorch#188246", "mask rows of odd lengths", both, all},
    {"R60", "pytorch/pytorch#187227", "mask row offset beyond 2^32", both, all},
    {"R62", "Dao-AILab/flash-attention#772", "batch offset beyond 2^31", both, all},
    {"R64", "vllm-project/vllm#50427", "page offset beyond 2^31", both, all},
    {"R67", "pytorch/pytorch#146704", "65536 batches or heads", both, all},
    {"R69", "Dao-AILab/flash-attention#1786", "80,000 short sequences", both, all},
    {"R71", "fla-org/flash-linear-attention#1029", "heads_q not a multiple of heads_k", both, all},
    {"R73", "PSAL-POSTECH/ONNXim#34", "map from query heads to kv heads", both, all},
    {"R74", "huggingface/transformers#39408", "window of W or W + 1 keys", both, all},
    {"R76", "Dao-AILab/flash-attention#1133", "wide window equals causal", both, all},
    {"R78", "Dao-AILab/flash-attention#2624", "window bound 0 taken for absent", both, all},
    {"R80", "karpathy/nanochat#452", "decode forgets the window", both, all},
    {"R82", "vllm-project/vllm#56578", "tanh of two exponentials overflows", both, all},
    {"R85", "flashinfer-ai/flashinfer#4267", "finite sentinel for minus infinity", both, all},
    {"R87", "pytorch/pytorch#121558", "huge bf16 inputs", both, all},
    {"R89", "pytorch/pytorch#196678", "tile padding of score 0 dominates", both, all},
    {"R90", "SKaiNET-developers/SKaiNET#880", "scale 0 taken for the default", both, all},
    {"R92", "Dao-AILab/flash-attention#1461", "mask applied before the scale", both, all},
    {"R94", "pytorch/pytorch#101967", "NaN of a masked key reaches the output", both, all},
    {"R96", "pytorch/pytorch#141128", "NaN query turned into zeros", cpu, all},
    {"R98", "huggingface/candle#3596", "kernels on the wrong stream", gpu, on_gpu},
    {"R100", "Dao-AILab/flash-attention#54", "tensors on another than the current device", gpu, on_two_gpus},
    {"R102", "flashinfer-ai/flashinfer#3395", "shared-memory opt-in remembered per process", gpu, on_two_gpus},
    {"R104", "alibaba/rtp-llm#1084", "graph replay with a stale plan", gpu, on_gpu},
    {"R107", "Dao-AILab/flash-attention#1647", "num_splits changes the result", both, all},
    {"R109", "ROCm/triton#953", "output differs run to run", both, all},
    {"R111", "flashinfer-ai/flashinfer#2424", "tile size depends on other requests", gpu, on_gpu},
    {"R112", "flashinfer-ai/flashinfer#1046", "missing barrier in paged prefill", gpu, on_gpu},
    {"R114", "tile-ai/TileOPs#1215", "append and read race in one launch", gpu, on_gpu},
    {"R116", "vllm-project/vllm#42494", "stale ids in the page table's tail", both, all},
    {"R118", "Dao-AILab/flash-attention#2711", "length beyond the page table", both, all},
    {"R121", "Dao-AILab/flash-attention#1720", "page sizes", both, all},
    {"R123", "NVIDIA/cudnn-frontend#1172", "offset tensors with a stride", both, all},
    {"R126", "flashinfer-ai/flashinfer#4979", "k and v descales ignored on one path", both, all},
    {"R128", "vllm-project/vllm#51363", "per-head descales dropped", both, all},
    {"R131", "jax-ml/ml_dtypes#400", "overflow of e4m3", both, all},
    {"R133", "vllm-project/vllm#49077", "e4m3 NaN decoded as 480", both, all},
    {"R134", "ROCm/aiter#4289", "all-zero channel: scale 0", both, all},
    {"R137", "NVIDIA/TransformerEngine#3248", "scale computed over future tokens", both, all},
    {"R138", "Comfy-Org/ComfyUI#16035", "keys with a common component", both, all},
    {"R140", "thu-ml/SageAttention#401", "inputs modified in place", both, all},
    {"R143", "Dao-AILab/flash-attention#1071", "bf16 compared with an fp16 tolerance", both, all},
    {"R145", "pytorch/pytorch#108503", "bf16 with a block-diagonal mask", both, all},
    {"R147", "flashinfer-ai/flashinfer#2113", "lse in base 2", both, all},
    {"R149", "pytorch/pytorch#187872", "packed lse padded per sequence", both, all},
    {"R151", "Dao-AILab/flash-attention#1585", "shape and formula of ALiBi", both, all},
    {"R154", "pytorch/pytorch#120810", "mask broadcasting", both, all},
    {"R156", "vllm-project/vllm-omni#5865", "key-padding mask selects queries", both, all},
    {"R158", "NVIDIA/TransformerEngine#614", "true means keep", both, all},
    {"R160", "pytorch/pytorch#103963", "float and boolean mask differ", both, all},
    {"R161", "pytorch/pytorch#187801", "mask together with causal", both, all},
    {"R163", "pytorch/pytorch#191612", "f32 mask with half inputs", both, all},
    {"R165", "pytorch/pytorch#124464", "dropout 0", both, in_python},
    {"R167", "Comfy-Org/ComfyUI#15044", "fake and real kernel disagree on strides", both, in_python},
    {"R169", "pytorch/pytorch#110322", "recompiles for every length", both, in_python},
    {"R172", "kijai/ComfyUI-KJNodes#255", "no kernel for a newer card", gpu, all},
    {"R174", "flashinfer-ai/flashinfer#2339", "parallel builds share one log", both, all},
    {"R176", "flashinfer-ai/flashinfer#972", "lock of a killed process", host, all},
    {"R178", "flashinfer-ai/flashinfer#4490", "stale kernel after a re-install", host, all},
    {"R180", "flashinfer-ai/flashinfer#4146", "plan key without strides", both, all},
    {"R182", "Center-for-AI-Innovation/LLMFlux#124", "read-only cache directory", host, all},
    {"R184", "Dao-AILab/flash-attention#1644", "import against another framework version", host, in_python},
    {"R186", "tensorflow/tensorflow#36862", "importer ignores strides and byte offset", both, in_python},
    {"R188", "dmlc/dlpack#156", "fp8 exchange", both, in_python},
};
}  // namespace report_words
using report_words::reports;

}  // namespace rapt::test
