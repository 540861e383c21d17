"""rapt.compat.flash_attn compared with a float64 reference written with plain loops from FlashAttention-2's
documentation.

Run by pytest; needs PyTorch. Everything runs on the CPU, and on a GPU if there is one.
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
    """Attention of q [seqlen_q, heads, dim] over k, v [seqlen_k, heads_k, dim]. Returns out, lse [heads, seqlen_q], sum
    p |v|, and the largest x.
    """
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
    """Expects (out, lse) of each sequence to be within rounding errors: P and out are rounded to the dtype, scores and
    sums to float32.
    """
    slopes = options.pop("alibi_slopes", None)
    for b, ((out, lse), (q, k, v)) in enumerate(zip(result, sequences)):
        own = slopes if slopes is None or slopes.ndim == 1 else slopes[b]
        expected, expected_lse, magnitude, largest = one_sequence(q, k, v, alibi_slopes=own, **options)
        norm = max(largest, 1.0) * q.shape[-1]
        bound = (2 * UNIT[dtype] + F32 * (8 * (norm + 8) + k.shape[0] + 8)) * magnitude
        if dtype == torch.float16 and v.numel():  # float16's smallest step is 2**-24, for each p and for the output
            bound = bound + 2.0**-25 * (k.shape[0] * float(v.double().abs().max()) + 1)
        assert out.dtype == dtype and out.shape == expected.shape
        error = (out.double() - expected).abs()
        assert bool((error <= bound).all()), float((error - bound).max())
        if lse is not None:
            assert lse.dtype == torch.float32 and lse.shape == expected_lse.shape
            empty = expected_lse == -math.inf
            assert bool((lse[empty] == -math.inf).all())
            error = (lse.double() - expected_lse)[~empty].abs()
            assert bool((error <= F32 * (8 * (norm + 8) + k.shape[0] + 8)).all())


OPTIONS = [
    {},
    {"causal": True},
    {"softmax_scale": 0.3, "softcap": 4.0},
    {"window_size": (3, 2)},
    {"window_size": (-1, 1)},
    {"window_size": (0, -1)},
    {"causal": True, "window_size": (4, -1)},
    {"causal": True, "window_size": (2, 3)},
    {"alibi_slopes": 1},
    {"alibi_slopes": 2, "causal": True, "softcap": 20.0},
]


def with_slopes(options, batch, heads, device):
    options = dict(options)
    if "alibi_slopes" in options:
        slopes = torch.rand(batch, heads, generator=torch.Generator().manual_seed(7)).to(device)
        options["alibi_slopes"] = slopes[0] if options["alibi_slopes"] == 1 else slopes
    return options


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize(
    "dtype, seqlens, heads_k",
    [
        (torch.float16, (7, 12), 2),
        (torch.bfloat16, (12, 7), 4),
        (torch.float32, (9, 9), 1),
        (torch.float16, (1, 20), 4),
    ],
)
def test_func(device, options, dtype, seqlens, heads_k):
    q, k, v = draw(device, dtype, (2, seqlens[0], 4, 32), (2, seqlens[1], heads_k, 32), (2, seqlens[1], heads_k, 32))
    options = with_slopes(options, 2, 4, device)
    out = fa.flash_attn_func(q, k, v, **options)
    again, lse, probabilities = fa.flash_attn_func(q, k, v, 0.0, deterministic=True, return_attn_probs=True, **options)
    assert probabilities is None and torch.equal(out, again) and out.is_contiguous()
    assert_close(zip(out, lse), zip(q, k, v), dtype, **options)


@pytest.mark.parametrize("device", DEVICES)
def test_packed_tensors_are_read_in_place(device, monkeypatch):
    (qkv,) = draw(device, torch.float16, (2, 9, 3, 4, 32))
    seen = []

    def spy(q, k, v, **options):
        seen.extend((q, k, v))
        return rapt.sdpa(q, k, v, **options)

    monkeypatch.setattr(fa, "attention", spy)
    q, k, v = qkv.unbind(2)
    expected = rapt.sdpa(q, k, v, layout="bshd", causal=True)
    assert torch.equal(fa.flash_attn_qkvpacked_func(qkv, causal=True), expected)
    assert torch.equal(fa.flash_attn_kvpacked_func(q, qkv[:, :, 1:], causal=True), expected)
    assert [one.data_ptr() for one in seen] == [one.data_ptr() for one in (q, k, v)] * 2
    with pytest.raises(rapt.InvalidArgument, match="qkv is .*dimension 2 must be 3"):
        fa.flash_attn_qkvpacked_func(qkv[:, :, :2])
    with pytest.raises(rapt.InvalidArgument, match="kv is .*dimension 2 must be 2"):
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


def calls():
    q, k, v = draw("cpu", torch.float16, (2, 9, 4, 32), (2, 9, 4, 32), (2, 9, 4, 32))
    cu = torch.tensor([0, 9, 18], dtype=torch.int32)
    packed = dict(
        q=q.flatten(0, 1),
        k=k.flatten(0, 1),
        v=v.flatten(0, 1),
        cu_seqlens_q=cu,
        cu_seqlens_k=cu,
        max_seqlen_q=9,
        max_seqlen_k=9,
    )
    return {
        fa.flash_attn_func: dict(q=q, k=k, v=v),
        fa.flash_attn_varlen_func: packed,
        fa.flash_attn_with_kvcache: dict(q=q, k_cache=k, v_cache=v),
    }


@pytest.mark.parametrize("name", ["rotary_cos", "rotary_sin", "cache_batch_idx", "cache_leftpad"])
def test_wrong_arguments_of_the_cache_are_refused_by_name(name):
    call = calls()[fa.flash_attn_with_kvcache]
    fa.flash_attn_with_kvcache(**call)
    with pytest.raises(rapt.InvalidArgument, match=name):
        fa.flash_attn_with_kvcache(**call, **{name: torch.zeros(2, 1, dtype=torch.int32)})


@pytest.mark.parametrize("function", [fa.flash_attn_func, fa.flash_attn_varlen_func])
@pytest.mark.parametrize("dropout_p", [0.1, -1.0, math.nan, None])
def test_dropout_is_refused(function, dropout_p):
    with pytest.raises(rapt.Unsupported, match="dropout_p is .*: must be 0"):
        function(**calls()[function], dropout_p=dropout_p)


@pytest.mark.parametrize("function", list(calls()))
@pytest.mark.parametrize(
    "change",
    [
        dict(softcap=-1.0),
        dict(softcap=math.nan),
        dict(window_size=(-2, 0)),
        dict(window_size=(1,)),
        dict(softmax_scale=math.inf),
        dict(alibi_slopes=torch.ones(4, dtype=torch.float64)),
    ],
    ids=str,
)
def test_values_without_meaning_are_refused(function, change):
    with pytest.raises(rapt.InvalidArgument):
        function(**calls()[function], **change)


@pytest.mark.parametrize("device", DEVICES)
def test_fp8_with_flash_attention_3s_descales(device):
    drawn = draw(device, torch.float32, (2, 9, 4, 32), (2, 12, 2, 32), (2, 12, 2, 32))
    q, k, v = stored = [one.to(torch.float8_e4m3fn) for one in drawn]
    factors = [torch.rand(2, 2, generator=torch.Generator().manual_seed(n)).to(device) + 0.5 for n in range(3)]
    descales = dict(zip(("q_descale", "k_descale", "v_descale"), factors))
    out = fa.flash_attn_func(q, k, v, causal=True, **descales)
    assert out.dtype == torch.bfloat16
    whole = [
        one.float() * factor.repeat_interleave(one.shape[2] // 2, 1)[:, None, :, None]
        for one, factor in zip(stored, factors)
    ]
    assert_close(zip(out, [None] * 2), zip(*whole), torch.bfloat16, causal=True)

    # Users of FlashAttention-3 pass one scale for all heads in this way: expanded, with strides of 0.
    one = torch.full((1,), 0.75, device=device)
    repeated = fa.flash_attn_func(q, k, v, **{name: one.expand(2, 2) for name in descales})
    written = fa.flash_attn_func(q, k, v, **{name: torch.full((2, 2), 0.75, device=device) for name in descales})
    assert torch.equal(repeated, written)

    k_cache, v_cache = k.clone(), v.clone()
    k_cache[:, 10:], v_cache[:, 10:] = k[:, :2], v[:, :2]
    lengths = torch.tensor([10, 10], dtype=torch.int32, device=device)
    appended = fa.flash_attn_with_kvcache(
        q, k_cache, v_cache, k[:, 10:], v[:, 10:], cache_seqlens=lengths, causal=True, **descales
    )
    assert_close(zip(appended, [None] * 2), zip(*whole), torch.bfloat16, causal=True)

    flat = [one.flatten(0, 1) for one in stored]
    cu_q, cu_k = (torch.tensor([0, n, 2 * n], dtype=torch.int32, device=device) for n in (9, 12))
    packed = fa.flash_attn_varlen_func(*flat, cu_q, cu_k, 9, 12, causal=True, **descales)
    assert_close(zip(packed.split(9), [None] * 2), zip(*whole), torch.bfloat16, causal=True)


def test_signatures_are_flash_attention_2s():
    common = "dropout_p softmax_scale causal window_size softcap alibi_slopes deterministic return_attn_probs".split()
    varlen = "cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k".split()
    defaults = dict(
        dropout_p=0.0,
        causal=False,
        window_size=(-1, -1),
        softcap=0.0,
        deterministic=False,
        num_splits=0,
        return_attn_probs=False,
        rotary_interleaved=True,
        return_softmax_lse=False,
    )  # all others: None
    for function, names in {
        fa.flash_attn_func: ["q", "k", "v", *common],
        fa.flash_attn_qkvpacked_func: ["qkv", *common],
        fa.flash_attn_kvpacked_func: ["q", "kv", *common],
        fa.flash_attn_varlen_func: ["q", "k", "v", *varlen, *common, "block_table"],
        fa.flash_attn_varlen_qkvpacked_func: ["qkv", "cu_seqlens", "max_seqlen", *common],
        fa.flash_attn_varlen_kvpacked_func: ["q", "kv", *varlen, *common],
        fa.flash_attn_with_kvcache: """q k_cache v_cache k v rotary_cos rotary_sin cache_seqlens cache_batch_idx
            cache_leftpad block_table softmax_scale causal window_size softcap rotary_interleaved alibi_slopes
            num_splits return_softmax_lse""".split(),
    }.items():
        parameters = inspect.signature(function).parameters.values()
        parameters = [one for one in parameters if one.kind == one.POSITIONAL_OR_KEYWORD]
        assert [one.name for one in parameters] == names
        given = {one.name: one.default for one in parameters if one.default not in (one.empty, None)}
        assert given == {name: value for name, value in defaults.items() if name in names}


@pytest.mark.parametrize("device", DEVICES)
def test_compiles_into_one_graph(device):
    torch._dynamo.reset()
    q, k, v = draw(device, torch.float16, (3, 1, 4, 32), (3, 1, 2, 32), (3, 1, 2, 16))
    compiled = torch.compile(fa.flash_attn_func, fullgraph=True, backend="aot_eager")
    out, lse, _ = compiled(q, k, v, softcap=3.0, return_attn_probs=True)
    expected = fa.flash_attn_func(q, k, v, softcap=3.0, return_attn_probs=True)
    assert torch.equal(out, expected[0]) and torch.equal(lse, expected[1])
