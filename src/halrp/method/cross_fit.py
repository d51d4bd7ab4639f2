"""Cross-fitting: each example is trained on by a head that has not seen it.

At the probe the head has been fitted to the training examples. Where there are more features than examples it has
nearly memorised them: the slope of their loss is a small part of that of other examples. So the examples are dealt into
folds, a head is fitted without each of them on the frozen features, and fine-tuning sends an example through the head
of its own fold. These heads do not train. What the other parts learn from them is to make features that heads of other
examples can use. In the end the task's head is fitted again, on the features of the fine-tuned network.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from halrp.method import probe
from halrp.training.batches import InMemory
from halrp.training.beside import Beside, beside, of_inputs
from halrp.training.distributed import agreed
from halrp.training.run import TaskRun
from halrp.training.shared_data import whole


@dataclass(frozen=True, eq=False)
class CrossFit:
    """The heads of a task's folds, each fitted to all other examples."""

    path: str
    """Of the head in a network."""
    heads: Sequence[nn.Module]
    fold: Tensor
    """(N,) the fold of each training example."""
    folds: Beside
    """The folds of the rows that a network is computing; a row without one has the network's own head."""
    error: float
    """What `probe.error` is where each example has its fold's head."""

    @staticmethod
    def of(
        net: nn.Module, path: str, penalty: float, run: TaskRun, train: probe.Features, count: int
    ) -> CrossFit | None:
        """Fit a head without each of `count` folds, with the penalty of the head that was fitted to all.

        None where rows cannot be distinguished, or are too few: data that a loader reads, several processes, features
        of only some examples, or a compiled step.
        """
        data = run.data.train
        apart = isinstance(data, InMemory) and run.processes is None and not run.recipe.compile
        if count < 2 or not apart or len(train.y) != data.examples or data.examples < 2 * count:
            return None
        fold, head, objective = probe.folds(train.y, count), net.get_submodule(path), run.data.objective
        heads = [
            probe.fit_with(penalty, head, objective, train.rows(fold != number)).requires_grad_(False)
            for number in range(count)
        ]
        error = probe.error(objective, _outputs(heads, train.x, fold), train.y)
        return CrossFit(path, heads, fold, Beside(), error)

    def run(self, run: TaskRun) -> TaskRun:
        """The task, with each training example sent through its fold's head."""
        train, augment = run.data.train, run.data.augment
        assert isinstance(train, InMemory)
        augment = None if augment is None else of_inputs(augment, run.task)
        folded = beside(train, self.fold, self.folds)
        return replace(run, data=run.data._replace(train=folded, augment=augment))

    @contextmanager
    def installed(self, net: nn.Module) -> Iterator[None]:
        """Let a network use these heads, for a block, where its rows have folds.

        Its own head counts nothing then, but has gradients, which are zero: an optimiser remembers all it trains.
        """

        def by_fold(_: nn.Module, args: tuple[Tensor], given: Tensor) -> Tensor | None:
            if self.folds.rows is None:
                return None
            return _outputs(self.heads, args[0], self.folds.rows).to(given.dtype) + 0 * given

        handle = net.get_submodule(self.path).register_forward_hook(by_fold)
        try:
            yield
        finally:
            handle.remove()

    def settle(self, net: nn.Module, run: TaskRun) -> None:
        """Fit the head of a network again, on its features as they are now."""
        head = net.get_submodule(self.path)
        train, val = features_of(net, self.path, run)
        if train is not None:
            probe.copy_into(head, probe.fit(head, run.data.objective, train, val, from_zero=True).head)


def features_of(net: nn.Module, path: str, run: TaskRun) -> tuple[probe.Features | None, probe.Features | None]:
    """What the head of a network gets for a task's training and validation data (`probe.features`)."""
    with agreed(run.processes, run.task):
        train = probe.features(net, path, whole(run.data.train), run.recipe.batch, run.seed_key)
        held = run.data.val
        val = None if held is None else probe.features(net, path, held, run.recipe.batch, run.seed_key)
    return train, val


def _outputs(heads: Sequence[nn.Module], x: Tensor, fold: Tensor) -> Tensor:
    """What each row's head makes of it, (N, ...)."""
    outputs = torch.stack([head(x.to(next(head.parameters()).dtype)) for head in heads], 1)
    return outputs[torch.arange(len(x), device=x.device), fold]
