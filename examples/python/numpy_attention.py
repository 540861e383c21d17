"""Attention on NumPy arrays: causal, with grouped heads and lse. Then the same keys in two parts, which are merged."""

import numpy as np

import rapt

rng = np.random.default_rng(0)
q = rng.standard_normal((2, 8, 64, 128), dtype=np.float32)  # batch, heads, seqlen, head_dim
k = rng.standard_normal((2, 2, 96, 128), dtype=np.float32)  # 8 query heads share 2 key heads
v = rng.standard_normal((2, 2, 96, 128), dtype=np.float32)

out, lse = rapt.sdpa(q, k, v, causal=True, lse=True)
print("out", out.shape, out.dtype, "lse", lse.shape)

# Attention over keys 0 to 39, and over keys 40 to 95, as if two machines of a ring held them. Query 0 has position 32.
parts = [
    rapt.sdpa(q, k[:, :, a:b], v[:, :, a:b], causal=True, q_start=32, k_start=a, partial=True)
    for a, b in ((0, 40), (40, 96))
]
merged = rapt.merge([part[0] for part in parts], [part[1] for part in parts])
print("largest difference after the merge", np.abs(merged - out).max())
assert np.abs(merged - out).max() < 1e-5

print(rapt.explain(q, k, v, causal=True))
