"""Clocks: device time of graph replays, host time of eager loops, and time of calls on the CPU.

Called by peers.py. First a clock prepares an implementation's calls once, and returns their outputs, so that the judge
can check them. Then it takes samples. Preparation is separate, so the implementations can be sampled in random order.
"""

from __future__ import annotations

import math
import statistics
import time

import torch

import gpu_clocks
from rows import quartiles as quartiles_of

GRAPH_US = 500.0  # a graph has as many calls as take this time: at most MOST_CALLS, at least one for each input set
MOST_CALLS = 50
SHORT_US = 2000.0  # if samples are shorter, an extra replay keeps the GPU busy while the timed ones are enqueued
PAUSE_S = 0.01  # on the CPU: a pause, so that the threads of other implementations go to sleep


class Bound:
    """One implementation bound to one problem: calls[i]() enqueues set i and returns its raw output."""

    def __init__(self, impl, calls: list, facts: dict):
        self.impl, self.calls, self.facts = impl, calls, facts
        self.count = 1  # calls per sample
        self.samples: list[float] = []  # microseconds per call
        self.rounds: list[float] = []  # median of the samples of each round; the rounds of implementations correspond
        self.host_us: list[float] = []
        self.wall_us: list[float] = []
        self.error: dict = {}
        self.out_of_memory = False  # True: an eager block did not fit in memory, so the implementation is not compared

    @property
    def name(self) -> str:
        return self.impl.name


def calls_for(call_us: float, sets: int) -> int:
    """The number of calls in a sample. If possible it is a multiple of the number of input sets, so that each set is
    used equally often.
    """
    if call_us * sets > 100 * GRAPH_US:
        return 1 if call_us > 20 * GRAPH_US else 2
    wanted = min(max(MOST_CALLS, sets), max(1, math.ceil(GRAPH_US / max(call_us, 0.01))))
    return max(sets, wanted // sets * sets)


def time_once(bound: Bound) -> float:
    """Microseconds from the start of one call to the end of its work, after one warm-up call."""
    with bound.impl.scope():
        bound.calls[0]()
        synchronize()
        start = time.perf_counter()
        bound.calls[-1]()
        synchronize()
    return (time.perf_counter() - start) * 1e6


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


class GraphClock:
    """Device time of an implementation's calls, measured with replays of a captured graph. Uses the stream that was
    current when the clock was created.
    """

    timer = "graph"

    def __init__(self, stream: torch.cuda.Stream):
        self.stream, self.graphs = stream, {}

    def prepare(self, bound: Bound, call_us: float) -> dict:
        sets = len(bound.calls)
        bound.count = calls_for(call_us, sets)
        graph, outputs = torch.cuda.CUDAGraph(), {}
        with torch.cuda.graph(graph, stream=self.stream), bound.impl.scope():
            # Outputs stay alive during the capture. So calls that allocate their output use different memory, too.
            for i in range(bound.count):
                outputs[i % sets] = bound.calls[i % sets]()
        self.graphs[bound.name] = graph, outputs, bound.count * call_us < SHORT_US
        for out in outputs.values():
            for tensor in out if isinstance(out, (tuple, list)) else (out,):
                if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                    tensor.fill_(math.nan)
        graph.replay()
        synchronize()
        return outputs

    def sample(self, bound: Bound) -> list[float]:
        graph, _, short = self.graphs[bound.name]
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        repeats = 2 if short else 1
        if short:
            graph.replay()
        begin.record()
        for _ in range(repeats):
            graph.replay()
        end.record()
        end.synchronize()
        return [begin.elapsed_time(end) * 1e3 / (bound.count * repeats)]

    def close(self) -> None:
        self.graphs.clear()


class HostClock:
    """Time of calls on the CPU, which finish before they return. A sample is one call. A round takes `seconds` for each
    implementation.
    """

    timer = "host"

    def __init__(self, seconds: float):
        self.seconds = seconds

    def prepare(self, bound: Bound, call_us: float) -> dict:
        with bound.impl.scope():
            return {i: call() for i, call in enumerate(bound.calls)}

    def sample(self, bound: Bound) -> list[float]:
        time.sleep(PAUSE_S)
        calls, done, us = bound.calls, len(bound.samples), []
        with bound.impl.scope():
            calls[0]()
            end = time.perf_counter() + self.seconds
            while time.perf_counter() < end or len(us) < 2:
                start = time.perf_counter()
                calls[(done + len(us)) % len(calls)]()
                us.append((time.perf_counter() - start) * 1e6)
        return us

    def close(self) -> None:
        pass


def time_host(bound: Bound) -> None:
    """Adds (host, wall) microseconds per call for one eager block, which is too short to fill the launch queue."""
    calls, n = bound.calls, max(len(bound.calls), min(MOST_CALLS, bound.count))
    with bound.impl.scope():
        calls[0]()
        synchronize()
        start = time.perf_counter()
        for i in range(n):
            calls[i % len(calls)]()
        enqueued = time.perf_counter()
        synchronize()
        done = time.perf_counter()
    bound.host_us.append((enqueued - start) * 1e6 / n)
    bound.wall_us.append((done - start) * 1e6 / n)


def measure(bounds: list[Bound], clock, rounds: int, shuffle, slow_us: float = 20000.0) -> None:
    """Takes samples in rounds, in a new random order in each round. After round 3, skips implementations that are
    slower than slow_us.
    """
    for index in range(rounds):
        for bound in shuffle(bounds):
            if index >= 3 and statistics.median(bound.rounds) * bound.count > slow_us:
                continue
            us = clock.sample(bound)
            bound.samples += us
            bound.rounds.append(statistics.median(us))
    if clock.timer == "graph":
        for _ in range(min(rounds, 7)):
            for bound in shuffle(bounds):
                if bound.out_of_memory or (bound.host_us and bound.rounds[0] * bound.count > slow_us):
                    continue
                try:
                    time_host(bound)
                except torch.OutOfMemoryError:
                    bound.out_of_memory = True


MOST_SPREAD, MOST_ATTEMPTS = 0.03, 3


def largest_spread(bounds: list[Bound]) -> float:
    """The largest spread, (q3 - q1) / median, of all implementations."""
    quartiles = [quartiles_of(bound.samples) for bound in bounds]
    return max((q3 - q1) / median if median else 0.0 for q1, median, q3 in quartiles)


def measure_steadily(bounds: list[Bound], clock, rounds: int, shuffle, read_clocks) -> dict:
    """Like measure(), but measures all implementations again while the spread exceeds MOST_SPREAD. It makes at most
    MOST_ATTEMPTS attempts, and keeps the one with the smallest spread. Returns the fields `attempts` and `clocks`.
    """
    names = ("samples", "rounds", "host_us", "wall_us")
    best, best_spread, attempts = None, math.inf, 0
    while attempts < MOST_ATTEMPTS and best_spread > MOST_SPREAD:
        for bound in bounds:
            for name in names:
                setattr(bound, name, [])
        clock.sample(bounds[0])  # otherwise the GPU would be idle, and idle GPUs have other clocks
        before = read_clocks()
        measure(bounds, clock, rounds, shuffle)
        found = largest_spread(bounds)
        attempts += 1
        if found < best_spread:
            best_spread = found
            best = [[getattr(bound, name) for name in names] for bound in bounds], before, read_clocks()
    for bound, kept in zip(bounds, best[0]):
        for name, value in zip(names, kept):
            setattr(bound, name, value)
    return {"attempts": attempts, "clocks": gpu_clocks.field(*best[1:])}
