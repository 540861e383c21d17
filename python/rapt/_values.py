"""Checks arguments that are not arrays, for calls that are prepared in Python (operators, JAX). rapt._core has the same
rules in C++. torch.compile traces this code, so numbers may be symbolic.
"""

from __future__ import annotations

from typing import Any

from ._errors import InvalidArgument
from ._signature import FLAGS, SCALARS, STARTS

LAYOUTS = {"bhsd": 0, "bshd": 1}
CAUSAL = {False: 0, True: 1, "bottom_right": 1, "top_left": 2}
WORDS = {parameter: words for _, parameter, kind, _, words in SCALARS if parameter and kind == "word"}
NUMBERS = tuple(parameter for _, parameter, kind, *_ in SCALARS if parameter and kind == "real")
INTEGERS = tuple(row[1] for row in SCALARS if row[1] and row[2] == "integer" and row[1] not in STARTS)
SCALES = WORDS["q_scales"]
BOOLS = {False: 0, True: 1}
FORMAT_CODES = {"e4m3": 4, "float8_e4m3fn": 4, "e5m2": 5, "float8_e5m2": 5, "sim8": 6}  # rapt_dtype

# The arrays and the other options of kv_append, in the order of _core.kv_append.
APPEND_ARRAYS = (
    "cu_seqlens_new",
    "seqused_k",
    "starts",
    "slot_mapping",
    "block_table",
    "cache_batch_idx",
    "k_descale",
    "v_descale",
    "cos",
    "sin",
    "positions",
    "q",
    "q_out",
)
APPEND_OPTIONS = (
    "k_scales",
    "v_scales",
    "layout",
    "interleaved",
    "q_at_start",
    "check_contents",
    "k_cache_dtype",
    "v_cache_dtype",
)


def word(name: str, value: Any, words: dict) -> int:
    """The number of a word of the table. False and True are allowed only if the table has them."""
    for known, number in words.items():
        if value is known or (isinstance(value, str) and isinstance(known, str) and value == known):
            return number
    raise InvalidArgument(f"{name} = {value!r}: must be one of {', '.join(repr(known) for known in words)}")


def integer(name: str, value: Any) -> Any:
    # isinstance comes first: torch.compile cannot trace hasattr on a symbolic int
    other = not isinstance(value, int) and (hasattr(value, "__dlpack__") or not hasattr(value, "__index__"))
    if other or isinstance(value, bool):
        raise InvalidArgument(f"{name} = {value!r}: must be an int")
    if not -(1 << 63) <= value < 1 << 63:
        raise InvalidArgument(f"{name} = {value!r}: must be an int of 64 bits")
    return value


def number(name: str, value: Any) -> Any:
    # This test comes first, because torch.compile cannot trace the other tests with a symbolic number.
    if isinstance(value, (float, int)) and not isinstance(value, bool):
        return value
    if isinstance(value, (bool, str, bytes)) or hasattr(value, "__dlpack__") or not hasattr(value, "__float__"):
        raise InvalidArgument(f"{name} = {value!r}: must be a number")
    return value


def shape_of(name: str, array: Any) -> tuple:
    """The shape of the argument `name`; () if it has none."""
    if getattr(array, "is_nested", False):  # PyTorch: it has no shape
        raise InvalidArgument(
            f"{name}: a nested tensor: pass its rows, values(), as packed sequences, with its offsets() in int32 as "
            "cu_seqlens"
        )
    return getattr(array, "shape", ())


def stored_code(name: str, dtype: str, named: Any) -> int:
    """The rapt_dtype in which the bytes of the argument `name` are read; 0 if it is the array's own dtype. dtype: the
    array's own dtype. named: the value of the argument {name}_dtype.
    """
    if named is None:
        if dtype == "uint8":
            raise InvalidArgument(f'{name}: uint8 needs a format: pass {name}_dtype = "e4m3", "e5m2" or "sim8"')
        return 0
    code = word(f"{name}_dtype", str(named).removesuffix("'>").rsplit(".", 1)[-1], FORMAT_CODES)
    if dtype != "uint8" and FORMAT_CODES.get(dtype) != code:
        raise InvalidArgument(
            f"{name}_dtype = {named!r}, but {name} is of {dtype}: only uint8 storage can be given another dtype"
        )
    return code


def by_hand(given: dict[str, Any]) -> dict[str, Any]:
    """The table's values that have no parameter with the same name. Other parameters give them, as in call.cpp."""
    return dict(zip(("window_left", "window_right"), given["window"] or ()))


def check(given: dict[str, Any]) -> None:
    """Checks every option that is not an array, a dtype or a context. Raises InvalidArgument."""
    word("layout", given["layout"], LAYOUTS)
    word("causal", given["causal"], CAUSAL)
    for name, _ in FLAGS:
        word(name, given[name], BOOLS)
    for name, words in WORDS.items():
        if given[name] is not None:
            word(name, given[name], words)
    for name in NUMBERS:
        if given[name] is not None:
            number(name, given[name])
    for name in INTEGERS:
        if given[name] is not None:
            integer(name, given[name])
    if given["window"] is not None:
        if not isinstance(given["window"], (tuple, list)) or len(given["window"]) != 2:
            raise InvalidArgument(
                f"window = {given['window']!r}: must be (left, right); -1 means no limit on that side"
            )
        for side in given["window"]:
            integer("window", side)
    for name in ("q", "k", "v"):
        if (given[f"{name}_descale"] is None) != (given[f"{name}_scales"] is None):
            raise InvalidArgument(f"{name}_descale and {name}_scales: give both the descale and its granularity")
    if given["out"] is not None and given["out_dtype"] is not None:
        raise InvalidArgument(
            f"out_dtype = {given['out_dtype']!r} with out: give only one of them; out has its own dtype"
        )
