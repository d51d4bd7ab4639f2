"""`clr`: channel-wise lightweight reprogramming (Ge et al., 2023).

The first task trains a whole network, whose head is discarded and whose convolutions and linear layers are frozen.
Then every task, including the first, adds a private filter after every convolution with a kernel larger than one,

    y = CLR_t(conv(x)),     one 3×3 kernel per channel, no bias,

which starts as the identity, and trains these filters, norm layers and a new head. A convolution's bias stays before
the filter. The penalty λ/2·‖W‖² applies to the filters, and so pulls them to zero.

Norm layers use the statistics of the batch. With bn="per_task" they belong to the task and nothing is forgotten: the
method as published. With bn="shared" all tasks train the same ones, as in the HALRP paper's comparison, and earlier
tasks are forgotten to some degree.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from halrp.lab.methods import network
from halrp.lab.methods.frozen_base import FrozenBase, TaskDelta
from halrp.lab.methods.norms import with_batch_statistics
from halrp.lab.methods.protocol import Context, Size, State
from halrp.lab.methods.settings import check_choice
from halrp.lab.streams import Task
from halrp.model.base import Base
from halrp.model.views import replace_module, task_view
from halrp.training.loop import Group

FILTER = "filter/"
"""Prefix of a filter's name among a task's tensors; the name of its convolution follows."""
WIDTH = 3
"""The kernel size of a filter, in pixels."""


def filtered(net: nn.Module) -> dict[str, nn.Conv2d]:
    """The convolutions that get a filter: those whose kernel is larger than one pixel; never the head."""
    convolutions = {n: m for n, m in net.named_modules() if isinstance(m, nn.Conv2d) and n != network.HEAD}
    return {n: m for n, m in convolutions.items() if max(m.kernel_size) > 1}


def identity_filter(conv: nn.Conv2d) -> Tensor:
    """The filter (channels, 1, 3, 3) that leaves a convolution's outputs unchanged: 1 in the middle of each kernel."""
    kernels = conv.weight.new_zeros(conv.out_channels, 1, WIDTH, WIDTH)
    kernels[:, :, WIDTH // 2, WIDTH // 2] = 1
    return kernels


class Filtered(nn.Module):
    """A convolution followed by a filter."""

    def __init__(self, conv: nn.Conv2d, kernels: Tensor) -> None:
        """Add kernels (channels, 1, 3, 3) after a convolution; they are trained if they are a parameter."""
        super().__init__()
        self.conv = conv
        if isinstance(kernels, nn.Parameter):
            self.kernels: Tensor = kernels
        else:
            self.register_buffer("kernels", kernels)

    def forward(self, x: Tensor) -> Tensor:
        """Images (batch, inputs, height, width) → the filtered outputs of the convolution, of the same shape."""
        y: Tensor = self.conv(x)
        return F.conv2d(y, self.kernels, padding=WIDTH // 2, groups=len(self.kernels))


def insert(net: nn.Module, filters: Mapping[str, Tensor]) -> nn.Module:
    """Add filters, by the name of their convolution, to a network, in place."""
    for name, conv in filtered(net).items():
        replace_module(net, name, Filtered(conv, filters[name]))
    return net


class Reprogramming(FrozenBase):
    """A frozen network; filters, a head and norm layers for each task, or norm layers for all."""

    def __init__(self, context: Context, bn: Literal["shared", "per_task"] = "per_task", l2: float = 1e-4) -> None:
        """Take whether tasks share norm layers, and the penalty λ/2·‖W‖² on the base's weights and on filters."""
        check_choice("clr", "bn", bn, ("shared", "per_task"))
        super().__init__(with_batch_statistics(context), l2)
        self.bn = bn
        self.frozen = self.first_decides = bn == "per_task"
        self.norms: dict[str, Tensor] = {}
        """The norm layers that all tasks share; empty if each task has its own."""

    def learn(self, task: Task) -> None:
        """Train the base with the first task; then train what the task owns."""
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
        delta = self.tasks[task]
        filters = {n.removeprefix(FILTER): t for n, t in delta.tensors.items() if n.startswith(FILTER)}
        plain = {n: t for n, t in delta.tensors.items() if not n.startswith(FILTER)}
        return insert(task_view(self.base.module, self.base.plan, {}, plain | self.norms, delta.classes), filters)

    def stored(self) -> Size:
        """The frozen layers, shared norm layers, and what each task owns."""
        assert self.base is not None, "learn a task first"
        body = [t for n, t in self.base.tensors.items() if self.base.plan.role(n) not in ("head", "norm")]
        deltas = [t for task in self.tasks for t in task.tensors.values()]
        return Size.of([*body, *self.norms.values(), *deltas])

    def counted(self) -> int:
        """Everything that is stored."""
        return self.stored().parameters

    def state(self) -> State:
        """The base, shared norm layers, and what each task owns."""
        plain = super().state()
        return State(plain.tensors | network.add_prefix("norm", self.norms), plain.values)

    def restore(self, state: State) -> None:
        """Rebuild the base, shared norm layers and tasks."""
        super().restore(state)
        self.norms = {n: self._like_base(n, t) for n, t in network.strip_prefix("norm", state.tensors).items()}
