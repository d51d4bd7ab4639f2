"""Whether rows of a batch interact, decided by the structure of a model."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import cast

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from halrp.lab import backbones
from halrp.model.base import Base
from halrp.model.plan import plan
from halrp.model.views import clone
from tests.helpers import NETS, drawn, net, tiny_task
from tests.model.mixing import inputs, mixed_module, random_delta


class Between(nn.Module):
    """Any code between a layer and a head."""

    def __init__(self, code: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.body, self.fc, self.code = nn.Linear(8, 8), nn.Linear(8, 3), code

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.fc(self.code(self.body(x))))


def reason_of(model: nn.Module, x: Tensor) -> str:
    return Base(clone(model).eval(), plan(model), channels_last=False).interaction(x)


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


def self_attention(x: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(x, x, x)


APART: dict[str, Callable[[Tensor], Tensor]] = {
    "nothing": lambda x: x,
    "softmax over features": lambda x: x.softmax(1),
    "attention inside a row": lambda x: self_attention(x.view(-1, 2, 1, 4)).reshape(-1, 8),
    "zeros for each row": lambda x: torch.cat([torch.zeros(x.shape[0], 4, dtype=x.dtype), x[:, :4]], 1),
    "a token for each row": lambda x: torch.cat([x.new_ones(1, 4).expand(x.shape[0], -1), x[:, :4]], 1),
    "parts as more rows": lambda x: x.reshape(-1, 4).relu().reshape(-1, 8),
    "length first": lambda x: x.view(-1, 2, 4).transpose(0, 1).softmax(0).transpose(0, 1).reshape(-1, 8),
    "normalised": F.normalize,
    "layer norm": lambda x: F.layer_norm(x, (8,)),
    "outer product of a row": lambda x: torch.einsum("bi,bj->bij", x, x).mean(2),
    "looked up features": lambda x: x[:, [1, 0, 2, 3, 4, 5, 6, 7]],
    "written in place": lambda x: x.mul_(2).add_(1),
    "parts exchanged": lambda x: torch.cat(x.chunk(2, 1)[::-1], 1),
    "grouped": lambda x: F.group_norm(x, 2),
    "pooled": lambda x: F.avg_pool2d(x[:, None, None], (1, 3), 1, (0, 1))[:, 0, 0],
}

TOGETHER: dict[str, Callable[[Tensor], Tensor]] = {
    "mean of the batch": lambda x: x - x.mean(0),
    "mean of the batch for some inputs": lambda x: torch.where(x.max() > 5, x - x.mean(0), x),
    "a branch on the numbers": lambda x: x - x.mean(0) if bool(x.max() > 5) else x,
    "a branch on the number of rows": lambda x: x - x.mean(0) if x.shape[0] > 100 else x,
    "a branch on one number of rows": lambda x: x + 1 if x.shape[0] == 5 else x,
    "divided by the number of rows": lambda x: x / x.shape[0],
    "a number from the numbers": lambda x: x * x.max().item(),
    "products of rows": lambda x: (x @ x.T) @ x,
    "softmax over rows": lambda x: x.softmax(0),
    "rows reversed": lambda x: x.flip(0),
    "rows shifted": lambda x: x.roll(1, 0),
    "rows in random order": lambda x: x[torch.randperm(x.shape[0])],
    "the position in the batch": lambda x: x + torch.arange(x.shape[0])[:, None],
    "features as rows": lambda x: x.t().reshape(-1, 8),
    "rows as features": lambda x: x.reshape(8, -1).softmax(1).reshape(-1, 8),
    "attention between rows": lambda x: self_attention(x[None])[0],
    "statistics of the batch": lambda x: F.batch_norm(x, None, None, training=True),
    "random numbers": lambda x: F.dropout(x),
    "half of the rows": lambda x: x[: x.shape[0] // 2].repeat(2, 1),
    "a single row": lambda x: x + x[0],
    "rows one by one": lambda x: torch.stack(list(x)),
    "some rows": lambda x: x[x[:, 0] > 0],
    "the number of rows as a number": lambda x: torch.full((x.shape[0], 8), x.shape[0]) + x,
    "all rows": lambda x: x * (x > 0).any(),
    "a sum over rows written elsewhere": lambda x: x + torch.zeros(8, dtype=x.dtype).add_(x.sum(0)),
}


@pytest.mark.parametrize("code", APART)
def test_code_that_keeps_rows_apart_is_recognised_and_agrees_in_one_pass(code: str) -> None:
    model = drawn(lambda: Between(APART[code])).double()
    assert reason_of(model, inputs(6, 8)) == ""
    made = plan(model)
    mixed = mixed_module(model, made, [random_delta(model, made, seed) for seed in range(3)])
    mixed(inputs(6, 8), torch.arange(6) % 3)
    assert mixed.one_pass, mixed.reason


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
