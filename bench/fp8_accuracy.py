#!/usr/bin/env python3
"""Measures the errors that FP8 causes, for all combinations of kind of scales, smoothing, rotation and pv mode, on four
kinds of inputs.

    python3 bench/fp8_accuracy.py [--device cuda|cpu] [--problems big,mission,sample] [--seeds 5]
                                  [--save | --output FILE.jsonl] [--commit HASH [--dirty]]
    python3 bench/fp8_accuracy.py --read results/CARD/...-fp8-accuracy.jsonl        # the tables of docs/fp8.md

rapt.quantize converts q, k and v to E4M3. rapt.sdpa computes attention with float32 output. The script reports two
errors, pooled over heads and seeds. `total` compares with float64 attention on the original inputs. `kernel` compares
with float64 attention on the stored FP8 values. The inputs are: normal; outlier, which is N(0,1) + N(0,100) *
Bernoulli(0.001) as in the FlashAttention-3 paper; offset, which is normal plus an offset of N(0,64) for each channel of
k; and q, k and v of a real layer (examples/data). Rows follow docs/results-schema.json. Their `us` has one call for
each seed, so it is only a rough time. On a GPU the script spends most of its time compiling kernels, on all cores. Exit
status: 0; 1 if block64 with rotation missed its required accuracy; 2 wrong usage; 3 if there is no such device.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import datetime
import itertools
import json
import math
import os
import struct
import sys
import time

import torch

import rapt
import rows as results
from implementations import chosen
from roof import NOTHING, card_name, commit_and_dirty, driver_version, file_safe, nvrtc_version

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir)
SAMPLE = os.path.join(ROOT, "examples", "data", "minilm-layer0.safetensors")
SHAPES = {"big": (1, 16, 2048, 128), "mission": (1, 8, 512, 64)}
SCALES = ("tensor", "head", "token", "block64", "block128")
MODES = ("fp8", "fp8x2", "f16")
PREPARATIONS = ((False, False), (True, False), (False, True), (True, True))  # (smooth, hadamard)
# The requirement for block64 with rotation on outliers at 2048 keys: the maximum RMSE, and the maximum of RMSE divided
# by the RMSE of per-tensor scales.
REQUIRED_RMSE, REQUIRED_SHARE = 9.1e-3, 0.6


def inputs(name: str, fill: str, seed: int, device: str) -> list[torch.Tensor]:
    """q, k and v in float32. The numbers are the same on every device."""
    if name == "sample":
        return [tensor.to(device) for tensor in sample()]
    generator = torch.Generator().manual_seed(seed)
    found = []
    for tensor in ("q", "k", "v"):
        x = torch.randn(SHAPES[name], generator=generator)
        if fill == "offset" and tensor == "k":
            x = x + 8 * torch.randn(1, SHAPES[name][1], 1, SHAPES[name][3], generator=generator)
        if fill == "outlier":
            rare = torch.rand(SHAPES[name], generator=generator) < 0.001
            x = x + rare * 10 * torch.randn(SHAPES[name], generator=generator)
        found.append(x.to(device))
    return found


def sample() -> list[torch.Tensor]:
    with open(SAMPLE, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header, data = json.loads(file.read(length)), file.read()
    found = []
    for name in ("q", "k", "v"):
        begin, end = header[name]["data_offsets"]
        flat = torch.frombuffer(bytearray(data[begin:end]), dtype=torch.float16)
        found.append(flat.reshape(header[name]["shape"]).float())
    return found


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """softmax(q k^T / sqrt(d)) v in float64. Computes as many heads at a time as fit in the device's memory."""
    out, heads = [], 16 if q.device.type == "cuda" else 2
    for first in range(0, q.shape[1], heads):
        a, b, c = (x[:, first : first + heads].double() for x in (q, k, v))
        scores = a @ b.transpose(-1, -2) / math.sqrt(q.shape[-1])
        out.append(torch.softmax(scores, -1) @ c)
    return torch.cat(out, 1)


def stored(x: rapt.Quantized) -> torch.Tensor:
    """The values that codes, descale and mean stand for, in float64."""
    codes, scale = x.codes.float().double(), x.descale.double()
    batch, heads, seqlen, _ = codes.shape
    if x.scales == "tensor":
        scale = scale.reshape(1, 1, 1, 1)
    elif x.scales.startswith("block"):
        rows = int(x.scales.removeprefix("block"))
        scale = scale.repeat_interleave(rows, 2)[:, :, :seqlen, None]
    else:  # head or token
        scale = scale.reshape(batch, heads, -1, 1)
    values = codes * scale
    return values if x.mean is None else values + x.mean.double()[:, :, None, :]


class Pool:
    """Sums of errors over heads and seeds."""

    def __init__(self):
        self.count, self.max_abs, self.sum_abs, self.square, self.size = 0, 0.0, 0.0, 0.0, 0.0

    def add(self, out: torch.Tensor, expected: torch.Tensor) -> None:
        difference = out.double() - expected
        if not bool(torch.isfinite(difference).all()):
            raise SystemExit("an output is not finite")
        self.count += difference.numel()
        self.max_abs = max(self.max_abs, difference.abs().max().item())
        self.sum_abs += difference.abs().sum().item()
        self.square += difference.square().sum().item()
        self.size += expected.square().sum().item()

    def found(self, rmse: bool = False) -> dict[str, float]:
        errors = {
            "max_abs": self.max_abs,
            "mean_abs": self.sum_abs / self.count,
            "rel_rms": math.sqrt(self.square / self.size),
        }
        return {**errors, "rmse": math.sqrt(self.square / self.count)} if rmse else errors


class Case:
    """One cell of the table: one combination of options."""

    def __init__(self, scales: str, smooth: bool, hadamard: bool, pv: str):
        self.scales, self.smooth, self.hadamard, self.pv = scales, smooth, hadamard, pv
        self.total, self.kernel, self.us, self.plan = Pool(), Pool(), [], ("", "", "")

    def line(self, shape) -> str:
        batch, heads, seqlen, dim = shape
        words = [f"e4m3 out=f32 b{batch} h{heads} q{seqlen} k{seqlen} d{dim} scales={self.scales}"]
        words += ["smooth_k"] * self.smooth + ["hadamard"] * self.hadamard + [f"pv={self.pv}"]
        return " ".join(words)


def synchronise(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def quantise(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, kind) -> tuple[list[rapt.Quantized], dict]:
    """Quantises q, k and v. Returns the codes and their options for sdpa."""
    scales, (smooth, hadamard) = kind
    q8 = rapt.quantize(q, scales=scales, hadamard=hadamard)
    k8 = rapt.quantize(k, scales=scales, hadamard=hadamard, smooth=smooth)
    v8 = rapt.quantize(v, scales=scales)
    return [q8, k8, v8], {**q8.options("q"), **k8.options("k"), **v8.options("v"), "out_dtype": torch.float32}


def prepare(kinds, tensors: list[torch.Tensor]) -> None:
    """Compiles the kernels of all cases, on as many threads as there are cores."""

    def prepare_kind(kind) -> None:
        made, options = quantise(*tensors, kind)
        for pv in MODES:
            rapt.prepare(*(one.codes for one in made), pv=pv, **options)

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(prepare_kind, kinds))  # list() raises the exceptions of the threads


def measure(name: str, fill: str, seeds: int, device: str) -> tuple[tuple, list[Case]]:
    kinds = list(itertools.product(SCALES, PREPARATIONS))
    cases = {(kind, pv): Case(kind[0], *kind[1], pv) for kind in kinds for pv in MODES}
    shape: tuple = ()
    for seed in range(seeds):
        q, k, v = inputs(name, fill, seed, device)
        shape, truth = tuple(q.shape), attention(q, k, v)
        if seed == 0 and device == "cuda":
            prepare(kinds, [q, k, v])
        for kind in kinds:
            made, options = quantise(q, k, v, kind)
            of_stored, call = attention(*(stored(one) for one in made)), [one.codes for one in made]
            for pv in MODES:
                case = cases[kind, pv]
                if not case.us:
                    rapt.prepare(*call, pv=pv, **options)
                    case.plan = chosen(rapt.explain(*call, pv=pv, **options))
                synchronise(device)
                start = time.perf_counter()
                out = rapt.sdpa(*call, pv=pv, **options)
                synchronise(device)
                case.us.append((time.perf_counter() - start) * 1e6)
                case.total.add(out, truth)
                case.kernel.add(out, of_stored)
    return shape, list(cases.values())


def to_row(name: str, fill: str, shape, case: Case, options) -> dict:
    batch, heads, seqlen, dim = shape
    family, config, signature = case.plan
    gpu = options.device == "cuda"
    return results.row(
        case.line(shape),
        "rapt",
        case.us,
        flops=4.0 * batch * heads * seqlen * seqlen * dim,
        moved=batch * heads * seqlen * dim * (3 + 4.0),
        name=f"{name}-{fill}",
        suite="fp8-accuracy",
        family=family,
        config=config,
        signature=signature,
        input_sets=len(case.us),
        err=case.kernel.found(),
        total_err=case.total.found(rmse=True),
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


def words(row: dict) -> dict[str, str]:
    found = dict(word.split("=", 1) for word in row["problem"].split() if "=" in word)
    smooth, hadamard = ("smooth_k" in row["problem"], "hadamard" in row["problem"])
    found["made"] = {(0, 0): "as it is", (1, 0): "smoothed", (0, 1): "rotated", (1, 1): "both"}[smooth, hadamard]
    return found


def seeds_text(count: int) -> str:
    return f"{count} seed" if count == 1 else f"{count} seeds"


def tables(found: list[dict]) -> str:
    """Tables in Markdown: for each kind of inputs the total RMSE, then the kernel's error for each pv mode."""
    text = []
    for name in dict.fromkeys(row["name"] for row in found):
        cells = {}
        for row in found:
            if row["name"] == name:
                w = words(row)
                cells[w["scales"], w["made"], w["pv"]] = row
        made = ("as it is", "smoothed", "rotated", "both")
        first = next(iter(cells.values()))
        shape = " ".join(word for word in first["problem"].split() if word[0] in "bhqkd" and word[1:].isdigit())
        text.append(f"**{name}** (`{shape}`, {seeds_text(len(first['us']))}): RMSE against the inputs, pv=f16 / fp8\n")
        text.append("| scales | " + " | ".join(made) + " |")
        text.append("|---|" + "---|" * len(made))
        for scales in SCALES:
            pairs = [
                " / ".join(f"{cells[scales, how, pv]['total_err']['rmse']:.2e}" for pv in ("f16", "fp8"))
                for how in made
            ]
            text.append(f"| {scales} | " + " | ".join(pairs) + " |")
        text.append("\n| pv | max against the stored values | mean | rel_rms |")
        text.append("|---|---|---|---|")
        for pv in MODES:
            of_mode = [row["err"] for (_, _, mode), row in cells.items() if mode == pv]
            worst = [max(err[key] for err in of_mode) for key in ("max_abs", "mean_abs", "rel_rms")]
            text.append(f"| {pv} | " + " | ".join(f"{x:.1e}" for x in worst) + " |")
        text.append("")
    return "\n".join(text)


def verdict(found: list[dict]) -> list[str]:
    """Sentences about requirements that block64 with rotation missed on outliers at 2048 keys. Empty if it met them, or
    if it was not measured.
    """
    rmse = {}
    for row in found:
        w = words(row)
        if row["name"] == "big-outlier":
            rmse[w["scales"], w["made"], w["pv"]] = row["total_err"]["rmse"]
    faults = []
    for pv in MODES if rmse else ():
        got, tensor = rmse["block64", "rotated", pv], rmse["tensor", "as it is", pv]
        print(f"outliers, 2048 keys, pv={pv}: block64 rotated {got:.2e}, tensor {tensor:.2e}, share {got / tensor:.2f}")
        if not got <= REQUIRED_RMSE or not got <= REQUIRED_SHARE * tensor:
            faults.append(f"pv={pv}: RMSE {got:.2e}: at most {REQUIRED_RMSE} and {REQUIRED_SHARE} of {tensor:.2e}")
    return faults


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--problems", default="", help="some of big, mission, sample (default: all; on a CPU all but big)"
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--output", metavar="FILE.jsonl")
    parser.add_argument("--save", action="store_true", help="results/CARD/TIME-fp8-accuracy.jsonl")
    parser.add_argument("--commit", help="default: from git")
    parser.add_argument("--dirty", action="store_true", help="with --commit: the tree had uncommitted changes")
    parser.add_argument("--read", metavar="FILE", help="print the tables of a results file, without measuring")
    options = parser.parse_args(arguments)
    usual = "mission,sample" if options.device == "cpu" else "big,mission,sample"
    options.problems = (options.problems or usual).split(",")
    unknown = set(options.problems) - {*SHAPES, "sample"}
    if unknown or options.seeds < 1:
        parser.error(
            f"--problems {','.join(options.problems)} --seeds {options.seeds}: of big, mission, sample; 1 or more"
        )
    return options


def run(options: argparse.Namespace) -> list[dict]:
    results.load_schema()
    found = []
    for name in options.problems:
        for fill in ("layer0",) if name == "sample" else ("normal", "outlier", "offset"):
            shape, cases = measure(name, fill, 1 if name == "sample" else options.seeds, options.device)
            found += [to_row(name, fill, shape, case, options) for case in cases]
    return found


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    if options.commit is None:
        options.commit, options.dirty = commit_and_dirty()
    options.command = " ".join(["python3 bench/fp8_accuracy.py", *arguments])
    if options.device == "cuda" and not torch.cuda.is_available():
        print("fp8_accuracy.py: PyTorch finds no GPU", file=sys.stderr)
        return 3
    found = results.read(options.read) if options.read else run(options)
    print(tables(found))
    path = options.output
    if options.save and path is None:
        stamp = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
        path = os.path.normpath(os.path.join(ROOT, "results", found[0]["card"], f"{stamp}-fp8-accuracy.jsonl"))
    if path and not options.read:
        results.write(path, found)
        print(f"written: {path}")
    faults = verdict(found)
    for fault in faults:
        print("fp8_accuracy.py:", fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
