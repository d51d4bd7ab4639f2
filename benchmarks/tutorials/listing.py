"""The tables of docs/examples.md: every program under examples/, by the first sentence of its docstring."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from benchmarks.tutorials.cells import cells_of


def parts(examples: Path) -> dict[str, Callable[[], str]]:
    """The tables by the names of their comments."""
    programs, tutorials = sorted(examples.glob("*.py")), sorted((examples / "tutorials").glob("*.py"))
    return {"programs": lambda: _programs(programs), "tutorials": lambda: _tutorials(tutorials)}


def sentence(script: str) -> str:
    """The first sentence of a program's docstring."""
    first = (ast.get_docstring(ast.parse(script)) or "").partition("\n\n")[0]
    return " ".join(first.split()).removesuffix(".")


def needs(script: str) -> str:
    """What a program says that it needs beside the library: "(needs …)", or a line with `pip install`."""
    about = ast.get_docstring(ast.parse(script)) or ""
    match = re.search(
        r"\(needs (?:pip install )?(.+?)\)$|^ +pip install (?:-\S+ |\S+\.txt )*(.+)$", about, re.MULTILINE
    )
    return "" if match is None else (match[1] or match[2]).replace("'", "")


def _programs(paths: Iterable[Path]) -> str:
    rows = ["| program | what it shows |", "| --- | --- |"]
    for path in paths:
        script = path.read_text("utf-8")
        rows.append(f"| [{path.name}](../examples/{path.name}) | {sentence(script)}{_needed(script)} |")
    return "\n".join(rows)


def _tutorials(paths: Iterable[Path]) -> str:
    rows = ["| tutorial | what it shows |", "| --- | --- |"]
    for path in paths:
        script, source = path.read_text("utf-8"), f"../examples/tutorials/{path.stem}"
        title = cells_of(script)[0].text.partition("\n")[0].removeprefix("# ")
        links = f"[{title}](tutorials/{path.stem}.md) ([program]({source}.py), [notebook]({source}.ipynb))"
        rows.append(f"| {links} | {sentence(script).rpartition(': ')[2]}{_needed(script)} |")
    return "\n".join(rows)


def _needed(script: str) -> str:
    return f"; needs {packages}" if (packages := needs(script)) else ""
