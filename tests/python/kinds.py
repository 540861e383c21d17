"""The public functions of rapt and a valid call of each, for tests of every argument of every function.

The parameters come from the function's signature, so new ones are covered: test_kinds.py fails if a parameter is not in
ARRAYS (arrays), INTEGERS (integers) or OTHERS.
"""

import inspect

import torch

import rapt
from rapt import _signature

# The names of parameters that take arrays, that take integers, and of all others. One list is for all functions,
# because a name has the same meaning in all of them. The parameters of sdpa are rows of its table.
_ROWS = {
    kind: {row[1] for row in _signature.SCALARS if row[1] and row[2] == kind} for kind in ("integer", "real", "word")
}
ARRAYS = {
    *_signature.PARAMETER_OF.values(),
    *("q", "k", "v", "out", "lse", "a", "b", "a_descale", "b_descale", "x", "descale", "cu_seqlens", "outs", "lses"),
}
_BY_HAND = {name for name, row in _signature.BY_HAND.items() if "int" in row.stub}  # window
INTEGERS = {*_ROWS["integer"], *_BY_HAND, "max_seqlen"}
OTHERS = {
    *_ROWS["real"],
    *_ROWS["word"],
    *(parameter for parameter, _ in _signature.FLAGS),
    *("layout", "causal", "out_dtype", "q_dtype", "k_dtype", "v_dtype", "context", "a_dtype", "b_dtype", "scales"),
    *("dtype", "hadamard", "smooth", "percentile", "clip_gradient"),
}

FUNCTIONS = {
    "sdpa": rapt.sdpa,
    "prepare": rapt.prepare,
    "explain": rapt.explain,
    "merge": rapt.merge,
    "qk": rapt.qk,
    "gemm": rapt.gemm,
    "quantize": rapt.quantize,
    "fake_quantize": rapt.fake_quantize,
}
OF_SDPA = ("sdpa", "prepare", "explain")


def parameters(name):
    function = rapt.sdpa if name in OF_SDPA else FUNCTIONS[name]
    return list(inspect.signature(function).parameters)


def of_kind(kind):
    """(function, parameter) of every parameter of that kind."""
    return [(name, one) for name in FUNCTIONS for one in parameters(name) if one in kind]


def made(shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


BATCH, HEADS, SEQLEN, DIM = 2, 2, 6, 8


# The shapes of the arrays come from the table. So an array needs an entry in attention() only if its values must obey a
# rule, or if the table has no fixed shape for it (scales, arrays that are broadcast).
SHAPES = {row[1]: row[4] for row in _signature.ARRAYS}
SIZES = {"batch": BATCH, "heads_q": HEADS, "heads_k": HEADS, "seqlen_q": SEQLEN, "seqlen_k": SEQLEN}
SIZES |= {"head_dim": DIM, "head_dim_v": DIM, "batch + 1": BATCH + 1}


def dense():
    return {name: made((BATCH, HEADS, SEQLEN, DIM), seed) for seed, name in enumerate("qkv")}


def packed():
    cu = torch.tensor([0, 2, SEQLEN], dtype=torch.int32)
    arrays = {name: made((SEQLEN, HEADS, DIM), seed) for seed, name in enumerate("qkv")}
    return {**arrays, "cu_seqlens_q": cu, "cu_seqlens_k": cu, "max_seqlen_q": 5, "max_seqlen_k": 5}


def attention(parameter):
    """Arguments of rapt.sdpa that include this parameter."""
    if parameter.startswith(("cu_seqlens", "max_seqlen")):
        return packed()
    given = dense()
    lengths = torch.tensor([3, SEQLEN], dtype=torch.int32)
    options = {
        "bias": made((SEQLEN, SEQLEN), 4),
        "mask": torch.ones(SEQLEN, SEQLEN, dtype=torch.bool).tril(),
        "alibi_slopes": made((HEADS,), 5).abs(),
        "sinks": made((HEADS,), 6),
        "seqused_q": lengths,
        "seqused_k": lengths,
        "block_table": torch.tensor([[1, 0], [0, 1]], dtype=torch.int32),  # k and v are two pages of SEQLEN keys
        "q_start": torch.tensor([1, 2]),
        "k_start": torch.tensor([1, 0]),
        "out": torch.zeros(BATCH, HEADS, SEQLEN, DIM),
        "lse": torch.zeros(BATCH, HEADS, SEQLEN),
        "splits": 2,
        "window": (3, 3),
    }
    if parameter in options:
        given[parameter] = options[parameter]
    elif SHAPES.get(parameter):
        given[parameter] = made([SIZES[dim] for dim in SHAPES[parameter]], 9).abs()
    if parameter in ("q_start", "k_start"):
        given["causal"] = True
    if parameter.endswith("_descale") or parameter == "k_mean":
        name = parameter[0]
        given[name] = given[name].to(torch.float8_e4m3fn)
        given.update({f"{name}_descale": made((BATCH, HEADS), 7).abs(), f"{name}_scales": "head"})
    if parameter == "k_mean":
        given["k_mean"] = made((BATCH, HEADS, DIM), 8)
    return given


def arguments(name, parameter):
    """Keyword arguments of a valid call on PyTorch tensors that include the parameter."""
    if name in OF_SDPA:
        return attention(parameter)
    shape = (BATCH, HEADS, SEQLEN, DIM)
    if name == "merge":
        given = {"outs": [made(shape, 0), made(shape, 1)], "lses": [made(shape[:3], 2), made(shape[:3], 3)]}
        options = {"sinks": made((HEADS,), 4), "out": torch.zeros(shape), "lse": torch.zeros(shape[:3])}
    elif name == "qk":
        given = {"q": made(shape, 0), "k": made(shape, 1)}
        options = {"out": torch.zeros(*shape[:3], SEQLEN)}
        if parameter.endswith("_descale"):
            given[f"{parameter[0]}_scales"] = "head"
            options[parameter] = made((BATCH, HEADS), 3).abs()
            given[parameter[0]] = given[parameter[0]].to(torch.float8_e4m3fn)
    elif name == "gemm":
        given = {"a": made((SEQLEN, DIM), 0), "b": made((DIM, SEQLEN), 1)}
        options = {"out": torch.zeros(SEQLEN, SEQLEN)}
        if parameter.endswith("_descale"):
            options[parameter] = made((SEQLEN,), 3).abs()
            given[parameter[0]] = given[parameter[0]].to(torch.float8_e4m3fn)
    elif parameter in ("cu_seqlens", "max_seqlen"):
        cu = torch.tensor([0, 2, SEQLEN], dtype=torch.int32)
        return {"x": made((SEQLEN, HEADS, DIM)), "cu_seqlens": cu, "max_seqlen": 5}
    else:
        given = {"x": made(shape)}
        options = {"descale": made((BATCH, HEADS), 3).abs(), "out": torch.zeros(shape, dtype=torch.float8_e4m3fn)}
    if parameter in options:
        given[parameter] = options[parameter]
    return given


def call(name, given):
    """Calls the function with keyword arguments; some of them are passed by position."""
    given = dict(given)
    places = {"merge": ("outs", "lses"), "qk": "qk", "gemm": "ab", "quantize": "x", "fake_quantize": "x"}
    first = [given.pop(one) for one in places.get(name, "qkv")]
    return FUNCTIONS[name](*first, **given)


def tensors(result):
    """The tensors in the result of a function."""
    parts = result if isinstance(result, tuple) else (result,)
    return [one for one in parts if isinstance(one, torch.Tensor)]
