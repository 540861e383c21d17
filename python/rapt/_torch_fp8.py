"""quantize, fake_quantize, qk and gemm on PyTorch tensors. Eager calls go to rapt._core. A call that must be traced or
differentiated (_torch_operators.py lists the cases) goes to the operators rapt::quantize, rapt::qk, rapt::gemm and
their _out forms.
"""

from __future__ import annotations

import torch
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling

from . import _eager, _numbers, _torch_vmap
from ._contexts import number_of, numbered
from ._errors import InvalidArgument, Unsupported
from ._outputs import (
    STORAGE,
    Quantized,
    descale_shape,
    gemm_shape,
    given_outputs,
    mean_shape,
    out_dtype_name,
    qk_shape,
)
from ._torch_arrays import allocate, dtype_named, functionalized, plain, needs_operator
from ._torch_profiling import PROFILER, recorded, register_product_flops, shapes_line
from ._torch_operators import CONTEXT, LIBRARY, refuse_outputs, register_no_derivatives, register_vmap

OF_QUANTIZE = {
    "descale": "Tensor?",
    "cu_seqlens": "Tensor?",
    "layout": "str",
    "scales": "str",
    "format": "str",
    "hadamard": "bool",
    "smooth": "bool",
    "percentile": "float?",
    "max_seqlen": "SymInt?",
}
OF_QK = {
    "q_descale": "Tensor?",
    "k_descale": "Tensor?",
    "layout": "str",
    "scale": "float",
    "q_scales": "str?",
    "k_scales": "str?",
    "q_dtype": "str?",
    "k_dtype": "str?",
}
OF_GEMM = {
    "a_descale": "Tensor?",
    "b_descale": "Tensor?",
    "a_scales": "str?",
    "b_scales": "str?",
    "a_dtype": "str?",
    "b_dtype": "str?",
}


def _schema(options: dict[str, str]) -> str:
    return ", ".join(f"{kind} {name}" for name, kind in options.items())


LIBRARY.define(f"quantize(Tensor x, {_schema(OF_QUANTIZE)}, {CONTEXT}) -> (Tensor, Tensor, Tensor)")
LIBRARY.define(
    f"quantize_out(Tensor x, {_schema(OF_QUANTIZE)}, Tensor(a!) codes, Tensor(b!)? descale_out, Tensor(c!)? mean, "
    f"{CONTEXT}) -> ()"
)
LIBRARY.define(f"qk(Tensor q, Tensor k, {_schema(OF_QK)}, ScalarType out_dtype, {CONTEXT}) -> Tensor")
LIBRARY.define(f"qk_out(Tensor q, Tensor k, {_schema(OF_QK)}, Tensor(a!) out, {CONTEXT}) -> ()")
LIBRARY.define(f"gemm(Tensor a, Tensor b, {_schema(OF_GEMM)}, ScalarType out_dtype, {CONTEXT}) -> Tensor")
LIBRARY.define(f"gemm_out(Tensor a, Tensor b, {_schema(OF_GEMM)}, Tensor(a!) out, {CONTEXT}) -> ()")


def _storage(given: dict) -> str:
    return STORAGE[given["format"]]


def _eagerly(x, given: dict) -> Quantized:
    if not PROFILER._is_profiler_enabled:
        return _eager.quantize(allocate, _storage, x, given)
    line = f"{given['format']} {given['scales']} {shapes_line(x)}"
    return recorded("quantize", line, _eager.quantize, allocate, _storage, x, given)


def _run_quantize(x, *values, context=None):
    given = {**dict(zip(OF_QUANTIZE, map(plain, values))), "out": None, "context": numbered(context)}
    with torch.no_grad():
        made = _eagerly(plain(x), given)
    nothing = _nothing(x)
    descale = made.descale if given["descale"] is None else nothing  # an operator must not return one of its inputs
    return made.codes, descale, nothing.clone() if made.mean is None else made.mean


def _run_quantize_out(x, *values, context=None) -> None:
    *shared, codes, descale, mean = map(plain, values)
    given = {**dict(zip(OF_QUANTIZE, shared)), "context": numbered(context)}
    descale = given["descale"] if descale is None else descale
    given["out"] = Quantized(codes, descale, mean, given["scales"], given["format"])
    with torch.no_grad():
        _eagerly(plain(x), given)


def _fake_quantize_operator(x, *values, context=None):
    given = dict(zip(OF_QUANTIZE, values))
    codes = allocate(x, tuple(x.shape), _storage(given))
    descale = (
        _nothing(x)
        if given["descale"] is not None
        else allocate(x, descale_shape(x.shape, given), "float32", in_order=False)
    )
    mean = allocate(x, mean_shape(x.shape, given), "float32", in_order=False) if given["smooth"] else _nothing(x)
    return codes, descale, mean


def _nothing(like: torch.Tensor) -> torch.Tensor:
    return torch.empty((0,), dtype=torch.float32, device=like.device)


def _product(run, options: dict[str, str]):
    """The implementations of a product's operator and of its _out form."""

    def to_given(first, second, values, out, out_dtype, context) -> torch.Tensor:
        given = {**dict(zip(options, map(plain, values))), "out": out, "out_dtype": out_dtype}
        given["context"] = numbered(context)
        with torch.no_grad():
            return run(plain(first), plain(second), given)

    def made(first, second, *values, context=None):
        return to_given(first, second, values[:-1], None, values[-1], context)

    def into(first, second, *values, context=None) -> None:
        to_given(first, second, values[:-1], plain(values[-1]), None, context)

    return made, into


def _fake_qk(q, k, *values, context=None):
    layout = dict(zip(OF_QK, values))["layout"]
    return allocate(q, qk_shape(tuple(q.shape), tuple(k.shape), layout), values[-1], in_order=False)


def _fake_gemm(a, b, *values, context=None):
    return allocate(a, gemm_shape(tuple(a.shape), tuple(b.shape)), values[-1], in_order=False)


def _no_backward(context, *gradients):
    raise Unsupported(
        "rapt.quantize, qk and gemm have no backward: call them under torch.no_grad() or on tensors that do not need a "
        "gradient; rapt.fake_quantize passes gradients through"
    )


def _recorded(name: str, run):
    """The eager product with this name. It is called as product(first, second, given)."""

    def product(first, second, given):
        if not PROFILER._is_profiler_enabled:
            return run(allocate, first, second, given)
        return recorded(name, shapes_line(first, second), run, allocate, first, second, given)

    return product


_eager_qk, _eager_gemm = _recorded("qk", _eager.qk), _recorded("gemm", _eager.gemm)
_run_qk, _run_qk_out = _product(_eager_qk, OF_QK)
_run_gemm, _run_gemm_out = _product(_eager_gemm, OF_GEMM)
for _name, _function, _fake in (
    ("quantize", _run_quantize, _fake_quantize_operator),
    ("quantize_out", _run_quantize_out, lambda *values, context=None: None),
    ("qk", _run_qk, _fake_qk),
    ("qk_out", _run_qk_out, lambda *values, context=None: None),
    ("gemm", _run_gemm, _fake_gemm),
    ("gemm_out", _run_gemm_out, lambda *values, context=None: None),
):
    for _key in ("CPU", "CUDA"):
        LIBRARY.impl(_name, _function, _key)
    torch.library.register_fake(f"rapt::{_name}", _fake, lib=LIBRARY)
for _name, _rule, _names in (
    ("quantize", _torch_vmap.quantize, ("x", *OF_QUANTIZE)),
    ("qk", _torch_vmap.qk, ("q", "k", *OF_QK, "out_dtype")),
    ("gemm", _torch_vmap.gemm, ("a", "b", *OF_GEMM, "out_dtype")),
):
    register_no_derivatives(_name, _no_backward)
    register_vmap(_name, _rule(getattr(torch.ops.rapt, _name), _names))
register_product_flops((torch.ops.rapt.qk, torch.ops.rapt.qk_out, torch.ops.rapt.gemm, torch.ops.rapt.gemm_out))


def _needs_operator(*values) -> bool:
    """True if a call must go through an operator, so that a tracer or autograd sees it. Raises if an array is not a
    tensor.
    """
    if is_dynamo_compiling():
        return True
    return needs_operator([one for one in values if isinstance(one, torch.Tensor)])


def _refuse_out(**values) -> None:
    refuse_outputs("out", {name: one for name, one in values.items() if isinstance(one, torch.Tensor)})


def _expect_tensors(**values) -> None:
    for name, value in values.items():
        if value is not None and not isinstance(value, torch.Tensor):
            kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
            raise InvalidArgument(f"{name}: a {kind}, but all arrays of a call come from one framework, here torch")


def _tangent(x: torch.Tensor):
    """The tangent of x in a forward-mode derivative."""
    return forward_ad.unpack_dual(x).tangent if getattr(forward_ad, "_current_level", -1) >= 0 else None


def quantize(x, given: dict) -> Quantized:
    out = given["out"]
    parts = (out.codes, out.descale, out.mean) if isinstance(out, Quantized) else (out,)
    if not _needs_operator(x, given["descale"], given["cu_seqlens"], *parts):
        return _eagerly(x, given)
    if not is_dynamo_compiling() and _tangent(x) is not None:
        raise Unsupported("x: codes have no forward-mode derivatives; rapt.fake_quantize has")
    _expect_tensors(descale=given["descale"], cu_seqlens=given["cu_seqlens"], out=parts[0])
    shared, context = [given[name] for name in OF_QUANTIZE], number_of(given["context"])
    if out is None:
        codes, descale, mean = torch.ops.rapt.quantize(x, *shared, context=context)
    else:
        _refuse_out(x=x, descale=given["descale"], **dict(zip(("codes", "out.descale", "mean"), parts)))
        codes, descale, mean = given_outputs(given)
        if descale is None:
            descale = allocate(x, descale_shape(x.shape, given), "float32", True, False)
        if mean is None and given["smooth"]:
            mean = allocate(x, mean_shape(x.shape, given), "float32", True, False)
        made = None if given["descale"] is not None else descale
        torch.ops.rapt.quantize_out(x, *shared, codes, made, mean, context=context)
    descale = descale if given["descale"] is None else given["descale"]
    return Quantized(codes, descale, mean if given["smooth"] else None, given["scales"], given["format"])


def _decode(codes: torch.Tensor, format: str) -> torch.Tensor:
    numbers = codes.to(torch.float32)
    return (numbers * 896.0 - 114240.0) / 255.0 if format == "sim8" else numbers


NUMBERS = _numbers.Numbers(
    torch,
    cast=lambda array, dtype: array.to(torch.float32 if dtype == "float32" else dtype),
    decode=_decode,
    array=lambda values, like: torch.tensor(values, dtype=torch.float32, device=like.device),
    arange=lambda count, like: torch.arange(count, dtype=torch.int32, device=like.device),
)


LIBRARY.define("straight_through(Tensor x, Tensor simulated, Tensor? keep, bool hadamard) -> Tensor")
LIBRARY.impl("straight_through", lambda x, simulated, keep, hadamard: simulated.clone(), "CompositeExplicitAutograd")


def _keep_for_backward(ctx, inputs, output) -> None:
    _, _, keep, ctx.hadamard = inputs
    ctx.save_for_backward(*([] if keep is None else [keep]))


def _pass_through(ctx, gradient):
    if ctx.saved_tensors:
        gradient = _numbers.clipped(NUMBERS, gradient, ctx.saved_tensors[0], ctx.hadamard)
    return gradient, None, None, None


torch.library.register_autograd("rapt::straight_through", _pass_through, setup_context=_keep_for_backward, lib=LIBRARY)


class _StraightThrough(torch.autograd.Function):
    """Does the same as the operator rapt::straight_through, in eager calls. It supports torch.func's transformations
    and forward derivatives. torch.compile uses the operator itself.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x, simulated, keep, hadamard):
        return simulated.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        _keep_for_backward(ctx, inputs, output)
        ctx.save_for_forward(*ctx.to_save)

    backward = staticmethod(_pass_through)

    @staticmethod
    def jvp(ctx, tangent, *others):
        return _pass_through(ctx, tangent)[0]


def fake_quantize(x, given: dict) -> torch.Tensor:
    descale = given["descale"]
    if isinstance(descale, torch.Tensor) and descale.requires_grad and torch.is_grad_enabled():
        raise InvalidArgument("descale: needs a gradient, but only x gets one: pass descale.detach()")
    fixed = x.detach()
    if not is_dynamo_compiling() and _tangent(fixed) is not None:
        fixed = forward_ad.unpack_dual(fixed).primal
    made = quantize(fixed, given)
    simulated = _numbers.dequantized(NUMBERS, made, given, fixed)
    wanted = x.requires_grad and torch.is_grad_enabled()
    # A tracer or a forward derivative must see the operator.
    if not wanted and (is_dynamo_compiling() or not needs_operator([x])):
        return simulated
    keep = _numbers.unsaturated(NUMBERS, made, given, fixed) if given["clip_gradient"] else None
    as_operator = is_dynamo_compiling() or functionalized()
    through = torch.ops.rapt.straight_through if as_operator else _StraightThrough.apply
    return through(x, simulated, keep, given["hadamard"])


def _multiply(operator, operator_out, run, first, second, options: dict[str, str], given: dict):
    names = [name for name, kind in options.items() if kind == "Tensor?"]  # "q_descale", "k_descale"
    descales = [given[name] for name in names]
    if not _needs_operator(first, second, given["out"], *descales):
        return run(first, second, given)
    _expect_tensors(**{names[1].removesuffix("_descale"): second, "out": given["out"]}, **dict(zip(names, descales)))
    shared = [given[name] for name in options]
    for index, name in enumerate(options):
        if name.endswith("_dtype") and shared[index] is not None:
            shared[index] = str(shared[index]).removeprefix("torch.")
    context = number_of(given["context"])
    if given["out"] is None:
        return operator(first, second, *shared, dtype_named(out_dtype_name(first, given)), context=context)
    _refuse_out(**{names[0][0]: first, names[1][0]: second, "out": given["out"]}, **dict(zip(names, descales)))
    operator_out(first, second, *shared, given["out"], context=context)
    return given["out"]


def qk(q, k, given: dict) -> torch.Tensor:
    return _multiply(torch.ops.rapt.qk, torch.ops.rapt.qk_out, _eager_qk, q, k, OF_QK, given)


def gemm(a, b, given: dict) -> torch.Tensor:
    return _multiply(torch.ops.rapt.gemm, torch.ops.rapt.gemm_out, _eager_gemm, a, b, OF_GEMM, given)
