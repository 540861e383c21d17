#!/usr/bin/env python3
"""Times rapt.quantize and a copy that reads and writes the same number of bytes, to compare with the memory bandwidth.

    python3 bench/quantize_bandwidth.py [--limit 80] [--save]        # one NVIDIA GPU, 256 MiB of float16
    python3 bench/quantize_bandwidth.py --device cpu --quick         # tests the script

For every kind of scales, the script first compares the codes bit for bit with those of PyTorch's own operations, both
in eager and in captured calls, in memory that held other bytes before. A wrong result is not timed. Then it takes
samples in rounds, in random order. A sample is a replay of a CUDA graph, whose calls rotate through input sets that are
larger than the L2. The number of bytes is that of the input (read once) plus codes and scales (written once). Scales
for more rows than a tile (head, tensor, channel) and means must read the input twice, so their percentage is lower. The
copy reads half of this number of bytes and writes the other half. Exit status: 0; 1 if codes were wrong, or if a kind
that reads its input once is below --limit per cent of the copy; 3 if there is no such device.
"""

from __future__ import annotations

import argparse
import datetime
import os
import random
import shlex
import sys

import torch

import clocks
import rows as results
from implementation import Implementation, first_line
from inputs import E4M3_MAX
from roof import NOTHING, card_name, commit_and_dirty, driver_version, file_safe, nvrtc_version

SHAPE = {"cuda": (4, 32, 8192, 128), "cpu": (1, 4, 4096, 128)}  # 256 MiB, 4 MiB
ONCE = ("token", "block64", "block128", "supplied")
KINDS = {  # name: options of rapt.quantize
    "token": {"scales": "token"},
    "block64": {"scales": "block64"},
    "block128": {"scales": "block128"},
    "supplied": {"scales": "head"},
    "head": {"scales": "head"},
    "tensor": {"scales": "tensor"},
    "channel": {"scales": "channel"},
    "block64-hadamard": {"scales": "block64", "hadamard": True},
    "block64-smooth": {"scales": "block64", "smooth": True},
    "block64-hadamard-smooth": {"scales": "block64", "hadamard": True, "smooth": True},
}


def factors(x: torch.Tensor, scales: str) -> torch.Tensor:
    """The documented scales of rapt.quantize: largest magnitude / 448, at least 2^-126, and 1 if all values are 0. The
    divisor is a tensor. If it were a Python number, PyTorch would multiply by its inverse on a GPU, which can round
    differently.
    """
    size = x.abs()
    if scales == "tensor":
        amax = size.amax().reshape(1)
    elif scales == "head":
        amax = size.amax((2, 3))
    elif scales == "channel":
        amax = size.amax(2)
    elif scales == "token":
        amax = size.amax(3)
    else:
        amax = torch.stack([part.amax((2, 3)) for part in size.split(int(scales[5:]), 2)], 2)
    largest = torch.full((1,), E4M3_MAX, dtype=torch.float32, device=x.device)
    found = (amax.float() / largest).clamp(min=2.0**-126)
    return torch.where(amax == 0, torch.ones_like(found), found)


def spread(descale: torch.Tensor, scales: str, shape) -> torch.Tensor:
    """descale in a shape that broadcasts to [batch, heads, seqlen, dim]."""
    if scales == "tensor":
        return descale.view(1, 1, 1, 1)
    if scales == "channel":
        return descale[:, :, None, :]
    if scales == "head":
        return descale[:, :, None, None]
    if scales.startswith("block"):
        descale = descale.repeat_interleave(int(scales[5:]), 2)[:, :, : shape[2]]
    return descale[..., None]


class Wrong(RuntimeError):
    """Raised if codes differ from those of PyTorch's operations."""


class Quantizer:
    """One kind of scales, as an implementation for clocks.py."""

    def __init__(self, rapt, kind: str, sets: list[torch.Tensor]):
        self.rapt, self.kind, self.options, self.sets = rapt, kind, dict(KINDS[kind]), sets
        self.name = f"rapt-{kind}"
        self.supplied = [factors(x, "head") for x in sets] if kind == "supplied" else [None] * len(sets)
        self.outs = [rapt.quantize(x, **self.options) for x in sets]
        self.moved = sets[0].nbytes + sum(one.nbytes for one in self.outs[0][:3] if one is not None)

    def scope(self):
        return Implementation.scope(self)

    def calls(self) -> list:
        return [self.call(*one) for one in zip(self.sets, self.supplied, self.outs)]

    def call(self, x, descale, out):
        quantize, options = self.rapt.quantize, self.options
        into = out if descale is None else out.codes

        def call() -> None:
            quantize(x, descale=descale, out=into, **options)

        return call

    def poison(self) -> None:
        """Overwrites the outputs. So values that are found there later were written after this call."""
        for out in self.outs:
            out.codes.view(torch.uint8).fill_(0xA5)
            if self.kind != "supplied":
                out.descale.fill_(-1.0)

    def expect_same(self) -> None:
        if not torch.equal(self.outs[0].codes.view(torch.uint8), self.right):
            raise Wrong(f"{self.name}: codes of a captured call differ from those of an eager one")

    def check(self) -> dict[str, float]:
        """Checks the codes, and returns the error of the dequantised values."""
        x, out, scales = self.sets[0], self.outs[0], self.options["scales"]
        self.poison()
        self.calls()[0]()
        self.right = out.codes.view(torch.uint8).clone()
        if len(self.options) > 1:  # if rotated or smoothed, no PyTorch operation gives the same bits
            simulated = self.rapt.fake_quantize(x, **self.options)
            return error_of(simulated, x)
        descale = factors(x, scales)
        if self.kind != "supplied" and not torch.equal(out.descale, descale):
            raise Wrong(f"{self.name}: factors differ from PyTorch's")
        factor = spread(descale, scales, x.shape)
        for b in range(x.shape[0]):  # one batch entry at a time, because float32 takes twice the memory of the input
            own = factor[b % factor.shape[0]]
            codes = (x[b].float() * (1.0 / own)).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
            if not torch.equal(codes.view(torch.uint8), out.codes[b].view(torch.uint8)):
                raise Wrong(f"{self.name}: codes differ from PyTorch's")
        return error_of(out.codes[:1].float() * factor[:1], x)


def error_of(found: torch.Tensor, x: torch.Tensor) -> dict[str, float]:
    off, norm = (found[:1].float() - x[:1].float()), x[:1].float().square().mean().sqrt()
    relative = (off.square().mean().sqrt() / norm).item()
    if not relative < 0.05:  # E4M3 has 3 bits of mantissa
        raise Wrong(f"the dequantised values differ by {relative:.2g} of the input")
    return {"max_abs": off.abs().max().item(), "mean_abs": off.abs().mean().item(), "rel_rms": relative}


class Copy:
    """A device copy of half of `moved` bytes: it reads and writes `moved` bytes in total."""

    name = "copy"

    def __init__(self, moved: int, count: int, device: str):
        self.moved = moved // 2 * 2
        self.pairs = [
            [torch.zeros(moved // 2, dtype=torch.uint8, device=device) for _ in range(2)] for _ in range(count)
        ]

    def scope(self):
        return Implementation.scope(self)

    def calls(self) -> list:
        return [self.call(*pair) for pair in self.pairs]

    def call(self, source, target):
        return lambda: target.copy_(source)

    def poison(self) -> None:
        for source, target in self.pairs:
            source.random_()
            target.zero_()

    def expect_same(self) -> None:
        if not all(torch.equal(*pair) for pair in self.pairs[:1]):
            raise Wrong("copy: the target differs from the source")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--kinds", default="", metavar="NAME,...", help=f"of {', '.join(KINDS)}")
    parser.add_argument("--dtype", choices=["f16", "bf16", "f32"], default="f16")
    parser.add_argument("--rounds", type=int, help="default 15; 3 with --quick")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument(
        "--limit", type=float, metavar="PERCENT", help="minimum share of the copy's rate, for " + ", ".join(ONCE)
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", metavar="FILE.jsonl")
    parser.add_argument("--save", action="store_true", help="results/<card>/<UTC>-quantize-bandwidth.jsonl")
    parser.add_argument("--commit", help="default: from git")
    parser.add_argument("--dirty", action="store_true", help="with --commit: the tree had uncommitted changes")
    options = parser.parse_args()
    options.kinds = options.kinds.split(",") if options.kinds else list(KINDS)
    for kind in options.kinds:
        if kind not in KINDS:
            parser.error(f"--kinds {kind}: must be one of {', '.join(KINDS)}")
    options.rounds = options.rounds or (3 if options.quick else 15)
    if options.commit is None:
        options.commit, options.dirty = commit_and_dirty()
    return options


def make_implementations(rapt, options, sets) -> tuple[list, dict, list[str]]:
    """Returns (correct implementations, their errors, failures)."""
    impls, errors, failures = [], {}, []
    for kind in options.kinds:
        try:
            impl = Quantizer(rapt, kind, sets)
            errors[impl.name] = impl.check()
            impls.append(impl)
        except (Wrong, rapt.Error) as error:
            failures.append(str(error) if isinstance(error, Wrong) else f"rapt-{kind}: {first_line(error)}")
    if impls:
        impls.append(Copy(max(impl.moved for impl in impls), len(sets), options.device))
        errors["copy"] = {"max_abs": 0.0, "mean_abs": 0.0, "rel_rms": 0.0}
    return impls, errors, failures


def measure(options, impls) -> tuple[list, str]:
    """Measures. Returns the implementations with their samples, and the name of the timer."""
    gpu = options.device == "cuda"
    clock = clocks.GraphClock(torch.cuda.current_stream()) if gpu else clocks.HostClock(0.02)
    bounds = []
    for impl in impls:
        bound = clocks.Bound(impl, impl.calls(), {})
        call_us = clocks.time_once(bound)
        impl.poison()
        clock.prepare(bound, call_us)
        clocks.synchronize()
        impl.expect_same()
        bounds.append(bound)
    draw = random.Random(options.seed)
    clocks.measure(bounds, clock, options.rounds, lambda some: draw.sample(some, len(some)), slow_us=1e6)
    clock.close()
    return bounds, clock.timer


def bandwidth_row(options, problem: str, bound, *, rate: float, timer: str, sets: int, **fields) -> dict:
    """Returns the row of a result whose roof is a copy kernel. rate: bytes per microsecond of the copy."""
    gpu = timer == "graph"
    return results.row(
        problem,
        bound.name,
        bound.samples,
        flops=0.0,
        moved=bound.impl.moved,
        roof_s=bound.impl.moved / rate * 1e-6,
        within_bound=True,
        calls=bound.count,
        timer=timer,
        host_us=results.quartiles(bound.host_us)[1] if gpu else None,
        l2="cold",
        input_sets=sets,
        card=file_safe(card_name(options.device)),
        threads=0 if gpu else torch.get_num_threads(),
        driver=driver_version() if gpu else "",
        nvrtc=nvrtc_version() if gpu else "",
        version=options.version,
        commit=options.commit,
        dirty=options.dirty,
        command=shlex.join(sys.argv),
        gemm_tflops=dict(NOTHING),
        bandwidth=rate * 1e-3,
        **fields,
    )


def report(options, bounds, timer: str, errors, problem: str, sets: int) -> tuple[list[dict], list[str]]:
    """Prints a line for each implementation; returns (rows, implementations below the limit)."""
    copy = next(bound for bound in bounds if bound.name == "copy")
    rate = copy.impl.moved / results.quartiles(copy.samples)[1]  # bytes per microsecond
    found, failures = [], []
    for bound in bounds:
        made = bandwidth_row(
            options,
            problem,
            bound,
            rate=rate,
            timer=timer,
            sets=sets,
            name=bound.name.removeprefix("rapt-"),
            suite="quantize-bandwidth",
            err=errors[bound.name],
            family="quantize" if bound.name != "copy" else "",
            config=" ".join(f"{name}={value}" for name, value in getattr(bound.impl, "options", {}).items()),
            layout="bhsd",
        )
        found.append(made)
        share, spread_us = 100 * made["roof_share"], f"({made['q1']:.1f}-{made['q3']:.1f})"
        print(
            f"  {bound.name:<32}{made['median']:>10.1f} us {spread_us:>22}{made['gbytes']:>8.0f} GB/s{share:>7.1f}% of "
            f"the copy  rel_rms {errors[bound.name]['rel_rms']:.1e}"
        )
        below = options.limit is not None and share < options.limit
        if below and bound.name.removeprefix("rapt-") in ONCE:
            failures.append(f"{bound.name}: {share:.1f}% of the copy's rate; the limit is {options.limit:g}%")
    return found, failures


def main() -> int:
    options = arguments()
    gpu = options.device == "cuda"
    if gpu and not torch.cuda.is_available():
        print("PyTorch finds no GPU (use --device cpu --quick to test the script)", file=sys.stderr)
        return 3
    results.load_schema()  # raises before anything is measured
    import rapt

    options.version = rapt.__version__
    dtype = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}[options.dtype]
    generator = torch.Generator(options.device).manual_seed(options.seed)
    shape = SHAPE[options.device]
    l2 = torch.cuda.get_device_properties(0).L2_cache_size if gpu else 0
    bytes_each = torch.empty((), dtype=dtype).element_size() * shape[0] * shape[1] * shape[2] * shape[3]
    count = max(2, -(-2 * l2 // bytes_each) + 1)
    sets = [
        torch.randn(shape, generator=generator, device=options.device, dtype=torch.float32).to(dtype)
        for _ in range(count)
    ]
    problem = f"{options.dtype} b{shape[0]} h{shape[1]} q{shape[2]} k{shape[2]} d{shape[3]}"
    with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()) if gpu else torch.autograd.set_grad_enabled(False):
        impls, errors, failures = make_implementations(rapt, options, sets)
        clocks.synchronize()
        found = []
        if impls:
            bounds, timer = measure(options, impls)
            print(
                f"{card_name(options.device)}, {bytes_each >> 20} MiB of {options.dtype} {list(shape)}, {count} sets, "
                f"commit {options.commit}{' (dirty)' if options.dirty else ''}"
            )
            found, slow = report(options, bounds, timer, errors, problem, count)
            failures += slow
    path = options.output
    if options.save and path is None:
        root = os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "results", found[0]["card"])
        stamp = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
        path = os.path.normpath(os.path.join(root, f"{stamp}-quantize-bandwidth.jsonl"))
    if path and found:
        results.write(path, found)
        print(f"written: {path}")
    for failure in failures:
        print(f"FAILED  {failure}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
