"""rapt: scaled dot-product attention on NVIDIA GPUs and CPUs, for PyTorch, JAX, CuPy and NumPy arrays.

    import rapt
    out = rapt.sdpa(q, k, v, causal=True)              # [batch, heads, seqlen, head_dim], any of the four frameworks
    out, lse = rapt.sdpa(q, k, v, lse=True)            # lse: float32, natural logarithm, [batch, heads, seqlen]
    k8 = rapt.quantize(k, scales="block64")            # FP8: rapt.sdpa(q, k8.codes, v, **k8.options("k"))

Nothing is copied or converted: q, k, v are read in place, results are arrays of the caller's framework,
GPU work is enqueued on the framework's current stream. Exact semantics: docs/semantics.md.
Importing this module imports no framework; the first call with an array of a framework imports its support.
"""

from __future__ import annotations

import functools
import importlib
import os
from typing import Any

from . import _backend, _core, _signature
from ._contexts import Context
from ._dispatch import backend_of
from ._errors import DeviceError, EnvironmentLacking, Error, InternalError, InvalidArgument, OutOfMemory, Unsupported
from ._kv_append import kv_append, rotary_tables
from ._outputs import Quantized
from ._products import gemm, qk
from ._quantize import fake_quantize, quantize

__version__: str = _core.version()
__all__ = [
    "sdpa",
    "quantize",
    "fake_quantize",
    "Quantized",
    "merge",
    "qk",
    "gemm",
    "kv_append",
    "rotary_tables",
    "prepare",
    "explain",
    "load_pack",
    "Context",
    "Error",
    "InvalidArgument",
    "Unsupported",
    "OutOfMemory",
    "EnvironmentLacking",
    "DeviceError",
    "InternalError",
    "__version__",
]


# The function takes **options: calling a Python function with 40 named parameters would take three times as long as
# reading four tensors. functools.wraps gives it the signature of _core.sdpa.
@functools.wraps(_core.sdpa, assigned=())
def sdpa(q, k, v, **options):
    call = None if _backend.tracing() else _backend.calls.get(type(q).__module__)
    if call is None:
        call = backend_of(q).sdpa
    return call(q, k, v, **options)


sdpa.__doc__ = _signature.DOC


def prepare(q, k, v, **options) -> None:
    """Does everything that sdpa() does with the same arguments, except the launch: it plans, compiles and loads the
    kernel, and allocates the workspace.

    It reads shapes, strides, dtypes and alignment, but never the contents. Use it to warm up before serving or before
    capturing a CUDA graph. If only seqlen differs, no new kernel is needed. Returns None; raises like sdpa().
    """
    backend_of(q).prepare(q, k, v, **options)


def explain(q, k, v, **options) -> str:
    """Describes what sdpa() with the same arguments would run: the problem line, and for each kernel family that it
    is chosen, or why it is not chosen.
    """
    return backend_of(q).explain(q, k, v, **options)


def merge(outs, lses, *, sinks=None, lse=False, out=None, out_dtype=None, context=None) -> Any:
    """Merges partial states (sdpa(..., partial=True) over disjoint sets of keys), in the given order.

    lse = ln(sum_p exp(lses[p]) + exp(sink));  out = sum_p exp(lses[p] - lse) * outs[p]. Without sinks, exp(sink) is
    left out. A part with lse = -inf adds nothing, so a merge with an empty part returns the other part bit for bit.

    Args:
        outs: sequence of at least one float32 [batch, heads, seqlen, head_dim_v] (packed: [total, heads, head_dim_v]);
            On GPUs at most 48 arrays. The dimensions must have this order: permute the outputs of a "bshd" call.
        lses: the same number of float32 [batch, heads, seqlen] (packed: [heads, total]).
        sinks: float32 [heads]. lse: True, or an array to write to: the call returns (out, lse).
        out: the array to write to.
        out_dtype: dtype of the allocated out: float32, float16 or bfloat16. Default: float32.
        context: a Context. Default: the process default.
    """
    if not isinstance(outs, (list, tuple)) or not isinstance(lses, (list, tuple)) or not outs:
        raise InvalidArgument("outs: must be a list or tuple of at least one array, and lses one of the same length")
    return backend_of(outs[0], "outs").merge(outs, lses, sinks, lse, out, out_dtype, context)


def load_pack(path: str | os.PathLike[str], context: Context | None = None) -> None:
    """Loads a file of compiled GPU kernels (`rapt pack`, docs/packs.md). The context then also uses its kernels."""
    _core.load_pack(context, os.fspath(path))


def __getattr__(name: str):
    """rapt.compat is imported at its first use."""
    if name == "compat":
        return importlib.import_module(".compat", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
