"""Selects the code for a call by the type of q. Used by rapt/__init__.py, _quantize.py and _products.py.

Reads _backend.py, where the frameworks' modules register. Loads such a module at the first array of its framework. The
caller has then already imported the framework.
"""

from __future__ import annotations

import sys

from ._backend import Backend, registered
from ._errors import InvalidArgument


def _is_a(array, module: str, name: str) -> bool:
    """Whether array is of a class of an imported module."""
    found = sys.modules.get(module)
    return found is not None and isinstance(array, getattr(found, name))


def backend_of(array, name: str = "q") -> Backend:
    """The Backend for this array, the argument `name`. Loads the framework's module at its first array."""
    found = registered(array)
    if found is not None:
        return found
    # torch.compile only has to trace the first branch; the order of the tests is for that.
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
        return module.backend_of(array)
    raise InvalidArgument(
        f"{name}: a {type(array).__module__}.{type(array).__qualname__}: must be an array of PyTorch, JAX, CuPy "
        "or NumPy"
    )
