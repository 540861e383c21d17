"""rapt.quantize and rapt.fake_quantize: signatures and checks of arguments, before a framework is called.

Exported by rapt/__init__.py. The work is done by _eager.py (for arrays that rapt._core reads), _torch_fp8.py and
_jax_operators.py. torch.compile traces this code, so sizes may be symbolic.
"""

from __future__ import annotations

from typing import Any

from ._dispatch import backend_of
from ._errors import InvalidArgument
from ._outputs import Quantized, dtype_name
from ._values import BOOLS, LAYOUTS, SCALES, integer, number, shape_of, word

FORMATS = {"e4m3": "e4m3", "float8_e4m3fn": "e4m3", "e5m2": "e5m2", "float8_e5m2": "e5m2", "sim8": "sim8"}


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
    """Quantises x to FP8: returns codes and descale such that codes * descale is close to x.

    y is x, after rotation and smoothing if requested. amax is the largest finite |y| of all values that share a scale;
    this includes later keys of a block, head or tensor. descale = amax / (the format's largest number), in float32, at
    least 2^-126; it is 1 if amax is 0. code = y * (1 / descale), rounded to nearest even and saturated. NaN stays NaN
    (sim8: it becomes 0).

    Args:
        x: float32, float16 or bfloat16 [batch, heads, seqlen, dim] for layout "bhsd", [batch, seqlen, heads, dim] for
            "bshd"; packed [total, heads, dim] with cu_seqlens. Any strides.
        scales: which values share a scale, and so the shape of descale: "tensor" [1], "head" [batch, heads], "token"
            [batch, heads, seqlen], "block64" and "block128" [batch, heads, ceil(seqlen / n)], "channel" (for v) [batch,
            heads, dim]. For packed x: "token" is [heads, total], and blocks are counted within a sequence:
            ceil(max_seqlen / n).
        dtype: "e4m3", "e5m2" or "sim8" (maps [-448, 448] linearly to 0..255), or the framework's own type.
        hadamard: True: rotates the channels first (docs/fp8.md), to spread outliers. Use it for both q and k.
        smooth: True: subtracts the mean of each channel over the sequence (after the rotation), and returns the means
            as `mean`, which sdpa takes as k_mean.
        percentile: above 0, at most 100. amax becomes this percentile of the finite |y|, and larger values saturate.
        descale: known scales to use instead of computed ones: float32 with the shape above, at least 2^-126.
        cu_seqlens, max_seqlen: int32 [batch + 1] and int, for packed x. Rows outside all sequences get codes 0.
        out: an array for the codes (of dtype's type or uint8), or a Quantized with an array for each result.
        context: a Context. Default: the process default.

    Returns:
        Quantized(codes, descale, mean, scales, dtype). In PyTorch and JAX, codes have a float8 type. In NumPy and CuPy
        they are uint8, or have the type of ml_dtypes that was passed as `dtype`. Codes of sim8 are always uint8. Codes
        have x's memory order.

    Raises: like sdpa(). In error sentences x is called `input`, and the codes are called `output`. Codes have no
    gradient: backward() raises. Use fake_quantize() for training.
    """
    given = _checked(x, scales, dtype, layout, hadamard, smooth, percentile, descale, cu_seqlens, max_seqlen)
    given.update(out=out, context=context)
    return backend_of(x, "x").quantize(x, given)


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
    """Quantises x like quantize(x, ...), and dequantises the result. It has x's shape and dtype.

    For quantisation-aware training: the gradient is computed as if x itself had been returned, and scales and means
    count as constants. Rotation and smoothing are undone. Rows outside all sequences (cu_seqlens) become 0.

    Args:
        clip_gradient: True: the gradient is 0 for values that were saturated, which happens with percentile or descale.
            A value counts as saturated if |y| / descale would round to a number above the format's largest one.
        Other arguments: as in quantize().

    Gradients: PyTorch's autograd and JAX's reverse mode. NumPy and CuPy have none.
    """
    given = _checked(x, scales, dtype, layout, hadamard, smooth, percentile, descale, cu_seqlens, max_seqlen)
    given.update(out=None, context=context, clip_gradient=bool(word("clip_gradient", clip_gradient, BOOLS)))
    return backend_of(x, "x").fake_quantize(x, given)


def _checked(x, scales, dtype, layout, hadamard, smooth, percentile, descale, cu_seqlens, max_seqlen) -> dict[str, Any]:
    """The arguments by name. Checks all arguments that are not arrays. `format` is dtype as a word ("e4m3")."""
    word("scales", scales, SCALES)
    word("layout", layout, LAYOUTS)
    word("hadamard", hadamard, BOOLS)
    word("smooth", smooth, BOOLS)
    if percentile is not None:
        number("percentile", percentile)
        if descale is not None:
            raise InvalidArgument(
                f"percentile = {percentile!r} with descale: give only one of them; a supplied descale is not changed"
            )
    if (cu_seqlens is None) != (max_seqlen is None):
        raise InvalidArgument("cu_seqlens and max_seqlen: give both or neither")
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


def format_of(dtype) -> str:
    """The format as a word: "e4m3", "e5m2" or "sim8"."""
    name = dtype_name(dtype)
    if name not in FORMATS:
        raise InvalidArgument(f"dtype = {dtype!r}: must be 'e4m3', 'e5m2', 'sim8', or the framework's own float8 type")
    return FORMATS[name]
