"""rapt.compat.flash_attn.flash_attn_with_kvcache: lengths in use, appending in place, refusals, graphs.

Run by pytest; needs PyTorch. Everything runs on the CPU, and on a GPU where there is one.
"""

import math

import pytest

torch = pytest.importorskip("torch")

import rapt  # noqa: E402
from rapt.compat import flash_attn as fa  # noqa: E402
from test_compat_flash_attn import DEVICES, OPTIONS, assert_close, draw, with_slopes  # noqa: E402


def caches(device, dtype=torch.float16):
    """K and V caches of 24 places whose unused ones hold NaN, and their lengths."""
    k_cache, v_cache = draw(device, dtype, (3, 24, 2, 32), (3, 24, 2, 16), seed=3)
    lengths = (7, 0, 20)
    for b, length in enumerate(lengths):
        k_cache[b, length:] = math.nan
        v_cache[b, length:] = math.nan
    return k_cache, v_cache, lengths


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_kvcache_with_lengths_on_the_device(device, options):
    k_cache, v_cache, lengths = caches(device)
    (q,) = draw(device, torch.float16, (3, 2, 4, 32))
    options = with_slopes(options, 3, 4, device)
    cache_seqlens = torch.tensor(lengths, dtype=torch.int32, device=device)
    out, lse = fa.flash_attn_with_kvcache(
        q, k_cache, v_cache, cache_seqlens=cache_seqlens, return_softmax_lse=True, **options
    )
    sequences = [(q[b], k_cache[b, :n], v_cache[b, :n]) for b, n in enumerate(lengths)]
    assert_close(zip(out, lse), sequences, torch.float16, **options)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("new", [1, 3])
def test_kvcache_appends(device, dtype, new):
    k_cache, v_cache, lengths = caches(device, dtype)
    q, k, v = draw(device, dtype, (3, new, 4, 32), (3, new, 2, 32), (3, new, 2, 16))
    cache_seqlens = torch.tensor(lengths, dtype=torch.int32, device=device)
    before = k_cache.clone(), v_cache.clone()
    out = fa.flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=cache_seqlens, causal=True)
    assert cache_seqlens.tolist() == list(lengths)
    sequences = []
    for b, n in enumerate(lengths):
        for cache, old, fresh in ((k_cache, before[0], k), (v_cache, before[1], v)):
            assert torch.equal(cache[b, n : n + new], fresh[b])
            assert torch.equal(cache[b, :n], old[b, :n]) and bool(cache[b, n + new :].isnan().all())
        sequences.append((q[b], k_cache[b, : n + new], v_cache[b, : n + new]))
    assert_close(zip(out, [None] * 3), sequences, dtype, causal=True)


@pytest.mark.parametrize("device", DEVICES)
def test_kvcache_with_one_length_for_all(device):
    k_cache, v_cache = draw(device, torch.float16, (2, 24, 2, 32), (2, 24, 2, 32))
    q, k, v = draw(device, torch.float16, (2, 2, 4, 32), (2, 2, 2, 32), (2, 2, 2, 32), seed=1)
    whole = fa.flash_attn_with_kvcache(q, k_cache, v_cache, causal=True)
    assert torch.equal(whole, fa.flash_attn_func(q, k_cache, v_cache, causal=True))
    k_cache[:, 11:], v_cache[:, 11:] = math.nan, math.nan
    out = fa.flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=11, causal=True, num_splits=1)
    assert_close(zip(out, [None] * 2), zip(q, k_cache[:, :11], v_cache[:, :11]), torch.float16, causal=True)
    out = fa.flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=11, causal=True)
    assert torch.equal(k_cache[:, 11:13], k) and torch.equal(v_cache[:, 11:13], v)
    assert bool(k_cache[:, 13:].isnan().all()) and bool(v_cache[:, 13:].isnan().all())
    assert_close(zip(out, [None] * 2), zip(q, k_cache[:, :13], v_cache[:, :13]), torch.float16, causal=True)
    fa.flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=22)
    for wrong in (-1, 23):
        with pytest.raises(rapt.InvalidArgument, match=f"cache_seqlens is {wrong}: must be 0 to 22, for 2 new tokens"):
            fa.flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=wrong)
    with pytest.raises(rapt.InvalidArgument, match="cache_seqlens is 25: must be 0 to 24"):
        fa.flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=25)


def test_kvcache_refuses_what_does_not_fit_before_it_writes():
    k_cache, v_cache = draw("cpu", torch.float16, (2, 24, 2, 32), (2, 24, 2, 32))
    q, k, v = draw("cpu", torch.float16, (2, 2, 4, 32), (2, 2, 2, 32), (2, 2, 2, 32), seed=1)
    lengths = torch.tensor([3, 5], dtype=torch.int32)
    good = dict(q=q, k_cache=k_cache, v_cache=v_cache, k=k, v=v, cache_seqlens=lengths)
    before = k_cache.clone(), v_cache.clone()
    for change, sentence in [
        (dict(cache_seqlens=None), "cache_seqlens is None: must be given with k and v"),
        (dict(v=None), "k and v: must both be given"),
        (dict(k=None), "k and v: must both be given"),
        (dict(v=v.float()), r"v is torch\.float32 \[2, 2, 2, 32\]: must be torch\.float16"),
        (dict(v=v[:, :1]), r"v is torch\.float16 \[2, 1, 2, 32\]: must be"),
        (dict(k=k[:1]), "k is"),
        (dict(cache_seqlens=lengths.long()), r"cache_seqlens is torch\.int64 \[2\]: must be torch\.int32 \[2\]"),
        (dict(cache_seqlens=lengths[:1]), r"must be torch\.int32 \[2\]"),
        (dict(cache_seqlens=2.0), "cache_seqlens is 2.0: must"),
        (dict(v_cache=v_cache[:, :20]), "v_cache has 20 places: must have k_cache's 24"),
    ]:
        with pytest.raises(rapt.InvalidArgument, match=sentence):
            fa.flash_attn_with_kvcache(**{**good, **change})
        assert torch.equal(k_cache, before[0]) and torch.equal(v_cache, before[1])
    fa.flash_attn_with_kvcache(**good)
    assert not torch.equal(k_cache, before[0])


@pytest.mark.parametrize("device", DEVICES)
def test_compiles_into_one_graph(device):
    torch._dynamo.reset()
    k_cache, v_cache, lengths = caches(device)
    q, k, v = draw(device, torch.float16, (3, 1, 4, 32), (3, 1, 2, 32), (3, 1, 2, 16))
    cache_seqlens = torch.tensor(lengths, dtype=torch.int32, device=device)

    def step(function, *own):
        return function(q, *own, k, v, cache_seqlens=cache_seqlens, causal=True, window_size=(4, 0))

    eager, traced = (k_cache.clone(), v_cache.clone()), (k_cache.clone(), v_cache.clone())
    compiled = torch.compile(fa.flash_attn_with_kvcache, fullgraph=True, backend="aot_eager")
    assert torch.equal(step(compiled, *traced), step(fa.flash_attn_with_kvcache, *eager))
    assert all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(eager, traced))


@pytest.mark.parametrize("device", DEVICES)
def test_a_refused_call_appends_nothing(device):
    q = torch.zeros(1, 1, 2, 16, device=device)
    k_cache, v_cache = (torch.full((1, 8, 2, 16), 3.0, device=device) for _ in range(2))
    new = torch.ones(1, 1, 2, 16, device=device)
    for start in (2, torch.tensor([2], dtype=torch.int32, device=device)):
        with pytest.raises(rapt.InvalidArgument, match="softcap"):
            fa.flash_attn_with_kvcache(q, k_cache, v_cache, new, new, cache_seqlens=start, softcap=-1.0)
    assert (k_cache == 3).all() and (v_cache == 3).all()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_cuda_graph_appends_and_attends_at_the_lengths_of_each_replay():
    k_cache, v_cache, lengths = caches("cuda")
    k_cache.nan_to_num_()
    q, k, v = draw("cuda", torch.float16, (3, 1, 4, 32), (3, 1, 2, 32), (3, 1, 2, 16))
    cache_seqlens = torch.tensor(lengths, dtype=torch.int32, device="cuda")
    own = k_cache.clone(), v_cache.clone()
    torch.cuda.set_sync_debug_mode("error")
    try:
        fa.flash_attn_with_kvcache(q, *own, k, v, cache_seqlens=cache_seqlens, causal=True)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = fa.flash_attn_with_kvcache(q, *own, k, v, cache_seqlens=cache_seqlens, causal=True)
    for step in range(3):
        graph.replay()
        expected = fa.flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=cache_seqlens, causal=True)
        assert torch.equal(out, expected)
        cache_seqlens += 1
