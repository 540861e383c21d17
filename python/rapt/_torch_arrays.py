"""How rapt._core reads and allocates PyTorch tensors. Used by _torch.py and _torch_operators.py."""

from __future__ import annotations

import torch

from ._errors import InvalidArgument, Unsupported
from ._values import shape_of
from ._views import CPU, CUDA, allocate_in_order, order_for, type_code

TYPES = (torch.Tensor, torch.nn.Parameter)
EXCHANGE = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)  # PyTorch 2.10 and later


# Modes that see every operation, and torch.jit.trace. These functions are not public; missing ones are skipped.
TRACING = tuple(
    function
    for function in (getattr(torch._C, name, None) for name in ("_len_torch_dispatch_stack", "_is_tracing"))
    if function is not None
)
# The innermost of torch.func's transformations, whose tensors have no readable memory; None outside of them. rapt.sdpa
# calls it only after reading has failed, so other calls do not pay for it.
TRANSFORM = getattr(getattr(torch._C, "_functorch", None), "peek_interpreter_stack", lambda: None)


def transformed() -> bool:
    """Whether a transformation of torch.func (vmap, grad, jvp, functionalize) is active."""
    return TRANSFORM() is not None


def functionalized() -> bool:
    """Whether the innermost transformation is torch.func.functionalize."""
    level = TRANSFORM()
    return level is not None and level.key() == torch._C._functorch.TransformType.Functionalize


def needs_operator(tensors) -> bool:
    """Whether a tensor is of a subclass, something records operations, or a gradient is needed."""
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
    """Raises for forward-mode tangents: there is no rule for them, and PyTorch would use a derivative of 0."""
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
    """A tensor of a subclass as a torch.Tensor; all other values unchanged."""
    return value.as_subclass(torch.Tensor) if isinstance(value, torch.Tensor) and type(value) not in TYPES else value


def view(tensor: torch.Tensor) -> tuple:
    """The description of a tensor for rapt._core if PyTorch has no C exchange (before 2.10): see register_framework
    there.
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
    """A new tensor; with in_order, in the order of `like`'s dimensions if both have the same number."""
    dtype, make = dtype_named(name), torch.zeros if zeroed else torch.empty
    order = order_for(like.stride(), len(shape), in_order)

    def empty(sizes):
        return _Transposable(make(sizes, dtype=dtype, device=like.device))

    return allocate_in_order(empty, tuple(shape), order).tensor


class _Transposable:
    """Adapts torch.Tensor.transpose, which differs from numpy.ndarray.transpose."""

    def __init__(self, tensor: torch.Tensor):
        self.tensor = tensor

    def transpose(self, order) -> "_Transposable":
        return _Transposable(self.tensor.permute(order))


def written(tensors: tuple) -> None:
    """Increments the version counter: autograd uses it to detect that a tensor kept for backward was overwritten."""
    torch.autograd.graph.increment_version(tensors)


def empty_strided_cuda():
    """The allocation function of TorchInductor's programs. It takes half the time of empty_like, which is most of a
    call's.

    It is not public, so it may be missing.
    """
    guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
    return getattr(guards, "_empty_strided_cuda", None) if torch.version.cuda else None
