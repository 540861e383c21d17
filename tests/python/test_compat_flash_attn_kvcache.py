"""rapt.compat.flash_attn.flash_attn_with_kvcache: lengths in use, appending in place, refused calls, graphs.

Run by pytest; needs PyTorch. Everything runs on the CPU, and on a GPU if there is one.
"""

import math

import pytest

torch = pytest.importorskip("torch")

import rapt  # noqa: E402
from rapt.compat import flash_attn as fa  # noqa: E402
from test_compat_flash_attn import DEVICES, OPTIONS, assert_close, draw, with_slopes  # noqa: E402


def caches(device, dtype=torch.float16):
    """K and V caches of 24 positions, with NaN in unused ones, and their lengths."""
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
        (dict(cache_seqlens=None), "cache_seqlens is None: required with k and v"),
        (dict(v=None), "k and v: give both or neither"),
        (dict(k=None), "k and v: give both or neither"),
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


WRONG = [
    ([10, 64], 1, 64),
    ([-1, 10], 0, -1),
    ([-2, 10], 0, -2),
    ([2**31 - 1, 0], 0, 2**31 - 1),
    ([63, -(2**31)], 1, -(2**31)),
]


def cache_of_64(device, dtype=torch.float32):
    k_cache, v_cache = draw(device, torch.float32, (2, 64, 2, 16), (2, 64, 2, 16))
    q, k, v = draw(device, torch.float32, (2, 1, 4, 16), (2, 1, 2, 16), (2, 1, 2, 16), seed=1)
    return [tensor.to(dtype) for tensor in (q, k_cache, v_cache, k, v)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("lengths, at, value", WRONG, ids=str)
def test_a_length_without_a_place_is_an_error_and_nothing_is_written(device, lengths, at, value):
    q, k_cache, v_cache, k, v = cache_of_64(device)
    before = k_cache.clone(), v_cache.clone()
    start = torch.tensor(lengths, dtype=torch.int32, device=device)
    sentence = rf"cache_seqlens\[{at}\] is {value}: must be 0 to 63, for 1 new tokens and a cache of 64"
    with pytest.raises(rapt.InvalidArgument, match=sentence):
        fa.flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=start, check_contents=device == "cuda")
    assert torch.equal(k_cache, before[0]) and torch.equal(v_cache, before[1])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
@pytest.mark.parametrize("lengths, at, value", WRONG, ids=str)
@pytest.mark.parametrize("new", [1, 3, 64, 65])
def test_what_writes_to_the_cache_writes_nothing_outside_its_place(device, dtype, lengths, at, value, new):
    """The append works without reading the lengths, as on a GPU; here also on the CPU. 65 tokens never fit."""
    from rapt.compat._shared import Cache, first_places

    _, cache, other, _, _ = cache_of_64(device, dtype)
    fresh = torch.randn(2, new, 2, 16).to(dtype).to(device)
    expected = cache.clone()
    for b, length in enumerate(lengths):
        if 0 <= length <= 64 - new:
            expected.view(torch.uint8)[b, length : length + new] = fresh.view(torch.uint8)[b]
    start = torch.tensor(lengths, dtype=torch.int32, device=device)
    if device == "cuda":
        torch.cuda.set_sync_debug_mode("error")
    try:
        places = first_places(Cache(cache, other, 2, 64), new, start)
        rapt.kv_append(fresh, fresh, cache, other, starts=places, layout="bshd")
    finally:
        if device == "cuda":
            torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(cache.view(torch.uint8), expected.view(torch.uint8))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("lengths, at, value", WRONG, ids=str)
def test_on_a_gpu_a_length_without_a_place_gives_nothing_for_its_sequence_alone(lengths, at, value):
    q, k_cache, v_cache, k, v = cache_of_64("cuda")
    before = k_cache.clone(), v_cache.clone()
    start = torch.tensor(lengths, dtype=torch.int32, device="cuda")
    out, lse = fa.flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=start, return_softmax_lse=True)
    good = 1 - at
    assert torch.equal(k_cache[at], before[0][at]) and torch.equal(v_cache[at], before[1][at])
    assert torch.equal(k_cache[good, lengths[good]], k[good, 0])
    assert bool((out[at] == 0).all()) and bool((lse[at] == -math.inf).all())
    used = lengths[good] + 1
    expected = fa.flash_attn_func(q[good:][:1], k_cache[good:][:1, :used], v_cache[good:][:1, :used])
    assert torch.allclose(out[good], expected[0], atol=1e-5)


def test_lengths_are_checked_without_an_append_too():
    q, k_cache, v_cache, _, _ = cache_of_64("cpu")
    for wrong in (-1, 65):
        start = torch.tensor([5, wrong], dtype=torch.int32)
        with pytest.raises(rapt.InvalidArgument, match=rf"cache_seqlens\[1\] is {wrong}: must be 0 to 64"):
            fa.flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=start)
    fa.flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=torch.tensor([0, 64], dtype=torch.int32))


def test_a_compiled_call_with_a_wrong_length_writes_nothing_for_it_and_raises():
    torch._dynamo.reset()
    q, k_cache, v_cache, k, v = cache_of_64("cpu")
    before = k_cache.clone()
    compiled = torch.compile(fa.flash_attn_with_kvcache, fullgraph=True, backend="aot_eager")
    with pytest.raises(rapt.InvalidArgument, match="seqused_k"):
        compiled(q, k_cache, v_cache, k, v, cache_seqlens=torch.tensor([-1, 10], dtype=torch.int32))
    assert torch.equal(k_cache[0], before[0])


def test_caches_that_cannot_be_written_are_refused_before_anything_is():
    q, k_cache, v_cache, k, v = cache_of_64("cpu")
    start = torch.tensor([3, 5], dtype=torch.int32)
    before = k_cache.clone()
    shared = v_cache[:1].expand(2, -1, -1, -1)
    with pytest.raises(rapt.InvalidArgument, match="v_cache has strides .*: must have no stride of 0"):
        fa.flash_attn_with_kvcache(q, k_cache, shared, k, v, cache_seqlens=start)
    with pytest.raises(rapt.InvalidArgument, match="v_cache requires a gradient"):
        fa.flash_attn_with_kvcache(q, k_cache, v_cache.clone().requires_grad_(), k, v, cache_seqlens=start)
    with pytest.raises(rapt.InvalidArgument, match="v is on meta: must be on the caches' device, cpu"):
        fa.flash_attn_with_kvcache(q, k_cache, v_cache, k, v.to("meta"), cache_seqlens=start)
    with pytest.raises(rapt.InvalidArgument, match="cache_seqlens is True"):
        fa.flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=True)
    assert torch.equal(k_cache, before)
    for change, sentence in [
        (dict(rotary_cos=torch.ones(64, 4)), "rotary_cos and rotary_sin: give both"),
        (dict(cache_batch_idx=start.long()), r"cache_batch_idx is torch\.int64 \[2\]"),
        (dict(cache_batch_idx=start % 2, block_table=start[:, None]), "cache_batch_idx: given with block_table"),
        (dict(cache_batch_idx=torch.tensor([1, 1], dtype=torch.int32), cache_seqlens=5), "same place"),
        (dict(cache_leftpad=start.long()), r"cache_leftpad is torch\.int64"),
        (dict(rotary_cos=torch.ones(4, 4), rotary_sin=torch.ones(4, 4)), r"cos.shape = \[4, 4\]"),
        (dict(rotary_cos=torch.ones(64, 9), rotary_sin=torch.ones(64, 9)), r"cos.shape = \[64, 9\]"),
    ]:
        with pytest.raises(rapt.InvalidArgument, match=sentence):
            fa.flash_attn_with_kvcache(
                **{**dict(zip(NAMES, (q, k_cache, v_cache, k, v))), "cache_seqlens": start, **change}
            )
    with pytest.raises(rapt.InvalidArgument, match="rotary_cos: given without k and v"):
        fa.flash_attn_with_kvcache(q, k_cache, v_cache, rotary_cos=torch.ones(64, 4), rotary_sin=torch.ones(64, 4))
    assert torch.equal(k_cache, before)


NAMES = ("q", "k_cache", "v_cache", "k", "v")


def rotate(x, cos, sin, interleaved):
    """x [seqlen, heads, dim] in float32; cos, sin [seqlen, rotary_dim / 2]."""
    half, y = cos.shape[1], x.clone()
    cos, sin = cos[:, None], sin[:, None]
    pairs = (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if interleaved else (slice(half), slice(half, 2 * half))
    first, second = x[..., pairs[0]], x[..., pairs[1]]
    y[..., pairs[0]], y[..., pairs[1]] = first * cos - second * sin, second * cos + first * sin
    return y


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("options", [dict(), dict(causal=True), dict(window_size=(6, 0))], ids=str)
@pytest.mark.parametrize("where", ["dense", "indexed", "paged"])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("one_length", [False, True])
def test_kvcache_whole(device, options, where, interleaved, one_length):
    """Append, rotation, cache_batch_idx, cache_leftpad and block_table, compared with plain operations: attention of
    each sequence, with the rows that the cache must have.
    """
    dtype, new, queries, page = torch.float32, 3, 4, 8
    k_cache, v_cache = draw(device, dtype, (5, 24, 2, 32), (5, 24, 2, 16), seed=5)
    q, k, v = draw(device, dtype, (3, queries, 4, 32), (3, new, 2, 32), (3, new, 2, 16), seed=6)
    lengths, leftpad = ([9, 9, 9] if one_length else [7, 0, 20]), [2, 0, 11]
    cos, sin = rapt.rotary_tables(32, 16, like=q)
    rows = torch.tensor([4, 0, 3], dtype=torch.int32, device=device)
    given = dict(cache_leftpad=torch.tensor(leftpad, dtype=torch.int32, device=device), **options)
    if where == "indexed":
        given["cache_batch_idx"] = rows
    elif where == "paged":
        k_cache, v_cache = (x.reshape(15, page, *x.shape[2:]) for x in (k_cache, v_cache))
        table = torch.tensor([[7, 2, 11], [0, 14, 5], [3, 9, 1]], dtype=torch.int32, device=device)
        given["block_table"] = table
    else:
        k_cache, v_cache = k_cache[:3], v_cache[:3]

    def sequence(cache, b):
        if where == "paged":
            return cache[table[b].long()].reshape(-1, *cache.shape[2:])
        return cache[rows[b] if where == "indexed" else b]

    before = [[sequence(cache, b).clone() for b in range(3)] for cache in (k_cache, v_cache)]
    start = lengths[0] if one_length else torch.tensor(lengths, dtype=torch.int32, device=device)
    out, lse = fa.flash_attn_with_kvcache(
        *(q, k_cache, v_cache, k, v, cos, sin, start),
        rotary_interleaved=interleaved,
        return_softmax_lse=True,
        **given,
    )
    results, sequences = [], []
    for b, n in enumerate(lengths):
        turned = rotate(k[b], cos[n : n + new], sin[n : n + new], interleaved)
        for index, fresh in enumerate((turned, v[b])):
            before[index][b][n : n + new] = fresh
            assert torch.equal(sequence((k_cache, v_cache)[index], b), before[index][b])
        positions = torch.full((queries,), n) if not options else torch.arange(n, n + queries)
        used = slice(leftpad[b], n + new)
        query = rotate(q[b], cos[positions], sin[positions], interleaved)
        sequences.append((query, before[0][b][used], before[1][b][used]))
        results.append((out[b], lse[b]))
    assert_close(results, sequences, dtype, **options)


@pytest.mark.parametrize("device", DEVICES)
def test_kvcache_quantises_to_fp8(device):
    dtype = torch.float8_e4m3fn
    k_cache, v_cache = (torch.zeros(2, 16, 2, 32, device=device).to(dtype) for _ in range(2))
    q, k, v = draw(device, torch.float16, (2, 1, 4, 32), (2, 1, 2, 32), (2, 1, 2, 32))
    descale = torch.tensor([[0.5, 0.25], [0.125, 1.0]], device=device)
    start = torch.tensor([3, 5], dtype=torch.int32, device=device)
    with pytest.raises(rapt.InvalidArgument, match="needs v_descale"):
        fa.flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=start, k_descale=descale)
    assert not k_cache.float().any()
    fa.flash_attn_with_kvcache(
        q, k_cache, v_cache, k, v, cache_seqlens=start, k_descale=descale, v_descale=descale, causal=True
    )
    for cache, fresh in ((k_cache, k), (v_cache, v)):
        for b, n in enumerate((3, 5)):
            expected = (fresh[b, 0].float() / descale[b, :, None]).to(dtype)
            assert torch.equal(cache[b, n].float(), expected.float())


@pytest.mark.parametrize("device", DEVICES)
def test_a_whole_step_compiles_into_one_graph(device):
    torch._dynamo.reset()
    k_cache, v_cache = draw(device, torch.float32, (6, 8, 2, 32), (6, 8, 2, 16), seed=5)
    q, k, v = draw(device, torch.float32, (2, 1, 4, 32), (2, 1, 2, 32), (2, 1, 2, 16), seed=6)
    cos, sin = rapt.rotary_tables(32, 32, like=q)
    start = torch.tensor([3, 9], dtype=torch.int32, device=device)
    table = torch.tensor([[4, 1], [0, 3]], dtype=torch.int32, device=device)

    def step(function, *own):
        return function(q, *own, k, v, cos, sin, start, block_table=table, causal=True)

    eager, traced = (k_cache.clone(), v_cache.clone()), (k_cache.clone(), v_cache.clone())
    compiled = torch.compile(fa.flash_attn_with_kvcache, fullgraph=True, backend="aot_eager")
    assert torch.equal(step(compiled, *traced), step(fa.flash_attn_with_kvcache, *eager))
    assert all(torch.equal(a, b) for a, b in zip(eager, traced))
    assert not torch.equal(traced[0], k_cache)
