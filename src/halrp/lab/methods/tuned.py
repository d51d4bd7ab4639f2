"""Methods that train some parameters of a copy of the base, with a head: what is trained is the task's file.

A task takes a few epochs on few examples, so one that is interrupted is learned again from its beginning.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from halrp import seeding
from halrp.checks import is_number
from halrp.errors import SettingError
from halrp.lab.methods import features, network, rounding, short_training
from halrp.lab.methods.logistic import fitted_head
from halrp.lab.methods.on_base import OnBase, Predictor
from halrp.lab.methods.protocol import Context
from halrp.lab.methods.rounding import Form, check_form
from halrp.lab.methods.settings import check_choice
from halrp.lab.streams import Task
from halrp.training import auto
from halrp.training.progress import Progress

Head = Literal["random", "probe"]
"""What the head of a task starts as: random numbers, or the logistic regression on the base's features."""


class Tuned(OnBase):
    """Trains what `trained` chooses, by a rate that rises and falls, and stores it."""

    frozen_norms = True
    """Whether batch norms have the statistics of the base."""

    def __init__(self, context: Context, lr: float, form: Form, head: Head) -> None:
        """Take the highest learning rate, the precision of files, and the start of the head."""
        super().__init__(context)
        name = type(self).__name__
        if not is_number(lr) or lr <= 0:
            raise SettingError(f"{name}(lr={lr!r}) is out of range; give a number above 0, such as 1e-3")
        check_form(name, form)
        check_choice(name, "head", head, ("random", "probe"))
        self.lr, self.form, self.head = float(lr), form, head
        self.free: frozenset[str] = frozenset()
        """The parameters of the newest network that the backbone does not freeze."""

    def trained(self, net: nn.Module) -> dict[str, Tensor]:
        """The parameters of a network that a task trains, the head's left out."""
        raise NotImplementedError

    def fit(self, task: Task) -> bytes:
        """Train, and store what was trained."""
        return rounding.encode(self.tuned(task)[1], self.form)

    def tuned(self, task: Task) -> tuple[nn.Module, dict[str, Tensor]]:
        """A network that has learned the task, and all of it that is the task's own."""
        net = self.fresh(task)
        chosen = self.trained(net)
        head = {f"{network.HEAD}.{n}": p for n, p in net.get_submodule(network.HEAD).named_parameters()}
        for parameter in (chosen | head).values():
            parameter.requires_grad_(True)
        self.train(net, task)
        buffers = {} if self.frozen_norms else dict(net.named_buffers())
        return net, {name: tensor.detach() for name, tensor in (chosen | head | buffers).items()}

    def fresh(self, task: Task) -> nn.Module:
        """A copy of the base with a head, in which nothing is trained yet."""
        net = self.context.build(task.classes, self.context.seed)
        self.free = frozenset(name for name, parameter in net.named_parameters() if parameter.requires_grad)
        net.requires_grad_(False)
        head = network.add_head(self.context, net, task)
        if self.head == "probe":
            fitted = fitted_head(self.featured(task.train), self.featured(task.val), task.classes)
            head.load_state_dict(fitted.state_dict())
        return net

    def train(self, net: nn.Module, task: Task, after_step: Callable[[int], None] = lambda step: None) -> None:
        """Train what requires gradients, for the run's epochs and in its batches."""
        x, y = self.on_device(task.train.x), task.train.y.to(self.device)
        recipe = auto.chosen(self.context.recipe, (task.train.x, task.train.y), given=True)
        key = network.later_seed_key(self.context, task)
        began, steps = time.monotonic(), short_training.steps(len(y), 1, recipe.batch)

        def report(epoch: int, loss: float) -> None:
            if self.context.progress is not None:
                seconds = time.monotonic() - began
                self.context.progress(Progress(task.name, "training", epoch, recipe.epochs, 0, steps, loss, seconds))

        with seeding.isolated(*key, "training", device=self.device):
            short_training.train(
                net,
                x,
                y,
                lr=self.lr,
                epochs=recipe.epochs,
                batch=recipe.batch,
                frozen_norms=self.frozen_norms,
                order=(*key, "order"),
                loss=task.objective.loss,
                after_step=after_step,
                after_epoch=report,
            )

    def steps(self, task: Task) -> int:
        """The number of steps in which a task is learned."""
        recipe = auto.chosen(self.context.recipe, (task.train.x, task.train.y), given=True)
        return short_training.steps(len(task.train.y), recipe.epochs, recipe.batch)

    def on_device(self, x: Tensor) -> Tensor:
        """Inputs on the device of the base, images with their channels last if the run has them so."""
        x = x.to(self.device)
        last = x.dim() == 4 and self.context.recipe.channels_last
        return x.contiguous(memory_format=torch.channels_last) if last else x

    def opened(self, content: bytes, classes: int) -> Predictor:
        """The base with what the file holds."""
        net = self.context.build(classes, self.context.seed).requires_grad_(False).eval()
        network.fill(net, rounding.decode(content))
        return lambda x: features.outputs(net, self.on_device(x))
