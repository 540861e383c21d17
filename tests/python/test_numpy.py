"""Tests rapt on NumPy arrays, which run on the CPU. CI runs these tests."""

import inspect
import re
import subprocess
import sys

import cases
import numpy as np
import pytest
from conftest import assert_near, reference

import rapt
from rapt import _core


def test_signature_is_what_the_module_takes():
    parameters = inspect.signature(rapt.sdpa).parameters
    assert list(parameters)[:3] == ["q", "k", "v"]
    assert {name: p.default for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY} == _core.defaults()
    assert "Scaled dot-product attention" in rapt.sdpa.__doc__
    described = set(re.findall(r"\w+", rapt.sdpa.__doc__.split("Args:")[1].split("Returns:")[0]))
    assert not set(parameters) - described


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", cases.NAMES)
def test_option(qkv, rng, name, dtype):
    q, k, v = (x.astype(dtype) for x in qkv())
    options = cases.options(rng, 2, 4, 17, 29)[name]
    expected, expected_lse = reference(q, k, v, **options)
    out, lse = rapt.sdpa(q, k, v, lse=True, **options)
    assert out.dtype == dtype and lse.dtype == np.float32
    assert_near(out, expected, dtype)
    finite = np.isfinite(expected_lse)
    assert np.array_equal(np.isneginf(lse), ~finite)
    assert np.abs(lse[finite] - expected_lse[finite]).max() <= 1e-5 * max(1, np.abs(expected_lse[finite]).max())


def test_bshd_is_the_same_transposed(qkv):
    q, k, v = qkv(head_dim_v=40)
    expected, lse = rapt.sdpa(q, k, v, causal=True, lse=True)
    swapped = [np.ascontiguousarray(x.swapaxes(1, 2)) for x in (q, k, v)]
    out, swapped_lse = rapt.sdpa(*swapped, layout="bshd", causal=True, lse=True)
    assert out.shape == (2, 17, 4, 40)
    assert np.array_equal(out.swapaxes(1, 2), expected) and np.array_equal(swapped_lse, lse)


def test_out_and_lse_are_written_and_returned(qkv):
    q, k, v = qkv()
    out, lse = np.full_like(q, np.nan), np.full(q.shape[:3], np.nan, np.float32)
    result = rapt.sdpa(q, k, v, out=out, lse=lse)
    assert result[0] is out and result[1] is lse
    assert_near(out, reference(q, k, v)[0])


def test_allocated_out_follows_the_order_of_q(qkv):
    q, k, v = qkv(head_dim_v=16)
    transposed = np.ascontiguousarray(q.swapaxes(1, 2)).swapaxes(1, 2)
    out = rapt.sdpa(transposed, k, v)
    assert out.shape == (2, 4, 17, 16)
    assert out.swapaxes(1, 2).flags.c_contiguous and not out.flags.c_contiguous


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[:, :, ::-1],
        lambda x: x[:, ::-1],
        lambda x: x[..., ::-1],
        lambda x: x[:, :, 1::2],
        lambda x: np.broadcast_to(x[:1], x.shape),
        lambda x: np.asfortranarray(x),
    ],
)
def test_views_are_read_where_they_lie(qkv, view):
    q, k, v = qkv(heads_k=4)
    q, k, v = view(q), view(k), view(v)
    assert_near(rapt.sdpa(q, k, v), reference(q, k, v)[0])


def test_read_only_inputs_work_and_read_only_outputs_are_refused(qkv):
    q, k, v = qkv()
    for x in (q, k, v):
        x.flags.writeable = False
    assert_near(rapt.sdpa(q, k, v), reference(q, k, v)[0])
    out = np.zeros_like(q)
    out.flags.writeable = False
    with pytest.raises(rapt.InvalidArgument, match="out: a read-only array"):
        rapt.sdpa(q, k, v, out=out)
    assert not out.any()


def test_report_R186_strides_and_offset_of_the_producer(rng):
    base = rng.standard_normal((1, 1, 8, 5), dtype=np.float32)
    x = base.transpose(0, 1, 3, 2)[:, :, 1:]  # [1, 1, 4, 8]: strides swapped, starting inside the buffer
    assert_near(rapt.sdpa(x, x, x), reference(x, x, x)[0])


def pack_e4m3(x):
    """Converts float32 to the byte of the nearest E4M3 value, with a search over all 254 finite values."""
    codes = np.array([c for c in range(256) if c & 0x7F != 0x7F], np.uint8)
    return codes[np.abs(x[..., None] - unpack_e4m3(codes)).argmin(-1)]


def unpack_e4m3(code):
    sign, exponent, mantissa = np.where(code & 0x80, -1.0, 1.0), (code >> 3 & 15).astype(int), (code & 7).astype(float)
    return sign * np.where(exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent - 7))


def test_report_R188_fp8_as_uint8_with_a_named_dtype(qkv):
    q, k, v = qkv(seqlen_q=8, seqlen_k=12)
    raw = [pack_e4m3(x) for x in (q, k, v)]
    named = {f"{name}_dtype": "e4m3" for name in "qkv"}
    expected = reference(*(unpack_e4m3(x) for x in raw))[0]
    assert_near(rapt.sdpa(*raw, **named), expected, "float16")
    with pytest.raises(rapt.InvalidArgument, match="q: uint8 needs a format"):
        rapt.sdpa(*raw)
    with pytest.raises(rapt.InvalidArgument, match="only uint8 storage"):
        rapt.sdpa(q, k, v, q_dtype="e4m3")
    ml_dtypes = pytest.importorskip("ml_dtypes")
    typed = [x.view(ml_dtypes.float8_e4m3fn) for x in raw]
    assert np.array_equal(rapt.sdpa(*typed), rapt.sdpa(*raw, **named))


def test_descales_of_every_granularity(qkv, rng):
    q, k, v = qkv(seqlen_q=70, seqlen_k=130, head_dim=16)
    raw = [pack_e4m3(x) for x in (q, k, v)]
    named = {f"{name}_dtype": "e4m3" for name in "qkv"}
    for kind, shape in {
        "tensor": lambda x: (1,),
        "head": lambda x: x.shape[:2],
        "token": lambda x: x.shape[:3],
        "block64": lambda x: (*x.shape[:2], -(-x.shape[2] // 64)),
        "block128": lambda x: (*x.shape[:2], -(-x.shape[2] // 128)),
    }.items():
        scales = [rng.uniform(0.5, 2, shape(x)).astype(np.float32) for x in raw]
        values = [unpack_e4m3(x) * spread(s, x.shape, kind) for x, s in zip(raw, scales)]
        out = rapt.sdpa(
            *raw,
            **named,
            q_descale=scales[0],
            k_descale=scales[1],
            v_descale=scales[2],
            q_scales=kind,
            k_scales=kind,
            v_scales=kind,
        )
        assert_near(out, reference(*values)[0], "float16")
    channel = rng.uniform(0.5, 2, (2, 2, 16)).astype(np.float32)
    out = rapt.sdpa(*raw, **named, v_descale=channel, v_scales="channel", out_dtype="float32")
    expected = reference(unpack_e4m3(raw[0]), unpack_e4m3(raw[1]), unpack_e4m3(raw[2]) * channel[:, :, None])[0]
    assert_near(out, expected, "float16")


def spread(scales, shape, kind):
    if kind == "tensor":
        return scales.reshape(1, 1, 1, 1)
    if kind == "head":
        return scales[:, :, None, None]
    if kind.startswith("block"):
        scales = np.repeat(scales, int(kind[5:]), axis=2)[:, :, : shape[2]]
    return scales[..., None]


def test_descale_and_granularity_come_together(qkv):
    q, k, v = qkv()
    with pytest.raises(rapt.InvalidArgument, match="q_scales is given without q_descale"):
        rapt.sdpa(q, k, v, q_scales="head")
    with pytest.raises(rapt.InvalidArgument, match='q_scales = .heads.: must be one of "tensor", "head"'):
        rapt.sdpa(q, k, v, q_scales="heads", q_descale=np.ones(1, np.float32))


def test_packed_sequences(rng):
    lengths_q, lengths_k = [5, 0, 9], [7, 4, 3]
    cu_q, cu_k = (np.cumsum([0, *x]).astype(np.int32) for x in (lengths_q, lengths_k))
    q = rng.standard_normal((14, 4, 16), dtype=np.float32)
    k, v = (rng.standard_normal((14, 2, 16), dtype=np.float32) for _ in range(2))
    packed = {"cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k, "max_seqlen_q": 9, "max_seqlen_k": 7}
    out, lse = rapt.sdpa(q, k, v, causal=True, lse=True, **packed)
    assert lse.shape == (4, 14)
    for b in range(3):
        rows, keys = slice(cu_q[b], cu_q[b + 1]), slice(cu_k[b], cu_k[b + 1])
        one, one_lse = reference(*(x[None].swapaxes(1, 2) for x in (q[rows], k[keys], v[keys])), causal=True)
        assert_near(out[rows].swapaxes(0, 1)[None], one)
        seen = np.isfinite(one_lse[0])
        assert np.allclose(lse[:, rows][seen], one_lse[0][seen], atol=1e-5) and np.isneginf(lse[:, rows][~seen]).all()
    used = np.array([2, 4, 0], np.int32)
    assert not rapt.sdpa(q, k, v, seqused_k=used, **packed)[5:].any()  # sequence 1 is empty, sequence 2 uses no keys


def test_partial_states_merge_to_the_whole(qkv, rng):
    q, k, v = (x.astype(np.float16) for x in qkv(seqlen_k=64))
    sinks = rng.standard_normal(4, dtype=np.float32)
    parts = [
        rapt.sdpa(q, k[:, :, a:b], v[:, :, a:b], partial=True, causal=True, q_start=47, k_start=a)
        for a, b in ((0, 20), (20, 64))
    ]
    assert all(out.dtype == np.float32 for out, _ in parts)
    out, lse = rapt.merge([p[0] for p in parts], [p[1] for p in parts], sinks=sinks, lse=True, out_dtype="float16")
    expected, expected_lse = reference(q, k, v, causal=True, sinks=sinks)
    assert out.dtype == np.float16
    assert_near(out, expected, "float16")
    assert np.abs(lse - expected_lse).max() < 1e-5
    with pytest.raises(rapt.InvalidArgument, match="lses: 1 arrays for 2 outs"):
        rapt.merge([p[0] for p in parts], [parts[0][1]])


def test_sizes_of_zero(qkv):
    q, k, v = qkv()
    assert rapt.sdpa(q[:0], k[:0], v[:0]).shape == (0, 4, 17, 24)
    assert rapt.sdpa(q[:, :, :0], k, v).shape == (2, 4, 0, 24)
    out, lse = rapt.sdpa(q, k[:, :, :0], v[:, :, :0], lse=True)
    assert not out.any() and np.isneginf(lse).all()


def test_prepare_and_explain(qkv):
    q, k, v = qkv()
    assert rapt.prepare(q, k, v, causal=True) is None
    text = rapt.explain(q, k, v, causal=True)
    assert "f32 b2 h4:2 q17 k29 d24 causal" in text and "attention_cpu: chosen" in text
    with pytest.raises(TypeError, match="casual"):
        rapt.prepare(q, k, v, casual=True)


def test_a_context_of_its_own(qkv):
    q, k, v = qkv()
    assert np.array_equal(rapt.sdpa(q, k, v, context=rapt.Context(num_threads=1)), rapt.sdpa(q, k, v))
    with pytest.raises(rapt.InvalidArgument, match="num_threads = -1"):
        rapt.Context(num_threads=-1)


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        ({"scale": "0.1"}, "scale = '0.1': must be a number"),
        ({"scale": True}, "scale = True: must be a number"),
        ({"scale": np.ones(1, np.float32)}, "scale = .*: must be a number"),
        ({"scale": float("nan")}, "scale = nan"),
        ({"softcap": 0}, "softcap = 0: must be finite and greater than 0"),
        ({"causal": 1}, 'causal = 1: must be False, True, "bottom_right" or "top_left"'),
        ({"causal": "lower"}, "causal = 'lower'"),
        ({"layout": "sbhd"}, 'layout = \'sbhd\': must be one of "bhsd", "bshd"'),
        ({"window": 3}, r"window = 3: must be \(left, right\)"),
        ({"window": (1, 2, 3)}, r"window = \(1, 2, 3\)"),
        ({"window": (1.5, 2)}, "window = 1.5: must be an int"),
        ({"window": (-2, 0)}, "window"),
        ({"mask": np.ones((17, 28), bool)}, "mask"),
        ({"mask": np.full((17, 29), 2, np.uint8)}, "mask"),
        ({"mask": np.ones((17, 29), np.float32)}, "mask"),
        ({"bias": np.ones((17, 29), np.int32)}, "bias"),
        ({"bias": np.ones((17, 29))}, "bias.dtype = float64: rapt reads"),
        ({"bias": [[0.0]]}, "bias: a list, but q is of numpy"),
        ({"sinks": np.zeros(3, np.float32)}, "sinks"),
        ({"lse": "yes"}, "lse: a str, but q is of numpy"),
        ({"out_dtype": "int32"}, "out_dtype = 'int32': must be float32, float16 or bfloat16"),
        ({"out_dtype": "float16", "out": np.zeros((2, 4, 17, 24), np.float32)}, "out_dtype = 'float16' with out"),
        ({"out_dtype": "float16", "partial": True}, "a partial state is float32"),
        ({"max_seqlen_q": 3.0}, "max_seqlen_q = 3.0: must be an int"),
        ({"splits": 0}, "splits = 0"),
        ({"pv": "int8"}, "pv = 'int8': must be one of"),
        ({"invariant": 1}, "invariant = 1: must be True or False"),
        ({"context": 3}, "context = 3: must be a rapt.Context or None"),
        ({"q_start": 1, "causal": "top_left"}, "causal_top_left"),
        ({"cu_seqlens_q": np.zeros(2, np.int32)}, "cu_seqlens"),
    ],
)
def test_wrong_arguments_get_a_sentence_and_touch_nothing(qkv, arguments, sentence):
    q, k, v = qkv()
    out = {} if "out" in arguments or "out_dtype" in arguments else {"out": np.full_like(q, 7)}
    with pytest.raises(rapt.InvalidArgument, match=sentence):
        rapt.sdpa(q, k, v, **{**out, **arguments})
    if out:
        assert (out["out"] == 7).all()


@pytest.mark.parametrize(
    "change, sentence",
    [
        (lambda q, k, v: (q.astype(np.float64), k, v), "q.dtype = float64: rapt reads"),
        (lambda q, k, v: (q, k[0], v), "k.rank = 3"),
        (lambda q, k, v: (q, k, v[:, :, 1:]), "v"),
        (lambda q, k, v: (q[:, :3], k, v), "heads"),
        (lambda q, k, v: ([1.0], k, v), "q: is a builtins.list, but must be an array of PyTorch, JAX, CuPy or NumPy"),
        (lambda q, k, v: (np.ma.masked_array(q), k, v), "must be a plain numpy.ndarray"),
        (lambda q, k, v: (q.astype(">f4"), k, v), "native byte order"),
        (lambda q, k, v: (q, None, v), "k: a NoneType, but q is of numpy"),
    ],
)
def test_wrong_arrays_get_a_sentence(qkv, change, sentence):
    with pytest.raises(rapt.InvalidArgument, match=sentence):
        rapt.sdpa(*change(*qkv()))


def test_errors_are_of_pythons_own_kinds():
    assert issubclass(rapt.InvalidArgument, ValueError) and issubclass(rapt.Unsupported, NotImplementedError)
    assert issubclass(rapt.OutOfMemory, MemoryError) and issubclass(rapt.DeviceError, rapt.Error)


def test_out_may_not_overlap_an_input(qkv):
    q, k, v = qkv()
    before = q.copy()
    with pytest.raises(rapt.InvalidArgument, match="out"):
        rapt.sdpa(q, k, v, out=q)
    assert np.array_equal(q, before)


def test_no_reference_is_lost_or_kept(qkv):
    import gc

    q, k, v = qkv()
    counts = [sys.getrefcount(x) for x in (q, k, v)]
    for _ in range(200):
        rapt.sdpa(q, k, v, lse=True)
        with pytest.raises(rapt.InvalidArgument):
            rapt.sdpa(q, k, v, scale="x")
    gc.collect()
    assert [sys.getrefcount(x) for x in (q, k, v)] == counts


def test_report_R184_the_module_needs_no_framework():
    """The module is not linked with any framework, so one build works with all versions of a framework."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys\n"
            "for name in ('torch', 'numpy', 'jax', 'cupy'): sys.modules[name] = None\n"
            "import rapt; print(rapt.__version__)",
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == rapt.__version__
