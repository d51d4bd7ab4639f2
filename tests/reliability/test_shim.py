"""The harness itself: it sees every step, and it finds the faults of writers that are not careful."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from halrp.store import atomic
from tests.reliability import campaign
from tests.reliability.crash_states import Disk, Tree, crash_states, tree_of
from tests.reliability.operations import Operation
from tests.reliability.shim import Step, watch

pytestmark = [
    pytest.mark.skipif(not os.path.isdir("/proc/self/fd") or not hasattr(os, "fork"), reason="needs Linux"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def steps_of(folder: Path, act: Callable[[], object]) -> list[tuple[str, str]]:
    with watch(folder) as steps:
        act()
    return [(step.kind, step.path) for step in steps]


def test_every_way_to_change_a_folder_is_a_step(tmp_path: Path) -> None:
    def act() -> None:
        (tmp_path / "a").mkdir()
        (tmp_path / "a" / "bytes").write_bytes(b"1")
        (tmp_path / "text").write_text("2")
        with open(tmp_path / "text", "a") as file:
            file.write("3")
        handle = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
        os.write(handle, b"4")
        os.fsync(handle)
        os.close(handle)
        os.replace(tmp_path / "text", tmp_path / "moved")
        (tmp_path / "moved").rename(tmp_path / "again")
        atomic.flush_folder(tmp_path)
        (tmp_path / "again").unlink()
        os.remove(tmp_path / "lock")
        shutil.rmtree(tmp_path / "a")
        io.FileIO(tmp_path / "raw", "a").close()
        os.unlink(tmp_path / "raw")

    assert steps_of(tmp_path, act) == [
        ("make folder", "a"),
        ("create", "a/bytes"),
        ("write", "a/bytes"),
        ("create", "text"),
        ("write", "text"),
        ("write", "text"),
        ("create", "lock"),
        ("write", "lock"),
        ("flush", "lock"),
        ("move", "text"),
        ("move", "moved"),
        ("flush folder", "."),
        ("remove", "again"),
        ("remove", "lock"),
        ("remove", "a/bytes"),
        ("remove folder", "a"),
        ("create", "raw"),
        ("remove", "raw"),
    ]
    assert tree_of(tmp_path) == {}


def test_what_lies_elsewhere_or_changes_nothing_is_no_step(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()

    def act() -> None:
        (tmp_path / "outside").write_text("1")
        (tmp_path / "inside").mkdir(exist_ok=True)
        (tmp_path / "inside" / "missing").unlink(missing_ok=True)
        assert (tmp_path / "outside").read_text() == "1"

    assert steps_of(tmp_path / "inside", act) == []


def left(before: Tree, *steps: Step) -> list[Tree]:
    """What a power cut after the last step may leave."""
    return [tree for number, tree in crash_states(before, steps) if number == len(steps)]


def test_a_write_that_was_not_flushed_may_be_torn() -> None:
    states = left({"f": b"old"}, Step("write", "f", content=b"newer"))
    assert {tree["f"] for tree in states} == {b"old", b"", b"ne", bytes(5), b"newer"}
    assert left({"f": b"old"}, Step("write", "f", content=b"newer"), Step("flush", "f")) == [{"f": b"newer"}]


def test_a_name_is_safe_once_its_folder_is_flushed() -> None:
    made = [Step("create", "f"), Step("write", "f", content=b"x"), Step("flush", "f")]
    assert {} in left({}, *made)
    assert left({}, *made, Step("flush folder", ".")) == [{"f": b"x"}]


def test_changes_of_a_folder_are_reordered_and_a_move_is_one_change() -> None:
    states = left({"a": b"1", "b": b"2"}, Step("remove", "a"), Step("move", "b", "c"))
    assert sorted(sorted(tree) for tree in states) == [["a", "b"], ["a", "c"], ["b"], ["c"]]


def test_what_lies_in_a_folder_is_lost_with_it() -> None:
    steps = [Step("make folder", "d"), Step("create", "d/f"), Step("flush folder", "d")]
    assert {} in left({}, *steps)
    assert left({}, *steps, Step("flush folder", ".")) == [{"d": None, "d/f": b""}]


def test_an_unknown_step_is_refused() -> None:
    with pytest.raises(ValueError, match="chmod"):
        Disk({}).happen(Step("chmod", "f"))


def operation(write: Callable[[Path, bytes], None]) -> Operation:
    """Replace a file and then the number that says which version it has, with a writer of some kind."""

    def begin(folder: Path) -> None:
        (folder / "data").write_bytes(b"old" * 100)

    def run(folder: Path) -> None:
        write(folder / "data", b"new" * 100)

    def seen(folder: Path) -> object:
        return (folder / "data").read_bytes()

    return Operation("replace a file", begin, run, seen, seen)


def overwritten(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def moved_unflushed(path: Path, content: bytes) -> None:
    path.with_suffix(".part").write_bytes(content)
    os.replace(path.with_suffix(".part"), path)


def not_durable(path: Path, content: bytes) -> None:
    atomic.write(path, content)


def durable(path: Path, content: bytes) -> None:
    atomic.write(path, content)
    atomic.flush_folder(path.parent)


def test_a_file_written_overwritten_is_torn_by_a_kill(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="neither old nor new"):
        campaign.kills(operation(overwritten), tmp_path)


def test_a_file_moved_before_it_is_flushed_is_torn_by_a_power_cut(tmp_path: Path) -> None:
    assert campaign.kills(operation(moved_unflushed), tmp_path)["kills"] == 3
    with pytest.raises(AssertionError, match=r"neither old nor new|lost what had returned"):
        campaign.power_loss(operation(moved_unflushed), tmp_path)


def test_a_move_whose_folder_is_not_flushed_is_lost_by_a_power_cut(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="lost what had returned"):
        campaign.power_loss(operation(not_durable), tmp_path)


def test_a_careful_writer_passes(tmp_path: Path) -> None:
    assert campaign.kills(operation(durable), tmp_path, again=2)["kills"] >= 6
    assert campaign.power_loss(operation(durable), tmp_path)["states"] > 2
    assert campaign.full_disk(operation(durable), tmp_path)["refused"] == 5


def test_an_untyped_error_on_a_full_disk_is_found_out(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left"):
        campaign.full_disk(operation(overwritten), tmp_path)
