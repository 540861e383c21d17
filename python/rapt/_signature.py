"""The parameters of rapt.sdpa, prepare and explain, and the docstring of rapt.sdpa.

Names, defaults and kinds of parameters come from the compiled module, which takes them from one table
(src/arguments/sdpa_arguments.h). This module converts them to the forms that the frameworks' modules need.
"""

from __future__ import annotations

import itertools
import textwrap
from typing import Any, NamedTuple

from . import _core

# The rows of the table, in its order.
# ARRAYS: (array, parameter, has a batch dimension, is differentiable, names of its dimensions).
# SCALARS: (value, its parameter or None, "real", "integer" or "word", its RAPT_HAS bit, {word: value} or None).
# FLAGS: (parameter, flag). TEXTS: {parameter: its documentation}.
ARRAYS, SCALARS, FLAGS, TEXTS = _core.sdpa_table()
DEFAULTS: dict[str, Any] = _core.defaults()
# The names of the options that are arrays. An array that the caller passes as q_start is called q_starts here.
# Operators and XLA take these arrays in this order, after q, k and v.
OPERANDS = tuple(row[0] for row in ARRAYS)
PARAMETER_OF = {row[0]: row[1] for row in ARRAYS}
BATCHED = tuple(row[0] for row in ARRAYS if row[2])
# Arrays that all sequences of a call share.
SHARED = tuple(row[0] for row in ARRAYS if row[4] and not row[2])
DIFFERENTIABLE = ("q", "k", "v", *(row[1] for row in ARRAYS if row[3]), "out", "lse")  # out, lse: a caller's outputs
# Parameters that are an array or an int, such as q_start. The value is the name of the array (q_starts).
STARTS = {parameter: name for name, parameter in PARAMETER_OF.items() if name != parameter}


class ByHand(NamedTuple):
    operator: str | None  # its type in the schema of PyTorch's operator; None: the operator has no such option
    stub: str  # its type in the type stub
    doc: str


_STORAGE = 'the format of uint8 storage: "e4m3", "e5m2" or "sim8"; required for uint8.'
# Parameters that call.cpp reads with its own code.
BY_HAND: dict[str, ByHand] = {
    "layout": ByHand(
        "str",
        'Literal["bhsd", "bshd"]',
        '"bhsd" or "bshd": the order of the dimensions of q, k, v and out only.',
    ),
    "causal": ByHand(
        "str",
        "Causal",
        'False: no causal mask. True or "bottom_right": query i sees j <= i + off. "top_left": query i sees j <= i.',
    ),
    "window": ByHand(
        "SymInt[]?",
        "tuple[int, int] | None",
        "(left, right): query i sees keys j with i + off - left <= j <= i + off + right. -1: no limit on this side.",
    ),
    "lse": ByHand(
        None,
        "bool | Array",
        "True, or an array to write to: the call returns (out, lse). lse is float32 [batch, heads_q, seqlen_q], packed "
        "[heads_q, total_q]. It is the natural logarithm of the sum of exp(x), including the sink.",
    ),
    "out": ByHand(
        None,
        "Array | None",
        "the array to write to. It must not overlap an input. Default: a new array with the memory order of q.",
    ),
    "out_dtype": ByHand(
        None,
        "Dtype | None",
        'dtype of the allocated out: float32, float16 or bfloat16, by name ("f32", "float32", ...) or as an object of '
        "the framework. Default: the dtype of q. If q is FP8: the dtype of v. If both are FP8: bfloat16 (NumPy: "
        "float32).",
    ),
    "q_dtype": ByHand(
        "str?",
        "Dtype | None",
        _STORAGE,
    ),
    "k_dtype": ByHand(
        "str?",
        "Dtype | None",
        _STORAGE,
    ),
    "v_dtype": ByHand(
        "str?",
        "Dtype | None",
        _STORAGE,
    ),
    "context": ByHand(
        None,
        "Context | None",
        "a Context. Default: the process default.",
    ),
}
_QKV = {
    "q": '[batch, heads_q, seqlen_q, head_dim] for layout "bhsd", [batch, seqlen_q, heads_q, head_dim] for "bshd"; '
    "packed [total_q, heads_q, head_dim] with cu_seqlens (either layout). float32, float16, bfloat16, FP8 (E4M3, "
    "E5M2); q, k, v may differ. Any strides (0 and negative if the framework has them).",
    "k": "[batch, heads_k, seqlen_k, head_dim], or as above. heads_q must be a multiple of heads_k (MQA, GQA).",
    "v": "[batch, heads_k, seqlen_k, head_dim_v], or as above.",
}


def _argument_texts() -> str:
    """The lines of DOC that follow "Args:". Neighbouring parameters with the same text share one entry."""
    of_options = {name: BY_HAND[name].doc if name in BY_HAND else TEXTS[name] for name in DEFAULTS}
    lines = []
    for text, names in itertools.groupby({**_QKV, **of_options}.items(), key=lambda item: item[1]):
        names = ", ".join(name for name, _ in names)
        lines += textwrap.wrap(
            f"{names}: {text}",
            width=120,
            initial_indent="    ",
            subsequent_indent="        ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    return "\n".join(lines)


DOC = f"""Scaled dot-product attention: out = softmax(scale * q k^T, modified and masked by the options) v.

For batch b, query head h, query i and key j, in this order:
    x = scale * dot(q[i], k[j]);  x = softcap * tanh(x / softcap);  x += bias[i, j];
    x -= alibi_slopes[h] * |i + off - j|;  masked keys are removed;  out[i] = sum_j softmax(x)[j] v[j]
off = seqlen_k - seqlen_q (of each sequence); 0 for causal="top_left"; q_start - k_start if given.
A query that sees no key gets out = 0 and lse = -inf. A masked key never affects a query, even if it holds NaN.

Args:
{_argument_texts()}

Returns:
    out, or (out, lse) with lse or partial: arrays of q's framework, on q's device.

Raises:
    InvalidArgument (a ValueError), Unsupported, EnvironmentLacking, DeviceError: the sentence has argument, value
    and rule. A refused call launches nothing and writes nothing.

PyTorch: uses the current stream; may be captured in a CUDA graph after prepare() or one eager call; traced by
torch.compile as one operator; has no backward yet: calling backward() through it raises. JAX: works under jit, out=
is refused (arrays are immutable). CuPy: the current stream. NumPy: the CPU.

References: Vaswani et al. 2017; Milakov and Gimelshein 2018 (online softmax); Dao 2023 (FlashAttention-2).
"""


def bind(q, k, v, options: dict[str, Any]) -> dict[str, Any]:
    """All arguments by name, for the frameworks whose calls are prepared in Python (operators, JAX)."""
    for name in options:
        if name not in DEFAULTS:
            raise TypeError(f"unexpected keyword argument {name!r}: must be an option of rapt.sdpa")
    return {"q": q, "k": k, "v": v, **DEFAULTS, **options}


def split_starts(given: dict[str, Any], array_type: type) -> None:
    """Splits q_start, which is an int or an array, into q_start (int) and q_starts (array); one of them is None. Does
    the same with k_start.
    """
    for name, as_array in STARTS.items():
        is_array = isinstance(given[name], array_type)
        given[as_array] = given[name] if is_array else None
        given[name] = None if is_array else given[name]
