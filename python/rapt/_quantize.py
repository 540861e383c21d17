"""rapt.quantize and rapt.fake_quantize: their signatures, what they return, and the rules that all frameworks share.

Exported by rapt/__init__.py. The frameworks' modules run them: _eager.py for those that rapt._core reads, and
_torch_fp8.py, _jax_operators.py. torch.compile follows this code, so sizes may be symbolic.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from ._dispatch import front_of
from ._errors import InvalidArgument
from ._values import BOOLS, LAYOUTS, SCALES, integer, number, shape_of, word

FORMATS = {"e4m3": "e4m3", "float8_e4m3fn": "e4m3", "e5m2": "e5m2", "float8_e5m2": "e5m2", "sim8": "sim8"}
STORAGE = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2", "sim8": "uint8"}  # where a framework has FP8 types


class Quantized(NamedTuple):
    """What quantize() returns: codes * descale (+ mean) is close to the input, rotated if hadamard was asked for.

    Hand it to sdpa() and qk() as keyword arguments:
        rapt.sdpa(q8.codes, k8.codes, v8.codes, **q8.options("q"), **k8.options("k"), **v8.options("v"))
    """

    codes: Any  # of the input's shape
    descale: Any  # float32
    mean: Any  # float32 [batch, heads, dim] with smooth=True, else None
    scales: str  # "head", ...: the granularity of descale
    dtype: str  # "e4m3", "e5m2" or "sim8": what the codes are

    def __reduce__(self):
        codes, dtype = self.codes, getattr(self.codes, "dtype", None)
        if type(dtype).__module__ != "torch" or _dtype_name(dtype) == "uint8":
            return Quantized, tuple(self)
        return _with_codes_of, (dtype, codes.view(sys.modules["torch"].uint8), *self[1:])

    def options(self, name: str) -> dict[str, Any]:
        """Keyword arguments for these codes as the argument `name` ("q", "k" or "v"): {name}_descale, {name}_scales,
        with uint8 codes {name}_dtype, and of smoothed keys k_mean."""
        if name not in ("q", "k", "v"):
            raise InvalidArgument(f"name = {name!r}: must be 'q', 'k' or 'v'")
        given = {f"{name}_descale": self.descale, f"{name}_scales": self.scales}
        if _dtype_name(self.codes.dtype) == "uint8":
            given[f"{name}_dtype"] = self.dtype
        if self.mean is not None:
            if name != "k":
                raise InvalidArgument(f"name = {name!r}: smoothed, and only sdpa's k can be: it is told k_mean")
            given["k_mean"] = self.mean
        return given


def _with_codes_of(dtype, codes, *others) -> Quantized:
    """Of a pickle: PyTorch writes its FP8 tensors there, but does not read them again."""
    return Quantized(codes.view(dtype), *others)


def quantize(
    x,
    *,
    scales="head",
    dtype="e4m3",
    layout="bhsd",
    hadamard=False,
    smooth=False,
    percentile=None,
    descale=None,
    cu_seqlens=None,
    max_seqlen=None,
    out=None,
    context=None,
) -> Quantized:
    """Quantises x to FP8 with scales: codes and descale such that codes * descale is close to x.

    y is x, rotated and smoothed as asked for; descale = amax / the format's largest number, in float32, at least 2^-126
    and 1 where amax is 0; code = y * (1 / descale), rounded to nearest even and saturated. NaN stays NaN (sim8: 0).
    amax is the largest finite |y| of all that share the factor: later keys of a block, head or tensor are seen.

    Args:
        x: float32, float16 or bfloat16 [batch, heads, seqlen, dim] for layout "bhsd", [batch, seqlen, heads, dim] for
            "bshd"; packed [total, heads, dim] with cu_seqlens. Any strides.
        scales: what shares a factor: "tensor" (descale [1]), "head" [batch, heads], "token" [batch, heads, seqlen],
            "block64", "block128" [batch, heads, ceil(seqlen / n)], "channel" [batch, heads, dim] (for v).
            Packed: token [heads, total], block by ceil(max_seqlen / n), counted within the sequence.
        dtype: "e4m3", "e5m2" or "sim8" ([-448, 448] linearly onto 0..255), or the framework's own type.
        hadamard: rotates the channels first (docs/fp8.md): spreads outliers. q and k both, their products stay.
        smooth: subtracts each channel's mean over the sequence (after the rotation) and returns it as `mean`, which
            sdpa takes as k_mean.
        percentile: above 0, at most 100: amax becomes the smallest finite |y| that so many per cent do not exceed.
        descale: float32, shaped as above: factors known beforehand, used instead of computed ones. At least 2^-126.
        cu_seqlens, max_seqlen: int32 [batch + 1] and int, of packed x. Rows of no sequence: codes 0.
        out: an array for the codes (of dtype's type or uint8), or a Quantized with arrays for everything.
        context: a Context; None is the process default.

    Returns:
        Quantized(codes, descale, mean, scales, dtype). Codes are of PyTorch's and JAX's float8 type; of NumPy and CuPy
        uint8, or the type of ml_dtypes that `dtype` is; sim8 is uint8. They lie in x's memory order.

    Raises: as sdpa(); the library's sentences call x `input` and the codes `output`. No gradient flows through codes:
    calling backward() raises. For that there is fake_quantize().
    """
    given = _settled(x, scales, dtype, layout, hadamard, smooth, percentile, descale, cu_seqlens, max_seqlen)
    given.update(out=out, context=context)
    return front_of(x, "x").quantize(x, given)


def fake_quantize(
    x,
    *,
    scales="head",
    dtype="e4m3",
    layout="bhsd",
    hadamard=False,
    smooth=False,
    percentile=None,
    descale=None,
    cu_seqlens=None,
    max_seqlen=None,
    clip_gradient=False,
    context=None,
) -> Any:
    """What is left of x after quantize(x, ...): its codes as numbers, in x's own shape, dtype and coordinates.

    For quantisation-aware training: the gradient passes straight through, as if x itself had been returned; factors and
    means count as constants. Rotation and smoothing are undone. Rows of no sequence (cu_seqlens) become 0.

    Args:
        clip_gradient: True: no gradient where the value lies so far beyond the format's largest number that it was
            saturated (with percentile or descale): where |y| / descale would round to a number above it.
        All others: as quantize().

    Gradients: PyTorch's autograd and JAX's reverse mode. NumPy and CuPy have none.
    """
    given = _settled(x, scales, dtype, layout, hadamard, smooth, percentile, descale, cu_seqlens, max_seqlen)
    given.update(out=None, context=context, clip_gradient=bool(word("clip_gradient", clip_gradient, BOOLS)))
    return front_of(x, "x").fake_quantize(x, given)


def _settled(x, scales, dtype, layout, hadamard, smooth, percentile, descale, cu_seqlens, max_seqlen) -> dict[str, Any]:
    """The arguments by name, checked as far as they are no arrays; `format` is dtype's word."""
    word("scales", scales, SCALES)
    word("layout", layout, LAYOUTS)
    word("hadamard", hadamard, BOOLS)
    word("smooth", smooth, BOOLS)
    if percentile is not None:
        number("percentile", percentile)
        if descale is not None:
            raise InvalidArgument(f"percentile = {percentile!r} with descale: supplied factors are taken as they are")
    if (cu_seqlens is None) != (max_seqlen is None):
        raise InvalidArgument("cu_seqlens and max_seqlen: must be given both or neither")
    if max_seqlen is not None and not 0 <= integer("max_seqlen", max_seqlen) <= 1 << 40:
        raise InvalidArgument(f"max_seqlen = {max_seqlen!r}: must be from 0 to 2^40")
    for name, array in (("descale", descale), ("cu_seqlens", cu_seqlens)):
        if array is not None and not hasattr(array, "shape"):
            raise InvalidArgument(f"{name}: a {type(array).__qualname__}: must be an array of x's framework")
    if cu_seqlens is not None and (len(cu_seqlens.shape) != 1 or cu_seqlens.shape[0] < 1):
        raise InvalidArgument(f"cu_seqlens has shape {list(cu_seqlens.shape)}: must be [batch + 1]")
    packed = cu_seqlens is not None
    rank = len(shape_of("x", x))
    if rank != (3 if packed else 4):
        rule = "3, [total, heads, dim], with cu_seqlens" if packed else "4, or 3 with cu_seqlens"
        raise InvalidArgument(f"x: rank {rank}: must be {rule}")
    return {
        "scales": scales,
        "format": format_of(dtype),
        "dtype": dtype,
        "layout": layout,
        "hadamard": hadamard,
        "smooth": smooth,
        "percentile": percentile,
        "descale": descale,
        "cu_seqlens": cu_seqlens,
        "max_seqlen": max_seqlen,
    }


def _dtype_name(dtype) -> str:
    """ "float8_e4m3fn" of a word, torch.float8_e4m3fn, numpy.dtype(...), <class 'ml_dtypes.float8_e4m3fn'>."""
    return str(dtype).removesuffix("'>").rsplit(".", 1)[-1]


def format_of(dtype) -> str:
    """ "e4m3", "e5m2" or "sim8"."""
    name = _dtype_name(dtype)
    if name not in FORMATS:
        raise InvalidArgument(f"dtype = {dtype!r}: must be 'e4m3', 'e5m2', 'sim8', or the framework's own float8 type")
    return FORMATS[name]


def logical_sizes(shape, given) -> tuple:
    """(batch, heads, seqlen, dim, total): seqlen is max_seqlen of packed arrays, total None of dense ones."""
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
    """(codes, descale, mean) that the caller gave as out; None for what is to be made. Supplied factors stay."""
    out = given["out"]
    if not isinstance(out, Quantized):
        return out, given["descale"], None
    if out.scales != given["scales"] or out.dtype != given["format"]:
        raise InvalidArgument(
            f"out is for scales {out.scales!r} and dtype {out.dtype!r}: must be for those of the call, "
            f"{given['scales']!r} and {given['format']!r}"
        )
    if (out.mean is not None) != given["smooth"]:
        raise InvalidArgument(f"out {'has a' if out.mean is not None else 'has no'} mean: must go with smooth=True")
    if given["descale"] is not None and out.descale is not given["descale"]:
        raise InvalidArgument("out.descale is another array than descale: supplied factors are taken as they are")
    return out.codes, out.descale, out.mean
