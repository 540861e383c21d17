"""Which code takes a call: by the type of q. Used by rapt/__init__.py; the frameworks' modules fill the tables.

A framework is imported only when an array of it arrives, so the caller has imported it already.
"""

from __future__ import annotations

import functools
import pathlib
import sys
from typing import Any, Callable, NamedTuple

from . import _core
from ._errors import InvalidArgument


class Front(NamedTuple):
    """The operations for arrays of one framework. sdpa, prepare and explain take the arguments of rapt's own, merge
    rapt._core's; the others their arrays and a dictionary of all options, checked (_quantize.py, _products.py)."""

    sdpa: Callable[..., Any]
    prepare: Callable[..., Any]
    explain: Callable[..., Any]
    merge: Callable[..., Any]
    quantize: Callable[..., Any]
    fake_quantize: Callable[..., Any]
    qk: Callable[..., Any]
    gemm: Callable[..., Any]


def tracing() -> bool:
    """Whether torch.compile follows this code, which ends at the compiled module. _torch.py puts PyTorch's own here."""
    return False


# By the name of the module of the array's type: torch.compile can guard such a look-up, and none by type. Filled by
# eager calls alone, since what changes while it traces breaks its guards.
fronts: dict[str, Front] = {}
calls: dict[str, Callable[..., Any]] = {}  # fronts[name].sdpa: one look-up less in the call that counts


@functools.cache
def load_default_pack() -> None:
    """The compiled kernels that a release's wheel carries, for frameworks that use GPUs."""
    pack = pathlib.Path(__file__).with_name("default.pack")
    if pack.exists():
        _core.load_pack(None, str(pack))


def register(array, front: Front) -> Front:
    fronts[type(array).__module__] = front
    calls[type(array).__module__] = front.sdpa
    return front


def _is_a(array, module: str, name: str) -> bool:
    """Of a class of a module that somebody has imported."""
    found = sys.modules.get(module)
    return found is not None and isinstance(array, getattr(found, name))


def front_of(array, name: str = "q") -> Front:
    """The front for this array, the argument `name`; loads the framework's module at its first array."""
    found = None if tracing() else fronts.get(type(array).__module__)
    if found is not None:
        return found
    # Of all this torch.compile has to follow the first branch only, which is why it looks as it does.
    if type(array).__module__ == "torch" or _is_a(array, "torch", "Tensor"):
        from . import _torch as module
    elif _is_a(array, "numpy", "ndarray"):
        from . import _numpy as module
    elif _is_a(array, "cupy", "ndarray"):
        from . import _cupy as module
    elif _is_a(array, "jax", "Array"):
        from . import _jax as module
    else:
        module = None
    if module is not None:
        return module.front_of(array)
    raise InvalidArgument(
        f"{name}: a {type(array).__module__}.{type(array).__qualname__}: must be an array of PyTorch, JAX, CuPy "
        "or NumPy"
    )
