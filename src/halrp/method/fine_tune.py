"""Fine-tuning: everything that a task owns trains, the base does not."""

from __future__ import annotations

import math
import warnings
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from torch import Tensor, nn

from halrp import seeding
from halrp.checks import is_whole
from halrp.errors import DivergedError, DivergedWarning
from halrp.method.method import Halrp
from halrp.method.outcome import Outcome, measured
from halrp.method.start import Start
from halrp.model.base import Base
from halrp.model.factors import Factors
from halrp.training.batches import Data
from halrp.training.evaluate import evaluate
from halrp.training.groups import Group, Kind, by_kind, by_role, by_unit
from halrp.training.loop import Training
from halrp.training.run import TaskRun
from halrp.training.stopping import Validation, is_better


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
    best_epoch: int = -1
    """The epoch that it is left at; 0 is the start."""
    at_start: Validation | None = None
    """Loss and score of the start on the validation data, if it counts."""
    at_end: Validation | None = None
    """The same at the end of training, even if the start is better."""
    head: Mapping[str, Tensor] = MappingProxyType({})
    """The head at the start."""
    diverged: bool = False
    """Whether training diverged, so that this is the start."""
    outcome: Outcome | None = None
    """What this has on the validation data, where the start is of no use."""


def fine_tune(
    base: Base,
    method: Halrp,
    starts: Mapping[str, Start],
    owned: Mapping[str, Tensor],
    run: TaskRun,
    trains: bool = True,
) -> FineTuned:
    """Fine-tune from each view's start for a while, then to the end from the one with the lowest validation loss.

    Unless it `trains`, the network is left at its start, and so it is if training diverges from a solution.
    """
    variants = [prepare(base, method, view, start, owned, run.data.width) for view, start in starts.items()]
    trainings = [_training(base, method, variant, run) for variant in variants]
    val = run.data.val
    best = 0 if val is None or len(variants) == 1 else _lowest_validation_loss(trainings, method.trial, val, run)
    variant, training = variants[best], trainings[best]
    del variants, trainings  # the other's network and moments need not stay in memory
    if trains:
        try:
            with ExitStack() as stack:
                for part in (variant.start.front, variant.start.cross_fit):
                    if part is not None:
                        stack.enter_context(part.installed(variant.net))
                training.run()
        except DivergedError as error:
            at_start, _ = training.compared
            if not variant.start.is_solution or (at_start is not None and not math.isfinite(at_start.loss)):
                raise
            message = f"{error}. The probe is committed in its place: the head alone, on the features of the base"
            warnings.warn(message, DivergedWarning, stacklevel=2)
            return _at_start(base, method, variant, owned, run)._replace(at_start=at_start, diverged=True)
    return _result(base, variant, owned, training.best_epoch, training.compared)


def or_its_start(base: Base, method: Halrp, tuned: FineTuned, owned: Mapping[str, Tensor], run: TaskRun) -> FineTuned:
    """A fine-tuned network with its outcome; where training left no more than a guess, the start if that is better.

    One that started at a solution is left as it is: it is compared with that in any case.
    """
    outcome = None if tuned.start.is_solution else measured(run, tuned.net)
    if outcome is None:
        return tuned
    if outcome.is_guess:
        start = _at_start(base, method, tuned, owned, run)
        validation = run.validation(start.net)
        is_start_better = validation is not None and is_better(validation, outcome.end)
        if validation is not None and (
            is_start_better if run.processes is None else run.processes.first(is_start_better)
        ):
            tuned, outcome = start, outcome._replace(end=validation)
    return tuned._replace(outcome=outcome)


def _training(base: Base, method: Halrp, variant: FineTuning, run: TaskRun) -> Training:
    """The training of a variant: from a solution, over frozen statistics, and never to less."""
    groups = by_kind(variant.groups, _kinds(base, variant), run.recipe)
    if run.recipe.balanced_steps and variant.start.units:
        groups = by_unit(groups, _units(variant))
    solved, frozen = variant.start.is_solution, variant.start.freezes_statistics
    crossed, settle = variant.start.cross_fit, None
    epochs = run.recipe.epochs - (0 if solved else method.warm_up)
    if variant.start.front is not None:
        run = variant.start.front.run(run)
    if crossed is not None:
        settle, run = partial(crossed.settle, variant.net, run), crossed.run(run)
    stage, options = f"fine-tune: {variant.view}", {"frozen_statistics": frozen, "keep_best": solved}
    return run.training(stage, variant.net, groups, epochs, drops=True, settle=settle, **options)


def is_clearly_worse(tuned: FineTuned, run: TaskRun) -> bool:
    """Whether training diverged, or lowered the score on validation data by more than chance would on so few."""
    if tuned.diverged:
        return True
    if tuned.at_start is None or tuned.at_end is None or run.data.val is None:
        return False
    return tuned.at_end.score < tuned.at_start.score - 0.5 / math.sqrt(run.data.val.examples)


def prepare(
    base: Base, method: Halrp, view: str, start: Start, owned: Mapping[str, Tensor], classes: int
) -> FineTuning:
    """Build the network that is fine-tuned, from copies: head, biases, norms, dense weights, r, s, p and q train."""
    buffers = dict(base.module.named_buffers())

    def parameter(tensor: Tensor) -> Tensor:
        return nn.Parameter(tensor.clone()) if tensor.is_floating_point() else tensor.clone()

    factors = {
        n: f.map(parameter) if start.parts is None else _chosen(n, f, start.parts) for n, f in start.factors.items()
    }
    everything = {**owned, **start.small, **start.dense}
    private = {n: t.clone() if n in buffers else parameter(t) for n, t in everything.items()}
    groups = [
        Group(_parameters(t for f in factors.values() for t in (f.r, f.s)), l2=method.l2),
        Group(_parameters(t for f in factors.values() for t in (f.p, f.q) if t.numel()), l1=method.l1, l2=method.l2),
        Group(_parameters(t for n, t in private.items() if n in start.dense), l2=method.l2),
        Group(_parameters(t for n, t in private.items() if n not in start.dense)),
    ]
    return FineTuning(view, start, base.tuning_view(factors, private, classes), factors, private, groups)


def _chosen(name: str, factors: Factors, parts: Container[str]) -> Factors:
    """Factors of which p and q train, and the scales that are stored."""
    r, s = (
        nn.Parameter(scale.clone()) if f"{part}/{name}" in parts else scale.clone()
        for part, scale in (("r", factors.r), ("s", factors.s))
    )
    return Factors(r, s, nn.Parameter(factors.p.clone()), nn.Parameter(factors.q.clone()))


def _kinds(base: Base, variant: FineTuning) -> dict[nn.Parameter, Kind]:
    """What kind of parameter each is that trains."""
    kinds = by_role(base.plan, ((n, t) for n, t in variant.owned.items() if isinstance(t, nn.Parameter)))
    for layer in variant.factors.values():
        kinds |= dict.fromkeys(_parameters((layer.r, layer.s)), "scales")
        kinds |= dict.fromkeys(_parameters((layer.p, layer.q)), "factors")
    return kinds


def _units(variant: FineTuning) -> dict[nn.Parameter, float]:
    """The unit of the steps of each parameter that trains, where the start measured one."""
    units, named = variant.start.units, dict[nn.Parameter, float]()
    for name, layer in variant.factors.items():
        for part, tensor in zip("rspq", layer.tensors(), strict=True):
            if isinstance(tensor, nn.Parameter) and f"{part}/{name}" in units:
                named[tensor] = units[f"{part}/{name}"]
    for name, tensor in variant.owned.items():
        if isinstance(tensor, nn.Parameter) and f"plain/{name}" in units:
            named[tensor] = units[f"plain/{name}"]
    return named


def _lowest_validation_loss(trainings: Sequence[Training], trial: float, val: Data, run: TaskRun) -> int:
    """Train each variant for a share `trial` of its epochs; the index of the best, saved for a run that resumes."""
    saved = None if run.checkpoints is None else run.checkpoints.load(f"{run.prefix}choice")
    if saved is not None and run.checkpoints is not None:
        choice: Any = saved[1].get("best")
        if is_whole(choice, 0, len(trainings)):
            return int(choice)
        run.checkpoints.reject(f"{run.prefix}choice", f"its choice is {choice!r} of {len(trainings)} views")
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
        run.checkpoints.save(f"{run.prefix}choice", {}, {"best": best})
    return best


def _at_start(
    base: Base, method: Halrp, variant: FineTuning | FineTuned, owned: Mapping[str, Tensor], run: TaskRun
) -> FineTuned:
    """What a task owns before the first epoch."""
    again = prepare(base, method, variant.view, variant.start, owned, run.data.width)
    again.net.eval()
    return _result(base, again, owned, 0)


def _result(
    base: Base,
    variant: FineTuning,
    head: Mapping[str, Tensor],
    epoch: int,
    compared: tuple[Validation | None, Validation | None] = (None, None),
) -> FineTuned:
    owned = {n: t.detach() for n, t in variant.owned.items() if isinstance(t, nn.Parameter)}
    factors = {n: f.map(lambda tensor: tensor.detach()) for n, f in variant.factors.items()}
    owned |= base.changed_buffers(variant.net)
    return FineTuned(variant.view, variant.start, factors, owned, variant.net, epoch, *compared, head)


def _parameters(tensors: Iterable[Tensor]) -> list[nn.Parameter]:
    return [tensor for tensor in tensors if isinstance(tensor, nn.Parameter)]
