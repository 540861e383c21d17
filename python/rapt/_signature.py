"""The parameters of rapt.sdpa (the same for prepare() and explain()), and its docstring.

Names, defaults and kinds come from the compiled module, which has them from one table
(src/arguments/sdpa_arguments.h). This module converts them to the forms that the frameworks' modules need.
"""

from __future__ import annotations

from typing import Any

from . import _core

# Rows of the table in its order: (array, parameter, has a batch dimension, is differentiable); (value, its parameter or
# None, "real", "integer" or "word", its RAPT_HAS bit, {word: value} or None); (parameter, flag).
ARRAYS, SCALARS, FLAGS = _core.sdpa_table()
DEFAULTS: dict[str, Any] = _core.defaults()
# The arrays among the options. An array q_start is here q_starts. Operators and XLA take them in this order after q, k,
# v.
OPERANDS = tuple(row[0] for row in ARRAYS)
PARAMETER_OF = {row[0]: row[1] for row in ARRAYS}
BATCHED = tuple(row[0] for row in ARRAYS if row[2])
DIFFERENTIABLE = ("q", "k", "v", *(row[1] for row in ARRAYS if row[3]), "out", "lse")  # including a caller's outputs
# Parameters that are an array or an int: q_start as an array is q_starts.
STARTS = {parameter: name for name, parameter in PARAMETER_OF.items() if name != parameter}
# Parameters that call.cpp reads by hand: their type among the options of PyTorch's operator (None: not one of them)
# and in the stub.
BY_HAND: dict[str, tuple[str | None, str]] = {
    "layout": ("str", 'Literal["bhsd", "bshd"]'),
    "causal": ("str", "Causal"),
    "window": ("SymInt[]?", "tuple[int, int] | None"),
    "lse": (None, "bool | Array"),
    "out": (None, "Array | None"),
    "out_dtype": (None, "Dtype | None"),
    "q_dtype": ("str?", "Dtype | None"),
    "k_dtype": ("str?", "Dtype | None"),
    "v_dtype": ("str?", "Dtype | None"),
    "context": (None, "Context | None"),
}

DOC = """Scaled dot-product attention: out = softmax(scale * q k^T, modified and masked by the options) v.

For batch b, query head h, query i and key j, in this order:
    x = scale * dot(q[i], k[j]);  x = softcap * tanh(x / softcap);  x += bias[i, j];
    x -= alibi_slopes[h] * |i + off - j|;  masked keys are removed;  out[i] = sum_j softmax(x)[j] v[j]
off = seqlen_k - seqlen_q (of each sequence); 0 for causal="top_left"; q_start - k_start if given.
A query that sees no key gets out = 0 and lse = -inf. A masked key never affects a query, even if it holds NaN.

Args:
    q: [batch, heads_q, seqlen_q, head_dim] for layout "bhsd", [batch, seqlen_q, heads_q, head_dim] for "bshd";
        packed [total_q, heads_q, head_dim] with cu_seqlens (either layout). float32, float16, bfloat16, FP8 (E4M3,
        E5M2); q, k, v may differ. Any strides (0 and negative if the framework has them).
    k: [batch, heads_k, seqlen_k, head_dim], or as above. heads_q must be a multiple of heads_k (MQA, GQA).
    v: [batch, heads_k, seqlen_k, head_dim_v], or as above.
    layout: "bhsd" or "bshd": the order of the dimensions of q, k, v and out only.
    causal: False; True or "bottom_right" (query i sees j <= i + off); "top_left" (j <= i).
    window: (left, right): query i sees i + off - left <= j <= i + off + right, both included; -1: no limit.
    softcap: > 0, in units of x.
    bias: added to x; float32, float16 or bfloat16, broadcast right-aligned to [batch, heads_q, seqlen_q, seqlen_k]
        (packed: to [batch, heads_q, max_seqlen_q, max_seqlen_k]).
    mask: bool (or uint8 of 0 and 1), True keeps a key, False masks it; broadcasts like bias.
    alibi_slopes: float32 [heads_q] or [batch, heads_q].
    sinks: float32 [heads_q]: a logit (natural, unscaled) added to the denominator only.
    scale: any finite number. Default: 1 / sqrt(head_dim).
    lse: True, or an array to write to: the call returns (out, lse). float32 [batch, heads_q, seqlen_q], packed
        [heads_q, total_q]: natural logarithm of the sum of exp(x), including the sink.
    out: the array to write to; it must not overlap an input. Default: a new array in q's memory order.
    out_dtype: of the allocated out: float32, float16 or bfloat16, by name ("f32", "float32", ...) or as the
        framework's own. Default: q's; v's if q is FP8; bfloat16 (NumPy: float32) if both are FP8.
    cu_seqlens_q, cu_seqlens_k: int32 [batch + 1], give both or neither: sequence b is rows cu[b] to cu[b + 1].
    max_seqlen_q, max_seqlen_k: int, required with them; a longer sequence is cut to this length.
    seqused_q: int32 [batch]: number of queries in use of each sequence, packed or not. Rows past them get 0
        (lse: -inf) whatever q holds there.
    seqused_k: int32 [batch]: number of keys in use of each sequence, packed or not.
    q_start, k_start: position of the first query and key: int, or int64 [batch] (chunked prefill, rings).
    q_descale, k_descale, v_descale: float32 scales of the stored values, with their granularity in q_scales,
        k_scales, v_scales: "tensor" [] or [1]; "head" [batch, heads]; "token" [batch, heads, seqlen]; "block64",
        "block128" [batch, heads, ceil(seqlen / n)]; v also "channel" [batch, heads_k, head_dim_v].
        Packed: token [heads, total], block by ceil(max_seqlen / n), counted within the sequence.
    k_mean: float32 [batch, heads_k, head_dim]: the mean that was subtracted from k before quantisation, as quantize(k,
        smooth=True) does: key j is k[j] * k_descale + k_mean; x, lse, softcap and sinks use that key. FP8 k only.
    q_dtype, k_dtype, v_dtype: the format of uint8 storage: "e4m3", "e5m2" or "sim8"; required for uint8.
    pv: how P V is computed for FP8 v: "f16", "fp8", "fp8x2". Default: the fastest within the error bound.
    acc: "f16" sums products of float16 in float16 on GPUs. Default: "f32".
    partial: True: out is float32, and (out, lse) is a partial state for merge().
    invariant: True: the bits of a row depend on nothing else in the call.
    check_contents: on GPUs also checks the values of lengths, starts, mask, descales and k_mean. It copies them to the
        host and synchronises.
    splits: number of parts to split the keys into, 1 or more. Default: the planner decides.
    context: a Context. Default: the process default.

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
    """All arguments by name, for the frameworks whose calls are prepared in Python."""
    for name in options:
        if name not in DEFAULTS:
            raise TypeError(f"unexpected keyword argument {name!r}: must be an option of rapt.sdpa")
    return {"q": q, "k": k, "v": v, **DEFAULTS, **options}


def split_starts(given: dict[str, Any], array_type: type) -> None:
    """Splits q_start (and k_start), an int or an array, into q_start (int) and q_starts (array). One is None."""
    for name, as_array in STARTS.items():
        is_array = isinstance(given[name], array_type)
        given[as_array] = given[name] if is_array else None
        given[name] = None if is_array else given[name]
