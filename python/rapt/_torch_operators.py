"""PyTorch operators: rapt::sdpa, rapt::merge and their _out forms. They are for torch.compile, fake tensors, subclasses
of tensors, tracers, autograd and torch.func, which cannot see an eager call (_torch.py). Their implementations call
rapt._core. There is no backward and no forward-mode derivative: the operators' autograd kernels raise.
"""

from __future__ import annotations

import torch
from torch.compiler import is_dynamo_compiling

from . import _core, _torch_vmap, _values
from ._contexts import load_default_pack, number_of, numbered
from ._errors import InvalidArgument, Unsupported
from ._signature import BY_HAND, DIFFERENTIABLE, FLAGS, OPERANDS, PARAMETER_OF, SCALARS, STARTS, bind, split_starts
from ._torch_arrays import allocate, dtype_named, plain, refuse_nested, refuse_tangents, transformed
from ._torch_profiling import PROFILER, problem_line, recorded, register_sdpa_flops, shapes_line

# If a damaged pack raises here, no operator exists yet. So a second import can define the operators.
load_default_pack()

# The operators have the arguments of rapt.sdpa. A parameter that can be an array or a number (q_start) becomes two
# arguments.
TENSORS = ("q", "k", "v", *OPERANDS)
KINDS = {"real": "float?", "integer": "SymInt?", "word": "str?"}
OPTIONS = {
    **{name: row.operator for name, row in BY_HAND.items() if row.operator},
    **{parameter: KINDS[kind] for _, parameter, kind, *_ in SCALARS if parameter},
    **{parameter: "bool" for parameter, _ in FLAGS},
}


def _schema() -> str:
    tensors = [f"Tensor{'' if name in 'qkv' else '?'} {name}" for name in TENSORS]
    return ", ".join(tensors + [f"{kind} {name}" for name, kind in OPTIONS.items()])


LIBRARY = torch.library.Library("rapt", "DEF")
# A rapt.Context is passed by its number, because operators take no Python objects.
CONTEXT = "*, int? context=None"
LIBRARY.define(f"sdpa({_schema()}, ScalarType? out_dtype, bool lse, {CONTEXT}) -> (Tensor, Tensor)")
LIBRARY.define(f"sdpa_out({_schema()}, Tensor(a!) out, Tensor(b!)? lse_out, {CONTEXT}) -> ()")
LIBRARY.define(
    f"merge(Tensor[] outs, Tensor[] lses, Tensor? sinks, ScalarType out_dtype, bool lse, {CONTEXT}) -> (Tensor, Tensor)"
)
LIBRARY.define(
    f"merge_out(Tensor[] outs, Tensor[] lses, Tensor? sinks, Tensor(a!) out, Tensor(b!)? lse_out, {CONTEXT}) -> ()"
)


def _core_options(values, **outputs) -> tuple[list, dict]:
    """Converts an operator's arguments to (q, k, v) and the options of rapt._core.sdpa."""
    given = dict(zip((*TENSORS, *OPTIONS), map(plain, values)))
    for name, as_array in STARTS.items():
        starts = given.pop(as_array)
        given[name] = given[name] if starts is None else starts
    given["causal"] = given["causal"] or False
    given.update(outputs)
    return [given.pop(name) for name in ("q", "k", "v")], given


def run_here(q, k, v, options: dict):
    """Runs rapt.sdpa without redirect(), on tensors that _core can read. A profile shows the call with its problem
    line.
    """
    if not PROFILER._is_profiler_enabled:
        return _core.sdpa_here(q, k, v, **options)
    return recorded("sdpa", problem_line(q, k, v, options), _core.sdpa_here, q, k, v, **options)


def _run(*values, context=None):
    *shared, out_dtype, lse = values
    arrays, options = _core_options(shared, out_dtype=out_dtype, lse=lse, context=numbered(context))
    with torch.no_grad():
        result = run_here(*arrays, options)
    return result if isinstance(result, tuple) else (result, _no_lse(result))


def _run_out(*values, context=None) -> None:
    *shared, out, lse_out = values
    lse = False if lse_out is None else plain(lse_out)
    arrays, options = _core_options(shared, out=plain(out), lse=lse, context=numbered(context))
    with torch.no_grad():
        run_here(*arrays, options)


def run_merge(outs, lses, *others):
    if not PROFILER._is_profiler_enabled:
        return _core.merge(outs, lses, *others)
    return recorded("merge", f"{len(outs)} parts {shapes_line(outs[0])}", _core.merge, outs, lses, *others)


def _run_merge(outs, lses, sinks, out_dtype, lse, *, context=None):
    outs, lses = [plain(one) for one in outs], [plain(one) for one in lses]
    with torch.no_grad():
        result = run_merge(outs, lses, plain(sinks), lse, None, out_dtype, numbered(context))
    return result if isinstance(result, tuple) else (result, _no_lse(result))


def _run_merge_out(outs, lses, sinks, out, lse_out, *, context=None) -> None:
    outs, lses = [plain(one) for one in outs], [plain(one) for one in lses]
    with torch.no_grad():
        run_merge(outs, lses, plain(sinks), plain(lse_out), plain(out), None, numbered(context))


def _no_lse(like: torch.Tensor) -> torch.Tensor:
    return torch.empty((0,), dtype=torch.float32, device=like.device)


def _fake(*values, context=None):
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


def _fake_merge(outs, lses, sinks, out_dtype, lse, *, context=None):
    out = allocate(outs[0], outs[0].shape, out_dtype)
    return out, torch.empty(lses[0].shape, dtype=torch.float32, device=out.device) if lse else _no_lse(out)


def _no_backward(context, *gradients):
    raise Unsupported(
        "rapt has no backward yet: call it under torch.no_grad() or torch.inference_mode(), or on "
        "tensors that do not need a gradient"
    )


def register_no_derivatives(name: str, backward) -> None:
    """Registers, for one operator, a `backward` that raises. Also refuses tangents at every level of torch.func."""
    qualified, operator = f"rapt::{name}", getattr(torch.ops.rapt, name).default
    try:
        from torch._library.autograd import Info, make_autograd_impl
    except ImportError:  # it is not public; if it is missing, direct calls of the operator are not checked
        torch.library.register_autograd(qualified, backward, lib=LIBRARY)
        return
    differentiable = make_autograd_impl(operator, Info(backward, None))
    names = [argument.name for argument in operator._schema.arguments]

    def autograd(keyset, *values, **options):
        given = dict(zip(names, values))
        refuse_tangents(**given)
        if torch.is_grad_enabled() and transformed():
            _refuse_gradients(given)
        return differentiable(keyset, *values, **options)

    LIBRARY.impl(name, autograd, "Autograd", with_keyset=True)


def _needs_gradient(value) -> bool:
    parts = value if isinstance(value, (list, tuple)) else (value,)
    return any(isinstance(one, torch.Tensor) and one.requires_grad for one in parts)


def _refuse_gradients(given: dict) -> None:
    """Raises inside torch.func.grad and similar transformations, before a backward is reached."""
    for name, value in given.items():
        if _needs_gradient(value):
            raise Unsupported(
                f"{name}: torch.func would differentiate with respect to it, but rapt has no backward yet: pass "
                f"{name}.detach() as a constant, or differentiate PyTorch's own operations"
            )


def register_vmap(name: str, rule) -> None:
    if hasattr(torch.library, "register_vmap"):  # PyTorch 2.5 and later
        torch.library.register_vmap(f"rapt::{name}", rule, lib=LIBRARY)


for _name, _function in (("sdpa", _run), ("sdpa_out", _run_out), ("merge", _run_merge), ("merge_out", _run_merge_out)):
    for _key in ("CPU", "CUDA"):
        LIBRARY.impl(_name, _function, _key)
torch.library.register_fake("rapt::sdpa", _fake, lib=LIBRARY)
torch.library.register_fake("rapt::sdpa_out", lambda *values, context=None: None, lib=LIBRARY)
torch.library.register_fake("rapt::merge", _fake_merge, lib=LIBRARY)
torch.library.register_fake("rapt::merge_out", lambda *values, context=None: None, lib=LIBRARY)
register_no_derivatives("sdpa", _no_backward)
register_no_derivatives("merge", _no_backward)
OPERATORS = torch.ops.rapt
register_vmap("sdpa", _torch_vmap.sdpa(OPERATORS.sdpa, (*TENSORS, *OPTIONS, "out_dtype", "lse")))
register_vmap("merge", _torch_vmap.merge(OPERATORS.merge, ("outs", "lses", "sinks", "out_dtype", "lse")))
register_sdpa_flops((OPERATORS.sdpa, OPERATORS.sdpa_out), (*TENSORS, *OPTIONS))


def _text(value):
    """A dtype or word as a string, because operators take strings."""
    return value if value is None else str(value).removeprefix("torch.")


def through_operator(q, k, v, **options):
    """Runs rapt.sdpa through the operator."""
    given = bind(q, k, v, options)
    check(given)
    causal = given["causal"]
    given["causal"] = "bottom_right" if causal is True else "" if causal is False else causal
    split_starts(given, torch.Tensor)
    for name in ("q_dtype", "k_dtype", "v_dtype"):
        given[name] = _text(given[name])
    shared = [given[name] for name in (*TENSORS, *OPTIONS)]
    out, lse, out_dtype = given["out"], given["lse"], given["out_dtype"]
    lse_wanted = lse is not False and lse is not None
    if out is None and not isinstance(lse, torch.Tensor):
        out_dtype = None if out_dtype is None else dtype_named(out_dtype)
        made = torch.ops.rapt.sdpa(*shared, out_dtype, lse_wanted, context=number_of(given["context"]))
        return made if lse_wanted or given["partial"] else made[0]
    return _into_outputs(shared, given, lse_wanted or given["partial"])


def check(given) -> None:
    """Checks rules of rapt._core that the operator's schema does not check well.

    Without these checks, the schema would convert a wrong argument or give an unclear error.
    """
    _values.check(given)
    for name in ("k", "v", *PARAMETER_OF.values(), "lse", "out"):
        value = given[name]
        if name == "lse" and isinstance(value, bool):
            continue
        if name in STARTS and isinstance(value, int):
            _values.integer(name, value)
        elif value is not None and not isinstance(value, torch.Tensor):
            kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
            raise InvalidArgument(f"{name}: a {kind}, but q is of torch: all arrays of a call come from one framework")
    refuse_nested(q=given["q"], k=given["k"], v=given["v"])
    for name in ("q", "k", "v"):
        if given[name].dim() not in (3, 4):
            raise InvalidArgument(f"{name}: rank {given[name].dim()}: must be 4, or 3 with cu_seqlens_q")


def _into_outputs(shared, given, lse_wanted: bool):
    """Runs a call with out=, or with an array as lse=. Allocates the other output if it is needed."""
    out, lse, made = given["out"], given["lse"], None
    tensors = {name: given[name] for name in DIFFERENTIABLE if isinstance(given[name], torch.Tensor)}
    refuse_outputs("out, or an array as lse", tensors)
    if out is None or (lse_wanted and not isinstance(lse, torch.Tensor)):
        dtype = None if given["out_dtype"] is None else dtype_named(given["out_dtype"])
        made = _fake(*shared, dtype, lse_wanted)
    out = made[0] if out is None else out
    if not isinstance(lse, torch.Tensor):
        lse = made[1] if lse_wanted else None
    torch.ops.rapt.sdpa_out(*shared, out, lse, context=number_of(given["context"]))
    return (out, lse) if lse is not None else out


def refuse_outputs(names: str, tensors: dict) -> None:
    """Refuses the caller's output arrays if an input needs a gradient or belongs to a transformation."""
    if torch.is_grad_enabled() and any(_needs_gradient(one) for one in tensors.values()):
        raise InvalidArgument(f"{names}: not allowed if an input needs a gradient; use the returned array instead")
    if is_dynamo_compiling():
        return
    if transformed():
        raise InvalidArgument(
            f"{names}: not allowed inside torch.func's transformations (vmap, grad, functionalize): use the "
            "result that is returned"
        )
    refuse_tangents(**tensors)


def merge_through_operator(outs, lses, sinks, lse, out, out_dtype, context):
    outs, lses, context = list(outs), list(lses), number_of(context)
    refuse_nested(outs=outs[0], lses=lses[0])
    if out is not None and out_dtype is not None:
        raise InvalidArgument(f"out_dtype = {out_dtype!r} with out: give only one of them; out has its own dtype")
    dtype = dtype_named(out_dtype or torch.float32)
    if out is None and not isinstance(lse, torch.Tensor):
        made = torch.ops.rapt.merge(outs, lses, sinks, dtype, bool(lse), context=context)
        return made if lse else made[0]
    given = {"outs": outs, "lses": lses, "sinks": sinks, "out": out, "lse": lse}
    refuse_outputs("out, or an array as lse", given)
    out = allocate(outs[0], outs[0].shape, dtype) if out is None else out
    if lse is True:
        lse = torch.empty(lses[0].shape, dtype=torch.float32, device=out.device)
    wanted = lse if isinstance(lse, torch.Tensor) else None
    torch.ops.rapt.merge_out(outs, lses, sinks, out, wanted, context=context)
    return out if wanted is None else (out, wanted)
