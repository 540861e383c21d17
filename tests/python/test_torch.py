"""Tests rapt on PyTorch tensors, on the CPU and, if there is one, on a GPU: eager, compiled, in CUDA graphs."""

import subprocess
import sys
import threading

import cases
import numpy as np
import pytest
from conftest import assert_near, reference

import rapt

torch = pytest.importorskip("torch")

gpu = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))
DEVICES = ["cpu", gpu]
DTYPES = ["float32", "float16", "bfloat16"]


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


def tensors(arrays, device, dtype="float32"):
    return [torch.from_numpy(x).to(device, getattr(torch, dtype)) for x in arrays]


def exact(tensor):
    return tensor.detach().double().cpu().numpy()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", cases.NAMES)
def test_option(qkv, rng, name, dtype, device):
    q, k, v = tensors(qkv(), device, dtype)
    options = cases.options(rng, 2, 4, 17, 29)[name]
    expected, expected_lse = reference(exact(q), exact(k), exact(v), **options)
    given = {key: torch.from_numpy(x).to(device) if isinstance(x, np.ndarray) else x for key, x in options.items()}
    out, lse = rapt.sdpa(q, k, v, lse=True, **given)
    assert out.dtype == q.dtype and out.device == q.device and lse.dtype == torch.float32
    assert_near(exact(out), expected, dtype)
    finite = np.isfinite(expected_lse)
    assert np.array_equal(np.isneginf(exact(lse)), ~finite)
    assert np.abs(exact(lse)[finite] - expected_lse[finite]).max() <= 1e-4 * max(1, np.abs(expected_lse[finite]).max())


@pytest.mark.parametrize("dtype", DTYPES)
def test_out_is_poisoned_written_and_returned(qkv, dtype, device):
    q, k, v = tensors(qkv(head_dim=64), device, dtype)
    out = torch.full_like(q, float("nan"))
    assert rapt.sdpa(q, k, v, out=out) is out
    assert torch.equal(out, rapt.sdpa(q, k, v))
    assert_near(exact(out), reference(exact(q), exact(k), exact(v))[0], dtype)


def test_bshd_and_the_order_of_out(qkv, device):
    q, k, v = tensors(qkv(head_dim=64), device, "float16")
    swapped = [x.transpose(1, 2).contiguous() for x in (q, k, v)]
    out = rapt.sdpa(*swapped, layout="bshd", causal=True)
    assert out.is_contiguous() and torch.equal(out.transpose(1, 2), rapt.sdpa(q, k, v, causal=True))
    views = [x.transpose(1, 2) for x in swapped]
    assert rapt.sdpa(*views, causal=True).stride() == views[0].stride()
    narrow = views[2][..., :32]
    assert rapt.sdpa(views[0], views[1], narrow).transpose(1, 2).is_contiguous()


def test_report_R188_float8_and_uint8_are_equal(qkv, device):
    q, k, v = (x.to(torch.float8_e4m3fn) for x in tensors(qkv(head_dim=64), device))
    out = rapt.sdpa(q, k, v)
    assert out.dtype == torch.bfloat16
    assert_near(exact(out), reference(exact(q.float()), exact(k.float()), exact(v.float()))[0], "bfloat16")
    raw = [x.view(torch.uint8) for x in (q, k, v)]
    assert torch.equal(out, rapt.sdpa(*raw, q_dtype="e4m3", k_dtype=torch.float8_e4m3fn, v_dtype="e4m3"))
    wide = [x.float().to(torch.float8_e5m2) for x in (q, k, v)]
    assert torch.equal(
        rapt.sdpa(*wide),
        rapt.sdpa(*(x.view(torch.uint8) for x in wide), q_dtype="e5m2", k_dtype="e5m2", v_dtype="e5m2"),
    )
    with pytest.raises(rapt.InvalidArgument, match="v: uint8 needs a format"):
        rapt.sdpa(q, k, raw[2])
    sixteen = q.half()
    assert rapt.sdpa(sixteen, k, v).dtype == torch.float16  # q has 16 bits, k and v are FP8
    scale = torch.full((2, 2), 0.5, device=device)
    assert torch.equal(
        rapt.sdpa(sixteen, k, v, v_descale=scale, v_scales="head", out_dtype=torch.float32),
        rapt.sdpa(sixteen, k, v, out_dtype=torch.float32) * 0.5,
    )


def test_packed_and_merge(rng, device):
    q, k, v = tensors([rng.standard_normal((14, h, 64), dtype=np.float32) for h in (4, 2, 2)], device, "float16")
    cu = torch.tensor([0, 5, 5, 14], dtype=torch.int32, device=device)
    packed = {"cu_seqlens_q": cu, "cu_seqlens_k": cu, "max_seqlen_q": 9, "max_seqlen_k": 9, "causal": True}
    out, lse = rapt.sdpa(q, k, v, lse=True, **packed)
    for a, b in ((0, 5), (5, 14)):
        one = [exact(x[a:b]).swapaxes(0, 1)[None] for x in (q, k, v)]
        assert_near(exact(out[a:b]).swapaxes(0, 1)[None], reference(*one, causal=True)[0], "float16")
    q, k, v = (x[None].transpose(1, 2) for x in (q, k, v))
    parts = [rapt.sdpa(q, k[:, :, a:b], v[:, :, a:b], partial=True) for a, b in ((0, 6), (6, 14))]
    merged = rapt.merge([p[0] for p in parts], [p[1] for p in parts], out_dtype=torch.float16)
    assert merged.dtype == torch.float16
    assert_near(exact(merged), reference(exact(q), exact(k), exact(v))[0], "float16")


def test_frameworks_do_not_mix(qkv):
    q, k, v = qkv()
    with pytest.raises(rapt.InvalidArgument, match="k: a numpy.ndarray, but q is of torch"):
        rapt.sdpa(torch.from_numpy(q), k, torch.from_numpy(v))
    with pytest.raises(rapt.InvalidArgument, match="scale = .*: must be a number"):
        rapt.sdpa(*tensors((q, k, v), "cpu"), scale=torch.tensor(0.1))


def test_what_torch_keeps_elsewhere_than_in_memory_is_refused(qkv, device):
    q, k, v = tensors(qkv(), device)
    negated = torch.complex(q, q).conj().imag  # PyTorch negates the numbers in this tensor's memory
    assert negated.is_neg()
    with pytest.raises(rapt.InvalidArgument, match=r"q: .*resolve_neg"):
        rapt.sdpa(negated, k, v)
    with pytest.raises(rapt.InvalidArgument, match=r"k: .*resolve_neg"):
        rapt.sdpa(q, negated[:, :2], v)
    with pytest.raises(rapt.InvalidArgument, match=r"v: .*resolve_neg"):
        rapt.sdpa(q, k, torch._neg_view(v))  # report Q04: this view is contiguous
    with pytest.raises(rapt.InvalidArgument, match=r"out: .*resolve_neg"):
        rapt.sdpa(q, k, v, out=torch._neg_view(torch.zeros_like(q)))
    assert_near(exact(rapt.sdpa(negated.resolve_neg(), k, v)), reference(-exact(q), exact(k), exact(v))[0])
    for other in (q.to("meta"), q.to_sparse()):
        with pytest.raises(rapt.InvalidArgument, match="q: "):
            rapt.sdpa(other, k, v)


def test_there_is_no_backward_and_it_says_so(qkv, device):
    q, k, v = tensors(qkv(), device)
    q.requires_grad_()
    out = rapt.sdpa(q, k, v)
    assert out.requires_grad
    with pytest.raises(NotImplementedError, match="rapt has no backward yet"):
        out.sum().backward()
    for given in ({"out": torch.empty_like(q)}, {"lse": torch.empty(2, 4, 17, device=device)}):
        with pytest.raises(rapt.InvalidArgument, match="not allowed if an input needs a gradient"):
            rapt.sdpa(q, k, v, **given)
    bias = torch.zeros(17, 29, device=device, requires_grad=True)
    assert rapt.sdpa(q.detach(), k, v, bias=bias).requires_grad
    with torch.no_grad():
        assert not rapt.sdpa(q, k, v).requires_grad
        assert torch.equal(rapt.sdpa(torch.nn.Parameter(q), k, v), out)


def test_a_subclass_goes_through_the_operator(qkv, device):
    class Tagged(torch.Tensor):
        pass

    q, k, v = tensors(qkv(), device)
    assert torch.equal(rapt.sdpa(q.as_subclass(Tagged), k, v).as_subclass(torch.Tensor), rapt.sdpa(q, k, v))
    assert torch.equal(rapt.sdpa(q, k.as_subclass(Tagged), v).as_subclass(torch.Tensor), rapt.sdpa(q, k, v))


def operator_arguments(q, k, v, layout="bhsd", dtype=None, lse=True, **options):
    from rapt import _torch_operators

    given = dict.fromkeys((*_torch_operators.TENSORS, *_torch_operators.OPTIONS))
    given.update(q=q, k=k, v=v, layout=layout, causal="", partial=False, invariant=False, check_contents=False)
    given.update(options)
    return [*given.values(), dtype, lse]


def test_report_R167_the_operator_checks_itself(device):
    """Tests schema, fake tensors, autograd registration and AOT dispatch. Compares strides of fake and real outputs."""
    q = torch.randn(1, 20, 12, 128, dtype=torch.bfloat16, device=device).transpose(1, 2)
    torch.library.opcheck(torch.ops.rapt.sdpa.default, operator_arguments(q, q.clone(), q.clone()))
    torch.library.opcheck(
        torch.ops.rapt.sdpa.default, operator_arguments(q, q.clone(), q[..., :64].clone(), causal="bottom_right")
    )
    q = torch.randn(3, 5, 4, 16, device=device)
    torch.library.opcheck(
        torch.ops.rapt.sdpa.default,
        operator_arguments(q, q.clone(), q[..., :8].clone(), layout="bshd", dtype=torch.float16),
    )
    torch.library.opcheck(
        torch.ops.rapt.sdpa_out.default, operator_arguments(q, q.clone(), q.clone())[:-2] + [torch.empty_like(q), None]
    )
    parts = [rapt.sdpa(q, q, q, partial=True) for _ in range(2)]
    torch.library.opcheck(
        torch.ops.rapt.merge.default, ([p[0] for p in parts], [p[1] for p in parts], None, torch.float16, True)
    )


def test_compiled_without_graph_breaks(qkv, device):
    def layer(q, k, v, out=None):
        first, lse = rapt.sdpa(q * 2, k, v, causal=True, lse=True, window=(9, 0))
        second = rapt.sdpa(first, k, v, out=out)
        return second + 1, lse

    q, k, v = tensors(qkv(head_dim=64), device, "float16")
    with torch.no_grad():
        expected, expected_lse = layer(q, k, v)
        out, lse = torch.compile(layer, fullgraph=True)(q, k, v)
        assert torch.equal(out, expected) and torch.equal(lse, expected_lse)
        given = torch.empty_like(q)
        out, lse = torch.compile(layer, fullgraph=True)(q, k, v, given)
        assert torch.equal(out, expected) and torch.equal(given + 1, expected)


def test_report_R169_lengths_do_not_recompile(device):
    from torch._dynamo.testing import CompileCounter

    counter = CompileCounter()
    compiled = torch.compile(lambda q: rapt.sdpa(q, q, q, causal=True), dynamic=True, fullgraph=True, backend=counter)
    rapt.sdpa(*[torch.zeros(1, 1, 1, 64, device=device)] * 3)
    for seqlen in (33, 65, 100, 101):
        q = torch.randn(2, 4, seqlen, 64, device=device)
        with torch.no_grad():
            assert torch.equal(compiled(q), rapt.sdpa(q, q, q, causal=True))
        if seqlen == 65:
            after_second = counter.frame_count
    assert counter.frame_count == after_second


def run_python(text):
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)


def test_compiled_before_any_eager_call_and_imported_before_torch():
    done = run_python(
        "import rapt, torch\n"
        "f = torch.compile(lambda x: rapt.sdpa(x, x, x), fullgraph=True, backend='eager')\n"
        "x = torch.randn(1, 2, 5, 16)\n"
        "with torch.no_grad(): assert torch.equal(f(x), rapt.sdpa(x, x, x))"
    )
    assert done.returncode == 0, done.stderr


def test_a_torch_without_dlpacks_c_exchange_is_read_the_long_way():
    done = run_python(
        "import torch\n"
        "vars(torch.Tensor).get('__dlpack_c_exchange_api__') and delattr(torch.Tensor, '__dlpack_c_exchange_api__')\n"
        "import rapt, rapt._torch\n"
        "assert rapt._torch.EXCHANGE is None\n"
        "x = torch.randn(2, 3, 7, 16)[:, :, 1:]\n"
        "y = rapt.sdpa(x, x, x, causal=True)\n"
        "z = torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)\n"
        "assert (y - z).abs().max() < 1e-5\n"
        "w = torch.vmap(rapt.sdpa, (0, None, None))(torch.stack([x, x]), x, x)\n"
        "assert (w[1] - rapt.sdpa(x, x, x)).abs().max() < 1e-5\n"
        "try: rapt.sdpa(x, x, torch._neg_view(x)); raise SystemExit('computed')\n"
        "except rapt.InvalidArgument as error: assert 'resolve_neg' in str(error)\n"
        "try: rapt.sdpa(x, x.double(), x); raise SystemExit('computed')\n"
        "except rapt.InvalidArgument as error: assert str(error).startswith('k.dtype = float64: ')\n"
        "print('read')"
    )
    assert done.stdout.strip() == "read", done.stderr


@pytest.mark.parametrize("dropout", [0.1, -0.1, float("nan"), 1])
def test_report_R165_dropout_is_zero_or_refused(qkv, device, dropout):
    from rapt.compat import sdpa

    q, k, v = tensors(qkv(heads_k=4), device)
    assert torch.equal(sdpa(q, k, v, dropout_p=0), sdpa(q, k, v, dropout_p=0.0))
    with pytest.raises(rapt.Unsupported, match="dropout_p"):
        sdpa(q, k, v, dropout_p=dropout)


def test_threads(qkv, device):
    q, k, v = tensors(qkv(head_dim=64), device, "float16")
    expected, wrong = rapt.sdpa(q, k, v), []

    def work():
        for _ in range(50):
            if not torch.equal(rapt.sdpa(q, k, v), expected):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# Below: GPUs only.

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


@needs_gpu
def test_the_current_stream_is_used(qkv):
    q, k, v = tensors(qkv(batch=8, seqlen_q=512, seqlen_k=512, head_dim=64), "cuda", "float16")
    expected = rapt.sdpa(q, k, v)
    stream = torch.cuda.Stream()
    late = torch.zeros_like(q)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)  # delays the write to q, so a call on another stream would see zeros
        late.copy_(q)
        out = rapt.sdpa(late, k, v)
    stream.synchronize()
    assert torch.equal(out, expected)


@needs_gpu
def test_cuda_graph(qkv):
    q, k, v = tensors(qkv(head_dim=64), "cuda", "float16")
    rapt.prepare(q, k, v, causal=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = rapt.sdpa(q, k, v, causal=True)
    q.copy_(torch.randn_like(q))
    out.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, rapt.sdpa(q, k, v, causal=True))


@needs_gpu
def test_a_cold_call_during_capture_is_refused(qkv):
    q, k, v = tensors(qkv(head_dim=72), "cuda", "float16")
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(rapt.Error, match="rapt_prepare"):
        with torch.cuda.graph(graph):
            rapt.sdpa(q, k, v, softcap=3.25, window=(3, 1))


@needs_gpu
def test_compiled_with_cuda_graphs(qkv):
    q, k, v = tensors(qkv(head_dim=64), "cuda", "float16")
    rapt.prepare(q, k, v, causal=True)
    compiled = torch.compile(
        lambda q, k, v: rapt.sdpa(q, k, v, causal=True) * 2, mode="reduce-overhead", fullgraph=True
    )
    with torch.no_grad():
        for _ in range(4):
            out = compiled(q, k, v).clone()
    assert torch.equal(out, rapt.sdpa(q, k, v, causal=True) * 2)


@needs_gpu
def test_mixed_devices_are_refused(qkv):
    q, k, v = tensors(qkv(), "cuda")
    with pytest.raises(rapt.InvalidArgument, match="device|cpu"):
        rapt.sdpa(q, k.cpu(), v)
    with pytest.raises(rapt.InvalidArgument, match="device|cpu"):
        rapt.sdpa(q, k, v, out=torch.empty_like(q, device="cpu"))


@needs_gpu
def test_every_length(rng):
    base = torch.randn(1, 2, 320, 64, device="cuda", dtype=torch.float16)
    for seqlen in range(1, 320, 7):
        x = base[:, :, :seqlen]
        out = torch.full_like(x, float("nan"))
        rapt.sdpa(x, x, x, causal=True, out=out)
        assert_near(exact(out), reference(exact(x), exact(x), exact(x), causal=True)[0], "float16")
