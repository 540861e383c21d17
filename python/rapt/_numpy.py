"""rapt's operations on NumPy arrays, which run on the CPU. Read-only inputs and any strides are read in place. float8
and bfloat16 are the types of ml_dtypes. float8 can also be uint8 with a named dtype.
"""

from __future__ import annotations

import numpy

from . import _core
from ._backend import Backend, register
from ._eager import backend
from ._errors import InvalidArgument
from ._numbers import Numbers, values_of
from ._views import CPU, RAPT_F32, allocate_in_order, order_for, type_code


def view(array: numpy.ndarray) -> tuple:
    """The description of an array for rapt._core: see register_framework there."""
    size = max(array.dtype.itemsize, 1)
    # The stride of a dimension of size 1 has no meaning.
    strides = [stride if extent > 1 else 0 for stride, extent in zip(array.strides, array.shape)]
    if not array.dtype.isnative or any(stride % size for stride in strides):
        raise InvalidArgument(
            f"an array of dtype {array.dtype} with strides {array.strides} bytes: elements must be in native byte "
            "order, at whole multiples of their size"
        )
    return (
        array.ctypes.data,
        CPU,
        0,
        *type_code(array.dtype.name),
        array.shape,
        tuple(stride // size for stride in strides),
        not array.flags.writeable,
    )


def dtype_named(name) -> numpy.dtype:
    if name == "bfloat16":
        try:
            import ml_dtypes
        except ImportError:
            raise InvalidArgument(
                "out_dtype = 'bfloat16': NumPy has no such type without the package ml_dtypes"
            ) from None
        return numpy.dtype(ml_dtypes.bfloat16)
    return numpy.dtype(name)


def allocate(like: numpy.ndarray, shape: tuple[int, ...], name, zeroed: bool, in_order: bool = True) -> numpy.ndarray:
    dtype, make = dtype_named(name), numpy.zeros if zeroed else numpy.empty
    order = order_for(like.strides, len(shape), in_order)
    return allocate_in_order(lambda sizes: make(sizes, dtype), shape, order)


NUMBERS = Numbers(
    numpy,
    cast=lambda array, dtype: array.astype(dtype),
    decode=lambda codes, format: numpy.array(values_of(format), numpy.float32)[codes],
    array=lambda values, like: numpy.array(values, numpy.float32),
    arange=lambda count, like: numpy.arange(count, dtype=numpy.int32),
)


def rotary_tables(shape, like, fill):
    cos, sin = (numpy.empty(shape, numpy.float32) for _ in range(2))
    fill(cos, sin)
    return cos, sin


BACKEND = backend(allocate, NUMBERS, rotary_tables)
TYPES = (numpy.ndarray, numpy.memmap)
_core.register_framework(TYPES, "numpy", RAPT_F32, {"view": view, "allocate": allocate})


def backend_of(array) -> Backend:
    if type(array) in TYPES:
        return register(array, BACKEND)
    raise InvalidArgument(
        f"q: a {type(array).__module__}.{type(array).__qualname__}: must be a plain numpy.ndarray "
        "(numpy.asarray makes one)"
    )
