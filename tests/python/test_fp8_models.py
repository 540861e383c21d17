"""Tests of bench/fp8_models.py on a CPU, with tiny models that have random weights: errors of layers, the comparison of
outputs, rows, tables.
"""

from __future__ import annotations

import os
import sys

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5")

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, os.pardir, "bench"))

import fp8_models as models  # noqa: E402
import rapt  # noqa: E402
import rows  # noqa: E402


class Tokenizer:
    """One token for each byte."""

    def __call__(self, text: str) -> dict:
        return {"input_ids": list(text.encode())}


def tiny_decoder():
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        initializer_range=0.3,
        attn_implementation=models.NAME,
    )
    return transformers.LlamaForCausalLM(config).eval(), Tokenizer()


def tiny_encoder():
    torch.manual_seed(2)
    config = transformers.BertConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        initializer_range=0.3,
        attn_implementation=models.NAME,
    )
    return transformers.BertModel(config).eval(), Tokenizer()


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(models, "load_decoder", tiny_decoder)
    monkeypatch.setattr(models, "load_encoder", tiny_encoder)
    monkeypatch.setattr(models, "ENCODER_COUNT", 5)


def test_the_script_measures_both_models_and_prints_their_tables(tiny, tmp_path, capsys):
    path = str(tmp_path / "out.jsonl")
    command = ["--device", "cpu", "--tokens", "70", "--output", path, "--commit", "abc"]
    assert models.main(command) == 0
    text, found = capsys.readouterr().out, rows.read(path)
    assert "**decoder** (2 layers, `h4:2 q70 k70 d16 causal`, 210 tokens)" in text
    assert "**encoder** (2 layers, `h2 q70 k70 d32`" in text
    assert text.count("\n| default | token | ") == 2 and text.count("\n| f16 | ") == 2
    assert len(found) == 2 * len(models.MODES)
    for row in found:
        assert rows.faults(row) == [] and len(row["us"]) == row["layers"]["count"] == 2
        check_errors(row)
    assert [models.mode_of(row) for row in found] == models.MODES * 2
    assert models.main(["--read", path]) == 0
    assert capsys.readouterr().out == text.replace(f"written: {path}\n", "")


def check_errors(row: dict) -> None:
    mode, layers = models.mode_of(row), row["layers"]
    low, high = (0.01, 0.15) if mode.scales else (1e-5, 2e-3)
    assert low < layers["rel_rms_median"] <= layers["rel_rms_worst"] < high, row["problem"]
    assert row["err"]["rel_rms"] < {"fp8": 0.04}.get(mode.kind, 2e-3), row["problem"]  # the kernel alone
    if mode == models.F16:
        assert row.get("logits", {"kl_mean": 0})["kl_mean"] == 0
        assert row.get("embedding", {"cosine_min": 1})["cosine_min"] > 1 - 1e-12
    elif mode.scales and "logits" in row:
        assert 1e-5 < row["logits"]["kl_mean"] < row["logits"]["kl_p99"] and 0.5 < row["logits"]["top1"] <= 1
    elif mode.scales:
        assert 1e-6 < 1 - row["embedding"]["cosine_mean"] <= 1 - row["embedding"]["cosine_min"] < 0.1


def test_problem_lines_say_what_is_stored():
    layer = models.Layer(torch.zeros(1, 4, 7, 16), torch.zeros(1, 2, 7, 16), torch.zeros(1, 2, 7, 16), True, None)
    line = models.problem_line(models.Mode("cache", "head", True), layer)
    assert line == "q=f16 k=e4m3 v=e4m3 b1 h4:2 q7 k7 d16 causal k_scales=head v_scales=head smooth_k pv=f16"
    line = models.problem_line(models.Mode("fp8", "block64", True), layer)
    assert line == "e4m3 b1 h4:2 q7 k7 d16 causal scales=block64 smooth_k hadamard pv=fp8"


@pytest.mark.parametrize("causal", [False, True])
def test_the_reference_is_attention(causal):
    q, k, v = (torch.randn(1, heads, 7, 4, dtype=torch.float64) for heads in (4, 2, 2))
    found = models.exact(q, k, v, models.Layer(q, k, v, causal, 0.3))
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=0.3, enable_gqa=True)
    assert (found - expected).abs().max() < 1e-12


def test_each_mode_stores_its_dtypes():
    q, k, v = (torch.randn(1, heads, 64, 16) for heads in (4, 2, 2))
    for kind, types in (("cache", "hee"), ("fp8", "eee"), ("f16", "hhh"), ("f32", "fff")):
        scales = "" if kind in ("f16", "f32") else "head"
        made = models.store(models.Mode(kind, scales, bool(scales)), models.Layer(q, k, v, True, None))
        names = {"e": rapt.Quantized, "h": torch.float16, "f": torch.float32}
        for one, letter in zip(made.tensors, types):
            assert (type(one) if isinstance(one, rapt.Quantized) else one.dtype) == names[letter]


def test_divergence_and_agreement():
    expected = [torch.log_softmax(torch.tensor([[0.0, 1.0], [2.0, 0.0]]), -1)]
    found = [torch.log_softmax(torch.tensor([[1.0, 0.0], [2.0, 0.0]]), -1)]
    logits = models.Decoder.compare(expected, found)["logits"]
    p = 1 / (1 + torch.e)
    assert logits["kl_mean"] == pytest.approx((1 - 2 * p) / 2, rel=1e-6) and logits["top1"] == 0.5
    a, b = torch.eye(3, dtype=torch.float64), torch.eye(3, dtype=torch.float64)
    b[2] = torch.tensor([0.6, 0.0, 0.8])
    found = models.Encoder.compare(list(a), list(b))["embedding"]
    assert found["cosine_min"] == pytest.approx(0.8) and found["cosine_mean"] == pytest.approx(2.8 / 3)
    assert found["top1"] == pytest.approx(2 / 3)  # text 0 has another nearest text


def test_refusals(capsys, monkeypatch):
    with pytest.raises(SystemExit) as stop:
        models.parse(["--models", "decoder,nothing"])
    assert stop.value.code == 2 and "decoder,nothing: must be" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stop:
        models.package("a_package_that_does_not_exist")
    assert stop.value.code == 3 and "a_package_that_does_not_exist is missing" in capsys.readouterr().err
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert models.main(["--device", "cuda", "--commit", "abc"]) == 3


def test_texts_are_prose():
    found = models.encoder_texts()
    assert 20 <= len(found) <= models.ENCODER_COUNT and all(len(text) >= models.SHORTEST for text in found)
    assert len(models.decoder_texts()) == 3
