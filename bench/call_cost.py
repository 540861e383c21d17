#!/usr/bin/env python3
"""Measures the host cost of a warm call: rapt.sdpa with and without out=, other implementations, and a bare
cuLaunchKernel.

    python3 bench/call_cost.py [--limit 6] [--output FILE.jsonl]
    python3 bench/call_cost.py --device cpu --quick       # only tests the script

Measures blocks of calls; each round has a new random order. A block is so short that it does not fill the launch queue.
The clock stops when the last call has returned, before the GPU has finished. (On the CPU, calls finish before they
return, so --device cpu only tests the script.) A loop in C (bench/launch.py) times the bare launch in the same rounds.
For each round, the script computes the difference between a call and the bare launch, and reports the median of these
differences. It includes Python's loop and the call of a lambda. Exit status: 0; 1 if rapt is wrong or refuses, or costs
more than --limit microseconds above the bare launch; 3 if there is no such device, or with --limit if the bare launch
could not be measured.
"""

from __future__ import annotations

import argparse
import gc
import random
import shlex
import statistics
import sys
import time

import torch

import implementations
import rows as results
import suites
from implementation import first_line
from implementations import RaptImplementation
from clocks import synchronize
from inputs import Inputs
from judge import Judge
from launch import BareLaunch, NotHere
from roof import NOTHING, card_name, commit_and_dirty, driver_version, file_safe, nvrtc_version

SHAPES = {
    name: suites.NAMED[name] for name in ("seed-small-a", "seed-small-b", "mission", "mission-causal", "decode-b1-4k")
}
CALLS = 100


class Allocating(RaptImplementation):
    """rapt.sdpa without out=."""

    name = "rapt-alloc"

    def bind(self, inputs: Inputs):
        (q, k, v), options = self.call(inputs)
        sdpa = self.rapt.sdpa
        return (lambda: sdpa(q, k, v, **options)) if options else (lambda: sdpa(q, k, v))


def block(call) -> float:
    """Microseconds of host time per call."""
    call()
    synchronize()
    start = time.perf_counter()
    for _ in range(CALLS):
        call()
    end = time.perf_counter()
    synchronize()
    return (end - start) * 1e6 / CALLS


def bind(impl, inputs: Inputs, judge: Judge):
    """Returns (call, errors). Raises the exceptions of the implementation."""
    impl.begin(inputs.problem)
    call = impl.bind(inputs)
    with impl.scope():
        found = judge(impl.logical(call(), inputs.problem), lossy=impl.lossy)
    return call, found


def measure(bound: list, bare, rounds: int, shuffle) -> tuple[dict[str, list[float]], list[float]]:
    """Returns ({implementation: microseconds of each round}, microseconds of each round for the bare launch). The
    second is empty if there is no bare launch.
    """
    us, floor = {impl.name: [] for impl, _, _ in bound}, []
    for _ in range(rounds):
        for entry in shuffle([*bound, None]):
            if entry is not None:
                with entry[0].scope():
                    us[entry[0].name].append(block(entry[1]))
            elif bare is not None:
                synchronize()
                floor.append(bare.block(CALLS))
                synchronize()
    return us, floor


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--dtype", choices=["f16", "bf16"], default="f16")
    parser.add_argument(
        "--skip-implementations",
        default="torch-flex,torch-flex-eager,torch-math",
        metavar="NAME,...",
        help="default: %(default)s",
    )
    results.refuse_renamed_options(parser)
    parser.add_argument("--rounds", type=int, help="default 60; 5 with --quick")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument(
        "--limit", type=float, metavar="US", help="fail if rapt costs this many microseconds more than a bare launch"
    )
    parser.add_argument("--output", metavar="FILE.jsonl")
    parser.add_argument("--commit", help="default: from git")
    parser.add_argument("--dirty", action="store_true", help="with --commit: the tree had uncommitted changes")
    options = parser.parse_args()
    if options.commit is None:
        options.commit, options.dirty = commit_and_dirty()
    if options.device == "cuda" and not torch.cuda.is_available():
        print("PyTorch finds no GPU (use --device cpu --quick to test the script)", file=sys.stderr)
        return 3
    results.load_schema()  # raises before anything is measured
    return run(options)


def run(options) -> int:
    rounds = options.rounds or (5 if options.quick else 60)
    gpu = options.device == "cuda"
    stream = torch.cuda.Stream() if gpu else None
    with torch.no_grad(), torch.cuda.stream(stream) if gpu else torch.autograd.set_grad_enabled(False):
        bare = bare_launch(stream)
        if bare is None and options.limit is not None:
            return 3
        wanted = [*implementations.all_implementations(options.device)]
        wanted = [
            impl
            for impl in [wanted[0], Allocating(), *wanted[1:]]
            if impl.name not in options.skip_implementations.split(",")
        ]
        impls, absent = implementations.available(wanted)
        for other in absent:
            print(f"{other.name}: {other.why}")
        found, failures = [], [f"{other.name}: {other.why}" for other in absent if other.name.startswith("rapt")]
        for name, words in SHAPES.items():
            found += shape(options, name, suites.parse(f"{options.dtype} {words}"), impls, bare, rounds, failures)
    if options.output and found:
        results.write(options.output, found)
        print(f"\nwritten: {options.output}")
    for failure in failures:
        print(f"FAILED  {failure}")
    return 1 if failures else 0


def bare_launch(stream):
    """Returns the bare launch. If it is not available, prints the reason and returns None."""
    if stream is None:
        print("bare launch: not measured: no GPU")
        return None
    try:
        torch.zeros(1, device="cuda")  # creates the CUDA context and makes it current
        return BareLaunch(stream.cuda_stream)
    except NotHere as why:
        print(f"bare launch: not measured: {why}")
        return None


def shape(options, name: str, problem: suites.Problem, impls, bare, rounds: int, failures: list[str]) -> list[dict]:
    """Measures and prints one problem; returns its rows."""
    inputs = Inputs(problem, options.device, torch.Generator(options.device).manual_seed(1))
    judge = Judge(inputs, torch.Generator().manual_seed(1))
    print(f"\n{name}  {problem.line}")
    bound = []
    for impl in impls:
        why = impl.refusal(problem) if impl.concerns(problem) else "another dtype"
        if why:
            continue
        try:
            call, errors = bind(impl, inputs, judge)
            bound.append((impl, call, errors))
        except Exception as error:  # peers can raise any exception
            print(f"  {impl.name:<16}refused: {first_line(error)}")
            if isinstance(impl, RaptImplementation):
                failures.append(f"{name} {impl.name}: {first_line(error)}")
    gc.collect()
    gc.disable()
    try:
        us, floor = measure(bound, bare, rounds, lambda entries: random.sample(entries, len(entries)))
    finally:
        gc.enable()
    return report(options, name, problem, bound, us, floor, failures, judge.step)


def report(options, name, problem, bound, us, floor, failures, step) -> list[dict]:
    lowest = statistics.median(floor) if floor else None
    if floor:
        q1, median, q3 = results.quartiles(floor)
        print(f"  {'bare launch':<16}{median:8.2f} us ({q1:.2f}-{q3:.2f})")
    found = []
    for impl, _, error in bound:
        q1, median, q3 = results.quartiles(us[impl.name])
        above = statistics.median(mine - bare for mine, bare in zip(us[impl.name], floor)) if floor else None
        print(
            f"  {impl.name:<16}{median:8.2f} us ({q1:.2f}-{q3:.2f})"
            + (f"  above the bare launch {above:.2f}" if floor else "")
        )
        if options.limit is not None and isinstance(impl, RaptImplementation) and above > options.limit:
            failures.append(f"{name} {impl.name}: {above:.2f} us above the bare launch; the limit is {options.limit:g}")
        error = dict(error)
        found.append(
            results.row(
                problem.line,
                impl.name,
                us[impl.name],
                flops=problem.flops(),
                moved=problem.bytes_moved(),
                name=name,
                suite="call-cost",
                within_bound=bool(error.pop("within")),
                err=error,
                family=impl.family,
                config=impl.config(problem),
                calls=CALLS,
                timer="host",
                host_us=median,
                above_launch_us=above,
                bare_launch_us=lowest,
                layout=impl.layout,
                checked_rows=step,
                card=file_safe(card_name(options.device)),
                threads=0 if options.device == "cuda" else torch.get_num_threads(),
                driver=driver_version() if options.device == "cuda" else "",
                version=impl.version(),
                commit=options.commit,
                dirty=options.dirty,
                nvrtc=nvrtc_version() if options.device == "cuda" else "",
                command=shlex.join(sys.argv),
                gemm_tflops=dict(NOTHING),
                bandwidth=None,
            )
        )
    return found


if __name__ == "__main__":
    sys.exit(main())
