"""One script, three forms: cells, a page in Markdown, and a notebook."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import nbformat

MARK = re.compile(r"^# %%( \[markdown\])?\n", re.MULTILINE)


class Cell(NamedTuple):
    """A cell of a script."""

    is_code: bool
    text: str
    """Code as it stands in the script, or Markdown."""


def cells_of(script: str) -> tuple[Cell, ...]:
    """The cells of a script; what stands before the first, its docstring, is none."""
    _, *parts = MARK.split(script)
    pairs = zip(parts[::2], parts[1::2], strict=True)
    return tuple(Cell(kind is None, body.strip("\n") if kind is None else _prose(body)) for kind, body in pairs)


def _prose(body: str) -> str:
    return re.sub(r"^# ?", "", body, flags=re.MULTILINE).strip("\n")


def checksum(cells: Sequence[Cell]) -> str:
    """A checksum of the code, which shows whether what was printed is of this code."""
    code = "\n\n".join(cell.text for cell in cells if cell.is_code)
    return hashlib.sha256(code.encode()).hexdigest()


def page(name: str, cells: Sequence[Cell], printed: Mapping[str, str]) -> str:
    """The tutorial as a page; `printed` has what cells printed, by their number."""
    parts = []
    for number, cell in enumerate(cells):
        parts.append(f"```python\n{cell.text}\n```" if cell.is_code else cell.text)
        if shown := printed.get(str(number)):
            parts.append(f"```text\n{shown.rstrip()}\n```")
    source = f"../../examples/tutorials/{name}"
    parts.append(
        f"*This page is a program, [{name}.py]({source}.py), and a [notebook]({source}.ipynb). What it shows "
        f"was printed by one run: `python -m benchmarks.tutorials {name}`.*"
    )
    return "\n\n".join(parts) + "\n"


def notebook(cells: Sequence[Cell]) -> str:
    """The tutorial as a notebook, with nothing printed yet."""
    new = {True: nbformat.v4.new_code_cell, False: nbformat.v4.new_markdown_cell}
    made = [new[cell.is_code](cell.text, id=f"cell-{number}") for number, cell in enumerate(cells)]
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    whole = nbformat.v4.new_notebook(cells=made, metadata=kernel)
    nbformat.validate(whole)
    return f"{nbformat.writes(whole)}\n"
