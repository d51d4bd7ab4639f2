"""What the library would do with a model, before anything is trained: the first thing to run on a new one.

`explain` shows for every parameter whether a task adapts it, owns it or shares it, and why; what one rank of it costs;
and what a task costs at least: the smallest budget it can have. A model that cannot be learned on is explained too:
what is wrong with it has rows of its own.

An adapted weight W (J, I, *kernel) has scales r (J,) and s (I,), and each rank is a column of p (J,) and a row of q.
That row has I entries, or I·K for a convolution that keeps its K kernel positions: two views, two prices.

On a given base a task stores its head, and of all else what is worth its bytes (`budgets`). On a base that the first
task trains, a task owns all that is not adapted, and both scales of every adapted weight.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, get_args

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from halrp.errors import HeadError, SettingError
from halrp.method.budget import smallest_bytes
from halrp.method.method import Halrp
from halrp.method.task_costs import buffer_precision, part_bytes
from halrp.model.appended import WithHead, with_head
from halrp.model.call import Call, Pick
from halrp.model.codec import PRECISIONS, Precision
from halrp.model.costs import weight_costs
from halrp.model.plan import ParameterPlan, Problem, Role, examine, trained_buffers
from halrp.objectives import Classification, Objective
from halrp.objectives.labels import given_classes
from halrp.text import printable
from halrp.text_table import lines_of
from halrp.tools import budgets
from halrp.tools.budgets import Paid
from halrp.tools.foreseen import BaseChoice, Foreseen

MODEL = "(model)"
"""The name of a row about the model as a whole."""
DEFAULT_PRECISION: Precision = Halrp.budget().precision
"""What the default method stores components in."""
_PLURALS = {"weight": "small weights", "bias": "biases", "norm": "norms", "other": "others", "buffer": "buffers"}


@dataclass(frozen=True)
class Row:
    """What happens to one parameter or buffer, and what it costs a task in bytes."""

    name: str
    kind: Literal["adapted", "owned", "shared", "refused"]
    why: str
    role: Role | None = None
    shape: tuple[int, ...] | None = None
    """None if it is not known yet, or if the row is about the model as a whole."""
    parameters: int = 0
    """The number of entries."""
    rank_bytes: Mapping[str, Mapping[Precision, int]] = field(default_factory=dict)
    """Of an adapted weight: what one rank costs in each precision, by view: "full", and "mean" for convolutions."""
    scale_bytes: int = 0
    """Of an adapted weight: what r and s cost."""
    fixed_bytes: int = 0
    """Of an owned tensor that every task stores: what the private copy costs."""
    optional_bytes: int = 0
    """Of an owned tensor that a task stores if it is worth that: what the private copy costs."""
    class_bytes: int = 0
    """Of a tensor of the head: what one class more costs."""


@dataclass(frozen=True)
class Explanation:
    """The rows of a model and the sums that follow from them. Print it to read it."""

    rows: tuple[Row, ...]
    """One for each parameter and buffer, in the model's order; rows about the model as a whole come first."""
    head: str
    """The name of what every task replaces, or "" if nothing is."""
    precision: Precision
    """In which precision the printed table counts a rank."""
    fixed: Mapping[str, int]
    """Bytes of a task that stores what every task must, by what they pay for; empty if the model is refused.

    "header" is all else in a task's file: ranks, settings and provenance, for the default method and recipe, validation
    data, a name of 40 letters, the given objective and no class names.
    """
    base: BaseChoice = "given"
    """Whose base the tasks have: the model as it is given, or as the first task trains it."""
    budgets: tuple[Paid, ...] = ()
    """What some budgets pay for, on a given base."""

    @property
    def fixed_bytes(self) -> int | None:
        """The smallest budget of a task of the given objective, or None if the model is refused."""
        return sum(self.fixed.values()) if self.fixed else None

    @property
    def refused(self) -> tuple[Row, ...]:
        """The rows that say why the model cannot be learned on; none if it can."""
        return tuple(row for row in self.rows if row.kind == "refused")

    @property
    def parameters(self) -> int:
        """The number of the model's parameters."""
        return sum(row.parameters for row in self.rows if row.role != "buffer")

    @property
    def class_bytes(self) -> int:
        """What one class more in the head costs."""
        return sum(row.class_bytes for row in self.rows)

    def rank_bytes(self, view: str, precision: Precision) -> int:
        """What one rank in every adapted weight costs; `view` is "mean" or "full" and is that of convolutions."""
        return sum(row.rank_bytes.get(view, row.rank_bytes["full"])[precision] for row in self.rows if row.rank_bytes)

    def to_json(self) -> dict[str, Any]:
        """All of it as plain JSON values."""
        return {
            "head": self.head,
            "base": self.base,
            "precision": self.precision,
            "parameters": self.parameters,
            "fixed_bytes": self.fixed_bytes,
            "fixed": dict(self.fixed),
            "class_bytes": self.class_bytes,
            "budgets": [paid.to_json() for paid in self.budgets],
            "rows": [asdict(row) | {"shape": row.shape and list(row.shape)} for row in self.rows],
        }

    def __str__(self) -> str:
        """A table for people, and below it what the numbers mean."""
        return self.text()

    def text(self, width: int | None = None) -> str:
        """The same with tables of at most that many characters in a line."""
        titles = ["parameter", "kind", "shape", "entries", "bytes a rank", "scales", "fixed", "optional", "why"]
        cells = [
            [
                printable(row.name),
                row.kind,
                "" if row.shape is None else "×".join(map(str, row.shape)) or "scalar",
                f"{row.parameters:,}" if row.shape is not None else "",
                " / ".join(f"{bytes_:,}" for bytes_ in _distinct(row, self.precision)),
                *(f"{bytes_:,}" if bytes_ else "" for bytes_ in (row.scale_bytes, row.fixed_bytes, row.optional_bytes)),
                printable(row.why),
            ]
            for row in self.rows
        ]
        if self.base == "first":  # where nothing is optional
            for line in (titles, *cells):
                del line[-2]
        below = ["", *budgets.as_lines(self.budgets, width)] if self.budgets else []
        table = lines_of(titles, cells, range(3, len(titles) - 1), width, wrap=(0, len(titles) - 1), spare=(2, 3))
        return "\n".join([*table, "", *self._summary(), *below])

    def _summary(self) -> Iterable[str]:
        if self.refused:
            yield f"This model cannot be learned on yet: {len(self.refused)} refused, see above."
            return
        head = printable(self.head) or "the model's own, kept for every task"
        yield f"Head: {head}. Parameters: {self.parameters:,}. Sizes are in bytes, ranks in {self.precision}."
        if any(len(_distinct(row, self.precision)) > 1 for row in self.rows):
            yield "Two prices of a rank: with the convolution's kernel averaged / with the whole kernel."
        for precision in PRECISIONS:
            mean, full = (self.rank_bytes(view, precision) for view in ("mean", "full"))
            whole = f", with whole kernels {full:,}" if full != mean else ""
            yield f"One rank in every adapted weight, {precision}: {mean:,}{whole}."
        parts = " + ".join(f"{_PLURALS.get(part, part)} {bytes_:,}" for part, bytes_ in self.fixed.items())
        rest = " Whatever else it stores is optional: each part is stored if it is worth its bytes."
        yield f"Smallest budget of a task: {self.fixed_bytes:,} = {parts}.{rest if self.base == 'given' else ''}"
        if self.head:
            yield f"Each class more in the head: {self.class_bytes:,}."


def explain(
    model: nn.Module,
    head: str | nn.Module | Literal[False] | None = None,
    precision: Precision = DEFAULT_PRECISION,
    objective: Objective | None = None,
    output: Pick = None,
    *,
    classes: int | None = None,
    base: BaseChoice = "given",
) -> Explanation:
    """Tell what would be adapted, owned, shared or refused in a model, why, and what it costs. Nothing is changed.

    `head`, `output` and `base` are those of `Learner`: a name, a module to be put on top of the model, or False; which
    part of what the model gives are its outputs; and whether the model is the base as it is "given", as a pretrained
    one, or the "first" task trains it. `precision` is that of `Halrp.precision`; "float32" stands for the model's own
    floating type. Prices are those of tasks with a number of `classes`, or of an `objective`, as wide as it says; by
    default it is classification with as many classes as the model has outputs. What an objective takes from its data,
    such as the units of a regression, counts if it has been `fitted`. Models on the "meta" device can be explained.
    """
    if precision not in PRECISIONS:
        raise SettingError(f"precision is {precision!r}; choose one of {', '.join(map(repr, PRECISIONS))}")
    if base not in get_args(BaseChoice):
        raise SettingError(f"explain(base={base!r}) is unknown; choose 'given' or 'first'")
    objective = _objective(classes, objective)
    try:
        model, name = with_head(model, head, output)
    except HeadError as error:
        return Explanation((Row(MODEL, "refused", str(error)),), "", precision, {}, base)
    plan, problems = examine(model, name)
    call = Call(None if isinstance(model, WithHead) else output)
    task = Foreseen(model, plan, objective, call, precision, base)
    if not problems and not plan.head and classes not in (None, task.classes):
        raise SettingError(
            f"explain(classes={classes}) with head=False, which keeps the model's {task.classes} outputs for every "
            "task; leave one of them out"
        )
    if isinstance(model, torch.jit.ScriptModule):
        rows: tuple[Row, ...] = ()
    else:
        rows = (*_parameter_rows(task, problems), *_buffer_rows(task))
    whole = tuple(Row(MODEL, "refused", str(problem.error)) for problem in problems if not problem.names)
    fixed = {} if problems else _fixed(task, rows)
    paid = budgets.paid_by(task) if base == "given" and not problems else ()
    return Explanation(whole + rows, plan.head, precision, fixed, base, paid)


def _objective(classes: int | None, objective: Objective | None) -> Objective:
    if classes is None:
        return Classification() if objective is None else objective
    if objective is not None:
        raise SettingError(
            f"explain(classes={classes!r}, objective={objective!r}): classes are for classification; give the number "
            "to the objective"
        )
    return Classification(given_classes(classes, "explain"))


def _parameter_rows(task: Foreseen, problems: Sequence[Problem]) -> Iterable[Row]:
    faults: dict[str, list[str]] = {}
    for problem in problems:
        for name in problem.names:
            faults.setdefault(name, []).append(str(problem.error))
    width = task.objective.outputs if task.plan.head else None
    for name, parameter in task.model.named_parameters():
        if name not in faults:
            planned = task.plan.parameters[name]
            if width is not None:
                planned = replace(planned, shape=task.plan.shape_for(name, planned.shape, width))
            yield _row(task, planned, parameter.element_size())
        elif is_lazy(parameter):
            yield Row(name, "refused", "; ".join(faults[name]))
        else:
            shape, entries = tuple(parameter.shape), parameter.numel()
            yield Row(name, "refused", "; ".join(faults[name]), shape=shape, parameters=entries)


def _row(task: Foreseen, parameter: ParameterPlan, element: int) -> Row:
    """The row of a parameter whose entries have `element` bytes."""
    shape = parameter.shape
    row = Row(parameter.name, parameter.kind, parameter.reason, parameter.role, shape, math.prod(shape))
    if parameter.kind == "adapted":
        return _adapted(task, row, parameter, element)
    if parameter.kind == "shared":
        return row
    size = part_bytes(shape, task.rest, element)
    if parameter.role != "head" and task.base == "given":
        return replace(row, optional_bytes=size)
    if parameter.role != "head" or parameter.output_axis < 0:
        return replace(row, fixed_bytes=size)
    wider = task.plan.shape_for(parameter.name, shape, shape[parameter.output_axis] + 1)
    return replace(row, fixed_bytes=size, class_bytes=part_bytes(wider, task.rest, element) - size)


def _adapted(task: Foreseen, row: Row, parameter: ParameterPlan, element: int) -> Row:
    """What scales and ranks of a weight cost; on a given base, a table of which few rows are read has columns alone."""
    shape, widths = parameter.shape, parameter.widths or {}
    ranks = {
        view: {p: weight_costs(shape, width, p, element).component.bytes for p in PRECISIONS}
        for view, width in widths.items()
    }
    table = task.base == "given" and row.name in task.tables
    scaled = shape[1:2] if table else shape[:2]
    scales = sum(part_bytes((entries,), task.rest, element) for entries in scaled)
    return replace(row, rank_bytes={} if table else ranks, scale_bytes=scales)


def _buffer_rows(task: Foreseen) -> Iterable[Row]:
    model = task.model
    owners, trained, redrawn = dict(model.named_modules()), trained_buffers(model), task.redrawn
    for name, buffer in model.named_buffers():
        if is_lazy(buffer):
            continue  # its layer's parameters are refused already
        owner, shape, entries = owners[name.rpartition(".")[0]], tuple(buffer.shape), buffer.numel()
        if name not in trained:
            why = "buffer: a task owns a copy only if training changes it"
        elif task.base == "given" and name not in redrawn:
            why = f"statistics of {type(owner).__name__}: those of the base serve every task"
        else:
            changes = "training changes them" if task.base == "first" else "a new head begins with its own"
            why, role = f"statistics of {type(owner).__name__}: {changes}", task.plan.role(name)
            size = part_bytes(shape, buffer_precision(buffer.dtype, task.rest), buffer.element_size())
            yield Row(name, "owned", why, role, shape, entries, fixed_bytes=size)
            continue
        yield Row(name, "shared", why, "buffer", shape, entries)


def _fixed(task: Foreseen, rows: Iterable[Row]) -> dict[str, int]:
    """What a task costs at least: sums over the rows, and the rest of its file."""
    costs: dict[str, int] = {}
    for row in rows:
        if row.fixed_bytes and row.role is not None:
            costs[row.role] = costs.get(row.role, 0) + row.fixed_bytes
    if task.base == "given":
        return costs | {"header": budgets.smallest(task) - sum(costs.values())}
    costs["scales"] = sum(row.scale_bytes for row in rows)
    exact = task.costs.foreseen(trained_buffers(task.model), task.classes, "mean").file_bytes
    assert exact is not None
    smallest = smallest_bytes(exact, task.plan.named("adapted"))
    return costs | {"header": smallest - sum(costs.values())}


def _distinct(row: Row, precision: Precision) -> list[int]:
    """The prices of a rank in the views of a row, those that differ."""
    return list(dict.fromkeys(prices[precision] for prices in row.rank_bytes.values()))
