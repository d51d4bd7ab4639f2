"""The state of an interrupted run: used by the run that it belongs to, whole and unchanged, and otherwise set aside."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
import torch

from halrp.errors import DamagedError, FormatError, RunStateWarning, StoreError, WriteError
from halrp.lab import streams
from halrp.lab.methods import Method, State
from halrp.lab.methods.ewc import ElasticWeights
from halrp.lab.records import state_file
from halrp.lab.run import runner, state
from halrp.lab.run.cell import Cell
from halrp.lab.run.state import SET_ASIDE, RunState
from halrp.lab.streams import Split, Stream, Task
from tests.lab.run.tiny_cells import cell

SHORT: dict[str, Any] = {"recipe": {"epochs": 2, "batch": 32}, "tasks": 2, "fraction": 0.25}
METHODS: dict[str, dict[str, Any]] = {"ewc": {}, "stl": {}, "wsn": {}, "halrp-budget": {"growth_per_task": 0.2}}
PAGE = 4096


class Interrupted(NamedTuple):
    """A cell, its state after the first task, and the record of its uninterrupted run, times aside."""

    cell: Cell
    content: bytes
    record: runner.Record


class Enough(Exception):  # noqa: N818
    """The run is stopped."""


def stop(row: runner.Row) -> None:
    raise Enough


def made(cell: Cell, folder: Path) -> Interrupted:
    with pytest.raises(Enough):
        runner.execute(cell, folder, on_row=stop)
    content = RunState(folder, cell).path.read_bytes()
    return Interrupted(cell, content, runner.without_times(runner.execute(cell, folder)))


@pytest.fixture(scope="module", params=METHODS)
def interrupted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Interrupted:
    method: str = request.param
    return made(cell(method, settings=METHODS[method], **SHORT), tmp_path_factory.mktemp(method))


@pytest.fixture(scope="module")
def ewc(tmp_path_factory: pytest.TempPathFactory) -> Interrupted:
    return made(cell("ewc", **SHORT), tmp_path_factory.mktemp("ewc"))


def torn(content: bytes, number: int) -> Iterator[bytes]:
    """What a write that did not reach the disk leaves: the start of the file, then nothing or zeros; or a hole."""
    for i in range(number):
        cut = len(content) * i // number
        yield content[:cut]
        if any(content[cut:]):
            yield content[:cut] + bytes(len(content) - cut)
        hole = content[cut : cut + PAGE]
        if any(hole):
            yield content[:cut] + bytes(len(hole)) + content[cut + PAGE :]


def mutated(content: bytes, number: int, seed: int) -> Iterator[bytes]:
    """The content with a byte changed, left out or added; the first bytes, which are the schema's own, more often."""
    random = Random(seed)
    for _ in range(number):
        at = random.randrange(random.choice((200, 2000, len(content))))
        other = bytes([content[at] ^ random.randrange(1, 256)])
        yield content[:at] + random.choice((other, b"", content[at : at + 1] + other)) + content[at + 1 :]


def resumed(case: Interrupted, folder: Path, content: bytes) -> runner.Record:
    """The record of a run that finds some content as its state."""
    folder.mkdir(exist_ok=True)
    RunState(folder, case.cell).path.write_bytes(content)
    return runner.without_times(runner.execute(case.cell, folder))


def assert_set_aside(case: Interrupted, folder: Path, content: bytes, reason: str) -> None:
    """The cell starts again with a warning, ends with its record, and the content is still there."""
    with pytest.warns(RunStateWarning, match=reason):
        assert resumed(case, folder, content) == case.record
    names = {path.name for path in folder.iterdir()}
    assert names == {f"{case.cell.name}.json", f"{case.cell.name}.unfinished{SET_ASIDE}"}
    assert (folder / f"{case.cell.name}.unfinished{SET_ASIDE}").read_bytes() == content


def test_an_unchanged_state_gives_the_record_of_an_uninterrupted_run(interrupted: Interrupted, tmp_path: Path) -> None:
    learned = []
    RunState(tmp_path, interrupted.cell).path.write_bytes(interrupted.content)
    record = runner.execute(interrupted.cell, tmp_path, progress=lambda event: learned.append(event.task))
    assert runner.without_times(record) == interrupted.record
    assert set(learned) == {record["rows"][1]["task"]}, "the first task is not learned again"


def test_a_torn_or_changed_state_is_a_typed_error_wherever_it_is_cut(interrupted: Interrupted, tmp_path: Path) -> None:
    path = tmp_path / "run.unfinished"
    contents = [*torn(interrupted.content, 40), *mutated(interrupted.content, 100, seed=1)]
    assert len(contents) > 200
    for content in contents:
        path.write_bytes(content)
        for tensors in (True, False):
            with pytest.raises(StoreError, match=r"run\.unfinished is (not|a state of format)"):
                state_file.read(path, tensors)


def test_a_run_that_finds_a_torn_state_starts_again_and_ends_with_its_record(
    interrupted: Interrupted, tmp_path: Path
) -> None:
    size = len(interrupted.content)
    for i, cut in enumerate((0, 100, size // 2, size - 1)):
        content = interrupted.content[:cut]
        assert_set_aside(interrupted, tmp_path / f"cut {i}", content, "not (complete|the state of a run)")
        zeros = content + bytes(size - cut)
        assert_set_aside(interrupted, tmp_path / f"zeros {i}", zeros, "not (what the run wrote|the state of a run)")


@pytest.mark.slow
def test_a_run_that_finds_any_torn_or_changed_state_ends_with_its_record(
    interrupted: Interrupted, tmp_path: Path
) -> None:
    for content in (*torn(interrupted.content, 20), *mutated(interrupted.content, 60, seed=2)):
        assert_set_aside(interrupted, tmp_path / "run", content, "is (not|a state of format)")
        shutil.rmtree(tmp_path / "run")


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "l2"},
        {"seed": 1},
        {"order": "B"},
        {"tasks": 3},
        {"fraction": 0.5},
        {"settings": {"strength": 1.0}},
        {"recipe": {"epochs": 3, "batch": 32}},
    ],
    ids=str,
)
def test_the_state_of_another_cell_is_set_aside(changes: dict[str, Any], ewc: Interrupted, tmp_path: Path) -> None:
    other = cell(**({"method": "ewc"} | SHORT | changes))
    with pytest.raises(Enough):
        runner.execute(other, tmp_path / "other", on_row=stop)
    content = RunState(tmp_path / "other", other).path.read_bytes()
    assert_set_aside(ewc, tmp_path / "run", content, "of another run: it differs in cell, resolved;")


@pytest.mark.parametrize(
    ("part", "value"), [("halrp", "0.0.1"), ("torch", "1.0"), ("resolved", {"recipe": {"lr": 1.0}})]
)
def test_a_state_by_other_code_or_other_defaults_is_set_aside(
    part: str, value: object, ewc: Interrupted, tmp_path: Path
) -> None:
    (tmp_path / "saved").write_bytes(ewc.content)
    saved = state_file.read(tmp_path / "saved")
    content = state_file.pack(dataclasses.replace(saved, origin=saved.origin | {part: value}))
    assert_set_aside(ewc, tmp_path / "run", content, f"of another run: it differs in {part};")


def test_a_state_of_another_format_is_set_aside(ewc: Interrupted, tmp_path: Path) -> None:
    for content, reason in (
        (ewc.content.replace(b"halrp run state 2", b"halrp run state 3", 1), "a state of format '3'"),
        (ewc.content.partition(b"\n")[2].partition(b"\n")[2], "one of format 1, which has no checksum"),
    ):
        assert_set_aside(ewc, tmp_path / "run", content, reason)
        shutil.rmtree(tmp_path / "run")


@pytest.mark.parametrize(
    "changes",
    [{"rows": []}, {"rows": [1]}, {"rows": "x"}, {"data": [1]}, {"data": []}, {"values": 3}, {"origin": []}],
    ids=str,
)
def test_a_value_of_the_wrong_kind_is_a_typed_error(changes: dict[str, Any], ewc: Interrupted, tmp_path: Path) -> None:
    path = tmp_path / "run.unfinished"
    path.write_bytes(ewc.content)
    path.write_bytes(state_file.pack(dataclasses.replace(state_file.read(path), **changes)))
    with pytest.raises(DamagedError, match="not the state of a run"):
        state_file.read(path)


def test_a_newer_format_is_named(ewc: Interrupted, tmp_path: Path) -> None:
    (tmp_path / "newer").write_bytes(ewc.content.replace(b"state 2", b"state 17", 1))
    with pytest.raises(FormatError, match="format '17'; this version reads format 2"):
        state_file.read(tmp_path / "newer")


def test_a_state_with_the_rows_of_more_tasks_than_the_stream_has_is_set_aside(ewc: Interrupted, tmp_path: Path) -> None:
    (tmp_path / "saved").write_bytes(ewc.content)
    saved = state_file.read(tmp_path / "saved")
    rows = [*saved.rows, saved.rows[0] | {"position": 1, "test": [0.5, 0.5]}]
    content = state_file.pack(dataclasses.replace(saved, rows=rows, data=[*saved.data, ""]))
    assert_set_aside(ewc, tmp_path / "run", content, "of another stream: it has 2 rows before the last of 2 tasks")


def test_a_state_of_other_examples_is_set_aside(
    ewc: Interrupted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = Stream.__getitem__

    def corrected(stream: Stream, position: int | slice) -> Task | Stream:
        task = make(stream, position)
        if isinstance(task, Task) and task.identity == stream.identities[0]:
            task = dataclasses.replace(task, train=Split(task.train.x, task.train.y.roll(1)))
        return task

    monkeypatch.setattr(streams.Stream, "__getitem__", corrected)
    whole = runner.without_times(runner.execute(ewc.cell, tmp_path / "whole"))
    with pytest.warns(RunStateWarning, match="of other data: the examples of .* are not those that were learned"):
        assert resumed(ewc, tmp_path / "run", ewc.content) == whole
    assert whole != ewc.record


def test_a_state_that_the_method_cannot_restore_is_set_aside(
    ewc: Interrupted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    restore = ElasticWeights.restore

    def fails(method: Method, state: State) -> None:
        raise KeyError("a name that the code has not")

    def forgets(method: ElasticWeights, state: State) -> None:
        first = next(iter(sorted(state.tensors)))
        restore(method, State(state.tensors | {first: torch.zeros_like(state.tensors[first])}, state.values))

    for wrong, reason in ((fails, "KeyError: .a name"), (forgets, "the restored method has another state")):
        monkeypatch.setattr(ElasticWeights, "restore", wrong)
        assert_set_aside(ewc, tmp_path / "run", ewc.content, f"not one that the method 'ewc' can continue.*{reason}")
        shutil.rmtree(tmp_path / "run")


def test_an_error_of_the_machine_does_not_cost_the_state(
    ewc: Interrupted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(method: Method, state: State) -> None:
        raise WriteError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(ElasticWeights, "restore", full)
        with pytest.raises(WriteError, match="full"):
            resumed(ewc, tmp_path, ewc.content)
    assert resumed(ewc, tmp_path, ewc.content) == ewc.record


def test_a_state_that_cannot_be_set_aside_is_a_typed_error(ewc: Interrupted, tmp_path: Path) -> None:
    (tmp_path / f"{ewc.cell.name}.unfinished{SET_ASIDE}" / "full").mkdir(parents=True)
    with pytest.raises(WriteError, match=r"not the state of a run.*could not be renamed.*move it away"):
        resumed(ewc, tmp_path, b"something else")
    assert (tmp_path / f"{ewc.cell.name}.unfinished").read_bytes() == b"something else"


@pytest.mark.parametrize("kind", ["folder", "link to nothing"])
def test_what_is_no_file_is_set_aside(kind: str, ewc: Interrupted, tmp_path: Path) -> None:
    path = RunState(tmp_path, ewc.cell).path
    path.mkdir() if kind == "folder" else path.symlink_to(tmp_path / "nothing")
    with pytest.warns(RunStateWarning, match="missing or not a file"):
        assert runner.without_times(runner.execute(ewc.cell, tmp_path)) == ewc.record
    assert os.path.lexists(tmp_path / f"{path.name}{SET_ASIDE}")


def test_checkpoints_of_a_run_with_other_defaults_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = cell("ewc", **SHORT)
    with monkeypatch.context() as patch:
        patch.setattr(state, "__version__", "0.0.1")
        before = RunState(tmp_path, short)
    after = RunState(tmp_path, short)
    assert (before.path, before.work) == (after.path, after.work)
    (before.checkpoints / "task").mkdir(parents=True)
    (after.checkpoints / "task").mkdir(parents=True)
    with after.locked():
        assert [path.name for path in after.work.iterdir() if path.is_dir()] == [after.checkpoints.name]
    assert (after.checkpoints / "task").is_dir(), "its own are there for the next run"


def test_a_run_without_a_state_warns_of_nothing(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        record = runner.execute(cell("ewc", **SHORT), tmp_path)
    assert json.loads((tmp_path / f"{cell('ewc', **SHORT).name}.json").read_text()) == json.loads(json.dumps(record))
