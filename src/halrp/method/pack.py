"""From a fine-tuned network to the delta that is committed."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from halrp import seeding
from halrp.method.fine_tune import FineTuned
from halrp.method.method import Halrp
from halrp.method.outcome import KEY, Outcome
from halrp.model.base import Base
from halrp.model.codec import Precision
from halrp.model.delta import Delta
from halrp.model.description import PARTS_FORMAT, Description
from halrp.training.evaluate import evaluate
from halrp.training.run import TaskRun
from halrp.training.stopping import Validation, is_better


def packed(description: Description, base: Base, method: Halrp, tuned: FineTuned, run: TaskRun) -> Delta:
    """A task's delta: all that was trained, or where parts were chosen, those in their precisions.

    With validation data, a task that started at a solution of its own is compared with it as both are stored, and the
    better one is committed; its provenance reports both.
    """
    if tuned.start.parts is None:
        return Delta.pack(description, base.layout, tuned.factors, tuned.owned, tuned.start.recovered)
    description = replace(description, format=PARTS_FORMAT, precision="float32")
    delta = _of_parts(description, base, method, tuned, at_start=not tuned.best_epoch)
    if tuned.at_start is None:
        return delta
    start, end, epoch = tuned.at_start, _validated(delta, base, run), tuned.best_epoch
    if epoch and is_better(start, end):  # after rounding
        at_start = _of_parts(description, base, method, tuned, at_start=True)
        if is_better(at_start_end := _validated(at_start, base, run), end):
            delta, end, epoch = at_start, at_start_end, 0
    return replace(delta, provenance={**description.provenance, KEY: Outcome(start, end, epoch).text()})


def _validated(delta: Delta, base: Base, run: TaskRun) -> Validation:
    """Loss and score of a task as it is stored, on the validation data."""
    assert run.data.val is not None
    with seeding.isolated(*run.seed_key, "validation", device=base.device):  # a loader may draw its order
        net = base.serving_view(delta).eval()
        return Validation(*evaluate(net, run.data.val, run.recipe.batch, run.recipe.autocast, run.processes))


def _of_parts(description: Description, base: Base, method: Halrp, tuned: FineTuned, *, at_start: bool) -> Delta:
    """The delta of the chosen parts; `at_start` it is the head alone, as it was before the first epoch."""
    start, parts = tuned.start, dict[str, tuple[Tensor, Precision]]()
    chosen = start.parts or {}
    for name, factors in tuned.factors.items() if not at_start else ():
        for part, tensor in (("r", factors.r), ("s", factors.s)):
            if f"{part}/{name}" in chosen:
                parts[f"{part}/{name}"] = tensor, chosen[f"{part}/{name}"]
        if factors.rank:
            parts |= {f"p/{name}": (factors.p, method.precision), f"q/{name}": (factors.q, method.precision)}
    for name, tensor in (tuned.head if at_start else tuned.owned).items():
        if name in start.dense:
            parts[f"dense/{name}"] = tensor, method.precision
        else:
            parts[f"plain/{name}"] = tensor, chosen.get(f"plain/{name}", "float32")
    recovered = {n: replace(r, share=0.0) if at_start else r for n, r in start.recovered.items()}
    return Delta.of_parts(description, base.layout, base.tensors, parts, recovered)
