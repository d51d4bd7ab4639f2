"""A given base is the same base in every process, however its head was drawn there."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from halrp import Halrp, Learner, Store
from halrp.errors import ConflictError, WrongBaseError
from halrp.model.base import Base
from halrp.tools.verify import verify
from tests.helpers import CLASSES, FAST, drawn, net, tiny_task

METHOD = Halrp.budget(bytes_per_task=4_000)


def pretrained(head_seed: int, classes: int = CLASSES, body_seed: int = 0) -> nn.Module:
    """A body that is the same in every process, and a head that is not."""
    model = net("mlp", body_seed)
    model[4] = drawn(lambda: nn.Linear(12, classes), head_seed)  # type: ignore[operator]
    return model


def learner(model: nn.Module, store: Path | None = None) -> Learner:
    return Learner(model, base="given", method=METHOD, recipe=FAST, store=store)


def test_processes_with_differently_drawn_heads_share_one_store(tmp_path: Path) -> None:
    x = tiny_task("mlp", 9)[0]
    first = learner(pretrained(1), tmp_path)
    first.learn("a", tiny_task("mlp", 1))
    before = first.predict(x, "a"), first.predict(x, None)
    second = learner(pretrained(2, classes=5), tmp_path)
    assert list(second.tasks) == ["a"]
    second.learn("b", tiny_task("mlp", 2, classes=2))
    # The base's own task answers with the head that the store holds.
    assert torch.equal(second.predict(x, None), before[1])
    assert not torch.equal(learner(pretrained(2)).predict(x, None), before[1])
    for seed in range(3):
        loaded = Learner.load(tmp_path, pretrained(seed))
        assert torch.equal(loaded.predict(x, "a"), before[0])
        assert torch.equal(loaded.predict(x, None), before[1])
        assert torch.equal(loaded.predict(x, "b"), second.predict(x, "b"))
    assert {finding.status for finding in verify(tmp_path, pretrained(7))} == {"good"}


def test_a_task_does_not_depend_on_how_the_head_of_a_given_base_was_drawn() -> None:
    x = tiny_task("mlp", 9)[0]
    outputs = []
    for model in (pretrained(1), pretrained(2, classes=6)):
        learned = learner(model)
        learned.learn("a", tiny_task("mlp", 1))
        outputs.append(learned.predict(x, "a"))
    assert torch.equal(*outputs)


def test_stores_of_differently_drawn_heads_are_merged(tmp_path: Path) -> None:
    x = tiny_task("mlp", 9)[0]
    learners = {}
    for seed, name in enumerate("ab"):
        learners[name] = learner(pretrained(seed), tmp_path / name)
        learners[name].learn(name, tiny_task("mlp", seed))
    assert Store(tmp_path / "a").merge(tmp_path / "b") == ("b",)
    merged = Learner.load(tmp_path / "a", pretrained(5))
    assert all(torch.equal(merged.predict(x, name), learners[name].predict(x, name)) for name in "ab")


@pytest.mark.parametrize("given", [False, True])
def test_another_body_is_refused_by_the_names_of_its_weights(tmp_path: Path, given: bool) -> None:
    model = pretrained(1)
    stored = Learner(model, base="given" if given else "first", method=METHOD, recipe=FAST, store=tmp_path)
    stored.learn("a", tiny_task("mlp", 1))
    body = stored._committed.ready.module
    same = pretrained(2)
    same.load_state_dict({n: t for n, t in body.state_dict().items() if not n.startswith("4.")}, strict=False)
    learner(same, tmp_path)
    with torch.no_grad():
        same[2].bias[3] += 1e-6  # type: ignore[index]
    with pytest.raises(WrongBaseError, match=r"differs in 2\.bias; pass the model .* or use Learner\.load"):
        learner(same, tmp_path)
    with pytest.raises(ConflictError, match="another base"):
        learner(same).save(tmp_path)


def test_a_first_task_names_its_base_with_the_head_it_trained() -> None:
    first = Learner(pretrained(1), method=METHOD, recipe=FAST)
    first.learn("a", tiny_task("mlp", 1))
    base = first._committed.ready
    assert base.counts_head
    assert base.fingerprint != base.fingerprint_without_head
    whole = Base(base.module, base.plan, base.channels_last)
    assert whole.fingerprint == base.fingerprint


def test_a_store_without_a_manifest_is_made_again_with_the_same_fingerprint(tmp_path: Path) -> None:
    stored = learner(pretrained(1), tmp_path)
    stored.learn("a", tiny_task("mlp", 1))
    before = Store(tmp_path).manifest()
    (tmp_path / "manifest.json").unlink()
    statuses = {finding.file: finding.status for finding in verify(tmp_path)}
    assert [file for file, status in statuses.items() if status == "bad"] == ["manifest.json"]
    Store(tmp_path).repair()
    after = Store(tmp_path).manifest()
    assert (after.fingerprint, after.counts_head, after.tasks) == (before.fingerprint, False, before.tasks)


def test_a_base_that_is_saved_without_a_task_is_verified_and_shared(tmp_path: Path) -> None:
    learner(pretrained(1)).save(tmp_path)
    assert {finding.status for finding in verify(tmp_path)} == {"good"}
    learner(pretrained(2), tmp_path).learn("a", tiny_task("mlp", 1))
    assert list(Learner.load(tmp_path, pretrained(3)).tasks) == ["a"]
