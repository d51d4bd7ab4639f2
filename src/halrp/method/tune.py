"""Fine-tuning: everything that a task owns trains, the base does not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from torch import Tensor, nn

from halrp.method.method import Halrp
from halrp.method.start import Start
from halrp.model.base import Base
from halrp.model.factors import Factors
from halrp.training.batches import Data
from halrp.training.checkpoint import Checkpoints
from halrp.training.evaluate import evaluate
from halrp.training.loop import Group, Training
from halrp.training.recipe import Recipe


class Tuning(NamedTuple):
    """A network about to be fine-tuned: the tensors in it that belong to the task, and their penalties."""

    view: str
    start: Start
    net: nn.Module
    factors: Mapping[str, Factors]
    owned: Mapping[str, Tensor]
    groups: list[Group]


def tuning(base: Base, method: Halrp, view: str, start: Start, owned: Mapping[str, Tensor], classes: int) -> Tuning:
    """Build the network that fine-tuning trains, from copies: trained are head, biases, norms, r, s, p, q."""
    buffers = dict(base.module.named_buffers())

    def parameter(tensor: Tensor) -> Tensor:
        return nn.Parameter(tensor.clone()) if tensor.is_floating_point() else tensor.clone()

    factors = {n: f.map(parameter) for n, f in start.factors.items()}
    own = {n: t.clone() if n in buffers else parameter(t) for n, t in {**owned, **start.owned}.items()}
    groups = [
        Group(_parameters(t for f in factors.values() for t in (f.r, f.s)), l2=method.l2),
        Group(_parameters(t for f in factors.values() for t in (f.p, f.q) if t.numel()), l1=method.l1, l2=method.l2),
        Group(_parameters(t for n, t in own.items() if n in start.owned), l2=method.l2),
        Group(_parameters(t for n, t in own.items() if n not in start.owned)),
    ]
    return Tuning(view, start, base.tuning_view(factors, own, classes), factors, own, groups)


def preferred(
    trainings: Sequence[Training], trial: float, val: Data, recipe: Recipe, checkpoints: Checkpoints | None
) -> int:
    """Train each start for a share `trial` of its epochs; the index of the lowest validation loss, remembered."""
    known = None if checkpoints is None else checkpoints.load("choice")
    if known is not None:
        return int(known[1]["best"])
    epochs = max(1, round(trial * trainings[0].epochs))
    losses = [evaluate(t.run(epochs).module, val, recipe.batch, recipe.autocast)[0] for t in trainings]
    best = losses.index(min(losses))
    if checkpoints is not None:
        checkpoints.save("choice", {}, {"best": best})
    return best


def tuned(base: Base, run: Tuning) -> tuple[dict[str, Factors], dict[str, Tensor]]:
    """What the task owns after fine-tuning: its factors, and its full tensors with the buffers that changed."""
    owned = {n: t.detach() for n, t in run.owned.items() if isinstance(t, nn.Parameter)}
    factors = {n: f.map(lambda tensor: tensor.detach()) for n, f in run.factors.items()}
    return factors, owned | base.changed_buffers(run.net)


def _parameters(tensors: Iterable[Tensor]) -> list[nn.Parameter]:
    return [tensor for tensor in tensors if isinstance(tensor, nn.Parameter)]
