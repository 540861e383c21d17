"""Common parts of the Python tests: the installed frameworks, a float64 reference, error bounds.

The reference implements docs/semantics.md in NumPy, one plain formula after another. Tests of missing frameworks are
skipped, and GPU tests without a GPU; pytest counts both.
"""

import math
import os

import numpy as np
import pytest
from frameworks import framework  # noqa: F401

# By default JAX takes three quarters of a GPU's memory in each process, but tests run in parallel.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

ROUNDOFF = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


def reference(
    q,
    k,
    v,
    *,
    causal=False,
    window=None,
    softcap=None,
    bias=None,
    mask=None,
    alibi_slopes=None,
    sinks=None,
    scale=None,
    q_start=None,
    k_start=None,
):
    """(out, lse) in float64; q [b, h, s, d], k and v [b, hk, s, d]."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    batch, heads, seqlen_q, head_dim = q.shape
    seqlen_k = k.shape[2]
    k, v = (np.repeat(x, heads // x.shape[1], axis=1) for x in (k, v))
    x = np.einsum("bhid,bhjd->bhij", q, k) * (1 / math.sqrt(head_dim) if scale is None else scale)
    if softcap is not None:
        x = softcap * np.tanh(x / softcap)
    if bias is not None:
        x = x + np.asarray(bias, np.float64)
    i, j = np.arange(seqlen_q)[:, None], np.arange(seqlen_k)[None, :]
    off = 0 if causal == "top_left" else seqlen_k - seqlen_q
    if q_start is not None or k_start is not None:
        off = (q_start or 0) - (k_start or 0)
    if alibi_slopes is not None:
        x = x - np.asarray(alibi_slopes, np.float64).reshape(-1, heads, 1, 1) * np.abs(i + off - j)
    keep = np.ones((batch, heads, seqlen_q, seqlen_k), bool)
    if causal:
        keep &= j <= i + off
    if window is not None:
        left, right = window
        keep &= (left < 0) | (j >= i + off - left)
        keep &= (right < 0) | (j <= i + off + right)
    if mask is not None:
        keep &= np.asarray(mask, bool)
    x = np.where(keep, x, -np.inf)
    top = x.max(-1, keepdims=True, initial=-np.inf)
    if sinks is not None:
        top = np.maximum(top, np.asarray(sinks, np.float64).reshape(1, heads, 1, 1))
    top = np.where(np.isfinite(top), top, 0)
    p = np.exp(x - top)
    total = p.sum(-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(np.asarray(sinks, np.float64).reshape(1, heads, 1, 1) - top)
    with np.errstate(divide="ignore"):
        lse = (np.log(total) + top)[..., 0]
    return np.einsum("bhij,bhjd->bhid", p / np.where(total == 0, 1, total), v), lse


def assert_near(out, expected, dtype="float32"):
    """Expects the error to be within that of a plain implementation in this dtype, which rounds p and out and sums in
    float32.
    """
    out = np.asarray(out, np.float64)
    assert out.shape == expected.shape
    assert np.isfinite(out).all()
    bound = (16 if dtype == "float32" else 4) * ROUNDOFF[dtype]
    scale = np.abs(expected).max() if expected.size else 1
    assert np.abs(out - expected).max(initial=0) <= bound * max(scale, 1e-30)


@pytest.fixture
def rng():
    return np.random.default_rng(20261128)


@pytest.fixture
def qkv(rng):
    """make(b, h, hk, sq, sk, d, dv) -> float32 arrays q, k, v"""

    def make(batch=2, heads=4, heads_k=2, seqlen_q=17, seqlen_k=29, head_dim=24, head_dim_v=None):
        return (
            rng.standard_normal((batch, heads, seqlen_q, head_dim), dtype=np.float32),
            rng.standard_normal((batch, heads_k, seqlen_k, head_dim), dtype=np.float32),
            rng.standard_normal((batch, heads_k, seqlen_k, head_dim_v or head_dim), dtype=np.float32),
        )

    return make
