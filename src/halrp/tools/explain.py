"""What the library would do with a model, before anything is trained: the first thing to run on a new one.

`explain` shows for every parameter whether a task adapts it, owns it or shares it, and why; what one rank of it costs;
and what a task costs before its first rank. That last number is the smallest budget a task can have. A model that
cannot be learned on is explained too: what is wrong with it has rows of its own.

An adapted weight W (J, I, *kernel) has scales r (J,) and s (I,), and each rank is a column of p (J,) and a row of q.
That row has I entries, or I·K for a convolution that keeps its K kernel positions: two views, two prices.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from halrp._version import __version__
from halrp.errors import HeadError, SettingError
from halrp.method.budget import smallest_bytes
from halrp.method.method import Halrp
from halrp.method.protocols import Allocator
from halrp.model.appended import WithHead, with_head
from halrp.model.call import Call, Pick
from halrp.model.codec import PRECISIONS, Precision
from halrp.model.costs import weight_costs
from halrp.model.description import Description
from halrp.model.file_size import planned_bytes
from halrp.model.layers.head import outputs_of
from halrp.model.layout import Layout
from halrp.model.plan import ParameterPlan, Plan, Problem, Role, examine, trained_buffers
from halrp.objectives import Classification, Objective, described
from halrp.provenance import call_settings, describe
from halrp.text import printable
from halrp.training.recipe import Recipe

MODEL = "(model)"
"""The name of a row about the model as a whole."""
NAME = "n" * 40
"""Stands for the name of a task when the size of its file is computed."""
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
    """Of an owned tensor: what the private copy costs."""
    outputs: int = 0
    """Of a tensor of the head: for how many outputs it is; 0 if it is the same for any number."""


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
    """Bytes that a task pays before its first rank, by what they pay for; empty if the model is refused.

    "header" is all else in a task's file: ranks, settings and provenance, for the default method and recipe, a name of
    40 letters, the given objective and no class names.
    """

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
        return sum(row.fixed_bytes // row.outputs for row in self.rows if row.outputs)

    def rank_bytes(self, view: str, precision: Precision) -> int:
        """What one rank in every adapted weight costs; `view` is "mean" or "full" and is that of convolutions."""
        return sum(row.rank_bytes.get(view, row.rank_bytes["full"])[precision] for row in self.rows if row.rank_bytes)

    def to_json(self) -> dict[str, Any]:
        """All of it as plain JSON values."""
        return {
            "head": self.head,
            "precision": self.precision,
            "parameters": self.parameters,
            "fixed_bytes": self.fixed_bytes,
            "fixed": dict(self.fixed),
            "class_bytes": self.class_bytes,
            "rows": [asdict(row) | {"shape": row.shape and list(row.shape)} for row in self.rows],
        }

    def __str__(self) -> str:
        """A table for people, and below it what the numbers mean."""
        titles = ("parameter", "kind", "shape", "entries", "bytes a rank", "scales", "fixed", "why")
        cells = [
            (
                printable(row.name),
                row.kind,
                "" if row.shape is None else "×".join(map(str, row.shape)) or "scalar",
                f"{row.parameters:,}" if row.shape is not None else "",
                " / ".join(f"{bytes_:,}" for bytes_ in _distinct(row, self.precision)),
                f"{row.scale_bytes:,}" if row.scale_bytes else "",
                f"{row.fixed_bytes:,}" if row.fixed_bytes else "",
                printable(row.why),
            )
            for row in self.rows
        ]
        return "\n".join([*_table(titles, cells, right=(3, 4, 5, 6)), "", *self._summary()])

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
        yield f"Smallest budget of a task: {self.fixed_bytes:,} = {parts}."
        if self.head:
            yield f"Each class more in the head: {self.class_bytes:,}."


def explain(
    model: nn.Module,
    head: str | nn.Module | Literal[False] | None = None,
    precision: Precision = "float32",
    objective: Objective | None = None,
    output: Pick = None,
) -> Explanation:
    """Tell what would be adapted, owned, shared or refused in a model, why, and what it costs. Nothing is changed.

    `head` and `output` are those of `Learner`: a name, a module to be put on top of the model, or False; and which part
    of what the model gives are its outputs. `precision` is that of `Halrp.precision`; "float32" stands for the model's
    own floating type. Prices are those of tasks of an `objective`, as wide as it says; by default it is classification
    with as many classes as the model has outputs. What an objective takes from its data, such as the units of a
    regression, counts if it has been `fitted`. Models on the "meta" device can be explained.
    """
    if precision not in PRECISIONS:
        raise SettingError(f"precision is {precision!r}; choose one of {', '.join(map(repr, PRECISIONS))}")
    try:
        model, name = with_head(model, head, output)
    except HeadError as error:
        return Explanation((Row(MODEL, "refused", str(error)),), "", precision, {})
    plan, problems = examine(model, name)
    if isinstance(model, torch.jit.ScriptModule):
        rows: tuple[Row, ...] = ()
    else:
        width = objective.outputs if objective is not None and plan.head else None
        rows = (*_parameter_rows(model, plan, problems, precision, width), *_buffer_rows(model, plan))
    whole = tuple(Row(MODEL, "refused", str(problem.error)) for problem in problems if not problem.names)
    call = Call(None if isinstance(model, WithHead) else output)
    fixed = {} if problems else _fixed(model, plan, rows, precision, objective, call)
    return Explanation(whole + rows, plan.head, precision, fixed)


def _parameter_rows(
    model: nn.Module, plan: Plan, problems: Sequence[Problem], precision: Precision, width: int | None
) -> Iterable[Row]:
    faults: dict[str, list[str]] = {}
    for problem in problems:
        for name in problem.names:
            faults.setdefault(name, []).append(str(problem.error))
    for name, parameter in model.named_parameters():
        if name not in faults:
            planned = plan.parameters[name]
            if width is not None:
                planned = replace(planned, shape=plan.shape_for(name, planned.shape, width))
            yield _row(planned, parameter.element_size(), precision)
        elif is_lazy(parameter):
            yield Row(name, "refused", "; ".join(faults[name]))
        else:
            shape, entries = tuple(parameter.shape), parameter.numel()
            yield Row(name, "refused", "; ".join(faults[name]), shape=shape, parameters=entries)


def _row(parameter: ParameterPlan, element: int, precision: Precision) -> Row:
    """The row of a parameter whose entries have `element` bytes."""
    shape = parameter.shape
    entries = math.prod(shape)
    common: dict[str, Any] = {
        "name": parameter.name,
        "kind": parameter.kind,
        "why": parameter.reason,
        "role": parameter.role,
        "shape": shape,
        "parameters": entries,
    }
    if parameter.kind == "adapted":
        costs = {
            view: {p: weight_costs(shape, width, p, element) for p in PRECISIONS}
            for view, width in (parameter.widths or {}).items()
        }
        return Row(
            **common,
            rank_bytes={
                view: {p: cost.component.bytes for p, cost in prices.items()} for view, prices in costs.items()
            },
            scale_bytes=costs["full"]["float32"].scales.bytes,
        )
    if parameter.kind == "shared":
        return Row(**common)
    small = parameter.role == "weight" and len(shape) > 1
    size = weight_costs(shape, 0, precision, element).dense.bytes if small else entries * element
    counted = parameter.role == "head" and parameter.output_axis >= 0
    return Row(**common, fixed_bytes=size, outputs=shape[parameter.output_axis] if counted else 0)


def _buffer_rows(model: nn.Module, plan: Plan) -> Iterable[Row]:
    owners, trained = dict(model.named_modules()), trained_buffers(model)
    for name, buffer in model.named_buffers():
        if is_lazy(buffer):
            continue  # its layer's parameters are refused already
        owner, shape, entries = owners[name.rpartition(".")[0]], tuple(buffer.shape), buffer.numel()
        if name in trained:
            why = f"statistics of {type(owner).__name__}: training changes them"
            yield Row(name, "owned", why, plan.role(name), shape, entries, fixed_bytes=entries * buffer.element_size())
        else:
            yield Row(
                name, "shared", "buffer: a task owns a copy only if training changes it", "buffer", shape, entries
            )


def _fixed(
    model: nn.Module, plan: Plan, rows: Iterable[Row], precision: Precision, objective: Objective | None, call: Call
) -> dict[str, int]:
    """What a task costs before its first rank: sums over the rows, and the rest of its file."""
    costs: dict[str, int] = {}
    for row in rows:
        if row.fixed_bytes and row.role is not None:
            costs[row.role] = costs.get(row.role, 0) + row.fixed_bytes
    costs["scales"] = sum(row.scale_bytes for row in rows)
    layout = Layout.of("0" * 64, plan, {**dict(model.named_parameters()), **dict(model.named_buffers())})
    buffers = {row.name for row in rows if row.kind == "owned"}
    present = outputs_of(model.get_submodule(plan.output)) or 0
    kind = objective or Classification()
    provenance = {"halrp": __version__, "recipe": describe(Recipe()), "seed": 0} | call_settings(call)

    def file_bytes(ranks: Mapping[str, int], budget: Allocator) -> int:
        method = describe(replace(Halrp.budget(precision=precision), allocate=budget))
        description = Description(
            task=NAME,
            classes=(kind.outputs if plan.head else None) or present,
            view="mean",
            precision=precision,
            objective=described(kind),
            provenance=provenance | {"method": method},
        )
        return planned_bytes(description, layout, ranks, buffers)

    smallest = smallest_bytes(file_bytes, plan.named("adapted"))
    return costs | {"header": smallest - sum(costs.values())}


def _distinct(row: Row, precision: Precision) -> list[int]:
    """The prices of a rank in the views of a row, those that differ."""
    return list(dict.fromkeys(prices[precision] for prices in row.rank_bytes.values()))


def _table(titles: Sequence[str], cells: Sequence[Sequence[str]], right: Sequence[int]) -> list[str]:
    """Lines of a table whose columns are as wide as they must be."""
    widths = [max(len(line[column]) for line in (titles, *cells)) for column in range(len(titles))]

    def line(texts: Sequence[str]) -> str:
        placed = [
            text.rjust(width) if column in right else text.ljust(width)
            for column, (text, width) in enumerate(zip(texts, widths, strict=True))
        ]
        return "  ".join(placed).rstrip()

    return [line(titles), line(["─" * width for width in widths]), *map(line, cells)]
