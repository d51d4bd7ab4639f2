"""`mtl`: joint multi-task learning, one body and a head per task, trained on all tasks at once.

An upper reference that no stream allows: all data are available from the start. An epoch visits every batch of every
task. By default a batch belongs to one task and tasks take turns in the stream's order; with `mixed_batches` every
batch mixes the tasks, and the order of the stream does not matter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from halrp.errors import TaskError
from halrp.lab.methods import network
from halrp.lab.methods.protocol import Context, Method, Size, State
from halrp.lab.streams import Task
from halrp.model.call import Call
from halrp.objectives import Objective, classification
from halrp.training import auto
from halrp.training.batches import InMemory
from halrp.training.loop import Hooks, Stage, Training
from halrp.training.prepare import refuse_no_batch


@dataclass(frozen=True)
class Turns:
    """The examples of several tasks, as batches of one task each; labels are those of the joint head."""

    parts: tuple[InMemory, ...]

    @property
    def examples(self) -> int:
        """The number of examples in one pass."""
        return sum(part.examples for part in self.parts)

    def steps(self, batch: int) -> int:
        """The number of batches in one pass."""
        return sum(part.steps(batch) for part in self.parts)

    @property
    def objective(self) -> Objective:
        """What outputs for the first task mean."""
        return self.parts[0].objective

    @property
    def call(self) -> Call:
        """How a batch reaches the network."""
        return self.parts[0].call

    def identity(self) -> str:
        """A hash of all examples."""
        return " ".join(part.identity() for part in self.parts)

    def batches(self, batch: int, shuffle: torch.Generator | None) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the first batch of every task, then the second of every task, until all are used up."""
        active = [part.batches(batch, shuffle) for part in self.parts]
        while active:
            unfinished = []
            for batches in active:
                rows = next(batches, None)
                if rows is not None:
                    yield rows
                    unfinished.append(batches)
            active = unfinished


class Joint(Method):
    """One body and T heads, trained after the last task was given."""

    joint = True

    def __init__(self, context: Context, mixed_batches: bool = False, l2: float = 1e-4) -> None:
        """Take the composition of batches and the penalty λ/2·‖W‖² on the weights."""
        super().__init__(context)
        self.mixed_batches, self.l2 = mixed_batches, l2
        self.waiting: list[Task] = []
        self.net: nn.Module | None = None
        self.classes: list[int] = []

    def learn(self, task: Task) -> None:
        """Wait for the last task, then learn all of them."""
        if self.waiting and task.augment != self.waiting[0].augment:
            raise TaskError(
                f"joint learning augments all images alike, but {task.name!r} and {self.waiting[0].name!r} differ in "
                "`augment`; give all tasks the same"
            )
        self.waiting.append(task)
        if len(self.waiting) == self.context.tasks:
            self._learn_all()
            self.waiting = []

    def _learn_all(self) -> None:
        context, tasks = self.context, self.waiting
        first = tasks[0]
        self.classes = [task.classes for task in tasks]
        self.net, plan = network.fresh(context, first)
        # All heads are one layer, as wide as all classes together; a row's loss masks the other tasks' classes.
        heads = [self.net.get_submodule(network.HEAD)]
        heads += [network.add_head(context, self.net, task) for task in tasks[1:]]
        wide = network.add_head(context, self.net, replace(first, classes=sum(self.classes)))
        with torch.no_grad():
            for parameter, parts in zip(
                wide.parameters(), zip(*(h.parameters() for h in heads), strict=True), strict=True
            ):
                parameter.copy_(torch.cat(parts))
        task_of = torch.arange(len(tasks)).repeat_interleave(torch.tensor(self.classes))
        allowed = (task_of.unsqueeze(1) == task_of).to(next(self.net.parameters()).device)

        def loss(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
            return classification.loss(net(x).masked_fill(~allowed[y], -torch.inf), y)

        data = self._data(self.net)
        seed_key = network.first_seed_key(context, first) if len(tasks) == 1 else (context.seed, "joint")
        recipe = auto.chosen_for(context.recipe, data.examples, given=False)
        Training(
            self.net,
            network.weight_groups(self.net, plan, self.l2),
            data,
            recipe,
            Stage(recipe.epochs, (*seed_key, "base"), "all tasks", "base"),
            Hooks(loss=loss, augment=first.augment),
            context.progress,
            network.checkpoints(context, first),
        ).run()

    def _data(self, net: nn.Module) -> InMemory | Turns:
        """The examples of all tasks; labels are those of the joint head."""
        context, parts = self.context, []
        for i, task in enumerate(self.waiting):
            data = network.examples(context, task, net)
            parts.append(replace(data, y=data.y + sum(self.classes[:i])))
        if len(parts) == 1:
            return parts[0]
        if self.mixed_batches:
            x, y = torch.cat([data.x for data in parts]), torch.cat([data.y for data in parts])
            return replace(parts[0], x=x, y=y)
        if context.recipe.drop_last:
            for task in self.waiting:
                refuse_no_batch(len(task.train.y), context.recipe.batch, task.name)
        return Turns(tuple(replace(data, drop_last=context.recipe.drop_last) for data in parts))

    def predict(self, x: Tensor, task: int) -> Tensor:
        """The task's part of the logits."""
        if self.net is None:
            raise TaskError(f"joint learning starts after {self.context.tasks} tasks; {len(self.waiting)} were given")
        start = sum(self.classes[:task])
        return network.logits(self.context, self.net, x)[:, start : start + self.classes[task]]

    def stored(self) -> Size:
        """The network with all heads; nothing before training."""
        return Size.of([] if self.net is None else network.contents(self.net).values())

    def counted(self) -> int:
        """Without the running statistics of batch norms."""
        return 0 if self.net is None else sum(p.numel() for p in self.net.parameters())

    def state(self) -> State:
        """The network, or the names of the tasks given so far."""
        tensors = {} if self.net is None else network.contents(self.net)
        return State(tensors, {"classes": self.classes, "waiting": [task.name for task in self.waiting]})

    def restore(self, state: State) -> None:
        """Continue from a state; before training, tasks must be given again."""
        self.classes, self.waiting, self.net = list(state.values["classes"]), [], None
        if state.tensors:
            self.net, _ = network.empty(self.context, sum(self.classes))
            network.fill(self.net, state.tensors)
