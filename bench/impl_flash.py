"""The flash-attention family: flash_attn (2), flash_attn_interface (3) and flash_attn.cute (4).

Called through implementations.py; used if they can be imported. All take [batch, seqlen, heads, dim], and causal means
bottom-right. Windows include both ends, as in docs/semantics.md.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import inspect
import pathlib
import sys

from implementation import Implementation, only
from inputs import Inputs
from suites import Problem


def installed_version(module, *distributions: str) -> str:
    """The version of the module. If it has none, the version of the first of these distributions that is installed."""
    for name in distributions:
        try:
            return f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            continue
    return str(getattr(module, "__version__", "unknown"))


class FlashAttention2(Implementation):
    """flash_attn.flash_attn_func and flash_attn_varlen_func."""

    name, layout, family = "flash-attn-2", "bshd", "flash_attn"

    def load(self) -> None:
        module = importlib.import_module("flash_attn")
        self.dense, self.packed, self.module = module.flash_attn_func, module.flash_attn_varlen_func, module

    def version(self) -> str:
        return installed_version(self.module, "flash-attn")

    def refusal(self, problem: Problem) -> str:
        return only(problem, dtype=["f16", "bf16"], varlen=True, window=True, softcap=True, alibi=True)

    def options(self, inputs: Inputs) -> dict:
        problem = inputs.problem
        options: dict = {"causal": bool(problem.causal)}
        if problem.window:
            options["window_size"] = problem.window
        if problem.softcap:
            options["softcap"] = problem.softcap
        if inputs.slopes is not None:
            options["alibi_slopes"] = inputs.slopes
        return options

    def bind(self, inputs: Inputs):
        problem, options = inputs.problem, self.options(inputs)
        if not problem.varlen:
            function, tensors = self.dense, inputs.bshd()
            return lambda: function(*tensors, **options)
        function, tensors = self.packed, (inputs.q, inputs.k, inputs.v)
        options.update(
            cu_seqlens_q=inputs.cu_q, cu_seqlens_k=inputs.cu_k, max_seqlen_q=problem.q, max_seqlen_k=problem.k
        )
        return lambda: function(*tensors, **options)

    def logical(self, out, problem):
        return super().logical(out[0] if isinstance(out, (tuple, list)) else out, problem)


class FlashAttention3(FlashAttention2):
    """FlashAttention-3, for Hopper: flash_attn_interface, or the PyPI wheel fa3-fwd (fa3_fwd_interface, which is
    forward only and has no f16). It chooses the number of splits itself (num_splits=0), which makes decoding faster.
    """

    name, family = "flash-attn-3", "flash_attn_interface"

    def load(self) -> None:
        self.has_f16 = True
        try:
            module = importlib.import_module("flash_attn_interface")
        except ModuleNotFoundError:
            module, self.has_f16 = importlib.import_module("fa3_fwd_interface"), False
        self.dense, self.packed, self.module = module.flash_attn_func, module.flash_attn_varlen_func, module
        self.has_sinks = "sinks" in inspect.signature(self.dense).parameters

    def version(self) -> str:
        return installed_version(self.module, "flash-attn-3", "tokenspeed-fa3", "fa3-fwd")

    @property
    def lossy(self) -> bool:
        return self._fp8

    _fp8 = False

    def begin(self, problem: Problem) -> dict:
        self._fp8 = problem.dtype == "e4m3"
        return {}

    def refusal(self, problem: Problem) -> str:
        if problem.dtype == "e4m3" and problem.out != "bf16":
            return f"FP8 output is bf16, the problem needs {problem.out}"
        if problem.dtype == "e4m3" and problem.scales == "head" and problem.h != problem.hk:
            return "q's scales must be one for each head of k"
        dtypes = ["f16", "bf16", "e4m3"] if self.has_f16 else ["bf16", "e4m3"]
        return only(problem, dtype=dtypes, varlen=True, window=True, softcap=True, sinks=self.has_sinks)

    def options(self, inputs: Inputs) -> dict:
        options = super().options(inputs)
        options["num_splits"] = 0
        if inputs.sinks is not None:
            options["sinks"] = inputs.sinks.to(inputs.q.dtype)
        if inputs.q_descale is not None:  # it needs a scale for each batch and head of k, so a single one is repeated
            shape = (inputs.problem.b, inputs.problem.hk)
            options.update(
                q_descale=inputs.q_descale.expand(shape),
                k_descale=inputs.k_descale.expand(shape),
                v_descale=inputs.v_descale.expand(shape),
            )
        return options


def find_cutlass_dsl() -> None:
    """Adds the packages of nvidia-cutlass-dsl to sys.path, as its .pth file does after `pip install`.

    An unpacked wheel on PYTHONPATH also has the .pth file, but Python reads .pth files only in site-packages.
    """
    distribution = importlib.util.find_spec("nvidia_cutlass_dsl")
    if importlib.util.find_spec("cutlass") is not None or distribution is None:
        return
    for place in distribution.submodule_search_locations or ():
        folder = pathlib.Path(place) / "dsl_packages"
        if folder.is_dir():
            sys.path.append(str(folder))


class FlashAttention4(FlashAttention2):
    """flash_attn.cute. It compiles a kernel at the first call for each kind of problem. None means no window limit."""

    name, family = "flash-attn-4", "flash_attn.cute"

    def load(self) -> None:
        find_cutlass_dsl()
        module = importlib.import_module("flash_attn.cute")
        self.dense, self.packed, self.module = module.flash_attn_func, module.flash_attn_varlen_func, module

    def version(self) -> str:
        compiler = installed_version(None, "nvidia-cutlass-dsl", "nvidia-cutlass-dsl-libs-base")
        return f"{installed_version(self.module, 'flash-attn-4')}, {compiler}"

    def refusal(self, problem: Problem) -> str:
        return only(problem, dtype=["f16", "bf16"], varlen=True, window=True, softcap=True, sinks=True)

    def options(self, inputs: Inputs) -> dict:
        options = super().options(inputs)
        if "window_size" in options:
            options["window_size"] = tuple(None if bound < 0 else bound for bound in options["window_size"])
        if inputs.sinks is not None:
            options["learnable_sink"] = inputs.sinks.to(inputs.q.dtype)
        return options
