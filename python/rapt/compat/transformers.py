"""Attention for Hugging Face transformers (5.x, tested with 5.24.0): attn_implementation="rapt" after register().

    import rapt.compat
    rapt.compat.transformers.register()
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="rapt")  # or set_attn_implementation("rapt")

Importing this module registers nothing and does not import transformers. After register(), models of transformers call
forward() for each layer.
"""

from __future__ import annotations

from typing import Any

import torch

from .. import sdpa as attention
from .._errors import EnvironmentLacking, InvalidArgument, Unsupported
from ._shared import refuse_dropout
from ._transformers_models import mask_maker, watch

# Arguments that models pass, that change the result of attention, and that "rapt" does not support.
REFUSED = {
    "output_attentions": "the weights are never computed; use attn_implementation='eager' to see them",
    "head_mask": "use attn_implementation='eager'",
    "indices": "a sparse selection of keys; use attn_implementation='sdpa'",
    "block_indices": "a sparse selection of blocks of keys; use attn_implementation='sdpa'",
    "sinks": "sinks for each token; use attn_implementation='eager'",
    "cache": "there is no paged KV cache yet",
}

# Arguments that have no effect on attention: token positions (models apply rotary embeddings before attention), maximum
# lengths, and options of other parts of the model. All other names are refused.
WITHOUT_EFFECT = frozenset(
    (
        "position_ids",
        "cache_position",
        "max_length_q",
        "max_length_k",
        "deterministic",
        "use_cache",
        "return_dict",
        "output_hidden_states",
        "output_router_logits",
        "num_items_in_batch",
        "logits_to_keep",
        "input_ids",
        "grid_thw",
    )
)


def register(name: str = "rapt") -> None:
    """Registers attn_implementation=`name` with transformers. Calling it again changes nothing.

    transformers makes the masks as for "sdpa": padding, sliding windows and packed sequences become a mask of type
    bool [batch, 1, seqlen_q, seqlen_k], or no mask if is_causal is sufficient. Only models that add their own terms to
    the mask get a floating-point mask, as for "eager".

    Some model classes compute their scores themselves. They would add a mask of True and False to the scores, which is
    wrong. For them Unsupported is raised when the implementation is requested (register wraps
    PreTrainedModel.get_correct_attn_implementation), and again when the model requests a mask.

    Raises: EnvironmentLacking if transformers is missing or too old.
    """
    try:
        from transformers import AttentionInterface, AttentionMaskInterface

        watch(name)
        mask = mask_maker(name)
    except (ImportError, AttributeError) as error:
        raise EnvironmentLacking(
            f"transformers: register({name!r}) needs version 5, and importing it failed: {error}"
        ) from error
    AttentionInterface.register(name, forward)
    AttentionMaskInterface.register(name, mask)


def forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    position_bias: torch.Tensor | None = None,
    cu_seq_lens_q: torch.Tensor | None = None,
    cu_seq_lens_k: torch.Tensor | None = None,
    seq_idx: torch.Tensor | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """One attention layer, called by transformers.

    Args:
        query: [batch, heads_q, seqlen_q, head_dim].
        key, value: [batch, heads_k, seqlen_k, ...], not repeated for GQA.
        attention_mask: bool (True keeps a key) or floating-point (added to the scores). It is broadcast to [batch,
            heads_q, seqlen_q, seqlen_k]. It already includes causality and window. None: if is_causal and seqlen_q > 1,
            attention is causal (top left); otherwise a query sees all keys. "sdpa" has the same rule.
        dropout: must be 0. A model with attention dropout therefore runs only in eval().
        scaling: default: 1 / sqrt(head_dim).
        is_causal: default: the module's is_causal, or True if it has none.
        sliding_window: the window: a query sees its own key and sliding_window - 1 keys before it; without causality
            also sliding_window - 1 keys after it. Used only without attention_mask.
        softcap: scores x become softcap * tanh(x / softcap).
        s_aux: sinks [heads_q]. They are converted to float32, which is exact.
        position_bias: added to the scores, broadcast to [batch, heads_q, seqlen_q, seqlen_k].
        cu_seq_lens_q, cu_seq_lens_k: start positions of packed sequences, int32 or int64 [count + 1]. Positions count
            the tokens of all rows of the batch, one row after the other. A query sees only keys of its own sequence, as
            far as attention_mask allows. attention_mask is required. If seqlen_q = seqlen_k, one of the two is
            sufficient.
        seq_idx: the number of each token's sequence, [batch, seqlen]. Used like cu_seq_lens_q and cu_seq_lens_k; needs
            seqlen_q = seqlen_k.
        others: arguments in WITHOUT_EFFECT are ignored. All others must be None or False.

    Returns:
        The output [batch, seqlen_q, heads_q, head_dim_v], contiguous, and None for the weights.

    Raises: Unsupported for dropout, for arguments in REFUSED and for unknown arguments; otherwise like rapt.sdpa, with
    its names of arguments.

    Differences from "sdpa": softcap and s_aux, which "sdpa" ignores, have the same effect as with "eager". A query that
    sees no key (a padded query) gives 0. Key and value heads are never repeated in memory.
    """
    _refuse(dropout, attention_mask, others)
    seqlen_q, seqlen_k = query.shape[2], key.shape[2]
    attention_mask = _separate_sequences(attention_mask, query, key, cu_seq_lens_q, cu_seq_lens_k, seq_idx)
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    options: dict[str, Any] = {}
    if attention_mask is None:
        if causal and seqlen_q > 1:  # a single query has the last position, so it sees all keys
            options["causal"] = "top_left"
        if sliding_window is not None and seqlen_k > sliding_window:
            options["window"] = (sliding_window - 1, sliding_window - 1)
        options["bias"] = position_bias
    elif attention_mask.dtype == torch.bool:
        options.update(mask=attention_mask, bias=position_bias)
    else:
        options["bias"] = attention_mask if position_bias is None else attention_mask + position_bias
    sinks = None if s_aux is None else s_aux.float()
    out = attention(query, key, value, scale=scaling, softcap=softcap, sinks=sinks, **options)
    return out.transpose(1, 2).contiguous(), None


def _refuse(dropout: float, attention_mask: Any, others: dict[str, Any]) -> None:
    refuse_dropout("dropout", dropout)
    if attention_mask is not None and not isinstance(attention_mask, torch.Tensor):
        raise InvalidArgument(f"attention_mask is a {type(attention_mask).__name__}: must be None or a tensor")
    for name, value in others.items():
        if name in WITHOUT_EFFECT or value is None or value is False:
            continue
        why = REFUSED.get(name, "rapt does not know it; use attn_implementation='eager'")
        raise Unsupported(f"{name} is given: {why}")


def _separate_sequences(attention_mask, query, key, cu_seq_lens_q, cu_seq_lens_k, seq_idx):
    """The mask that also separates sequences packed in one row."""
    if cu_seq_lens_q is None and cu_seq_lens_k is None and seq_idx is None:
        return attention_mask
    name = "seq_idx" if seq_idx is not None else "cu_seq_lens_q" if cu_seq_lens_q is not None else "cu_seq_lens_k"
    if attention_mask is None:
        raise InvalidArgument(
            f"{name} is given without attention_mask: sequences packed in one row need the mask that separates them"
        )
    (batch, _, seqlen_q, _), seqlen_k = query.shape, key.shape[2]
    if (seq_idx is not None or cu_seq_lens_q is None or cu_seq_lens_k is None) and seqlen_q != seqlen_k:
        raise InvalidArgument(
            f"{name} is given alone with {seqlen_q} queries and {seqlen_k} keys: must be equal, or pass "
            "both cu_seq_lens_q and cu_seq_lens_k"
        )
    same = torch.ones((), dtype=torch.bool, device=query.device)
    if seq_idx is not None:
        same = seq_idx[:, None, :, None] == seq_idx[:, None, None, :]
    if cu_seq_lens_q is not None or cu_seq_lens_k is not None:
        numbers_q = _numbers(cu_seq_lens_k if cu_seq_lens_q is None else cu_seq_lens_q, batch, seqlen_q)
        numbers_k = _numbers(cu_seq_lens_q if cu_seq_lens_k is None else cu_seq_lens_k, batch, seqlen_k)
        same = same & (numbers_q[:, None, :, None] == numbers_k[:, None, None, :])
    if attention_mask.dtype == torch.bool:
        return attention_mask & same
    return torch.where(same, attention_mask, float("-inf"))


def _numbers(starts: torch.Tensor, batch: int, seqlen: int) -> torch.Tensor:
    """The number of each token's sequence, [batch, seqlen]. `starts` count the tokens of all rows, one row after the
    other.
    """
    places = torch.arange(batch * seqlen, device=starts.device, dtype=starts.dtype).view(batch, seqlen)
    return torch.searchsorted(starts, places, right=True)
