"""Batches: tensors with rows first, alone or in tuples and dicts.

A batch is a tensor, a tuple of batches or a dict of batches by name. All its tensors have the same number of rows in
their first dimension. It reaches a model as `model(x)`, `model(*x)` or `model(**x)` (`call`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from halrp.errors import DataError

Batch: TypeAlias = Any
"""A tensor, a tuple of batches, or a dict of batches."""


def as_batch(given: object, name: str) -> Batch:
    """What a user passes as inputs, as a batch: lists become tuples, and mappings (`BatchEncoding`) become dicts.

    `name` names the inputs in errors.
    """
    batch = _normal(given, name, "")
    sizes = {path: tensor.shape[0] for path, tensor in named_leaves(batch)}
    if not sizes:
        raise DataError(f"{name}: the inputs hold no tensor; pass a tensor, or a tuple or dict of tensors")
    first, rows = next(iter(sizes.items()))
    for path, size in sizes.items():
        if size != rows:
            raise DataError(f"{name}: {_label(first)} has {rows} rows, but {_label(path)} has {size}; rows must agree")
    return batch


def _normal(given: object, name: str, path: str) -> Batch:
    if isinstance(given, Tensor):
        if given.dim() == 0 or given.is_meta:
            fault = "is a single number" if given.dim() == 0 else "is on the meta device and has no values"
            raise DataError(f"{name}: {_label(path)} {fault}; pass a tensor with examples in its first dimension")
        return given
    if isinstance(given, Mapping):
        for key in given:
            if not isinstance(key, str):
                raise DataError(f"{name}: {_label(path)} has the key {key!r}; keys are names of a model's arguments")
        return {key: _normal(value, name, f"{path}.{key}" if path else key) for key, value in given.items()}
    if isinstance(given, (tuple, list)) and all(isinstance(v, (Tensor, Mapping, tuple, list)) for v in given):
        return tuple(_normal(value, name, f"{path}[{number}]") for number, value in enumerate(given))
    raise DataError(
        f"{name}: {_label(path)} is a {type(given).__name__}; pass a tensor, such as torch.as_tensor(x), or a tuple or "
        "dict of tensors"
    )


def _label(path: str) -> str:
    return f"x{path}" if path.startswith("[") else path or "x"


def named_leaves(batch: Batch, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """The tensors of a batch, each with where it is: "" for a batch that is one."""
    if isinstance(batch, Tensor):
        yield path, batch
    elif isinstance(batch, dict):
        for key, value in batch.items():
            yield from named_leaves(value, f"{path}.{key}" if path else key)
    else:
        for number, value in enumerate(batch):
            yield from named_leaves(value, f"{path}[{number}]")


def leaves(batch: Batch) -> list[Tensor]:
    """The tensors of a batch."""
    return [batch] if isinstance(batch, Tensor) else [tensor for _, tensor in named_leaves(batch)]


def tree_map(function: Callable[[Tensor], Any], batch: Batch) -> Batch:
    """A batch of the same structure, with a function's value for each tensor."""
    if isinstance(batch, Tensor):
        return function(batch)
    if isinstance(batch, dict):
        return {key: tree_map(function, value) for key, value in batch.items()}
    return tuple(tree_map(function, value) for value in batch)


def rows(batch: Batch) -> int:
    """The number of rows."""
    return len(batch) if isinstance(batch, Tensor) else len(leaves(batch)[0])


def device_of(batch: Batch) -> torch.device:
    """The device of the first tensor."""
    return leaves(batch)[0].device


def take(batch: Batch, index: Any) -> Batch:
    """The rows that a slice or a tensor of indices selects. Indexing by brackets keeps the memory format."""
    return tree_map(lambda tensor: tensor[index], batch)


def split(batch: Batch, sizes: int | Sequence[int]) -> list[Batch]:
    """Batches of the given numbers of rows, one after the other, which share memory with the whole."""
    if isinstance(batch, Tensor):
        return list(batch.split(sizes))
    parts = [iter(tensor.split(sizes)) for tensor in leaves(batch)]
    return [_rebuilt(batch, iter(piece)) for piece in zip(*parts, strict=True)]


def concatenate(batches: Sequence[Batch]) -> Batch:
    """One batch of the rows of several of one structure."""
    if isinstance(batches[0], Tensor):
        return torch.cat(list(batches))
    columns = zip(*map(leaves, batches), strict=True)
    return _rebuilt(batches[0], iter([torch.cat(column) for column in columns]))


def _rebuilt(like: Batch, tensors: Iterator[Tensor]) -> Batch:
    return tree_map(lambda _: next(tensors), like)


def kind(batch: Batch) -> Hashable:
    """What tells batches apart for which a model may do something else: names, shapes of a row, and types."""
    if isinstance(batch, Tensor):
        return batch.shape[1:], batch.dtype
    return tuple((path, tensor.shape[1:], tensor.dtype) for path, tensor in named_leaves(batch))


def structure(batch: Batch) -> tuple[str, ...]:
    """The places of a batch's tensors: keys of dicts and positions in tuples."""
    return tuple(path for path, _ in named_leaves(batch))


def describe(batch: Batch) -> str:
    """A batch in words for an error: names, shapes and types."""
    if isinstance(batch, Tensor):
        return f"shape {tuple(batch.shape)} and type {batch.dtype}"
    parts = (f"{_label(path)} {tuple(tensor.shape)} {tensor.dtype}" for path, tensor in named_leaves(batch))
    return f"shapes and types {', '.join(parts)}"


def refuse_other_structure(batch: Batch, like: Iterable[str], name: str) -> None:
    """Raise if a batch has other keys or positions than `like` names."""
    wanted, present = set(like), set(structure(batch))
    if wanted != present:
        missing = ", ".join(map(_label, sorted(wanted - present)))
        extra = ", ".join(map(_label, sorted(present - wanted)))
        parts = [f"lack {missing}" if missing else "", f"have {extra} besides" if extra else ""]
        raise DataError(f"{name}: the inputs {' and '.join(filter(None, parts))}; pass the same as for training")


def refuse_not_finite(batch: Batch, name: str) -> None:
    """Raise for NaN or infinity."""
    for path, tensor in named_leaves(batch):
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            bad = int((~torch.isfinite(tensor.reshape(tensor.shape[0], -1))).any(dim=1).sum())
            where = f" in {_label(path)}" if path else ""
            raise DataError(
                f"{name}: {bad} of {tensor.shape[0]} inputs hold NaN or infinity{where}; clean or drop them"
            )
