"""Linear layers: y = W x + b."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from halrp.model import kernels
from halrp.model.layers.affine import AffineFamily, AffineRule
from halrp.model.layers.registry import layer_rule
from halrp.model.layers.stacks import LayerTasks, WeightStack, scale_and_shift
from halrp.model.rows import Rows, compute_apart, rows_of


class LinearRule(AffineRule):
    """A layer with a weight (J, I) and perhaps a bias (J,)."""

    def mixed(self, tasks: LayerTasks) -> Callable[..., Any]:
        """One product with W for all rows."""
        tasks.require_only("weight", "bias")
        return MixedLinear(tasks.path, tasks.weights(), tasks.stack("bias"), self.finish_of(tasks.layer))

    def last_dims(self, layer: nn.Module) -> int | None:
        """Every vector meets the weight."""
        return 1

    def input_rows(self, layer: nn.Module, x: Tensor) -> Tensor:
        """Every vector that the weight multiplies."""
        return x.reshape(-1, x.shape[-1])

    def affine(self, layer: nn.Module, x: Tensor) -> Tensor:
        """W x + b."""
        return F.linear(x, cast(Tensor, layer.weight), getattr(layer, "bias", None))


class LinearFamily(AffineFamily):
    """y = f(r ∘ (W (s ∘ x)) + p (q x) + b)."""

    _rule = LinearRule

    def forward(self, x: Tensor) -> Tensor:
        """Apply the factored layer to x (..., I)."""
        bias = getattr(self, "bias", None)
        return self.finish(kernels.linear(x, self.base_weight, bias, self.r, self.s, self.p, self.q))


@layer_rule(nn.Linear)
class AdaptedLinear(LinearFamily, nn.Linear):  # type: ignore[override]
    """An adapted linear layer."""


class MixedLinear:
    """y_n = f(r_t ∘ (W (s_t ∘ x_n)) + p_t (q_t x_n) + b_t) for x (N, ..., I), with biases stacked as (T, J)."""

    def __init__(
        self, path: str, weights: WeightStack, bias: Tensor | None, finish: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        self.path, self.weights, self.bias, self.finish = path, weights, bias, finish

    def __call__(self, x: Tensor) -> Tensor:
        """Apply the layer."""
        y = compute_apart(x, rows_of(x, self.path), self.weights.dense, self._one_task, self._together)
        return y if self.finish is None else self.finish(y)

    def _one_task(self, x: Tensor, task: int) -> Tensor:
        return F.linear(x, self.weights.of(task), None if self.bias is None else self.bias[task])

    def _together(self, x: Tensor, rows: Rows) -> Tensor:
        weights = self.weights
        shift = None if self.bias is None else rows.last(self.bias, x)
        if not weights.scaled:
            return scale_and_shift(F.linear(x, weights.base), None, shift)
        y = scale_and_shift(F.linear(x * rows.last(weights.s, x), weights.base), rows.last(weights.r, x), shift)
        low_rank = weights.mean and weights.mean.among(rows)
        return y.add_(rows.times(x, low_rank[1], low_rank[0])) if low_rank else y
