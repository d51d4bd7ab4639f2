"""`be`: BatchEnsemble for a stream of tasks (Wen et al., 2020).

Every layer's weight is W_t = r_t ∘ W ∘ s_t: the slow weight W is shared, a vector r_t over outputs and s_t over inputs
belong to the task. The first task trains W together with its r and s; later ones freeze W and train r, s, biases, norm
layers and a head. It is HALRP without low-rank components, and uses the same layers.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from halrp.lab.methods import network
from halrp.lab.methods.frozen_base import FrozenBase, TaskDelta, scales_only
from halrp.lab.methods.protocol import Context
from halrp.lab.methods.settings import check_choice
from halrp.lab.streams import Task
from halrp.model.base import Base
from halrp.model.plan import Plan
from halrp.training.loop import Group


class Scaled(nn.Module):
    """A parametrization r ∘ W ∘ s of a weight W (J, I, *kernel), with r (J,) and s (I,)."""

    def __init__(self, weight: Tensor) -> None:
        """Start with r and s of ones."""
        super().__init__()
        self.r = nn.Parameter(weight.new_ones(weight.shape[0]))
        self.s = nn.Parameter(weight.new_ones(weight.shape[1]))

    def forward(self, weight: Tensor) -> Tensor:
        """The scaled weight."""
        kernel = [1] * (weight.dim() - 2)
        return weight * self.r.view(-1, 1, *kernel) * self.s.view(1, -1, *kernel)


class BatchEnsemble(FrozenBase):
    """A slow weight, and two vectors per layer for each task."""

    def __init__(self, context: Context, l2: float = 1e-4, start: str = "ones") -> None:
        """Take the penalty λ/2·‖W‖² on slow weights, and the initial r and s: "ones", or those of the "first" task."""
        super().__init__(context, l2)
        check_choice("be", "start", start, ("ones", "first"))
        self.start = start

    def first(self, task: Task) -> TaskDelta:
        """Train the slow weights, and all that belongs to the first task."""
        net, plan = network.fresh(self.context, task)
        scales = {n: scale(net, n) for n in _scaled(plan)}
        named = {n: p for n, p in net.named_parameters() if ".parametrizations." not in n}
        groups = [
            Group([original(net, n) for n in scales], l2=self.l2),
            Group([p for s in scales.values() for p in (s.r, s.s)]),
            Group([p for n, p in named.items() if n not in scales]),
        ]
        seed_key = network.first_seed_key(self.context, task)
        network.fit(self.context, task, net, groups, seed_key, "base")
        vectors = {n: (s.r.detach().clone(), s.s.detach().clone()) for n, s in scales.items()}
        for n in scales:
            path, _, leaf = n.rpartition(".")
            parametrize.remove_parametrizations(net.get_submodule(path), leaf, leave_parametrized=False)
        self.base = Base(net, plan, self.context.recipe.channels_last)
        return TaskDelta(task.classes, vectors, {})

    def later(self, base: Base, task: Task) -> TaskDelta:
        """Train r and s, biases, norm layers and a head over the slow weights."""
        start = base.trainable(task.classes, *self.seed_key(task))
        owned: dict[str, Tensor] = {n: nn.Parameter(t) for n, t in base.owned_tensors(start).items()}
        vectors = {
            n: tuple(nn.Parameter(v.clone() if self.start == "first" else torch.ones_like(v)) for v in pair)
            for n, pair in self.tasks[0].scales.items()
        }
        scales = {n: (pair[0], pair[1]) for n, pair in vectors.items()}
        net = base.tuning_view(scales_only(scales), owned, task.classes)
        groups = [
            Group([v for pair in vectors.values() for v in pair]),
            Group([t for t in owned.values() if isinstance(t, nn.Parameter)]),
        ]
        network.fit(self.context, task, net, groups, self.seed_key(task), "fine-tune")
        return TaskDelta(
            task.classes,
            {n: (r.detach(), s.detach()) for n, (r, s) in scales.items()},
            {n: t.detach() for n, t in owned.items()} | base.changed_buffers(net),
        )


def _scaled(plan: Plan) -> list[str]:
    return [n for n, parameter in plan.named("adapted").items() if parameter.by_rule]


def scale(net: nn.Module, name: str) -> Scaled:
    """Parametrize a weight of a network as r ∘ W ∘ s."""
    path, _, leaf = name.rpartition(".")
    layer = net.get_submodule(path)
    scaled = Scaled(getattr(layer, leaf))
    parametrize.register_parametrization(layer, leaf, scaled, unsafe=True)
    return scaled


def original(net: nn.Module, name: str) -> nn.Parameter:
    """The slow weight behind a scaled one."""
    path, _, leaf = name.rpartition(".")
    weight = net.get_submodule(path).parametrizations[leaf].original  # type: ignore[union-attr, index]
    assert isinstance(weight, nn.Parameter)
    return weight
