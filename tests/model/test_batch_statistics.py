"""Models that normalise by the statistics of the batch, through the whole library.

In evaluation a row's logits depend on the rows beside it, so what is promised is about batches: the same batch gives
the same logits, and a row is only ever normalised with rows of its own task.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from halrp import Halrp, Learner, Recipe
from halrp.errors import BatchOfOneError, DataError
from halrp.lab.backbones import build
from halrp.model.plan import plan
from tests.helpers import drawn
from tests.model.mixing import base_task, mixed_module
from tests.store.stores import snapshot

METHOD = Halrp.budget(growth_per_task=0.5)
RECIPE = Recipe(epochs=2, batch=8, lr=5e-3)


def model(classes: int = 3) -> nn.Module:
    return build("digits-net", classes, statistics="batch")


def task(seed: int, examples: int = 24, classes: int = 3, pixels: int = 8) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    patterns = torch.randn(classes, 1, pixels, pixels, generator=generator)
    y = torch.arange(examples) % classes
    return patterns[y] + 0.3 * torch.randn(examples, 1, pixels, pixels, generator=generator), y


def learned(names: str = "abc") -> Learner:
    learner = Learner(model(), method=METHOD, recipe=RECIPE)
    for number, name in enumerate(names):
        learner.learn(name, task(number, classes=3 + number % 2), val=task(9, classes=3))
    return learner


@pytest.fixture(scope="module")
def learner() -> Learner:
    """Three tasks, of three, four and three classes; tests only look at it."""
    return learned()


X = task(20, examples=12)[0]


@pytest.mark.parametrize("name", ["a", "b", None])
def test_the_same_batch_twice_gives_the_same_logits_and_other_companions_others(
    learner: Learner, name: str | None
) -> None:
    logits = learner.predict(X, name)
    assert torch.equal(learner.predict(X, name), logits)
    assert not torch.allclose(learner.predict(X[:6], name), logits[:6], atol=1e-3)


def test_a_task_normalises_by_its_batch_as_its_module_and_its_export_do(learner: Learner) -> None:
    for name in ("a", "b"):
        logits = learner.predict(X, name)
        with torch.no_grad():
            torch.testing.assert_close(learner.module(name)(X), logits, rtol=1e-5, atol=1e-5)
            exported = learner.export(name)
            norms = [m for m in exported.modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d)]
            assert len(norms) == 3
            assert not any(norm.training or norm.track_running_stats for norm in norms)
            # Merged weights round differently, and a norm divides by a deviation of order one.
            torch.testing.assert_close(exported(X), logits, rtol=1e-4, atol=1e-4)


def test_a_task_learns_what_its_batches_show() -> None:
    learner = Learner(model(), method=METHOD, recipe=Recipe(epochs=12, batch=8, lr=1e-2))
    for number, name in enumerate("ab"):
        learner.learn(name, task(number, 48), val=task(number, 48))
        x, y = task(number, 48)
        assert float((learner.predict(x, name).argmax(1) == y).float().mean()) > 0.9


def test_tasks_own_no_statistics_and_come_back_from_a_store_to_the_bit(learner: Learner, tmp_path: Path) -> None:
    assert not any("running" in key or "batches" in key for d in learner.tasks.values() for key in d.plain)
    learner.save(tmp_path / "one")
    loaded = Learner.load(tmp_path / "one", model())
    rows = ["a", "b", "c", None] * 3
    for name in ("a", "b", "c", None, rows):
        assert torch.equal(loaded.predict(X, name), learner.predict(X, name))
    loaded.save(tmp_path / "two")
    assert snapshot(tmp_path / "one") == snapshot(tmp_path / "two")


def test_later_tasks_change_nothing_of_earlier_ones() -> None:
    learner = learned("ab")
    before = {name: learner.predict(X, name) for name in ("a", "b", None)}
    learner.learn("later", task(7))
    assert all(torch.equal(learner.predict(X, name), logits) for name, logits in before.items())


@pytest.mark.parametrize("batch", [512, 4, 3])
def test_rows_of_a_mixed_batch_are_normalised_by_the_rows_of_their_own_task(learner: Learner, batch: int) -> None:
    x = torch.cat([X, task(21, examples=9)[0]])
    rows = list("cabcacabbabbabcabbabb")
    assert [rows.count(name) for name in "abc"] == [7, 10, 4]
    mixed = learner.predict(x, rows, batch=batch)
    for name in "abc":
        index = torch.tensor([i for i, row in enumerate(rows) if row == name])
        alone = learner.predict(x[index], name, batch=batch)
        assert torch.equal(mixed[index, : alone.shape[1]], alone)
        assert bool((mixed[index, alone.shape[1] :] == -torch.inf).all())


def test_a_single_row_of_a_task_in_a_mixed_batch_is_refused_by_name(learner: Learner) -> None:
    with pytest.raises(BatchOfOneError, match=r"single row of 'b'.*two rows or more of each task"):
        learner.predict(X[:5], ["a", "a", "b", "c", "c"])


def test_a_single_row_is_refused_and_a_last_one_joins_the_batch_before_it(learner: Learner) -> None:
    with pytest.raises(BatchOfOneError, match=r"single row of 'a'.*statistics of the batch"):
        learner.predict(X[:1], "a")
    with pytest.raises(BatchOfOneError, match="single row of the base's own task"):
        learner.predict(X[:1], None)
    logits = learner.predict(X[:9], "b", batch=4)
    assert torch.equal(logits, torch.cat([learner.predict(X[:4], "b"), learner.predict(X[4:9], "b")]))


def test_a_row_whose_norms_see_many_positions_may_come_alone() -> None:
    layers = [nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8, track_running_stats=False), nn.ReLU(), nn.Conv2d(8, 8, 3)]
    net = drawn(lambda: nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)))
    learner = Learner(net, method=METHOD, recipe=RECIPE)
    learner.learn("a", task(0))
    learner.learn("b", task(1))
    assert torch.equal(learner.predict(X[:2], ["b", "a"])[:1], learner.predict(X[:1], "b"))


def test_other_errors_of_a_model_stay_what_they_are() -> None:
    class Picky(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            if x.shape[-1] == 5:
                raise ValueError("five")
            result: Tensor = super().forward(x)
            return result

    net = drawn(lambda: Picky(nn.Flatten(), nn.Linear(64, 12), nn.Linear(12, 3)))
    learner = Learner(net, method=METHOD, recipe=RECIPE, base="given")
    with pytest.raises(ValueError, match=r"^five$"):
        learner.predict(torch.zeros(1, 1, 8, 5), None)


def test_validation_data_without_statistics_are_refused_before_anything_is_trained() -> None:
    learner = Learner(model(), method=METHOD, recipe=RECIPE)
    x, y = task(0)
    with pytest.raises(BatchOfOneError, match="a: val"):
        learner.learn("a", (x, y), val=(x[:1], y[:1]))
    assert not learner.tasks
    running = Learner(build("digits-net", 3), method=METHOD, recipe=RECIPE)
    running.learn("a", (x, y), val=(x[:1], y[:1]))


def test_a_net_with_dropout_is_a_function_of_seed_and_task_alone() -> None:
    def dropping() -> nn.Module:
        norm = nn.BatchNorm1d(12, track_running_stats=False)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), norm, nn.ReLU(), nn.Dropout(0.5), nn.Linear(12, 3))

    def learn(names: str, seed: int = 0) -> Learner:
        learner = Learner(drawn(dropping), method=METHOD, recipe=RECIPE, base="given", seed=seed)
        for name in names:
            learner.learn(name, task(ord(name)))
            torch.rand(1)
        return learner

    with torch.random.fork_rng(devices=[]):
        second, alone, reseeded = learn("ab"), learn("b"), learn("b", seed=1)
    logits = second.predict(X, "b")
    assert torch.equal(second.predict(X, "b"), logits)  # dropout is off
    assert torch.equal(alone.predict(X, "b"), logits)
    assert not torch.equal(reseeded.predict(X, "b"), logits)


def test_rows_are_checked_where_batches_go_task_by_task() -> None:
    net = model().eval()
    mixed = mixed_module(net, plan(net, "head"), [base_task(net, plan(net, "head"))])
    assert "statistics of the batch" in mixed.reason
    for rows in (torch.tensor([0, 1]), torch.tensor([-1, 0]), torch.tensor([0]), torch.tensor([0.0, 0.0])):
        with pytest.raises(DataError, match="rows"):
            mixed.batched(X[:2], rows, batch=8)
