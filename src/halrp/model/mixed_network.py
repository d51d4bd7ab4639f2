"""The network for rows of different tasks: a copy of the base in which each row meets what its own task has.

A layer with a mixed form computes by it (`layers`). Any other module runs its own code, on tensors of each task
(`per_task`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from halrp.model import per_row  # noqa: F401  (registers its forms)
from halrp.model.base import Base
from halrp.model.changeable import Changeable, Names, plain_copy
from halrp.model.delta import Delta
from halrp.model.layers.mixed_head import mixed_head
from halrp.model.layers.registry import rule_for
from halrp.model.layers.stacks import LayerTasks, TaskTensor
from halrp.model.per_task import PASS, MixedPass, PerTask
from halrp.model.rows import ROWS, NotRowWise, Rows

ModuleOf = Callable[[int], nn.Module]
"""What gives the module of a task by its index."""


def mixed_network(base: Base, deltas: Sequence[Delta], module_of: ModuleOf) -> nn.Module:
    """A copy of the base that computes each row as its task would, or `NotRowWise` if a task changes something else."""
    net, changeable = base.row_wise_copy(), base.changeable
    changed = set(chain.from_iterable(delta.changed for delta in deltas))
    parts = _Parts(deltas)
    _refuse_unknown(changeable, net, changed)
    for path, names in changeable.layers.items():
        layer = net.get_submodule(path)
        leaves = {leaf: name for leaf, name in names.items() if name in changed}
        if leaves and (layer._forward_hooks or layer._forward_pre_hooks):
            raise NotRowWise(f"{path} has hooks")
        form = _mixed_form(base, path, layer, leaves, parts, module_of) if leaves else plain_copy(layer).forward
        layer.__dict__["forward"] = MixedLayer(path, form, shared=not leaves)
    for path, leaf, tensor in changeable.take_tensors(net):
        name = (changeable.layers.get(path) or changeable.others[path])[leaf]
        net.get_submodule(path).__dict__[leaf] = PerTask.of(tensor, _source(name, tensor, parts))
    return net


class _Parts:
    """What tasks own, decoded once: layers stack it."""

    def __init__(self, deltas: Sequence[Delta]) -> None:
        self.factors = [delta.held_factors for delta in deltas]
        self.owned = [delta.held_owned for delta in deltas]
        self.classes = [delta.classes for delta in deltas]


def _refuse_unknown(changeable: Changeable, net: nn.Module, changed: set[str]) -> None:
    """Raise if tasks change a tensor that no trace has followed: a buffer that no rule declares."""
    for name in sorted(changed - set(changeable.names())):
        path = name.rpartition(".")[0]
        tasks = LayerTasks(path, net.get_submodule(path), frozenset(), (), (), lambda _: net)
        raise tasks.not_row_wise(f"tasks change {name}")


def _mixed_form(
    base: Base, path: str, layer: nn.Module, leaves: Names, parts: _Parts, module_of: ModuleOf
) -> Callable[..., Any]:
    tasks = LayerTasks(
        path,
        layer,
        frozenset(leaves),
        parts.factors,
        parts.owned,
        lambda task: module_of(task).get_submodule(path),
        leaves,
    )
    if path == base.changeable.head:
        return mixed_head(tasks, parts.classes)
    rule = rule_for(layer)
    assert rule is not None
    return rule.mixed(tasks)


def _source(name: str, shared: Tensor, parts: _Parts) -> TaskTensor:
    factors = [factors.get(name) for factors in parts.factors]
    owned = {task: tensors[name] for task, tensors in enumerate(parts.owned) if name in tensors}
    return TaskTensor(shared, factors, owned)


class MixedLayer:
    """A layer's mixed form, or the layer itself where no task changes it, also for inputs that are not of the batch."""

    def __init__(self, path: str, form: Callable[..., Any], shared: bool) -> None:
        self.path, self.form, self.shared = path, form, shared

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Apply the layer."""
        current = cast(MixedPass, PASS.get())
        dim = current.structure.dims.get(self.path, 0)
        if dim is None:
            return self._for_each_task(current, args, kwargs)
        if dim == 0 or self.shared:
            return self.form(*args, **kwargs)
        args, kwargs = pytree.tree_map_only(Tensor, lambda x: x.movedim(dim, 0), (args, dict(kwargs)))
        return self.form(*args, **kwargs).movedim(0, dim)

    def _for_each_task(self, current: MixedPass, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> PerTask:
        """What each task makes of an input without rows: the input's entries are rows of every task in turn."""
        leaves, spec = pytree.tree_flatten((args, dict(kwargs)))
        (x,) = (leaf for leaf in leaves if isinstance(leaf, Tensor))
        tasks = [task for task, _ in current.rows.groups]
        if self.shared and not isinstance(x, PerTask):
            return current.same(self.form(*args, **kwargs))
        inputs = current.values(x) if isinstance(x, PerTask) else [x] * len(tasks)
        count = len(inputs[0])
        rows = Rows([task for task in tasks for _ in range(count)], x.device)
        joined = torch.cat(list(inputs))
        args, kwargs = pytree.tree_unflatten([joined if leaf is x else leaf for leaf in leaves], spec)
        token = ROWS.set(rows)
        try:
            y: Tensor = self.form(*args, **kwargs)
        finally:
            ROWS.reset(token)
        return current.made(y.split(count))
