"""Runs the examples, each if its framework is installed; compares the type stub with the signature, and the table of
public bug reports with the tests here.
"""

import ast
import importlib.util
import inspect
import pathlib
import re
import subprocess
import sys

import pytest

import rapt
from rapt import _signature

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples" / "python"


@pytest.mark.parametrize("name", sorted(path.stem for path in EXAMPLES.glob("*.py")))
def test_example(name):
    needed = {"transformers": ("transformers", "torch")}.get(name.split("_")[0], (name.split("_")[0],))
    for framework in needed:
        if importlib.util.find_spec(framework) is None:
            pytest.skip(f"{framework} is not installed")
    done = subprocess.run([sys.executable, str(EXAMPLES / f"{name}.py")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_stub_has_the_parameters_of_the_signature():
    stub = pathlib.Path(rapt.__file__).with_name("__init__.pyi")
    functions = [node for node in ast.parse(stub.read_text()).body if isinstance(node, ast.FunctionDef)]
    public = {
        node.name for node in ast.parse(stub.read_text()).body if isinstance(node, (ast.FunctionDef, ast.ClassDef))
    }
    assert public | {"__version__"} == set(rapt.__all__)
    of_sdpa = [one for one in functions if one.name == "sdpa"]
    assert len(of_sdpa) == 4  # overloads: without flags, with lse, with partial, with flags that are variables
    for one in of_sdpa:
        given = {argument.arg: default for argument, default in zip(one.args.kwonlyargs, one.args.kw_defaults)}
        assert [argument.arg for argument in one.args.args] == ["q", "k", "v"]
        assert list(given) == list(_signature.DEFAULTS)
        defaults = {name: ast.literal_eval(default) for name, default in given.items() if default is not None}
        assert defaults.items() <= _signature.DEFAULTS.items()
        assert len(given) - len(defaults) <= 1
    for one in functions:
        if one.name in ("quantize", "fake_quantize", "qk", "gemm", "merge"):
            real = inspect.signature(getattr(rapt, one.name)).parameters
            given = [argument.arg for argument in one.args.args + one.args.kwonlyargs]
            assert given == list(real), one.name
            defaults = [ast.literal_eval(default) for default in one.args.kw_defaults]
            assert defaults == [p.default for p in real.values() if p.kind is p.KEYWORD_ONLY], one.name


def test_every_report_of_the_table_that_runs_here_has_its_test():
    here = pathlib.Path(__file__).resolve().parent
    table = here.parent / "cpu" / "reports.h"
    if not table.exists():
        pytest.skip("no checkout")
    rows = set(re.findall(r'\{"(R\d+)",[^}]*\bin_python\b', table.read_text()))
    tests = set(re.findall(r"def test_report_(R\d+)", "".join(path.read_text() for path in here.glob("test_*.py"))))
    assert rows and rows <= tests
