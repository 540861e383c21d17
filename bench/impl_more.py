"""xformers, flashinfer and sageattention.

Called through implementations.py; used if they can be imported. sageattention multiplies Q K^T in INT8. So it is marked
as lossy, it is timed if its error is within a larger bound, and its error is shown beside its time.
"""

from __future__ import annotations

import importlib

import torch

from implementation import Implementation, only
from impl_flash import installed_version
from inputs import Inputs
from suites import Problem


class Xformers(Implementation):
    """xformers.ops.memory_efficient_attention, which selects its operator (PyTorch's kernels, Triton split-K)."""

    name, layout, family = "xformers", "bshd", "xformers.memory_efficient_attention"

    def load(self) -> None:
        self.ops = importlib.import_module("xformers.ops")
        self.masks = importlib.import_module("xformers.ops.fmha.attn_bias")

    def version(self) -> str:
        return installed_version(importlib.import_module("xformers"), "xformers")

    def refusal(self, problem: Problem) -> str:
        if problem.varlen and (problem.h != problem.hk or problem.window):
            return "varlen with grouped heads or windows is not built by this benchmark"
        return only(problem, dtype=["f32", "f16", "bf16"], varlen=True, window=True, bias=problem.h == problem.hk)

    def mask(self, inputs: Inputs):
        problem, masks = inputs.problem, self.masks
        if problem.varlen:
            lengths = [list(side) for side in zip(*problem.varlen)]
            blocks = masks.BlockDiagonalMask.from_seqlens(*lengths)
            return blocks.make_causal_from_bottomright() if problem.causal else blocks
        if problem.bias is not None:
            return inputs.bias.expand(problem.b, problem.h, problem.q, problem.k).to(inputs.q.dtype)
        left, right = problem.window or (-1, -1)
        if problem.window and problem.causal and left >= 0:
            return masks.LowerTriangularFromBottomRightLocalAttentionMask(left + 1)
        if problem.window and not problem.causal:
            return masks.LocalAttentionFromBottomRightMask(
                left if left >= 0 else problem.k, right if right >= 0 else problem.k
            )
        return masks.LowerTriangularFromBottomRightMask() if problem.causal else None

    def bind(self, inputs: Inputs):
        problem, function, mask = inputs.problem, self.ops.memory_efficient_attention, self.mask(inputs)
        q, k, v = inputs.bshd()
        if problem.varlen:
            q, k, v = q[None], k[None], v[None]
        elif problem.h != problem.hk:  # [batch, seqlen, key heads, queries of each, dim]
            group = problem.h // problem.hk
            q = q.unflatten(2, (problem.hk, group))
            k, v = (t[:, :, :, None].expand(-1, -1, -1, group, -1) for t in (k, v))
        return lambda: function(q, k, v, attn_bias=mask)

    def logical(self, out, problem):
        if problem.varlen:
            return out[0]
        return super().logical(out.flatten(2, 3) if out.dim() == 5 else out, problem)


class FlashInfer(Implementation):
    """flashinfer. One sequence: single_prefill or single_decode. Several sequences: the ragged prefill wrapper with a
    plan.
    """

    name, layout, family = "flashinfer", "bshd", "flashinfer"

    def load(self) -> None:
        self.module = importlib.import_module("flashinfer")

    def version(self) -> str:
        return installed_version(self.module, "flashinfer-python")

    def refusal(self, problem: Problem) -> str:
        if problem.window and problem.window[1] > 0 and not problem.causal:
            return "supports windows only to the left"
        if problem.window and not problem.causal:
            return "no window without causal"
        return only(problem, dtype=["f16", "bf16"], varlen=True, window=True, softcap=True)

    def options(self, problem: Problem) -> dict:
        return {"window_left": problem.window[0] if problem.window else -1, "logits_soft_cap": problem.softcap or 0.0}

    def bind(self, inputs: Inputs):
        problem, options = inputs.problem, self.options(inputs.problem)
        q, k, v = inputs.bshd()
        if not problem.varlen and problem.b == 1:
            q, k, v = q[0], k[0], v[0]
            if problem.q == 1:
                decode, row = self.module.single_decode_with_kv_cache, q[0]
                return lambda: decode(row, k, v, kv_layout="NHD", use_tensor_cores=problem.h != problem.hk, **options)
            prefill, causal = self.module.single_prefill_with_kv_cache, bool(problem.causal)
            return lambda: prefill(q, k, v, causal=causal, kv_layout="NHD", **options)
        wrapper = self._planned(inputs, options)
        if not problem.varlen:
            q, k, v = (t.flatten(0, 1) for t in (q, k, v))
        return lambda: wrapper.run(q, k, v)

    def _planned(self, inputs: Inputs, options: dict):
        problem = inputs.problem
        starts = [inputs.cu_q, inputs.cu_k]
        if not problem.varlen:
            starts = [
                torch.arange(problem.b + 1, dtype=torch.int32, device=inputs.device) * n for n in (problem.q, problem.k)
            ]
        space = torch.zeros(256 << 20, dtype=torch.uint8, device=inputs.device)
        wrapper = self.module.BatchPrefillWithRaggedKVCacheWrapper(space, "NHD")
        wrapper.plan(
            *starts,
            problem.h,
            problem.hk,
            problem.d,
            head_dim_vo=problem.dv,
            causal=bool(problem.causal),
            q_data_type=inputs.q.dtype,
            **options,
        )
        return wrapper

    def logical(self, out, problem):
        if problem.varlen:
            return out
        if out.dim() == 2:
            return out[None, :, None]
        return out.unflatten(0, (problem.b, problem.q)).transpose(1, 2)


class SageAttention(Implementation):
    """sageattention.sageattn and sageattn_varlen: Q K^T in INT8."""

    name, family, lossy = "sageattention", "sageattention", True

    def load(self) -> None:
        self.module = importlib.import_module("sageattention")

    def version(self) -> str:
        return installed_version(self.module, "sageattention")

    def refusal(self, problem: Problem) -> str:
        if problem.causal and any(q != k for q, k in problem.sequences):
            return "causal only with as many keys as queries"
        if problem.d not in (64, 96, 128) or problem.d != problem.dv:
            return f"head_dim {problem.d}: 64, 96 and 128 only"
        return only(problem, dtype=["f16", "bf16"], varlen=True)

    def bind(self, inputs: Inputs):
        problem, causal = inputs.problem, bool(inputs.problem.causal)
        q, v = inputs.q, inputs.v
        k = inputs.k.clone()  # because sageattention subtracts the mean of the keys in place
        if problem.varlen:
            packed = self.module.sageattn_varlen
            rest = (inputs.cu_q, inputs.cu_k, problem.q, problem.k)
            return lambda: packed(q, k, v, *rest, is_causal=causal)
        dense = self.module.sageattn
        return lambda: dense(q, k, v, tensor_layout="HND", is_causal=causal)
