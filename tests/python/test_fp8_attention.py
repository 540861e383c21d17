"""rapt.sdpa on FP8 codes with scales of every granularity, on the arrays of every framework."""

import fp8
import numpy as np
import pytest
from conftest import assert_near, reference

import rapt

KINDS = ["tensor", "head", "token", "block64", "block128"]
DTYPES = ["e4m3", "e5m2", "sim8"]


def factors(rng, kind, shape):
    """Random scales for [batch, heads, seqlen, dim]."""
    sizes = {"tensor": (1,), "head": shape[:2], "token": shape[:3], "channel": (*shape[:2], shape[3])}
    rows = -(-shape[2] // int(kind[5:])) if kind.startswith("block") else 0
    return rng.uniform(0.5, 2, sizes.get(kind, (*shape[:2], rows))).astype(np.float32)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_granularities_and_types(framework, qkv, rng, kind, dtype):
    """uint8 with a named dtype and the framework's own FP8 types give equal bits."""
    arrays = qkv(seqlen_q=70, seqlen_k=130, head_dim=16)
    codes = [fp8.encode(x * (40 if dtype == "sim8" else 1), dtype) for x in arrays]
    kinds = (kind, kind, "channel" if kind == "head" else kind)
    scales = [factors(rng, one, x.shape) / (40 if dtype == "sim8" else 1) for one, x in zip(kinds, arrays)]
    options = {f"{n}_descale": framework.array(s.astype(np.float32)) for n, s in zip("qkv", scales)}
    options |= {f"{n}_scales": one for n, one in zip("qkv", kinds)}
    named = {f"{n}_dtype": dtype for n in "qkv"}
    out, lse = rapt.sdpa(*map(framework.array, codes), **options, **named, lse=True, out_dtype="float32")
    values = [
        fp8.decode(x, dtype) * fp8.spread(s.astype(np.float32), one, x.shape) for x, s, one in zip(codes, scales, kinds)
    ]
    expected, expected_lse = reference(*values)
    assert_near(framework.numpy(out), expected, "float16")
    assert np.abs(framework.numpy(lse) - expected_lse).max() < 1e-3
    if dtype == "sim8" or not framework.has(fp8_name(dtype)):
        return
    own = framework.dtype(fp8_name(dtype))
    view = (lambda x: x.view(own)) if framework.name != "numpy" else (lambda x: x.view(np.dtype(own)))
    typed = rapt.sdpa(*(view(framework.array(x)) for x in codes), **options, out_dtype="float32")
    assert np.array_equal(framework.numpy(typed), framework.numpy(out))


def fp8_name(dtype):
    return {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}[dtype]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_16_bit_queries_over_codes(framework, qkv, dtype):
    q, k, v = qkv(head_dim=32)
    given = framework.array(q, dtype)
    k8, v8 = (rapt.quantize(framework.array(x)) for x in (k, v))
    out = rapt.sdpa(given, k8.codes, v8.codes, **k8.options("k"), **v8.options("v"))
    assert framework.dtype_of(out) == dtype
    values = [framework.numpy(rapt.fake_quantize(framework.array(x))) for x in (k, v)]
    assert_near(
        framework.numpy(out), reference(framework.numpy(given), *values)[0], "float16" if dtype == "float32" else dtype
    )


@pytest.mark.parametrize("options", [{}, {"smooth": True}, {"hadamard": True}, {"hadamard": True, "smooth": True}])
@pytest.mark.parametrize("scales", ["tensor", "head", "token", "block64", "block128"])
def test_attention_of_the_codes_is_that_of_the_simulated(framework, rng, scales, options):
    """The result of sdpa from codes, scales and means, including soft cap, lse and sinks, compared with float64."""
    q, k, v = (rng.standard_normal((2, h, 70, 32)).astype(np.float32) for h in (4, 2, 2))
    k += rng.standard_normal((2, 2, 1, 32)).astype(np.float32) * 3  # smoothing removes such a common component
    hadamard = options.get("hadamard", False)
    given = [framework.array(a) for a in (q, k, v)]
    q8 = rapt.quantize(given[0], scales=scales, hadamard=hadamard)
    k8 = rapt.quantize(given[1], scales=scales, **options)
    v8 = rapt.quantize(given[2], scales="channel")
    sinks = rng.standard_normal(4).astype(np.float32)
    out, lse = rapt.sdpa(
        q8.codes,
        k8.codes,
        v8.codes,
        **q8.options("q"),
        **k8.options("k"),
        **v8.options("v"),
        causal=True,
        softcap=5.0,
        sinks=framework.array(sinks),
        lse=True,
        out_dtype="float32",
    )
    simulated = [
        framework.numpy(rapt.fake_quantize(a, scales=kind, hadamard=turn, smooth=smooth))
        for a, kind, turn, smooth in (
            (given[0], scales, hadamard, False),
            (given[1], scales, hadamard, options.get("smooth", False)),
            (given[2], "channel", False, False),
        )
    ]
    expected, expected_lse = reference(*simulated, causal=True, softcap=5.0, sinks=sinks)
    assert_near(framework.numpy(out), expected, "float16")
    assert np.abs(framework.numpy(lse) - expected_lse).max() < 1e-3


@pytest.mark.parametrize("pv, bound", [("f16", 5e-4), ("fp8x2", 1e-3), ("fp8", 1.2e-2), (None, 5e-4)])
def test_modes_of_the_second_product(framework, rng, pv, bound):
    q, k, v = (rng.standard_normal((1, 2, 256, 64)).astype(np.float32) for _ in range(3))
    made = [rapt.quantize(framework.array(a), scales="head") for a in (q, k, v)]
    options = {key: value for name, one in zip("qkv", made) for key, value in one.options(name).items()}
    out = rapt.sdpa(*(one.codes for one in made), **options, pv=pv, out_dtype="float32")
    stored = [
        fp8.decode(framework.bytes(one.codes), "e4m3") * framework.numpy(one.descale)[..., None, None] for one in made
    ]
    error = np.abs(framework.numpy(out) - reference(*stored)[0]).max()
    assert error <= bound
    if pv == "fp8":
        assert error > 5e-4  # the rounding is visible, so the mode was used


@pytest.mark.parametrize("options", [{}, {"softcap": 2.0}, {"causal": True, "window": (9, -1)}])
def test_means_of_keys(framework, qkv, rng, options):
    """A call with k_mean but without scales: key j is k[j] + k_mean."""
    q, k, v = qkv(head_dim=32)
    codes, mean = fp8.encode(k, "e4m3"), rng.standard_normal((2, 2, 32)).astype(np.float32) * 2
    given = [framework.array(x) for x in (q, codes, v)]
    sinks = rng.standard_normal(4).astype(np.float32)
    out, lse = rapt.sdpa(
        *given, k_dtype="e4m3", k_mean=framework.array(mean), sinks=framework.array(sinks), lse=True, **options
    )
    keys = fp8.decode(codes, "e4m3") + mean[:, :, None]
    expected, expected_lse = reference(q, keys, v, sinks=sinks, **options)
    assert_near(framework.numpy(out), expected, "float16")
    assert np.abs(framework.numpy(lse) - expected_lse).max() < 1e-3
    swapped = [framework.swap(x) for x in given]
    again = rapt.sdpa(
        *swapped,
        k_dtype="e4m3",
        k_mean=framework.array(mean),
        sinks=framework.array(sinks),
        layout="bshd",
        **options,
    )
    assert np.array_equal(framework.numpy(again).swapaxes(1, 2), framework.numpy(out))


def test_wrong_means_get_a_sentence(framework, qkv):
    q, k, v = qkv()
    codes = framework.array(fp8.encode(k, "e4m3"))
    given = [framework.array(x) for x in (q, k, v)]
    for mean, sentence in (
        (framework.array(np.ones((2, 4, 24), np.float32)), r"k_mean.shape = \[2, 4, 24\]"),
        (framework.array(np.ones((2, 2, 24), np.float16)), "k_mean.*f16"),
    ):
        with pytest.raises(framework.errors, match=sentence):
            framework.numpy(rapt.sdpa(given[0], codes, given[2], k_dtype="e4m3", k_mean=mean))
    mean = framework.array(np.ones((2, 2, 24), np.float32))
    with pytest.raises(framework.errors, match="k_mean: given, but k is f32"):
        framework.numpy(rapt.sdpa(*given, k_mean=mean))


def test_factors_that_are_none(framework, qkv):
    """NaN and negative scales are detected on the CPU, where the check takes no noticeable time."""
    if framework.device != "cpu":
        pytest.skip("contents are not read on GPUs")
    q, k, v = (framework.array(x) for x in qkv())
    codes = framework.array(np.zeros((2, 2, 29, 24), np.uint8))
    for wrong in (np.nan, -1.0, np.inf):
        scale = np.ones((2, 2), np.float32)
        scale[1, 0] = wrong
        with pytest.raises(rapt.InvalidArgument, match="k_descale"):
            rapt.sdpa(q, codes, v, k_dtype="e4m3", k_descale=framework.array(scale), k_scales="head")


def test_torch_compiles_means_and_codes(qkv):
    torch = pytest.importorskip("torch")
    q, k, v = map(torch.from_numpy, qkv(head_dim=32))
    k8 = rapt.quantize(k, smooth=True)

    def layer(q, codes, descale, mean, v):
        return rapt.sdpa(q, codes, v, k_descale=descale, k_scales="head", k_mean=mean, softcap=1.0)

    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(q, *k8[:3], v), layer(q, *k8[:3], v))
    assert not torch.equal(layer(q, *k8[:3], v), layer(q, *k8[:2], None, v))
    assert rapt.sdpa(q, k8.codes, v, k_mean=k8.mean.requires_grad_()).requires_grad
