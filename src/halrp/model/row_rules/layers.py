"""Products, and the layers that torch has as operations."""

from __future__ import annotations

from torch import Tensor

from halrp.model.row_rules.call import Call, RowDim, Rule, require
from halrp.model.row_rules.entries import first, last
from halrp.model.rows import NotRowWise


def product(left: str, right: str, *added: str) -> Rule:
    """A product over the last dimension of `left` and the last but one of `right`, with what is added to it."""

    def rule(call: Call) -> RowDim:
        a, b = call.rows(left), call.rows(right)
        rank = call.result.dim()
        positions = set()
        if a is not None:
            require(a.dim != rank - 1, "sums over rows")
            positions.add(a)
        if b is not None:
            require(b.dim != rank - 2, "sums over rows")
            positions.add(b)
        require(not (a and b) or max(a.dim, b.dim) < rank - 2, "multiplies rows with each other")
        for name in added:
            other: Tensor = call.arguments[name]
            rows = call.row_dim(other)
            if rows is not None:
                positions.add(RowDim(rows.dim + rank - other.dim(), rows.inner))
        require(len(positions) == 1, "combines rows that are in different dimensions")
        return positions.pop()

    return rule


def matrix_times_vector(call: Call) -> RowDim:
    """A product of (N, I) with (I,)."""
    rows = call.rows_of("self")
    require(rows.dim == 0, "sums over rows")
    return rows


def distances(call: Call) -> RowDim:
    """The distances of (…, P, I) and (…, R, I), both with the rows before these dimensions."""
    rows = call.rows("x1")
    if rows is None or rows != call.rows("x2") or rows.dim >= call.rank("x1") - 2:
        raise NotRowWise("combines rows that are in different dimensions")
    require(call.rank("x1") == call.rank("x2"), "combines rows that are in different dimensions")
    return rows


def convolution(call: Call) -> RowDim:
    """A convolution of (N, C, *space)."""
    return first("input", call.rank("weight"))(call)  # type: ignore[return-value]


def batch_norm(call: Call) -> RowDim:
    """Normalises channels: by running statistics, or, if the rows are among the channels, by their own."""
    rows = call.rows("input")
    if rows is not None and rows.dim == 1:
        others = (call.rows(name) for name in ("weight", "bias", "running_mean", "running_var"))
        require(all(other in (None, RowDim(0, rows.inner)) for other in others), "mixes channels of different rows")
        return rows
    rows = call.rows_of("input")
    by_batch = call.arguments.get("training", False) or call.arguments.get("running_mean") is None
    require(not by_batch, "normalises by the statistics of the batch")
    return rows


def layer_norm(call: Call) -> RowDim:
    """Normalises the last dimensions."""
    return last(len(call.arguments["normalized_shape"]), "input")(call)  # type: ignore[return-value]


def group_norm(call: Call) -> RowDim:
    """Normalises groups of channels of (N, C, *space)."""
    return first("input")(call)  # type: ignore[return-value]


def attention(call: Call) -> RowDim:
    """Queries, keys and values (…, length, features), whose rows are in the same dimension, and perhaps a mask."""
    states = {name: call.rows(name) for name in ("query", "key", "value")}
    rows = states["query"]
    require(len(set(states.values())) == 1, "combines rows that are in different dimensions")
    if rows is None or rows.dim >= call.rank("query") - 2:
        raise NotRowWise("attends from one row to others")
    require(not call.arguments.get("dropout_p"), "drops entries at random")
    mask = call.arguments.get("attn_mask", call.arguments.get("attn_bias"))
    of_mask = None if mask is None else call.row_dim(mask)
    if of_mask is not None:
        same = RowDim(of_mask.dim + call.rank("query") - mask.dim(), of_mask.inner) == rows
        require(same, "has a mask whose rows are in another dimension")
    return rows
