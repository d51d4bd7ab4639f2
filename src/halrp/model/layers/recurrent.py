"""Recurrent layers: their weights are merged, and their rows are computed task by task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from torch import nn

from halrp.model.layers.groupwise import GroupwiseRule, concatenate
from halrp.model.layers.registry import layer_rule


@layer_rule(nn.RNNBase, nn.RNN, nn.GRU, nn.LSTM)
class RecurrentRule(GroupwiseRule):
    """Rows come first with batch_first=True, and second without; states always have them in their second dimension."""

    copied_by_torch = True
    cudnn_eval_gradients = False

    def row_dims_of(self, layer: nn.Module) -> Mapping[str, int]:
        """Those of inputs and first states."""
        return {"input": _first_dim(layer), "hx": 1}

    def join(self, layer: nn.Module, results: Sequence[Any]) -> Any:
        """Outputs, and last states."""
        dims = (_first_dim(layer), 1)
        return tuple(concatenate([result[part] for result in results], dim) for part, dim in enumerate(dims))


def _first_dim(layer: nn.Module) -> int:
    """The dimension of the rows in inputs and outputs."""
    return 0 if cast(Any, layer).batch_first else 1
