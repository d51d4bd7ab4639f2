"""The frozen network under every task, and the networks that are made from it.

A `Base` is a module, the plan of what happens to its parameters, and a fingerprint. It makes trainable copies, collects
what a task owns in a trained copy, and applies a task's delta to itself. It never changes.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from threading import Lock
from typing import Any, cast

import torch
from torch import Tensor, nn

from halrp import seeding
from halrp.model import batch as tree
from halrp.model import copy_on_write, views
from halrp.model.batch import Batch
from halrp.model.call import Call
from halrp.model.changeable import Changeable
from halrp.model.delta import Delta
from halrp.model.factors import Factors
from halrp.model.layers.head import outputs_of
from halrp.model.layers.norm import has_batch_norm
from halrp.model.layers.registry import family_for
from halrp.model.layout import Layout
from halrp.model.per_task import Structure
from halrp.model.plan import Plan
from halrp.model.row_trace import trace
from halrp.model.rows import NotRowWise
from halrp.model.size import Size
from halrp.model.usable import BaseNumbers

MOST_KINDS = 1024
"""Kinds of batches whose structure is remembered: a stranger may send any number of them."""


class Base:
    """A frozen module with its plan."""

    def __init__(
        self,
        module: nn.Module,
        plan: Plan,
        channels_last: bool,
        initial: Base | None = None,
        *,
        counts_head: bool = True,
        call: Call | None = None,
    ) -> None:
        """Freeze a module in place; the caller hands it over. It may share tensors with the base `initial`.

        `counts_head` says whether the fingerprint is also of the head's parameters, `call` how batches reach the model;
        by default as in the base `initial`.
        """
        module.zero_grad(set_to_none=True)
        self.module = set_memory_format(module, channels_last).requires_grad_(False).eval()
        self._originals: dict[int, Tensor] = copy_on_write.split(
            self.module, None if initial is None else initial._originals
        )
        self.plan = plan
        self.channels_last = channels_last
        self.counts_head = counts_head
        self.call: Call = call or (Call() if initial is None else initial.call)
        self._structures: dict[Hashable, Structure] = {}
        self._tracing = Lock()

    def __getstate__(self) -> dict[str, Any]:
        """All but what belongs to a process, and what is computed from the rest."""
        cached = {name for name, value in vars(Base).items() if isinstance(value, cached_property)}
        return {n: v for n, v in vars(self).items() if n not in {"_originals", "_structures", "_tracing", *cached}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._originals = copy_on_write.split(self.module)
        self._structures, self._tracing = {}, Lock()

    @cached_property
    def fingerprint(self) -> str:
        """A hash of weights and buffers: of all of them, or of all but the head's parameters.

        A base that a task trained is named with the head that it was trained with. That of a given model is drawn in
        every process that builds the model, and every task replaces it, so it does not tell one base from another.
        """
        return seeding.fingerprint(self.tensors) if self.counts_head else self.fingerprint_without_head

    @cached_property
    def fingerprint_without_head(self) -> str:
        """A hash of all that tasks build on: weights and buffers, without the head's parameters."""
        return seeding.fingerprint(self._without_head)

    @property
    def is_unchanged(self) -> bool:
        """Whether what is in memory still has the fingerprint, which is computed again from all of it."""
        return seeding.fingerprint(self.tensors if self.counts_head else self._without_head) == self.fingerprint

    @property
    def _without_head(self) -> dict[str, Tensor]:
        head = {n for n, parameter in self.plan.parameters.items() if parameter.role == "head"}
        return {n: t for n, t in self.tensors.items() if n not in head}

    @cached_property
    def layout(self) -> Layout:
        """What tasks may own, in the order of their files."""
        return Layout.of(self.fingerprint, self.plan, self.tensors)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Every parameter and buffer, by its first name."""
        return {n: t.detach() for n, t in (*self.module.named_parameters(), *self.module.named_buffers())}

    @cached_property
    def numbers(self) -> BaseNumbers:
        """The tensors with their largest magnitudes, which decide whether a task's numbers can be computed with."""
        return BaseNumbers(self.tensors)

    @property
    def parameter_count(self) -> int:
        """The number of parameters, with the head the base was trained with."""
        return sum(parameter.numel() for parameter in self.module.parameters())

    @property
    def size(self) -> Size:
        """Entries and bytes of parameters and buffers."""
        return Size.of(self.tensors.values())

    @property
    def device(self) -> torch.device:
        """The device of the base, and so of its tasks."""
        return next(self.module.parameters()).device

    @property
    def has_batch_norm(self) -> bool:
        """Whether the model cannot be trained on a batch of one example."""
        return has_batch_norm(self.module)

    def adapted_weights(self) -> dict[str, Tensor]:
        """The weights that tasks adapt."""
        adapted = self.plan.named("adapted")
        return {n: p.detach() for n, p in self.module.named_parameters() if n in adapted}

    def trainable(self, classes: int, *seed_key: object) -> nn.Module:
        """A copy in which every parameter but the shared ones trains, with a new head drawn from the seed key."""
        with seeding.isolated(*seed_key, "head", device=self.device):
            net = views.trainable_copy(self.module, self.plan, classes)
        return set_memory_format(net, self.channels_last)

    def owning_copy(self, classes: int, *seed_key: object) -> nn.Module:
        """The same network, but adapted weights are frozen and in the base's memory, unless something writes to them.

        Its weights are parameters apart from the base's, so they may ask for gradients.
        """
        share = self._private(copied=False)
        adapted = self.plan.named("adapted")
        with seeding.isolated(*seed_key, "head", device=self.device):
            weights = {id(p): share(p) for n, p in self.module.named_parameters() if n in adapted}
            net = views.trainable_copy(self.module, self.plan, classes, weights)
        for name, parameter in net.named_parameters():
            if name in adapted:
                parameter.requires_grad_(False)
        return set_memory_format(net, self.channels_last)

    def owned_tensors(self, net: nn.Module) -> dict[str, Tensor]:
        """Copies of all that a task owns in its network besides adapted weights: parameters, head, buffers."""
        private = self.plan.named("owned")
        owned = {
            n: p.detach().clone() for n, p in net.named_parameters() if n in private or self.plan.role(n) == "head"
        }
        return owned | self.changed_buffers(net)

    def changed_buffers(self, net: nn.Module) -> dict[str, Tensor]:
        """Copies of the buffers that differ from the base's; the others are shared."""
        old = dict(self.module.named_buffers())
        return {
            n: b.detach().clone()
            for n, b in net.named_buffers()
            if n in old and (b.shape != old[n].shape or not torch.equal(b, old[n]))
        }

    def tuning_view(self, factors: Mapping[str, Factors], owned: Mapping[str, Tensor], classes: int) -> nn.Module:
        """A network over the frozen base whose factors and owned tensors may train; its buffers are private."""
        return views.task_view(self.module, self.plan, factors, owned, classes, private_buffers=True)

    @cached_property
    def task(self) -> Delta:
        """The base's own task: a delta that owns nothing, with the base's outputs."""
        return Delta(task="", classes=self.outputs, layout=self.layout)

    @property
    def outputs(self) -> int:
        """How many outputs the base has, and so every task if the base's head is kept."""
        return cast(int, outputs_of(self.module.get_submodule(self.plan.output)))

    def view(self, delta: Delta) -> nn.Module:
        """A task as a module that shares the base's tensors."""
        if delta.is_base:
            return views.shared_copy(self.module).eval()
        return views.task_view(self.module, self.plan, delta.held_factors, delta.held_owned, delta.classes)

    def private_view(self, delta: Delta) -> nn.Module:
        """The same for users: it reads the base's memory, and a tensor that is written to becomes its own."""
        if delta.is_base:
            return views.shared_copy(self.module, self._private(copied=True)).eval()
        factors, owned = delta.factors, delta.owned
        return views.task_view(self.module, self.plan, factors, owned, delta.classes, share=self._private(copied=False))

    def _private(self, copied: bool) -> views.Share:
        """What gives private copies of the base's tensors, at once (`copied`) where torch would make them anyway."""
        layers = [m for m in self.module.modules() if copied and family_for(m).copied_by_torch]
        read = {id(t) for layer in layers for t in (*layer.parameters(), *layer.buffers())}

        def share(tensor: Tensor) -> Tensor:
            original = self._originals.get(id(tensor))
            plain = original is None or id(tensor) in read
            private = tensor.detach().clone() if plain else copy_on_write.private_copy(cast(Tensor, original))
            return nn.Parameter(private, requires_grad=False) if isinstance(tensor, nn.Parameter) else private

        return share

    def merged(self, delta: Delta) -> nn.Module:
        """A task as a plain module with merged weights that shares nothing with the base."""
        if delta.is_base:
            return views.clone(self.module).eval()
        factors, owned = delta.held_factors, delta.held_owned
        return views.clone(views.merged_view(self.module, self.plan, factors, owned, delta.classes)).eval()

    def serving_view(self, delta: Delta) -> nn.Module:
        """A task as predictions compute it: with merged weights (`merged_weights`), and the base's elsewhere."""
        if delta.is_base:
            return self.view(delta)
        factors, owned = delta.held_factors, delta.held_owned
        factored = factors.keys() - self.merged_weights(delta)
        return views.merged_view(self.module, self.plan, factors, owned, delta.classes, factored)

    def merged_weights(self, delta: Delta) -> set[str]:
        """The weights of a task that predictions merge, by its precision and by the layers that hold them.

        In a lower precision none is: a small residual would be rounded away with the weight. A layer that reads some
        rows of a large table keeps its factors too.
        """
        if delta.lowers_precision:
            return set()
        holders = dict(self.module.named_modules())
        planned = ((name, self.plan.parameters[name]) for name in delta.ranks)
        return {
            name
            for name, parameter in planned
            if not (parameter.by_rule and family_for(holders[name.rpartition(".")[0]]).reads_few_rows)
        }

    def row_wise_copy(self) -> nn.Module:
        """A copy that shares the base's tensors, prepared for mixed rows, or `NotRowWise` if a layer mixes them."""
        net = views.shared_copy(self.module).eval()
        for path, module in net.named_modules():
            family_for(module).prepare_mixed(path, module)
        return net

    def structure(self, x: Batch, autocast: str | None = None) -> Structure:
        """How a pass over mixed rows like x is computed, or why rows may interact; decided once by the model alone.

        `autocast` is the precision of the pass.
        """
        key = tree.kind(x), autocast
        with self._tracing:
            if key not in self._structures:
                if len(self._structures) >= MOST_KINDS:
                    self._structures.clear()
                try:
                    self._structures[key] = trace(self.row_wise_copy(), self.call, x, self.changeable, autocast)
                except NotRowWise as reason:
                    self._structures[key] = Structure(str(reason))
            return self._structures[key]

    @cached_property
    def changeable(self) -> Changeable:
        """The modules with tensors that tasks may change."""
        return Changeable.of(self.module, self.plan)

    def prepare_inputs(self, x: Batch) -> Batch:
        """Inputs on the base's device, in the memory format in which its convolutions are fastest."""

        def move(tensor: Tensor) -> Tensor:
            moved = tensor.to(self.device)
            wanted = self.channels_last and moved.dim() == 4
            return moved.contiguous(memory_format=torch.channels_last) if wanted else moved

        return tree.tree_map(move, x)


def set_memory_format(net: nn.Module, channels_last: bool) -> nn.Module:
    """Convert four-dimensional tensors to channels-last memory in place, if asked to."""
    if channels_last:
        for tensor in (*net.parameters(), *net.buffers()):
            if tensor.dim() == 4:
                tensor.data = tensor.data.contiguous(memory_format=torch.channels_last)
    return net


@contextmanager
def evaluating(net: nn.Module) -> Iterator[None]:
    """Put a network into evaluation mode inside the block, and into training mode after it."""
    net.eval()
    try:
        yield
    finally:
        net.train()
