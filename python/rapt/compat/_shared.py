"""Common code of the modules in this folder: refuses unsupported arguments, converts FlashAttention's arguments to
those of rapt.sdpa, and appends to a KV cache.

No function here reads the contents of a GPU tensor on the host, except with check_contents.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from .._errors import InvalidArgument, Unsupported
from ._dropout import refuse_dropout as refuse_dropout


def refuse(**arguments) -> None:
    for name, value in arguments.items():
        if value is not None:
            raise Unsupported(f"{name} is given: must be None, rapt does not have it")


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


def length_in_use(k_cache, v_cache, k, v, start, check_contents: bool):
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
    last = k_cache.shape[1] - new
    if isinstance(start, int) and not 0 <= start <= last:
        raise InvalidArgument(_outside("cache_seqlens", start, new, k_cache))
    if isinstance(start, Tensor):
        if start.dtype != torch.int32 or start.shape != k_cache.shape[:1]:
            shown = f"{start.dtype} {list(start.shape)}"
            raise InvalidArgument(f"cache_seqlens is {shown}: must be torch.int32 [{k_cache.shape[0]}]")
        _on_one_device("cache_seqlens", start, k_cache)
        _check_contents(start, new, k_cache, check_contents)
    if k is None:
        return start
    for name, cache, fresh in (("k", k_cache, k), ("v", v_cache, v)):
        _check_append(name, cache, fresh, new)
    return torch.where(_fits(start, last), start + new, -1) if isinstance(start, Tensor) else start + new


def _outside(name: str, start: int, new: int, cache: Tensor) -> str:
    last, capacity = cache.shape[1] - new, cache.shape[1]
    if last < 0:
        return f"{name} is {start}: {new} new tokens do not fit into a cache of {capacity}"
    return f"{name} is {start}: must be 0 to {last}, for {new} new tokens and a cache of {capacity}"


def _check_contents(start: Tensor, new: int, cache: Tensor, check_contents: bool) -> None:
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
        if not 0 <= length <= cache.shape[1] - new:
            raise InvalidArgument(_outside(f"cache_seqlens[{at}]", length, new, cache))


def _check_append(name: str, cache: Tensor, fresh: Tensor, new: int) -> None:
    """Raises if the new tokens cannot be written to the cache."""
    expected = [cache.shape[0], new, *cache.shape[2:]]
    if list(fresh.shape) != expected or fresh.dtype != cache.dtype:
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


def _fits(start: Tensor, last: int) -> Tensor:
    return (start >= 0) & (start <= last)


def append(cache: Tensor, fresh: Tensor, start) -> None:
    """Sets cache[b, start[b] + i] = fresh[b, i] without reading the lengths on the host.

    For a sequence whose tokens do not fit into the cache, the old values are written again, so nothing changes.
    """
    new = fresh.shape[1]
    if isinstance(start, int):
        cache[:, start : start + new].copy_(fresh)
        return
    last = cache.shape[1] - new
    if last < 0 or new == 0:
        return
    if cache.element_size() == 1:  # FP8 is written as bytes, because some PyTorch versions cannot index FP8
        cache, fresh = cache.view(torch.uint8), fresh.view(torch.uint8)
    rows = torch.arange(cache.shape[0], device=cache.device).unsqueeze(1)
    first = start.long().clamp(0, last).unsqueeze(1)
    places = first + torch.arange(new, device=cache.device)
    fits = _fits(start, last).view(-1, 1, 1, 1)
    cache.index_put_((rows, places), torch.where(fits, fresh, cache[rows, places]))
