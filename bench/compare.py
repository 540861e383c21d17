#!/usr/bin/env python3
"""Compares two files of results, or a file with its card's stored baseline, and lists changes larger than the noise.

    python3 bench/compare.py BEFORE.jsonl AFTER.jsonl [--least 0.03] [--implementations rapt] [--fail-on-regression]
    python3 bench/compare.py --baseline AFTER.jsonl [--fail-on-regression]    # BEFORE is results/<card>/baseline.jsonl
    python3 bench/compare.py --set-baseline NEW.jsonl                         # stores NEW as its card's baseline

Rows are paired if problem, implementation, timer, L2 and threads are equal. Rows of one file with the same key are
pooled. A time counts as changed if the quartiles of the two times do not overlap and the medians differ by --least or
more. Commits of rapt do not change peers. So if their versions are the same, their times show how the machine changed.
The median ratio of their times is printed, but times are not corrected by it. Example: results/ has two files of one
H100 with the same PyTorch kernels. With the default --least, 51 of 58 times of peers count as unchanged there. Exit
status: 0; 1 with --fail-on-regression if an implementation of rapt became slower or has no row any more; 2 if the files
cannot be compared, or if the card has no baseline.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import sys
from typing import NamedTuple, Optional

import rows as results

RESULTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "results")
MOST_SPREAD = 0.03  # the largest spread that a row of a baseline may have; `rapt bench` measures worse rows again

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
    """Returns "slower" or "faster" if the quartiles do not overlap and the medians differ enough, otherwise "same"."""
    if after[0] > before[2] and after[1] >= before[1] * (1 + least):
        return "slower"
    if after[2] < before[0] and after[1] <= before[1] / (1 + least):
        return "faster"
    return "same"


def changes(before: list[dict], after: list[dict], least: float = 0.03) -> list[Change]:
    """The changes for all keys: first those of the first file, in its order, then the new ones of the second file."""
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


def folder_of(card: str) -> str:
    """The name of the card's folder, made as in roof.py, because rows of scripts have the driver's name of the card."""
    return re.sub(r"[^a-z0-9.]+", "-", re.sub(r"\((r|tm)\)", "", card.lower())).strip("-")


def baseline_path(found: list[dict], folder: str) -> str:
    """The path of the baseline for the card of these rows. Raises ValueError if the rows are not all of one card."""
    cards = sorted({one["card"] for one in found})
    if len(cards) != 1:
        raise ValueError(f"a baseline belongs to one card, these rows are of {', '.join(cards) or 'none'}")
    return os.path.normpath(os.path.join(folder, folder_of(cards[0]), "baseline.jsonl"))


def baseline_for(path: str, folder: str) -> str:
    """The baseline for the card of a file. If there is none, raises a ValueError that names the card and says how to
    make one.
    """
    place = baseline_path(results.read(path), folder)
    if not os.path.exists(place):
        card = os.path.basename(os.path.dirname(place))
        names = os.listdir(folder) if os.path.isdir(folder) else []
        with_one = sorted(one for one in names if os.path.exists(os.path.join(folder, one, "baseline.jsonl")))
        raise ValueError(
            f"{card} has no baseline: there is no {os.path.relpath(place)} (cards with one: "
            f"{', '.join(with_one) or 'none'}). To make one, run build/rapt bench --suite perf --save on a quiet "
            f"machine at a commit that you trust, then python3 bench/compare.py --set-baseline FILE.jsonl"
        )
    return place


def sm_counts(found: list[dict]) -> list[int]:
    """The numbers of multiprocessors for which the rows were planned. Older rows and rows of a CPU have none."""
    return sorted({one["sm_count"] for one in found if one.get("sm_count")})


def unfit(found: list[dict]) -> list[str]:
    """The reasons why rows cannot be a baseline; each reason is a sentence."""
    wrong = []
    if not any(one["arm"].startswith("rapt") for one in found):
        wrong.append("no row is of rapt")
    if any(one["dirty"] for one in found):
        wrong.append("a row is from a tree with uncommitted changes: commit first")
    if any("--sm-count" in one["command"] for one in found):
        wrong.append("a row is planned for a part of the GPU (--sm-count)")
    if len({one["commit"] for one in found}) > 1:
        wrong.append(f"the rows are of several commits: {of_run(found, 'commit')}")
    for one in found:
        q1, median, q3 = results.quartiles(one["us"])
        if one["arm"].startswith("rapt") and median > 0 and (q3 - q1) / median > MOST_SPREAD:
            wrong.append(f"{one['problem']}: its spread is {(q3 - q1) / median:.1%}, more than {MOST_SPREAD:.0%}")
    return wrong


def set_baseline(path: str, folder: str) -> int:
    try:
        found = results.read(path)
        place = baseline_path(found, folder)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    wrong = unfit(found) + [fault for one in found for fault in results.faults(one)]
    if wrong:
        print(f"{path} is not stored as a baseline:", *wrong, sep="\n  ", file=sys.stderr)
        return 2
    os.makedirs(os.path.dirname(place), exist_ok=True)
    shutil.copyfile(path, place + ".tmp")
    os.replace(place + ".tmp", place)
    print(f"{place}: {len(found)} rows of commit {of_run(found, 'commit')}")
    return 0


def median_clock(found: list[dict]) -> Optional[float]:
    """The median SM clock in MHz after the samples, over the rows that have this value."""
    clocks = [one["clocks"]["sm_mhz"][-1] for one in found if one.get("clocks")]
    known = [mhz for mhz in clocks if mhz is not None]
    return statistics.median(known) if known else None


def clock_lines(before: list[dict], after: list[dict]) -> list[str]:
    """The clocks of both files, if they are known, and reasons why the new ones were limited."""
    old, new = median_clock(before), median_clock(after)
    lines = []
    if old and new:
        lines.append(f"SM clock: {old:.0f} -> {new:.0f} MHz" + (" (differs)" if abs(new / old - 1) >= 0.03 else ""))
    throttled = [one for one in after if one.get("clocks") and one["clocks"]["throttle"]]
    if throttled:
        reasons = sorted({reason for one in throttled for reason in one["clocks"]["throttle"]})
        lines.append(f"clocks limited in {len(throttled)} of {len(after)} rows: {', '.join(reasons)}")
    noisy = [one for one in after if one.get("spread", 0) > MOST_SPREAD]
    if noisy:
        lines.append(f"spread above {MOST_SPREAD:.0%} in {len(noisy)} of {len(after)} rows")
    return lines


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="FILE.jsonl", help="before and after; one with --baseline")
    parser.add_argument("--baseline", action="store_true", help="compare with the stored baseline of the file's card")
    parser.add_argument("--set-baseline", action="store_true", help="store the file as the baseline of its card")
    parser.add_argument("--results", default=RESULTS, metavar="FOLDER", help="where <card>/baseline.jsonl are")
    parser.add_argument("--least", type=float, default=0.03, help="smallest relative change that counts (default 0.03)")
    parser.add_argument("--implementations", default="", metavar="NAME,...", help="show only these implementations")
    results.refuse_renamed_options(parser)
    parser.add_argument("--fail-on-regression", action="store_true")
    options = parser.parse_args()
    if options.baseline and options.set_baseline:
        parser.error("--baseline and --set-baseline: give one of them")
    wanted = 1 if options.baseline or options.set_baseline else 2
    if len(options.files) != wanted:
        parser.error(f"{len(options.files)} files: must be {wanted}" + ("" if wanted == 2 else ", the new rows"))
    return options


def main() -> int:
    options = arguments()
    if options.set_baseline:
        return set_baseline(options.files[0], options.results)
    try:
        new_file = options.files[-1]
        old_file = baseline_for(new_file, options.results) if options.baseline else options.files[0]
        before, after = results.read(old_file), results.read(new_file)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    cards = of_run(before, "card"), of_run(after, "card")
    print(f"before: {cards[0]}, commit {of_run(before, 'commit')}, driver {of_run(before, 'driver')}")
    print(f"after:  {cards[1]}, commit {of_run(after, 'commit')}, driver {of_run(after, 'driver')}")
    if len({folder_of(card) for card in cards}) != 1:
        print("the cards differ: the following compares cards, not commits")
        if options.fail_on_regression:
            print("--fail-on-regression: both files must be from the same card", file=sys.stderr)
            return 2
    counts = sm_counts(before), sm_counts(after)
    if all(counts) and counts[0] != counts[1]:
        print(f"the multiprocessors differ ({counts[0]} and {counts[1]}): the following compares plans, not commits")
        if options.fail_on_regression:
            print("--fail-on-regression: both files must be for the same number of multiprocessors", file=sys.stderr)
            return 2
    found = changes(before, after, options.least)
    print(
        "\n".join(
            clock_lines(before, after) + report(found, [name for name in options.implementations.split(",") if name])
        )
    )
    return 1 if options.fail_on_regression and (regressions(found) or not found) else 0


if __name__ == "__main__":
    sys.exit(main())
