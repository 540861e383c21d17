"""PyTorch tensors: eager calls go straight to rapt._core, which reads the tensors through DLPack's C exchange. Where
that would not be seen or followed (_torch_operators.py says by whom), the operators take the call.

Loaded by _dispatch.py at the first tensor.
"""

from __future__ import annotations

import torch
from torch.compiler import is_dynamo_compiling

from . import _core, _dispatch, _torch_fp8
from ._dispatch import Front, register
from ._signature import bind
from ._torch_arrays import (
    EXCHANGE,
    TRACING,
    TYPES,
    allocate,
    empty_strided_cuda,
    plain,
    room,
    stream,
    view,
    watched,
    written,
)
from ._torch_operators import check, merge_through_operator, through_operator
from ._views import RAPT_BF16


def redirect(operation: str, q, k, v, **options):
    """Called by rapt._core for tensors of subclasses (fake tensors among them), and where somebody traces or wants a
    gradient."""
    if operation == "sdpa":
        return through_operator(q, k, v, **options)
    check(bind(q, k, v, options))
    return _plainly(operation, q, k, v, **options)


def _plainly(operation: str, q, k, v, **options):
    """rapt._core's operation without subclasses and gradients."""
    options = {name: plain(value) for name, value in options.items()}
    with torch.no_grad():
        return getattr(_core, operation)(plain(q), plain(k), plain(v), **options)


def merge(outs, lses, sinks, lse, out, out_dtype, context):
    given = [one for one in (*outs, *lses, sinks) if one is not None]
    if is_dynamo_compiling() or watched(given):
        return merge_through_operator(outs, lses, sinks, lse, out, out_dtype, context)
    return _core.merge(outs, lses, sinks, lse, out, out_dtype, context)


FP8 = (_torch_fp8.quantize, _torch_fp8.fake_quantize, _torch_fp8.qk, _torch_fp8.gemm)
FRONT = Front(_core.sdpa, _core.prepare, _core.explain, merge, *FP8)
OPERATOR_FRONT = Front(
    through_operator,
    lambda q, k, v, **options: _plainly("prepare", q, k, v, **options),
    lambda q, k, v, **options: _plainly("explain", q, k, v, **options),
    merge_through_operator,
    *FP8,
)
_core.register_framework(
    TYPES,
    "torch",
    RAPT_BF16,
    {
        "exchange": EXCHANGE,
        "view": view,
        "allocate": allocate,
        "empty_like": torch.empty_like,
        "empty_strided": empty_strided_cuda() if EXCHANGE else None,
        "stream": None if EXCHANGE else stream,
        "redirect": redirect,
        "grad_enabled": torch.is_grad_enabled,
        "tracing": TRACING,
        "forward_ad": torch.autograd.forward_ad if hasattr(torch.autograd.forward_ad, "_current_level") else None,
        "negated": torch.Tensor.is_neg,
        "room": room,
        "written": getattr(torch._C, "_increment_version", written),
    },
)


def front_of(tensor) -> Front:
    if is_dynamo_compiling() or type(tensor) not in TYPES:
        return OPERATOR_FRONT
    _dispatch.tracing = is_dynamo_compiling  # not while tracing: what changes then breaks torch.compile's guards
    return register(tensor, FRONT)
