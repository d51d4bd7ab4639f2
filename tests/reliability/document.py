"""`python -m tests.reliability.document`: write the counts in `docs/reliability.md` from `results/reliability`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from halrp.lab.report.documents import filled

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "reliability.md"
RECORDS = ROOT / "results" / "reliability"


def parts() -> dict[str, Callable[[], str]]:
    """What makes each generated part."""
    return {"faults": faults, "changed-files": changed_files, "mutants": mutants, "repetitions": repetitions}


def record(name: str) -> dict[str, Any]:
    """A committed record."""
    content: dict[str, Any] = json.loads((RECORDS / f"{name}.json").read_text("utf-8"))
    return content


def faults() -> str:
    """A row for each operation: what was done to it."""
    run = record("faults")
    rows = [
        (
            name,
            kills["steps"],
            kills["kills"],
            run["full disk"][name]["faults"],
            run["full disk"][name]["refused"],
            run["power loss"][name]["states"],
        )
        for name, kills in run["kills"].items()
    ]
    header = ("operation", "steps", "kills", "full disk", "of these refused", "power cuts")
    return _table(header, [*rows, ("**all**", *(sum(column) for column in list(zip(*rows, strict=True))[1:]))])


def changed_files() -> str:
    """A row for each kind of file: what became of the changed ones."""
    kinds = record("faults")["changed files"]
    names = ("mutants", "refused", "set_aside", "same", "sound")
    rows = [(name, *(counts[column] for column in names)) for name, counts in kinds.items()]
    header = ("file", "changed files", "refused", "set aside", "same value", "sound")
    return _table(header, [*rows, ("**all**", *(sum(column) for column in list(zip(*rows, strict=True))[1:]))])


def mutants() -> str:
    """A row for each module: mutants that the tests near it killed, before and after tests were added."""
    run = record("mutation")
    rows = [
        (f"`{module}`", *_survivors(run["before"].get(module)), *_survivors(run["after"].get(module)))
        for module in {**run["before"], **run["after"]}
    ]
    once = ("mutants", "alive", "not equivalent")
    return _table(("module", *(f"{name} {when}" for when in ("before", "after") for name in once)), rows)


def repetitions() -> str:
    """A row for each set of tests, without and with load: how often it ran, and what failed."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for run in record("repeat")["runs"]:
        groups.setdefault((run["marked"], run["kind"]), []).append(run)
    rows = [
        (
            f"`{marked}`",
            {"idle": "as it is", "load": "under load"}[kind],
            len(runs),
            runs[-1]["tests"],
            sum(bool(run["failed"]) for run in runs),
            next((at for at, run in enumerate(reversed(runs)) if run["failed"]), len(runs)),
            _range([run["load"] for run in runs]),
            _range([run["seconds"] for run in runs]),
        )
        for (marked, kind), runs in sorted(groups.items())
    ]
    header = (
        "tests",
        "machine",
        "runs",
        "tests in the last",
        "runs with a failure",
        "runs since",
        "load average",
        "seconds",
    )
    return _table(header, rows)


def _range(values: Sequence[float]) -> str:
    return f"{min(values):g} – {max(values):g}"


def _survivors(result: dict[str, Any] | None) -> tuple[int | str, ...]:
    if result is None:
        return "–", "–", "–"
    return result["mutants"], len(result["alive"]), sum(not mutant.get("equivalent") for mutant in result["alive"])


def _table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [header, ["---", *("---:" for _ in header[1:])]]
    lines += [[f"{value:,}" if isinstance(value, int) else str(value) for value in row] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    DOCUMENT.write_text(filled(DOCUMENT.read_text("utf-8"), parts()), "utf-8")
