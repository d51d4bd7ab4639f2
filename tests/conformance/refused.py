"""Models that cannot be treated correctly: each is refused by name, with a remedy, before anything is trained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)
from torch import Tensor, nn

from halrp import Learner
from halrp.errors import HalrpError
from tests.conformance import networks
from tests.conformance.learned import RECIPE
from tests.conformance.networks import WIDTH
from tests.conformance.tasks import task
from tests.helpers import drawn


class Perceptron(nn.Module):
    """Two layers on flat pictures, and a body that subclasses change."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.fc = nn.Linear(192, WIDTH), nn.Linear(WIDTH, 3)

    def body(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.hidden(x.flatten(1))).relu()

    def forward(self, x: Tensor) -> Any:
        return self.fc(self.body(x))


class AlwaysDropout(Perceptron):
    def body(self, x: Tensor) -> Tensor:
        return F.dropout(super().body(x), 0.5, training=True)


class MovingAverage(Perceptron):
    def body(self, x: Tensor) -> Tensor:
        x = super().body(x)
        self.mean = 0.9 * getattr(self, "mean", torch.zeros(())) + 0.1 * x.detach().mean()
        return x - self.mean


class HiddenLayers(Perceptron):
    def __init__(self) -> None:
        super().__init__()
        self.layers = [nn.Linear(WIDTH, WIDTH)]

    def body(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.layers[0](super().body(x)))


class UnusedHead(Perceptron):
    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Linear(WIDTH, WIDTH)


class UnusedLayer(UnusedHead):
    """The layer that is not used is not the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = self._modules.pop("fc")  # type: ignore[assignment]


class AuxiliaryOutputs(Perceptron):
    def forward(self, x: Tensor) -> Any:
        logits = super().forward(x)
        return (logits, 2 * logits) if self.training else logits


class SeveralOutputs(Perceptron):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x), x


class ComplexWeights(Perceptron):
    def __init__(self) -> None:
        super().__init__()
        self.phases, self.fc = nn.Parameter(torch.ones(WIDTH, dtype=torch.complex64)), nn.Linear(WIDTH, 3)

    def body(self, x: Tensor) -> Tensor:
        return (super().body(x) * self.phases).abs()


class OverTime(Perceptron):
    """Gives its rows in the second dimension."""

    def forward(self, x: Tensor) -> Any:
        return super().forward(x).t().contiguous()


@dataclass(frozen=True)
class Refused:
    """A model that is refused, and how it is tried."""

    build: Callable[[], nn.Module]
    inputs: str = "pictures"
    settings: dict[str, Any] = field(default_factory=dict)
    objective: str = "classification"

    def message(self) -> str:
        """What the library says."""
        model, data = drawn(self.build), task(self.inputs, self.objective, 0)
        options: dict[str, Any] = {"recipe": RECIPE, "base": "given", "progress": None}
        try:
            Learner(model, **(options | self.settings)).learn("task", data.data, objective=data.objective)
        except HalrpError as error:
            return f"{type(error).__name__}: {error}"
        return ""


REFUSED = {
    "a head that is tied to the embedding": Refused(
        networks.GptLike, "tokens by name", objective="token classification"
    ),
    "a convolution as last layer that is not named as head": Refused(networks.UNet, objective="segmentation"),
    "a head that is not used": Refused(UnusedHead),
    "outputs with other dimensions than the objective's": Refused(networks.UNet, settings={"head": "out"}),
    "several outputs": Refused(SeveralOutputs),
    "more outputs in training mode": Refused(AuxiliaryOutputs),
    "rows that are not first in the outputs": Refused(OverTime),
    "random numbers in evaluation mode": Refused(AlwaysDropout),
    "values in a plain attribute": Refused(MovingAverage),
    "layers in a plain list": Refused(HiddenLayers),
    "a layer that is not used": Refused(UnusedLayer),
    "complex parameters": Refused(ComplexWeights),
    "layers that are not initialised": Refused(
        lambda: nn.Sequential(nn.Flatten(), nn.LazyLinear(WIDTH), nn.Linear(WIDTH, 3))
    ),
    "nothing to adapt besides the head": Refused(lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 3))),
}
"""By what is wrong."""
