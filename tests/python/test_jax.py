"""Tests rapt on JAX arrays: eager and under jit, on JAX's default device (a GPU if JAX has one)."""

import cases
import numpy as np
import pytest
from conftest import assert_near, reference

import rapt

jax = pytest.importorskip("jax")
jnp = jax.numpy


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", cases.NAMES)
def test_option_eager_and_jitted(qkv, rng, name, dtype):
    q, k, v = (jnp.asarray(x, dtype) for x in qkv())
    options = cases.options(rng, 2, 4, 17, 29)[name]
    expected, expected_lse = reference(*(np.asarray(x, np.float64) for x in (q, k, v)), **options)
    arrays = {key: jnp.asarray(x) for key, x in options.items() if isinstance(x, np.ndarray)}
    rest = {key: x for key, x in options.items() if key not in arrays}
    out, lse = rapt.sdpa(q, k, v, lse=True, **arrays, **rest)
    assert isinstance(out, jax.Array) and out.dtype == dtype
    assert_near(np.asarray(out, np.float64), expected, dtype)
    finite = np.isfinite(expected_lse)
    assert np.abs(np.asarray(lse, np.float64)[finite] - expected_lse[finite]).max() <= 1e-4 * max(
        1, np.abs(expected_lse[finite]).max()
    )
    jitted = jax.jit(lambda q, k, v, arrays: rapt.sdpa(q + 0, k, v, **arrays, **rest))
    assert np.array_equal(jitted(q, k, v, arrays), out)


def test_bshd_packed_and_partial(qkv, rng):
    q, k, v = qkv(head_dim_v=16)
    out, lse = rapt.sdpa(*(jnp.asarray(x.swapaxes(1, 2)) for x in (q, k, v)), layout="bshd", lse=True, partial=True)
    assert out.shape == (2, 17, 4, 16) and lse.shape == (2, 4, 17)
    assert_near(np.asarray(out).swapaxes(1, 2), reference(q, k, v)[0])
    x = rng.standard_normal((14, 2, 16), dtype=np.float32)
    cu = jnp.asarray([0, 5, 14], "int32")
    out = rapt.sdpa(*[jnp.asarray(x)] * 3, cu_seqlens_q=cu, cu_seqlens_k=cu, max_seqlen_q=9, max_seqlen_k=9)
    for a, b in ((0, 5), (5, 14)):
        one = x[a:b].swapaxes(0, 1)[None]
        assert_near(np.asarray(out)[a:b].swapaxes(0, 1)[None], reference(one, one, one)[0])


def test_float8_and_uint8(qkv):
    q, k, v = (jnp.asarray(x).astype(jnp.float8_e4m3fn) for x in qkv())
    out = rapt.sdpa(q, k, v)
    assert out.dtype == jnp.bfloat16
    raw = [jax.lax.bitcast_convert_type(x, jnp.uint8) for x in (q, k, v)]
    assert np.array_equal(out, rapt.sdpa(*raw, q_dtype="e4m3", k_dtype=jnp.float8_e4m3fn, v_dtype="e4m3"))
    with pytest.raises(rapt.InvalidArgument, match="q: uint8 needs a format"):
        rapt.sdpa(*raw)


def test_gradients_and_vmap(qkv):
    q, k, v = (jnp.asarray(x) for x in qkv())
    with pytest.raises(ValueError, match="cannot be differentiated"):
        jax.grad(lambda x: rapt.sdpa(x, k, v).sum())(q)
    mapped = jax.vmap(lambda q, k, v: rapt.sdpa(q[None], k[None], v[None])[0])(q, k, v)
    assert np.array_equal(mapped, rapt.sdpa(q, k, v))


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        ({"softcap": -1.0}, "softcap = -1"),
        ({"scale": "a"}, "scale = 'a': must be a number"),
        ({"causal": 1}, "causal = 1"),
        ({"window": (1.5, 0)}, "window = 1.5: must be an int"),
        ({"q_scales": "head"}, "give both the descale"),
        ({"bias": np.zeros(29, np.float32)}, "bias: a numpy.ndarray, but q is of jax"),
        ({"out_dtype": "int8"}, "out_dtype = 'int8'"),
        ({"splits": 1.0}, "splits = 1.0: must be an int"),
        ({"layout": "sbhd"}, "layout = 'sbhd'"),
    ],
)
def test_wrong_arguments_get_a_sentence(qkv, arguments, sentence):
    q, k, v = (jnp.asarray(x) for x in qkv())
    with pytest.raises(Exception, match=sentence):
        jax.block_until_ready(rapt.sdpa(q, k, v, **arguments))


def test_what_jax_cannot_have_is_refused(qkv):
    q, k, v = (jnp.asarray(x) for x in qkv())
    with pytest.raises(rapt.InvalidArgument, match="immutable"):
        rapt.sdpa(q, k, v, out=q)
    for operation in (rapt.prepare, rapt.explain):
        with pytest.raises(rapt.Unsupported, match="not available for JAX arrays"):
            operation(q, k, v)


def test_partial_states_merge_to_the_whole(qkv, rng):
    q, k, v = qkv(seqlen_k=64)
    sinks = jnp.asarray(rng.standard_normal(4, dtype=np.float32))
    jq, jk, jv = (jnp.asarray(x) for x in (q, k, v))

    def whole(q, k, v):
        parts = [
            rapt.sdpa(q, k[:, :, a:b], v[:, :, a:b], partial=True, causal=True, q_start=47, k_start=a)
            for a, b in ((0, 20), (20, 64))
        ]
        return rapt.merge([p[0] for p in parts], [p[1] for p in parts], sinks=sinks, lse=True, out_dtype="bfloat16")

    expected, expected_lse = reference(q, k, v, causal=True, sinks=np.asarray(sinks))
    for call in (whole, jax.jit(whole)):
        out, lse = call(jq, jk, jv)
        assert out.dtype == jnp.bfloat16
        assert_near(np.asarray(out, np.float64), expected, "bfloat16")
        assert np.abs(np.asarray(lse) - expected_lse).max() < 1e-5
    state = rapt.sdpa(jq, jk, jv, partial=True)
    assert np.array_equal(rapt.merge([state[0]], [state[1]]), state[0])
    with pytest.raises(rapt.InvalidArgument, match="lses: 2 arrays for 1 outs"):
        rapt.merge([state[0]], [state[1]] * 2)
    with pytest.raises(rapt.InvalidArgument, match="one framework"):
        rapt.merge([state[0]], [np.asarray(state[1])])


def test_descales(qkv, rng):
    q, k, v = qkv(seqlen_k=130)
    k8, v8 = (jnp.asarray(x).astype(jnp.float8_e4m3fn) for x in (k, v))
    blocks = rng.uniform(0.5, 2, (2, 2, 2)).astype(np.float32)
    channels = rng.uniform(0.5, 2, (2, 2, 24)).astype(np.float32)
    out = rapt.sdpa(
        jnp.asarray(q),
        k8,
        v8,
        k_descale=jnp.asarray(blocks),
        k_scales="block128",
        v_descale=jnp.asarray(channels),
        v_scales="channel",
    )
    values = np.asarray(k8, np.float64) * np.repeat(blocks, 128, axis=2)[:, :, :130, None]
    expected = reference(q, values, np.asarray(v8, np.float64) * channels[:, :, None])[0]
    assert_near(np.asarray(out, np.float64), expected, "float16")


def test_quantized_is_a_tree_of_arrays_with_words_outside(qkv):
    x = jnp.asarray(qkv()[0])
    made = jax.jit(lambda x: rapt.quantize(x, scales="token", smooth=True))(x)
    assert type(made) is rapt.Quantized and (made.scales, made.dtype) == ("token", "e4m3")
    assert made.codes.dtype == jnp.float8_e4m3fn
    assert [one.shape for one in jax.tree.leaves(made)] == [(2, 4, 17, 24), (2, 4, 17), (2, 4, 24)]
    whole = jax.jit(lambda made: made.codes.astype(jnp.float32) * made.descale[..., None] + made.mean[:, :, None])(made)
    assert np.abs(whole - x).max() < 0.2


@pytest.mark.parametrize("jitted", [False, True])
@pytest.mark.parametrize("options", [{}, {"scales": "block64", "hadamard": True, "smooth": True}, {"dtype": "sim8"}])
def test_gradients_pass_straight_through_fake_quantize(qkv, options, jitted):
    x, weights = (jnp.asarray(one) for one in (qkv()[0], qkv()[0]))
    gradient = jax.grad(lambda x: (rapt.fake_quantize(x, **options) * weights).sum())
    assert np.array_equal((jax.jit(gradient) if jitted else gradient)(x), weights)
    half = jax.grad(lambda x: rapt.fake_quantize(x.astype(jnp.bfloat16), **options).sum().astype(jnp.float32))
    assert np.array_equal(half(x), jnp.ones_like(x))


@pytest.mark.parametrize("hadamard", [False, True])
def test_gradients_of_saturated_values_can_be_clipped(qkv, hadamard):
    torch = pytest.importorskip("torch")
    x, weights = qkv()[0], qkv()[0]
    options = {"scales": "token", "percentile": 80.0, "hadamard": hadamard, "clip_gradient": True}
    gradient = jax.grad(lambda x: (rapt.fake_quantize(x, **options) * jnp.asarray(weights)).sum())
    theirs = torch.from_numpy(x).requires_grad_()
    (rapt.fake_quantize(theirs, **options) * torch.from_numpy(weights)).sum().backward()
    for found in (gradient(jnp.asarray(x)), jax.jit(gradient)(jnp.asarray(x))):
        assert np.abs(np.asarray(found) - theirs.grad.numpy()).max() < 1e-5
    assert hadamard or 0.1 < (theirs.grad.numpy() == 0).mean() < 0.25


def test_what_jax_cannot_have_of_the_operators(qkv):
    x = jnp.asarray(qkv()[0])
    for call in (lambda: rapt.quantize(x, out=x), lambda: rapt.qk(x, x, out=x)):
        with pytest.raises(rapt.InvalidArgument, match="out: JAX arrays are immutable"):
            call()


def test_report_Q14_every_call_takes_a_context(qkv):
    x = jnp.asarray(qkv(heads_k=4, seqlen_k=17)[0])
    for call in (
        lambda **given: rapt.sdpa(x, x, x, **given),
        lambda **given: rapt.quantize(x, **given).descale,
        lambda **given: rapt.fake_quantize(x, **given),
        lambda **given: rapt.qk(x, x, **given),
        lambda **given: rapt.gemm(x[0, 0], x[0, 0].T, **given),
        lambda **given: rapt.merge([x], [x[..., 0]], **given),
    ):
        assert np.array_equal(call(context=rapt.Context(1)), call())  # the context lives until XLA has run the call
    context = rapt.Context(1)
    jitted = jax.jit(lambda x, context=context: rapt.sdpa(x, x, x, context=context))
    assert np.array_equal(jitted(x), rapt.sdpa(x, x, x))
    with pytest.raises(rapt.InvalidArgument, match="context = 3: must be a rapt.Context"):
        rapt.sdpa(x, x, x, context=3)


def test_report_Q10_dtypes_are_refused_by_their_own_names(qkv):
    x, other = jnp.asarray(qkv()[0]), jnp.zeros((2, 4, 17, 24), "int16")
    for call, name in (
        (lambda: rapt.sdpa(x, other, x), "k"),
        (lambda: rapt.sdpa(x, x, x, bias=other), "bias"),
        (lambda: rapt.quantize(other), "x"),
        (lambda: rapt.qk(x, other), "k"),
        (lambda: rapt.gemm(other[0, 0], x[0, 0].T), "a"),
        (lambda: rapt.merge([other], [x[..., 0]]), "outs"),
    ):
        with pytest.raises(rapt.InvalidArgument, match=rf"^{name}\.dtype = int16: rapt reads float32"):
            call()
    with pytest.raises(rapt.InvalidArgument, match=r"^bias\.dtype = bool: only `mask` takes booleans"):
        rapt.sdpa(x, x, x, bias=jnp.zeros((17, 17), bool))


def paged(rng, page_size, dtype=np.float32):
    """Keys and values in pages in a random order, NaN where no key is; also as dense ones, and their lengths."""
    lengths, heads, dim = [40, 0, 17], 2, 64
    k, v = (rng.standard_normal((3, heads, 40, dim)).astype(dtype) for _ in range(2))
    pages = [-(-n // page_size) for n in lengths]
    order = rng.permutation(sum(pages) + 2)
    caches = [np.full((len(order), heads, page_size, dim), np.nan, dtype) for _ in range(2)]
    table = np.full((3, max(pages)), -1, np.int32)
    for b, n in enumerate(lengths):
        for i in range(pages[b]):
            table[b, i] = order[sum(pages[:b]) + i]
            rows = slice(i * page_size, min((i + 1) * page_size, n))
            for cache, dense in zip(caches, (k, v)):
                cache[table[b, i], :, : rows.stop - rows.start] = dense[b, :, rows]
    return k, v, caches, table, np.array(lengths, np.int32)


@pytest.mark.parametrize("page_size", [1, 16, 64])
def test_pages(rng, page_size):
    k, v, caches, table, used = paged(rng, page_size)
    q = rng.standard_normal((3, 4, 5, 64)).astype(np.float32)
    expected = rapt.sdpa(q, k, v, causal=True, seqused_k=used)
    arrays = [jax.numpy.asarray(x) for x in (q, *caches, table, used)]

    def call(q, k, v, table, used, **options):
        return rapt.sdpa(q, k, v, causal=True, seqused_k=used, block_table=table, **options)

    for run in (call, jax.jit(call)):
        np.testing.assert_allclose(run(*arrays), expected, rtol=1e-5, atol=1e-6)
    out, lse = call(*arrays, max_seqlen_k=40, lse=True)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)
    assert lse.shape == (3, 4, 5)

    as_bshd = [jax.numpy.swapaxes(x, 1, 2) for x in arrays[:3]]
    out = call(*as_bshd, *arrays[3:], layout="bshd")
    np.testing.assert_allclose(jax.numpy.swapaxes(out, 1, 2), expected, rtol=1e-5, atol=1e-6)

    packed = np.swapaxes(q, 1, 2).reshape(15, 4, 64)
    ends = jax.numpy.asarray(np.array([0, 5, 10, 15], np.int32))
    out = call(jax.numpy.asarray(packed), *arrays[1:], cu_seqlens_q=ends, max_seqlen_q=5)
    np.testing.assert_allclose(np.swapaxes(out.reshape(3, 5, 4, 64), 1, 2), expected, rtol=1e-5, atol=1e-6)

    queries = jax.numpy.stack([arrays[0], 2 * arrays[0]])
    mapped = jax.vmap(lambda one: call(one, *arrays[1:]))(queries)
    np.testing.assert_allclose(mapped[1], call(queries[1], *arrays[1:]), rtol=1e-5, atol=1e-6)


def test_scales_of_single_keys_are_in_pages(rng):
    k, v, caches, table, used = paged(rng, 16)
    q = jax.numpy.asarray(rng.standard_normal((3, 4, 1, 64)).astype(np.float32))
    k8, v8 = (rapt.quantize(jax.numpy.asarray(x), scales="token") for x in (k, v))
    kinds = {"k_scales": "token", "v_scales": "token", "seqused_k": jax.numpy.asarray(used)}
    expected = rapt.sdpa(q, k8.codes, v8.codes, k_descale=k8.descale, v_descale=v8.descale, **kinds)
    in_pages = [rapt.quantize(jax.numpy.asarray(np.nan_to_num(cache)), scales="token") for cache in caches]
    scales = [jax.numpy.swapaxes(one.descale, 1, 2) for one in in_pages]  # [num_pages, page_size, heads]
    out = rapt.sdpa(
        q,
        *(one.codes for one in in_pages),
        k_descale=scales[0],
        v_descale=scales[1],
        block_table=jax.numpy.asarray(table),
        **kinds,
    )
    np.testing.assert_array_equal(out, expected)


def test_wrong_pages_get_a_sentence(rng):
    _, _, caches, table, used = paged(rng, 16)
    q = jax.numpy.zeros((3, 4, 1, 64), np.float32)
    table[2, 0] = 99
    with pytest.raises(Exception, match=r"block_table\[2, 0\] = 99: must be a page of k"):
        k, v, table, used = map(jax.numpy.asarray, (*caches, table, used))
        rapt.sdpa(q, k, v, block_table=table, seqused_k=used)
