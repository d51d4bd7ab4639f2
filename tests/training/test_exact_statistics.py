"""Statistics of batch norms over all training data, against float64 on all of them at once."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from halrp import Halrp, Learner, Progress, Recipe
from halrp.training.batches import InMemory
from halrp.training.exact_statistics import ExactStatistics, Moments
from halrp.training.stage import supervised_loss
from halrp.training.stopping import Validation
from tests.helpers import FAST, digest, drawn, net, tiny_task
from tests.training.processes import together
from tests.training.runs import recipe, training


class TwoNorms(nn.Module):
    """Norms of images and of vectors, with dropout between them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.image = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.hidden, self.flat = nn.Linear(4, 6), nn.BatchNorm1d(6)
        self.dropout, self.fc = nn.Dropout(0.5), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.image(self.conv(x)).relu().mean((2, 3))
        return cast(Tensor, self.fc(self.flat(self.hidden(self.dropout(x))).relu()))


def norms(module: nn.Module) -> list[nn.BatchNorm2d]:
    return [m for m in module.modules() if isinstance(m, (nn.BatchNorm1d, nn.BatchNorm2d))]  # type: ignore[misc]


def inputs_of(module: TwoNorms, x: Tensor, sizes: list[int]) -> tuple[Tensor, Tensor]:
    """The inputs of both norms in float64, as channels by values; norms normalise by their batch."""
    parts = []
    for rows in x.double().split(sizes):
        first = F.conv2d(rows, module.conv.weight.double(), module.conv.bias.double())  # type: ignore[union-attr]
        weight, bias = module.image.weight.double(), module.image.bias.double()
        normal = F.batch_norm(first, None, None, weight, bias, training=True, eps=module.image.eps)
        second = F.linear(normal.relu().mean((2, 3)), module.hidden.weight.double(), module.hidden.bias.double())
        parts.append((first.transpose(0, 1).flatten(1), second.T))
    return torch.cat([a for a, _ in parts], 1), torch.cat([b for _, b in parts], 1)


def expected(module: nn.Module, x: Tensor, sizes: list[int]) -> list[Tensor]:
    """Mean and unbiased variance of each norm in turn."""
    with torch.no_grad():
        values = inputs_of(cast(TwoNorms, module), x, sizes)
    return [part for inputs in values for part in (inputs.mean(1), inputs.var(1, correction=1))]


def statistics(module: nn.Module) -> list[Tensor]:
    return [b.double() for norm in norms(module) for b in (norm.running_mean, norm.running_var)]  # type: ignore[union-attr]


def assert_exact(module: nn.Module, x: Tensor, sizes: list[int]) -> None:
    for result, reference in zip(statistics(module), expected(module, x, sizes), strict=True):
        # Forward passes in float32: a few hundred products of numbers of order one.
        torch.testing.assert_close(result, reference, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("settings", [{}, {"average": 0.5}, {"ema": 0.9}, {"accumulate": 2}, {"dropout": 0.5}])
def test_norms_have_the_mean_and_variance_of_all_rows_and_positions(settings: dict[str, Any]) -> None:
    module, (x, y) = drawn(TwoNorms), tiny_task("conv", examples=14)
    training(module, recipe(exact_statistics=True, **settings), data=InMemory(x, y)).run()
    assert_exact(module, x, [4, 4, 4, 2])
    assert [int(norm.num_batches_tracked) for norm in norms(module)] == [12, 12]  # type: ignore[arg-type]


def test_they_are_not_a_mean_of_the_variances_of_batches() -> None:
    x = torch.cat([torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0)) + 5 * i for i in range(3)])
    module = drawn(TwoNorms)
    training(module, recipe(exact_statistics=True, shuffle=False), data=InMemory(x, torch.arange(12) % 3)).run()
    assert_exact(module, x, [4, 4, 4])


def test_rows_that_a_last_batch_leaves_out_count_too() -> None:
    module, (x, y) = drawn(TwoNorms), tiny_task("conv", examples=14)
    training(module, recipe(exact_statistics=True, drop_last=True), data=InMemory(x, y)).run()
    assert_exact(module, x, [4, 4, 4, 2])


def test_moments_of_parts_are_those_of_all_values_however_large_their_mean() -> None:
    values = 1e4 + torch.randn(30, 2, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    moments = Moments()
    for part in values.split([7, 1, 22]):
        moments.add(part)
    rows = values.transpose(0, 1).flatten(1)
    assert moments.count == 150
    torch.testing.assert_close(moments.mean, rows.mean(1), rtol=1e-14, atol=0)
    torch.testing.assert_close(moments.variance, rows.var(1, correction=1), rtol=1e-9, atol=0)


def test_training_goes_on_from_running_statistics_and_parameters_are_those_without() -> None:
    plain, exact = drawn(TwoNorms), drawn(TwoNorms)
    training(plain, recipe(), "conv").run()
    run = training(exact, recipe(exact_statistics=True), "conv")
    for epoch in (1, 2, 3):
        run.run(epoch)
    assert all(map(torch.equal, plain.parameters(), exact.parameters()))
    assert not any(map(torch.equal, statistics(plain), statistics(exact)))
    run._train_mode()
    assert digest(plain) == digest(exact)


def test_a_pass_that_fails_leaves_the_statistics_of_training() -> None:
    module, (x, y) = drawn(TwoNorms).eval(), tiny_task("conv")
    before = digest(module)

    def loss(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        supervised_loss(net, x, y)
        raise RuntimeError

    with pytest.raises(RuntimeError):
        ExactStatistics(module, InMemory(x, y), loss, recipe(), "birds").measure()
    assert digest(module) == before
    assert not any(m.training or m._forward_pre_hooks for m in module.modules())


def test_frozen_statistics_and_norms_without_any_are_left_alone() -> None:
    frozen, before = drawn(TwoNorms), statistics(drawn(TwoNorms))
    training(frozen, recipe(exact_statistics=True), "conv", frozen_statistics=True).run()
    assert all(map(torch.equal, statistics(frozen), before))
    without = drawn(lambda: nn.Sequential(nn.Linear(10, 3), nn.BatchNorm1d(3, track_running_stats=False)))
    training(without, recipe(exact_statistics=True)).run()
    assert not dict(without.named_buffers())


def test_every_epoch_is_validated_with_them_and_the_best_is_left_with_its_own() -> None:
    module, seen = drawn(TwoNorms), list[list[Tensor]]()
    x, y = tiny_task("conv", examples=12)

    def validate(evaluated: nn.Module) -> Validation:
        assert_exact(evaluated, x, [4, 4, 4])
        seen.append(statistics(evaluated))
        return Validation(1.0, (0.5, 0.9, 0.7, 0.6)[len(seen) - 1])

    settings = recipe(epochs=4, exact_statistics=True, patience=2)
    training(module, settings, data=InMemory(x, y), validate=validate).run()
    assert len(seen) == 4
    assert all(map(torch.equal, statistics(module), seen[1]))


def test_epochs_that_are_only_shown_are_as_they_are_trained_and_take_no_pass() -> None:
    plain, module = drawn(TwoNorms), drawn(TwoNorms)
    shown: list[str] = []

    class Shown:
        validates = True

        def __call__(self, at: Progress) -> None:
            pass

    def validate(evaluated: nn.Module) -> Validation:
        shown.append(digest(evaluated))
        return Validation(1.0, 0.5)

    settings = recipe(exact_statistics=True, average=0.5)
    training(module, settings, "conv", validate=validate, notify=Shown()).run()
    run = training(plain, recipe(), "conv")
    assert shown == [digest(run.run(epoch).module) for epoch in (1, 2, 3)]
    assert digest(module) != shown[-1]


def test_a_loader_that_shuffles_gives_the_same_bits_again() -> None:
    x, y = tiny_task("conv")
    results = []
    for _ in range(2):
        learner = Learner(drawn(TwoNorms), recipe=dataclasses.replace(FAST, exact_statistics=True), progress=None)
        learner.learn("a", DataLoader(TensorDataset(x, y), batch_size=6, shuffle=True))
        results.append(digest(learner.module("a")))
    assert results[0] == results[1]


def test_two_processes_have_the_statistics_of_the_rows_of_both(tmp_path: Path) -> None:
    x, y = tiny_task("conv", examples=24)
    settings = Recipe(epochs=2, batch=8, lr=5e-3, exact_statistics=True)

    def work(_: int) -> list[Tensor]:
        learner = Learner(net("conv"), recipe=settings, progress=None, distributed=True)
        learner.learn("a", (x, y))
        seen: list[Tensor] = []
        module = learner.module("a")
        with torch.no_grad():  # the first norm's inputs depend on no other norm
            seen.append(module.get_submodule("features.0")(x).double())
        return [*statistics(module)[:2], seen[0]]

    first, second = together(work, tmp_path)
    mean, variance, values = first
    assert all(map(torch.equal, first, second))
    rows = values.transpose(0, 1).flatten(1)
    torch.testing.assert_close(mean, rows.mean(1), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(variance, rows.var(1, correction=1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rest", ["float32", "int8"])
def test_old_tasks_are_bit_identical_and_each_task_has_its_own(rest: Any) -> None:
    settings = Recipe(epochs=3, batch=8, lr=5e-3, average=0.5, exact_statistics=True, dropout=0.4)
    method = dataclasses.replace(Halrp.budget(growth_per_task=0.9), rest=rest)
    learner = Learner(net("conv"), method=method, recipe=settings, progress=None)
    logits: dict[str, Tensor] = {}
    x, _ = tiny_task("conv", 9)
    for number, name in enumerate("abcd"):
        learner.learn(name, tiny_task("conv", number), val=tiny_task("conv", 10 + number))
        logits[name] = learner.predict(x, name)
        for old, before in logits.items():
            assert torch.equal(learner.predict(x, old), before), old
    first = tiny_task("conv", 0)[0]
    inputs = learner.module("a").get_submodule("features.0")(first).detach().double()
    torch.testing.assert_close(statistics(learner.module("a"))[0], inputs.mean((0, 2, 3)), rtol=1e-5, atol=1e-6)
    assert not any(map(torch.equal, statistics(learner.module("b")), statistics(learner.module("c"))))
