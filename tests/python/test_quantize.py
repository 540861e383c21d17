"""rapt.quantize and rapt.fake_quantize on the arrays of every framework."""

import fp8
import numpy as np
import pytest

import rapt

SCALES = ["tensor", "head", "token", "block64", "block128", "channel"]
SHAPE = (2, 3, 70, 24)  # the last block of each kind is incomplete; channels are rotated in groups of 8


@pytest.fixture
def x(rng):
    """Normal numbers with outliers."""
    found = rng.standard_normal(SHAPE).astype(np.float32)
    return found + (rng.random(SHAPE) < 0.001) * rng.standard_normal(SHAPE).astype(np.float32) * 10


def ordinary(x, dtype):
    """float32 numbers that are exact in `dtype`."""
    if dtype == "bfloat16":
        return (x.view(np.uint32) & 0xFFFF0000).view(np.float32)
    return x.astype(dtype).astype(np.float32)


@pytest.mark.parametrize("dtype", ["e4m3", "e5m2", "sim8"])
@pytest.mark.parametrize("scales", SCALES)
def test_codes_and_factors(framework, x, scales, dtype):
    codes, descale = fp8.quantize(x, scales, dtype)
    made = rapt.quantize(framework.array(x), scales=scales, dtype=dtype)
    assert framework.dtype_of(made.codes) == framework.code_type(dtype)
    assert np.array_equal(framework.numpy(made.descale), descale) and made.descale.shape == descale.shape
    assert np.array_equal(framework.bytes(made.codes), codes)
    assert made.mean is None and (made.scales, made.dtype) == (scales, dtype)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_from_16_bits(framework, x, dtype):
    x = ordinary(x, dtype)
    codes, descale = fp8.quantize(x, "head", "e4m3")
    made = rapt.quantize(framework.array(x, dtype))
    assert np.array_equal(framework.bytes(made.codes), codes)
    assert np.array_equal(framework.numpy(made.descale), descale)
    assert framework.dtype_of(rapt.fake_quantize(framework.array(x, dtype))) == dtype


@pytest.mark.parametrize("scales", ["tensor", "block64", "channel"])
def test_percentile(framework, x, scales):
    codes, descale = fp8.quantize(x, scales, "e4m3", 95.0)
    made = rapt.quantize(framework.array(x), scales=scales, percentile=95.0)
    assert np.array_equal(framework.numpy(made.descale), descale)
    assert np.array_equal(framework.bytes(made.codes), codes)
    assert (framework.bytes(made.codes) & 0x7F == 0x7E).mean() > 0.03  # this share of the codes is saturated


@pytest.mark.parametrize("scales", SCALES)
def test_supplied_factors(framework, x, scales):
    _, descale = fp8.quantize(x, scales, "e4m3")
    descale = (descale * 0.5).astype(np.float32)
    given = framework.array(descale)
    made = rapt.quantize(framework.array(x), scales=scales, descale=given)
    assert made.descale is given
    inverse = np.float32(1) / fp8.spread(descale, scales, SHAPE)
    assert np.array_equal(framework.bytes(made.codes), fp8.encode(x * inverse, "e4m3"))


def test_special_values(framework):
    x = np.zeros((1, 4, 8, 16), np.float32)
    x[0, 1] = -3.0
    x[0, 2, 0, :4] = np.inf, -np.inf, np.nan, 5.0
    x[0, 3] = 1e-44  # so small that its scale is the smallest normal number
    made = rapt.quantize(framework.array(x))
    codes, descale = fp8.quantize(x, "head", "e4m3")
    assert np.array_equal(framework.numpy(made.descale), descale)
    assert descale[0, 0] == 1 and descale[0, 3] == np.float32(2.0**-126)
    assert np.array_equal(framework.bytes(made.codes) & 0x7F, codes & 0x7F)
    assert list(framework.bytes(made.codes)[0, 2, 0, :2]) == [0x7E, 0xFE]
    assert np.array_equal(framework.numpy(rapt.fake_quantize(framework.array(x)))[0, :2], x[0, :2])


def test_rotation_and_smoothing(framework, x):
    turn = fp8.hadamard(24)
    made = rapt.quantize(framework.array(x), scales="token", hadamard=True, smooth=True)
    y = x.astype(np.float64) @ turn
    assert np.abs(framework.numpy(made.mean) - y.mean(2)).max() < 1e-6
    y -= y.mean(2, keepdims=True)
    stored = fp8.decode(framework.bytes(made.codes), "e4m3") * framework.numpy(made.descale)[..., None]
    assert np.allclose(framework.numpy(made.descale) * 448, np.abs(y).max(3), rtol=1e-5)
    assert np.abs(stored - y).max() <= np.abs(y).max() * 2.0**-4
    whole = (stored + framework.numpy(made.mean)[:, :, None]) @ turn.T
    simulated = rapt.fake_quantize(framework.array(x), scales="token", hadamard=True, smooth=True)
    assert np.abs(framework.numpy(simulated) - whole).max() < 1e-5


@pytest.mark.parametrize("scales", SCALES)
def test_fake_quantize_is_the_codes_as_numbers(framework, x, scales):
    codes, descale = fp8.quantize(x, scales, "e5m2")
    expected = fp8.decode(codes, "e5m2").astype(np.float32) * fp8.spread(descale, scales, SHAPE)
    given = framework.array(x)
    simulated = rapt.fake_quantize(given, scales=scales, dtype="e5m2")
    assert isinstance(simulated, type(given)) and simulated.dtype == given.dtype
    assert np.array_equal(framework.numpy(simulated), expected)
    swapped = rapt.fake_quantize(framework.swap(given), scales=scales, dtype="e5m2", layout="bshd")
    assert np.array_equal(framework.numpy(swapped).swapaxes(1, 2), expected)


def test_packed(framework, rng):
    lengths = [5, 0, 70, 9]
    cu = np.cumsum([0, *lengths]).astype(np.int32)
    x = rng.standard_normal((90, 3, 16)).astype(np.float32)  # 6 rows belong to no sequence
    packed = {"cu_seqlens": framework.array(cu), "max_seqlen": 70}
    for scales in SCALES[1:]:
        made = rapt.quantize(framework.array(x), scales=scales, smooth=True, **packed)
        simulated = framework.numpy(rapt.fake_quantize(framework.array(x), scales=scales, smooth=True, **packed))
        codes, descale = framework.bytes(made.codes), framework.numpy(made.descale)
        assert not codes[84:].any() and not simulated[84:].any()
        for b, (first, last) in enumerate(zip(cu, cu[1:])):
            if first == last:
                continue
            alone = rapt.quantize(
                framework.array(x[first:last].swapaxes(0, 1)[None].copy()), scales=scales, smooth=True
            )
            assert np.array_equal(framework.bytes(alone.codes)[0].swapaxes(0, 1), codes[first:last])
            assert np.array_equal(framework.numpy(alone.mean)[0], framework.numpy(made.mean)[b])
            one = framework.numpy(alone.descale)[0]
            mine = descale[:, first:last] if scales == "token" else descale[b]
            assert np.array_equal(one, mine[:, : one.shape[1]] if scales.startswith("block") else mine)
            whole = (
                fp8.decode(codes[first:last], "e4m3")
                * fp8.spread(one[None], scales, (1, 3, last - first))[0].swapaxes(0, 1)
                + framework.numpy(made.mean)[b]
            )
            assert np.abs(simulated[first:last] - whole).max() < 1e-6
    one = rapt.quantize(framework.array(x), scales="tensor", **packed)
    assert np.array_equal(framework.numpy(one.descale), [np.abs(x[:84]).max() / np.float32(448)])
    attended = rapt.sdpa(
        framework.array(x),
        made.codes,
        framework.array(x),
        cu_seqlens_q=packed["cu_seqlens"],
        cu_seqlens_k=packed["cu_seqlens"],
        max_seqlen_q=70,
        max_seqlen_k=70,
        k_descale=one.descale,
        k_scales="tensor",
        **({"k_dtype": "e4m3"} if framework.code_type("e4m3") == "uint8" else {}),
    )
    assert not framework.numpy(attended)[84:].any()


def test_no_sequences(framework):
    x = framework.array(np.ones((4, 2, 8), np.float32))
    packed = {"cu_seqlens": framework.array(np.zeros(1, np.int32)), "max_seqlen": 0}
    assert not framework.bytes(rapt.quantize(x, **packed).codes).any()
    assert not framework.numpy(rapt.fake_quantize(x, **packed)).any()


def test_layouts_and_strides(framework, x):
    given = framework.array(x)
    made = rapt.quantize(given, scales="token")
    swapped = rapt.quantize(framework.swap(given), scales="token", layout="bshd")
    assert np.array_equal(framework.bytes(swapped.codes).swapaxes(1, 2), framework.bytes(made.codes))
    assert np.array_equal(framework.numpy(swapped.descale), framework.numpy(made.descale))
    if framework.name == "jax":
        return
    view = framework.swap(given).swapaxes(1, 2)
    same = rapt.quantize(view, scales="token")
    assert np.array_equal(framework.bytes(same.codes), framework.bytes(made.codes))
    order = same.codes.stride() if framework.name == "torch" else same.codes.strides
    assert order[2] > order[1] > order[3] == 1  # same order as x


def test_out(framework, x):
    given = framework.array(x)
    if framework.name == "jax":
        with pytest.raises(rapt.InvalidArgument, match="immutable"):
            rapt.quantize(given, out=given)
        return
    made = rapt.quantize(given, scales="block64", smooth=True)
    codes = framework.empty(SHAPE, "uint8")
    into = rapt.quantize(given, scales="block64", smooth=True, out=codes)
    assert into.codes is codes and np.array_equal(framework.bytes(codes), framework.bytes(made.codes))
    assert into.options("k")["k_dtype"] == "e4m3"
    keys_contiguous = framework.empty((2, 3, 24, 70), "uint8").swapaxes(2, 3)
    rapt.quantize(given, scales="block64", smooth=True, out=keys_contiguous)
    assert np.array_equal(framework.bytes(keys_contiguous), framework.bytes(made.codes))
    again = rapt.Quantized(
        *(framework.empty(a.shape, d) for a, d in zip(made[:3], ("uint8", "float32", "float32"))), *made[3:]
    )
    into = rapt.quantize(given, scales="block64", smooth=True, out=again)
    assert all(a is b for a, b in zip(into[:3], again))
    for a, b in zip(made[1:3], again[1:3]):
        assert np.array_equal(framework.numpy(a), framework.numpy(b))
    for out, options, sentence in (
        (again, {}, "out has a mean"),
        (again._replace(mean=None), {"smooth": True}, "out has no mean"),
        (again, {"smooth": True, "scales": "head"}, "out is for scales 'block64'"),
        (again, {"smooth": True, "dtype": "e5m2"}, "dtype 'e4m3'"),
        (again, {"smooth": True, "descale": framework.empty(made.descale.shape, "float32")}, "another array"),
        (framework.empty(SHAPE, "float32"), {}, "only uint8 storage"),
        (framework.empty((2, 3, 70, 23), "uint8"), {}, "shape"),
    ):
        with pytest.raises(rapt.InvalidArgument, match=sentence):
            rapt.quantize(given, **{"scales": "block64", **options}, out=out)


def test_types_of_codes(framework, x):
    given = framework.array(x)
    typed = rapt.quantize(given, dtype=framework.dtype("float8_e5m2"))
    assert framework.dtype_of(typed.codes) == "float8_e5m2" and typed.dtype == "e5m2"
    assert np.array_equal(framework.bytes(typed.codes), framework.bytes(rapt.quantize(given, dtype="e5m2").codes))
    assert "k_dtype" not in typed.options("k")
    assert rapt.quantize(given, dtype="sim8").options("v")["v_dtype"] == "sim8"
    simulated = rapt.fake_quantize(given, dtype=framework.dtype("float8_e5m2"))
    assert np.array_equal(framework.numpy(simulated), framework.numpy(rapt.fake_quantize(given, dtype="e5m2")))


@pytest.mark.parametrize(
    "options, sentence",
    [
        ({"scales": "heads"}, "scales = 'heads': must be one of 'tensor', 'head'"),
        ({"dtype": "fp8"}, "dtype = 'fp8': must be 'e4m3'"),
        ({"dtype": "float16"}, "dtype = 'float16'"),
        ({"layout": "sbhd"}, "layout = 'sbhd'"),
        ({"hadamard": 1}, "hadamard = 1"),
        ({"smooth": "k"}, "smooth = 'k'"),
        ({"percentile": "all"}, "percentile = 'all': must be a number"),
        ({"percentile": 0.0}, "percentile = 0.*: must be above 0 and at most 100"),
        ({"percentile": 100.5}, "percentile = 100.5"),
        ({"percentile": float("nan")}, "percentile = nan"),
        ({"max_seqlen": 70}, "both or neither"),
        ({"max_seqlen": 1 << 41, "cu_seqlens": np.zeros(1, np.int32)}, "max_seqlen = .*: must be from 0 to"),
        ({"max_seqlen": 70, "cu_seqlens": [0, 70]}, "cu_seqlens: a list"),
        ({"descale": 0.5}, "descale: a float"),
    ],
)
def test_wrong_arguments_get_a_sentence(framework, x, options, sentence):
    for call in (rapt.quantize, rapt.fake_quantize):
        with pytest.raises(framework.errors, match=sentence):
            made = call(framework.array(x), **options)
            framework.bytes(made.codes if call is rapt.quantize else made)  # for JAX, waits until the call has run


def test_wrong_arrays_get_a_sentence(framework, x):
    given = framework.array(x)
    for array, options, sentence in (
        (framework.array(x[0]), {}, "x: rank 3: must be 4, or 3 with cu_seqlens"),
        (given, {"cu_seqlens": framework.array(np.array([0, 70], np.int32)), "max_seqlen": 70}, "x: rank 4: must be 3"),
        (given, {"descale": framework.array(np.ones((2, 2), np.float32))}, r"descale.shape = \[2, 2\]"),
        (given, {"descale": framework.array(np.ones((2, 3), np.float16))}, "descale.*f16"),
        (given, {"percentile": 9.0, "descale": framework.array(np.ones((2, 3), np.float32))}, "percentile = 9.0"),
        (framework.array(x.astype(np.int32)), {}, "input.dtype|dtype"),
        (
            framework.array(x[0].copy()),
            {"cu_seqlens": framework.array(np.zeros((1, 2), np.int32)), "max_seqlen": 3},
            "cu_seqlens has shape",
        ),
    ):
        with pytest.raises(framework.errors, match=sentence):
            # JAX: wait until it has run; descale may be the given one
            framework.bytes(rapt.quantize(array, **options).codes)
    if framework.device == "cpu":
        for wrong in (0.0, -1.0, np.nan, np.inf):
            with pytest.raises(rapt.InvalidArgument, match=r"descale\[1, 2\] = .*must be finite"):
                factors = np.ones((2, 3), np.float32)
                factors[1, 2] = wrong
                rapt.quantize(given, descale=framework.array(factors))
    other = np.ones((2, 3), np.float32) if framework.name != "numpy" else pytest.importorskip("torch").ones(2, 3)
    with pytest.raises(rapt.InvalidArgument, match="descale: a .*(but x is of|come from one framework)"):
        rapt.quantize(given, descale=other)
    made = rapt.quantize(given, smooth=True)
    with pytest.raises(rapt.InvalidArgument, match="name = 'q': smoothed"):
        made.options("q")
    with pytest.raises(rapt.InvalidArgument, match="name = 'x'"):
        made.options("x")


def test_a_refused_call_writes_nothing(framework, x):
    if framework.name == "jax":
        pytest.skip("JAX has no out")
    codes, mean = framework.empty(SHAPE, "uint8"), framework.empty((2, 3, 24), "float32")
    out = rapt.Quantized(codes, framework.empty((2, 2), "float32"), mean, "head", "e4m3")
    with pytest.raises(rapt.InvalidArgument, match=r"descale.shape = \[2, 2\]"):
        rapt.quantize(framework.array(x), smooth=True, out=out)
    assert not framework.bytes(codes).any() and not framework.numpy(mean).any()


def test_sizes_of_zero(framework):
    for shape in ((0, 3, 8, 16), (2, 3, 0, 16), (2, 0, 8, 16)):
        made = rapt.quantize(framework.array(np.zeros(shape, np.float32)), smooth=True)
        assert made.codes.shape == shape and made.mean.shape == (shape[0], shape[1], 16)
        assert rapt.fake_quantize(framework.array(np.zeros(shape, np.float32)), smooth=True).shape == shape
