#!/usr/bin/env python3
"""Makes the Markdown table of the time that a feature adds: the time of a problem with one feature, divided by the time
of the same problem without it (its plain problem).

    python3 bench/feature_table.py FILE.jsonl... [--dtype bf16]

The files have rows of `rapt bench --suite features` and `--suite features-small`, for example a file for each kernel
family and for each number of CPU threads. The table has a line for each feature. It has a column for each combination
of kernel family (CPU: number of threads), head_dim, and causal or full. A cell divides the medians of two rows of the
same file. It is bold if it is above 2, and `-` if no file has the row. --dtype uses only the rows of this dtype.

Exit status: 0; 2 if the rows do not make a table (one sentence says why). Needs rapt, which parses the problem lines,
but no GPU and no PyTorch.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from typing import Iterable, NamedTuple, Optional

import rows as results
import suites

PLAIN = "plain"
FEATURES = {  # name of the feature, as feature_of() returns it -> first cell of its line
    "softcap": "softcap",
    "alibi": "ALiBi",
    "bias [1,h,q,k]": "bias `[1,h,q,k]`",
    "mask [b,1,1,k]": "key-padding mask `[b,1,1,k]`",
    "mask [b,1,q,k]": "full mask `[b,1,q,k]`",
    "sinks": "sinks",
}
BOLD_ABOVE = 2.0


class Column(NamedTuple):
    where: str  # "attention_sm80"; on the CPU "CPU, 1 thread"
    dtype: str
    head_dim: str
    kind: str  # "full" or "causal"

    @property
    def heading(self) -> str:
        return f"{self.where}, {self.dtype}, d{self.head_dim} {self.kind}"


class Timed(NamedTuple):
    """A row of rapt."""

    path: str
    card: str
    median: float
    line: str
    plain: str  # the line without the feature
    feature: str
    column: Column


def names_of(problem: suites.Problem) -> list[str]:
    """The names of all features of a problem. Also those that this table does not have."""
    bias_dtype = "" if problem.bias is None or problem.bias[0] == problem.dtype else problem.bias[0] + " "
    names = [
        problem.window and "window",
        problem.varlen and "varlen",
        problem.causal == "top_left" and "causal_top_left",
        problem.softcap is not None and "softcap",
        problem.alibi and "alibi",
        problem.bias and f"bias {bias_dtype}[{problem.bias[1]}]",
        problem.mask and f"mask [{problem.mask}]",
        problem.sinks and "sinks",
    ]
    return [name for name in names if name]


def feature_of(problem: suites.Problem) -> str:
    """The feature of a problem, or PLAIN. Raises ValueError if the table has no line for the problem."""
    names = names_of(problem)
    unknown = [name for name in names if name not in FEATURES]
    if unknown:
        raise ValueError(f"'{problem.line}': {unknown[0]}: not a feature of this table ({', '.join(FEATURES)})")
    if len(names) > 1:
        raise ValueError(f"'{problem.line}': {' and '.join(names)}: a problem must have only one feature")
    return names[0] if names else PLAIN


def without_feature(problem: suites.Problem) -> suites.Problem:
    return dataclasses.replace(problem, softcap=None, alibi=False, bias=None, mask=None, sinks=False)


def place_of(one: dict) -> str:
    """The kernel family of a row; on the CPU the number of threads."""
    threads = one["threads"]
    return f"CPU, {threads} thread{'' if threads == 1 else 's'}" if threads else one["family"]


def timed(path: str, dtype: str) -> list[Timed]:
    """The rows of rapt in a file: those of `dtype`, or all if it is empty."""
    schema, found = results.load_schema(), []
    for number, one in enumerate(results.read(path), 1):
        wrong = results.faults(one, schema)
        if wrong or one["median"] == 0:
            raise ValueError(f"{path}: row {number}: {wrong[0] if wrong else 'median: must be above 0'}")
        if not one["arm"].startswith("rapt"):
            continue
        try:
            problem = suites.read(one["problem"])
            feature = feature_of(problem)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        stored = "/".join(dict.fromkeys(problem.stored))
        if dtype and stored != dtype:
            continue
        dims = f"{problem.d}" + ("" if problem.dv == problem.d else f":{problem.dv}")
        column = Column(place_of(one), stored, dims, "causal" if problem.causal else "full")
        plain = without_feature(problem).line
        found.append(Timed(path, one["card"], one["median"], problem.line, plain, feature, column))
    if not any(one.feature == PLAIN for one in found):
        raise ValueError(f"{path}: has no plain problem{f' of {dtype}' if dtype else ''} measured by rapt")
    return found


def ratios(found: list[Timed]) -> list[tuple[Timed, float]]:
    """Every row of one file, with its time divided by the time of its plain problem."""
    times: dict[tuple[Column, str], float] = {}
    for one in found:
        key = one.column, one.line
        if key in times:
            raise ValueError(f"{one.path}: '{one.line}' ({one.column.where}): measured twice")
        times[key] = one.median
    for one in found:
        if (one.column, one.plain) not in times:
            raise ValueError(
                f"{one.path}: '{one.line}' ({one.column.where}): the file has no row of its plain problem "
                f"'{one.plain}' by the same family"
            )
    return [(one, one.median / times[one.column, one.plain]) for one in found]


def require_same(found: list[Timed]) -> None:
    """The columns of one family or number of threads must have one card and one dtype. A column must have one plain
    problem, and every feature once.
    """
    for where in dict.fromkeys(one.column.where for one in found):
        mine = [one for one in found if one.column.where == where]
        for what, values in (("cards", {one.card for one in mine}), ("dtypes", {one.column.dtype for one in mine})):
            if len(values) > 1:
                advice = ": choose one with --dtype" if what == "dtypes" else ""
                raise ValueError(f"{where}: the rows are of several {what}: {', '.join(sorted(values))}{advice}")
    plains: dict[Column, str] = {}
    paths: dict[tuple[Column, str], str] = {}
    for one in found:
        plain = plains.setdefault(one.column, one.plain)
        if plain != one.plain:
            raise ValueError(f"{one.column.heading}: the plain problems differ: '{plain}' and '{one.plain}'")
        path = paths.setdefault((one.column, one.feature), one.path)
        if one.feature != PLAIN and path != one.path:
            raise ValueError(f"{one.column.heading}: {one.feature} is in two files: {path} and {one.path}")


def cells_of(files: Iterable[list[Timed]]) -> dict[Column, dict[str, float]]:
    """The ratio of every feature in every column."""
    files = list(files)
    require_same([one for found in files for one in found])
    cells: dict[Column, dict[str, float]] = {}
    for found in files:
        for one, ratio in ratios(found):
            cells.setdefault(one.column, {})[one.feature] = ratio
    return cells


def in_order(columns: Iterable[Column]) -> list[Column]:
    """Families and numbers of threads in the order of the files; then head_dim; then full before causal."""
    columns = list(columns)
    places = list(dict.fromkeys(column.where for column in columns))
    return sorted(
        columns,
        key=lambda column: (
            places.index(column.where),
            [int(dim) for dim in column.head_dim.split(":")],
            column.kind == "causal",
        ),
    )


def text_of(ratio: Optional[float]) -> str:
    if ratio is None:
        return "-"
    text = f"{ratio:.2f}"
    return f"**{text}**" if float(text) > BOLD_ABOVE else text  # a bold 2.00 would look wrong


def markdown(cells: dict[Column, dict[str, float]]) -> list[str]:
    columns = in_order(cells)
    lines = [["feature", *(column.heading for column in columns)], ["---"] * (len(columns) + 1)]
    for feature, title in FEATURES.items():
        lines.append([title, *(text_of(cells[column].get(feature)) for column in columns)])
    return ["| " + " | ".join(line) + " |" for line in lines]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="FILE.jsonl", help="rows of rapt bench --output or --save")
    parser.add_argument("--dtype", default="", choices=suites.DTYPES, help="use only the rows of this dtype")
    options = parser.parse_args()
    try:
        lines = markdown(cells_of(timed(path, options.dtype) for path in options.files))
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
