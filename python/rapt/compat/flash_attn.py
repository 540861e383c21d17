"""FlashAttention-2's forward calls over rapt.sdpa: its names, its order of parameters, its [batch, seqlen, heads, dim].

For code that says `from flash_attn import flash_attn_func`. Differences from the original, in every function here:
- dtypes and head dims are rapt.sdpa's (float32 and FP8 too); no backward yet: calling it raises;
- softmax_lse of a query that sees no key is -inf, the original's is +inf (both give 0 as output);
- dropout_p must be 0; `deterministic` may be either, since a forward pass always repeats bit for bit;
- return_attn_probs=True returns (out, softmax_lse, None): the probabilities are never formed;
- q_descale, k_descale, v_descale, by keyword, are FlashAttention-3's: float32 [batch, heads_k] each, q's too.
Nothing here looks into a tensor, so everything may be captured in a CUDA graph. Errors speak in rapt.sdpa's names.
"""
from __future__ import annotations

from typing import Any

import torch

from .. import sdpa as attention
from .._errors import InvalidArgument, Unsupported

__all__ = ["flash_attn_func", "flash_attn_qkvpacked_func", "flash_attn_kvpacked_func", "flash_attn_varlen_func",
           "flash_attn_varlen_qkvpacked_func", "flash_attn_varlen_kvpacked_func", "flash_attn_with_kvcache"]


def flash_attn_func(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
                    alibi_slopes=None, deterministic=False, return_attn_probs=False, *, q_descale=None, k_descale=None,
                    v_descale=None) -> Any:
    """Attention of q [batch, seqlen_q, heads_q, head_dim] over k, v [batch, seqlen_k, heads_k, head_dim or head_dim_v].

    Args:
        dropout_p: must be 0.
        softmax_scale: any finite number; None is 1 / sqrt(head_dim).
        causal: True: query i sees keys j <= i + seqlen_k - seqlen_q (bottom right corner).
        window_size: (left, right): query i sees i + off - left <= j <= i + off + right with that same
            off = seqlen_k - seqlen_q, both ends included; -1 is open.
        softcap: scores x become softcap * tanh(x / softcap); 0.0 is off.
        alibi_slopes: float32 [heads_q] or [batch, heads_q]: -slope * |i + off - j| is added.
        deterministic, return_attn_probs, q_descale, k_descale, v_descale: see the top of this module.

    Returns:
        out [batch, seqlen_q, heads_q, head_dim_v] in q's dtype (rapt.sdpa's rule for FP8), or with return_attn_probs
        (out, softmax_lse float32 [batch, heads_q, seqlen_q] by natural logarithm, None).

    Raises: Unsupported for dropout_p; else what rapt.sdpa raises.
    """
    _refuse_dropout(dropout_p)
    result = attention(q, k, v, layout="bshd", causal=causal, scale=softmax_scale, lse=return_attn_probs,
                       **_scores(window_size, softcap, alibi_slopes),
                       **_descales(q, k, q_descale, k_descale, v_descale))
    return (*result, None) if return_attn_probs else result


def flash_attn_qkvpacked_func(qkv, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
                              alibi_slopes=None, deterministic=False, return_attn_probs=False) -> Any:
    """flash_attn_func on views of qkv [batch, seqlen, 3, heads, head_dim]."""
    _expect("qkv", qkv, 5, 2, 3)
    return flash_attn_func(*qkv.unbind(2), dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes,
                           deterministic, return_attn_probs)


def flash_attn_kvpacked_func(q, kv, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
                             alibi_slopes=None, deterministic=False, return_attn_probs=False) -> Any:
    """flash_attn_func on q and views of kv [batch, seqlen_k, 2, heads_k, head_dim]."""
    _expect("kv", kv, 5, 2, 2)
    return flash_attn_func(q, *kv.unbind(2), dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes,
                           deterministic, return_attn_probs)


def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0,
                           softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None,
                           deterministic=False, return_attn_probs=False, block_table=None, *, q_descale=None,
                           k_descale=None, v_descale=None) -> Any:
    """flash_attn_func over sequences of different lengths, packed one after the other.

    Args:
        q: [total_q, heads_q, head_dim]; k, v: [total_k, heads_k, head_dim or head_dim_v].
        cu_seqlens_q, cu_seqlens_k: int32 [batch + 1] on q's device: sequence b is rows cu[b] to cu[b + 1].
        max_seqlen_q, max_seqlen_k: int: the longest sequence's length.
        block_table: refused: there is no paged KV yet.
        All others: as in flash_attn_func, lengths being each sequence's own.

    Returns:
        out [total_q, heads_q, head_dim_v], or (out, softmax_lse float32 [heads_q, total_q], None).
        Rows past cu_seqlens_q[-1] are 0.
    """
    _refuse_dropout(dropout_p)
    _refuse(block_table=block_table)
    result = attention(q, k, v, causal=causal, scale=softmax_scale, lse=return_attn_probs, cu_seqlens_q=cu_seqlens_q,
                       cu_seqlens_k=cu_seqlens_k, max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k,
                       **_scores(window_size, softcap, alibi_slopes),
                       **_descales(q, k, q_descale, k_descale, v_descale))
    return (*result, None) if return_attn_probs else result


def flash_attn_varlen_qkvpacked_func(qkv, cu_seqlens, max_seqlen, dropout_p=0.0, softmax_scale=None, causal=False,
                                     window_size=(-1, -1), softcap=0.0, alibi_slopes=None, deterministic=False,
                                     return_attn_probs=False) -> Any:
    """flash_attn_varlen_func on views of qkv [total, 3, heads, head_dim]."""
    _expect("qkv", qkv, 4, 1, 3)
    return flash_attn_varlen_func(*qkv.unbind(1), cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, dropout_p,
                                  softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic,
                                  return_attn_probs)


def flash_attn_varlen_kvpacked_func(q, kv, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0,
                                    softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
                                    alibi_slopes=None, deterministic=False, return_attn_probs=False) -> Any:
    """flash_attn_varlen_func on q and views of kv [total_k, 2, heads_k, head_dim]."""
    _expect("kv", kv, 4, 1, 2)
    return flash_attn_varlen_func(q, *kv.unbind(1), cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p,
                                  softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic,
                                  return_attn_probs)


def flash_attn_with_kvcache(q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None,
                            cache_batch_idx=None, cache_leftpad=None, block_table=None, softmax_scale=None,
                            causal=False, window_size=(-1, -1), softcap=0.0, rotary_interleaved=True,
                            alibi_slopes=None, num_splits=0, return_softmax_lse=False, *, q_descale=None,
                            k_descale=None, v_descale=None) -> Any:
    """Attention over the part of a KV cache that is in use, after k and v, where given, were appended to it in place.

    Args:
        q: [batch, seqlen_q, heads_q, head_dim].
        k_cache, v_cache: [batch, seqlen_cache, heads_k, head_dim or head_dim_v].
        k, v: [batch, seqlen_new, heads_k, ...], the cache's dtypes: written to k_cache, v_cache at cache_seqlens by
            PyTorch operations on the current stream, before attention. Both or neither.
        cache_seqlens: tokens in the cache before the append: an int for all sequences, or int32 [batch] on q's device;
            None (without k, v) is all of the cache. An int is checked. In a tensor, cache_seqlens + seqlen_new above
            seqlen_cache is PyTorch's error for an index out of range, on a GPU its device-side assertion.
        num_splits: 0 is the planner's choice; else the number of parts the keys are split in.
        rotary_cos, rotary_sin, cache_batch_idx, cache_leftpad: refused; rotary_interleaved without them has no meaning.
        block_table: refused: there is no paged KV yet.
        All others: as in flash_attn_func; seqlen_k is each sequence's length after the append.

    Returns:
        out [batch, seqlen_q, heads_q, head_dim_v], or (out, softmax_lse float32 [batch, heads_q, seqlen_q]).

    Raises: Unsupported for what is refused, InvalidArgument for k, v and cache_seqlens; else what rapt.sdpa raises.
    A call that rapt.sdpa refuses has appended k and v already: append and attention are two steps.
    """
    _refuse(rotary_cos=rotary_cos, rotary_sin=rotary_sin, cache_batch_idx=cache_batch_idx, cache_leftpad=cache_leftpad,
            block_table=block_table)
    if (k is None) != (v is None):
        raise InvalidArgument("k and v: must both be given, or neither")
    if k_cache.shape[1] != v_cache.shape[1]:
        raise InvalidArgument(f"v_cache has {v_cache.shape[1]} places: must have k_cache's {k_cache.shape[1]}")
    used = _append(k_cache, v_cache, k, v, cache_seqlens)
    if isinstance(used, int):  # the same length for all: a view of the cache says it
        k_cache, v_cache, used = k_cache[:, :used], v_cache[:, :used], None
    return attention(q, k_cache, v_cache, layout="bshd", causal=causal, scale=softmax_scale, lse=return_softmax_lse,
                     seqused_k=used, splits=None if num_splits == 0 else num_splits,
                     **_scores(window_size, softcap, alibi_slopes),
                     **_descales(q, k_cache, q_descale, k_descale, v_descale))


def _append(k_cache, v_cache, k, v, start):
    """Writes k and v, if there are any, to the caches from start on; the length in use then, None for all."""
    if start is not None and not isinstance(start, (int, torch.Tensor)):
        raise InvalidArgument(f"cache_seqlens is {start!r}: must be an int or an int32 tensor [batch]")
    if k is None:
        new = 0
    elif start is None:
        raise InvalidArgument("cache_seqlens is None: must be given with k and v, it says where they go")
    else:
        new = k.shape[1]
    if isinstance(start, int) and not 0 <= start <= k_cache.shape[1] - new:
        raise InvalidArgument(f"cache_seqlens is {start}: must be 0 to {k_cache.shape[1] - new}, for {new} new tokens "
                              f"and a cache of {k_cache.shape[1]}")
    if isinstance(start, torch.Tensor) and (start.dtype != torch.int32 or start.shape != k_cache.shape[:1]):
        shown = f"{start.dtype} {list(start.shape)}"
        raise InvalidArgument(f"cache_seqlens is {shown}: must be torch.int32 [{k_cache.shape[0]}]")
    if k is None:
        return start
    for name, cache, fresh in (("k", k_cache, k), ("v", v_cache, v)):
        expected = [cache.shape[0], new, *cache.shape[2:]]
        if list(fresh.shape) != expected or fresh.dtype != cache.dtype:
            raise InvalidArgument(f"{name} is {fresh.dtype} {list(fresh.shape)}: must be {cache.dtype} {expected}, as "
                                  f"{name}_cache is {list(cache.shape)}")
    _write(k_cache, k, start)
    _write(v_cache, v, start)
    return start + new


def _write(cache: torch.Tensor, fresh: torch.Tensor, start) -> None:
    """cache[b, start[b] + i] = fresh[b, i], without a look at the lengths on the host."""
    if isinstance(start, int):
        cache[:, start:start + fresh.shape[1]].copy_(fresh)
        return
    if cache.element_size() == 1:  # FP8: bytes are bytes, and every PyTorch can write them by index
        cache, fresh = cache.view(torch.uint8), fresh.view(torch.uint8)
    rows = torch.arange(cache.shape[0], device=cache.device).unsqueeze(1)
    places = start.long().unsqueeze(1) + torch.arange(fresh.shape[1], device=cache.device)
    cache.index_put_((rows, places), fresh)


def _refuse_dropout(dropout_p) -> None:
    if dropout_p != 0.0:  # NaN is not 0
        raise Unsupported(f"dropout_p is {dropout_p!r}: must be 0, rapt has no dropout")


def _refuse(**arguments) -> None:
    for name, value in arguments.items():
        if value is not None:
            why = "there is no paged KV yet" if name == "block_table" else "rapt does not have it"
            raise Unsupported(f"{name} is given: must be None, {why}")


def _scores(window_size, softcap, alibi_slopes) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if tuple(window_size) != (-1, -1):
        options["window"] = tuple(window_size)
    if softcap != 0.0:
        options["softcap"] = softcap
    if alibi_slopes is not None:
        options["alibi_slopes"] = alibi_slopes
    return options


def _descales(q, k, q_descale, k_descale, v_descale) -> dict[str, Any]:
    """rapt.sdpa's per-head factors: q has one for each of its own heads there."""
    heads_q, heads_k = q.shape[-2], k.shape[-2]
    if q_descale is not None and q_descale.ndim == 2 and 0 < heads_k == q_descale.shape[1] != heads_q:
        q_descale = q_descale.repeat_interleave(heads_q // heads_k, dim=1)
    options: dict[str, Any] = {}
    for name, factors in (("q", q_descale), ("k", k_descale), ("v", v_descale)):
        if factors is not None:
            options.update({f"{name}_descale": factors, f"{name}_scales": "head"})
    return options


def _expect(name: str, packed: torch.Tensor, rank: int, dim: int, size: int) -> None:
    if packed.ndim != rank or packed.shape[dim] != size:
        raise InvalidArgument(f"{name} is {list(packed.shape)}: must have {rank} dimensions, number {dim} being {size}")
