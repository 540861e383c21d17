"""Tests that scripts/run_readme.py fails if a page shows a wrong exit code or wrong lines of output."""

import pathlib
import subprocess
import sys

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts/run_readme.py"
OUTPUT = "\n<!-- the output has these lines -->\n```text\n"


def run(tmp_path, page):
    (tmp_path / "page.md").write_text(page)
    # The absolute path of the page replaces the script's own root.
    done = subprocess.run([sys.executable, SCRIPT, tmp_path, tmp_path / "page.md"], capture_output=True, text=True)
    return done.returncode, done.stdout


def test_exit_codes(tmp_path):
    fails = "```sh\nexit 3\n```\n"
    assert run(tmp_path, fails)[0] == 1
    assert run(tmp_path, "<!-- exit code 3: on purpose -->\n" + fails)[0] == 0
    assert run(tmp_path, "<!-- exit code 2: on purpose -->\n" + fails)[0] == 1
    assert run(tmp_path, "<!-- exit code 3: on purpose -->\n```sh\ntrue\n```\n")[0] == 1


def test_output(tmp_path):
    block = "```sh\necho 'one 17 two'; echo three >&2\n```\n"
    assert run(tmp_path, block + OUTPUT + "one ... two\nthree\n```\n")[0] == 0
    code, said = run(tmp_path, block + OUTPUT + "one ... four\n```\n")
    assert code == 1
    assert "not in the output: one ... four" in said


def test_a_skipped_block_does_not_lend_its_mark(tmp_path):
    page = "<!-- not run: needs a GPU -->\n```sh\nfalse\n```\n\n```sh\ntrue\n```\n"
    code, said = run(tmp_path, page)
    assert code == 0
    assert "1 blocks passed, 0 failed, 1 left out" in said
