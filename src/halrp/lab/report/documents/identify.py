"""Tables of how well the task of a row is found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from halrp.lab.report.documents.cells import grouped_digits, markdown
from halrp.lab.report.documents.speed import rows_in
from halrp.lab.report.table import Column

ROWS = (1, 4, 8)


def identify_table(path: Path) -> str:
    """Task prediction and accuracies, a row for each stream and method."""
    columns = (
        Column("stream", "stream"),
        Column("method", "method"),
        Column("bytes", "bytes a task", format=grouped_digits),
        *(Column(f"task {n}", f"task, {n} row{'s' * (n > 1)} (%)", 1) for n in ROWS),
        Column("top 3", "task among 3 (%)", 1),
        Column("within", "class, task given (%)", 1),
        Column("all classes", "class, task found (%)", 1),
    )
    return markdown(columns, rows_in(path))


def unknown_table(path: Path) -> str:
    """How often the answer is that a row is of no task."""
    columns = (
        Column("stream", "stream"),
        Column("no task, known", "rows of known tasks (%)", 1),
        Column("no task, left out", "rows of a task that is left out (%)", 1),
    )
    return markdown(columns, [row for row in rows_in(path) if "no task, known" in row])


def shapes_table(path: Path) -> str:
    """What was tried on held-out training data, for each stream."""
    rows: list[dict[str, Any]] = []
    for stream in json.loads(path.read_text("utf-8"))["choices"]:
        for tried in stream["shapes"]:
            chosen = all(tried[key] == stream["chosen"][key] for key in ("width", "directions"))
            rows.append({"stream": stream["stream"], **tried, "is chosen": "chosen" if chosen else ""})
    columns = (
        Column("stream", "stream"),
        Column("width", "width"),
        Column("directions", "directions"),
        Column("bytes", "bytes", format=grouped_digits),
        Column("task 1", "task, 1 row (%)", 1),
        Column("is chosen", ""),
    )
    return markdown(columns, rows)


def worths_table(path: Path) -> str:
    """The task of one row on held-out training data, by how much outputs of the best few tasks count."""
    streams = json.loads(path.read_text("utf-8"))["choices"]
    columns = (Column("stream", "stream"), *(Column(worth, worth, 1) for worth in streams[0]["worths"]))
    return markdown(columns, [{"stream": stream["stream"], **stream["worths"]} for stream in streams])
