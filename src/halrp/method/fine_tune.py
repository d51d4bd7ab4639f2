"""Fine-tuning: everything that a task owns trains, the base does not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

from halrp import seeding
from halrp.checks import is_whole
from halrp.method.method import Halrp
from halrp.method.start import Start
from halrp.model.base import Base
from halrp.model.factors import Factors
from halrp.training.batches import Data
from halrp.training.evaluate import evaluate
from halrp.training.groups import Group, Kind, by_kind, by_role
from halrp.training.loop import Training
from halrp.training.run import TaskRun


class FineTuning(NamedTuple):
    """A network to be fine-tuned: the tensors in it that belong to the task, and their penalties."""

    view: str
    start: Start
    net: nn.Module
    factors: Mapping[str, Factors]
    owned: Mapping[str, Tensor]
    groups: list[Group]


class FineTuned(NamedTuple):
    """What a task owns after fine-tuning."""

    view: str
    start: Start
    factors: Mapping[str, Factors]
    owned: Mapping[str, Tensor]
    """Full tensors: head, biases, norms, dense weights, and the buffers that changed."""
    net: nn.Module
    """The network that was fine-tuned."""


def fine_tune(
    base: Base, method: Halrp, starts: Mapping[str, Start], owned: Mapping[str, Tensor], run: TaskRun
) -> FineTuned:
    """Fine-tune from each view's start for a while, then to the end from the one with the lowest validation loss."""
    variants = [prepare(base, method, view, start, owned, run.data.width) for view, start in starts.items()]
    epochs = run.recipe.epochs - method.warm_up
    trainings = [
        run.training(f"fine-tune: {v.view}", v.net, by_kind(v.groups, _kinds(base, v), run.recipe), epochs)
        for v in variants
    ]
    val = run.data.val
    best = 0 if val is None or len(variants) == 1 else _lowest_validation_loss(trainings, method.trial, val, run)
    variant, training = variants[best], trainings[best]
    del variants, trainings  # the other's network and moments need not stay in memory
    training.run()
    return _result(base, variant)


def prepare(
    base: Base, method: Halrp, view: str, start: Start, owned: Mapping[str, Tensor], classes: int
) -> FineTuning:
    """Build the network that is fine-tuned, from copies: head, biases, norms, dense weights, r, s, p and q train."""
    buffers = dict(base.module.named_buffers())

    def parameter(tensor: Tensor) -> Tensor:
        return nn.Parameter(tensor.clone()) if tensor.is_floating_point() else tensor.clone()

    factors = {n: f.map(parameter) for n, f in start.factors.items()}
    private = {n: t.clone() if n in buffers else parameter(t) for n, t in {**owned, **start.dense}.items()}
    groups = [
        Group(_parameters(t for f in factors.values() for t in (f.r, f.s)), l2=method.l2),
        Group(_parameters(t for f in factors.values() for t in (f.p, f.q) if t.numel()), l1=method.l1, l2=method.l2),
        Group(_parameters(t for n, t in private.items() if n in start.dense), l2=method.l2),
        Group(_parameters(t for n, t in private.items() if n not in start.dense)),
    ]
    return FineTuning(view, start, base.tuning_view(factors, private, classes), factors, private, groups)


def _kinds(base: Base, variant: FineTuning) -> dict[nn.Parameter, Kind]:
    """What kind of parameter each is that trains."""
    kinds = by_role(base.plan, ((n, t) for n, t in variant.owned.items() if isinstance(t, nn.Parameter)))
    for layer in variant.factors.values():
        kinds |= dict.fromkeys(_parameters((layer.r, layer.s)), "scales")
        kinds |= dict.fromkeys(_parameters((layer.p, layer.q)), "factors")
    return kinds


def _lowest_validation_loss(trainings: Sequence[Training], trial: float, val: Data, run: TaskRun) -> int:
    """Train each variant for a share `trial` of its epochs; the index of the best, saved for a run that resumes."""
    saved = None if run.checkpoints is None else run.checkpoints.load("choice")
    if saved is not None and run.checkpoints is not None:
        choice: Any = saved[1].get("best")
        if is_whole(choice, 0, len(trainings)):
            return int(choice)
        run.checkpoints.reject("choice", f"its choice is {choice!r} of {len(trainings)} views")
    epochs, recipe = max(1, round(trial * trainings[0].epochs)), run.recipe
    losses = []
    for training in trainings:
        module = training.run(epochs).module
        with seeding.isolated(
            *run.seed_key, "choice", device=next(module.parameters()).device
        ):  # a loader may draw its order
            losses.append(evaluate(module, val, recipe.batch, recipe.autocast, run.processes)[0])
    best = losses.index(min(losses))
    if run.checkpoints is not None:
        run.checkpoints.save("choice", {}, {"best": best})
    return best


def _result(base: Base, variant: FineTuning) -> FineTuned:
    owned = {n: t.detach() for n, t in variant.owned.items() if isinstance(t, nn.Parameter)}
    factors = {n: f.map(lambda tensor: tensor.detach()) for n, f in variant.factors.items()}
    return FineTuned(variant.view, variant.start, factors, owned | base.changed_buffers(variant.net), variant.net)


def _parameters(tensors: Iterable[Tensor]) -> list[nn.Parameter]:
    return [tensor for tensor in tensors if isinstance(tensor, nn.Parameter)]
