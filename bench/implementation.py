"""The base class of the implementations that the peer benchmark compares.

Every impl_*.py derives its implementations from this class, and implementations.py lists them all. Each reports which
problems it computes exactly by docs/semantics.md, and with which call.
"""

from __future__ import annotations

import contextlib
from typing import Callable, ContextManager, NamedTuple

import torch

from inputs import Inputs
from suites import Problem


class Absent(NamedTuple):
    """An implementation without a time, and why. It is not compared with rapt."""

    name: str
    why: str

    def row(self) -> dict[str, str]:
        """The entry of a result row (docs/results-schema.json)."""
        return {"arm": self.name, "why": self.why}


class Implementation:
    """One implementation. load() imports it and raises if that fails. bind() creates the call for one set of inputs.

    A bound call takes no arguments, enqueues on PyTorch's current stream and returns its output; logical() reorders
    that for the judge. `lossy`: quantises by design. `layout`: the memory order of its inputs.
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
        """Whether the implementation is of interest for this problem. False: it is not even listed."""
        return True

    def refusal(self, problem: Problem) -> str:
        """The reason why this implementation does not compute this problem; empty if it does."""
        return ""

    def config(self, problem: Problem) -> str:
        """The variant of the call, for the result row."""
        return ""

    def computed(self, problem: Problem) -> Problem:
        """The problem that is computed instead: the same in another dtype."""
        return problem

    def bind(self, inputs: Inputs) -> Callable[[], torch.Tensor]:
        raise NotImplementedError

    def scope(self) -> ContextManager:
        """A context manager around calls and captures."""
        return contextlib.nullcontext()

    def logical(self, out: torch.Tensor, problem: Problem) -> torch.Tensor:
        return out.transpose(1, 2) if self.layout == "bshd" and problem.varlen is None else out

    def begin(self, problem: Problem) -> dict:
        """Facts for the row that are known before the first call. May compile."""
        return {}

    def end(self) -> None:
        """Called after the problem: frees all its resources."""


def only(problem: Problem, **allowed) -> str:
    """A sentence for the first feature of the problem that is not allowed. allowed: name=True or a list of values."""
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
