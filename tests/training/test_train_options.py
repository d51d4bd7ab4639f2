"""What the training loop offers beyond the plain one: SGD, rates by group, hooks, and left-out last batches."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from halrp import Halrp, Learner, Recipe, seeding
from halrp.errors import SettingError
from halrp.provenance import describe, recalled_recipe
from halrp.training.batches import InMemory
from halrp.training.checkpoint import Checkpoints
from halrp.training.evaluate import evaluate
from halrp.training.loop import Group, Hooks, Stage, Training
from halrp.training.prepare import prepare
from tests.helpers import digest, drawn, net, tiny_task

SEED_KEY = (0, "base", "task", "stage")
SGD = Recipe(epochs=3, batch=5, lr=1e-2, optimiser="sgd", momentum=0.9)
RECIPES = {
    "adam": Recipe(epochs=3, batch=5, lr=1e-2),
    "sgd": dataclasses.replace(SGD, momentum=0.0),
    "momentum": SGD,
}


def task(kind: str = "mlp", examples: int = 13, dtype: torch.dtype = torch.float32) -> InMemory:
    """A task whose batches of 5 are 5, 5 and 3."""
    x, y = tiny_task(kind, examples=examples)
    return InMemory(x.to(dtype), y)


def training(module: nn.Module, recipe: Recipe, data: Any = None, **hooks: Any) -> Training:
    groups = hooks.pop("groups", [Group(list(module.parameters()))])
    checkpoints = hooks.pop("checkpoints", None)
    stage = Stage(recipe.epochs, SEED_KEY, "birds", "warm-up")
    data = task() if data is None else data
    return Training(module, groups, data, recipe, stage, Hooks(**hooks), checkpoints=checkpoints)


@pytest.mark.parametrize("scale", [1.0, 10.0])
@pytest.mark.parametrize(("momentum", "l2"), [(0.0, 0.0), (0.9, 0.0), (0.9, 0.03)])
def test_sgd_is_the_textbook_rule(momentum: float, l2: float, scale: float) -> None:
    recipe = dataclasses.replace(SGD, momentum=momentum, gradient_scale=scale)
    data = task(dtype=torch.float64)
    ours, theirs = net("mlp").double(), net("mlp").double()
    training(ours, recipe, data, groups=[Group(list(ours.parameters()), l2=l2)]).run()
    velocity = [torch.zeros_like(p) for p in theirs.parameters()]
    step = 0
    for epoch in range(3):
        order = torch.randperm(13, generator=seeding.generator(*SEED_KEY, "order", epoch))
        for rows in order.split(5):
            theirs.zero_grad()
            F.cross_entropy(theirs(data.x[rows]), data.y[rows]).backward()
            with torch.no_grad():
                for v, p in zip(velocity, theirs.parameters(), strict=True):
                    assert p.grad is not None
                    v.mul_(momentum).add_(scale * (p.grad + l2 * p))
                    p.sub_(1e-2 * 0.95 ** (step * 5 / 13) * v)
            step += 1
    for result, expected in zip(ours.parameters(), theirs.parameters(), strict=True):
        # Nine steps in float64; each adds a few roundings of numbers of order one.
        torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("kind", ["mlp", "conv"])
def test_a_run_goes_on_from_its_checkpoint_to_the_bit(tmp_path: Path, name: str, kind: str) -> None:
    def begun(module: nn.Module, folder: str) -> Training:
        if kind == "conv":
            module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return training(module, RECIPES[name], task(kind), checkpoints=Checkpoints(tmp_path / folder, "key"))

    whole, first, second = net(kind), net(kind), net(kind)
    begun(whole, "whole").run()
    begun(first, "parts").run(until=2)
    resumed = begun(second, "parts")
    assert resumed.epoch == 2
    assert digest(second) == digest(first)
    resumed.run()
    assert digest(second) == digest(whole)


def test_a_momentum_that_starts_late_starts_from_zero() -> None:
    class Late(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.early, self.late = nn.Linear(10, 3), nn.Linear(10, 3)
            self.calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            y: Tensor = self.early(x)
            return y if self.calls <= 2 else y + self.late(x)

    module = drawn(Late)
    before = module.get_parameter("late.weight").detach().clone()
    gradients: list[Tensor] = []
    module.get_parameter("late.weight").register_hook(lambda gradient: gradients.append(gradient.clone()))
    training(module, SGD).run(until=1)
    moved = module.get_parameter("late.weight").detach() - before
    (gradient,) = gradients
    rate = SGD.rate(2, 9, 5, 13)
    # One step of float32 on weights of order one.
    torch.testing.assert_close(moved, -rate * gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", RECIPES)
def test_a_group_has_its_factor_on_the_learning_rate(name: str) -> None:
    module = net("mlp")
    first, *rest = module.parameters()
    rates: list[list[float]] = []

    def note() -> None:
        rates.append([group["lr"] for group in run._updates.optimiser.param_groups])

    groups = [Group([first], lr=0.5), Group([]), Group(rest[:2]), Group(rest[2:], lr=0.0)]
    still = [p.detach().clone() for p in rest[2:]]
    run = training(module, RECIPES[name], groups=groups, after_step=note)
    run.run()
    expected = [[0.5e-2 * f, 1e-2 * f, 0.0] for f in (0.95 ** (step * 5 / 13) for step in range(9))]
    assert [rate for step in rates for rate in step] == pytest.approx([r for step in expected for r in step], rel=1e-12)
    assert all(torch.equal(p.detach(), q) for p, q in zip(rest[2:], still, strict=True))


def test_hooks_run_at_every_step_between_gradient_and_parameters() -> None:
    module = net("mlp")
    weight = next(module.parameters())
    events: list[str] = []
    values: list[Tensor] = []

    def after_backward() -> None:
        assert weight.grad is not None
        events.append("backward")
        values.append(weight.detach().clone())
        weight.grad.zero_()

    def after_step() -> None:
        events.append("step")
        weight.clamp_(-0.1, 0.1)  # without gradient, or this would fail

    training(module, RECIPES["sgd"], after_backward=after_backward, after_step=after_step).run()
    assert events == ["backward", "step"] * 9
    assert torch.equal(values[0].clamp(-0.1, 0.1), weight.detach())
    assert not torch.equal(values[0], weight.detach())


def test_a_hook_sees_the_gradient_with_the_l1_penalty() -> None:
    module = net("mlp")
    weight = next(module.parameters())
    seen: list[Tensor] = []

    def note() -> None:
        assert weight.grad is not None
        seen.append(weight.grad.clone())

    def nothing(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return 0 * F.cross_entropy(module(x), y)

    signs = weight.detach().sign()
    groups = [Group([weight], l1=0.25)]
    training(module, RECIPES["sgd"], groups=groups, loss=nothing, after_backward=note).run(until=1)
    assert torch.equal(seen[0], 0.25 * signs)


@pytest.mark.parametrize("name", RECIPES)
def test_a_gradient_put_in_with_another_memory_format_is_the_same_gradient(name: str) -> None:
    def trained(put: Callable[[Tensor], Tensor]) -> str:
        module = net("conv").to(memory_format=torch.channels_last)  # type: ignore[call-overload]

        def replace() -> None:
            for parameter in module.parameters():
                parameter.grad = put(parameter.grad)

        training(module, RECIPES[name], task("conv"), after_backward=replace).run()
        return digest(module)

    assert trained(lambda g: g.contiguous()) == trained(lambda g: g)


def test_training_can_leave_out_the_last_batch() -> None:
    recipe = Recipe(epochs=2, batch=5, schedule="cosine", drop_last=True)
    data, sizes, rates = task(), [], []

    def loss(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        sizes.append(len(y))
        rates.append(run._updates.optimiser.param_groups[0]["lr"])
        return F.cross_entropy(module(x), y)

    run = training(net("mlp"), recipe, data, loss=loss)
    run.run()
    assert sizes == [5, 5] * 2
    assert rates == pytest.approx([1e-3 * 0.5 * (1 + math.cos(math.pi * step / 4)) for step in range(4)], rel=1e-12)
    assert not data.drop_last
    labels = torch.zeros(13, dtype=torch.long)
    assert evaluate(nn.Flatten(), InMemory(torch.eye(13), labels), 5)[1] == pytest.approx(1 / 13)


def test_leaving_out_the_only_batch_is_refused_with_both_numbers() -> None:
    recipe = Recipe(epochs=2, batch=14, drop_last=True)
    with pytest.raises(SettingError, match=r"birds: Recipe\(batch=14, drop_last=True\) leaves no batch of 13 examples"):
        training(net("mlp"), recipe)
    learner = Learner(net("mlp"), method=Halrp.budget(growth_per_task=0.9), recipe=recipe)
    x, y = tiny_task("mlp", examples=13)
    for source in ((x, y), list(zip(x, y, strict=True))):
        with pytest.raises(SettingError, match="13 examples"):
            learner.learn("birds", source)  # type: ignore[arg-type]
    assert not learner.tasks
    training(net("mlp"), dataclasses.replace(recipe, batch=13)).run()


def test_a_loader_of_the_users_own_keeps_its_last_batch() -> None:
    loader = DataLoader(TensorDataset(*tiny_task("mlp", examples=13)), batch_size=5)
    data = prepare(loader, name="birds", device=torch.device("cpu"), batch=99, drop_last=True)
    sizes: list[int] = []

    def loss(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        sizes.append(len(y))
        return F.cross_entropy(module(x), y)

    training(net("mlp"), Recipe(epochs=1, batch=99, drop_last=True), data, loss=loss).run()
    assert sizes == [5, 5, 3]


@pytest.mark.parametrize("name", ["sgd", "momentum"])
def test_a_learner_with_sgd_keeps_its_recipe_in_the_store(tmp_path: Path, name: str) -> None:
    recipe = dataclasses.replace(RECIPES[name], drop_last=True)
    learner = Learner(net("conv"), method=Halrp.budget(growth_per_task=0.9), recipe=recipe, store=tmp_path)
    for number, task_name in enumerate("ab"):
        learner.learn(task_name, tiny_task("conv", number))
    assert Learner.load(tmp_path, net("conv")).recipe == recipe


LATER = ("drop_last", "optimiser", "momentum")


@pytest.mark.parametrize("recipe", [Recipe(), Recipe(epochs=3, drop_last=True), SGD, Recipe(autocast=torch.bfloat16)])
def test_a_recipe_is_told_and_recalled(recipe: Recipe) -> None:
    reported = describe(recipe)
    assert recalled_recipe({"recipe": reported}) == recipe
    for name in LATER:  # settings of later versions are written only where they are not at their defaults
        assert (name in reported) == (getattr(recipe, name) != getattr(Recipe(), name))


def test_a_recipe_of_an_earlier_version_is_recalled() -> None:
    reported = {"type": "Recipe", "epochs": 7, "batch": 16, "lr": 0.01, "schedule": "cosine", "decay": 0.9}
    assert recalled_recipe({"recipe": reported}) == Recipe(epochs=7, batch=16, lr=0.01, schedule="cosine", decay=0.9)
