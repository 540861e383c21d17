"""rapt.sdpa in the type stub, generated from the table of the compiled module; test_examples.py compares.

python3 tests/python/stub.py FILE rewrites it in that __init__.pyi.
"""

import pathlib
import re
import sys

from rapt import _signature

NUMBERS = {"real": "float", "integer": "int"}


def types():
    """{parameter: its type} of every option."""
    forms = {name: [] for name in _signature.DEFAULTS}
    for _, parameter, kind, _, words in _signature.SCALARS:
        if parameter in forms:
            literals = ", ".join(f'"{word}"' for word in words or ())
            granularity = parameter.endswith("_scales")
            forms[parameter].append(NUMBERS.get(kind) or ("Granularity" if granularity else f"Literal[{literals}]"))
    for parameter in _signature.PARAMETER_OF.values():
        forms[parameter].append("Array")
    of_rows = {name: " | ".join([*form, "None"]) for name, form in forms.items() if form}
    by_hand = {name: kind for name, (_, kind) in _signature.BY_HAND.items()}
    return {**forms, **of_rows, **{name: "bool" for name, _ in _signature.FLAGS}, **by_hand}


def overload(result, **narrowed):
    lines = ["@overload", "def sdpa(", *(f"    {name}: Array," for name in "qkv"), "    *,"]
    for name, kind in types().items():
        default = _signature.DEFAULTS[name]
        value = f'"{default}"' if isinstance(default, str) else repr(default)
        lines.append(f"    {name}: {narrowed.get(name, kind)} = {value},")
    return "\n".join([*lines, f") -> {result}: ...", ""])


def text():
    """Both overloads: out alone, and (out, lse)."""
    without = {"lse": "Literal[False]", "partial": "Literal[False]"}
    return overload("Array", **without) + overload("tuple[Array, Array]")


SDPA = re.compile(
    r"@overload\ndef sdpa\(.*?\n\) -> Array: \.\.\.\n@overload\ndef sdpa\(.*?\n\) -> tuple\S* \S*: \.\.\.\n", re.S
)


if __name__ == "__main__":
    file = pathlib.Path(sys.argv[1])
    file.write_text(SDPA.sub(lambda _: text(), file.read_text(), count=1))
