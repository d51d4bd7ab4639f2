"""The training loop against hand-written torch loops: bit-identical where the arithmetic is, else in float64."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from halrp import Progress, Recipe, seeding
from halrp.errors import DivergedError, SettingError
from halrp.training.batches import InMemory
from halrp.training.evaluate import evaluate
from halrp.training.loop import Group, Hooks, Stage, Training
from halrp.training.prepare import prepare
from halrp.training.progress import Notify
from tests.helpers import digest, drawn, net, tiny_task

SEED_KEY = (0, "base", "task", "stage")
RECIPE = Recipe(epochs=3, batch=5, lr=1e-2)


def task(kind: str = "mlp", examples: int = 13, dtype: torch.dtype = torch.float32) -> InMemory:
    """A task whose batches of 5 are 5, 5 and 3."""
    x, y = tiny_task(kind, examples=examples)
    return InMemory(x.to(dtype), y)


def training(
    module: nn.Module,
    data: Any,
    recipe: Recipe = RECIPE,
    groups: Iterable[Group] | None = None,
    seed_key: tuple[object, ...] = SEED_KEY,
    notify: Notify | None = None,
    **hooks: Any,
) -> Training:
    groups = [Group(list(module.parameters()))] if groups is None else groups
    stage = Stage(recipe.epochs, seed_key, "birds", "warm-up")
    return Training(module, groups, data, recipe, stage, Hooks(**hooks), notify)


def by_hand(
    module: nn.Module,
    data: InMemory,
    recipe: Recipe,
    rate: Callable[[int], float],
    loss: Callable[[nn.Module, Tensor, Tensor], Tensor] | None = None,
    fused: bool = True,
) -> None:
    """A plain loop, every line of it torch's own."""
    optimiser = torch.optim.Adam(module.parameters(), lr=recipe.lr, fused=fused)
    module.train()
    step = 0
    for epoch in range(recipe.epochs):
        order = torch.arange(data.examples)
        if recipe.shuffle:
            order = torch.randperm(data.examples, generator=seeding.generator(*SEED_KEY, "order", epoch))
        for rows in order.split(recipe.batch):
            for group in optimiser.param_groups:
                group["lr"] = rate(step)
            optimiser.zero_grad()
            value = (
                F.cross_entropy(module(data.x[rows]), data.y[rows])
                if loss is None
                else loss(module, data.x[rows], data.y[rows])
            )
            value.backward()
            optimiser.step()
            step += 1
    module.eval()


@pytest.mark.parametrize("kind", ["mlp", "conv"])
@pytest.mark.parametrize("shuffle", [True, False])
def test_a_run_is_a_plain_loop_to_the_bit(kind: str, shuffle: bool) -> None:
    recipe = dataclasses.replace(RECIPE, shuffle=shuffle)
    ours, theirs, data = net(kind), net(kind), task(kind)
    training(ours, data, recipe).run()
    by_hand(theirs, data, recipe, lambda step: 1e-2 * math.pow(0.95, step * 5 / 13))
    assert digest(ours) == digest(theirs)
    assert digest(ours) != digest(net(kind))


def seen(data: Any, recipe: Recipe) -> tuple[list[float], list[Tensor]]:
    """The learning rates that the optimiser used and the labels of each batch, step by step."""
    module = net("mlp")
    rates: list[float] = []
    labels: list[Tensor] = []

    def loss(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        rates.append(run._updates.optimiser.param_groups[0]["lr"])
        labels.append(y)
        return F.cross_entropy(module(x), y)

    run = training(module, data, recipe, loss=loss)
    run.run()
    return rates, labels


def test_the_exponential_schedule_falls_by_its_factor_per_pass_step_by_step() -> None:
    rates, _ = seen(task(examples=20), Recipe(epochs=3, batch=5, lr=0.1, decay=0.95))
    assert rates == pytest.approx([0.1 * 0.95 ** (step / 4) for step in range(12)], rel=1e-12)
    assert rates[8] == pytest.approx(0.1 * 0.95**2, rel=1e-12)


def test_decay_examples_set_what_counts_as_a_pass() -> None:
    rates, _ = seen(task(examples=20), Recipe(epochs=2, batch=5, lr=0.1, decay=0.5, decay_examples=10))
    assert rates == pytest.approx([0.1 * 0.5 ** (step / 2) for step in range(8)], rel=1e-12)


def test_a_task_smaller_than_a_batch_still_falls_by_its_factor_per_pass() -> None:
    rates, _ = seen(task(examples=20), Recipe(epochs=3, batch=128, lr=0.1, decay=0.5))
    assert rates == pytest.approx([0.1, 0.05, 0.025], rel=1e-12)


def test_a_loader_falls_by_its_factor_per_pass_whatever_the_recipes_batch() -> None:
    x, y = tiny_task("mlp", examples=20)
    loader = DataLoader(TensorDataset(x, y), batch_size=4)
    data = prepare(loader, name="task", device=torch.device("cpu"), batch=128)
    rates, _ = seen(data, Recipe(epochs=2, batch=128, lr=0.1, decay=0.5))
    assert rates == pytest.approx([0.1 * 0.5 ** (step / 5) for step in range(10)], rel=1e-12)


def test_the_cosine_schedule_falls_from_the_rate_to_zero_over_the_stage() -> None:
    rates, _ = seen(task(examples=20), Recipe(epochs=2, batch=5, lr=0.1, schedule="cosine"))
    assert rates == pytest.approx([0.05 * (1 + math.cos(math.pi * step / 8)) for step in range(8)], rel=1e-12)
    assert rates[0] == 0.1
    assert rates[4] == pytest.approx(0.05)


def test_the_constant_schedule_is_constant() -> None:
    rates, _ = seen(task(), Recipe(epochs=2, batch=5, lr=0.1, schedule="constant"))
    assert set(rates) == {0.1}


def test_without_shuffling_every_epoch_keeps_the_stored_order() -> None:
    data = InMemory(torch.randn(12, 10, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 3)
    _, labels = seen(data, Recipe(epochs=2, batch=5, shuffle=False))
    assert torch.equal(torch.cat(labels), data.y.repeat(2))


def test_shuffling_draws_a_new_order_of_all_examples_for_every_epoch() -> None:
    data = InMemory(torch.arange(12.0).unsqueeze(1).expand(12, 10).clone(), torch.arange(12) % 3)
    inputs: list[Tensor] = []

    def loss(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        inputs.append(x[:, 0])
        return F.cross_entropy(module(x), y)

    training(net("mlp"), data, Recipe(epochs=2, batch=5), loss=loss).run()
    first, second = torch.cat(inputs).split(12)
    assert sorted(first.tolist()) == sorted(second.tolist()) == data.x[:, 0].tolist()
    assert not torch.equal(first, second)


PENALTY: dict[str, Any] = {"rtol": 1e-12, "atol": 1e-12}
"""Nine steps of Adam in float64; each adds a few roundings of numbers of order one."""


@pytest.mark.parametrize("scale", [1.0, 10.0])
@pytest.mark.parametrize(("l1", "l2"), [(0.0, 0.03), (0.02, 0.0), (0.02, 0.03)])
def test_penalties_are_the_gradients_of_their_formulas(l1: float, l2: float, scale: float) -> None:
    recipe = dataclasses.replace(RECIPE, gradient_scale=scale)
    data = task(dtype=torch.float64)
    ours, theirs = net("mlp").double(), net("mlp").double()
    first, rest = list(ours.parameters())[:1], list(ours.parameters())[1:]
    training(ours, data, recipe, [Group(first, l1=l1, l2=l2), Group(rest)]).run()

    def penalised(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        weight = next(module.parameters())
        penalty = l1 * weight.abs().sum() + l2 / 2 * weight.square().sum()
        return scale * (F.cross_entropy(module(x), y) + penalty)

    by_hand(theirs, data, recipe, lambda step: 1e-2 * 0.95 ** (step * 5 / 13), penalised, fused=False)
    for result, expected in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(result, expected, **PENALTY)
    free = net("mlp").double()
    training(free, data, recipe).run()
    assert not torch.allclose(next(ours.parameters()), next(free.parameters()), rtol=1e-4)


def test_a_penalty_does_not_touch_an_entry_at_zero_by_l1_nor_a_parameter_without_gradient() -> None:
    class Idle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.idle = nn.Linear(10, 3), nn.Parameter(torch.ones(4))

        def forward(self, x: Tensor) -> Any:
            return self.fc(x)

    module = drawn(Idle)
    training(module, task(), groups=[Group(list(module.parameters()), l1=0.1, l2=0.1)]).run()
    assert torch.equal(module.get_parameter("idle").detach(), torch.ones(4))


def test_adam_feels_the_gradients_scale_only_through_its_epsilon() -> None:
    data = task(dtype=torch.float64)
    plain, scaled = net("mlp").double(), net("mlp").double()
    training(plain, data).run()
    training(scaled, data, dataclasses.replace(RECIPE, gradient_scale=10.0)).run()
    pairs = zip(plain.parameters(), scaled.parameters(), strict=True)
    changes = [float((first - other).detach().abs().max()) for first, other in pairs]
    # Nine steps of at most 1e-2, each changed by about eps / |gradient| = 1e-8 / 1e-5 where a gradient is tiny.
    assert 0 < max(changes) < 1e-4


def test_a_run_in_parts_is_one_run() -> None:
    whole, parts, data = net("transformer"), net("transformer"), task("transformer")
    training(whole, data).run()
    run = training(parts, data)
    assert run.run(until=1).epoch == 1
    torch.rand(3)
    assert run.run(until=2).epoch == 2
    assert run.run(until=99).epoch == 3
    run.run()
    assert digest(whole) == digest(parts)


def test_dropout_masks_are_functions_of_the_seed_key_alone() -> None:
    def trained(seed_key: tuple[object, ...], noise: int) -> str:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(noise)
            module = net("transformer")
            training(module, task("transformer"), dataclasses.replace(RECIPE, shuffle=False), seed_key=seed_key).run()
            return digest(module)

    assert trained(SEED_KEY, 1) == trained(SEED_KEY, 2)
    assert trained(SEED_KEY, 1) != trained((1, *SEED_KEY[1:]), 1)


def test_every_epoch_has_dropout_masks_of_its_own() -> None:
    masks: list[Tensor] = []

    def loss(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        masks.append(F.dropout(torch.ones(50)))
        return F.cross_entropy(module(x), y)

    training(net("mlp"), task(), Recipe(epochs=2, batch=13), loss=loss).run()
    assert len(masks) == 2
    assert not torch.equal(*masks)


def test_a_run_leaves_the_global_generator_and_the_evaluation_mode() -> None:
    module, state = net("transformer"), torch.get_rng_state()
    run = training(module, task("transformer"))
    assert torch.equal(torch.get_rng_state(), state)
    run.run(until=1)
    assert not any(layer.training for layer in module.modules())
    run.run()
    assert not any(layer.training for layer in module.modules())
    assert torch.equal(torch.get_rng_state(), state)


def test_progress_is_told_at_every_epoch_with_the_mean_loss_of_its_examples() -> None:
    events: list[Progress] = []
    data, losses = task(), []

    def loss(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        value = F.cross_entropy(module(x), y)
        losses.append((len(y), float(value.detach())))
        return value

    training(net("mlp"), data, notify=events.append, loss=loss).run()
    assert [(e.task, e.stage, e.epoch, e.epochs, e.step, e.steps) for e in events] == [
        ("birds", "warm-up", epoch, 3, 0, 3) for epoch in (1, 2, 3)
    ]
    for number, event in enumerate(events):
        batches = losses[3 * number : 3 * number + 3]
        # A float32 sum of three terms.
        assert event.loss == pytest.approx(sum(n * value for n, value in batches) / 13, rel=1e-6)
    seconds = [event.seconds for event in events]
    assert seconds == sorted(seconds)


def test_progress_inside_an_epoch_counts_its_steps_and_has_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Training, "REPORT_EVERY", -1.0)
    events: list[Progress] = []
    training(net("mlp"), task(), notify=events.append).run(until=2)
    assert [(e.epoch, e.step, e.loss is None) for e in events] == [
        (0, 1, True),
        (0, 2, True),
        (0, 3, True),
        (1, 0, False),
        (1, 1, True),
        (1, 2, True),
        (1, 3, True),
        (2, 0, False),
    ]


def test_a_loss_that_is_not_finite_is_an_error_that_names_task_stage_and_remedy() -> None:
    module = net("mlp")
    state = torch.get_rng_state()

    def loss(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(module(x), y) * math.inf

    with pytest.raises(DivergedError) as failure:
        training(module, task(), loss=loss).run()
    for part in ("birds", "warm-up", "epoch 1 of 3", "lr=0.01"):
        assert part in str(failure.value)
    assert not module.training
    assert torch.equal(torch.get_rng_state(), state)


def test_training_in_lower_precision_keeps_the_parameters_type() -> None:
    module = net("mlp")
    training(module, task(), dataclasses.replace(RECIPE, autocast=torch.bfloat16)).run()
    assert {p.dtype for p in module.parameters()} == {torch.float32}
    exact = net("mlp")
    training(exact, task()).run()
    assert digest(module) != digest(exact)


def test_evaluation_gives_the_mean_loss_and_the_share_of_hits() -> None:
    module, data = net("conv").eval(), task("conv")
    loss, accuracy = evaluate(module, data, batch=5)
    with torch.no_grad():
        logits = module(data.x)
    assert loss == pytest.approx(float(F.cross_entropy(logits, data.y)), rel=1e-5)
    assert accuracy == pytest.approx(float((logits.argmax(1) == data.y).float().mean()))


@pytest.mark.parametrize(
    "settings",
    [
        {"epochs": 0},
        {"epochs": 2.5},
        {"batch": 0},
        {"lr": 0.0},
        {"lr": math.inf},
        {"lr": math.nan},
        {"decay": 0.0},
        {"decay": 1.1},
        {"decay_examples": 0},
        {"decay_examples": -5.0},
        {"gradient_scale": 0.0},
        {"gradient_scale": math.inf},
        {"momentum": 1.0},
        {"momentum": -0.1},
        {"momentum": 0.9},
        {"optimiser": "adagrad"},
        {"schedule": "linear"},
    ],
)
def test_a_recipe_that_no_training_could_use_is_refused_by_name_with_a_remedy(settings: dict[str, Any]) -> None:
    name, value = next(iter(settings.items()))
    with pytest.raises(SettingError) as refusal:
        Recipe(**settings)
    assert f"{name}={value!r}" in str(refusal.value)
    assert "give" in str(refusal.value) or "choose" in str(refusal.value)


def test_a_recipe_is_frozen_and_hashable() -> None:
    assert len({Recipe(), Recipe(), Recipe(epochs=3)}) == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        Recipe().epochs = 3  # type: ignore[misc]
