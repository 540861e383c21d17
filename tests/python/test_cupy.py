"""Tests rapt on CuPy arrays, which need a GPU."""

import cases
import numpy as np
import pytest
from conftest import assert_near, reference

import rapt

cupy = pytest.importorskip("cupy")
try:
    gpus = cupy.cuda.runtime.getDeviceCount()
except cupy.cuda.runtime.CUDARuntimeError:
    gpus = 0
pytestmark = pytest.mark.skipif(gpus == 0, reason="no GPU")


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", cases.NAMES)
def test_option(qkv, rng, name, dtype):
    q, k, v = (x.astype(dtype) for x in qkv())
    options = cases.options(rng, 2, 4, 17, 29)[name]
    expected, _ = reference(q, k, v, **options)
    given = {key: cupy.asarray(x) if isinstance(x, np.ndarray) else x for key, x in options.items()}
    out, lse = rapt.sdpa(*(cupy.asarray(x) for x in (q, k, v)), lse=True, **given)
    assert isinstance(out, cupy.ndarray) and out.dtype == dtype and lse.dtype == np.float32
    assert_near(out.get(), expected, dtype)


def test_streams_views_and_out(qkv):
    q, k, v = (cupy.asarray(x.astype(np.float16)) for x in qkv(head_dim=64))
    with cupy.cuda.Stream(non_blocking=True) as stream:
        out = cupy.full_like(q, np.nan)
        assert rapt.sdpa(q, k, v, out=out) is out
        stream.synchronize()
    assert_near(out.get(), reference(q.get(), k.get(), v.get())[0], "float16")
    flipped = [x[:, :, ::-1] for x in (q, k, v)]
    assert_near(rapt.sdpa(*flipped).get(), reference(*(x.get() for x in flipped))[0], "float16")
    transposed = cupy.ascontiguousarray(q.swapaxes(1, 2)).swapaxes(1, 2)
    assert rapt.sdpa(transposed, k, v).strides == transposed.strides


def test_float8_as_uint8_merge_and_errors(qkv):
    q, k, v = (cupy.asarray(x) for x in qkv(head_dim=64))
    raw = cupy.full(k.shape, 0x38, cupy.uint8)  # 1.0 in E4M3
    out = rapt.sdpa(q, raw, raw, k_dtype="e4m3", v_dtype="e4m3")
    assert_near(out.get(), np.ones(q.shape))
    with pytest.raises(rapt.InvalidArgument, match="k: uint8"):
        rapt.sdpa(q, raw, v)
    with pytest.raises(rapt.InvalidArgument, match="k: a numpy.ndarray, but q is of cupy"):
        rapt.sdpa(q, k.get(), v)
    parts = [rapt.sdpa(q, k[:, :, a:b], v[:, :, a:b], partial=True) for a, b in ((0, 10), (10, 29))]
    merged = rapt.merge([p[0] for p in parts], [p[1] for p in parts])
    assert_near(merged.get(), reference(q.get(), k.get(), v.get())[0])


@pytest.mark.parametrize("kind", ["tensor", "head", "token", "block64", "block128"])
def test_descales(qkv, kind):
    q, k, v = (cupy.asarray(x) for x in qkv(seqlen_k=130, head_dim=64))
    k8, v8 = rapt.quantize(k, scales=kind), rapt.quantize(v, scales="channel")
    assert k8.codes.dtype == np.uint8 and isinstance(k8.descale, cupy.ndarray)
    out = rapt.sdpa(q, k8.codes, v8.codes, **k8.options("k"), **v8.options("v"))
    values = [rapt.fake_quantize(k, scales=kind).get(), rapt.fake_quantize(v, scales="channel").get()]
    assert_near(out.get(), reference(q.get(), *values)[0], "float16")


def test_quantize_uses_the_current_stream(rng):
    x = cupy.asarray(rng.standard_normal((2, 4, 333, 128)).astype(np.float16))
    expected = rapt.quantize(x, scales="block64", hadamard=True, smooth=True)
    cupy.cuda.Device().synchronize()
    with cupy.cuda.Stream(non_blocking=True) as stream:
        made = rapt.quantize(x, scales="block64", hadamard=True, smooth=True)
        stream.synchronize()
    for one, other in zip(made[:3], expected[:3]):
        assert bool((one == other).all())
