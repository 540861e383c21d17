"""rapt.compat.flash_attn against a reference in float64 written from FlashAttention-2's documentation, loops and all.

Run by pytest; needs PyTorch. Everything runs on the CPU, and on a GPU where there is one.
"""
import inspect
import math

import pytest

torch = pytest.importorskip("torch")

import rapt  # noqa: E402
from rapt.compat import flash_attn as fa  # noqa: E402

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]
UNIT = {torch.float32: 0.0, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
F32 = 2.0**-24


def draw(device, dtype, *shapes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(device, dtype) for shape in shapes]


def one_sequence(q, k, v, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None):
    """q [seqlen_q, heads, dim] over k, v [seqlen_k, heads_k, dim]: out, lse [heads, seqlen_q], sum of p |v|, largest |score|."""
    seqlen_q, seqlen_k = q.shape[0], k.shape[0]
    group = q.shape[1] // k.shape[1]
    q, k, v = q.double(), k.double().repeat_interleave(group, 1), v.double().repeat_interleave(group, 1)
    x = torch.einsum("ihd,jhd->hij", q, k) * (q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale)
    largest = float(x.abs().max()) if x.numel() else 0.0
    if softcap > 0:
        x = softcap * torch.tanh(x / softcap)
    for i in range(seqlen_q):
        for j in range(seqlen_k):
            middle = i + seqlen_k - seqlen_q
            if alibi_slopes is not None:
                x[:, i, j] -= alibi_slopes.double() * abs(middle - j)
                largest = max(largest, float(alibi_slopes.max()) * abs(middle - j))
            right = 0 if causal and window_size[1] < 0 else min(0, window_size[1]) if causal else window_size[1]
            if (window_size[0] >= 0 and j < middle - window_size[0]) or (right >= 0 and j > middle + right):
                x[:, i, j] = -math.inf
    if seqlen_k == 0:
        empty = torch.zeros(*q.shape[:2], v.shape[-1], dtype=torch.float64, device=q.device)
        return empty, torch.full((q.shape[1], seqlen_q), -math.inf, dtype=torch.float64, device=q.device), empty, 0.0
    p = torch.softmax(x, -1).nan_to_num(0.0)
    return torch.einsum("hij,jhd->ihd", p, v), torch.logsumexp(x, -1), torch.einsum("hij,jhd->ihd", p, v.abs()), largest


def assert_close(result, sequences, dtype, **options):
    """Each sequence's (out, lse) within what rounding can do: P and out to the dtype, scores and sums in float32."""
    slopes = options.pop("alibi_slopes", None)
    for b, ((out, lse), (q, k, v)) in enumerate(zip(result, sequences)):
        own = slopes if slopes is None or slopes.ndim == 1 else slopes[b]
        expected, expected_lse, magnitude, largest = one_sequence(q, k, v, alibi_slopes=own, **options)
        norm = max(largest, 1.0) * q.shape[-1]
        bound = (2 * UNIT[dtype] + F32 * (8 * (norm + 8) + k.shape[0] + 8)) * magnitude
        assert out.dtype == dtype and out.shape == expected.shape
        assert bool(((out.double() - expected).abs() <= bound).all()), float(((out.double() - expected).abs() - bound).max())
        if lse is not None:
            assert lse.dtype == torch.float32 and lse.shape == expected_lse.shape
            empty = expected_lse == -math.inf
            assert bool((lse[empty] == -math.inf).all())
            error = (lse.double() - expected_lse)[~empty].abs()
            assert bool((error <= F32 * (8 * (norm + 8) + k.shape[0] + 8)).all())


OPTIONS = [
    {}, {"causal": True}, {"softmax_scale": 0.3, "softcap": 4.0}, {"window_size": (3, 2)}, {"window_size": (-1, 1)},
    {"window_size": (0, -1)}, {"causal": True, "window_size": (4, -1)}, {"causal": True, "window_size": (2, 3)},
    {"alibi_slopes": 1}, {"alibi_slopes": 2, "causal": True, "softcap": 20.0},
]


def with_slopes(options, batch, heads, device):
    options = dict(options)
    if "alibi_slopes" in options:
        slopes = torch.rand(batch, heads, generator=torch.Generator().manual_seed(7)).to(device)
        options["alibi_slopes"] = slopes[0] if options["alibi_slopes"] == 1 else slopes
    return options


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("dtype, seqlens, heads_k", [
    (torch.float16, (7, 12), 2), (torch.bfloat16, (12, 7), 4), (torch.float32, (9, 9), 1), (torch.float16, (1, 20), 4)])
def test_func(device, options, dtype, seqlens, heads_k):
    q, k, v = draw(device, dtype, (2, seqlens[0], 4, 32), (2, seqlens[1], heads_k, 32), (2, seqlens[1], heads_k, 32))
    options = with_slopes(options, 2, 4, device)
    out = fa.flash_attn_func(q, k, v, **options)
    again, lse, probabilities = fa.flash_attn_func(q, k, v, 0.0, deterministic=True, return_attn_probs=True, **options)
    assert probabilities is None and torch.equal(out, again) and out.is_contiguous()
    assert_close(zip(out, lse), zip(q, k, v), dtype, **options)


@pytest.mark.parametrize("device", DEVICES)
def test_packed_tensors_are_read_in_place(device, monkeypatch):
    qkv, = draw(device, torch.float16, (2, 9, 3, 4, 32))
    seen = []
    monkeypatch.setattr(fa, "attention", lambda q, k, v, **options: seen.extend((q, k, v)) or rapt.sdpa(q, k, v, **options))
    q, k, v = qkv.unbind(2)
    expected = rapt.sdpa(q, k, v, layout="bshd", causal=True)
    assert torch.equal(fa.flash_attn_qkvpacked_func(qkv, causal=True), expected)
    assert torch.equal(fa.flash_attn_kvpacked_func(q, qkv[:, :, 1:], causal=True), expected)
    assert [one.data_ptr() for one in seen] == [one.data_ptr() for one in (q, k, v)] * 2
    with pytest.raises(rapt.InvalidArgument, match="qkv is .*number 2 being 3"):
        fa.flash_attn_qkvpacked_func(qkv[:, :, :2])
    with pytest.raises(rapt.InvalidArgument, match="kv is .*number 2 being 2"):
        fa.flash_attn_kvpacked_func(q, qkv)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_varlen(device, options):
    lengths_q, lengths_k = (5, 0, 9, 1), (5, 3, 4, 0)
    cu_q, cu_k = (torch.tensor([0, *ls], device=device).cumsum(0).to(torch.int32) for ls in (lengths_q, lengths_k))
    q, k, v = draw(device, torch.float16, (15, 4, 32), (12, 2, 32), (12, 2, 24))
    options = with_slopes(options, 4, 4, device)
    out, lse, probabilities = fa.flash_attn_varlen_func(q, k, v, cu_q, cu_k, 9, 5, return_attn_probs=True, **options)
    assert probabilities is None and lse.shape == (4, 15)
    sequences = list(zip(q.split(lengths_q), k.split(lengths_k), v.split(lengths_k)))
    assert_close(zip(out.split(lengths_q), lse.split(lengths_q, 1)), sequences, torch.float16, **options)
    kv = torch.stack((k, k * 0.5), 1)
    packed = fa.flash_attn_varlen_kvpacked_func(q, kv, cu_q, cu_k, 9, 5, **options)
    assert torch.equal(packed, fa.flash_attn_varlen_func(q, kv[:, 0], kv[:, 1], cu_q, cu_k, 9, 5, **options))
    qkv = torch.stack((q, q * 0.5, q * 2), 1)
    packed = fa.flash_attn_varlen_qkvpacked_func(qkv, cu_q, 9, **options)
    assert torch.equal(packed, fa.flash_attn_varlen_func(*qkv.unbind(1), cu_q, cu_q, 9, 9, **options))


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
    q, = draw(device, torch.float16, (3, 2, 4, 32))
    options = with_slopes(options, 3, 4, device)
    cache_seqlens = torch.tensor(lengths, dtype=torch.int32, device=device)
    out, lse = fa.flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=cache_seqlens, return_softmax_lse=True, **options)
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
            assert torch.equal(cache[b, n:n + new], fresh[b])
            assert torch.equal(cache[b, :n], old[b, :n]) and bool(cache[b, n + new:].isnan().all())
        sequences.append((q[b], k_cache[b, :n + new], v_cache[b, :n + new]))
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
    assert torch.equal(k_cache[:, 11:13], k) and torch.equal(v_cache[:, 11:13], v) and bool(k_cache[:, 13:].isnan().all())
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
        (dict(v=None), "k and v: must both be given"), (dict(k=None), "k and v: must both be given"),
        (dict(v=v.float()), r"v is torch\.float32 \[2, 2, 2, 32\]: must be torch\.float16"),
        (dict(v=v[:, :1]), r"v is torch\.float16 \[2, 1, 2, 32\]: must be"), (dict(k=k[:1]), "k is"),
        (dict(cache_seqlens=lengths.long()), r"cache_seqlens is torch\.int64 \[2\]: must be torch\.int32 \[2\]"),
        (dict(cache_seqlens=lengths[:1]), r"must be torch\.int32 \[2\]"), (dict(cache_seqlens=2.0), "cache_seqlens is 2.0: must"),
        (dict(v_cache=v_cache[:, :20]), "v_cache has 20 places: must have k_cache's 24"),
    ]:
        with pytest.raises(rapt.InvalidArgument, match=sentence):
            fa.flash_attn_with_kvcache(**{**good, **change})
        assert torch.equal(k_cache, before[0]) and torch.equal(v_cache, before[1])
    fa.flash_attn_with_kvcache(**good)
    assert not torch.equal(k_cache, before[0])


def calls():
    q, k, v = draw("cpu", torch.float16, (2, 9, 4, 32), (2, 9, 4, 32), (2, 9, 4, 32))
    cu = torch.tensor([0, 9, 18], dtype=torch.int32)
    packed = dict(q=q.flatten(0, 1), k=k.flatten(0, 1), v=v.flatten(0, 1), cu_seqlens_q=cu, cu_seqlens_k=cu, max_seqlen_q=9,
                  max_seqlen_k=9)
    return {fa.flash_attn_func: dict(q=q, k=k, v=v), fa.flash_attn_varlen_func: packed,
            fa.flash_attn_with_kvcache: dict(q=q, k_cache=k, v_cache=v)}


@pytest.mark.parametrize("function, name", [(fa.flash_attn_varlen_func, "block_table")] + [
    (fa.flash_attn_with_kvcache, name) for name in ("block_table", "rotary_cos", "rotary_sin", "cache_batch_idx", "cache_leftpad")])
def test_what_rapt_does_not_have_is_refused_by_name(function, name):
    call = calls()[function]
    function(**call)
    with pytest.raises(rapt.Unsupported, match=f"{name} is given: must be None") as refusal:
        function(**call, **{name: torch.zeros(2, 1, dtype=torch.int32)})
    assert ("paged KV" in str(refusal.value)) == (name == "block_table")


@pytest.mark.parametrize("function", [fa.flash_attn_func, fa.flash_attn_varlen_func])
@pytest.mark.parametrize("dropout_p", [0.1, -1.0, math.nan, None])
def test_dropout_is_refused(function, dropout_p):
    with pytest.raises(rapt.Unsupported, match="dropout_p is .*: must be 0"):
        function(**calls()[function], dropout_p=dropout_p)


@pytest.mark.parametrize("function", list(calls()))
@pytest.mark.parametrize("change", [dict(softcap=-1.0), dict(softcap=math.nan), dict(window_size=(-2, 0)), dict(window_size=(1,)),
                                    dict(softmax_scale=math.inf), dict(alibi_slopes=torch.ones(4, dtype=torch.float64))], ids=str)
def test_values_without_meaning_are_refused(function, change):
    with pytest.raises(rapt.InvalidArgument):
        function(**calls()[function], **change)


@pytest.mark.parametrize("device", DEVICES)
def test_fp8_with_flash_attention_3s_descales(device):
    q, k, v = [one.to(torch.float8_e4m3fn) for one in draw(device, torch.float32, (2, 9, 4, 32), (2, 12, 2, 32), (2, 12, 2, 32))]
    factors = [torch.rand(2, 2, generator=torch.Generator().manual_seed(n)).to(device) + 0.5 for n in range(3)]
    q_descale, k_descale, v_descale = factors
    descales = dict(q_descale=q_descale, k_descale=k_descale, v_descale=v_descale)
    out = fa.flash_attn_func(q, k, v, causal=True, **descales)
    assert out.dtype == torch.bfloat16
    whole = [one.float() * factor.repeat_interleave(one.shape[2] // 2, 1)[:, None, :, None] for one, factor in zip((q, k, v), factors)]
    assert_close(zip(out, [None] * 2), zip(*whole), torch.bfloat16, causal=True)
    lengths = torch.tensor([12, 12], dtype=torch.int32, device=device)
    k_cache, v_cache = k.clone(), v.clone()
    k_cache[:, 10:], v_cache[:, 10:] = k[:, :2], v[:, :2]
    appended = fa.flash_attn_with_kvcache(q, k_cache, v_cache, k[:, 10:], v[:, 10:], cache_seqlens=lengths - 2, causal=True, **descales)
    assert torch.equal(appended, out)
    flat = [one.flatten(0, 1) for one in (q, k, v)]
    cu_q, cu_k = (torch.tensor([0, n, 2 * n], dtype=torch.int32, device=device) for n in (9, 12))
    assert torch.equal(fa.flash_attn_varlen_func(*flat, cu_q, cu_k, 9, 12, causal=True, **descales), out.flatten(0, 1))


def test_signatures_are_flash_attention_2s():
    common = "dropout_p softmax_scale causal window_size softcap alibi_slopes deterministic return_attn_probs".split()
    varlen = "cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k".split()
    defaults = dict(dropout_p=0.0, causal=False, window_size=(-1, -1), softcap=0.0, deterministic=False, num_splits=0,
                    return_attn_probs=False, rotary_interleaved=True, return_softmax_lse=False)  # all others: None
    for function, names in {
        fa.flash_attn_func: ["q", "k", "v", *common], fa.flash_attn_qkvpacked_func: ["qkv", *common],
        fa.flash_attn_kvpacked_func: ["q", "kv", *common],
        fa.flash_attn_varlen_func: ["q", "k", "v", *varlen, *common, "block_table"],
        fa.flash_attn_varlen_qkvpacked_func: ["qkv", "cu_seqlens", "max_seqlen", *common],
        fa.flash_attn_varlen_kvpacked_func: ["q", "kv", *varlen, *common],
        fa.flash_attn_with_kvcache: """q k_cache v_cache k v rotary_cos rotary_sin cache_seqlens cache_batch_idx cache_leftpad
            block_table softmax_scale causal window_size softcap rotary_interleaved alibi_slopes num_splits
            return_softmax_lse""".split(),
    }.items():
        parameters = [one for one in inspect.signature(function).parameters.values() if one.kind == one.POSITIONAL_OR_KEYWORD]
        assert [one.name for one in parameters] == names
        assert {one.name: one.default for one in parameters if one.default not in (one.empty, None)} == {
            name: value for name, value in defaults.items() if name in names}


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
    compiled = torch.compile(fa.flash_attn_func, fullgraph=True, backend="aot_eager")
    out, lse, _ = compiled(q, k, v, softcap=3.0, return_attn_probs=True)
    expected = fa.flash_attn_func(q, k, v, softcap=3.0, return_attn_probs=True)
    assert torch.equal(out, expected[0]) and torch.equal(lse, expected[1])


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
