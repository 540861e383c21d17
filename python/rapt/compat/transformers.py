"""Attention for Hugging Face transformers (5.x, tried with 5.24.0): attn_implementation="rapt" after register().

    import rapt.compat
    rapt.compat.transformers.register()
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="rapt")  # or set_attn_implementation("rapt")

Importing this registers nothing and does not import transformers, whose models then call forward() for each layer.
"""

from __future__ import annotations

from typing import Any

import torch

from .. import sdpa as attention
from .._errors import EnvironmentLacking, InvalidArgument, Unsupported
from ._shared import refuse_dropout
from ._transformers_models import mask_maker, watch

# What models pass to attention that changes its result, and that "rapt" does not have.
REFUSED = {
    "output_attentions": "the weights are never formed; use attn_implementation='eager' to see them",
    "head_mask": "use attn_implementation='eager'",
    "indices": "a sparse choice of keys; use attn_implementation='sdpa'",
    "block_indices": "a sparse choice of blocks of keys; use attn_implementation='sdpa'",
    "sinks": "sinks of each token; use attn_implementation='eager'",
    "cache": "there is no paged KV cache yet",
}

# What arrives beyond forward()'s own parameters and says nothing that attention needs: where tokens are (rotary
# embeddings are applied before), bounds of lengths, and what is for the model around it. All other names are refused.
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
    """Makes attn_implementation=`name` known to transformers. Calling it again changes nothing.

    Masks are made by the function that makes those of "sdpa": padding, sliding windows and packed sequences arrive as
    bool [batch, 1, seqlen_q, seqlen_k], and no mask at all where is_causal says it.

    A model class that computes its scores itself would add such a mask to them: it is refused, by Unsupported, where
    the implementation is asked of it (PreTrainedModel.get_correct_attn_implementation, which register wraps), and once
    more where it asks for a mask.

    Raises: EnvironmentLacking where transformers is missing or too old to have the interfaces.
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
        query: [batch, heads_q, seqlen_q, head_dim]; key, value: [batch, heads_k, seqlen_k, ...], not repeated for GQA.
        attention_mask: bool (True keeps), or floating (added to the scores), broadcast to [batch, heads_q, seqlen_q,
            seqlen_k]. Where it is given it holds all there is of causality and window. None: all is seen, or causal
            from the top left corner if is_causal and seqlen_q > 1, as with "sdpa".
        dropout: must be 0, so with attention dropout above 0 a model runs in eval() only.
        scaling: None is 1 / sqrt(head_dim).
        is_causal: None is the module's own is_causal, which is True where it has none.
        sliding_window: keys that a query sees to its left, itself included, and to its right where that is not hidden;
            used where there is no mask.
        softcap: scores x become softcap * tanh(x / softcap).
        s_aux: sinks [heads_q]; converted to float32, exactly.
        position_bias: added to the scores, broadcast to [batch, heads_q, seqlen_q, seqlen_k].
        cu_seq_lens_q, cu_seq_lens_k: where the sequences begin that are packed in the batch's rows, laid one after the
            other; int32 or int64 [count + 1], and one of them is enough if seqlen_q = seqlen_k. Only together with
            attention_mask; a query sees what is left of it in its own sequence.
        seq_idx: the number of each token's sequence, [batch, seqlen]; otherwise like these, with seqlen_q = seqlen_k.
        others: names of WITHOUT_EFFECT; any other must be None or False.

    Returns:
        The output [batch, seqlen_q, heads_q, head_dim_v], contiguous, and None for the weights.

    Raises: Unsupported for dropout, REFUSED and whatever is not known; else what rapt.sdpa raises, in its names.

    Differences from "sdpa": softcap and s_aux, which "sdpa" drops, are applied as "eager" does. A query that sees no
    key (a padded one) gives 0. Key and value heads are never repeated in memory.
    """
    _refuse(dropout, attention_mask, others)
    seqlen_q, seqlen_k = query.shape[2], key.shape[2]
    attention_mask = _apart(attention_mask, query, key, cu_seq_lens_q, cu_seq_lens_k, seq_idx)
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    options: dict[str, Any] = {}
    if attention_mask is None:
        if causal and seqlen_q > 1:  # one query is the last: it sees all
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


def _apart(attention_mask, query, key, cu_seq_lens_q, cu_seq_lens_k, seq_idx):
    """The mask that also keeps sequences apart which are packed in one row."""
    if cu_seq_lens_q is None and cu_seq_lens_k is None and seq_idx is None:
        return attention_mask
    name = "seq_idx" if seq_idx is not None else "cu_seq_lens_q" if cu_seq_lens_q is not None else "cu_seq_lens_k"
    if attention_mask is None:
        raise InvalidArgument(
            f"{name} is given without attention_mask: sequences packed in one row must come "
            "with the mask that keeps them apart"
        )
    (batch, _, seqlen_q, _), seqlen_k = query.shape, key.shape[2]
    if (seq_idx is not None or cu_seq_lens_q is None or cu_seq_lens_k is None) and seqlen_q != seqlen_k:
        raise InvalidArgument(
            f"{name} is given alone with {seqlen_q} queries and {seqlen_k} keys: must be as many, or cu_seq_lens_q and "
            "cu_seq_lens_k be given"
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
    """The number of each token's sequence, the batch's rows one after the other: [batch, seqlen]."""
    places = torch.arange(batch * seqlen, device=starts.device, dtype=starts.dtype).view(batch, seqlen)
    return torch.searchsorted(starts, places, right=True)
