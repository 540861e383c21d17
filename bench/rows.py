"""Creates result rows, validates them against docs/results-schema.json, and writes and reads their files.

Used by every script here. Needs only the standard library.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from typing import Any, Iterable, Optional

SCHEMA = os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "docs", "results-schema.json")


def quartiles(values: list[float]) -> tuple[float, float, float]:
    """(q1, median, q3), with linear interpolation."""
    if len(values) < 2:
        return values[0], values[0], values[0]
    q1, q2, q3 = statistics.quantiles(values, n=4, method="inclusive")
    return q1, q2, q3


def row(
    problem: str, impl: str, us: list[float], *, flops: float, moved: float, roof_s: Optional[float] = None, **more: Any
) -> dict[str, Any]:
    """Makes a row. `more` must have every field that has no default here. roof_s: the minimum time at the measured
    peak.
    """
    us = [round(value, 3) for value in us]
    q1, median, q3 = quartiles(us)
    found = {
        "schema": "rapt.bench/1",
        "problem": problem,
        "arm": impl,
        "family": "",
        "config": "",
        "signature": "",
        "us": us,
        "median": median,
        "q1": q1,
        "q3": q3,
        "spread": (q3 - q1) / median if median else 0.0,
        "calls": 1,
        "cold_us": None,
        "timer": "host",
        "pdl": False,
        "l2": "warm",
        "input_sets": 1,
        "checked_rows": 1,
        "threads": 0,
        "driver": "",
        "nvrtc": "",
    }
    found.update(more)
    found["pdl"] = "programmatic=1" in found["config"]
    found["gflops"] = flops / median * 1e-3 if median else 0.0
    found["gbytes"] = moved / median * 1e-3 if median else 0.0
    found["roof_share"] = roof_s * 1e6 / median if roof_s and median else None
    return found


def refuse_renamed_options(parser: argparse.ArgumentParser) -> None:
    """Makes the old options --arms and --skip-arms errors. The error gives the new name."""
    for old, new in (("--arms", "--implementations"), ("--skip-arms", "--skip-implementations")):
        refuse = type("Refuse", (argparse.Action,), {"__call__": _refusal(old, new)})
        parser.add_argument(old, nargs="?", action=refuse, help=argparse.SUPPRESS)


def _refusal(old: str, new: str):
    return lambda action, parser, *_: parser.error(f"{old}: was renamed, use {new}")


def load_schema() -> dict:
    """Reads docs/results-schema.json, which must exist beside bench/. Scripts call this before they measure, so that
    they do not fail after a long run.
    """
    with open(SCHEMA) as file:
        return json.load(file)


def faults(value: Any, schema: Optional[dict] = None, where: str = "row") -> list[str]:
    """The faults of a row. Implements the part of JSON Schema that docs/results-schema.json uses."""
    schema = load_schema() if schema is None else schema
    found: list[str] = []
    for keyword, rule in schema.items():
        if keyword in ("$schema", "title", "description"):
            continue
        if keyword == "items":
            for item in value if isinstance(value, list) else []:
                found += faults(item, rule, where + "[]")
        elif keyword == "properties":
            for name, inner in rule.items():
                if isinstance(value, dict) and name in value:
                    found += faults(value[name], inner, f"{where}.{name}")
        elif not _holds(keyword, rule, value, schema):
            found.append(f"{where}: {keyword}")
    return found


def _holds(keyword: str, rule: Any, value: Any, schema: dict) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if keyword == "type":
        return any(_is(kind, value, number) for kind in ([rule] if isinstance(rule, str) else rule))
    if keyword == "const":
        return value == rule
    if keyword == "enum":
        return value in rule
    if keyword == "minimum":
        return not number or value >= rule
    if keyword == "minLength":
        return not isinstance(value, str) or len(value) >= rule
    if keyword == "minItems":
        return not isinstance(value, list) or len(value) >= rule
    if keyword == "required":
        return not isinstance(value, dict) or all(name in value for name in rule)
    if keyword == "additionalProperties":
        return not isinstance(value, dict) or all(name in schema["properties"] for name in value)
    raise ValueError(f"keyword '{keyword}' of the schema: not supported by bench/rows.py")


def _is(kind: str, value: Any, number: bool) -> bool:
    return {
        "integer": isinstance(value, int) and number,
        "number": number,
        "string": isinstance(value, str),
        "boolean": isinstance(value, bool),
        "null": value is None,
        "array": isinstance(value, list),
        "object": isinstance(value, dict),
    }[kind]


def write(path: str, found: Iterable[dict]) -> None:
    """Writes the file completely or not at all. A row that breaks the schema raises ValueError."""
    lines = []
    for index, one in enumerate(found):
        wrong = faults(one)
        if wrong:
            raise ValueError(f"row {index} ({one.get('arm')}, {one.get('problem')}): {'; '.join(wrong)}")
        lines.append(json.dumps(one) + "\n")
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with open(path + ".tmp", "w") as file:
        file.writelines(lines)
    os.replace(path + ".tmp", path)


def read(path: str) -> list[dict]:
    """Reads the rows of a file. If a line is wrong, raises a ValueError with the number of the line."""
    found = []
    with open(path) as file:
        for number, line in enumerate(file, 1):
            try:
                one = json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"{path}:{number}: not JSON: {error}") from None
            if not isinstance(one, dict) or one.get("schema") != "rapt.bench/1":
                raise ValueError(f"{path}:{number}: not a row of rapt.bench/1")
            found.append(one)
    return found
