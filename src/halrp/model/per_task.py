"""Tensors of which each task has its own, in a pass over rows of different tasks: `PerTask`.

A module without a mixed form runs its own code on such tensors: a parameter that it holds itself (positions, a class
token, a scale for each channel), what another layer makes of inputs that are the same for every row (the embedding of
positions), and whatever is computed from them. A `PerTask` has the shape that each task's tensor has, and stands for
one tensor for each task that is present. A function of torch that takes it is called for one task after another:

    result_t = f(…, value_t, …, x[rows of t], …)

where those of the other tensors are cut that have an entry for each row. Results that have rows are concatenated, as
ordinary tensors; the others are a `PerTask` again. That is right for every function that treats rows independently.
Whether a function does, and which tensors have rows, is shown by the trace of the model's structure (`row_trace`): a
number of entries alone would not distinguish rows from something else of the same number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from halrp.model.layers.stacks import TaskTensor
from halrp.model.rows import ROWS, NotRowWise, Rows


@dataclass(frozen=True)
class Use:
    """One call of a function with a `PerTask`: in which dimension its other tensors and its results have rows."""

    function: str
    inputs: tuple[int | None, ...]
    """None for a tensor without rows."""
    results: tuple[int | None, ...]
    """None for a result that each task has its own of."""


@dataclass(frozen=True)
class Structure:
    """What the trace of a model shows for batches of a kind."""

    reason: str = ""
    """Why its rows may interact; empty if they do not."""
    uses: tuple[Use, ...] = ()
    """Every call of a function with a `PerTask`, in order."""
    dims: Mapping[str, int | None] = field(default_factory=dict)
    """Layers whose inputs do not have their rows first, with the dimension in which they have them; None for inputs
    that are the same for every row."""


class Pass(Protocol):
    """A forward pass in which tensors are of each task."""

    def values(self, tensor: PerTask) -> Sequence[Tensor]:
        """The tensors that a `PerTask` stands for."""

    def call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call a function of torch, some of whose arguments are `PerTask`."""


PASS: ContextVar[Pass] = ContextVar("PASS")
"""The pass that is under way in this thread."""


class PerTask(Tensor):
    """One tensor for each task that is present, all of one shape, type and device."""

    source: TaskTensor | tuple[Tensor, ...]
    """A tensor of the model as each task has it; or the values of this pass, one for each task that is present."""

    @staticmethod
    def of(like: Tensor, source: TaskTensor | tuple[Tensor, ...]) -> PerTask:
        """A tensor of the shape and type of `like` that takes its values from `source`."""
        sizes: Any = tuple(like.shape)
        made: PerTask = Tensor._make_wrapper_subclass(PerTask, sizes, dtype=like.dtype, device=like.device)
        made.source = source
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Answer what all tasks share, and let the pass compute the rest."""
        if func in _SHARED:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        return PASS.get().call(func, args, kwargs or {})

    # torch's own annotation lacks the function.
    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Refuse what does not ask for `__torch_function__`."""
        raise NotRowWise(f"{func} reads a tensor of which each task has its own")


def _getters(*names: str) -> set[Any]:
    return {getattr(Tensor, name).__get__ for name in names if hasattr(Tensor, name)}


_SHARED = frozenset(
    {
        *_getters("shape", "dtype", "device", "layout", "ndim", "requires_grad", "is_leaf", "grad_fn", "is_nested"),
        *_getters("is_cuda", "is_cpu", "is_sparse", "is_quantized", "is_meta", "is_mps", "is_xpu", "itemsize"),
        *(
            Tensor.size,
            Tensor.dim,
            Tensor.numel,
            Tensor.nelement,
            Tensor.ndimension,
            Tensor.element_size,
            Tensor.__len__,
        ),
        *(Tensor.is_floating_point, Tensor.is_complex, Tensor.is_signed, Tensor.get_device, torch.numel),
        *(torch.is_floating_point, torch.is_complex, torch.get_device),
    }
)
"""What can be asked of a `PerTask` because the answer is the same for every task."""
_ASSIGNS = frozenset({"__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__iand__", "__ior__"})


def writes(function: Callable[..., Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a function writes to its first argument, or to another (`out`)."""
    name = name_of(function)
    return name in _ASSIGNS or (name.endswith("_") and not name.endswith("__")) or kwargs.get("out") is not None


def name_of(function: Callable[..., Any]) -> str:
    """The name of a function of torch, as reasons show it."""
    return str(getattr(function, "__name__", function))


def flatten(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[list[Any], pytree.TreeSpec]:
    """The leaves of a call's arguments."""
    return pytree.tree_flatten((args, dict(kwargs)))


def is_plain(leaf: object) -> bool:
    """Whether a leaf is a tensor that all tasks share."""
    return isinstance(leaf, Tensor) and not isinstance(leaf, PerTask)


def map_results(use: Use, result: Any, make: Callable[[Tensor], Tensor]) -> Any:
    """The result of a call in which tensors without rows are made a `PerTask`."""
    leaves, form = pytree.tree_flatten(result)
    pairs = zip(leaves, use.results, strict=True)
    return pytree.tree_unflatten([leaf if dim is not None or leaf is None else make(leaf) for leaf, dim in pairs], form)


class Join(NamedTuple):
    """A call of a function in which rows meet tensors of each task."""

    current: MixedPass
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    with_rows: frozenset[int]

    def has_rows(self, leaf: object) -> bool:
        """Whether an argument is a tensor with rows."""
        return id(leaf) in self.with_rows


ONE_CALL: dict[Callable[..., Any], Callable[[Join], Tensor | None]] = {}
"""Functions that need not be called for one task after another, with what computes all rows at once; or None where that
does not serve."""


class MixedPass:
    """One pass over rows of different tasks, whose uses of `PerTask` follow a structure."""

    def __init__(self, rows: Rows, structure: Structure) -> None:
        self.rows, self.structure = rows, structure
        self._next = iter(structure.uses)
        self._values: dict[int, tuple[Tensor, ...]] = {}
        """Those of the model's tensors, by their ids."""

    def values(self, tensor: PerTask) -> tuple[Tensor, ...]:
        """One tensor for each task that is present; those of the model are built once in a pass."""
        source = tensor.source
        if isinstance(source, tuple):
            return source
        if id(tensor) not in self._values:
            self._values[id(tensor)] = tuple(source(task) for task, _ in self.rows.groups)
        return self._values[id(tensor)]

    def same(self, value: Tensor) -> PerTask:
        """A tensor that is the same for every task, where tasks might have others."""
        return self.made([value] * len(self.rows.groups))

    def made(self, values: Sequence[Tensor]) -> PerTask:
        """A tensor with a value for each task that is present."""
        return PerTask.of(values[0], tuple(values))

    def call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call a function once, if all tasks have the same tensors or it has a form for that; or else for each task."""
        use = next(self._next, None)
        leaves, spec = flatten(args, kwargs)
        if use is None or use.function != name_of(function) or len(use.inputs) != sum(map(is_plain, leaves)):
            raise NotRowWise(f"the pass calls {name_of(function)} where its structure has another function")
        shared = {id(leaf): self._shared(leaf) for leaf in leaves if isinstance(leaf, PerTask)}
        if None not in shared.values():
            args, kwargs = pytree.tree_unflatten([shared.get(id(leaf), leaf) for leaf in leaves], spec)
            return map_results(use, function(*args, **kwargs), self.same)
        if function in ONE_CALL and use.results == (0,) and 0 in use.inputs:
            with_rows = {id(leaf) for leaf, dim in zip(filter(is_plain, leaves), use.inputs, strict=True) if dim == 0}
            result = ONE_CALL[function](Join(self, function, args, kwargs, frozenset(with_rows)))
            if result is not None:
                return result
        return self._by_task(function, leaves, spec, use)

    def _shared(self, tensor: PerTask) -> Tensor | None:
        """The tensor that all tasks that are present have, if they have the same."""
        source = tensor.source
        if isinstance(source, tuple):
            return source[0] if all(value is source[0] for value in source) else None
        return None if any(source.changes(task) for task, _ in self.rows.groups) else source.shared

    def _by_task(self, function: Callable[..., Any], leaves: Sequence[Any], spec: pytree.TreeSpec, use: Use) -> Any:
        parts = []
        for number in range(len(self.rows.groups)):
            args, kwargs = pytree.tree_unflatten(list(self._of_task(number, leaves, use)), spec)
            parts.append(pytree.tree_flatten(function(*args, **kwargs)))
        cut = any(dim is not None for dim in use.inputs)
        results = zip(zip(*(leaves for leaves, _ in parts), strict=True), use.results, strict=True)
        return pytree.tree_unflatten([self._joined(values, dim, cut) for values, dim in results], parts[0][1])

    def _of_task(self, number: int, leaves: Sequence[Any], use: Use) -> Iterator[Any]:
        """The leaves as the function of one task sees them."""
        dims = iter(use.inputs)
        for leaf in leaves:
            if isinstance(leaf, PerTask):
                yield self.values(leaf)[number]
            elif isinstance(leaf, Tensor) and (dim := next(dims)) is not None:
                yield self._cut(leaf, dim, number)
            else:
                yield leaf

    def _joined(self, values: Sequence[Any], dim: int | None, cut: bool) -> Any:
        """The results of all tasks: their rows, which are still to be cut from those of functions that saw no rows."""
        if values[0] is None:
            return None
        if dim is None:
            return self.made(values)
        parts = [value if cut else self._cut(value, dim, number) for number, value in enumerate(values)]
        counts = [len(members) for _, members in self.rows.groups]
        if len({part.shape[dim] / count for part, count in zip(parts, counts, strict=True)}) > 1:
            raise NotRowWise("a function does not give each task the entries of its rows")
        return torch.cat(parts, dim)

    def _cut(self, tensor: Tensor, dim: int, number: int) -> Tensor:
        """The entries of one task's rows; there may be several in succession for each row."""
        each, rest = divmod(tensor.shape[dim], len(self.rows))
        if rest:
            raise NotRowWise(f"sees a tensor of shape {tuple(tensor.shape)} in a batch of {len(self.rows)} rows")
        members = self.rows.groups[number][1]
        return tensor.narrow(dim, each * members.start, each * len(members))

    def per_row(self, tensor: PerTask, count: int, shape: Sequence[int]) -> Tensor:
        """Each row's tensor, with another shape, for a tensor with `count` entries in its dimension of rows."""
        return self.rows.repeated(count // len(self.rows)).of_groups(self.values(tensor)).reshape(count, *shape)


@contextmanager
def mixed_pass(rows: Rows, structure: Structure) -> Iterator[None]:
    """A pass over rows of different tasks inside the block, in this thread."""
    tokens = ROWS.set(rows), PASS.set(MixedPass(rows, structure))
    try:
        yield
    finally:
        ROWS.reset(tokens[0])
        PASS.reset(tokens[1])
