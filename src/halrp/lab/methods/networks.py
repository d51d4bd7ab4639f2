"""The two ends of the scale: a separate network for every task, and one network that is simply trained on.

`Separate` (the paper's STL) shares nothing and forgets nothing. `FineTune` stores one network with a head per task and
forgets what it must. Every other method lies between them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from halrp import draws
from halrp.data import prepare
from halrp.lab.methods.contract import Context, Size, size_of
from halrp.lab.streams import Task
from halrp.layers import new_head
from halrp.train import Group, Training
from halrp.views import replace_module


def train_all(net: nn.Module, task: Task, context: Context, stage: str) -> None:
    """Train every parameter of a network on a task."""
    recipe = context.recipe
    device = next(net.parameters()).device
    if recipe.channels_last:
        net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    data, _ = prepare(
        (task.train.x, task.train.y),
        what=f"{task.name}: train",
        device=device,
        batch=recipe.batch,
        classes=task.classes,
        channels_last=recipe.channels_last,
    )
    Training(
        net,
        [Group(list(net.parameters()))],
        data,
        recipe,
        epochs=recipe.epochs,
        names=(context.seed, stage, task.name),
        task=task.name,
        stage=stage,
        notify=context.progress,
    ).run()


@torch.no_grad()
def logits(net: nn.Module, x: Tensor, batch: int = 512) -> Tensor:
    """Logits of a network in evaluation mode, in chunks."""
    return torch.cat([net(rows) for rows in x.split(batch)])


class Separate:
    """A network of its own for every task."""

    def __init__(self, context: Context) -> None:
        """Take the run's context."""
        self.context = context
        self.nets: list[nn.Module] = []

    def learn(self, task: Task) -> None:
        """Train a new network."""
        net = self.context.build(task.classes, draws.seed_of(self.context.seed, task.name) % 2**31)
        train_all(net, task, self.context, "separate")
        self.nets.append(net)

    def predict(self, x: Tensor, task: int) -> Tensor:
        """Logits of the task's own network."""
        return logits(self.nets[task], x)

    def stored(self) -> Size:
        """All networks."""
        sizes = [size_of(net) for net in self.nets]
        return Size(sum(s.parameters for s in sizes), sum(s.bytes for s in sizes))


class FineTune:
    """One network trained on task after task, with a head kept for each."""

    def __init__(self, context: Context) -> None:
        """Take the run's context."""
        self.context = context
        self.net: nn.Module | None = None
        self.heads: list[nn.Module] = []

    def learn(self, task: Task) -> None:
        """Train the network on, with a new head."""
        context = self.context
        if self.net is None:
            self.net = context.build(task.classes, context.seed)
        else:
            device = next(self.net.parameters()).device
            with draws.isolated(context.seed, "head", task.name, device=device):
                replace_module(self.net, "head", new_head(self.net.get_submodule("head"), task.classes))
        train_all(self.net, task, context, "finetune")
        self.heads.append(self.net.get_submodule("head"))

    def predict(self, x: Tensor, task: int) -> Tensor:
        """Logits of the body as it is now, with the head of the task."""
        assert self.net is not None, "learn a task first"
        current = self.net.get_submodule("head")
        replace_module(self.net, "head", self.heads[task])
        try:
            return logits(self.net, x)
        finally:
            replace_module(self.net, "head", current)

    def stored(self) -> Size:
        """The body, and every head."""
        assert self.net is not None, "learn a task first"
        body, heads = size_of(self.net), [size_of(head) for head in self.heads[:-1]]
        return Size(body.parameters + sum(h.parameters for h in heads), body.bytes + sum(h.bytes for h in heads))
