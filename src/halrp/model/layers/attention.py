"""Attention: packed projections are merged, and rows are computed task by task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, cast

from torch import nn

from halrp.model.layers.groupwise import GroupwiseRule
from halrp.model.layers.registry import LayerRule, layer_rule
from halrp.model.rows import NotRowWise


@layer_rule(nn.MultiheadAttention)
class AttentionRule(GroupwiseRule):
    """It reads the weight of its output projection instead of calling that layer."""

    reads_children = True
    row_dims: ClassVar[Mapping[str, int]] = {"query": 0, "key": 0, "value": 0, "key_padding_mask": 0}

    def rows_first(self, layer: nn.Module) -> bool:
        """As the layer was built."""
        return bool(cast(Any, layer).batch_first)

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
