#!/usr/bin/env python3
"""Draws plots of the peer benchmark as SVG, from result rows. Needs matplotlib, but no GPU.

    python3 bench/plot.py FILE.jsonl [FILE.jsonl ...] -o DIRECTORY

sweep-tflops-DTYPE.svg and sweep-time-DTYPE.svg, for rows of the suite sweep: rate and time over the sequence length,
with a panel for each head_dim and mask. ratio-SUITE-DTYPE.svg, for the other suites: the time of each implementation
divided by rapt's time, for every problem for which both were measured. Lossy implementations (outside the error bound
of 16-bit kernels) are hatched or dashed, and labelled. ladder.svg: the rungs of `rapt bench --ladder --save` as a
waterfall (ladder-cold.svg with --l2 cold).
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Iterable

import rows as results
import suites
import table

COLOURS = {
    "rapt": "#d1495b",
    "torch-flash": "#30638e",
    "torch-cudnn": "#76b041",
    "torch-efficient": "#8d99ae",
    "torch-math": "#bcb8b1",
    "torch-flex": "#edae49",
    "cudnn-frontend": "#3a7d44",
    "flash-attn-2": "#6a4c93",
    "flash-attn-3": "#003d5b",
    "flash-attn-4": "#00798c",
    "xformers": "#b5838d",
    "flashinfer": "#5f0f40",
    "sageattention": "#9a8c98",
    "torch": "#30638e",
    "torch-f16": "#8d99ae",
}


def canvas():
    """matplotlib, configured so that the same rows give the same bytes."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update(
        {
            "svg.hashsalt": "rapt",
            "svg.fonttype": "none",
            "font.size": 9,
            "axes.grid": True,
            "grid.alpha": 0.3,
            "axes.axisbelow": True,
            "axes.spines.top": False,
            "axes.spines.right": False,
        }
    )
    from matplotlib import pyplot

    return pyplot


def device_rows(found: Iterable[dict]) -> list[dict]:
    """The rows with device times. For the CPU, which has no graphs, the rows with times of calls."""
    return [one for one in found if one["timer"] == ("host" if one["threads"] else "graph")]


def label(one: dict) -> str:
    return one["arm"] + ("" if table.compared(one) else " (lossy)")


def source(found: list[dict]) -> str:
    """The small line below the title: card and commits."""
    commits = sorted({one["commit"] + ("+" if one["dirty"] else "") for one in found})
    return f"{found[0]['card']}, commit {', '.join(commits)}"


def save(pyplot, figure, directory: str, name: str) -> str:
    path = os.path.join(directory, name)
    figure.savefig(path, metadata={"Date": None, "Creator": "rapt bench/plot.py"})
    pyplot.close(figure)
    return path


def dtype_of(one: dict) -> str:
    return suites.parse(one["problem"]).dtype


def sweep_panels(found: list[dict]) -> dict[tuple[int, str], dict[str, list[tuple[int, dict]]]]:
    """The rows of the suite sweep as {(head_dim, "full" or "causal"): {label: [(length, row)]}}."""
    panels: dict = {}
    for one in found:
        problem = suites.parse(one["problem"])
        panel = panels.setdefault((problem.d, "causal" if problem.causal else "full"), {})
        panel.setdefault(label(one), []).append((problem.q, one))
    return {
        key: {name: sorted(points, key=lambda point: point[0]) for name, points in panels[key].items()}
        for key in sorted(panels, key=lambda key: (key[0], key[1] == "causal"))
    }


def plot_sweep(pyplot, found: list[dict], quantity: str, title: str):
    """One figure with a panel for each head_dim and mask. quantity: "tflops" or "time"."""
    panels = sweep_panels(found)
    figure, axes = pyplot.subplots(
        (len(panels) + 1) // 2, 2, figsize=(10, 3.4 * ((len(panels) + 1) // 2)), squeeze=False, layout="constrained"
    )
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    shown = {}
    for axis, ((head_dim, kind), lines) in zip(axes.flat, panels.items()):
        for name, points in lines.items():
            impl = points[0][1]["arm"]
            values = [one["gflops"] * 1e-3 if quantity == "tflops" else one["median"] for _, one in points]
            shown[name] = axis.plot(
                [n for n, _ in points],
                values,
                marker="o",
                markersize=3,
                color=COLOURS.get(impl),
                linewidth=2.2 if impl == table.MINE else 1.2,
                zorder=3 if impl == table.MINE else 2,
                linestyle="-" if name == impl else "--",
            )[0]
        lengths = sorted({n for points in lines.values() for n, _ in points})
        axis.set_xscale("log", base=2)
        axis.set_xticks(lengths, [f"{n // 1024}k" if n >= 1024 else str(n) for n in lengths])
        axis.set_title(f"head_dim {head_dim}, {kind}")
        axis.set_xlabel("sequence length")
        axis.set_ylabel("TFLOP/s" if quantity == "tflops" else "microseconds per call")
        if quantity == "time":
            axis.set_yscale("log")
        else:
            axis.set_ylim(bottom=0)
    figure.suptitle(f"{title}\n{source(found)}")
    figure.legend(shown.values(), shown.keys(), loc="outside lower center", ncols=min(6, len(shown)))
    return figure


def ratios(found: list[dict]) -> dict[str, dict[str, float]]:
    """{name of the problem: {label of an implementation: its time / rapt's time}}, if both were measured."""
    result: dict[str, dict[str, float]] = {}
    for (name, threads, l2), group in table.by_problem(found).items():
        mine = next((one for one in group if one["arm"] == table.MINE), None)
        peers = [one for one in group if not one["arm"].startswith(table.MINE)]
        if mine is None or not peers:
            continue
        extra = (f", {threads} threads" if threads else "") + (", cold" if l2 == "cold" else "")
        result[name + extra] = {
            label(one): (one.get("vs_rapt") or {}).get("median") or one["median"] / mine["median"] for one in peers
        }
    return result


TICKS = (0.125, 0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4, 6)
LONGEST_BAR = 6.0  # a longer bar is cut and shows its number


def plot_ratios(pyplot, found: list[dict], title: str):
    """Draws horizontal bars. If a bar ends right of 1, rapt is faster."""
    bars = ratios(found)
    names = sorted({name for one in bars.values() for name in one})
    rows = sum(len(one) for one in bars.values()) + len(bars)
    figure, axis = pyplot.subplots(figsize=(9, 1.5 + 0.12 * rows), layout="constrained")
    place, ticks, shown = 0.0, [], {}
    for problem, values in bars.items():
        first = place
        for name in [name for name in names if name in values]:
            impl = name.removesuffix(" (lossy)")
            shown[name] = axis.barh(
                place,
                min(values[name], LONGEST_BAR) - 1,
                left=1,
                height=0.85,
                color=COLOURS.get(impl, "#444444"),
                hatch=None if impl == name else "///",
                edgecolor="white",
                linewidth=0.3,
            )
            axis.annotate(
                f"{values[name]:.2f}",
                (max(1, min(values[name], LONGEST_BAR)), place),
                textcoords="offset points",
                xytext=(3, -2.5),
                fontsize=6,
            )
            place -= 1
        ticks.append((first + place + 1) / 2)
        place -= 1
    axis.set_yticks(ticks, list(bars))
    axis.set_xscale("log", base=2)
    limits = axis.get_xlim()
    ticks = [tick for tick in TICKS if limits[0] <= tick <= limits[1]]
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.minorticks_off()
    axis.axvline(1, color=COLOURS[table.MINE], linewidth=1.5)
    axis.set_xlabel("time of the implementation / time of rapt (right of 1: rapt is faster)")
    axis.set_ylim(place + 1, 1)
    axis.set_title(f"{title}\n{source(found)}")
    figure.legend(shown.values(), shown.keys(), loc="outside lower center", ncols=min(5, len(shown)))
    return figure


LADDER = "ladder "  # the names of implementations begin with this in rows of rapt bench --ladder
TIME, GAIN, LOSS = "#cfd8dc", "#3a7d44", "#d1495b"


def rungs(found: list[dict]) -> dict[str, list[dict]]:
    """{l2: [row of each rung, in order]}. Raises ValueError if rows of one plot differ in card or problem."""
    result: dict[str, list[dict]] = {}
    for one in found:
        if one["arm"].startswith(LADDER):
            result.setdefault(one["l2"], []).append(one)
    for l2, group in result.items():
        for what in ("card", "problem", "arm"):
            values = [one[what] for one in group]
            if what == "arm" and len(set(values)) < len(values):
                raise ValueError(f"ladder, l2 {l2}: a rung has several rows; plot one run at a time")
            if what != "arm" and len(set(values)) > 1:
                raise ValueError(f"ladder, l2 {l2}: rows of several {what}s ({', '.join(sorted(set(values)))})")
    return result


def steps(group: list[dict]) -> list[tuple[str, float, float]]:
    """For each rung: (rung, median in us, gain over the previous rung). The gain of the first rung is 1."""
    medians = [one["median"] for one in group]
    before = medians[:1] + medians[:-1]
    return [
        (one["arm"].removeprefix(LADDER), median, last / median) for one, median, last in zip(group, medians, before)
    ]


def plot_ladder(pyplot, group: list[dict], title: str):
    """Draws a waterfall with a logarithmic axis. Light: the time of a rung. Dark: its gain over the previous rung."""
    found = steps(group)
    figure, axis = pyplot.subplots(figsize=(8, 1.4 + 0.36 * len(found)), layout="constrained")
    least = min(median for _, median, _ in found) / 2
    for place, (_, median, gain) in enumerate(found):
        axis.barh(place, median - least, left=least, height=0.7, color=TIME)
        before = median * gain
        low, high = min(median, before), max(median, before)
        axis.barh(place, high - low, left=low, height=0.7, color=GAIN if gain >= 1 else LOSS)
        label = f"{median:.2f} us" + (f", {gain:.2f}x" if place > 0 else "")
        axis.annotate(label, (high, place), textcoords="offset points", xytext=(4, -3), fontsize=8)
    axis.set_yticks(range(len(found)), [rung for rung, _, _ in found])
    axis.invert_yaxis()
    axis.set_xscale("log")
    axis.set_xlim(least, 2.5 * max(median for _, median, _ in found))
    marks = [mark for mark in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if least <= mark <= axis.get_xlim()[1]]
    axis.set_xticks(marks, [str(mark) for mark in marks])
    axis.minorticks_off()
    axis.grid(axis="y", visible=False)
    axis.set_xlabel("microseconds per call; dark: the step from the previous rung (red: slower)")
    axis.set_title(f"{title}\n{source(group)}")
    return figure


def draw(found: list[dict], directory: str) -> list[str]:
    """Writes every plot that the rows allow; returns the paths."""
    pyplot = canvas()
    os.makedirs(directory, exist_ok=True)
    paths = []
    found = device_rows(found)
    for l2, group in rungs(found).items():
        cold = l2 == "cold"
        figure = plot_ladder(pyplot, group, f"The ladder, {group[0]['problem']}{', cold L2' if cold else ''}")
        paths.append(save(pyplot, figure, directory, "ladder-cold.svg" if cold else "ladder.svg"))
    found = [one for one in found if not one["arm"].startswith(LADDER)]
    for suite in sorted({one.get("suite", "") for one in found}):
        of_suite = [one for one in found if one.get("suite", "") == suite]
        kinds = [""] if suite == "cpu" else sorted({dtype_of(one) for one in of_suite})
        for dtype in kinds:
            some = [one for one in of_suite if not dtype or dtype_of(one) == dtype]
            ending = f"-{dtype}.svg" if dtype else ".svg"
            if suite == "sweep":
                for quantity, title in (
                    ("tflops", "Attention forward, 16k tokens"),
                    ("time", "Attention forward, 16k tokens: time"),
                ):
                    figure = plot_sweep(pyplot, some, quantity, f"{title}, {dtype}")
                    paths.append(save(pyplot, figure, directory, f"sweep-{quantity}{ending}"))
            elif ratios(some):
                figure = plot_ratios(pyplot, some, f"Suite {suite or 'unnamed'}{', ' + dtype if dtype else ''}")
                paths.append(save(pyplot, figure, directory, f"ratio-{suite or 'unnamed'}{ending}"))
    return paths


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="FILE.jsonl")
    parser.add_argument("-o", "--output", required=True, metavar="DIRECTORY")
    options = parser.parse_args()
    try:
        found = [one for path in options.files for one in results.read(path)]
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    try:
        paths = draw(found, options.output)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    except ImportError as error:
        print(f"matplotlib is needed for plots: {error}", file=sys.stderr)
        return 3
    print("\n".join(paths) if paths else "nothing to draw: no row with rapt and a peer, and no rung of the ladder")
    return 0


if __name__ == "__main__":
    sys.exit(main())
