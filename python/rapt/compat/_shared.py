"""Common code of the modules in this folder: refuses unsupported arguments, converts FlashAttention's arguments to
those of rapt.sdpa, and checks the lengths of a KV cache.

No function here reads the contents of a GPU tensor on the host, except with check_contents.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from .._errors import InvalidArgument, Unsupported
from ._dropout import refuse_dropout as refuse_dropout

FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def expect(name: str, packed: Tensor, rank: int, dim: int, size: int) -> None:
    if packed.ndim != rank or packed.shape[dim] != size:
        raise InvalidArgument(
            f"{name} is {list(packed.shape)}: must have {rank} dimensions, and dimension {dim} must be {size}"
        )


def scores(window_size, softcap, alibi_slopes) -> dict[str, Any]:
    """The options window, softcap and alibi_slopes of rapt.sdpa, if they are enabled."""
    options: dict[str, Any] = {}
    if tuple(window_size) != (-1, -1):
        options["window"] = tuple(window_size)
    if softcap != 0.0:
        options["softcap"] = softcap
    if alibi_slopes is not None:
        options["alibi_slopes"] = alibi_slopes
    return options


def descales(q, k, q_descale, k_descale, v_descale) -> dict[str, Any]:
    """The scales per head for rapt.sdpa, in which q needs one scale for each of its own heads."""
    heads_q, heads_k = q.shape[-2], k.shape[-2]
    if q_descale is not None and q_descale.ndim == 2 and 0 < heads_k == q_descale.shape[1] != heads_q:
        q_descale = q_descale.repeat_interleave(heads_q // heads_k, dim=1)
    options: dict[str, Any] = {}
    for name, factors in (("q", q_descale), ("k", k_descale), ("v", v_descale)):
        if factors is not None:
            options.update({f"{name}_descale": factors, f"{name}_scales": "head"})
    return options


class Cache(NamedTuple):
    """The caches of one call to flash_attn_with_kvcache. Each sequence can have `capacity` tokens."""

    k: Tensor
    v: Tensor
    batch: int
    capacity: int


def length_in_use(cache: Cache, k, v, start, check_contents: bool):
    """The number of used tokens in the caches. If k and v are given, it includes them; they are written from `start`
    on. None means the full cache. Checks the arguments.

    In a tensor, -1 (which is not a length) marks a sequence whose new tokens do not fit into the cache.
    """
    if start is not None and (isinstance(start, bool) or not isinstance(start, (int, Tensor))):
        raise InvalidArgument(f"cache_seqlens is {start!r}: must be an int or an int32 tensor [batch]")
    if k is None:
        new = 0
    elif start is None:
        raise InvalidArgument("cache_seqlens is None: required with k and v, to know where to write them")
    else:
        new = k.shape[1]
    if isinstance(start, int) and not 0 <= start <= cache.capacity - new:
        raise InvalidArgument(_outside("cache_seqlens", start, new, cache))
    if isinstance(start, Tensor):
        if start.dtype != torch.int32 or start.shape != (cache.batch,):
            shown = f"{start.dtype} {list(start.shape)}"
            raise InvalidArgument(f"cache_seqlens is {shown}: must be torch.int32 [{cache.batch}]")
        _on_one_device("cache_seqlens", start, cache.k)
        _check_contents(start, new, cache, check_contents)
    if k is None:
        return start
    for name, stored, fresh in (("k", cache.k, k), ("v", cache.v, v)):
        _check_append(name, stored, fresh, cache.batch, new)
    return torch.where(_fits(start, new, cache), start + new, -1) if isinstance(start, Tensor) else start + new


def first_places(cache: Cache, new: int, start) -> Tensor:
    """The positions of the first new tokens, for rapt.kv_append(starts=...). If the tokens of a sequence do not fit
    into the cache, all their positions are negative. So they are skipped.
    """
    if isinstance(start, Tensor):
        return torch.where(_fits(start, new, cache), start, -new)
    return torch.full((cache.batch,), start, dtype=torch.int32, device=cache.k.device)


def _outside(name: str, start: int, new: int, cache: Cache) -> str:
    last = cache.capacity - new
    if last < 0:
        return f"{name} is {start}: {new} new tokens do not fit into a cache of {cache.capacity}"
    return f"{name} is {start}: must be 0 to {last}, for {new} new tokens and a cache of {cache.capacity}"


def _check_contents(start: Tensor, new: int, cache: Cache, check_contents: bool) -> None:
    """Checks the lengths in a tensor: always on the CPU, and on a GPU only if check_contents. While torch.compile
    traces, there are no contents to check.
    """
    if is_dynamo_compiling() or type(start) is not Tensor or not (check_contents or start.device.type == "cpu"):
        return
    if start.is_cuda and torch.cuda.is_current_stream_capturing():
        raise Unsupported(
            "check_contents is True: must be False while a CUDA graph is captured, because it waits for the GPU"
        )
    for at, length in enumerate(start.tolist()):
        if not 0 <= length <= cache.capacity - new:
            raise InvalidArgument(_outside(f"cache_seqlens[{at}]", length, new, cache))


def _check_append(name: str, cache: Tensor, fresh: Tensor, batch: int, new: int) -> None:
    """Raises if the new tokens cannot be written to the cache."""
    expected = [batch, new, *cache.shape[2:]]
    if list(fresh.shape) != expected or (fresh.dtype != cache.dtype and cache.dtype not in FP8):
        raise InvalidArgument(
            f"{name} is {fresh.dtype} {list(fresh.shape)}: must be {cache.dtype} {expected}, "
            f"as {name}_cache is {list(cache.shape)}"
        )
    _on_one_device(name, fresh, cache)
    if any(stride == 0 and size > 1 for stride, size in zip(cache.stride(), cache.shape)):
        raise InvalidArgument(
            f"{name}_cache has strides {list(cache.stride())}: must have no stride of 0, because each token is written "
            "to its own place"
        )
    if cache.requires_grad and torch.is_grad_enabled():
        raise InvalidArgument(f"{name}_cache requires a gradient: must not, because it is written in place")


def _on_one_device(name: str, tensor: Tensor, cache: Tensor) -> None:
    if tensor.device != cache.device:
        raise InvalidArgument(f"{name} is on {tensor.device}: must be on the caches' device, {cache.device}")


def _fits(start: Tensor, new: int, cache: Cache) -> Tensor:
    return (start >= 0) & (start <= cache.capacity - new)
