#!/usr/bin/env python3
"""Checks the include rules: lab and tests may include check. check may include only problem.h of src. src may include
none of the three.

Called by .ci/run. Reads only #include lines. Prints each wrong include and exits with 1 if there is one.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]', re.MULTILINE)
SUFFIXES = {".h", ".hpp", ".cpp", ".c", ".cuh"}
PROBLEM = ["src/problem/problem.h", "src/base/error.h", "src/base/files.h", "include/rapt/"]

K = "src/kernels/"
DEVICE = [K + "shared/", K + "device/", K + "ptx/"]  # every device source may include these
FAMILIES = sorted(path.name for path in (ROOT / K).iterdir() if path.is_dir() and f"{K}{path.name}/" not in DEVICE)
# The rules for device sources of each folder. They include no header of the CUDA toolkit or the standard library,
# because NVRTC would need paths to these headers.
DEVICE_RULES = [
    (K + "ptx/", [K + "ptx/", K + "shared/"], "ptx/ holds single instructions"),
    (K + "device/", DEVICE, "device/ is common code of several families"),
    *[
        (
            f"{K}{family}/",
            [f"{K}{family}/", *DEVICE],
            "a family's device source may include its own folder and the common ones",
        )
        for family in FAMILIES
    ],
    ("lab/emulation/", ["lab/emulation/", *DEVICE, "<"], "the stand-ins for device code on a CPU are host code"),
    (
        "lab/",
        ["lab/", *DEVICE, K + "sm80/"],
        "device code of the lab may include what kernels include, and its own folder",
    ),
    ("tests/", ["tests/", *DEVICE], "device code of the tests may include device/, ptx/, shared/ and its own folder"),
]
BASE = ["src/base/", "include/rapt/", "<"]
# Headers that a family's host code may include: the problem, the device, and headers for the CPU kernels. The runtime
# is not among them, because the runtime uses families.
HOST_HALF = [K, "src/problem/", "src/device/", *BASE]
# (files, allowed includes, reason). The first rule whose prefix matches a file applies. System headers are "<name>".
RULES = [
    ("include/rapt/", ["include/rapt/", "<"], "the public headers include only each other"),
    (K + "shared/", [K + "shared/"], "NVRTC also compiles shared/ and has no other headers"),
    ("src/base/", BASE, "base/ includes nothing of the library"),
    ("src/device/", ["src/device/", *BASE], "device/ is plain data"),
    ("src/problem/", ["src/problem/", K + "shared/", *BASE], "a problem does not depend on who computes it"),
    ("src/jit/", ["src/jit/", *BASE], "jit/ is independent of attention and of the driver"),
    (
        "src/cuda/",
        ["src/cuda/", "src/device/", "src/cpu/threads.h", *BASE],
        "cuda/ is independent of compilation and of attention",
    ),
    ("src/cpu/", ["src/cpu/", "src/device/", K + "shared/", *BASE], "cpu/ only computes"),
    (K + "registry.cpp", [*HOST_HALF, "kernel_families.inc"], "the registry includes the list that the build writes"),
    (K + "cpu/", [*HOST_HALF, "src/cpu/"], "a family uses problems and machines, not the runtime"),
    (K, HOST_HALF, "a family uses problems and machines, not the runtime"),
    (
        "src/arguments/",
        ["src/arguments/", "src/problem/", "src/cuda/cuda.h", "src/cpu/", K + "shared/", *BASE],
        "arguments/ only converts structs to problems",
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
        "runtime/ is independent of operations",
    ),
    ("src/", ["src/", "include/rapt/", "<"], "the library never uses check, lab or tests"),
    ("check/oracle", ["check/", *PROBLEM, "<"], "the oracle shares only the problem with the tested code"),
    (
        "check/device_tensors",
        ["check/", K + "shared/dtype.h", "src/cuda/cuda.h", *PROBLEM, "<"],
        "tensors on a GPU need only the driver part of the library",
    ),
    (
        "check/library",
        ["check/", "src/arguments/sdpa_arguments.h", *PROBLEM, "<"],
        "check/library calls the library through the table of its arguments",
    ),
    ("check/", ["check/", K + "shared/dtype.h", *PROBLEM, "<"], "check is independent of the tested code"),
    ("lab/emulation/", ["lab/emulation/", "<"], "it is embedded in the program, which compiles it for variants"),
    ("lab/", ["lab/", "check/", "src/", "include/rapt/", "generated/", "<"], "lab never needs tests"),
    ("tests/", ["tests/", "lab/", "check/", "src/", "include/rapt/", "generated/", "<"], ""),
    ("examples/", ["include/rapt/", "<"], "examples use only the public interface"),
]


def resolve(source, bracket, name):
    """The included file relative to the root, or "<name>" if it is not a file of this project."""
    folders = [source.parent, ROOT, ROOT / "src", ROOT / "include"]
    folders += [ROOT / "lab/ladder", ROOT / "src/kernels"]  # NVRTC and the emulation tests search there, too
    for folder in folders[1:] if bracket == "<" else folders:
        path = (folder / name).resolve()
        if path.is_file() and path.is_relative_to(ROOT):
            return path.relative_to(ROOT).as_posix()
    if name == "rapt_build_info.h":
        return "generated/" + name
    return f"<{name}>" if bracket == "<" else name


def wrong_includes(source):
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
    wrong = [line for source in sources for line in wrong_includes(source)]
    print("\n".join(wrong + [f"{len(sources)} files, {len(wrong)} wrong includes"]))
    return 1 if wrong or not sources else 0


if __name__ == "__main__":
    sys.exit(main())
