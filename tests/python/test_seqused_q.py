"""Tests seqused_q in every framework: rows after the queries in use have out = 0 and lse = -inf, whatever q holds
there.
"""

import numpy as np
import pytest

import rapt

USED = [3, 0]


@pytest.fixture
def tensors(rng):
    q = rng.standard_normal((2, 4, 5, 16)).astype(np.float32)
    k = rng.standard_normal((2, 2, 7, 16)).astype(np.float32)
    for b, used in enumerate(USED):
        q[b, :, used:] = np.nan
    return q, k, k[..., ::-1].copy()


def expected(q, k, v, **options):
    """The same result with one call for each sequence, which gets only the queries in use."""
    out, lse = np.zeros(q.shape, np.float64), np.full(q.shape[:3], -np.inf)
    for b, used in enumerate(USED):
        if used > 0:
            part = (np.ascontiguousarray(x[b : b + 1]) for x in (q[:, :, :used], k, v))
            out[b : b + 1, :, :used], lse[b : b + 1, :, :used] = rapt.sdpa(*part, lse=True, **options)
    return out, lse


@pytest.mark.parametrize("causal", [False, True, "top_left"])
def test_dense(framework, tensors, causal):
    wanted = expected(*tensors, causal=causal)
    used = framework.array(np.array(USED, np.int32))
    got = rapt.sdpa(*map(framework.array, tensors), seqused_q=used, causal=causal, lse=True)
    for have, want in zip(map(framework.numpy, got), wanted):
        np.testing.assert_allclose(have, want, rtol=1e-5, atol=1e-6)


def test_packed(framework, tensors):
    q, k, v = tensors
    packed = [np.ascontiguousarray(x.swapaxes(1, 2)).reshape(-1, *x.shape[1:2], 16) for x in (q, k, v)]
    lists = {"cu_seqlens_q": [0, 5, 10], "cu_seqlens_k": [0, 7, 14], "seqused_q": USED}
    options = {name: framework.array(np.array(values, np.int32)) for name, values in lists.items()}
    out = rapt.sdpa(*map(framework.array, packed), max_seqlen_q=5, max_seqlen_k=7, causal=True, **options)
    wanted = expected(q, k, v, causal=True)[0].swapaxes(1, 2).reshape(10, 4, 16)
    np.testing.assert_allclose(framework.numpy(out), wanted, rtol=1e-5, atol=1e-6)


def test_lists_of_64_bits_on_the_cpu(tensors):
    q, k, v = tensors
    outs = [rapt.sdpa(q, k, v, seqused_q=np.array(USED, dtype), causal=True) for dtype in (np.int32, np.int64)]
    np.testing.assert_array_equal(*outs)
    with pytest.raises(rapt.InvalidArgument, match=r"seqused_q\[1\] = 9"):
        rapt.sdpa(q, k, v, seqused_q=np.array([0, 9]))
