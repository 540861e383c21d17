"""What the peer benchmarks share: rapt's C ABI through ctypes, problems, the float64 reference, bounds, result rows.

Imported by cpu_peers.py and gpu_peers.py; needs PyTorch. Rows follow docs/results-schema.json.
"""
import ctypes
import datetime
import json
import math
import os
import re
import statistics

import torch

TORCH = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
RAPT = {"f32": 1, "f16": 2, "bf16": 3}
BYTES = {"f32": 4, "f16": 2, "bf16": 2}
ROUNDOFF = {"f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}
DEVICE_TYPE = {"cpu": 1, "cuda": 2}
CAUSAL = 1


class Device(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("index", ctypes.c_int32)]


class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device", Device), ("dtype", ctypes.c_int32), ("rank", ctypes.c_int32),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64))]


class Args(ctypes.Structure):
    """rapt_sdpa_args as far as these scripts fill it; the tail stays zero (absent)."""
    _fields_ = [("struct_size", ctypes.c_size_t), ("has", ctypes.c_uint64), ("flags", ctypes.c_uint64),
                ("q", ctypes.POINTER(Tensor)), ("k", ctypes.POINTER(Tensor)), ("v", ctypes.POINTER(Tensor)),
                ("out", ctypes.POINTER(Tensor)), ("tail", ctypes.c_byte * 1024)]


class Options(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("num_threads", ctypes.c_int32), ("reserved", ctypes.c_int32)]


class Rapt:
    """One build of librapt.so with a context of its own."""

    def __init__(self, library, threads=0):
        self.lib = ctypes.CDLL(os.path.abspath(library))
        self.lib.rapt_last_error.restype = ctypes.c_char_p
        self.lib.rapt_version.restype = ctypes.c_char_p
        for function in (self.lib.rapt_sdpa, self.lib.rapt_prepare):
            function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
        self.context = ctypes.c_void_p()
        options = Options(ctypes.sizeof(Options), threads, 0)
        self.check(self.lib.rapt_context_create(ctypes.byref(options), ctypes.byref(self.context)))

    def version(self):
        return self.lib.rapt_version().decode()

    def check(self, status):
        if status != 0:
            raise RuntimeError(self.lib.rapt_last_error().decode())

    def tensor(self, t, dtype):
        shape = (ctypes.c_int64 * t.dim())(*t.shape)
        strides = (ctypes.c_int64 * t.dim())(*t.stride())
        return Tensor(t.data_ptr(), Device(DEVICE_TYPE[t.device.type], t.device.index or 0), RAPT[dtype], t.dim(), shape, strides)

    def args(self, q, k, v, out, dtype, causal):
        """The caller keeps the tensors alive; the struct keeps its views alive."""
        tensors = [self.tensor(t, dtype) for t in (q, k, v, out)]
        args = Args()
        args.struct_size = ctypes.sizeof(Args)  # larger than the library's: the unknown tail is zero
        args.flags = CAUSAL if causal else 0
        args.q, args.k, args.v, args.out = [ctypes.pointer(t) for t in tensors]
        return args

    def bind(self, q, k, v, out, dtype, causal, stream=None):
        """A call without arguments that enqueues on `stream` (an integer handle) and returns out."""
        args = self.args(q, k, v, out, dtype, causal)
        reference, sdpa, context = ctypes.addressof(args), self.lib.rapt_sdpa, self.context

        def call(args=args):  # the default holds what `reference` points to
            if sdpa(context, reference, stream):
                raise RuntimeError(self.lib.rapt_last_error().decode())
            return out

        return call

    def prepare(self, args, stream=None):
        self.check(self.lib.rapt_prepare(self.context, ctypes.addressof(args), stream))

    def explain(self, args):
        """rapt_explain as lines "word  rest": the canonical problem line, the device, each family."""
        length = ctypes.c_size_t()
        buffer = ctypes.create_string_buffer(1 << 16)
        self.check(self.lib.rapt_explain(self.context, ctypes.byref(args), buffer, ctypes.c_size_t(len(buffer)), ctypes.byref(length)))
        return buffer.value.decode().splitlines()

    def plan(self, args):
        """(canonical problem line, family, its configuration) that this build chooses."""
        lines = self.explain(args)
        problem = next((line.split(None, 1)[1] for line in lines if line.startswith("problem")), "")
        chosen = next((line.split("chosen,", 1)[1].strip() for line in lines if "chosen," in line), "")
        family, _, config = chosen.partition(" ")
        return problem.strip(), family, config


def file_safe(name):
    """As the lab names cards: "Intel(R) Xeon(R) Processor" -> "intel-xeon-processor"."""
    return re.sub(r"[^a-z0-9.]+", "-", re.sub(r"\((r|tm)\)", "", name.lower())).strip("-")


def numbers(problem):
    """{"b": 1, "h": 32, "hk": 8, "q": 512, "k": 512, "d": 64} of the dense problem lines used here."""
    n = {letter: int(value) for letter, value in re.findall(r"\b([bhqkd])(\d+)", problem)}
    n.setdefault("k", n["q"])
    groups = re.search(r"\bh\d+:(\d+)", problem)
    n["hk"] = int(groups[1]) if groups else n["h"]
    return n


def shapes(n):
    kv = (n["b"], n["hk"], n["k"], n["d"])
    return [(n["b"], n["h"], n["q"], n["d"]), kv, kv]


def flops(n, causal):
    pairs = n["q"] * (n["q"] + 1) / 2 + n["q"] * (n["k"] - n["q"]) if causal else n["q"] * n["k"]
    return 4.0 * n["b"] * n["h"] * pairs * n["d"]


def bytes_moved(n, dtype):
    """Every tensor read or written once."""
    return 2.0 * BYTES[dtype] * n["b"] * n["d"] * (n["h"] * n["q"] + n["hk"] * n["k"])


def attention(q, k, v, causal, rows, compute, probability=None):
    """Unfused attention of some query rows (all where None) in the format `compute`; p rounded to `probability`."""
    seqlen_q, group = q.shape[2], q.shape[1] // k.shape[1]
    if rows is None:
        rows = torch.arange(seqlen_q, device=q.device)
    k, v = (t.to(compute).repeat_interleave(group, 1) for t in (k, v))
    scores = q[:, :, rows].to(compute) @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if causal:
        keys = torch.arange(k.shape[2], device=q.device)
        scores.masked_fill_(keys[None, :] > rows[:, None] + (k.shape[2] - seqlen_q), -math.inf)
    p = scores.softmax(-1)
    if probability is not None:
        p = p.to(probability).to(compute)
    return p @ v


def reference(q, k, v, causal, rows=None):
    return attention(q, k, v, causal, rows, torch.float64)


def errors(out, expected):
    difference = out.double() - expected
    if not bool(torch.isfinite(difference).all()):
        raise RuntimeError("NaN or Inf in the output")
    return {"max_abs": difference.abs().max().item(), "mean_abs": difference.abs().mean().item(),
            "rel_rms": (difference.norm() / expected.norm()).item()}


class Judge:
    """Errors of outputs on sampled rows against float64, and the bounds for 16-bit kernels (check/bounds.cpp), from what
    an unfused implementation with float scores, p rounded to the element type and float sums does on the same rows."""

    def __init__(self, data, dtype, causal, generator):
        seqlen_q, seqlen_k = data[0].shape[2], data[1].shape[2]
        self.step = max(1, seqlen_q * seqlen_k >> 20)  # one random row out of each `step`
        starts = torch.arange(0, seqlen_q, self.step)
        offsets = torch.randint(self.step, starts.shape, generator=generator)
        self.rows = (starts + offsets).clamp_(max=seqlen_q - 1).to(data[0].device)
        self.expected = reference(*data, causal, self.rows)
        plain = attention(*data, causal, self.rows, torch.float32, TORCH[dtype]).to(TORCH[dtype])
        of_plain, u = errors(plain, self.expected), ROUNDOFF[dtype]
        self.bounds = {"max_abs": 2 * of_plain["max_abs"] + u * self.expected.abs().max().item(),
                       "rel_rms": 1.1 * of_plain["rel_rms"] + u / 4}

    def __call__(self, out):
        """The errors. Raises RuntimeError where one is beyond its bound."""
        found = errors(out[:, :, self.rows], self.expected)
        for name, bound in self.bounds.items():
            if not found[name] <= bound:
                raise RuntimeError(f"{name} {found[name]:.2e} exceeds its bound {bound:.2e}")
        return found


def quartiles(values):
    """(q1, median, q3), linear between neighbours."""
    if len(values) < 2:
        return values[0], values[0], values[0]
    q1, q2, q3 = statistics.quantiles(values, n=4, method="inclusive")
    return q1, q2, q3


def row(problem, arm, us, **more):
    """A row of the results schema; `more` gives every field that these defaults do not settle."""
    q1, median, q3 = quartiles(us)
    found = {
        "schema": "rapt.bench/1", "problem": problem, "arm": arm, "family": "", "config": "", "signature": "", "us": us,
        "median": median, "q1": q1, "q3": q3, "calls": 1, "cold_us": None, "timer": "host", "pdl": False, "l2": "warm",
        "input_sets": 1, "roof_share": None, "threads": 0, "driver": "", "nvrtc": "",
        "gemm_tflops": {"f32": None, "bf16": None, "f16": None, "fp8": None}}
    operations, moved = more.pop("flops"), more.pop("bytes")
    found.update(more)
    found["pdl"] = "programmatic=1" in found["config"]
    found["gflops"], found["gbytes"] = operations / median * 1e-3, moved / median * 1e-3
    return found


def write_rows(path, rows):
    """Whole or absent."""
    temporary = path + ".tmp"
    with open(temporary, "w") as file:
        for one in rows:
            file.write(json.dumps(one) + "\n")
    os.replace(temporary, path)
    print(datetime.datetime.now(datetime.timezone.utc).strftime("written %Y-%m-%dT%H:%M:%SZ: "), path)
