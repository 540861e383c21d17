"""JAX arrays: rapt as an XLA foreign function ("rapt_sdpa"), eager and under jit, on the stream that XLA gives it.

Loaded by _dispatch.py at the first JAX array. The order of operands and attributes is that of python/src/xla.cpp.
Not differentiable (JAX says so); vmap runs one call after another.
"""

from __future__ import annotations

from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy

from . import _core
from ._dispatch import Front, load_default_pack, register
from ._errors import InvalidArgument, Unsupported
from ._signature import bind

OPERANDS = (
    "bias",
    "mask",
    "alibi_slopes",
    "sinks",
    "cu_seqlens_q",
    "cu_seqlens_k",
    "seqused_k",
    "q_descale",
    "k_descale",
    "v_descale",
    "q_starts",
    "k_starts",
)
HAS = {
    "scale": 1 << 0,
    "softcap": 1 << 1,
    "window": 1 << 2,
    "q_start": 1 << 3,
    "k_start": 1 << 4,
    "max_seqlen_q": 1 << 5,
    "max_seqlen_k": 1 << 6,
    "splits": 1 << 7,
}
FLAGS = {"partial": 1 << 2, "invariant": 1 << 3, "check_contents": 1 << 4}
CAUSAL = {False: 0, True: 1, "bottom_right": 1, "top_left": 2}
SCALES = {None: 0, "tensor": 1, "head": 2, "token": 3, "block64": 4, "block128": 5, "channel": 6}
PV = {None: 0, "f16": 1, "fp8": 2, "fp8x2": 3}
ACC = {None: 0, "f32": 0, "f16": 1}
STORED = {None: 0, "e4m3": 4, "float8_e4m3fn": 4, "e5m2": 5, "float8_e5m2": 5, "sim8": 6}
ORDINARY = ("float32", "float16", "bfloat16")
SHORT = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}

for _platform, _capsule in _core.xla_targets().items():
    jax.ffi.register_ffi_target("rapt_sdpa", _capsule, platform=_platform)


def _word(name: str, value, words: dict):
    if isinstance(value, (bool, str, type(None))) and value in words:
        return words[value]
    raise InvalidArgument(f"{name} = {value!r}: must be one of {', '.join(repr(word) for word in words)}")


def _number(name: str, value) -> float:
    if isinstance(value, (int, float, numpy.number)) and not isinstance(value, bool):
        return float(value)
    raise InvalidArgument(f"{name} = {value!r}: must be a number known while tracing")


def _integer(name: str, value) -> int:
    if isinstance(value, (int, numpy.integer)) and not isinstance(value, bool):
        return int(value)
    raise InvalidArgument(f"{name} = {value!r}: must be an int known while tracing")


def _stored(given: dict, name: str) -> int:
    """The rapt_dtype that a uint8 array is said to hold; 0: what its own dtype says."""
    named, dtype = given[name + "_dtype"], given[name].dtype.name
    if named is None:
        if dtype == "uint8":
            raise InvalidArgument(
                f'{name}: uint8 does not say what it holds: pass {name}_dtype = "e4m3", "e5m2" or "sim8"'
            )
        return 0
    code = _word(f"{name}_dtype", named if isinstance(named, str) else jnp.dtype(named).name, STORED)
    if dtype != "uint8" and STORED.get(dtype) != code:
        raise InvalidArgument(
            f"{name}_dtype = {named!r}, but {name} is of {dtype}: only uint8 storage can be given another dtype"
        )
    return code


def _arrays(given: dict) -> list:
    """The operands in order, each a JAX array."""
    arrays = [given[name] for name in ("q", "k", "v", *OPERANDS)]
    for name, array in zip(("q", "k", "v", *OPERANDS), arrays):
        if array is not None and not isinstance(array, jax.Array):
            raise InvalidArgument(
                f"{name}: a {type(array).__module__}.{type(array).__qualname__}, but q is of jax: all arrays of a call "
                "come from one framework"
            )
    return arrays


def _attributes(given: dict) -> tuple[tuple[int, ...], tuple[float, ...]]:
    has = sum(bit for name, bit in HAS.items() if given[name] is not None)
    flags = _word("causal", given["causal"], CAUSAL)
    for name, bit in FLAGS.items():
        flags |= bit if _word(name, given[name], {False: False, True: True}) else 0
    window = given["window"] if given["window"] is not None else (0, 0)
    if not isinstance(window, (tuple, list)) or len(window) != 2:
        raise InvalidArgument(f"window = {window!r}: must be (left, right), -1 for an open side")
    present = sum(1 << i for i, name in enumerate(OPERANDS) if given[name] is not None)
    for name in ("q", "k", "v"):
        if (given[name + "_descale"] is None) != (given[name + "_scales"] is None):
            raise InvalidArgument(f"{name}_descale and {name}_scales: a descale and its granularity come together")
    numbers = [
        0 if given[name] is None else _integer(name, given[name])
        for name in ("q_start", "k_start", "max_seqlen_q", "max_seqlen_k", "splits")
    ]
    integers = (
        present,
        _word("layout", given["layout"], {"bhsd": 0, "bshd": 1}),
        has,
        flags,
        *(_integer("window", side) for side in window),
        *numbers,
        *(_word(f"{name}_scales", given[f"{name}_scales"], SCALES) for name in "qkv"),
        _word("pv", given["pv"], PV),
        _word("acc", given["acc"], ACC),
        *(_stored(given, name) for name in "qkv"),
    )
    return integers, tuple(0.0 if given[name] is None else _number(name, given[name]) for name in ("scale", "softcap"))


def _results(given: dict) -> list[jax.ShapeDtypeStruct]:
    q, v, partial = given["q"], given["v"], given["partial"]
    out_dtype = given["out_dtype"]
    if out_dtype is not None:
        out_dtype = SHORT.get(out_dtype, out_dtype) if isinstance(out_dtype, str) else jnp.dtype(out_dtype).name
        if out_dtype not in ORDINARY or (partial and out_dtype != "float32"):
            raise InvalidArgument(
                f"out_dtype = {given['out_dtype']!r}: must be float32, float16 or bfloat16 (partial: float32)"
            )
    elif partial:
        out_dtype = "float32"
    else:
        out_dtype = next((array.dtype.name for array in (q, v) if array.dtype.name in ORDINARY), "bfloat16")
    if q.ndim not in (3, 4) or v.ndim != q.ndim:
        raise InvalidArgument(f"q: rank {q.ndim}, v: rank {v.ndim}: both must be 4, or 3 with cu_seqlens_q")
    results = [jax.ShapeDtypeStruct((*q.shape[:-1], v.shape[-1]), out_dtype)]
    if given["lse"] is True or partial:
        batch_heads_seqlen = (q.shape[1], q.shape[0]) if q.ndim == 3 else q.shape[:3]
        if q.ndim == 4 and given["layout"] == "bshd":
            batch_heads_seqlen = (q.shape[0], q.shape[2], q.shape[1])
        results.append(jax.ShapeDtypeStruct(batch_heads_seqlen, "float32"))
    return results


@lru_cache(maxsize=256)
def _compiled(shapes: tuple, integers: tuple, numbers: tuple):
    """The call as one jitted function, so that eager calls do not trace anew."""
    results = [jax.ShapeDtypeStruct(*shape) for shape in shapes]

    def sdpa(*arrays):
        return jax.ffi.ffi_call("rapt_sdpa", results, vmap_method="sequential")(
            *arrays, integers=numpy.array(integers, numpy.int64), numbers=numpy.array(numbers, numpy.float64)
        )

    return jax.jit(sdpa)


def sdpa(q, k, v, **options):
    given = bind(q, k, v, options)
    if given["out"] is not None or given["lse"] not in (True, False, None):
        raise InvalidArgument("out, or an array as lse: JAX arrays are immutable, so rapt returns new ones")
    if given["context"] is not None:
        raise InvalidArgument("context: JAX calls run in the process default")
    for name in ("q_start", "k_start"):
        is_array = isinstance(given[name], jax.Array)
        given[name + "s"] = given[name] if is_array else None
        given[name] = None if is_array else given[name]
    arrays = _arrays(given)
    integers, numbers = _attributes(given)
    shapes = tuple((one.shape, one.dtype.name) for one in _results(given))
    out, *lse = _compiled(shapes, integers, numbers)(*(array for array in arrays if array is not None))
    return (out, lse[0]) if lse else out


def _refuse(operation: str):
    def refuse(*arguments, **options):
        raise Unsupported(f"{operation}: not for JAX arrays, which rapt sees only while XLA runs a program")

    return refuse


FRONT = Front(sdpa, _refuse("prepare"), _refuse("explain"), _refuse("merge"))

load_default_pack()


def front_of(array) -> Front:
    if not isinstance(array, jax.Array):
        raise InvalidArgument(f"q: a {type(array).__module__}.{type(array).__qualname__}: must be a jax.Array")
    return register(array, FRONT)
