"""Which code takes a call: by the type of q. Used by rapt/__init__.py, _quantize.py and _products.py.

Asks _backend.py, where the frameworks' modules register, and loads such a module at the first array of its framework,
so the caller has imported the framework already.
"""

from __future__ import annotations

import sys

from ._backend import Front, registered
from ._errors import InvalidArgument


def _is_a(array, module: str, name: str) -> bool:
    """Of a class of a module that somebody has imported."""
    found = sys.modules.get(module)
    return found is not None and isinstance(array, getattr(found, name))


def front_of(array, name: str = "q") -> Front:
    """The front for this array, the argument `name`; loads the framework's module at its first array."""
    found = registered(array)
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
