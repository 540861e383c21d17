"""Writes the type stub of the package: copies rapt.pyi.in and adds rapt.sdpa, which it makes from the table of the
compiled module.

Usage: python3 stub.py FILE, with the built package on PYTHONPATH. The build calls it (cmake/RaptPython.cmake).
"""

import pathlib
import sys

from rapt import _signature

PLACE = "# sdpa: stub.py writes it here"
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
    by_hand = {name: row.stub for name, row in _signature.BY_HAND.items()}
    return {**forms, **of_rows, **{name: "bool" for name, _ in _signature.FLAGS}, **by_hand}


def overload(result, required=(), **narrowed):
    """The text of one overload. Parameters in `required` have no default."""
    lines = ["@overload", "def sdpa(", *(f"    {name}: Array," for name in "qkv"), "    *,"]
    for name, kind in types().items():
        default = _signature.DEFAULTS[name]
        value = f'"{default}"' if isinstance(default, str) else repr(default)
        end = "," if name in required else f" = {value},"
        lines.append(f"    {name}: {narrowed.get(name, kind)}{end}")
    return "\n".join([*lines, f") -> {result}: ...", ""])


def text():
    """Four overloads. Without lse and partial the result is out. With lse=True or partial=True it is (out, lse).

    If lse or partial is a variable, the type checker cannot know its value, so the result is either of the two types.
    """
    return (
        overload("Array", lse="Literal[False]", partial="Literal[False]")
        + overload("tuple[Array, Array]", required=("lse",), lse="Literal[True] | Array")
        + overload("tuple[Array, Array]", required=("partial",), partial="Literal[True]")
        + overload("Array | tuple[Array, Array]")
    )


if __name__ == "__main__":
    before, after = pathlib.Path(__file__).with_name("rapt.pyi.in").read_text().split(f"{PLACE}\n")
    pathlib.Path(sys.argv[1]).write_text(before + text() + after)
