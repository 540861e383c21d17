"""Refuses dropout, because rapt does not have it. Used by all modules of this folder."""

from __future__ import annotations

from .._errors import Unsupported


def refuse_dropout(name: str, probability) -> None:
    if probability != 0.0:  # also true for NaN
        raise Unsupported(f"{name} is {probability!r}: must be 0; rapt has no dropout")
