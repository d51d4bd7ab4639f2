"""Embeddings: a row of the weight for each token, y = W[ids].

A task's table is r ∘ W ∘ s + p q. Only the rows of the tokens at hand are built from it: a vocabulary has tens of
thousands of rows, and a batch needs some hundred.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from halrp.errors import ModelError
from halrp.model.factors import merge
from halrp.model.layers.groupwise import GroupwiseRule
from halrp.model.layers.registry import Adapted, Decision, LayerRule, layer_rule
from halrp.model.layers.stacks import LayerTasks, WeightStack
from halrp.model.rows import Rows, compute_apart, rows_of


def refuse_untrainable(layer: nn.Module) -> None:
    """Refuse tables that cannot be frozen or trained."""
    table = cast(Any, layer)
    if table.max_norm is not None:
        raise ModelError("an embedding with max_norm rewrites its weight in every forward pass; unset it")
    if table.sparse:
        raise ModelError("Adam cannot train an embedding with sparse gradients; build it with sparse=False")


class EmbeddingRule(LayerRule):
    """A table with a weight (V, D)."""

    reads_few_rows = True

    def plan(self, layer: nn.Module, leaf: str, parameter: Tensor, tied: bool) -> Decision:
        """Gradients that are divided by the frequency of tokens are those of the whole table, which is merged."""
        refuse_untrainable(layer)
        decision = super().plan(layer, leaf, parameter, tied)
        if decision.by_rule and cast(Any, layer).scale_grad_by_freq:
            return decision._replace(by_rule=False, reason="merged weight, as scale_grad_by_freq needs")
        return decision

    def last_dims(self, layer: nn.Module) -> int | None:
        """Every token is looked up."""
        return 0

    def mixed(self, tasks: LayerTasks) -> Callable[..., Any]:
        """Look up each token in the table of its row's task."""
        tasks.require_only("weight")
        return MixedEmbedding(tasks.path, tasks.weights())


@layer_rule(nn.Embedding)
class AdaptedEmbedding(Adapted, nn.Embedding):  # type: ignore[override]
    """y = r[ids] ∘ W[ids] ∘ s + p[ids] q."""

    _rule = EmbeddingRule

    def forward(self, input: Tensor) -> Tensor:
        """Look up token ids (...): (..., D). Those of `padding_idx` teach nothing, as in the plain layer."""
        ids = input.reshape(-1)
        r, p = F.embedding(ids, self.r[:, None]).squeeze(1), F.embedding(ids, self.p)
        y = merge(F.embedding(ids, self.base_weight), r, self.s, p, self.q)
        if self.padding_idx is not None and y.requires_grad:
            y = torch.where((ids == self.padding_idx)[:, None], y.detach(), y)
        return y.view(*input.shape, y.shape[1])


class MixedEmbedding:
    """y_n = r_t[ids_n] ∘ W[ids_n] ∘ s_t + p_t[ids_n] q_t for ids (N, ...)."""

    def __init__(self, path: str, weights: WeightStack) -> None:
        self.path, self.weights = path, weights

    def __call__(self, input: Tensor) -> Tensor:
        """Apply the layer; a row may be a single token."""
        ids = input.reshape(len(input), -1) if input.dim() else input
        rows = rows_of(ids, self.path, 2)
        y = compute_apart(ids, rows, self.weights.dense, self._one_task, self._together)
        return y.view(*input.shape, y.shape[-1])

    def _one_task(self, ids: Tensor, task: int) -> Tensor:
        return F.embedding(ids, self.weights.of(task))

    def _together(self, ids: Tensor, rows: Rows) -> Tensor:
        weights = self.weights
        y = F.embedding(ids, weights.base)
        if not weights.scaled:
            return y
        entry = ids + rows.tasks[:, None] * len(weights.base)
        """The position of each token's row in tables of all tasks that are laid one below the other."""
        y = y.mul_(rows.last(weights.s, y)).mul_(weights.r.view(-1)[entry].unsqueeze(-1))
        low_rank = weights.mean and weights.mean.among(rows)
        if not low_rank:
            return y
        p, q = low_rank
        return y.add_(rows.times(F.embedding(entry, p.flatten(0, 1)), q.mT))


@layer_rule(nn.EmbeddingBag)
class EmbeddingBagRule(GroupwiseRule):
    """Bags are given by offsets, so tokens are not in rows; its merged weight is looked up."""

    lacks = ("mixed", "moments")

    def plan(self, layer: nn.Module, leaf: str, parameter: Tensor, tied: bool) -> Decision:
        """The same tables are refused."""
        refuse_untrainable(layer)
        return super().plan(layer, leaf, parameter, tied)
