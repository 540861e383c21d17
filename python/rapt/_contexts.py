"""rapt.Context, its number (PyTorch operators and XLA take this number), and the pack of the default context. Exported
by rapt/__init__.py.
"""

from __future__ import annotations

import functools
import os
import weakref

from . import _core
from ._errors import InvalidArgument, Unsupported

_living = weakref.WeakValueDictionary()  # {number: Context}


class Context:
    """Owns threads, plans and workspaces. Thread-safe. Calls without a context share the process default.

    A copy is the same context. It cannot be pickled, because threads and workspaces belong to their process.

    Args:
        num_threads: number of CPU threads. Default: 0, which means as many as affinity and the cgroup quota allow.
    """

    def __init__(self, num_threads: int = 0):
        self._handle, self._number = _core.make_context(num_threads)
        _living[self._number] = self

    def __copy__(self) -> Context:
        return self

    def __deepcopy__(self, memo) -> Context:
        return self

    def __reduce__(self):
        raise Unsupported(
            "a rapt.Context cannot be pickled: its threads and workspaces belong to this process; create one with "
            "rapt.Context(num_threads) where it is needed"
        )


def number_of(context) -> int | None:
    """The number that an operator gets. torch.compile traces this function, and the number becomes a constant of the
    graph.
    """
    if context is None:
        return None
    if not isinstance(context, Context):
        raise InvalidArgument(f"context = {context!r}: must be a rapt.Context or None")
    return context._number


def numbered(number: int | None) -> Context | None:
    """The context with this number."""
    if number is None:
        return None
    found = _living.get(number)
    if found is None:
        raise InvalidArgument("context: the rapt.Context of this traced call was deleted: keep a reference to it")
    return found


@functools.cache
def load_default_pack() -> None:
    """Loads the compiled kernels of a release's wheel, for frameworks that use GPUs."""
    pack = os.path.join(os.path.dirname(__file__), "default.pack")
    if os.path.exists(pack):
        _core.load_pack(None, pack)
