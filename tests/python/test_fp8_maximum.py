"""Tests of bench/fp8_maximum.py and bench/fp8_long.py on a CPU, with few runs and few keys."""

from __future__ import annotations

import math
import os
import sys

import pytest

torch = pytest.importorskip("torch")

BENCH = os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, os.pardir, "bench")
sys.path.insert(0, BENCH)

import fp8_long  # noqa: E402
import fp8_maximum as maximum  # noqa: E402
import rows  # noqa: E402


def test_the_model_agrees_with_runs(tmp_path, capsys):
    path = str(tmp_path / "out.jsonl")
    command = ["--device", "cpu", "--runs", "2", "--rows", "36000", "--output", path, "--commit", "abc"]
    assert maximum.main(command) == 0
    lines = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| fp8")]
    counted = {float(line[1]): (int(line[2]), float(line[3])) for line in lines if line[0] == "fp8" and len(line) == 4}
    found, expected = counted[6e-3]
    assert expected > 100 and abs(found - expected) < 0.25 * expected
    for row in rows.read(path):
        assert rows.faults(row) == [] and len(row["maxima"]["runs"]) == 2
        assert max(row["maxima"]["runs"]) == row["err"]["max_abs"] <= row["maxima"]["bound"]


def test_the_simulation_counts_rare_rows_correctly():
    """Weighted means over the nine kinds of rows must be those of ordinary rows."""
    count, s = maximum.simulate(36_000, seed=3)
    assert count.mean().item() == pytest.approx(1, rel=0.03)
    generator = torch.Generator().manual_seed(4)
    q, k = (torch.randn(n, 64, generator=generator) for n in (4096, maximum.KEYS))
    plain = maximum.row_errors(q @ k.T / 8, maximum.KEYS)["fp8"]
    rms = math.sqrt((count * s["fp8"].square()).sum().item() / count.sum().item())
    assert rms == pytest.approx(plain.square().mean().sqrt().item(), rel=0.05)
    rates = [maximum.tail(t, count, s["fp8"]) for t in (0.0, 2e-3, 8e-3)]
    assert rates[0] == 1 and 0.1 < rates[1] < 0.5 and rates[2] < 1e-3
    assert maximum.OUTPUTS * maximum.tail(maximum.exceeded(0.5, count, s["fp8"]), count, s["fp8"]) == pytest.approx(0.5)


def test_smaller_tiles_have_smaller_errors():
    logits = torch.randn(4096, 512, generator=torch.Generator().manual_seed(5))
    rms = [maximum.row_errors(logits, tile)["fp8"].square().mean().item() for tile in (512, 96, 32)]
    assert rms[0] > rms[1] > rms[2] > 0.5 * rms[0]


def test_the_verdict_can_fail():
    run = maximum.Runs("fp8")
    run.maxima = [0.0154]
    assert maximum.verdict([run]) == []
    run.maxima = [0.0156]
    assert "must be at most 0.0155" in maximum.verdict([run])[0]
    run.maxima = [float("nan")]
    assert len(maximum.verdict([run])) == 1


def test_the_reference_in_blocks_is_attention(monkeypatch):
    monkeypatch.setattr(fp8_long, "BLOCK", 16)
    q, k, v = fp8_long.inputs("sink", 100, 8, 5, 1, "cpu")
    expected = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double())
    assert (fp8_long.attention(q, k, v) - expected).abs().max() < 1e-12


def test_the_first_key_of_a_sink_gets_about_half_of_the_weight():
    q, k, _ = fp8_long.inputs("sink", 4096, 64, 64, 1, "cpu")
    share = torch.softmax(q @ k.transpose(-1, -2) / 8, -1)[..., 0]
    assert 0.3 < share.mean() < 0.7


def test_long_sums(tmp_path, capsys):
    path = str(tmp_path / "out.jsonl")
    command = ["--device", "cpu", "--keys", "256,2048", "--dims", "32", "--seeds", "1", "--output", path]
    fp8_long.main([*command, "--commit", "abc"])  # 256 keys are too few for the requirement
    assert "| input | head_dim | pv | 256 keys | 2048 keys | ratio |" in capsys.readouterr().out
    found = rows.read(path)
    assert len(found) == 3 * 2 * 3 and all(rows.faults(row) == [] for row in found)
    assert fp8_long.key_of(found[0]) == ("normal", 32, "fp8", 256)
    assert all(row["err"]["rel_rms"] < 4e-2 for row in found)


def test_the_verdict_of_long_sums_can_fail():
    def row(keys: int, error: float, fill: str = "mean") -> dict:
        problem = f"e4m3 out=f32 b1 h1 q64 k{keys} d64 scales=head splits=1 pv=fp8"
        return {"name": fill, "problem": problem, "err": {"rel_rms": error}}

    assert fp8_long.verdict([row(1024, 1e-2), row(131072, 1.19e-2)]) == []
    assert len(fp8_long.verdict([row(1024, 1e-2), row(131072, 1.21e-2)])) == 1
    assert len(fp8_long.verdict([row(1024, 1e-2), row(131072, float("nan"))])) == 1
    assert fp8_long.verdict([row(1024, 1e-7), row(131072, 9e-7)]) == []  # float32 sums
    assert fp8_long.verdict([row(1024, 1e-4, "sink"), row(131072, 5e-4, "sink")]) == []


def test_a_configuration_needs_a_gpu_and_makes_rows(capsys):
    with pytest.raises(SystemExit) as stop:
        fp8_long.parse(["--device", "cpu", "--config", "promotion_interval=64"])
    assert stop.value.code == 2 and "needs --device cuda" in capsys.readouterr().err
    options = fp8_long.parse(
        ["--device", "cuda", "--config", "promotion_interval=64", "--keys", "1024", "--dims", "64"]
    )
    lines = fp8_long.tuned_rows("NVIDIA L4, sm_89, 58 multiprocessors", options).splitlines()
    assert len(lines) == 3 and lines[0].startswith(
        "NVIDIA L4, sm_89, 58 multiprocessors | e4m3 out=f32 b1 h1 q64 k1024 d64 scales=head splits=1 pv=fp8 | "
        "promotion_interval=64 | 1 | 1 | 20"
    )
    assert all(len(line.split(" | ")) == 8 for line in lines)
    with pytest.raises(SystemExit, match="did not use the tuned row"):
        fp8_long.plan_of("family   attention_sm80: chosen, attention_sm80 block_m=32\n", options)
    with pytest.raises(SystemExit):
        fp8_long.parse(["--keys", "1000"])
    assert "must be powers of two" in capsys.readouterr().err


@pytest.mark.parametrize("script", [maximum, fp8_long])
def test_help(script, capsys):
    with pytest.raises(SystemExit) as stop:
        script.parse(["--help"])
    assert stop.value.code == 0 and "--output" in capsys.readouterr().out
