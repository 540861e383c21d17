"""Tests of bench/: problem lines, rows and schema, verdicts of compare.py, plots, the judge, implementations, clocks.
No GPU.

Run by pytest with rapt. Tests that need PyTorch or matplotlib are skipped without them. Peers that are not installed
are replaced by modules with their documented signatures and semantics, so a wrong argument gives a wrong result here.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import os
import re
import shutil
import subprocess
import sys
import types

import pytest
from rapt import _core

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, os.pardir)
BENCH = os.path.join(ROOT, "bench")
sys.path.insert(0, BENCH)

import compare  # noqa: E402
import feature_table  # noqa: E402
import rows  # noqa: E402
import suites  # noqa: E402
import table  # noqa: E402

HAS_TORCH = importlib.util.find_spec("torch") is not None
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="PyTorch is not installed")


def a_row(problem="f16 b1 h8 q512 k512 d64", impl="rapt", us=(4.0, 4.1, 4.2, 4.3), **more):
    found = rows.row(
        problem,
        impl,
        list(us),
        flops=1e9,
        moved=1e6,
        roof_s=1e-6,
        timer=more.pop("timer", "graph"),
        err={"max_abs": 1e-4, "mean_abs": 1e-5, "rel_rms": 2e-4},
        card="a-card",
        version="1",
        commit="abc",
        dirty=False,
        command="peers.py",
        gemm_tflops={"f32": None, "bf16": 700.0, "f16": 700.0, "fp8": None},
        bandwidth=3000.0,
        host_us=3.0,
    )
    found.update(more)
    return found


# Problem lines


@pytest.mark.parametrize("name", suites.SUITES)
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_lines_of_suites_are_canonical(name, dtype):
    for problem in suites.suite(name, dtype).values():
        assert suites.parse(problem.line) == problem


def test_lines_print_in_the_documented_order():
    line = "e4m3 out=bf16 b2 h8:2 q5 k7 d16:8 causal window=3,-1 softcap=30 alibi bias=f32[1,h,q,k] sinks scales=tensor"
    words = line.split()
    assert suites.parse(line).line == line
    assert suites.parse(" ".join(reversed(words))).line == line


@pytest.mark.parametrize(
    "line, complaint",
    [
        # by the library's own parser, which docs/problem-line.md tests
        ("f16 q8 d64 casual", "casual"),
        ("q8 d64", "dtype missing"),
        ("f16 b3 d64 varlen=3,4", "2 sequences"),
        ("f16 q8 d64 window=4", "window=4"),
        # by these scripts
        ("e5m2 q8 d64", "FP8 must be e4m3"),
        ("q=f16 k=e4m3 v=f16 q8 d64", "v=f16"),
        ("q=f16 k=bf16 v=bf16 q8 d64", "for q, k and v or only for k and v"),
        ("q=f16 k=e4m3 v=e4m3 q8 d64 k_scales=head", "k_scales=head"),
        ("q=f16 k=e4m3 v=e4m3 q8 d64 k_scales=head v_scales=tensor", "v_scales=tensor"),
        ("e4m3 q8 d64 k_scales=head v_scales=head", "k_scales=head v_scales=head: not supported"),
        ("e4m3 q8 d64 scales=token", "scales by tensor or head"),
        ("f16 q8 d64 page=16", "page=16"),
        ("f16 q8 d64 scale=2 lse", "scale=2 lse"),
        ("f16 b2 q8 d64 seqused=3,4", "seqused=3,4"),
        ("f16 q8 d64 mask=[1,1,q,k] causal", "mask="),
    ],
)
def test_lines_that_are_refused_name_the_word(line, complaint):
    with pytest.raises(ValueError, match=re.escape(complaint)):
        suites.parse(line)


def test_16_bit_queries_over_fp8_keys_have_a_line_of_their_own():
    problem = suites.parse("v_scales=head k_scales=head d64 h8:2 q512 v=e4m3 k=e4m3 q=f16")
    assert problem.line == "q=f16 k=e4m3 v=e4m3 b1 h8:2 q512 k512 d64 k_scales=head v_scales=head"
    assert problem.stored == ("f16", "e4m3", "e4m3") and problem.out == "f16"
    assert suites.parse("q=f16 k=f16 v=f16 q8 d64") == suites.parse("f16 q8 d64")


def test_visible_pairs_are_counted_one_by_one():
    for line in (
        "f16 q7 k12 d8 causal",
        "f16 q12 k7 d8 causal",
        "f16 q12 k7 d8 causal_top_left",
        "f16 q9 k9 d8 window=2,1",
        "f16 q9 k20 d8 causal window=3,5",
        "f16 d8 causal varlen=5:9,3:0,4",
    ):
        problem = suites.parse(line)
        count = 0
        for queries, keys in problem.sequences:
            off, left, right = problem.band(queries, keys)
            count += sum(
                (left is None or j >= i + off - left) and (right is None or j <= i + off + right)
                for i in range(queries)
                for j in range(keys)
            )
        assert problem.pairs() == count, line


def test_operations_and_bytes_of_the_mission_shape():
    problem = suites.parse("f16 b1 h8 q512 k512 d64")
    assert problem.flops() == 4 * 8 * 512 * 512 * 64
    assert problem.bytes_moved() == 4 * 2 * 8 * 512 * 64
    assert suites.parse("e4m3 out=bf16 b1 h8:2 q512 k512 d64").bytes_moved() == 512 * 64 * (8 + 2 + 2 + 2 * 8)
    assert suites.parse("q=f16 k=e4m3 v=e4m3 h8:2 q512 d64").bytes_moved() == 512 * 64 * (2 * 8 + 2 + 2 + 2 * 8)


# Rows


def test_a_row_follows_the_schema():
    assert rows.faults(a_row()) == []
    assert (
        rows.faults(
            a_row(
                absent=[{"arm": "x", "why": "not here"}],
                vs_rapt={"median": 2, "q1": 1.9, "q3": 2.1},
                layout="packed",
                within_bound=False,
                above_launch_us=-0.1,
                bare_launch_us=2.0,
            )
        )
        == []
    )


@pytest.mark.parametrize(
    "name, value",
    [
        ("us", []),
        ("us", [-1.0]),
        ("us", ["1"]),
        ("timer", "sundial"),
        ("median", None),
        ("arm", ""),
        ("calls", 0),
        ("calls", True),
        ("calls", 1.5),
        ("err", {"max_abs": 1.0}),
        ("dirty", 0),
        ("schema", "rapt.bench/2"),
        ("layout", "sbhd"),
        ("unknown", 1),
        ("absent", [{"arm": "x"}]),
        ("absent", [{"arm": "x", "why": ""}]),
        ("absent", "x"),
        ("vs_rapt", {"median": 1}),
        ("within_bound", 1),
        ("gemm_tflops", {"f16": 1}),
    ],
)
def test_a_broken_row_is_told(name, value):
    assert rows.faults({**a_row(), name: value}) != []


def test_every_required_field_is_required():
    for name in json.load(open(rows.SCHEMA))["required"]:
        broken = a_row()
        del broken[name]
        assert rows.faults(broken) == ["row: required"], name


@pytest.mark.skipif(not os.path.isdir(os.path.join(ROOT, "results")), reason="results/ is not here: a kit")
def test_checked_in_results_follow_the_schema():
    count = 0
    for folder, _, files in os.walk(os.path.join(ROOT, "results")):
        for name in files:
            if name.endswith(".jsonl"):
                for one in rows.read(os.path.join(folder, name)):
                    assert rows.faults(one) == [], name
                    count += 1
    assert count > 0


def test_files_are_whole_or_absent(tmp_path):
    path = str(tmp_path / "new" / "rows.jsonl")
    rows.write(path, [a_row(), a_row(impl="torch-flash")])
    assert [one["arm"] for one in rows.read(path)] == ["rapt", "torch-flash"]
    with pytest.raises(ValueError, match="row 0 .*timer"):
        rows.write(path, [a_row(timer="sundial")])
    assert len(rows.read(path)) == 2
    (tmp_path / "torn.jsonl").write_text('{"schema": "rapt.bench/1"}\n{"sch')
    with pytest.raises(ValueError, match="torn.jsonl:2"):
        rows.read(str(tmp_path / "torn.jsonl"))
    (tmp_path / "other.jsonl").write_text("[1]\n")
    with pytest.raises(ValueError, match="other.jsonl:1"):
        rows.read(str(tmp_path / "other.jsonl"))


def test_quartiles_interpolate():
    assert rows.quartiles([4.0, 1.0, 3.0, 2.0]) == (1.75, 2.5, 3.25)
    assert rows.quartiles([7.0]) == (7.0, 7.0, 7.0)


# compare.py


def verdicts(before, after, **options):
    return {change.key[:3]: change.verdict for change in compare.changes(before, after, **options)}


def test_a_change_needs_disjoint_quartiles_and_a_difference():
    key = ("f16 b1 h8 q512 k512 d64", "rapt", "graph")
    steady = [10.0, 10.1, 10.2, 10.3]
    for after, expected in (
        ([10.0, 10.1, 10.2, 10.3], "same"),
        ([12.0, 12.1, 12.2, 12.3], "slower"),
        ([8.0, 8.1, 8.2, 8.3], "faster"),
        ([9.0, 10.2, 12.0, 15.0], "same"),  # the median is slower, but the quartiles overlap
        ([10.30, 10.31, 10.32, 10.33], "same"),
    ):  # the quartiles do not overlap, but the medians differ by less than 3%
        assert verdicts([a_row(us=steady)], [a_row(us=after)])[key] == expected, after
    assert verdicts([a_row(us=steady)], [a_row(us=[10.30, 10.31, 10.32, 10.33])], least=0.01)[key] == "slower"


def test_rows_are_paired_by_problem_implementation_timer_l2_and_threads():
    before = [a_row(us=[10.0] * 4), a_row(us=[50.0] * 4, timer="host"), a_row(us=[20.0] * 4, l2="cold")]
    after = [
        a_row(us=[50.0] * 4, timer="host"),
        a_row(us=[10.0] * 4),
        a_row(us=[30.0] * 4, l2="cold"),
        a_row(impl="new", us=[1.0]),
    ]
    found = {(c.key[1], c.key[2], c.key[3]): c.verdict for c in compare.changes(before, after)}
    assert found == {
        ("rapt", "graph", "warm"): "same",
        ("rapt", "host", "warm"): "same",
        ("rapt", "graph", "cold"): "slower",
        ("new", "graph", "warm"): "new",
    }


def test_only_rapt_regresses_and_a_lost_row_counts():
    slow_peer = compare.changes([a_row(impl="torch-flash", us=[1.0] * 4)], [a_row(impl="torch-flash", us=[2.0] * 4)])
    assert slow_peer[0].verdict == "slower" and compare.regressions(slow_peer) == []
    lost = compare.changes([a_row()], [])
    assert [c.verdict for c in compare.regressions(lost)] == ["gone"]


def run_script(name, *words):
    return subprocess.run(
        [sys.executable, os.path.join(BENCH, name), *words], capture_output=True, text=True, timeout=300
    )


def test_compare_exits_1_only_where_asked_and_slower(tmp_path):
    a, b, other = (str(tmp_path / name) for name in ("a.jsonl", "b.jsonl", "other.jsonl"))
    rows.write(a, [a_row(us=[10.0, 10.1, 10.2]), a_row(impl="torch-flash", us=[20.0, 20.1, 20.2])])
    rows.write(b, [a_row(us=[12.0, 12.1, 12.2]), a_row(impl="torch-flash", us=[20.0, 20.1, 20.2])])
    rows.write(other, [a_row(card="another")])
    assert run_script("compare.py", a, b).returncode == 0
    failed = run_script("compare.py", a, b, "--fail-on-regression")
    assert failed.returncode == 1 and "slower" in failed.stdout and "x1.198" in failed.stdout
    assert run_script("compare.py", b, a, "--fail-on-regression").returncode == 0
    assert run_script("compare.py", a, a, "--fail-on-regression").returncode == 0
    assert run_script("compare.py", a, other, "--fail-on-regression").returncode == 2
    assert run_script("compare.py", a, str(tmp_path / "none.jsonl")).returncode == 2


def test_plans_for_different_numbers_of_multiprocessors_are_told(tmp_path):
    full = store(tmp_path, "full.jsonl", [a_row(sm_count=132)])
    part = store(tmp_path, "part.jsonl", [a_row(sm_count=16)])
    older = store(tmp_path, "older.jsonl", [a_row()])
    told = run_script("compare.py", full, part)
    assert told.returncode == 0 and "the multiprocessors differ ([132] and [16])" in told.stdout
    assert run_script("compare.py", full, part, "--fail-on-regression").returncode == 2
    for same in ((full, full), (full, older), (older, part)):
        fine = run_script("compare.py", *same, "--fail-on-regression")
        assert fine.returncode == 0 and "differ" not in fine.stdout, fine.stdout


def store(tmp_path, name, found):
    path = str(tmp_path / name)
    rows.write(path, found)
    return path


def test_the_baseline_is_found_by_the_card(tmp_path):
    place = ("--results", str(tmp_path / "results"))
    old = store(tmp_path, "old.jsonl", [a_row(us=[10.0, 10.1, 10.2], card="nvidia-x1")])
    slow = store(tmp_path, "slow.jsonl", [a_row(us=[12.0, 12.1, 12.2], card="nvidia-x1")])
    another = store(tmp_path, "another.jsonl", [a_row(card="nvidia-x2")])
    made = run_script("compare.py", "--set-baseline", old, *place)
    assert made.returncode == 0, made.stderr
    assert "nvidia-x1/baseline.jsonl: 1 rows of commit abc" in made.stdout
    assert rows.read(str(tmp_path / "results" / "nvidia-x1" / "baseline.jsonl")) == rows.read(old)
    assert run_script("compare.py", "--baseline", old, "--fail-on-regression", *place).returncode == 0
    failed = run_script("compare.py", "--baseline", slow, "--fail-on-regression", *place)
    assert failed.returncode == 1 and "slower" in failed.stdout and "x1.198" in failed.stdout
    none = run_script("compare.py", "--baseline", another, "--fail-on-regression", *place)
    assert none.returncode == 2 and not none.stdout
    assert "nvidia-x2 has no baseline" in none.stderr and "cards with one: nvidia-x1" in none.stderr
    assert "--set-baseline" in none.stderr
    fewer = store(tmp_path, "fewer.jsonl", [a_row("f16 b1 h2 q64 k64 d64", card="nvidia-x1")])
    gone = run_script("compare.py", "--baseline", fewer, "--fail-on-regression", *place)
    assert gone.returncode == 1 and "gone" in gone.stdout


@pytest.mark.parametrize(
    "made, complaint",
    [
        ([a_row(impl="torch-flash")], "no row is of rapt"),
        ([a_row(dirty=True)], "uncommitted changes"),
        ([a_row(), a_row(impl="rapt stages=3", commit="def")], "several commits: abc, def"),
        ([a_row(us=[10.0, 10.0, 11.0, 11.0])], "its spread is 9.5%, more than 3%"),
        ([a_row(), a_row(card="b-card")], "a-card, b-card"),
        ([a_row(command="rapt bench --suite perf --sm-count 16", sm_count=16)], "planned for a part of the GPU"),
    ],
)
def test_only_clean_steady_rows_become_a_baseline(tmp_path, made, complaint):
    refused = run_script("compare.py", "--set-baseline", store(tmp_path, "a.jsonl", made), "--results", str(tmp_path))
    assert refused.returncode == 2 and complaint in refused.stderr, refused.stderr
    assert not os.path.exists(tmp_path / "a-card")


def with_clocks(after, throttle=(), **more):
    clocks = {"sm_mhz": [after, after], "memory_mhz": [None, None], "throttle": list(throttle)}
    return a_row(clocks=clocks, spread=more.pop("spread", 0.01), attempts=1, **more)


def test_clocks_explain_a_change(tmp_path):
    assert rows.faults(with_clocks(1980)) == [] and rows.faults(with_clocks(None)) == []
    assert compare.clock_lines([with_clocks(1980)], [with_clocks(1980)]) == ["SM clock: 1980 -> 1980 MHz"]
    slow = [with_clocks(1500, ["sw_power_cap"], spread=0.2)]
    assert compare.clock_lines([with_clocks(1980)], slow) == [
        "SM clock: 1980 -> 1500 MHz (differs)",
        "clocks limited in 1 of 1 rows: sw_power_cap",
        "spread above 3% in 1 of 1 rows",
    ]
    assert compare.clock_lines([a_row()], [a_row(clocks=None, spread=0.0)]) == []


@pytest.mark.parametrize("words, complaint", [(["--baseline", "a", "b"], "2 files: must be 1"), (["a"], "must be 2")])
def test_compare_says_how_many_files_it_wants(words, complaint):
    wrong = run_script("compare.py", *words)
    assert wrong.returncode == 2 and complaint in wrong.stderr


def test_the_perf_suite_is_that_of_the_program():
    lines = lines_of_cases("perf")
    assert 15 <= len(lines) <= 25
    mine = [problem.line for problem in suites.suite("perf", "f16").values()]
    assert mine == [_core.parse_problem(line)["line"] for line in lines if " pv=" not in line]
    assert len(mine) >= len(lines) - 2 and len(set(mine)) == len(mine)


# table.py and plot.py


def made_up():
    """Rows as peers.py writes them: two named problems and a small sweep."""
    found = []
    for name, line, mine, peer in (
        ("mission", "f16 b1 h8 q512 k512 d64", 4.0, 8.0),
        ("encoder", "f16 b16 h12 q512 k512 d64", 50.0, 40.0),
    ):
        found.append(
            a_row(
                line,
                us=[mine] * 3,
                name=name,
                suite="named",
                absent=[{"arm": "flash-attn-2", "why": "not measured: no module"}],
            )
        )
        found.append(
            a_row(
                line,
                "torch-flash",
                [peer] * 3,
                name=name,
                suite="named",
                vs_rapt={"median": peer / mine, "q1": peer / mine, "q3": peer / mine},
            )
        )
        found.append(
            a_row(
                line,
                "sageattention",
                [1.0] * 3,
                name=name,
                suite="named",
                within_bound=False,
                vs_rapt={"median": 1 / mine, "q1": 1 / mine, "q3": 1 / mine},
            )
        )
        found.append(a_row(line, us=[mine + 3] * 3, name=name, suite="named", timer="host"))
    for length in (512, 1024):
        for kind in ("", " causal"):
            line = f"f16 b{16384 // length} h32 q{length} k{length} d64{kind}"
            found += [
                a_row(line, impl, [us], name=f"sweep{length}{kind}", suite="sweep")
                for impl, us in (("rapt", 90.0), ("torch-flash", 99.0))
            ]
    return found


def test_the_table_names_the_best_peer_but_no_lossy_one():
    lines = table.markdown(made_up(), "graph")
    assert lines[0].startswith("| name | problem | rapt |")
    mission = next(line for line in lines if "mission" in line)
    assert mission.endswith("| 2.00 (torch-flash) |") and "(1.0)" in mission
    assert next(line for line in lines if "encoder" in line).endswith("| 0.80 (torch-flash) |")


def test_a_block_says_what_was_not_measured():
    lines = table.block(made_up()[:4], [{"arm": "flash-attn-2", "why": "not measured: no module"}])
    text = "\n".join(lines)
    assert "not measured: no module" in text
    assert "2.000 (2.000-2.000)" in text and "lossy" in text
    assert re.search(r"rapt +4\.00 .* 3\.00 +7\.00 ", text), text  # host and wall times beside device time


def test_ratios_and_panels_come_from_rows_alone():
    plot = pytest.importorskip("plot")
    assert plot.ratios(plot.device_rows(made_up()))["mission"] == {"torch-flash": 2.0, "sageattention (lossy)": 0.25}
    panels = plot.sweep_panels([one for one in made_up() if one["suite"] == "sweep"])
    assert list(panels) == [(64, "full"), (64, "causal")]
    assert [n for n, _ in panels[64, "full"]["rapt"]] == [512, 1024]


def test_plots_are_drawn_and_the_same_twice(tmp_path):
    pytest.importorskip("matplotlib")
    rows.write(str(tmp_path / "rows.jsonl"), made_up())
    for folder in ("one", "two"):
        done = run_script("plot.py", str(tmp_path / "rows.jsonl"), "-o", str(tmp_path / folder))
        assert done.returncode == 0, done.stderr
    names = sorted(os.listdir(tmp_path / "one"))
    assert names == ["ratio-named-f16.svg", "sweep-tflops-f16.svg", "sweep-time-f16.svg"]
    for name in names:
        text = (tmp_path / "one" / name).read_text()
        assert text == (tmp_path / "two" / name).read_text()
        assert "a-card" in text and "torch-flash" in text
    assert "(lossy)" in (tmp_path / "one" / "ratio-named-f16.svg").read_text()


def a_ladder(**more):
    times = {"scalar": 110.0, "tiled": 25.0, "swizzled": 26.0, "shipped": 5.0}
    return [a_row(impl=f"ladder {name}", us=[us] * 3, **more) for name, us in times.items()]


def test_the_waterfall_has_the_gain_of_every_rung():
    plot = pytest.importorskip("plot")
    found = plot.rungs(a_ladder() + a_ladder(l2="cold") + made_up())
    assert list(found) == ["warm", "cold"]
    assert plot.steps(found["warm"]) == [
        ("scalar", 110.0, 1.0),
        ("tiled", 25.0, 4.4),
        ("swizzled", 26.0, 25 / 26),
        ("shipped", 5.0, 5.2),
    ]
    for wrong, word in ((a_ladder(card="other"), "cards"), (a_ladder(), "several rows")):
        with pytest.raises(ValueError, match=word):
            plot.rungs(a_ladder() + wrong)


def test_the_waterfall_is_drawn_and_the_same_twice(tmp_path):
    pytest.importorskip("matplotlib")
    rows.write(str(tmp_path / "rows.jsonl"), a_ladder())
    for folder in ("one", "two"):
        done = run_script("plot.py", str(tmp_path / "rows.jsonl"), "-o", str(tmp_path / folder))
        assert done.returncode == 0, done.stderr
    assert os.listdir(tmp_path / "one") == ["ladder.svg"]
    text = (tmp_path / "one" / "ladder.svg").read_text()
    assert text == (tmp_path / "two" / "ladder.svg").read_text()
    assert "a-card" in text and "25.00 us, 4.40x" in text and "26.00 us, 0.96x" in text
    rows.write(str(tmp_path / "twice.jsonl"), a_ladder() + a_ladder())
    done = run_script("plot.py", str(tmp_path / "twice.jsonl"), "-o", str(tmp_path / "none"))
    assert done.returncode == 2 and "several rows" in done.stderr


# feature_table.py


def a_feature(words, us, dtype="bf16", threads=0, **more):
    """A row of `rapt bench`. words: a problem line without its dtype."""
    line = _core.parse_problem(f"{dtype} {words}".replace("DTYPE", dtype))["line"]
    family = more.pop("family", "attention_cpu" if threads else "attention_sm80")
    return a_row(line, us=[us] * 3, family=family, threads=threads, **more)


D64, D128 = "b1 h16 q2048 k2048 d64", "b1 h16 q2048 k2048 d128"


def feature_columns(lines):
    """heading -> {title of the line: cell}"""
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert cells[1] == ["---"] * len(cells[0]) and {len(line) for line in cells} == {len(cells[0])}
    return {
        heading: {line[0]: line[column] for line in cells[2:]} for column, heading in enumerate(cells[0]) if column > 0
    }


def test_a_cell_is_the_time_with_the_feature_over_that_of_the_plain_problem(tmp_path):
    gpu = [a_feature(D128, 50.0), a_feature(f"{D128} sinks", 51.0)]
    gpu += [a_feature(D64, 10.0), a_feature(f"{D64} softcap=50", 12.5), a_feature(f"{D64} alibi", 20.0)]
    gpu += [a_feature(f"{D64} bias=DTYPE[1,h,q,k]", 20.04), a_feature(f"{D64} mask=[b,1,1,k]", 20.1)]
    gpu += [a_feature(f"{D64} causal mask=[b,1,q,k]", 45.0), a_feature(f"{D64} causal", 6.0)]  # in any order
    gpu += [a_feature(D64, 1.0, impl="torch-flash"), a_feature(f"{D64} window=9,9", 1.0, impl="torch-flash")]
    files = [store(tmp_path, "gpu.jsonl", gpu)]
    for threads, plain in ((1, 100.0), (16, 10.0)):
        cpu = [a_feature(D64, plain, threads=threads), a_feature(f"{D64} alibi", 110.0, threads=threads)]
        files.append(store(tmp_path, f"cpu{threads}.jsonl", cpu))
    done = run_script("feature_table.py", *files)
    assert done.returncode == 0 and not done.stderr, done.stderr
    found = feature_columns(done.stdout.splitlines())
    assert list(found) == [
        "attention_sm80, bf16, d64 full",
        "attention_sm80, bf16, d64 causal",
        "attention_sm80, bf16, d128 full",
        "CPU, 1 thread, bf16, d64 full",
        "CPU, 16 threads, bf16, d64 full",
    ]
    names = ["softcap", "ALiBi", "bias `[1,h,q,k]`", "key-padding mask `[b,1,1,k]`", "full mask `[b,1,q,k]`", "sinks"]
    expected = (
        ["1.25", "2.00", "2.00", "**2.01**", "-", "-"],  # 20.04 / 10 is printed as 2.00, so it is not bold
        ["-", "-", "-", "-", "**7.50**", "-"],
        ["-", "-", "-", "-", "-", "1.02"],
        ["-", "1.10", "-", "-", "-", "-"],
        ["-", "**11.00**", "-", "-", "-", "-"],
    )
    assert [found[heading] for heading in found] == [dict(zip(names, cells)) for cells in expected]


def test_two_families_in_one_file_are_two_columns_of_the_table(tmp_path):
    """As `rapt bench --against` writes them."""
    both = [
        a_feature(words, us, family=family, impl=impl)
        for family, impl, plain in (("attention_sm90", "rapt", 10.0), ("attention_sm80", "rapt family=x", 20.0))
        for words, us in ((D64, plain), (f"{D64} sinks", 30.0))
    ]
    found = feature_columns(run_script("feature_table.py", store(tmp_path, "a.jsonl", both)).stdout.splitlines())
    assert {heading: cells["sinks"] for heading, cells in found.items()} == {
        "attention_sm90, bf16, d64 full": "**3.00**",
        "attention_sm80, bf16, d64 full": "1.50",
    }


def test_rows_of_one_dtype_are_chosen(tmp_path):
    one = [a_feature(D64, 10.0), a_feature(f"{D64} alibi", 11.0)]
    one += [a_feature(D64, 10.0, "f32"), a_feature(f"{D64} alibi", 13.0, "f32")]
    path = store(tmp_path, "a.jsonl", one)
    refused = run_script("feature_table.py", path)
    assert refused.returncode == 2 and "attention_sm80: the rows are of several dtypes: bf16, f32" in refused.stderr
    for dtype, cell in (("bf16", "1.10"), ("f32", "1.30")):
        found = feature_columns(run_script("feature_table.py", path, "--dtype", dtype).stdout.splitlines())
        assert [cells["ALiBi"] for cells in found.values()] == [cell]
        assert list(found) == [f"attention_sm80, {dtype}, d64 full"]
    none = run_script("feature_table.py", path, "--dtype", "f16")
    assert none.returncode == 2 and "a.jsonl: has no plain problem of f16" in none.stderr


PLAIN = a_feature(D64, 10.0)


@pytest.mark.parametrize(
    "files, complaint",
    [
        ([[a_feature(f"{D64} alibi", 9.0)]], "0.jsonl: has no plain problem measured by rapt"),
        ([[a_feature(D64, 9.0, impl="torch-flash")]], "0.jsonl: has no plain problem measured by rapt"),
        ([[PLAIN], [a_feature(f"{D64} alibi", 9.0)]], "1.jsonl: has no plain problem"),
        ([[PLAIN, a_feature(f"{D64} causal alibi", 9.0)]], f"no row of its plain problem 'bf16 {D64} causal'"),
        ([[PLAIN, a_feature(f"{D64} alibi", 9.0, family="attention_sm90")]], "(attention_sm90): the file has no row"),
        ([[PLAIN, PLAIN]], f"0.jsonl: 'bf16 {D64}' (attention_sm80): measured twice"),
        ([[PLAIN], [a_feature(D64, 9.0, card="b-card")]], "attention_sm80: the rows are of several cards: a-card, b-"),
        ([[PLAIN], [a_feature(D64, 9.0, "f16")]], "attention_sm80: the rows are of several dtypes: bf16, f16"),
        ([[PLAIN], [a_feature(D64.replace("b1", "b2"), 9.0)]], "the plain problems differ: 'bf16 b1 "),
        ([[PLAIN, a_feature(f"{D64} alibi", 9.0)]] * 2, "d64 full: alibi is in two files: "),
        ([[PLAIN, a_feature(f"{D64} window=9,9", 9.0)]], "window: not a feature of this table"),
        ([[PLAIN, a_feature(f"{D64} causal_top_left", 9.0)]], "causal_top_left: not a feature of this table"),
        ([[PLAIN, a_feature("b2 h16 d64 varlen=9,8", 9.0)]], "varlen: not a feature of this table"),
        ([[PLAIN, a_feature(f"{D64} bias=DTYPE[b,1,1,k]", 9.0)]], "bias [b,1,1,k]: not a feature of this table"),
        ([[PLAIN, a_feature(f"{D64} bias=f32[1,h,q,k]", 9.0)]], "bias f32 [1,h,q,k]: not a feature of this table"),
        ([[PLAIN, a_feature(f"{D64} mask=[b,h,q,k]", 9.0)]], "mask [b,h,q,k]: not a feature of this table"),
        ([[PLAIN, a_feature(f"{D64} alibi sinks", 9.0)]], "alibi and sinks: a problem must have only one feature"),
        ([[PLAIN, a_feature(f"{D64} lse", 9.0)]], "lse: not supported by the scripts in bench/"),
        ([[PLAIN, a_feature(f"{D64} alibi", 0.0), a_feature(D128, 0.0)]], "0.jsonl: row 2: median: must be above 0"),
    ],
)
def test_rows_that_make_no_table_of_features_are_refused_in_one_sentence(tmp_path, files, complaint):
    done = run_script("feature_table.py", *(store(tmp_path, f"{i}.jsonl", one) for i, one in enumerate(files)))
    assert done.returncode == 2 and not done.stdout and complaint in done.stderr, done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_files_without_rows_of_bench_are_refused(tmp_path):
    (tmp_path / "broken.jsonl").write_text(json.dumps({"schema": "rapt.bench/1", "problem": "f16 q8 d64"}) + "\n")
    (tmp_path / "text.jsonl").write_text("no rows\n")
    for name, complaint in (("broken", "row 1: row: required"), ("text", ":1: not JSON"), ("none", "none.jsonl")):
        done = run_script("feature_table.py", str(tmp_path / f"{name}.jsonl"))
        assert done.returncode == 2 and complaint in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr


def lines_of_cases(name):
    with open(os.path.join(ROOT, "check", "cases", f"{name}.txt")) as file:
        lines = [line.strip() for line in file]
    return [line for line in lines if line and not line.startswith("#")]


@pytest.mark.parametrize("name, dtypes", [("features", ["bf16"]), ("features-small", ["f32", "bf16"])])
def test_the_suites_of_features_fill_the_table(name, dtypes):
    """Every group begins with its plain problem and has every feature once, in the order of the table."""
    problems = [suites.read(line) for line in lines_of_cases(name)]
    assert [problem.line for problem in problems] == lines_of_cases(name)
    size = 1 + len(feature_table.FEATURES)
    groups = [problems[first : first + size] for first in range(0, len(problems), size)]
    for group in groups:
        assert [feature_table.feature_of(problem) for problem in group] == ["plain", *feature_table.FEATURES]
        assert {feature_table.without_feature(problem) for problem in group} == {group[0]}
        assert group[0].q == group[0].k and group[0].h == group[0].hk
    assert [(group[0].dtype, group[0].d, group[0].causal) for group in groups] == [
        (dtype, d, causal) for dtype in dtypes for d in (64, 128) for causal in ("", "bottom_right")
    ]


def test_rows_of_the_program_make_a_table_of_features(tmp_path):
    programs = [os.path.join(ROOT, "build", "rapt"), os.path.join(ROOT, "rapt")]  # the second: in a kit
    program = next((path for path in programs if os.path.isfile(path)), None)
    if program is None:
        pytest.skip("build/rapt is not built")
    tiny = [line.replace("q512 k512", "q16 k16") for line in lines_of_cases("features-small")]
    (tmp_path / "tiny.txt").write_text("\n".join(tiny) + "\n")
    path = str(tmp_path / "rows.jsonl")
    done = subprocess.run(
        [program, "bench", "--suite", str(tmp_path / "tiny.txt"), "--threads", "1", "--output", path]
        + ["--iterations", "5", "--warmup", "1"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for dtype in ("f32", "bf16"):
        table_made = run_script("feature_table.py", path, "--dtype", dtype)
        assert table_made.returncode == 0, table_made.stderr
        found = feature_columns(table_made.stdout.splitlines())
        kinds = [f"d{d} {kind}" for d in (64, 128) for kind in ("full", "causal")]
        assert list(found) == [f"CPU, 1 thread, {dtype}, {kind}" for kind in kinds]
        for cells in found.values():
            assert len(cells) == 6
            assert all(re.fullmatch(r"\d+\.\d\d|\*\*\d+\.\d\d\*\*", cell) for cell in cells.values()), cells


# The judge


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch")


def a_set(torch, line, seed=1):
    from inputs import Inputs

    return Inputs(suites.parse(line), "cpu", torch.Generator().manual_seed(seed))


def a_judge(torch, inputs):
    from judge import Judge

    return Judge(inputs, torch.Generator().manual_seed(2))


DRY = [problem.line for dtype in ("f16", "bf16") for problem in suites.suite("dry", dtype).values()]


@needs_torch
@pytest.mark.parametrize("line", DRY)
def test_the_judge_accepts_what_is_right(torch, line):
    from inputs import TORCH
    from judge import attention

    inputs = a_set(torch, line)
    found = a_judge(torch, inputs)(attention(inputs).to(TORCH[inputs.problem.out]))
    assert found["within"] is True and 0 < found["rel_rms"] < 0.03


@needs_torch
@pytest.mark.parametrize(
    "line, wrong",
    [
        ("f16 b1 h2 q64 k64 d32 causal", "f16 b1 h2 q64 k64 d32"),
        ("f16 b1 h4 q16 k80 d32 causal", "f16 b1 h4 q16 k80 d32 causal_top_left"),
        ("f16 b1 h2 q96 k96 d32 causal window=20,0", "f16 b1 h2 q96 k96 d32 causal window=19,0"),
        ("f16 b1 h2 q64 k64 d32 softcap=5", "f16 b1 h2 q64 k64 d32"),
        ("f16 b1 h4 q64 k64 d32 causal alibi", "f16 b1 h4 q64 k64 d32 causal"),
        ("f16 b1 h4 q64 k64 d32 sinks", "f16 b1 h4 q64 k64 d32"),
        ("f16 b2 h2 q48 k48 d32 bias=f16[1,h,q,k]", "f16 b2 h2 q48 k48 d32"),
        ("f16 b2 h2 q48 k48 d32 mask=[b,1,1,k]", "f16 b2 h2 q48 k48 d32"),
        ("f16 b2 h4 d32 causal varlen=40,24:60", "f16 b2 h4 d32 varlen=40,24:60"),
    ],
)
def test_the_judge_refuses_the_answer_to_another_problem(torch, line, wrong):
    from inputs import TORCH
    from judge import WrongResult, attention

    inputs = a_set(torch, line)
    judge, problem = a_judge(torch, inputs), inputs.problem
    other = suites.parse(wrong)
    inputs.problem = other  # the same tensors with another problem
    inputs.slopes = inputs.slopes if other.alibi else None
    inputs.sinks = inputs.sinks if other.sinks else None
    inputs.bias = inputs.bias if other.bias else None
    inputs.mask = inputs.mask if other.mask else None
    out = attention(inputs).to(TORCH[problem.out])
    with pytest.raises(WrongResult, match="exceeds its bound"):
        judge(out)


@needs_torch
def test_the_judge_refuses_nan_shape_dtype_and_lost_precision(torch):
    from judge import WrongResult, attention

    inputs = a_set(torch, "f16 b2 h4 q80 k80 d32 causal")
    judge, right = a_judge(torch, inputs), attention(inputs)
    judge(right.half())
    for wrong, complaint in (
        (right.half().index_fill(2, torch.tensor([17]), math.nan), "NaN"),
        (right.half()[:1], "out is"),
        (right.half().transpose(1, 2), "out is"),
        (right, "out is"),
        (right.half().roll(1, 2), "exceeds"),
        (right.bfloat16().half(), "rel_rms"),
    ):
        with pytest.raises(WrongResult, match=complaint):
            judge(wrong)


@needs_torch
def test_a_lossy_implementation_is_marked_and_has_a_limit_too(torch):
    from judge import WrongResult, attention

    inputs = a_set(torch, "f16 b2 h4 q80 k80 d32")
    judge, right = a_judge(torch, inputs), attention(inputs)
    assert judge(right.bfloat16().half(), lossy=True)["within"] is False
    assert judge(right.half(), lossy=True)["within"] is True
    with pytest.raises(WrongResult, match="limit of implementations that quantise"):
        judge((right * 1.2).half(), lossy=True)


@needs_torch
def test_long_problems_are_sampled_one_row_of_each_step(torch):
    inputs = a_set(torch, "f16 b1 h1 q2048 k2048 d8 causal")
    judge = a_judge(torch, inputs)
    assert judge.step == 4 and len(judge.rows[0]) == 512
    assert all(row // 4 == place for place, row in enumerate(judge.rows[0].tolist()))


# Implementations: those that can be imported compute the same, the others are absent


def answer(torch, q, k, v, causal, window=(-1, -1), softcap=0.0, slopes=None, sinks=None, cu=None, layout="bshd"):
    """Attention with flash-attention's conventions: causal is bottom-right, windows are inclusive, -1 is no limit."""
    from judge import attention

    window = tuple(-1 if bound is None else bound for bound in window)
    fake = types.SimpleNamespace(slopes=slopes, sinks=None if sinks is None else sinks.float(), bias=None, mask=None)
    packed = cu is not None
    tensors = (q, k, v) if packed or layout == "bhsd" else tuple(t.transpose(1, 2) for t in (q, k, v))
    fake.real = lambda: tensors
    words = [] if window == (-1, -1) else ["window=%d,%d" % window]
    words += [f"softcap={softcap}"] if softcap else []
    words += ["causal"] if causal else []
    if packed:
        lengths = ",".join(f"{a}:{b}" for a, b in zip(cu[0].diff().tolist(), cu[1].diff().tolist()))
        sizes = f"h{q.shape[1]}:{k.shape[1]} d{q.shape[2]} varlen={lengths}"
    else:
        b, h, queries, d = tensors[0].shape
        sizes = f"b{b} h{h}:{tensors[1].shape[1]} q{queries} k{tensors[1].shape[2]} d{d}"
    fake.problem = suites.parse(" ".join(["f16", sizes, *words]))
    out = attention(fake, torch.float32).to(q.dtype)
    return out if packed or layout == "bhsd" else out.transpose(1, 2)


def fake_modules(torch):
    """Modules of peers by their signatures (flash_attn 2.8, FlashAttention-3 and -4, sageattention 1.0)."""

    def fa2(
        q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None
    ):
        return answer(torch, q, k, v, causal, window_size, softcap, alibi_slopes)

    def fa2_varlen(
        q,
        k,
        v,
        cu_seqlens_q,
        cu_seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        causal=False,
        window_size=(-1, -1),
        softcap=0.0,
        alibi_slopes=None,
    ):
        assert max_seqlen_q == cu_seqlens_q.diff().max() and max_seqlen_k == cu_seqlens_k.diff().max()
        return answer(torch, q, k, v, causal, window_size, softcap, alibi_slopes, cu=(cu_seqlens_q, cu_seqlens_k))

    def fa3(
        q,
        k,
        v,
        softmax_scale=None,
        causal=False,
        qv=None,
        q_descale=None,
        k_descale=None,
        v_descale=None,
        window_size=(-1, -1),
        softcap=0.0,
        num_splits=1,
        sinks=None,
    ):
        if q.dtype == torch.float8_e4m3fn:
            b, hk = k.shape[0], k.shape[2]
            assert q_descale.shape == k_descale.shape == v_descale.shape == (b, hk)
            q, k, v = (
                t.float() * scale[:, None, :1, None] for t, scale in ((q, q_descale), (k, k_descale), (v, v_descale))
            )
            return answer(torch, q, k, v, causal).bfloat16()
        return answer(torch, q, k, v, causal, window_size, softcap, sinks=sinks), None

    def fa3_varlen(
        q,
        k,
        v,
        cu_seqlens_q,
        cu_seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        causal=False,
        window_size=(-1, -1),
        softcap=0.0,
        num_splits=1,
        sinks=None,
    ):
        return answer(torch, q, k, v, causal, window_size, softcap, sinks=sinks, cu=(cu_seqlens_q, cu_seqlens_k))

    def fa4(q, k, v, causal=False, window_size=(None, None), learnable_sink=None, softcap=0.0):
        return answer(torch, q, k, v, causal, window_size, softcap, sinks=learnable_sink), None

    def fa4_varlen(
        q,
        k,
        v,
        cu_seqlens_q=None,
        cu_seqlens_k=None,
        max_seqlen_q=None,
        max_seqlen_k=None,
        causal=False,
        window_size=(None, None),
        learnable_sink=None,
        softcap=0.0,
    ):
        return (
            answer(torch, q, k, v, causal, window_size, softcap, sinks=learnable_sink, cu=(cu_seqlens_q, cu_seqlens_k)),
            None,
        )

    def sage(q, k, v, tensor_layout="HND", is_causal=False, sm_scale=None):
        k -= k.mean(2, keepdim=True)  # in place, as the real sageattention does
        return answer(torch, q, k, v, is_causal, layout="bhsd")

    def sage_varlen(q, k, v, cu_q, cu_k, max_q, max_k, is_causal=False):
        return answer(torch, q, k, v, is_causal, cu=(cu_q, cu_k))

    modules = {
        "flash_attn": (fa2, fa2_varlen),
        "flash_attn_interface": (fa3, fa3_varlen),
        "flash_attn.cute": (fa4, fa4_varlen),
    }
    found = {
        name: types.SimpleNamespace(flash_attn_func=dense, flash_attn_varlen_func=packed)
        for name, (dense, packed) in modules.items()
    }
    return {**found, "sageattention": types.SimpleNamespace(sageattn=sage, sageattn_varlen=sage_varlen)}


def test_flash_attention_4_finds_its_compiler_in_an_unpacked_wheel(tmp_path, monkeypatch):
    import impl_flash

    for name, text in {"cutlass/__init__.py": "found = True", "flash_attn/cute.py": FLASH_ATTENTION_4}.items():
        folder = tmp_path if name.startswith("flash") else tmp_path / "nvidia_cutlass_dsl" / "dsl_packages"
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    for name in ("cutlass", "flash_attn", "flash_attn.cute"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    impl = impl_flash.FlashAttention4()
    impl.load()  # this imports cutlass, which must succeed
    assert impl.version() == "1.2, unknown"
    assert sys.path.count(str(tmp_path / "nvidia_cutlass_dsl" / "dsl_packages")) == 1
    for name in ("cutlass", "flash_attn", "flash_attn.cute"):
        monkeypatch.delitem(sys.modules, name, raising=False)


FLASH_ATTENTION_4 = """
import cutlass

__version__ = "1.2"
flash_attn_func = flash_attn_varlen_func = None
assert cutlass.found
"""
MORE = {
    "causal-d64": "f16 b1 h2 q64 k64 d64 causal",
    "varlen-d64": "bf16 b2 h4:2 d64 causal varlen=20,33",
    "window-left": "f16 b1 h2 q70 k70 d64 window=-1,3",
}
LINES = {
    **{
        f"{name}-{dtype}": problem.line
        for dtype in ("f16", "bf16")
        for name, problem in suites.suite("dry", dtype).items()
    },
    **MORE,
}
EVERY = ["plain", "causal-gqa", "chunk", "decode", "causal-d64"]
PEERS = {
    "FlashAttention2": EVERY + ["window", "softcap", "alibi", "varlen"],
    "FlashAttention3": EVERY + ["window", "softcap", "sinks", "varlen", "fp8"],
    "FlashAttention4": EVERY + ["window", "softcap", "sinks", "varlen"],
    "SageAttention": ["plain", "causal-d64", "varlen-d64"],
}


@needs_torch
@pytest.mark.parametrize("name", PEERS)
@pytest.mark.parametrize("kind", LINES)
def test_an_implementation_calls_its_peer_for_the_same_problem(torch, monkeypatch, name, kind):
    import impl_flash
    import impl_more

    for module, fake in fake_modules(torch).items():
        monkeypatch.setitem(sys.modules, module, fake)
    impl = (getattr(impl_flash, name, None) or getattr(impl_more, name))()
    impl.load()
    inputs = a_set(torch, LINES[kind])
    refusal = impl.refusal(inputs.problem)
    assert (refusal == "") == any(kind.startswith(word) for word in PEERS[name]), refusal
    if refusal:
        return
    before = [t.clone() for t in (inputs.q, inputs.k, inputs.v)]
    impl.begin(inputs.problem)
    out = impl.logical(impl.bind(inputs)(), inputs.problem)
    assert a_judge(torch, inputs)(out, lossy=impl.lossy)["rel_rms"] < 0.03
    assert all(torch.equal(a.float(), b.float()) for a, b in zip(before, (inputs.q, inputs.k, inputs.v)))


@needs_torch
@pytest.mark.parametrize(
    "name, line, word",
    [
        ("FlashAttention2", "f16 b1 h2 q64 k64 d64 sinks", "sinks"),
        ("FlashAttention2", "e4m3 b1 h2 q64 k64 d64 scales=tensor", "e4m3"),
        ("FlashAttention2", "f16 b1 h2 q8 k64 d64 causal_top_left", "top-left"),
        ("FlashAttention3", "f16 h4 q64 d64 causal alibi", "alibi"),
        ("FlashAttention3", "e4m3 b1 h2 q64 k64 d64 scales=tensor", "bf16"),
        ("FlashAttention4", "f16 q64 d64 mask=[1,1,q,k]", "mask"),
        ("SageAttention", "f16 b1 h2 q8 k64 d64 causal", "as many keys"),
        ("SageAttention", "f16 q64 d80", "head_dim 80"),
        ("FlashInfer", "f16 q64 d64 window=3,4", "only to the left"),
        ("Xformers", "f16 q64 d64 softcap=3", "softcap"),
        ("CudnnFrontend", "f16 h3 q64 d64 causal alibi", "power of two"),
        ("CudnnFrontend", "f16 q64 d64 softcap=3", "score_mod"),
    ],
)
def test_an_implementation_reports_what_it_does_not_compute(torch, monkeypatch, name, line, word):
    import impl_cudnn
    import impl_flash
    import impl_more

    for module, fake in fake_modules(torch).items():
        monkeypatch.setitem(sys.modules, module, fake)
    impl = next(getattr(module, name) for module in (impl_flash, impl_more, impl_cudnn) if hasattr(module, name))()
    if name.startswith("Flash") and name != "FlashInfer":
        impl.load()
    assert word in impl.refusal(suites.parse(line))


@needs_torch
@pytest.mark.parametrize("kind", LINES)
@pytest.mark.parametrize("backend", ["math", "flex"])
def test_the_implementations_of_pytorch_compute_the_same(torch, kind, backend):
    from impl_torch import Flex, TorchSdpa

    impl = Flex(compiled=False) if backend == "flex" else TorchSdpa(backend)
    impl.load()
    inputs = a_set(torch, LINES[kind])
    cannot = ["fp8", "kv-fp8"] + (["softcap", "sinks", "varlen"] if backend == "math" else [])
    assert (impl.refusal(inputs.problem) == "") == (not any(kind.startswith(word) for word in cannot))
    if impl.refusal(inputs.problem):
        return
    impl.begin(inputs.problem)
    with impl.scope():
        out = impl.logical(impl.bind(inputs)(), inputs.problem)
    a_judge(torch, inputs)(out)


@needs_torch
def test_cudnn_graphs_are_valid(torch):
    cudnn = pytest.importorskip("cudnn")
    if not hasattr(cudnn, "Handle"):
        pytest.skip(f"frontend {cudnn.__version__} needs a GPU to validate graphs")
    from impl_cudnn import CudnnFrontend

    impl = CudnnFrontend()
    impl.load()
    for problem in suites.suite("dry", "f16").values():
        if not impl.refusal(problem):
            inputs = a_set(torch, problem.line)
            graph, pack = impl.new_graph(problem), impl.tensors(inputs)
            node = impl.build(graph, problem, pack)
            graph.validate()
            assert set(pack) <= set(node)


@needs_torch
def test_what_cannot_be_imported_is_absent_with_its_reason(torch, monkeypatch):
    from implementation import Implementation
    from implementations import available

    class Broken(Implementation):
        name = "broken"

        def load(self):
            raise OSError("libcudart.so.99: cannot open shared object file\nand more")

    here = Implementation()
    loaded, absent = available([here, Broken()])
    assert loaded == [here]
    assert absent[0].name == "broken" and absent[0].why.endswith("libcudart.so.99: cannot open shared object file")


@needs_torch
def test_the_plan_is_read_from_what_rapt_explains(torch):
    from implementations import chosen

    text = (
        "problem  f16 b1\nfamily   attention_sm80: chosen, attention_sm80 block_m=32 programmatic=1\n"
        "  signature=0a1b2c\n"
        "family   attention_cpu: refused, device cuda:0 is a GPU\n"
    )
    assert chosen(text) == ("attention_sm80", "block_m=32 programmatic=1", "0a1b2c")
    assert chosen("nothing") == ("", "", "")


# Clocks


@needs_torch
def test_a_sample_holds_as_many_calls_of_each_set(torch):
    from clocks import calls_for

    for call_us in (0.5, 4.0, 30.0, 400.0, 12000.0, 1e6):
        for sets in (4, 7, 64):
            count = calls_for(call_us, sets)
            assert count % sets == 0 or count <= 2
            assert count * call_us <= 60000 or count == 1
    assert calls_for(4.0, 4) == 48 and calls_for(30.0, 4) == 16 and calls_for(400.0, 4) == 4 and calls_for(1e6, 4) == 1


class Tape:
    """Replaces torch.cuda's graphs: work that ran during a capture runs again at a replay."""

    def __init__(self):
        self.recording, self.tape = False, []

    def run(self, work):
        if self.recording:
            self.tape.append(work)
        work()

    def capture(self, graph, stream=None):
        tape = self

        class Scope:
            def __enter__(self):
                tape.recording, tape.tape = True, graph.work

            def __exit__(self, *error):
                tape.recording = False

        return Scope()


@needs_torch
def test_outputs_of_a_graph_are_poisoned_and_come_back(torch, monkeypatch):
    from implementation import Implementation
    from clocks import Bound, GraphClock

    tape = Tape()

    class Graph:
        def __init__(self):
            self.work, self.replays = [], 0

        def replay(self):
            self.replays += 1
            for work in self.work:
                work()

    class Event:
        def __init__(self, enable_timing):
            pass

        def record(self):
            pass

        def synchronize(self):
            pass

        def elapsed_time(self, end):
            return 0.8  # ms

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", tape.capture)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    outs = [torch.zeros(3), torch.zeros(3)]

    def call(i):
        def work():
            outs[i].fill_(i + 1)

        return lambda: (tape.run(work), outs[i])[1]

    bound = Bound(Implementation(), [call(0), call(1)], {})
    clock = GraphClock(None)
    outputs = clock.prepare(bound, 10.0)
    assert bound.count == 50
    assert outputs[0].tolist() == [1, 1, 1] and outputs[1].tolist() == [2, 2, 2]
    graph = clock.graphs[""][0]
    assert len(graph.work) == 50
    before = graph.replays
    assert clock.sample(bound) == [0.8e3 / 100]  # the graph is short: an extra replay, then two timed replays
    assert graph.replays == before + 3
    broken = Bound(Implementation(), [lambda: outs[0]], {})  # its call enqueues nothing, so the poison stays
    assert all(math.isnan(value) for value in clock.prepare(broken, 10.0)[0].tolist())


@needs_torch
def test_an_implementation_too_slow_for_all_sets_is_judged_on_those_that_ran(torch):
    import peers
    from implementation import Absent
    from impl_torch import TorchSdpa
    from clocks import Bound

    run = object.__new__(peers.Run)
    run.device, run.failures, run.roof = "cpu", [], types.SimpleNamespace(seconds=lambda *words: None)
    sets = [a_set(torch, "f16 b1 h2 q64 k64 d32 causal", seed) for seed in (1, 2, 3)]
    judges = {index: a_judge(torch, sets[index]) for index in (0, 2)}
    first_only = types.SimpleNamespace(prepare=lambda bound, call_us: {0: bound.calls[0]()})
    bound = run.validate(TorchSdpa("math"), "x", sets, judges, first_only)
    assert isinstance(bound, Bound) and bound.error["within"]
    stale = types.SimpleNamespace(prepare=lambda bound, call_us: {0: bound.calls[1]()})  # returns another set's output
    refused = run.validate(TorchSdpa("math"), "x", sets, judges, stale)
    assert isinstance(refused, Absent) and refused.why.startswith("WRONG, not timed")


@needs_torch
def test_rounds_are_paired_and_slow_implementations_are_skipped(torch):
    from implementation import Implementation
    from clocks import Bound, measure

    class Clock:
        timer, order = "host", []

        def sample(self, bound):
            self.order.append(bound.name)
            return [bound.us]

    fast, slow = Bound(Implementation(), [None], {}), Bound(Implementation(), [None], {})
    fast.impl, slow.impl = types.SimpleNamespace(name="fast"), types.SimpleNamespace(name="slow")
    fast.us, slow.us = 5.0, 90000.0
    measure([fast, slow], Clock(), 6, lambda some: list(reversed(some)))
    assert len(fast.rounds) == 6 and len(slow.rounds) == 3
    assert Clock.order[:4] == ["slow", "fast", "slow", "fast"]


@needs_torch
def test_an_implementation_that_runs_out_of_memory_ends_itself_only(torch):
    import clocks

    class Clock:
        timer = "graph"

        def sample(self, bound):
            return [5.0]

    def too_large():
        raise torch.OutOfMemoryError("CUDA out of memory")

    def bound_of(name, call):
        impl = types.SimpleNamespace(name=name, scope=contextlib.nullcontext)
        return clocks.Bound(impl, [call], {})

    fits, fails = bound_of("fits", lambda: None), bound_of("fails", too_large)
    clocks.measure([fits, fails], Clock(), 3, lambda some: some)
    assert fails.out_of_memory and not fails.host_us
    assert not fits.out_of_memory and len(fits.host_us) == 3


@needs_torch
@pytest.mark.parametrize(
    "spreads, attempts, kept", [([0.01, 0.5], 1, 0.01), ([0.2, 0.02, 0.5], 2, 0.02), ([0.3, 0.1, 0.2, 0.0], 3, 0.1)]
)
def test_a_noisy_problem_is_measured_again_and_the_best_attempt_kept(torch, spreads, attempts, kept):
    import clocks
    import gpu_clocks

    tape = iter(spreads)

    class Clock:
        timer = "host"
        spread, left = 0.0, 0

        def sample(self, bound):
            if self.left == 0:  # the first sample of an attempt is not kept
                self.spread, self.left = next(tape), 5
                return [99.0]
            self.left -= 1
            return [1.0 if self.left > 1 else 1 + self.spread]

    bound = clocks.Bound(types.SimpleNamespace(name="rapt"), [], {})
    read = lambda: gpu_clocks.Clocks(1980, 2619, 5)  # noqa: E731
    fields = clocks.measure_steadily([bound], Clock(), 5, lambda some: some, read)
    assert fields["attempts"] == attempts and clocks.largest_spread([bound]) == pytest.approx(kept)
    assert len(bound.samples) == 5 and 99.0 not in bound.samples
    assert fields["clocks"] == {"sm_mhz": [1980] * 2, "memory_mhz": [2619] * 2, "throttle": ["sw_power_cap"]}
    assert rows.faults(a_row(**fields)) == []


def test_clocks_are_read_from_nvml_or_absent(tmp_path, monkeypatch):
    gpu_clocks = pytest.importorskip("gpu_clocks")
    nothing = gpu_clocks.ClockReader("00000000:01:00.0", str(tmp_path / "none.so")).read()
    assert nothing == gpu_clocks.Clocks(None, None, None)
    assert rows.faults(a_row(clocks=gpu_clocks.field(nothing, nothing))) == []
    address = gpu_clocks.pci_address(types.SimpleNamespace(pci_domain_id=2, pci_bus_id=0x3B, pci_device_id=1))
    assert address == "00000002:3B:01.0" and gpu_clocks.pci_address(types.SimpleNamespace()) == ""
    compiler = shutil.which("c++") or shutil.which("g++")
    source = os.path.join(ROOT, "tests", "fake_nvml", "fake_nvml.cpp")
    if compiler is None or not os.path.exists(source):
        pytest.skip("no C++ compiler for the stand-in, or a kit without it")
    library = str(tmp_path / "nvml.so")
    subprocess.run([compiler, "-shared", "-fPIC", source, "-o", library], check=True)
    monkeypatch.setenv("FAKE_NVML_LIMITS", "0x21")
    assert gpu_clocks.ClockReader(address, library).read() == gpu_clocks.Clocks(1980, 2619, 0x21)
    assert gpu_clocks.ClockReader("00000000:01:00.0", library).read() == nothing
    assert gpu_clocks.limit_names(0x21) == ["sw_thermal_slowdown"]


@needs_torch
def test_bare_launches_are_timed_in_c(torch, tmp_path):
    import ctypes
    import launch

    try:
        loop = launch.compile_loop(str(tmp_path))
    except launch.NotHere as why:
        pytest.skip(str(why))
    loop.time_launches.restype = ctypes.c_double
    seen = []
    kind = ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.c_void_p, *[ctypes.c_uint] * 7, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
    )
    fine = kind(lambda function, *words: seen.append((function, words[0], words[3], words[7])) or 0)
    failing = kind(lambda *words: 700)
    words = ctypes.c_void_p(11), ctypes.c_void_p(22), ctypes.c_uint(128), ctypes.c_uint(256)
    assert loop.time_launches(fine, *words, ctypes.c_int(5)) > 0
    assert seen == [(11, 128, 256, 22)] * 5
    assert loop.time_launches(failing, *words, ctypes.c_int(5)) == -700


# The scripts as they are run

STANDIN = """
import torch
from . import _core  # the real one, for problem lines
_core.set_errors((ValueError,) * 7)
__version__ = "0.0-standin"
class Context:
    def __init__(self, num_threads=0): pass
class Unsupported(Exception): pass
def sdpa(q, k, v, out=None, context=None, causal=False, **options):
    if q.dtype == torch.float8_e4m3fn or causal not in (False, "bottom_right"):
        raise Unsupported("q: float8_e4m3fn: the stand-in has none")
    found = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=bool(causal), enable_gqa=True) * FACTOR
    if out is None:
        return found
    out.copy_(found)
    return out
def prepare(q, k, v, **options): sdpa(q, k, v, **options)
def explain(q, k, v, **options): return "problem  x\\nstandin  chosen, attention_standin config=1"
"""


def run_peers(tmp_path, factor, *words):
    (tmp_path / "rapt").mkdir(exist_ok=True)
    shutil.copy(_core.__file__, tmp_path / "rapt")
    (tmp_path / "rapt" / "__init__.py").write_text(STANDIN.replace("FACTOR", factor))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [
            sys.executable,
            os.path.join(BENCH, "peers.py"),
            "--dry-run",
            "--skip-implementations",
            "torch-flex-eager",
            *words,
        ],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
        cwd=tmp_path,
    )


@needs_torch
def test_a_dry_run_writes_valid_rows_and_says_what_was_refused(torch, tmp_path):
    done = run_peers(tmp_path, "1.0", "--names", "plain,causal-gqa,fp8", "--output", "rows.jsonl", "--seed", "5")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "refused: q: float8_e4m3fn: the stand-in has none" in done.stdout
    assert re.findall("FAILED  (.*): q: float8", done.stdout) == ["fp8 rapt", "fp8 rapt-pv-fp8", "fp8 rapt-pv-fp8x2"]
    found = rows.read(str(tmp_path / "rows.jsonl"))
    assert {(one["name"], one["arm"]) for one in found} == {
        (name, impl) for name in ("plain", "causal-gqa") for impl in ("rapt", "torch", "torch-math")
    }
    mine = next(one for one in found if one["arm"] == "rapt")
    assert (mine["family"], mine["config"], mine["version"]) == ("attention_standin", "config=1", "0.0-standin")
    assert all(rows.faults(one) == [] and one["vs_rapt"]["median"] > 0 for one in found if one["arm"] != "rapt")


@needs_torch
def test_a_wrong_implementation_is_not_timed_and_the_run_fails(torch, tmp_path):
    done = run_peers(tmp_path, "1.01", "--names", "plain", "--output", "rows.jsonl")
    assert done.returncode == 1
    assert "WRONG, not timed" in done.stdout and "FAILED  plain rapt" in done.stdout
    found = rows.read(str(tmp_path / "rows.jsonl"))
    assert {one["arm"] for one in found} == {"torch", "torch-math"}
    assert any(other["arm"] == "rapt" for other in found[0]["absent"])
    assert not any("vs_rapt" in one for one in found)


@needs_torch
def test_fp8_rows_of_every_mode_beside_16_bit_keys(torch, tmp_path):
    """With the package itself, if it is installed."""
    if importlib.util.find_spec("rapt") is None:
        pytest.skip("rapt is not installed")
    done = subprocess.run(
        [sys.executable, os.path.join(BENCH, "peers.py"), "--dry-run", "--skip-implementations", "torch-flex-eager"]
        + ["--names", "fp8,kv-fp8", "--output", str(tmp_path / "rows.jsonl"), "--seed", "5"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = rows.read(str(tmp_path / "rows.jsonl"))
    impls = {(one["name"], one["arm"]): one for one in found}
    modes = {"rapt", "rapt-pv-fp8", "rapt-pv-fp8x2"}
    assert set(impls) == {("fp8", impl) for impl in modes} | {("kv-fp8", impl) for impl in modes | {"rapt-kv16"}}
    wide = impls["kv-fp8", "rapt-kv16"]
    assert wide["problem"] == "f16 b1 h4:2 q40 k64 d64 causal" and wide["vs_rapt"]["median"] > 0
    assert abs(wide["err"]["rel_rms"] / impls["kv-fp8", "rapt"]["err"]["rel_rms"] - 1) < 0.5  # the same numbers
    assert impls["kv-fp8", "rapt-pv-fp8"]["err"]["rel_rms"] > 10 * wide["err"]["rel_rms"]


@needs_torch
def test_the_quantiser_is_timed_beside_a_copy(torch, tmp_path):
    if importlib.util.find_spec("rapt") is None:
        pytest.skip("rapt is not installed")
    done = subprocess.run(
        [sys.executable, os.path.join(BENCH, "quantize_bandwidth.py"), "--device", "cpu", "--quick"]
        + ["--kinds", "token,block64,supplied,channel,block64-smooth", "--output", str(tmp_path / "rows.jsonl")],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = rows.read(str(tmp_path / "rows.jsonl"))
    kinds = ("token", "block64", "supplied", "channel", "block64-smooth")
    assert [one["arm"] for one in found] == [*(f"rapt-{kind}" for kind in kinds), "copy"]
    assert all(rows.faults(one) == [] and one["roof_share"] > 0 for one in found)
    assert all(0.01 < one["err"]["rel_rms"] < 0.04 for one in found[:-1]) and found[-1]["roof_share"] == pytest.approx(
        1
    )


@needs_torch
def test_kv_append_compares_and_measures(tmp_path):
    if importlib.util.find_spec("rapt") is None:
        pytest.skip("rapt is not installed")
    done = subprocess.run(
        [sys.executable, os.path.join(BENCH, "kv_append.py"), "--device", "cpu", "--quick", "--rounds", "1"]
        + ["--kinds", "copy,rotary-token", "--output", str(tmp_path / "rows.jsonl")],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = rows.read(str(tmp_path / "rows.jsonl"))
    kinds = ("copy", "rotary-token")
    expected = [name for p in ("prefill", "decode") for k in kinds for name in (f"rapt-{p}-{k}", f"copy-{k}")]
    assert [one["arm"] for one in found] == expected
    assert all(rows.faults(one) == [] and one["roof_share"] > 0 for one in found)


@needs_torch
@pytest.mark.parametrize(
    "words, complaint",
    [
        (["--suite", "nemed"], "nemed"),
        (["--names", "misson"], "misson"),
        (["--implementations", "flash"], "flash"),
        (["--dtype", "f8"], "f8"),
        (["--threads", "0"], "--threads 0"),
        (["--rounds", "1"], "--rounds 1"),
        (["--problem", "f16 q8 d64 casual"], "casual"),
        (["--l2", "cold"], "GPU only"),
    ],
)
def test_wrong_usage_exits_2_and_names_the_word(torch, tmp_path, words, complaint):
    done = run_peers(tmp_path, "1.0", *words)
    assert done.returncode == 2 and complaint in done.stderr, done.stderr
