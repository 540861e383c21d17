"""Tests for defects of the Python module that adversarial tests found. Each test has the smallest call that failed."""

import pathlib
import shutil
import subprocess
import sys
import threading

import numpy as np
import pytest
import rapt
from conftest import assert_near, reference


def sequences():
    """Arguments of 8 packed rows, of which cu_seqlens covers the first 5."""
    cu_q, cu_k = np.array([0, 3, 5], np.int32), np.array([0, 3, 8], np.int32)
    return {"cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k, "max_seqlen_q": 3, "max_seqlen_k": 5}


def check_uncovered_rows(out, lse):
    """Rows 5 to 7 belong to no sequence."""
    for row in (5, 6, 7):
        assert not np.asarray(out, np.float32)[row].any() and not np.asarray(lse, np.float32)[:, row].any()
    assert np.asarray(out, np.float32)[[0, 1, 2, 3, 4]].any()


def test_packed_rows_of_no_sequence_are_zero_where_rapt_allocates():
    x = np.random.default_rng(0).standard_normal((8, 4, 16), dtype=np.float32)
    options = sequences()
    for _ in range(20):
        np.full((8, 4, 16), 1e30, np.float32)  # the allocator may return this memory again
        check_uncovered_rows(*rapt.sdpa(x, x, x, lse=True, **options))
    out = np.full_like(x, 7)
    rapt.sdpa(x, x, x, out=out, **options)
    assert (out[[5, 6, 7]] == 7).all()


def test_report_Q11_a_sequence_beyond_its_maximum_is_refused():
    x = np.ones((8, 4, 16), np.float32)
    for short in ({"max_seqlen_q": 2}, {"max_seqlen_k": 4}):
        out = np.full_like(x, 7)
        with pytest.raises(rapt.InvalidArgument, match=r"sequence \d has \d rows: must not exceed max_"):
            rapt.sdpa(x, x, x, out=out, **{**sequences(), **short})
        assert (out == 7).all()


def test_a_context_may_be_replaced_while_a_call_uses_it():
    a = np.random.default_rng(0).standard_normal((1, 4, 600, 64), dtype=np.float32)
    context, expected, wrong = rapt.Context(2), rapt.sdpa(a, a, a), []

    def work():
        for _ in range(6):
            wrong.append(not np.array_equal(rapt.sdpa(a, a, a, context=context), expected))

    thread = threading.Thread(target=work)
    thread.start()
    while thread.is_alive():
        context.__init__(2)
    assert not any(wrong) and len(wrong) == 6


def test_what_interrupts_a_conversion_goes_on():
    class Interrupting:
        def __float__(self):
            raise KeyboardInterrupt

        __index__ = __float__

    q = np.zeros((1, 1, 2, 4), np.float32)
    for name in ("scale", "splits"):
        with pytest.raises(KeyboardInterrupt):
            rapt.sdpa(q, q, q, **{name: Interrupting()})


def test_strides_of_single_elements_mean_nothing():
    base = np.zeros(64, np.uint8)
    q = np.lib.stride_tricks.as_strided(base.view(np.float32), (1, 1, 2, 4), (3, 5, 16, 4))
    assert rapt.sdpa(q, q, q).shape == (1, 1, 2, 4)


class TestTorch:
    @pytest.fixture
    def qkv(self):
        torch = pytest.importorskip("torch")
        torch.manual_seed(0)
        return [torch.randn(2, 4, 8, 16) for _ in range(3)]

    def test_tracers_see_the_call(self, qkv):
        import torch
        from torch.fx.experimental.proxy_tensor import make_fx

        q, k, v = qkv
        expected = rapt.sdpa(q * 2, k, v)
        traced = torch.jit.trace(lambda a: rapt.sdpa(a, k, v), q, check_trace=False)
        assert torch.equal(traced(q * 2), expected)
        graph = make_fx(lambda a: rapt.sdpa(a, k, v), tracing_mode="real")(q)
        assert torch.equal(graph(q * 2), expected) and "rapt" in graph.code
        parts = [rapt.sdpa(q, k, v, partial=True)] * 2
        graph = make_fx(lambda a: rapt.merge([a, parts[1][0]], [p[1] for p in parts]), tracing_mode="real")(parts[0][0])
        assert "rapt" in graph.code

    def test_packed_rows_of_no_sequence(self):
        torch = pytest.importorskip("torch")
        x = torch.randn(8, 4, 16)
        options = sequences()
        options = {name: torch.from_numpy(y) if isinstance(y, np.ndarray) else y for name, y in options.items()}
        for _ in range(20):
            torch.full_like(x, 1e30)
            check_uncovered_rows(*rapt.sdpa(x, x, x, lse=True, **options))
            check_uncovered_rows(*torch.ops.rapt.sdpa(*operator_arguments(x, options), None, True))

    def test_storage_that_was_taken_away(self, qkv):
        import torch

        q, k, v = qkv
        for size in (0, 64):
            big = torch.randn(5, 2, 4, 8, 16)
            lost = big[1]
            big.untyped_storage().resize_(size)
            for call in (lambda: rapt.sdpa(lost, k, v), lambda: rapt.sdpa(q, k, v, out=lost)):  # noqa: B023
                with pytest.raises(rapt.InvalidArgument, match="its storage is smaller"):
                    call()

    def test_forward_mode_derivatives_are_refused(self, qkv):
        import torch
        import torch.autograd.forward_ad as forward_ad

        q, k, v = qkv
        with forward_ad.dual_level(), pytest.raises(RuntimeError):
            rapt.sdpa(forward_ad.make_dual(q, torch.ones_like(q)), k, v)

    def test_written_arrays_are_known_to_autograd(self, qkv):
        import torch

        q, k, v = qkv
        for call in (rapt.sdpa, torch.compile(rapt.sdpa, backend="eager")):
            x, out = torch.randn(2, 4, 8, 16, requires_grad=True), torch.ones(2, 4, 8, 16)
            y = (x * out).sum()
            with torch.no_grad():
                call(q, k, v, out=out)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                y.backward()
        leaf = torch.empty_like(q).requires_grad_()
        with pytest.raises(rapt.InvalidArgument, match="not allowed if an input needs a gradient"):
            rapt.sdpa(q, k, v, out=leaf)
        with torch.inference_mode():
            out = torch.empty_like(q)
            assert rapt.sdpa(q, k, v, out=out) is out

    def test_gradients_of_factors_and_merged_sinks_are_not_dropped(self, qkv):
        import torch

        q, k, v = qkv
        scale = torch.ones(1, requires_grad=True)
        k8 = k.to(torch.float8_e4m3fn)
        assert rapt.sdpa(q, k8, v, k_descale=scale, k_scales="tensor").requires_grad
        state = rapt.sdpa(q, k, v, partial=True)
        assert rapt.merge([state[0]], [state[1]], sinks=torch.zeros(4, requires_grad=True)).requires_grad

    @pytest.mark.parametrize("arguments", [
        {"lse": 1}, {"lse": "no"}, {"lse": np.zeros((2, 4, 8), np.float32)}, {"causal": ""}, {"causal": None},
        {"scale": True}, {"scale": "x"}, {"scale": np.array([0.5])}, {"window": 5}, {"window": [True, False]},
        {"splits": True}, {"splits": 10**30}, {"q_start": True}, {"partial": 1}, {"partial": None},
        {"check_contents": 2}, {"layout": b"bhsd"}, {"layout": None}, {"acc": b"f32"}, {"mask": [[True]]},
        {"out": "here"}, {"context": 3},
    ])  # fmt: skip
    def test_the_operator_refuses_what_an_eager_call_refuses(self, qkv, arguments):
        q, k, v = qkv
        for first in (q, q.clone().requires_grad_()):
            with pytest.raises(rapt.InvalidArgument):
                rapt.sdpa(first, k, v, **arguments)

    def test_subclasses_in_any_place(self, qkv):
        import torch

        class Tagged(torch.Tensor):
            pass

        q, k, v = qkv
        mask = torch.ones(8, 8, dtype=torch.bool)
        expected = rapt.sdpa(q, k, v, mask=mask)
        assert torch.equal(rapt.sdpa(q, k, v, mask=mask.as_subclass(Tagged)).as_subclass(torch.Tensor), expected)
        out = torch.empty_like(q)
        rapt.sdpa(q, k, v, out=out.as_subclass(Tagged))
        assert torch.equal(out, rapt.sdpa(q, k, v))

    def test_a_damaged_default_pack_says_so_each_time(self, tmp_path):
        pytest.importorskip("torch")
        package = tmp_path / "rapt"
        shutil.copytree(pathlib.Path(rapt.__file__).parent, package)
        (package / "default.pack").write_bytes(b"junk")
        text = (
            "import torch, rapt\n"
            "x = torch.zeros(1, 1, 2, 8)\n"
            "for _ in range(2):\n"
            "    try: rapt.sdpa(x, x, x); print('no error')\n"
            "    except rapt.EnvironmentLacking as error: print('pack' in str(error))\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n" + text],
            capture_output=True,
            text=True,
        )
        assert done.stdout.split() == ["True", "True"], done.stdout + done.stderr


def operator_arguments(x, options):
    from rapt import _torch_operators

    given = dict.fromkeys((*_torch_operators.TENSORS, *_torch_operators.OPTIONS))
    given.update(
        q=x, k=x, v=x, layout="bhsd", causal="", partial=False, invariant=False, check_contents=False, **options
    )
    return list(given.values())


def test_jax_lse_and_packed_rows():
    jax = pytest.importorskip("jax")
    jnp = jax.numpy
    q = jnp.ones((1, 1, 1, 4))
    for lse in (1, jnp.zeros((1, 1, 1)), "yes"):
        with pytest.raises(rapt.InvalidArgument, match="lse"):
            rapt.sdpa(q, q, q, lse=lse)
    x = jnp.asarray(np.random.default_rng(0).standard_normal((8, 4, 16), dtype=np.float32))
    options = sequences()
    options = {name: jnp.asarray(y) if isinstance(y, np.ndarray) else y for name, y in options.items()}
    out, lse = rapt.sdpa(x, x, x, lse=True, **options)
    check_uncovered_rows(out, lse)
    one = np.asarray(x)[3:5].swapaxes(0, 1)[None], np.asarray(x)[3:8].swapaxes(0, 1)[None]
    assert_near(np.asarray(out)[3:5].swapaxes(0, 1)[None], reference(one[0], one[1], one[1])[0])
    for name in ("splits", "window", "scale"):
        with pytest.raises(rapt.InvalidArgument, match=name):
            rapt.sdpa(q, q, q, **{name: {"splits": 10**30, "window": (10**30, 1), "scale": 1j}[name]})
