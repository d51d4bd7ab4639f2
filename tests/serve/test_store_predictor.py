"""`StorePredictor`: every task of a store, read when it is needed, in bounded memory, followed while others commit."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from halrp import Halrp, Learner, Store, StorePredictor, WarmUp
from halrp.errors import DamagedError, DataError, SettingError, StoreChangedError, UnknownTaskError, WrongBaseError
from halrp.serve.loaded import LoadedTask
from halrp.store.changes import Changes
from halrp.store.folder import MANIFEST
from tests.helpers import FAST, net, tiny_task
from tests.store.stores import learned, roomy

X = tiny_task("conv", 9)[0]
NAMES = ("t0", "t1", "t2", None)
ROWS = [NAMES[n % 4] for n in range(len(X))]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Learner:
    """A learner of three tasks on a base that the first made; tests copy its store and never change it."""
    return learned("conv", tasks=3, store=tmp_path_factory.mktemp("source"))


@pytest.fixture
def folder(source: Learner, tmp_path: Path) -> Path:
    """A copy of the store."""
    source.save(tmp_path / "store")
    return tmp_path / "store"


def opened(folder: Path, **settings: Any) -> StorePredictor:
    return StorePredictor.open(folder, net("conv"), **{"follow_every": 0.0, **settings})


def test_outputs_of_a_task_have_the_bits_of_the_learner(source: Learner, folder: Path) -> None:
    predictor = opened(folder)
    for name in NAMES:
        assert torch.equal(predictor.predict(X, name), source.predict(X, name))
        assert torch.equal(predictor.predict(X, name, batch=5), source.predict(X, name, batch=5))


@pytest.mark.parametrize("mixed", ["fastest", "one pass", "task by task"])
def test_a_task_per_row_agrees_with_the_tasks_alone(source: Learner, folder: Path, mixed: Any) -> None:
    predictor = opened(folder, mixed=mixed)
    for _ in range(6):  # the ways take turns while they are timed
        outputs = predictor.predict(X, ROWS)
        for name in NAMES:
            index = torch.tensor([n for n, row in enumerate(ROWS) if row == name])
            alone = source.predict(X[index], name)
            shown, rest = outputs[index, : alone.shape[1]], outputs[index, alone.shape[1] :]
            assert bool((rest == -torch.inf).all())
            if mixed == "task by task":
                assert torch.equal(shown, alone)
            else:  # rounding of float32, as for the mixed batches of a learner
                torch.testing.assert_close(shown, alone, rtol=1e-5, atol=1e-5)


def test_answers_are_those_of_the_learner(source: Learner, folder: Path) -> None:
    predictor = opened(folder)
    for task in ("t1", None, ROWS):
        assert predictor.answer(X, task).labels == source.answer(X, task).labels


def test_opening_reads_no_task_and_using_one_reads_its_file_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    content = Store.content

    def recorded(self: Store, entry: Any, limit: int | None = None) -> bytes:
        read.append(entry.file.partition("-")[0])
        return content(self, entry, limit)

    monkeypatch.setattr(Store, "content", recorded)
    predictor = opened(folder)
    assert set(read) == {"layout", "base"}
    assert list(predictor.tasks) == ["t0", "t1", "t2"]
    read.clear()
    for _ in range(3):
        predictor.predict(X, "t1")
        predictor.predict(X, ["t1", "t2"] * (len(X) // 2))
    assert sorted(read) == ["tasks/t1", "tasks/t2"]
    assert set(predictor.resident) == {"t1", "t2"}


def test_a_given_base_is_its_own_task_without_reading_any_other(tmp_path: Path) -> None:
    method = replace(roomy(), start=WarmUp())
    learner = learned("conv", tasks=2, base="given", method=method, store=tmp_path)
    predictor = opened(tmp_path)
    assert torch.equal(predictor.predict(X, None), learner.predict(X, None))
    assert predictor.resident == {}
    assert torch.equal(predictor.predict(X, "t1"), learner.predict(X, "t1"))


def test_memory_is_bounded_the_least_recently_used_task_goes_and_a_pinned_one_stays(
    source: Learner, folder: Path
) -> None:
    large = opened(folder)
    source_outputs = {name: source.predict(X, name) for name in NAMES}
    deltas = {name: task.delta_bytes for name, task in large.select(["t1", "t2"]).items()}
    for name in ("t1", "t2"):
        large.predict(X, name)
    merged = large.resident["t1"] - deltas["t1"]
    assert large.resident == {name: size + merged for name, size in deltas.items()}
    both = sum(deltas.values())
    middle = opened(folder, memory=both + merged)
    for name in ("t1", "t2", "t1"):  # merged weights of one task at a time
        assert torch.equal(middle.predict(X, name), source_outputs[name])
    assert middle.resident == {**deltas, "t1": deltas["t1"] + merged}
    assert middle.statistics["evictions"] == 0
    size = max(deltas.values()) + merged
    predictor = opened(folder, memory=2 * size, pinned=["t1"])
    for name in ("t1", "t2", "t0", "t2", "t1", "t2"):
        assert torch.equal(predictor.predict(X, name), source_outputs[name])
        assert "t1" in predictor.resident
        assert sum(predictor.resident.values()) <= predictor.memory
    tight = opened(folder, memory=both - 1)
    for name in ("t1", "t2", "t1", "t1"):
        assert torch.equal(tight.predict(X, name), source_outputs[name])
        assert list(tight.resident) == [name]
    assert tight.statistics["evictions"] == 2
    assert tight.statistics["loads"] == 3
    with pytest.raises(SettingError, match="pinned tasks need"):
        tight.pin("t1", "t2")


def test_a_mixed_batch_beyond_the_memory_is_still_right(source: Learner, folder: Path) -> None:
    predictor = opened(folder, memory=1, mixed="task by task")
    torch.testing.assert_close(predictor.predict(X, ROWS), source.predict(X, ROWS), rtol=1e-5, atol=1e-5)
    assert len(predictor.resident) <= 1


def test_a_dropped_task_is_read_again(source: Learner, folder: Path) -> None:
    predictor = opened(folder)
    predictor.predict(X, "t2")
    assert predictor.drop("t2")
    assert not predictor.drop("t2")
    assert predictor.resident == {}
    assert torch.equal(predictor.predict(X, "t2"), source.predict(X, "t2"))
    with pytest.raises(UnknownTaskError, match="'t9'"):
        predictor.drop("t9")


def test_new_replaced_reverted_and_removed_tasks_are_followed(folder: Path) -> None:
    predictor = opened(folder, follow_every=3600.0)  # and so only where a call must know
    writer = Learner.load(folder, net("conv"), recipe=FAST, method=roomy())
    writer.learn("t3", tiny_task("conv", 3))
    assert torch.equal(predictor.predict(X, "t3"), writer.predict(X, "t3"))
    before = predictor.predict(X, "t1")
    writer.learn("t1", tiny_task("conv", 11), replace=True)
    assert torch.equal(predictor.predict(X, "t1"), before)  # nobody has looked
    assert predictor.refresh() == Changes(replaced=("t1",))
    assert torch.equal(predictor.predict(X, "t1"), writer.predict(X, "t1"))
    assert not torch.equal(predictor.predict(X, "t1"), before)
    writer.revert("t1")
    writer.remove("t2")
    assert predictor.refresh() == Changes(removed=("t2",), replaced=("t1",))
    assert torch.equal(predictor.predict(X, "t1"), before)
    with pytest.raises(UnknownTaskError, match="no task 't2'"):
        predictor.predict(X, "t2")
    assert "t2" not in predictor.resident
    assert predictor.generation == Store(folder).manifest().generation


def test_a_pinned_task_that_is_replaced_stays_pinned(folder: Path) -> None:
    predictor = opened(folder, pinned=["t1"])
    writer = Learner.load(folder, net("conv"), recipe=FAST, method=roomy())
    writer.learn("t1", tiny_task("conv", 11), replace=True)
    assert predictor.refresh() == Changes(replaced=("t1",))
    assert predictor._residents._pinned == {Store(folder).manifest().tasks["t1"].sha256}
    predictor.unpin("t1")
    assert predictor._residents._pinned == frozenset()


def test_tasks_that_a_call_began_with_serve_it_to_its_end(source: Learner, folder: Path) -> None:
    predictor = opened(folder)
    begun = predictor.select(["t1", "t2"])
    rows = [begun["t1"], begun["t2"]] * (len(X) // 2)
    expected = predictor.predict(X, ["t1", "t2"] * (len(X) // 2))
    writer = Learner.load(folder, net("conv"), recipe=FAST, method=roomy())
    writer.remove("t2")
    writer.learn("t1", tiny_task("conv", 11), replace=True)
    predictor.refresh()
    torch.testing.assert_close(predictor.compute(X, rows), expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(predictor.compute(X, [begun["t1"]] * len(X)), source.predict(X, "t1"))
    assert predictor.select(["t1"])["t1"].version != begun["t1"].version


def test_a_store_that_cannot_be_followed_is_named_and_what_was_read_is_served(source: Learner, folder: Path) -> None:
    predictor = opened(folder)
    expected = predictor.predict(X, "t1")
    manifest = (folder / MANIFEST).read_bytes()
    (folder / MANIFEST).unlink()
    assert torch.equal(predictor.predict(X, "t1"), expected)
    assert isinstance(predictor.problem, StoreChangedError)
    with pytest.raises(StoreChangedError, match="vanished"):
        predictor.refresh()
    (folder / MANIFEST).write_bytes(manifest[:-9])
    with pytest.raises(DamagedError):
        predictor.refresh()
    assert torch.equal(predictor.predict(X, "t2"), source.predict(X, "t2"))  # its file is there, and is what it was
    (folder / MANIFEST).write_bytes(manifest)
    assert predictor.refresh() == Changes()
    assert predictor.problem is None


def test_a_damaged_task_is_an_error_of_its_own_until_it_is_repaired(source: Learner, folder: Path) -> None:
    predictor = opened(folder)
    path = folder / predictor.tasks["t2"].file
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(DamagedError, match="not the file that was committed"):
        predictor.predict(X, "t2")
    with pytest.raises(DamagedError):
        predictor.predict(X, ROWS)
    assert torch.equal(predictor.predict(X, "t1"), source.predict(X, "t1"))
    path.write_bytes(content)
    assert torch.equal(predictor.predict(X, "t2"), source.predict(X, "t2"))


def test_mistakes_are_named(folder: Path, tmp_path: Path) -> None:
    predictor = opened(folder)
    with pytest.raises(DataError, match="3 tasks for 2 rows"):
        predictor.predict(X[:2], ["t0"] * 3)
    with pytest.raises(DataError, match="the model fails on inputs of shape"):
        predictor.predict(X[:, :2], "t1")
    with pytest.raises(UnknownTaskError, match="no task 'cars'"):
        predictor.predict(X[:2], ["t0", "cars"])
    with pytest.raises(WrongBaseError):
        StorePredictor.open(folder, net("mlp"))
    with pytest.raises(SettingError, match="mixed='both'"):
        opened(folder, mixed="both")


def test_a_task_that_was_learned_with_a_transform_is_refused_without_it(tmp_path: Path) -> None:
    def halved(x: Any) -> Any:
        return x / 2

    method = Halrp.budget(growth_per_task=0.9)
    learner = Learner(net("mlp"), recipe=FAST, method=method, store=tmp_path, transform=halved)
    learner.learn("a", tiny_task("mlp"))
    x = tiny_task("mlp", 5)[0]
    with pytest.raises(SettingError, match="was learned with transform"):
        StorePredictor.open(tmp_path, net("mlp")).predict(x, "a")
    same = StorePredictor.open(tmp_path, net("mlp"), transform=halved).predict(x, "a")
    assert torch.equal(same, learner.predict(x, "a"))


def test_tasks_that_were_dropped_are_gone_also_from_mixed_networks(folder: Path) -> None:
    writer = Learner.load(folder, net("conv"), recipe=FAST, method=roomy())
    base, delta = writer._committed.ready, writer.tasks["t1"]
    names = [f"copy {number}" for number in range(24)]
    Store(folder).commit(base, [replace(delta, task=name) for name in names])
    predictor = opened(folder, mixed="one pass")
    [task] = predictor.select(["t1"]).values()
    predictor = opened(folder, mixed="one pass", memory=6 * task.delta_bytes)
    alive: list[weakref.ref[LoadedTask]] = []
    for start in range(0, len(names), 2):
        pair = names[start : start + 2]
        alive.extend(weakref.ref(each) for each in predictor.select(pair).values())
        predictor.predict(X[:4], pair * 2)
    gc.collect()
    assert len({each() for each in alive if each() is not None}) <= 8  # six in memory, and a roster of few
    assert len(predictor.resident) <= 6
