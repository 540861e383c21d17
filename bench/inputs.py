"""Seeded inputs of a problem as PyTorch tensors, in every memory order that an implementation needs.

Called by peers.py, call_cost.py and tests. Values are the same in all orders. Each implementation reads the order that
it prefers. The copies are made once, before timing.
"""

from __future__ import annotations

import torch

from suites import Problem

TORCH = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "e4m3": torch.float8_e4m3fn}
E4M3_MAX = 448.0


class Inputs:
    """One set of inputs. q, k, v: [batch, heads, seqlen, dim], contiguous; packed [total, heads, dim]."""

    def __init__(self, problem: Problem, device: str, generator: torch.Generator):
        self.problem, self.device = problem, torch.device(device)
        self._generator, self._bshd = generator, None
        stored = [self._stored(shape, dtype) for shape, dtype in zip(problem.shapes(), problem.stored)]
        (self.q, self.q_descale), (self.k, self.k_descale), (self.v, self.v_descale) = stored
        self.bias = self.mask = self.slopes = self.sinks = self.cu_q = self.cu_k = None
        if problem.bias:
            self.bias = self._normal(problem.axes(problem.bias[1])).to(TORCH[problem.bias[0]])
        if problem.mask:
            self.mask = self._mask(problem.mask)
        if problem.alibi:  # the slopes of the ALiBi paper, because cuDNN supports only these
            heads = torch.arange(1, problem.h + 1, dtype=torch.float32)
            self.slopes = (2.0 ** (-8.0 * heads / problem.h)).to(self.device)
        if problem.sinks:  # values that are exact in bf16, because some peers store sinks in the dtype of q
            self.sinks = self._normal((problem.h,)).bfloat16().float()
        if problem.varlen:
            self.cu_q, self.cu_k = (self._starts(lengths) for lengths in zip(*problem.varlen))

    def _normal(self, shape) -> torch.Tensor:
        return torch.randn(shape, generator=self._generator, device=self.device)

    def _stored(self, shape, dtype: str):
        """(tensor, descale or None). For e4m3, the scale is chosen so that the largest value becomes the largest number
        of the format. If q has 16 bits, the scale is a power of two. So 16-bit keys and values can hold the same
        numbers, and rapt-kv16 reads exactly these numbers.
        """
        if dtype != "e4m3":
            return self._normal(shape).to(TORCH[dtype]), None
        values = self._normal(shape)
        if not self.problem.scales:
            return values.to(TORCH[dtype]), None
        by_head = self.problem.scales == "head"
        amax = values.abs().amax((2, 3)) if by_head else values.abs().max().reshape(1)
        descale = amax.clamp(min=1e-30) / E4M3_MAX
        if self.problem.kv:
            descale = descale.log2().ceil().exp2()
        factor = descale[:, :, None, None] if by_head else descale
        return (values / factor).clamp(-E4M3_MAX, E4M3_MAX).to(TORCH[dtype]), descale

    def _mask(self, axes: str) -> torch.Tensor:
        """If all queries share a row of the mask, it hides the keys after a random length. Otherwise it hides each key
        with probability 1/2. Key 0 is always visible.
        """
        b, h, q, k = self.problem.axes(axes)
        if q == 1:
            lengths = torch.randint(max(1, k // 2), k + 1, (b, h, 1, 1), generator=self._generator, device=self.device)
            return torch.arange(k, device=self.device) < lengths
        mask = torch.rand((b, h, q, k), generator=self._generator, device=self.device) < 0.5
        mask[..., 0] = True
        return mask

    def _starts(self, lengths) -> torch.Tensor:
        return torch.tensor([0, *lengths], device=self.device).cumsum(0).to(torch.int32)

    def bshd(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q, k, v as [batch, seqlen, heads, dim], contiguous. Packed tensors have only one order."""
        if self.problem.varlen:
            return self.q, self.k, self.v
        if self._bshd is None:
            self._bshd = tuple(t.transpose(1, 2).contiguous() for t in (self.q, self.k, self.v))
        return self._bshd

    def real(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The values of q, k and v. Tensors that are stored in e4m3 are multiplied by their descales, in float32."""
        pairs = ((self.q, self.q_descale), (self.k, self.k_descale), (self.v, self.v_descale))
        return tuple(self._real(tensor, descale) for tensor, descale in pairs)

    def _real(self, tensor: torch.Tensor, descale) -> torch.Tensor:
        values = tensor.float() if tensor.dtype == TORCH["e4m3"] else tensor
        if descale is None:
            return values
        return values * (descale[:, :, None, None] if descale.ndim == 2 else descale)

    def kept(self) -> float:
        """The fraction of (query, key) pairs that the mask keeps."""
        return 1.0 if self.mask is None else self.mask.float().mean().item()
