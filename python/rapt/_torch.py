"""PyTorch tensors: eager calls go straight to rapt._core, which reads the tensors through DLPack's C exchange; the
operators rapt::sdpa, rapt::sdpa_out and rapt::merge serve torch.compile, fake tensors, tensor subclasses and autograd.

Loaded by _dispatch.py at the first tensor. There is no backward: the operators' one says so.
"""

from __future__ import annotations

import torch
from torch.compiler import is_dynamo_compiling

from . import _core, _dispatch, _values
from ._dispatch import Front, load_default_pack, register
from ._errors import InvalidArgument
from ._signature import bind
from ._views import CPU, CUDA, RAPT_BF16, allocate_in_order, memory_order, type_code

TYPES = (torch.Tensor, torch.nn.Parameter)


def view(tensor: torch.Tensor) -> tuple:
    """What rapt._core reads of a tensor where PyTorch has no C exchange (before 2.10): see register_framework there."""
    kind = {"cpu": CPU, "cuda": CUDA}.get(tensor.device.type, 0)
    return (
        tensor.data_ptr(),
        kind,
        tensor.device.index or 0,
        *type_code(str(tensor.dtype).removeprefix("torch.")),
        tuple(tensor.shape),
        tensor.stride(),
        False,
    )


def stream(like: torch.Tensor) -> int:
    return torch.cuda.current_stream(like.device).cuda_stream


def dtype_named(name: object) -> torch.dtype:
    """ "f16", "float16" or torch.float16 -> torch.float16"""
    short = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
    if isinstance(name, torch.dtype):
        return name
    found = getattr(torch, short.get(str(name), str(name)), None)
    if not isinstance(found, torch.dtype):
        raise InvalidArgument(f"out_dtype = {name!r}: must be float32, float16 or bfloat16")
    return found


def allocate(like: torch.Tensor, shape, name: object, zeroed: bool = False) -> torch.Tensor:
    """A tensor in the order of `like`'s dimensions where both have as many."""
    dtype, make = dtype_named(name), torch.zeros if zeroed else torch.empty
    order = memory_order(like.stride()) if len(shape) == like.dim() else list(range(len(shape)))

    def empty(sizes):
        return _Transposable(make(sizes, dtype=dtype, device=like.device))

    return allocate_in_order(empty, tuple(shape), order).tensor


class _Transposable:
    """torch.Tensor.transpose means something else than numpy.ndarray.transpose."""

    def __init__(self, tensor: torch.Tensor):
        self.tensor = tensor

    def transpose(self, order) -> "_Transposable":
        return _Transposable(self.tensor.permute(order))


load_default_pack()  # before the operators: a damaged pack says so at every call, and they can be defined but once

# The operators. Their arguments are those of rapt.sdpa, an array or a number of one name (q_start) being two.
TENSORS = (
    "q",
    "k",
    "v",
    "bias",
    "mask",
    "alibi_slopes",
    "sinks",
    "cu_seqlens_q",
    "cu_seqlens_k",
    "seqused_k",
    "q_starts",
    "k_starts",
    "q_descale",
    "k_descale",
    "v_descale",
)
OPTIONS = {
    "layout": "str",
    "causal": "str",
    "window": "SymInt[]?",
    "softcap": "float?",
    "scale": "float?",
    "max_seqlen_q": "SymInt?",
    "max_seqlen_k": "SymInt?",
    "q_start": "SymInt?",
    "k_start": "SymInt?",
    "q_scales": "str?",
    "k_scales": "str?",
    "v_scales": "str?",
    "q_dtype": "str?",
    "k_dtype": "str?",
    "v_dtype": "str?",
    "pv": "str?",
    "acc": "str?",
    "partial": "bool",
    "invariant": "bool",
    "check_contents": "bool",
    "splits": "SymInt?",
}


ARRAYS = (
    "k",
    "v",
    "bias",
    "mask",
    "alibi_slopes",
    "sinks",
    "lse",
    "out",
    "cu_seqlens_q",
    "cu_seqlens_k",
    "seqused_k",
    "q_start",
    "k_start",
    "q_descale",
    "k_descale",
    "v_descale",
)
DIFFERENTIABLE = ("q", "k", "v", "bias", "sinks", "alibi_slopes", "q_descale", "k_descale", "v_descale", "out", "lse")


def _schema() -> str:
    tensors = [f"Tensor{'' if name in 'qkv' else '?'} {name}" for name in TENSORS]
    return ", ".join(tensors + [f"{kind} {name}" for name, kind in OPTIONS.items()])


LIBRARY = torch.library.Library("rapt", "DEF")
LIBRARY.define(f"sdpa({_schema()}, ScalarType? out_dtype, bool lse) -> (Tensor, Tensor)")
LIBRARY.define(f"sdpa_out({_schema()}, Tensor(a!) out, Tensor(b!)? lse_out) -> ()")
LIBRARY.define("merge(Tensor[] outs, Tensor[] lses, Tensor? sinks, ScalarType out_dtype, bool lse) -> (Tensor, Tensor)")
COUNT = len(TENSORS) + len(OPTIONS)


def _plain(value):
    """A tensor of a subclass as the torch.Tensor that it is: an operator's implementation meets both."""
    return value.as_subclass(torch.Tensor) if isinstance(value, torch.Tensor) and type(value) not in TYPES else value


def _core_options(values, **outputs) -> tuple[list, dict]:
    """(q, k, v) and the options of rapt._core.sdpa from an operator's arguments."""
    given = dict(zip((*TENSORS, *OPTIONS), map(_plain, values)))
    for name in ("q_start", "k_start"):
        starts = given.pop(name + "s")
        given[name] = given[name] if starts is None else starts
    given["causal"] = given["causal"] or False
    given.update(outputs)
    return [given.pop(name) for name in ("q", "k", "v")], given


def _run(*values):
    *shared, out_dtype, lse = values
    arrays, options = _core_options(shared, out_dtype=out_dtype, lse=lse)
    with torch.no_grad():
        result = _core.sdpa(*arrays, **options)
    return result if isinstance(result, tuple) else (result, _no_lse(result))


def _run_out(*values) -> None:
    *shared, out, lse_out = values
    arrays, options = _core_options(shared, out=_plain(out), lse=False if lse_out is None else _plain(lse_out))
    with torch.no_grad():
        _core.sdpa(*arrays, **options)


def _run_merge(outs, lses, sinks, out_dtype, lse):
    with torch.no_grad():
        result = _core.merge(
            [_plain(one) for one in outs], [_plain(one) for one in lses], _plain(sinks), lse, None, out_dtype, None
        )
    return result if isinstance(result, tuple) else (result, _no_lse(result))


def _no_lse(like: torch.Tensor) -> torch.Tensor:
    return torch.empty((0,), dtype=torch.float32, device=like.device)


def _fake(*values):
    *shared, out_dtype, lse = values
    given = dict(zip((*TENSORS, *OPTIONS), shared))
    q, v, partial = given["q"], given["v"], given["partial"]
    dtype = torch.float32 if partial else out_dtype or _default_dtype(q, v)
    if dtype == q.dtype and v.shape[-1] == q.shape[-1]:
        out = torch.empty_like(q)
    else:
        out = allocate(q, (*q.shape[:-1], v.shape[-1]), dtype)
    if not lse and not partial:
        return out, _no_lse(q)
    if q.dim() == 3:
        sizes = (q.shape[1], q.shape[0])
    else:
        batch, one, two = q.shape[:3]
        sizes = (batch, two, one) if given["layout"] == "bshd" else (batch, one, two)
    return out, torch.empty(sizes, dtype=torch.float32, device=q.device)


def _default_dtype(q: torch.Tensor, v: torch.Tensor) -> torch.dtype:
    ordinary = (torch.float32, torch.float16, torch.bfloat16)
    return q.dtype if q.dtype in ordinary else v.dtype if v.dtype in ordinary else torch.bfloat16


def _fake_merge(outs, lses, sinks, out_dtype, lse):
    out = allocate(outs[0], outs[0].shape, out_dtype)
    return out, torch.empty(lses[0].shape, dtype=torch.float32, device=out.device) if lse else _no_lse(out)


def _no_backward(context, *gradients):
    raise NotImplementedError(
        "rapt has no backward yet: call it under torch.no_grad() or torch.inference_mode(), or on "
        "tensors that need no gradient"
    )


for _name, _function in (("sdpa", _run), ("sdpa_out", _run_out), ("merge", _run_merge)):
    for _key in ("CPU", "CUDA"):
        LIBRARY.impl(_name, _function, _key)
torch.library.register_fake("rapt::sdpa", _fake, lib=LIBRARY)
torch.library.register_fake("rapt::sdpa_out", lambda *values: None, lib=LIBRARY)
torch.library.register_fake("rapt::merge", _fake_merge, lib=LIBRARY)
torch.library.register_autograd("rapt::sdpa", _no_backward, lib=LIBRARY)
torch.library.register_autograd("rapt::merge", _no_backward, lib=LIBRARY)


def _text(value):
    """A dtype's or word's name: operators take strings."""
    return value if value is None else str(value).removeprefix("torch.")


def through_operator(q, k, v, **options):
    """rapt.sdpa by the operator."""
    given = bind(q, k, v, options)
    _check(given)
    if given["context"] is not None:
        raise InvalidArgument("context: an operator under torch.compile or autograd runs in the process default")
    causal = given["causal"]
    given["causal"] = "bottom_right" if causal is True else "" if causal is False else causal
    for name in ("q_start", "k_start"):
        is_array = isinstance(given[name], torch.Tensor)
        given[name + "s"] = given[name] if is_array else None
        given[name] = None if is_array else given[name]
    for name in ("q_dtype", "k_dtype", "v_dtype"):
        given[name] = _text(given[name])
    shared = [given[name] for name in (*TENSORS, *OPTIONS)]
    out, lse, out_dtype = given["out"], given["lse"], given["out_dtype"]
    lse_wanted = lse is not False and lse is not None
    if out is None and not isinstance(lse, torch.Tensor):
        made = torch.ops.rapt.sdpa(*shared, None if out_dtype is None else dtype_named(out_dtype), lse_wanted)
        return made if lse_wanted or given["partial"] else made[0]
    return _into_outputs(shared, given, lse_wanted or given["partial"])


def _check(given) -> None:
    """The rules of rapt._core that an operator's schema would bend or break over."""
    _values.check(given)
    for name in ARRAYS:
        value = given[name]
        scalar = (name == "lse" and (value is True or value is False)) or (
            name in ("q_start", "k_start") and isinstance(value, int)
        )
        if scalar and name != "lse":
            _values.integer(name, value)
        if value is not None and not scalar and not isinstance(value, torch.Tensor):
            kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
            raise InvalidArgument(f"{name}: a {kind}, but q is of torch: all arrays of a call come from one framework")
    for name in ("q", "k", "v"):
        if given[name].dim() not in (3, 4):
            raise InvalidArgument(f"{name}: rank {given[name].dim()}: must be 4, or 3 with cu_seqlens_q")


def _into_outputs(shared, given, lse_wanted: bool):
    """out=, or an array as lse=: the other one, where it is wanted too, is made here."""
    out, lse, made = given["out"], given["lse"], None
    tensors = (given[name] for name in DIFFERENTIABLE)
    if torch.is_grad_enabled() and any(isinstance(one, torch.Tensor) and one.requires_grad for one in tensors):
        raise InvalidArgument(
            "out, or an array as lse: gradients do not flow through an array of yours, and an input needs one"
        )
    if out is None or (lse_wanted and not isinstance(lse, torch.Tensor)):
        dtype = None if given["out_dtype"] is None else dtype_named(given["out_dtype"])
        made = _fake(*shared, dtype, lse_wanted)
    out = made[0] if out is None else out
    if not isinstance(lse, torch.Tensor):
        lse = made[1] if lse_wanted else None
    torch.ops.rapt.sdpa_out(*shared, out, lse)
    return (out, lse) if lse is not None else out


def redirect(operation: str, q, k, v, **options):
    """Called by rapt._core for tensors of subclasses (fake tensors among them), and where somebody traces or wants a
    gradient."""
    if operation == "sdpa":
        return through_operator(q, k, v, **options)
    _check(bind(q, k, v, options))
    return _plainly(operation, q, k, v, **options)


def _plainly(operation: str, q, k, v, **options):
    """rapt._core's operation without subclasses and gradients."""
    plain = {name: _plain(value) for name, value in options.items()}
    with torch.no_grad():
        return getattr(_core, operation)(_plain(q), _plain(k), _plain(v), **plain)


def _merge_through_operator(outs, lses, sinks, lse, out, out_dtype, context):
    if out is not None or isinstance(lse, torch.Tensor) or context is not None:
        raise InvalidArgument("out, context, or an array as lse: not taken by merge() under torch.compile")
    made = torch.ops.rapt.merge(list(outs), list(lses), sinks, dtype_named(out_dtype or torch.float32), bool(lse))
    return made if lse else made[0]


def merge(outs, lses, sinks, lse, out, out_dtype, context):
    given = [one for one in (*outs, *lses, sinks) if one is not None]
    if is_dynamo_compiling() or any(type(one) not in TYPES for one in given) or _is_watched(given):
        return _merge_through_operator(outs, lses, sinks, lse, out, out_dtype, context)
    return _core.merge(outs, lses, sinks, lse, out, out_dtype, context)


def _is_watched(tensors) -> bool:
    """Whether something records what happens to these tensors, or a gradient is wanted."""
    wanted = torch.is_grad_enabled() and any(one.requires_grad for one in tensors)
    return wanted or torch.autograd.forward_ad._current_level >= 0 or any(ask() for ask in TRACING)


def room(tensor: torch.Tensor) -> int:
    """Bytes of a tensor's storage from its first element on."""
    return tensor.untyped_storage().nbytes() - tensor.storage_offset() * tensor.element_size()


def written(tensors: tuple) -> None:
    """Autograd finds by the version counter that a tensor which it keeps for a backward pass was overwritten."""
    torch.autograd.graph.increment_version(tensors)


def _empty_strided_cuda():
    """What TorchInductor's programs allocate with, in half of empty_like's time, which is most of a call's.

    Not public, so it may be missing.
    """
    guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
    return getattr(guards, "_empty_strided_cuda", None) if torch.version.cuda else None


FRONT = Front(_core.sdpa, _core.prepare, _core.explain, merge)
OPERATOR_FRONT = Front(
    through_operator,
    lambda q, k, v, **options: _plainly("prepare", q, k, v, **options),
    lambda q, k, v, **options: _plainly("explain", q, k, v, **options),
    _merge_through_operator,
)
EXCHANGE = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)  # PyTorch 2.10 and later
# Modes that see every operation, and torch.jit.trace. Not public: what is missing asks nothing.
TRACING = tuple(
    function
    for function in (getattr(torch._C, name, None) for name in ("_len_torch_dispatch_stack", "_is_tracing"))
    if function is not None
)
_core.register_framework(
    TYPES,
    "torch",
    RAPT_BF16,
    {
        "exchange": EXCHANGE,
        "view": view,
        "allocate": allocate,
        "empty_like": torch.empty_like,
        "empty_strided": _empty_strided_cuda() if EXCHANGE else None,
        "stream": None if EXCHANGE else stream,
        "redirect": redirect,
        "grad_enabled": torch.is_grad_enabled,
        "tracing": TRACING,
        "forward_ad": torch.autograd.forward_ad if hasattr(torch.autograd.forward_ad, "_current_level") else None,
        "negated": torch.Tensor.is_neg,
        "room": room,
        "written": getattr(torch._C, "_increment_version", written),
    },
)


def front_of(tensor) -> Front:
    if is_dynamo_compiling() or type(tensor) not in TYPES:
        return OPERATOR_FRONT
    _dispatch.tracing = is_dynamo_compiling  # not while tracing: what changes then breaks torch.compile's guards
    return register(tensor, FRONT)
