"""Copies and pickles of a learner: the same bits on the same base, and nothing that they do reaches the original."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from halrp import Learner
from tests.helpers import FAST, NETS, address, net, tiny_task

COPIES: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda learner: pickle.loads(pickle.dumps(learner)),
}


def learned(kind: str, **settings: Any) -> Learner:
    """A learner with a base and a delta."""
    learner = Learner(net(kind), recipe=FAST, progress=None, **settings)
    learner.learn("base", tiny_task(kind))
    learner.learn("delta", tiny_task(kind, seed=1))
    return learner


@pytest.mark.parametrize("copied", COPIES)
@pytest.mark.parametrize("kind", NETS)
def test_a_copy_predicts_and_learns_the_same_bits(kind: str, copied: str) -> None:
    learner = learned(kind)
    other = COPIES[copied](learner)
    x, _ = tiny_task(kind, seed=2)
    for task in ("base", "delta", ["base", "delta"] * 12):
        assert torch.equal(other.predict(x, task), learner.predict(x, task))
    for each in (learner, other):
        each.learn("later", tiny_task(kind, seed=3))
    assert torch.equal(other.predict(x, "later"), learner.predict(x, "later"))


@pytest.mark.parametrize("copied", COPIES)
def test_a_copy_of_a_learner_without_a_base_learns_its_own(copied: str) -> None:
    learner = Learner(net("mlp"), recipe=FAST, progress=None)
    other = COPIES[copied](learner)
    other.learn("task", tiny_task("mlp"))
    assert not learner.tasks
    learner.learn("task", tiny_task("mlp"))
    x, _ = tiny_task("mlp", seed=2)
    assert torch.equal(other.predict(x, "task"), learner.predict(x, "task"))


@pytest.mark.parametrize("copied", COPIES)
def test_what_a_copy_changes_stays_in_it_and_out_of_the_store(copied: str, tmp_path: Path) -> None:
    learner = learned("mlp", store=tmp_path)
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    other = COPIES[copied](learner)
    other.learn("later", tiny_task("mlp", seed=3))
    other.learn("delta", tiny_task("mlp", seed=4), replace=True)
    other.remove("base")
    assert list(other.tasks) == ["delta", "later"]
    assert list(learner.tasks) == ["base", "delta"]
    assert other.versions("delta")
    assert not learner.versions("delta")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == files


def test_copies_read_the_base_in_the_same_memory() -> None:
    learner = learned("mlp")
    originals = [address(parameter) for parameter in learner.module("base").parameters()]
    assert [address(parameter) for parameter in copy.deepcopy(learner).module("base").parameters()] == originals
    pickled = pickle.loads(pickle.dumps(learner))
    assert not set(originals) & {address(parameter) for parameter in pickled.module("base").parameters()}


@pytest.mark.parametrize("copied", COPIES)
def test_callbacks_stay_with_the_original(copied: str) -> None:
    seen: list[str] = []
    learner = Learner(net("mlp"), recipe=FAST, progress=lambda at: seen.append(at.task))
    COPIES[copied](learner).learn("in the copy", tiny_task("mlp"))
    assert seen == []
    learner.learn("in the original", tiny_task("mlp"))
    assert set(seen) == {"in the original"}
