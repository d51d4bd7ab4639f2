"""What an error in each layer costs the loss: the Hessian part of the method.

A local optimum has zero gradient, so dropping a part Δ of a weight costs about ½·Δᵀ H Δ (paper, Theorem 1). The
Hessian is replaced by the empirical Fisher, the second moment of the gradient, and that by less and less:

- `curvature` keeps two matrices per layer, A ⊗ G (Kronecker factors: input and output-gradient second moments);
- `MeanSquare` keeps one number per layer, the mean diagonal entry of the Fisher, as the released code does;
- `GradientNorm` keeps ‖g‖² of the whole gradient, as the paper's equations do.

All run the network in evaluation mode on true labels, at the weights that warm-up found.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from halrp.data import Data


@dataclass(frozen=True)
class GradientNorm:
    """Paper: h_l = ‖g_l‖², with g_l the gradient of the mean loss over all the data; a sum over elements."""

    counts_kernel: ClassVar[bool] = False
    """Whether a kernel-mean component, repeated at K positions, is charged K times."""

    def __call__(self, module: nn.Module, weights: Mapping[str, Tensor], data: Data, batch: int) -> dict[str, Tensor]:
        """Return a scalar tensor for each weight."""
        total = {name: torch.zeros_like(weight) for name, weight in weights.items()}
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
        total = {name: torch.zeros((), device=w.device, dtype=w.dtype) for name, w in weights.items()}
        count = 0
        for gradients, size in _gradients(module, weights, data, batch):
            count += 1
            for name, gradient in gradients.items():
                total[name] += size * gradient.square().mean()
        return {name: value / count for name, value in total.items()}


class Curvature(NamedTuple):
    """Kronecker factors of a layer's Fisher: loss of an error E (J, I·K) is predicted as tr(G E A Eᵀ)."""

    A: Tensor
    """(I·K, I·K): Σ over positions of a aᵀ, mean over examples; a is the input patch that meets the kernel."""
    G: Tensor
    """(J, J): mean over positions and examples of g gᵀ; g is the gradient of an example's loss at the output."""

    def for_view(self, view: str, columns: int) -> Curvature:
        """The factors for a residual of so many columns: kernel-mean errors meet the sum over the window."""
        if view == "full" or self.A.shape[0] == columns:
            return self
        kernel = self.A.shape[0] // columns
        return Curvature(self.A.reshape(columns, kernel, columns, kernel).sum(dim=(1, 3)), self.G)


def curvature(module: nn.Module, weights: Mapping[str, Tensor], data: Data, batch: int) -> dict[str, Curvature]:
    """Collect Kronecker factors for the linear layers and ungrouped convolutions among `weights`.

    Other weights (grouped, three-dimensional, packed, recurrent) are left out and use a scalar importance. A layer
    that is called several times sums over its calls, as if each call were a position.
    """
    layers = {name: module.get_submodule(name.rpartition(".")[0]) for name in weights if name.endswith("weight")}
    moments: dict[str, list[Any]] = {}
    with ExitStack() as hooks:
        for name, layer in layers.items():
            if type(layer) in (nn.Linear, nn.Conv1d, nn.Conv2d) and getattr(layer, "groups", 1) == 1:
                moments[name] = [0.0, 0.0, 0]
                hooks.callback(layer.register_forward_hook(_record(moments[name])).remove)
        examples = 0
        for _, size in _gradients(module, weights, data, batch):
            examples += size
    return {
        name: Curvature(a / examples, g / positions) for name, (a, g, positions) in moments.items() if positions > 0
    }


def _record(moment: list[Any]) -> Any:
    """A forward hook that adds a layer's input moment, and its output-gradient moment once that is known."""

    def hook(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        patches = _patches(layer, inputs[0].detach())
        size = inputs[0].shape[0]
        moment[0] = moment[0] + patches.T @ patches

        def backward(gradient: Tensor) -> None:
            rows = gradient.movedim(1, -1) if isinstance(layer, (nn.Conv1d, nn.Conv2d)) else gradient
            rows = rows.reshape(-1, rows.shape[-1]) * size  # the loss is a mean over the batch
            moment[1] = moment[1] + rows.T @ rows
            moment[2] += rows.shape[0]

        output.register_hook(backward)

    return hook


def _patches(layer: nn.Module, x: Tensor) -> Tensor:
    """The inputs that meet the kernel, one row per example and position: (N·L, I·K)."""
    if isinstance(layer, nn.Linear):
        return x.reshape(-1, x.shape[-1])
    conv: Any = layer
    if conv.padding_mode != "zeros" or isinstance(conv.padding, str):
        x = F.pad(
            x, conv._reversed_padding_repeated_twice, "constant" if conv.padding_mode == "zeros" else conv.padding_mode
        )
        padding: tuple[int, ...] = (0,) * len(conv.kernel_size)
    else:
        padding = conv.padding
    settings = [tuple(v) for v in (conv.kernel_size, conv.dilation, padding, conv.stride)]
    if isinstance(layer, nn.Conv1d):
        x, settings = x.unsqueeze(2), [(1 if i != 2 else 0, *v) for i, v in enumerate(settings)]
    kernel, dilation, pad, stride = settings
    unfolded = F.unfold(x, kernel, dilation, pad, stride)
    return unfolded.movedim(1, -1).reshape(-1, unfolded.shape[1])


def _gradients(module: nn.Module, weights: Mapping[str, Tensor], data: Data, batch: int) -> Any:
    """Yield the gradients of each batch's mean cross-entropy and the batch's size."""
    names = list(weights)
    for x, y in data.batches(batch, None):
        loss = F.cross_entropy(module(x), y)
        found = torch.autograd.grad(loss, [weights[name] for name in names], allow_unused=True)
        yield {n: g for n, g in zip(names, found, strict=True) if g is not None}, y.shape[0]
