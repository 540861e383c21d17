#!/usr/bin/env python3
"""Compares two files of results and lists changes larger than the noise.

    python3 bench/compare.py BEFORE.jsonl AFTER.jsonl [--least 0.03] [--implementations rapt] [--fail-on-regression]

Rows are paired by problem, implementation, timer, L2 and threads; rows of one file with the same key are pooled. A time
counts as changed if the quartiles of the two do not overlap and the medians differ by --least or more. Peers show how
the machine itself changed: their median ratio is printed, but times are not corrected by it. For the two files of one
H100 in results/, with the same PyTorch kernels, 51 of 58 times of peers count as the same with the default --least.
Exit status: 0; with --fail-on-regression 1 if an implementation of rapt became slower or has no row any more; 2 if the
files cannot be compared.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from typing import NamedTuple, Optional

import rows as results

Key = tuple[str, str, str, str, int]  # problem, implementation, timer, l2, threads


class Change(NamedTuple):
    key: Key
    before: Optional[tuple[float, float, float]]  # q1, median, q3
    after: Optional[tuple[float, float, float]]
    verdict: str  # "slower", "faster", "same", "gone", "new"

    @property
    def ratio(self) -> float:
        """Time after divided by time before."""
        return self.after[1] / self.before[1] if self.before and self.after and self.before[1] > 0 else float("nan")

    @property
    def mine(self) -> bool:
        return self.key[1].startswith("rapt")


def spreads(found: list[dict]) -> dict[Key, tuple[float, float, float]]:
    samples: dict[Key, list[float]] = {}
    for one in found:
        key = (one["problem"], one["arm"], one["timer"], one["l2"], one["threads"])
        samples.setdefault(key, []).extend(one["us"])
    return {key: results.quartiles(us) for key, us in samples.items()}


def verdict(before: tuple[float, float, float], after: tuple[float, float, float], least: float) -> str:
    """ "slower" or "faster" if the quartiles are disjoint and the medians differ enough, else "same"."""
    if after[0] > before[2] and after[1] >= before[1] * (1 + least):
        return "slower"
    if after[2] < before[0] and after[1] <= before[1] / (1 + least):
        return "faster"
    return "same"


def changes(before: list[dict], after: list[dict], least: float = 0.03) -> list[Change]:
    """Every key of both files, in the order of the first file, then of the second."""
    old, new = spreads(before), spreads(after)
    found = []
    for key in [*old, *(key for key in new if key not in old)]:
        if key not in new:
            found.append(Change(key, old[key], None, "gone"))
        elif key not in old:
            found.append(Change(key, None, new[key], "new"))
        else:
            found.append(Change(key, old[key], new[key], verdict(old[key], new[key], least)))
    return found


def regressions(found: list[Change]) -> list[Change]:
    return [change for change in found if change.mine and change.verdict in ("slower", "gone")]


def of_run(found: list[dict], name: str) -> str:
    return ", ".join(sorted({str(one[name]) for one in found}))


def report(found: list[Change], impls: list[str]) -> list[str]:
    lines = []
    for change in found:
        problem, impl, timer, l2, threads = change.key
        if change.verdict == "same" or (impls and impl not in impls):
            continue
        where = f"{timer}{' cold' if l2 == 'cold' else ''}{f' {threads} threads' if threads else ''}"
        if change.before and change.after:
            detail = (
                f"{change.before[1]:9.2f} ({change.before[0]:.2f}-{change.before[2]:.2f}) -> {change.after[1]:9.2f} "
                f"({change.after[0]:.2f}-{change.after[2]:.2f}) us  x{change.ratio:.3f}"
            )
        else:
            detail = f"{(change.before or change.after)[1]:9.2f} us"
        lines.append(f"{change.verdict:<7}{impl:<16}{where:<12}{detail}  {problem}")
    paired = [change for change in found if change.before and change.after]
    for who, some in (("rapt", [c for c in paired if c.mine]), ("peers", [c for c in paired if not c.mine])):
        if some:
            counts = ", ".join(
                f"{sum(c.verdict == word for c in some)} {word}" for word in ("slower", "faster", "same")
            )
            lines.append(
                f"{who}: {counts}; median of time after / before {statistics.median(c.ratio for c in some):.3f}"
            )
    return lines or ["nothing to compare: no row"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--least", type=float, default=0.03, help="smallest relative change that counts (default 0.03)")
    parser.add_argument("--implementations", default="", metavar="NAME,...", help="show only these implementations")
    results.refuse_renamed_options(parser)
    parser.add_argument("--fail-on-regression", action="store_true")
    options = parser.parse_args()
    try:
        before, after = results.read(options.before), results.read(options.after)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    cards = of_run(before, "card"), of_run(after, "card")
    print(f"before: {cards[0]}, commit {of_run(before, 'commit')}, driver {of_run(before, 'driver')}")
    print(f"after:  {cards[1]}, commit {of_run(after, 'commit')}, driver {of_run(after, 'driver')}")
    if cards[0] != cards[1]:
        print("the cards differ: the following compares cards, not commits")
        if options.fail_on_regression:
            print("--fail-on-regression: both files must be from the same card", file=sys.stderr)
            return 2
    found = changes(before, after, options.least)
    print("\n".join(report(found, [name for name in options.implementations.split(",") if name])))
    return 1 if options.fail_on_regression and (regressions(found) or not found) else 0


if __name__ == "__main__":
    sys.exit(main())
