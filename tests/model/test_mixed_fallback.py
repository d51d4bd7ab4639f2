"""Models that one pass cannot serve: they are named, and a mixed batch goes task by task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import pytest
import torch
from torch import Tensor, nn

from halrp import Delta, Plan
from halrp.model.base import Base
from halrp.model.per_task import Structure
from halrp.model.plan import plan as plan_of
from halrp.model.views import task_view
from tests.helpers import drawn
from tests.model.mixing import (
    around,
    assert_close,
    inputs,
    mixed_module,
    random_delta,
)


class SequenceFirst(nn.Module):
    """Works on (length, rows, features) where a layer needs its rows first."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 8)
        self.slope = nn.PReLU()
        self.fc = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.fc(self.slope(self.body(x).transpose(0, 1)).mean(0)))


class Centred(SequenceFirst):
    """Subtracts the mean of the batch, so that rows depend on each other."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x.mean(1))
        return cast(Tensor, self.fc(y - y.mean(0)))


class Hooked(SequenceFirst):
    """Changes a layer's output in a hook."""

    def __init__(self) -> None:
        super().__init__()
        self.body.register_forward_hook(lambda _module, _inputs, y: 2 * y)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.fc(self.body(x.mean(1)).tanh()))


def batch_statistics() -> nn.Module:
    norm = nn.BatchNorm1d(6, track_running_stats=False)
    return nn.Sequential(nn.Linear(8, 8), norm, nn.Flatten(), nn.Linear(48, 3))


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "hooks": (Hooked, "hooks"),
    "batch statistics": (batch_statistics, "statistics of the batch"),
}
NOTICED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "sequence first": (SequenceFirst, "slope sees an input of shape"),
    "rows that depend on each other": (Centred, "combines rows"),
}


def by_groups(model: nn.Module, plan: Plan, deltas: Sequence[Delta], x: Tensor, rows: Tensor) -> Tensor:
    """Each task's rows together through its own view."""
    logits = x.new_empty(len(x), 3)
    with torch.no_grad():
        for task, delta in enumerate(deltas):
            view = task_view(model, plan, delta.factors, delta.owned, delta.classes)
            logits[rows == task] = view(x[rows == task])
    return logits


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_mixed_is_named_at_once_and_goes_task_by_task(kind: str) -> None:
    build, reason = REFUSED[kind]
    check_fallback(build, reason, at_once=True)


@pytest.mark.parametrize("kind", NOTICED)
def test_what_turns_out_not_to_mix_goes_task_by_task_from_the_first_batch_on(kind: str) -> None:
    build, reason = NOTICED[kind]
    check_fallback(build, reason, at_once=False)


def check_fallback(build: Callable[[], nn.Module], reason: str, at_once: bool, count: int = 9) -> None:
    model = drawn(build).double().eval()
    plan = plan_of(model)
    deltas = [random_delta(model, plan, seed) for seed in range(3)]
    mixed = mixed_module(model, plan, deltas)
    assert mixed.one_pass is not at_once
    x, rows = inputs(count, 6, 8), torch.arange(count).flip(0) % 3
    expected = by_groups(model, plan, deltas, x, rows)
    for _ in range(2):
        assert_close(mixed(x, rows), expected)
        assert not mixed.one_pass
        assert reason in mixed.reason


def test_a_sequence_as_long_as_the_batch_is_not_taken_for_its_rows() -> None:
    check_fallback(SequenceFirst, "rows in dimension 1", at_once=False, count=6)


@pytest.mark.parametrize("build", [Centred, SequenceFirst])
def test_the_comparison_of_the_first_batch_catches_what_the_structure_would_not(
    build: Callable[[], nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Base, "structure", lambda *_: Structure())
    check_fallback(build, "differed", at_once=False, count=6)


def test_a_later_batch_of_another_shape_can_still_fall_back() -> None:
    class Sometimes(SequenceFirst):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) if x.shape[1] > 1 else cast(Tensor, self.fc(self.body(x[:, 0]).tanh()))

    model = drawn(Sometimes).double().eval()
    plan = plan_of(model)
    deltas = [random_delta(model, plan, seed) for seed in range(3)]
    mixed, rows = mixed_module(model, plan, deltas), torch.arange(9) % 3
    for length in (1, 1, 4):
        assert mixed.one_pass
        x = inputs(9, length, 8)
        assert_close(mixed(x, rows), by_groups(model, plan, deltas, x, rows))
    assert not mixed.one_pass


def test_inputs_that_no_task_can_take_raise_the_models_own_error_and_change_nothing() -> None:
    model, plan = around(lambda: nn.Linear(10, 9), 10)
    mixed = mixed_module(model, plan, [random_delta(model, plan, seed) for seed in range(2)])
    for _ in range(2):
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            mixed(inputs(4, 11), torch.tensor([0, 1, 0, 1]))
        assert mixed.one_pass
        mixed(inputs(4, 10), torch.tensor([0, 1, 0, 1]))
