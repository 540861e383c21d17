"""Refuses dropout, which rapt does not have. Used by all modules here."""

from __future__ import annotations

from .._errors import Unsupported


def refuse_dropout(name: str, probability) -> None:
    if probability != 0.0:  # NaN is not 0
        raise Unsupported(f"{name} is {probability!r}: must be 0; rapt has no dropout")
