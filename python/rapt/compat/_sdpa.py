"""rapt.compat.sdpa, with the signature of torch.nn.functional.scaled_dot_product_attention. Re-exported by rapt.compat.

Arrays with any number of leading dimensions become views [batch, heads, seqlen, head_dim]; nothing is copied.
"""

from __future__ import annotations

from math import prod
from typing import Any

from .. import sdpa as attention
from .._errors import InvalidArgument
from ._dropout import refuse_dropout

BIAS_DTYPES = ("float32", "float16", "bfloat16")


def sdpa(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    context: Any = None,
) -> Any:
    """Replaces torch.nn.functional.scaled_dot_product_attention: softmax(scale * query key^T, masked) value.

    Takes PyTorch tensors and all other arrays that rapt.sdpa takes. JAX arrays must be [batch, heads, seqlen,
    head_dim].

    Args:
        query: [..., heads, seqlen_q, head_dim], with any number of leading dimensions; [seqlen_q, head_dim] has one
            head. float32, float16, bfloat16 or FP8; float64 is refused.
        key: [..., heads, seqlen_k, head_dim]. Leading dimensions of query, key and value are broadcast with strides of
            0.
        value: [..., heads, seqlen_k, head_dim_v].
        attn_mask: either bool (True keeps a key), or float32, float16 or bfloat16 (added to the scaled scores). It is
            broadcast, right-aligned, to [..., heads, seqlen_q, seqlen_k]. Its dtype may differ from query's. It can
            also be a CausalBias of torch.nn.attention.bias.
        dropout_p: must be 0.
        is_causal: True: query i sees keys j <= i (top left), also if seqlen_q and seqlen_k differ. Not with attn_mask.
        scale: any finite number. Default: 1 / sqrt(head_dim).
        enable_gqa: True: query's heads may be a multiple of key's and value's heads.
        context: a rapt.Context. Default: the process default.

    Returns:
        [..., heads, seqlen_q, head_dim_v] in query's memory order and dtype (for FP8, rapt.sdpa's rule gives the
        dtype).

    Raises:
        InvalidArgument (a ValueError and, like PyTorch's own error, a RuntimeError): attn_mask and is_causal are both
            given; numbers of heads differ without enable_gqa; shapes do not broadcast; the batch dimensions cannot be
            viewed as one dimension.
        Unsupported: dropout_p other than 0.
        Also the errors of rapt.sdpa, with its names of arguments: a bool attn_mask is `mask`, other ones are `bias`.

    Differences from PyTorch: a query that sees no key gives 0 for every device and dtype. Masked keys never affect a
    query, even if they hold NaN. query, key and value may differ in dtype, and float16 and bfloat16 masks are allowed
    for all dtypes. torch.autocast does not convert the inputs. There is no backward yet: calling it raises.
    """
    refuse_dropout("dropout_p", dropout_p)
    if not isinstance(is_causal, bool):
        raise InvalidArgument(f"is_causal is {is_causal!r}: must be True or False")
    if is_causal and attn_mask is not None:
        raise InvalidArgument("attn_mask and is_causal=True are both given: must be one of them")
    q, k, v = tuple(query.shape), tuple(key.shape), tuple(value.shape)
    rank = max(len(q), len(k), len(v))
    if len(q) == len(k) == len(v) == 4 and q[0] == k[0] == v[0] and q[1] == k[1] == v[1]:
        batch = q[:1]
    else:
        batch, heads_q, heads_k = _leading(query, key, value, rank, enable_gqa)
        query = _merged_batch("query", query, batch, heads_q)
        key = _merged_batch("key", key, batch, heads_k)
        value = _merged_batch("value", value, batch, heads_k)
    masking = _masking(query, key, attn_mask, is_causal, batch)
    out = attention(query, key, value, scale=scale, context=context, **masking)
    if rank == 4:
        return out
    return _reshaped(out, batch + tuple(out.shape[1:])) if rank > 4 else out[0] if rank == 3 else out[0, 0]


def _leading(query, key, value, rank: int, enable_gqa: bool) -> tuple[tuple, int, int]:
    """The batch dimensions of the call, query's heads, and key's and value's heads."""
    if min(query.ndim, key.ndim, value.ndim) < 2:
        raise InvalidArgument(
            f"query, key, value have {query.ndim}, {key.ndim}, {value.ndim} dimensions: each must "
            "have 2 or more, [..., seqlen, head_dim]"
        )
    leads = [(1,) * (rank - one.ndim) + tuple(one.shape[:-2]) for one in (query, key, value)]
    heads_q, heads_k, heads_v = [lead[-1] if lead else 1 for lead in leads]
    both = heads_v if heads_k == 1 else heads_k
    if heads_v not in (1, both):
        raise InvalidArgument(f"key has {heads_k} heads and value {heads_v}: must be equal, or one of them must be 1")
    if enable_gqa:
        if both == 0 and heads_q > 0 or both > 0 and heads_q % both != 0:
            raise InvalidArgument(f"query has {heads_q} heads, key and value {both}: must be a multiple of them")
    elif both not in (1, heads_q):
        if heads_q != 1:
            raise InvalidArgument(
                f"query has {heads_q} heads, key and value {both}: must be equal, or pass enable_gqa=True"
            )
        heads_q = both
    return _broadcast([lead[:-1] for lead in leads]), heads_q, both


def _broadcast(leads: list[tuple]) -> tuple:
    """The shape to which all batch dimensions are broadcast. They must have equal rank."""
    sizes = []
    for column in zip(*leads):
        others = {size for size in column if size != 1}
        if len(others) > 1:
            shown = ", ".join(str(list(lead)) for lead in leads)
            raise InvalidArgument(f"query, key, value have batch dimensions {shown}: must broadcast")
        sizes.append(others.pop() if others else 1)
    return tuple(sizes)


def _merged_batch(name: str, tensor, batch: tuple, heads: int):
    """Broadcasts a tensor to [*batch, heads, rows, columns], and views it as [prod(batch), heads, rows, columns]."""
    whole = (*batch, heads, *tensor.shape[-2:])
    if tuple(tensor.shape) != whole:
        tensor = _expanded(tensor, whole)
    if len(batch) == 1:
        return tensor
    if not batch:
        return tensor[None]
    step = None  # the stride that the next slower batch dimension must have
    strides = _strides(tensor)[: len(batch)]
    for size, stride in zip(reversed(batch), reversed(strides)):
        if size == 1:
            continue
        if step is not None and stride != step and prod(tensor.shape) > 0:
            raise InvalidArgument(
                f"{name}'s batch dimensions {list(batch)} have strides {list(strides)}: must be one "
                "dimension in memory, because rapt copies nothing; copy or broadcast it before the call"
            )
        step = size * stride
    return _reshaped(tensor, (prod(batch), *tensor.shape[len(batch) :]))


def _strides(array) -> tuple:
    """The strides, in elements for PyTorch and in bytes for NumPy. They are compared only with each other."""
    return array.stride() if hasattr(array, "stride") else array.strides


def _expanded(array, shape: tuple):
    if hasattr(array, "expand"):
        return array.expand(shape)
    import numpy  # for CuPy arrays, numpy's function calls CuPy's function

    return numpy.broadcast_to(array, shape)


def _reshaped(array, shape: tuple):
    return array.view(shape) if hasattr(array, "stride") else array.reshape(shape)


def _masking(query, key, attn_mask, is_causal: bool, batch: tuple) -> dict[str, Any]:
    """The argument causal, mask or bias for rapt.sdpa. The batch dimensions of query and key are already merged."""
    if attn_mask is None:
        return {"causal": "top_left"} if is_causal else {}
    if type(attn_mask).__module__ == "torch.nn.attention.bias":
        from torch.nn.attention.bias import CausalVariant

        given, lengths = (attn_mask.seq_len_q, attn_mask.seq_len_kv), (query.shape[-2], key.shape[-2])
        if given != lengths:
            raise InvalidArgument(f"attn_mask is a CausalBias of lengths {given}: must be query's and key's, {lengths}")
        return {"causal": "top_left" if attn_mask.variant == CausalVariant.UPPER_LEFT else "bottom_right"}
    dtype = str(attn_mask.dtype).removeprefix("torch.")
    if dtype != "bool" and dtype not in BIAS_DTYPES:
        raise InvalidArgument(f"attn_mask is {attn_mask.dtype}: must be bool, float32, float16 or bfloat16")
    if attn_mask.ndim > 3 and len(batch) > 1:
        attn_mask = _merged_batch_mask(attn_mask, batch)
    return {"mask" if dtype == "bool" else "bias": attn_mask}


def _merged_batch_mask(attn_mask, batch: tuple):
    """Views a mask, which has its own batch dimensions, as [prod(batch) or 1, heads or 1, rows, columns]."""
    own = tuple(attn_mask.shape[:-3])
    if all(size == 1 for size in own):
        return _reshaped(attn_mask, (1, *attn_mask.shape[-3:]))
    sizes = (1,) * (len(batch) - len(own)) + own
    if len(sizes) > len(batch) or any(mine not in (1, size) for mine, size in zip(sizes, batch)):
        raise InvalidArgument(f"attn_mask is {list(attn_mask.shape)}: must broadcast to the batch {list(batch)}")
    return _merged_batch("attn_mask", attn_mask, batch, attn_mask.shape[-3])
