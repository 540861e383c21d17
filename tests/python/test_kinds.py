"""Kinds of defects that users or adversarial tests found, tried on every public function and every argument: tensors
whose memory differs from their values, derivatives, symbolic integers, transformations, pickling, profilers and
tracers.
"""

import copy
import io
import pickle
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import kinds  # noqa: E402

import rapt  # noqa: E402

ARRAYS, INTEGERS = kinds.of_kind(kinds.ARRAYS), kinds.of_kind(kinds.INTEGERS)
WRITTEN = ("out", "lse")


def same(one, other):
    assert len(one) == len(other)
    for a, b in zip(one, other):
        assert a.dtype == b.dtype and torch.equal(a.float(), b.float())


def test_every_parameter_is_of_a_kind():
    for name in kinds.FUNCTIONS:
        unknown = set(kinds.parameters(name)) - kinds.ARRAYS - kinds.INTEGERS - kinds.OTHERS
        assert not unknown, f"{name} has {unknown}: say in kinds.py of what kind they are"


def changed(given, parameter, change):
    """The arguments, of which one is changed. If it is a list, only its last element is changed."""
    value = given[parameter]
    new = [*value[:-1], change(value[-1])] if isinstance(value, list) else change(value)
    return {**given, parameter: new}


class Tagged(torch.Tensor):
    pass


def negated(one):
    """A tensor with the same numbers, whose memory holds the negated numbers."""
    return torch._neg_view((-one.float()).to(one.dtype))


@pytest.mark.parametrize("name, parameter", ARRAYS)
def test_report_Q04_negated_views_are_refused_or_seen_through(name, parameter):
    given = kinds.arguments(name, parameter)
    if parameter == "mask":
        pytest.skip("booleans have no sign")
    wrong = changed(given, parameter, negated)
    with pytest.raises(rapt.InvalidArgument, match=rf"^{parameter}\b.*resolve_neg"):
        kinds.call(name, wrong)
    if name in ("prepare", "explain") or parameter in WRITTEN:
        return
    # Calls with subclasses go through an operator; PyTorch converts such views to ordinary tensors for it.
    expected = kinds.tensors(kinds.call(name, given))
    tagged = changed(wrong, next(iter(given)), lambda one: one.as_subclass(Tagged))
    same(kinds.tensors(kinds.call(name, tagged)), expected)


@pytest.mark.parametrize("name, parameter", ARRAYS)
def test_report_Q04_conjugates_and_unknown_dtypes_are_named(name, parameter):
    given = kinds.arguments(name, parameter)
    for change, dtype in (
        (lambda one: torch.zeros(one.shape, dtype=torch.complex64).conj(), "complex64"),
        (lambda one: torch.zeros(one.shape, dtype=torch.float64), "float64"),
        (lambda one: torch.zeros(one.shape, dtype=torch.float8_e4m3fnuz), "float8_e4m3fnuz"),
        (lambda one: torch.zeros(one.shape, dtype=torch.int16), "int16"),
        (lambda one: torch.zeros(one.shape, dtype=torch.bool), "bool"),
    ):
        if (parameter, dtype) == ("mask", "bool"):
            continue
        with pytest.raises(rapt.InvalidArgument, match=rf"^{parameter}\b.*{dtype}\b") as raised:
            kinds.call(name, changed(given, parameter, change))
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name, parameter", ARRAYS)
def test_tensors_without_memory_are_refused_by_name(name, parameter):
    given = kinds.arguments(name, parameter)
    for change in (lambda one: one.to("meta"), lambda one: one.to_sparse() if one.dim() else one.to("meta")):
        if given[parameter] is given.get("out") and given["out"].dtype == torch.float8_e4m3fn:
            change = lambda one: one.to("meta")  # noqa: E731  (PyTorch has no sparse FP8)
        with pytest.raises(rapt.Error, match=rf"^{parameter}\b"):
            kinds.call(name, changed(given, parameter, change))


@pytest.mark.parametrize("name, parameter", ARRAYS)
def test_subclasses_give_the_same(name, parameter):
    given = kinds.arguments(name, parameter)
    expected = kinds.call(name, copy.deepcopy(given))
    result = kinds.call(name, changed(given, parameter, lambda one: one.as_subclass(Tagged)))
    if isinstance(expected, str):
        assert result == expected
    same([one.as_subclass(torch.Tensor) for one in kinds.tensors(result)], kinds.tensors(expected))


def floating(given, parameter):
    value = given[parameter]
    first = value[0] if isinstance(value, list) else value
    return isinstance(first, torch.Tensor) and first.dtype == torch.float32


@pytest.mark.parametrize("name, parameter", ARRAYS)
def test_report_Q03_forward_mode_derivatives_are_refused(name, parameter):
    given = kinds.arguments(name, parameter)
    if not floating(given, parameter) or name in ("prepare", "explain"):
        pytest.skip("nothing to differentiate")
    with torch.autograd.forward_ad.dual_level():
        # This argument has no tangent, so it is not refused.
        same(kinds.tensors(kinds.call(name, given)), kinds.tensors(kinds.call(name, given)))
    if (name, parameter) == ("fake_quantize", "x"):
        return  # it has its own derivatives: test_torch_fp8.py
    dual = lambda one: torch.autograd.forward_ad.make_dual(one, torch.ones_like(one))  # noqa: E731
    with torch.autograd.forward_ad.dual_level():
        with pytest.raises(rapt.Unsupported, match=rf"^{parameter}\b.*(has a tangent|no forward-mode)"):
            kinds.call(name, changed(given, parameter, dual))
    value = given[parameter]
    one = value[-1] if isinstance(value, list) else value

    def mapped(x):
        return kinds.tensors(kinds.call(name, changed(given, parameter, lambda _: x)))[0].float()

    with pytest.raises(rapt.Error, match="has a tangent|no forward-mode|not allowed inside torch.func"):
        torch.func.jvp(mapped, (one,), (torch.ones_like(one),))


def test_report_Q03_outer_levels_and_operators_are_asked_too():
    x = kinds.dense()["q"]
    ones, jvp = torch.ones_like(x), torch.func.jvp
    with pytest.raises(rapt.Unsupported, match="q: has a tangent"):
        jvp(lambda one: jvp(lambda two: rapt.sdpa(one, x, x) + two, (x,), (ones,))[0], (x,), (ones,))
    qk = torch.ops.rapt.qk
    with pytest.raises(rapt.Unsupported, match="q: has a tangent"):
        jvp(lambda q: qk(q, x, None, None, "bhsd", 1.0, None, None, None, None, torch.float32), (x,), (ones,))


@pytest.mark.parametrize("name, parameter", ARRAYS)
def test_report_Q06_reverse_mode_of_torch_func_is_refused(name, parameter):
    given = kinds.arguments(name, parameter)
    if not floating(given, parameter) or (name, parameter) == ("fake_quantize", "x"):
        pytest.skip("nothing to differentiate, or with a gradient")
    value = given[parameter]

    def total(x):
        result = kinds.call(name, changed(given, parameter, lambda _: x))
        return kinds.tensors(result)[0].float().sum()

    with pytest.raises(
        rapt.Error, match="no backward|only x gets one|not allowed if an input|not allowed inside torch.func"
    ):
        torch.func.grad(total)(value[-1] if isinstance(value, list) else value)


# Integers that torch.compile does not know in advance.


VARYING = [(*pair, True) for pair in INTEGERS if pair[0] not in ("prepare", "explain")]


# With dynamic=None the first call treats them as constants, and the second call finds that they vary.
@pytest.mark.parametrize("name, parameter, dynamic", [*VARYING, ("sdpa", "splits", None), ("sdpa", "window", None)])
def test_report_Q05_integers_that_vary_are_one_graph(name, parameter, dynamic):
    from torch._dynamo.testing import CompileCounterWithBackend

    given = kinds.arguments(name, parameter)
    given.pop(parameter)
    counter = CompileCounterWithBackend("aot_eager")
    torch._dynamo.reset()

    def run(count, given):
        value = (count, count) if parameter == "window" else count
        return kinds.tensors(kinds.call(name, {**given, parameter: value}))[0]

    compiled, counts = torch.compile(run, fullgraph=True, backend=counter, dynamic=dynamic), []
    for count in (5, 6, 7, 8):
        for one in ("q", "x"):
            if one in given and given[one].dim() == 4:
                longer = torch.randn(kinds.BATCH, kinds.HEADS, kinds.SEQLEN + count, kinds.DIM)
                torch._dynamo.mark_dynamic(longer, 2)
                given[one] = longer
        with torch.no_grad():
            same([compiled(count, given)], [run(count, given)])
        counts.append(counter.frame_count)
    assert counts == ([1] * 4 if dynamic else [1, 2, 2, 2])


# Transformations.

MAPPED = [pair for pair in ARRAYS if pair[0] not in ("prepare", "explain") and pair[1] not in WRITTEN]


@pytest.mark.parametrize("name, parameter", MAPPED)
def test_report_Q06_vmap_over_each_argument(name, parameter):
    given = kinds.arguments(name, parameter)
    value = given[parameter]
    one = value[-1] if isinstance(value, list) else value
    if one.is_floating_point() and one.element_size() > 1 and parameter.endswith(("descale", "slopes")):
        many = torch.stack([one, one * 2, one + 1])
    elif one.dtype == torch.float32:
        many = torch.stack([one, one * 2, one - 1])
    else:
        many = torch.stack([one] * 3)

    def each(x):
        return tuple(kinds.tensors(kinds.call(name, changed(given, parameter, lambda _: x))))

    expected = [torch.stack(parts) for parts in zip(*map(each, many))]
    mapped = torch.vmap(each, out_dims=1)(many)
    for part, wanted in zip(mapped, expected):
        part, wanted = part.movedim(1, 0).float(), wanted.float()
        assert part.shape == wanted.shape and torch.allclose(part, wanted, atol=1e-5, rtol=1e-5)
    last = torch.vmap(each, in_dims=-1)(many.movedim(0, -1))
    same(last, torch.vmap(each)(many))


def test_report_Q06_vmap_of_several_arguments_and_nested():
    q, k, v = (torch.randn(3, 5, 2, 2, 6, 8) for _ in range(3))
    bias, mask = torch.randn(3, 5, 2, 1, 6, 6), torch.rand(5, 6, 6) > 0.2
    descale = torch.rand(3, 1)
    attend = lambda q, k, v, bias, mask: rapt.sdpa(q, k, v, bias=bias, mask=mask, lse=True)  # noqa: E731
    out, lse = torch.vmap(torch.vmap(attend, (0, 0, None, 0, 0)), (0, 0, 0, 0, None))(q, k, v[:, 0], bias, mask)
    for i in range(3):
        for j in range(5):
            wanted, wanted_lse = attend(q[i, j], k[i, j], v[i, 0], bias[i, j], mask[j])
            assert torch.allclose(out[i, j], wanted, atol=1e-5) and torch.allclose(lse[i, j], wanted_lse, atol=1e-5)
    codes = k[0, 0].to(torch.float8_e4m3fn)
    scaled = lambda q, d: rapt.qk(q, codes, k_descale=d, k_scales="tensor")  # noqa: E731  (one by one)
    products = torch.vmap(scaled)(q[:, 0], descale)
    assert torch.allclose(products[1], scaled(q[1, 0], descale[1]), atol=1e-4)
    total = torch.vmap(lambda x: rapt.quantize(x, scales="tensor").descale)(q[:, 0])
    assert total.shape == (3, 1) and torch.equal(total[2], rapt.quantize(q[2, 0], scales="tensor").descale)
    compiled = torch.compile(torch.vmap(lambda q: rapt.sdpa(q, k[0, 0], v[0, 0])), fullgraph=True, backend="aot_eager")
    assert torch.allclose(compiled(q[:, 0]), torch.stack([rapt.sdpa(x, k[0, 0], v[0, 0]) for x in q[:, 0]]), atol=1e-5)


def test_report_Q06_vmap_keeps_that_there_is_no_backward():
    q = torch.randn(3, 2, 2, 6, 8, requires_grad=True)
    out = torch.vmap(lambda q: rapt.sdpa(q, q, q))(q)
    with pytest.raises(rapt.Unsupported, match="rapt has no backward yet"):
        out.sum().backward()
    with pytest.raises(rapt.InvalidArgument, match="^out, or an array as lse: not allowed inside torch.func"):
        torch.vmap(lambda q: rapt.sdpa(q, q, q, out=torch.empty_like(q)))(q.detach())


@pytest.mark.parametrize("name", kinds.FUNCTIONS)
def test_report_Q06_functionalize_and_nested_tensors(name):
    first = kinds.parameters(name)[0]
    given = kinds.arguments(name, first)
    one = given[first][-1] if isinstance(given[first], list) else given[first]

    def run(x):
        return kinds.call(name, changed(given, first, lambda _: x))

    if name in ("prepare", "explain"):
        with pytest.raises(rapt.Unsupported, match=f"{name}: not allowed inside torch.func"):
            torch.func.functionalize(run)(one)
    else:
        same(kinds.tensors(torch.func.functionalize(run)(one)), kinds.tensors(run(one)))
    ragged = [torch.randn(3, *one.shape[2:]), torch.randn(4, *one.shape[2:])]
    for layout in (torch.strided, torch.jagged):
        nested = torch.nested.nested_tensor(ragged, layout=layout)
        with pytest.raises(rapt.Error, match=rf"^{first}: (a nested tensor: pass its rows|rank)"):
            kinds.call(name, {**given, first: [nested, nested] if isinstance(given[first], list) else nested})


# Pickles and copies.


def test_report_Q07_values_and_modules():
    made = rapt.quantize(torch.randn(1, 2, 3, 4), smooth=True)
    for again in (pickle.loads(pickle.dumps(made)), copy.copy(made), copy.deepcopy(made)):
        assert type(again) is rapt.Quantized
        same(kinds.tensors(again), kinds.tensors(made))
    module = torch.nn.Identity()
    module.attend = rapt.sdpa
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    assert torch.load(file, weights_only=False).attend is rapt.sdpa
    context = rapt.Context(1)
    assert copy.copy(context) is context and copy.deepcopy(context) is context
    with pytest.raises(rapt.Unsupported, match="a rapt.Context cannot be pickled"):
        pickle.dumps(context)


# Profilers and tracers.


def flops(run):
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


def test_report_Q08_floating_point_operations_are_counted():
    q, k = torch.randn(1, 2, 64, 16), torch.randn(1, 2, 128, 16)
    meta = [x.to("meta") for x in (q, k, k)]
    theirs = flops(lambda: torch.nn.functional.scaled_dot_product_attention(*meta))
    assert theirs == 2 * 2 * 64 * 128 * (16 + 16)
    assert flops(lambda: rapt.sdpa(q, k, k)) == theirs
    assert flops(lambda: rapt.sdpa(q, k, k, out=torch.empty_like(q))) == theirs
    assert flops(lambda: rapt.sdpa(*(x.transpose(1, 2) for x in (q, k, k)), layout="bshd", lse=True)) == theirs
    assert flops(lambda: rapt.compat.sdpa(q, k, k)) == theirs
    assert flops(lambda: rapt.sdpa(q[:, :, :, :8], k[:, :, :, :8], k)) == theirs * 3 // 4
    assert flops(lambda: rapt.qk(q, k)) == theirs // 2
    assert flops(lambda: rapt.gemm(q[0, 0], k[0, 0].T)) == theirs // 4
    packed = kinds.packed()
    assert flops(lambda: kinds.call("sdpa", packed)) == 2 * kinds.HEADS * (2 * 2 + 4 * 4) * 2 * kinds.DIM
    assert flops(lambda: rapt.quantize(q)) == 0


def test_report_Q08_profiles_show_the_problem():
    given = kinds.dense()
    kinds.call("sdpa", given)
    with torch.profiler.profile() as profile:
        kinds.call("sdpa", {**given, "causal": True})
        kinds.call("sdpa", {**given, "q": given["q"].clone().requires_grad_()})
        for name, parameter in (("qk", "q"), ("gemm", "a"), ("merge", "outs"), ("quantize", "x")):
            kinds.call(name, kinds.arguments(name, parameter))
    found = {one.key for one in profile.key_averages()}
    line = rapt.explain(*given.values(), causal=True).split("\n")[0].removeprefix("problem").strip()
    assert f"rapt.sdpa {line}" in found and "causal" in line
    for name in ("sdpa", "qk", "gemm", "merge", "quantize"):
        assert any(one.startswith(f"rapt.{name} ") for one in found), name


# Contexts.


def test_report_Q31_compat_is_imported_where_it_is_used():
    text = "import rapt; rapt.compat.sdpa; rapt.compat.flash_attn.flash_attn_func; rapt.compat.transformers.register"
    assert subprocess.run([sys.executable, "-c", text]).returncode == 0
    assert pickle.loads(pickle.dumps(rapt.compat.flash_attn.flash_attn_func)) is rapt.compat.flash_attn.flash_attn_func


@pytest.mark.parametrize("name", [name for name in kinds.FUNCTIONS if name not in ("prepare", "explain")])
def test_report_Q14_every_call_takes_a_context(name):
    first, context = kinds.parameters(name)[0], rapt.Context(1)
    given = kinds.arguments(name, first)
    expected = kinds.tensors(kinds.call(name, given))
    same(kinds.tensors(kinds.call(name, {**given, "context": context})), expected)
    tagged = changed(given, first, lambda one: one.as_subclass(Tagged))
    same(kinds.tensors(kinds.call(name, {**tagged, "context": context})), expected)
    torch._dynamo.reset()
    run = lambda given: kinds.tensors(kinds.call(name, {**given, "context": context}))  # noqa: E731
    with torch.no_grad():
        same(torch.compile(run, fullgraph=True, backend="aot_eager")(given), expected)
    for wrong in (given, tagged):
        with pytest.raises(rapt.InvalidArgument, match="^context = 3: must be a rapt.Context or None"):
            kinds.call(name, {**wrong, "context": 3})


def test_report_Q14_cpu_calls_use_as_many_threads_as_pytorch():
    text = (
        "import os, torch, rapt\n"
        "torch.set_num_threads(1)\n"
        "x = torch.randn(4, 8, 256, 64)\n"
        "threads = lambda: len(os.listdir('/proc/self/task'))\n"
        "torch.set_grad_enabled(False)\n"
        "rapt.explain(x, x, x); before = threads()\n"
        "one = rapt.sdpa(x, x, x)\n"
        "assert threads() == before, (before, threads())\n"
        "rapt.merge([one], [x[..., 0].contiguous()]); rapt.qk(x, x); rapt.quantize(x)\n"
        "assert threads() == before\n"
        "torch.set_num_threads(64)\n"
        "two = rapt.sdpa(x, x, x)\n"
        "more = threads() - before\n"
        "assert torch.equal(one, two)\n"
        "from rapt import _torch\n"
        "allowed = _torch._default_threads()\n"
        "assert more <= allowed and 1 <= allowed <= len(os.sched_getaffinity(0))\n"
        "torch.set_num_threads(1)\n"
        "assert torch.equal(rapt.sdpa(x, x, x), one) and _torch.context_for(allowed) is None\n"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
