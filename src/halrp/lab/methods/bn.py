"""`bn`: per-task batch norms on a frozen network (the BN-tuned baseline of Wen et al., 2020).

The first task trains the whole network. A later task freezes its weights and biases and trains a new head and private
norm layers, which start as the first task's and have their own running statistics.
"""

from __future__ import annotations

from torch import Tensor, nn

from halrp.lab.methods import network
from halrp.lab.methods.frozen_base import FrozenBase, TaskDelta
from halrp.lab.streams import Task
from halrp.model.base import Base
from halrp.training.loop import Group


class TunedNorms(FrozenBase):
    """Norm layers and a head for each task."""

    def later(self, base: Base, task: Task) -> TaskDelta:
        """Train norm layers and a head."""
        start = base.trainable(task.classes, *self.seed_key(task))
        chosen = {n: t for n, t in base.owned_tensors(start).items() if base.plan.role(n) in ("norm", "head")}
        owned: dict[str, Tensor] = {n: nn.Parameter(t) for n, t in chosen.items()}
        net = base.tuning_view({}, owned, task.classes)
        trained = [t for t in owned.values() if isinstance(t, nn.Parameter)]
        network.fit(self.context, task, net, [Group(trained)], self.seed_key(task), "fine-tune")
        return TaskDelta(task.classes, {}, {n: t.detach() for n, t in owned.items()} | base.changed_buffers(net))
