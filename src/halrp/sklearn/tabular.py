"""A network for tables: standardised columns, and a small multilayer perceptron."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from halrp.checks import is_whole
from halrp.errors import DataError, SettingError
from halrp.training.recipe import Recipe

RECIPE = Recipe(epochs=50, batch=32, lr=3e-3, schedule="cosine")
"""How such a network is trained by default."""


class Standardise(nn.Module):
    """Computes (x − mean) / deviation for each column, in float64, and gives float32.

    It is part of the network, so that whoever exports or stores it need not remember the columns' units.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, columns: int) -> None:
        """Leave columns as they are."""
        super().__init__()
        self.register_buffer("mean", torch.zeros(columns, dtype=torch.float64))
        self.register_buffer("deviation", torch.ones(columns, dtype=torch.float64))

    def fit(self, rows: np.ndarray) -> None:
        """Take means and deviations from rows (N, columns). A column that does not vary is only centred."""
        mean, deviation = rows.mean(0, dtype=np.float64), rows.std(0, dtype=np.float64)
        # The deviation of equal numbers is rounding, of the order of their last digits.
        still = deviation <= 10 * np.finfo(np.float64).eps * len(rows) * np.abs(mean)
        self.mean.copy_(torch.tensor(mean))
        self.deviation.copy_(torch.tensor(np.where(still, 1.0, deviation)))

    def forward(self, x: Tensor) -> Tensor:
        """Rows in standard units."""
        if x.shape[-1:] != self.mean.shape:
            raise DataError(f"the network takes rows of {len(self.mean)} columns, not inputs of shape {tuple(x.shape)}")
        return ((x.double() - self.mean) / self.deviation).float()


def tabular_network(features: int, outputs: int, hidden_layer_sizes: Sequence[int] = (64, 64)) -> nn.Sequential:
    """The network that estimators build by default: standardisation, hidden layers with ReLU, and a head.

    Standardisation leaves columns as they are until an estimator fits it. With this architecture `Learner.load` opens
    the stores of such estimators.
    """
    widths = tuple(hidden_layer_sizes) if isinstance(hidden_layer_sizes, Iterable) else ()
    if not widths or not all(is_whole(width, 1) for width in widths):
        raise SettingError(
            f"hidden_layer_sizes={hidden_layer_sizes!r}: give the width of at least one hidden layer, such as "
            "(64, 64); later tasks adapt these layers"
        )
    layers: list[nn.Module] = [Standardise(features)]
    for narrow, wide in pairwise((features, *widths)):
        layers += [nn.Linear(narrow, wide, dtype=torch.float32), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], outputs, dtype=torch.float32))


def fitted_network(rows: np.ndarray, outputs: int, hidden_layer_sizes: Sequence[int]) -> nn.Sequential:
    """A new network that standardises as rows (N, columns) ask for."""
    network = tabular_network(rows.shape[1], outputs, hidden_layer_sizes)
    first = network[0]
    assert isinstance(first, Standardise)
    first.fit(rows)
    return network
