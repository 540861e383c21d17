"""rapt's operations on PyTorch tensors. Eager calls go directly to rapt._core, which reads the tensors through DLPack's
C exchange. A call that must be traced or differentiated goes to the operators (_torch_operators.py lists the cases).

_dispatch.py loads this module at the first tensor.
"""

from __future__ import annotations

import torch
from torch.compiler import is_dynamo_compiling

from . import _backend, _core, _torch_fp8, _torch_kv
from ._backend import Backend, register
from ._contexts import Context
from ._errors import Unsupported
from ._signature import bind
from ._torch_arrays import (
    EXCHANGE,
    TRACING,
    TRANSFORM,
    TYPES,
    allocate,
    empty_strided_cuda,
    plain,
    refuse_nested,
    stream,
    transformed,
    view,
    needs_operator,
    written,
)
from ._torch_profiling import PROFILER
from ._torch_operators import check, merge_through_operator, run_here, run_merge, through_operator
from ._views import RAPT_BF16


def redirect(operation: str, q, k, v, **options):
    """rapt._core calls this function in four cases. A tensor is of a subclass (for example a fake tensor). A tensor
    belongs to a transformation of torch.func. The call is being traced or profiled. A gradient is needed.
    """
    if operation == "sdpa":
        if needs_operator([one for one in (q, k, v, *options.values()) if one is not None and hasattr(one, "dtype")]):
            return through_operator(q, k, v, **options)
        return run_here(q, k, v, options)
    check(bind(q, k, v, options))
    return _on_plain_tensors(operation, q, k, v, **options)


def _on_plain_tensors(operation: str, q, k, v, **options):
    """prepare or explain of rapt._core, for plain tensors. Functions NAME_here of rapt._core never call redirect()."""
    if not is_dynamo_compiling() and transformed():
        raise Unsupported(
            f"{operation}: not allowed inside torch.func's transformations (vmap, grad, jvp, functionalize): call it "
            "before, on ordinary tensors"
        )
    refuse_nested(q=q, k=k, v=v)
    options = {name: plain(value) for name, value in options.items()}
    with torch.no_grad():
        return getattr(_core, f"{operation}_here")(plain(q), plain(k), plain(v), **options)


def merge(outs, lses, sinks, lse, out, out_dtype, context):
    outputs = [one for one in (lse, out) if isinstance(one, torch.Tensor)]
    given = [*outs, *lses, *outputs] + ([] if sinks is None else [sinks])
    if is_dynamo_compiling() or needs_operator(given):
        return merge_through_operator(outs, lses, sinks, lse, out, out_dtype, context)
    return run_merge(outs, lses, sinks, lse, out, out_dtype, context)


def _default_threads() -> int:
    """The number of CPU threads of rapt's default context."""
    x = torch.empty(1, 1, 1, 1, device="cpu")
    with torch.no_grad():
        device = _core.explain_here(x, x, x, context=Context(1)).split("\n")[1]  # "device   cpu (avx2, 8 threads)"
    return int(device.rsplit(" threads", 1)[0].rsplit(" ", 1)[-1])


def context_for(threads: int) -> Context | None:
    """The context for CPU calls that pass no context. It is None unless torch.set_num_threads() asks for fewer threads
    than rapt's default. rapt._core caches one context per number of threads.
    """
    return Context(threads) if threads < _default_threads() else None


OTHERS = (
    _torch_fp8.quantize,
    _torch_fp8.fake_quantize,
    _torch_fp8.qk,
    _torch_fp8.gemm,
    _torch_kv.kv_append,
    _torch_kv.rotary_tables,
)
BACKEND = Backend(_core.sdpa, _core.prepare, _core.explain, merge, *OTHERS)
OPERATOR_BACKEND = Backend(
    through_operator,
    lambda q, k, v, **options: _on_plain_tensors("prepare", q, k, v, **options),
    lambda q, k, v, **options: _on_plain_tensors("explain", q, k, v, **options),
    merge_through_operator,
    *OTHERS,
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
        "transforms": TRANSFORM,
        "forward_ad": vars(torch.autograd.forward_ad),
        "profiler": dict(vars(PROFILER)) if isinstance(PROFILER, type) else vars(PROFILER),
        "negated": torch.Tensor.is_neg,
        "negated_examples": (torch.empty(1, device="cpu"), torch._neg_view(torch.empty(1, device="cpu"))),
        "num_threads": torch.get_num_threads,
        "context_for": context_for,
        "has_storage": True,
        "written": getattr(torch._C, "_increment_version", written),
    },
)


def backend_of(tensor) -> Backend:
    if is_dynamo_compiling() or type(tensor) not in TYPES:
        return OPERATOR_BACKEND
    # This line is never reached while torch.compile traces: changing the variable then would break its guards.
    _backend.tracing = is_dynamo_compiling
    return register(tensor, BACKEND)
