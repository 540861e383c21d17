"""Judges outputs: compares sampled rows with a float64 reference. The bounds come from an unfused implementation.

Called by peers.py before and after the calls are captured, so a wrong implementation is never timed. The semantics are
those of docs/semantics.md, and the bounds are those of check/bounds.cpp.
"""

from __future__ import annotations

import math
from typing import Iterator

import torch

from inputs import E4M3_MAX, TORCH, Inputs

ROUNDOFF = {"f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}
LOSSY_REL_RMS = 0.1  # implementations that quantise by design are timed if their error is not larger, and are marked


class WrongResult(RuntimeError):
    """Raised for an output outside its bound. The text has the values."""


def _broadcast(t: torch.Tensor, index: int, rows: torch.Tensor) -> torch.Tensor:
    """The bias or mask of one sequence at these rows: [heads or 1, rows or 1, keys or 1]."""
    one = t[index if t.shape[0] > 1 else 0]
    return one[:, rows] if one.shape[1] > 1 else one


def _scores(inputs: Inputs, index: int, q, k, rows, compute) -> torch.Tensor:
    """The scores of one sequence after all steps before the softmax: [heads, rows, keys]."""
    problem = inputs.problem
    queries, keys = problem.sequences[index]
    group = problem.h // problem.hk
    grouped = q[:, rows].to(compute).reshape(problem.hk, group * len(rows), problem.d)
    x = (grouped @ k.to(compute).transpose(-1, -2) / math.sqrt(problem.d)).view(problem.h, len(rows), keys)
    if problem.softcap:
        x = problem.softcap * torch.tanh(x / problem.softcap)
    if inputs.bias is not None:
        x = x + _broadcast(inputs.bias, index, rows).to(compute)
    off, left, right = problem.band(queries, keys)
    # The position of a key relative to the diagonal.
    place = torch.arange(keys, device=q.device)[None, :] - rows[:, None] - off
    if inputs.slopes is not None:
        x = x - inputs.slopes.to(compute)[:, None, None] * place.abs().to(compute)
    hidden = torch.zeros_like(place, dtype=torch.bool)
    if right is not None:
        hidden |= place > right
    if left is not None:
        hidden |= place < -left
    x = x.masked_fill(hidden, -math.inf)
    if inputs.mask is not None:
        x = x.masked_fill(~_broadcast(inputs.mask, index, rows), -math.inf)
    return x


def _attention(inputs: Inputs, index: int, q, k, v, rows, compute, rounded: str = "") -> torch.Tensor:
    """The output of one sequence, [heads, rows, head_dim_v]. compute: the dtype of the computation. rounded: the dtype
    to which the weights are rounded.
    """
    problem = inputs.problem
    x = _scores(inputs, index, q, k, rows, compute)
    peak = x.amax(-1, keepdim=True)
    if inputs.sinks is not None:
        peak = torch.maximum(peak, inputs.sinks.to(compute)[:, None, None])
    e = torch.exp(x - peak.clamp(min=torch.finfo(compute).min))
    total = e.sum(-1, keepdim=True)
    if inputs.sinks is not None:
        total = total + torch.exp(inputs.sinks.to(compute)[:, None, None] - peak)
    total = torch.where(total == 0, torch.ones_like(total), total)
    if rounded == "e4m3":  # kernels round before they normalise
        e = (e * E4M3_MAX).to(TORCH["e4m3"]).to(compute) / E4M3_MAX
    weights = e / total
    if rounded in ("f16", "bf16"):
        weights = weights.to(TORCH[rounded]).to(compute)
    grouped = weights.view(problem.hk, -1, x.shape[-1]) @ v.to(compute)
    return grouped.view(problem.h, len(rows), problem.dv)


def _sequences(problem, *tensors) -> Iterator[list[torch.Tensor]]:
    """The parts of tensors that belong to each sequence, as [heads, seqlen, dim]. The tensors are in the logical order:
    q or out first, then k and v.
    """
    if problem.varlen is None:
        for b in range(problem.b):
            yield [t[b] for t in tensors]
        return
    start_q = start_k = 0
    for queries, keys in problem.varlen:
        spans = [(start_q, queries)] + [(start_k, keys)] * 2
        yield [t[start : start + length].transpose(0, 1) for t, (start, length) in zip(tensors, spans)]
        start_q, start_k = start_q + queries, start_k + keys


def attention(inputs: Inputs, compute=torch.float64, rounded: str = "") -> torch.Tensor:
    """The complete output in logical order, computed without fusion. Used by tests and by stand-ins for peers."""
    problem = inputs.problem
    found = []
    for index, (q, k, v) in enumerate(_sequences(problem, *inputs.real())):
        rows = torch.arange(q.shape[1], device=q.device)
        found.append(_attention(inputs, index, q, k, v, rows, compute, rounded))
    return torch.stack(found) if problem.varlen is None else torch.cat(found, 1).transpose(0, 1)


def errors(out: torch.Tensor, expected: torch.Tensor) -> dict[str, float]:
    difference = out.double() - expected
    if not bool(torch.isfinite(difference).all()):
        raise WrongResult("NaN or Inf in the output")
    size = expected.norm().item()
    return {
        "max_abs": difference.abs().max().item(),
        "mean_abs": difference.abs().mean().item(),
        "rel_rms": difference.norm().item() / size if size > 0 else difference.norm().item(),
    }


class Judge:
    """Computes the errors of outputs on sampled rows of one set of inputs, and their bounds.

    From every `step` rows of each sequence, one random row is taken. The bounds are derived from an unfused computation
    on the same rows, with float scores, weights rounded to the element type, and float sums.
    """

    def __init__(self, inputs: Inputs, generator: torch.Generator):
        problem = inputs.problem
        self.problem = problem
        self.step = max(1, max(q * k for q, k in problem.sequences) >> 20)
        self.rows = [self._sample(queries, generator).to(inputs.device) for queries, _ in problem.sequences]
        real = list(_sequences(problem, *inputs.real()))
        self.expected = self._of(inputs, real, torch.float64)
        plain = self._of(inputs, real, torch.float32, problem.dtype).to(TORCH[problem.out])
        self.bounds = self._bounds(errors(plain, self.expected))

    def _sample(self, queries: int, generator) -> torch.Tensor:
        starts = torch.arange(0, queries, self.step)
        return (starts + torch.randint(self.step, starts.shape, generator=generator)).clamp_(max=max(0, queries - 1))

    def _of(self, inputs, real, compute, rounded: str = "") -> torch.Tensor:
        found = [
            _attention(inputs, index, q, k, v, self.rows[index], compute, rounded).flatten()
            for index, (q, k, v) in enumerate(real)
        ]
        return torch.cat(found)

    def _bounds(self, plain) -> dict[str, float]:
        u, peak = ROUNDOFF[self.problem.out], self.expected.abs().max().item()
        if self.problem.out == "f32":
            return {"max_abs": 2 * plain["max_abs"] + 32 * u * peak, "rel_rms": max(1e-6, 2 * plain["rel_rms"])}
        return {"max_abs": 2 * plain["max_abs"] + u * peak, "rel_rms": 1.1 * plain["rel_rms"] + u / 4}

    def __call__(self, out: torch.Tensor, lossy: bool = False) -> dict[str, float]:
        """Returns the errors of `out` (in logical order), and 1 if they are within the bounds, otherwise 0.

        Raises WrongResult if they are outside the bounds; with `lossy` only if rel_rms exceeds LOSSY_REL_RMS.
        """
        problem = self.problem
        shape = (*problem.shapes()[0][:-1], problem.dv)
        if tuple(out.shape) != shape or out.dtype != TORCH[problem.out]:
            raise WrongResult(f"out is {out.dtype} {list(out.shape)}: must be {TORCH[problem.out]} {list(shape)}")
        taken = [one[0][:, rows].flatten() for one, rows in zip(_sequences(problem, out), self.rows)]
        found = errors(torch.cat(taken), self.expected)
        beyond = [
            f"{name} {found[name]:.2e} exceeds its bound {bound:.2e}"
            for name, bound in self.bounds.items()
            if not found[name] <= bound
        ]
        if lossy and not found["rel_rms"] <= LOSSY_REL_RMS:
            raise WrongResult(
                f"rel_rms {found['rel_rms']:.2e} exceeds {LOSSY_REL_RMS}, the limit of implementations that quantise"
            )
        if beyond and not lossy:
            raise WrongResult("; ".join(beyond))
        return {**found, "within": not beyond}
