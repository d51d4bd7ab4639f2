"""`clr`: channel-wise lightweight reprogramming (Ge et al., 2023).

The first task trains a whole network, whose head is thrown away and whose convolutions and linear layers are frozen.
Then every task, the first one too, puts a filter of its own behind every convolution with a kernel larger than one,

    y = CLR_t(conv(x)),     one 3×3 kernel per channel, no bias,

which starts as the identity, and trains these filters, norm layers and a new head. A convolution's bias stays where it
is, in front of the filter. The penalty λ/2·‖W‖² of the recipe is on the filters, which it draws to zero.

Norm layers use the statistics of the batch. With bn="per_task" they belong to the task and nothing is forgotten: the
method as published. With bn="shared" all tasks train the same ones on and on, as in the HALRP paper's comparison, and
earlier tasks suffer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from halrp.errors import SettingError
from halrp.lab.methods import network
from halrp.lab.methods.frozen_base import FrozenBase, TaskDelta
from halrp.lab.methods.norms import with_batch_statistics
from halrp.lab.methods.protocol import Context, Size, State
from halrp.lab.streams import Task
from halrp.model.base import Base
from halrp.model.views import replace_module, task_view
from halrp.training.loop import Group

FILTER = "filter/"
"""Begins the name of a filter among a task's tensors; the name of its convolution follows."""
WIDTH = 3
"""Of a filter's kernel, in pixels."""


def filtered(net: nn.Module) -> dict[str, nn.Conv2d]:
    """The convolutions that get a filter: those whose kernel is larger than one pixel; never the head."""
    found = {n: m for n, m in net.named_modules() if isinstance(m, nn.Conv2d) and n != network.HEAD}
    return {n: m for n, m in found.items() if max(m.kernel_size) > 1}


def identity_filter(conv: nn.Conv2d) -> Tensor:
    """The filter (channels, 1, 3, 3) of a convolution's outputs that changes nothing: 1 in the middle of a kernel."""
    found = conv.weight.new_zeros(conv.out_channels, 1, WIDTH, WIDTH)
    found[:, :, WIDTH // 2, WIDTH // 2] = 1
    return found


class Filtered(nn.Module):
    """A convolution and the filter behind it."""

    def __init__(self, conv: nn.Conv2d, kernels: Tensor) -> None:
        """Put kernels (channels, 1, 3, 3) behind a convolution; they train if they are a parameter."""
        super().__init__()
        self.conv = conv
        if isinstance(kernels, nn.Parameter):
            self.kernels: Tensor = kernels
        else:
            self.register_buffer("kernels", kernels)

    def forward(self, x: Tensor) -> Tensor:
        """Images (batch, inputs, height, width) → filtered outputs of the convolution, of the same size as these."""
        y: Tensor = self.conv(x)
        return F.conv2d(y, self.kernels, padding=WIDTH // 2, groups=len(self.kernels))


def insert(net: nn.Module, filters: Mapping[str, Tensor]) -> nn.Module:
    """Put filters, by the name of their convolution, into a network, in place."""
    for name, conv in filtered(net).items():
        replace_module(net, name, Filtered(conv, filters[name]))
    return net


class Reprogramming(FrozenBase):
    """A frozen network; filters, a head and norm layers for each task, or norm layers for all."""

    def __init__(self, context: Context, bn: Literal["shared", "per_task"] = "per_task", l2: float = 1e-4) -> None:
        """Take whose the norm layers are, and the penalty λ/2·‖W‖² on the base's weights and on filters."""
        if bn not in ("shared", "per_task"):
            raise SettingError(f"clr(bn={bn!r}) is unknown; choose 'shared' or 'per_task'")
        super().__init__(with_batch_statistics(context), l2)
        self.bn = bn
        self.frozen = self.first_decides = bn == "per_task"
        self.norms: dict[str, Tensor] = {}
        """The norm layers that all tasks share, as the last one left them; none if each task has its own."""

    def learn(self, task: Task) -> None:
        """Train the base, if there is none, and then what the task owns."""
        if self.base is None:
            self.first(task)
            assert self.base is not None
            if self.bn == "shared":
                self.norms = {n: t.clone() for n, t in self.base.tensors.items() if self.base.plan.role(n) == "norm"}
        self.tasks.append(self.later(self.base, task))

    def later(self, base: Base, task: Task) -> TaskDelta:
        """Train filters, norm layers and a head."""
        start = base.owned_tensors(base.trainable(task.classes, *self.seed_key(task)))
        norms = {n: t for n, t in start.items() if base.plan.role(n) == "norm"} | self.norms
        head = {n: t for n, t in start.items() if base.plan.role(n) == "head"}
        owned = {n: nn.Parameter(t.clone()) for n, t in (norms | head).items()}
        filters = {n: nn.Parameter(identity_filter(conv)) for n, conv in filtered(base.module).items()}
        net = insert(base.tuning_view({}, owned, task.classes), filters)
        groups = [Group(list(filters.values()), l2=self.l2), Group(list(owned.values()))]
        network.fit(self.context, task, net, groups, self.seed_key(task), "fine-tune")
        learned = {n: t.detach() for n, t in owned.items()}
        if self.bn == "shared":
            self.norms = {n: learned.pop(n) for n in self.norms}
        return TaskDelta(task.classes, {}, learned | {f"{FILTER}{n}": k.detach() for n, k in filters.items()})

    def module(self, task: int) -> nn.Module:
        """The base with a task's filters, norm layers and head."""
        assert self.base is not None, "learn a task first"
        own = self.tasks[task]
        filters = {n.removeprefix(FILTER): t for n, t in own.tensors.items() if n.startswith(FILTER)}
        plain = {n: t for n, t in own.tensors.items() if not n.startswith(FILTER)}
        return insert(task_view(self.base.module, self.base.plan, {}, plain | self.norms, own.classes), filters)

    def stored(self) -> Size:
        """The frozen layers, the shared norm layers if there are any, and what each task owns."""
        assert self.base is not None, "learn a task first"
        body = [t for n, t in self.base.tensors.items() if self.base.plan.role(n) not in ("head", "norm")]
        own = [t for task in self.tasks for t in task.tensors.values()]
        return Size.of([*body, *self.norms.values(), *own])

    def counted(self) -> int:
        """All that is stored."""
        return self.stored().parameters

    def state(self) -> State:
        """The base, the shared norm layers, and what each task owns."""
        plain = super().state()
        return State(plain.tensors | network.add_prefix("norm", self.norms), plain.values)

    def restore(self, state: State) -> None:
        """Build everything again."""
        super().restore(state)
        self.norms = {n: self._placed(n, t) for n, t in network.strip_prefix("norm", state.tensors).items()}
