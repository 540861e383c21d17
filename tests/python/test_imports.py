"""Tests that the Python files in python/rapt, and those in bench/, import each other without a circle.

Imports inside functions count, too. The tests read the files of the source tree and do not run them. They need only the
standard library.
"""

from __future__ import annotations

import ast
import graphlib
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE, BENCH = ROOT / "python" / "rapt", ROOT / "bench"
COMPILED = {"rapt._core"}  # this module has no Python file, and imports no Python file
# Pairs (importer, imported) that are allowed to close a circle, each with the reason.
EXCEPTIONS = {
    # rapt.__getattr__ loads compat at the first use of rapt.compat; compat uses the public rapt.sdpa.
    ("rapt", "rapt.compat"),
}


def modules(folder: pathlib.Path, package: str = "") -> dict[str, pathlib.Path]:
    """{dotted name: file} of the Python files of a folder. package: the name of the folder itself."""
    found = {}
    for path in sorted(folder.rglob("*.py")):
        words = [package] * bool(package) + [*path.relative_to(folder).with_suffix("").parts]
        found[".".join(words[:-1] if words[-1] == "__init__" else words)] = path
    return found


def imports(name: str, path: pathlib.Path, known) -> set[str]:
    """The modules among `known` that a file imports anywhere. `from package import name` imports the module `name`, or
    the package if name is not a module. A package that is imported only as the parent of its module does not count.
    """
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            inner = {f"{source}.{alias.name}" for alias in node.names}
            found |= {one if one in known or one in COMPILED else source for one in inner}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            text = node.args[0].value if isinstance(node.args[0], ast.Constant) else ""
            found.add(".".join(package) + text if text.startswith(".") else text)
    return {one for one in found if one in known}


def graph(files: dict[str, pathlib.Path]) -> dict[str, set[str]]:
    return {name: imports(name, path, files) for name, path in files.items()}


def circle(arrows: dict[str, set[str]]) -> list[str]:
    """One circle of imports, in order. Empty if there is none."""
    try:
        graphlib.TopologicalSorter(arrows).prepare()
    except graphlib.CycleError as error:
        return error.args[1][::-1]  # given from the imported to the importer
    return []


@pytest.mark.skipif(not PACKAGE.is_dir() or not BENCH.is_dir(), reason="not in a checkout")
@pytest.mark.parametrize("folder, package", [(PACKAGE, "rapt"), (BENCH, "")], ids=["rapt", "bench"])
def test_no_file_imports_itself_by_way_of_others(folder, package):
    arrows = graph(modules(folder, package))
    allowed = {(name, one) for name, one in EXCEPTIONS if name in arrows}
    assert all(one in arrows[name] for name, one in allowed), "an exception that nothing needs any more"
    found = circle({name: {one for one in ones if (name, one) not in allowed} for name, ones in arrows.items()})
    assert not found, " -> ".join(found)


def test_circles_are_found_wherever_an_import_stands(tmp_path):
    (tmp_path / "inner").mkdir()
    for name, text in {
        "__init__.py": "from .a import one\n",
        "a.py": "from . import b\nimport sys\n",
        "b.py": "def late():\n    from .inner.c import two\n",
        "inner/__init__.py": "",
        "inner/c.py": "import importlib\nfrom ..d import three\n",
        "d.py": "def later():\n    importlib.import_module('.e', __name__)\n",
        "e.py": "",
    }.items():
        (tmp_path / name).write_text(text)
    files = modules(tmp_path, "p")
    assert graph(files) == {
        "p": {"p.a"},
        "p.a": {"p.b"},
        "p.b": {"p.inner.c"},
        "p.inner": set(),
        "p.inner.c": {"p.d"},
        "p.d": {"p.e"},
        "p.e": set(),
    }
    assert circle(graph(files)) == []
    (tmp_path / "e.py").write_text("from . import a\n")
    found = circle(graph(files))
    assert found[0] == found[-1] and set(found) == {"p.a", "p.b", "p.inner.c", "p.d", "p.e"}
    assert all(one in graph(files)[name] for name, one in zip(found, found[1:]))
    (tmp_path / "e.py").write_text("from . import one\n")
    assert "p" in circle(graph(files))
