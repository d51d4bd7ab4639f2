"""What tasks may change in a model, and where a pass over mixed rows replaces it: `Changeable`.

It depends on the model and its plan alone, not on which tasks there are, so a task that is learned later changes
neither how a pass is computed nor one bit of it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

from torch import Tensor, nn

from halrp.model.layers.registry import rule_for
from halrp.model.plan import Plan, aliases, trained_buffers

Names = Mapping[str, str]
"""Names under which tasks hold tensors, by the tensors' names inside a module."""


@dataclass(frozen=True)
class Changeable:
    """The modules with tensors that tasks may change, by their paths."""

    layers: Mapping[str, Names]
    """Those that have a mixed form: whose layer rule has one, and the layer that makes the outputs."""
    others: Mapping[str, Names]
    """Those that run their own code, on tensors of each task."""
    head: str | None
    """The layer whose tensors have another shape in each task, if there is one."""

    def names(self) -> Iterator[str]:
        """The names under which tasks may hold tensors."""
        return chain.from_iterable(names.values() for names in chain(self.layers.values(), self.others.values()))

    def take_tensors(self, copied: nn.Module) -> Iterator[tuple[str, str, Tensor]]:
        """Remove the tensors that tasks may change from a copy of the model: path, name and tensor of each.

        Code that reads a tensor of a layer with a mixed form instead of calling the layer would get the base's. Those
        of the head are not given, and rules whose layers need their own say so (`hides_tensors`).
        """
        for path, names in (*self.layers.items(), *self.others.items()):
            module = copied.get_submodule(path)
            rule = rule_for(module)
            if path in self.layers and rule is not None and not rule.hides_tensors:
                continue
            for leaf in names:
                held = module._parameters if leaf in module._parameters else module._buffers
                tensor = held.pop(leaf, None)
                if tensor is not None and path != self.head:
                    yield path, leaf, tensor.detach()

    @staticmethod
    def of(model: nn.Module, plan: Plan) -> Changeable:
        """Find the modules that hold planned parameters, and buffers that training changes."""
        modules = dict(model.named_modules(remove_duplicate=False))
        first: dict[int, str] = {}
        for path, module in modules.items():
            first.setdefault(id(module), path)
        head = plan.output if plan.head else None
        layers: dict[str, dict[str, str]] = {}
        others: dict[str, dict[str, str]] = {}
        for name, alias in _names(model, plan):
            path, _, leaf = alias.rpartition(".")
            path = first[id(modules[path])]
            for outer in enclosing(path):
                if reads_children(modules[outer]):
                    leaf, path = f"{path}.{leaf}"[len(outer) + 1 :], outer
            known = has_mixed_form(modules[path]) or path == head
            (layers if known else others).setdefault(path, {})[leaf] = name
        return Changeable(layers, others, head)


def _names(model: nn.Module, plan: Plan) -> Iterator[tuple[str, str]]:
    """Every tensor that tasks may change: the name under which they hold it, and each that the model has for it."""
    for name, parameter in plan.parameters.items():
        if parameter.kind != "shared":
            yield from ((name, alias) for alias in parameter.aliases)
    buffers, trained = aliases(model.named_buffers(remove_duplicate=False)), trained_buffers(model)
    yield from chain.from_iterable(((name, alias) for alias in buffers[name]) for name in buffers if name in trained)


def has_mixed_form(module: nn.Module) -> bool:
    """Whether the rule of a module says how it computes rows of different tasks."""
    rule = rule_for(module)
    return rule is not None and "mixed" not in rule.lacks


def reads_children(module: nn.Module) -> bool:
    """Whether a module has one mixed form with the layers inside it."""
    rule = rule_for(module)
    return rule is not None and rule.reads_children


def enclosing(path: str) -> Iterator[str]:
    """The path of a module, then those of the modules around it, from the inside out."""
    while path:
        yield path
        path = path.rpartition(".")[0]


def plain_copy(layer: nn.Module) -> nn.Module:
    """The layer with its tensors, whatever becomes of those that others see."""
    plain = copy.copy(layer)
    plain._parameters, plain._buffers = dict(layer._parameters), dict(layer._buffers)
    return plain
