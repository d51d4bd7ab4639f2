"""Which task is it? The tasks whose stored prototypes fit the features of some rows best: `Identifier`.

The first stage compares the base's features of each row with the prototypes of every task (`model.prototypes`), without
any delta. The second, if it is asked for, computes the outputs of the best few tasks and adds, for classifications,

    WORTH · log Σ_c exp(logit_c / T),

with the temperature T of the task: it is large where a head is sure of a class. Rows that are known to be of one task
are scored together: their scores are added.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, TypeAlias

import torch
from torch import Tensor

from halrp.checks import is_whole
from halrp.errors import DataError, ModelError, SettingError, UnknownTaskError
from halrp.model import batch as tree
from halrp.model import prototypes
from halrp.model.base import Base
from halrp.model.batch import Batch
from halrp.model.delta import Delta
from halrp.model.features import Features
from halrp.model.prototypes import TaskPrototypes
from halrp.objectives.classification import Answer
from halrp.serve.checks import naming_inputs

AUTO = "auto"
"""Stands for the task that is found for each row, where a task's name is asked for."""
WORTH = 8.0
"""How much the second stage counts. Chosen on held-out training data of `benchmarks.identify`."""
Together: TypeAlias = bool | Sequence[Hashable]
"""Whether all rows are of one task, or for each row a value that it shares with the rows of its task."""


@dataclass(frozen=True, eq=False)
class Identified:
    """The tasks that were found for some rows."""

    tasks: tuple[str | None, ...]
    """Of each row; None is "no task": the row is less like the best task than nearly all examples of that task."""
    candidates: tuple[tuple[str, ...], ...]
    """The best tasks of each row, best first."""
    scores: Tensor
    """Their scores (N, candidates): logarithmic densities, to be compared with each other."""
    left_out: tuple[str, ...]
    """Tasks without prototypes, and tasks whose files cannot be read."""

    @property
    def best(self) -> list[str]:
        """The best task of each row, also where it is less like it than it should be."""
        return [names[0] for names in self.candidates]


@dataclass(frozen=True)
class Asked:
    """How tasks are looked for."""

    together: Together = False
    top: int = 3
    """How many tasks are listed."""
    rerank: int = 0
    """How many are compared by their outputs too."""
    left_out: tuple[str, ...] = ()
    """Tasks that are not compared."""

    def __post_init__(self) -> None:
        """Refuse what is no number of tasks."""
        for name, least in (("top", 1), ("rerank", 0)):
            if not is_whole(getattr(self, name), least):
                raise SettingError(f"identify: {name}={getattr(self, name)!r} must be a whole number from {least} on")


class Identifier:
    """Finds the tasks of rows on one base. Threads may use it at the same time."""

    def __init__(self, base: Base) -> None:
        """Take a base; what computes its features is built when it is first needed."""
        self._base, self._lock = base, Lock()
        self._features: Features | None = None

    def __call__(
        self,
        given: Batch,
        models: Mapping[str, TaskPrototypes],
        asked: Asked,
        logits_of: Callable[[str, Batch], Tensor],
        batch: int,
    ) -> Identified:
        """Find tasks among those with prototypes; `logits_of` computes the logits of a classification."""
        names, group = list(models), _groups(asked.together, tree.rows(given))
        rows = self.scores(given, models, batch)
        number = int(group.max()) + 1
        sums = torch.zeros(number, len(names)).index_add_(0, group, rows)
        sizes = torch.zeros(number).index_add_(0, group, torch.ones(len(rows)))
        order = sums.argsort(dim=1, descending=True, stable=True)
        totals = sums
        if asked.rerank:
            totals = self._with_outputs(given, models, group, sums, order[:, : asked.rerank], logits_of)
            order = _reordered(totals, order, asked.rerank)
        first = order[:, 0]
        least = torch.tensor([model.least for model in models.values()])[first]
        known = sums.gather(1, order[:, :1]).squeeze(1) / sizes >= least
        listed = [tuple(names[i] for i in row) for row in order[:, : asked.top].tolist()]
        tasks = [names[i] if is_known else None for i, is_known in zip(first.tolist(), known.tolist(), strict=True)]
        of_row = group.tolist()
        return Identified(
            tuple(tasks[g] for g in of_row),
            tuple(listed[g] for g in of_row),
            totals.gather(1, order[:, : asked.top])[group],
            asked.left_out,
        )

    def scores(self, given: Batch, models: Mapping[str, TaskPrototypes], batch: int = 512) -> Tensor:
        """The score of each row for each task, (N, tasks). A task's column does not depend on the other tasks."""
        _refuse_incomparable(models)
        with naming_inputs(given):
            features = self._computed()(given, batch)
        if features is None:
            raise ModelError("identify: the base gives no features for these inputs, as it did for those of its tasks")
        width = next(iter(models.values())).width
        z = prototypes.projected(features, self._base.fingerprint, width)
        return torch.stack([model.scores(z) for model in models.values()], 1)

    def _computed(self) -> Features:
        with self._lock:
            if self._features is None:
                self._features = Features(self._base)
            return self._features

    def _with_outputs(
        self,
        x: Batch,
        models: Mapping[str, TaskPrototypes],
        group: Tensor,
        sums: Tensor,
        chosen: Tensor,
        logits_of: Callable[[str, Batch], Tensor],
    ) -> Tensor:
        """Scores of groups with the worth of the outputs of each group's `chosen` tasks."""
        wanted = torch.zeros_like(sums, dtype=torch.bool).scatter_(1, chosen, value=True)
        sums = sums.clone()
        for number, (name, model) in enumerate(models.items()):
            rows = wanted[group, number].nonzero().flatten()
            if len(rows):
                logits = logits_of(name, tree.take(x, rows)).float().cpu()
                sums[:, number].index_add_(0, group[rows], WORTH * torch.logsumexp(logits / model.temperature, 1))
        return sums


def _reordered(totals: Tensor, order: Tensor, most: int) -> Tensor:
    """The order of tasks after the first `most` of each row have other scores; the rest stays behind them."""
    front = order[:, :most]
    within = totals.gather(1, front).argsort(dim=1, descending=True, stable=True)
    return torch.cat([front.gather(1, within), order[:, most:]], 1)


def _groups(together: Together, rows: int) -> Tensor:
    """The group of each row, (N,)."""
    if together is True:
        return torch.zeros(rows, dtype=torch.int64)
    if together is False:
        return torch.arange(rows)
    if isinstance(together, (str, bytes)) or not isinstance(together, Sequence) or len(together) != rows:
        raise DataError(f"identify: together={together!r} is neither True or False nor a value for each of {rows} rows")
    numbers: dict[Hashable, int] = {}
    return torch.tensor([numbers.setdefault(value, len(numbers)) for value in together])


def _refuse_incomparable(models: Mapping[str, TaskPrototypes]) -> None:
    if not models:
        raise SettingError(
            "identify: no task has prototypes; learn tasks with Halrp.budget(..., prototypes=Prototypes())"
        )
    widths = {model.width: name for name, model in models.items()}
    if len(widths) > 1:
        shown = " and ".join(f"{width} (as {name!r})" for width, name in sorted(widths.items())[:2])
        raise SettingError(
            f"identify: tasks have prototypes of widths {shown}, whose scores cannot be compared; name tasks of one "
            "width: identify(x, tasks=[...])"
        )


def chosen_names(asked: Sequence[str] | None, known: Sequence[str]) -> list[str]:
    """The names of the tasks that are compared."""
    if asked is None:
        return list(known)
    unknown = [name for name in asked if name not in set(known)]
    if isinstance(asked, str) or unknown:
        name = unknown[0] if unknown else asked
        raise UnknownTaskError(f"identify: there is no task {name!r} among those that are learned")
    return list(dict.fromkeys(asked))


def refuse_other_objectives(deltas: Iterable[Delta]) -> None:
    """Refuse to compare tasks by outputs that do not say how sure each of them is of a class."""
    for delta in deltas:
        if delta.objective.get("name") != "classification":
            raise SettingError(
                f"identify(rerank=...): {delta.task!r} is no classification, so its outputs do not say how well it "
                "fits; leave rerank out, or name other tasks"
            )


def without_unknown(outputs: Tensor, identified: Identified) -> Tensor:
    """Outputs of each row's best task, −inf where the row is of no task."""
    unknown = torch.tensor([name is None for name in identified.tasks], device=outputs.device)
    nothing = -torch.inf if outputs.is_floating_point() else 0
    return outputs.masked_fill(unknown.view(-1, *[1] * (outputs.dim() - 1)), nothing)


def answers_of(decoded: Any, identified: Identified) -> Any:
    """Answers without those of rows that are of no task: their label is None, with no probability, or they are None."""
    if not isinstance(decoded, Answer):
        return [None if name is None else row for name, row in zip(identified.tasks, decoded, strict=True)]
    unknown = torch.tensor([name is None for name in identified.tasks], device=decoded.indices.device)
    labels = tuple(
        None if name is None else label for name, label in zip(identified.tasks, decoded.labels, strict=True)
    )
    indices, probabilities = decoded.indices.clone(), decoded.probabilities.clone()
    indices[unknown], probabilities[unknown] = -1, 0
    return replace(decoded, labels=labels, indices=indices, probabilities=probabilities)
