"""A linear probe: logistic regression on frozen features, its penalty chosen on the task's validation data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn

from benchmarks.pretrained.domain import Domain, Task
from benchmarks.pretrained.features import features
from benchmarks.pretrained.methods import Setting, Stored
from halrp.lab.methods import logistic, rounding
from halrp.lab.streams import Split
from halrp.model.batch import Batch


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
    train, val = (Split(features(domain, part.x), part.y) for part in (task.train, task.val))
    return logistic.fitted_head(train, val, task.classes)


def _predict(domain: Domain, head: dict[str, Tensor], x: Batch) -> Tensor:
    return nn.functional.linear(features(domain, x), head["weight"], head["bias"])
