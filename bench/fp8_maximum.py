#!/usr/bin/env python3
"""Compares the largest error of FP8 attention over many runs of `b1 h8 q512 k512 d64` with a model of this maximum.

    python3 bench/fp8_maximum.py [--device cuda|cpu] [--runs 100] [--rows 500000]
                                 [--save | --output FILE.jsonl] [--commit HASH [--dirty]]

docs/fp8.md ("The largest error of many runs") has the derivation. In short: rounding changes the weights of a row by
a_j. With v from N(0, 1), the error of an output has the distribution N(0, s^2) with s^2 = sum a_j^2. So of M outputs,
M T(t) have an error above t on average, with T(t) = E[erfc(t / (s sqrt(2)))]. The script simulates rows of logits to
get the distribution of s. It prints the errors t that N runs exceed with a probability of about 1/2, and of at most
1/1000. Then it makes N runs with rapt, scales `head`. It prints how many outputs had an error above a few thresholds,
and how many the model expects. Errors are those of the kernel alone: the reference is float64 attention on the stored
values. Exit status: 0; 1 if the largest error of all runs exceeds its bound; 2 wrong usage; 3 if there is no such
device.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import math
import os
import re
import sys
import time

import torch

import rapt
import rows as results
from fp8_accuracy import MODES, ROOT, SHAPES, Pool, attention, inputs, quantise, stored, synchronise
from implementations import chosen
from roof import NOTHING, card_name, commit_and_dirty, driver_version, file_safe, nvrtc_version

BATCH, HEADS, KEYS, DIM = SHAPES["mission"]
OUTPUTS = BATCH * HEADS * KEYS * DIM  # of one run
# The bound of N runs is the first number + the second * log10(N): pooled_max_bound in check/bounds.cpp.
BOUNDS = {"fp8": (1.55e-2, 3.2e-3), "fp8x2": (1e-3, 0.0), "f16": (5e-4, 0.0)}
THRESHOLDS = {
    "fp8": (6e-3, 8e-3, 1e-2, 1.2e-2, 1.4e-2),
    "fp8x2": (1.5e-4, 2e-4, 2.5e-4, 3e-4),
    "f16": (6e-5, 8e-5, 1e-4, 1.2e-4),
}
# Rows with a large s have a query with a large |q|, or a few keys with a large logit. Both are rare. So the simulation
# mixes rows of nine kinds, in equal shares. The query comes from N(0, f) with one of these f. And none, one or two keys
# of the row get a logit whose standard deviation is TALL times that of the others.
STRETCH = (1.0, 1.4, 1.9)
TALL, TALL_KEYS = 2.0, (0, 1, 2)
PART = 1 << 12  # rows that are simulated together


def bound(pv: str, runs: int) -> float:
    first, step = BOUNDS[pv]
    return first + step * math.log10(runs)


def rounded(w: torch.Tensor, pv: str) -> torch.Tensor:
    """The weights w <= 1 as the mode stores them."""
    if pv == "f16":
        return w.half().float()

    def e4m3(x: torch.Tensor) -> torch.Tensor:
        return (x * 256).to(torch.float8_e4m3fn).float() / 256

    high = e4m3(w)
    return high if pv == "fp8" else high + e4m3(w - high)


def row_errors(logits: torch.Tensor, tile: int) -> dict[str, torch.Tensor]:
    """s of each row, for each mode. Weights are rounded relative to the largest logit up to the end of their tile of
    keys. Later they are multiplied by a factor, and so are their rounding errors.
    """
    x = torch.nn.functional.pad(logits, (0, -logits.shape[1] % tile), value=-math.inf).unflatten(1, (-1, tile))
    running = x.amax(2, keepdim=True).cummax(1).values
    factor, w = torch.exp(running - running[:, -1:]), torch.exp(x - running)
    total = (w * factor).sum((1, 2))
    return {pv: (((rounded(w, pv) - w) * factor).square().sum((1, 2)).sqrt() / total).double() for pv in MODES}


def query_count(square: torch.Tensor) -> torch.Tensor:
    """The density of a query q with square = |q|^2 from N(0, 1), divided by its mean density over STRETCH."""
    ratios = [f ** (-DIM / 2) * torch.exp(square / 2 * (1 - 1 / f)) for f in STRETCH]
    return len(STRETCH) / sum(ratios)


def keys_count(z: torch.Tensor) -> torch.Tensor:
    """The density of the logits z from N(0, 1), divided by its mean density over TALL_KEYS. Any key can be tall."""
    ratio = torch.exp(z.double().square() / 2 * (1 - TALL**-2)) / TALL
    one, square = ratio.sum(1), ratio.square().sum(1)
    pairs = (one.square() - square) / (KEYS * (KEYS - 1))
    return len(TALL_KEYS) / (1 + one / KEYS + pairs)


def simulate(rows: int, tile: int = KEYS, seed: int = 0) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """How much each simulated row counts (importance sampling), and its s for each mode. tile: the keys of a tile. With
    all keys in one tile, s is largest: then only the weight of the largest logit is exactly 1.
    """
    generator = torch.Generator().manual_seed(seed)
    counts, found, kinds = [], {pv: [] for pv in MODES}, list(itertools.product(STRETCH, TALL_KEYS))
    for part in range(len(kinds) * -(-rows // (len(kinds) * PART))):
        stretch, tall = kinds[part % len(kinds)]
        square = torch.randn(PART, DIM, generator=generator, dtype=torch.float64).square().sum(1) * stretch
        z = torch.randn(PART, KEYS, generator=generator)
        first = torch.randint(KEYS, (PART, 1), generator=generator)
        second = (first + torch.randint(1, KEYS, (PART, 1), generator=generator)) % KEYS
        keys = torch.cat([first, second], 1)[:, :tall]
        z.scatter_(1, keys, TALL * z.gather(1, keys))
        counts.append(query_count(square) * keys_count(z))
        logits = z * (square / DIM).sqrt().float()[:, None]
        for pv, s in row_errors(logits, tile).items():
            found[pv].append(s)
    return torch.cat(counts), {pv: torch.cat(parts) for pv, parts in found.items()}


def tail(t: float, count: torch.Tensor, s: torch.Tensor) -> float:
    """T(t): the probability that the error of an output exceeds t."""
    return ((count * torch.special.erfc(t / (s * math.sqrt(2)))).sum() / count.sum()).item()


def exceeded(expected: float, count: torch.Tensor, s: torch.Tensor) -> float:
    """The t that `expected` outputs of one run exceed on average."""
    low, high = 1e-7, 1.0
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if OUTPUTS * tail(middle, count, s) > expected else (low, middle)
    return high


def prediction(count: torch.Tensor, found: dict[str, torch.Tensor]) -> str:
    text = ["| pv | runs | about the median | 1 in 1000 | bound |", "|---|---|---|---|---|"]
    for pv, s in found.items():
        for runs in (1, 5, 20, 100, 1000):
            likely, rare = (exceeded(share / runs, count, s) for share in (math.log(2), 1e-3))
            text.append(f"| {pv} | {runs} | {likely:.3g} | {rare:.3g} | {bound(pv, runs):.3g} |")
    return "\n".join(text) + "\n"


class Runs:
    """The errors of all runs with one mode."""

    def __init__(self, pv: str):
        self.pv, self.pool, self.maxima, self.us, self.plan = pv, Pool(), [], [], ("", "", "")
        self.above = dict.fromkeys(THRESHOLDS[pv], 0)

    def add(self, out: torch.Tensor, expected: torch.Tensor) -> None:
        self.pool.add(out, expected)
        error = (out.double() - expected).abs()
        self.maxima.append(error.max().item())
        for t in self.above:
            self.above[t] += int((error > t).sum())


def measure(runs: int, device: str) -> list[Runs]:
    found = [Runs(pv) for pv in MODES]
    for seed in range(runs):
        made, options = quantise(*inputs("mission", "normal", seed, device), ("head", (False, False)))
        expected, call = attention(*(stored(one) for one in made)), [one.codes for one in made]
        for one in found:
            if seed == 0:
                rapt.prepare(*call, pv=one.pv, **options)
                one.plan = chosen(rapt.explain(*call, pv=one.pv, **options))
            synchronise(device)
            start = time.perf_counter()
            out = rapt.sdpa(*call, pv=one.pv, **options)
            synchronise(device)
            one.us.append((time.perf_counter() - start) * 1e6)
            one.add(out, expected)
    return found


def comparison(found: list[Runs], rows: int, device: str) -> str:
    tile = int(re.search(r"block_n=(\d+)", found[0].plan[1])[1])
    count, s = simulate(rows, tile)
    text = [
        f"| pv | error above | outputs of all runs | the model expects, tiles of {tile} keys |",
        "|---|---|---|---|",
    ]
    for one in found:
        for t, above in one.above.items() if device == "cuda" or one.pv != "f16" else ():  # CPU: f16 uses f32 weights
            expected = len(one.maxima) * OUTPUTS * tail(t, count, s[one.pv])
            text.append(f"| {one.pv} | {t:.2g} | {above} | {expected:.3g} |")
    text += ["", "| pv | runs | median of the largest errors | largest | bound |", "|---|---|---|---|---|"]
    for one in found:
        runs, middle = len(one.maxima), sorted(one.maxima)[len(one.maxima) // 2]
        text.append(f"| {one.pv} | {runs} | {middle:.3g} | {max(one.maxima):.3g} | {bound(one.pv, runs):.3g} |")
    return "\n".join(text) + "\n"


def verdict(found: list[Runs]) -> list[str]:
    """A sentence for each mode whose largest error exceeds its bound."""
    limits = [(one.pv, max(one.maxima), bound(one.pv, len(one.maxima)), len(one.maxima)) for one in found]
    return [
        f"pv={pv}: the largest error of {runs} runs is {largest:.3g}: must be at most {limit:.3g}"
        for pv, largest, limit, runs in limits
        if not largest <= limit
    ]


def to_row(one: Runs, options) -> dict:
    family, config, signature = one.plan
    gpu = options.device == "cuda"
    return results.row(
        f"e4m3 out=f32 b{BATCH} h{HEADS} q{KEYS} k{KEYS} d{DIM} scales=head pv={one.pv}",
        "rapt",
        one.us,
        flops=4.0 * OUTPUTS * KEYS,
        moved=OUTPUTS * (3 + 4.0),
        name="mission-normal",
        suite="fp8-maximum",
        family=family,
        config=config,
        signature=signature,
        input_sets=len(one.us),
        err=one.pool.found(),
        maxima={"runs": one.maxima, "bound": bound(one.pv, len(one.maxima))},
        card=file_safe(card_name(options.device)),
        threads=0 if gpu else torch.get_num_threads(),
        driver=driver_version() if gpu else "",
        nvrtc=nvrtc_version() if gpu else "",
        version=rapt.__version__,
        commit=options.commit,
        dirty=options.dirty,
        command=options.command,
        gemm_tflops=dict(NOTHING),
        bandwidth=None,
    )


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--runs", type=int, default=100, help="runs of rapt, with seeds 0, 1, ...")
    parser.add_argument("--rows", type=int, default=500_000, help="rows of logits in the simulation")
    parser.add_argument("--output", metavar="FILE.jsonl")
    parser.add_argument("--save", action="store_true", help="results/CARD/TIME-fp8-maximum.jsonl")
    parser.add_argument("--commit", help="default: from git")
    parser.add_argument("--dirty", action="store_true", help="with --commit: the tree had uncommitted changes")
    options = parser.parse_args(arguments)
    if options.runs < 1 or options.rows < 1:
        parser.error(f"--runs {options.runs} --rows {options.rows}: both must be 1 or more")
    return options


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    if options.commit is None:
        options.commit, options.dirty = commit_and_dirty()
    options.command = " ".join(["python3 bench/fp8_maximum.py", *arguments])
    if options.device == "cuda" and not torch.cuda.is_available():
        print("fp8_maximum.py: PyTorch finds no GPU", file=sys.stderr)
        return 3
    results.load_schema()
    print(prediction(*simulate(options.rows)))
    found = measure(options.runs, options.device)
    print(comparison(found, options.rows, options.device))
    path, made = options.output, [to_row(one, options) for one in found]
    if options.save and path is None:
        stamp = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
        path = os.path.normpath(os.path.join(ROOT, "results", made[0]["card"], f"{stamp}-fp8-maximum.jsonl"))
    if path:
        results.write(path, made)
        print(f"written: {path}")
    faults = verdict(found)
    for fault in faults:
        print("fp8_maximum.py:", fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
