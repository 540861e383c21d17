"""Fronts of rapt.sdpa with other people's signatures, on PyTorch tensors; each says where it differs from its original.

    from rapt.compat import sdpa                                  # torch.nn.functional.scaled_dot_product_attention
    from rapt.compat.flash_attn import flash_attn_func            # FlashAttention-2, and its varlen and KV-cache calls
    rapt.compat.transformers.register()                           # attn_implementation="rapt" of transformers

Imported by the user, never by rapt itself; imports PyTorch, but neither flash_attn nor transformers.
"""

from . import flash_attn, transformers
from ._sdpa import sdpa

__all__ = ["sdpa", "flash_attn", "transformers"]
