"""`ewc`: elastic weight consolidation (Kirkpatrick et al., 2017).

At every later task t the loss is CE + λ/2 Σ_{i<t} Fᵢ (θ − θᵢ*)² over the shared parameters, with the diagonal Fisher
information Fᵢ of each past task at its final parameters θᵢ*. The gradient needs only Σ Fᵢ and Σ Fᵢθᵢ*, whose size is
constant. The online form has one running Fisher, F ← γF + Fₜ, around the newest parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from halrp.errors import SettingError
from halrp.lab.methods.l2 import Anchored
from halrp.lab.methods.protocol import Context
from halrp.lab.streams import Task
from halrp.model.inference import batch_sizes
from halrp.model.layers.norm import BATCH_NORMS
from halrp.objectives import classification

Labels = Literal["predicted", "true", "exact"]


class ElasticWeights(Anchored):
    """Fine-tuning with a quadratic penalty weighted by the Fisher information of past tasks."""

    def __init__(
        self,
        context: Context,
        strength: float = 1e5,
        online: bool = False,
        decay: float = 1.0,
        labels: Labels = "predicted",
        per_example: bool = False,
        l2: float = 1e-4,
    ) -> None:
        """Take λ, by default the best on validation data of CIFAR100-Split, and the form of the Fisher information.

        `online` has one running Fisher with the factor `decay` (γ). `labels` are those whose log-likelihood is
        differentiated. `per_example` squares the gradient of each example, not of a batch's mean loss times |b|.
        """
        super().__init__(context, strength, l2)
        if labels not in ("predicted", "true", "exact"):
            raise SettingError(f"ewc(labels={labels!r}) is unknown; choose 'predicted', 'true' or 'exact'")
        if labels == "exact" and not per_example:
            raise SettingError("ewc(labels='exact') sums over all labels of an example; it needs per_example=True")
        if not 0 <= decay <= 1:
            raise SettingError(f"ewc(decay={decay}) must lie in 0 … 1")
        self.online, self.decay, self.labels, self.per_example = online, decay, labels, per_example

    def consolidate(self, task: Task) -> None:
        """Compute the Fisher information of the task just learned, and add it to the penalty."""
        assert self.net is not None
        x, y = task.train.x, task.train.y
        fisher = (
            fisher_by_example(self.net, self.shared(), x, y, self.labels)
            if self.per_example
            else fisher_by_batch(self.net, self.shared(), x, y, self.labels, self.context.recipe.batch)
        )
        for name, parameter in self.shared().items():
            new, anchor = fisher[name], parameter.detach()
            old = self.precision.get(name)
            if old is None or not self.online:
                self.pull[name] = new * anchor if old is None else self.pull[name] + new * anchor
                self.precision[name] = new if old is None else old + new
            else:
                self.precision[name] = self.decay * old + new
                self.pull[name] = self.precision[name] * anchor


def fisher_by_batch(
    net: nn.Module, parameters: Mapping[str, nn.Parameter], x: Tensor, y: Tensor, labels: Labels, batch: int
) -> dict[str, Tensor]:
    """Diagonal Fisher information, (1/B) Σ_b |b| · (∂ mean CE_b / ∂θ)², of a network in evaluation mode.

    Near an optimum the gradients of examples are nearly independent with mean zero, so |b| times the square of their
    mean approximates the mean of their squares, for one backward pass per batch.
    """
    device = next(net.parameters()).device
    total = {n: torch.zeros_like(p) for n, p in parameters.items()}
    needed = [(p, p.requires_grad) for p in parameters.values()]
    for parameter, _ in needed:
        parameter.requires_grad_(True)
    sizes = batch_sizes(len(x), batch)
    parts = list(zip(x.split(sizes), y.split(sizes), strict=True))
    with torch.enable_grad():
        for rows, truth in parts:
            logits = net(rows.to(device))
            target = truth.to(device) if labels == "true" else logits.argmax(1)
            gradients = torch.autograd.grad(
                classification.loss(logits, target), list(parameters.values()), materialize_grads=True
            )
            for name, gradient in zip(total, gradients, strict=True):
                total[name].addcmul_(gradient, gradient, value=len(rows) / len(parts))
    for parameter, before in needed:
        parameter.requires_grad_(before)
    return total


def fisher_by_example(
    net: nn.Module, parameters: Mapping[str, nn.Parameter], x: Tensor, y: Tensor, labels: Labels, batch: int = 32
) -> dict[str, Tensor]:
    """Diagonal Fisher information, (1/N) Σ_n (∂ log p(c|xₙ) / ∂θ)², with c the label; summed over p(c|xₙ) if exact."""
    if any(isinstance(m, BATCH_NORMS) and m.running_mean is None for m in net.modules()):
        raise SettingError(
            "ewc(per_example=True) needs single examples, but the batch norms of this network use the statistics of "
            "the batch; use per_example=False"
        )
    device = next(net.parameters()).device
    tensors = {n: p.detach() for n, p in parameters.items()}
    total = {n: torch.zeros_like(p) for n, p in tensors.items()}

    def negative(values: dict[str, Tensor], row: Tensor, label: Tensor) -> Tensor:
        return classification.loss(functional_call(net, values, (row.unsqueeze(0),)), label.unsqueeze(0))

    gradients = vmap(grad(negative), in_dims=(None, 0, 0))
    for rows, truth in zip(x.split(batch), y.split(batch), strict=True):
        rows = rows.to(device)
        with torch.no_grad():
            probabilities = net(rows).softmax(1)
        if labels == "exact":
            weighted = [(torch.full_like(truth, c).to(device), p) for c, p in enumerate(probabilities.unbind(1))]
        else:
            chosen = truth.to(device) if labels == "true" else probabilities.argmax(1)
            weighted = [(chosen, torch.ones_like(probabilities[:, 0]))]
        for label, weight in weighted:
            for name, gradient in gradients(tensors, rows, label).items():
                total[name] += torch.einsum("n,n...->...", weight, gradient.square()) / len(x)
    return total
