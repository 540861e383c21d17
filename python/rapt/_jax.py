"""rapt.sdpa and rapt.merge on JAX arrays, as XLA foreign functions ("rapt_sdpa", "rapt_merge"). They work eagerly and
under jit, on XLA's stream.

_dispatch.py loads this module at the first JAX array. Arrays (_signature.OPERANDS) and attributes are passed in the
order of the common table, and python/src/xla.cpp reads them in this order. The functions are not differentiable (JAX
raises an error). vmap runs one call after another.
"""

from __future__ import annotations

from functools import lru_cache, partial

import jax
import jax.numpy as jnp
import numpy

from . import _core, _jax_operators
from ._backend import Backend, register
from ._contexts import load_default_pack, number_of
from ._errors import InvalidArgument, Unsupported
from ._signature import FLAGS, OPERANDS, SCALARS, bind, split_starts
from ._jax_operators import check_dtypes, keep_while
from ._values import CAUSAL, LAYOUTS, by_hand, check, integer, stored_code, word

ORDINARY = ("float32", "float16", "bfloat16")
SHORT = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}

for _target, _platform, _capsule in _core.xla_targets():
    jax.ffi.register_ffi_target(_target, _capsule, platform=_platform)


def _arrays(given: dict) -> list:
    """The operands in order. Checks that each is a JAX array."""
    arrays = [given[name] for name in ("q", "k", "v", *OPERANDS)]
    for name, array in zip(("q", "k", "v", *OPERANDS), arrays):
        if array is not None and not isinstance(array, jax.Array):
            raise InvalidArgument(
                f"{name}: a {type(array).__module__}.{type(array).__qualname__}, but q is of jax: all arrays of a call "
                "come from one framework"
            )
    check_dtypes(dict(zip(("q", "k", "v", *OPERANDS), arrays)))
    return arrays


def _value(name: str, kind: str, words: dict | None, value):
    """The value as the C ABI takes it; 0 if it is not given."""
    if value is None:
        return 0
    if kind == "real":
        return float(value)
    return int(integer(name, value)) if kind == "integer" else word(name, value, words)


def _attributes(given: dict) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """The attributes `integers` and `numbers` that python/src/xla.cpp reads."""
    unnamed = by_hand(given)
    has, integers, numbers = 0, [], []
    for name, parameter, kind, bit, words in SCALARS:
        value = given[parameter] if parameter else unnamed.get(name)
        has |= 0 if value is None else bit
        (numbers if kind == "real" else integers).append(_value(parameter or name, kind, words, value))
    leading = (
        sum(1 << i for i, name in enumerate(OPERANDS) if given[name] is not None),
        word("layout", given["layout"], LAYOUTS),
        has,
        word("causal", given["causal"], CAUSAL) + sum(bit for name, bit in FLAGS if given[name]),
    )
    stored = (stored_code(name, given[name].dtype.name, given[f"{name}_dtype"]) for name in "qkv")
    return (*leading, *integers, *stored), tuple(map(float, numbers))


def _results(given: dict) -> list[jax.ShapeDtypeStruct]:
    q, v, as_state = given["q"], given["v"], given["partial"]
    out_dtype = given["out_dtype"]
    if out_dtype is not None:
        out_dtype = _dtype_name(out_dtype)
        if out_dtype not in ORDINARY or (as_state and out_dtype != "float32"):
            raise InvalidArgument(
                f"out_dtype = {given['out_dtype']!r}: must be float32, float16 or bfloat16 (partial: float32)"
            )
    elif as_state:
        out_dtype = "float32"
    else:
        out_dtype = next((array.dtype.name for array in (q, v) if array.dtype.name in ORDINARY), "bfloat16")
    if q.ndim not in (3, 4) or (v.ndim != q.ndim and given["block_table"] is None):
        raise InvalidArgument(f"q: rank {q.ndim}, v: rank {v.ndim}: both must be 4, or 3 with cu_seqlens_q")
    results = [jax.ShapeDtypeStruct((*q.shape[:-1], v.shape[-1]), out_dtype)]
    if given["lse"] is True or as_state:
        batch_heads_seqlen = (q.shape[1], q.shape[0]) if q.ndim == 3 else q.shape[:3]
        if q.ndim == 4 and given["layout"] == "bshd":
            batch_heads_seqlen = (q.shape[0], q.shape[2], q.shape[1])
        results.append(jax.ShapeDtypeStruct(batch_heads_seqlen, "float32"))
    return results


@lru_cache(maxsize=256)
def _compiled(shapes: tuple, integers: tuple, numbers: tuple, context: int):
    """Makes the call one jitted function, so that eager calls are traced only once."""
    results = [jax.ShapeDtypeStruct(*shape) for shape in shapes]

    def sdpa(*arrays):
        return jax.ffi.ffi_call("rapt_sdpa", results, vmap_method="sequential")(
            *arrays,
            integers=numpy.array(integers, numpy.int64),
            numbers=numpy.array(numbers, numpy.float64),
            context=numpy.array([context], numpy.int64),
        )

    return jax.jit(sdpa)


def sdpa(q, k, v, **options):
    given = bind(q, k, v, options)
    if given["out"] is not None or not (given["lse"] is None or isinstance(given["lse"], bool)):
        raise InvalidArgument(
            "out, or an array as lse: JAX arrays are immutable, so rapt returns new ones; pass lse=True to get lse"
        )
    check(given)
    split_starts(given, jax.Array)
    arrays = _arrays(given)
    integers, numbers = _attributes(given)
    shapes = tuple((one.shape, one.dtype.name) for one in _results(given))
    call = _compiled(shapes, integers, numbers, number_of(given["context"]) or 0)
    out, *lse = call(*(array for array in arrays if array is not None))
    keep_while(out, given["context"])
    if given["cu_seqlens_q"] is not None and given["max_seqlen_q"] is not None:
        covered = _covered(given["cu_seqlens_q"], out.shape[0], given["max_seqlen_q"])
        out = jnp.where(covered[:, None, None], out, 0)
        lse = [jnp.where(covered, one, 0) for one in lse]
    return (out, lse[0]) if lse else out


@partial(jax.jit, static_argnums=(1, 2))
def _covered(cu_seqlens, total: int, max_seqlen: int):
    """True for the packed rows that rapt writes. Other rows hold old memory, so the caller sets them to 0."""
    rows = jnp.arange(total)
    first = cu_seqlens[jnp.searchsorted(cu_seqlens, rows, side="right") - 1]
    return (rows >= cu_seqlens[0]) & (rows < cu_seqlens[-1]) & (rows - first < max_seqlen)


def merge(outs, lses, sinks, lse, out, out_dtype, context):
    if out is not None or not (lse is None or isinstance(lse, bool)):
        raise InvalidArgument("out, or an array as lse: JAX arrays are immutable, so rapt returns new ones")
    if len(lses) != len(outs):
        raise InvalidArgument(f"lses: {len(lses)} arrays for {len(outs)} outs: must be as many")
    arrays = [*outs, *lses] + ([] if sinks is None else [sinks])
    if not all(isinstance(one, jax.Array) for one in arrays):
        raise InvalidArgument("outs, lses, sinks: all arrays of a call come from one framework")
    for names, parts in (("outs", outs), ("lses", lses), ("sinks", [] if sinks is None else [sinks])):
        for one in parts:
            check_dtypes({names: one})
    name = "float32" if out_dtype is None else _dtype_name(out_dtype)
    if name not in ORDINARY:
        raise InvalidArgument(f"out_dtype = {out_dtype!r}: must be float32, float16 or bfloat16")
    results = [jax.ShapeDtypeStruct(outs[0].shape, name)]
    if lse:
        results.append(jax.ShapeDtypeStruct(lses[0].shape, "float32"))
    call = jax.ffi.ffi_call("rapt_merge", results, vmap_method="sequential")
    merged = call(
        *arrays,
        integers=numpy.array([len(outs), sinks is not None], numpy.int64),
        context=numpy.array([number_of(context) or 0], numpy.int64),
    )
    keep_while(merged[0], context)
    return tuple(merged) if lse else merged[0]


def _dtype_name(dtype) -> str:
    return SHORT.get(dtype, dtype) if isinstance(dtype, str) else jnp.dtype(dtype).name


def _refuse(operation: str):
    def refuse(*arguments, **options):
        raise Unsupported(f"{operation}: not available for JAX arrays: rapt sees them only while XLA runs a program")

    return refuse


def _refuse_append(*arguments):
    raise Unsupported("kv_append: not available for JAX arrays: they cannot be changed in place")


def rotary_tables(shape, like, fill):
    tables = [numpy.empty(shape, numpy.float32) for _ in range(2)]
    fill(*tables)
    return tuple(jax.device_put(table, next(iter(like.devices()))) for table in tables)


BACKEND = Backend(
    sdpa,
    _refuse("prepare"),
    _refuse("explain"),
    merge,
    _jax_operators.quantize,
    _jax_operators.fake_quantize,
    _jax_operators.qk,
    _jax_operators.gemm,
    _refuse_append,
    rotary_tables,
)

load_default_pack()


def backend_of(array) -> Backend:
    if not isinstance(array, jax.Array):
        raise InvalidArgument(f"q: a {type(array).__module__}.{type(array).__qualname__}: must be a jax.Array")
    return register(array, BACKEND)
