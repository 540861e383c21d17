"""Information for PyTorch's tools: the number of floating-point operations (torch.utils.flop_counter), and the problem
line of each call in a profile (torch.profiler). Used by _torch.py, _torch_operators.py and _torch_fp8.py.
"""

from __future__ import annotations

from math import prod

import torch
from torch.autograd import profiler
from torch.utils.flop_counter import register_flop_formula

from . import _core


class _NeverRecording:
    _is_profiler_enabled = False


# PROFILER._is_profiler_enabled (not public) is True while a profiler records. Test it before calling recorded().
PROFILER = profiler if hasattr(profiler, "_is_profiler_enabled") else _NeverRecording


def recorded(name: str, line: str, run, *values, **options):
    """Calls run(...). The profile shows this call as the range "rapt.{name} {line}"."""
    with profiler.record_function(f"rapt.{name} {line}"):
        return run(*values, **options)


def problem_line(q, k, v, options: dict) -> str:
    """The problem line of a call to rapt.sdpa; "" if rapt refuses the call (which raises an error later)."""
    try:
        return _core.explain_here(q, k, v, **options).split("\n")[0].removeprefix("problem").strip()
    except Exception:
        return ""


def shapes_line(*tensors) -> str:
    """Describes tensors: "float16 [2, 3, 4] float32 [5]"."""
    given = [one for one in tensors if isinstance(one, torch.Tensor)]
    return " ".join(f"{str(one.dtype).removeprefix('torch.')} {list(one.shape)}" for one in given)


def _lengths(cu_seqlens, max_seqlen) -> list[int]:
    """The lengths of packed sequences. If the contents cannot be read, each length is taken as the maximum."""
    if cu_seqlens.device.type == "meta":
        return [max_seqlen] * (cu_seqlens.shape[0] - 1)
    return [min(length, max_seqlen) for length in cu_seqlens.diff().tolist()]


def _paged_lengths(given: dict, batch: int) -> list[int]:
    """The numbers of keys of sequences in pages. If their contents cannot be read, each is taken as the maximum."""
    page_size = given["k"].shape[1 if given["layout"] == "bshd" else 2]
    longest, used = given["max_seqlen_k"], given["seqused_k"]
    if longest is None:
        longest = given["block_table"].shape[1] * page_size
    if used is None or used.device.type == "meta":
        return [longest] * batch
    return [min(length, longest) for length in used.tolist()]


def register_sdpa_flops(operators, names: tuple[str, ...]) -> None:
    """Registers the flop count of sdpa: both products for every query and key. Like PyTorch's own count, it ignores
    masks and windows.
    """

    def flops(*values, out_val=None, **others):
        given = dict(zip(names, values))
        q, k, v = (given[name] for name in "qkv")
        paged = given["block_table"] is not None
        if q.dim() == 3:
            of_q = _lengths(given["cu_seqlens_q"], given["max_seqlen_q"])
            of_k = _paged_lengths(given, len(of_q)) if paged else _lengths(given["cu_seqlens_k"], given["max_seqlen_k"])
            pairs = q.shape[1] * sum(map(lambda one, other: one * other, of_q, of_k))
        else:
            heads, seqlen = (2, 1) if given["layout"] == "bshd" else (1, 2)
            keys = sum(_paged_lengths(given, q.shape[0])) if paged else q.shape[0] * k.shape[seqlen]
            pairs = q.shape[heads] * q.shape[seqlen] * keys
        return 2 * pairs * (q.shape[-1] + v.shape[-1])

    for operator in operators:
        register_flop_formula(operator, get_raw=True)(flops)


def register_product_flops(operators) -> None:
    """Registers the flop counts of qk and gemm. Each element of the result is a dot product over the last dimension of
    the first operand.
    """

    def flops(first, second, *values, out_val=None, **others):
        made = out_val if isinstance(out_val, torch.Tensor) else values[-1]  # the _out forms return nothing
        return 2 * prod(made.shape) * first.shape[-1]

    for operator in operators:
        register_flop_formula(operator, get_raw=True)(flops)
