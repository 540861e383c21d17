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


def paged_numbers(rng):
    """q, k and v of two sequences, their lengths, and the block table of pages of 16 in no order."""
    q, k, v = (rng.standard_normal((2, heads, n, 64)).astype(np.float16) for heads, n in ((4, 1), (2, 40), (2, 40)))
    return q, k, v, np.array([40, 17], np.int32), np.array([[4, 0, 6], [2, 5, -1]], np.int32)


@pytest.mark.parametrize("order", ["heads first", "rows first"])
def test_appends_to_pages_and_reads_them(rng, order):
    """k_cache and v_cache are views of one array. In `heads first`, heads of a token are neighbours in memory."""
    q, k, v, used, table = paged_numbers(rng)
    shape = (7, 2, 16, 2, 64) if order == "heads first" else (7, 2, 2, 16, 64)
    both = cupy.full(shape, np.nan, np.float16)
    k_cache, v_cache = (both[:, i].swapaxes(1, 2) if order == "heads first" else both[:, i] for i in range(2))
    pages = {"block_table": cupy.asarray(table), "check_contents": True}
    starts = cupy.asarray(np.array([0, 0], np.int32))
    slots = np.array([[table[b, j // 16] * 16 + j % 16 if j < used[b] else -1 for j in range(40)] for b in range(2)])
    rapt.kv_append(cupy.asarray(k), cupy.asarray(v), k_cache, v_cache, slot_mapping=cupy.asarray(slots))
    found = rapt.sdpa(cupy.asarray(q), k_cache, v_cache, seqused_k=cupy.asarray(used), **pages)
    in_use = np.arange(40) < used[:, None, None, None]
    assert_near(found.get(), reference(q, k, v, mask=in_use)[0], "float16")
    one = [cupy.asarray(x[:, :, :1]) for x in (k, v)]  # appending in pages gives the same bytes
    before = both.copy()
    rapt.kv_append(*one, k_cache, v_cache, starts=starts, **pages)
    assert bool((both.view(np.uint16) == before.view(np.uint16)).all())


def test_pages_on_the_current_stream_and_wrong_tables(rng):
    q, k, v, used, table = paged_numbers(rng)
    k_cache, v_cache = (cupy.asarray(rng.standard_normal((7, 2, 16, 64)).astype(np.float16)) for _ in "kv")
    arrays = [cupy.asarray(x) for x in (q, used, table)]
    expected = rapt.sdpa(arrays[0], k_cache, v_cache, seqused_k=arrays[1], block_table=arrays[2])
    cupy.cuda.Device().synchronize()
    with cupy.cuda.Stream(non_blocking=True) as stream:
        found = rapt.sdpa(arrays[0], k_cache, v_cache, seqused_k=arrays[1], block_table=arrays[2])
        stream.synchronize()
    assert bool((found == expected).all())
    wrong = cupy.asarray(np.where(table == 6, 7, table))
    with pytest.raises(rapt.InvalidArgument, match=r"block_table\[0, 2\] = 7: must be a page of k, from 0 to 6"):
        rapt.sdpa(arrays[0], k_cache, v_cache, seqused_k=arrays[1], block_table=wrong, check_contents=True)
    with pytest.raises(rapt.InvalidArgument, match="block_table.dtype = i64: must be i32"):
        rapt.sdpa(arrays[0], k_cache, v_cache, seqused_k=arrays[1], block_table=cupy.asarray(table.astype(np.int64)))
    with pytest.raises(rapt.InvalidArgument, match="block_table: a numpy.ndarray, but q is of cupy"):
        rapt.sdpa(arrays[0], k_cache, v_cache, seqused_k=arrays[1], block_table=table)


def test_quantize_uses_the_current_stream(rng):
    x = cupy.asarray(rng.standard_normal((2, 4, 333, 128)).astype(np.float16))
    expected = rapt.quantize(x, scales="block64", hadamard=True, smooth=True)
    cupy.cuda.Device().synchronize()
    with cupy.cuda.Stream(non_blocking=True) as stream:
        made = rapt.quantize(x, scales="block64", hadamard=True, smooth=True)
        stream.synchronize()
    for one, other in zip(made[:3], expected[:3]):
        assert bool((one == other).all())
