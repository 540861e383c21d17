"""The public parts of rapt, without PyTorch: pickles and copies, names of dtypes, ranks, and what an import loads."""

import copy
import pickle
import re
import subprocess
import sys

import numpy as np
import pytest

import rapt


@pytest.mark.parametrize("name", [*rapt.__all__, "compat.sdpa"])
def test_report_Q07_what_is_public_pickles_and_copies(name):
    found = rapt
    for part in name.split("."):
        found = getattr(found, part)
    for again in (pickle.loads(pickle.dumps(found)), copy.copy(found), copy.deepcopy(found)):
        assert again is found or again == found
    if isinstance(found, type) and issubclass(found, Exception):
        error = found("a sentence")
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is found and str(again) == "a sentence"


@pytest.mark.parametrize("name", ["q", "k", "v", "bias", "mask", "sinks", "out"])
def test_report_Q10_every_rank_that_is_too_high_gets_one_sentence(framework, name):
    if framework.name == "jax":
        pytest.skip("finds ranks when XLA runs the call")
    x, sentences = framework.empty((1,) * 4, "float32"), set()
    for rank in (5, 8, 9, 12):
        given = {**dict(zip("qkv", (x, x, x))), name: framework.empty((1,) * rank, "float32")}
        with pytest.raises(rapt.InvalidArgument, match=rf"^{name}\b.*{rank}") as raised:
            rapt.sdpa(given.pop("q"), given.pop("k"), given.pop("v"), **given)
        sentences.add(re.sub(r"\d+", "N", str(raised.value)))
    assert len(sentences) == 1, sentences


@pytest.mark.parametrize("dtype", [np.float64, np.longdouble, np.complex64, np.int16, np.uint64, object])
def test_report_Q10_numpy_dtypes_keep_their_names(dtype):
    x, other = np.zeros((1, 1, 2, 4), np.float32), np.zeros((1, 1, 2, 4), dtype)
    sentence = rf"\.dtype = {np.dtype(dtype).name}: rapt reads float32"
    for run, name in (
        (lambda: rapt.sdpa(x, other, x), "k"),
        (lambda: rapt.sdpa(x, x, x, bias=other), "bias"),
        (lambda: rapt.quantize(other), "x"),
        (lambda: rapt.qk(other, x), "q"),
        (lambda: rapt.merge([other], [x[..., 0]]), "outs"),
    ):
        with pytest.raises(rapt.InvalidArgument, match=f"^{name}{sentence}"):
            run()
    with pytest.raises(rapt.InvalidArgument, match=r"^bias\.dtype = bool: only `mask` takes booleans"):
        rapt.sdpa(x, x, x, bias=np.zeros((2, 2), bool))


def test_report_Q31_compat_is_there_and_needs_no_torch_for_numpy():
    text = (
        "import sys; sys.modules['torch'] = None\n"
        "import numpy as np, rapt\n"
        "x = np.random.default_rng(1).standard_normal((2, 3, 4, 5, 8), dtype=np.float32)\n"
        "out = rapt.compat.sdpa(x, x, x[:1, :1], attn_mask=np.tri(5, dtype=bool))\n"
        "same = rapt.sdpa(x[1], x[1], x[0, :1].repeat(3, 0), causal=True)\n"
        "assert out.shape == x.shape and np.abs(out[1] - same).max() < 1e-6\n"
        "assert rapt.compat.sdpa(x[0, 0, 0], x[0, 0, 1], x[0, 0, 2], is_causal=True).shape == (5, 8)\n"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with pytest.raises(AttributeError, match="has no attribute 'attention'"):
        rapt.attention
