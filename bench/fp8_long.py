#!/usr/bin/env python3
"""Measures how the error of each pv mode grows with the number of keys, up to 131072.

    python3 bench/fp8_long.py [--device cuda|cpu] [--keys 1024,16384,65536,131072] [--dims 64,128] [--seeds 3]
                              [--rows 64] [--splits 1] [--scales head] [--config "promotion_interval=512 ..."]
                              [--save | --output FILE.jsonl] [--commit HASH [--dirty]]
    python3 bench/fp8_long.py --read results/CARD/...-fp8-long.jsonl               # the table of docs/fp8.md

q, k and v are stored in E4M3; the output is float32; one head, few query rows. The error is that of the kernel alone:
the reference is float64 attention on the stored values. It is pooled over the seeds. `--splits 1` is the hard case: one
sum over all keys. The inputs are
    normal  N(0,1).
    mean    N(0,1), and 1 is added to v. The sum over keys grows, and a narrow accumulator loses what comes late.
    sink    N(0,1), but every query gives about half of its weight to the first key. The other weights are small.

--config is for a GPU: words of a kernel configuration (as in `rapt check --config`), for example
"family=attention_sm80 promotion_interval=64". They change single fields of the configuration that rapt chooses itself.
The script writes them as tuned rows into a temporary file (RAPT_TUNED, docs/tuning.md), and stops if rapt does not use
them.

Requirement: at the largest number of keys n, rel_rms of each mode is at most 1.2 times that at the smallest. Errors up
to sqrt(n) * 2^-24 are allowed in any case: float32 sums of n terms have such errors. Without it, pv=f16 on a CPU would
miss the requirement, because its weights are float32. For `sink` the ratio is only printed, because small weights lose
precision by design (docs/fp8.md). Exit status: 0; 1 if a mode misses the requirement; 2 wrong usage; 3 if there is no
such device.
"""

from __future__ import annotations

import argparse
import datetime
import math
import os
import sys
import tempfile
import time

import torch

import rapt
import rows as results
from fp8_accuracy import MODES, ROOT, Pool, quantise, stored, synchronise
from implementations import chosen
from roof import NOTHING, card_name, commit_and_dirty, driver_version, file_safe, nvrtc_version

FILLS = ("normal", "mean", "sink")
REQUIRED_RATIO = 1.2
BLOCK = 4096  # keys of a block of the reference


def inputs(fill: str, keys: int, dim: int, rows: int, seed: int, device: str) -> list[torch.Tensor]:
    """q [1, 1, rows, dim], k and v [1, 1, keys, dim] in float32. The numbers are the same on every device."""
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(1, 1, n, dim, generator=generator) for n in (rows, keys, keys))
    if fill == "mean":
        v += 1
    if fill == "sink":
        # The logit of key 0 is (c / sqrt(dim)) * sum(q), about c * sqrt(dim). The others are N(0, 2), so their
        # exponentials sum to about keys * e.
        q += 1
        k[:, :, 0] = (math.log(keys) + 1) / math.sqrt(dim)
    return [x.to(device) for x in (q, k, v)]


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """softmax(q k^T / sqrt(dim)) v in float64, block after block of keys: 131072 keys need little memory."""
    q = q.double() / math.sqrt(q.shape[-1])
    largest = torch.full((*q.shape[:3], 1), -math.inf, dtype=torch.float64, device=q.device)
    total, out = torch.zeros_like(largest), torch.zeros(*q.shape[:3], v.shape[-1], dtype=torch.float64, device=q.device)
    for keys, values in zip(k.split(BLOCK, 2), v.split(BLOCK, 2)):
        scores = q @ keys.double().transpose(-1, -2)
        before, largest = largest, torch.maximum(largest, scores.amax(-1, keepdim=True))
        weights, factor = torch.exp(scores - largest), torch.exp(before - largest)
        total = total * factor + weights.sum(-1, keepdim=True)
        out = out * factor + weights @ values.double()
    return out / total


class Case:
    def __init__(self, fill: str, keys: int, dim: int, pv: str):
        self.fill, self.keys, self.dim, self.pv = fill, keys, dim, pv
        self.pool, self.us, self.plan = Pool(), [], ("", "", "")


def problem_line(keys: int, dim: int, pv: str, options) -> str:
    splits = f" splits={options.splits}" if options.splits else ""
    return f"e4m3 out=f32 b1 h1 q{options.rows} k{keys} d{dim} scales={options.scales}{splits} pv={pv}"


def call_options(pv: str, options) -> dict:
    return {"pv": pv, **({"splits": options.splits} if options.splits else {})}


def measure(fill: str, keys: int, dim: int, options, context) -> list[Case]:
    found = [Case(fill, keys, dim, pv) for pv in MODES]
    for seed in range(options.seeds):
        made, more = quantise(
            *inputs(fill, keys, dim, options.rows, seed, options.device), (options.scales, (False, False))
        )
        expected, call = attention(*(stored(one) for one in made)), [one.codes for one in made]
        for case in found:
            words = {**more, **call_options(case.pv, options), "context": context}
            if seed == 0:
                rapt.prepare(*call, **words)
                case.plan = plan_of(rapt.explain(*call, **words), options)
            synchronise(options.device)
            start = time.perf_counter()
            out = rapt.sdpa(*call, **words)
            synchronise(options.device)
            case.us.append((time.perf_counter() - start) * 1e6)
            case.pool.add(out, expected)
    return found


def plan_of(explained: str, options) -> tuple[str, str, str]:
    """(family, configuration, signature). Stops if --config was given and rapt did not use it."""
    found = chosen(explained)
    if options.config and not any(line.startswith("tuned ") for line in explained.splitlines()):
        raise SystemExit(f"fp8_long.py: --config {options.config}: rapt did not use the tuned row:\n{explained}")
    return found


def tuned_device() -> str:
    """The name of the GPU in a tuned row."""
    properties = torch.cuda.get_device_properties(0)
    architecture = f"sm_{properties.major}{properties.minor}" + ("a" if properties.major == 9 else "")
    return f"{properties.name}, {architecture}, {properties.multi_processor_count} multiprocessors"


def tuned_rows(device: str, options) -> str:
    """A row for each problem. Its times are not measured; rapt does not use them."""
    stamp = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    lines = []
    for keys in options.keys:
        for dim in options.dims:
            for pv in MODES:
                problem = problem_line(keys, dim, pv, options)
                fields = (device, problem, options.config, "1", "1", stamp, rapt.__version__, "bench/fp8_long.py")
                lines.append(" | ".join(fields))
    return "\n".join(lines) + "\n"


def to_row(case: Case, options) -> dict:
    family, config, signature = case.plan
    gpu = options.device == "cuda"
    return results.row(
        problem_line(case.keys, case.dim, case.pv, options),
        "rapt",
        case.us,
        flops=4.0 * options.rows * case.keys * case.dim,
        moved=2.0 * case.keys * case.dim + options.rows * case.dim * 5,
        name=case.fill,
        suite="fp8-long",
        family=family,
        config=config,
        signature=signature,
        input_sets=len(case.us),
        err=case.pool.found(),
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


def key_of(row: dict) -> tuple[str, int, str, int]:
    """(fill, dim, pv, keys)"""
    words = row["problem"].split()
    number = {word[0]: int(word[1:]) for word in words if word[1:].isdigit()}
    return row["name"], number["d"], words[-1].removeprefix("pv="), number["k"]


def table(found: list[dict]) -> str:
    """rel_rms in Markdown: one line for each fill, head_dim and mode. ratio: the last number divided by the first."""
    errors = {key_of(row): row["err"]["rel_rms"] for row in found}
    keys = sorted({key[3] for key in errors})
    text = ["| input | head_dim | pv | " + " | ".join(f"{n} keys" for n in keys) + " | ratio |"]
    text.append("|---|---|---|" + "---|" * (len(keys) + 1))
    for fill, dim, pv in dict.fromkeys(key[:3] for key in errors):
        line = [errors[fill, dim, pv, n] for n in keys]
        cells = [fill, str(dim), pv, *(f"{x:.2e}" for x in line), f"{line[-1] / line[0]:.2f}"]
        text.append("| " + " | ".join(cells) + " |")
    return "\n".join(text) + "\n"


def verdict(found: list[dict]) -> list[str]:
    """A sentence for each mode that misses the requirement."""
    errors = {key_of(row): row["err"]["rel_rms"] for row in found}
    keys, faults = sorted({key[3] for key in errors}), []
    for fill, dim, pv in dict.fromkeys(key[:3] for key in errors):
        first, last = errors[fill, dim, pv, keys[0]], errors[fill, dim, pv, keys[-1]]
        limit = max(REQUIRED_RATIO * first, math.sqrt(keys[-1]) * 2.0**-24)
        if fill != "sink" and not last <= limit:
            faults.append(
                f"{fill} d{dim} pv={pv}: rel_rms is {last:.2e} at {keys[-1]} keys: must be at most {limit:.2e}, "
                f"{REQUIRED_RATIO} times the {first:.2e} at {keys[0]} keys"
            )
    return faults


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--keys", type=numbers, default=[1024, 16384, 65536, 131072], help="powers of two")
    parser.add_argument("--dims", type=numbers, default=[64, 128], help="values of head_dim")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=64, help="query rows")
    parser.add_argument("--splits", type=int, default=1, help="0: rapt chooses")
    parser.add_argument("--scales", choices=("tensor", "head", "token", "block64", "block128"), default="head")
    parser.add_argument("--config", default="", help="words of a GPU kernel configuration")
    parser.add_argument("--output", metavar="FILE.jsonl")
    parser.add_argument("--save", action="store_true", help="results/CARD/TIME-fp8-long.jsonl")
    parser.add_argument("--commit", help="default: from git")
    parser.add_argument("--dirty", action="store_true", help="with --commit: the tree had uncommitted changes")
    parser.add_argument("--read", metavar="FILE", help="print the table of a results file, without measuring")
    options = parser.parse_args(arguments)
    if options.config and options.device == "cpu":
        parser.error(f"--config {options.config}: needs --device cuda, because tuned rows are not used on a CPU")
    if min(options.seeds, options.rows, *options.keys, *options.dims) < 1 or options.splits < 0:
        parser.error("--seeds, --rows, --keys and --dims must be 1 or more, --splits 0 or more")
    if any(keys & (keys - 1) for keys in options.keys):
        parser.error(f"--keys {','.join(map(str, options.keys))}: must be powers of two")
    return options


def run(options: argparse.Namespace) -> list[dict]:
    results.load_schema()
    with tempfile.TemporaryDirectory() as folder:
        if options.config:
            path = os.path.join(folder, "tuned.txt")
            with open(path, "w") as file:
                file.write(tuned_rows(tuned_device(), options))
            os.environ["RAPT_TUNED"] = path
        context, cases = rapt.Context(), []  # a new context reads the file at its first GPU call
        for fill in FILLS:
            for dim in options.dims:
                for keys in options.keys:
                    cases += measure(fill, keys, dim, options, context)
    return [to_row(case, options) for case in cases]


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    if options.commit is None:
        options.commit, options.dirty = commit_and_dirty()
    options.command = " ".join(["python3 bench/fp8_long.py", *(f"'{x}'" if " " in x else x for x in arguments)])
    if options.device == "cuda" and not torch.cuda.is_available():
        print("fp8_long.py: PyTorch finds no GPU", file=sys.stderr)
        return 3
    found = results.read(options.read) if options.read else run(options)
    print(table(found))
    path = options.output
    if options.save and path is None:
        stamp = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
        path = os.path.normpath(os.path.join(ROOT, "results", found[0]["card"], f"{stamp}-fp8-long.jsonl"))
    if path and not options.read:
        results.write(path, found)
        print(f"written: {path}")
    faults = verdict(found)
    for fault in faults:
        print("fp8_long.py:", fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
