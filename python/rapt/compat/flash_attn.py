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

from .. import kv_append, prepare
from .. import sdpa as attention
from .._errors import InvalidArgument
from ._shared import FP8, Cache, descales, expect, first_places, length_in_use, refuse_dropout, scores

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
        k_cache, v_cache: [batch_cache, seqlen_cache, heads_k, head_dim or head_dim_v]. With block_table: [num_pages,
            page_size, heads_k, ...].
        k, v: [batch, seqlen_new, heads_k, ...] with the dtypes of the caches. If a cache is FP8, they can also be
            float32, float16 or bfloat16: then they are divided by k_descale and v_descale. Before attention,
            rapt.kv_append writes them from position cache_seqlens on. Give both or neither.
        rotary_cos, rotary_sin: [positions, rotary_dim / 2], float32, float16 or bfloat16; only with k and v. k is
            rotated at positions cache_seqlens, cache_seqlens + 1, ..., and so is q if causal or window_size is given.
            Otherwise all queries are rotated at position cache_seqlens. q itself does not change.
        cache_seqlens: number of tokens in the cache before the append: an int for all sequences, or int32 [batch] on
            q's device. None (only without k and v) means the full cache. With k and v it must be in the range 0 to
            capacity - seqlen_new. An int, or a tensor on the CPU, is checked before anything is written. A tensor on a
            GPU, or under torch.compile, is not checked: for a sequence whose length is not in the range nothing is
            written, and on a GPU its out is 0 and its lse is -inf.
        cache_batch_idx: int32 [batch]: the batch row of each sequence in the caches. Default: 0, 1, 2, ... Not with
            block_table. With k and v its entries must differ.
        cache_leftpad: int32 [batch]: the first key of each sequence in the cache. The keys before it are masked.
            Positions of the rotary embedding do not change.
        block_table: int32 [batch, pages]: k_cache and v_cache are a paged cache. Key j of sequence b is row
            j % page_size of page block_table[b, j // page_size].
        rotary_interleaved: True: a rotary pair is channels (2 j, 2 j + 1). False: (j, j + rotary_dim / 2).
        num_splits: number of parts into which the keys are split. 0: the planner decides.
        check_contents: True: tensors on a GPU are checked, too, which waits for the GPU.
        Other arguments: as in flash_attn_func; seqlen_k is the length of each sequence after the append.

    Returns:
        out [batch, seqlen_q, heads_q, head_dim_v], or (out, softmax_lse float32 [batch, heads_q, seqlen_q]).

    Raises: InvalidArgument for wrong arguments; otherwise like rapt.sdpa and rapt.kv_append. Append and attention are
    two steps. If rapt.sdpa would raise, it raises before the append (except under torch.compile).
    """
    _check_kvcache(k_cache, v_cache, k, v, rotary_cos, rotary_sin, cache_batch_idx, block_table)
    table = block_table
    if cache_batch_idx is not None:  # attention reads a batch row of the cache as a page
        table = cache_batch_idx.view(-1, 1)
    pages = 1 if block_table is None else block_table.shape[-1]
    batch = k_cache.shape[0] if table is None else q.shape[0]
    cache = Cache(k_cache, v_cache, batch, pages * k_cache.shape[1])
    used = length_in_use(cache, k, v, cache_seqlens, check_contents)
    keys, values = k_cache, v_cache
    options: dict[str, Any] = {}
    longest = cache.capacity
    if table is not None:
        options["block_table"] = table
        if isinstance(used, int):
            used = torch.full((batch,), used, dtype=torch.int32, device=q.device)
    elif isinstance(used, int):  # all sequences have the same length, so a view of the cache is sufficient
        keys, values, used, longest = k_cache[:, :used], v_cache[:, :used], None, used
    if cache_leftpad is not None:
        options["mask"] = _keys_from(cache_leftpad, longest)
    options.update(
        layout="bshd",
        causal=causal,
        scale=softmax_scale,
        lse=return_softmax_lse,
        seqused_k=used,
        splits=None if num_splits == 0 else num_splits,
        check_contents=check_contents,
        **scores(window_size, softcap, alibi_slopes),
        **descales(q, keys, q_descale, k_descale, v_descale),
    )
    if k is not None:
        if not is_dynamo_compiling():
            prepare(q, keys, values, **options)
        rotated = kv_append(
            *(k, v, k_cache, v_cache),
            layout="bshd",
            starts=first_places(cache, k.shape[1], cache_seqlens),
            block_table=block_table,
            cache_batch_idx=cache_batch_idx,
            cos=rotary_cos,
            sin=rotary_sin,
            interleaved=rotary_interleaved and rotary_cos is not None,
            q=None if rotary_cos is None else q,
            q_at_start=rotary_cos is not None and not causal and tuple(window_size) == (-1, -1),
            check_contents=check_contents,
            **_quantisation("k", k, k_cache, k_descale),
            **_quantisation("v", v, v_cache, v_descale),
        )
        q = q if rotated is None else rotated
    return attention(q, keys, values, **options)


def _check_kvcache(k_cache, v_cache, k, v, rotary_cos, rotary_sin, cache_batch_idx, block_table) -> None:
    if (k is None) != (v is None):
        raise InvalidArgument("k and v: give both or neither")
    if k_cache.shape[1] != v_cache.shape[1]:
        raise InvalidArgument(f"v_cache has {v_cache.shape[1]} places: must have k_cache's {k_cache.shape[1]}")
    if (rotary_cos is None) != (rotary_sin is None):
        raise InvalidArgument("rotary_cos and rotary_sin: give both or neither")
    if rotary_cos is not None and k is None:
        raise InvalidArgument("rotary_cos: given without k and v; the keys in the cache are not rotated again")
    if cache_batch_idx is None:
        return
    if block_table is not None:
        raise InvalidArgument("cache_batch_idx: given with block_table, which names the pages of each sequence")
    if cache_batch_idx.dtype != torch.int32 or cache_batch_idx.ndim != 1:
        shown = f"{cache_batch_idx.dtype} {list(cache_batch_idx.shape)}"
        raise InvalidArgument(f"cache_batch_idx is {shown}: must be torch.int32 [batch]")


def _keys_from(leftpad: Tensor, longest: int) -> Tensor:
    """A mask [batch, 1, 1, keys] of the keys from leftpad on."""
    if leftpad.dtype != torch.int32 or leftpad.ndim != 1:
        shown = f"{leftpad.dtype} {list(leftpad.shape)}"
        raise InvalidArgument(f"cache_leftpad is {shown}: must be torch.int32 [batch]")
    return (torch.arange(longest, device=leftpad.device) >= leftpad[:, None])[:, None, None]


def _quantisation(name: str, fresh: Tensor, cache: Tensor, descale) -> dict[str, Any]:
    """The options with which rapt.kv_append quantises k or v to an FP8 cache, if it must."""
    if cache.dtype not in FP8 or fresh.dtype == cache.dtype:
        return {}
    if descale is None:
        raise InvalidArgument(f"{name} is {fresh.dtype}, but {name}_cache is {cache.dtype}: needs {name}_descale")
    return {f"{name}_scales": "head", f"{name}_descale": descale}
