"""cuDNN, called directly through nvidia-cudnn-frontend (import cudnn): graphs with one node, sdpa or sdpa_fp8.

Called through implementations.py; used if it can be imported. The graph is built once for each problem (cold_us) and
executed with the pointers of each set. cuDNN's left bound includes the diagonal, so a window of L keys to the left is
passed as L + 1.
"""

from __future__ import annotations

import importlib
import math
import time

import torch

from implementation import Implementation, only
from inputs import E4M3_MAX, TORCH, Inputs
from suites import Problem


class CudnnFrontend(Implementation):
    """cuDNN's fused attention, forward only."""

    name, family = "cudnn-frontend", "cudnn.sdpa"

    def load(self) -> None:
        self.cudnn = importlib.import_module("cudnn")
        self.backend_version = self.cudnn.backend_version()
        self.handle = self.node = None

    def version(self) -> str:
        return f"frontend {self.cudnn.__version__}, cuDNN {self.backend_version}"

    def refusal(self, problem: Problem) -> str:
        if problem.alibi and (not problem.causal or problem.h & (problem.h - 1)):
            return "its ALiBi must be causal, and the number of heads a power of two"
        if problem.softcap:
            return "softcap only through a score_mod graph, which this benchmark does not build"
        if problem.dtype == "e4m3":
            if problem.scales != "tensor":
                return "FP8 needs one descale per tensor"
            return only(problem, dtype=["e4m3"])
        return only(
            problem, dtype=["f16", "bf16"], varlen=True, window=True, alibi=True, bias=True, mask=True, sinks=True
        )

    def fp8_output(self, problem: Problem) -> bool:
        """True if cuDNN can only write FP8 output: for FP8 inputs on GPUs before Blackwell."""
        return problem.dtype == "e4m3" and torch.cuda.is_available() and torch.cuda.get_device_capability()[0] < 10

    def out_scale(self, problem: Problem) -> float:
        """The factor by which FP8 output is multiplied. Outputs are means of N(0, 1), so they are small: without
        the factor many would be subnormal numbers of E4M3.
        """
        return 64.0 if self.fp8_output(problem) else 1.0

    def config(self, problem: Problem) -> str:
        if self.fp8_output(problem):
            return "sdpa_fp8 scale_s=448 out=e4m3 scale_o=64"
        return "sdpa_fp8 scale_s=448" if problem.dtype == "e4m3" else "sdpa" + (" mask as bias" if problem.mask else "")

    @property
    def lossy(self) -> bool:
        return self.node is not None and "sdpa_fp8" in self.node

    def begin(self, problem: Problem) -> dict:
        self.graph, self.node, self.workspace = None, {}, None
        if self.handle is None:
            self.handle = self.cudnn.create_handle()
        self.cudnn.set_stream(handle=self.handle, stream=torch.cuda.current_stream().cuda_stream)
        return {}

    def end(self) -> None:
        self.graph, self.node, self.workspace = None, {}, None

    def bind(self, inputs: Inputs):
        pack = self.tensors(inputs)
        if self.graph is None:
            start = time.perf_counter()
            self.graph = self.new_graph(inputs.problem)
            self.node = self.build(self.graph, inputs.problem, pack)
            self.finish()
            self.cold_us = (time.perf_counter() - start) * 1e6
        values = {self.node[name]: tensor for name, tensor in pack.items()}
        execute, workspace, handle, out = self.graph.execute, self.workspace, self.handle, pack["out"]

        def call():
            execute(values, workspace, handle=handle)
            return out

        return call

    def new_graph(self, problem: Problem):
        kind = self.cudnn.data_type
        types = {"f16": kind.HALF, "bf16": kind.BFLOAT16, "e4m3": kind.FP8_E4M3}
        options = {"handle": self.handle} if self.handle is not None else {}
        return self.cudnn.pygraph(
            io_data_type=types[problem.dtype],
            intermediate_data_type=kind.FLOAT,
            compute_data_type=kind.FLOAT,
            **options,
        )

    def finish(self) -> None:
        graph, mode = self.graph, self.cudnn.heur_mode
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([mode.A, mode.FALLBACK])
        graph.check_support()
        graph.build_plans()
        self.workspace = torch.empty(max(1, graph.get_workspace_size()), dtype=torch.uint8, device="cuda")

    def tensors(self, inputs: Inputs) -> dict[str, torch.Tensor]:
        """All tensors that the graph reads and writes, by name."""
        problem, device = inputs.problem, inputs.device
        shape = (*inputs.q.shape[:-1], problem.dv)
        out_dtype = TORCH["e4m3"] if self.fp8_output(problem) else TORCH[problem.out]
        pack = {
            "q": inputs.q,
            "k": inputs.k,
            "v": inputs.v,
            "out": torch.full(shape, math.nan, device=device).to(out_dtype),
        }
        if problem.varlen:  # the frontend's own tests round the number of packed rows up to a multiple of 64
            pack = {name: _padded(tensor) for name, tensor in pack.items()}
            for name, cu in (("q", inputs.cu_q), ("k", inputs.cu_k)):
                pack[f"lengths_{name}"] = cu.diff().to(torch.int32).view(-1, 1, 1, 1)
            for name, cu in (("q", inputs.cu_q), ("k", inputs.cu_k), ("v", inputs.cu_k), ("out", inputs.cu_q)):
                heads, dim = pack[name].shape[1:]
                pack[f"offsets_{name}"] = (cu.long() * heads * dim).view(-1, 1, 1, 1)
        if inputs.bias is not None or inputs.mask is not None:
            pack["bias"] = _bias(inputs)
        if inputs.sinks is not None:
            pack["sinks"] = inputs.sinks.view(1, -1, 1, 1)
        if problem.dtype == "e4m3":
            one = torch.ones((1, 1, 1, 1), device=device)
            scales = {"q": inputs.q_descale, "k": inputs.k_descale, "v": inputs.v_descale, "s": one / E4M3_MAX}
            pack.update({f"descale_{name}": scale.view(1, 1, 1, 1) for name, scale in scales.items()})
            pack.update(
                scale_s=one * E4M3_MAX, scale_o=one * self.out_scale(problem), amax_s=one.clone(), amax_o=one.clone()
            )
        return pack

    def build(self, graph, problem: Problem, pack: dict) -> dict:
        """Builds the node of the graph. Returns the graph's tensors by name."""
        node = {
            name: self._tensor(graph, problem, name, tensor)
            for name, tensor in pack.items()
            if name not in ("out", "amax_s", "amax_o")
        }
        options = {"attn_scale": 1.0 / math.sqrt(problem.d), "generate_stats": False, "name": "sdpa"}
        options.update(self._band(problem, fp8=problem.dtype == "e4m3"))
        if problem.varlen:
            options.update(use_padding_mask=True, seq_len_q=node["lengths_q"], seq_len_kv=node["lengths_k"])
            for name in ("q", "k", "v"):
                node[name].set_ragged_offset(node[f"offsets_{name}"])
        if problem.alibi:
            options["use_alibi_mask"] = True
        for name, word in (("bias", "bias"), ("sinks", "sink_token")):
            if name in node:
                options[word] = node[name]
        if problem.dtype == "e4m3":
            scales = {name: node[name] for name in node if name.startswith(("descale_", "scale_"))}
            out, _, node["amax_s"], node["amax_o"] = graph.sdpa_fp8(
                q=node["q"], k=node["k"], v=node["v"], **scales, **options
            )
            for name in ("amax_s", "amax_o"):
                node[name].set_output(True).set_dim((1, 1, 1, 1)).set_stride((1, 1, 1, 1)).set_data_type(
                    self.cudnn.data_type.FLOAT
                )
            node["sdpa_fp8"] = True
        else:
            out, _ = graph.sdpa(q=node["q"], k=node["k"], v=node["v"], **options)
        node["out"] = self._output(problem, out, pack["out"], node)
        return node

    def _band(self, problem: Problem, fp8: bool) -> dict:
        off, left, right = problem.band(problem.q, problem.k)
        if left is None and right is None:
            return {}
        alignment = self.cudnn.diagonal_alignment
        square = all(q == k for q, k in problem.sequences)
        options = {
            "diagonal_alignment": (
                alignment.TOP_LEFT if square or problem.causal == "top_left" else alignment.BOTTOM_RIGHT
            )
        }
        names = ("left_bound", "right_bound") if fp8 else ("diagonal_band_left_bound", "diagonal_band_right_bound")
        if left is not None:
            options[names[0]] = left + 1
        if right is not None:
            options[names[1]] = right
        return options

    def _tensor(self, graph, problem: Problem, name: str, tensor: torch.Tensor):
        if problem.varlen and name in ("q", "k", "v"):
            dims, strides = _padded_view(problem, name, tensor)
            return graph.tensor(dim=dims, stride=strides, data_type=self._type(tensor.dtype), name=name)
        return graph.tensor(
            dim=tuple(tensor.shape), stride=tuple(tensor.stride()), data_type=self._type(tensor.dtype), name=name
        )

    def _type(self, dtype):
        kind = self.cudnn.data_type
        return {
            torch.float16: kind.HALF,
            torch.bfloat16: kind.BFLOAT16,
            torch.float32: kind.FLOAT,
            torch.float8_e4m3fn: kind.FP8_E4M3,
            torch.int32: kind.INT32,
            torch.int64: kind.INT64,
        }[dtype]

    def _output(self, problem: Problem, out, tensor: torch.Tensor, node: dict):
        dims, strides = tuple(tensor.shape), tuple(tensor.stride())
        if problem.varlen:
            dims, strides = _padded_view(problem, "out", tensor)
        out.set_output(True).set_dim(dims).set_stride(strides).set_data_type(self._type(tensor.dtype))
        if problem.varlen:
            out.set_ragged_offset(node["offsets_out"])
        return out

    def logical(self, out, problem):
        if self.fp8_output(problem):
            out = (out.float() / self.out_scale(problem)).to(TORCH[problem.out])
        return out[: sum(q for q, _ in problem.varlen)] if problem.varlen else out


def _padded(tensor: torch.Tensor) -> torch.Tensor:
    rows = -(-tensor.shape[0] // 64) * 64
    padded = tensor.new_zeros((rows, *tensor.shape[1:]))
    padded[: tensor.shape[0]] = tensor
    return padded


def _padded_view(problem: Problem, name: str, tensor: torch.Tensor) -> tuple[tuple, tuple]:
    """Sizes and strides that cuDNN needs for a packed tensor: as if every sequence had the maximum length."""
    heads, dim = tensor.shape[1:]
    longest = problem.q if name in ("q", "out") else problem.k
    return (problem.b, heads, longest, dim), (longest * heads * dim, dim, heads * dim, 1)


def _bias(inputs: Inputs) -> torch.Tensor:
    """The bias, with -inf where the mask hides a key. It is expanded to all rows and keys."""
    problem = inputs.problem
    added = torch.zeros((1, 1, problem.q, problem.k), device=inputs.device)
    if inputs.bias is not None:
        added = added + inputs.bias.float()
    if inputs.mask is not None:
        added = added.masked_fill(~inputs.mask, -math.inf)
    return added.to(TORCH[problem.dtype]).contiguous()
