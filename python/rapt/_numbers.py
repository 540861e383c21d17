"""The parts of fake_quantize(): decodes FP8 codes to numbers and rotates channels, with the operations of a framework.

Used by _eager.py, _torch_fp8.py and _jax_operators.py. Each of them passes a Numbers: the operations that have
different names in the frameworks. torch.compile and jax.jit trace this code.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Callable, NamedTuple

from ._outputs import Quantized, logical_sizes

MAX_CHANNELS = 256  # most channels that one rotation mixes
# Larger values are saturated, smaller values round to a number of the format. These limits lie halfway between the
# largest number of the format and the next number that the format would have. E5M2's limit itself is a tie between an
# odd and an even number. It rounds to the even number, which is too large.
LAST_E4M3, LAST_E5M2, LAST_SIM8 = 464.0, 61440.0, 448.0 + 448.0 / 255.0


class Numbers(NamedTuple):
    """Operations of a framework. `xp` is a module with NumPy's stack, where, swapaxes, searchsorted and reshape."""

    xp: Any
    cast: Callable  # cast(array, "float32" or a dtype of the framework)
    decode: Callable  # decode(codes, "e4m3", "e5m2" or "sim8") -> float32
    array: Callable  # array(list of floats, like) -> float32 array on the device of like
    arange: Callable  # arange(count, like) -> int32 array on the device of like


def _sign(channel: int) -> float:
    """The sign of a channel of a head before rotation (docs/fp8.md)."""
    u = (channel + 1) * 0x9E3779B1 & 0xFFFFFFFF
    u = (u ^ u >> 15) * 0x85EBCA77 & 0xFFFFFFFF
    return -1.0 if u >> 31 else 1.0


SIGNS = tuple(map(_sign, range(512)))  # precomputed, because torch.compile would trace the computation


def signs(dim: int) -> tuple[float, ...]:
    return SIGNS[:dim] if dim <= len(SIGNS) else tuple(map(_sign, range(dim)))


@lru_cache(maxsize=None)
def values_of(format: str) -> tuple[float, ...]:
    """The numbers of the 256 codes, for frameworks without FP8 types."""
    if format == "sim8":
        return tuple((896.0 * code - 114240.0) / 255.0 for code in range(256))
    exponents, mantissas = (4, 3) if format == "e4m3" else (5, 2)
    bias, found = (1 << exponents - 1) - 1, []
    for code in range(256):
        exponent, mantissa = code >> mantissas & (1 << exponents) - 1, code & (1 << mantissas) - 1
        value = (mantissa / (1 << mantissas) + (exponent > 0)) * 2.0 ** (max(exponent, 1) - bias)
        if format == "e4m3" and code & 0x7F == 0x7F:
            value = float("nan")
        if format == "e5m2" and exponent == 31:
            value = float("nan") if mantissa else float("inf")
        found.append(-value if code & 0x80 else value)
    return tuple(found)


def _butterflies(numbers: Numbers, y, n: int):
    """H y for each aligned group of n elements of the last dimension. H is Sylvester's Hadamard matrix."""
    shape, half = tuple(y.shape), 1
    while half < n:
        pairs = numbers.xp.reshape(y, (*shape[:-1], shape[-1] // (2 * half), 2, half))
        first, second = pairs[..., 0, :], pairs[..., 1, :]
        y = numbers.xp.reshape(numbers.xp.stack((first + second, first - second), -2), shape)
        half *= 2
    return y


def _group(dim: int) -> int:
    """The number of channels that are rotated together: the largest power of two that divides dim, at most 256."""
    n = 1
    while n < MAX_CHANNELS and dim > 0 and dim % (2 * n) == 0:
        n *= 2
    return n


def rotated(numbers: Numbers, y):
    n = _group(y.shape[-1])
    return _butterflies(numbers, y * numbers.array(signs(y.shape[-1]), y), n) * n**-0.5


def rotated_back(numbers: Numbers, y):
    n = _group(y.shape[-1])
    return _butterflies(numbers, y, n) * n**-0.5 * numbers.array(signs(y.shape[-1]), y)


class Rows(NamedTuple):
    """For each packed row: the number of its sequence, its place in this sequence, and if it belongs to a sequence."""

    sequence: Any
    place: Any
    covered: Any


def packed_rows(numbers: Numbers, cu_seqlens, total: int, max_seqlen: int) -> Rows:
    rows = numbers.arange(total, cu_seqlens)
    sequence = numbers.xp.searchsorted(cu_seqlens, rows, side="right") - 1
    sequence = numbers.xp.clip(sequence, 0, max(0, cu_seqlens.shape[0] - 2))
    place = rows - cu_seqlens[sequence]
    covered = (rows < cu_seqlens[-1]) & (place < max_seqlen)
    return Rows(sequence, numbers.xp.where(covered, place, 0), covered)


def _dense_factors(numbers: Numbers, descale, scales: str, seqlen: int):
    """descale as an array that broadcasts to [batch, heads, seqlen, dim]."""
    if scales == "tensor":
        return numbers.xp.reshape(descale, (1, 1, 1, 1))
    if scales == "channel":
        return descale[:, :, None, :]
    if scales == "head":
        return descale[:, :, None, None]
    if scales.startswith("block"):
        descale = descale[:, :, numbers.arange(seqlen, descale) // int(scales.removeprefix("block"))]
    return descale[:, :, :, None]


def _packed_factors(numbers: Numbers, descale, scales: str, rows: Rows):
    """descale as an array that broadcasts to [total, heads, dim]."""
    if scales == "tensor":
        return numbers.xp.reshape(descale, (1, 1, 1))
    if scales == "token":
        return numbers.xp.swapaxes(descale, 0, 1)[:, :, None]
    if scales == "channel":
        return descale[rows.sequence]
    if scales == "head":
        return descale[rows.sequence][:, :, None]
    return descale[rows.sequence, :, rows.place // int(scales.removeprefix("block"))][:, :, None]


class Spread(NamedTuple):
    """Scales, means (None: no smoothing) and valid rows (None: all rows), in shapes that broadcast to the array."""

    factors: Any
    means: Any
    covered: Any


def spread(numbers: Numbers, made: Quantized, given: dict, shape) -> Spread:
    _, _, seqlen, _, total = logical_sizes(shape, given)
    if total is None:
        factors = _dense_factors(numbers, made.descale, made.scales, seqlen)
        means = None if made.mean is None else made.mean[:, :, None, :]
        if given["layout"] == "bshd":
            factors = numbers.xp.swapaxes(factors, 1, 2)
            means = None if means is None else numbers.xp.swapaxes(means, 1, 2)
        return Spread(factors, means, None)
    if given["cu_seqlens"].shape[0] < 2:  # no sequence, so no valid row
        covered = numbers.arange(total, given["cu_seqlens"]) < given["cu_seqlens"][-1]
        return Spread(1.0, None, covered[:, None, None])
    rows = packed_rows(numbers, given["cu_seqlens"], total, given["max_seqlen"])
    means = None if made.mean is None else made.mean[rows.sequence]
    return Spread(_packed_factors(numbers, made.descale, made.scales, rows), means, rows.covered[:, None, None])


def dequantized(numbers: Numbers, made: Quantized, given: dict, x):
    """The dequantised values, with rotation and smoothing undone, in x's dtype. Rows outside all sequences are 0."""
    about = spread(numbers, made, given, tuple(x.shape))
    y = numbers.decode(made.codes, made.dtype) * about.factors
    if about.means is not None:
        y = y + about.means
    if given["hadamard"]:
        y = rotated_back(numbers, y)
    if about.covered is not None:
        y = numbers.xp.where(about.covered, y, 0.0)
    return numbers.cast(y, x.dtype)


def unsaturated(numbers: Numbers, made: Quantized, given: dict, x):
    """For each element of the rotated and smoothed x: True if it was not saturated. NaN counts as not saturated."""
    about = spread(numbers, made, given, tuple(x.shape))
    y = numbers.cast(x, "float32")
    if given["hadamard"]:
        y = rotated(numbers, y)
    if about.means is not None:
        y = y - about.means
    size = abs(y * (1.0 / about.factors))
    if made.dtype == "e5m2":
        return ~(size >= LAST_E5M2)
    return ~(size > (LAST_E4M3 if made.dtype == "e4m3" else LAST_SIM8))


def clipped(numbers: Numbers, gradient, keep, hadamard: bool):
    """The gradient, with 0 for saturated values, in its own dtype. If hadamard, rotates it before and back after."""
    if not hadamard:
        return numbers.xp.where(keep, gradient, 0.0)
    turned = rotated(numbers, numbers.cast(gradient, "float32"))
    return numbers.cast(rotated_back(numbers, numbers.xp.where(keep, turned, 0.0)), gradient.dtype)
