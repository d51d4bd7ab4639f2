"""Embeddings: a row of the weight for each token."""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor, nn

from halrp.errors import ModelError
from halrp.model.layers.groupwise import GroupwiseRule
from halrp.model.layers.registry import Decision, layer_rule


@layer_rule(nn.Embedding)
class EmbeddingRule(GroupwiseRule):
    """A table whose merged weight is looked up."""

    def plan(self, layer: nn.Module, leaf: str, parameter: Tensor, tied: bool) -> Decision:
        """Refuse tables that cannot be frozen or trained."""
        table = cast(Any, layer)
        if table.max_norm is not None:
            raise ModelError("an embedding with max_norm rewrites its weight in every forward pass; unset it")
        if table.sparse:
            raise ModelError("Adam cannot train an embedding with sparse gradients; build it with sparse=False")
        return super().plan(layer, leaf, parameter, tied)


@layer_rule(nn.EmbeddingBag)
class EmbeddingBagRule(EmbeddingRule):
    """Bags are given by offsets, so tokens are not in rows."""

    lacks = ("mixed", "moments")
