"""rapt.kv_append and rapt.rotary_tables on the arrays of every framework, and in torch.compile. The reference is plain
NumPy. tests/cpu/kv_append_test.cpp has the exhaustive tests."""

import math
import re

import fp8
import numpy as np
import pytest

import rapt

BATCH, HEADS, NEW, DIM, CAPACITY, PAGE = 2, 3, 4, 16, 24, 8
STARTS = np.array([3, 15], np.int32)
POISON = -7.0


def rotated(x, cos, sin, interleaved):
    """x [..., dim], cos and sin [..., rotary_dim / 2]; float32, as documented."""
    half = cos.shape[-1]
    y = x.copy()
    first, second = (
        (x[..., 0 : 2 * half : 2], x[..., 1 : 2 * half : 2])
        if interleaved
        else (x[..., :half], x[..., half : 2 * half])
    )
    out = first * cos - second * sin, second * cos + first * sin
    for index, part in enumerate(out):
        if interleaved:
            y[..., index : 2 * half : 2] = part
        else:
            y[..., index * half : (index + 1) * half] = part
    return y


@pytest.fixture
def new(rng):
    """k, v and q as float32 [batch, heads, seqlen, dim]."""
    return [rng.standard_normal((BATCH, heads, NEW, DIM)).astype(np.float32) for heads in (HEADS, HEADS, 6)]


def caches(framework, dtype="float32", paged=False):
    shape = (7, HEADS, PAGE, DIM) if paged else (BATCH, HEADS, CAPACITY, DIM)
    return [framework.array(np.full(shape, POISON, np.float32), dtype) for _ in range(2)]


def tables():
    return rapt.rotary_tables(CAPACITY, 8)


def in_place(framework):
    if framework.name == "jax":
        pytest.skip("JAX arrays cannot be changed")


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_dense_with_rotation(framework, new, layout, interleaved):
    in_place(framework)
    cos, sin = tables()
    arrays = [framework.array(x) for x in new]
    given = caches(framework)
    if layout == "bshd":
        arrays, given = [framework.swap(x) for x in arrays], [framework.swap(x) for x in given]
    k, v, q = arrays
    q_out = rapt.kv_append(
        *(k, v, *given),
        seqused_k=framework.array(STARTS),
        cos=framework.array(cos),
        sin=framework.array(sin),
        interleaved=interleaved,
        q=q,
        layout=layout,
    )
    if layout == "bshd":
        given, q_out = [framework.swap(x) for x in given], framework.swap(q_out)
    expected = np.full((2, BATCH, HEADS, CAPACITY, DIM), POISON, np.float32)
    for b, start in enumerate(STARTS):
        rows = slice(start, start + NEW)
        expected[0, b, :, rows] = rotated(new[0][b], cos[rows], sin[rows], interleaved)
        expected[1, b, :, rows] = new[1][b]
        assert np.array_equal(framework.numpy(q_out)[b], rotated(new[2][b], cos[rows], sin[rows], interleaved))
    for index in range(2):
        assert np.array_equal(framework.numpy(given[index]), expected[index])


def test_pages_slots_and_token_scales(framework, new):
    in_place(framework)
    table = np.array([[6, 2, 0], [1, 5, 3]], np.int32)
    shape = (7, HEADS, PAGE, DIM)
    stored = [framework.array(np.full(shape, 1, np.uint8)) for _ in range(4)]
    descales = [framework.array(np.full((7, PAGE, HEADS), POISON, np.float32)) for _ in range(4)]
    k, v = (framework.array(x) for x in new[:2])
    kind = dict(k_scales="token", v_scales="token", k_cache_dtype="e4m3", v_cache_dtype="e4m3")
    rapt.kv_append(
        *(k, v, *stored[:2]),
        starts=framework.array(STARTS.astype(np.int64)),
        block_table=framework.array(table),
        k_descale=descales[0],
        v_descale=descales[1],
        **kind,
    )
    position = STARTS[:, None] + np.arange(NEW)
    slots = np.take_along_axis(table, position // PAGE, 1).astype(np.int64) * PAGE + position % PAGE
    rapt.kv_append(
        *(k, v, *stored[2:]),
        slot_mapping=framework.array(slots),
        k_descale=descales[2],
        v_descale=descales[3],
        **kind,
    )
    for index in range(2):
        codes, factors = fp8.quantize(new[index], "token", "e4m3")
        expected, scale = np.full(shape, 1, np.uint8), np.full((7, PAGE, HEADS), POISON, np.float32)
        for (b, i), slot in np.ndenumerate(slots):
            expected[slot // PAGE, :, slot % PAGE] = codes[b, :, i]
            scale[slot // PAGE, slot % PAGE] = factors[b, :, i]
        for given in (stored, descales):
            right = expected if given is stored else scale
            for found in (given[index], given[index + 2]):
                assert np.array_equal(framework.numpy(found), right)


def test_supplied_scales_and_packed_rows(framework, new):
    in_place(framework)
    rows = [np.ascontiguousarray(x.transpose(0, 2, 1, 3).reshape(-1, HEADS, DIM)) for x in new[:2]]
    stored = [framework.array(np.zeros((BATCH, HEADS, CAPACITY, DIM), np.uint8)) for _ in range(2)]
    descale = np.array([[0.5, 0.25, 1], [0.125, 2, 0.75]], np.float32)
    rapt.kv_append(
        *(framework.array(x) for x in rows),
        *stored,
        cu_seqlens_new=framework.array(np.array([0, 5, 7], np.int32)),
        seqused_k=framework.array(STARTS),
        k_descale=framework.array(descale),
        v_descale=framework.array(descale),
        k_scales="head",
        v_scales="head",
        k_cache_dtype="e4m3",
        v_cache_dtype="e5m2",
    )
    for index, kind in enumerate(("e4m3", "e5m2")):
        expected = np.zeros((BATCH, HEADS, CAPACITY, DIM), np.uint8)
        for b, (first, last) in enumerate(((0, 5), (5, 7))):
            x = rows[index][first:last].transpose(1, 0, 2)
            scaled = x * (np.float32(1) / descale[b])[:, None, None]
            expected[b, :, STARTS[b] : STARTS[b] + last - first] = fp8_codes(scaled, kind)
        assert np.array_equal(framework.numpy(stored[index]), expected)


def fp8_codes(x, kind):
    import ml_dtypes

    largest = 448.0 if kind == "e4m3" else 57344.0
    dtype = ml_dtypes.float8_e4m3fn if kind == "e4m3" else ml_dtypes.float8_e5m2
    return np.clip(x, -largest, largest).astype(dtype).view(np.uint8)


def test_errors(framework, new):
    k, v = (framework.array(x) for x in new[:2])
    given = caches(framework)
    used = framework.array(STARTS)
    if framework.name == "jax":
        with pytest.raises(rapt.Unsupported, match="kv_append.*JAX"):
            rapt.kv_append(k, v, *given, seqused_k=used)
        return
    for options, sentence in (
        ({}, "exactly one"),
        ({"seqused_k": used, "starts": used}, "exactly one"),
        ({"seqused_k": used, "k_scales": "block64"}, "k_scales = 'block64'"),
        ({"seqused_k": used, "layout": "hbsd"}, "layout = 'hbsd'"),
        ({"seqused_k": used, "interleaved": 1}, "interleaved = 1|interleaved"),
        ({"seqused_k": used, "interleaved": True}, "interleaved: given without cos and sin"),
        ({"seqused_k": used, "q_at_start": True}, "q_at_start: given without q"),
        ({"seqused_k": used, "cos": k}, "cos: given without sin; give both or neither"),
        ({"seqused_k": used, "k_scales": "head"}, "k_scales = head: k_cache is f32; only FP8 caches have descales"),
        ({"seqused_k": used, "k_descale": k}, "k_descale: given without k_scales; give both or neither"),
        ({"seqused_k": used, "q": k}, "q: given without cos"),
        ({"seqused_k": used, "q_out": k}, "q_out: given without q"),
        ({"seqused_k": framework.array(np.array([3, 21], np.int32)), "check_contents": True}, r"seqused_k\[1\] = 21"),
    ):
        with pytest.raises(rapt.InvalidArgument, match=sentence) as error:
            rapt.kv_append(k, v, *given, **options)
        assert not re.search("RAPT_|NULL", str(error.value))  # names of C
    for cache in given:
        assert (framework.numpy(cache) == POISON).all()
    if framework.name == "numpy":
        given[0].flags.writeable = False
        with pytest.raises(rapt.InvalidArgument, match="k_cache.*read-only"):
            rapt.kv_append(k, v, *given, seqused_k=used)


def test_queries_in_place_and_at_the_start(framework, new):
    in_place(framework)
    cos, sin = tables()
    k, v, q = (framework.array(x.copy()) for x in new)
    found = rapt.kv_append(
        *(k, v, *caches(framework)),
        seqused_k=framework.array(STARTS),
        cos=framework.array(cos),
        sin=framework.array(sin),
        q=q,
        q_out=q,
        q_at_start=True,
    )
    assert found is q
    expected = rotated(new[2], cos[STARTS][:, None, None], sin[STARTS][:, None, None], False)
    assert np.array_equal(framework.numpy(q), expected)


def test_attention_reads_a_growing_fp8_cache(framework, rng):
    """Decoding in steps of 1 to 6 tokens, with one scale for each token. The result is that of quantising all tokens at
    once.
    """
    in_place(framework)
    total, dim = 21, 32
    k, v = (rng.standard_normal((2, 2, total, dim)).astype(np.float32) for _ in range(2))
    q = framework.array(rng.standard_normal((2, 4, 1, dim)).astype(np.float32))
    table = framework.array(np.array([[4, 0, 6], [5, 2, 1]], np.int32))
    stored = [framework.array(np.zeros((7, 2, PAGE, dim), np.uint8)) for _ in range(2)]
    descales = [framework.array(np.zeros((7, PAGE, 2), np.float32)) for _ in range(2)]
    start = 0
    for new in (6, 1, 5, 1, 4, 3, 1):
        fresh = [framework.array(x[:, :, start : start + new].copy()) for x in (k, v)]
        rapt.kv_append(
            *(*fresh, *stored),
            seqused_k=framework.array(np.full(2, start, np.int32)),
            block_table=table,
            k_descale=descales[0],
            v_descale=descales[1],
            k_scales="token",
            v_scales="token",
            k_cache_dtype="e4m3",
            v_cache_dtype="e4m3",
        )
        start += new
    paged = rapt.sdpa(
        *(q, *stored),
        block_table=table,
        seqused_k=framework.array(np.full(2, total, np.int32)),
        k_descale=descales[0],
        v_descale=descales[1],
        k_scales="token",
        v_scales="token",
        k_dtype="e4m3",
        v_dtype="e4m3",
    )
    k8, v8 = (rapt.quantize(framework.array(x), scales="token") for x in (k, v))
    dense = rapt.sdpa(q, k8.codes, v8.codes, **k8.options("k"), **v8.options("v"))
    assert np.abs(framework.numpy(paged) - framework.numpy(dense)).max() < 1e-6


# ---- torch.compile


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_torch_compile(new, backend):
    torch = pytest.importorskip("torch")
    if backend == "inductor" and not torch.cuda.is_available():
        backend = "aot_eager"
    cos, sin = (torch.from_numpy(x) for x in tables())
    k, v, q = (torch.from_numpy(x).bfloat16() for x in new)

    def step(k, v, q, k_cache, v_cache, used, descale):
        rotated = rapt.kv_append(
            *(k, v, k_cache, v_cache),
            seqused_k=used,
            cos=cos,
            sin=sin,
            q=q,
            k_scales="token",
            v_scales="token",
            k_descale=descale[0],
            v_descale=descale[1],
        )
        return rotated * 2, k_cache.view(torch.uint8) + 1

    def made():
        shape = (BATCH, HEADS, CAPACITY, DIM)
        stored = [torch.zeros(shape, dtype=torch.float8_e4m3fn) for _ in range(2)]
        return *stored, torch.from_numpy(STARTS), torch.zeros(2, *shape[:3])

    eager, compiled = made(), made()
    expected = step(k, v, q, *eager)
    found = torch.compile(step, fullgraph=True, backend=backend)(k, v, q, *compiled)
    for a, b in zip((*expected, *eager), (*found, *compiled)):
        assert torch.equal(a.view(torch.uint8), b.view(torch.uint8))
    assert eager[3].any()


def test_torch_refuses_gradients_and_counts_versions(new):
    torch = pytest.importorskip("torch")
    k, v, _ = (torch.from_numpy(x) for x in new)
    cache = [torch.zeros(BATCH, HEADS, CAPACITY, DIM) for _ in range(2)]
    used, version = torch.from_numpy(STARTS), cache[0]._version
    with pytest.raises(rapt.Unsupported, match="no backward"):
        rapt.kv_append(k.clone().requires_grad_(), v, *cache, seqused_k=used)
    rapt.kv_append(k, v, *cache, seqused_k=used)
    assert cache[0]._version > version


# ---- Tables

YARN = dict(factor=4.0, original_max_position_embeddings=4096)
RULES = {
    "default": {},
    "default with another base": {"base": 500000.0},
    "linear": {"kind": "linear", "factor": 8.0},
    "dynamic": {"kind": "dynamic", "factor": 2.0, "original_max_position_embeddings": 2048, "seqlen": 8192},
    "yarn": {"kind": "yarn", **YARN},
    "yarn, all parameters": {
        "kind": "yarn",
        **YARN,
        "beta_fast": 24.0,
        "beta_slow": 2.0,
        "mscale": 0.7,
        "mscale_all_dim": 1.3,
        "truncate": False,
    },
    "yarn, attention_factor": {"kind": "yarn", **YARN, "attention_factor": 1.25},
    "llama3": {
        "kind": "llama3",
        "base": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}


def transformers_tables(rule, positions, dim, dtype):
    """(cos, sin) by transformers' rules. dtype float32: as transformers computes them. float64: their inverse
    frequencies (float32), but angles in float64.
    """
    torch, rope = pytest.importorskip("torch"), pytest.importorskip("transformers.modeling_rope_utils")
    from transformers import LlamaConfig

    given = dict(rule)
    kind, base, seqlen = given.pop("kind", "default"), given.pop("base", 10000.0), given.pop("seqlen", None)
    most = given.get("original_max_position_embeddings", 2048)
    config = LlamaConfig(
        head_dim=dim,
        max_position_embeddings=most,
        rope_parameters={"rope_type": kind, "rope_theta": base, **given},
    )
    if kind == "default":
        inverse, factor = 1.0 / (base ** (torch.arange(0, dim, 2, dtype=torch.int64).float() / dim)), 1.0
    else:
        inverse, factor = rope.ROPE_INIT_FUNCTIONS[kind](config, "cpu", seq_len=seqlen)
    angles = torch.arange(positions, dtype=dtype)[:, None] * inverse.to(dtype)
    return (angles.cos() * factor).numpy(), (angles.sin() * factor).numpy()


@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("name", RULES)
def test_tables_are_those_of_transformers(name, dim):
    """An angle of position p in float32 has an error of up to p times 2^-23 or so, since its factor has that of
    float32. rapt's own rounding is 2^-24.
    """
    torch = pytest.importorskip("torch")
    positions = 8192
    found = rapt.rotary_tables(positions, dim, **RULES[name])
    exact = transformers_tables(RULES[name], positions, dim, torch.float64)
    plain = transformers_tables(RULES[name], positions, dim, torch.float32)
    bound = 2.0**-21 * np.maximum(np.arange(positions), 1)[:, None]
    for one, right, theirs in zip(found, exact, plain):
        assert one.dtype == np.float32 and one.shape == (positions, dim // 2)
        assert (np.abs(one - right) <= bound).all(), np.abs(one - right).max()
        assert (np.abs(one - theirs) <= bound).all()
        assert np.abs(one[:16] - theirs[:16]).max() < 4e-6


def documented(rule, dim):
    """(frequencies, factor m) in float64, by the formulas of docs/semantics.md."""
    given = dict(rule)
    kind, base = given.pop("kind", "default"), given.pop("base", 10000.0)
    factor, most = given.get("factor"), given.get("original_max_position_embeddings")
    if kind == "dynamic":
        base *= (factor * max(given["seqlen"], most) / most - factor + 1) ** (dim / (dim - 2))
    f, m = [base ** (-2 * j / dim) for j in range(dim // 2)], 1.0
    if kind == "linear":
        f = [x / factor for x in f]
    if kind == "yarn":
        low, high = (
            dim * math.log(most / (2 * math.pi * given.get(name, default))) / (2 * math.log(base))
            for name, default in (("beta_fast", 32), ("beta_slow", 1))
        )
        if given.get("truncate", True):
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, dim - 1)
        shares = [min(max((j - low) / (high - low), 0), 1) for j in range(dim // 2)]
        f = [(1 - w) * x + w * x / factor for x, w in zip(f, shares)]
        above, below = given.get("mscale", 1.0), given.get("mscale_all_dim", 0.0)
        m = given.get("attention_factor", (0.1 * above * math.log(factor) + 1) / (0.1 * below * math.log(factor) + 1))
    if kind == "llama3":
        low, high = given["low_freq_factor"], given["high_freq_factor"]
        for j, x in enumerate(f):
            length = 2 * math.pi / x
            w = (most / length - low) / (high - low)
            f[j] = x if length < most / high else x / factor if length > most / low else (1 - w) * x / factor + w * x
    return np.array(f), m


@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("name", RULES)
def test_tables_follow_the_documented_rules(name, dim):
    f, m = documented(RULES[name], dim)
    angles = np.arange(4096)[:, None] * f
    cos, sin = rapt.rotary_tables(4096, dim, **RULES[name])
    assert np.abs(cos - m * np.cos(angles)).max() <= m * 2.0**-24
    assert np.abs(sin - m * np.sin(angles)).max() <= m * 2.0**-24


def test_tables_of_the_definition():
    cos, sin = rapt.rotary_tables(1000, 6, first_position=123456, base=777.0)
    for row in (0, 1, 999):
        for j in range(3):
            angle = (123456 + row) * 777.0 ** (-2 * j / 6)
            assert cos[row, j] == np.float32(math.cos(angle)) and sin[row, j] == np.float32(math.sin(angle))


def test_wrong_places_in_pages(framework, new):
    """The sentences are those of C, and no page changes. On a GPU, contents are checked only with check_contents."""
    in_place(framework)
    k, v = (framework.array(x) for x in new[:2])
    cos, sin = (framework.array(x[:16]) for x in tables())
    table = np.array([[4, 0, 2], [6, 1, 3]], np.int32)
    used = np.array([3, 15], np.int32)
    slots = np.arange(8, dtype=np.int32).reshape(2, 4)
    for places, sentence in (
        ({"seqused_k": used, "block_table": table[:, :2]}, "block_table: sequence 1 has 19 tokens .* pages for 16"),
        ({"seqused_k": used, "block_table": table + 4}, r"block_table\[0, 0\] = 8: must be from 0 to 6"),
        ({"seqused_k": used, "block_table": table - 4}, r"block_table\[1, 1\] = -3: must be from 0 to 6"),
        ({"seqused_k": used * 0, "block_table": table * 0}, "block_table: tokens .* same place"),
        ({"seqused_k": used, "block_table": table[0]}, r"block_table.rank = 1 .*: must be 2, \[batch, pages\]"),
        ({"seqused_k": used, "block_table": table.astype(np.int64)}, "block_table.dtype = i64: must be i32"),
        ({"slot_mapping": slots + 49}, r"slot_mapping\[1, 3\] = 56: must be negative \(skipped\) or less than 56"),
        ({"slot_mapping": slots // 2}, "slot_mapping.*same place"),
        ({"seqused_k": used, "block_table": table, "cos": cos, "sin": sin}, r"cos.shape = \[16, 4\]: .*position"),
    ):
        given = caches(framework, paged=True)
        arrays = {name: framework.array(x) if isinstance(x, np.ndarray) else x for name, x in places.items()}
        with pytest.raises(rapt.InvalidArgument, match=sentence):
            rapt.kv_append(k, v, *given, **arrays, check_contents=True)
        for cache in given:
            assert (framework.numpy(cache) == POISON).all()
    k_cache, v_cache = caches(framework, paged=True)
    options = {"seqused_k": framework.array(used), "block_table": framework.array(table)}
    with pytest.raises(rapt.InvalidArgument, match="k_cache.dtype = f16: must be that of k, f32"):
        rapt.kv_append(k, v, caches(framework, "float16", paged=True)[0], v_cache, **options)
    with pytest.raises(rapt.InvalidArgument, match=r"v_cache.shape = \[7, 3, 4, 16\]"):
        rapt.kv_append(k, v, k_cache, v_cache[:, :, :4], **options)


def test_tables_of_every_framework(framework):
    cos, sin = tables()
    found = rapt.rotary_tables(CAPACITY, 8, like=framework.empty((1,), "float32"))
    for one, right in zip(found, (cos, sin)):
        assert type(one) is type(framework.empty((1,), "float32")) or framework.name == "jax"
        assert np.array_equal(framework.numpy(one), right)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"kind": "ntk"}, "kind = 'ntk'"),
        ({"kind": "linear"}, "factor: required"),
        ({"factor": 2.0}, "factor = 2: .* does not use it"),
        ({"base": 1.0}, "base = 1: must be finite and above 1"),
        ({"kind": "linear", "factor": math.inf}, "factor = inf"),
        ({"kind": "yarn", **YARN, "mscale": 1.0}, "mscale_all_dim"),
        ({"kind": "yarn", **YARN, "attention_factor": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0}, "attention_factor"),
        ({**RULES["llama3"], "high_freq_factor": 1.0}, "high_freq_factor = 1"),
        ({"truncate": False}, "truncate = false: kind = default does not use it"),
        ({"kind": "linear", "factor": 2.0, "beta_fast": 1.0}, "beta_fast = 1: kind = linear does not use it"),
        ({"kind": "dynamic", "factor": 2.0}, "original_max_position_embeddings: required with kind = dynamic"),
        ({"first_position": -1}, "first_position = -1"),
    ],
)
def test_tables_refuse(options, sentence):
    with pytest.raises(rapt.InvalidArgument, match=sentence) as error:
        rapt.rotary_tables(4, 8, **options)
    assert not re.search("RAPT_|NULL", str(error.value))  # names of C


@pytest.mark.parametrize(("positions", "dim"), [(4, 7), (4, 0), (-1, 8)])
def test_tables_refuse_sizes(positions, dim):
    with pytest.raises(rapt.InvalidArgument, match="rotary_dim|positions"):
        rapt.rotary_tables(positions, dim)
