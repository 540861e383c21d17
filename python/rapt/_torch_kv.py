"""kv_append and rotary_tables on PyTorch tensors. Eager calls go to rapt._core. A call that must be traced goes to the
operator rapt::kv_append, which changes its arguments in place (_torch_operators.py lists the cases).
"""

from __future__ import annotations

import torch
from torch.compiler import is_dynamo_compiling

from . import _eager
from ._contexts import number_of, numbered
from ._errors import InvalidArgument, Unsupported
from ._torch_arrays import allocate, needs_operator, plain, transformed
from ._torch_operators import CONTEXT, LIBRARY
from ._torch_profiling import PROFILER, recorded, shapes_line
from ._values import APPEND_ARRAYS as ARRAYS
from ._values import APPEND_OPTIONS as OPTIONS

# Descales are inputs (k_descale) or outputs (k_descale_out). q = None with q_out: q_out is rotated in place, because an
# operator must not get the same tensor as an input and as an output.
INPUTS = tuple(name for name in ARRAYS if name != "q_out")
OUTPUTS = {"k_descale_out": "c", "v_descale_out": "d", "q_out": "e"}
TYPES = {"interleaved": "bool", "q_at_start": "bool", "check_contents": "bool", "layout": "str"}
_SCHEMA = ", ".join(
    ["Tensor k", "Tensor v", "Tensor(a!) k_cache", "Tensor(b!) v_cache"]
    + [f"Tensor? {name}" for name in INPUTS]
    + [f"Tensor({alias}!)? {name}" for name, alias in OUTPUTS.items()]
    + [f"{TYPES.get(name, 'str?')} {name}" for name in OPTIONS]
)
LIBRARY.define(f"kv_append({_SCHEMA}, {CONTEXT}) -> ()")


def _eagerly(k, v, k_cache, v_cache, given: dict):
    if not PROFILER._is_profiler_enabled:
        return _eager.kv_append(allocate, k, v, k_cache, v_cache, given)
    line = shapes_line(k, k_cache)
    return recorded("kv_append", line, _eager.kv_append, allocate, k, v, k_cache, v_cache, given)


def _run(k, v, k_cache, v_cache, *values, context=None) -> None:
    given = dict(zip((*INPUTS, *OUTPUTS, *OPTIONS), map(plain, values)), context=numbered(context))
    for name in ("k_descale", "v_descale"):
        made = given.pop(f"{name}_out")
        given[name] = given[name] if made is None else made
    if given["q"] is None:
        given["q"] = given["q_out"]
    with torch.no_grad():
        _eagerly(plain(k), plain(v), plain(k_cache), plain(v_cache), given)


for _key in ("CPU", "CUDA"):
    LIBRARY.impl("kv_append", _run, _key)
torch.library.register_fake("rapt::kv_append", lambda *values, context=None: None, lib=LIBRARY)


def _expect_tensors(given: dict) -> None:
    for name, value in given.items():
        if value is not None and not isinstance(value, torch.Tensor):
            kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
            raise InvalidArgument(f"{name}: a {kind}, but all arrays of a call come from one framework, here torch")


def kv_append(k, v, k_cache, v_cache, given: dict):
    arrays = {"k": k, "v": v, "k_cache": k_cache, "v_cache": v_cache, **{name: given[name] for name in ARRAYS}}
    tensors = [one for one in arrays.values() if isinstance(one, torch.Tensor)]
    if torch.is_grad_enabled() and any(one.requires_grad for one in tensors):
        raise Unsupported(
            "rapt.kv_append has no backward: call it under torch.no_grad() or on tensors that do not need a gradient"
        )
    if not is_dynamo_compiling():
        if transformed():
            raise Unsupported("kv_append: not allowed inside torch.func's transformations, because it writes in place")
        if not needs_operator(tensors):
            return _eagerly(k, v, k_cache, v_cache, given)
    _expect_tensors(arrays)
    q, q_out = given["q"], given["q_out"]
    if q is not None and q_out is None:
        q_out = torch.empty_like(q)
    shared = dict(given, q=None if q_out is q else q)
    outputs = [None, None, q_out]
    for index, name in enumerate(("k", "v")):
        if given[f"{name}_scales"] == "token":
            outputs[index], shared[f"{name}_descale"] = given[f"{name}_descale"], None
        dtype = given[f"{name}_cache_dtype"]
        shared[f"{name}_cache_dtype"] = dtype if dtype is None else str(dtype).removeprefix("torch.")
    torch.ops.rapt.kv_append(
        k,
        v,
        k_cache,
        v_cache,
        *(shared[name] for name in INPUTS),
        *outputs,
        *(shared[name] for name in OPTIONS),
        context=number_of(given["context"]),
    )
    return q_out


def rotary_tables(shape, like, fill):
    cos, sin = (torch.empty(shape, dtype=torch.float32, device="cpu") for _ in range(2))
    fill(cos, sin)
    return cos.to(like.device), sin.to(like.device)
