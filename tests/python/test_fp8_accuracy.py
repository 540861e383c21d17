"""Tests of bench/fp8_accuracy.py on a CPU: its reference, its decoding of codes and scales, rows, tables, verdict."""

from __future__ import annotations

import argparse
import os
import sys

import pytest

torch = pytest.importorskip("torch")

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, os.pardir, "bench"))

import fp8_accuracy as accuracy  # noqa: E402
import rapt  # noqa: E402
import rows  # noqa: E402


@pytest.mark.parametrize("scales", accuracy.SCALES)
@pytest.mark.parametrize("smooth", [False, True])
def test_stored_is_close_to_what_was_quantised(scales, smooth):
    x = torch.randn(2, 3, 200, 16, generator=torch.Generator().manual_seed(1)) * 3 + 5
    found = accuracy.stored(rapt.quantize(x, scales=scales, smooth=smooth))
    assert found.dtype == torch.float64
    error = (found - x.double()).abs()
    assert error.max() <= 0.07 * x.abs().max()
    assert error.mean() > 0
    if smooth:
        assert error.max() <= 0.07 * (x - x.mean(2, keepdim=True)).abs().max()


def test_reference_is_attention():
    q, k, v = (torch.randn(1, 3, 7, 4, dtype=torch.float64) for _ in range(3))
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    assert (accuracy.attention(q, k, v) - expected).abs().max() < 1e-12


def test_fills_are_what_they_are_called():
    q, k, v = accuracy.inputs("mission", "outlier", 0, "cpu")
    assert q.abs().max() > 10 and 1.0 < k.std() < 1.1 and not torch.equal(k, v)
    assert accuracy.inputs("mission", "normal", 0, "cpu")[0].abs().max() < 6
    offset = accuracy.inputs("mission", "offset", 0, "cpu")
    assert offset[1].mean(2).abs().max() > 8 and offset[0].mean(2).abs().max() < 1
    assert torch.equal(
        accuracy.inputs("mission", "normal", 3, "cpu")[2], accuracy.inputs("mission", "normal", 3, "cpu")[2]
    )
    assert [x.shape for x in accuracy.inputs("sample", "layer0", 0, "cpu")] == [(1, 12, 331, 32)] * 3


def of_shape(monkeypatch, name: str, shape) -> list[dict]:
    monkeypatch.setitem(accuracy.SHAPES, name, shape)
    options = argparse.Namespace(device="cpu", commit="abc", dirty=False, command="fp8_accuracy.py")
    shape, cases = accuracy.measure(name, "outlier", 2, "cpu")
    return [accuracy.to_row(name, "outlier", shape, case, options) for case in cases]


def test_rows_follow_the_schema_and_make_tables(monkeypatch):
    found = of_shape(monkeypatch, "big", (1, 2, 130, 32))
    assert len(found) == len(accuracy.SCALES) * 4 * 3
    for row in found:
        assert rows.faults(row) == []
        assert row["total_err"]["rmse"] > 0 and len(row["us"]) == 2
        assert row["err"]["rel_rms"] < row["total_err"]["rel_rms"]
        assert row["err"]["rel_rms"] < {"fp8": 3e-2, "fp8x2": 1e-3, "f16": 1e-3}[accuracy.words(row)["pv"]]
    text = accuracy.tables(found)
    assert "| block64 |" in text and "**big-outlier** (`b1 h2 q130 k130 d32`, 2 seeds)" in text
    smooth = next(row for row in found if row["problem"].endswith("scales=head smooth_k hadamard pv=fp8"))
    assert accuracy.words(smooth)["made"] == "both"


def test_the_verdict_can_fail(monkeypatch):
    found = of_shape(monkeypatch, "big", (1, 2, 130, 32))
    for row in found:
        w = accuracy.words(row)
        row["total_err"]["rmse"] = 5e-3 if (w["scales"], w["made"]) == ("block64", "rotated") else 1e-2
    assert accuracy.verdict(found) == []
    for value in (6.1e-3, 9.2e-3, float("nan")):
        for row in found:
            w = accuracy.words(row)
            if (w["scales"], w["made"], w["pv"]) == ("block64", "rotated", "fp8"):
                row["total_err"]["rmse"] = value
        assert len(accuracy.verdict(found)) == 1
    assert accuracy.verdict([{**row, "name": "mission-outlier"} for row in found]) == []
