"""A linear probe: logistic regression on frozen features, its penalty chosen on the task's validation data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from benchmarks.pretrained import rounding
from benchmarks.pretrained.domain import Domain, Task
from benchmarks.pretrained.features import features
from benchmarks.pretrained.methods import Setting, Stored
from halrp.model.batch import Batch

PENALTIES = tuple(10.0 ** (power / 2) for power in range(-10, 1))
"""Factors of ‖W‖² in the mean loss; the bias is free."""


@dataclass(frozen=True)
class Probe:
    """Files hold the head alone."""

    def grid(self, domain: Domain, shots: int) -> tuple[Setting, ...]:
        """Nothing is chosen but the penalty, which each task chooses for itself."""
        return ({},)

    def fit(self, domain: Domain, task: Task, setting: Setting) -> Iterator[Stored]:
        """Fit the head by L-BFGS for every penalty, and keep the one with the lowest validation loss."""
        head = fitted_head(domain, task)
        for form in rounding.FORMS:
            content = rounding.encode(head.state_dict(), form)
            yield Stored(form, len(content), partial(_predict, domain, rounding.decode(content)))


def fitted_head(domain: Domain, task: Task) -> nn.Linear:
    """The logistic head on frozen features whose penalty has the lowest loss on the validation data."""
    train, val = (features(domain, part.x) for part in (task.train, task.val))
    fits = [logistic(train, task.train.y, task.classes, penalty) for penalty in PENALTIES]
    losses = [float(nn.functional.cross_entropy(head(val), task.val.y).detach()) for head in fits]
    return fits[min(range(len(fits)), key=losses.__getitem__)]


def logistic(x: Tensor, y: Tensor, classes: int, penalty: float) -> nn.Linear:
    """The head that minimises the mean cross-entropy plus penalty · ‖W‖², from zero."""
    head = nn.Linear(x.shape[1], classes)
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


def _predict(domain: Domain, head: dict[str, Tensor], x: Batch) -> Tensor:
    return nn.functional.linear(features(domain, x), head["weight"], head["bias"])
