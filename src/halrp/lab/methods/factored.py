"""Methods whose weights are sums of rank-one factors that tasks share: W_t = Vᵀ diag(λ_t) U (`iru`, `ibpwf`).

Every linear layer and convolution except the head has a dictionary U (factors, inputs), V (factors, outputs); a
convolution's inputs are the entries of its kernel, channel by channel. A task owns its gate λ_t, its norm layers and
its head. Factors that a learned task uses are never written to again, so no task is forgotten.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from halrp.lab.methods import network
from halrp.lab.methods.protocol import Context, Method, Size, State
from halrp.model.layers.norm import BATCH_NORMS

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


class LayerFactors(NamedTuple):
    """A layer in factors: u (factors, inputs), v (factors, outputs), gate (factors,), bias (outputs,) or None."""

    u: Tensor
    v: Tensor
    gate: Tensor
    bias: Tensor | None = None


def merged(factors: LayerFactors) -> Tensor:
    """The weight Σ_k gate_k v_k u_kᵀ, (outputs, inputs)."""
    return (factors.v * factors.gate.unsqueeze(1)).t() @ factors.u


class Factored(nn.Module):
    """A layer that computes with `factors()` instead of its weight and bias.

    A linear layer stays factored, y = Vᵀ (λ ∘ U x) + b; a convolution, whose images are larger than its kernel, uses
    the merged kernel.
    """

    def __init__(self, layer: nn.Module) -> None:
        """Take a layer, and remove its weight and bias."""
        super().__init__()
        self.shape = tuple(cast(Tensor, layer.weight).shape)
        self.plain: Any = layer
        layer.register_parameter("weight", None)
        layer.register_parameter("bias", None)

    @abstractmethod
    def factors(self) -> LayerFactors:
        """The current factors of the layer."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer to x (batch, …, inputs), or to images (batch, channels, …)."""
        u, v, gate, bias = factors = self.factors()
        if isinstance(self.plain, nn.Linear):
            return F.linear(F.linear(x, u) * gate, v.t(), bias)
        return cast(Tensor, self.plain._conv_forward(x, merged(factors).view(self.shape), bias))


def body(net: nn.Module) -> dict[str, nn.Module]:
    """The layers of a network that are factored, by path: all linear layers and convolutions except the head."""
    return {path: m for path, m in net.named_modules() if type(m) in LAYERS and path != network.HEAD}


def extent(layer: nn.Module) -> tuple[int, int]:
    """Inputs and outputs of a layer's weight as a matrix."""
    weight = cast(Tensor, layer.weight)
    return weight[0].numel(), len(weight)


def followed_by_norm(net: nn.Module) -> set[str]:
    """The factored layers of a network that a batch norm follows, in the order of its modules."""
    order = [(path, m) for path, m in net.named_modules() if any(True for _ in m.parameters(recurse=False))]
    normed = {path for (path, _), (_, follower) in pairwise(order) if isinstance(follower, BATCH_NORMS)}
    return normed & body(net).keys()


@dataclass(frozen=True, eq=False)
class TaskFactors:
    """What belongs to one task."""

    classes: int
    gates: Mapping[str, Tensor]
    """By layer: a number for each factor that the task uses."""
    tensors: Mapping[str, Tensor]
    """Parameters and buffers that are not factored: norm layers, head, biases."""
    chosen: Mapping[str, Tensor] = field(default_factory=dict)
    """By layer: the indices of the factors that the task uses, (used,) int64; empty if the method has no choice."""

    def all(self) -> dict[str, Tensor]:
        """Every tensor, by name."""
        kinds = {"gate": self.gates, "own": self.tensors, "chosen": self.chosen}
        return {n: t for kind, tensors in kinds.items() for n, t in network.add_prefix(kind, tensors).items()}


class SharedFactors(Method):
    """A dictionary of factors per layer, and what belongs to each task."""

    frozen = True

    def __init__(self, context: Context) -> None:
        """Start without factors."""
        super().__init__(context)
        self.dictionary: dict[str, tuple[Tensor, Tensor]] = {}
        """By layer: U (factors, inputs) and V (factors, outputs)."""
        self.tasks: list[TaskFactors] = []
        self._plain: dict[int, nn.Module] = {}

    @abstractmethod
    def factors(self, path: str, task: int) -> LayerFactors:
        """The factors of a layer that a learned task uses."""

    def plain(self, classes: int) -> nn.Module:
        """A plain network in which tasks with this number of classes are evaluated; its content is overwritten."""
        if classes not in self._plain:
            self._plain[classes] = network.empty(self.context, classes)[0].requires_grad_(False)
        return self._plain[classes]

    @torch.no_grad()
    def module(self, task: int) -> nn.Module:
        """The plain network with a task's merged weights and tensors; valid until the next call."""
        learned = self.tasks[task]
        net = self.plain(learned.classes)
        for path, layer in body(net).items():
            factors = self.factors(path, task)
            weight, bias = cast(Tensor, layer.weight), cast("Tensor | None", layer.bias)
            weight.copy_(merged(factors).view(weight.shape))
            if bias is not None:
                bias.zero_() if factors.bias is None else bias.copy_(factors.bias)
        network.fill(net, learned.tensors)
        return net

    def predict(self, x: Tensor, task: int) -> Tensor:
        """Logits of the task's merged network."""
        return network.logits(self.context, self.module(task), x)

    def owned(self, net: nn.Module, classes: int) -> dict[str, Tensor]:
        """Copies of the tensors of a trained network that are not factored."""
        plain = network.contents(self.plain(classes))
        return {n: t.clone() for n, t in network.contents(net).items() if n in plain}

    def stored(self) -> Size:
        """The dictionary, and what belongs to each task."""
        shared = [t for pair in self.dictionary.values() for t in pair]
        return Size.of(shared + [t for task in self.tasks for t in task.all().values()])

    def counted(self) -> int:
        """Without the running statistics of batch norms."""
        return self.stored().parameters - self.statistics()

    def statistics(self) -> int:
        """The stored numbers that are buffers, that is running statistics of batch norms."""
        buffers = {n for task in self.tasks[:1] for n, _ in self.plain(task.classes).named_buffers()}
        return sum(t.numel() for task in self.tasks for n, t in task.tensors.items() if n in buffers)

    def state(self) -> State:
        """The dictionary, and what belongs to each task."""
        tensors = {
            f"{part}/{path}": t for path, uv in self.dictionary.items() for part, t in zip("uv", uv, strict=True)
        }
        for i, task in enumerate(self.tasks):
            tensors |= network.add_prefix(f"task/{i}", task.all())
        return State(tensors, {"classes": [task.classes for task in self.tasks]})

    def restore(self, state: State) -> None:
        """Take the dictionary and the tasks from a state, on the device of the run."""
        classes = state.values["classes"]
        device = next(self.plain(classes[0]).parameters()).device
        tensors = {n: t.to(device) for n, t in state.tensors.items()}
        u, v = network.strip_prefix("u", tensors), network.strip_prefix("v", tensors)
        self.dictionary = {path: (u[path], v[path]) for path in u}
        self.tasks = []
        for i, width in enumerate(classes):
            learned = network.strip_prefix(f"task/{i}", tensors)
            kinds = (network.strip_prefix(kind, learned) for kind in ("gate", "own", "chosen"))
            self.tasks.append(TaskFactors(width, *kinds))
