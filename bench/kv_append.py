#!/usr/bin/env python3
"""Measures rapt.kv_append beside a copy kernel that moves the same number of bytes.

    python3 bench/kv_append.py                               # all problems and kinds, on a GPU
    python3 bench/kv_append.py --problems decode --kinds copy,rotary-token
    python3 bench/kv_append.py --limit 80 --decode-us 4      # for .ci and gates: exit status 1 if it is slower
    python3 bench/kv_append.py --device cpu --quick          # tests the script

Problems: prefill is one sequence with 8192 new tokens, decode is 64 sequences with one new token each. Both have 8 KV
heads of 128 channels in bf16 and paged caches with pages of 16 tokens in a random order. Kinds: copy (bf16 caches),
token and head (E4M3 caches with scales of that kind), and the same with rotary embedding of k and of 32 query heads.

Each call is first compared bit for bit with PyTorch's own operations, in eager and in captured calls, in memory that
held other bytes before. A wrong result is not timed. Then the script takes samples in rounds, in random order. A sample
is a replay of a CUDA graph, whose calls rotate through input sets that are together larger than the L2. The number of
bytes is that of the new tokens, queries and angles (read) plus the rows and scales (written). The copy reads half of
this number and writes the other half. There is one copy for each kind. Exit status: 0; 1 if a result was wrong or below
a limit; 3 if there is no such device.
"""

from __future__ import annotations

import argparse
import os
import sys
from datetime import datetime, timezone

import torch

import clocks
import rows as results
from implementation import Implementation, first_line
from inputs import E4M3_MAX
from quantize_bandwidth import Copy, Wrong, bandwidth_row, measure
from roof import card_name, commit_and_dirty

HEADS, QUERY_HEADS, DIM, PAGE, POSITIONS = 8, 32, 128, 16, 16384
PROBLEMS = {"prefill": (1, 8192, 100), "decode": (64, 1, 1000)}  # sequences, new tokens of each, tokens before
QUICK = {"prefill": (1, 64, 10), "decode": (8, 1, 40)}
KINDS = {  # scales, rotation
    "copy": (None, False),
    "token": ("token", False),
    "head": ("head", False),
    "rotary-copy": (None, True),
    "rotary-token": ("token", True),
    "rotary-head": ("head", True),
}


class Call:
    """The tensors of one call."""

    def __init__(self, sizes, kind: str, device: str, generator: torch.Generator):
        self.batch, self.new, self.old = sizes
        scales, rotary = KINDS[kind]
        capacity = -(-(self.old + self.new) // PAGE)
        pages = self.batch * capacity

        def random(heads: int) -> torch.Tensor:
            """[batch, heads, seqlen, dim] in the memory order of projections: batch, seqlen, heads, dim."""
            shape = (self.batch, self.new, heads, DIM)
            return torch.randn(shape, generator=generator, device=device).bfloat16().transpose(1, 2)

        self.k, self.v, self.q = random(HEADS), random(HEADS), random(QUERY_HEADS) if rotary else None
        dtype = torch.bfloat16 if scales is None else torch.float8_e4m3fn
        self.caches = [torch.zeros(pages, PAGE, HEADS, DIM, device=device).to(dtype).transpose(1, 2) for _ in "kv"]
        order = torch.randperm(pages, generator=generator, device=device)
        self.table = order.view(self.batch, capacity).int()
        self.used = torch.full((self.batch,), self.old, dtype=torch.int32, device=device)
        self.descales: list = [None, None]
        if scales == "head":
            self.descales = [0.01 + torch.rand(self.batch, HEADS, generator=generator, device=device) for _ in "kv"]
        elif scales == "token":
            self.descales = [torch.zeros(pages, PAGE, HEADS, device=device) for _ in "kv"]
        self.q_out = None if self.q is None else torch.empty_like(self.q)

    def moved(self) -> int:
        """Bytes that the call reads and writes."""
        tokens = self.batch * self.new
        scale_bytes = 0 if self.descales[0] is None else 2 * 4 * tokens * HEADS
        angles = 0 if self.q is None else tokens * DIM * 4
        queries = 0 if self.q is None else 2 * self.q.nbytes
        cached = 2 * tokens * HEADS * DIM * self.caches[0].element_size()
        return self.k.nbytes + self.v.nbytes + cached + scale_bytes + angles + queries

    def poison(self) -> None:
        for tensor in (*self.caches, self.q_out):
            if tensor is not None:
                tensor.view(torch.uint8).fill_(0xA5)

    def rows(self, cache: torch.Tensor) -> torch.Tensor:
        """The written rows of a cache [pages, heads, page, ...] as [batch, heads, new, ...]."""
        position = self.old + torch.arange(self.new, device=cache.device)
        if cache.element_size() == 1:  # some PyTorch versions cannot index FP8
            cache = cache.view(torch.uint8)
        return cache[self.table[:, position // PAGE].long(), :, position % PAGE].transpose(1, 2)


class Appender:
    """One kind of call, as an implementation for clocks.py."""

    def __init__(self, rapt, problem: str, kind: str, sizes, count: int, device: str, seed: int):
        generator = torch.Generator(device).manual_seed(seed)
        self.rapt, self.kind, self.name = rapt, kind, f"rapt-{problem}-{kind}"
        self.scales, self.rotary = KINDS[kind]
        self.sets = [Call(sizes, kind, device, generator) for _ in range(count)]
        self.tables = rapt.rotary_tables(POSITIONS, DIM, like=self.sets[0].k)
        self.moved = self.sets[0].moved()

    def scope(self):
        return Implementation.scope(self)

    def calls(self) -> list:
        return [self.call(one) for one in self.sets]

    def call(self, one: Call):
        options: dict = {"seqused_k": one.used, "block_table": one.table}
        if self.rotary:
            options.update(cos=self.tables[0], sin=self.tables[1], q=one.q, q_out=one.q_out)
        if self.scales is not None:
            options.update(k_scales=self.scales, v_scales=self.scales)
            options.update(k_descale=one.descales[0], v_descale=one.descales[1])
        append = self.rapt.kv_append

        def call() -> None:
            append(one.k, one.v, *one.caches, **options)

        return call

    def poison(self) -> None:
        """Overwrites the outputs. So values that are found there later were written after this call."""
        for one in self.sets:
            one.poison()

    def expect_same(self) -> None:
        self.compare(self.sets[0])

    def check(self) -> dict[str, float]:
        self.poison()
        self.calls()[0]()
        self.compare(self.sets[0])
        return {"max_abs": 0.0, "mean_abs": 0.0, "rel_rms": 0.0}  # the bits are equal

    def compare(self, one: Call) -> None:
        """Raises if a written row differs from that of PyTorch's operations."""
        k = self.rotated(one, one.k) if self.rotary else one.k.float()
        for name, x, cache, descale in zip("kv", (k, one.v.float()), one.caches, one.descales):
            self.expect(f"{name}_cache", one.rows(cache), self.stored(one, x, descale, cache.dtype))
        if self.rotary:
            self.expect("q_out", one.q_out, self.rotated(one, one.q).bfloat16())

    def expect(self, name: str, found: torch.Tensor, right: torch.Tensor) -> None:
        if not torch.equal(found.contiguous().view(torch.uint8), right.contiguous().view(torch.uint8)):
            raise Wrong(f"{self.name}: {name} differs from PyTorch's")

    def rotated(self, one: Call, x: torch.Tensor) -> torch.Tensor:
        cos, sin = (table[one.old : one.old + one.new] for table in self.tables)
        first, second = x.float().chunk(2, 3)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], 3)

    def stored(self, one: Call, x: torch.Tensor, descale, dtype: torch.dtype) -> torch.Tensor:
        if self.scales is None:
            return x.to(dtype)
        if self.scales == "head":
            factor = descale[:, :, None, None]
        else:
            largest = torch.full((1,), E4M3_MAX, dtype=torch.float32, device=x.device)
            factor = x.abs().amax(3, keepdim=True) / largest
            places = descale.transpose(1, 2)[..., None]  # [pages, heads, page, 1]
            self.expect("descale", one.rows(places), factor)
        return (x * (1.0 / factor)).clamp(-E4M3_MAX, E4M3_MAX).to(dtype)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--problems", default="", metavar="NAME,...", help=f"of {', '.join(PROBLEMS)}")
    parser.add_argument("--kinds", default="", metavar="NAME,...", help=f"of {', '.join(KINDS)}")
    parser.add_argument("--rounds", type=int, help="default 15; 3 with --quick")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--limit", type=float, metavar="PERCENT", help="prefill: minimum share of the copy's rate")
    parser.add_argument("--decode-us", type=float, metavar="US", help="decode: maximum median time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", metavar="FILE.jsonl")
    parser.add_argument("--save", action="store_true", help="results/<card>/<UTC>-kv-append.jsonl")
    parser.add_argument("--commit", help="default: from git")
    parser.add_argument("--dirty", action="store_true", help="with --commit: the tree had uncommitted changes")
    options = parser.parse_args()
    for name, known in (("problems", PROBLEMS), ("kinds", KINDS)):
        chosen = getattr(options, name).split(",") if getattr(options, name) else list(known)
        for one in chosen:
            if one not in known:
                parser.error(f"--{name} {one}: must be one of {', '.join(known)}")
        setattr(options, name, chosen)
    options.rounds = options.rounds or (3 if options.quick else 15)
    if options.commit is None:
        options.commit, options.dirty = commit_and_dirty()
    return options


def report(options, problem: str, line: str, bounds, timer: str, sets: int) -> tuple[list[dict], list[str]]:
    """Prints a line for each implementation; returns (rows, implementations below a limit)."""
    copies = {bound.name: bound for bound in bounds if isinstance(bound.impl, Copy)}
    found, failures = [], []
    for bound in bounds:
        if bound.name in copies:
            continue
        copy = copies[f"copy-{bound.impl.kind}"]
        copy_us = results.quartiles(copy.samples)[1]
        rate = copy.impl.moved / copy_us  # bytes per microsecond
        for one, name in ((bound, bound.impl.kind), (copy, f"copy of {bound.impl.kind}")):
            made = bandwidth_row(
                options,
                line,
                one,
                rate=rate,
                timer=timer,
                sets=sets,
                name=name,
                suite="kv-append",
                err={"max_abs": 0.0, "mean_abs": 0.0, "rel_rms": 0.0},
                family="" if one is copy else "kv_append",
                config=f"problem={problem}",
                layout="bshd",
            )
            found.append(made)
        made = found[-2]
        share, spread_us = 100 * made["roof_share"], f"({made['q1']:.2f}-{made['q3']:.2f})"
        print(
            f"  {bound.name:<28}{made['median']:>9.2f} us {spread_us:>18}{made['gbytes']:>8.0f} GB/s"
            f"{share:>7.1f}% of the copy ({copy_us:.2f} us)"
        )
        if problem == "prefill" and options.limit is not None and share < options.limit:
            failures.append(f"{bound.name}: {share:.1f}% of the copy's rate; the limit is {options.limit:g}%")
        if problem == "decode" and options.decode_us is not None and made["median"] > options.decode_us:
            failures.append(f"{bound.name}: {made['median']:.2f} us; the limit is {options.decode_us:g} us")
    return found, failures


def measure_problem(options, rapt, problem: str) -> tuple[list[dict], list[str]]:
    sizes = (QUICK if options.quick else PROBLEMS)[problem]
    gpu = options.device == "cuda"
    l2 = torch.cuda.get_device_properties(0).L2_cache_size if gpu else 0
    bytes_each = 2 * sizes[0] * sizes[1] * HEADS * DIM * 2
    count = max(2, min(-(-2 * l2 // bytes_each) + 1, 64))
    impls, failures = [], []
    for kind in options.kinds:
        try:
            impl = Appender(rapt, problem, kind, sizes, count, options.device, options.seed)
            impl.check()
        except (Wrong, rapt.Error) as error:
            failures.append(str(error) if isinstance(error, Wrong) else f"rapt-{problem}-{kind}: {first_line(error)}")
            continue
        copy = Copy(impl.moved, count, options.device)
        copy.name = f"copy-{kind}"
        impls += [impl, copy]
    if not impls:
        return [], failures
    clocks.synchronize()
    bounds, timer = measure(options, impls)
    batch, new, old = sizes
    line = f"bf16 b{batch} h{QUERY_HEADS}:{HEADS} q{new} k{old + new} d{DIM} causal page={PAGE}"
    print(f"{card_name(options.device)}, {problem}: {line}, {count} sets, commit {options.commit}")
    found, slow = report(options, problem, line, bounds, timer, count)
    return found, failures + slow


def main() -> int:
    options = arguments()
    gpu = options.device == "cuda"
    if gpu and not torch.cuda.is_available():
        print("PyTorch finds no GPU (use --device cpu --quick to test the script)", file=sys.stderr)
        return 3
    results.load_schema()  # raises before anything is measured
    import rapt

    options.version = rapt.__version__
    found, failures = [], []
    with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()) if gpu else torch.autograd.set_grad_enabled(False):
        for problem in options.problems:
            rows, wrong = measure_problem(options, rapt, problem)
            found += rows
            failures += wrong
    path = options.output
    if options.save and path is None and found:
        root = os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "results", found[0]["card"])
        stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
        path = os.path.normpath(os.path.join(root, f"{stamp}-kv-append.jsonl"))
    if path and found:
        results.write(path, found)
        print(f"written: {path}")
    for failure in failures:
        print(f"FAILED  {failure}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
