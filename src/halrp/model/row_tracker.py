"""Where every tensor of a pass over a batch without numbers has its rows: `Tracker`.

It sees each operation of torch, below everything that is written in Python, and asks the operation's rule
(`row_rules`). `Functions` sees the few functions that are known as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from halrp.model.row_rules import FIRST, KEEPS_NUMBERS, SHAPES, Call, RowDim, Rule, by_shape, rule_of
from halrp.model.row_rules.entries import constant
from halrp.model.row_rules.functions import FUNCTIONS
from halrp.model.row_rules.layers import attention
from halrp.model.row_rules.lookups import index
from halrp.model.rows import NotRowWise

_SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)


class Tracker(TorchDispatchMode):
    """Follows the rows of one batch through the operations of a model."""

    def __init__(self, leaves: Sequence[Tensor]) -> None:
        super().__init__()
        self.rows: Any = leaves[0].shape[0]
        """The symbol of their number."""
        self._paused = False
        self._protected: frozenset[int] = frozenset()
        self._known: dict[int, tuple[Tensor, RowDim]] = {}
        """Tensors with rows, by id; they are referred to here so that no id is used twice."""
        for leaf in leaves:
            self.set(leaf, FIRST)

    def row_dim(self, tensor: object) -> RowDim | None:
        """The rows of a tensor; None if it has none."""
        known = self._known.get(id(tensor))
        return None if known is None else known[1]

    def has_rows(self, values: object) -> bool:
        """Whether some tensor among values has rows."""
        return any(self.row_dim(leaf) is not None for leaf in pytree.tree_leaves(values))

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
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    @contextmanager
    def protecting(self, tensors: Iterable[Tensor]) -> Iterator[None]:
        """Refuse operations that write to tensors inside the block."""
        self._protected = frozenset(map(id, tensors))
        try:
            yield
        finally:
            self._protected = frozenset()

    # ---- functions that are known by the shapes that they give ---------------------------------------------------

    def by_shape(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Results of a function's shapes; the rows are in the dimension that grows with their number."""
        with self.paused():
            two, structure = pytree.tree_flatten(self._run(2, function, args, kwargs))
            three = pytree.tree_leaves(self._run(3, function, args, kwargs))
            outputs = [self._symbolic(*pair) for pair in zip(two, three, strict=True)]
        return pytree.tree_unflatten(outputs, structure)

    def _run(self, count: int, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        def resized(leaf: Any) -> Any:
            rows = self.row_dim(leaf)
            if rows is None:
                return leaf
            shape = [count * rows.inner if dim == rows.dim else size for dim, size in enumerate(leaf.shape)]
            return torch.empty(shape, dtype=leaf.dtype, device=leaf.device)

        return function(*pytree.tree_map(resized, args), **pytree.tree_map(resized, dict(kwargs)))

    def _symbolic(self, two: Any, three: Any) -> Any:
        if not isinstance(two, Tensor):
            return two
        grown = [dim for dim, sizes in enumerate(zip(two.shape, three.shape, strict=True)) if sizes[0] != sizes[1]]
        inner = two.shape[grown[0]] // 2 if grown else 0
        if len(grown) != 1 or (two.shape[grown[0]], three.shape[grown[0]]) != (2 * inner, 3 * inner):
            raise NotRowWise(f"gives an output of shape {tuple(two.shape)} for two rows")
        shape = [inner * self.rows if dim == grown[0] else size for dim, size in enumerate(two.shape)]
        output = torch.empty(shape, dtype=two.dtype, device=two.device)
        self.set(output, RowDim(grown[0], inner))
        return output

    # ---- operations ------------------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and say where its result has its rows."""
        kwargs = kwargs or {}
        if self._paused:
            return func(*args, **kwargs)
        arguments = _arguments(func, args, kwargs)
        before = _layout(arguments["self"]) if torch.Tag.inplace_view in func.tags else ((), ())
        try:
            known_by_shape = by_shape(func) and self.has_rows((args, kwargs))
            result = self.by_shape(func, args, kwargs) if known_by_shape else func(*args, **kwargs)
            outputs = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]
            if outputs:
                self._follow(func, arguments, outputs, before)
        except NotRowWise as reason:
            raise NotRowWise(f"{func} {reason}") from None
        return result

    def _follow(self, func: Any, arguments: Mapping[str, Any], outputs: list[Tensor], before: Any) -> None:
        written = [self.row_dim(arguments[a.name]) for a in _written(func)]
        if any(id(arguments[a.name]) in self._protected for a in _written(func)):
            raise NotRowWise("writes to a tensor of each task")
        if torch.Tag.nondeterministic_seeded in func.tags and rule_of(func) is not attention:  # it drops none
            raise NotRowWise("draws random numbers")
        rows = self.rows_of_result(rule_of(func), arguments, outputs[0], before)
        for number, output in enumerate(outputs):
            if rows is None or output.numel() != 0:
                statistics = rows is not None and number and output.dim() == 1
                self.set(output, RowDim(0, rows.inner) if rows is not None and statistics else rows)
        if torch.Tag.inplace_view not in func.tags and any(state != rows for state in written):
            raise NotRowWise("writes rows into a tensor that has none")

    def rows_of_result(
        self, rule: Rule | None, arguments: Mapping[str, Any], result: Tensor, before: Any = ((), ())
    ) -> RowDim | None:
        """Where the result of an operation with a rule has its rows."""
        leaves = pytree.tree_leaves(list(arguments.values()))
        symbolic = any(isinstance(leaf, _SYMBOLS) for leaf in leaves)
        given = [rows for leaf in leaves if (rows := self.row_dim(leaf)) is not None]
        if not symbolic and not given:
            return None
        if rule is None:
            raise NotRowWise("is not known to treat rows independently")
        if symbolic and (rule not in SHAPES or isinstance(arguments.get("fill_value"), torch.SymInt)):
            raise NotRowWise("computes with the number of rows")
        rows = rule(Call(arguments, result, self.row_dim, self.multiple, before))
        if rows is None or not any(each.numbers for each in given) or rule in (constant, index):
            return rows
        if rule not in KEEPS_NUMBERS:
            raise NotRowWise("computes with the position of a row in the batch")
        return rows._replace(numbers=True)


class Functions(TorchFunctionMode):
    """Follows rows through functions that are known as a whole."""

    def __init__(self, tracker: Tracker) -> None:
        super().__init__()
        self.tracker = tracker

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Give a result of the right shape, or run what the function consists of."""
        known, kwargs = FUNCTIONS.get(func), kwargs or {}
        if known is None or not self.tracker.has_rows((args, kwargs)):
            return func(*args, **kwargs)
        try:
            result = self.tracker.by_shape(func, args, kwargs)
            rows = self.tracker.rows_of_result(known.rule, known.arguments(args, kwargs), result)
            self.tracker.set(result, rows)
        except NotRowWise as reason:
            raise NotRowWise(f"{func.__name__} {reason}") from None
        return result


def _arguments(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of an operation by name, defaults included."""
    schema = func._schema.arguments
    given = {argument.name: value for argument, value in zip(schema, args, strict=False)} | dict(kwargs)
    return {argument.name: given.get(argument.name, argument.default_value) for argument in schema}


def _layout(tensor: Tensor) -> tuple[Sequence[Any], Sequence[Any]]:
    return tuple(tensor.shape), tensor.stride()


def _written(func: Any) -> list[Any]:
    """The arguments that an operation writes to."""
    return [a for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
