"""Whether rows of a batch interact, decided by the structure of a model."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import cast

import pytest
import torch
from torch import Tensor, nn

from halrp.lab import backbones
from halrp.model.base import Base
from halrp.model.plan import plan
from halrp.model.views import clone
from tests.helpers import NETS, drawn, net, tiny_task
from tests.model.mixing import assert_close, each_row_alone, inputs, mixed_module, random_delta, task_views
from tests.model.row_codes import APART, TOGETHER


class Between(nn.Module):
    """Any code between a layer and a head."""

    def __init__(self, code: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.body, self.fc, self.code = nn.Linear(8, 8), nn.Linear(8, 3), code

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.fc(self.code(self.body(x))))


def reason_of(model: nn.Module, x: Tensor) -> str:
    return Base(clone(model).eval(), plan(model), channels_last=False).structure(x).reason


@pytest.mark.parametrize("kind", NETS)
def test_known_architectures_keep_their_rows_apart(kind: str) -> None:
    assert reason_of(net(kind), tiny_task(kind)[0]) == ""


@pytest.mark.parametrize("kind", ["lenet", "resnet18"])
def test_backbones_keep_their_rows_apart(kind: str) -> None:
    assert reason_of(backbones.build(kind), torch.zeros(2, 3, 32, 32)) == ""


def test_recurrent_layers_with_rows_first_keep_them_apart() -> None:
    class Lstm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.fc = nn.LSTM(8, 8, 2, batch_first=True, bidirectional=True), nn.Linear(16, 3)

        def forward(self, x: Tensor) -> Tensor:
            return cast(Tensor, self.fc(self.lstm(x)[0][:, -1]))

    assert reason_of(Lstm(), torch.zeros(4, 5, 8)) == ""


@pytest.mark.parametrize("code", APART)
def test_code_that_keeps_rows_apart_is_recognised_and_agrees_in_one_pass(code: str) -> None:
    model = drawn(lambda: Between(APART[code])).double()
    assert reason_of(model, inputs(6, 8)) == ""
    assert reason_of(clone(model).float(), inputs(6, 8, dtype=torch.float32)) == ""  # torch has other kernels for it
    made = plan(model)
    mixed = mixed_module(model, made, [random_delta(model, made, seed) for seed in range(3)])
    x, rows = inputs(6, 8), torch.arange(6) % 3
    got = mixed(x, rows)
    assert mixed.one_pass, mixed.reason
    assert_close(got, each_row_alone(task_views(model, made, mixed._deltas), x, rows))


@pytest.mark.parametrize("code", TOGETHER)
def test_code_in_which_rows_may_interact_is_refused_whatever_the_batch(code: str) -> None:
    assert reason_of(drawn(lambda: Between(TOGETHER[code])).double(), inputs(6, 8)) != ""


@pytest.mark.parametrize("code", ["mean of the batch for some inputs", "a branch on the numbers"])
def test_rows_that_interact_for_later_inputs_only_are_right_for_those_too(code: str) -> None:
    model = drawn(lambda: Between(TOGETHER[code])).double().eval()
    made = plan(model)
    deltas = [random_delta(model, made, seed) for seed in range(2)]
    mixed, rows = mixed_module(model, made, deltas), torch.tensor([0, 0, 1, 1])
    mixed(0.1 * inputs(4, 8), rows)
    x = 50 * inputs(4, 8)
    alone = [mixed(x[:2], torch.tensor([0, 0])), mixed(x[2:], torch.tensor([1, 1]))]
    torch.testing.assert_close(mixed(x, rows), torch.cat(alone))
    assert not mixed.one_pass


def test_a_trace_beside_other_threads_changes_nothing_for_them() -> None:
    model, x = net("transformer").eval(), tiny_task("transformer")[0]
    with torch.no_grad():
        expected = model(x)
    stop, wrong = threading.Event(), []

    def predict() -> None:
        while not stop.is_set():
            with torch.no_grad():
                if not torch.equal(model(x), expected):
                    wrong.append(1)

    thread = threading.Thread(target=predict)
    thread.start()
    try:
        for seed in range(5):
            assert reason_of(net("conv", seed), tiny_task("conv")[0]) == ""
    finally:
        stop.set()
        thread.join()
    assert not wrong
