"""What the fronts share: refusals by name, FlashAttention's arguments as rapt.sdpa's, the append to a KV cache.

Used by the modules beside it. Nothing here reads a tensor on the host.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._errors import InvalidArgument, Unsupported
from ._dropout import refuse_dropout as refuse_dropout


def refuse(**arguments) -> None:
    for name, value in arguments.items():
        if value is not None:
            why = "there is no paged KV yet" if name == "block_table" else "rapt does not have it"
            raise Unsupported(f"{name} is given: must be None, {why}")


def expect(name: str, packed: Tensor, rank: int, dim: int, size: int) -> None:
    if packed.ndim != rank or packed.shape[dim] != size:
        raise InvalidArgument(f"{name} is {list(packed.shape)}: must have {rank} dimensions, number {dim} being {size}")


def scores(window_size, softcap, alibi_slopes) -> dict[str, Any]:
    """window, softcap and alibi_slopes, where they are on."""
    options: dict[str, Any] = {}
    if tuple(window_size) != (-1, -1):
        options["window"] = tuple(window_size)
    if softcap != 0.0:
        options["softcap"] = softcap
    if alibi_slopes is not None:
        options["alibi_slopes"] = alibi_slopes
    return options


def descales(q, k, q_descale, k_descale, v_descale) -> dict[str, Any]:
    """rapt.sdpa's per-head factors: q has one for each of its own heads there."""
    heads_q, heads_k = q.shape[-2], k.shape[-2]
    if q_descale is not None and q_descale.ndim == 2 and 0 < heads_k == q_descale.shape[1] != heads_q:
        q_descale = q_descale.repeat_interleave(heads_q // heads_k, dim=1)
    options: dict[str, Any] = {}
    for name, factors in (("q", q_descale), ("k", k_descale), ("v", v_descale)):
        if factors is not None:
            options.update({f"{name}_descale": factors, f"{name}_scales": "head"})
    return options


def length_in_use(k_cache, v_cache, k, v, start):
    """That of the caches once k and v, if there are any, are written from start on; None for all. Checks all four."""
    if start is not None and not isinstance(start, (int, Tensor)):
        raise InvalidArgument(f"cache_seqlens is {start!r}: must be an int or an int32 tensor [batch]")
    if k is None:
        new = 0
    elif start is None:
        raise InvalidArgument("cache_seqlens is None: must be given with k and v, it says where they go")
    else:
        new = k.shape[1]
    if isinstance(start, int) and not 0 <= start <= k_cache.shape[1] - new:
        raise InvalidArgument(
            f"cache_seqlens is {start}: must be 0 to {k_cache.shape[1] - new}, for {new} new tokens "
            f"and a cache of {k_cache.shape[1]}"
        )
    if isinstance(start, Tensor) and (start.dtype != torch.int32 or start.shape != k_cache.shape[:1]):
        shown = f"{start.dtype} {list(start.shape)}"
        raise InvalidArgument(f"cache_seqlens is {shown}: must be torch.int32 [{k_cache.shape[0]}]")
    if k is None:
        return start
    for name, cache, fresh in (("k", k_cache, k), ("v", v_cache, v)):
        expected = [cache.shape[0], new, *cache.shape[2:]]
        if list(fresh.shape) != expected or fresh.dtype != cache.dtype:
            raise InvalidArgument(
                f"{name} is {fresh.dtype} {list(fresh.shape)}: must be {cache.dtype} {expected}, "
                f"as {name}_cache is {list(cache.shape)}"
            )
    return start + new


def append(cache: Tensor, fresh: Tensor, start) -> None:
    """cache[b, start[b] + i] = fresh[b, i], without a look at the lengths on the host."""
    if isinstance(start, int):
        cache[:, start : start + fresh.shape[1]].copy_(fresh)
        return
    if cache.element_size() == 1:  # FP8: bytes are bytes, and every PyTorch can write them by index
        cache, fresh = cache.view(torch.uint8), fresh.view(torch.uint8)
    rows = torch.arange(cache.shape[0], device=cache.device).unsqueeze(1)
    places = start.long().unsqueeze(1) + torch.arange(fresh.shape[1], device=cache.device)
    cache.index_put_((rows, places), fresh)
