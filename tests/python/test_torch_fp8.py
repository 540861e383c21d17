"""rapt.quantize and rapt.fake_quantize on PyTorch tensors, beyond the common tests: operators, torch.compile,
gradients, CUDA graphs, equal bits on the CPU and a GPU.
"""

import fp8
import numpy as np
import pytest

import rapt

torch = pytest.importorskip("torch")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=needs_gpu)]
KINDS = ["tensor", "head", "token", "block64", "block128", "channel"]
OPTIONS = [
    {},
    {"scales": "block64", "hadamard": True, "smooth": True},
    {"scales": "token", "dtype": "sim8", "layout": "bshd"},
    {"scales": "channel", "dtype": torch.float8_e5m2, "percentile": 90.0},
]


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


@pytest.fixture
def x(device):
    return torch.randn(2, 3, 70, 24, generator=torch.Generator().manual_seed(3)).to(device)


def same(one, other):
    assert one.scales == other.scales and one.dtype == other.dtype
    for a, b in zip(one[:3], other[:3]):
        assert a is b is None or (a.dtype == b.dtype and a.stride() == b.stride())
        assert a is None or torch.equal(a.view(torch.uint8), b.view(torch.uint8))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_compiled_without_graph_breaks(x, options):
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: rapt.quantize(x * 2, **options), fullgraph=True, backend="aot_eager")
    same(compiled(x), rapt.quantize(x * 2, **options))
    simulated = torch.compile(lambda x: rapt.fake_quantize(x * 2, **options) + 1, fullgraph=True, backend="aot_eager")
    assert torch.equal(simulated(x), rapt.fake_quantize(x * 2, **options) + 1)


def test_a_layer_of_quantised_attention_compiles(x):
    def layer(q, k, v, codes):
        q8, k8 = rapt.quantize(q, hadamard=True), rapt.quantize(k, scales="block64", hadamard=True, smooth=True)
        v8 = rapt.quantize(v, scales="channel", out=codes)
        options = {**q8.options("q"), **k8.options("k"), **v8.options("v")}
        return rapt.sdpa(q8.codes, k8.codes, v8.codes, causal=True, out_dtype=torch.float32, **options)

    torch._dynamo.reset()
    codes = torch.zeros(x.shape, dtype=torch.float8_e4m3fn, device=x.device)
    expected = layer(x, x * 0.5, x + 1, codes)
    codes.zero_()
    assert torch.equal(torch.compile(layer, fullgraph=True, backend="aot_eager")(x, x * 0.5, x + 1, codes), expected)
    assert codes.view(torch.uint8).any()


def test_lengths_do_not_recompile(device):
    from torch._dynamo.testing import CompileCounter

    torch._dynamo.reset()
    counter = CompileCounter()
    compiled = torch.compile(
        lambda x: rapt.fake_quantize(x, scales="block64"), dynamic=True, fullgraph=True, backend=counter
    )
    for seqlen in (33, 65, 100, 128):
        x = torch.randn(2, 3, seqlen, 16, device=device)
        assert torch.equal(compiled(x), rapt.fake_quantize(x, scales="block64"))
        if seqlen == 65:
            after_second = counter.frame_count
    assert counter.frame_count == after_second


def test_the_operators_check_themselves(x):
    """Tests schema, fake tensors, autograd registration and AOT dispatch. Compares strides of fake and real outputs."""
    operators, check = torch.ops.rapt, torch.library.opcheck
    shared = ["bhsd", "block64", "e4m3", True, True, None, None]
    check(operators.quantize.default, (x, None, None, *shared))
    check(
        operators.quantize.default, (x.transpose(1, 2), None, None, "bshd", "token", "e5m2", False, False, 50.0, None)
    )
    cu = torch.tensor([0, 2, 2], dtype=torch.int32, device=x.device)
    check(operators.quantize.default, (x[:, 0], None, cu, "bhsd", "head", "sim8", False, False, None, 2))
    check(operators.quantize.default, (x, torch.ones(2, 3, device=x.device), None, "bhsd", "head", *shared[2:]))
    codes, mean = torch.zeros(x.shape, dtype=torch.uint8, device=x.device), torch.empty(2, 3, 24, device=x.device)
    check(operators.quantize_out.default, (x, None, None, *shared, codes, torch.empty(2, 3, 2, device=x.device), mean))
    keep = x > 0
    check(operators.straight_through.default, (x.clone().requires_grad_(), x.round(), keep, False))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_pass_straight_through(x, dtype, compiled):
    torch._dynamo.reset()
    x = x.to(dtype).requires_grad_()
    weights = torch.randn_like(x)
    for options in OPTIONS:
        call = lambda x: rapt.fake_quantize(x, **options)  # noqa: B023, E731
        call = torch.compile(call, fullgraph=True, backend="aot_eager") if compiled else call
        simulated = call(x)
        assert torch.equal(simulated, rapt.fake_quantize(x.detach(), **options))
        (gradient,) = torch.autograd.grad((simulated * weights).sum(), x)
        assert torch.equal(gradient, weights)


@pytest.mark.parametrize("hadamard", [False, True])
def test_gradients_of_saturated_values_can_be_clipped(x, hadamard):
    x = x.requires_grad_()
    weights = torch.randn_like(x)
    options = {"scales": "token", "percentile": 80.0, "hadamard": hadamard}
    turn = torch.from_numpy(fp8.hadamard(24) if hadamard else np.eye(24)).to(x.device)
    y = x.detach().double() @ turn
    kept = (y / rapt.quantize(x.detach(), **options).descale[..., None]).abs() <= 464
    assert 0.1 < (~kept).float().mean() < 0.25
    expected = ((weights.double() @ turn) * kept) @ turn.T
    simulated = rapt.fake_quantize(x, clip_gradient=True, **options)
    (gradient,) = torch.autograd.grad((simulated * weights).sum(), x)
    assert torch.allclose(gradient.double(), expected, atol=1e-5)
    if not hadamard:
        assert torch.equal(gradient != 0, kept)
    exact = rapt.fake_quantize(x, clip_gradient=True, hadamard=hadamard)  # amax is the maximum, so nothing saturates
    (gradient,) = torch.autograd.grad((exact * weights).sum(), x)
    assert torch.allclose(gradient, weights, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"percentile": 90.0, "clip_gradient": True, "hadamard": True}], ids=str)
def test_transformations_of_functions(x, options):
    def call(x):
        return rapt.fake_quantize(x, **options)

    ours = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(call(ours).sum(), ours)
    assert torch.equal(torch.func.grad(lambda x: call(x).sum())(x), expected)
    assert torch.equal(torch.func.vmap(call)(torch.stack([x, x * 2]))[1], call(x * 2))
    assert torch.equal(torch.func.vmap(torch.func.grad(lambda x: call(x).sum()))(x[None])[0], expected)
    out, tangent = torch.func.jvp(call, (x,), (torch.ones_like(x),))
    assert torch.equal(out, call(x)) and torch.equal(tangent, expected)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        assert torch.equal(torch.autograd.forward_ad.unpack_dual(call(dual)).tangent, expected)
        with pytest.raises(rapt.Unsupported, match="no forward-mode derivatives"):
            rapt.quantize(dual)


def test_training_through_fake_quantized_weights(device):
    torch.manual_seed(0)
    weights = torch.randn(1, 1, 32, 32, device=device, requires_grad=True)
    target, inputs = torch.randn(32, 32, device=device), torch.randn(64, 32, device=device)
    optimizer, losses = torch.optim.Adam([weights], 0.05), []
    for _ in range(60):
        loss = (
            (inputs @ rapt.fake_quantize(weights, scales="token", clip_gradient=True)[0, 0] - inputs @ target)
            .square()
            .mean()
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.05 * losses[0]


def test_codes_have_no_gradient_and_it_says_so(x):
    x.requires_grad_()
    made = rapt.quantize(x)
    assert made.descale.requires_grad
    with pytest.raises(NotImplementedError, match="fake_quantize passes gradients through"):
        made.descale.sum().backward()
    with torch.no_grad():
        assert not rapt.quantize(x).descale.requires_grad
    with pytest.raises(rapt.InvalidArgument, match="not allowed if an input needs a gradient"):
        rapt.quantize(x, out=torch.empty(x.shape, dtype=torch.uint8, device=x.device))
    with pytest.raises(rapt.InvalidArgument, match="descale: needs a gradient"):
        rapt.fake_quantize(x, descale=torch.ones(2, 3, device=x.device, requires_grad=True))


def test_subclasses_parameters_and_contexts(x):
    class Tagged(torch.Tensor):
        pass

    same(rapt.quantize(x.as_subclass(Tagged), smooth=True), rapt.quantize(x, smooth=True))
    with torch.no_grad():
        same(rapt.quantize(torch.nn.Parameter(x)), rapt.quantize(x))
    context = rapt.Context()
    same(rapt.quantize(x, context=context), rapt.quantize(x))
    same(rapt.quantize(x.as_subclass(Tagged), context=context), rapt.quantize(x))


def test_fake_tensors_have_the_shapes_of_real_ones(x):
    from torch._subclasses.fake_tensor import FakeTensorMode

    mode = FakeTensorMode()
    given = mode.from_tensor(x)
    for options in OPTIONS:
        with mode:
            fake, simulated = rapt.quantize(given, **options), rapt.fake_quantize(given, **options)
        real = rapt.quantize(x, **options)
        for a, b in zip([*fake[:3], simulated], [*real[:3], rapt.fake_quantize(x, **options)]):
            assert (a is None) == (b is None)
            for name in ("shape", "dtype", "device") if a is not None else ():
                assert getattr(a, name) == getattr(b, name), name
            assert a is None or a.stride() == b.stride()


def test_fake_tensors_of_a_gpu_need_none():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        x = torch.empty(2, 3, 70, 24, dtype=torch.float16, device="cuda")
        made = rapt.quantize(x, scales="block64", smooth=True)
        assert {one.device.type for one in made[:3]} == {"cuda"}
        assert rapt.fake_quantize(x, hadamard=True).device == x.device


def test_make_fx_sees_the_call(x):
    from torch.fx.experimental.proxy_tensor import make_fx

    graph = make_fx(lambda x: rapt.quantize(x).codes)(x)
    assert any(node.target is torch.ops.rapt.quantize.default for node in graph.graph.nodes)


@needs_gpu
@pytest.mark.parametrize("scales", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_gpu_gives_the_bits_of_the_cpu(scales, dtype):
    x = torch.randn(2, 3, 333, 128, generator=torch.Generator().manual_seed(1)).to(dtype)
    x[0, 0, 5, 7] = 300.0
    for options in ({}, {"hadamard": True}, {"smooth": True}, {"percentile": 99.0, "dtype": "e5m2"}, {"dtype": "sim8"}):
        there = rapt.quantize(x.cuda(), scales=scales, **options)
        moved = [None if one is None else one.cpu() for one in there[:3]]
        same(rapt.Quantized(*moved, *there[3:]), rapt.quantize(x, scales=scales, **options))


@needs_gpu
def test_cuda_graph():
    x = torch.randn(2, 3, 333, 128, device="cuda", dtype=torch.float16)
    for options in ({"scales": "token"}, {"scales": "tensor"}, {"scales": "block64", "hadamard": True, "smooth": True}):
        out = rapt.quantize(x, **options)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            rapt.quantize(x, out=out, **options)
        x.copy_(torch.randn_like(x))
        out.codes.view(torch.uint8).fill_(0xFF)
        out.descale.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        same(out, rapt.quantize(x, **options))


@needs_gpu
def test_the_current_stream_is_used():
    x = torch.randn(8, 8, 512, 64, device="cuda", dtype=torch.float16)
    expected = rapt.quantize(x)
    stream, late = torch.cuda.Stream(), torch.zeros_like(x)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        late.copy_(x)
        made = rapt.quantize(late)
    stream.synchronize()
    same(made, expected)
