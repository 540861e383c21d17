#!/usr/bin/env python3
"""Checks that include arrows point one way: lab, tests -> check -> problem.h, and src/ sees none of them.

Called by .ci/run. Reads #include lines only; prints each wrong arrow and exits 1 if there is one.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]', re.MULTILINE)
SUFFIXES = {".h", ".hpp", ".cpp", ".c", ".cuh"}
PROBLEM = ["src/problem.h", "src/error.h", "include/rapt/"]

# (files, what they may include, why). The first rule whose prefix fits a file holds; system headers count as "<name>".
RULES = [
    ("include/rapt/", ["include/rapt/", "<"], "the public headers stand alone"),
    ("src/kernels/shared/", ["src/kernels/shared/"], "shared/ is compiled by NVRTC too, which has no other headers"),
    ("src/", ["src/", "include/rapt/", "<"], "the library never sees check, lab or tests"),
    ("check/oracle", ["check/", *PROBLEM, "<"], "the oracle shares only the problem with what it judges"),
    ("check/", ["check/", "src/kernels/shared/dtype.h", *PROBLEM, "<"], "check is independent of what it judges"),
    ("lab/", ["lab/", "check/", "src/", "include/rapt/", "generated/", "<"], "lab never needs tests"),
    ("tests/", ["tests/", "lab/", "check/", "src/", "include/rapt/", "generated/", "<"], ""),
    ("examples/", ["include/rapt/", "<"], "examples show the public interface"),
]


def resolve(source, bracket, name):
    """The included file relative to the root, or "<name>" when no file of this project fits."""
    folders = [source.parent, ROOT, ROOT / "src", ROOT / "include"]
    for folder in folders[1:] if bracket == "<" else folders:
        path = (folder / name).resolve()
        if path.is_file() and path.is_relative_to(ROOT):
            return path.relative_to(ROOT).as_posix()
    if name == "rapt_build_info.h":
        return "generated/" + name
    return f"<{name}>" if bracket == "<" else name


def wrong_arrows(source):
    path = source.relative_to(ROOT).as_posix()
    prefix, allowed, why = next((rule for rule in RULES if path.startswith(rule[0])), (None, None, None))
    if prefix is None:
        return [f"{path}: no rule of scripts/check_arrows.py covers this file"]
    includes = [resolve(source, *match) for match in INCLUDE.findall(source.read_text(encoding="utf-8"))]
    return [f"{path} includes {name}: {why}" for name in includes if not name.startswith(tuple(allowed))]


def main():
    rooms = ["include", "src", "check", "lab", "tests", "examples"]
    sources = sorted(p for room in rooms for p in (ROOT / room).rglob("*") if p.suffix in SUFFIXES)
    wrong = [line for source in sources for line in wrong_arrows(source)]
    print("\n".join(wrong + [f"{len(sources)} files, {len(wrong)} wrong arrows"]))
    return 1 if wrong or not sources else 0


if __name__ == "__main__":
    sys.exit(main())
