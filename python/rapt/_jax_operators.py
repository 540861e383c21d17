"""quantize, fake_quantize, qk and gemm on JAX arrays, as XLA foreign functions. _jax.py, which does the same for
attention, exports them. Operands and numbers have the order that python/src/xla_operators.cpp expects.
"""

from __future__ import annotations

import weakref
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy

from . import _numbers
from ._contexts import number_of
from ._errors import InvalidArgument
from ._outputs import STORAGE, Quantized, descale_shape, gemm_shape, mean_shape, out_dtype_name, qk_shape
from ._values import FORMAT_CODES, LAYOUTS, SCALES, stored_code

HADAMARD, SMOOTH, SUPPLIED = 1 << 0, 1 << 1, 1 << 2
READABLE = (
    *("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"),
    *("uint8", "bool", "int32", "int64"),
)
HAS_PERCENTILE, HAS_MAX_SEQLEN = 1 << 0, 1 << 1


def _register() -> None:
    """Registers Quantized with JAX's transformations: its arrays are leaves, its strings are static."""
    jax.tree_util.register_pytree_node(
        Quantized, lambda made: (tuple(made)[:3], tuple(made)[3:]), lambda words, arrays: Quantized(*arrays, *words)
    )


_register()


@lru_cache(maxsize=256)
def _compiled(target: str, shapes: tuple, integers: tuple, numbers: tuple, context: int):
    """Makes the call one jitted function, so that eager calls are traced only once."""
    results = [jax.ShapeDtypeStruct(*shape) for shape in shapes]
    attributes = {
        "integers": numpy.array(integers, numpy.int64),
        "numbers": numpy.array(numbers, numpy.float64),
        "context": numpy.array([context], numpy.int64),
    }

    def call(*arrays):
        return jax.ffi.ffi_call(target, results, vmap_method="sequential")(*arrays, **attributes)

    return jax.jit(call)


def keep_while(result, context) -> None:
    """Keeps a context alive as long as the result of its call, because XLA can run the call later. In traced calls the
    caller must keep the context alive.
    """
    if context is not None and not isinstance(result, jax.core.Tracer):
        weakref.finalize(result, number_of, context)  # holds a reference to context; number_of() itself has no effect


def check_dtypes(arrays: dict) -> None:
    """Checks the arrays before XLA runs the call, because an error of the call itself would come late and without the
    array's name.
    """
    for name, array in arrays.items():
        if array is not None and array.dtype.name not in READABLE:
            raise InvalidArgument(f"{name}.dtype = {array.dtype.name}: rapt reads {', '.join(READABLE)}")
        if array is not None and array.dtype.name == "bool" and name != "mask":
            raise InvalidArgument(f"{name}.dtype = bool: only `mask` takes booleans")


def _check(given: dict, arrays: dict) -> list:
    """Returns the arrays that are given. Refuses out=, because JAX allocates outputs itself."""
    if given["out"] is not None:
        raise InvalidArgument("out: JAX arrays are immutable, so rapt returns new ones")
    for name, array in arrays.items():
        if array is not None and not isinstance(array, jax.Array):
            kind = f"{type(array).__module__}.{type(array).__qualname__}"
            raise InvalidArgument(f"{name}: a {kind}, but all arrays of a call come from one framework, here jax")
    check_dtypes(arrays)
    return [array for array in arrays.values() if array is not None]


def quantize(x, given: dict) -> Quantized:
    arrays = _check(given, {"x": x, "descale": given["descale"], "cu_seqlens": given["cu_seqlens"]})
    supplied, packed, smooth = given["descale"] is not None, given["cu_seqlens"] is not None, given["smooth"]
    percentile, format = given["percentile"], given["format"]
    integers = (
        int(supplied),
        int(packed),
        LAYOUTS[given["layout"]],
        HAS_PERCENTILE * (percentile is not None) + HAS_MAX_SEQLEN * packed,
        HADAMARD * given["hadamard"] + SMOOTH * smooth + SUPPLIED * supplied,
        SCALES[given["scales"]],
        FORMAT_CODES[format],
        int(given["max_seqlen"] or 0),
    )
    shapes = [(x.shape, STORAGE[format])]
    if not supplied:
        shapes.append((descale_shape(x.shape, given), "float32"))
    if smooth:
        shapes.append((mean_shape(x.shape, given), "float32"))
    context = number_of(given["context"]) or 0
    call = _compiled("rapt_quantize", tuple(shapes), integers, (float(percentile or 0),), context)
    codes, *others = call(*arrays)
    keep_while(codes, given["context"])
    if packed:  # rapt does not write rows outside all sequences, so they hold old memory
        rows = _numbers.packed_rows(NUMBERS, given["cu_seqlens"], x.shape[0], given["max_seqlen"])
        codes = jnp.where(rows.covered[:, None, None], codes, jnp.zeros((), codes.dtype))
    descale = given["descale"] if supplied else others.pop(0)
    return Quantized(codes, descale, others[0] if smooth else None, given["scales"], format)


def _decode(codes, format: str):
    numbers = codes.astype(jnp.float32)
    return (numbers * 896.0 - 114240.0) / 255.0 if format == "sim8" else numbers


NUMBERS = _numbers.Numbers(
    jnp,
    cast=lambda array, dtype: array.astype(dtype),
    decode=_decode,
    array=lambda values, like: jnp.array(values, jnp.float32),
    arange=lambda count, like: jnp.arange(count, dtype=jnp.int32),
)


@jax.custom_vjp
def _straight_through(x, simulated, keep):
    """Returns `simulated`. The derivative of the result with respect to x is defined as 1."""
    return simulated


_straight_through.defvjp(lambda x, simulated, keep: (simulated, None), lambda _, gradient: (gradient, None, None))


@jax.custom_vjp
def _straight_through_clipped(x, simulated, keep):
    return simulated


_straight_through_clipped.defvjp(
    lambda x, simulated, keep: (simulated, keep),
    lambda keep, gradient: (jnp.where(keep, gradient, jnp.zeros((), gradient.dtype)), None, None),
)


@jax.custom_vjp
def _straight_through_rotated(x, simulated, keep):
    return simulated


_straight_through_rotated.defvjp(
    lambda x, simulated, keep: (simulated, keep),
    lambda keep, gradient: (_numbers.clipped(NUMBERS, gradient, keep, True), None, None),
)


def fake_quantize(x, given: dict):
    fixed = jax.lax.stop_gradient(x)
    made = quantize(fixed, {**given, "descale": jax.lax.stop_gradient(given["descale"])})
    simulated = _numbers.dequantized(NUMBERS, made, given, fixed)
    if not given["clip_gradient"]:
        return _straight_through(x, simulated, None)
    keep = _numbers.unsaturated(NUMBERS, made, given, fixed)
    return (_straight_through_rotated if given["hadamard"] else _straight_through_clipped)(x, simulated, keep)


def _multiply(target: str, names: str, arrays: dict, shape: tuple, given: dict, swapped: int, numbers: tuple):
    """Makes qk or gemm: the product of the two arguments with these names."""
    operands = _check(given, {**arrays, **{f"{name}_descale": given[f"{name}_descale"] for name in names}})
    integers = (
        *(0 if given[f"{name}_scales"] is None else SCALES[given[f"{name}_scales"]] for name in names),
        *(stored_code(name, array.dtype.name, given[f"{name}_dtype"]) for name, array in arrays.items()),
        swapped,
    )
    dtype = out_dtype_name(arrays[names[0]], given)
    context = number_of(given["context"]) or 0
    out = _compiled(target, ((shape, dtype),), integers, numbers, context)(*operands)[0]
    keep_while(out, given["context"])
    return out


def qk(q, k, given: dict):
    shape = qk_shape(q.shape, k.shape, given["layout"])
    return _multiply(
        "rapt_qk", "qk", {"q": q, "k": k}, shape, given, LAYOUTS[given["layout"]], (float(given["scale"]),)
    )


def gemm(a, b, given: dict):
    return _multiply("rapt_gemm", "ab", {"a": a, "b": b}, gemm_shape(a.shape, b.shape), given, 0, (0.0,))
