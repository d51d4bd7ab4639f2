"""The matrix as a record, and the tables of `docs/models.md` that are made of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from torch import nn

from halrp.lab.report.documents import filled
from tests.conformance.learned import CASES, Case, learned
from tests.conformance.models import FAMILIES, Family
from tests.conformance.refused import REFUSED

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "models.md"
RECORD = ROOT / "results" / "conformance" / "matrix.json"
LIBRARIES = ("torch", *sorted({family.library for family in FAMILIES.values() if family.library}))


def measured() -> dict[str, Any]:
    """Learn every case and try every refused model: why mixed batches are not one pass, and the error messages."""
    return {
        "versions": {library: version(library) for library in LIBRARIES},
        "mixed": {str(case): learned(case).reason for case in CASES},
        "refused": {title: refused.message() for title, refused in REFUSED.items()},
    }


def record() -> dict[str, Any]:
    """The committed record."""
    content: dict[str, Any] = json.loads(RECORD.read_text("utf-8"))
    return content


def is_comparable(case: Case) -> bool:
    """Whether the record was made with the versions that are installed: others may trace differently."""
    versions = record()["versions"]
    return all(version(library) == versions[library] for library in ("torch", case.family.library) if library)


def parts() -> dict[str, Callable[[], str]]:
    """What makes each generated part."""
    return {"models": models, "refused": refused}


def models() -> str:
    """A row for each family."""
    header = ("model", "from", "inputs", "head", "objectives", "a batch of several tasks")
    rows = [
        (
            family.title,
            family.library or "plain torch",
            family.inputs,
            _head(family),
            ", ".join(family.objectives),
            _mixed(name, family),
        )
        for name, family in FAMILIES.items()
    ]
    return _table(header, rows)


def _head(family: Family) -> str:
    head, output = family.settings.get("head"), family.settings.get("output")
    if isinstance(head, nn.Linear):
        shown = f"`nn.Linear({head.in_features}, …)` on top"
    else:
        shown = "the last layer" if head is None else f"`{head!r}`"
    if output is None:
        return shown
    return f"{shown}, `output={output.__name__ if callable(output) else repr(output)}`"


def _mixed(name: str, family: Family) -> str:
    reasons = dict.fromkeys(record()["mixed"][str(Case(name, objective))] for objective in family.objectives)
    return "; ".join("task by task: " + reason if reason else "one pass" for reason in reasons)


def refused() -> str:
    """A row for each model that is refused."""
    return _table(("what is wrong", "what the library says"), list(record()["refused"].items()))


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write() -> None:
    """Make the record and fill the document."""
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    RECORD.write_text(json.dumps(measured(), indent=1) + "\n", "utf-8")
    DOCUMENT.write_text(filled(DOCUMENT.read_text("utf-8"), parts()), "utf-8")
