"""`l2`: fine-tuning with a quadratic penalty on drift (the L2 baseline of Kirkpatrick et al., 2017).

At every later task the loss is CE + λ Σ (θ − θ*)² over the parameters that all tasks share, where θ* are their values
at the end of the previous task. Batch norms are shared with their running statistics, whose drift adds to forgetting.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from halrp.lab.methods.finetune import FineTune
from halrp.lab.methods.network import add_prefix, strip_prefix
from halrp.lab.methods.protocol import Context, State
from halrp.lab.streams import Task


class Anchored(FineTune):
    """Fine-tuning with a quadratic penalty on shared parameters, of gradient strength · (precision ∘ θ − pull).

    Any sum of quadratic penalties Σᵢ ½ cᵢ Fᵢ (θ − θᵢ*)² has a gradient of this form, with precision Σ cᵢFᵢ and
    pull Σ cᵢFᵢθᵢ*, so two tensors per parameter are enough for any number of tasks.
    """

    def __init__(self, context: Context, strength: float, l2: float = 1e-4) -> None:
        """Take the factor on the gradient of the penalty."""
        super().__init__(context, l2)
        self.strength = strength
        self.precision: dict[str, Tensor] = {}
        self.pull: dict[str, Tensor] = {}

    def hooks(self) -> dict[str, Any]:
        """A hook that adds the penalty's gradient after every backward pass; none if the strength is 0."""
        if self.strength == 0:
            return {}
        names, parameters = zip(*self.shared().items(), strict=True)
        precision, pull = [self.precision[n] for n in names], [self.pull[n] for n in names]
        strength = self.strength * self.context.recipe.gradient_scale

        def add_penalty() -> None:
            drift = torch._foreach_mul([p.detach() for p in parameters], precision)
            torch._foreach_sub_(drift, pull)
            torch._foreach_add_([_gradient(p) for p in parameters], drift, alpha=strength)

        return {"after_backward": add_penalty}

    def penalty(self) -> Tensor:
        """The squared norm ‖precision ∘ θ − pull‖² over shared parameters; zero at the anchor."""
        shared = self.shared()
        terms = [(self.precision[n] * p.detach() - self.pull[n]).square().sum() for n, p in shared.items()]
        return torch.stack(terms).sum()

    def state(self) -> State:
        """The state of fine-tuning, and the anchors."""
        plain = super().state()
        anchors = add_prefix("precision", self.precision) | add_prefix("pull", self.pull)
        return State(plain.tensors | anchors, plain.values)

    def restore(self, state: State) -> None:
        """Continue from a state."""
        anchors = {n: t for n, t in state.tensors.items() if n.startswith(("precision/", "pull/"))}
        super().restore(State({n: t for n, t in state.tensors.items() if n not in anchors}, state.values))
        shared = self.shared()
        self.precision, self.pull = (
            {n: torch.empty_like(shared[n]).copy_(t).detach() for n, t in strip_prefix(prefix, anchors).items()}
            for prefix in ("precision", "pull")
        )


class Drift(Anchored):
    """One anchor, the previous task's parameters, all with the same weight."""

    def __init__(self, context: Context, strength: float = 10.0, l2: float = 1e-4) -> None:
        """Take λ, by default the best on validation data of CIFAR100-Split; the gradient is 2λ(θ − θ*), without ½."""
        super().__init__(context, 2 * strength, l2)

    def consolidate(self, task: Task) -> None:
        """Make the current shared parameters the anchor."""
        self.precision = {n: torch.ones_like(p) for n, p in self.shared().items()}
        self.pull = {n: p.detach().clone() for n, p in self.shared().items()}


def _gradient(parameter: nn.Parameter) -> Tensor:
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad
