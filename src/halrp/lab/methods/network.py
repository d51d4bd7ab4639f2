"""What methods that train whole networks share: fresh networks, the training of one, logits, and heads.

The first task of every method that starts from a plain network is trained here in exactly the way in which the library
trains its base, so that the same seed gives the same weights and methods differ only in what comes after.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from halrp import seeding
from halrp.lab.methods.protocol import Context, Size
from halrp.lab.streams import Task
from halrp.model.base import Base, set_memory_format
from halrp.model.inference import batch_sizes
from halrp.model.layers.head import new_head
from halrp.model.layers.norm import BATCH_NORMS
from halrp.model.plan import Plan, plan
from halrp.model.views import get_tensor, replace_module
from halrp.store.store import slug
from halrp.training.batches import InMemory, prepare, refuse_batch_of_one
from halrp.training.checkpoint import Checkpoints
from halrp.training.loop import Group, Hooks, Stage, Training
from halrp.training.recipe import autocast

HEAD = "head"
CHECKPOINT_EVERY = 30.0
"""Seconds of training that a run may lose when it is killed."""


def fresh(context: Context, task: Task, *salt: object) -> tuple[nn.Module, Plan]:
    """A network that has learned nothing, with a head for the task, and the plan that tells its parameters apart.

    Its weights are a function of the run's seed, and of `salt` if there is any.
    """
    seed = seeding.seed_of(context.seed, *salt) % 2**31 if salt else context.seed
    model = context.build(task.classes, seed)
    channels_last = context.recipe.channels_last and any(isinstance(m, nn.Conv2d) for m in model.modules())
    initial = Base(model, plan(model, HEAD), channels_last)
    return initial.trainable(task.classes, *first_names(context, task, *salt)), initial.plan


def first_names(context: Context, task: Task, *salt: object) -> tuple[object, ...]:
    """What the draws of a network that learns its first task are a function of; the library's base has the same."""
    return (context.seed, *salt, None, task.name)


def later_names(context: Context, task: Task) -> tuple[object, ...]:
    """What the draws of a later task are a function of."""
    return context.seed, "later", task.name


def weight_groups(net: nn.Module, treated: Plan, l2: float) -> list[Group]:
    """All parameters that train, with λ/2·‖w‖² on the weights of layers, not on biases, norms or the head."""
    weights = treated.named("adapted")
    trained = [(n, p) for n, p in net.named_parameters() if p.requires_grad]
    return [Group([p for n, p in trained if n in weights], l2=l2), Group([p for n, p in trained if n not in weights])]


def fit(
    context: Context,
    task: Task,
    net: nn.Module,
    groups: Iterable[Group],
    names: tuple[object, ...],
    stage: str,
    epochs: int | None = None,
    **hooks: Any,
) -> Training:
    """Train a network on a task by the run's recipe; `hooks` go to `Training`. It is left in evaluation mode."""
    return training(context, task, net, groups, names, stage, epochs, **hooks).run()


def training(
    context: Context,
    task: Task,
    net: nn.Module,
    groups: Iterable[Group],
    names: tuple[object, ...],
    stage: str,
    epochs: int | None = None,
    **hooks: Any,
) -> Training:
    """The training of `fit` before its first epoch, for a method that looks at it in between."""
    recipe = context.recipe
    saved = hooks.pop("checkpoints", checkpoints(context, task))
    return Training(
        net,
        groups,
        examples(context, task, net),
        recipe,
        Stage(recipe.epochs if epochs is None else epochs, (*names, stage), task.name, stage),
        Hooks(augment=task.augment, **hooks),
        context.progress,
        saved,
    )


def examples(context: Context, task: Task, net: nn.Module) -> InMemory:
    """The training data of a task, checked, as a network takes them."""
    recipe, name = context.recipe, f"{task.name}: train"
    data, _ = prepare(
        (task.train.x, task.train.y),
        name=name,
        device=next(net.parameters()).device,
        batch=recipe.batch,
        classes=task.classes,
        channels_last=recipe.channels_last and any(isinstance(m, nn.Conv2d) for m in net.modules()),
    )
    if any(isinstance(m, BATCH_NORMS) for m in net.modules()):
        refuse_batch_of_one(data, recipe.batch, name)
    assert isinstance(data, InMemory)
    return data


def checkpoints(context: Context, task: Task) -> Checkpoints | None:
    """Where the training of a task is kept from time to time, if the run keeps any."""
    if context.work is None:
        return None
    return Checkpoints(context.work / slug(task.name), task.name, CHECKPOINT_EVERY)


@torch.no_grad()
def logits(context: Context, net: nn.Module, x: Tensor) -> Tensor:
    """Logits of a network in evaluation mode, in chunks.

    A network whose batch norms use the statistics of the batch sees chunks of the size it was trained on.
    """
    first = next(net.parameters())
    x = x.to(first.device)
    with autocast(context.recipe.autocast, first.device):
        return torch.cat([net(rows) for rows in x.split(batch_sizes(len(x), chunk(context, net)))])


def chunk(context: Context, net: nn.Module) -> int:
    """How many rows a network is given at once in evaluation."""
    by_batch = any(isinstance(m, BATCH_NORMS) and m.running_mean is None for m in net.modules())
    return context.recipe.batch if by_batch else 512


def add_head(context: Context, net: nn.Module, task: Task) -> nn.Module:
    """Give a network a new head for a task, drawn from the task's name, and return it."""
    with seeding.isolated(*later_names(context, task), "head", device=next(net.parameters()).device):
        head = new_head(net.get_submodule(HEAD), task.classes)
    replace_module(net, HEAD, head)
    return head


def width(net: nn.Module) -> int:
    """How many classes a network's head tells apart."""
    return len(next(net.get_submodule(HEAD).parameters()))


def size_of(tensors: Iterable[Tensor]) -> Size:
    """Numbers and bytes of some tensors."""
    return Size.of(tensors)


def contents(net: nn.Module) -> dict[str, Tensor]:
    """Every parameter and buffer of a network, by name."""
    return {n: t.detach() for n, t in (*net.named_parameters(), *net.named_buffers())}


def prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors under longer names."""
    return {f"{prefix}/{name}": tensor for name, tensor in tensors.items()}


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors whose names have a prefix, without it."""
    return {n.removeprefix(f"{prefix}/"): t for n, t in tensors.items() if n.startswith(f"{prefix}/")}


@torch.no_grad()
def fill(net: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy tensors into the parameters and buffers of their names."""
    for name, tensor in tensors.items():
        get_tensor(net, name).copy_(tensor)


def empty(context: Context, classes: int) -> tuple[nn.Module, Plan]:
    """A network whose weights are about to be filled in: right shapes and memory format, in evaluation mode."""
    net = context.build(classes, context.seed)
    treated = plan(net, HEAD)
    for name, parameter in net.named_parameters():
        parameter.requires_grad_(treated.parameters[name].kind != "shared")
    if context.recipe.channels_last and any(isinstance(m, nn.Conv2d) for m in net.modules()):
        net = set_memory_format(net, channels_last=True)
    return net.eval(), treated


def empty_head(net: nn.Module, classes: int) -> nn.Module:
    """A frozen head of another width for a network, about to be filled in."""
    with torch.random.fork_rng(devices=[]):
        return new_head(net.get_submodule(HEAD), classes).requires_grad_(False)
