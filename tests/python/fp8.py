"""FP8 for the tests: an implementation of docs/semantics.md and docs/fp8.md in NumPy, with tables and plain loops. It
uses nothing of the package.
"""

import numpy as np

LARGEST = {"e4m3": 448.0, "e5m2": 57344.0, "sim8": 448.0}


def decode(codes, dtype):
    """uint8 codes as float64."""
    codes = np.asarray(codes)
    if dtype == "sim8":
        return codes.astype(np.float64) * (896 / 255) - 448
    bits, bias = (3, 7) if dtype == "e4m3" else (2, 15)
    exponent = (codes & 0x7F) >> bits
    fraction = (codes & ((1 << bits) - 1)) / 2.0**bits
    size = np.where(exponent == 0, fraction * 2.0 ** (1 - bias), (1 + fraction) * 2.0 ** (exponent.astype(int) - bias))
    if dtype == "e4m3":
        size = np.where(codes & 0x7F == 0x7F, np.nan, size)
    else:
        size = np.where(exponent == 31, np.where(fraction == 0, np.inf, np.nan), size)
    return np.where(codes & 0x80, -size, size)


def encode(x, dtype):
    """The nearest code of each number, with ties to even and saturation. NaN becomes 0x7f (sim8: the code of 0)."""
    x = np.asarray(x, np.float64)
    if dtype == "sim8":
        return np.clip(np.rint((np.where(np.isnan(x), 0, x) + 448) * (255 / 896)), 0, 255).astype(np.uint8)
    count = 127 if dtype == "e4m3" else 124  # number of finite codes with one sign
    values = decode(np.arange(count, dtype=np.uint8), dtype)
    size = np.minimum(np.where(np.isnan(x), 0, np.abs(x)), LARGEST[dtype])
    above = np.clip(np.searchsorted(values, size), 1, count - 1)
    low, high = size - values[above - 1], values[above] - size
    code = np.where((low < high) | ((low == high) & (above % 2 == 1)), above - 1, above).astype(np.uint8)
    code = np.where(np.isnan(x), 0x7F, code)
    return (code | np.where(np.signbit(x), 0x80, 0).astype(np.uint8)).astype(np.uint8)


def hadamard(dim):
    """The matrix by which rows [.., dim] are multiplied from the right: signs, then Sylvester's matrix by groups."""
    n = 1
    while n < 256 and dim % (2 * n) == 0:
        n *= 2
    turn = np.zeros((dim, dim))
    for channel in range(dim):
        u = ((channel + 1) * 0x9E3779B1) % 2**32
        u ^= u >> 15
        u = (u * 0x85EBCA77) % 2**32
        sign = -1.0 if u & 0x80000000 else 1.0
        for other in range(channel // n * n, channel // n * n + n):
            turn[channel, other] = sign * (-1.0) ** bin((channel % n) & (other % n)).count("1") / np.sqrt(n)
    return turn


def groups(scales, seqlen):
    """(index of the elements that share a scale in [batch, heads, seqlen, dim], index of the scale in descale)."""
    everything = slice(None)
    if scales == "tensor":
        return lambda b, h, d: [((everything,) * 4, (0,))] if b == h == d == 0 else []
    if scales == "head":
        return lambda b, h, d: [((b, h), (b, h))] if d == 0 else []
    if scales == "channel":
        return lambda b, h, d: [((b, h, everything, d), (b, h, d))]
    rows = 1 if scales == "token" else int(scales[5:])
    return lambda b, h, d: [
        ((b, h, slice(i, i + rows)), (b, h, i // rows)) for i in range(0, seqlen if d == 0 else 0, rows)
    ]


def quantize(x, scales, dtype, percentile=None):
    """(codes, descale) of float32 [batch, heads, seqlen, dim], without rotation and smoothing."""
    batch, heads, seqlen, dim = x.shape
    shape = {"tensor": (1,), "head": (batch, heads), "channel": (batch, heads, dim)}.get(scales)
    if shape is None:
        shape = (batch, heads, -(-seqlen // (1 if scales == "token" else int(scales[5:]))))
    descale, codes = np.ones(shape, np.float32), np.zeros(x.shape, np.uint8)
    members = groups(scales, seqlen)
    for b, h, d in np.ndindex(batch, heads, dim):
        for where, factor in members(b, h, d):
            sizes = np.sort(np.abs(x[where][np.isfinite(x[where])]))
            rank = 0 if percentile is None else int(np.ceil(sizes.size * percentile / 100)) - 1
            amax = sizes[-1 if percentile is None else rank] if sizes.size else np.float32(0)
            one = np.float32(1) if amax == 0 else max(amax / np.float32(LARGEST[dtype]), np.float32(2.0**-126))
            descale[factor] = one
            with np.errstate(invalid="ignore"):
                codes[where] = encode(x[where] * (np.float32(1) / one), dtype)
    return codes, descale


def spread(descale, scales, shape):
    """descale in a shape that broadcasts to [batch, heads, seqlen, dim]."""
    if scales == "tensor":
        return descale.reshape(1, 1, 1, 1)
    if scales == "head":
        return descale[:, :, None, None]
    if scales == "channel":
        return descale[:, :, None, :]
    rows = 1 if scales == "token" else int(scales[5:])
    return np.repeat(descale, rows, axis=2)[:, :, : shape[2], None]
