"""One layer of attn_implementation="rapt": the arguments from transformers, compared with the result of "sdpa".

Run by pytest; needs PyTorch and transformers. Everything runs on the CPU, and on a GPU if there is one.
"""

import math

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5")

from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from transformers.integrations.sdpa_attention import sdpa_attention_forward  # noqa: E402

import rapt  # noqa: E402
from rapt.compat import transformers as compat  # noqa: E402

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]
ROUNDING = 32 * 2.0**-24  # allowed error of float32 outputs, relative to the largest |value|


class Layer(torch.nn.Module):
    """The attributes of a module that forward() reads."""

    def __init__(self, group, is_causal=True):
        super().__init__()
        self.num_key_value_groups, self.is_causal = group, is_causal


def layer_inputs(seqlen_q, seqlen_k, device="cpu"):
    generator = torch.Generator().manual_seed(3)
    shapes = [(2, 4, seqlen_q, 16), (2, 2, seqlen_k, 16), (2, 2, seqlen_k, 16)]
    return [torch.randn(shape, generator=generator).to(device) for shape in shapes]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("masked", [None, torch.bool, torch.float32])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("is_causal", [None, True, False])
@pytest.mark.parametrize("seqlens", [(6, 6), (1, 9), (4, 9)])
def test_one_layer_is_that_of_sdpa(device, masked, biased, is_causal, seqlens):
    inputs = layer_inputs(*seqlens, device)
    options = dict(attention_mask=None, is_causal=is_causal, scaling=0.3)
    scores = torch.randn(2, 4, *seqlens, generator=torch.Generator().manual_seed(4)).to(device)
    if masked is not None:
        keep = scores[:, :1] > -0.5
        keep[..., 0] = True
        options["attention_mask"] = keep if masked == torch.bool else scores[:, 1:2]
    if biased:
        options["position_bias"] = scores[:1]
    for module in (Layer(2), Layer(2, is_causal=False)):
        with sdpa_kernel(SDPBackend.MATH):  # computes everything in float32, on GPUs, too
            theirs, _ = sdpa_attention_forward(module, *inputs, **options)
        ours, weights = compat.forward(module, *inputs, **options)
        assert weights is None and ours.shape == theirs.shape and ours.is_contiguous()
        assert float((ours - theirs).abs().max()) <= ROUNDING * float(inputs[2].abs().max())


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("seqlens", [(9, 9), (1, 9)])
def test_a_window_without_a_mask_is_applied(is_causal, seqlens):
    inputs = layer_inputs(*seqlens)
    i, j = torch.arange(seqlens[0])[:, None] + seqlens[1] - seqlens[0], torch.arange(seqlens[1])
    keep = (i - j).abs() < 3
    if is_causal:
        keep &= j <= i
    expected, _ = compat.forward(Layer(2), *inputs, keep, is_causal=False)
    windowed, _ = compat.forward(Layer(2), *inputs, None, is_causal=is_causal, sliding_window=3)
    assert torch.allclose(windowed, expected, rtol=0, atol=ROUNDING * float(inputs[2].abs().max()))
    without, _ = compat.forward(Layer(2), *inputs, None, is_causal=is_causal)
    assert not torch.allclose(without, expected, rtol=0, atol=1e-3)
    wide, _ = compat.forward(Layer(2), *inputs, None, is_causal=is_causal, sliding_window=9)
    assert torch.equal(without, wide)


def test_sinks_in_half_precision_are_converted_exactly():
    inputs = layer_inputs(6, 6)
    sinks = torch.randn(4, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    ours, _ = compat.forward(Layer(2), *inputs, None, s_aux=sinks)
    expected = rapt.sdpa(*inputs, causal=True, sinks=sinks.float())
    assert torch.equal(ours, expected.transpose(1, 2))


@pytest.mark.parametrize("name", ["output_attentions", "head_mask", "indices", "block_indices", "cache"])
def test_what_rapt_does_not_have_is_refused_by_name(name):
    inputs = layer_inputs(6, 6)
    compat.forward(Layer(2), *inputs, None, **{name: None}, position_ids=torch.arange(6), use_cache=True)
    with pytest.raises(rapt.Unsupported, match=f"{name} is given"):
        compat.forward(Layer(2), *inputs, None, **{name: True if name == "output_attentions" else torch.ones(1)})


def test_packed_lengths_without_their_mask_are_refused():
    inputs, lengths = layer_inputs(6, 6), torch.tensor([0, 3, 6])
    compat.forward(Layer(2), *inputs, torch.ones(6, 6, dtype=torch.bool), cu_seq_lens_q=lengths)
    with pytest.raises(rapt.InvalidArgument, match="cu_seq_lens_q is given without attention_mask"):
        compat.forward(Layer(2), *inputs, None, cu_seq_lens_q=lengths)


@pytest.mark.parametrize("dropout", [0.1, math.nan, -0.5])
def test_dropout_is_refused(dropout):
    with pytest.raises(rapt.Unsupported, match="dropout is .*: must be 0"):
        compat.forward(Layer(2), *layer_inputs(6, 6), None, dropout=dropout)
