#!/usr/bin/env python3
"""Runs the examples of the documentation: every ```sh block, and every ```c and ```cpp block that has a main().

Called by .ci/run as run_readme.py BUILD_TREE FILE... Each sh block runs in its own shell at the root of the source
tree. Each program is compiled with librapt.so of BUILD_TREE and run. If the line `<!-- not run: reason -->` is directly
before a block, the block is skipped and the reason is printed. The line `<!-- exit code N: reason -->` means that the
block must end with exit code N. If the line `<!-- the output has these lines -->` and a text block follow a sh block,
each line of the text block must be in the output; "..." stands for any text. Commands that are steps of .ci/run
(OWN_STEPS) are skipped, too. Exits with 1 if anything failed.
"""

import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
BLOCK = re.compile(
    r"(?:<!-- not run: (?P<reason>[^\n]*?) -->\n+|<!-- exit code (?P<code>\d+): [^\n]*? -->\n+)?"
    r"^```(?P<language>sh|c|cpp)\n(?P<text>.*?)^```$"
    r"(?:\n+<!-- the output has these lines -->\n+```text\n(?P<expected>.*?)^```$)?",
    re.M | re.S,
)
OWN_STEPS = {"make test", ".ci/run"}
COMPILERS = {"c": ["cc", "-std=c99"], "cpp": ["c++", "-std=c++20"]}


def missing_lines(expected, output):
    """The lines of `expected` that no line of the output has; "..." stands for anything."""
    for line in (expected or "").splitlines():
        pattern = ".*".join(re.escape(part.strip()) for part in line.strip().split("..."))
        if not any(re.search(pattern, one) for one in output.splitlines()):
            yield line


def shell(text, log, code=0):
    kept = "\n".join(line for line in text.splitlines() if line.split("#")[0].strip() not in OWN_STEPS)
    return (
        subprocess.run(
            ["bash", "-euo", "pipefail", "-c", kept], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        ).returncode
        == code
    )


def program(language, text, tree, folder, log):
    source, binary = folder / f"snippet.{language}", folder / "snippet"
    source.write_text(text, encoding="utf-8")
    compile_command = [
        *COMPILERS[language],
        "-Wall",
        "-Wextra",
        "-Werror",
        f"-I{ROOT}/include",
        str(source),
        "-o",
        str(binary),
        f"-L{tree}",
        f"-Wl,-rpath,{tree}",
        "-lrapt",
        "-lm",
    ]
    return (
        subprocess.run(compile_command, stdout=log, stderr=log).returncode == 0
        and subprocess.run([str(binary)], cwd=folder, stdout=log, stderr=log).returncode == 0
    )


def run_block(match, tree, folder):
    """Returns (passed, output). passed is None if the block was skipped."""
    language, text = match["language"], match["text"]
    if match["reason"] or (language != "sh" and "main(" not in text):
        return None, match["reason"] or "a fragment without main()"
    with tempfile.TemporaryFile("w+") as log:
        code = int(match["code"] or 0)
        passed = shell(text, log, code) if language == "sh" else program(language, text, tree, folder, log)
        log.seek(0)
        output = log.read()
        missing = list(missing_lines(match["expected"], output)) if passed else []
        return passed and not missing, output + "".join(f"not in the output: {line}\n" for line in missing)


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
