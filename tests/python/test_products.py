"""rapt.qk and rapt.gemm on the arrays of every framework."""

import fp8
import numpy as np
import pytest
from conftest import ROUNDOFF

import rapt

KINDS = ["tensor", "head", "token", "block64", "block128"]


def products(q, k):
    """The products of q [b, h, i, d] and k [b, hk, j, d] in float64."""
    k = np.repeat(k, q.shape[1] // max(k.shape[1], 1), axis=1)
    return np.einsum("bhid,bhjd->bhij", q.astype(np.float64), k.astype(np.float64))


def assert_close(found, expected, dtype, terms, depth):
    """Expects errors within those of float32 sums of `depth` products (Higham, section 4.2; `terms`: sums of
    magnitudes), with rounded scales and sim8 numbers, then rounded to `dtype`.
    """
    bound = np.abs(expected) * ROUNDOFF[dtype] + terms * (depth + 6) * 2.0**-24
    assert found.shape == expected.shape and np.all(np.abs(found - expected) <= bound)


@pytest.fixture
def qk(rng):
    return (
        rng.standard_normal((2, 4, 70, 24), dtype=np.float32),
        rng.standard_normal((2, 2, 90, 24), dtype=np.float32),
    )


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_qk_raw(framework, qk, dtype):
    q, k = (framework.array(a, dtype) for a in qk)
    stored = [framework.numpy(a) for a in (q, k)]
    out = rapt.qk(q, k)
    assert framework.dtype_of(out) == dtype and isinstance(out, type(q))
    terms = products(*map(np.abs, stored))
    assert_close(framework.numpy(out), products(*stored), dtype, terms, 24)
    scaled = rapt.qk(q, k, scale=-0.25, out_dtype="f32")
    assert framework.dtype_of(scaled) == "float32"
    assert_close(framework.numpy(scaled), products(*stored) * -0.25, "float32", terms, 24)
    swapped = rapt.qk(framework.swap(q), framework.swap(k), layout="bshd")
    assert np.array_equal(framework.numpy(swapped), framework.numpy(out))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["e4m3", "e5m2", "sim8"])
def test_qk_of_codes(framework, qk, kind, dtype):
    q8, k8 = (rapt.quantize(framework.array(a), scales=kind, dtype=dtype) for a in qk)
    out = rapt.qk(q8.codes, k8.codes, **q8.options("q"), **k8.options("k"), scale=24**-0.5)
    stored = [
        fp8.decode(framework.bytes(one.codes), dtype) * fp8.spread(framework.numpy(one.descale), kind, a.shape)
        for one, a in zip((q8, k8), qk)
    ]
    assert framework.dtype_of(out) == "float32"
    terms = products(*map(np.abs, stored)) * 24**-0.5
    assert_close(framework.numpy(out), products(*stored) * 24**-0.5, "float32", terms, 24)
    raw = rapt.qk(q8.codes, k8.codes, **{f"{n}_dtype": dtype for n in "qk" if "q_dtype" in q8.options("q")})
    stored = [fp8.decode(framework.bytes(one.codes), dtype) for one in (q8, k8)]
    assert_close(framework.numpy(raw), products(*stored), "float32", products(*map(np.abs, stored)), 24)


def test_qk_mixed_and_rotated(framework, qk):
    q, k = (framework.array(a, "float16") for a in qk)
    k8 = rapt.quantize(k, scales="token")
    out = rapt.qk(q, k8.codes, **k8.options("k"))
    assert framework.dtype_of(out) == "float16"
    exact = products(framework.numpy(q), framework.numpy(k))
    assert np.abs(framework.numpy(out) - exact).max() < 0.06 * np.abs(exact).max()
    turned = [rapt.quantize(a, scales="token", hadamard=True) for a in (q, k)]
    out = rapt.qk(turned[0].codes, turned[1].codes, **turned[0].options("q"), **turned[1].options("k"))
    assert np.abs(framework.numpy(out) - exact).max() < 0.06 * np.abs(exact).max()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_gemm(framework, rng, dtype):
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((33, 70), (70, 20)))
    first, second = framework.array(a, dtype), framework.array(b, dtype)
    stored = [framework.numpy(one) for one in (first, second)]
    out = rapt.gemm(first, second)
    assert framework.dtype_of(out) == dtype
    terms = np.abs(stored[0]) @ np.abs(stored[1])
    assert_close(framework.numpy(out), stored[0] @ stored[1], dtype, terms, 70)
    transposed = rapt.gemm(first, framework.array(np.ascontiguousarray(b.T), dtype).T)
    assert np.array_equal(framework.numpy(transposed), framework.numpy(out))


@pytest.mark.parametrize("kind", ["tensor", "token"])
@pytest.mark.parametrize("dtype", ["e4m3", "e5m2", "sim8"])
def test_gemm_of_codes(framework, rng, kind, dtype):
    a, b = (rng.standard_normal((1, 1, *shape)).astype(np.float32) for shape in ((33, 70), (20, 70)))
    a8, b8 = (rapt.quantize(framework.array(x), scales=kind, dtype=dtype) for x in (a, b))
    factors = [one.descale if kind == "tensor" else one.descale[0, 0] for one in (a8, b8)]
    named = {} if framework.code_type(dtype) != "uint8" else {"a_dtype": dtype, "b_dtype": dtype}
    matrices = (a8.codes[0, 0], b8.codes[0, 0].T)
    out = rapt.gemm(*matrices, a_descale=factors[0], b_descale=factors[1], out_dtype="float16", **named)
    assert framework.dtype_of(out) == "float16"
    stored = [
        fp8.decode(framework.bytes(one.codes), dtype)[0, 0] * framework.numpy(factor).reshape(-1, 1)
        for one, factor in zip((a8, b8), factors)
    ]
    terms = np.abs(stored[0]) @ np.abs(stored[1].T)
    assert_close(framework.numpy(out), stored[0] @ stored[1].T, "float16", terms, 70)
    raw = rapt.gemm(*matrices, **named)  # the results are larger than float16 can hold
    assert framework.dtype_of(raw) == "float32"
    stored = [fp8.decode(framework.bytes(one.codes), dtype)[0, 0] for one in (a8, b8)]
    assert_close(framework.numpy(raw), stored[0] @ stored[1].T, "float32", np.abs(stored[0]) @ np.abs(stored[1].T), 70)


def test_one_factor_a_row_where_there_is_one_row(framework):
    a, b = (framework.array(np.ones(shape, np.float32)) for shape in ((1, 16), (16, 3)))
    made = rapt.quantize(a[None, None], scales="token")
    named = {"a_dtype": "e4m3"} if framework.code_type("e4m3") == "uint8" else {}
    out = rapt.gemm(made.codes[0, 0], b, a_descale=made.descale[0, 0], **named)
    assert np.allclose(framework.numpy(out), 16.0)


def test_out(framework, qk):
    q, k = (framework.array(a) for a in qk)
    if framework.name == "jax":
        for call in (lambda: rapt.qk(q, k, out=q), lambda: rapt.gemm(q[0, 0], k[0, 0].T, out=q)):
            with pytest.raises(rapt.InvalidArgument, match="immutable"):
                call()
        return
    out = framework.empty((2, 4, 70, 90), "float16")
    assert rapt.qk(q, k, out=out) is out
    assert np.array_equal(framework.numpy(out), framework.numpy(rapt.qk(q, k, out_dtype="float16")))
    flat = framework.empty((90, 70), "float32").T
    assert rapt.gemm(q[0, 0], k[0, 0].T, out=flat) is flat
    assert np.array_equal(framework.numpy(flat), framework.numpy(rapt.qk(q, k))[0, 0])
    for wrong, sentence in (
        (framework.empty((2, 4, 70, 91), "float32"), "out.shape"),
        (framework.empty((2, 4, 70, 90), "int32"), "out.dtype|out: .*dtype"),
    ):
        with pytest.raises(rapt.InvalidArgument, match=sentence):
            rapt.qk(q, k, out=wrong)
        assert not framework.numpy(wrong).any()


@pytest.mark.parametrize(
    "options, sentence",
    [
        ({"scale": "a"}, "scale = 'a': must be a number"),
        ({"scale": float("inf")}, "scale = inf"),
        ({"layout": "hbsd"}, "layout = 'hbsd'"),
        ({"q_scales": "head"}, "q_descale and q_scales: give both"),
        ({"k_scales": "block"}, "give both the descale"),
        ({"out_dtype": "int8"}, "out_dtype = 'int8'"),
        ({"q_dtype": "e4m3"}, "q_dtype = .*: only uint8 storage"),
    ],
)
def test_wrong_arguments_of_qk_get_a_sentence(framework, qk, options, sentence):
    q, k = (framework.array(a) for a in qk)
    with pytest.raises(framework.errors, match=sentence):
        framework.numpy(rapt.qk(q, k, **options))


def test_wrong_arrays_get_a_sentence(framework, qk):
    q, k = (framework.array(a) for a in qk)
    codes, one = framework.array(np.zeros((2, 2, 90, 24), np.uint8)), framework.array(np.ones(1, np.float32))
    other = np.ones((2, 2, 90, 24), np.float32)
    if framework.name == "numpy":
        other = pytest.importorskip("torch").from_numpy(other)
    named = {"k_dtype": "e4m3"}
    for second, options, sentence in (
        (k[0], {}, "ranks 4 and 3"),
        (framework.array(qk[1][..., :23].copy()), {}, "head_dim"),
        (codes, {}, "k: uint8 needs a format"),
        (k, {"k_descale": one, "k_scales": "tensor"}, "scales need FP8 storage"),
        (codes, {"k_descale": one, "k_scales": "head", **named}, "k_descale.shape"),
        (codes, {"k_descale": one, "k_scales": "channel", **named}, "k_scales = 6: must be"),
        (codes, {"k_descale": one, "k_scales": "heads", **named}, "k_scales = 'heads': must be one of"),
        (other, {}, "k: a .*but q is of|second: a .*one framework|one framework"),
    ):
        with pytest.raises(framework.errors, match=sentence):
            framework.numpy(rapt.qk(q, second, **options))
    a = q[0, 0]
    for first, second, options, sentence in (
        (a, a, {}, "b.shape"),
        (q, k, {}, "ranks? 4"),
        (a, a.T, {"a_descale": 0.5}, "a_descale: must be an array"),
        (a, a.T, {"a_descale": one}, "scales need FP8 storage"),
        (a, a.T, {"a_descale": framework.array(np.ones((70, 1), np.float32))}, "a_descale: must be an array"),
        (a, a.T, {"out_dtype": "e4m3"}, "out_dtype = 'e4m3'"),
    ):
        with pytest.raises(framework.errors, match=sentence):
            framework.numpy(rapt.gemm(first, second, **options))


def test_torch_operators(qk):
    torch = pytest.importorskip("torch")
    q, k = map(torch.from_numpy, qk)
    check, nothing = torch.library.opcheck, [None] * 4
    check(torch.ops.rapt.qk.default, (q, k, None, None, "bhsd", 0.5, *nothing, torch.float16))
    check(torch.ops.rapt.qk_out.default, (q, k, None, None, "bhsd", 0.5, *nothing, torch.empty(2, 4, 70, 90)))
    check(torch.ops.rapt.gemm.default, (q[0, 0], k[0, 0].T, None, None, *nothing, torch.float32))
    check(torch.ops.rapt.gemm_out.default, (q[0, 0], k[0, 0].T, None, None, *nothing, torch.empty(70, 90)))

    def layer(q, k, out):
        q8, k8 = rapt.quantize(q), rapt.quantize(k, scales="token")
        first = rapt.qk(q8.codes, k8.codes, **q8.options("q"), **k8.options("k"), out_dtype=torch.bfloat16)
        rapt.gemm(q8.codes[0, 0], k8.codes[0, 0].T, a_descale=q8.descale[0, :1], b_descale=k8.descale[0, 0], out=out)
        return first * 2

    outs = [torch.empty(70, 90) for _ in range(2)]
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(q, k, outs[0]), layer(q, k, outs[1])) and torch.equal(*outs)
    q.requires_grad_()
    for out in (rapt.qk(q, k), rapt.gemm(q[0, 0], k[0, 0].T)):
        with pytest.raises(NotImplementedError, match="no backward"):
            out.sum().backward()
    with pytest.raises(rapt.InvalidArgument, match="not allowed if an input needs a gradient"):
        rapt.qk(q, k, out=torch.empty(2, 4, 70, 90))


def test_jitted(qk):
    jax = pytest.importorskip("jax")
    q, k = map(jax.numpy.asarray, qk)

    def layer(q, k):
        k8 = rapt.quantize(k, scales="block64")
        return rapt.qk(q, k8.codes, **k8.options("k")), rapt.gemm(q[0, 0], k[0, 0].T)

    for eager, jitted in zip(layer(q, k), jax.jit(layer)(q, k)):
        assert np.array_equal(eager, jitted)
