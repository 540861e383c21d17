"""Types of rapt's public functions. An Array is one of PyTorch, JAX, CuPy or NumPy. All arrays of a call are of the
same framework.
"""

import os
from typing import Any, Literal, NamedTuple, Sequence, TypeVar, overload

Array = TypeVar("Array")
Dtype = Any  # "f16", "float16", torch.float16, numpy.float16, ...
Granularity = Literal["tensor", "head", "token", "block64", "block128", "channel"]
Causal = Literal[False, True, "bottom_right", "top_left"]

__version__: str

class Error(RuntimeError): ...
class InvalidArgument(Error, ValueError): ...
class Unsupported(Error, NotImplementedError): ...
class OutOfMemory(Error, MemoryError): ...
class EnvironmentLacking(Error): ...
class DeviceError(Error): ...
class InternalError(Error): ...

class Context:
    def __init__(self, num_threads: int = 0) -> None: ...

@overload
def sdpa(
    q: Array,
    k: Array,
    v: Array,
    *,
    layout: Literal["bhsd", "bshd"] = "bhsd",
    causal: Causal = False,
    window: tuple[int, int] | None = None,
    lse: Literal[False] = False,
    out: Array | None = None,
    out_dtype: Dtype | None = None,
    q_dtype: Dtype | None = None,
    k_dtype: Dtype | None = None,
    v_dtype: Dtype | None = None,
    cu_seqlens_q: Array | None = None,
    cu_seqlens_k: Array | None = None,
    bias: Array | None = None,
    mask: Array | None = None,
    alibi_slopes: Array | None = None,
    sinks: Array | None = None,
    seqused_q: Array | None = None,
    seqused_k: Array | None = None,
    q_descale: Array | None = None,
    k_descale: Array | None = None,
    v_descale: Array | None = None,
    k_mean: Array | None = None,
    q_start: int | Array | None = None,
    k_start: int | Array | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    splits: int | None = None,
    q_scales: Granularity | None = None,
    k_scales: Granularity | None = None,
    v_scales: Granularity | None = None,
    pv: Literal["f16", "fp8", "fp8x2"] | None = None,
    acc: Literal["f32", "f16"] | None = None,
    partial: Literal[False] = False,
    invariant: bool = False,
    check_contents: bool = False,
    context: Context | None = None,
) -> Array: ...
@overload
def sdpa(
    q: Array,
    k: Array,
    v: Array,
    *,
    layout: Literal["bhsd", "bshd"] = "bhsd",
    causal: Causal = False,
    window: tuple[int, int] | None = None,
    lse: bool | Array = False,
    out: Array | None = None,
    out_dtype: Dtype | None = None,
    q_dtype: Dtype | None = None,
    k_dtype: Dtype | None = None,
    v_dtype: Dtype | None = None,
    cu_seqlens_q: Array | None = None,
    cu_seqlens_k: Array | None = None,
    bias: Array | None = None,
    mask: Array | None = None,
    alibi_slopes: Array | None = None,
    sinks: Array | None = None,
    seqused_q: Array | None = None,
    seqused_k: Array | None = None,
    q_descale: Array | None = None,
    k_descale: Array | None = None,
    v_descale: Array | None = None,
    k_mean: Array | None = None,
    q_start: int | Array | None = None,
    k_start: int | Array | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    splits: int | None = None,
    q_scales: Granularity | None = None,
    k_scales: Granularity | None = None,
    v_scales: Granularity | None = None,
    pv: Literal["f16", "fp8", "fp8x2"] | None = None,
    acc: Literal["f32", "f16"] | None = None,
    partial: bool = False,
    invariant: bool = False,
    check_contents: bool = False,
    context: Context | None = None,
) -> tuple[Array, Array]: ...

class Quantized(NamedTuple):
    codes: Any
    descale: Any
    mean: Any
    scales: Granularity
    dtype: Literal["e4m3", "e5m2", "sim8"]
    def options(self, name: Literal["q", "k", "v"]) -> dict[str, Any]: ...

def quantize(
    x: Array,
    *,
    scales: Granularity = "head",
    dtype: Dtype = "e4m3",
    layout: Literal["bhsd", "bshd"] = "bhsd",
    hadamard: bool = False,
    smooth: bool = False,
    percentile: float | None = None,
    descale: Array | None = None,
    cu_seqlens: Array | None = None,
    max_seqlen: int | None = None,
    out: Array | Quantized | None = None,
    context: Context | None = None,
) -> Quantized: ...
def fake_quantize(
    x: Array,
    *,
    scales: Granularity = "head",
    dtype: Dtype = "e4m3",
    layout: Literal["bhsd", "bshd"] = "bhsd",
    hadamard: bool = False,
    smooth: bool = False,
    percentile: float | None = None,
    descale: Array | None = None,
    cu_seqlens: Array | None = None,
    max_seqlen: int | None = None,
    clip_gradient: bool = False,
    context: Context | None = None,
) -> Array: ...
def qk(
    q: Array,
    k: Array,
    *,
    scale: float = 1.0,
    layout: Literal["bhsd", "bshd"] = "bhsd",
    q_descale: Array | None = None,
    k_descale: Array | None = None,
    q_scales: Granularity | None = None,
    k_scales: Granularity | None = None,
    q_dtype: Dtype | None = None,
    k_dtype: Dtype | None = None,
    out: Array | None = None,
    out_dtype: Dtype | None = None,
    context: Context | None = None,
) -> Array: ...
def gemm(
    a: Array,
    b: Array,
    *,
    a_descale: Array | None = None,
    b_descale: Array | None = None,
    a_dtype: Dtype | None = None,
    b_dtype: Dtype | None = None,
    out: Array | None = None,
    out_dtype: Dtype | None = None,
    context: Context | None = None,
) -> Array: ...
def prepare(q: Array, k: Array, v: Array, **options: Any) -> None: ...
def explain(q: Array, k: Array, v: Array, **options: Any) -> str: ...
def merge(
    outs: Sequence[Array],
    lses: Sequence[Array],
    *,
    sinks: Array | None = None,
    lse: bool | Array = False,
    out: Array | None = None,
    out_dtype: Dtype | None = None,
    context: Context | None = None,
) -> Any: ...
def load_pack(path: str | os.PathLike[str], context: Context | None = None) -> None: ...
