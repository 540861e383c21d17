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
PROBLEM = ["src/problem/problem.h", "src/base/error.h", "src/base/files.h", "include/rapt/"]

K = "src/kernels/"
DEVICE = [K + "shared/", K + "device/", K + "ptx/"]  # what every device text may use
FAMILIES = sorted(path.name for path in (ROOT / K).iterdir() if path.is_dir() and f"{K}{path.name}/" not in DEVICE)
# Device texts of each room: no header of a toolkit or the standard library, which NVRTC would need paths for.
DEVICE_RULES = [
    (K + "ptx/", [K + "ptx/", K + "shared/"], "ptx/ holds single instructions"),
    (K + "device/", DEVICE, "device/ is what several families use"),
    *[
        (f"{K}{family}/", [f"{K}{family}/", *DEVICE], "a family's device text includes its own folder and what all use")
        for family in FAMILIES
    ],
    ("lab/emulation/", ["lab/emulation/", *DEVICE, "<"], "what stands in for device code on a CPU is host code"),
    ("lab/", ["lab/", *DEVICE, K + "sm80/"], "device code of the lab includes what kernels include, and its own"),
    ("tests/", ["tests/", *DEVICE], "device code of the tests includes device/, ptx/, shared/ and its own"),
]
BASE = ["src/base/", "include/rapt/", "<"]
# What a family's host half may see: what is asked, of which machine, and what the CPU's kernels need. Not the run time,
# which launches what a family returns.
HOST_HALF = [K, "src/problem/", "src/device/", *BASE]
# (files, what they may include, why). The first rule whose prefix fits a file holds; system headers count as "<name>".
RULES = [
    ("include/rapt/", ["include/rapt/", "<"], "the public headers stand alone"),
    (K + "shared/", [K + "shared/"], "shared/ is compiled by NVRTC too, which has no other headers"),
    ("src/base/", BASE, "base/ includes nothing of the library"),
    ("src/device/", ["src/device/", *BASE], "device/ is plain facts"),
    ("src/problem/", ["src/problem/", K + "shared/", *BASE], "a problem is what is asked, whoever computes it"),
    ("src/jit/", ["src/jit/", *BASE], "jit/ knows nothing of attention and of the driver"),
    (
        "src/cuda/",
        ["src/cuda/", "src/device/", "src/cpu/threads.h", *BASE],
        "cuda/ knows nothing of compilation and of attention",
    ),
    ("src/cpu/", ["src/cpu/", "src/device/", K + "shared/", *BASE], "cpu/ computes what it is given"),
    (K + "cpu/", [*HOST_HALF, "src/cpu/"], "a family sees problems and machines, not the run time"),
    (K, HOST_HALF, "a family sees problems and machines, not the run time"),
    (
        "src/arguments/",
        ["src/arguments/", "src/problem/", "src/cuda/cuda.h", "src/cpu/", K + "shared/", *BASE],
        "arguments/ turns structs into problems",
    ),
    (
        "src/runtime/",
        [
            "src/runtime/",
            "src/kernels/",
            "src/jit/",
            "src/cuda/",
            "src/cpu/",
            "src/device/",
            "src/problem/",
            "src/arguments/",
            *BASE,
        ],
        "runtime/ knows no operation",
    ),
    ("src/", ["src/", "include/rapt/", "<"], "the library never sees check, lab or tests"),
    ("check/oracle", ["check/", *PROBLEM, "<"], "the oracle shares only the problem with what it judges"),
    (
        "check/device_tensors",
        ["check/", K + "shared/dtype.h", "src/cuda/cuda.h", *PROBLEM, "<"],
        "of the library, tensors on a GPU need the driver alone",
    ),
    (
        "check/library",
        ["check/", "src/arguments/sdpa_arguments.h", *PROBLEM, "<"],
        "the library is called by the table of its arguments",
    ),
    ("check/", ["check/", K + "shared/dtype.h", *PROBLEM, "<"], "check is independent of what it judges"),
    ("lab/emulation/", ["lab/emulation/", "<"], "it stands alone in the program, which compiles it for variants"),
    ("lab/", ["lab/", "check/", "src/", "include/rapt/", "generated/", "<"], "lab never needs tests"),
    ("tests/", ["tests/", "lab/", "check/", "src/", "include/rapt/", "generated/", "<"], ""),
    ("examples/", ["include/rapt/", "<"], "examples show the public interface"),
]


def resolve(source, bracket, name):
    """The included file relative to the root, or "<name>" when no file of this project fits."""
    folders = [source.parent, ROOT, ROOT / "src", ROOT / "include"]
    folders += [ROOT / "lab/ladder", ROOT / "src/kernels"]  # device texts, as NVRTC and the tests of texts find them
    for folder in folders[1:] if bracket == "<" else folders:
        path = (folder / name).resolve()
        if path.is_file() and path.is_relative_to(ROOT):
            return path.relative_to(ROOT).as_posix()
    if name == "rapt_build_info.h":
        return "generated/" + name
    return f"<{name}>" if bracket == "<" else name


def wrong_arrows(source):
    path = source.relative_to(ROOT).as_posix()
    rules = DEVICE_RULES if source.suffix == ".cuh" else RULES
    prefix, allowed, why = next((rule for rule in rules if path.startswith(rule[0])), (None, None, None))
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
