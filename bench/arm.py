"""What an arm of the peer benchmark is: one implementation of attention beside others.

Every arms_*.py derives its arms from this one, and arms.py lists them all. Each says which problems it computes to the
letter of docs/semantics.md, and with which call.
"""

from __future__ import annotations

import contextlib
from typing import Callable, ContextManager, NamedTuple

import torch

from inputs import Inputs
from suites import Problem


class Absent(NamedTuple):
    """An arm that has no time, and why. Nothing is claimed against it."""

    arm: str
    why: str


class Arm:
    """One implementation. load() imports it and raises what hinders; bind() makes the call for one set of inputs.

    A bound call takes nothing, enqueues on PyTorch's current stream and returns its output, which logical() turns to
    the order that the judge takes. `lossy`: quantises by design. `layout`: the memory order of its inputs.
    """

    name = ""
    layout = "bhsd"
    lossy = False
    family = ""

    def load(self) -> None:
        """Imports what the arm needs."""

    def version(self) -> str:
        return torch.__version__

    def concerns(self, problem: Problem) -> bool:
        """False: not even worth a line."""
        return True

    def refusal(self, problem: Problem) -> str:
        """Why this arm does not compute this problem; empty if it does."""
        return ""

    def config(self, problem: Problem) -> str:
        """What distinguishes the call, for the result row."""
        return ""

    def computed(self, problem: Problem) -> Problem:
        """What the arm computes in its stead: the same in another dtype."""
        return problem

    def bind(self, inputs: Inputs) -> Callable[[], torch.Tensor]:
        raise NotImplementedError

    def scope(self) -> ContextManager:
        """Held around calls and captures."""
        return contextlib.nullcontext()

    def logical(self, out: torch.Tensor, problem: Problem) -> torch.Tensor:
        return out.transpose(1, 2) if self.layout == "bshd" and problem.varlen is None else out

    def begin(self, problem: Problem) -> dict:
        """Facts for the row that are known before the first call; may compile."""
        return {}

    def end(self) -> None:
        """The problem is over: nothing of it is needed any more."""


def only(problem: Problem, **allowed) -> str:
    """The sentence for the first feature of the problem that is not allowed; allowed: name=True or a list of values."""
    if problem.kv and not allowed.get("mixed", False):
        return f"no {problem.kv} keys and values under {problem.dtype} queries"
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
        return "causal is bottom-right there, the problem is top-left with other lengths of keys than of queries"
    return ""


def first_line(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:300]
