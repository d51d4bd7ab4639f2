"""Which operations keep the rows of a batch apart, and where they put them.

A rule says in which dimension of its result an operation puts the rows, given the dimension in which its inputs have
them, or raises `NotRowWise`. An operation without a rule is refused: what is not known to be right is not assumed.

Rows may share their dimension with others: attention folds its heads into it. `RowDim(dim, inner)` means that entry
`row · inner + j` of that dimension belongs to `row`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from halrp.model.rows import NotRowWise


class RowDim(NamedTuple):
    """The dimension of a tensor that holds the rows, each `inner` times in succession."""

    dim: int
    inner: int = 1


class Call(NamedTuple):
    """One operation: its arguments by name, its result, and what is known of rows."""

    arguments: Mapping[str, Any]
    result: Tensor
    """The first tensor of the result."""
    row_dim: Callable[[object], RowDim | None]
    """The rows of a tensor; None if it has none."""
    multiple: Callable[[object], int | None]
    """The factor of a size that is a multiple of the number of rows, or None."""

    def tensors(self) -> list[Tensor]:
        """Every tensor among the arguments, in order."""
        values = self.arguments.values()
        return [t for value in values for t in (value if isinstance(value, (list, tuple)) else (value,)) if _is(t)]

    def rows_of(self, name: str) -> RowDim:
        """The rows of an argument, which must be the only one that has any."""
        tensor = self.arguments[name]
        if any(self.row_dim(other) is not None for other in self.tensors() if other is not tensor):
            raise NotRowWise("has rows in an argument that must not depend on them")
        rows = self.row_dim(tensor)
        assert rows is not None
        return rows

    def dims(self, name: str, rank: int) -> list[int]:
        """A dimension or a list of them, counted from the front; None or an empty list means all."""
        value = self.arguments.get(name)
        chosen = [value] if isinstance(value, int) else list(value or range(rank))
        return [dim % rank for dim in chosen] if rank else []


Rule = Callable[[Call], "RowDim | None"]


def _is(value: object) -> bool:
    return isinstance(value, Tensor)


def _rank(call: Call, name: str = "self") -> int:
    tensor: Tensor = call.arguments[name]
    return tensor.dim()


def _require(holds: bool, problem: str) -> None:
    if not holds:
        raise NotRowWise(problem)


# ---- entries apart ----------------------------------------------------------------------------------------------


def pointwise(call: Call) -> RowDim | None:
    """Entries meet those at the same position after broadcasting: rows must be in the same dimension from behind."""
    rank, positions = call.result.dim(), set()
    for tensor in call.tensors():
        rows = call.row_dim(tensor)
        if rows is not None:
            positions.add(RowDim(rows.dim + rank - tensor.dim(), rows.inner))
    _require(len(positions) == 1, "combines rows that are in different dimensions")
    return positions.pop()


def constant(call: Call) -> RowDim | None:
    """The same number everywhere, so rows are wherever the size is theirs."""
    sizes = [(dim, call.multiple(size)) for dim, size in enumerate(call.result.shape)]
    dims = [RowDim(dim, factor) for dim, factor in sizes if factor is not None]
    _require(len(dims) <= 1, "makes a tensor with two dimensions of rows")
    return dims[0] if dims else None


# ---- along dimensions -------------------------------------------------------------------------------------------


def reduction(call: Call) -> RowDim:
    """Combines the entries along dimensions, which must not be that of the rows."""
    rows, rank = call.rows_of("self"), _rank(call)
    dims = call.dims("dim", rank)
    _require(rows.dim not in dims, "combines rows")
    removed = 0 if call.arguments.get("keepdim") else sum(dim < rows.dim for dim in dims)
    return RowDim(rows.dim - removed, rows.inner)


def along(call: Call) -> RowDim:
    """Combines the entries along a dimension, and keeps it."""
    rows = call.rows_of("self")
    name = "dim" if "dim" in call.arguments else "dims"
    _require(rows.dim not in call.dims(name, _rank(call)), "combines rows")
    return rows


def last(count: int, name: str = "self") -> Rule:
    """Combines the last dimensions."""

    def rule(call: Call) -> RowDim:
        rows = call.rows_of(name)
        _require(rows.dim < _rank(call, name) - count, "combines rows")
        return rows

    return rule


def first(name: str) -> Rule:
    """Treats the entries of the first dimension independently."""

    def rule(call: Call) -> RowDim:
        rows = call.rows_of(name)
        _require(rows.dim == 0, f"sees rows in dimension {rows.dim}")
        return rows

    return rule


# ---- views ------------------------------------------------------------------------------------------------------


def view(call: Call) -> RowDim:
    """The same entries in the same order under other sizes."""
    rows, before = call.rows_of("self"), call.arguments["self"].shape
    span = rows.inner * math.prod(before[rows.dim + 1 :])
    """Entries in succession that belong to one row."""
    after = call.result.shape
    for dim, size in enumerate(after):
        factor = call.multiple(size)
        if factor is not None:
            trailing = math.prod(after[dim + 1 :])
            same = factor * trailing == span and math.prod(after[:dim]) == math.prod(before[: rows.dim])
            _require(same, "splits or joins rows in an order that is not theirs")
            return RowDim(dim, factor)
    raise NotRowWise("gives a shape without a dimension of rows")


def permute(call: Call) -> RowDim:
    """Dimensions in another order."""
    rows, rank = call.rows_of("self"), _rank(call)
    order = [dim % rank for dim in call.arguments["dims"]]
    return RowDim(order.index(rows.dim), rows.inner)


def transpose(call: Call) -> RowDim:
    """Two dimensions exchanged."""
    rows, rank = call.rows_of("self"), _rank(call)
    dims = [call.arguments.get(name, default) % rank for name, default in (("dim0", -1), ("dim1", -2))] if rank else []
    swap = dict(zip(dims, reversed(dims), strict=True))
    return RowDim(swap.get(rows.dim, rows.dim), rows.inner)


def unsqueeze(call: Call) -> RowDim:
    """A new dimension of size one."""
    rows = call.rows_of("self")
    dim = call.arguments["dim"] % (_rank(call) + 1)
    return RowDim(rows.dim + (dim <= rows.dim), rows.inner)


def squeeze(call: Call) -> RowDim:
    """Without some dimensions of size one."""
    rows, shape = call.rows_of("self"), call.arguments["self"].shape
    gone = [dim for dim in call.dims("dim", len(shape)) if isinstance(shape[dim], int) and shape[dim] == 1]
    return RowDim(rows.dim - sum(dim < rows.dim for dim in gone), rows.inner)


def expand(call: Call) -> RowDim | None:
    """Repeated along dimensions of size one; for a tensor without rows, perhaps once for each row."""
    rows = call.row_dim(call.arguments["self"])
    if rows is None:
        return constant(call)
    return RowDim(rows.dim + call.result.dim() - _rank(call), rows.inner)


def part(call: Call) -> RowDim:
    """Some of the entries along a dimension, which stays; rows may only be taken all together."""
    rows = call.rows_of("self")
    if rows.dim in call.dims("dim", _rank(call)):
        same = call.multiple(call.result.shape[rows.dim]) == rows.inner
        _require(same and call.arguments.get("step", 1) == 1, "takes some of the rows")
    return rows


def select(call: Call) -> RowDim:
    """One entry along a dimension, which is removed."""
    rows, rank = call.rows_of("self"), _rank(call)
    dim = call.arguments["dim"] % rank
    _require(dim != rows.dim, "takes a single row")
    return RowDim(rows.dim - (dim < rows.dim), rows.inner)


def concatenate(call: Call) -> RowDim:
    """Tensors one after the other along a dimension, all with rows in another one."""
    tensors, new = call.arguments["tensors"], call.result.dim() > call.arguments["tensors"][0].dim()
    positions = {call.row_dim(tensor) for tensor in tensors}
    rows = positions.pop() if len(positions) == 1 else None
    if rows is None:
        raise NotRowWise("joins tensors whose rows are in different dimensions, or that have none")
    dim = call.arguments.get("dim", 0) % call.result.dim()
    if new:
        return RowDim(rows.dim + (dim <= rows.dim), rows.inner)
    _require(dim != rows.dim, "joins rows")
    return rows


def pad(call: Call) -> RowDim:
    """Entries added at the ends of the last dimensions."""
    rows = call.rows_of("self")
    name = "pad" if "pad" in call.arguments else "padding"
    _require(rows.dim < _rank(call) - len(call.arguments[name]) // 2, "adds rows")
    return rows


def repeat(call: Call) -> RowDim | None:
    """Repeated along dimensions, not that of the rows; a tensor without rows perhaps once for each row."""
    repeats = call.arguments["repeats"]
    if call.row_dim(call.arguments["self"]) is None:
        return constant(call)
    rows = call.rows_of("self")
    dim = rows.dim + len(repeats) - _rank(call)
    _require(repeats[dim] == 1, "repeats rows")
    return RowDim(dim, rows.inner)


def gather(call: Call) -> RowDim:
    """Entries looked up along a dimension, each row in its own."""
    rows = pointwise(call)
    assert rows is not None
    dim = call.arguments["dim"] % _rank(call)
    both = all(call.row_dim(call.arguments[name]) is not None for name in ("self", "index"))
    _require(dim != rows.dim and both, "looks up entries of other rows")
    return rows


def index(call: Call) -> RowDim:
    """Entries looked up along dimensions that come after the rows."""
    rows = call.rows_of("self")
    _require(all(each is None for each in call.arguments["indices"][: rows.dim + 1]), "looks up rows")
    return rows


# ---- products and layers ----------------------------------------------------------------------------------------


def product(left: str, right: str, *added: str) -> Rule:
    """A product over the last dimension of `left` and the last but one of `right`, with what is added to it."""

    def rule(call: Call) -> RowDim:
        a, b = call.row_dim(call.arguments[left]), call.row_dim(call.arguments[right])
        rank = call.result.dim()
        positions = set()
        if a is not None:
            _require(a.dim != rank - 1, "sums over rows")
            positions.add(a)
        if b is not None:
            _require(b.dim != rank - 2, "sums over rows")
            positions.add(b)
        _require(not (a and b) or max(a.dim, b.dim) < rank - 2, "multiplies rows with each other")
        for name in added:
            other: Tensor = call.arguments[name]
            rows = call.row_dim(other)
            if rows is not None:
                positions.add(RowDim(rows.dim + rank - other.dim(), rows.inner))
        _require(len(positions) == 1, "combines rows that are in different dimensions")
        return positions.pop()

    return rule


def convolution(call: Call) -> RowDim:
    """A convolution of (N, C, *space)."""
    rows = first("input")(call)
    assert rows is not None
    _require(_rank(call, "input") == _rank(call, "weight"), "sees inputs without a dimension of rows")
    return rows


def batch_norm(call: Call) -> RowDim:
    """Normalises channels by running statistics, not by those of the batch."""
    rows = call.rows_of("input")
    _require(not call.arguments.get("training", False), "normalises by the statistics of the batch")
    _require(call.arguments.get("running_mean") is not None, "normalises by the statistics of the batch")
    _require(rows.dim != 1, "sees rows in dimension 1")
    return rows


def layer_norm(call: Call) -> RowDim:
    """Normalises the last dimensions."""
    return last(len(call.arguments["normalized_shape"]), "input")(call)  # type: ignore[return-value]


def group_norm(call: Call) -> RowDim:
    """Normalises groups of channels of (N, C, *space)."""
    return first("input")(call)  # type: ignore[return-value]


def attention(call: Call) -> RowDim:
    """Queries, keys and values (…, length, features), whose rows are in the same dimension, and perhaps a mask."""
    states = {name: call.row_dim(call.arguments[name]) for name in ("query", "key", "value")}
    rows = states["query"]
    _require(len(set(states.values())) == 1, "combines rows that are in different dimensions")
    if rows is None or rows.dim >= _rank(call, "query") - 2:
        raise NotRowWise("attends from one row to others")
    _require(not call.arguments.get("dropout_p"), "drops entries at random")
    mask = call.arguments.get("attn_mask", call.arguments.get("attn_bias"))
    of_mask = None if mask is None else call.row_dim(mask)
    if of_mask is not None:
        same = RowDim(of_mask.dim + _rank(call, "query") - mask.dim(), of_mask.inner) == rows
        _require(same, "has a mask whose rows are in another dimension")
    return rows


def embedding(call: Call) -> RowDim:
    """Rows of a table at given indices."""
    return call.rows_of("indices")


_RULES: Sequence[tuple[Rule, str]] = (
    (pointwise, "_to_copy copy_ hardswish hardswish_ masked_fill_ detach alias lift_fresh lift_fresh_copy _conj"),
    (pointwise, "fill_.Scalar fill_.Tensor zero_ clone native_dropout _prelu_kernel log_sigmoid_forward contiguous"),
    (constant, "zeros ones full new_zeros new_ones new_full zeros_like ones_like full_like"),
    (
        reduction,
        "sum.dim_IntList mean.dim amax amin max.dim min.dim argmax argmin prod.dim_int any.dim all.dim logsumexp",
    ),
    (
        reduction,
        "var.correction std.correction var_mean.correction std_mean.correction linalg_vector_norm norm.ScalarOpt_dim",
    ),
    (along, "_softmax _log_softmax cumsum sort sort.stable topk flip roll glu logcumsumexp"),
    (last(2), "tril triu"),
    (last(3), "pixel_shuffle pixel_unshuffle"),
    (last(1), "avg_pool1d max_pool1d adaptive_avg_pool1d upsample_linear1d upsample_nearest1d"),
    (last(2), "avg_pool2d max_pool2d_with_indices _adaptive_avg_pool2d adaptive_max_pool2d upsample_nearest2d"),
    (last(2), "upsample_bilinear2d upsample_bicubic2d upsample_nearest2d.vec upsample_bilinear2d.vec"),
    (last(2), "upsample_bicubic2d.vec"),
    (last(3), "avg_pool3d max_pool3d_with_indices _adaptive_avg_pool3d adaptive_max_pool3d upsample_nearest3d"),
    (view, "view _unsafe_view reshape view_copy"),
    (permute, "permute"),
    (transpose, "transpose.int t transpose_ mT"),
    (unsqueeze, "unsqueeze"),
    (squeeze, "squeeze squeeze.dim squeeze.dims"),
    (expand, "expand"),
    (part, "slice.Tensor split.Tensor split_with_sizes unsafe_split.Tensor index_select narrow"),
    (select, "select.int unbind.int"),
    (concatenate, "cat stack"),
    (pad, "constant_pad_nd reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d pad"),
    (repeat, "repeat"),
    (gather, "gather"),
    (index, "index.Tensor"),
    (product("self", "mat2"), "mm bmm"),
    (product("mat1", "mat2", "self"), "addmm"),
    (product("batch1", "batch2", "self"), "baddbmm"),
    (convolution, "convolution"),
    (batch_norm, "native_batch_norm _native_batch_norm_legit_no_training cudnn_batch_norm"),
    (layer_norm, "native_layer_norm _fused_rms_norm"),
    (group_norm, "native_group_norm"),
    (attention, "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_attention_math"),
    (attention, "_scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention"),
    (embedding, "embedding"),
)
_BY_NAME = {
    f"aten.{name}" if "." in name else f"aten.{name}.default": rule for rule, names in _RULES for name in names.split()
}
SHAPES = frozenset({view, expand, constant, repeat, part, group_norm})
"""Rules of operations whose arguments may be sizes, and so the number of rows."""


def rule_of(operation: torch._ops.OpOverload) -> Rule | None:
    """The rule of an operation, or None if it is not known to keep rows apart."""
    rule = _BY_NAME.get(str(operation))
    if rule is None and torch.Tag.pointwise in operation.tags:
        return pointwise
    return rule
