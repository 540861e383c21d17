"""What a framework's module says of itself: its operations, a Front, registered for the types of its arrays.

The modules of frameworks fill the tables; rapt/__init__.py and _dispatch.py look there. Imports nothing of the package.
"""

from __future__ import annotations

from typing import Any, Callable, NamedTuple


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


def register(array, front: Front) -> Front:
    fronts[type(array).__module__] = front
    calls[type(array).__module__] = front.sdpa
    return front


def registered(array) -> Front | None:
    """The front that was registered for this type of array; None before that, and while torch.compile traces."""
    return None if tracing() else fronts.get(type(array).__module__)
