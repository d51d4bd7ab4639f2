"""Cells: what a run records, and that the same cell gives the same record."""

import json
from pathlib import Path
from typing import Any

import pytest

from halrp.lab import cells, demo

CELL = cells.Cell(
    "halrp-budget",
    "digits",
    "digits-net",
    settings={"parameters_per_task": 4000},
    recipe={"epochs": 2, "batch": 32},
    tasks=3,
)


def without_seconds(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def test_a_row_holds_the_accuracy_of_every_task_seen_so_far_and_what_is_stored() -> None:
    rows = list(cells.run(CELL))
    assert [len(row["test"]) for row in rows] == [1, 2, 3]
    assert all(0 <= share <= 1 for row in rows for share in row["test"])
    assert rows[0]["ranks"] == {}
    assert set(rows[1]["ranks"]) <= {"conv1.weight", "conv2.weight", "linear.weight"}
    added = rows[2]["parameters"] - rows[1]["parameters"]
    assert added == rows[2]["delta_parameters"] <= 4000
    assert rows[2]["test"][:2] == rows[1]["test"], "a committed task never changes"


def test_the_same_cell_gives_the_same_rows_times_aside() -> None:
    assert without_seconds(list(cells.run(CELL))) == without_seconds(list(cells.run(CELL)))


def test_a_record_is_written_whole_under_a_name_that_any_change_of_the_cell_changes(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"position": 0, "test": [0.5]}]
    path = cells.write(tmp_path, CELL, rows)
    assert path.name == f"{CELL.name}.json"
    assert json.loads(path.read_text())["rows"] == rows
    assert [p.name for p in tmp_path.iterdir()] == [path.name], "no temporary file is left"
    other = cells.Cell(CELL.method, CELL.stream, CELL.backbone, settings={"parameters_per_task": 4001})
    assert other.name != CELL.name


def test_a_record_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        cells.write(tmp_path, CELL, [{"position": object()}])
    assert list(tmp_path.iterdir()) == []


def test_the_demo_ends_with_a_table_of_all_four_methods_and_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "demo.html"
    demo.main(["--tasks", "2", "--epochs", "2", "--page", str(page), "--results", str(tmp_path / "records")])
    printed = capsys.readouterr().out
    for words in ("average", "forgetting", "bytes per", "seconds", "By budget:"):
        assert words in printed
    assert "HALRP" in page.read_text()
    assert len(list((tmp_path / "records").glob("*.json"))) == 4
