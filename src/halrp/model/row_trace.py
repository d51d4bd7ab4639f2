"""Whether a model keeps the rows of a batch apart, decided by its structure: `interaction`.

The model is run once on a batch without numbers: tensors that have shapes only, with a symbol for the number of rows
(torch's fake tensors). Every operation on the way shows where its rows are (`row_rules`), and every layer that tasks
may change checks that it sees them in the first dimension; what such a layer computes is known by its rule. Code that
looks at numbers, or at how many rows there are, cannot run on such a batch, so a model whose rows interact for some
inputs only is noticed too. Whatever is not known to be right is a reason to compute task by task.

Nothing is computed: a trace takes the time of some forward passes of one row, and it touches no state but its own, so
other threads may predict and learn meanwhile.
"""

from __future__ import annotations

import inspect
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from halrp.model.layers.groupwise import GroupwiseRule
from halrp.model.layers.registry import rule_for
from halrp.model.precision import forward_precision
from halrp.model.row_rules import SHAPES, Call, RowDim, attention, rule_of
from halrp.model.rows import NotRowWise

_FIRST = RowDim(0)


def interaction(model: nn.Module, example: Tensor, changed: Container[str]) -> str:
    """Why the rows of batches like `example` may interact in a model; empty if they are independent.

    The model must be the caller's own copy: its layers are replaced. `changed` has the paths of layers that tasks
    change.
    """
    try:
        return _trace(model, example, changed)
    except NotRowWise as reason:
        return str(reason)
    except Exception as error:  # whatever the model does with such a batch: it is not known to be right
        lines = str(error).strip().splitlines() or [""]
        return f"the model cannot be traced without numbers ({type(error).__name__}: {lines[0][:160]})"


def _trace(model: nn.Module, example: Tensor, changed: Container[str]) -> str:
    # Not at the top: most programs never mix tasks, and these modules take long to import.
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

    shapes = ShapeEnv()
    fake = FakeTensorMode(shape_env=shapes, allow_non_fake_inputs=True)
    sizes: Any = [DimDynamic.DYNAMIC, *(DimDynamic.STATIC for _ in example.shape[1:])]
    x = fake.from_tensor(example, symbolic_context=StatelessSymbolicContext(dynamic_sizes=sizes))
    tracker = _Tracker(x)
    for path, module in model.named_modules():
        rule = rule_for(module)
        if path in changed or (rule is not None and "mixed" not in rule.lacks):
            module.__dict__["forward"] = _Layer(tracker, path, module, path in changed)
    with torch.no_grad(), forward_precision(None, example.device), fake, tracker:
        y = model(x)
    if shapes.guards or shapes.replacements:
        guard = shapes.guards[0].expr if shapes.guards else "one number serves"
        return f"the model looks at the number of rows ({guard})"
    if not isinstance(y, Tensor) or tracker.row_dim(y) != _FIRST:
        return "the outputs do not have the rows in their first dimension"
    return ""


class _Tracker(TorchDispatchMode):
    """Follows the rows of one batch through the operations of a model."""

    def __init__(self, x: Tensor) -> None:
        super().__init__()
        self.rows: Any = x.shape[0]
        """The symbol of their number."""
        self._paused = False
        self._known: dict[int, tuple[Tensor, RowDim]] = {}
        """Tensors with rows, by id; they are referred to here so that no id is used twice."""
        self.set(x, _FIRST)

    def row_dim(self, tensor: object) -> RowDim | None:
        """The rows of a tensor; None if it has none."""
        known = self._known.get(id(tensor))
        return None if known is None else known[1]

    def set(self, tensor: Tensor, rows: RowDim | None) -> None:
        """Say where a tensor has its rows, which its shape must confirm."""
        factors = {dim: factor for dim, size in enumerate(tensor.shape) if (factor := self.multiple(size)) is not None}
        if factors != ({} if rows is None else {rows.dim: rows.inner}):
            raise NotRowWise(f"gives a tensor of shape {tuple(tensor.shape)}, in which rows cannot be distinguished")
        if rows is None:
            self._known.pop(id(tensor), None)
        else:
            self._known[id(tensor)] = (tensor, rows)

    def multiple(self, size: object) -> int | None:
        """The factor of a size that is a multiple of the number of rows, or None."""
        expression = size.node.expr if isinstance(size, torch.SymInt) else None
        if expression is None or not expression.free_symbols:
            return None
        factor = expression / self.rows.node.expr
        if not factor.is_Integer:
            raise NotRowWise(f"gives a dimension of {expression} entries, which is no multiple of the number of rows")
        return int(factor)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Run operations without following them."""
        self._paused = True
        try:
            yield
        finally:
            self._paused = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and say where its result has its rows."""
        result = func(*args, **(kwargs or {}))
        outputs = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]
        if outputs and not self._paused:
            try:
                self._follow(func, _arguments(func, args, kwargs or {}), outputs)
            except NotRowWise as reason:
                raise NotRowWise(f"{func} {reason}") from None
        return result

    def _follow(self, func: Any, arguments: Mapping[str, Any], outputs: list[Tensor]) -> None:
        leaves = pytree.tree_leaves(list(arguments.values()))
        symbolic = any(isinstance(leaf, (torch.SymInt, torch.SymFloat, torch.SymBool)) for leaf in leaves)
        if torch.Tag.nondeterministic_seeded in func.tags and rule_of(func) is not attention:  # it drops none
            raise NotRowWise("draws random numbers")
        if not symbolic and all(self.row_dim(leaf) is None for leaf in leaves):
            rows = None
        else:
            rule = rule_of(func)
            if rule is None:
                raise NotRowWise("is not known to treat rows independently")
            if symbolic and (rule not in SHAPES or isinstance(arguments.get("fill_value"), torch.SymInt)):
                raise NotRowWise("computes with the number of rows")
            rows = rule(Call(arguments, outputs[0], self.row_dim, self.multiple))
        before = [self.row_dim(arguments[a.name]) for a in _written(func)]
        for output in outputs:
            if rows is None or output.numel() != 0:
                self.set(output, rows)
        if torch.Tag.inplace_view not in func.tags and any(state != rows for state in before):
            raise NotRowWise("writes rows into a tensor that has none")


def _arguments(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of an operation by name, defaults included."""
    schema = func._schema.arguments
    given = {argument.name: value for argument, value in zip(schema, args, strict=False)} | dict(kwargs)
    return {argument.name: given.get(argument.name, argument.default_value) for argument in schema}


def _written(func: Any) -> list[Any]:
    """The arguments that an operation writes to."""
    return [a for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write]


class _Layer:
    """A layer whose rule says that it treats rows independently: it is known by the shapes that it gives."""

    def __init__(self, tracker: _Tracker, path: str, layer: nn.Module, changed: bool) -> None:
        self.tracker, self.path, self.changed = tracker, path, changed
        self.forward = layer.forward
        rule = rule_for(layer)
        self.row_dims = rule.row_dims if isinstance(rule, GroupwiseRule) else None
        self.signature = inspect.signature(type(layer).forward)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Give results of the right shapes, if all inputs have their rows where the layer expects them."""
        problem = self._problem(args, kwargs)
        if problem is None:
            return self._known_by_shape(args, kwargs)
        if self.changed:
            raise NotRowWise(f"{self.path} {problem}")
        return self.forward(*args, **kwargs)

    def _problem(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
        """What keeps the layer from being known by its shapes, or None."""
        arguments = self.signature.bind(None, *args, **kwargs).arguments
        seen = False
        for name, value in list(arguments.items())[1:]:
            wanted = _FIRST if self.row_dims is None else RowDim(self.row_dims[name]) if name in self.row_dims else None
            for leaf in pytree.tree_leaves(value):
                rows = self.tracker.row_dim(leaf)
                if rows is not None and rows != wanted:
                    return f"sees an input of shape {tuple(leaf.shape)} with its rows in dimension {rows.dim}"
                seen = seen or rows is not None
        return None if seen else "sees an input that is not of the batch"

    def _known_by_shape(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Results with the shapes that the layer gives; the rows are in the dimension that grows with their number."""
        with self.tracker.paused():
            two, structure = pytree.tree_flatten(self._run(2, args, kwargs))
            three = pytree.tree_leaves(self._run(3, args, kwargs))
            outputs = [self._symbolic(*pair) for pair in zip(two, three, strict=True)]
        return pytree.tree_unflatten(outputs, structure)

    def _run(self, count: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        def resized(leaf: Any) -> Any:
            rows = self.tracker.row_dim(leaf)
            if rows is None:
                return leaf
            shape = [count if dim == rows.dim else size for dim, size in enumerate(leaf.shape)]
            return torch.empty(shape, dtype=leaf.dtype, device=leaf.device)

        return self.forward(*pytree.tree_map(resized, args), **pytree.tree_map(resized, dict(kwargs)))

    def _symbolic(self, two: Any, three: Any) -> Any:
        if not isinstance(two, Tensor):
            return two
        grown = [dim for dim, sizes in enumerate(zip(two.shape, three.shape, strict=True)) if sizes[0] != sizes[1]]
        if len(grown) != 1 or two.shape[grown[0]] != 2:
            raise NotRowWise(f"{self.path} gives an output of shape {tuple(two.shape)} for two rows")
        shape = [self.tracker.rows if dim == grown[0] else size for dim, size in enumerate(two.shape)]
        output = torch.empty(shape, dtype=two.dtype, device=two.device)
        self.tracker.set(output, RowDim(grown[0]))
        return output
