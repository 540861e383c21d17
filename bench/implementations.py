"""rapt's own implementations for the peer benchmark, the list of all implementations, and the list of those that can be
imported.

Called by peers.py. Base class: implementation.py. The peers are in impl_torch.py, impl_flash.py, impl_cudnn.py and
impl_more.py.
"""

from __future__ import annotations

import importlib
import math
import re
import time
from dataclasses import replace
from typing import Callable

import torch

from implementation import Absent, Implementation, first_line
from impl_cudnn import CudnnFrontend
from impl_flash import FlashAttention2, FlashAttention3, FlashAttention4
from impl_more import FlashInfer, SageAttention, Xformers
from impl_torch import Flex, TorchCpu, TorchSdpa
from inputs import TORCH, Inputs
from suites import Problem


class RaptImplementation(Implementation):
    """rapt.sdpa with out=."""

    name = "rapt"

    def __init__(self, threads: int = 0):
        self.threads, self.rapt, self.context = threads, None, None

    def load(self) -> None:
        self.rapt = importlib.import_module("rapt")
        if self.threads:
            self.context = self.rapt.Context(num_threads=self.threads)

    def version(self) -> str:
        return self.rapt.__version__

    def call(self, inputs: Inputs) -> tuple[tuple, dict]:
        """The arguments of rapt.sdpa for one set of inputs, without out=."""
        problem = inputs.problem
        options = {
            "causal": problem.causal or None,
            "window": problem.window,
            "softcap": problem.softcap,
            "bias": inputs.bias,
            "mask": inputs.mask,
            "alibi_slopes": inputs.slopes,
            "sinks": inputs.sinks,
            "context": self.context,
        }
        if problem.varlen:
            options.update(
                cu_seqlens_q=inputs.cu_q, cu_seqlens_k=inputs.cu_k, max_seqlen_q=problem.q, max_seqlen_k=problem.k
            )
        for name in ("q", "k", "v"):
            descale = getattr(inputs, f"{name}_descale")
            if descale is not None:
                options.update({f"{name}_descale": descale, f"{name}_scales": problem.scales})
        return (inputs.q, inputs.k, inputs.v), {name: value for name, value in options.items() if value is not None}

    def output(self, inputs: Inputs) -> torch.Tensor:
        shape = (*inputs.q.shape[:-1], inputs.problem.dv)
        return torch.full(shape, math.nan, dtype=TORCH[inputs.problem.out], device=inputs.device)

    def bind(self, inputs: Inputs) -> Callable[[], torch.Tensor]:
        (q, k, v), options = self.call(inputs)
        out, sdpa = self.output(inputs), self.rapt.sdpa
        if not options:  # a direct call, as a user writes it, because host time is measured
            return lambda: sdpa(q, k, v, out=out)
        return lambda: sdpa(q, k, v, out=out, **options)

    def facts(self, inputs: Inputs) -> dict:
        """The field cold_us (time to plan, compile or fetch, and load), and the kernel that rapt.explain reports.
        Raises if rapt refuses the problem.
        """
        tensors, options = self.call(inputs)
        options["out"] = self.output(inputs)
        start = time.perf_counter()
        self.rapt.prepare(*tensors, **options)
        cold_us = (time.perf_counter() - start) * 1e6
        family, config, signature = chosen(self.rapt.explain(*tensors, **options))
        return {"cold_us": cold_us, "family": family, "config": config, "signature": signature}


class RaptMode(RaptImplementation):
    """rapt.sdpa with another pv mode than its default, only for FP8 v. It rounds the weights by design."""

    lossy = True

    def __init__(self, pv: str, threads: int = 0):
        super().__init__(threads)
        self.pv, self.name = pv, f"rapt-pv-{pv}"

    def concerns(self, problem: Problem) -> bool:
        return problem.stored[2] == "e4m3"

    def call(self, inputs: Inputs) -> tuple[tuple, dict]:
        tensors, options = super().call(inputs)
        return tensors, {**options, "pv": self.pv}


class RaptWide(RaptImplementation):
    """rapt.sdpa on the same keys and values in the 16-bit dtype of q, to compare with FP8 storage."""

    name = "rapt-kv16"

    def concerns(self, problem: Problem) -> bool:
        return bool(problem.kv)

    def computed(self, problem: Problem) -> Problem:
        return replace(problem, kv="", scales="")

    def call(self, inputs: Inputs) -> tuple[tuple, dict]:
        (q, _, _), options = super().call(inputs)
        k, v = (tensor.to(q.dtype) for tensor in inputs.real()[1:])
        words = ("k_descale", "v_descale", "k_scales", "v_scales")
        return (q, k, v), {name: value for name, value in options.items() if name not in words}


def chosen(explained: str) -> tuple[str, str, str]:
    """(family, configuration, signature) from the text of rapt.explain; empty strings if it has none."""
    line = next((line.split("chosen,", 1)[1].strip() for line in explained.splitlines() if "chosen," in line), "")
    family, _, config = line.partition(" ")
    signature = re.search(r"signature[= ]([0-9a-f]+)", explained)
    return family, config.strip(), signature[1] if signature else ""


def rapt_implementations(threads: int) -> list[Implementation]:
    return [RaptImplementation(threads), RaptMode("fp8", threads), RaptMode("fp8x2", threads), RaptWide(threads)]


def all_implementations(device: str, threads: int = 0) -> list[Implementation]:
    """All implementations for this device, rapt first."""
    if device == "cpu":
        return [*rapt_implementations(threads), TorchCpu(), TorchCpu("f16"), TorchSdpa("math"), Flex(compiled=False)]
    return [
        *rapt_implementations(0),
        *[TorchSdpa(backend) for backend in ("flash", "efficient", "cudnn", "math")],
        Flex(),
        CudnnFrontend(),
        FlashAttention2(),
        FlashAttention3(),
        FlashAttention4(),
        Xformers(),
        FlashInfer(),
        SageAttention(),
    ]


def available(impls: list[Implementation]) -> tuple[list[Implementation], list[Absent]]:
    """The implementations that can be imported, and the others with the reason."""
    loaded, absent = [], []
    for impl in impls:
        try:
            impl.load()
            loaded.append(impl)
        except Exception as error:  # a broken package can raise any exception
            absent.append(Absent(impl.name, f"not measured: could not be imported: {first_line(error)}"))
    return loaded, absent
