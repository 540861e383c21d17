"""The base class of the implementations that the peer benchmark compares.

Every impl_*.py derives its implementations from this class, and implementations.py lists them all. Each implementation
reports which problems it computes with exactly the semantics of docs/semantics.md, and with which call.
"""

from __future__ import annotations

import contextlib
from typing import Callable, ContextManager, NamedTuple

import torch

from inputs import Inputs
from suites import Problem


class Absent(NamedTuple):
    """An implementation that is not timed, and the reason. It is not compared with rapt."""

    name: str
    why: str

    def row(self) -> dict[str, str]:
        """Its entry in a result row (docs/results-schema.json)."""
        return {"arm": self.name, "why": self.why}


class Implementation:
    """One implementation. load() imports it and raises if that fails. bind() creates the call for one set of inputs.

    A bound call takes no arguments, enqueues work on PyTorch's current stream and returns its output. logical()
    converts this output to the logical order for the judge. `lossy`: True if the implementation quantises by design.
    `layout`: the memory order of its inputs.
    """

    name = ""
    layout = "bhsd"
    lossy = False
    family = ""

    def load(self) -> None:
        """Imports the packages that it needs."""

    def version(self) -> str:
        return torch.__version__

    def concerns(self, problem: Problem) -> bool:
        """True if the implementation is of interest for this problem. If not, it is not even listed."""
        return True

    def refusal(self, problem: Problem) -> str:
        """The reason why this implementation does not compute this problem; empty if it does."""
        return ""

    def config(self, problem: Problem) -> str:
        """A text for the result row that names the variant of the call."""
        return ""

    def computed(self, problem: Problem) -> Problem:
        """The problem that the implementation computes instead; it may differ only in the dtype."""
        return problem

    def bind(self, inputs: Inputs) -> Callable[[], torch.Tensor]:
        raise NotImplementedError

    def scope(self) -> ContextManager:
        """A context manager that is active during calls and captures."""
        return contextlib.nullcontext()

    def logical(self, out: torch.Tensor, problem: Problem) -> torch.Tensor:
        return out.transpose(1, 2) if self.layout == "bshd" and problem.varlen is None else out

    def begin(self, problem: Problem) -> dict:
        """Fields of the row that are known before the first call. This function may compile kernels."""
        return {}

    def end(self) -> None:
        """Called after each problem. Frees all resources of the problem."""


def only(problem: Problem, **allowed) -> str:
    """A sentence for the first feature of the problem that is not allowed. allowed: name=True, or name=[allowed
    values].
    """
    if problem.kv and not allowed.get("mixed", False):
        return f"no {problem.kv} keys and values with {problem.dtype} queries"
    has = {
        "dtype": problem.dtype,
        "varlen": bool(problem.varlen),
        "window": bool(problem.window),
        "softcap": bool(problem.softcap),
        "alibi": problem.alibi,
        "bias": bool(problem.bias),
        "mask": bool(problem.mask),
        "sinks": problem.sinks,
    }
    for name, value in has.items():
        permitted = allowed.get(name, False)
        if name == "dtype":
            if value not in permitted:
                return f"no {value}"
        elif value and not permitted:
            return f"no {name}"
    if problem.causal == "top_left" and any(q != k for q, k in problem.sequences):
        return "its causal mask is bottom-right; the problem is top-left with different lengths of queries and keys"
    return ""


def first_line(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:300]
