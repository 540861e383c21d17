"""The problems of the peer benchmark: named suites, and problem lines (docs/problem-line.md).

Used by every script here. rapt's own parser parses the lines. Lines of suites have no dtype: the caller writes it in
front of the line. An unknown word is an error.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Optional

from rapt import _core

DTYPES = ("f32", "f16", "bf16", "e4m3")
BYTES = {"f32": 4, "f16": 2, "bf16": 2, "e4m3": 1, "bool": 1}

NAMED = {
    "seed-small-a": "b1 h2 q64 k64 d64",
    "seed-small-b": "b1 h4 q128 k128 d64",
    "seed-multi-batch": "b2 h2 q64 k64 d64",
    "mission": "b1 h8 q512 k512 d64",
    "mission-causal": "b1 h8 q512 k512 d64 causal",
    "encoder": "b16 h12 q512 k512 d64",
    "vit-256d80": "b8 h16 q256 k256 d80",
    "prefill-1k": "b1 h32 q1024 k1024 d128 causal",
    "prefill-4k": "b1 h32 q4096 k4096 d128 causal",
    "prefill-4k-gqa": "b1 h32:8 q4096 k4096 d128 causal",
    "prefill-16k": "b1 h32 q16384 k16384 d128 causal",
    "full-4k-d64": "b2 h24 q4096 k4096 d64",
    "full-16k-d128": "b1 h16 q16384 k16384 d128",
    "full-8k-d256": "b1 h8 q8192 k8192 d256",
    "decode-b1-4k": "b1 h32:8 q1 k4096 d128",
    "decode-b1-32k": "b1 h32:8 q1 k32768 d128",
    "decode-b16-4k": "b16 h32:8 q1 k4096 d128",
    "decode-b64-8k": "b64 h32:8 q1 k8192 d128",
}
FEATURES = {
    "window-causal-gqa": "b1 h32:8 q4096 k4096 d128 causal window=1023,0",
    "window-both": "b2 h16 q4096 k4096 d64 window=256,256",
    "softcap": "b1 h16:8 q4096 k4096 d128 causal softcap=50",
    "alibi": "b1 h32 q2048 k2048 d128 causal alibi",
    "sinks-window": "b1 h64:8 q4096 k4096 d64 causal window=127,0 sinks",
    "bias": "b8 h16 q1024 k1024 d64 bias=DTYPE[1,h,q,k]",
    "mask-keys": "b16 h12 q512 k512 d64 mask=[b,1,1,k]",
    "mask-full": "b4 h16 q1024 k1024 d64 mask=[b,1,q,k]",
    "chunk-512-of-8k": "b1 h32:8 q512 k8192 d128 causal",
}
VARLEN = {
    "varlen-encoder": "b16 h12 d64 varlen=512,37,201,64,350,128,90,411,17,256,300,75,480,33,150,220",
    "varlen-prefill": "b6 h32:8 d128 causal varlen=4096,513,1024,2048,77,3000",
    "varlen-chunks": "b4 h32:8 d128 causal varlen=256:4096,1:2048,512:512,64:8192",
}
WIDE = {  # head dims above 256, and f32
    "wide-512": "f16 b1 h1 q4096 k4096 d512",
    "wide-384": "f16 b1 h1 q4096 k4096 d384",
    "wide-320": "bf16 b2 h16 q1024 k1024 d320",
    "wide-576-512": "bf16 b2 h16 q1024 k1024 d576:512",
    "f32-2k": "f32 b1 h16 q2048 k2048 d64",
}
FP8_KEYS = "q=f16 k=e4m3 v=e4m3"  # 16-bit queries, FP8 keys and values; rapt-kv16 times the same in 16 bits
FP8 = {  # all implementations return bf16 here, because FlashAttention-3 returns bf16 for FP8
    "mission-fp8": "e4m3 out=bf16 b1 h8 q512 k512 d64 scales=tensor",
    "prefill-1k-fp8": "e4m3 out=bf16 b1 h32 q1024 k1024 d128 causal scales=tensor",
    "prefill-4k-fp8": "e4m3 out=bf16 b1 h32 q4096 k4096 d128 causal scales=tensor",
    "full-4k-d64-fp8": "e4m3 out=bf16 b2 h24 q4096 k4096 d64 scales=tensor",
    "full-16k-d128-fp8": "e4m3 out=bf16 b1 h16 q16384 k16384 d128 scales=tensor",
    "full-8k-d256-fp8": "e4m3 out=bf16 b1 h8 q8192 k8192 d256 scales=tensor",
    "mission-fp8kv": f"{FP8_KEYS} b1 h8 q512 k512 d64 k_scales=head v_scales=head",
    "prefill-4k-fp8kv": f"{FP8_KEYS} b1 h32 q4096 k4096 d128 causal k_scales=head v_scales=head",
    "decode-b16-4k-fp8kv": f"{FP8_KEYS} b16 h32:8 q1 k4096 d128 k_scales=head v_scales=head",
}
CPU = {
    "mission": "f32 b1 h8 q512 k512 d64",
    "b2-h12": "f32 b2 h12 q512 k512 d64",
    "q2048": "f32 b1 h8 q2048 k2048 d64",
    "mission-causal": "f32 b1 h8 q512 k512 d64 causal",
    "q1024-d128-causal": "f32 b1 h8 q1024 k1024 d128 causal",
    "decode": "f32 b1 h32 q1 k4096 d128",
    "mission-bf16": "bf16 b1 h8 q512 k512 d64",
    "b2-h12-bf16": "bf16 b2 h12 q512 k512 d64",
    "q2048-bf16": "bf16 b1 h8 q2048 k2048 d64",
    "mission-f16": "f16 b1 h8 q512 k512 d64",
    "decode-bf16": "bf16 b1 h32 q1 k4096 d128",
    "mission-f16-fp8kv": f"{FP8_KEYS} b1 h8 q512 k512 d64 k_scales=head v_scales=head",
    "decode-f16-fp8kv": f"{FP8_KEYS} b1 h32 q1 k4096 d128 k_scales=head v_scales=head",
}
DRY = {  # a small problem for every feature, to test the scripts without a GPU
    "plain": "b1 h2 q64 k64 d64",
    "causal-gqa": "b2 h4:2 q80 k80 d32 causal",
    "chunk": "b1 h4:2 q16 k80 d32 causal",
    "decode": "b2 h4:2 q1 k200 d32",
    "window": "b1 h2 q96 k96 d32 causal window=20,0",
    "window-both": "b1 h2 q96 k96 d32 window=20,8",
    "softcap": "b1 h2 q64 k64 d32 softcap=20",
    "alibi": "b1 h4 q64 k64 d32 causal alibi",
    "sinks": "b1 h4:2 q64 k64 d32 causal sinks",
    "bias": "b2 h2 q48 k48 d32 bias=DTYPE[1,h,q,k]",
    "mask": "b2 h2 q48 k48 d32 mask=[b,1,1,k]",
    "varlen": "b3 h4:2 d32 causal varlen=40,8:24,17",
    "fp8": "e4m3 out=bf16 b1 h2 q64 k64 d64 scales=tensor",
    "kv-fp8": f"{FP8_KEYS} b1 h4:2 q40 k64 d64 causal k_scales=head v_scales=head",
}
PERF_FILE = os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "check", "cases", "perf.txt")


def _perf() -> dict[str, str]:
    """The problems of `rapt bench --suite perf`. Lines with pv= are left out, because the implementations rapt-pv-*
    have these modes. Empty if there is no folder check/ (in a copy of bench/ alone).
    """
    if not os.path.exists(PERF_FILE):
        return {}
    with open(PERF_FILE) as file:
        lines = [line.strip() for line in file]
    return {line: line for line in lines if line and not line.startswith("#") and " pv=" not in line}


SWEEP_LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)


def _sweep(lengths=SWEEP_LENGTHS, tokens: int = 16384, width: int = 2048) -> dict[str, str]:
    """Problems as in FlashAttention's charts: the length varies; the number of tokens and the hidden size are fixed."""
    return {
        f"sweep-d{d}-{kind}-{n}": f"b{tokens // n} h{width // d} q{n} k{n} d{d}{' causal' if kind == 'causal' else ''}"
        for d in (64, 128)
        for kind in ("full", "causal")
        for n in lengths
    }


SUITES = {
    "named": NAMED,
    "perf": _perf(),
    "sweep": _sweep(),
    "features": FEATURES,
    "varlen": VARLEN,
    "wide": WIDE,
    "fp8": FP8,
    "cpu": CPU,
    "dry": DRY,
}


@dataclass(frozen=True)
class Problem:
    """The part of a problem line that these scripts use. For varlen, q and k are the maximum lengths."""

    dtype: str
    out: str
    b: int
    h: int
    hk: int
    q: int
    k: int
    d: int
    dv: int
    causal: str = ""  # "", "bottom_right" or "top_left"
    window: Optional[tuple[int, int]] = None
    softcap: Optional[float] = None
    alibi: bool = False
    bias: Optional[tuple[str, str]] = None  # (dtype, axes): ("f16", "1,h,q,k")
    mask: Optional[str] = None  # axes
    sinks: bool = False
    varlen: Optional[tuple[tuple[int, int], ...]] = None  # (queries, keys) of each sequence
    scales: str = ""  # kind of scales of all tensors stored in e4m3: "tensor" or "head"
    kv: str = ""  # the dtype of k and v if it differs from q's

    @property
    def stored(self) -> tuple[str, str, str]:
        """The dtypes of q, k and v."""
        return self.dtype, self.kv or self.dtype, self.kv or self.dtype

    @property
    def line(self) -> str:
        """The canonical problem line (docs/problem-line.md, "Printing")."""
        words = [f"{name}={dtype}" for name, dtype in zip("qkv", self.stored)] if self.kv else [self.dtype]
        if self.out != ("f16" if self.dtype == "e4m3" else self.dtype):
            words.append(f"out={self.out}")
        words += [f"b{self.b}", f"h{self.h}" + ("" if self.hk == self.h else f":{self.hk}")]
        if self.varlen is None:
            words += [f"q{self.q}", f"k{self.k}"]
        words.append(f"d{self.d}" + ("" if self.dv == self.d else f":{self.dv}"))
        words += {"": [], "bottom_right": ["causal"], "top_left": ["causal_top_left"]}[self.causal]
        optional = [
            self.window and "window=%d,%d" % self.window,
            self.softcap and f"softcap={self.softcap:g}",
            self.alibi and "alibi",
            self.bias and "bias=%s[%s]" % self.bias,
            self.mask and f"mask=[{self.mask}]",
            self.sinks and "sinks",
            self.varlen and "varlen=" + ",".join(str(q) if q == k else f"{q}:{k}" for q, k in self.varlen),
            self.scales and " ".join(f"{name}scales={self.scales}" for name in (("k_", "v_") if self.kv else ("",))),
        ]
        return " ".join(words + [word for word in optional if word])

    @property
    def sequences(self) -> tuple[tuple[int, int], ...]:
        """(queries, keys) of each sequence."""
        return self.varlen or ((self.q, self.k),) * self.b

    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """The shapes of q, k and v: [batch, heads, seqlen, dim], or [total, heads, dim] if packed."""
        if self.varlen is None:
            return (
                (self.b, self.h, self.q, self.d),
                (self.b, self.hk, self.k, self.d),
                (self.b, self.hk, self.k, self.dv),
            )
        total_q, total_k = (sum(lengths) for lengths in zip(*self.varlen))
        return (total_q, self.h, self.d), (total_k, self.hk, self.d), (total_k, self.hk, self.dv)

    def axes(self, text: str) -> tuple[int, ...]:
        """The shape of a bias or mask with these axes."""
        sizes = {"1": 1, "b": self.b, "h": self.h, "q": self.q, "k": self.k}
        return tuple(sizes[letter] for letter in text.split(","))

    def band(self, queries: int, keys: int) -> tuple[int, Optional[int], Optional[int]]:
        """(off, left, right) of a sequence: query i sees keys j with i + off - left <= j <= i + off + right. None: no
        limit.
        """
        off = 0 if self.causal == "top_left" else keys - queries
        left, right = (None if bound < 0 else bound for bound in self.window or (-1, -1))
        return off, left, 0 if self.causal else right

    def pairs(self) -> int:
        """The number of (query, key) pairs of one head, over all sequences, that are visible by causal and window."""
        total = 0
        for queries, keys in self.sequences:
            off, left, right = self.band(queries, keys)
            if left is None and right is None:
                total += queries * keys
                continue
            for i in range(queries):
                first = 0 if left is None else max(0, i + off - left)
                last = keys - 1 if right is None else min(keys - 1, i + off + right)
                total += max(0, last - first + 1)
        return total

    def flops(self, kept: float = 1.0) -> float:
        """The number of operations of both products for the visible pairs. `kept`: the fraction of pairs that a mask
        keeps.
        """
        return 2.0 * (self.d + self.dv) * self.h * self.pairs() * kept

    def bytes_moved(self) -> float:
        """The number of bytes of all tensors, each read or written once."""
        total_q, total_k = (sum(lengths) for lengths in zip(*self.sequences))
        size = BYTES[self.dtype] * total_q * self.h * self.d
        size += BYTES[self.kv or self.dtype] * total_k * self.hk * (self.d + self.dv)
        size += BYTES[self.out] * total_q * self.h * self.dv
        for axes, dtype in ((self.bias and self.bias[1], self.bias and self.bias[0]), (self.mask, "bool")):
            if axes:
                b, h, q, k = self.axes(axes)
                size += BYTES[dtype] * b * h * q * k
        return float(size)


def read(line: str) -> Problem:
    """Parses a problem line with rapt's parser. If a word is wrong, or if these scripts do not support it, raises a
    ValueError with this word.
    """
    found = _core.parse_problem(line)
    canonical, stored, scales = found.pop("line"), found.pop("dtypes"), found.pop("scales")
    if not {*stored} <= {*DTYPES} or stored[1] not in ("e4m3", stored[0]) or scales[1] not in ("", "tensor", "head"):
        raise ValueError(
            f"'{line}': not supported by the scripts in bench/: FP8 must be e4m3, for q, k and v or only for k and v, "
            "with scales by tensor or head (bench/suites.py)"
        )
    problem = Problem(dtype=stored[0], kv="" if stored[1] == stored[0] else stored[1], scales=scales[1], **found)
    kept = _core.parse_problem(problem.line)["line"]
    if kept != canonical:  # the class Problem of these scripts cannot hold all words of the line
        lost = [word for word in canonical.split() if word not in kept.split()]
        raise ValueError(f"'{line}': {' '.join(lost)}: not supported by the scripts in bench/ (bench/suites.py)")
    return problem


def parse(line: str) -> Problem:
    """Parses the line of a problem that a script times. Also refuses a problem whose visible pairs it cannot count."""
    problem = read(line)
    if problem.mask and (problem.causal or problem.window):
        raise ValueError(f"'{line}': mask= with causal or window=: these scripts could not count the visible pairs")
    return problem


def suite(name: str, dtype: str) -> dict[str, Problem]:
    """The problems of a suite. A line without its own dtype gets `dtype`."""
    problems = {}
    for problem_name, line in SUITES[name].items():
        own = line.split()[0] in DTYPES or line.startswith("q=")
        problems[problem_name] = parse(line if own else f"{dtype} {line}".replace("DTYPE", dtype))
    return problems
