"""Selects the code for a call by the type of its first array. Used by rapt/__init__.py, _quantize.py and _products.py.

Looks up the backend in the registry of _backend.py. This package has a module for each framework. It is imported at the
first call with an array of the framework. The caller has already imported the framework itself then.
"""

from __future__ import annotations

import sys

from ._backend import Backend, registered
from ._errors import InvalidArgument


def _is_a(array, module: str, name: str) -> bool:
    """True if array is an instance of module.name. False if the module is not imported."""
    found = sys.modules.get(module)
    return found is not None and isinstance(array, getattr(found, name))


def backend_of(array, name: str = "q") -> Backend:
    """Returns the Backend for this array. `name` is the name of the argument, for error sentences."""
    found = registered(array)
    if found is not None:
        return found
    # PyTorch is tested first, so that torch.compile traces only the first branch.
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
        f"{name}: is a {type(array).__module__}.{type(array).__qualname__}, but must be an array of PyTorch, JAX, "
        "CuPy or NumPy"
    )
