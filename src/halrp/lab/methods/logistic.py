"""Logistic regression on frozen features, its penalty chosen on validation data."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from halrp.lab.streams import Split

PENALTIES = tuple(10.0 ** (power / 2) for power in range(-10, 1))
"""Factors of ‖W‖² in the mean loss; the bias is free."""


def fitted_head(train: Split, val: Split, classes: int) -> nn.Linear:
    """The logistic head on features whose penalty has the lowest loss on the validation data."""
    fits = [logistic(train.x, train.y, classes, penalty) for penalty in PENALTIES]
    losses = [float(nn.functional.cross_entropy(head(val.x), val.y).detach()) for head in fits]
    return fits[min(range(len(fits)), key=losses.__getitem__)]


def logistic(x: Tensor, y: Tensor, classes: int, penalty: float) -> nn.Linear:
    """The head that minimises the mean cross-entropy plus penalty · ‖W‖², from zero."""
    head: nn.Linear = nn.utils.skip_init(nn.Linear, x.shape[1], classes, device=x.device)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    optimiser = torch.optim.LBFGS(head.parameters(), max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> float:
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(head(x), y) + penalty * head.weight.square().sum()
        loss.backward()
        return float(loss.detach())

    optimiser.step(closure)
    return head
