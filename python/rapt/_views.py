"""Functions for all frameworks: DLPack's type codes, and arrays whose dimensions have the order of another array's."""

from __future__ import annotations

CPU, CUDA = 1, 2
# DLPack's type code and bits for each dtype name (https://dmlc.github.io/dlpack/latest/c_api.html)
DTYPES = {
    "float32": (2, 32),
    "float16": (2, 16),
    "float64": (2, 64),
    "bfloat16": (4, 16),
    "float8_e4m3fn": (10, 8),
    "float8_e5m2": (12, 8),
    "bool": (6, 8),
    "uint8": (1, 8),
    "int8": (0, 8),
    "int16": (0, 16),
    "int32": (0, 32),
    "int64": (0, 64),
    "uint16": (1, 16),
    "uint32": (1, 32),
    "uint64": (1, 64),
}
RAPT_F32, RAPT_BF16 = 1, 3


def type_code(name: str) -> tuple[int, int]:
    """DLPack's (code, bits) of a dtype. For a dtype that is not in the table: (255, 0), which rapt refuses."""
    return DTYPES.get(name, (255, 0))


def memory_order(strides) -> list[int]:
    """The dimensions from the slowest to the fastest. If strides (in any unit) are equal, the given order is kept."""
    if any(stride <= 0 for stride in strides):
        return list(range(len(strides)))
    return sorted(range(len(strides)), key=lambda dim: -strides[dim])


def order_for(strides, rank: int, in_order: bool) -> list[int]:
    """The order of the dimensions of a new array with this rank. If in_order is true and `strides` has the same rank,
    it is the order of an array with these strides. Otherwise it is 0, 1, 2, ...
    """
    return memory_order(strides) if in_order and rank == len(strides) else list(range(rank))


def allocate_in_order(empty, shape, order: list[int]):
    """An array of this shape whose dimensions have the order `order` in memory. empty(shape) must return an array with
    a method transpose().
    """
    if order == list(range(len(shape))):
        return empty(shape)
    back = [order.index(dim) for dim in range(len(shape))]
    return empty(tuple(shape[dim] for dim in order)).transpose(back)
