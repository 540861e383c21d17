"""Rules of torch.vmap for rapt's PyTorch operators. If possible, the mapped dimension is merged into the batch, so
there is a single call. If that is impossible (sinks, scales of a whole tensor, packed sequences), there is one call for
each element of the mapped dimension.

_torch_operators.py and _torch_fp8.py register these rules with torch.library.register_vmap.
"""

from __future__ import annotations

import torch
from torch.utils import _pytree

from ._signature import BATCHED, SHARED


def _rank(value, dim) -> int:
    """The rank of one of the mapped arrays."""
    return value.dim() - (dim is not None)


def _join(value, dim, size: int):
    """Merges the mapped dimension into the batch: [size * batch, ...]. Copies if the strides do not allow a view."""
    if value is None:
        return None
    every = value.expand(size, *value.shape) if dim is None else value.movedim(dim, 0)
    return every.flatten(0, 1)


def _join_broadcast(value, dim, size: int, batch: int, rank: int = 4):
    """Like _join(), for an array that is broadcast, right-aligned, to [batch, ...] with `rank` dimensions."""
    if value is None or (dim is None and (value.dim() < rank or value.shape[0] == 1)):
        return value
    every = value.expand(size, *value.shape) if dim is None else value.movedim(dim, 0)
    every = every.reshape(size, *[1] * (rank + 1 - every.dim()), *every.shape[1:])
    return every.expand(size, batch, *every.shape[2:]).flatten(0, 1)


def _split(value, size: int, batch: int):
    return value.unflatten(0, (size, batch))


def _batch(value, dim) -> int:
    return value.shape[0] if dim is None or dim > 0 else value.shape[1]


def _one_by_one(operator, info, in_dims, values, options):
    """Makes one call for each element of the mapped dimension."""
    flat, spec = _pytree.tree_flatten(list(values))
    dims = _pytree.tree_flatten(list(in_dims), is_leaf=lambda dim: dim is None)[0]
    calls = []
    for index in range(info.batch_size):
        chosen = [one if dim is None else one.select(dim, index) for one, dim in zip(flat, dims)]
        calls.append(operator(*_pytree.tree_unflatten(chosen, spec), **options))
    if isinstance(calls[0], torch.Tensor):
        return torch.stack(calls), 0
    return tuple(torch.stack(made) for made in zip(*calls)), (0,) * len(calls[0])


def rule(operator, names: tuple[str, ...], joined):
    """The vmap rule of an operator with these arguments. joined(size, given, dims) makes a single call and returns
    (outputs, dimensions); it returns None if a single call is impossible.
    """

    def mapped(info, in_dims, *values, **options):
        given, dims = dict(zip(names, values)), dict(zip(names, in_dims))
        done = joined(info.batch_size, given, dims, options)
        return _one_by_one(operator, info, in_dims, values, options) if done is None else done

    return mapped


def _whole_tensor_factor(given: dict, dims: dict, names: str) -> bool:
    return any(given[f"{name}_scales"] == "tensor" and dims[f"{name}_descale"] is not None for name in names)


def sdpa(operator, names: tuple[str, ...]):
    """The vmap rule of rapt::sdpa. Its arguments have these names."""

    def joined(size, given, dims, options):
        ranks = [_rank(given[name], dims[name]) for name in "qkv"]
        broadcast = [_rank(given[name], dims[name]) for name in ("bias", "mask") if given[name] is not None]
        shared = [dims[name] for name in SHARED if name != "alibi_slopes"]  # slopes may have a batch dimension
        if ranks != [4, 4, 4] or max(broadcast, default=0) > 4 or any(dim is not None for dim in shared):
            return None
        if given["block_table"] is not None:
            return None  # k and v have no batch
        if given["cu_seqlens_q"] is not None or _whole_tensor_factor(given, dims, "qkv"):
            return None
        batch = _batch(given["q"], dims["q"])
        for name in ("q", "k", "v", *BATCHED):
            whole = name.endswith("_descale") and given[f"{name[0]}_scales"] == "tensor"
            if name in given and not whole:
                given[name] = _join(given[name], dims[name], size)
        for name in ("bias", "mask"):
            given[name] = _join_broadcast(given[name], dims[name], size, batch)
        given["alibi_slopes"] = _join_broadcast(given["alibi_slopes"], dims["alibi_slopes"], size, batch, 2)
        out, lse = operator(*given.values(), **options)
        if not given["lse"] and not given["partial"]:
            return (_split(out, size, batch), lse), (0, None)
        return (_split(out, size, batch), _split(lse, size, batch)), (0, 0)

    return rule(operator, names, joined)


def merge(operator, names: tuple[str, ...]):
    def joined(size, given, dims, options):
        if dims["sinks"] is not None or any(map(lambda one, dim: _rank(one, dim) != 4, given["outs"], dims["outs"])):
            return None
        batch = _batch(given["outs"][0], dims["outs"][0])
        for name in ("outs", "lses"):
            given[name] = [_join(one, dim, size) for one, dim in zip(given[name], dims[name])]
        out, lse = operator(*given.values(), **options)
        return (_split(out, size, batch), _split(lse, size, batch) if given["lse"] else lse), (
            0,
            0 if given["lse"] else None,
        )

    return rule(operator, names, joined)


def qk(operator, names: tuple[str, ...]):
    def joined(size, given, dims, options):
        if [_rank(given[name], dims[name]) for name in "qk"] != [4, 4] or _whole_tensor_factor(given, dims, "qk"):
            return None
        batch = _batch(given["q"], dims["q"])
        for name in ("q", "k", "q_descale", "k_descale"):
            if not (name.endswith("_descale") and given[f"{name[0]}_scales"] == "tensor"):
                given[name] = _join(given[name], dims[name], size)
        return _split(operator(*given.values(), **options), size, batch), 0

    return rule(operator, names, joined)


def gemm(operator, names: tuple[str, ...]):
    """The vmap rule of gemm. Several matrices a with the same b become one matrix, which has all their rows."""

    def joined(size, given, dims, options):
        if dims["b"] is not None or dims["b_descale"] is not None or _rank(given["a"], dims["a"]) != 2:
            return None
        if _whole_tensor_factor(given, dims, "a"):
            return None
        rows = _batch(given["a"], dims["a"])
        given["a"] = _join(given["a"], dims["a"], size)
        if given["a_scales"] == "token":
            given["a_descale"] = _join(given["a_descale"], dims["a_descale"], size)
        return _split(operator(*given.values(), **options), size, rows), 0

    return rule(operator, names, joined)


def quantize(operator, names: tuple[str, ...]):
    def joined(size, given, dims, options):
        if given["cu_seqlens"] is not None or given["scales"] == "tensor" or _rank(given["x"], dims["x"]) != 4:
            return None
        batch, supplied = _batch(given["x"], dims["x"]), given["descale"] is not None
        for name in ("x", "descale"):
            given[name] = _join(given[name], dims[name], size)
        codes, descale, mean = operator(*given.values(), **options)
        return (
            _split(codes, size, batch),
            descale if supplied else _split(descale, size, batch),
            _split(mean, size, batch) if given["smooth"] else mean,
        ), (0, None if supplied else 0, 0 if given["smooth"] else None)

    return rule(operator, names, joined)
