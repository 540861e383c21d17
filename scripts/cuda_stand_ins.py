#!/usr/bin/env python3
"""Creates empty libraries in place of CUDA's large ones. So the PyTorch of PyPI loads without 2 GB of libraries that
are not used on a CPU.

    cuda_stand_ins.py SITE_PACKAGES    # called by scripts/pytorch.sh

PyPI has PyTorch for x86-64 Linux only with CUDA. Its libraries depend on cuBLAS, cuDNN and others. The loader needs a
file for each, with the imported functions and symbol versions. None of them is called on a machine without a GPU.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict

CUDA = re.compile(r"lib(cu|nv|nccl)")
LOADED_LATER = ("libtorch_cuda_linalg.so", "libcaffe2_nvrtc.so")


def output(*command):
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def imports_of(library):
    """The imports of a library: (needed libraries, {version: the library that has it}, [(function, version or "")])."""
    needed = re.findall(r"\(NEEDED\).*\[(.+)\]", output("readelf", "-dW", library))
    versions, file = {}, None
    for line in output("readelf", "-VW", library).splitlines():
        if found := re.search(r"File: (\S+)", line):
            file = found[1]
        elif file and (found := re.search(r"Name: (\S+) ", line)):
            versions[found[1]] = file
    functions = []
    for fields in map(str.split, output("readelf", "--dyn-syms", "-W", library).splitlines()):
        if len(fields) > 7 and fields[6] == "UND":
            name, _, version = fields[7].partition("@")
            functions.append((name, version.lstrip("@")))
    return needed, versions, functions


def make(soname, functions, folder):
    """Makes a library with the name `soname` and empty functions. functions: [(name, version or "")]."""
    by_version = defaultdict(list)
    for name, version in functions:
        by_version[version].append(name)
    with tempfile.TemporaryDirectory() as work:
        with open(f"{work}/all.c", "w") as text:
            text.writelines(f"void {name}(void) {{}}\n" for name, _ in functions)
        with open(f"{work}/all.map", "w") as text:
            for version, names in by_version.items():
                if version:
                    text.write(f"{version} {{ global: {' '.join(f'{name};' for name in names)} }};\n")
        command = ["c++", "-x", "c", "-shared", "-fPIC", "-w", "-fno-builtin", f"-Wl,-soname,{soname}"]
        if any(by_version):
            command.append(f"-Wl,--version-script,{work}/all.map")
        subprocess.run([*command, f"{work}/all.c", "-o", f"{folder}/{soname}"], check=True)


def main(site):
    folder = f"{site}/torch/lib"
    present = set(os.listdir(folder))
    for _, _, files in os.walk(f"{site}/nvidia"):
        present.update(files)
    missing, owner, wanted = set(), {}, set()
    for file in sorted(os.listdir(folder)):
        if ".so" in file and file not in LOADED_LATER:
            needed, versions, functions = imports_of(f"{folder}/{file}")
            missing.update(name for name in needed if CUDA.match(name) and name not in present)
            owner.update(versions)
            wanted.update(functions)
    for soname in sorted(missing):
        prefix = re.match(r"lib([a-zA-Z]+)", soname)[1]  # functions without a version go to the library of their prefix
        own = {(n, v) for n, v in wanted if owner.get(v) == soname or not v and n.startswith(prefix)}
        make(soname, sorted(own), folder)


if __name__ == "__main__":
    main(sys.argv[1])
