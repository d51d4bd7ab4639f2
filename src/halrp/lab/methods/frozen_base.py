"""What methods share that freeze the first task's network and give every later task a few tensors of its own.

A task is the frozen base with some tensors in the places of the base's: nothing that a task owns is ever written to
again, so no task is forgotten, and a later task depends on the first one and on itself alone.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from halrp.lab.methods import network
from halrp.lab.methods.protocol import Context, Method, Size, State
from halrp.lab.streams import Task
from halrp.model.base import Base
from halrp.model.factors import Factors
from halrp.model.views import task_view


@dataclass(frozen=True, eq=False)
class TaskDelta:
    """What one task owns: scales r and s of some weights, and full tensors (parameters, buffers, head)."""

    classes: int
    scales: Mapping[str, tuple[Tensor, Tensor]]
    tensors: Mapping[str, Tensor]

    def all(self) -> dict[str, Tensor]:
        """Every tensor, by name."""
        scales = {f"{part}/{n}": t for n, pair in self.scales.items() for part, t in zip("rs", pair, strict=True)}
        return scales | dict(self.tensors)


class FrozenBase(Method):
    """A frozen base, and what each task owns; the base's own task owns no tensors."""

    frozen = True
    first_decides = True

    def __init__(self, context: Context, l2: float = 1e-4) -> None:
        """Take the penalty λ/2·‖W‖² on the weights while the base is trained."""
        super().__init__(context)
        self.l2 = l2
        self.base: Base | None = None
        self.tasks: list[TaskDelta] = []

    def learn(self, task: Task) -> None:
        """Train the base, or what a later task owns."""
        self.tasks.append(self.first(task) if self.base is None else self.later(self.base, task))

    def first(self, task: Task) -> TaskDelta:
        """Train a whole network and freeze it."""
        net, plan = network.fresh(self.context, task)
        seed_key = network.first_seed_key(self.context, task)
        network.fit(self.context, task, net, network.weight_groups(net, plan, self.l2), seed_key, "base")
        self.base = Base(net, plan, self.context.recipe.channels_last)
        return TaskDelta(task.classes, {}, {})

    @abstractmethod
    def later(self, base: Base, task: Task) -> TaskDelta:
        """Train what a later task owns."""

    def seed_key(self, task: Task) -> network.SeedKey:
        """What the draws of a later task are a function of: the run, the base and the task."""
        assert self.base is not None, "learn a task first"
        return self.context.seed, self.base.fingerprint, task.name

    def module(self, task: int) -> nn.Module:
        """A task's network over the base."""
        assert self.base is not None, "learn a task first"
        own = self.tasks[task]
        width = own.classes if own.tensors else None  # a task that owns no head has the base's
        return task_view(self.base.module, self.base.plan, neutral(own.scales), own.tensors, width)

    def predict(self, x: Tensor, task: int) -> Tensor:
        """Logits of the task's network."""
        assert self.base is not None, "learn a task first"
        return network.logits(self.context, self.module(task), self.base.prepare_inputs(x))

    def stored(self) -> Size:
        """The base, and what each task owns."""
        return Size.of(self.state().tensors.values())

    def counted(self) -> int:
        """Without the running statistics of batch norms."""
        assert self.base is not None, "learn a task first"
        buffers = dict(self.base.module.named_buffers())
        owned = sum(t.numel() for own in self.tasks for n, t in own.all().items() if n not in buffers)
        return self.base.parameter_count + owned

    def state(self) -> State:
        """The base, and what each task owns."""
        assert self.base is not None, "learn a task first"
        tensors = network.add_prefix("base", self.base.tensors)
        for i, own in enumerate(self.tasks):
            tensors |= network.add_prefix(f"task/{i}", own.all())
        return State(tensors, {"classes": [own.classes for own in self.tasks]})

    def restore(self, state: State) -> None:
        """Build the base again, and what each task owns."""
        classes = state.values["classes"]
        net, plan = network.empty(self.context, classes[0])
        network.fill(net, network.strip_prefix("base", state.tensors))
        self.base = Base(net, plan, self.context.recipe.channels_last)
        self.tasks = []
        for i, width in enumerate(classes):
            held = {n: self._placed(n, t) for n, t in network.strip_prefix(f"task/{i}", state.tensors).items()}
            r, s = network.strip_prefix("r", held), network.strip_prefix("s", held)
            rest = {n: t for n, t in held.items() if not n.startswith(("r/", "s/"))}
            self.tasks.append(TaskDelta(width, {n: (r[n], s[n]) for n in plan.parameters if n in r}, rest))

    def _placed(self, name: str, tensor: Tensor) -> Tensor:
        assert self.base is not None
        held = dict(self.base.module.named_parameters()).get(name)
        tensor = tensor.to(self.base.device)
        return torch.empty_like(held).copy_(tensor) if held is not None and held.shape == tensor.shape else tensor


def neutral(scales: Mapping[str, tuple[Tensor, Tensor]]) -> dict[str, Factors]:
    """Scales as factors of rank 0: W_t = r ∘ W ∘ s."""
    return {n: Factors(r, s, r.new_zeros(len(r), 0), s.new_zeros(0, len(s))) for n, (r, s) in scales.items()}
