#!/usr/bin/env python3
"""Makes tables of the peer benchmark from result rows: the block that peers.py prints for each problem, and Markdown.

    python3 bench/table.py FILE.jsonl [--markdown] [--timer graph|host]

--markdown prints a line for each problem: the microseconds of every implementation, and the time of the fastest other
implementation divided by rapt's time.
"""

from __future__ import annotations

import argparse
import sys
from typing import Iterable

import rows as results

MINE = "rapt"


def by_problem(found: Iterable[dict]) -> dict[tuple, list[dict]]:
    """The rows grouped by (problem, threads, l2), in order of appearance. A peer that computes a bf16 problem in f16 is
    in the group of the bf16 problem.
    """
    groups: dict[tuple, list[dict]] = {}
    for one in found:
        groups.setdefault((one.get("name") or one["problem"], one["threads"], one["l2"]), []).append(one)
    return groups


def compared(one: dict) -> bool:
    """True if a row's time can be compared with rapt's time without a remark."""
    return one.get("within_bound", True)


def block(found: list[dict], absent: list[dict]) -> list[str]:
    """Lines for one problem: device and eager times of each implementation, then the implementations without a time."""
    device = [one for one in found if one["timer"] == found[0]["timer"]]
    eager = {one["arm"]: one for one in found if one["timer"] == "host"}
    scale, unit = (1.0, "GFLOP/s") if found[0]["threads"] else (1e-3, "TFLOP/s")
    lines = [
        f"  {'':<16}{'us':>10} {'quartiles':>23}{unit:>9}{'GB/s':>7}{'roof':>6}{'its time / rapt':>24}{'host us':>9}"
        f"{'wall us':>9}  max_abs  rel_rms"
    ]
    for one in sorted(device, key=lambda row: (row["arm"] != MINE, row["median"])):
        versus = one.get("vs_rapt")
        ratio = f"{versus['median']:.3f} ({versus['q1']:.3f}-{versus['q3']:.3f})" if versus else ""
        roof = f"{one['roof_share']:.0%}" if one["roof_share"] is not None else "-"
        host = f"{one['host_us']:.2f}" if one.get("host_us") is not None else "-"
        wall = f"{eager[one['arm']]['median']:.2f}" if one["arm"] in eager and one["timer"] != "host" else "-"
        spread = f"({one['q1']:.2f}-{one['q3']:.2f})"
        lines.append(
            f"  {one['arm']:<16}{one['median']:>10.2f} {spread:>23}{one['gflops'] * scale:>9.4g}"
            f"{one['gbytes']:>7.0f}{roof:>6}"
            f"{ratio:>24}{host:>9}{wall:>9}  {one['err']['max_abs']:.1e}  {one['err']['rel_rms']:.1e}"
            + ("" if compared(one) else "  lossy: outside the bound of 16-bit kernels")
        )
    width = max([16] + [len(other["arm"]) + 1 for other in absent])
    return lines + [f"  {other['arm']:<{width}}{other['why']}" for other in absent]


def markdown(found: list[dict], timer: str) -> list[str]:
    """A table of medians. Lossy implementations are in parentheses and never count as the fastest."""
    chosen = [one for one in found if one["timer"] == timer]
    impls = sorted({one["arm"] for one in chosen}, key=lambda impl: (impl != MINE, impl))
    lines = ["| name | problem | " + " | ".join(impls) + " | fastest other / rapt |", "|---" * (len(impls) + 3) + "|"]
    for (name, threads, l2), group in by_problem(chosen).items():
        times = {one["arm"]: one for one in group}
        cells = [_cell(times.get(impl)) for impl in impls]
        peers = {impl: one for impl, one in times.items() if not impl.startswith(MINE) and compared(one)}
        best = min(peers, key=lambda impl: peers[impl]["median"], default=None)
        verdict = "-"
        if best and MINE in times:
            ratio = peers[best].get("vs_rapt", {}).get("median") or peers[best]["median"] / times[MINE]["median"]
            verdict = f"{ratio:.2f} ({best})"
        extra = (f", {threads} threads" if threads else "") + (", cold" if l2 == "cold" else "")
        problem = times[MINE]["problem"] if MINE in times else group[0]["problem"]
        lines.append(f"| {name}{extra} | `{problem}` | " + " | ".join(cells) + f" | {verdict} |")
    return lines


def _cell(one) -> str:
    if one is None:
        return "-"
    text = f"{one['median']:.1f}"
    return text if compared(one) else f"({text})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--timer", choices=["graph", "host"], help="default: graph if the file has it")
    options = parser.parse_args()
    try:
        found = results.read(options.file)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    timer = options.timer or ("graph" if any(one["timer"] == "graph" for one in found) else "host")
    if options.markdown:
        print("\n".join(markdown(found, timer)))
        return 0
    for (name, threads, l2), group in by_problem(found).items():
        group = sorted(group, key=lambda one: one["timer"] != timer)
        print(f"\n{name}  {group[0]['problem']}" + (f"  {threads} threads" if threads else "") + f"  L2 {l2}")
        print("\n".join(block(group, next((one["absent"] for one in group if one.get("absent")), []))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
