"""Measures the peak of this device: the rates of matrix products and of streaming reads. Also finds the names and
versions that rows need.

Called once in each run by peers.py and call_cost.py, so the peak is measured in the same run as the times.
"""

from __future__ import annotations

import ctypes
import math
import os
import platform
import re
import statistics
import subprocess
import time
from typing import Optional

import torch

NOTHING = {"f32": None, "bf16": None, "f16": None, "fp8": None}


def _event_rate(call, work: float, calls: int) -> float:
    """Work per second of `calls` calls: the median of three blocks after one warm-up block."""
    rates = []
    for _ in range(4):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        rates.append(work * calls / (begin.elapsed_time(end) * 1e-3))
    return statistics.median(rates[1:])


def _gpu_gemm(size: int = 8192) -> dict[str, Optional[float]]:
    """TFLOP/s of square products of random matrices: torch.matmul in f16 and bf16, torch._scaled_mm in e4m3."""
    work, found = 2.0 * size**3, dict(NOTHING)
    for name, dtype in (("f16", torch.float16), ("bf16", torch.bfloat16)):
        a, b = (torch.randn(size, size, device="cuda", dtype=dtype) for _ in range(2))
        out = torch.empty_like(a)
        found[name] = _event_rate(lambda: torch.matmul(a, b, out=out), work, 10) * 1e-12
    try:
        a, b = (torch.randn(size, size, device="cuda").to(torch.float8_e4m3fn) for _ in range(2))
        one = torch.ones((), device="cuda")
        columns = b.t()  # cuBLAS needs the second operand in column-major order
        product = lambda: torch._scaled_mm(a, columns, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)  # noqa: E731
        found["fp8"] = _event_rate(product, work, 10) * 1e-12
    except RuntimeError:  # the GPU has no FP8, so the value is null in the rows
        pass
    return found


def _gpu_read(gibibytes: int = 4) -> float:
    """GB/s of summing floats, streamed from memory."""
    data = torch.ones(gibibytes << 28, device="cuda")
    return _event_rate(lambda: data.sum(), data.numel() * 4, 1) * 1e-9


def _cpu_rate(call, work: float, repeats: int) -> float:
    best = math.inf
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return work / best


class Roof:
    """The peak of the GPU, or of the CPU with PyTorch's current number of threads: gemm_tflops for each dtype, and the
    bandwidth in GB/s.
    """

    def __init__(self, device: str, quick: bool = False):
        if device == "cpu":
            size = 512 if quick else 2048
            self.gemm = dict(NOTHING)
            for name, dtype in (("f32", torch.float32), ("bf16", torch.bfloat16)):
                a, b = (torch.randn(size, size).to(dtype) for _ in range(2))
                self.gemm[name] = _cpu_rate(lambda: a @ b, 2.0 * size**3, 4) * 1e-12
            data = torch.ones(1 << (22 if quick else 28))
            self.bandwidth = _cpu_rate(lambda: data.sum(), data.numel() * 4, 5) * 1e-9
        else:
            self.gemm, self.bandwidth = _gpu_gemm(), _gpu_read()
            torch.cuda.empty_cache()

    def seconds(self, dtype: str, flops: float, moved: float) -> Optional[float]:
        """The minimum time at the measured peak; None if the product of this dtype was not measured."""
        rate = self.gemm["fp8" if dtype == "e4m3" else dtype]
        return None if rate is None else max(flops / (rate * 1e12), moved / (self.bandwidth * 1e9))

    def text(self) -> str:
        rates = ", ".join(f"{name} {rate:.4g}" for name, rate in self.gemm.items() if rate is not None)
        return f"matrix products: {rates} TFLOP/s; streaming reads: {self.bandwidth:.0f} GB/s"


def card_name(device: str) -> str:
    """The device's name."""
    if device != "cpu":
        return torch.cuda.get_device_name()
    with open("/proc/cpuinfo") as lines:
        return next(
            (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine()
        )


def file_safe(name: str) -> str:
    """The name in the form that lab/ uses: "Intel(R) Xeon(R) Processor" becomes "intel-xeon-processor"."""
    return re.sub(r"[^a-z0-9.]+", "-", re.sub(r"\((r|tm)\)", "", name.lower())).strip("-")


def driver_version() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.split()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return "unknown"


def nvrtc_version() -> str:
    """The version of the NVRTC that this process has loaded. Empty if it has loaded none."""
    with open("/proc/self/maps") as maps:
        path = next((line.split()[-1] for line in maps if re.search(r"/libnvrtc\.so", line)), "")
    if not path:
        return ""
    major, minor = ctypes.c_int(), ctypes.c_int()
    ctypes.CDLL(path).nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return f"{major.value}.{minor.value}"


def _git(folder: str, *words: str) -> str:
    command = ["git", "-C", folder, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()


def commit_and_dirty() -> tuple[str, bool]:
    """(commit, dirty) of the git tree that contains this file. ("unknown", False) if it is not in a git tree."""
    folder = os.path.dirname(os.path.abspath(__file__))
    try:
        return _git(folder, "rev-parse", "--short", "HEAD"), bool(_git(folder, "status", "--porcelain"))
    except (OSError, subprocess.SubprocessError):
        return "unknown", False
