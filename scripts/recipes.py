#!/usr/bin/env python3
"""Tests the recipes of CONTRIBUTING.md ("How to add ..."). Each recipe has an example, tests/recipes/NAME.patch.

    recipes.py check            checks that the examples apply, and touch only files that their recipe names (seconds)
    recipes.py run [NAME ...]   applies, builds and runs each example in a clone of HEAD (minutes each)

A patch begins with three kinds of lines: "recipe: WORDS" (words of the recipe's heading), "files: N" (the maximum
number of existing files that it may change, without lists of cases) and "run: COMMAND" (each command must exit with 0).
Exits with 1 if a recipe fails, with 2 for wrong arguments.
"""

import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = ROOT / "tests/recipes"


class Recipe:
    def __init__(self, path):
        self.path, self.name = path, path.stem
        text = path.read_text(encoding="utf-8")
        head = text.split("\ndiff --git ", 1)[0].splitlines()
        values = [line.split(": ", 1) for line in head if ": " in line]
        self.words = next(value for key, value in values if key == "recipe")
        self.most_files = int(next(value for key, value in values if key == "files"))
        self.commands = [value for key, value in values if key == "run"]
        self.changed = re.findall(r"^diff --git a/(\S+) b/\S+\nindex ", text, re.M)
        self.created = re.findall(r"^diff --git a/(\S+) b/\S+\nnew file ", text, re.M)

    def paragraph(self):
        """The paragraphs of CONTRIBUTING.md from "**... WORDS" to the next recipe."""
        text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
        start = text.find(f"**... {self.words}")
        return "" if start < 0 else text[start:].split("\n\n**... ", 1)[0]

    def faults(self):
        named = re.findall(r"`([^`\s]+)`", self.paragraph())
        if not named:
            yield f'CONTRIBUTING.md has no recipe "... {self.words}" that names files'
        for file in self.changed + self.created:
            if not any(pathlib.PurePath(file).match(pattern(name)) for name in named):
                yield f'{file}: not named in the recipe "... {self.words}"'
        counted = [file for file in self.changed if not file.startswith("check/cases/")]
        if len(counted) > self.most_files:
            yield f"changes {len(counted)} files: must be at most {self.most_files}"
        if not self.changed + self.created:
            return
        applied = subprocess.run(["git", "apply", "--check", self.path], cwd=ROOT, capture_output=True, text=True)
        if applied.returncode != 0:
            yield "no longer applies: " + applied.stderr.strip()


def pattern(name):
    """The pattern for a name in a recipe. `src/kernels/NAME/` matches all files of such a folder, and
    `src/cpu/isa_NAME.cpp` matches such a file.
    """
    name = name.replace("NAME", "*")
    return name + "*" if name.endswith("/") else name


def run(recipe):
    with tempfile.TemporaryDirectory() as folder:
        changes = [f"git apply {recipe.path}"] if recipe.changed + recipe.created else []
        commands = [f"git clone -q {ROOT} .", *changes, *recipe.commands]
        for command in commands:
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", command],
                cwd=folder,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            if done.returncode != 0:
                yield f"{command}\nended with {done.returncode}:\n{done.stdout[-4000:]}"
                return


def main(words):
    if not words or words[0] not in ("check", "run"):
        print(__doc__, file=sys.stderr)
        return 2
    recipes = {path.stem: Recipe(path) for path in sorted(FOLDER.glob("*.patch"))}
    for name in words[1:]:
        if name not in recipes:
            print(f"NAME {name}: must be one of {', '.join(recipes)}", file=sys.stderr)
            return 2
    recipes = [recipes[name] for name in words[1:] or recipes]
    failed = 0
    for recipe in recipes:
        faults = list(recipe.faults() if words[0] == "check" else run(recipe))
        failed += bool(faults)
        print(
            f"{recipe.name}: {'FAILED' if faults else 'passed'}; {len(recipe.changed)} files changed, "
            f"{len(recipe.created)} new"
        )
        for fault in faults:
            print("  " + fault)
    print(f"{len(recipes) - failed} recipes passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
