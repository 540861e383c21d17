#!/usr/bin/env python3
"""Times rapt's CPU backend beside PyTorch's scaled_dot_product_attention, in one process on one machine.

    python3 bench/cpu_peers.py --library build/librapt.so [--threads 1,16] [--output FILE.jsonl]

Both get the same contiguous [batch, heads, seqlen, dim] inputs, several sets in rotation. Arms alternate in rounds, in
random order, each after a pause that lets the other's threads go to sleep. Reported: median and quartiles over all
calls, the ratio (median over rounds of the two arms' medians of that round, so that a neighbour's load meets both), and
both arms' error against float64. Rows follow the results schema (docs/lab.md). PyTorch computes causal
masks top-left, which is the same as bottom-right for the square problems here.
"""
import argparse
import math
import os
import platform
import random
import re
import shlex
import statistics
import sys
import time

import torch
import torch.nn.functional as functional

from common import BYTES, TORCH, Rapt, bytes_moved, errors, file_safe, flops, numbers, reference, row, shapes, write_rows

# (name, dtype, peer's dtype, problem). f16 is the peer of bf16 where PyTorch's bf16 uses AMX; both are shown.
SUITE = [
    ("mission", "f32", "f32", "b1 h8 q512 k512 d64"),
    ("b2-h12", "f32", "f32", "b2 h12 q512 k512 d64"),
    ("q2048", "f32", "f32", "b1 h8 q2048 k2048 d64"),
    ("mission-causal", "f32", "f32", "b1 h8 q512 k512 d64 causal"),
    ("q1024-d128-causal", "f32", "f32", "b1 h8 q1024 k1024 d128 causal"),
    ("decode", "f32", "f32", "b1 h32 q1 k4096 d128"),
    ("mission", "bf16", "f16", "b1 h8 q512 k512 d64"),
    ("b2-h12", "bf16", "f16", "b2 h12 q512 k512 d64"),
    ("q2048", "bf16", "f16", "b1 h8 q2048 k2048 d64"),
    ("mission", "bf16", "bf16", "b1 h8 q512 k512 d64"),
    ("q2048", "bf16", "bf16", "b1 h8 q2048 k2048 d64"),
    ("mission", "f16", "f16", "b1 h8 q512 k512 d64"),
    ("decode", "bf16", "bf16", "b1 h32 q1 k4096 d128"),
]


def read_bandwidth(threads):
    """GB/s of summing 1 GB, all threads: the streaming-read roof of this run."""
    data = torch.ones(1 << 28, dtype=torch.float32)
    best = math.inf
    for _ in range(5):
        start = time.perf_counter()
        data.sum()
        best = min(best, time.perf_counter() - start)
    return data.numel() * 4 / best * 1e-9


def time_rounds(arms, seconds, rounds):
    """({arm: all microseconds}, {arm: median of each round}). Each round runs every arm for about `seconds`, in random order."""
    samples = {name: [] for name in arms}
    medians = {name: [] for name in arms}
    for _ in range(rounds):
        for name in random.sample(list(arms), len(arms)):
            time.sleep(0.01)
            calls = arms[name]
            calls[0]()
            us = []
            end = time.perf_counter() + seconds
            while time.perf_counter() < end or len(us) < 2:
                start = time.perf_counter()
                calls[(len(samples[name]) + len(us)) % len(calls)]()
                us.append((time.perf_counter() - start) * 1e6)
            samples[name] += us
            medians[name].append(statistics.median(us))
    return samples, medians


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True)
    parser.add_argument("--also", nargs="*", default=[], metavar="LIBRARY", help="other builds of librapt.so, timed as further arms")
    parser.add_argument("--only", default="", metavar="REGEX", help="problems whose 'name dtype problem' matches")
    parser.add_argument("--threads", default="1,%d" % len(os.sched_getaffinity(0)))
    parser.add_argument("--seconds", type=float, default=0.05, help="time per arm and round")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--output")
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--dirty", action="store_true")
    options = parser.parse_args()
    cpu = next((l.split(":", 1)[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name")), platform.machine())
    flags = next((l for l in open("/proc/cpuinfo") if l.startswith("flags")), "")
    amx = "amx_bf16" in flags
    print(f"{cpu}, {len(os.sched_getaffinity(0))} CPUs, AMX {'yes' if amx else 'no'}, PyTorch {torch.__version__}, commit {options.commit}")
    torch.manual_seed(1)
    random.seed(1)
    rows = []
    for threads in [int(t) for t in options.threads.split(",")]:
        torch.set_num_threads(threads)
        bandwidth = read_bandwidth(threads)
        print(f"\n{threads} threads, streaming read {bandwidth:.1f} GB/s")
        print(f"{'problem':<20}{'rapt':>6}{'peer':>6}{'rapt us':>11}{'spread':>8}{'torch us':>11}{'ratio (quartiles)':>20}{'GFLOP/s':>9}{'GB/s':>7}  rel_rms rapt, torch")
        builds = {"rapt": Rapt(options.library, threads)}
        builds.update({os.path.basename(path): Rapt(path, threads) for path in options.also})
        for name, dtype, peer_dtype, problem in SUITE:
            if not re.search(options.only, f"{name} {dtype} {problem}"):
                continue
            n = numbers(problem)
            causal = "causal" in problem
            per_set = sum(math.prod(s) for s in shapes(n)) * 4
            sets = [[torch.randn(s) for s in shapes(n)] for _ in range(max(2, min(8, (256 << 20) // per_set)))]
            arms = {arm: [] for arm in [*builds, "torch"]}
            error = {}
            for i, data in enumerate(sets):
                mine = [t.to(TORCH[dtype]) for t in data]
                theirs = [t.to(TORCH[peer_dtype]) for t in data]
                out = torch.full_like(mine[0], math.nan)
                for arm, build in builds.items():
                    arms[arm].append(build.bind(*mine, out, dtype, causal))
                arms["torch"].append(lambda t=theirs: functional.scaled_dot_product_attention(*t, is_causal=causal))
                if i == 0:
                    for arm in builds:
                        out.fill_(math.nan)
                        arms[arm][0]()
                        error[arm] = errors(out, reference(*mine, causal))
                    error["torch"] = errors(arms["torch"][0](), reference(*theirs, causal))
                sets[i] = (mine, theirs, out)
            samples, rounds = time_rounds(arms, options.seconds, options.rounds)
            ratios = sorted(theirs / mine for mine, theirs in zip(rounds["rapt"], rounds["torch"]))
            median = {arm: statistics.median(us) for arm, us in samples.items()}
            quartiles = {arm: statistics.quantiles(us, n=4) for arm, us in samples.items()}
            operations = flops(n, causal)
            kv_bytes = 2.0 * n["b"] * n["h"] * n["k"] * n["d"] * BYTES[dtype]
            spread = (quartiles["rapt"][2] - quartiles["rapt"][0]) / median["rapt"]
            print(f"{name:<20}{dtype:>6}{peer_dtype:>6}{median['rapt']:>11.1f}{spread:>8.1%}{median['torch']:>11.1f}"
                  f"{statistics.median(ratios):>8.2f} ({ratios[len(ratios) // 4]:.2f}-{ratios[-1 - len(ratios) // 4]:.2f}){operations / median['rapt'] * 1e-3:>9.1f}{kv_bytes / median['rapt'] * 1e-3:>7.1f}"
                  f"  {error['rapt']['rel_rms']:.1e}, {error['torch']['rel_rms']:.1e}", flush=True)
            for arm in options.also and builds:
                print(f"    {arm:<24}{median[arm]:>11.1f} us")
            for arm in arms:
                peer = arm == "torch"
                arm_dtype = peer_dtype if peer else dtype
                rows.append(row(
                    f"{arm_dtype} {problem}", arm, [round(u, 1) for u in samples[arm]], config=f"threads={threads}",
                    family="torch.scaled_dot_product_attention" if peer else "attention_cpu", input_sets=len(sets), err=error[arm], checked_rows=1,
                    flops=operations, bytes=bytes_moved(n, arm_dtype), card=file_safe(cpu), threads=threads,
                    version=torch.__version__ if peer else builds[arm].version(), commit=options.commit, dirty=options.dirty,
                    command=shlex.join(sys.argv), bandwidth=bandwidth))
    if options.output:
        write_rows(options.output, rows)


if __name__ == "__main__":
    main()
