"""Mixed batches of models whose outputs have more dimensions than rows and classes: tokens and pixels."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest
import torch
from torch import Tensor, nn

from halrp.errors import DataError
from halrp.model.by_task import concatenate
from halrp.model.plan import plan
from tests.helpers import drawn
from tests.model.mixing import inputs, mixed_module, random_delta, task_views


class Pixels(nn.Module):
    """A class for each pixel of an image: (N, classes, H, W)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.head(self.conv(x).relu()))


class Tokens(nn.Module):
    """A class for each token: (N, length, classes)."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.head = nn.Linear(7, 9), nn.Linear(9, 4)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.head(self.hidden(x).tanh()))


class Steps(nn.Module):
    """A class for each step of a signal: (N, classes, length)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv1d(3, 8, 3, padding=1), nn.Conv1d(8, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.head(self.conv(x).relu()))


class ChannelsAtTheEnd(Pixels):
    """A convolution makes the classes, and the model moves them: (N, H, W, classes)."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).permute(0, 2, 3, 1)


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int, bool]] = {
    "pixels": (Pixels, (3, 6, 6), 1, True),
    "tokens": (Tokens, (5, 7), 2, True),
    "steps": (Steps, (3, 9), 1, True),
    "moved": (ChannelsAtTheEnd, (3, 6, 6), 3, False),
}
"""The model, the shape of a row, the dimension of its classes, and whether one pass serves."""


@pytest.mark.parametrize("kind", MODELS)
def test_classes_are_padded_in_their_own_dimension(kind: str) -> None:
    build, shape, dimension, one_pass = MODELS[kind]
    model = drawn(build).double().eval()
    planned = plan(model, "head")
    deltas = [random_delta(model, planned, seed, classes) for seed, classes in enumerate((3, 6, 4))]
    mixed, views = mixed_module(model, planned, deltas), task_views(model, planned, deltas)
    x, rows = inputs(8, *shape), torch.tensor([0, 1, 2, 0, 1, 2, 0, 0])
    got = mixed(x, rows)
    assert mixed.one_pass is one_pass
    assert got.shape[dimension] == 6
    for row, task in enumerate(rows.tolist()):
        with torch.no_grad():
            alone = views[task](x[row : row + 1])
        width = deltas[task].classes
        ours = got[row : row + 1]
        torch.testing.assert_close(ours.narrow(dimension, 0, width), alone, rtol=0, atol=1e-10)
        assert bool((ours.narrow(dimension, width, 6 - width) == -torch.inf).all())
    assert torch.equal(mixed(x, rows), got)


def test_outputs_that_differ_in_more_than_their_classes_are_refused() -> None:
    assert concatenate([torch.ones(1, 2, 5), torch.ones(2, 3, 5)]).shape == (3, 3, 5)
    with pytest.raises(DataError, match=r"outputs of the shapes \(2, 5\), \(3, 4\) for a row.*one by one"):
        concatenate([torch.ones(1, 2, 5), torch.ones(2, 3, 4)])
    with pytest.raises(DataError, match=r"outputs of the shapes \(2, 5\), \(2,\) for a row"):
        concatenate([torch.ones(1, 2, 5), torch.ones(1, 2)])
