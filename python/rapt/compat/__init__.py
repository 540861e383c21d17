"""rapt.sdpa with the signatures of other libraries. Each function documents its differences from the original.

    rapt.compat.sdpa(query, key, value)                           # torch.nn.functional.scaled_dot_product_attention
    from rapt.compat.flash_attn import flash_attn_func            # FlashAttention-2, and its varlen and KV-cache calls
    rapt.compat.transformers.register()                           # attn_implementation="rapt" of transformers

Each is imported at its first use. sdpa takes the arrays that rapt.sdpa takes, and imports no framework. The others
import PyTorch, but they do not import flash_attn or transformers.
"""

from __future__ import annotations

import importlib

from ._sdpa import sdpa

__all__ = ["sdpa", "flash_attn", "transformers"]


def __getattr__(name: str):
    if name in ("flash_attn", "transformers"):
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
