"""Stores with tasks whose parts have precisions of their own, and all that is done to a store."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from halrp import Delta, Halrp, Learner, Store, WarmUp
from halrp.model.description import Description
from halrp.parallel import learn_elsewhere
from halrp.store import signing, task_file
from halrp.tools import inspect
from halrp.tools.verify import verify
from tests.helpers import FAST, net, tiny_task
from tests.parts import drawn_parts, parts_task
from tests.store.stores import snapshot

X = tiny_task("conv", 7)[0]
NAMES = ("first", "second", "third")


def learner_with_parts(store: Path | Store | None = None, names: tuple[str, ...] = NAMES) -> Learner:
    """A learner on a given base with tasks of drawn parts, and one whose matrices have one precision."""
    method = replace(Halrp.budget(rest="float32"), start=WarmUp())
    learner = Learner(net("conv"), method=method, recipe=FAST, base="given", store=store)
    learner.learn("plain", tiny_task("conv", 1))
    for number, name in enumerate(names):
        commit(learner, parts_task(learner._committed.ready, 20 + number, classes=2 + number, name=name, learned=True))
    return learner


def commit(learner: Learner, delta: Delta) -> None:
    committed = learner._committed
    committed.commit(committed.ready, {**committed.tasks, delta.task: delta}, delta.task)


def predictions(learner: Learner) -> dict[str, Tensor]:
    return {name: learner.predict(X, name) for name in learner.tasks}


def same(before: dict[str, Tensor], after: dict[str, Tensor]) -> bool:
    assert before.keys() == after.keys()
    return all(torch.equal(before[name], after[name]) for name in before)


def test_a_store_gives_bit_identical_predictions_and_the_same_bytes_again(tmp_path: Path) -> None:
    before = predictions(learner_with_parts(tmp_path / "store"))
    again = Learner.load(tmp_path / "store", net("conv"))
    assert same(before, predictions(again))
    assert [delta.format for delta in again.tasks.values()] == [2, 3, 3, 3]
    again.save(tmp_path / "again")
    files, copies = snapshot(tmp_path / "store"), snapshot(tmp_path / "again")
    assert {n: c for n, c in files.items() if n.startswith("tasks/")} == {
        n: c for n, c in copies.items() if n.startswith("tasks/")
    }


def test_a_learner_that_was_sent_to_another_process_predicts_the_same() -> None:
    learner = learner_with_parts()
    sent = pickle.loads(pickle.dumps(learner))
    assert same(predictions(learner), predictions(sent))
    assert same(predictions(learner), predictions(pickle.loads(pickle.dumps(sent))))


def test_a_delta_that_lost_its_base_on_the_way_is_told_it_when_it_is_committed() -> None:
    learner = learner_with_parts()
    delta = parts_task(learner._committed.ready, 30, name="sent")
    commit(learner, pickle.loads(pickle.dumps(delta)))
    learner.predict(X, "sent")
    assert learner.tasks["sent"].owned.keys() == delta.held_owned.keys()


class PartsLearner:
    """A learner in a worker whose tasks have parts."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.base = Learner(model, recipe=FAST, base="given")._committed.ready

    def learn(self, name: str, /, *args: object, **kwargs: object) -> Delta:
        return parts_task(self.base, 31, name=name)


def test_a_task_that_a_worker_learned_knows_the_base_here() -> None:
    base = Learner(net("conv"), recipe=FAST, base="given")._committed.ready
    with ThreadPoolExecutor(1) as engine:
        ((_, delta),) = learn_elsewhere(PartsLearner, base, {"t": {}}, engine)
    expected = parts_task(base, 31, name="t")
    assert delta.origin.keys() == delta.differences != set()
    assert all(torch.equal(delta.held_owned[n], t) for n, t in expected.held_owned.items())


def test_renaming_merging_removing_and_replacing_change_no_other_task(tmp_path: Path) -> None:
    learner = learner_with_parts(tmp_path / "store")
    before = predictions(learner)
    learner.rename("first", "other")
    learner.remove("third")
    assert torch.equal(learner.predict(X, "other"), before["first"])
    assert torch.equal(learner.predict(X, "second"), before["second"])
    theirs = Learner(net("conv"), recipe=FAST, base="given", store=tmp_path / "theirs")
    commit(theirs, parts_task(theirs._committed.ready, 22, classes=4, name="third", learned=True))
    Store(tmp_path / "store").merge(tmp_path / "theirs")
    learner.refresh()
    assert torch.equal(learner.predict(X, "third"), before["third"])
    newer = parts_task(learner._committed.ready, 40, classes=3, name="second")
    learner._committed.commit(learner._committed.ready, {**learner.tasks, "second": newer}, "second", replaces=True)
    assert not torch.equal(learner.predict(X, "second"), before["second"])
    learner.revert("second")
    assert torch.equal(learner.predict(X, "second"), before["second"])
    assert same(predictions(learner), predictions(Learner.load(tmp_path / "store", net("conv"))))


def test_a_store_that_lost_its_manifest_is_repaired(tmp_path: Path) -> None:
    before = predictions(learner_with_parts(tmp_path))
    (tmp_path / "manifest.json").unlink()
    assert Store(tmp_path).repair().done
    assert same(before, predictions(Learner.load(tmp_path, net("conv"))))


def test_a_signed_store_is_verified_with_and_without_the_model(tmp_path: Path) -> None:
    key = signing.Key("hmac-sha256", bytes(range(32)))
    learner_with_parts(Store(tmp_path, signing_key=key))
    for model in (None, net("conv")):
        assert {finding.status for finding in verify(tmp_path, model, verify_key=key)} <= {"good", "orphan"}


def test_inspecting_shows_what_each_part_takes(tmp_path: Path) -> None:
    learner = learner_with_parts(tmp_path)
    tasks = {task["name"]: task for task in inspect.summary(tmp_path)["tasks"]}
    assert tasks["plain"]["precision"] == "int8"
    for name in NAMES:
        delta, shown = learner.tasks[name], tasks[name]
        assert shown["precision"] == "per part"
        assert shown["ranks"] == delta.ranks
        assert shown["dense"] == list(delta.dense)
        assert {key: part["bytes"] for key, part in shown["parts"].items()} == {
            key: part.bytes for key, part in delta.stored.items()
        }


def test_merged_weights_and_users_modules_predict_the_same() -> None:
    learner = learner_with_parts()
    for name in NAMES:
        expected = learner.predict(X, name)
        with torch.no_grad():
            # Merged weights are computed once and not in the order of the factored form.
            torch.testing.assert_close(learner.export(name)(X), expected, rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(learner.module(name)(X), expected, rtol=1e-5, atol=1e-5)


def test_rows_of_tasks_that_own_different_parts_are_one_batch() -> None:
    learner = learner_with_parts()
    names = [None, "plain", *NAMES]
    rows = [names[number % len(names)] for number in range(len(X))]
    mixed = learner.predict(X, rows)
    for number, name in enumerate(rows):
        alone = learner.predict(X[number : number + 1], name)[0]
        # Sums in another order: a few rounding units of logits of size one.
        torch.testing.assert_close(mixed[number, : len(alone)], alone, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("damage", ["cut", "changed"])
def test_a_damaged_file_is_named(tmp_path: Path, damage: str) -> None:
    learner_with_parts(tmp_path)
    file = tmp_path / Store(tmp_path).manifest().tasks["second"].file
    content = file.read_bytes()
    file.write_bytes(content[:-1] if damage == "cut" else content[:-1] + bytes([content[-1] ^ 1]))
    bad = [finding.file for finding in verify(tmp_path) if finding.status == "bad"]
    assert bad == [file.relative_to(tmp_path).as_posix()]


def test_a_task_of_parts_is_smaller_than_one_of_everything() -> None:
    base = Learner(net("conv"), recipe=FAST, base="given")._committed.ready
    head = {key: part for key, part in drawn_parts(base, 0).items() if key.startswith("plain/fc")}
    least = Delta.of_parts(Description(task="t", classes=3), base.layout, base.tensors, head)
    assert {*least.held_owned} == {"fc.weight", "fc.bias"}
    assert not least.held_factors
    assert len(task_file.write(least)) < 700
