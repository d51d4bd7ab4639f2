"""What methods share that train networks: new networks, the training of one, logits, heads, and tensors by name.

The first task of every method that starts from a plain network is trained exactly as the library trains its base, so
the same seed gives the same weights, and methods differ only in what comes after.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from halrp import seeding
from halrp.lab.methods.protocol import Context
from halrp.lab.streams import Task
from halrp.model.base import Base, set_memory_format
from halrp.model.inference import batch_sizes
from halrp.model.layers.head import new_head
from halrp.model.layers.norm import BATCH_NORMS
from halrp.model.plan import Plan, plan
from halrp.model.views import get_tensor, replace_module
from halrp.store.folder import slug
from halrp.training import auto
from halrp.training.batches import InMemory, refuse_batch_of_one
from halrp.training.checkpoint import Checkpoints
from halrp.training.loop import Group, Hooks, Stage, Training
from halrp.training.prepare import prepare
from halrp.training.recipe import Recipe, autocast

HEAD = "head"
CHECKPOINT_EVERY = 30.0
"""Seconds of training that a run may lose when it is killed."""

SeedKey = tuple[object, ...]
"""What random numbers are a function of; it is hashed into a seed."""


def fresh(context: Context, task: Task, *salt: object) -> tuple[nn.Module, Plan]:
    """An untrained network with a head for the task, and the plan of its parameters.

    Its weights are a function of the run's seed and of `salt`, if any.
    """
    seed = seeding.seed_of(context.seed, *salt) % 2**31 if salt else context.seed
    model = context.build(task.classes, seed)
    initial = Base(model, plan(model, HEAD), channels_last(context, model))
    return initial.trainable(task.classes, *first_seed_key(context, task, *salt)), initial.plan


def channels_last(context: Context, net: nn.Module) -> bool:
    """Whether a network and its inputs have their channels last in memory."""
    return context.recipe.channels_last and any(isinstance(m, nn.Conv2d) for m in net.modules())


def first_seed_key(context: Context, task: Task, *salt: object) -> SeedKey:
    """The seed key of a network's first task; the library's base has the same."""
    return (context.seed, *salt, None, task.name)


def later_seed_key(context: Context, task: Task) -> SeedKey:
    """The seed key of a later task."""
    return context.seed, "later", task.name


def weight_groups(net: nn.Module, parameter_plan: Plan, l2: float) -> list[Group]:
    """All trainable parameters, with λ/2·‖w‖² on the weights of layers, not on biases, norms or the head."""
    weights = parameter_plan.named("adapted")
    trained = [(n, p) for n, p in net.named_parameters() if p.requires_grad]
    return [Group([p for n, p in trained if n in weights], l2=l2), Group([p for n, p in trained if n not in weights])]


def fit(
    context: Context, task: Task, net: nn.Module, groups: Iterable[Group], seed_key: SeedKey, stage: str, **options: Any
) -> Training:
    """Train a network on a task by the run's recipe, and leave it in evaluation mode; `options` as in `training`."""
    return training(context, task, net, groups, seed_key, stage, **options).run()


def training(
    context: Context,
    task: Task,
    net: nn.Module,
    groups: Iterable[Group],
    seed_key: SeedKey,
    stage: str,
    epochs: int | None = None,
    **options: Any,
) -> Training:
    """The training of `fit` before its first epoch, to run in steps; `options` are `checkpoints` and `Hooks`."""
    recipe = recipe_of(context, task)
    saved = options.pop("checkpoints", checkpoints(context, task))
    return Training(
        net,
        groups,
        examples(context, task, net),
        recipe,
        Stage(recipe.epochs if epochs is None else epochs, (*seed_key, stage), task.name, stage),
        Hooks(augment=task.augment, **options),
        context.progress,
        saved,
    )


def recipe_of(context: Context, task: Task) -> Recipe:
    """The run's recipe, in which nothing is left open for a task; every network is one that a task trains."""
    return auto.chosen(context.recipe, (task.train.x, task.train.y), given=False)


def examples(context: Context, task: Task, net: nn.Module) -> InMemory:
    """The training data of a task, checked, on the network's device and in its memory format."""
    recipe, name = context.recipe, f"{task.name}: train"
    data = prepare(
        (task.train.x, task.train.y),
        name=name,
        device=next(net.parameters()).device,
        batch=recipe.batch,
        objective=task.objective,
        channels_last=channels_last(context, net),
    )
    if any(isinstance(m, BATCH_NORMS) for m in net.modules()):
        refuse_batch_of_one(data, recipe.batch, name)
    assert isinstance(data, InMemory)
    return data


def checkpoints(context: Context, task: Task) -> Checkpoints | None:
    """The checkpoints of a task's training, if the run has a folder for them."""
    if context.work is None:
        return None
    return Checkpoints(context.work / slug(task.name), task.name, CHECKPOINT_EVERY)


@torch.no_grad()
def logits(context: Context, net: nn.Module, x: Tensor) -> Tensor:
    """Logits of a network in evaluation mode, batch by batch."""
    first = next(net.parameters())
    x = x.to(first.device)
    with autocast(context.recipe.autocast, first.device):
        return torch.cat([net(rows) for rows in x.split(batch_sizes(len(x), evaluation_batch(context, net)))])


def evaluation_batch(context: Context, net: nn.Module) -> int:
    """Rows per batch in evaluation; as in training if batch norms use the statistics of the batch."""
    by_batch = any(isinstance(m, BATCH_NORMS) and m.running_mean is None for m in net.modules())
    return context.recipe.batch if by_batch else 512


def add_head(context: Context, net: nn.Module, task: Task) -> nn.Module:
    """Give a network a new head for a task, with weights from the task's seed key, and return it."""
    with seeding.isolated(*later_seed_key(context, task), "head", device=next(net.parameters()).device):
        head = new_head(net.get_submodule(HEAD), task.classes)
    replace_module(net, HEAD, head)
    return head


def head_width(net: nn.Module) -> int:
    """The number of classes of a network's head."""
    return len(next(net.get_submodule(HEAD).parameters()))


def contents(net: nn.Module) -> dict[str, Tensor]:
    """Every parameter and buffer of a network, by name."""
    return {n: t.detach() for n, t in (*net.named_parameters(), *net.named_buffers())}


def count_without_buffers(net: nn.Module, tensors: Mapping[str, Tensor]) -> int:
    """The numbers in tensors of a network that are no buffers of it, such as running statistics of batch norms."""
    buffers = dict(net.named_buffers())
    return sum(tensor.numel() for name, tensor in tensors.items() if name not in buffers)


def add_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors, with names `prefix/name`."""
    return {f"{prefix}/{name}": tensor for name, tensor in tensors.items()}


def strip_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names are `prefix/name`, by name."""
    return {n.removeprefix(f"{prefix}/"): t for n, t in tensors.items() if n.startswith(f"{prefix}/")}


@torch.no_grad()
def fill(net: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy tensors into the parameters and buffers of the same names."""
    for name, tensor in tensors.items():
        get_tensor(net, name).copy_(tensor)


def empty(context: Context, classes: int) -> tuple[nn.Module, Plan]:
    """A network to `fill`, in evaluation mode, and the plan of its parameters."""
    net = context.build(classes, context.seed)
    parameter_plan = plan(net, HEAD)
    for name, parameter in net.named_parameters():
        parameter.requires_grad_(parameter_plan.parameters[name].kind != "shared")
    if channels_last(context, net):
        net = set_memory_format(net, channels_last=True)
    return net.eval(), parameter_plan


def empty_head(net: nn.Module, classes: int) -> nn.Module:
    """A frozen head of another width for a network, to `fill`."""
    with torch.random.fork_rng(devices=[]):
        return new_head(net.get_submodule(HEAD), classes).requires_grad_(False)
