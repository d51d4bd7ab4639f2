"""Methods that freeze the first task's network and give every later task a few private tensors (`be`, `bn`, `clr`).

A task is the frozen base with some tensors replaced. Nothing that a task owns is ever written to again, so no task is
forgotten, and a later task depends on the first one and on its own data alone.
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
    """A frozen base, and what each task owns; the first task owns nothing."""

    frozen = True
    first_decides = True

    def __init__(self, context: Context, l2: float = 1e-4) -> None:
        """Take the penalty λ/2·‖W‖² on the weights while the base is trained."""
        super().__init__(context)
        self.l2 = l2
        self.base: Base | None = None
        self.tasks: list[TaskDelta] = []

    def learn(self, task: Task) -> None:
        """Train the base with the first task, or what a later task owns."""
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
        """The seed key of a later task: the run, the base and the task."""
        assert self.base is not None, "learn a task first"
        return self.context.seed, self.base.fingerprint, task.name

    def module(self, task: int) -> nn.Module:
        """A task's network, which shares the base's tensors."""
        assert self.base is not None, "learn a task first"
        delta = self.tasks[task]
        width = delta.classes if delta.tensors else None  # a task without a head has the base's
        return task_view(self.base.module, self.base.plan, scales_only(delta.scales), delta.tensors, width)

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
        owned = sum(network.count_without_buffers(self.base.module, delta.all()) for delta in self.tasks)
        return self.base.parameter_count + owned

    def state(self) -> State:
        """The base, and what each task owns."""
        assert self.base is not None, "learn a task first"
        tensors = network.add_prefix("base", self.base.tensors)
        for i, delta in enumerate(self.tasks):
            tensors |= network.add_prefix(f"task/{i}", delta.all())
        return State(tensors, {"classes": [delta.classes for delta in self.tasks]})

    def restore(self, state: State) -> None:
        """Rebuild the base, and what each task owns."""
        classes = state.values["classes"]
        net, plan = network.empty(self.context, classes[0])
        network.fill(net, network.strip_prefix("base", state.tensors))
        self.base = Base(net, plan, self.context.recipe.channels_last)
        self.tasks = []
        for i, width in enumerate(classes):
            owned = {n: self._like_base(n, t) for n, t in network.strip_prefix(f"task/{i}", state.tensors).items()}
            r, s = network.strip_prefix("r", owned), network.strip_prefix("s", owned)
            rest = {n: t for n, t in owned.items() if not n.startswith(("r/", "s/"))}
            self.tasks.append(TaskDelta(width, {n: (r[n], s[n]) for n in plan.parameters if n in r}, rest))

    def _like_base(self, name: str, tensor: Tensor) -> Tensor:
        """A tensor on the base's device and in the memory format of the base's parameter of that name and shape."""
        assert self.base is not None
        like = dict(self.base.module.named_parameters()).get(name)
        tensor = tensor.to(self.base.device)
        return torch.empty_like(like).copy_(tensor) if like is not None and like.shape == tensor.shape else tensor


def scales_only(scales: Mapping[str, tuple[Tensor, Tensor]]) -> dict[str, Factors]:
    """Scales as factors of rank 0: W_t = r ∘ W ∘ s."""
    return {n: Factors(r, s, r.new_zeros(len(r), 0), s.new_zeros(0, len(s))) for n, (r, s) in scales.items()}
