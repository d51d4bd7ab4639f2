"""A probe: the head of a task, fitted on the features of the frozen base.

The features are what the head gets, computed once. On them the head is fitted by L-BFGS with the penalty

    c · m / 2 · ‖W‖²,     m = mean square of the features,

on its matrices. m makes c free of the features' unit. Of a path of values for c, the one with the lowest loss on
validation data is taken, or the lowest mean loss over folds of the training data if there are none. The path goes from
strong to weak. For a head of several layers it goes from weak to strong: a strong penalty takes all layers to zero, and
there none has a gradient by which a weaker one could leave.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

import torch
from torch import Tensor, nn

from halrp import seeding
from halrp.errors import DivergedError
from halrp.method.importance import at_least_float32
from halrp.objectives import Objective
from halrp.training.batches import Data
from halrp.training.stopping import Validation

PENALTIES = tuple(10 ** (-k / 2) for k in range(-1, 10))
"""Values of c, from strong to weak."""
FOLDS = 5
ITERATIONS = 60
"""Of L-BFGS for each value of c; each starts where the one before it ended."""
MOST_BYTES = 2**27
"""Of features that are held in memory; of more, examples spread evenly over the data."""
WAIT = 2
"""Values of c without a lower loss after which the next ones are not tried."""


class Features(NamedTuple):
    """What a head gets for some examples (N, ...), and their targets."""

    x: Tensor
    y: Tensor

    def rows(self, chosen: Tensor) -> Features:
        """Some of the examples."""
        return Features(self.x[chosen], self.y[chosen])


class Probe(NamedTuple):
    """A fitted head."""

    head: nn.Module
    penalty: float
    """The chosen value of c."""
    validation: Validation | None
    """Loss and score on the validation data."""

    def error(self, objective: Objective, data: Features) -> float:
        """The mean square of the gradients of examples' losses by the outputs."""
        return error(objective, self.head(at_least_float32(data.x)), data.y)


def features(
    net: nn.Module, path: str, data: Data, batch: int, seed_key: Sequence[object], most: int = MOST_BYTES
) -> Features | None:
    """What the head at `path` gets for a task's examples, or None if outputs are not those of one call of the head."""
    head, device = net.get_submodule(path), next(net.parameters()).device
    inputs, targets, read = list[Tensor](), list[Tensor](), 0
    with torch.no_grad(), seeding.isolated(*seed_key, "features", device=device), _Calls(head) as calls:
        for x, y in data.batches(batch, None):
            outputs = data.call(net, x)
            taken = calls.take(outputs)
            if taken is None:
                return None
            wanted = max(1, min(data.examples, most // (taken[0].numel() * taken.element_size())))
            number = torch.arange(read, read + len(y), device=y.device)
            # The wanted number of all examples, evenly.
            chosen = number * wanted // data.examples != (number + 1) * wanted // data.examples
            inputs.append(taken[chosen])
            targets.append(y[chosen])
            read += len(y)
    return Features(torch.cat(inputs), torch.cat(targets))


class _Calls:
    """Watches the calls of a head while a network computes outputs."""

    def __init__(self, head: nn.Module) -> None:
        self._head, self._calls = head, list[tuple[Tensor, Tensor] | None]()

    def __enter__(self) -> _Calls:
        def hook(_: nn.Module, args: tuple[object, ...], named: dict[str, object], given: object) -> None:
            x = args[0] if len(args) == 1 and not named else None
            if isinstance(x, Tensor) and isinstance(given, Tensor):
                self._calls.append((x.detach().clone(), given.detach().clone()))  # the network may write over both
            else:
                self._calls.append(None)

        self._handle = self._head.register_forward_hook(hook, with_kwargs=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._handle.remove()

    def take(self, outputs: Tensor) -> Tensor | None:
        """The input of the one call whose result the outputs are; None if there is no such call."""
        calls, self._calls[:] = list(self._calls), []
        if len(calls) != 1 or calls[0] is None:
            return None
        x, given = calls[0]
        same = given.shape == outputs.shape and torch.equal(given, outputs)
        rows_first = x.dim() > 1 and x.shape[0] == outputs.shape[0]
        return x if same and rows_first else None


def fit(head: nn.Module, objective: Objective, train: Features, val: Features | None, *, from_zero: bool) -> Probe:
    """Fit a head; `from_zero` starts it there, which suits a single layer, and one of several starts as it is."""
    train, val = _precise(train), None if val is None else _precise(val)
    unit = float(train.x.square().mean()) or 1.0
    start = copy.deepcopy(head).to(train.x.dtype).requires_grad_(True)
    if from_zero:
        _at_zero(start)
    penalties = PENALTIES if from_zero else PENALTIES[::-3]  # fewer: fitting several layers takes long
    if val is None:
        best = _by_folds(start, objective, train, unit, penalties)
        *_, (_, fitted) = _path(start, objective, train, unit, penalties[: penalties.index(best) + 1])
        return Probe(_checked(fitted), best, None)
    chosen: Probe | None = None
    waited = 0
    for c, path_head in _path(start, objective, train, unit, penalties):
        validation = measured(path_head, objective, val)
        if chosen is None or chosen.validation is None or validation.loss < chosen.validation.loss:
            chosen, waited = Probe(copy.deepcopy(path_head), c, validation), 0
        else:
            waited += 1
            if waited >= WAIT:
                break
    assert chosen is not None
    return chosen._replace(head=_checked(chosen.head))


def fit_with(penalty: float, head: nn.Module, objective: Objective, train: Features) -> nn.Module:
    """A head of a single layer, fitted from zero with a penalty of `PENALTIES`."""
    train = _precise(train)
    unit = float(train.x.square().mean()) or 1.0
    start = _at_zero(copy.deepcopy(head).to(train.x.dtype).requires_grad_(True))
    *_, (_, fitted) = _path(start, objective, train, unit, PENALTIES[: PENALTIES.index(penalty) + 1])
    return _checked(fitted)


@torch.no_grad()
def copy_into(head: nn.Module, fitted: nn.Module) -> None:
    """Give a head the values of a fitted one."""
    values = dict(fitted.named_parameters())
    for name, parameter in head.named_parameters():
        parameter.copy_(values[name])


@torch.no_grad()
def _at_zero(head: nn.Module) -> nn.Module:
    for parameter in head.parameters():
        parameter.zero_()
    return head


def _precise(data: Features) -> Features:
    """Features in the precision that a line search needs."""
    return data._replace(x=at_least_float32(data.x))


@torch.no_grad()
def measured(head: nn.Module, objective: Objective, data: Features) -> Validation:
    """Mean loss and score of a head on features."""
    outputs = head(data.x)
    return Validation(float(objective.loss(outputs, data.y)), float(objective.score(outputs, data.y)))


def error(objective: Objective, outputs: Tensor, targets: Tensor) -> float:
    """The mean square of the gradients of examples' losses by their outputs (N, ...); curvature grows with it."""
    outputs = outputs.detach().requires_grad_(True)
    with torch.enable_grad():
        (gradient,) = torch.autograd.grad(objective.loss(outputs, targets), outputs)
    return float(gradient.square().sum()) * len(outputs)


def folds(y: Tensor, count: int) -> Tensor:
    """The fold of each example, (N,): dealt in the order of their targets, so that every fold has its share of each.

    Targets of several numbers have no order, and the examples are dealt in one that is drawn.
    """
    if y.dim() == 1:
        order = y.argsort(stable=True)
    else:
        order = torch.randperm(len(y), generator=seeding.generator("folds")).to(y.device)
    dealt = torch.empty_like(order)
    dealt[order] = torch.arange(len(y), device=y.device) % count
    return dealt


def _by_folds(
    start: nn.Module, objective: Objective, train: Features, unit: float, penalties: Sequence[float]
) -> float:
    """The value of c with the lowest mean loss over folds; every fold is the held-out part of the others once."""
    count = min(FOLDS, len(train.y))
    if count < 2:
        return max(penalties)
    fold_of = folds(train.y, count)
    losses = torch.zeros(len(penalties))
    for fold in range(count):
        inside = train.rows(fold_of != fold)
        outside = train.rows(fold_of == fold)
        for number, (_, head) in enumerate(_path(start, objective, inside, unit, penalties)):
            losses[number] += measured(head, objective, outside).loss * len(outside.y)
    return penalties[int(losses.argmin())]


def _path(
    start: nn.Module, objective: Objective, data: Features, unit: float, penalties: Sequence[float]
) -> Iterator[tuple[float, nn.Module]]:
    """Heads fitted with each value of c, each from the one before; the same module every time."""
    head = copy.deepcopy(start)
    matrices = [parameter for parameter in head.parameters() if parameter.dim() > 1]
    for c in penalties:
        optimiser = torch.optim.LBFGS(
            head.parameters(), max_iter=ITERATIONS, history_size=10, line_search_fn="strong_wolfe"
        )

        def closure(c: float = c, optimiser: torch.optim.Optimizer = optimiser) -> Tensor:
            optimiser.zero_grad()
            loss = objective.loss(head(data.x), data.y)
            for matrix in matrices:
                loss = loss + 0.5 * c * unit * matrix.square().sum()
            loss.backward()
            return loss

        # The line search divides by the distance of two points, which may round to none: then it has ended.
        with torch.enable_grad(), suppress(ZeroDivisionError):
            optimiser.step(closure)
        yield c, head


def _checked(head: nn.Module) -> nn.Module:
    if not all(bool(parameter.isfinite().all()) for parameter in head.parameters()):
        raise DivergedError("fitting the head on the base's features diverged; check the scale of the inputs")
    for parameter in head.parameters():
        parameter.grad = None
    return head
