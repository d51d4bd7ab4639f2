"""How a model treats the rows of a batch, decided by its structure: `trace`.

The model is run once on a batch without numbers: tensors that have shapes only, with a symbol for the number of rows
(torch's fake tensors). Every operation on the way shows where its rows are (`row_tracker`, `row_rules`), and every
layer that tasks may change checks that it sees them in the first dimension; what such a layer computes is known by its
rule. Code that looks at numbers, or at how many rows there are, cannot run on such a batch, so a model whose rows
interact for some inputs only is noticed too. Whatever is not known to be right is a reason to compute task by task.

Tensors that tasks may change in modules without a mixed form are tensors of each task (`per_task`). Each function that
takes one is followed like any other, and written down: where its other tensors and its results have rows.

Nothing is computed: a trace takes the time of some forward passes of one row, and it touches no state but its own, so
other threads may predict and learn meanwhile.
"""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from halrp.model import batch as tree
from halrp.model.batch import Batch
from halrp.model.call import Call
from halrp.model.changeable import Changeable, has_mixed_form, plain_copy
from halrp.model.layers.groupwise import GroupwiseRule
from halrp.model.layers.registry import rule_for
from halrp.model.per_task import PASS, PerTask, Structure, Use, flatten, is_plain, map_results, name_of, writes
from halrp.model.precision import forward_precision
from halrp.model.row_rules import FIRST, RowDim
from halrp.model.row_tracker import Functions, Tracker
from halrp.model.rows import NotRowWise


def trace(
    model: nn.Module, call: Call, example: Batch, changeable: Changeable, autocast: str | None = None
) -> Structure:
    """How rows of batches like `example` pass through a model, or why they may interact.

    The model must be the caller's own copy: its layers are replaced. `call` says how a batch reaches it, and `autocast`
    the precision of the pass.
    """
    try:
        with _quiet():
            return _trace(model, call, example, changeable, autocast)
    except NotRowWise as reason:
        return Structure(str(reason))
    except Exception as error:  # whatever the model does with such a batch: it is not known to be right
        lines = str(error).strip().splitlines() or [""]
        return Structure(f"the model cannot be traced without numbers ({type(error).__name__}: {lines[0][:160]})")


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what torch logs about a failure to this thread's caller, who gets it as a reason."""
    thread = threading.get_ident()

    def others(record: logging.LogRecord) -> bool:
        return record.thread != thread

    logger = logging.getLogger("torch._subclasses.fake_tensor")
    logger.addFilter(others)
    try:
        yield
    finally:
        logger.removeFilter(others)


def _trace(model: nn.Module, call: Call, example: Batch, changeable: Changeable, autocast: str | None) -> Structure:
    # Not at the top: most programs never mix tasks, and these modules take long to import.
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

    shapes = ShapeEnv()
    fake = FakeTensorMode(shape_env=shapes, allow_non_fake_inputs=True)
    first = tree.leaves(example)[0]
    sizes: Any = [DimDynamic.DYNAMIC, *(DimDynamic.STATIC for _ in first.shape[1:])]
    symbolic = fake.from_tensor(first, symbolic_context=StatelessSymbolicContext(dynamic_sizes=sizes))
    with fake:  # all tensors of a batch have the same number of rows, and so the same symbol
        batch = tree.tree_map(
            lambda t: symbolic if t is first else t.new_empty((symbolic.shape[0], *t.shape[1:]), device=t.device),
            example,
        )
    tracker = Tracker(tree.leaves(batch))
    traced = TracedPass(tracker)
    _replace_layers(model, traced, changeable)
    token = PASS.set(traced)
    try:
        with torch.no_grad(), forward_precision(autocast, first.device), fake, tracker, Functions(tracker):
            y = call(model, batch)
    except Exception:
        _refuse_numbers(shapes)  # which is why other things fail
        raise
    finally:
        PASS.reset(token)
    _refuse_numbers(shapes)
    if tracker.row_dim(y) != FIRST:
        raise NotRowWise("the outputs do not have the rows in their first dimension")
    return Structure("", tuple(traced.uses), {path: dim for path, dim in traced.layers.items() if dim != 0})


def _refuse_numbers(shapes: Any) -> None:
    """Raise if the model needed to know how many rows there are."""
    if shapes.replacements:
        raise NotRowWise("the model takes the number of rows as a plain number, as len(x) gives it; use x.shape[0]")
    if shapes.guards:
        raise NotRowWise(f"the model looks at the number of rows ({shapes.guards[0].expr})")


def _replace_layers(model: nn.Module, traced: TracedPass, changeable: Changeable) -> None:
    """Replace what a pass over mixed rows replaces, by what follows rows."""
    for path, module in list(model.named_modules()):
        if path in changeable.layers or has_mixed_form(module):
            module.__dict__["forward"] = TracedLayer(traced, path, plain_copy(module), path in changeable.layers)
    for path, leaf, tensor in changeable.take_tensors(model):
        model.get_submodule(path).__dict__[leaf] = PerTask.of(tensor, (tensor,))


class TracedPass:
    """A pass without numbers, in which tensors of each task have one value that stands for all."""

    def __init__(self, tracker: Tracker) -> None:
        self.tracker = tracker
        self.uses: list[Use] = []
        self.layers: dict[str, int | None] = {}
        """For every layer with a mixed form that was called, the dimension of the rows in its inputs."""

    def values(self, tensor: PerTask) -> tuple[Tensor, ...]:
        """The value that stands for those of all tasks."""
        assert isinstance(tensor.source, tuple)
        return tensor.source

    def call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Follow the rows through a function that takes tensors of each task."""
        leaves, spec = flatten(args, kwargs)
        name = name_of(function)
        rows = {id(leaf): self.tracker.row_dim(leaf) for leaf in leaves if is_plain(leaf)}
        if any(each is not None and each.numbers for each in rows.values()):
            raise NotRowWise(f"{name} computes with the position of a row in the batch")
        if writes(function, kwargs) and (rows.get(id(leaves[0])) is None or "out" in kwargs):
            raise NotRowWise(f"{name} writes to a tensor of each task, or writes one to a tensor without rows")
        plain = [self.values(leaf)[0] if isinstance(leaf, PerTask) else leaf for leaf in leaves]
        args, kwargs = pytree.tree_unflatten(plain, spec)
        with self.tracker.protecting(
            value for leaf in leaves if isinstance(leaf, PerTask) for value in self.values(leaf)
        ):
            result = function(*args, **kwargs)
        inputs = tuple(dim_of(rows[id(leaf)]) for leaf in leaves if is_plain(leaf))
        use = Use(name, inputs, tuple(self._dim(name, each) for each in pytree.tree_leaves(result)))
        self.uses.append(use)
        return map_results(use, result, lambda each: PerTask.of(each, (each,)))

    def _dim(self, name: str, result: Any) -> int | None:
        if result is not None and not isinstance(result, Tensor):
            raise NotRowWise(f"{name} makes a number of a tensor of each task")
        return dim_of(self.tracker.row_dim(result))


def dim_of(rows: RowDim | None) -> int | None:
    """The dimension of rows, or None if there are none."""
    return None if rows is None else rows.dim


class TracedLayer:
    """A layer whose rule says that it treats rows independently: it is known by the shapes that it gives."""

    def __init__(self, traced: TracedPass, path: str, layer: nn.Module, changeable: bool) -> None:
        self.traced, self.tracker, self.path, self.changeable = traced, traced.tracker, path, changeable
        self.forward = layer.forward
        rule = rule_for(layer)
        self.by_rule = has_mixed_form(layer)
        self.row_dims = rule.row_dims_of(layer) if isinstance(rule, GroupwiseRule) else None
        self.last_dims = None if rule is None else rule.last_dims(layer)
        self.signature = inspect.signature(type(layer).forward)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Give results of the right shapes, if all inputs have their rows where the layer expects them."""
        leaves = [leaf for leaf in flatten(args, kwargs)[0] if isinstance(leaf, Tensor)]
        seen = self.tracker.has_rows(leaves)
        problem = self._problem(args, kwargs)
        if seen and any(isinstance(leaf, PerTask) for leaf in leaves):
            problem = "sees rows together with a tensor of each task"
        if problem is None and seen:
            self._remember(0 if self.row_dims is not None else dim_of(self.tracker.row_dim(leaves[0])))
            return self._with_rows(args, kwargs)
        if not self.changeable:
            return self.forward(*args, **kwargs)
        if problem is None and len(leaves) == 1 and self.row_dims is None and self.by_rule:
            self._remember(None)
            return self._without_rows(args, kwargs)
        raise NotRowWise(f"{self.path} {problem or 'sees an input that is not of the batch'}")

    def _remember(self, dim: int | None) -> None:
        if self.traced.layers.setdefault(self.path, dim) != dim:
            raise NotRowWise(f"{self.path} sees inputs with rows in different dimensions, or without rows")

    def _problem(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
        """What keeps the layer from being known by its shapes, or None."""
        arguments = self.signature.bind(None, *args, **kwargs).arguments
        leaves = [(name, leaf) for name, value in list(arguments.items())[1:] for leaf in pytree.tree_leaves(value)]
        tensors = sum(isinstance(leaf, Tensor) for _, leaf in leaves)
        for name, leaf in leaves:
            rows = self.tracker.row_dim(leaf)
            if rows is None:
                continue
            wanted = 0 if self.row_dims is None else self.row_dims.get(name)
            alike = self.last_dims is not None and tensors == 1 and rows.dim < leaf.dim() - self.last_dims
            if rows.numbers or not (rows.dim == wanted or alike):
                return f"sees an input of shape {tuple(leaf.shape)} with its rows in dimension {rows.dim}"
        return None

    def _with_rows(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        try:
            if self.by_rule:
                return self.tracker.by_shape(self.forward, args, kwargs)
            result = self.forward(*args, **kwargs)
        except NotRowWise as reason:
            raise NotRowWise(f"{self.path} {reason}") from None
        rows = self.tracker.row_dim(result)
        if rows is None or rows.dim != 0 or rows.numbers:
            raise NotRowWise(f"{self.path} gives an output whose rows are not first")
        return result

    def _without_rows(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """What stands for the results of each task from an input that is the same for every row, or of each task."""
        leaves, spec = flatten(args, kwargs)
        plain = [self.traced.values(leaf)[0] if isinstance(leaf, PerTask) else leaf for leaf in leaves]
        args, kwargs = pytree.tree_unflatten(plain, spec)
        result = self.forward(*args, **kwargs)
        if not isinstance(result, Tensor) or self.tracker.row_dim(result) is not None:
            raise NotRowWise(f"{self.path} makes something else than a tensor of an input that is not of the batch")
        return PerTask.of(result, (result,))
