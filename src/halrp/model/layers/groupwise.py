"""Layers whose mixed form is the layer itself, applied to the rows of one task after another.

It suits any layer that treats rows independently and has no cheaper form. Two small ones live here: PReLU and Bilinear.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from halrp.model.layers.registry import LayerRule, layer_rule
from halrp.model.layers.stacks import LayerTasks
from halrp.model.rows import ROWS, NotRowWise


class GroupwiseRule(LayerRule):
    """A layer that treats rows independently, computed for one group of rows after another."""

    hides_tensors = False
    row_dims: ClassVar[Mapping[str, int]] = {"input": 0}
    """The dimension of the rows in arguments of `forward`, by name; other arguments are the same for every row."""

    def mixed(self, tasks: LayerTasks) -> Callable[..., Any]:
        """The layer as each task has it, for that task's rows."""
        return MixedGroups(self, tasks)

    def row_dims_of(self, layer: nn.Module) -> Mapping[str, int]:
        """The dimensions of the rows as a layer was built."""
        return self.row_dims

    def check_arguments(self, path: str, arguments: Mapping[str, Any]) -> None:
        """Raise `NotRowWise` if arguments hold something for each row that cannot be split."""

    def join(self, layer: nn.Module, results: Sequence[Any]) -> Any:
        """A layer's result for all rows from those of the groups."""
        return concatenate(results, 0)


class MixedGroups:
    """A row-wise layer, applied to one group of rows after another."""

    def __init__(self, rule: GroupwiseRule, tasks: LayerTasks) -> None:
        self.rule, self.path, self.layer, self.layer_of = rule, tasks.path, tasks.layer, tasks.layer_of
        self.row_dims = rule.row_dims_of(tasks.layer)
        self.signature = inspect.signature(type(tasks.layer).forward)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Apply the layer; arguments and results are as the layer's own."""
        arguments = self.signature.bind(None, *args, **kwargs).arguments
        arguments.pop("self")
        self.rule.check_arguments(self.path, arguments)
        rows = ROWS.get()
        results = []
        for task, members in rows.groups:
            part = {key: self._narrow(key, value, members, len(rows)) for key, value in arguments.items()}
            results.append(self.layer_of(task)(**part))
        return self.rule.join(self.layer, results)

    def _narrow(self, key: str, value: Any, members: range, count: int) -> Any:
        dim = self.row_dims.get(key)
        if dim is None or value is None:
            return value
        if type(value) is tuple:
            return tuple(self._narrow(key, each, members, count) for each in value)
        each = value.shape[dim] // count if isinstance(value, Tensor) and value.dim() > dim else 0
        if not isinstance(value, Tensor) or not each or value.shape[dim] % count:
            shape = f" of shape {tuple(value.shape)}" if isinstance(value, Tensor) else ""
            raise NotRowWise(f"{self.path} sees a {type(value).__name__}{shape} in a batch of {count} rows")
        return value.narrow(dim, each * members.start, each * len(members))


def concatenate(parts: Sequence[Any], dim: int) -> Any:
    """Concatenate results of groups: tensors, None, or tuples of them."""
    first = parts[0]
    if isinstance(first, tuple):
        return tuple(concatenate(each, dim) for each in zip(*parts, strict=True))
    return None if first is None else torch.cat(list(parts), dim)


@layer_rule(nn.PReLU)
class PReLURule(GroupwiseRule):
    """A learned slope."""


@layer_rule(nn.Bilinear)
class BilinearRule(GroupwiseRule):
    """A product of two inputs."""

    row_dims: ClassVar[Mapping[str, int]] = {"input1": 0, "input2": 0}
