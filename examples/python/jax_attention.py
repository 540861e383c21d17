"""Attention on JAX arrays, under jit: packed sequences of 5, 0 and 11 tokens."""

import jax
import jax.numpy as jnp

import rapt

keys = jax.random.split(jax.random.key(0), 3)
q, k, v = (jax.random.normal(key, (16, 4, 64)) for key in keys)  # total tokens, heads, head_dim
cu_seqlens = jnp.asarray([0, 5, 5, 16], jnp.int32)


@jax.jit
def attend(q, k, v):
    return rapt.sdpa(
        q, k, v, causal=True, cu_seqlens_q=cu_seqlens, cu_seqlens_k=cu_seqlens, max_seqlen_q=16, max_seqlen_k=16
    )


out = attend(q, k, v)
alone = rapt.sdpa(*(x[5:].swapaxes(0, 1)[None] for x in (q, k, v)), causal=True)[0].swapaxes(0, 1)
print("largest difference between a packed and a single sequence", jnp.abs(out[5:] - alone).max())
assert jnp.abs(out[5:] - alone).max() < 1e-5
