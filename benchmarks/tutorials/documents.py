"""Everything that is made from the scripts and the record: pages, notebooks, figures, and the list of examples."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.tutorials import listing
from benchmarks.tutorials.cells import Cell, cells_of, notebook, page
from benchmarks.tutorials.figures import drawn
from halrp.lab.report.documents import filled

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "results" / "benchmarks" / "tutorials.json"
EXAMPLES, DOCS = ROOT / "examples", ROOT / "docs"
SCRIPTS = EXAMPLES / "tutorials"


def names() -> list[str]:
    """Every tutorial."""
    return sorted(path.stem for path in SCRIPTS.glob("*.py"))


def cells(name: str) -> tuple[Cell, ...]:
    """The cells of a tutorial."""
    return cells_of((SCRIPTS / f"{name}.py").read_text("utf-8"))


def documents(record: Mapping[str, Any]) -> dict[Path, str]:
    """By path, what every file should hold."""
    made = {}
    for name, entry in record.items():
        made[DOCS / "tutorials" / f"{name}.md"] = page(name, cells(name), entry["printed"])
        made[SCRIPTS / f"{name}.ipynb"] = notebook(cells(name))
    for name, drawing in drawn({name: entry["figure"] for name, entry in record.items()}).items():
        made[DOCS / "figures" / name] = drawing
    overview = DOCS / "examples.md"
    made[overview] = filled(overview.read_text("utf-8"), listing.parts(EXAMPLES))
    return made
