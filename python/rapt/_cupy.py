"""rapt's operations on CuPy arrays. They run on the GPU of the arrays, on CuPy's current stream."""

from __future__ import annotations

import cupy
import numpy

from . import _core
from ._backend import Backend, register
from ._contexts import load_default_pack
from ._eager import backend
from ._errors import InvalidArgument
from ._numbers import Numbers, values_of
from ._views import CUDA, RAPT_BF16, allocate_in_order, order_for, type_code


def view(array: cupy.ndarray) -> tuple:
    """The description of an array for rapt._core: see register_framework there."""
    size = array.dtype.itemsize
    if any(stride % size for stride in array.strides):
        raise InvalidArgument(
            f"an array of dtype {array.dtype} with strides {array.strides} bytes: must be whole elements"
        )
    return (
        array.data.ptr,
        CUDA,
        array.device.id,
        *type_code(array.dtype.name),
        array.shape,
        tuple(stride // size for stride in array.strides),
        False,
    )


def dtype_named(name):
    if name == "bfloat16":
        try:
            import ml_dtypes
        except ImportError:
            raise InvalidArgument(
                "out_dtype = 'bfloat16': CuPy has no such type without the package ml_dtypes"
            ) from None
        return ml_dtypes.bfloat16
    return name


def allocate(like: cupy.ndarray, shape: tuple[int, ...], name, zeroed: bool, in_order: bool = True) -> cupy.ndarray:
    dtype, make = dtype_named(name), cupy.zeros if zeroed else cupy.empty
    order = order_for(like.strides, len(shape), in_order)
    with like.device:
        return allocate_in_order(lambda sizes: make(sizes, dtype), shape, order)


def stream(like: cupy.ndarray) -> int:
    with like.device:
        return cupy.cuda.get_current_stream().ptr


NUMBERS = Numbers(
    cupy,
    cast=lambda array, dtype: array.astype(dtype),
    decode=lambda codes, format: cupy.array(values_of(format), cupy.float32)[codes],
    array=lambda values, like: cupy.array(values, cupy.float32),
    arange=lambda count, like: cupy.arange(count, dtype=cupy.int32),
)


def rotary_tables(shape, like, fill):
    cos, sin = (numpy.empty(shape, numpy.float32) for _ in range(2))
    fill(cos, sin)
    with like.device:
        return cupy.asarray(cos), cupy.asarray(sin)


BACKEND = backend(allocate, NUMBERS, rotary_tables)
_core.register_framework((cupy.ndarray,), "cupy", RAPT_BF16, {"view": view, "allocate": allocate, "stream": stream})
load_default_pack()


def backend_of(array) -> Backend:
    if type(array) is cupy.ndarray:
        return register(array, BACKEND)
    raise InvalidArgument(f"q: a {type(array).__module__}.{type(array).__qualname__}: must be a plain cupy.ndarray")
