"""A file of absurd size is refused by type, before it is read, by every reader that takes a whole file."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from halrp import Halrp, Learner, Recipe, Store
from halrp.errors import CheckpointWarning, DamagedError, HalrpError, SettingError
from halrp.lab.data import download, transfer
from halrp.lab.data.sources import File
from halrp.lab.presets import sweep_file
from halrp.lab.records import loading, schema, state_file
from halrp.lab.report import script_library
from halrp.lab.run import sweep
from halrp.training.checkpoint import Checkpoints

SIZE = 8 << 30


def sparse(path: Path) -> Path:
    """A file of 8 GB that needs no disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        file.truncate(SIZE)
    return path


@contextmanager
def little_memory() -> Iterator[None]:
    """Check that a block needs less than 16 MB."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))


@pytest.mark.parametrize(
    ("read", "error"),
    [(schema.read, DamagedError), (sweep_file.read, SettingError)],
    ids=["record", "sweep file"],
)
def test_a_file_that_the_user_names_is_refused(
    read: Callable[[Path], object], error: type[HalrpError], tmp_path: Path
) -> None:
    with little_memory(), pytest.raises(error, match=f"{SIZE:,} bytes, more than the"):
        read(sparse(tmp_path / "file.toml"))


def test_a_record_among_others_is_left_out_with_the_reason(tmp_path: Path) -> None:
    sparse(tmp_path / "a.json")
    sparse(tmp_path / "b.unfinished")
    with little_memory():
        problems = {problem.path.name: problem for problem in loading.load([tmp_path]).problems}
    assert problems["a.json"].kind == problems["b.unfinished"].kind == "damaged"
    assert f"{SIZE:,} bytes" in problems["a.json"].reason


def test_a_cached_script_a_checkpoint_and_the_notes_of_a_download_are_ignored(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, "key")
    sparse(checkpoints._path("warm-up"))
    file = File("set.bin", ("http://127.0.0.1/",), None, None, None)
    sparse(transfer._note_path(tmp_path / "set.bin.part"))
    sparse(download._record(tmp_path / "set.bin"))
    with little_memory():
        assert script_library._read(sparse(tmp_path / "vega.js")) is None
        with pytest.warns(CheckpointWarning, match=f"{SIZE:,} bytes, more than the"):
            assert checkpoints.load("warm-up") is None
        assert transfer._resume_headers(file.urls[0], file, tmp_path / "set.bin.part", 5) == {}
        assert download._recorded(tmp_path / "set.bin", file) == file


@pytest.mark.parametrize("pattern", ["manifest.json", "base-*", "layout-*", "tasks/second-*"])
def test_a_file_of_a_store_is_refused(pattern: str, tmp_path: Path) -> None:
    learner = Learner(model(), method=Halrp.budget(bytes_per_task=4000), recipe=Recipe(epochs=2, batch=16))
    x, y = torch.randn(32, 8, generator=torch.Generator().manual_seed(1)), torch.arange(32) % 3
    learner.learn("first", (x, y))
    learner.learn("second", (-x, y))
    learner.save(tmp_path)
    (path,) = tmp_path.glob(pattern)
    sparse(path)
    with little_memory(), pytest.raises(DamagedError, match=f"{SIZE:,} bytes, more than the"):
        Learner.load(tmp_path, model())


@pytest.mark.parametrize("part", ["base", "layout", "task"])
def test_a_file_of_a_store_is_refused_though_its_manifest_allows_it(part: str, tmp_path: Path) -> None:
    """Whoever writes a file can write a manifest that names its size."""
    learner = Learner(model(), method=Halrp.budget(bytes_per_task=4000), recipe=Recipe(epochs=2, batch=16))
    x, y = torch.randn(32, 8, generator=torch.Generator().manual_seed(1)), torch.arange(32) % 3
    learner.learn("first", (x, y))
    learner.save(tmp_path)
    manifest = Store(tmp_path).manifest()
    ((digest, layout),) = manifest.layouts.items()
    changes: dict[str, Any] = {
        "base": {"base": manifest.base._replace(bytes=SIZE)},
        "layout": {"layouts": {digest: layout._replace(bytes=SIZE)}},
        "task": {"tasks": {"first": manifest.tasks["first"]._replace(bytes=SIZE)}},
    }
    (tmp_path / "manifest.json").write_bytes(manifest.edited(**changes[part]).content)
    (path,) = tmp_path.glob({"base": "base-*", "layout": "layout-*", "task": "tasks/*"}[part])
    sparse(path)
    with little_memory(), pytest.raises(DamagedError, match=f"{SIZE:,} bytes, more than the"):
        Learner.load(tmp_path, model())


def test_the_state_of_a_run_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.unfinished"
    monkeypatch.setattr(state_file, "LARGEST", SIZE - 1)
    with open(path, "wb") as file:
        file.write(state_file._first_line(SIZE, "0" * 64))
        file.truncate(SIZE + file.tell())
    with little_memory(), pytest.raises(DamagedError, match=f"{SIZE:,} bytes, more than the"):
        state_file.read(path)


def test_a_value_that_is_no_toml_is_text() -> None:
    for text in ("[" * 8000, "9" * 5000):
        assert sweep.value_of(text) == text


@pytest.mark.parametrize("text", ["x = " + "[" * 8000, f"x = {'9' * 5000}", "x." * 30_000 + "x = 1"])
def test_a_sweep_file_that_no_parser_ends_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(SettingError, match=r"mine\.toml"):
        sweep_file.read(tmp_path / "mine.toml")
