"""`bn`: per-task batch norms on a frozen network (the BN-tuned baseline of Wen et al., 2020).

The first task trains the whole network. A later task freezes every weight and bias of it and trains norm layers of its
own, which start as the first task's and keep their own running statistics, and a new head.
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
        mine = {n: t for n, t in base.owned_tensors(start).items() if base.plan.role(n) in ("norm", "head")}
        owned: dict[str, Tensor] = {n: nn.Parameter(t) for n, t in mine.items()}
        net = base.tuning_view({}, owned, task.classes)
        trained = [t for t in owned.values() if isinstance(t, nn.Parameter)]
        network.fit(self.context, task, net, [Group(trained)], self.seed_key(task), "fine-tune")
        return TaskDelta(task.classes, {}, {n: t.detach() for n, t in owned.items()} | base.changed_buffers(net))
