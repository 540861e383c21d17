#!/usr/bin/env python3
"""Times rapt on one NVIDIA GPU beside the backends of PyTorch's scaled_dot_product_attention, in one process.

    python3 bench/gpu_peers.py [--library build/librapt.so] [--names mission,encoder] [--dtype f16|bf16] [--output FILE.jsonl]

Device time: a CUDA graph of n calls over rotating sets of inputs and outputs (n: a replay lasts half a millisecond or
more, at most 50 calls), replayed in rounds, the arms of a round in random order. Reported: median and quartiles of the
rounds, and a peer's time over rapt's of the same round (median over rounds). Host time: an eager loop of n calls, per
call, up to the last enqueue ("host") and to the end of the work ("wall"). The roof, a matmul and a streaming read, is
measured in the same run. Before an arm is timed its outputs are checked on sampled rows of fresh random inputs against
float64, by the bounds that the project's own kernels must keep; outputs are poisoned before. A wrong arm is not timed,
and the exit status is 1; so it is when rapt refuses a problem. Rows of --output follow docs/results-schema.json.
PyTorch computes causal masks top-left, which is the same as bottom-right for the square problems here.

    --dry-run   rapt's CPU backend and PyTorch's CPU path on small problems: tries the script where there is no GPU
"""
import argparse
import contextlib
import ctypes
import datetime
import math
import os
import platform
import random
import re
import shlex
import statistics
import subprocess
import sys
import time
import warnings

import torch
import torch.nn.functional as functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from common import TORCH, Judge, Rapt, bytes_moved, file_safe, flops, numbers, quartiles, row, shapes, write_rows

SUITE = {
    "mission": "b1 h8 q512 k512 d64",
    "mission-causal": "b1 h8 q512 k512 d64 causal",
    "encoder": "b16 h12 q512 k512 d64",
    "vit-256d80": "b8 h16 q256 k256 d80",
    "prefill-1k": "b1 h32 q1024 k1024 d128 causal",
    "prefill-4k": "b1 h32 q4096 k4096 d128 causal",
    "prefill-4k-gqa": "b1 h32:8 q4096 k4096 d128 causal",
    "full-4k-d64": "b2 h24 q4096 k4096 d64",
    "full-16k-d128": "b1 h16 q16384 k16384 d128",
    "full-8k-d256": "b1 h8 q8192 k8192 d256",
}
DRY_SUITE = {"mission": "b1 h2 q64 k64 d64", "mission-causal": "b1 h2 q96 k96 d64 causal", "prefill-4k-gqa": "b2 h4:2 q80 k80 d32 causal"}
PEERS = {"torch-flash": SDPBackend.FLASH_ATTENTION, "torch-cudnn": SDPBackend.CUDNN_ATTENTION, "torch-efficient": SDPBackend.EFFICIENT_ATTENTION}
DRY_PEERS = {"torch-math": SDPBackend.MATH}
SETS = 4


class Arm:
    """One implementation bound to one problem: calls[i]() enqueues set i and returns its output."""

    def __init__(self, name, calls, backend=None, **facts):
        self.name, self.calls, self.backend, self.facts = name, calls, backend, facts
        self.device_us, self.host_us, self.wall_us, self.error = [], [], [], None

    def chosen(self):
        """PyTorch's choice of backend, held for a scope."""
        return contextlib.nullcontext() if self.backend is None else sdpa_kernel(self.backend)


class GraphClock:
    """Device time of n calls from replays of one captured graph per arm."""
    timer = "graph"

    def __init__(self, stream):
        self.stream, self.graphs = stream, {}

    def prepare(self, arm, n, short):
        graph, outputs = torch.cuda.CUDAGraph(), {}
        with torch.cuda.graph(graph, stream=self.stream), arm.chosen():
            for i in range(n):  # outputs stay alive, so that a peer's rotate as rapt's do
                outputs[i % SETS] = arm.calls[i % SETS]()
        self.graphs[arm.name] = (graph, outputs, n, short)
        for t in outputs.values():
            t.fill_(math.nan)
        graph.replay()
        torch.cuda.synchronize()
        return outputs

    def sample(self, arm):
        graph, _, n, short = self.graphs[arm.name]
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        repeats = 2 if short else 1
        if short:  # keeps the GPU busy while the timed replays are enqueued
            graph.replay()
        begin.record()
        for _ in range(repeats):
            graph.replay()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e3 / (n * repeats)


class HostClock:
    """The same interface where calls are done on return (--dry-run)."""
    timer = "host"

    def __init__(self):
        self.counts = {}

    def prepare(self, arm, n, short):
        self.counts[arm.name] = n
        with arm.chosen():
            return {i: arm.calls[i]() for i in range(SETS)}

    def sample(self, arm):
        n = self.counts[arm.name]
        with arm.chosen():
            start = time.perf_counter()
            for i in range(n):
                arm.calls[i % SETS]()
        return (time.perf_counter() - start) * 1e6 / n


def synchronize():
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def torch_call(data, causal):
    grouped = data[0].shape[1] != data[1].shape[1]
    return lambda: functional.scaled_dot_product_attention(*data, is_causal=causal, enable_gqa=grouped)


def make_arms(builds, peers, sets, dtype, causal, stream):
    handle = stream.cuda_stream if stream else None
    arms = []
    for name, build in builds.items():
        outs = [torch.full_like(data[0], math.nan) for data in sets]
        args = build.args(*sets[0], outs[0], dtype, causal)
        start = time.perf_counter()
        build.prepare(args, handle)
        cold_us = (time.perf_counter() - start) * 1e6
        problem, family, config = build.plan(args)
        signature = re.search(r"signature[= ]([0-9a-f]+)", "\n".join(build.explain(args)))
        arms.append(Arm(name, [build.bind(*data, out, dtype, causal, handle) for data, out in zip(sets, outs)],
                        problem=problem, family=family, config=config, cold_us=cold_us, version=build.version(),
                        signature=signature[1] if signature else ""))
    for name, backend in peers.items():
        arms.append(Arm(name, [torch_call(data, causal) for data in sets], backend, family="torch.scaled_dot_product_attention",
                        config=backend.name, version=torch.__version__))
    return arms


def check(arm, sets, judges):
    """Errors of the worst checked set. RuntimeError: the output is wrong, or the arm refuses the problem."""
    found = []
    for i, judge in judges.items():
        poison = torch.full_like(sets[i][0], math.nan)  # the block that a peer's output is likely to be allocated in
        del poison
        with arm.chosen():
            out = arm.calls[i]()
        found.append(judge(out))
    return max(found, key=lambda e: e["rel_rms"])


def admit(arms, sets, judges, clock, n, short):
    """The arms that are right, eager and as captured; [(arm, sentence)] of the others."""
    right, out = [], []
    for arm in arms:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # PyTorch warns why a backend refuses, then raises
                arm.error = check(arm, sets, judges)
                outputs = clock.prepare(arm, n, short)
            for i, judge in judges.items():
                judge(outputs[i])
            right.append(arm)
        except RuntimeError as error:
            out.append((arm, str(error).splitlines()[0]))
    return right, out


def time_host(arm, n):
    """(host, wall) microseconds per call of one eager block of n calls, few enough not to fill the launch queue."""
    with arm.chosen():
        arm.calls[0]()
        synchronize()
        start = time.perf_counter()
        for i in range(n):
            arm.calls[i % SETS]()
        enqueued = time.perf_counter()
        synchronize()
        return (enqueued - start) * 1e6 / n, (time.perf_counter() - start) * 1e6 / n


def measure(arms, clock, n, rounds):
    for _ in range(rounds):
        for arm in random.sample(arms, len(arms)):
            arm.device_us.append(clock.sample(arm))
    for _ in range(min(rounds, 7)):
        for arm in random.sample(arms, len(arms)):
            host, wall = time_host(arm, n)
            arm.host_us.append(host)
            arm.wall_us.append(wall)


def matmul_tflops(dtype, size=8192, calls=10):
    """Of a square matmul of random matrices."""
    a, b = (torch.randn(size, size, device="cuda", dtype=dtype) for _ in range(2))
    out = torch.empty_like(a)
    rates = []
    for _ in range(4):  # the first one warms up
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(calls):
            torch.matmul(a, b, out=out)
        end.record()
        end.synchronize()
        rates.append(2.0 * size**3 * calls / begin.elapsed_time(end) * 1e-9)
    return statistics.median(rates[1:])


def read_gbytes(gibibytes=4):
    """Of summing floats, streamed from memory."""
    data = torch.ones(gibibytes << 28, device="cuda")
    rates = []
    for _ in range(6):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        data.sum()
        end.record()
        end.synchronize()
        rates.append(data.numel() * 4 / begin.elapsed_time(end) * 1e-6)
    return statistics.median(rates[1:])


def driver_version():
    try:
        return subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True, text=True,
                              timeout=10, check=True).stdout.split()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return "unknown"


def nvrtc():
    """(path, version) of the NVRTC that this process has loaded by now; empty strings where none."""
    with open("/proc/self/maps") as maps:
        path = next((line.split()[-1] for line in maps if re.search(r"/libnvrtc\.so", line)), "")
    if not path:
        return "", ""
    major, minor = ctypes.c_int(), ctypes.c_int()
    ctypes.CDLL(path).nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return path, f"{major.value}.{minor.value}"


class Run:
    """What every row of a run shares."""

    def __init__(self, options):
        self.options, self.rows, self.failures = options, [], []
        self.builds = {"rapt": Rapt(options.library)}
        self.builds.update({f"rapt:{path}": Rapt(path) for path in options.also})
        self.peers = DRY_PEERS if options.dry_run else PEERS
        self.stream = None if options.dry_run else torch.cuda.Stream()
        self.gemm = {"f32": None, "bf16": None, "f16": None, "fp8": None}
        self.bandwidth, self.driver, self.nvrtc = 0.0, "", ""
        self.card = platform.machine() if options.dry_run else torch.cuda.get_device_name()

    def head(self):
        """The first lines: what ran on what. After the first kernel was prepared, so that NVRTC is loaded if it is used."""
        path, self.nvrtc = nvrtc()
        self.driver = "" if self.options.dry_run else driver_version()
        print(f"{self.card}, driver {self.driver or '-'}, PyTorch {torch.__version__}, NVRTC {self.nvrtc} "
              f"{path or '(not opened: no kernel was compiled)'}, seed {self.options.seed}", flush=True)

    def roof(self):
        if self.options.dry_run:
            self.gemm["f16"] = self.gemm["bf16"] = 0.1
            self.bandwidth = 1.0
        else:
            self.gemm["bf16"], self.gemm["f16"] = matmul_tflops(torch.bfloat16), matmul_tflops(torch.float16)
            self.bandwidth = read_gbytes()
            torch.cuda.empty_cache()
        print(f"matmul 8192^3: bf16 {self.gemm['bf16']:.0f}, f16 {self.gemm['f16']:.0f} TFLOP/s; read {self.bandwidth:.0f} GB/s")

    def problem(self, name, words):
        dtype = self.options.dtype
        n, causal = numbers(words), "causal" in words
        fastest_us = flops(n, causal) / self.gemm[dtype] * 1e-6
        calls = max(SETS, min(50, math.ceil(500 / fastest_us)))
        device = "cpu" if self.options.dry_run else "cuda"
        sets = [[torch.randn(s, device=device, dtype=TORCH[dtype]) for s in shapes(n)] for _ in range(SETS)]
        judges = {i: Judge(sets[i], dtype, causal, self.generator) for i in (0, SETS - 1)}
        clock = HostClock() if self.options.dry_run else GraphClock(self.stream)
        arms = make_arms(self.builds, self.peers, sets, dtype, causal, self.stream)
        right, out = admit(arms, sets, judges, clock, calls, calls * fastest_us < 2000)
        print(f"\n{name}  {dtype} {words}  ({calls} calls a graph, every {judges[0].step}. row checked)")
        for arm, sentence in out:
            refused = arm.backend is not None and "No available kernel" in sentence
            print(f"  {arm.name:<16}{'refused' if refused else 'WRONG, not timed'}: {sentence}")
            if not refused:
                self.failures.append(f"{name} {arm.name}: {sentence}")
        measure(right, clock, calls, self.options.rounds)
        self.report(n, causal, right, clock, calls, judges[0].step)

    def report(self, n, causal, arms, clock, calls, step):
        dtype = self.options.dtype
        operations, moved = flops(n, causal), bytes_moved(n, dtype)
        roof_us = max(operations / self.gemm[dtype] * 1e-6, moved / self.bandwidth * 1e-3)
        mine = next((arm for arm in arms if arm.name == "rapt"), None)
        print(f"  {'':<16}{'us':>9} {'quartiles':>19}{'TFLOP/s':>9}{'roof':>6}{'its time / rapt':>22}{'host us':>9}{'wall us':>9}  max_abs  rel_rms")
        for arm in arms:
            q1, median, q3 = quartiles(arm.device_us)
            ratio = ""
            if mine is not None and arm is not mine:
                r1, r2, r3 = quartiles([theirs / ours for theirs, ours in zip(arm.device_us, mine.device_us)])
                ratio = f"{r2:.3f} ({r1:.3f}-{r3:.3f})"
            print(f"  {arm.name:<16}{median:>9.2f} {f'({q1:.2f}-{q3:.2f})':>19}{operations / median * 1e-6:>9.1f}{roof_us / median:>6.0%}"
                  f"{ratio:>22}{statistics.median(arm.host_us):>9.2f}{statistics.median(arm.wall_us):>9.2f}  {arm.error['max_abs']:.1e}  {arm.error['rel_rms']:.1e}",
                  flush=True)
            facts = {"config": "", **arm.facts}
            problem = facts.pop("problem", None) or mine and mine.facts["problem"] or "unknown"
            for timer, us in ((clock.timer, arm.device_us), ("host", arm.wall_us)):
                self.rows.append(row(
                    problem, arm.name, [round(u, 3) for u in us], **facts, calls=calls, timer=timer, input_sets=SETS, err=arm.error, checked_rows=step,
                    flops=operations, bytes=moved, roof_share=roof_us / statistics.median(us), card=file_safe(self.card), driver=self.driver,
                    nvrtc=self.nvrtc if arm.backend is None else "", commit=self.options.commit, dirty=self.options.dirty,
                    command=shlex.join(sys.argv), gemm_tflops=self.gemm, bandwidth=self.bandwidth))
        if mine is not None:
            print(f"  {mine.facts['family']} {mine.facts['config']}; prepare {mine.facts['cold_us'] / 1e3:.1f} ms")

    def all(self, suite):
        torch.manual_seed(self.options.seed)
        random.seed(self.options.seed)
        self.generator = torch.Generator().manual_seed(self.options.seed)
        first = True
        for name, words in suite.items():
            try:
                if first:
                    self.warm(words)
                    self.head()
                    self.roof()
                    first = False
                self.problem(name, words)
            except RuntimeError as error:
                self.failures.append(f"{name}: {error}")
                print(f"\n{name}  FAILED: {error}", flush=True)
            synchronize()
            if not self.options.dry_run:
                torch.cuda.empty_cache()

    def warm(self, words):
        """Opens what rapt opens: driver, NVRTC, store. A refusal is told when the problem's turn comes."""
        device = "cpu" if self.options.dry_run else "cuda"
        q, k, v = (torch.zeros(s, device=device, dtype=TORCH[self.options.dtype]) for s in shapes(numbers(words)))
        for build in self.builds.values():
            with contextlib.suppress(RuntimeError):
                build.prepare(build.args(q, k, v, torch.empty_like(q), self.options.dtype, "causal" in words), self.stream and self.stream.cuda_stream)


def check_judge():
    """The check itself must refuse what is wrong: a dropped key, a diagonal off by one, rows swapped, NaN."""
    torch.manual_seed(3)
    data = [torch.randn(1, 2, 64, 32, dtype=torch.float16) for _ in range(3)]
    judge = Judge(data, "f16", True, torch.Generator().manual_seed(1))
    right = functional.scaled_dot_product_attention(*data, is_causal=True)
    judge(right)
    shifted = torch.ones(64, 64, dtype=torch.bool).tril(-1)
    shifted[0, 0] = True
    wrong = {"a key dropped": functional.scaled_dot_product_attention(*data, attn_mask=torch.ones(64, 64, dtype=torch.bool).tril() & (torch.arange(64) != 5)),
             "the diagonal shifted": functional.scaled_dot_product_attention(*data, attn_mask=shifted),
             "rows swapped": right.roll(1, 2), "NaN in a row": right.masked_fill(torch.arange(64)[:, None] == 17, math.nan)}
    for name, out in wrong.items():
        try:
            judge(out)
        except RuntimeError:
            continue
        sys.exit(f"the check accepts an output with {name}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", default="build/librapt.so")
    parser.add_argument("--also", nargs="*", default=[], metavar="LIBRARY", help="other builds of librapt.so, timed as further arms")
    parser.add_argument("--names", default="", metavar="NAME,...", help=f"problems (default: all of {', '.join(SUITE)})")
    parser.add_argument("--dtype", default="f16", choices=["f16", "bf16"])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 100000, help="of the inputs (default: the clock)")
    parser.add_argument("--output", metavar="FILE.jsonl")
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--dirty", action="store_true")
    parser.add_argument("--dry-run", action="store_true")
    options = parser.parse_args()
    suite = DRY_SUITE if options.dry_run else SUITE
    names = options.names.split(",") if options.names else list(suite)
    for name in names:
        if name not in suite:
            parser.error(f"--names {name}: no such problem; there are {', '.join(suite)}")
    if options.rounds < 2:
        parser.error(f"--rounds {options.rounds}: must be 2 or more")
    if not options.dry_run and not torch.cuda.is_available():
        sys.exit("no GPU for PyTorch here (--dry-run tries the script without one)")
    if options.dry_run:
        check_judge()
    began = time.perf_counter()
    run = Run(options)
    with torch.cuda.stream(run.stream) if run.stream else contextlib.nullcontext():
        run.all({name: suite[name] for name in names})
    print(f"\n{len(names)} problems in {time.perf_counter() - began:.0f} s, {datetime.datetime.now(datetime.timezone.utc):%Y-%m-%dT%H:%M:%SZ}")
    if options.output and run.rows:
        write_rows(options.output, run.rows)
    for failure in run.failures:
        print(f"FAILED  {failure}")
    return 1 if run.failures else 0


if __name__ == "__main__":
    sys.exit(main())
