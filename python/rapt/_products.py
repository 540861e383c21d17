"""rapt.qk and rapt.gemm: signatures and checks of arguments, before a framework is called. Exported by
rapt/__init__.py.
"""

from __future__ import annotations

from typing import Any

from ._dispatch import backend_of
from ._errors import InvalidArgument
from ._values import LAYOUTS, SCALES, number, shape_of, word


def qk(
    q,
    k,
    *,
    scale=1.0,
    layout="bhsd",
    q_descale=None,
    k_descale=None,
    q_scales=None,
    k_scales=None,
    q_dtype=None,
    k_dtype=None,
    out=None,
    out_dtype=None,
    context=None,
) -> Any:
    """Computes only the first product of attention: out[b, h, i, j] = scale * q_descale * k_descale * dot(q[i], k[j]).

    Args:
        q: [batch, heads_q, seqlen_q, head_dim] for layout "bhsd", [batch, seqlen_q, heads_q, head_dim] for "bshd".
            float32, float16, bfloat16 or FP8; q and k may differ.
        k: [batch, heads_k, seqlen_k, head_dim], or as above. heads_q must be a multiple of heads_k.
        scale: any finite number. Default: 1.
        q_descale, k_descale: float32, with shapes as in sdpa(). q_scales and k_scales name their kind: "tensor",
            "head", "token", "block64" or "block128".
        q_dtype, k_dtype: the format of uint8 storage: "e4m3", "e5m2" or "sim8".
        out: the array to write to.
        out_dtype: dtype of the allocated out: float32, float16 or bfloat16. Default: the dtype of q. If q is FP8:
            float32, because numbers above 65519 become infinite in float16.
        context: a Context. Default: the process default.

    Returns:
        [batch, heads_q, seqlen_q, seqlen_k] for both layouts, rounded to nearest even. Sums are float32.

    For smoothed keys (quantize(smooth=True)) the products use the stored values, because qk() takes no k_mean.
    """
    given = {"q_descale": q_descale, "k_descale": k_descale, "q_scales": q_scales, "k_scales": k_scales}
    for name in ("q", "k"):
        if (given[f"{name}_descale"] is None) != (given[f"{name}_scales"] is None):
            raise InvalidArgument(f"{name}_descale and {name}_scales: give both the descale and its granularity")
        if given[f"{name}_scales"] is not None:
            word(f"{name}_scales", given[f"{name}_scales"], SCALES)
    word("layout", layout, LAYOUTS)
    number("scale", scale)
    _one_of(out, out_dtype)
    given.update(
        layout=layout, scale=scale, q_dtype=q_dtype, k_dtype=k_dtype, out=out, out_dtype=out_dtype, context=context
    )
    try:
        return backend_of(q).qk(q, k, given)
    except RuntimeError:
        shape_of("q", q), shape_of("k", k)  # raises the error for nested tensors, which have no shape
        raise


def gemm(
    a,
    b,
    *,
    a_descale=None,
    b_descale=None,
    a_dtype=None,
    b_dtype=None,
    out=None,
    out_dtype=None,
    context=None,
) -> Any:
    """Computes a matrix product with scales: out[i, j] = a_descale[i] * b_descale[j] * (sum over l of a[i, l] * b[l,
    j]).

    Args:
        a, b: a is [m, k], b is [k, n]. float32, float16, bfloat16 or FP8; a and b may differ. Any strides. It is
            fastest if k is the contiguous dimension of both, as in torch._scaled_mm: pass weights [n, k] as weights.T.
        a_descale, b_descale: float32. Either one scale ([] or [1]), or one for each row of a ([m]) and one for each
            column of b ([n]).
        a_dtype, b_dtype: the format of uint8 storage: "e4m3", "e5m2" or "sim8".
        out: the array to write to.
        out_dtype: dtype of the allocated out: float32, float16 or bfloat16. Default: the dtype of a; float32 if a is
            FP8.
        context: a Context. Default: the process default.

    Returns:
        [m, n]. Sums are float32.
    """
    given = {"a_descale": a_descale, "b_descale": b_descale, "a_scales": None, "b_scales": None}
    for name in ("a", "b"):
        given[f"{name}_scales"] = _kind(f"{name}_descale", given[f"{name}_descale"])
    _one_of(out, out_dtype)
    given.update(a_dtype=a_dtype, b_dtype=b_dtype, out=out, out_dtype=out_dtype, context=context)
    try:
        return backend_of(a, "a").gemm(a, b, given)
    except RuntimeError:
        shape_of("a", a), shape_of("b", b)
        raise


def _one_of(out, out_dtype) -> None:
    if out is not None and out_dtype is not None:
        raise InvalidArgument(f"out_dtype = {out_dtype!r} with out: give only one of them; out has its own dtype")


def _kind(name: str, descale) -> str | None:
    """The kind of gemm's scales. A single scale counts as "tensor"."""
    if descale is None:
        return None
    shape = getattr(descale, "shape", None)
    if shape is None or len(shape) > 1:
        raise InvalidArgument(
            f"{name}: must be an array of shape [], [1], or of one scale for each row (a) or column (b)"
        )
    return "tensor" if len(shape) == 0 or shape[0] == 1 else "token"
