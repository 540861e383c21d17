"""PyTorch's own attention: the backends of scaled_dot_product_attention, its varlen call, and flex_attention.

Called through implementations.py. F.scaled_dot_product_attention has no window, softcap, ALiBi or sinks. If the backend
accepts an attn_mask, windows and ALiBi are passed as a prepared attn_mask, as users do. The row's config shows this.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
import torch.nn.functional as functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from implementation import Implementation, only
from inputs import TORCH, Inputs
from suites import Problem

BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}


def needs_mask(problem: Problem, backend: str) -> bool:
    """True if a part of the problem must be passed as attn_mask. is_causal means top-left, so it is bottom-right only
    if both lengths are equal.
    """
    chunk = bool(problem.causal) and problem.q not in (1, problem.k) and backend not in ("flash", "efficient")
    return bool(problem.window or problem.alibi or problem.bias or problem.mask) or chunk


def attn_mask(inputs: Inputs) -> torch.Tensor:
    """One tensor with causal, window and mask. It is boolean (True keeps a key); with bias or ALiBi it is
    floating-point and is added to the scores.
    """
    problem = inputs.problem
    off, left, right = problem.band(problem.q, problem.k)
    place = (
        torch.arange(problem.k, device=inputs.device)[None, :]
        - torch.arange(problem.q, device=inputs.device)[:, None]
        - off
    )
    keep = torch.ones_like(place, dtype=torch.bool)
    if right is not None:
        keep &= place <= right
    if left is not None:
        keep &= place >= -left
    keep = keep[None, None] if inputs.mask is None else keep & inputs.mask
    if inputs.slopes is None and inputs.bias is None:
        return keep if left is not None or right is not None else inputs.mask
    added = torch.zeros((1, 1, 1, 1), device=inputs.device)
    if inputs.bias is not None:
        if problem.bias[0] == problem.dtype and inputs.slopes is None and bool(keep.all()):
            return inputs.bias
        added = added + inputs.bias.float()
    if inputs.slopes is not None:
        added = added - inputs.slopes[None, :, None, None] * place.abs().float()
    return added.masked_fill(~keep, -math.inf).to(TORCH[problem.dtype])


class TorchSdpa(Implementation):
    """F.scaled_dot_product_attention limited to one backend. Varlen problems use torch.nn.attention.varlen (flash)."""

    family = "torch.scaled_dot_product_attention"

    def __init__(self, backend: str):
        self.backend, self.name = backend, f"torch-{backend}"

    def refusal(self, problem: Problem) -> str:
        if problem.varlen:
            return self._varlen_refusal(problem)
        if problem.softcap or problem.sinks:
            return "no " + ("softcap" if problem.softcap else "sinks")
        if self.backend == "flash" and needs_mask(problem, self.backend):
            return "its flash backend takes no attn_mask, which is needed for window, bias or mask"
        dtypes = ["f16", "bf16"] + (["f32"] if self.backend in ("efficient", "math") else [])
        return only(problem, dtype=dtypes, window=True, alibi=True, bias=True, mask=True)

    def _varlen_refusal(self, problem: Problem) -> str:
        if self.backend != "flash":
            return "no varlen: torch.nn.attention.varlen runs flash"
        try:
            from torch.nn.attention.varlen import varlen_attn  # noqa: F401
        except ImportError:
            return f"no varlen in PyTorch {torch.__version__}"
        return only(problem, dtype=["f16", "bf16"], varlen=True, window=True)

    def config(self, problem: Problem) -> str:
        if problem.varlen:
            return "torch.nn.attention.varlen.varlen_attn"
        mask = " attn_mask=prepared" if needs_mask(problem, self.backend) else ""
        return BACKENDS[self.backend].name + mask

    def scope(self):
        return sdpa_kernel(BACKENDS[self.backend])

    def score_bytes(self, problem: Problem) -> float:
        """The size in bytes of scores and weights in memory; 0 for fused backends."""
        return 10.0 * problem.b * problem.h * problem.q * problem.k if self.backend == "math" else 0.0

    def bind(self, inputs: Inputs):
        problem = inputs.problem
        if problem.varlen:
            return self._bind_varlen(inputs)
        q, k, v = inputs.q, inputs.k, inputs.v
        options: dict = {"enable_gqa": True} if problem.h != problem.hk else {}
        if needs_mask(problem, self.backend):
            options["attn_mask"] = attn_mask(inputs)
        elif problem.causal and problem.q == problem.k:
            options["is_causal"] = True
        elif problem.causal and problem.q != 1:  # a single query has the last position, so it sees every key
            from torch.nn.attention.bias import causal_lower_right

            options["attn_mask"] = causal_lower_right(problem.q, problem.k)
        return lambda: functional.scaled_dot_product_attention(q, k, v, **options)

    def _bind_varlen(self, inputs: Inputs):
        from torch.nn.attention.varlen import varlen_attn

        problem = inputs.problem
        left, right = problem.window or (-1, -1)
        window = (left, 0 if problem.causal else right)
        tensors = (inputs.q, inputs.k, inputs.v, inputs.cu_q, inputs.cu_k, problem.q, problem.k)
        return lambda: varlen_attn(*tensors, window_size=window)


class TorchCpu(TorchSdpa):
    """F.scaled_dot_product_attention on the CPU with its default dispatch. With a dtype, bf16 problems are computed in
    this dtype: PyTorch uses AMX for bf16 if the CPU has it, and rapt does not use AMX.
    """

    def __init__(self, dtype: str = ""):
        super().__init__("math")
        self.dtype, self.name = dtype, "torch" + (f"-{dtype}" if dtype else "")

    def concerns(self, problem: Problem) -> bool:
        return not self.dtype or problem.dtype == "bf16"

    def refusal(self, problem: Problem) -> str:
        if problem.varlen:
            return "no varlen on the CPU"
        return super().refusal(problem)

    def config(self, problem: Problem) -> str:
        return "default backend" + (f" in {self.dtype}" if self.dtype else "")

    def computed(self, problem: Problem) -> Problem:
        return replace(problem, dtype=self.dtype, out=self.dtype) if self.dtype else problem

    def scope(self):
        return Implementation.scope(self)

    def score_bytes(self, problem: Problem) -> float:
        return 0.0

    def bind(self, inputs: Inputs):
        if not self.dtype:
            return super().bind(inputs)
        q, k, v = (t.to(TORCH[self.dtype]) for t in (inputs.q, inputs.k, inputs.v))
        return lambda: functional.scaled_dot_product_attention(q, k, v, is_causal=bool(inputs.problem.causal))

    def logical(self, out, problem):
        return out.to(TORCH[problem.out]) if self.dtype else out


class Flex(Implementation):
    """flex_attention, compiled for each problem. The block mask is created before the timing starts."""

    family = "torch.flex_attention"

    def __init__(self, compiled: bool = True):
        self.compiled, self.name = compiled, "torch-flex" if compiled else "torch-flex-eager"

    def load(self) -> None:
        import torch.nn.attention.flex_attention  # noqa: F401

    def refusal(self, problem: Problem) -> str:
        dtypes = ["f32", "f16", "bf16"]
        return only(
            problem, dtype=dtypes, varlen=True, window=True, softcap=True, alibi=True, bias=True, mask=True, sinks=True
        )

    def config(self, problem: Problem) -> str:
        return ("compiled" if self.compiled else "not compiled") + (", document mask" if problem.varlen else "")

    def begin(self, problem: Problem) -> dict:
        self.end()
        self.function, self.block_mask = None, None
        return {}

    def end(self) -> None:
        if self.compiled:
            torch._dynamo.reset()  # otherwise torch.compile reaches its limit of recompilations after a few problems

    def bind(self, inputs: Inputs):
        from torch.nn.attention.flex_attention import create_block_mask

        problem = inputs.problem
        q, k, v = inputs.q, inputs.k, inputs.v
        if problem.varlen:
            q, k, v = (t.transpose(0, 1)[None] for t in (q, k, v))
        mask = mask_mod(inputs)
        if mask is not None and (self.block_mask is None or inputs.mask is not None):
            batch, heads = inputs.mask.shape[:2] if inputs.mask is not None else (1, 1)
            self.block_mask = create_block_mask(
                mask,
                batch if batch > 1 else None,
                heads if heads > 1 else None,
                q.shape[2],
                k.shape[2],
                device=inputs.device,
            )
        function = flex_function(problem)
        if self.compiled:
            if self.function is None:
                self.function = torch.compile(function, dynamic=False, fullgraph=True)
            function = self.function
        block_mask, bias, slopes, sinks = self.block_mask, inputs.bias, inputs.slopes, inputs.sinks
        return lambda: function(q, k, v, block_mask, bias, slopes, sinks)

    def logical(self, out, problem):
        return out[0].transpose(0, 1) if problem.varlen else out


def mask_mod(inputs: Inputs):
    """Causal, window, mask and sequences as flex_attention's mask_mod; None if all keys are visible."""
    problem = inputs.problem
    off, left, right = problem.band(problem.q, problem.k)
    documents = None
    if problem.varlen:
        documents = [
            torch.repeat_interleave(torch.arange(problem.b, device=inputs.device), cu.diff())
            for cu in (inputs.cu_q, inputs.cu_k)
        ]
        shift = (inputs.cu_k.diff() - inputs.cu_q.diff()) + inputs.cu_k[:-1] - inputs.cu_q[:-1]
    mask = inputs.mask
    if left is None and right is None and documents is None and mask is None:
        return None

    def visible(b, h, q_idx, kv_idx):
        place = kv_idx - q_idx - (off if documents is None else shift[documents[0][q_idx]])
        keep = place == place
        if documents is not None:
            keep = keep & (documents[0][q_idx] == documents[1][kv_idx])
        if right is not None:
            keep = keep & (place <= right)
        if left is not None:
            keep = keep & (place >= -left)
        if mask is not None:
            keep = (
                keep
                & mask[
                    b if mask.shape[0] > 1 else 0,
                    h if mask.shape[1] > 1 else 0,
                    q_idx if mask.shape[2] > 1 else 0,
                    kv_idx if mask.shape[3] > 1 else 0,
                ]
            )
        return keep

    return visible


def flex_function(problem: Problem):
    """The function to compile. With sinks it computes out * sigmoid(lse - sink), which is the same as adding the sink
    to the denominator.
    """
    from torch.nn.attention.flex_attention import AuxRequest, flex_attention

    off, softcap = problem.band(problem.q, problem.k)[0], problem.softcap
    plain = not (softcap or problem.bias or problem.alibi)
    gqa = problem.h != problem.hk
    axes = problem.bias[1].split(",") if problem.bias else []

    def function(q, k, v, block_mask, bias, slopes, sinks):
        def score(x, b, h, q_idx, kv_idx):
            if softcap:
                x = softcap * torch.tanh(x / softcap)
            if bias is not None:
                place = [0 if axis == "1" else i for axis, i in zip(axes, (b, h, q_idx, kv_idx))]
                x = x + bias[place[0], place[1], place[2], place[3]]
            if slopes is not None:
                x = x - slopes[h] * (kv_idx - q_idx - off).abs()
            return x

        options = dict(score_mod=None if plain else score, block_mask=block_mask, enable_gqa=gqa)
        if sinks is None:
            return flex_attention(q, k, v, **options)
        out, more = flex_attention(q, k, v, return_aux=AuxRequest(lse=True), **options)
        return (out * torch.sigmoid(more.lse - sinks[None, :, None])[..., None]).to(q.dtype)

    return function
