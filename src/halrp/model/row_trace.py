"""Whether a model keeps the rows of a batch apart, decided by its structure: `interaction`.

The model is run once on a batch without numbers: tensors that have shapes only, with a symbol for the number of rows
(torch's fake tensors). Every operation on the way shows where its rows are (`row_tracker`, `row_rules`), and every
layer that tasks may change checks that it sees them in the first dimension; what such a layer computes is known by its
rule. Code that looks at numbers, or at how many rows there are, cannot run on such a batch, so a model whose rows
interact for some inputs only is noticed too. Whatever is not known to be right is a reason to compute task by task.

Nothing is computed: a trace takes the time of some forward passes of one row, and it touches no state but its own, so
other threads may predict and learn meanwhile.
"""

from __future__ import annotations

import inspect
from collections.abc import Container, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from halrp.model import batch as tree
from halrp.model.batch import Batch
from halrp.model.call import Call
from halrp.model.layers.groupwise import GroupwiseRule
from halrp.model.layers.registry import rule_for
from halrp.model.precision import forward_precision
from halrp.model.row_rules import FIRST, RowDim
from halrp.model.row_tracker import Functions, Tracker
from halrp.model.rows import NotRowWise


def interaction(model: nn.Module, call: Call, example: Batch, changed: Container[str]) -> str:
    """Why the rows of batches like `example` may interact in a model; empty if they are independent.

    The model must be the caller's own copy: its layers are replaced. `call` says how a batch reaches it. `changed` has
    the paths of layers that tasks change.
    """
    try:
        return _trace(model, call, example, changed)
    except NotRowWise as reason:
        return str(reason)
    except Exception as error:  # whatever the model does with such a batch: it is not known to be right
        lines = str(error).strip().splitlines() or [""]
        return f"the model cannot be traced without numbers ({type(error).__name__}: {lines[0][:160]})"


def _trace(model: nn.Module, call: Call, example: Batch, changed: Container[str]) -> str:
    # Not at the top: most programs never mix tasks, and these modules take long to import.
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

    shapes = ShapeEnv()
    fake = FakeTensorMode(shape_env=shapes, allow_non_fake_inputs=True)
    first = tree.leaves(example)[0]
    sizes: Any = [DimDynamic.DYNAMIC, *(DimDynamic.STATIC for _ in first.shape[1:])]
    traced = fake.from_tensor(first, symbolic_context=StatelessSymbolicContext(dynamic_sizes=sizes))
    with fake:  # all tensors of a batch have the same number of rows, and so the same symbol
        batch = tree.tree_map(
            lambda t: traced if t is first else t.new_empty((traced.shape[0], *t.shape[1:]), device=t.device), example
        )
    tracker = Tracker(tree.leaves(batch))
    for path, module in model.named_modules():
        rule = rule_for(module)
        if path in changed or (rule is not None and "mixed" not in rule.lacks):
            module.__dict__["forward"] = _Layer(tracker, path, module, path in changed)
    with torch.no_grad(), forward_precision(None, first.device), fake, tracker, Functions(tracker):
        y = call(model, batch)
    if shapes.guards or shapes.replacements:
        guard = shapes.guards[0].expr if shapes.guards else "one number serves"
        return f"the model looks at the number of rows ({guard})"
    if tracker.row_dim(y) != FIRST:
        return "the outputs do not have the rows in their first dimension"
    return ""


class _Layer:
    """A layer whose rule says that it treats rows independently: it is known by the shapes that it gives."""

    def __init__(self, tracker: Tracker, path: str, layer: nn.Module, changed: bool) -> None:
        self.tracker, self.path, self.changed = tracker, path, changed
        self.forward = layer.forward
        rule = rule_for(layer)
        self.row_dims = rule.row_dims if isinstance(rule, GroupwiseRule) else None
        self.signature = inspect.signature(type(layer).forward)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Give results of the right shapes, if all inputs have their rows where the layer expects them."""
        problem = self._problem(args, kwargs)
        if problem is not None:
            if self.changed:
                raise NotRowWise(f"{self.path} {problem}")
            return self.forward(*args, **kwargs)
        try:
            return self.tracker.by_shape(self.forward, args, kwargs)
        except NotRowWise as reason:
            raise NotRowWise(f"{self.path} {reason}") from None

    def _problem(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
        """What keeps the layer from being known by its shapes, or None."""
        arguments = self.signature.bind(None, *args, **kwargs).arguments
        seen = False
        for name, value in list(arguments.items())[1:]:
            wanted = FIRST if self.row_dims is None else RowDim(self.row_dims[name]) if name in self.row_dims else None
            for leaf in pytree.tree_leaves(value):
                rows = self.tracker.row_dim(leaf)
                if rows is not None and rows != wanted:
                    return f"sees an input of shape {tuple(leaf.shape)} with its rows in dimension {rows.dim}"
                seen = seen or rows is not None
        return None if seen else "sees an input that is not of the batch"
