"""From a fine-tuned network to the delta that is committed."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from halrp.method.fine_tune import FineTuned
from halrp.method.method import Halrp
from halrp.method.outcome import Outcome, reporting
from halrp.model import proof
from halrp.model.base import Base
from halrp.model.batch import Batch
from halrp.model.codec import Precision
from halrp.model.delta import Delta
from halrp.model.description import PARTS_FORMAT, Description
from halrp.training.batches import Loaded
from halrp.training.run import TaskRun
from halrp.training.stopping import Validation, is_better


def packed(description: Description, base: Base, method: Halrp, tuned: FineTuned, run: TaskRun, rows: Batch) -> Delta:
    """A task's delta: all that was trained, or where parts were chosen, those in their precisions.

    It comes with a proof that it is active (`model.proof`), for inputs like some `rows` of the task, and if the method
    stores them, with prototypes of its inputs.
    """
    delta = _better(reporting(description, tuned.outcome), base, method, tuned, run)
    each_sees_its_own = run.processes is not None and isinstance(run.data.train, Loaded)
    delta = delta if each_sees_its_own else proof.proven(delta, base, rows)
    return delta if method.prototypes is None else method.prototypes.fitted(delta, base, run)


def _better(description: Description, base: Base, method: Halrp, tuned: FineTuned, run: TaskRun) -> Delta:
    """What fine-tuning made, or its start.

    With validation data the provenance reports the score. A task that started at a solution of its own is compared with
    it as both are stored, and the better one is committed.
    """
    if tuned.start.parts is None:
        return Delta.pack(description, base.layout, tuned.factors, tuned.owned, tuned.start.recovered)
    description = replace(description, format=PARTS_FORMAT, precision="float32")
    start, epoch = tuned.at_start, tuned.best_epoch
    delta = _of_parts(description, base, method, tuned, at_start=tuned.start.is_solution and not epoch)
    if start is None:
        return delta
    end = _validated(delta, base, run)
    if epoch and is_better(start, end):  # after rounding
        at_start = _of_parts(description, base, method, tuned, at_start=True)
        if is_better(at_start_end := _validated(at_start, base, run), end):
            delta, end, epoch = at_start, at_start_end, 0
    return reporting(delta, Outcome(start, end, epoch, run.guess(base.module)))


def _validated(delta: Delta, base: Base, run: TaskRun) -> Validation:
    """Loss and score of a task as it is stored, on the validation data."""
    validation = run.validation(base.serving_view(delta))
    assert validation is not None
    return validation


def _of_parts(description: Description, base: Base, method: Halrp, tuned: FineTuned, *, at_start: bool) -> Delta:
    """The delta of the chosen parts; `at_start` it is the head alone, as it was before the first epoch."""
    start, parts = tuned.start, dict[str, tuple[Tensor, Precision]]()
    chosen = start.parts or {}
    matrices = dict.fromkeys((*tuned.factors, *start.dense), method.precision) | dict(start.matrices)
    for name, factors in tuned.factors.items() if not at_start else ():
        for part, tensor in (("r", factors.r), ("s", factors.s)):
            if f"{part}/{name}" in chosen:
                parts[f"{part}/{name}"] = tensor, chosen[f"{part}/{name}"]
        if factors.rank:
            parts |= {f"p/{name}": (factors.p, matrices[name]), f"q/{name}": (factors.q, matrices[name])}
    for name, tensor in (tuned.head if at_start else tuned.owned).items():
        if name in start.dense:
            parts[f"dense/{name}"] = tensor, matrices[name]
        else:
            parts[f"plain/{name}"] = tensor, chosen.get(f"plain/{name}", "float32")
    recovered = {n: replace(r, share=0.0) if at_start else r for n, r in start.recovered.items()}
    return Delta.of_parts(description, base.layout, base.tensors, parts, recovered)
