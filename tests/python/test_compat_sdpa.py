"""rapt.compat.sdpa compared with PyTorch's scaled_dot_product_attention, computed in float64 by its math backend.

Run by pytest; needs PyTorch. Everything runs on the CPU, and on a GPU if there is one.
"""

import inspect
import math

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.nn.attention.bias import causal_lower_right, causal_upper_left  # noqa: E402

import rapt  # noqa: E402
from rapt.compat import _sdpa  # noqa: E402
from rapt.compat import sdpa  # noqa: E402

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
UNIT = {torch.float32: 0.0, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
F32 = 2.0**-24


def draw(device, dtype, *shapes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(device, dtype) for shape in shapes]


def exact(query, key, value, attn_mask=None, **options):
    """The result of PyTorch's own function in float64."""
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        attn_mask = attn_mask.double()
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(query.double(), key.double(), value.double(), attn_mask, **options)


def assert_close(out, query, key, value, attn_mask=None, **options):
    """Expects errors within rounding errors times sum p |v|: P and the output are rounded to the dtype, scores and sums
    to float32.
    """
    expected = exact(query, key, value, attn_mask, **options)
    magnitude = exact(query, key, value.abs(), attn_mask, **options)
    scale = abs(options.get("scale") or 1 / math.sqrt(query.shape[-1]))
    norm = scale * math.prod(float(one.double().norm(dim=-1).max()) if one.numel() else 0.0 for one in (query, key))
    steps = 2 * (query.shape[-1] + 8) * norm + key.shape[-2] + 8
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        steps += 8 * float(attn_mask.double().abs().clamp(max=1e3).max())
    bound = (2 * UNIT[query.dtype] + F32 * steps) * magnitude
    if query.dtype == torch.float16 and value.numel():  # float16's smallest step is 2**-24, for each p and the output
        bound = bound + 2.0**-25 * (key.shape[-2] * float(value.double().abs().max()) + 1)
    assert out.dtype == query.dtype and out.shape == expected.shape
    error = (out.double() - expected).abs()
    assert bool((error <= bound).all()), float((error - bound).max())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("lead", [(), (3,), (2, 3), (2, 2, 3), (2, 1, 2, 3)])
def test_any_rank(device, dtype, is_causal, lead):
    query, key, value = draw(device, dtype, (*lead, 9, 16), (*lead, 13, 16), (*lead, 13, 24))
    assert_close(sdpa(query, key, value, is_causal=is_causal), query, key, value, is_causal=is_causal)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("seqlens", [(5, 9), (9, 5), (1, 7), (7, 1), (3, 0), (0, 3)])
def test_is_causal_starts_at_the_top_left(device, seqlens):
    kv = (2, 3, seqlens[1], 16)
    query, key, value = draw(device, torch.float32, (2, 3, seqlens[0], 16), kv, kv)
    assert_close(sdpa(query, key, value, is_causal=True), query, key, value, is_causal=True)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.bool, *DTYPES])
@pytest.mark.parametrize(
    "shape", [(2, 3, 9, 13), (1, 3, 9, 13), (2, 1, 9, 13), (2, 1, 1, 13), (3, 9, 13), (9, 13), (9, 1), (1, 13)]
)
def test_masks_broadcast(device, dtype, shape):
    query, key, value = draw(device, torch.float16, (2, 3, 9, 16), (2, 3, 13, 16), (2, 3, 13, 16))
    mask = draw(device, torch.float32, shape, seed=1)[0]
    mask = mask > -1 if dtype == torch.bool else mask.to(dtype)
    assert_close(sdpa(query, key, value, mask), query, key, value, mask)
    assert_close(
        sdpa(query, key, value, attn_mask=mask.transpose(-1, -2).contiguous().transpose(-1, -2), scale=-0.5),
        query,
        key,
        value,
        mask,
        scale=-0.5,
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [(13,), ()])
def test_masks_of_few_dimensions_broadcast_too(device, shape):
    query, key, value = draw(device, torch.float32, (2, 3, 9, 16), (2, 3, 13, 16), (2, 3, 13, 16))
    mask = draw(device, torch.float32, shape, seed=1)[0]
    assert_close(sdpa(query, key, value, mask), query, key, value, mask.expand(9, 13))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("lead", [(), (3,), (2, 2, 3)])
def test_masks_of_other_ranks(device, lead):
    query, key, value = draw(device, torch.float32, (*lead, 9, 16), (*lead, 13, 16), (*lead, 13, 16))
    shapes = [(9, 13), (*lead, 9, 13), (*(1 for _ in lead), 9, 13)]
    for shape in shapes:
        mask = draw(device, torch.float32, shape, seed=2)[0] > -1
        assert_close(sdpa(query, key, value, mask), query, key, value, mask)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_without_keys_is_zero(device, dtype):
    query, key, value = draw(device, dtype, (1, 2, 4, 16), (1, 2, 6, 16), (1, 2, 6, 16))
    mask = torch.ones(4, 6, dtype=torch.bool, device=device)
    mask[2] = False
    value[:, :, 3] = math.nan
    mask[:, 3] = False
    out = sdpa(query, key, value, mask)
    assert bool((out[:, :, 2] == 0).all()) and bool(out.isfinite().all())
    bias = torch.zeros(4, 6, device=device).masked_fill_(~mask, -math.inf)
    assert torch.equal(sdpa(query, key, value, bias)[:, :, 2], out[:, :, 2])


@pytest.fixture
def seen(monkeypatch):
    """The tensors that reached rapt.sdpa in the last call."""
    tensors = {}

    def spy(q, k, v, **options):
        tensors.update(q=q, k=k, v=v)
        return rapt.sdpa(q, k, v, **options)

    monkeypatch.setattr(_sdpa, "attention", spy)
    return tensors


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("lead", [(), (3,), (2, 3), (2, 2, 3)])
def test_nothing_is_copied(device, lead, seen):
    call = dict(zip("qkv", draw(device, torch.float32, (*lead, 9, 16), (*lead, 13, 16), (*lead, 13, 16))))
    sdpa(*call.values())
    assert all(seen[name].data_ptr() == tensor.data_ptr() and seen[name].ndim == 4 for name, tensor in call.items())


@pytest.mark.parametrize("device", DEVICES)
def test_batch_dimensions_broadcast_without_a_copy(device, seen):
    query, key, value = draw(device, torch.float32, (4, 3, 9, 16), (1, 3, 13, 16), (3, 13, 16))
    wide = key.expand(4, -1, -1, -1), value.expand(4, -1, -1, -1)
    assert_close(sdpa(query, key, value), query, *wide)
    assert seen["k"].data_ptr() == key.data_ptr() and seen["k"].stride(0) == 0
    assert seen["v"].data_ptr() == value.data_ptr() and seen["v"].stride(0) == 0
    assert_close(sdpa(query[:1], wide[0], value), query[:1].expand(4, -1, -1, -1), *wide)
    five = query.view(2, 2, 3, 9, 16)
    assert_close(sdpa(five, key, value), five, key.expand(2, 2, 3, -1, -1), value.expand(2, 2, 3, -1, -1))
    assert seen["q"].data_ptr() == query.data_ptr() and seen["k"].data_ptr() == key.data_ptr()


@pytest.mark.parametrize("device", DEVICES)
def test_batch_dimensions_that_are_not_one_in_memory_are_refused(device):
    query, key, value = draw(device, torch.float32, (2, 5, 3, 9, 16), (2, 5, 3, 13, 16), (2, 5, 3, 13, 16))
    apart = key.transpose(0, 1).contiguous().transpose(0, 1)
    with pytest.raises(rapt.InvalidArgument, match=r"key's batch dimensions \[2, 5\] have strides"):
        sdpa(query, apart, value)
    with pytest.raises(rapt.InvalidArgument, match="value's batch dimensions"):
        sdpa(query, key, value[:, :1])
    mask = torch.ones(2, 1, 1, 9, 13, dtype=torch.bool, device=device)
    with pytest.raises(rapt.InvalidArgument, match="attn_mask's batch dimensions"):
        sdpa(query, key, value, mask)
    whole = mask.repeat(1, 5, 1, 1, 1)
    assert_close(sdpa(query, key, value, whole), query, key, value, whole)
    with pytest.raises(rapt.InvalidArgument, match=r"attn_mask is \[3, 1, 1, 9, 13\]: must broadcast"):
        sdpa(query, key, value, mask[:1].repeat(3, 1, 1, 1, 1))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("lead", [(6,), (2, 6), (2, 2, 6)])
@pytest.mark.parametrize("heads", [1, 2, 3, 6])
def test_grouped_heads(device, lead, heads):
    kv_lead = (*lead[:-1], heads)
    query, key, value = draw(device, torch.float16, (*lead, 9, 16), (*kv_lead, 13, 16), (*kv_lead, 13, 16))
    repeated = [one.repeat_interleave(6 // heads, dim=-3) for one in (key, value)]
    assert_close(sdpa(query, key, value, enable_gqa=True), query, *repeated)
    if heads in (1, 6):
        assert_close(sdpa(query, key, value), query, *repeated)
    else:
        with pytest.raises(RuntimeError, match="enable_gqa=True"):
            sdpa(query, key, value)
        with pytest.raises(RuntimeError):
            F.scaled_dot_product_attention(query, key, value)


def test_heads_that_do_not_divide_are_refused():
    query, key, value = draw("cpu", torch.float32, (2, 6, 9, 16), (2, 4, 13, 16), (2, 4, 13, 16))
    with pytest.raises(rapt.InvalidArgument, match="query has 6 heads, key and value 4: must be a multiple"):
        sdpa(query, key, value, enable_gqa=True)
    with pytest.raises(rapt.InvalidArgument, match="key has 4 heads and value 2"):
        sdpa(query, key, value[:, :2], enable_gqa=True)
    assert_close(
        sdpa(query, key[:, :3], value[:, :1], enable_gqa=True),
        query,
        key[:, :3].repeat_interleave(2, 1),
        value[:, :1].expand(-1, 6, -1, -1),
    )
    assert_close(sdpa(query[:, :1], key, value), query[:, :1].expand(-1, 4, -1, -1), key, value)


@pytest.mark.parametrize("seqlens", [(5, 9), (9, 9), (9, 5)])
@pytest.mark.filterwarnings("ignore:Lower right causal bias")
def test_causal_bias_classes(seqlens):
    kv = (2, 3, seqlens[1], 16)
    query, key, value = draw("cpu", torch.float32, (2, 3, seqlens[0], 16), kv, kv)
    ones = torch.ones(seqlens, dtype=torch.bool)
    for bias, diagonal in ((causal_upper_left(*seqlens), 0), (causal_lower_right(*seqlens), seqlens[1] - seqlens[0])):
        assert torch.equal(sdpa(query, key, value, bias), sdpa(query, key, value, ones.tril(diagonal)))
    with pytest.raises(rapt.InvalidArgument, match="CausalBias of lengths"):
        sdpa(query, key, value, causal_upper_left(seqlens[0] + 1, seqlens[1]))


def test_both_masks_are_refused_as_by_pytorch():
    query, key, value = draw("cpu", torch.float32, (2, 3, 9, 16), (2, 3, 9, 16), (2, 3, 9, 16))
    mask = torch.ones(9, 9, dtype=torch.bool)
    with pytest.raises(RuntimeError), sdpa_kernel(SDPBackend.MATH):
        F.scaled_dot_product_attention(query, key, value, mask, is_causal=True)
    with pytest.raises(RuntimeError, match="attn_mask and is_causal=True are both given"):
        sdpa(query, key, value, mask, is_causal=True)


@pytest.mark.parametrize("dropout_p", [0.1, -0.1, 1, math.nan, None, "0"])
def test_dropout_is_refused(dropout_p):
    query, key, value = draw("cpu", torch.float32, (2, 3, 9, 16), (2, 3, 9, 16), (2, 3, 9, 16))
    with pytest.raises(rapt.Unsupported, match="dropout_p is .*: must be 0"):
        sdpa(query, key, value, dropout_p=dropout_p)
    assert torch.equal(sdpa(query, key, value, None, 0), sdpa(query, key, value, None, -0.0))


@pytest.mark.parametrize(
    "change, sentence",
    [
        (dict(query=torch.zeros(2, 3, 9, 16, dtype=torch.float64)), "q"),
        (dict(attn_mask=torch.zeros(9, 9, dtype=torch.int32)), r"attn_mask is torch\.int32: must be bool"),
        (dict(attn_mask=torch.zeros(9, 9, dtype=torch.uint8)), r"attn_mask is torch\.uint8: must be bool"),
        (dict(attn_mask=torch.zeros(9, 9, dtype=torch.float64)), r"attn_mask is torch\.float64: must be bool"),
        (dict(attn_mask=torch.zeros(9, 8)), "bias"),
        (dict(attn_mask=torch.ones(5, 3, 9, 9, dtype=torch.bool)), "mask"),
        (dict(key=torch.zeros(3, 3, 9, 16)), r"batch dimensions \[2\], \[3\], \[2\]: must broadcast"),
        (dict(query=torch.zeros(16)), "each must have 2 or more"),
        (dict(key=torch.zeros(2, 3, 9, 8)), "k"),
        (dict(value=torch.zeros(2, 3, 8, 16)), "v"),
        (dict(is_causal=1), "is_causal is 1: must be True or False"),
        (dict(scale=math.inf), "scale"),
    ],
)
def test_what_is_wrong_is_refused_by_a_sentence(change, sentence):
    call = dict(zip(("query", "key", "value"), draw("cpu", torch.float32, (2, 3, 9, 16), (2, 3, 9, 16), (2, 3, 9, 16))))
    sdpa(**call)
    with pytest.raises(rapt.InvalidArgument, match=sentence):
        sdpa(**{**call, **change})


def test_the_signature_is_pytorchs():
    theirs = torch.ops.aten.scaled_dot_product_attention.default._schema.arguments
    *ours, context = inspect.signature(sdpa).parameters.values()
    assert context.name == "context" and context.default is None
    assert [(one.name, one.kind == one.KEYWORD_ONLY) for one in ours] == [(one.name, one.kwarg_only) for one in theirs]
    assert [None if one.default is one.empty else one.default for one in ours] == [one.default_value for one in theirs]


def test_the_output_keeps_querys_memory_order():
    query, key, value = [one.transpose(1, 2) for one in draw("cpu", torch.float32, *[(2, 9, 3, 16)] * 3)]
    assert sdpa(query, key, value).transpose(1, 2).is_contiguous()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("lead", [(2, 4), (2, 2, 4), (4,)])
def test_compiles_into_one_graph(device, dynamic, lead):
    torch._dynamo.reset()
    compiled = torch.compile(sdpa, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for seqlen in (9, 12):
        query, key, value = draw(device, torch.float32, (*lead, seqlen, 16), (*lead, 13, 16), (*lead, 13, 16))
        mask = draw(device, torch.float32, (seqlen, 13), seed=1)[0] > -1
        assert torch.equal(compiled(query, key, value, mask), sdpa(query, key, value, mask))
        assert torch.equal(compiled(query, key, value, is_causal=True), sdpa(query, key, value, is_causal=True))


@pytest.mark.parametrize("wanted", ["query", "attn_mask"])
def test_there_is_no_backward(wanted):
    call = dict(zip(("query", "key", "value"), draw("cpu", torch.float32, (2, 3, 9, 16), (2, 3, 9, 16), (2, 3, 9, 16))))
    call["attn_mask"] = torch.zeros(9, 9)
    plain = sdpa(**call)
    call[wanted].requires_grad_()
    out = sdpa(**call)
    assert torch.equal(out.detach(), plain) and out.requires_grad
    with pytest.raises(RuntimeError, match="no backward"):
        out.sum().backward()
