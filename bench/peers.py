#!/usr/bin/env python3
"""Times rapt and other implementations of attention: in one process, with the same inputs, on one device.

    python3 bench/peers.py [--suite named] [--dtype f16,bf16] [--save]              # one NVIDIA GPU
    python3 bench/peers.py --device cpu [--threads 1,16] [--save]                   # compares with PyTorch on the CPU
    python3 bench/peers.py --dry-run                                                # tests the script without a GPU

Before an implementation is timed, its outputs for new random inputs are compared with a float64 reference on sampled
rows. The error bounds come from an unfused implementation. Output memory is filled with NaN first. A wrong
implementation is not timed. The correct ones are then sampled in rounds, in random order. On a GPU, the script times
replays of a CUDA graph of many calls over rotating inputs and outputs (device time). It also times a loop of eager
calls: host time is until the last call returns, wall time is until the work is done. On the CPU it times single calls.
If an implementation cannot be imported, or does not compute exactly the same operation, its name and the reason are
printed, and it is not compared. Rows follow docs/results-schema.json; docs/benchmarks.md explains the method. Exit
status: 0 success; 1 if rapt was wrong or rejected a problem; 2 wrong usage; 3 if there is no such device.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import math
import os
import random
import shlex
import statistics
import sys
import time
import warnings

import torch

import implementations
import clocks
import rows as results
import suites
import table
from gpu_clocks import ClockReader, pci_address
from implementation import Absent, Implementation, first_line
from implementations import RaptImplementation
from clocks import Bound, GraphClock, HostClock
from inputs import Inputs
from judge import Judge, WrongResult
from roof import NOTHING, Roof, card_name, commit_and_dirty, driver_version, file_safe, nvrtc_version

WARM_SETS = 4
TOO_SLOW_US = 2e6  # if one call takes longer, the script reports it and does not time the implementation
MAX_MEMORY_FRACTION = 0.6  # the part of free memory that unfused scores may take


class Run:
    """One run on one device with one number of threads: the fields that its rows share, and the rows."""

    def __init__(self, options, threads: int = 0):
        self.options, self.threads = options, threads
        self.device = options.device
        self.rows: list[dict] = []
        self.failures: list[str] = []
        self.random = random.Random(options.seed)
        self.row_samples = torch.Generator().manual_seed(options.seed)
        self.values = torch.Generator(self.device).manual_seed(options.seed)
        self.card = card_name(self.device)
        self.driver = "" if self.device == "cpu" else driver_version()
        wanted = [
            impl
            for impl in implementations.all_implementations(self.device, threads)
            if (not options.implementations or impl.name in options.implementations)
            and impl.name not in options.skip_implementations
        ]
        self.impls, self.absent = implementations.available(wanted)
        self.stream = None if self.device == "cpu" else torch.cuda.Stream()
        self.clock_reader = (
            None if self.device == "cpu" else ClockReader(pci_address(torch.cuda.get_device_properties(0)))
        )
        self.roof: Roof | None = None

    def print_header(self) -> None:
        print(
            f"{self.card}, driver {self.driver or '-'}, PyTorch {torch.__version__}, commit {self.options.commit}"
            f"{' (dirty)' if self.options.dirty else ''}, seed {self.options.seed}"
            + (f", {self.threads} threads" if self.threads else "")
        )
        for impl in self.impls:
            print(f"  {impl.name:<16}{impl.version()}")
        for impl in self.absent:
            print(f"  {impl.name:<16}{impl.why}")
        self.roof = Roof(self.device, self.options.quick)
        print(self.roof.text(), flush=True)

    def scope(self):
        return contextlib.nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    def measure_all(self, problems: list[tuple[str, str, suites.Problem]], deadline: float) -> None:
        """Measures every problem. Rows are written after each one, so a crash loses only one problem."""
        self.print_header()
        for index, (suite, name, problem) in enumerate(problems):
            if time.perf_counter() > deadline:
                for _, late, _ in problems[index:]:
                    print(f"\n{late}  not measured: the time budget of {self.options.budget:g} s is spent")
                break
            self.measure_problem(suite, name, problem)
            clocks.synchronize()
            if self.device != "cpu":
                torch.cuda.empty_cache()

    def input_sets(self, problem: suites.Problem) -> int:
        bytes_moved = problem.bytes_moved()
        if self.device == "cpu":  # all sets together are larger than the private caches
            return max(2, min(8, int((256 << 20) // bytes_moved)))
        if self.options.l2 == "warm":
            return WARM_SETS
        cache = torch.cuda.get_device_properties(0).L2_cache_size
        return max(WARM_SETS, min(64, math.ceil(2 * cache / bytes_moved) + 1))

    def measure_problem(self, suite: str, name: str, problem: suites.Problem) -> None:
        sets = [Inputs(problem, self.device, self.values) for _ in range(self.input_sets(problem))]
        judges = {index: Judge(sets[index], self.row_samples) for index in sorted({0, len(sets) - 1})}
        clock = HostClock(self.options.seconds) if self.stream is None else GraphClock(self.stream)
        bounds: list[Bound] = []
        absent = list(self.absent)
        for impl in [impl for impl in self.impls if impl.concerns(problem)]:
            validated = self.validate(impl, name, sets, judges, clock)
            (absent if isinstance(validated, Absent) else bounds).append(validated)
        print(f"\n{name}  {problem.line}  ({len(sets)} input sets, every {judges[0].step}. row checked)", flush=True)
        steadiness = self.take_samples(bounds, clock) if bounds else {}
        for bound in [bound for bound in bounds if bound.out_of_memory]:
            bounds.remove(bound)
            absent.append(Absent(bound.name, "not measured: its eager calls ran out of memory"))
            if isinstance(bound.impl, RaptImplementation):
                self.failures.append(f"{name} {bound.name}: its eager calls ran out of memory")
        new = self.make_rows(suite, name, problem, bounds, absent, clock, sets, judges[0].step)
        for one in new:
            one.update(steadiness)
        print(
            "\n".join(
                table.block(new, [other.row() for other in absent])
                if new
                else [f"  {other.name:<16}{other.why}" for other in absent]
            ),
            flush=True,
        )
        self.rows += new
        clock.close()
        for impl in self.impls:
            impl.end()

    def take_samples(self, bounds: list[Bound], clock) -> dict:
        """Fills the samples of all bounds. Returns the fields of the rows that describe how steady the GPU was."""
        shuffle = lambda some: self.random.sample(some, len(some))  # noqa: E731
        if self.clock_reader is None:
            clocks.measure(bounds, clock, self.options.rounds, shuffle)
            return {}
        return clocks.measure_steadily(bounds, clock, self.options.rounds, shuffle, self.clock_reader.read)

    def validate(self, impl: Implementation, name: str, sets, judges, clock):
        """Returns the implementation's calls if their results are correct both eagerly and in the timed form (CUDA
        graph or loop). Otherwise returns an Absent with the reason.
        """
        problem = sets[0].problem
        why = impl.refusal(problem)
        if why:
            return Absent(impl.name, f"not compared: {why}")
        too_large = getattr(impl, "score_bytes", lambda problem: 0.0)(problem)
        if too_large > MAX_MEMORY_FRACTION * self.free_bytes():
            return Absent(impl.name, f"not measured: its scores would take {too_large / 1e9:.0f} GB")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # before PyTorch raises, it warns why a backend refuses
                bound = self.bind(impl, problem, sets)
                call_us = clocks.time_once(bound)  # only to choose the number of calls per sample; not a result
                if call_us > TOO_SLOW_US:
                    return Absent(impl.name, f"not measured: one call takes {call_us * 1e-6:.1f} s")
                bound.error = self.judged(bound, judges, lambda index: self.eager(bound, sets, index))
                outputs = clock.prepare(bound, self.device_us(problem, call_us))
                # The graph of a slow implementation does not use all sets.
                captured = {index: judge for index, judge in judges.items() if index in outputs}
                self.judged(bound, captured, lambda index: outputs[index])
            return bound
        except WrongResult as error:
            if isinstance(impl, RaptImplementation):
                self.failures.append(f"{name} {impl.name}: {error}")
            return Absent(impl.name, f"WRONG, not timed: {error}")
        except Exception as error:  # peers raise all kinds of exceptions
            clocks.synchronize()
            if isinstance(impl, RaptImplementation):
                self.failures.append(f"{name} {impl.name}: {first_line(error)}")
            return Absent(impl.name, f"refused: {first_line(error)}")

    def device_us(self, problem, call_us: float) -> float:
        """Returns an upper estimate of a call's device time. For short calls the measured time is mostly host overhead,
        so the estimate is at most ten times the roofline time.
        """
        roof = self.roof.seconds(problem.dtype, problem.flops(), problem.bytes_moved())
        return call_us if roof is None or call_us > 1000 else min(call_us, max(1.0, 10e6 * roof))

    def bind(self, impl: Implementation, problem, sets) -> Bound:
        facts = impl.begin(problem)
        if isinstance(impl, RaptImplementation):
            facts = impl.facts(sets[0])
        return Bound(impl, [impl.bind(inputs) for inputs in sets], facts)

    def eager(self, bound: Bound, sets, index: int):
        """Returns one call's output. A block of the same size is filled with NaN and freed first. If the allocator
        returns this block for the output, the output memory holds NaN before the call.
        """
        poison = torch.full_like(
            sets[index].q, math.nan, dtype=torch.float32 if sets[index].q.dtype == torch.float32 else torch.float16
        )
        del poison
        with bound.impl.scope():
            return bound.calls[index]()

    def judged(self, bound: Bound, judges, output) -> dict:
        """Returns the errors of the checked set with the largest rel_rms."""
        problem, all_errors = judges[0].problem, []
        for index, judge in judges.items():
            all_errors.append(judge(bound.impl.logical(output(index), problem), lossy=bound.impl.lossy))
        return max(all_errors, key=lambda errors: errors["rel_rms"])

    def free_bytes(self) -> float:
        if self.device == "cpu":
            return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info()[0]

    def make_rows(self, suite, name, problem, bounds, absent, clock, sets, step) -> list[dict]:
        visible_fraction = sets[0].kept()
        flops, bytes_moved = problem.flops(visible_fraction), problem.bytes_moved()
        rapt_bound = next((bound for bound in bounds if bound.name == "rapt"), None)
        rows = []
        for bound in bounds:
            error = dict(bound.error)
            shared = {
                "name": name,
                "suite": suite,
                "within_bound": bool(error.pop("within")),
                "err": error,
                "family": bound.impl.family,
                "config": bound.impl.config(problem),
                **bound.facts,
                "layout": "packed" if problem.varlen else bound.impl.layout,
                "host_us": statistics.median(bound.host_us) if bound.host_us else None,
                **self.facts(bound, len(sets), step),
            }
            if rapt_bound is not None and bound is not rapt_bound:
                q1, median, q3 = results.quartiles(
                    [other / rapt for other, rapt in zip(bound.rounds, rapt_bound.rounds)]
                )
                shared["vs_rapt"] = {"median": median, "q1": q1, "q3": q3}
            computed = bound.impl.computed(problem)
            timed = [(clock.timer, bound.samples, bound.count if clock.timer == "graph" else 1)]
            if bound.wall_us:
                timed.append(("host", bound.wall_us, max(len(sets), min(clocks.MOST_CALLS, bound.count))))
            for timer, us, calls in timed:
                fields = dict(shared)
                if timer != clock.timer:  # ratios are computed only for device times
                    fields.pop("vs_rapt", None)
                rows.append(
                    results.row(
                        computed.line,
                        bound.name,
                        us,
                        flops=flops,
                        moved=computed.bytes_moved(),
                        timer=timer,
                        calls=calls,
                        roof_s=self.roof.seconds(problem.dtype, flops, bytes_moved),
                        **fields,
                    )
                )
        if rows and absent:
            rows[0]["absent"] = [other.row() for other in absent]
        return rows

    def facts(self, bound: Bound, input_sets: int, step: int) -> dict:
        """Returns the fields that all rows of one implementation share."""
        is_rapt = isinstance(bound.impl, RaptImplementation)
        return {
            "version": bound.impl.version(),
            "input_sets": input_sets,
            "checked_rows": step,
            "l2": self.options.l2,
            "card": file_safe(self.card),
            "threads": self.threads,
            "driver": self.driver,
            "nvrtc": nvrtc_version() if is_rapt and self.device != "cpu" else "",
            "commit": self.options.commit,
            "dirty": self.options.dirty,
            "command": shlex.join(sys.argv),
            "gemm_tflops": {**NOTHING, **self.roof.gemm},
            "bandwidth": self.roof.bandwidth,
        }


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument(
        "--suite", metavar="NAME,...", help=f"some of {', '.join(suites.SUITES)} (default: named; cpu on the CPU)"
    )
    parser.add_argument("--names", default="", metavar="NAME,...", help="only these problems of the suites")
    parser.add_argument(
        "--problem", action="append", default=[], metavar="LINE", help="a problem line, instead of --suite"
    )
    parser.add_argument("--dtype", default="f16", metavar="f16,bf16", help="dtype of problems that do not specify one")
    parser.add_argument("--implementations", default="", metavar="NAME,...", help="only these implementations")
    parser.add_argument("--skip-implementations", default="", metavar="NAME,...", help="all except these")
    results.refuse_renamed_options(parser)
    parser.add_argument("--threads", default="", metavar="N,...", help="CPU only (default: 1 and all)")
    parser.add_argument("--rounds", type=int, help="default: 15; 5 with --quick; 21 on the CPU")
    parser.add_argument(
        "--seconds", type=float, help="CPU: seconds per implementation and round (default 0.05; 0.002 with --quick)"
    )
    parser.add_argument(
        "--l2", choices=["warm", "cold"], default="warm", help="GPU: cold rotates more input sets than fit in the L2"
    )
    parser.add_argument("--quick", action="store_true", help="fewer rounds: for a first look, not for results")
    parser.add_argument(
        "--budget", type=float, default=0, metavar="SECONDS", help="start no new problem after this time (0: no limit)"
    )
    parser.add_argument(
        "--seed", type=int, default=time.time_ns() % 100000, help="seed of inputs and orders (default: from the clock)"
    )
    parser.add_argument("--output", metavar="FILE.jsonl")
    parser.add_argument("--save", action="store_true", help="results/<card>/<UTC>-peers-<suite>.jsonl")
    parser.add_argument("--commit", help="default: from git")
    parser.add_argument("--dirty", action="store_true", help="with --commit: the tree had uncommitted changes")
    parser.add_argument("--dry-run", action="store_true", help="run the suite 'dry' on the CPU, quickly")
    options = parser.parse_args()
    complete_options(options, parser)
    return options


def complete_options(options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Sets defaults that depend on other options, and refuses invalid combinations."""
    if options.dry_run:
        options.device, options.quick, options.suite = "cpu", True, options.suite or "dry"
    cpu = options.device == "cpu"
    options.suite = [name for name in (options.suite or ("cpu" if cpu else "named")).split(",")]
    for name in options.suite:
        if name not in suites.SUITES:
            parser.error(f"--suite {name}: must be one of {', '.join(suites.SUITES)}")
    options.dtype = options.dtype.split(",")
    for dtype in options.dtype:
        if dtype not in ("f16", "bf16", "f32"):
            parser.error(f"--dtype {dtype}: must be f16, bf16 or f32")
    options.implementations, options.skip_implementations, options.names = (
        [word for word in text.split(",") if word]
        for text in (options.implementations, options.skip_implementations, options.names)
    )
    known = [impl.name for impl in implementations.all_implementations(options.device)]
    for name in [*options.implementations, *options.skip_implementations]:
        if name not in known:
            parser.error(f"{name}: must be one of {', '.join(known)}")
    if cpu and not options.implementations and not options.dry_run:
        options.implementations = [impl.name for impl in implementations.rapt_implementations(0)] + [
            "torch",
            "torch-f16",
        ]  # the other suites exist only to test the script
    if options.threads and not cpu:
        parser.error("--threads: CPU only")
    if options.l2 == "cold" and cpu:
        parser.error("--l2 cold: GPU only; on the CPU use `rapt bench --l2 cold`")
    num_cpus = len(os.sched_getaffinity(0))
    counts = options.threads or ("1" if options.dry_run else f"1,{num_cpus}")
    if not all(word.isdigit() and int(word) > 0 for word in counts.split(",")):
        parser.error(f"--threads {counts}: must be numbers of 1 or more")
    options.threads = sorted({int(word) for word in counts.split(",")}) if cpu else [0]
    options.rounds = options.rounds or (
        5 if options.quick and not options.dry_run else 3 if options.dry_run else 21 if cpu else 15
    )
    if options.rounds < 2:
        parser.error(f"--rounds {options.rounds}: must be 2 or more")
    options.seconds = options.seconds or (0.002 if options.quick else 0.05)
    if options.commit is None:
        options.commit, options.dirty = commit_and_dirty()


def chosen_problems(options: argparse.Namespace) -> list[tuple[str, str, suites.Problem]]:
    """Returns (suite, name, problem) of each chosen problem. Raises ValueError for a wrong line or name."""
    if options.problem:
        return [("", line, suites.parse(line)) for line in options.problem]
    found = []
    for suite in options.suite:
        seen = set()
        for dtype in options.dtype:
            for name, problem in suites.suite(suite, dtype).items():
                label = f"{name}-{dtype}" if problem.dtype == dtype != options.dtype[0] else name
                if problem.line not in seen and (not options.names or name in options.names):
                    found.append((suite, label, problem))
                seen.add(problem.line)
    for name in options.names:
        if not any(name in suites.SUITES[suite] for suite in options.suite):
            raise ValueError(f"--names {name}: no problem with this name in {', '.join(options.suite)}")
    return found


def check_judge() -> None:
    """Tests the judge. Exits if it accepts a wrong result: a dropped key, a shifted diagonal, swapped rows, NaN."""
    problem = suites.parse("f16 b1 h2 q64 k64 d32 causal")
    inputs = Inputs(problem, "cpu", torch.Generator().manual_seed(3))
    judge = Judge(inputs, torch.Generator().manual_seed(1))
    causal = torch.ones(64, 64, dtype=torch.bool).tril()
    shifted = causal.tril(-1)
    shifted[0, 0] = True

    def with_mask(mask):
        return torch.nn.functional.scaled_dot_product_attention(inputs.q, inputs.k, inputs.v, attn_mask=mask)

    right = with_mask(causal)
    judge(right)
    wrong = {
        "a key dropped": with_mask(causal & (torch.arange(64) != 5)),
        "the diagonal shifted": with_mask(shifted),
        "rows swapped": right.roll(1, 2),
        "NaN in a row": right.masked_fill(torch.arange(64)[:, None] == 17, math.nan),
    }
    for name, out in wrong.items():
        with contextlib.suppress(WrongResult):
            judge(out)
            sys.exit(f"the judge accepts an output with {name}")


def output_path(options: argparse.Namespace, card: str) -> str | None:
    if options.output or not options.save:
        return options.output
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "results", file_safe(card))
    stamp = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    return os.path.normpath(os.path.join(root, f"{stamp}-peers-{'-'.join(options.suite)}.jsonl"))


def main() -> int:
    options = arguments()
    if options.device == "cuda" and not torch.cuda.is_available():
        print(
            "PyTorch finds no GPU (use --dry-run to test the script, or --device cpu to time the CPU)",
            file=sys.stderr,
        )
        return 3
    try:
        problems = chosen_problems(options)
        results.load_schema()
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    check_judge()
    began, found, failures, path = time.perf_counter(), [], [], None
    deadline = began + options.budget if options.budget else math.inf
    for threads in options.threads:
        if threads:
            torch.set_num_threads(threads)
        run = Run(options, threads)
        path = path or output_path(options, run.card)
        if not any(isinstance(impl, RaptImplementation) for impl in run.impls):
            failures += [f"rapt: {other.why}" for other in run.absent if other.name.startswith("rapt")]
        try:
            with run.scope(), torch.no_grad():
                run.measure_all(problems, deadline)
        finally:  # keep the results before a crash
            found += run.rows
            failures += run.failures
            if path and found:
                results.write(path, found)
    now = datetime.datetime.now(datetime.timezone.utc)
    print(
        f"\n{len(problems)} problems in {time.perf_counter() - began:.0f} s, {now:%Y-%m-%dT%H:%M:%SZ}"
        + (f", written: {path}" if path and found else "")
    )
    for failure in failures:
        print(f"FAILED  {failure}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
