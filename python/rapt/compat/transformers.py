"""Attention for Hugging Face transformers (5.x, tried with 5.17.0): attn_implementation="rapt" after register().

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

# What models pass to attention that changes its result, and that "rapt" does not have. All else that arrives beyond
# forward()'s own parameters (position_ids, use_cache, ...) says nothing that attention needs.
REFUSED = {
    "output_attentions": "the weights are never formed; use attn_implementation='eager' to see them",
    "head_mask": "use attn_implementation='eager'",
    "indices": "a sparse choice of keys; use attn_implementation='sdpa'",
    "block_indices": "a sparse choice of blocks of keys; use attn_implementation='sdpa'",
    "cache": "there is no paged KV cache yet",
}


def register(name: str = "rapt") -> None:
    """Makes attn_implementation=`name` known to transformers. Calling it again changes nothing.

    Masks are made by the function that makes those of "sdpa": padding, sliding windows and packed sequences arrive as
    bool [batch, 1, seqlen_q, seqlen_k], and no mask at all where is_causal says it.

    Raises: EnvironmentLacking where transformers is missing or too old to have the two interfaces.
    """
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.masking_utils import sdpa_mask
    except ImportError as error:
        raise EnvironmentLacking(
            f"transformers: register({name!r}) needs version 5, and importing it failed: {error}"
        ) from error
    AttentionInterface.register(name, forward)
    AttentionMaskInterface.register(name, sdpa_mask)


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

    Returns:
        The output [batch, seqlen_q, heads_q, head_dim_v], contiguous, and None for the weights.

    Raises: Unsupported for dropout, output_attentions and others of REFUSED; else what rapt.sdpa raises, in its names.

    Differences from "sdpa": softcap and s_aux, which "sdpa" drops, are applied as "eager" does. A query that sees no
    key (a padded one) gives 0. Key and value heads are never repeated in memory.
    """
    _refuse(dropout, attention_mask, others)
    seqlen_q, seqlen_k = query.shape[2], key.shape[2]
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


def _refuse(dropout: float, attention_mask: torch.Tensor | None, others: dict[str, Any]) -> None:
    refuse_dropout("dropout", dropout)
    for name, why in REFUSED.items():
        value = others.get(name)
        if value is not None and value is not False:
            raise Unsupported(f"{name} is given: {why}")
    if attention_mask is None and others.get("cu_seq_lens_q") is not None:
        raise InvalidArgument(
            "cu_seq_lens_q is given without attention_mask: sequences packed in one row must come "
            "with the mask that keeps them apart"
        )
