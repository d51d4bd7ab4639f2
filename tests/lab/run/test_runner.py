"""Runs: what a record holds, that the same cell gives the same record, and that a killed run goes on."""

import errno
import gc
import json
import weakref
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from halrp.errors import DamagedError, LockedError, WriteError
from halrp.lab import demo, streams
from halrp.lab.methods import Method
from halrp.lab.records import schema
from halrp.lab.run import runner, state, sweep
from halrp.lab.run.cell import Cell
from halrp.lab.streams import Split, Task
from halrp.store import atomic
from halrp.training.progress import Progress
from tests.helpers import one_thread
from tests.lab.page_content import page_content
from tests.lab.run.tiny_cells import FINETUNE

ROOT = Path(__file__).parents[3]
SHORT: dict[str, Any] = {"recipe": {"epochs": 2, "batch": 32}, "tasks": 3}
CELL = Cell("halrp-budget", "digits", "digits-net", settings={"parameters_per_task": 4000}, **SHORT)


def test_a_row_holds_the_accuracy_of_every_task_seen_so_far_and_what_it_cost() -> None:
    rows = list(runner.run(CELL))
    assert [len(row["test"]) for row in rows] == [len(row["val"]) for row in rows] == [1, 2, 3]
    assert all(0 <= share <= 1 for row in rows for share in row["test"] + row["val"])
    assert rows[0]["ranks"] == {}
    assert set(rows[1]["ranks"]) <= {"conv1.weight", "conv2.weight", "linear.weight"}
    assert rows[2]["parameters"] - rows[1]["parameters"] <= 4000
    assert rows[2]["test"][:2] == rows[1]["test"], "a committed task never changes"
    assert set(rows[0]["stages"]) == {"base"}
    assert "warm-up" in rows[1]["stages"]
    assert 0 < sum(rows[1]["stages"].values()) <= rows[1]["seconds"] + 0.001 * len(rows[1]["stages"]), "all are rounded"
    assert rows[1]["peak_bytes"] > 10**7


def test_what_a_run_holds_does_not_grow_with_the_pictures_of_its_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[Tensor]] = []
    make = streams.Stream.__getitem__

    def noted(stream: streams.Stream, position: int | slice) -> Any:
        result: Any = make(stream, position)
        if isinstance(position, int):
            made.extend(weakref.ref(split.x) for split in (result.train, result.val, result.test))
        return result

    monkeypatch.setattr(streams.Stream, "__getitem__", noted)
    monkeypatch.setattr(runner.CachedAccuracy, "ROWS", 4)
    for row in runner.run(Cell("be", "digits", "digits-net", **SHORT)):
        gc.collect()
        alive = sum(pictures() is not None for pictures in made)
        assert alive == 3, f"those of the task just learned, at position {row['position']}"
    assert len(made) == 3 * 3, "each task is made once"


def test_a_joint_method_has_accuracies_only_when_all_tasks_have_come() -> None:
    rows = list(runner.run(Cell("mtl", "digits", "digits-net", **SHORT)))
    assert [row["test"] for row in rows[:2]] == [[None], [None, None]]
    assert all(share is not None for share in rows[2]["test"])
    assert "parameters" not in rows[0]


@pytest.mark.parametrize("method", ["halrp-budget", "stl", "ewc", "be"])
def test_a_run_that_is_interrupted_again_and_again_ends_with_the_record_of_one_that_was_not(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("halrp.lab.methods.network.CHECKPOINT_EVERY", 0.0)
    settings = {"parameters_per_task": 4000} if method == "halrp-budget" else {}
    cell = Cell(method, "digits", "digits-net", settings=settings, **SHORT)
    whole = runner.execute(cell, tmp_path / "whole")
    events = 0

    def interrupt(after: int) -> Any:
        seen = 0

        def notify(event: Progress) -> None:
            nonlocal seen
            seen += event.loss is not None  # an epoch has ended; on a busy machine there are reports in between
            if seen > after:
                raise KeyboardInterrupt

        return notify

    while True:
        events += 1
        try:
            result = runner.execute(cell, tmp_path / "cut", progress=interrupt(1))
            break
        except KeyboardInterrupt:
            assert events < 40, "it makes no progress"
    assert events > 3
    assert runner.without_times(result) == runner.without_times(whole)
    assert [path.name for path in (tmp_path / "cut").iterdir()] == [f"{cell.name}.json"], "nothing else is left"


def test_a_finished_cell_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = Cell("be", "digits", "digits-net", **(SHORT | {"tasks": 1}))
    first = runner.execute(cell, tmp_path)
    monkeypatch.setattr(runner, "run", lambda *a, **k: pytest.fail("it ran"))
    assert runner.execute(cell, tmp_path) == json.loads(json.dumps(first))


def test_a_cell_that_another_process_runs_is_not_run_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = Cell("be", "digits", "digits-net", **(SHORT | {"tasks": 1}))
    monkeypatch.setattr(state, "WAIT", 0.0)
    with (
        atomic.locked(runner.RunState(tmp_path, cell).work),
        pytest.raises(LockedError, match=f"{cell.name}.*wait for it"),
    ):
        runner.execute(cell, tmp_path)
    assert runner.execute(cell, tmp_path)["rows"], "the lock goes with its holder"
    assert [path.name for path in tmp_path.iterdir()] == [f"{cell.name}.json"]


def test_a_record_says_where_it_was_made_and_can_be_read_back(tmp_path: Path) -> None:
    cell = Cell("be", "digits", "digits-net", **(SHORT | {"tasks": 1}))
    result = runner.execute(cell, tmp_path)
    assert runner.read(tmp_path / f"{cell.name}.json") == json.loads(json.dumps(result))
    assert {"halrp", "torch", "numpy", "python", "threads", "commit"} <= result["environment"].keys()
    assert result["cell"] == cell.canonical()


def test_a_record_of_another_run_under_a_cells_name_is_refused(tmp_path: Path) -> None:
    tiny: dict[str, Any] = SHORT | {"tasks": 1}
    cell, other = Cell("be", "digits", "digits-net", **tiny), Cell("be", "digits", "digits-net", seed=1, **tiny)
    target = runner.write(tmp_path, runner.execute(cell, tmp_path / "own"))
    assert sweep.finished(cell, tmp_path)
    record = runner.execute(other, tmp_path / "other")
    for content, reason in (
        (record, "the record of another cell"),
        (schema.seal(record | {"cell": record["cell"] | {"method": "stl"}, "resolved": None}), "of another cell"),
        (schema.seal(record | {"cell": cell.canonical()}), "its cell names seed 0, its resolved values 1"),
    ):
        target.write_bytes(runner.serialise(content))
        for use in (runner.execute, sweep.finished):
            with pytest.raises(DamagedError, match=reason):
                use(cell, tmp_path)
        assert target.read_bytes() == runner.serialise(content), "it is left as it was"


def test_a_record_whose_values_were_resolved_otherwise_is_not_taken_for_the_cells(tmp_path: Path) -> None:
    cell = Cell("be", "digits", "digits-net", **(SHORT | {"tasks": 1}))
    record = runner.execute(cell, tmp_path / "own")
    recipe = record["resolved"]["recipe"]
    older = {name: value for name, value in recipe.items() if name != "decay"}
    runner.write(tmp_path, schema.seal(record | {"resolved": record["resolved"] | {"recipe": older}}))
    assert sweep.finished(cell, tmp_path), "a setting that the record lacks is newer than the record"
    runner.write(tmp_path, schema.seal(record | {"resolved": record["resolved"] | {"recipe": recipe | {"lr": 7.0}}}))
    with pytest.raises(DamagedError, match=r"a run with recipe\.lr=7\.0, where .* has 0\.001; move it away"):
        sweep.finished(cell, tmp_path)


def test_every_committed_record_is_that_of_the_cell_it_is_named_after() -> None:
    paths = [
        path
        for path in (ROOT / "results").rglob("*.json")
        if "rows" in (raw := json.loads(path.read_text())) and "cell" in raw
    ]
    assert len(paths) > 400
    for path in paths:
        cell = Cell.of(runner.read(path)["cell"])
        assert cell.name == path.stem
        assert sweep.finished(cell, path.parent)


@pytest.mark.parametrize("content", ["", "{}", '{"cell": {"method": "be"}, "rows": []}', '{"cell": {}, "rows": [1]}'])
def test_what_is_no_record_is_named(content: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.json"
    path.write_text(content)
    with pytest.raises(DamagedError, match=r"broken\.json is not a"):
        runner.read(path)


def test_a_place_that_cannot_be_written_is_an_error_before_anything_is_learned(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(WriteError, match="file"):
        runner.execute(CELL, tmp_path / "file" / "results")


def test_the_demo_ends_with_a_table_of_all_four_methods_and_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "demo.html"
    demo.main(["--tasks", "2", "--epochs", "2", "--page", str(page), "--results", str(tmp_path / "records")])
    printed = capsys.readouterr().out
    for words in ("average", "forgetting", "bytes per", "seconds", "By budget:"):
        assert words in printed
    assert "<title>Ten tasks on real digits</title>" in page.read_text()
    assert '"halrp-budget' in page_content(page)
    assert len(list((tmp_path / "records").glob("*.json"))) == 4


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The tasks whose score was measured on all rows, one entry for each part."""
    result: list[int] = []
    real = runner.score

    def score(method: Method, task: Task, split: Split, position: int) -> float:
        result.append(position)
        return real(method, task, split, position)

    monkeypatch.setattr(runner, "score", score)
    return result


def test_a_task_that_has_changed_is_measured_again(measured: list[int]) -> None:
    list(runner.run(Cell("finetune", "digits", "digits-net", **SHORT)))
    assert measured == [0, 0, 0, 0, 1, 1, 0, 0, 1, 1, 2, 2]


def test_a_frozen_task_is_measured_once(measured: list[int]) -> None:
    list(runner.run(Cell("be", "digits", "digits-net", **SHORT)))
    assert measured == [0, 0, 1, 1, 2, 2]


def test_what_a_run_left_that_was_killed_after_its_record_is_deleted(tmp_path: Path) -> None:
    with one_thread():
        record = runner.execute(FINETUNE, tmp_path)
        left = runner.RunState(tmp_path, FINETUNE)
        (left.checkpoints / "warm-up").mkdir(parents=True)
        left.path.write_bytes(b"a state")
        assert runner.execute(FINETUNE, tmp_path) == record
    assert [path.name for path in tmp_path.iterdir()] == [f"{FINETUNE.name}.json"]


def test_a_state_that_cannot_be_deleted_does_not_undo_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlink = Path.unlink

    def refuse(path: Path, missing_ok: bool = False) -> None:
        if path.name.endswith(runner.UNFINISHED):
            raise OSError(errno.EIO, "Input/output error", str(path))
        unlink(path, missing_ok)

    with one_thread(), monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        record = runner.execute(FINETUNE, tmp_path)
    assert runner.read(tmp_path / f"{FINETUNE.name}.json") == record


def test_a_record_is_on_the_disk_before_the_state_of_its_run_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    flush, delete = atomic.flush_folder, runner.RunState.delete

    def spy_flush(folder: Path) -> None:
        events.append(f"flush {sorted(path.suffix for path in folder.glob('*.json'))}" if folder == tmp_path else "")
        flush(folder)

    def spy_delete(run_state: runner.RunState) -> None:
        events.append("delete")
        delete(run_state)

    monkeypatch.setattr(atomic, "flush_folder", spy_flush)
    monkeypatch.setattr(runner.RunState, "delete", spy_delete)
    with one_thread():
        runner.execute(FINETUNE, tmp_path)
    assert events[-2:] == ["flush ['.json']", "delete"]
