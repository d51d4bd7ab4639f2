"""Attention: packed projections are merged, and rows are computed task by task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from torch import nn

from halrp.model.layers.groupwise import GroupwiseRule, concatenate
from halrp.model.layers.registry import LayerRule, layer_rule
from halrp.model.rows import NotRowWise


@layer_rule(nn.MultiheadAttention)
class AttentionRule(GroupwiseRule):
    """It reads the weight of its output projection instead of calling that layer."""

    reads_children = True

    def row_dims_of(self, layer: nn.Module) -> Mapping[str, int]:
        """Rows come first with batch_first=True, and second without; in a mask of keys they always come first."""
        dim = 0 if cast(Any, layer).batch_first else 1
        return {"query": dim, "key": dim, "value": dim, "key_padding_mask": 0}

    def join(self, layer: nn.Module, results: Sequence[Any]) -> Any:
        """Outputs, and weights, which always have their rows first."""
        dims = (self.row_dims_of(layer)["query"], 0)
        return tuple(concatenate([result[part] for result in results], dim) for part, dim in enumerate(dims))

    def check_arguments(self, path: str, arguments: Mapping[str, Any]) -> None:
        """A mask of three dimensions has rows times heads in the first."""
        mask = arguments.get("attn_mask")
        if mask is not None and mask.dim() != 2:
            raise NotRowWise(f"{path} has an attention mask for each row")


@layer_rule(nn.TransformerEncoderLayer)
class TransformerLayerRule(LayerRule):
    """A block of layers that has a fused form."""

    def prepare_mixed(self, path: str, layer: nn.Module) -> None:
        """Decline the fused form, which reads the weights of the layers inside instead of calling them."""
        cast(Any, layer).activation_relu_or_gelu = 0
