"""rapt.kv_append and rapt.rotary_tables: signatures and checks of arguments, before a framework is called.

Exported by rapt/__init__.py. The work is done by _eager.py (for arrays that rapt._core reads) and _torch_kv.py.
torch.compile traces kv_append, so sizes may be symbolic.
"""

from __future__ import annotations

from typing import Any

from . import _core
from ._dispatch import backend_of
from ._errors import InvalidArgument
from ._values import BOOLS, LAYOUTS, integer, number, word

TOKEN_SCALES = {None: 0, "head": 2, "token": 3}
KINDS = {"default": 0, "linear": 1, "dynamic": 2, "yarn": 3, "llama3": 4}


def kv_append(
    k,
    v,
    k_cache,
    v_cache,
    *,
    seqused_k=None,
    starts=None,
    slot_mapping=None,
    block_table=None,
    cache_batch_idx=None,
    cu_seqlens_new=None,
    cos=None,
    sin=None,
    interleaved=False,
    positions=None,
    q=None,
    q_out=None,
    q_at_start=False,
    k_descale=None,
    v_descale=None,
    k_scales=None,
    v_scales=None,
    k_cache_dtype=None,
    v_cache_dtype=None,
    layout="bhsd",
    check_contents=False,
    context=None,
) -> Any:
    """Writes new keys and values into a KV cache, in place. Rotates k and q and quantises to FP8 on the way.

    Give exactly one of seqused_k, starts and slot_mapping: it says where the tokens go. A token with a negative
    position or slot is skipped. A place outside the cache, and two tokens with the same place, are errors on the CPU,
    and on a GPU with check_contents. Without it a GPU does not write tokens outside the cache.

    Args:
        k, v: the new tokens, float32, float16, bfloat16 or FP8 [batch, heads_k, seqlen_new, dim or dim_v] for layout
            "bhsd", [batch, seqlen_new, heads_k, ...] for "bshd"; packed [total, heads_k, ...] with cu_seqlens_new or
            slot_mapping. Any strides.
        k_cache, v_cache: dense [batch_cache, heads_k, capacity, dim or dim_v] ("bshd": [batch_cache, capacity, heads_k,
            ...]) or paged [num_pages, heads_k, page_size, ...] ("bshd": [num_pages, page_size, heads_k, ...]). The
            dtype is that of k and v, or FP8 with a descale.
        k_cache_dtype, v_cache_dtype: "e4m3" or "e5m2": the format of a uint8 cache.
        seqused_k: int32 or int64 [batch]: lengths before the append. Token i of sequence b has position
            seqused_k[b] + i.
        starts: int64 or int32 [batch]: the same, but may be negative.
        slot_mapping: int64 or int32 [batch, seqlen_new], packed [total]: page * page_size + row; in a dense cache,
            batch row * capacity + position.
        block_table: int32 [batch, pages], with seqused_k or starts: position p of sequence b is row p % page_size of
            page block_table[b, p // page_size].
        cache_batch_idx: int32 or int64 [batch]: the batch row of each sequence in a dense cache. Default: 0, 1, 2, ...
        cu_seqlens_new: int32 or int64 [batch + 1]: k and v are packed.
        cos, sin: float32, float16 or bfloat16 [positions, rotary_dim / 2]: rotate k and q (rotary_tables() makes them).
        interleaved: True: a rotary pair is channels (2 j, 2 j + 1); False: (j, j + rotary_dim / 2).
        positions: int64 or int32, shape of slot_mapping: rotary positions. Default: the positions in the cache.
            Required with cos and slot_mapping.
        q: float32, float16 or bfloat16 [batch, heads_q, seqlen_q, dim] (or as k): is rotated at the positions of the
            new tokens.
        q_out: the array for the rotated q. It may be q itself. Default: a new array.
        q_at_start: True: all queries of a sequence are rotated at its start.
        k_scales, v_scales: None; "head": k_descale is an input, float32 [batch, heads_k]; "token": k_descale is an
            output, one for each token and head, at the token's place: float32 [batch_cache, heads_k, capacity], with
            block_table or slot_mapping [num_pages, page_size, heads_k]. Old tokens never change.
        check_contents: True: on a GPU, too, the contents of lists and descales are checked. This waits for the GPU.
        context: a Context. Default: the process default.

    Returns: the rotated q, or None without q. It is not initialised where a query has a negative position.

    Raises: like sdpa(). A refused call writes nothing. There is no gradient. JAX's arrays cannot be changed, so JAX
    raises Unsupported.
    """
    for name, value in (("k_scales", k_scales), ("v_scales", v_scales)):
        word(name, value, TOKEN_SCALES)
    word("layout", layout, LAYOUTS)
    for name, value in (("interleaved", interleaved), ("q_at_start", q_at_start), ("check_contents", check_contents)):
        word(name, value, BOOLS)
    if q is None and q_out is not None:
        raise InvalidArgument("q_out: given without q")
    given = {
        "cu_seqlens_new": cu_seqlens_new,
        "seqused_k": seqused_k,
        "starts": starts,
        "slot_mapping": slot_mapping,
        "block_table": block_table,
        "cache_batch_idx": cache_batch_idx,
        "k_descale": k_descale,
        "v_descale": v_descale,
        "cos": cos,
        "sin": sin,
        "positions": positions,
        "q": q,
        "q_out": q_out,
        "k_scales": k_scales,
        "v_scales": v_scales,
        "layout": layout,
        "interleaved": interleaved,
        "q_at_start": q_at_start,
        "check_contents": check_contents,
        "k_cache_dtype": k_cache_dtype,
        "v_cache_dtype": v_cache_dtype,
        "context": context,
    }
    return backend_of(k, "k").kv_append(k, v, k_cache, v_cache, given)


def rotary_tables(
    positions,
    rotary_dim,
    *,
    kind="default",
    base=10000.0,
    factor=None,
    seqlen=None,
    original_max_position_embeddings=None,
    beta_fast=None,
    beta_slow=None,
    attention_factor=None,
    mscale=None,
    mscale_all_dim=None,
    low_freq_factor=None,
    high_freq_factor=None,
    truncate=True,
    first_position=0,
    like=None,
    context=None,
) -> Any:
    """Makes the tables cos and sin for kv_append(): float32 [positions, rotary_dim / 2].

    The rules and names of parameters are those of Hugging Face transformers. Angles are computed in float64 on the CPU,
    and the result is rounded once. docs/semantics.md gives the formulas.

    Args:
        positions: the number of rows. Row 0 is position first_position.
        rotary_dim: the number of rotated channels, even.
        kind: "default", "linear", "dynamic" (NTK), "yarn" or "llama3".
        base: above 1. In transformers: rope_theta.
        factor: required for all kinds but "default".
        seqlen: "dynamic": the longest length in use.
        original_max_position_embeddings: required for "dynamic", "yarn" and "llama3".
        beta_fast, beta_slow, attention_factor, mscale, mscale_all_dim, truncate: "yarn".
        low_freq_factor, high_freq_factor: "llama3", required.
        like: an array: the tables are arrays of its framework, on its device. Default: NumPy arrays.
        context: a Context, whose threads compute. Default: the process default.

    Returns: (cos, sin).
    """
    rows, dim = integer("positions", positions), integer("rotary_dim", rotary_dim)
    if rows < 0:
        raise InvalidArgument(f"positions = {rows}: must not be negative")
    if dim < 2 or dim % 2 != 0:
        raise InvalidArgument(f"rotary_dim = {dim}: must be even and at least 2")
    word("kind", kind, KINDS)
    word("truncate", truncate, BOOLS)
    values = (
        ("base", base),
        ("factor", factor),
        ("seqlen", seqlen),
        ("original_max_position_embeddings", original_max_position_embeddings),
        ("beta_fast", beta_fast),
        ("beta_slow", beta_slow),
        ("attention_factor", attention_factor),
        ("mscale", mscale),
        ("mscale_all_dim", mscale_all_dim),
        ("low_freq_factor", low_freq_factor),
        ("high_freq_factor", high_freq_factor),
    )
    for name, value in values:
        if value is not None:
            number(name, value)

    def fill(cos, sin) -> None:
        given = (value for _, value in values)
        _core.rotary_tables(cos, sin, kind, integer("first_position", first_position), truncate, context, *given)

    if like is None:
        import numpy

        like = numpy.empty(0, numpy.float32)
    return backend_of(like, "like").rotary_tables((rows, dim // 2), like, fill)
