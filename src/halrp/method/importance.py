"""What an error in each layer costs the loss: the Hessian part of the method.

A local optimum has zero gradient, so dropping a part Δ of a weight costs about ½·Δᵀ H Δ (paper, Theorem 1). The
Hessian is replaced by the empirical Fisher, the second moment of the gradient, and that by less and less:

- `curvature` keeps two matrices per layer, A ⊗ G (Kronecker factors: input and output-gradient second moments);
- `MeanSquare` keeps one number per layer, the mean diagonal entry of the Fisher, as the released code does;
- `GradientNorm` keeps ‖g‖² of the whole gradient, as the paper's equations do.

All run the network in evaluation mode on true labels, at the weights that warm-up reached. Sums are float32 at least.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from halrp.errors import DivergedError, SettingError
from halrp.method.protocols import Importance
from halrp.model.base import evaluating
from halrp.model.layers.registry import family_for, moments_rule
from halrp.training.batches import Data, loss_of


def at_least_float32(tensor: Tensor) -> Tensor:
    """A tensor in the precision of sums and decompositions: float32 for the half precisions, or its own."""
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor


@dataclass(frozen=True)
class GradientNorm:
    """Paper: h_l = ‖g_l‖², with g_l the gradient of the mean loss over all the data; a sum over elements."""

    counts_kernel: ClassVar[bool] = False
    """Whether a kernel-mean component, repeated at K positions, is charged K times."""

    def __call__(self, module: nn.Module, weights: Mapping[str, Tensor], data: Data, batch: int) -> dict[str, Tensor]:
        """Return a scalar tensor for each weight."""
        total = {name: torch.zeros_like(at_least_float32(weight)) for name, weight in weights.items()}
        for gradients, size in _gradients(module, weights, data, batch):
            for name, gradient in gradients.items():
                total[name] += gradient * (size / data.examples)
        return {name: gradient.square().sum() for name, gradient in total.items()}


@dataclass(frozen=True)
class MeanSquare:
    """Released code: h_l = mean over batches b of |b| · mean over elements of g_{l,b}².

    A batch's gradient averages |b| nearly independent ones, so |b|·g² estimates the square of a single example's:
    h_l is the mean diagonal entry of the empirical Fisher, and h_l·‖Δ‖² the predicted loss of an isotropic error.
    """

    counts_kernel: ClassVar[bool] = True

    def __call__(self, module: nn.Module, weights: Mapping[str, Tensor], data: Data, batch: int) -> dict[str, Tensor]:
        """Return a scalar tensor for each weight."""
        total = {name: at_least_float32(w.new_zeros(())) for name, w in weights.items()}
        count = 0
        for gradients, size in _gradients(module, weights, data, batch):
            count += 1
            for name, gradient in gradients.items():
                total[name] += size * gradient.square().mean()
        return {name: value / count for name, value in total.items()}


class Curvature(NamedTuple):
    """Kronecker factors of a layer's Fisher: loss of an error E (J, I·K) is predicted as tr(G E A Eᵀ).

    A weight (I, J), whose rows meet the inputs, has the two exchanged: the loss of Eᵀ is the same.
    """

    A: Tensor
    """(I·K, I·K): Σ over positions of a aᵀ, mean over examples; a is the input patch that meets the kernel."""
    G: Tensor
    """(J, J): mean over positions and examples of g gᵀ; g is the gradient of an example's loss at the output."""

    def for_view(self, view: str, columns: int) -> Curvature:
        """The factors for a residual with that number of columns: kernel-mean errors meet the sum over the window."""
        if view == "full" or self.A.shape[0] == columns:
            return self
        kernel = self.A.shape[0] // columns
        return Curvature(self.A.reshape(columns, kernel, columns, kernel).sum(dim=(1, 3)), self.G)


class Sensitivity(NamedTuple):
    """What errors in the weights of a network cost its loss."""

    importance: Mapping[str, Tensor]
    """For each weight, the cost of a unit of squared error, (,)."""
    curvature: Mapping[str, Curvature]
    """Kronecker factors of the layers that have them; empty if the decomposition does not need them."""


def measure(
    rule: Importance, needs_curvature: bool, net: nn.Module, weights: Mapping[str, Tensor], data: Data, batch: int
) -> Sensitivity:
    """Measure importance and, if it is needed, curvature at the present weights of a network that is being trained."""
    with evaluating(net):
        importance = rule(net, weights, data, batch)
        factors = curvature(net, weights, data, batch) if needs_curvature else {}
    wrong = [name for name in weights if name not in importance or importance[name].dim() != 0]
    if wrong:
        raise SettingError(
            f"{rule!r} gives no importance of {', '.join(wrong[:3])}; it must return a scalar tensor for each weight"
        )
    infinite = [name for name in weights if not bool(importance[name].isfinite())]
    infinite += [name for name, factor in factors.items() if not all(bool(part.isfinite().all()) for part in factor)]
    if infinite:
        raise DivergedError(
            f"the gradients of {infinite[0]} are not finite after warm-up, so training diverged; lower Recipe(lr=...) "
            "or check the scale of the inputs"
        )
    return Sensitivity(importance, factors)


def curvature(module: nn.Module, weights: Mapping[str, Tensor], data: Data, batch: int) -> dict[str, Curvature]:
    """Collect Kronecker factors for the weights whose layers' rules have moments (`halrp.model.layers`).

    Other weights (grouped, three-dimensional, packed, recurrent) are left out and use a scalar importance. A layer
    that is called several times, and layers that share a weight, sum over their calls, as if each call were a position.
    """
    layers = {
        name: [
            layer
            for layer in module.modules()
            if any(parameter is weight for parameter in layer.parameters(recurse=False))
        ]
        for name, weight in weights.items()
    }
    moments: dict[str, _Moments] = {}
    with ExitStack() as hooks:
        for name, holders in layers.items():
            rules = [moments_rule(layer, weights[name]) for layer in holders]
            known = [rule for rule in rules if rule is not None]
            if len(known) < len(rules) or len({rule.inputs_first for rule in known}) > 1:
                continue
            moments[name] = _Moments(any(rule.inputs_first for rule in known))
            for layer, rule in zip(holders, known, strict=True):
                hooks.callback(rule.record(layer, moments[name]).remove)
        for _, size in _gradients(module, weights, data, batch):
            for moment in moments.values():
                moment.end_batch(size)
    return {name: moment.factors() for name, moment in moments.items() if moment.positions > 0}


class _Moments:
    """Sums of a aᵀ and g gᵀ of one weight; gradients wait for the end of a batch to learn its size."""

    def __init__(self, inputs_first: bool = False) -> None:
        self.inputs_first = inputs_first
        self.a: Tensor | float = 0.0
        self.g: Tensor | float = 0.0
        self.waiting: Tensor | float = 0.0
        self.examples = 0
        self.positions = 0

    def add_inputs(self, rows: Tensor) -> None:
        rows = at_least_float32(rows)
        self.a = self.a + rows.T @ rows

    def add_gradients(self, rows: Tensor) -> None:
        rows = at_least_float32(rows)
        self.waiting = self.waiting + rows.T @ rows
        self.positions += rows.shape[0]

    def end_batch(self, size: int) -> None:
        # The loss is a mean over the batch: an example's own gradient is `size` times as large.
        self.g, self.waiting = self.g + self.waiting * size**2, 0.0
        self.examples += size

    def factors(self) -> Curvature:
        a, g = torch.as_tensor(self.a / self.examples), torch.as_tensor(self.g / self.positions)
        return Curvature(g, a) if self.inputs_first else Curvature(a, g)


def _gradients(module: nn.Module, weights: Mapping[str, Tensor], data: Data, batch: int) -> Any:
    """Yield the gradients of each batch's mean loss and the batch's size."""
    names = list(weights)
    for x, y in data.batches(batch, None):
        with differentiable(module):
            loss = loss_of(data, module, x, y)
            gradients = torch.autograd.grad(loss, [weights[name] for name in names], allow_unused=True)
        yield {n: at_least_float32(g) for n, g in zip(names, gradients, strict=True) if g is not None}, y.shape[0]


def differentiable(module: nn.Module) -> AbstractContextManager[None]:
    """A context in which a module in evaluation mode has gradients: cuDNN's recurrent layers refuse them."""
    refused = any(not family_for(layer).cudnn_eval_gradients for layer in module.modules())
    return torch.backends.cudnn.flags(enabled=False) if refused else nullcontext()
