"""The registered frameworks: a table that gives, for each array type, the framework's implementation of every operation
(a Backend).

The modules of frameworks fill the tables; rapt/__init__.py and _dispatch.py read them. Imports nothing of the package.
"""

from __future__ import annotations

from typing import Any, Callable, NamedTuple


class Backend(NamedTuple):
    """The operations for arrays of one framework.

    sdpa, prepare and explain take the arguments of rapt.sdpa. merge takes the arguments of rapt._core.merge. The others
    take arrays and a dictionary of checked options (_quantize.py, _products.py, _kv_append.py). rotary_tables takes a
    shape, an array whose framework and device the tables get, and a function that fills tables on the CPU.
    """

    sdpa: Callable[..., Any]
    prepare: Callable[..., Any]
    explain: Callable[..., Any]
    merge: Callable[..., Any]
    quantize: Callable[..., Any]
    fake_quantize: Callable[..., Any]
    qk: Callable[..., Any]
    gemm: Callable[..., Any]
    kv_append: Callable[..., Any]
    rotary_tables: Callable[..., Any]


def tracing() -> bool:
    """True while torch.compile traces this code (it cannot trace the compiled module). _torch.py replaces this function
    by PyTorch's.
    """
    return False


# Key: the name of the module of the array's type. torch.compile can guard a look-up by this name, but not a look-up by
# the type. Only eager calls fill the table, because a change during tracing would break the guards.
backends: dict[str, Backend] = {}
calls: dict[str, Callable[..., Any]] = {}  # backends[name].sdpa, to save one look-up in the most frequent call


def register(array, backend: Backend) -> Backend:
    backends[type(array).__module__] = backend
    calls[type(array).__module__] = backend.sdpa
    return backend


def registered(array) -> Backend | None:
    """The Backend of this array type. None if it is not registered, or while torch.compile traces."""
    return None if tracing() else backends.get(type(array).__module__)
