"""Quantized, the result of quantize, and the shapes and dtypes of outputs of quantize, qk and gemm, for all frameworks.

Used by _quantize.py and the modules of frameworks. torch.compile traces this code, so sizes may be symbolic.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from ._errors import InvalidArgument

STORAGE = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2", "sim8": "uint8"}  # dtypes of codes if there are FP8 types
ORDINARY = ("float32", "float16", "bfloat16")
SHORT = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}


class Quantized(NamedTuple):
    """The result of quantize(). codes * descale (+ mean) is close to the input (with hadamard=True: the rotated input).

    Pass it to sdpa() and qk() as keyword arguments:
        rapt.sdpa(q8.codes, k8.codes, v8.codes, **q8.options("q"), **k8.options("k"), **v8.options("v"))
    """

    codes: Any  # same shape as the input
    descale: Any  # float32
    mean: Any  # float32 [batch, heads, dim] with smooth=True, otherwise None
    scales: str  # the kind of scales in descale: "head", ...
    dtype: str  # format of the codes: "e4m3", "e5m2" or "sim8"

    def __reduce__(self):
        codes, dtype = self.codes, getattr(self.codes, "dtype", None)
        if type(dtype).__module__ != "torch" or dtype_name(dtype) == "uint8":
            return Quantized, tuple(self)
        return _with_codes_of, (dtype, codes.view(sys.modules["torch"].uint8), *self[1:])

    def options(self, name: str) -> dict[str, Any]:
        """The keyword arguments to pass if these codes are the argument `name` ("q", "k" or "v"): {name}_descale and
        {name}_scales, for uint8 codes also {name}_dtype, and for smoothed keys also k_mean.
        """
        if name not in ("q", "k", "v"):
            raise InvalidArgument(f"name = {name!r}: must be 'q', 'k' or 'v'")
        given = {f"{name}_descale": self.descale, f"{name}_scales": self.scales}
        if dtype_name(self.codes.dtype) == "uint8":
            given[f"{name}_dtype"] = self.dtype
        if self.mean is not None:
            if name != "k":
                raise InvalidArgument(f"name = {name!r}: smoothed codes can only be sdpa's k, which has k_mean")
            given["k_mean"] = self.mean
        return given


def _with_codes_of(dtype, codes, *others) -> Quantized:
    """Restores a pickle. PyTorch writes its FP8 tensors to pickles, but cannot read them."""
    return Quantized(codes.view(dtype), *others)


def dtype_name(dtype) -> str:
    """ "float8_e4m3fn" of a word, torch.float8_e4m3fn, numpy.dtype(...), <class 'ml_dtypes.float8_e4m3fn'>."""
    return str(dtype).removesuffix("'>").rsplit(".", 1)[-1]


def logical_sizes(shape, given) -> tuple:
    """(batch, heads, seqlen, dim, total). For packed arrays seqlen is max_seqlen. For dense arrays total is None."""
    if given["cu_seqlens"] is not None:
        return given["cu_seqlens"].shape[0] - 1, shape[1], given["max_seqlen"], shape[2], shape[0]
    batch, one, two, dim = shape
    return (batch, two, one, dim, None) if given["layout"] == "bshd" else (batch, one, two, dim, None)


def descale_shape(shape, given) -> tuple:
    batch, heads, seqlen, dim, total = logical_sizes(shape, given)
    scales = given["scales"]
    if scales == "tensor":
        return (1,)
    if scales == "head":
        return (batch, heads)
    if scales == "channel":
        return (batch, heads, dim)
    if scales == "token":
        return (batch, heads, seqlen) if total is None else (heads, total)
    rows = int(scales.removeprefix("block"))
    return (batch, heads, (seqlen + rows - 1) // rows)


def mean_shape(shape, given) -> tuple:
    batch, heads, _, dim, _ = logical_sizes(shape, given)
    return (batch, heads, dim)


def given_outputs(given) -> tuple:
    """(codes, descale, mean) of the caller's out. An array that must be allocated is None. If the caller supplied
    scales, these are the descale.
    """
    out = given["out"]
    if not isinstance(out, Quantized):
        return out, given["descale"], None
    if out.scales != given["scales"] or out.dtype != given["format"]:
        raise InvalidArgument(
            f"out is for scales {out.scales!r} and dtype {out.dtype!r}: must be for those of the call, "
            f"{given['scales']!r} and {given['format']!r}"
        )
    if (out.mean is not None) != given["smooth"]:
        rule = "has no mean: required with" if given["smooth"] else "has a mean: allowed only with"
        raise InvalidArgument(f"out {rule} smooth=True")
    if given["descale"] is not None and out.descale is not given["descale"]:
        raise InvalidArgument("out.descale is another array than descale: must be the same array")
    return out.codes, out.descale, out.mean


def qk_shape(q, k, layout: str) -> tuple:
    if len(q) != 4 or len(k) != 4:
        raise InvalidArgument(f"q, k: ranks {len(q)} and {len(k)}: both must be 4")
    heads, seqlen = (1, 2) if layout == "bhsd" else (2, 1)
    return (q[0], q[heads], q[seqlen], k[seqlen])


def gemm_shape(a, b) -> tuple:
    if len(a) != 2 or len(b) != 2:
        raise InvalidArgument(f"a, b: ranks {len(a)} and {len(b)}: both must be 2, [m, k] and [k, n]")
    return (a[0], b[1])


def out_dtype_name(first, given: dict) -> str:
    """The name of the dtype of an allocated out, such as "float16". It depends on the first operand."""
    wanted = given["out_dtype"]
    if wanted is None:
        name = str(first.dtype).removeprefix("torch.")
        return name if name in ORDINARY else "float32"
    name = str(wanted).removesuffix("'>").rsplit(".", 1)[-1]
    name = SHORT.get(name, name)
    if name not in ORDINARY:
        raise InvalidArgument(f"out_dtype = {wanted!r}: must be float32, float16 or bfloat16")
    return name
