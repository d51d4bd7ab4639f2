"""Recurrent layers: their weights are merged, and their rows are computed task by task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

from torch import nn

from halrp.model.layers.groupwise import GroupwiseRule, concatenate
from halrp.model.layers.registry import layer_rule


@layer_rule(nn.RNNBase, nn.RNN, nn.GRU, nn.LSTM)
class RecurrentRule(GroupwiseRule):
    """Rows come first with batch_first=True only; states always have them in their second dimension."""

    copied_by_torch = True
    cudnn_eval_gradients = False
    row_dims: ClassVar[Mapping[str, int]] = {"input": 0, "hx": 1}

    def rows_first(self, layer: nn.Module) -> bool:
        """As the layer was built."""
        return bool(cast(Any, layer).batch_first)

    def join(self, results: Sequence[Any]) -> Any:
        """Outputs, and last states."""
        return tuple(concatenate([result[dim] for result in results], dim) for dim in (0, 1))
