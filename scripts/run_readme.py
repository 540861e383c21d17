#!/usr/bin/env python3
"""Runs what the documentation shows: every ```sh block, and every ```c and ```cpp block that has a main().

Called by .ci/run as run_readme.py BUILD_TREE FILE...; each sh block runs in a shell of its own at the root of the checkout, each program is
compiled against librapt.so of BUILD_TREE and run. The line `<!-- not run: reason -->` right before a block leaves it out
and is printed; commands that .ci/run runs as steps of their own (OWN_STEPS) are left out too. Exits 1 at any failure.
"""
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"(?:<!-- not run: (?P<reason>.*?) -->\n+)?^```(?P<language>sh|c|cpp)\n(?P<text>.*?)^```$", re.M | re.S)
OWN_STEPS = {"make test", ".ci/run"}
COMPILERS = {"c": ["cc", "-std=c99"], "cpp": ["c++", "-std=c++20"]}


def shell(text, log):
    kept = "\n".join(line for line in text.splitlines() if line.split("#")[0].strip() not in OWN_STEPS)
    return subprocess.run(["bash", "-euo", "pipefail", "-c", kept], cwd=ROOT, stdin=subprocess.DEVNULL,
                          stdout=log, stderr=log).returncode == 0


def program(language, text, tree, folder, log):
    source, binary = folder / f"snippet.{language}", folder / "snippet"
    source.write_text(text, encoding="utf-8")
    compile_command = [*COMPILERS[language], "-Wall", "-Wextra", "-Werror", f"-I{ROOT}/include", str(source), "-o",
                       str(binary), f"-L{tree}", f"-Wl,-rpath,{tree}", "-lrapt", "-lm"]
    return (subprocess.run(compile_command, stdout=log, stderr=log).returncode == 0
            and subprocess.run([str(binary)], cwd=folder, stdout=log, stderr=log).returncode == 0)


def run_block(match, tree, folder):
    """True or False as the block passed, None when it is left out; and what it printed."""
    language, text = match["language"], match["text"]
    if match["reason"] or (language != "sh" and "main(" not in text):
        return None, match["reason"] or "a fragment without main()"
    with tempfile.TemporaryFile("w+") as log:
        passed = shell(text, log) if language == "sh" else program(language, text, tree, folder, log)
        log.seek(0)
        return passed, log.read()


def main(tree, files):
    tree = pathlib.Path(tree).resolve()
    counts = {True: 0, False: 0, None: 0}
    for name in files:
        document = (ROOT / name).read_text(encoding="utf-8")
        for match in BLOCK.finditer(document):
            line = document[: match.start("language")].count("\n") + 1
            with tempfile.TemporaryDirectory() as folder:
                passed, output = run_block(match, tree, pathlib.Path(folder))
            counts[passed] += 1
            word = {True: "passed", False: "FAILED", None: "left out: " + output}[passed]
            print(f"{name}:{line} ({match['language']}) {word}")
            if passed is False:
                print(match["text"] + output)
    print(f"{counts[True]} blocks passed, {counts[False]} failed, {counts[None]} left out")
    return 1 if counts[False] or not counts[True] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
