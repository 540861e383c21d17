"""quantize, fake_quantize, qk, gemm and kv_append on arrays that rapt._core reads in place (NumPy, CuPy, PyTorch). This
module allocates the outputs, and the compiled module fills them.

Used by the frameworks' modules.
"""

from __future__ import annotations

from typing import Any, Callable

from . import _core, _numbers
from ._backend import Backend
from ._outputs import Quantized, descale_shape, gemm_shape, given_outputs, mean_shape, out_dtype_name, qk_shape
from ._values import APPEND_ARRAYS, APPEND_OPTIONS

Allocate = Callable[..., Any]  # allocate(like, shape, dtype name, zeroed, in_order: use like's order of dimensions)


def quantize(allocate: Allocate, storage: Callable[[dict], Any], x, given: dict) -> Quantized:
    codes, descale, mean = given_outputs(given)
    packed = given["cu_seqlens"] is not None  # if packed, rows and scales outside all sequences are not written
    if codes is None:
        codes = allocate(x, tuple(x.shape), storage(given), packed)
    if descale is None:
        descale = allocate(x, descale_shape(x.shape, given), "float32", packed, False)
    if mean is None and given["smooth"]:
        mean = allocate(x, mean_shape(x.shape, given), "float32", packed, False)
    _core.quantize(
        x,
        codes,
        descale,
        mean,
        given["cu_seqlens"],
        given["layout"],
        given["scales"],
        given["format"],
        given["hadamard"],
        given["smooth"],
        given["descale"] is not None,
        given["percentile"],
        given["max_seqlen"],
        given["context"],
    )
    return Quantized(codes, descale, mean, given["scales"], given["format"])


def qk(allocate: Allocate, q, k, given: dict):
    out = given["out"]
    if out is None:
        out = allocate(q, qk_shape(q.shape, k.shape, given["layout"]), out_dtype_name(q, given), False, False)
    _core.qk(
        q,
        k,
        out,
        given["q_descale"],
        given["k_descale"],
        given["q_scales"],
        given["k_scales"],
        given["q_dtype"],
        given["k_dtype"],
        given["layout"],
        given["scale"],
        given["context"],
    )
    return out


def gemm(allocate: Allocate, a, b, given: dict):
    out = given["out"]
    if out is None:
        out = allocate(a, gemm_shape(a.shape, b.shape), out_dtype_name(a, given), False, False)
    _core.gemm(
        a,
        b,
        out,
        given["a_descale"],
        given["b_descale"],
        given["a_scales"],
        given["b_scales"],
        given["a_dtype"],
        given["b_dtype"],
        given["context"],
    )
    return out


def kv_append(allocate: Allocate, k, v, k_cache, v_cache, given: dict):
    """Returns the rotated q, or None without q."""
    q, q_out = given["q"], given["q_out"]
    if q is not None and q_out is None:
        q_out = allocate(q, tuple(q.shape), str(q.dtype).removeprefix("torch."), False)
    arrays = [q_out if name == "q_out" else given[name] for name in APPEND_ARRAYS]
    _core.kv_append(k, v, k_cache, v_cache, *arrays, *(given[name] for name in APPEND_OPTIONS), given["context"])
    return q_out


def backend(allocate: Allocate, numbers: "_numbers.Numbers", rotary_tables: Callable[..., Any]) -> Backend:
    """The operations of a framework without FP8 types, tracers and gradients: NumPy, CuPy."""

    def storage(given: dict):
        return "uint8" if isinstance(given["dtype"], str) else given["dtype"]

    def quantized(x, given: dict) -> Quantized:
        return quantize(allocate, storage, x, given)

    def fake_quantized(x, given: dict):
        made = quantized(x, {**given, "dtype": given["format"]})
        return _numbers.dequantized(numbers, made, given, x)

    return Backend(
        _core.sdpa,
        _core.prepare,
        _core.explain,
        _core.merge,
        quantized,
        fake_quantized,
        lambda q, k, given: qk(allocate, q, k, given),
        lambda a, b, given: gemm(allocate, a, b, given),
        lambda k, v, k_cache, v_cache, given: kv_append(allocate, k, v, k_cache, v_cache, given),
        rotary_tables,
    )
