"""The forward functions of FlashAttention-2, computed by rapt.sdpa. Names, order of parameters and order of dimensions
([batch, seqlen, heads, dim]) are those of FlashAttention-2.

For code with `from flash_attn import flash_attn_func`. All functions here differ from the original in these points:
- all dtypes and head dims of rapt.sdpa are allowed (also float32 and FP8); there is no backward yet: calling it raises;
- softmax_lse of a query that sees no key is -inf; in the original it is +inf (the output is 0 in both);
- dropout_p must be 0; `deterministic` has no effect, because a forward pass always repeats bit for bit;
- return_attn_probs=True returns (out, softmax_lse, None), because the probabilities are never computed;
- the keywords q_descale, k_descale and v_descale are those of FlashAttention-3: each is float32 [batch, heads_k], also
  for q.
Without check_contents no function reads the contents of GPU tensors, so all calls can be captured in a CUDA graph.
Errors use rapt.sdpa's names of arguments.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from .. import prepare
from .. import sdpa as attention
from .._errors import InvalidArgument, Unsupported
from ._shared import append, descales, expect, length_in_use, refuse, refuse_dropout, scores

__all__ = [
    "flash_attn_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_kvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_with_kvcache",
]

Result = Tensor | tuple[Tensor | None, ...]  # out, or (out, softmax_lse), or (out, softmax_lse, None)


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    *,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
) -> Result:
    """Attention of q [batch, seqlen_q, heads_q, head_dim] over k, v [batch, seqlen_k, heads_k, head_dim or head_dim_v].

    Args:
        dropout_p: must be 0.
        softmax_scale: any finite number. Default: 1 / sqrt(head_dim).
        causal: True: query i sees keys j <= i + seqlen_k - seqlen_q (bottom right corner).
        window_size: (left, right): query i sees keys j with i + off - left <= j <= i + off + right, where
            off = seqlen_k - seqlen_q. -1 means no limit on this side.
        softcap: scores x become softcap * tanh(x / softcap). 0.0 means no soft cap.
        alibi_slopes: float32 [heads_q] or [batch, heads_q]: -slope * |i + off - j| is added.
        deterministic, return_attn_probs, q_descale, k_descale, v_descale: see the top of this module.

    Returns:
        out: [batch, seqlen_q, heads_q, head_dim_v] in q's dtype (for FP8, rapt.sdpa's rule gives the dtype). With
        return_attn_probs: (out, softmax_lse, None). softmax_lse is float32 [batch, heads_q, seqlen_q], the natural
        logarithm.

    Raises: Unsupported for dropout_p; otherwise like rapt.sdpa.
    """
    refuse_dropout("dropout_p", dropout_p)
    result = attention(
        q,
        k,
        v,
        layout="bshd",
        causal=causal,
        scale=softmax_scale,
        lse=return_attn_probs,
        **scores(window_size, softcap, alibi_slopes),
        **descales(q, k, q_descale, k_descale, v_descale),
    )
    return (*result, None) if return_attn_probs else result


def flash_attn_qkvpacked_func(
    qkv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Result:
    """flash_attn_func on views of qkv [batch, seqlen, 3, heads, head_dim]."""
    expect("qkv", qkv, 5, 2, 3)
    return flash_attn_func(
        *qkv.unbind(2),
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
    )


def flash_attn_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Result:
    """flash_attn_func on q and views of kv [batch, seqlen_k, 2, heads_k, head_dim]."""
    expect("kv", kv, 5, 2, 2)
    return flash_attn_func(
        q,
        *kv.unbind(2),
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
    )


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
    *,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
) -> Result:
    """flash_attn_func over sequences of different lengths, packed one after the other.

    Args:
        q: [total_q, heads_q, head_dim]; k, v: [total_k, heads_k, head_dim or head_dim_v].
        cu_seqlens_q, cu_seqlens_k: int32 [batch + 1] on q's device: sequence b is rows cu[b] to cu[b + 1].
        max_seqlen_q, max_seqlen_k: int, the length of the longest sequence.
        block_table: int32 [batch, pages]: k and v are a paged cache [num_pages, page_size, heads_k, ...]. Key j of
            sequence b is row j % page_size of page block_table[b, j // page_size]. cu_seqlens_k then only gives the
            lengths.
        Other arguments: as in flash_attn_func; seqlen_q and seqlen_k are the lengths of each sequence.

    Returns:
        out [total_q, heads_q, head_dim_v], or (out, softmax_lse float32 [heads_q, total_q], None).
        Rows of out after the last sequence are 0.
    """
    refuse_dropout("dropout_p", dropout_p)
    keys: dict[str, Any] = {"cu_seqlens_k": cu_seqlens_k}
    cache = k  # has the heads in the last but one dimension
    if block_table is not None:
        keys = {"block_table": block_table, "seqused_k": cu_seqlens_k[1:] - cu_seqlens_k[:-1]}
        k, v = k.transpose(1, 2), v.transpose(1, 2)
    result = attention(
        q,
        k,
        v,
        causal=causal,
        scale=softmax_scale,
        lse=return_attn_probs,
        cu_seqlens_q=cu_seqlens_q,
        **keys,
        max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k,
        **scores(window_size, softcap, alibi_slopes),
        **descales(q, cache, q_descale, k_descale, v_descale),
    )
    return (*result, None) if return_attn_probs else result


def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Result:
    """flash_attn_varlen_func on views of qkv [total, 3, heads, head_dim]."""
    expect("qkv", qkv, 4, 1, 3)
    return flash_attn_varlen_func(
        *qkv.unbind(1),
        cu_seqlens,
        cu_seqlens,
        max_seqlen,
        max_seqlen,
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
    )


def flash_attn_varlen_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Result:
    """flash_attn_varlen_func on q and views of kv [total_k, 2, heads_k, head_dim]."""
    expect("kv", kv, 4, 1, 2)
    return flash_attn_varlen_func(
        q,
        *kv.unbind(1),
        cu_seqlens_q,
        cu_seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
    )


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_seqlens: int | Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    block_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
    *,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    check_contents: bool = False,
) -> Result:
    """Attention over the used part of a KV cache. If k and v are given, it first appends them in place.

    Args:
        q: [batch, seqlen_q, heads_q, head_dim].
        k_cache, v_cache: [batch, seqlen_cache, heads_k, head_dim or head_dim_v].
        k, v: [batch, seqlen_new, heads_k, ...] with the dtypes of the caches. Before attention they are written to
            k_cache and v_cache at position cache_seqlens, by PyTorch operations on the current stream. Give both or
            neither.
        cache_seqlens: number of tokens in the cache before the append: an int for all sequences, or int32 [batch] on
            q's device. None (only without k and v) means the full cache. With k and v it must be in the range 0 to
            seqlen_cache - seqlen_new. An int, or a tensor on the CPU, is checked before anything is written. A tensor
            on a GPU, or under torch.compile, is not checked: for a sequence whose length is not in the range nothing is
            written, and on a GPU its out is 0 and its lse is -inf.
        check_contents: True: a tensor on a GPU is checked, too, which waits for the GPU.
        num_splits: number of parts into which the keys are split. 0: the planner decides.
        rotary_cos, rotary_sin, cache_batch_idx, cache_leftpad: not supported; rotary_interleaved has no effect.
        block_table: int32 [batch, pages]: k_cache and v_cache are a paged cache [num_pages, page_size, heads_k, ...].
            Key j of sequence b is row j % page_size of page block_table[b, j // page_size]. Not with k and v.
        Other arguments: as in flash_attn_func; seqlen_k is the length of each sequence after the append.

    Returns:
        out [batch, seqlen_q, heads_q, head_dim_v], or (out, softmax_lse float32 [batch, heads_q, seqlen_q]).

    Raises: Unsupported for unsupported arguments, InvalidArgument for wrong k, v or cache_seqlens; otherwise like
    rapt.sdpa. Append and attention are two steps. If rapt.sdpa would raise, it raises before the append (except under
    torch.compile).
    """
    refuse(
        rotary_cos=rotary_cos,
        rotary_sin=rotary_sin,
        cache_batch_idx=cache_batch_idx,
        cache_leftpad=cache_leftpad,
    )
    if block_table is not None and (k is not None or v is not None):
        raise Unsupported("k and v are given with block_table: appending to a paged cache is not supported yet")
    if (k is None) != (v is None):
        raise InvalidArgument("k and v: give both or neither")
    if k_cache.shape[1] != v_cache.shape[1]:
        raise InvalidArgument(f"v_cache has {v_cache.shape[1]} places: must have k_cache's {k_cache.shape[1]}")
    keys, values = k_cache, v_cache
    if block_table is not None:
        used = cache_seqlens
        if isinstance(used, int):
            most = block_table.shape[-1] * k_cache.shape[1]
            if isinstance(used, bool) or not 0 <= used <= most:
                raise InvalidArgument(
                    f"cache_seqlens is {used}: must be from 0 to {most}, the keys of block_table's pages"
                )
            used = torch.full((q.shape[0],), used, dtype=torch.int32, device=q.device)
    else:
        used = length_in_use(k_cache, v_cache, k, v, cache_seqlens, check_contents)
    if isinstance(used, int):  # all sequences have the same length, so a view of the cache is sufficient
        keys, values, used = k_cache[:, :used], v_cache[:, :used], None
    options = dict(
        layout="bshd",
        causal=causal,
        scale=softmax_scale,
        lse=return_softmax_lse,
        seqused_k=used,
        splits=None if num_splits == 0 else num_splits,
        check_contents=check_contents,
        **({} if block_table is None else {"block_table": block_table}),
        **scores(window_size, softcap, alibi_slopes),
        **descales(q, keys, q_descale, k_descale, v_descale),
    )
    if k is not None:
        if not is_dynamo_compiling():
            prepare(q, keys, values, **options)
        append(k_cache, k, cache_seqlens)
        append(v_cache, v, cache_seqlens)
    return attention(q, keys, values, **options)
