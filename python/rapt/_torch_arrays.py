"""The functions with which rapt._core reads and allocates PyTorch tensors. For _torch.py and _torch_operators.py."""

from __future__ import annotations

import torch

from ._errors import InvalidArgument, Unsupported
from ._values import shape_of
from ._views import CPU, CUDA, allocate_in_order, order_for, type_code

TYPES = (torch.Tensor, torch.nn.Parameter)
EXCHANGE = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)  # PyTorch 2.10 and later


# Functions that tell if a mode that sees every operation, or torch.jit.trace, is active. They are not public; missing
# ones are skipped.
TRACING = tuple(
    function
    for function in (getattr(torch._C, name, None) for name in ("_len_torch_dispatch_stack", "_is_tracing"))
    if function is not None
)
# Returns the innermost active transformation of torch.func, or None. Tensors of a transformation have no readable
# memory. rapt.sdpa calls this function only after it failed to read a tensor, so other calls do not become slower.
TRANSFORM = getattr(getattr(torch._C, "_functorch", None), "peek_interpreter_stack", lambda: None)


def transformed() -> bool:
    """True if a transformation of torch.func (vmap, grad, jvp, functionalize) is active."""
    return TRANSFORM() is not None


def functionalized() -> bool:
    """True if the innermost active transformation is torch.func.functionalize."""
    level = TRANSFORM()
    return level is not None and level.key() == torch._C._functorch.TransformType.Functionalize


def needs_operator(tensors) -> bool:
    """True if a tensor is of a subclass, if something records operations, or if a gradient is needed."""
    return (
        any(type(one) not in TYPES for one in tensors)
        or (torch.is_grad_enabled() and any(one.requires_grad for one in tensors))
        or getattr(torch.autograd.forward_ad, "_current_level", -1) >= 0
        or transformed()
        or any(ask() for ask in TRACING)
    )


def refuse_nested(**values) -> None:
    for name, value in values.items():
        shape_of(name, value)


def _has_tangent(tensor: torch.Tensor) -> bool:
    return torch.autograd.forward_ad.unpack_dual(tensor).tangent is not None


def refuse_tangents(**values) -> None:
    """Raises if a tensor has a forward-mode tangent. rapt has no rule for tangents, so PyTorch would take a derivative
    of 0.
    """
    if getattr(torch.autograd.forward_ad, "_current_level", -1) < 0:
        return
    for name, value in values.items():
        parts = value if isinstance(value, (list, tuple)) else (value,)
        if any(isinstance(one, torch.Tensor) and _has_tangent(one) for one in parts):
            raise Unsupported(
                f"{name}: has a tangent, but rapt has no forward-mode derivatives: pass {name}.detach() as a constant, "
                "or differentiate PyTorch's own operations"
            )


def plain(value):
    """Converts a tensor of a subclass to a torch.Tensor. Returns all other values unchanged."""
    return value.as_subclass(torch.Tensor) if isinstance(value, torch.Tensor) and type(value) not in TYPES else value


def view(tensor: torch.Tensor) -> tuple:
    """Describes a tensor for rapt._core (the member `view` in python/src/arrays.h). Used if PyTorch has no C exchange
    (before 2.10).
    """
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


def allocate(like: torch.Tensor, shape, name: object, zeroed: bool = False, in_order: bool = True) -> torch.Tensor:
    """A new tensor. With in_order, its dimensions have the same order in memory as those of `like`, if both tensors
    have the same number of dimensions.
    """
    dtype, make = dtype_named(name), torch.zeros if zeroed else torch.empty
    order = order_for(like.stride(), len(shape), in_order)

    def empty(sizes):
        return _Transposable(make(sizes, dtype=dtype, device=like.device))

    return allocate_in_order(empty, tuple(shape), order).tensor


class _Transposable:
    """Gives a tensor numpy.ndarray's method transpose(order), because torch.Tensor.transpose differs from it."""

    def __init__(self, tensor: torch.Tensor):
        self.tensor = tensor

    def transpose(self, order) -> "_Transposable":
        return _Transposable(self.tensor.permute(order))


def written(tensors: tuple) -> None:
    """Increments the tensors' version counters. Autograd uses them to detect that a tensor that it needs for backward
    was overwritten.
    """
    torch.autograd.graph.increment_version(tensors)


def empty_strided_cuda():
    """The function with which programs of TorchInductor allocate tensors; None if it is missing, because it is not
    public.

    It takes half the time of empty_like. Allocation is most of the time of a call, so this matters.
    """
    guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
    return getattr(guards, "_empty_strided_cuda", None) if torch.version.cuda else None
